//! Cases of `gemv.cu` and `gemm.cu`, and of their plain replacements.

use super::super::abi::{GemmTerms, Gemv, GemvGated, GemvJob, GemvJobs, GemvNorm, Split};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::TERMS;
use super::super::launch::{Int, Kernel};
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, U, Values, bound, restored, terms, two_terms, unwritten, upload};
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

fn dot(x: &[f64], w: &[f32]) -> Dot {
    let products = || x.iter().zip(w).map(|(x, w)| x * f64::from(*w));
    Dot { sum: products().sum(), magnitude: products().map(f64::abs).sum() }
}

/// Three bf16 terms of x, two steps of 16 for a partial sum; f32 weights have three terms as well. Then the partial sums of a
/// lane and of the warps, and a few roundings of bias, norm and residual.
fn narrow_bound(dtype: DType) -> f64 {
    bound(if dtype == DType::F32 { 18 } else { 6 }, K / 256 + 24)
}

/// Inputs of a narrow product, `[rows, K]`, and the weights of two matrices.
struct Narrow {
    rows: usize,
    x: Vec<f32>,
    norm: Vec<f32>,
    on_device: (Buffer<f32>, Buffer<f32>),
    w: [Values; 2],
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
        Ok(Narrow { rows, x, norm, on_device, w })
    }

    /// A row as it is multiplied.
    fn row(&self, row: usize, normed: bool) -> Vec<f64> {
        let x = &self.x[row * K..][..K];
        if normed { norm(x, &self.norm) } else { x.iter().map(|x| f64::from(*x)).collect() }
    }

    fn dot(&self, row: &[f64], matrix: usize, out: usize) -> Dot {
        dot(row, &self.w[matrix].values[out * K..][..K])
    }
}

/// Two matrices, the first with a bias, both added to what is there.
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

    fn jobs(&self) -> GemvJobs {
        let job = |i: usize, bias| GemvJob {
            w: self.case.w[i].ptr(),
            bias,
            y: self.y[i].ptr(),
            outs: OUTS[i] as i32,
            padding: 0,
        };
        [job(0, self.bias_buffer.ptr()), job(1, DevicePtr::NULL), GemvJob::default()]
    }

    /// Blocks of 16 outputs, of 32 where there are more than 8 rows.
    fn grid(&self) -> [usize; 3] {
        let outs = if self.case.rows > 8 { 32 } else { 16 };
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
                    let before = f64::from(self.before[matrix][row * outs + out]);
                    let all = magnitude + bias.abs() + before.abs();
                    outcome.compare(y[matrix][row * outs + out], sum + bias + before, all, narrow_bound(dtype));
                }
            }
        }
        Ok(outcome)
    }
}

pub fn gemv(device: &Device, kernel: &Kernel<Gemv>, dtype: DType, rows: usize) -> Result<Outcome, CudaError> {
    let launched = Launched::new(device, dtype, rows)?;
    let (x, jobs) = (launched.case.on_device.0.ptr(), launched.jobs());
    let parameters = Gemv { x, jobs, k: K.into(), rows: rows.into(), accumulate: Int(1) };
    device.launch(kernel, launched.grid(), &parameters)?;
    launched.compare(device, dtype, false)
}

pub fn gemv_norm(device: &Device, kernel: &Kernel<GemvNorm>, dtype: DType, rows: usize) -> Result<Outcome, CudaError> {
    let launched = Launched::new(device, dtype, rows)?;
    let (x, norm_weight) = (launched.case.on_device.0.ptr(), launched.case.on_device.1.ptr());
    let (k, rows, accumulate) = (K.into(), rows.into(), Int(1));
    let jobs = launched.jobs();
    let parameters = GemvNorm { x, norm_weight, norm_offset: OFFSET, eps: EPS, jobs, k, rows, accumulate };
    device.launch(kernel, launched.grid(), &parameters)?;
    launched.compare(device, dtype, true)
}

/// Both activations, the second with biases.
pub fn gemv_gated(
    device: &Device,
    kernel: &Kernel<GemvGated>,
    dtype: DType,
    rows: usize,
) -> Result<Outcome, CudaError> {
    let outs = OUTS[0];
    let case = Narrow::new(device, dtype, rows, [outs; 2])?;
    let biases = [Noise(5).floats(outs, 1.0), Noise(6).floats(outs, 1.0)];
    let bias = [upload(device, &biases[0])?, upload(device, &biases[1])?];
    let mut outcome = Outcome::default();
    for gelu in [false, true] {
        let y = unwritten::<f32>(device, rows * outs)?;
        let parameters = GemvGated {
            x: case.on_device.0.ptr(),
            norm_weight: case.on_device.1.ptr(),
            norm_offset: OFFSET,
            eps: EPS,
            gate: case.w[0].ptr(),
            up: case.w[1].ptr(),
            gate_bias: if gelu { bias[0].ptr() } else { DevicePtr::NULL },
            up_bias: if gelu { bias[1].ptr() } else { DevicePtr::NULL },
            y: y.ptr(),
            k: K.into(),
            outs: outs.into(),
            rows: rows.into(),
            activation: gelu.into(),
        };
        device.launch(kernel, [outs.div_ceil(16), 1, 1], &parameters)?;
        let got = device.read(&y, 0, rows * outs)?;
        for row in 0..rows {
            let x = case.row(row, true);
            for out in 0..outs {
                let sums = [0, 1].map(|matrix| {
                    let Dot { sum, magnitude } = case.dot(&x, matrix, out);
                    let bias = if gelu { f64::from(biases[matrix][out]) } else { 0.0 };
                    Dot { sum: sum + bias, magnitude: magnitude + bias.abs() }
                });
                let ([gate, up], b) = (sums, narrow_bound(dtype));
                // |act'| ≤ 1.13, |act(x)| ≤ |x|; the activation itself is right to 16 U, less than b
                let lost = 1.2 * gate.magnitude * (up.sum.abs() + b * up.magnitude) + up.magnitude * gate.sum.abs();
                let want = activate(gate.sum, gelu) * up.sum;
                outcome.compare(got[row * outs + out], want, lost + want.abs(), b);
            }
        }
    }
    Ok(outcome)
}

/// A product of two terms, with a bias, added to what is there, for as many rows as fill a block and a part of the next.
pub fn gemm(device: &Device, kernel: &Kernel<GemmTerms>, dtype: DType, block: usize) -> Result<Outcome, CudaError> {
    let (n, outs, k) = (block + 6, 72, 104);
    let mut noise = Noise(11);
    let w = Values::new(device, &noise.floats(outs * k, 1.0), dtype)?;
    let first = noise.floats(n * k, 1.0);
    // the second term is as much smaller as the rounding of the first leaves it
    let (next, restore) = terms(dtype);
    let second = noise.floats(n * k, (two_terms(dtype).sqrt() / next) as f32);
    let x = Values::new(device, &[first, second].concat(), dtype)?;
    let (bias, before) = (noise.floats(outs, 1.0), noise.floats(n * outs, 1.0));
    let (bias_buffer, y) = (upload(device, &bias)?, upload(device, &before)?);
    let parameters = GemmTerms {
        x: x.ptr().cast(),
        w: w.ptr(),
        bias: bias_buffer.ptr(),
        y: y.ptr(),
        n: n.into(),
        outs: outs.into(),
        k: k.into(),
        accumulate: Int(1),
    };
    device.launch(kernel, [n.div_ceil(block), outs.div_ceil(64), 1], &parameters)?;
    let got = device.read(&y, 0, n * outs)?;
    // a slice of 32 elements: two steps of each term; then the slices, bias and residual
    let bound = bound(2 * TERMS, k / 32 + 48);
    let mut outcome = Outcome::default();
    for row in 0..n {
        let input: Vec<f64> = (row * k..(row + 1) * k)
            .map(|i| restore * (f64::from(x.values[i]) + next * f64::from(x.values[n * k + i])))
            .collect();
        for out in 0..outs {
            let Dot { sum, magnitude } = dot(&input, &w.values[out * k..][..k]);
            let added = [f64::from(bias[out]), f64::from(before[row * outs + out])];
            let want = sum + added[0] + added[1];
            outcome.compare(got[row * outs + out], want, magnitude + added[0].abs() + added[1].abs(), bound);
        }
    }
    Ok(outcome)
}

pub fn split(device: &Device, kernel: &Kernel<Split>, dtype: DType) -> Result<Outcome, CudaError> {
    let count = 1300;
    let values = Noise(12).floats(count, 30.0);
    let (x, to) = (upload(device, &values)?, unwritten::<u16>(device, TERMS * count)?);
    let parameters = Split { x: x.ptr(), terms: to.ptr(), count: count.into(), term_count: TERMS.into() };
    device.launch(kernel, [count.div_ceil(1024), 1, 1], &parameters)?;
    let got = restored(&device.read(&to, 0, TERMS * count)?, dtype);
    let mut outcome = Outcome::default();
    for (got, want) in got.iter().zip(&values) {
        let want = f64::from(*want);
        outcome.compare(*got as f32, want, want.abs() + 1.0 / 256.0, two_terms(dtype) + U);
    }
    Ok(outcome)
}
