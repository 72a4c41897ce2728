//! Cases of matrix products: `gemv.cu`, `gemv_wide.cu`, `gemm.cu`, `gemm_hopper.cu` and their fallbacks.

use super::super::abi::{
    Gemm, GemmGated, GemmHopper, Gemv, GemvGated, GemvQkv, GemvWide, MatrixJob, MatrixJobs, RopeTarget, RoundedRows,
    RowState, SHARING, ScaleProducts, SequenceView, SplitRows, Stored, TraceView, type_number,
};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::{HOPPER_BLOCK, WIDE_OUTS, hopper_grid};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Bench, U, Want, bound, exact, near, power, rounding, wide};
use super::rows::{EPS, OFFSET, activate, norm};
use crate::model::weights::DType;

/// In-features: of narrow products more than the eight warps take at once, of Hopper's more than its stages hold.
const K: usize = 1160;
const GEMM_K: usize = 168;
const HOPPER_K: usize = 6 * 64 + 72;

/// Out-features of the two matrices of [`Product::linear`], narrow and wide, and of both of [`Product::gated`].
const OUTS: [usize; 2] = [40, 24];
const GEMM_OUTS: [usize; 2] = [72, 40];
const GATES: [usize; 2] = [40; 2];

/// Rows as a kernel multiplies them.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    F32,
    Normed,
    /// f16 with shared scales.
    Rounded,
}

/// Rows of x and two matrices, of which the first has output scales.
struct Product<'b> {
    bench: &'b Bench<'b>,
    kind: Rows,
    rows: usize,
    width: usize,
    outs: [usize; 2],
    x: DevicePtr<f32>,
    norm_weight: DevicePtr<f32>,
    rounded: RoundedRows,
    w: [DevicePtr<Stored>; 2],
    scales: DevicePtr<f32>,
    /// Without the terms that one output adds: `[rows, width]` and `[outs, width]`.
    inputs: Vec<f64>,
    matrices: [Vec<f64>; 2],
    bound: f64,
}

impl<'b> Product<'b> {
    fn new(
        bench: &'b Bench<'b>,
        kind: Rows,
        dtype: DType,
        (rows, width): (usize, usize),
        outs: [usize; 2],
    ) -> Result<Product<'b>, CudaError> {
        let mut noise = Noise(1 + rows as u64);
        let mut x = noise.floats(rows * width, 1.0);
        let norm_weight = noise.floats(width, 1.0);
        let (mut rounded, mut inputs) = (RoundedRows::default(), Vec::new());
        if kind == Rows::Rounded {
            (rounded, inputs) = bench.put_rounded(&x, width)?;
        } else {
            x.iter_mut().step_by(37).for_each(|x| *x *= 100.0); // outliers, as in real activations
            for row in x.chunks(width) {
                inputs.extend(if kind == Rows::Normed { norm(row, &norm_weight) } else { wide(row) });
            }
        }
        let (first, w) = bench.put_as(&noise.floats(outs[0] * width, 0.1), dtype)?;
        let scaled = w.iter().enumerate().map(|(i, w)| f64::from(*w) * f64::from(power(i / width))).collect();
        let (second, w) = bench.put_as(&noise.floats(outs[1] * width, 0.1), dtype)?;
        // narrow: two f16 terms of x, or three bf16 terms of x and of f32 weights, in two steps of 16 per partial sum, then the
        // partial sums of a lane and of the warps; wide: chains of 32 in two steps, then the chains
        let bound = match (kind, dtype) {
            (Rows::Rounded, _) => bound(2, width / 32 + 48),
            (_, DType::F32) => bound(18, width / 256 + 24) + 4.0 * U,
            _ => bound(4, width / 256 + 24) + 4.0 * U,
        };
        Ok(Product {
            bench,
            kind,
            rows,
            width,
            outs,
            x: bench.put(&x)?,
            norm_weight: bench.put(&norm_weight)?,
            rounded,
            w: [first, second],
            scales: bench.put(&(0..outs[0]).map(power).collect::<Vec<f32>>())?,
            inputs,
            matrices: [scaled, wide(&w)],
            bound,
        })
    }

    fn job(&self, matrix: usize, y: DevicePtr<f32>, bias: DevicePtr<f32>) -> MatrixJob {
        let scales = if matrix == 0 { self.scales } else { DevicePtr::NULL };
        MatrixJob { w: self.w[matrix], scales, bias, y, outs: self.outs[matrix] as i32, ..MatrixJob::default() }
    }

    /// Blocks of `outs` outputs of both matrices.
    fn blocks(&self, outs: usize) -> usize {
        self.outs.map(|o| o.div_ceil(outs)).iter().sum()
    }

    /// One output: the sum and its scale.
    fn dot(&self, row: usize, matrix: usize, out: usize) -> (f64, f64) {
        let (x, w) = (&self.inputs[row * self.width..][..self.width], &self.matrices[matrix][out * self.width..]);
        x.iter().zip(w).fold((0.0, 0.0), |(sum, scale), (x, w)| (sum + x * w, scale + (x * w).abs()))
    }

    /// Both matrices, the first with a bias; added to y unless rows are normed.
    fn linear(&self, launch: impl FnOnce(MatrixJobs, Int) -> Result<(), CudaError>) -> Result<(), CudaError> {
        let (bench, add) = (self.bench, self.kind != Rows::Normed);
        let mut noise = Noise(99);
        let bias = noise.floats(self.outs[0], 1.0);
        let before = self.outs.map(|outs| noise.floats(self.rows * outs, 1.0));
        let y = [bench.put(&before[0])?, bench.put(&before[1])?];
        let jobs = [self.job(0, y[0], bench.put(&bias)?), self.job(1, y[1], DevicePtr::NULL), MatrixJob::default()];
        launch(jobs, add.into())?;
        for (matrix, outs) in self.outs.into_iter().enumerate() {
            let want = (0..self.rows * outs).map(|i| {
                let (sum, scale) = self.dot(i / outs, matrix, i % outs);
                let bias = if matrix == 0 { f64::from(bias[i % outs]) } else { 0.0 };
                let before = if add { f64::from(before[matrix][i]) } else { 0.0 };
                near(sum + bias + before, scale + bias.abs() + before.abs(), self.bound)
            });
            bench.compare(&format!("y of matrix {matrix}"), y[matrix], want)?;
        }
        Ok(())
    }

    /// Gate and up with SiLU, and with GELU and biases; then the same, rounded, where rows are.
    fn gated(&self, launch: impl Fn(MatrixJobs, Int) -> Result<(), CudaError>) -> Result<(), CudaError> {
        let (bench, outs) = (self.bench, self.outs[0]);
        let biases = [Noise(5).floats(outs, 1.0), Noise(6).floats(outs, 1.0)];
        let on_device = [bench.put(&biases[0])?, bench.put(&biases[1])?];
        for (gelu, case) in [(false, "SiLU"), (true, "GELU with biases")] {
            let y = bench.room::<f32>(self.rows * outs)?;
            let bias = |i: usize| if gelu { on_device[i] } else { DevicePtr::NULL };
            let mut jobs = [self.job(0, y, bias(0)), self.job(1, DevicePtr::NULL, bias(1)), MatrixJob::default()];
            launch(jobs, gelu.into())?;
            let want = (0..self.rows * outs).map(|i| {
                let [(gate, gate_scale), (up, up_scale)] = [0, 1].map(|matrix| {
                    let (sum, scale) = self.dot(i / outs, matrix, i % outs);
                    let bias = if gelu { f64::from(biases[matrix][i % outs]) } else { 0.0 };
                    (sum + bias, scale + bias.abs())
                });
                // |act'| ≤ 1.13 and |act(x)| ≤ |x|; the activation's own error, 16 U, is less than the bound
                let lost = 1.2 * gate_scale * (up.abs() + self.bound * up_scale) + up_scale * gate.abs();
                let value = activate(gate, gelu) * up;
                near(value, lost + value.abs(), self.bound)
            });
            bench.compare(case, y, want)?;
            if self.kind == Rows::Rounded {
                jobs[0].rounded = bench.rounded_room(self.rows, outs)?;
                launch(jobs, gelu.into())?;
                let want = wide(&bench.get(y, self.rows * outs)?);
                bench.compare_rounded(&format!("{case}, rounded"), (jobs[0].rounded, outs), &want, SHARING, 0.0)?;
            }
        }
        Ok(())
    }
}

/// `block`: outputs per block.
pub fn gemv(kernel: &Kernel<Gemv>, bench: &Bench, dtype: DType, rows: usize, block: usize) -> Result<(), CudaError> {
    let product = Product::new(bench, Rows::F32, dtype, (rows, K), OUTS)?;
    product.linear(|jobs, accumulate| {
        let parameters = Gemv { x: product.x, jobs, k: K.into(), rows: rows.into(), accumulate };
        bench.device.launch(kernel, [product.blocks(block), 1, 1], &parameters)
    })
}

/// Without rotation; then queries of two heads (first matrix), and a key and a value head (second), in caches of f16 and f32.
/// Row r is at position r.
pub fn gemv_qkv(
    kernel: &Kernel<GemvQkv>,
    bench: &Bench,
    dtype: DType,
    rows: usize,
    block: usize,
) -> Result<(), CudaError> {
    const HEAD_DIM: usize = 32;
    const HALF: usize = HEAD_DIM / 2;
    const CAPACITY: usize = 64;
    const LAYER: usize = 1;
    let launch = |product: &Product, jobs: MatrixJobs, to| {
        let blocks = jobs.iter().map(|job| (job.outs as usize).div_ceil(block)).sum();
        let (x, norm_weight, rows) = (product.x, product.norm_weight, rows.into());
        let parameters = GemvQkv { x, norm_weight, norm_offset: OFFSET, eps: EPS, jobs, k: K.into(), rows, to };
        bench.device.launch(kernel, [blocks, 1, 1], &parameters)
    };
    let product = Product::new(bench, Rows::Normed, dtype, (rows, K), OUTS)?;
    product.linear(|jobs, _| launch(&product, jobs, RopeTarget::default()))?;

    let product = Product::new(bench, Rows::Normed, dtype, (rows, K), [2 * HEAD_DIM, HEAD_DIM])?;
    let angle = |i: usize| (i / HALF) as f64 * 0.8f64.powi((i % HALF) as i32);
    let table = |f: fn(f64) -> f64| (0..CAPACITY * HALF).map(|i| f(angle(i)) as f32).collect::<Vec<f32>>();
    let (cos, sin, query_scale) = (table(f64::cos), table(f64::sin), 0.25f32);
    let cached = 2 * CAPACITY * HEAD_DIM;
    let (k, v) = (bench.room::<u16>(cached)?, bench.room::<f32>(cached)?);
    let (capacity, trace) = (CAPACITY as u32, TraceView::default());
    let view = SequenceView { k: k.cast(), v: v.cast(), capacity, first_traced_row: 0, trace };
    let states: Vec<RowState> = (0..rows as i32).map(|position| RowState { position, ..RowState::default() }).collect();
    let to = RopeTarget {
        cos: bench.put(&cos)?,
        sin: bench.put(&sin)?,
        rows: bench.put(&states)?,
        sequences: bench.put(&[view])?,
        layer: LAYER as i32,
        kv_heads: 1,
        head_dim: HEAD_DIM as i32,
        query_scale,
        k_type: type_number(DType::F16),
        v_type: type_number(DType::F32),
    };
    let queries = bench.room::<f32>(rows * 2 * HEAD_DIM)?;
    let cached_job = product.job(1, DevicePtr::NULL, DevicePtr::NULL);
    launch(&product, [product.job(0, queries, DevicePtr::NULL), cached_job, cached_job], to)?;

    let rotated = |row: usize, matrix: usize, i: usize, by: f32, bound: f64| {
        let (head, i, at) = (i / HEAD_DIM * HEAD_DIM, i % HEAD_DIM, row * HALF + i % HALF);
        let (own, own_scale) = product.dot(row, matrix, head + i);
        let (other, other_scale) = product.dot(row, matrix, head + (i + HALF) % HEAD_DIM);
        let (c, s, by) = (f64::from(cos[at]), f64::from(sin[at]), f64::from(by));
        let sign = if i < HALF { -1.0 } else { 1.0 };
        near((own * c + sign * other * s) * by, (own_scale * c.abs() + other_scale * s.abs()) * by, bound)
    };
    let lost = product.bound + 8.0 * U;
    let (key_bound, each) = (product.bound + rounding(DType::F16), rows * HEAD_DIM);
    let first = LAYER * CAPACITY * HEAD_DIM;
    let keys = bench.get_as(k.add(first).cast(), DType::F16, each)?;
    let want = (0..2 * each).map(|i| rotated(i / (2 * HEAD_DIM), 0, i % (2 * HEAD_DIM), query_scale, lost));
    bench.compare("rotated queries", queries, want)?;
    bench.check("cached keys", keys, (0..each).map(|i| rotated(i / HEAD_DIM, 1, i % HEAD_DIM, 1.0, key_bound)));
    let value = |i: usize| {
        let (sum, scale) = product.dot(i / HEAD_DIM, 1, i % HEAD_DIM);
        near(sum, scale, lost)
    };
    bench.compare("cached values", v.add(first), (0..each).map(value))
}

/// `block`: gates per block.
pub fn gemv_gated(
    kernel: &Kernel<GemvGated>,
    bench: &Bench,
    dtype: DType,
    rows: usize,
    block: usize,
) -> Result<(), CudaError> {
    let product = Product::new(bench, Rows::Normed, dtype, (rows, K), GATES)?;
    product.gated(|jobs, activation| {
        let (x, norm_weight, rows) = (product.x, product.norm_weight, rows.into());
        let parameters =
            GemvGated { x, norm_weight, norm_offset: OFFSET, eps: EPS, jobs, k: K.into(), rows, activation };
        bench.device.launch(kernel, [GATES[0].div_ceil(block), 1, 1], &parameters)
    })
}

/// Rows of a block and a part of the next, split into terms by `split`.
pub fn gemv_wide(
    split: &Kernel<SplitRows>,
    kernel: &Kernel<GemvWide>,
    bench: &Bench,
    block: usize,
    gated: bool,
) -> Result<(), CudaError> {
    let (kind, outs) = if gated { (Rows::Normed, GATES) } else { (Rows::F32, OUTS) };
    let (device, product) = (bench.device, Product::new(bench, kind, DType::F16, (block + 6, K), outs)?);
    let norm_weight = if gated { product.norm_weight } else { DevicePtr::NULL };
    let launch = |jobs, mode| {
        let (x, terms, factors) = (product.x, bench.room(2 * product.rows * K)?, bench.room(product.rows)?);
        let to_split = SplitRows { x, norm_weight, norm_offset: OFFSET, eps: EPS, terms, factors, width: K.into() };
        device.launch(split, [product.rows, 1, 1], &to_split)?;
        let blocks = if gated { GATES[0].div_ceil(WIDE_OUTS / 2) } else { product.blocks(WIDE_OUTS) };
        let parameters = GemvWide { terms, factors, jobs, k: K.into(), rows: product.rows.into(), mode };
        device.launch(kernel, [blocks, product.rows.div_ceil(block), 1], &parameters)
    };
    if gated { product.gated(launch) } else { product.linear(launch) }
}

/// Rows of a block and a part of the next.
pub fn gemm(kernel: &Kernel<Gemm>, bench: &Bench, block: usize) -> Result<(), CudaError> {
    let product = Product::new(bench, Rows::Rounded, DType::F16, (block + 6, GEMM_K), GEMM_OUTS)?;
    let (x, n, k) = (product.rounded, product.rows.into(), GEMM_K.into());
    let grid = [product.rows.div_ceil(block), product.blocks(block), 1];
    product.linear(|jobs, accumulate| bench.device.launch(kernel, grid, &Gemm { x, jobs, n, k, accumulate }))
}

pub fn gemm_gated(kernel: &Kernel<GemmGated>, bench: &Bench, block: usize) -> Result<(), CudaError> {
    let product = Product::new(bench, Rows::Rounded, DType::F16, (block + 6, GEMM_K), GATES)?;
    let (x, n, k) = (product.rounded, product.rows.into(), GEMM_K.into());
    let grid = [product.rows.div_ceil(block), (2 * GATES[0]).div_ceil(block), 1];
    product.gated(|jobs, activation| bench.device.launch(kernel, grid, &GemmGated { x, jobs, n, k, activation }))
}

pub fn gemm_hopper(kernel: &Kernel<GemmHopper>, bench: &Bench, gated: bool) -> Result<(), CudaError> {
    let outs = if gated { GATES } else { GEMM_OUTS };
    let product = Product::new(bench, Rows::Rounded, DType::F16, (HOPPER_BLOCK + 6, HOPPER_K), outs)?;
    let blocks = if gated { GATES[0].div_ceil(HOPPER_BLOCK / 2) } else { product.blocks(HOPPER_BLOCK) };
    let launch = |jobs, mode| {
        let parameters = GemmHopper::new(product.rounded, jobs, product.rows, HOPPER_K, mode)?;
        bench.device.launch(kernel, hopper_grid(product.rows, blocks), &parameters)
    };
    if gated { product.gated(launch) } else { product.linear(launch) }
}

/// Written with output scales; added without.
pub fn scale(kernel: &Kernel<ScaleProducts>, bench: &Bench) -> Result<(), CudaError> {
    let (rows, outs) = (5, 300);
    let (values, before) = (Noise(13).floats(rows * outs, 30.0), Noise(14).floats(rows * outs, 30.0));
    let powers: Vec<f32> = (0..outs).map(power).collect();
    let (products, powers) = (bench.put(&values)?, bench.put(&powers)?);
    for (add, case) in [(false, "written"), (true, "added")] {
        let y = bench.put(&before)?;
        let parameters = ScaleProducts {
            products,
            x_scales: powers,
            x_stride: Int(1),
            scales: if add { DevicePtr::NULL } else { powers },
            y,
            count: (rows * outs).into(),
            outs: outs.into(),
            accumulate: add.into(),
        };
        bench.device.launch(kernel, [(rows * outs).div_ceil(1024), 1, 1], &parameters)?;
        let want = (0..rows * outs).map(|i| -> Want {
            let out = if add { 1.0 } else { f64::from(power(i % outs)) };
            let product = f64::from(values[i]) * f64::from(power(i / outs)) * out;
            let before = if add { f64::from(before[i]) } else { 0.0 };
            near(product + before, product.abs() + before.abs(), U)
        });
        bench.compare(case, y, want)?;
    }
    Ok(())
}

/// A captured chain of products with early starts, each of which reads the result of the one before, against the same chain
/// without. Several runs: a read that is too early does not show every time.
pub fn chain(kernel: &Kernel<Gemv>, bench: &Bench, early: &Device, dtype: DType) -> Result<(), CudaError> {
    const WIDTH: usize = 256;
    const ROWS: usize = 4;
    const LINKS: usize = 32;
    const RUNS: usize = 8;
    // small weights: sums stay of the size of their terms
    let (w, _) = bench.put_as(&Noise(3).floats(WIDTH * WIDTH, 0.1), dtype)?;
    let start = [Noise(7).floats(ROWS * WIDTH, 1.0), Noise(8).floats(ROWS * WIDTH, 1.0)];
    let x = [bench.put(&start[0])?, bench.put(&start[1])?];
    let launch = |device: &Device| {
        (0..LINKS).try_for_each(|link| {
            let [x, y] = [x[link % 2], x[(link + 1) % 2]];
            let job = MatrixJob { w, y, outs: WIDTH as i32, ..MatrixJob::default() };
            let jobs = [job, MatrixJob::default(), MatrixJob::default()];
            let parameters = Gemv { x, jobs, k: WIDTH.into(), rows: ROWS.into(), accumulate: Int(1) };
            device.launch(kernel, [WIDTH / 16, 1, 1], &parameters)
        })
    };
    launch(bench.device)?;
    let want = [bench.get(x[0], ROWS * WIDTH)?, bench.get(x[1], ROWS * WIDTH)?];
    let graph = early.capture("capturing the self-test's chain", || launch(early))?;
    for run in 0..RUNS {
        (0..2).try_for_each(|i| bench.write(x[i], &start[i]))?;
        early.replay(&graph)?;
        for i in 0..2 {
            bench.compare(&format!("run {run}, x{i}"), x[i], want[i].iter().map(|x| exact(*x)))?;
        }
    }
    Ok(())
}
