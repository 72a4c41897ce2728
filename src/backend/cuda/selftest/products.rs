//! Cases of `gemv.cu` and `gemm.cu`, and of their plain replacements.

use super::super::abi::{
    Gemm, GemmGated, GemmHopper, Gemv, GemvGated, GemvQkv, MatrixJob, MatrixJobs, RopeTarget, RowState, ScaleProducts,
    SequenceView, Stored, TraceView, type_number,
};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::{HOPPER_BLOCK, hopper_grid};
use super::super::launch::{Int, Kernel};
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, Scales, U, Values, bound, decode, rounding, unwritten, upload};
use super::elementwise::{EPS, OFFSET, activate, norm};
use crate::model::weights::DType;

/// Wider than what the eight warps take at once, and no multiple of it.
const K: usize = 1160;
/// Outputs of two matrices: part of a block each.
const OUTS: [usize; 2] = [40, 24];

/// A sum, and the sum of the absolute values.
#[derive(Clone, Copy)]
struct Dot {
    sum: f64,
    magnitude: f64,
}

fn dot(x: &[f64], w: &[f64]) -> Dot {
    let products = || x.iter().zip(w).map(|(x, w)| x * w);
    Dot { sum: products().sum(), magnitude: products().map(f64::abs).sum() }
}

/// Two f16 terms of x, which hold it to 2^-22, or three bf16 ones of x and of f32 weights; two steps of 16 for a partial sum.
/// Then the partial sums of a lane and of the warps, and a few roundings of bias, norm and residual.
fn narrow_bound(dtype: DType) -> f64 {
    bound(if dtype == DType::F32 { 18 } else { 4 }, K / 256 + 24) + 4.0 * U
}

/// Inputs of a narrow product, `[rows, K]`, and the weights of two matrices.
struct Narrow {
    rows: usize,
    x: Vec<f32>,
    norm: Vec<f32>,
    on_device: (Buffer<f32>, Buffer<f32>),
    w: [Values; 2],
    /// Of the first matrix; the second has none.
    scales: Scales,
    /// The matrices as they are multiplied.
    matrices: [Vec<f64>; 2],
}

impl Narrow {
    fn new(device: &Device, dtype: DType, rows: usize, outs: [usize; 2]) -> Result<Narrow, CudaError> {
        let mut noise = Noise(1 + rows as u64);
        let mut x = noise.floats(rows * K, 1.0);
        x.iter_mut().step_by(37).for_each(|x| *x *= 100.0); // as in real activations
        let norm = noise.floats(K, 1.0);
        let on_device = (upload(device, &x)?, upload(device, &norm)?);
        let w = [
            Values::new(device, &noise.floats(outs[0] * K, 0.1), dtype)?,
            Values::new(device, &noise.floats(outs[1] * K, 0.1), dtype)?,
        ];
        let scales = Scales::new(device, outs[0])?;
        let matrices = [scales.restore(&w[0].values, K), w[1].values.iter().map(|w| f64::from(*w)).collect()];
        Ok(Narrow { rows, x, norm, on_device, w, scales, matrices })
    }

    /// A row as it is multiplied.
    fn row(&self, row: usize, normed: bool) -> Vec<f64> {
        let x = &self.x[row * K..][..K];
        if normed { norm(x, &self.norm) } else { x.iter().map(|x| f64::from(*x)).collect() }
    }

    fn dot(&self, row: &[f64], matrix: usize, out: usize) -> Dot {
        dot(row, &self.matrices[matrix][out * K..][..K])
    }

    fn qkv(&self, jobs: MatrixJobs, to: RopeTarget) -> GemvQkv {
        let (x, norm_weight) = (self.on_device.0.ptr(), self.on_device.1.ptr());
        GemvQkv { x, norm_weight, norm_offset: OFFSET, eps: EPS, jobs, k: K.into(), rows: self.rows.into(), to }
    }
}

/// Two matrices, the first with a bias, both added to what is there unless the input is normed.
struct Launched {
    case: Narrow,
    bias: Vec<f32>,
    bias_buffer: Buffer<f32>,
    before: [Vec<f32>; 2],
    y: [Buffer<f32>; 2],
}

impl Launched {
    fn new(device: &Device, dtype: DType, rows: usize) -> Result<Launched, CudaError> {
        let mut noise = Noise(99);
        let case = Narrow::new(device, dtype, rows, OUTS)?;
        let bias = noise.floats(OUTS[0], 1.0);
        let before = OUTS.map(|outs| noise.floats(rows * outs, 1.0));
        let y = [upload(device, &before[0])?, upload(device, &before[1])?];
        Ok(Launched { case, bias_buffer: upload(device, &bias)?, bias, before, y })
    }

    fn jobs(&self) -> MatrixJobs {
        let job = |i: usize, scales, bias| {
            let (w, y, outs) = (self.case.w[i].ptr(), self.y[i].ptr(), OUTS[i] as i32);
            MatrixJob { w, scales, bias, y, outs, padding: 0 }
        };
        let scales = self.case.scales.buffer.ptr();
        [job(0, scales, self.bias_buffer.ptr()), job(1, DevicePtr::NULL, DevicePtr::NULL), MatrixJob::default()]
    }

    /// Blocks of `outs` outputs.
    fn grid(&self, outs: usize) -> [usize; 3] {
        [OUTS.iter().map(|o| o.div_ceil(outs)).sum(), 1, 1]
    }

    fn compare(&self, device: &Device, dtype: DType, normed: bool) -> Result<Outcome, CudaError> {
        let mut outcome = Outcome::default();
        let y = [device.read(&self.y[0], 0, self.before[0].len())?, device.read(&self.y[1], 0, self.before[1].len())?];
        for row in 0..self.case.rows {
            let x = self.case.row(row, normed);
            for (matrix, outs) in OUTS.into_iter().enumerate() {
                for out in 0..outs {
                    let Dot { sum, magnitude } = self.case.dot(&x, matrix, out);
                    let bias = if matrix == 0 { f64::from(self.bias[out]) } else { 0.0 };
                    let before = if normed { 0.0 } else { f64::from(self.before[matrix][row * outs + out]) };
                    let all = magnitude + bias.abs() + before.abs();
                    outcome.compare(y[matrix][row * outs + out], sum + bias + before, all, narrow_bound(dtype));
                }
            }
        }
        Ok(outcome)
    }
}

/// `outs`: outputs of a block.
pub fn gemv(
    device: &Device,
    kernel: &Kernel<Gemv>,
    dtype: DType,
    rows: usize,
    outs: usize,
) -> Result<Outcome, CudaError> {
    let launched = Launched::new(device, dtype, rows)?;
    let (x, jobs) = (launched.case.on_device.0.ptr(), launched.jobs());
    let parameters = Gemv { x, jobs, k: K.into(), rows: rows.into(), accumulate: Int(1) };
    device.launch(kernel, launched.grid(outs), &parameters)?;
    launched.compare(device, dtype, false)
}

/// Without a rotation, and with.
pub fn gemv_qkv(
    device: &Device,
    kernel: &Kernel<GemvQkv>,
    dtype: DType,
    rows: usize,
    outs: usize,
) -> Result<Outcome, CudaError> {
    let launched = Launched::new(device, dtype, rows)?;
    let parameters = launched.case.qkv(launched.jobs(), RopeTarget::default());
    device.launch(kernel, launched.grid(outs), &parameters)?;
    let mut outcome = launched.compare(device, dtype, true)?;
    rotated(device, kernel, dtype, (rows, outs), &mut outcome)?;
    Ok(outcome)
}

/// The layer, of two; and head_dim.
const LAYER: usize = 1;
const HEAD_DIM: usize = 32;

/// Two heads of queries, of the first matrix, and one of keys and of values, both of the second, in caches of f16 and f32; row
/// r is at position r of one sequence.
fn rotated(
    device: &Device,
    kernel: &Kernel<GemvQkv>,
    dtype: DType,
    (rows, outs): (usize, usize),
    outcome: &mut Outcome,
) -> Result<(), CudaError> {
    const HALF: usize = HEAD_DIM / 2;
    let (case, capacity, scale) = (Narrow::new(device, dtype, rows, [2 * HEAD_DIM, HEAD_DIM])?, 64, 0.25f32);
    let angles: Vec<f64> = (0..capacity * HALF).map(|i| (i / HALF) as f64 * 0.8f64.powi((i % HALF) as i32)).collect();
    let [cos, sin] = [f64::cos, f64::sin].map(|f| angles.iter().map(|x| f(*x) as f32).collect::<Vec<f32>>());
    let cached = 2 * capacity * HEAD_DIM;
    let (keys, values) = (unwritten::<u16>(device, cached)?, unwritten::<f32>(device, cached)?);
    let (k, v, trace) = (keys.ptr().cast(), values.ptr().cast(), TraceView::default());
    let view = SequenceView { k, v, capacity: capacity as u32, first_traced_row: 0, trace };
    let states: Vec<RowState> = (0..rows as i32).map(|position| RowState { position, ..RowState::default() }).collect();
    let (views, states) = (upload(device, &[view])?, upload(device, &states)?);
    let (cos_table, sin_table) = (upload(device, &cos)?, upload(device, &sin)?);
    let to = RopeTarget {
        cos: cos_table.ptr(),
        sin: sin_table.ptr(),
        rows: states.ptr(),
        sequences: views.ptr(),
        layer: LAYER as i32,
        kv_heads: 1,
        head_dim: HEAD_DIM as i32,
        query_scale: scale,
        k_type: type_number(DType::F16),
        v_type: type_number(DType::F32),
    };
    let queries = unwritten::<f32>(device, rows * 2 * HEAD_DIM)?;
    let job = |matrix: usize, scales, y, heads: usize| {
        let (w, bias, outs) = (case.w[matrix].ptr(), DevicePtr::NULL, (heads * HEAD_DIM) as i32);
        MatrixJob { w, scales, bias, y, outs, padding: 0 }
    };
    let cached_job = job(1, DevicePtr::NULL, DevicePtr::NULL, 1);
    let jobs = [job(0, case.scales.buffer.ptr(), queries.ptr(), 2), cached_job, cached_job];
    let grid = [(2 * HEAD_DIM).div_ceil(outs) + 2 * HEAD_DIM.div_ceil(outs), 1, 1];
    device.launch(kernel, grid, &case.qkv(jobs, to))?;

    let queries = device.read(&queries, 0, rows * 2 * HEAD_DIM)?;
    let keys = decode(bytemuck::cast_slice(&device.read(&keys, 0, cached)?), DType::F16);
    let values = device.read(&values, 0, cached)?;
    let (lost, key_lost) = (narrow_bound(dtype) + 8.0 * U, narrow_bound(dtype) + rounding(DType::F16));
    for row in 0..rows {
        let x = case.row(row, true);
        let turned = |matrix: usize, head: usize, i: usize| {
            let angle = row * HALF + i % HALF;
            let (c, s) = (f64::from(cos[angle]), f64::from(sin[angle]));
            let own = case.dot(&x, matrix, head * HEAD_DIM + i);
            let other = case.dot(&x, matrix, head * HEAD_DIM + (i + HALF) % HEAD_DIM);
            let sign = if i < HALF { -1.0 } else { 1.0 };
            let magnitude = own.magnitude * c.abs() + other.magnitude * s.abs();
            Dot { sum: own.sum * c + sign * other.sum * s, magnitude }
        };
        for i in 0..2 * HEAD_DIM {
            let Dot { sum, magnitude } = turned(0, i / HEAD_DIM, i % HEAD_DIM);
            let (got, scale) = (queries[row * 2 * HEAD_DIM + i], f64::from(scale));
            outcome.compare(got, sum * scale, magnitude * scale, lost);
        }
        for i in 0..HEAD_DIM {
            let at = (LAYER * capacity + row) * HEAD_DIM + i;
            let (key, value) = (turned(1, 0, i), case.dot(&x, 1, i));
            outcome.compare(keys[at], key.sum, key.magnitude, key_lost);
            outcome.compare(values[at], value.sum, value.magnitude, lost);
        }
    }
    Ok(())
}

/// A gate and up of [`OUTS`]`[0]` outputs each, the gate with powers of two: both activations, the second with biases.
struct Gated {
    scales: Scales,
    biases: [Vec<f32>; 2],
    buffers: [Buffer<f32>; 2],
    outcome: Outcome,
}

impl Gated {
    fn new(device: &Device) -> Result<Gated, CudaError> {
        let biases = [Noise(5).floats(OUTS[0], 1.0), Noise(6).floats(OUTS[0], 1.0)];
        let buffers = [upload(device, &biases[0])?, upload(device, &biases[1])?];
        Ok(Gated { scales: Scales::new(device, OUTS[0])?, biases, buffers, outcome: Outcome::default() })
    }

    fn jobs(&self, w: [DevicePtr<Stored>; 2], y: DevicePtr<f32>, gelu: bool) -> MatrixJobs {
        let outs = OUTS[0] as i32;
        let bias = |i: usize| if gelu { self.buffers[i].ptr() } else { DevicePtr::NULL };
        let gate = MatrixJob { w: w[0], scales: self.scales.buffer.ptr(), bias: bias(0), y, outs, padding: 0 };
        let up = MatrixJob { w: w[1], scales: DevicePtr::NULL, bias: bias(1), y: DevicePtr::NULL, outs, padding: 0 };
        [gate, up, MatrixJob::default()]
    }

    /// One row of results; `dot(matrix, out)` is what the sums should be.
    fn compare(&mut self, got: &[f32], gelu: bool, bound: f64, dot: impl Fn(usize, usize) -> Dot) {
        for (out, got) in got.iter().enumerate() {
            let [gate, up] = [0, 1].map(|matrix| {
                let Dot { sum, magnitude } = dot(matrix, out);
                let bias = if gelu { f64::from(self.biases[matrix][out]) } else { 0.0 };
                Dot { sum: sum + bias, magnitude: magnitude + bias.abs() }
            });
            // |act'| ≤ 1.13, |act(x)| ≤ |x|; the activation itself is right to 16 U, less than the bound
            let lost = 1.2 * gate.magnitude * (up.sum.abs() + bound * up.magnitude) + up.magnitude * gate.sum.abs();
            let want = activate(gate.sum, gelu) * up.sum;
            self.outcome.compare(*got, want, lost + want.abs(), bound);
        }
    }
}

pub fn gemv_gated(
    device: &Device,
    kernel: &Kernel<GemvGated>,
    dtype: DType,
    rows: usize,
    gates: usize,
) -> Result<Outcome, CudaError> {
    let outs = OUTS[0];
    let case = Narrow::new(device, dtype, rows, [outs; 2])?;
    let mut gated = Gated::new(device)?;
    for gelu in [false, true] {
        let y = unwritten::<f32>(device, rows * outs)?;
        let parameters = GemvGated {
            x: case.on_device.0.ptr(),
            norm_weight: case.on_device.1.ptr(),
            norm_offset: OFFSET,
            eps: EPS,
            jobs: gated.jobs([case.w[0].ptr(), case.w[1].ptr()], y.ptr(), gelu),
            k: K.into(),
            rows: rows.into(),
            activation: gelu.into(),
        };
        device.launch(kernel, [outs.div_ceil(gates), 1, 1], &parameters)?;
        for (row, got) in device.read(&y, 0, rows * outs)?.chunks(outs).enumerate() {
            let x = case.row(row, true);
            gated.compare(got, gelu, narrow_bound(dtype), |matrix, out| case.dot(&x, matrix, out));
        }
    }
    Ok(gated.outcome)
}

/// Of `gemm.cu`: chains of 32 elements are two steps on the tensor cores; then the chains, bias and residual.
fn wide_bound(k: usize) -> f64 {
    bound(2, k / 32 + 48)
}

/// Of k, for the kernels of `gemm.cu`, and more than the stages of `gemm_hopper.cu` hold.
const WIDE_K: usize = 168;
const HOPPER_K: usize = 6 * 64 + 72;

/// Inputs of a wide product as the case has them: `[n, k]` f16 and a power of two for each row.
struct WideInput {
    x: DevicePtr<u16>,
    x_scales: DevicePtr<f32>,
    n: usize,
    k: usize,
}

impl WideInput {
    /// The launch of a kernel of `gemm_hopper.cu`, of which `blocks` blocks have outputs.
    fn launch_hopper(
        &self,
        device: &Device,
        kernel: &Kernel<GemmHopper>,
        jobs: MatrixJobs,
        blocks: usize,
        mode: Int,
    ) -> Result<(), CudaError> {
        let WideInput { x, x_scales, n, k } = *self;
        device.launch(kernel, hopper_grid(n, blocks), &GemmHopper::new(x, x_scales, jobs, n, k, mode)?)
    }
}

/// For as many rows as fill a block and a part of the next.
pub fn gemm_gated(device: &Device, kernel: &Kernel<GemmGated>, block: usize) -> Result<Outcome, CudaError> {
    wide_gated(device, (block + 6, WIDE_K), |input, jobs, activation| {
        let WideInput { x, x_scales, n, k } = *input;
        let parameters = GemmGated { x, x_scales, jobs, n: n.into(), k: k.into(), activation };
        device.launch(kernel, [n.div_ceil(block), (2 * OUTS[0]).div_ceil(block), 1], &parameters)
    })
}

pub fn gemm_gated_hopper(device: &Device, kernel: &Kernel<GemmHopper>) -> Result<Outcome, CudaError> {
    let blocks = OUTS[0].div_ceil(HOPPER_BLOCK / 2);
    wide_gated(device, (HOPPER_BLOCK + 6, HOPPER_K), |input, jobs, activation| {
        input.launch_hopper(device, kernel, jobs, blocks, activation)
    })
}

/// A gate and up of [`OUTS`]`[0]` outputs each, for n rows of k inputs.
fn wide_gated(
    device: &Device,
    (n, k): (usize, usize),
    launch: impl Fn(&WideInput, MatrixJobs, Int) -> Result<(), CudaError>,
) -> Result<Outcome, CudaError> {
    let outs = OUTS[0];
    let mut noise = Noise(14);
    let x = Values::new(device, &noise.floats(n * k, 1.0), DType::F16)?;
    let w = [0, 1].map(|_| noise.floats(outs * k, 0.2));
    let w = [Values::new(device, &w[0], DType::F16)?, Values::new(device, &w[1], DType::F16)?];
    let x_scales = Scales::new(device, n)?;
    let mut gated = Gated::new(device)?;
    let input = x_scales.restore(&x.values, k);
    let matrices = [gated.scales.restore(&w[0].values, k), w[1].values.iter().map(|w| f64::from(*w)).collect()];
    let on_device = WideInput { x: x.ptr().cast(), x_scales: x_scales.buffer.ptr(), n, k };
    for gelu in [false, true] {
        let y = unwritten::<f32>(device, n * outs)?;
        launch(&on_device, gated.jobs([w[0].ptr(), w[1].ptr()], y.ptr(), gelu), gelu.into())?;
        for (row, got) in device.read(&y, 0, n * outs)?.chunks(outs).enumerate() {
            let x = &input[row * k..][..k];
            gated.compare(got, gelu, wide_bound(k), |matrix, out| dot(x, &matrices[matrix][out * k..][..k]));
        }
    }
    Ok(gated.outcome)
}

/// Outputs of the two matrices of [`wide`].
const WIDE_OUTS: [usize; 2] = [72, 40];

/// Blocks of `block` outputs that they take.
fn wide_blocks(block: usize) -> usize {
    WIDE_OUTS.map(|outs| outs.div_ceil(block)).iter().sum()
}

/// For as many rows as fill a block and a part of the next.
pub fn gemm(device: &Device, kernel: &Kernel<Gemm>, block: usize) -> Result<Outcome, CudaError> {
    wide(device, (block + 6, WIDE_K), |input, jobs, accumulate| {
        let WideInput { x, x_scales, n, k } = *input;
        let parameters = Gemm { x, x_scales, jobs, n: n.into(), k: k.into(), accumulate };
        device.launch(kernel, [n.div_ceil(block), wide_blocks(block), 1], &parameters)
    })
}

pub fn gemm_hopper(device: &Device, kernel: &Kernel<GemmHopper>) -> Result<Outcome, CudaError> {
    wide(device, (HOPPER_BLOCK + 6, HOPPER_K), |input, jobs, accumulate| {
        input.launch_hopper(device, kernel, jobs, wide_blocks(HOPPER_BLOCK), accumulate)
    })
}

/// Two matrices, the first with powers of two and a bias, added to what is there, for n rows of k inputs.
fn wide(
    device: &Device,
    (n, k): (usize, usize),
    launch: impl Fn(&WideInput, MatrixJobs, Int) -> Result<(), CudaError>,
) -> Result<Outcome, CudaError> {
    const OUTS: [usize; 2] = WIDE_OUTS;
    let mut noise = Noise(11);
    let x = Values::new(device, &noise.floats(n * k, 1.0), DType::F16)?;
    let w = Values::new(device, &noise.floats((OUTS[0] + OUTS[1]) * k, 1.0), DType::F16)?;
    let (x_scales, w_scales) = (Scales::new(device, n)?, Scales::new(device, OUTS[0])?);
    let bias = noise.floats(OUTS[0], 1.0);
    let before = OUTS.map(|outs| noise.floats(n * outs, 1.0));
    let (bias_buffer, y) = (upload(device, &bias)?, [upload(device, &before[0])?, upload(device, &before[1])?]);
    let job = |i: usize, w, scales, bias| {
        let (y, outs) = (y[i].ptr(), OUTS[i] as i32);
        MatrixJob { w, scales, bias, y, outs, padding: 0 }
    };
    let second = w.buffer.ptr().add(2 * OUTS[0] * k).cast();
    let jobs = [
        job(0, w.ptr(), w_scales.buffer.ptr(), bias_buffer.ptr()),
        job(1, second, DevicePtr::NULL, DevicePtr::NULL),
        MatrixJob::default(),
    ];
    launch(&WideInput { x: x.ptr().cast(), x_scales: x_scales.buffer.ptr(), n, k }, jobs, Int(1))?;
    let bound = wide_bound(k);
    let input = x_scales.restore(&x.values, k);
    let (first, second) = w.values.split_at(OUTS[0] * k);
    let matrices = [w_scales.restore(first, k), second.iter().map(|w| f64::from(*w)).collect()];
    let mut outcome = Outcome::default();
    for (matrix, outs) in OUTS.into_iter().enumerate() {
        for (i, got) in device.read(&y[matrix], 0, n * outs)?.into_iter().enumerate() {
            let (row, out) = (i / outs, i % outs);
            let Dot { sum, magnitude } = dot(&input[row * k..][..k], &matrices[matrix][out * k..][..k]);
            let bias = if matrix == 0 { f64::from(bias[out]) } else { 0.0 };
            let before = f64::from(before[matrix][i]);
            outcome.compare(got, sum + bias + before, magnitude + bias.abs() + before.abs(), bound);
        }
    }
    Ok(outcome)
}

/// With and without powers of two of the weights, written and added.
pub fn scale(device: &Device, kernel: &Kernel<ScaleProducts>) -> Result<Outcome, CudaError> {
    let (rows, outs) = (5, 300);
    let mut noise = Noise(13);
    let (values, before) = (noise.floats(rows * outs, 30.0), noise.floats(rows * outs, 30.0));
    let (products, x_scales, scales) =
        (upload(device, &values)?, Scales::new(device, rows)?, Scales::new(device, outs)?);
    let mut outcome = Outcome::default();
    for add in [false, true] {
        let y = upload(device, &before)?;
        let parameters = ScaleProducts {
            products: products.ptr(),
            x_scales: x_scales.buffer.ptr(),
            scales: if add { DevicePtr::NULL } else { scales.buffer.ptr() },
            y: y.ptr(),
            count: (rows * outs).into(),
            outs: outs.into(),
            accumulate: add.into(),
        };
        device.launch(kernel, [(rows * outs).div_ceil(1024), 1, 1], &parameters)?;
        for (i, got) in device.read(&y, 0, rows * outs)?.into_iter().enumerate() {
            let product = f64::from(values[i]) * x_scales.values[i / outs];
            let (factor, there) = if add { (1.0, f64::from(before[i])) } else { (scales.values[i % outs], 0.0) };
            outcome.compare(got, product * factor + there, (product * factor).abs() + there.abs(), U);
        }
    }
    Ok(outcome)
}
