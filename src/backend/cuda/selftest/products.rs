//! Cases of `gemv.cu` and `gemv_wide.cu`, and of their plain replacements.

use super::super::abi::{
    Gemv, GemvGated, GemvQkv, GemvWide, MatrixJob, MatrixJobs, RopeTarget, RowState, SequenceView, SplitRows, Stored,
    TraceView, type_number,
};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::WIDE_OUTS;
use super::super::launch::{Int, Kernel};
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, Scales, U, Values, bound, decode, rounding, unwritten, upload};
use super::elementwise::{EPS, OFFSET, activate, norm};
use crate::model::weights::DType;

/// Wider than what the eight warps take at once, and no multiple of it.
const K: usize = 1160;
/// Outputs of two matrices: part of a block each.
pub(super) const OUTS: [usize; 2] = [40, 24];

/// A sum, and the sum of the absolute values.
#[derive(Clone, Copy)]
pub(super) struct Dot {
    pub(super) sum: f64,
    pub(super) magnitude: f64,
}

pub(super) fn dot(x: &[f64], w: &[f64]) -> Dot {
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
            MatrixJob { w, scales, bias, y, outs, ..MatrixJob::default() }
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
        MatrixJob { w, scales, bias, y, outs, ..MatrixJob::default() }
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
pub(super) struct Gated {
    pub(super) scales: Scales,
    biases: [Vec<f32>; 2],
    buffers: [Buffer<f32>; 2],
    pub(super) outcome: Outcome,
}

impl Gated {
    pub(super) fn new(device: &Device) -> Result<Gated, CudaError> {
        let biases = [Noise(5).floats(OUTS[0], 1.0), Noise(6).floats(OUTS[0], 1.0)];
        let buffers = [upload(device, &biases[0])?, upload(device, &biases[1])?];
        Ok(Gated { scales: Scales::new(device, OUTS[0])?, biases, buffers, outcome: Outcome::default() })
    }

    pub(super) fn jobs(&self, w: [DevicePtr<Stored>; 2], y: DevicePtr<f32>, gelu: bool) -> MatrixJobs {
        let outs = OUTS[0] as i32;
        let bias = |i: usize| if gelu { self.buffers[i].ptr() } else { DevicePtr::NULL };
        let gate =
            MatrixJob { w: w[0], scales: self.scales.buffer.ptr(), bias: bias(0), y, outs, ..MatrixJob::default() };
        let up = MatrixJob {
            w: w[1],
            scales: DevicePtr::NULL,
            bias: bias(1),
            y: DevicePtr::NULL,
            outs,
            ..MatrixJob::default()
        };
        [gate, up, MatrixJob::default()]
    }

    /// One row of results; `dot(matrix, out)` is what the sums should be.
    pub(super) fn compare(&mut self, got: &[f32], gelu: bool, bound: f64, dot: impl Fn(usize, usize) -> Dot) {
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

/// Rows of the case of `gemv_wide.cu`: those of a block and a part of the next.
const fn many_rows<const M: usize>() -> usize {
    M + 6
}

/// A case's rows as terms, with their factors.
fn split(
    device: &Device,
    kernel: &Kernel<SplitRows>,
    case: &Narrow,
    normed: bool,
) -> Result<(Buffer<u16>, Buffer<f32>), CudaError> {
    let (terms, factors) = (unwritten(device, 2 * case.rows * K)?, unwritten(device, case.rows)?);
    let parameters = SplitRows {
        x: case.on_device.0.ptr(),
        norm_weight: if normed { case.on_device.1.ptr() } else { DevicePtr::NULL },
        norm_offset: OFFSET,
        eps: EPS,
        terms: terms.ptr(),
        factors: factors.ptr(),
        width: K.into(),
    };
    device.launch(kernel, [case.rows, 1, 1], &parameters)?;
    Ok((terms, factors))
}

pub fn gemv_wide<const M: usize>(
    device: &Device,
    split_rows: &Kernel<SplitRows>,
    kernel: &Kernel<GemvWide<M>>,
) -> Result<Outcome, CudaError> {
    let launched = Launched::new(device, DType::F16, many_rows::<M>())?;
    let (terms, factors) = split(device, split_rows, &launched.case, false)?;
    let (terms, factors, rows) = (terms.ptr(), factors.ptr(), launched.case.rows);
    let parameters = GemvWide { terms, factors, jobs: launched.jobs(), k: K.into(), rows: rows.into(), mode: Int(1) };
    let [blocks, ..] = launched.grid(WIDE_OUTS);
    device.launch(kernel, [blocks, rows.div_ceil(M), 1], &parameters)?;
    launched.compare(device, DType::F16, false)
}

pub fn gemv_wide_gated<const M: usize>(
    device: &Device,
    split_rows: &Kernel<SplitRows>,
    kernel: &Kernel<GemvWide<M>>,
) -> Result<Outcome, CudaError> {
    gated_case(device, DType::F16, many_rows::<M>(), |case, jobs, activation| {
        let (terms, factors) = split(device, split_rows, case, true)?;
        let (terms, factors, rows) = (terms.ptr(), factors.ptr(), case.rows.into());
        let parameters = GemvWide { terms, factors, jobs, k: K.into(), rows, mode: activation };
        device.launch(kernel, [OUTS[0].div_ceil(WIDE_OUTS / 2), case.rows.div_ceil(M), 1], &parameters)
    })
}

pub fn gemv_gated(
    device: &Device,
    kernel: &Kernel<GemvGated>,
    dtype: DType,
    rows: usize,
    gates: usize,
) -> Result<Outcome, CudaError> {
    gated_case(device, dtype, rows, |case, jobs, activation| {
        let parameters = GemvGated {
            x: case.on_device.0.ptr(),
            norm_weight: case.on_device.1.ptr(),
            norm_offset: OFFSET,
            eps: EPS,
            jobs,
            k: K.into(),
            rows: rows.into(),
            activation,
        };
        device.launch(kernel, [OUTS[0].div_ceil(gates), 1, 1], &parameters)
    })
}

/// A gate and up of normed rows, which `launch` computes.
fn gated_case(
    device: &Device,
    dtype: DType,
    rows: usize,
    launch: impl Fn(&Narrow, MatrixJobs, Int) -> Result<(), CudaError>,
) -> Result<Outcome, CudaError> {
    let outs = OUTS[0];
    let case = Narrow::new(device, dtype, rows, [outs; 2])?;
    let mut gated = Gated::new(device)?;
    for gelu in [false, true] {
        let y = unwritten::<f32>(device, rows * outs)?;
        launch(&case, gated.jobs([case.w[0].ptr(), case.w[1].ptr()], y.ptr(), gelu), gelu.into())?;
        for (row, got) in device.read(&y, 0, rows * outs)?.chunks(outs).enumerate() {
            let x = case.row(row, true);
            gated.compare(got, gelu, narrow_bound(dtype), |matrix, out| case.dot(&x, matrix, out));
        }
    }
    Ok(gated.outcome)
}
