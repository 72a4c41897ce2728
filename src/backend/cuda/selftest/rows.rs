//! Cases of kernels that work on rows: `embed.cu`, `norm.cu`, `weights.cu`, and the rounding of `gemm.cu`.

use super::super::abi::{AddRmsNorm, Embed, GatedAct, NarrowWeights, RmsNorm, RmsNormF16, RoundRows, RowState};
use super::super::error::CudaError;
use super::super::launch::Kernel;
use super::super::noise::Noise;
use super::data::{Bench, U, exact, near, power, wide};
use crate::model::weights::DType;
use std::f64::consts::PI;

/// A width that is no multiple of a block's step.
const ROWS: usize = 3;
const WIDTH: usize = 1160;
pub const EPS: f32 = 1e-5;
/// Added to norm weights, as in Gemma.
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

/// Tokens of the vocabulary, and one beyond it, whose row is NaN.
pub fn embed(kernel: &Kernel<Embed>, bench: &Bench, dtype: DType) -> Result<(), CudaError> {
    let (vocab, width, scale, tokens) = (7, 2056, 1.7f32, [3, 0, 7]);
    let (embedding, table) = bench.put_as(&Noise(21).floats(vocab * width, 1.0), dtype)?;
    let scales = bench.put(&(0..vocab).map(power).collect::<Vec<f32>>())?;
    let rows = bench.put(&tokens.map(|token| RowState { token, ..RowState::default() }))?;
    let x = bench.room::<f32>(tokens.len() * width)?;
    let parameters = Embed { embedding, scales, rows, x, width: width.into(), vocab: vocab.into(), scale };
    bench.device.launch(kernel, [width.div_ceil(2048), tokens.len(), 1], &parameters)?;
    let want = (0..tokens.len() * width).map(|i| {
        let token = tokens[i / width] as usize;
        let Some(value) = table.get(token * width + i % width) else { return exact(f64::NAN) };
        let value = f64::from(*value) * f64::from(power(token)) * f64::from(scale);
        near(value, value.abs(), 2.0 * U)
    });
    bench.compare("x", x, want)
}

/// Finite rows, then one with an infinity, which sets the flag.
pub fn rms_norm(kernel: &Kernel<RmsNorm>, bench: &Bench) -> Result<(), CudaError> {
    let (mut values, weights) = (Noise(22).floats(ROWS * WIDTH, 3.0), Noise(20).floats(WIDTH, 1.0));
    let (weight, not_finite, y) = (bench.put(&weights)?, bench.put(&[0i32])?, bench.room::<f32>(ROWS * WIDTH)?);
    for bad_row in [None, Some(1)] {
        if let Some(row) = bad_row {
            values[row * WIDTH + 5] = f32::INFINITY;
        }
        let x = bench.put(&values)?;
        let parameters = RmsNorm { x, weight, offset: OFFSET, eps: EPS, width: WIDTH.into(), y, not_finite };
        bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
        for row in (0..ROWS).filter(|row| Some(*row) != bad_row) {
            let want = norm(&values[row * WIDTH..][..WIDTH], &weights);
            let want = want.into_iter().map(|y| near(y, y.abs(), NORM));
            bench.compare(&format!("y of row {row}"), y.add(row * WIDTH), want)?;
        }
        bench.compare("not_finite", not_finite, [exact(i32::from(bad_row.is_some()))])?;
    }
    Ok(())
}

pub fn rms_norm_f16(kernel: &Kernel<RmsNormF16>, bench: &Bench) -> Result<(), CudaError> {
    let (values, weights) = (Noise(23).floats(ROWS * WIDTH, 3.0), Noise(20).floats(WIDTH, 1.0));
    let (x, weight, to) = (bench.put(&values)?, bench.put(&weights)?, bench.rounded_room(ROWS, WIDTH)?);
    let parameters = RmsNormF16 { x, weight, offset: OFFSET, eps: EPS, width: WIDTH.into(), to };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let want: Vec<f64> = values.chunks(WIDTH).flat_map(|x| norm(x, &weights)).collect();
    bench.compare_rounded("y", (to, WIDTH), &want, WIDTH, NORM)
}

pub fn add_rms_norm(kernel: &Kernel<AddRmsNorm>, bench: &Bench) -> Result<(), CudaError> {
    let (before, values) = (Noise(24).floats(ROWS * WIDTH, 2.0), Noise(27).floats(ROWS * WIDTH, 3.0));
    let weights = Noise(20).floats(WIDTH, 1.0);
    let (x, h, weight) = (bench.put(&before)?, bench.put(&values)?, bench.put(&weights)?);
    let parameters = AddRmsNorm { x, h, weight, offset: OFFSET, eps: EPS, width: WIDTH.into() };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let added = values.chunks(WIDTH).flat_map(|h| norm(h, &weights));
    bench.compare("x", x, wide(&before).into_iter().zip(added).map(|(x, y)| near(x + y, x.abs() + y.abs(), NORM)))
}

/// A row of zeros, a large one, and an ordinary one.
pub fn round_rows(kernel: &Kernel<RoundRows>, bench: &Bench) -> Result<(), CudaError> {
    let mut values = Noise(12).floats(ROWS * WIDTH, 30.0);
    values[..WIDTH].fill(0.0);
    values[WIDTH..2 * WIDTH].iter_mut().for_each(|x| *x *= 1e9);
    let (x, to) = (bench.put(&values)?, bench.rounded_room(ROWS, WIDTH)?);
    bench.device.launch(kernel, [ROWS, 1, 1], &RoundRows { x, width: WIDTH.into(), to })?;
    bench.compare_rounded("y", (to, WIDTH), &wide(&values), WIDTH, 0.0)
}

/// A row near the end of bf16's range, one over 30 binades, which f16 with a scale still holds exactly, and an ordinary one.
pub fn narrow_weights(kernel: &Kernel<NarrowWeights>, bench: &Bench) -> Result<(), CudaError> {
    let mut values = Noise(26).floats(ROWS * WIDTH, 1.0);
    values[..WIDTH].iter_mut().for_each(|x| *x *= 2f32.powi(126));
    let binades = values[WIDTH..2 * WIDTH].iter_mut().enumerate();
    binades.for_each(|(i, x)| *x = 1f32.max(x.abs()) * 2f32.powi(-(i as i32 % 30)));
    let (w, stored) = bench.put_as(&values, DType::Bf16)?;
    let scales = bench.room::<f32>(ROWS)?;
    bench.device.launch(kernel, [ROWS, 1, 1], &NarrowWeights { w, scales, k: WIDTH.into() })?;
    let (halves, scales) = (bench.get_as(w, DType::F16, stored.len())?, bench.get(scales, ROWS)?);
    let restored = halves.iter().enumerate().map(|(i, w)| f64::from(*w) * f64::from(scales[i / WIDTH]));
    // exact, except more than 2^31 below the row's maximum
    bench.check("w", restored, wide(&stored).into_iter().map(|w| near(w, w.abs() + U, U)));
    Ok(())
}

pub fn gated_act(kernel: &Kernel<GatedAct>, bench: &Bench) -> Result<(), CudaError> {
    const COUNT: usize = 1304;
    let (gates, ups) = (Noise(25).floats(COUNT, 6.0), Noise(28).floats(COUNT, 2.0));
    let (gate, up) = (bench.put(&gates)?, bench.put(&ups)?);
    for (gelu, case) in [(false, "SiLU"), (true, "GELU")] {
        let y = bench.room::<f32>(COUNT)?;
        let parameters = GatedAct { gate, up, y, count: COUNT.into(), activation: gelu.into() };
        bench.device.launch(kernel, [COUNT.div_ceil(1024), 1, 1], &parameters)?;
        // the exponential or tanh is within a few U of 1
        let pairs = wide(&gates).into_iter().zip(wide(&ups));
        bench.compare(case, y, pairs.map(|(g, u)| near(activate(g, gelu) * u, (g * u).abs(), 16.0 * U)))?;
    }
    Ok(())
}
