//! Tests of matrix products: `gemv.cu`, `gemv_wide.cu`, `gemm.cu`, `gemm_hopper.cu` and their fallbacks.

use super::super::abi::{
    ChoiceGroups, ChooseExperts, ExpertDown, ExpertGated, ExpertSum, ExpertView, Gemm, GemmHopper, Gemv, GemvGated,
    GemvQkv, GemvWide, GroupChoices, MatrixJob, MatrixJobs, Norm, RopeTarget, RoundedRows, SHARING, SplitRows, Stored,
};
use super::super::context::Device;
use super::super::error::{Context, CudaError};
use super::super::gemm::blocks;
use super::super::kernel_set::{EXPERT_OUTS, HOPPER_OUTS, HOPPER_ROWS, NarrowVariant, WIDE_OUTS, hopper_grid};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::attention::Attention;
use super::data::{Bench, Noise, Sum, Tested, U, Want, bound, exact, near, power, powers, wide};
use super::rows::{norm, norm_of};
use crate::backend::reference::{activate, choose_experts as pick};
use crate::model::config::Activation::{self, GeluTanh, Silu};
use crate::model::config::ExpertSpec;
use crate::model::weights::DType;

/// In-features: of narrow products more than the eight warps take at once, of Hopper's more than its stages hold.
const K: usize = 1160;
/// Of `gemv_ring.cu`: two slices and a part of one.
const RING_K: usize = 2240;
/// Multiprocessors that share the outputs there.
const RING_BLOCKS: usize = 3;
const GEMM_K: usize = 168;
const HOPPER_K: usize = 6 * 64 + 72;

/// Out-features of the two matrices of [`Product::linear`], narrow and wide, and of both of [`Product::gated`].
const OUTS: [usize; 2] = [40, 24];
const GEMM_OUTS: [usize; 2] = [72, 40];
const GATES: [usize; 2] = [40; 2];

/// A product's input rows.
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
    norm: Norm,
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
        if kind != Rows::Rounded {
            x.iter_mut().step_by(37).for_each(|x| *x *= 100.0); // outliers, as in real activations
        }
        let (rounded, inputs) = match kind {
            Rows::Rounded => bench.put_rounded(&x, width)?,
            Rows::Normed => (RoundedRows::default(), norm(&x, &norm_weight)),
            Rows::F32 => (RoundedRows::default(), wide(&x)),
        };
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
            norm: norm_of(bench.put(&norm_weight)?),
            rounded,
            w: [first, second],
            scales: bench.put(&powers(outs[0]))?,
            inputs,
            matrices: [scaled, wide(&w)],
            bound,
        })
    }

    fn job(&self, matrix: usize, y: DevicePtr<f32>, bias: DevicePtr<f32>) -> MatrixJob {
        let scales = if matrix == 0 { self.scales } else { DevicePtr::NULL };
        MatrixJob { w: self.w[matrix], scales, bias, y, outs: self.outs[matrix] as i32, ..MatrixJob::default() }
    }

    /// All outputs of a matrix: `[rows, outs]`
    fn dots(&self, matrix: usize) -> Vec<Sum> {
        let dot = |x: &[f64], w: &[f64]| {
            x.iter().zip(w).fold((0.0, 0.0), |(sum, scale), (x, w)| (sum + x * w, scale + (x * w).abs()))
        };
        let row = |x| self.matrices[matrix].chunks(self.width).map(move |w| dot(x, w));
        self.inputs.chunks(self.width).flat_map(row).collect()
    }

    fn test(&self, gated: bool, launch: impl Fn(MatrixJobs, Int) -> Tested) -> Tested {
        if gated { self.gated(launch) } else { self.linear(launch) }
    }

    /// Both matrices, the first with a bias; added to y unless rows are normed.
    fn linear(&self, launch: impl Fn(MatrixJobs, Int) -> Tested) -> Tested {
        let (bench, add) = (self.bench, self.kind != Rows::Normed);
        let mut noise = Noise(99);
        let bias = noise.floats(self.outs[0], 1.0);
        let before = self.outs.map(|outs| noise.floats(self.rows * outs, 1.0));
        let y = [bench.put(&before[0])?, bench.put(&before[1])?];
        let jobs = [self.job(0, y[0], bench.put(&bias)?), self.job(1, y[1], DevicePtr::NULL), MatrixJob::default()];
        launch(jobs, add.into())?;
        for (matrix, outs) in self.outs.into_iter().enumerate() {
            let want = self.dots(matrix).into_iter().enumerate().map(|(i, (sum, scale))| {
                let bias = if matrix == 0 { f64::from(bias[i % outs]) } else { 0.0 };
                let before = if add { f64::from(before[matrix][i]) } else { 0.0 };
                near(sum + bias + before, scale + bias.abs() + before.abs(), self.bound)
            });
            bench.compare(&format!("y of matrix {matrix}"), y[matrix], want)?;
        }
        Ok(())
    }

    /// Gate and up with SiLU, and with GELU and biases; then the same, rounded, where rows are.
    fn gated(&self, launch: impl Fn(MatrixJobs, Int) -> Tested) -> Tested {
        self.gated_with(Silu, false, &launch)?;
        self.gated_with(GeluTanh, true, &launch)
    }

    fn gated_with(
        &self,
        activation: Activation,
        with_bias: bool,
        launch: impl Fn(MatrixJobs, Int) -> Tested,
    ) -> Tested {
        let (bench, outs, case) = (self.bench, self.outs[0], format!("{activation:?}"));
        let biases = [bench.noise(5, outs, 1.0)?, bench.noise(6, outs, 1.0)?];
        let (dots, y) = ([self.dots(0), self.dots(1)], bench.room::<f32>(self.rows * outs)?);
        let bias = |i: usize| if with_bias { biases[i].0 } else { DevicePtr::NULL };
        let mut jobs = [self.job(0, y, bias(0)), self.job(1, DevicePtr::NULL, bias(1)), MatrixJob::default()];
        let mode = (activation == GeluTanh).into();
        launch(jobs, mode)?;
        let want = (0..self.rows * outs).map(|i| {
            let [(gate, gate_scale), (up, up_scale)] = [0, 1].map(|matrix| {
                let bias = if with_bias { f64::from(biases[matrix].1[i % outs]) } else { 0.0 };
                let (sum, scale) = dots[matrix][i];
                (sum + bias, scale + bias.abs())
            });
            // |act'| ≤ 1.13 and |act(x)| ≤ |x|; the activation's own error, 16 U, is less than the bound
            let lost = 1.2 * gate_scale * (up.abs() + self.bound * up_scale) + up_scale * gate.abs();
            let value = activate(activation, gate) * up;
            near(value, lost + value.abs(), self.bound)
        });
        bench.compare(&case, y, want)?;
        if self.kind == Rows::Rounded {
            jobs[0].rounded = bench.rounded_room(self.rows, outs)?;
            launch(jobs, mode)?;
            let want = wide(&bench.get(y, self.rows * outs)?);
            bench.compare_rounded(&format!("{case}, rounded"), (jobs[0].rounded, outs), &want, SHARING, 0.0)?;
        }
        Ok(())
    }
}

impl NarrowVariant {
    /// Fewer rows than there is room for, if that is possible, and in-features.
    fn tested(&self) -> (usize, usize) {
        (self.rows.saturating_sub(3).max(1), if self.ring { RING_K } else { K })
    }
}

pub fn gemv(kernel: &Kernel<Gemv>, bench: &Bench, dtype: DType, variant: NarrowVariant) -> Tested {
    let product = Product::new(bench, Rows::F32, dtype, variant.tested(), OUTS)?;
    product.linear(|jobs, accumulate| {
        let parameters = Gemv { x: product.x, jobs, k: product.width.into(), rows: product.rows.into(), accumulate };
        bench.device.launch(kernel, variant.grid(blocks(&jobs, variant.outs, false), RING_BLOCKS), &parameters)
    })
}

/// Without rotation; then queries of two heads (first matrix), and a key and a value head (second), in caches of f16 and f32.
/// Row r is at position r.
pub fn gemv_qkv(kernel: &Kernel<GemvQkv>, bench: &Bench, dtype: DType, variant: NarrowVariant) -> Tested {
    const HEAD_DIM: usize = 32;
    let launch = |product: &Product, jobs: MatrixJobs, to| {
        let (x, norm, rows) = (product.x, product.norm, product.rows.into());
        let parameters = GemvQkv { x, norm, jobs, k: product.width.into(), rows, to };
        bench.device.launch(kernel, variant.grid(blocks(&jobs, variant.outs, false), RING_BLOCKS), &parameters)
    };
    let (rows, k) = variant.tested();
    let product = Product::new(bench, Rows::Normed, dtype, (rows, k), OUTS)?;
    product.linear(|jobs, _| launch(&product, jobs, RopeTarget::default()))?;

    let product = Product::new(bench, Rows::Normed, dtype, (rows, k), [2 * HEAD_DIM, HEAD_DIM])?;
    let fixture = Attention { head_dim: HEAD_DIM, cache: (DType::F16, DType::F32) }.fixture(bench, 0)?;
    let positions: Vec<usize> = (0..rows).collect();
    let (to, tables) = fixture.rotation(&positions, 1, 0.25)?;
    let queries = bench.room::<f32>(rows * 2 * HEAD_DIM)?;
    let cached = product.job(1, DevicePtr::NULL, DevicePtr::NULL);
    launch(&product, [product.job(0, queries, DevicePtr::NULL), cached, cached], to)?;
    let (q, keys, lost) = (product.dots(0), product.dots(1), product.bound + 8.0 * U);
    let v: Vec<Want> = keys.iter().map(|(sum, scale)| near(*sum, *scale, lost)).collect();
    fixture.compare_rotated((to, tables), &positions, queries, (&q, &keys, &v), lost)
}

pub fn gemv_gated(kernel: &Kernel<GemvGated>, bench: &Bench, dtype: DType, variant: NarrowVariant) -> Tested {
    let product = Product::new(bench, Rows::Normed, dtype, variant.tested(), GATES)?;
    product.gated(|jobs, activation| {
        let (x, norm, rows) = (product.x, product.norm, product.rows.into());
        let parameters = GemvGated { x, norm, jobs, k: product.width.into(), rows, activation };
        bench.device.launch(kernel, variant.grid(blocks(&jobs, 2 * variant.gates, true), RING_BLOCKS), &parameters)
    })
}

/// Rows of a block and a part of the next, split into terms by `split`.
pub fn gemv_wide(
    split: &Kernel<SplitRows>,
    kernel: &Kernel<GemvWide>,
    bench: &Bench,
    block: usize,
    gated: bool,
) -> Tested {
    let (kind, outs) = if gated { (Rows::Normed, GATES) } else { (Rows::F32, OUTS) };
    let (device, product) = (bench.device, Product::new(bench, kind, DType::F16, (block + 6, K), outs)?);
    let norm = if gated { product.norm } else { Norm::default() };
    product.test(gated, |jobs, mode| {
        let (x, terms, factors) = (product.x, bench.room(2 * product.rows * K)?, bench.room(product.rows)?);
        let to_split = SplitRows { x, norm, terms, factors, width: K.into() };
        device.launch(split, [product.rows, 1, 1], &to_split)?;
        let parameters = GemvWide { terms, factors, jobs, k: K.into(), rows: product.rows.into(), mode };
        device.launch(kernel, [blocks(&jobs, WIDE_OUTS, gated), product.rows.div_ceil(block), 1], &parameters)
    })
}

/// Rows of a block and a part of the next.
pub fn gemm(kernel: &Kernel<Gemm>, bench: &Bench, block: usize, gated: bool) -> Tested {
    let outs = if gated { GATES } else { GEMM_OUTS };
    let product = Product::new(bench, Rows::Rounded, DType::F16, (block + 6, GEMM_K), outs)?;
    product.test(gated, |jobs, mode| {
        let grid = [product.rows.div_ceil(block), blocks(&jobs, block, gated), 1];
        let parameters = Gemm { x: product.rounded, jobs, n: product.rows.into(), k: GEMM_K.into(), mode };
        bench.device.launch(kernel, grid, &parameters)
    })
}

pub fn gemm_hopper(kernel: &Kernel<GemmHopper>, bench: &Bench, gated: bool) -> Tested {
    let outs = if gated { GATES } else { GEMM_OUTS };
    let product = Product::new(bench, Rows::Rounded, DType::F16, (HOPPER_ROWS + 6, HOPPER_K), outs)?;
    product.test(gated, |jobs, mode| {
        let grid = hopper_grid(product.rows, blocks(&jobs, HOPPER_OUTS, gated), 1); // one cluster: it takes all turns
        let parameters = GemmHopper::new(product.rounded, jobs, product.rows, HOPPER_K, mode)?;
        bench.device.launch(kernel, grid, &parameters)
    })
}

/// Two rows with ties, which choose three of 40 experts.
pub fn choose_experts(kernel: &Kernel<ChooseExperts>, bench: &Bench) -> Tested {
    let spec = ExpertSpec {
        num_experts: 40,
        num_experts_per_tok: 3,
        moe_intermediate_size: 0,
        norm_topk_prob: true,
        shared_expert_intermediate_size: None,
        dense_beside: false,
    };
    let logits: Vec<f32> = Noise(61).floats(2 * spec.num_experts, 3.0).iter().map(|x| x.round()).collect();
    let (ids, shares) = (bench.room::<i32>(6)?, bench.room::<f32>(6)?);
    let (experts, top_k) = (spec.num_experts.into(), spec.num_experts_per_tok.into());
    let (logits_on_device, scales) = (bench.put(&logits)?, DevicePtr::NULL);
    let parameters = ChooseExperts { logits: logits_on_device, experts, top_k, normalize: Int(1), scales, ids, shares };
    bench.device.launch(kernel, [2, 1, 1], &parameters)?;
    let chosen: Vec<(usize, f32)> = logits.chunks(spec.num_experts).flat_map(|row| pick(row, &spec)).collect();
    bench.compare("ids", ids, chosen.iter().map(|(expert, _)| exact(*expert as i32)))?;
    bench.compare("shares", shares, chosen.iter().map(|(_, share)| near(f64::from(*share), 1.0, 32.0 * U)))
}

/// Three rows that chose the second of two experts, whose matrices are gate and up of [`Product::gated`].
pub fn expert_gated(kernel: &Kernel<ExpertGated>, bench: &Bench, dtype: DType) -> Tested {
    let product = Product::new(bench, Rows::F32, dtype, (3, K), GATES)?;
    product.gated_with(Silu, false, |[gate, up, _], activation| {
        let (gate_scales, up_scales) = (gate.scales, up.scales);
        let expert = ExpertView { gate: gate.w, gate_scales, up: up.w, up_scales, ..ExpertView::default() };
        let (experts, ids) = (bench.put(&[ExpertView::default(), expert])?, bench.put(&[1i32; 3])?);
        let (k, inner, top_k) = (K.into(), GATES[0].into(), Int(1));
        let groups = bench.choices(&[vec![], vec![0, 1, 2]], 3)?;
        let parameters = ExpertGated { x: product.x, ids, groups, experts, k, inner, top_k, activation, h: gate.y };
        bench.device.launch(kernel, [GATES[0].div_ceil(EXPERT_OUTS), 2, 1], &parameters)
    })
}

/// Rows that chose the second, the first and third, and all experts.
pub fn group_choices(kernel: &Kernel<GroupChoices>, bench: &Bench) -> Tested {
    let (ids, groups) = (bench.put(&[1i32, -1, -1, 0, 2, -1, 0, 1, 2])?, bench.choices(&[[99; 3]; 3], 3)?);
    bench.device.launch(kernel, [3, 1, 1], &GroupChoices { ids, rows: Int(3), top_k: Int(3), groups })?;
    let want = [3, 6, 99, 0, 7, 99, 4, 8, 99];
    bench.compare("counts", groups.counts, [2, 2, 2].map(exact))?;
    bench.compare("choices", groups.choices, want.map(exact))
}

/// A row with two choices, added to what it has.
pub fn expert_sum(kernel: &Kernel<ExpertSum>, bench: &Bench) -> Tested {
    let (shares, outs) = ([0.25f32, 0.7], 300);
    let ((products, terms), (y, before)) = (bench.noise(63, 2 * outs, 1.0)?, bench.noise(62, outs, 1.0)?);
    let (shares_on_device, top_k, accumulate) = (bench.put(&shares)?, Int(2), Int(1));
    let parameters = ExpertSum { products, shares: shares_on_device, outs: outs.into(), top_k, accumulate, y };
    bench.device.launch(kernel, [outs.div_ceil(256), 1, 1], &parameters)?;
    let want = (0..outs).map(|out| {
        let [a, b] = [0, 1].map(|choice| f64::from(shares[choice]) * f64::from(terms[choice * outs + out]));
        let before = f64::from(before[out]);
        near(before + a + b, before.abs() + a.abs() + b.abs(), 4.0 * U)
    });
    bench.compare("y", y, want)
}

/// A row that chose both of two experts.
pub fn expert_down(kernel: &Kernel<ExpertDown>, bench: &Bench, dtype: DType) -> Tested {
    let outs = GATES[0];
    let product = Product::new(bench, Rows::F32, dtype, (2, K), GATES)?;
    let view = |matrix: usize| {
        let MatrixJob { w, scales, .. } = product.job(matrix, DevicePtr::NULL, DevicePtr::NULL);
        ExpertView { down: w, down_scales: scales, ..ExpertView::default() }
    };
    let (h, ids, experts) = (product.x, bench.put(&[0i32, 1])?, bench.put(&[view(0), view(1)])?);
    let (groups, products) = (ChoiceGroups::default(), bench.room(2 * outs)?);
    let parameters = ExpertDown { h, ids, groups, experts, inner: K.into(), outs: outs.into(), products };
    bench.device.launch(kernel, [outs.div_ceil(EXPERT_OUTS), 2, 1], &parameters)?;
    let [first, second] = [product.dots(0), product.dots(1)];
    let want = first[..outs].iter().chain(&second[outs..]);
    bench.compare("products", products, want.map(|(sum, scale)| near(*sum, *scale, (K / 32 + 32) as f64 * U)))
}

/// A captured chain of products with early starts, each of which reads the result of the one before, against the same chain
/// without. Several runs: a read that is too early does not show every time.
pub fn chain(kernel: &Kernel<Gemv>, bench: &Bench, early: &Device, dtype: DType) -> Tested {
    const WIDTH: usize = 256;
    const ROWS: usize = 4;
    const LINKS: usize = 32;
    const RUNS: usize = 8;
    // small weights: sums stay of the size of their terms
    let (w, _) = bench.put_as(&Noise(3).floats(WIDTH * WIDTH, 0.1), dtype)?;
    let start = [Noise(7).floats(ROWS * WIDTH, 1.0), Noise(8).floats(ROWS * WIDTH, 1.0)];
    let x = [early.upload("the self-test", &start[0])?, early.upload("the self-test", &start[1])?];
    let launch = |device: &Device| {
        (0..LINKS).try_for_each(|link| {
            let [x, y] = [x[link % 2].ptr(), x[(link + 1) % 2].ptr()];
            let job = MatrixJob { w, y, outs: WIDTH as i32, ..MatrixJob::default() };
            let jobs = [job, MatrixJob::default(), MatrixJob::default()];
            let parameters = Gemv { x, jobs, k: WIDTH.into(), rows: ROWS.into(), accumulate: Int(1) };
            device.launch(kernel, [WIDTH / 16, 1, 1], &parameters)
        })
    };
    launch(bench.device)?;
    let want = [early.read(&x[0], 0, ROWS * WIDTH)?, early.read(&x[1], 0, ROWS * WIDTH)?];
    let graph = early.capture("capturing the self-test's chain", || launch(early))?;
    for run in 0..RUNS {
        (0..2).try_for_each(|i| early.write(&x[i], 0, &start[i]))?;
        graph.launch().during("replaying a graph")?;
        for i in 0..2 {
            let found = early.read(&x[i], 0, ROWS * WIDTH)?;
            bench.check(&format!("run {run}, x{i}"), found, want[i].iter().map(|x| exact(*x)));
        }
    }
    Ok(())
}
