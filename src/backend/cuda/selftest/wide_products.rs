//! Cases of `gemm.cu` and `gemm_hopper.cu`, and of their plain replacements.

use super::super::abi::{Gemm, GemmGated, GemmHopper, MatrixJob, MatrixJobs, RoundedRows, SHARING, ScaleProducts};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::{HOPPER_BLOCK, hopper_grid};
use super::super::launch::{Int, Kernel};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Outcome, Rounded, Scales, U, Values, bound, unwritten, upload};
use super::products::{Dot, Gated, OUTS, dot};
use crate::model::weights::DType;

/// Of `gemm.cu`: chains of 32 elements are two steps on the tensor cores; then the chains, bias and residual.
fn wide_bound(k: usize) -> f64 {
    bound(2, k / 32 + 48)
}

/// Of k, for the kernels of `gemm.cu`, and more than the stages of `gemm_hopper.cu` hold.
const WIDE_K: usize = 168;
const HOPPER_K: usize = 6 * 64 + 72;

/// Inputs of a wide product as the case has them: `[n, k]`.
struct WideInput {
    x: RoundedRows,
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
        let WideInput { x, n, k } = *self;
        device.launch(kernel, hopper_grid(n, blocks), &GemmHopper::new(x, jobs, n, k, mode)?)
    }
}

/// For as many rows as fill a block and a part of the next.
pub fn gemm_gated(device: &Device, kernel: &Kernel<GemmGated>, block: usize) -> Result<Outcome, CudaError> {
    wide_gated(device, (block + 6, WIDE_K), |input, jobs, activation| {
        let WideInput { x, n, k } = *input;
        let parameters = GemmGated { x, jobs, n: n.into(), k: k.into(), activation };
        device.launch(kernel, [n.div_ceil(block), (2 * OUTS[0]).div_ceil(block), 1], &parameters)
    })
}

pub fn gemm_gated_hopper(device: &Device, kernel: &Kernel<GemmHopper>) -> Result<Outcome, CudaError> {
    let blocks = OUTS[0].div_ceil(HOPPER_BLOCK / 2);
    wide_gated(device, (HOPPER_BLOCK + 6, HOPPER_K), |input, jobs, activation| {
        input.launch_hopper(device, kernel, jobs, blocks, activation)
    })
}

/// A gate and up of [`OUTS`]`[0]` outputs each, for n rows of k inputs; then the same, rounded.
fn wide_gated(
    device: &Device,
    (n, k): (usize, usize),
    launch: impl Fn(&WideInput, MatrixJobs, Int) -> Result<(), CudaError>,
) -> Result<Outcome, CudaError> {
    let outs = OUTS[0];
    let mut noise = Noise(14);
    let (x, input) = Rounded::new(device, &noise.floats(n * k, 1.0), k)?;
    let w = [0, 1].map(|_| noise.floats(outs * k, 0.2));
    let w = [Values::new(device, &w[0], DType::F16)?, Values::new(device, &w[1], DType::F16)?];
    let mut gated = Gated::new(device)?;
    let matrices = [gated.scales.restore(&w[0].values, k), w[1].values.iter().map(|w| f64::from(*w)).collect()];
    let on_device = WideInput { x: x.rows(), n, k };
    for gelu in [false, true] {
        let y = unwritten::<f32>(device, n * outs)?;
        let mut jobs = gated.jobs([w[0].ptr(), w[1].ptr()], y.ptr(), gelu);
        launch(&on_device, jobs, gelu.into())?;
        let y: Vec<f32> = device.read(&y, 0, n * outs)?;
        for (row, got) in y.chunks(outs).enumerate() {
            let x = &input[row * k..][..k];
            gated.compare(got, gelu, wide_bound(k), |matrix, out| dot(x, &matrices[matrix][out * k..][..k]));
        }
        let to = Rounded::unwritten(device, n, outs)?;
        jobs[0].rounded = to.rows();
        launch(&on_device, jobs, gelu.into())?;
        let want: Vec<f64> = y.iter().map(|x| f64::from(*x)).collect();
        to.compare(device, &mut gated.outcome, &want, SHARING, 0.0)?;
    }
    Ok(gated.outcome)
}

/// Outputs of the two matrices of [`wide`].
const MATRIX_OUTS: [usize; 2] = [72, 40];

/// Blocks of `block` outputs that they take.
fn wide_blocks(block: usize) -> usize {
    MATRIX_OUTS.map(|outs| outs.div_ceil(block)).iter().sum()
}

/// For as many rows as fill a block and a part of the next.
pub fn gemm(device: &Device, kernel: &Kernel<Gemm>, block: usize) -> Result<Outcome, CudaError> {
    wide(device, (block + 6, WIDE_K), |input, jobs, accumulate| {
        let WideInput { x, n, k } = *input;
        let parameters = Gemm { x, jobs, n: n.into(), k: k.into(), accumulate };
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
    const OUTS: [usize; 2] = MATRIX_OUTS;
    let mut noise = Noise(11);
    let (x, input) = Rounded::new(device, &noise.floats(n * k, 1.0), k)?;
    let w = Values::new(device, &noise.floats((OUTS[0] + OUTS[1]) * k, 1.0), DType::F16)?;
    let w_scales = Scales::new(device, OUTS[0])?;
    let bias = noise.floats(OUTS[0], 1.0);
    let before = OUTS.map(|outs| noise.floats(n * outs, 1.0));
    let (bias_buffer, y) = (upload(device, &bias)?, [upload(device, &before[0])?, upload(device, &before[1])?]);
    let job = |i: usize, w, scales, bias| {
        let (y, outs) = (y[i].ptr(), OUTS[i] as i32);
        MatrixJob { w, scales, bias, y, outs, ..MatrixJob::default() }
    };
    let second = w.buffer.ptr().add(2 * OUTS[0] * k).cast();
    let jobs = [
        job(0, w.ptr(), w_scales.buffer.ptr(), bias_buffer.ptr()),
        job(1, second, DevicePtr::NULL, DevicePtr::NULL),
        MatrixJob::default(),
    ];
    launch(&WideInput { x: x.rows(), n, k }, jobs, Int(1))?;
    let bound = wide_bound(k);
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
            x_stride: Int(1),
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
