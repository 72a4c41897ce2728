//! Cases of `embed.cu`, `norm.cu` and `weights.cu`, and of the rounding in `gemm.cu`.

use super::super::abi::{AddRmsNorm, Embed, GatedAct, NarrowWeights, RmsNorm, RmsNormF16, RoundRows, RowState};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::launch::Kernel;
use super::super::noise::Noise;
use super::data::{Outcome, Rounded, Scales, U, Values, decode, unwritten, upload};
use crate::model::weights::DType;
use std::f64::consts::PI;

/// Rows, and a width that is no multiple of what a block takes at once.
const ROWS: usize = 3;
const WIDTH: usize = 1160;
pub const EPS: f32 = 1e-5;
/// Added to the norm's weights, as in Gemma.
pub const OFFSET: f32 = 1.0;

/// A sum of squares by 256 threads, a factor and two products.
const NORM: f64 = 32.0 * U;

/// SiLU, or the tanh form of GELU.
pub fn activate(x: f64, gelu: bool) -> f64 {
    match gelu {
        false => x / (1.0 + (-x).exp()),
        true => x / 2.0 * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
    }
}

/// RMS norm of a row.
pub fn norm(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let factor = 1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * factor * f64::from(OFFSET + w)).collect()
}

/// Tokens of the vocabulary, and one beyond it, whose row is not a number.
pub fn embed(device: &Device, kernel: &Kernel<Embed>, dtype: DType) -> Result<Outcome, CudaError> {
    let (vocab, width, scale, tokens) = (7, 2056, 1.7f32, [3, 0, 7]);
    let table = Values::new(device, &Noise(21).floats(vocab * width, 1.0), dtype)?;
    let scales = Scales::new(device, vocab)?;
    let values = scales.restore(&table.values, width);
    let rows = tokens.map(|token| RowState { token, ..RowState::default() });
    let (rows, x) = (upload(device, &rows)?, unwritten::<f32>(device, tokens.len() * width)?);
    let parameters = Embed {
        embedding: table.ptr(),
        scales: scales.buffer.ptr(),
        rows: rows.ptr(),
        x: x.ptr(),
        width: width.into(),
        vocab: vocab.into(),
        scale,
    };
    device.launch(kernel, [width.div_ceil(2048), tokens.len(), 1], &parameters)?;
    let got: Vec<f32> = device.read(&x, 0, tokens.len() * width)?;
    let mut outcome = Outcome::default();
    for (i, got) in got.iter().enumerate() {
        match values.get(tokens[i / width] as usize * width + i % width) {
            Some(value) => outcome.compare(*got, value * f64::from(scale), value.abs() * f64::from(scale), 2.0 * U),
            None => outcome.same(got.is_nan(), true),
        }
    }
    Ok(outcome)
}

/// Numbers, and then a row with one that is not finite, which sets the flag.
pub fn rms_norm(device: &Device, kernel: &Kernel<RmsNorm>) -> Result<Outcome, CudaError> {
    let mut noise = Noise(22);
    let (mut x, weight) = (noise.floats(ROWS * WIDTH, 3.0), noise.floats(WIDTH, 1.0));
    let weights = upload(device, &weight)?;
    let flag = upload(device, &[0i32])?;
    let mut outcome = Outcome::default();
    for bad in [false, true] {
        if bad {
            x[WIDTH + 5] = f32::INFINITY;
        }
        let (from, y) = (upload(device, &x)?, unwritten::<f32>(device, x.len())?);
        let parameters = RmsNorm {
            x: from.ptr(),
            weight: weights.ptr(),
            offset: OFFSET,
            eps: EPS,
            width: WIDTH.into(),
            y: y.ptr(),
            not_finite: flag.ptr(),
        };
        device.launch(kernel, [ROWS, 1, 1], &parameters)?;
        let got: Vec<f32> = device.read(&y, 0, x.len())?;
        for (got, x) in got.chunks(WIDTH).zip(x.chunks(WIDTH)).filter(|(_, x)| x.iter().all(|x| x.is_finite())) {
            got.iter().zip(norm(x, &weight)).for_each(|(got, want)| outcome.compare(*got, want, want.abs(), NORM));
        }
        outcome.same(device.read(&flag, 0, 1)?, vec![i32::from(bad)]);
    }
    Ok(outcome)
}

pub fn rms_norm_f16(device: &Device, kernel: &Kernel<RmsNormF16>) -> Result<Outcome, CudaError> {
    let mut noise = Noise(23);
    let (x, weight) = (noise.floats(ROWS * WIDTH, 3.0), noise.floats(WIDTH, 1.0));
    let (from, weights) = (upload(device, &x)?, upload(device, &weight)?);
    let to = Rounded::unwritten(device, ROWS, WIDTH)?;
    let parameters = RmsNormF16 {
        x: from.ptr(),
        weight: weights.ptr(),
        offset: OFFSET,
        eps: EPS,
        width: WIDTH.into(),
        to: to.rows(),
    };
    device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let want: Vec<f64> = x.chunks(WIDTH).flat_map(|x| norm(x, &weight)).collect();
    let mut outcome = Outcome::default();
    to.compare(device, &mut outcome, &want, WIDTH, NORM)?;
    Ok(outcome)
}

/// Rows of very different sizes, and one of zeros.
pub fn round_rows(device: &Device, kernel: &Kernel<RoundRows>) -> Result<Outcome, CudaError> {
    let mut x = Noise(12).floats(ROWS * WIDTH, 30.0);
    x[..WIDTH].fill(0.0);
    x[WIDTH..2 * WIDTH].iter_mut().for_each(|x| *x *= 1e9);
    let (from, to) = (upload(device, &x)?, Rounded::unwritten(device, ROWS, WIDTH)?);
    device.launch(kernel, [ROWS, 1, 1], &RoundRows { x: from.ptr(), width: WIDTH.into(), to: to.rows() })?;
    let want: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let mut outcome = Outcome::default();
    to.compare(device, &mut outcome, &want, WIDTH, 0.0)?;
    Ok(outcome)
}

/// Numbers as large as bf16 has them in one row, and as small as are still exact in another.
pub fn narrow_weights(device: &Device, kernel: &Kernel<NarrowWeights>) -> Result<Outcome, CudaError> {
    let mut w = Noise(26).floats(ROWS * WIDTH, 1.0);
    w[..WIDTH].iter_mut().for_each(|x| *x *= 2f32.powi(126));
    w[WIDTH..2 * WIDTH].iter_mut().enumerate().for_each(|(i, x)| *x = 1f32.max(x.abs()) * 2f32.powi(-(i as i32 % 30)));
    let w = Values::new(device, &w, DType::Bf16)?;
    let scales = unwritten::<f32>(device, ROWS)?;
    let parameters = NarrowWeights { w: w.ptr(), scales: scales.ptr(), k: WIDTH.into() };
    device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let scales: Vec<f32> = device.read(&scales, 0, ROWS)?;
    let got = decode(&device.read(&w.buffer, 0, 2 * w.values.len())?, DType::F16);
    let mut outcome = Outcome::default();
    for (i, (got, want)) in got.iter().zip(&w.values).enumerate() {
        let got = f64::from(*got) * f64::from(scales[i / WIDTH]);
        // exact, but for the noise that lies more than 2^31 below its row's maximum
        outcome.compare(got as f32, f64::from(*want), f64::from(want.abs()) + f64::from(U as f32), U);
    }
    Ok(outcome)
}

pub fn add_rms_norm(device: &Device, kernel: &Kernel<AddRmsNorm>) -> Result<Outcome, CudaError> {
    let mut noise = Noise(24);
    let (x, h) = (noise.floats(ROWS * WIDTH, 2.0), noise.floats(ROWS * WIDTH, 3.0));
    let weight = noise.floats(WIDTH, 1.0);
    let (to, from) = (upload(device, &x)?, upload(device, &h)?);
    let weights = upload(device, &weight)?;
    let parameters =
        AddRmsNorm { x: to.ptr(), h: from.ptr(), weight: weights.ptr(), offset: OFFSET, eps: EPS, width: WIDTH.into() };
    device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let got: Vec<f32> = device.read(&to, 0, x.len())?;
    let mut outcome = Outcome::default();
    let added = h.chunks(WIDTH).flat_map(|h| norm(h, &weight));
    for ((got, x), added) in got.iter().zip(&x).zip(added) {
        outcome.compare(*got, f64::from(*x) + added, f64::from(x.abs()) + added.abs(), NORM);
    }
    Ok(outcome)
}

/// Gates, the other factors, and the results of an activation.
fn gates(gelu: bool) -> (Vec<f32>, Vec<f32>, Vec<f64>) {
    let mut noise = Noise(25);
    let (gate, up) = (noise.floats(1304, 6.0), noise.floats(1304, 2.0));
    let want = gate.iter().zip(&up).map(|(g, u)| activate(f64::from(*g), gelu) * f64::from(*u)).collect();
    (gate, up, want)
}

/// Of |gate · up|, which is no less than the result: the exponential or tanh is right to a few U of 1.
const ACTIVATION: f64 = 16.0 * U;

pub fn gated_act(device: &Device, kernel: &Kernel<GatedAct>) -> Result<Outcome, CudaError> {
    let mut outcome = Outcome::default();
    for gelu in [false, true] {
        let (gate, up, want) = gates(gelu);
        let (g, u) = (upload(device, &gate)?, upload(device, &up)?);
        let y = unwritten::<f32>(device, gate.len())?;
        let count = gate.len().into();
        let parameters = GatedAct { gate: g.ptr(), up: u.ptr(), y: y.ptr(), count, activation: gelu.into() };
        device.launch(kernel, [gate.len().div_ceil(1024), 1, 1], &parameters)?;
        for (i, got) in device.read(&y, 0, gate.len())?.into_iter().enumerate() {
            outcome.compare(got, want[i], f64::from((gate[i] * up[i]).abs()), ACTIVATION);
        }
    }
    Ok(outcome)
}
