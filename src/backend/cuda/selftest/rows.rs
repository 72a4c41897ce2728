//! Tests of kernels that work on rows: `embed.cu`, `norm.cu`, `weights.cu`, `layer_sums.cu`, `cosines.cu`, and the rounding and
//! scaling of `gemm.cu`.

use super::super::abi::{
    AddRmsNorm, Cosines, Embed, GatedAct, LayerSum, NarrowWeights, RmsNorm, RmsNormF16, RoundRows, RowState,
    ScaleProducts, SequenceView, TraceView,
};
use super::super::launch::{Int, Kernel};
use super::super::layers::{COLUMNS, KEPT, LayerSums};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Bench, Tested, U, exact, near, power, powers, wide};
use crate::backend::reference::{activate, dot};
use crate::model::config::Activation::{GeluTanh, Silu};
use crate::model::weights::DType;

/// A width that is no multiple of a block's step.
const ROWS: usize = 3;
const WIDTH: usize = 1160;
pub const EPS: f32 = 1e-5;
/// Added to norm weights, as in Gemma.
pub const OFFSET: f32 = 1.0;

/// Width of hidden states in a trace, and its first row.
pub const HIDDEN: usize = 300;
pub const FIRST: i32 = 7;

/// A sum of squares by 256 threads, a factor and two products.
const NORM: f64 = 32.0 * U;

/// A sequence with a trace.
pub fn traced(trace: TraceView) -> SequenceView {
    SequenceView { first_traced_row: FIRST, trace, ..SequenceView::default() }
}

/// RMS norm of rows.
pub fn norm(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let row = |x: &[f32]| {
        let factor = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(EPS)).sqrt();
        let scaled = x.iter().zip(weight).map(|(x, w)| f64::from(*x) * factor * f64::from(OFFSET + w));
        scaled.collect::<Vec<f64>>()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

/// Tokens of the vocabulary, and one beyond it, whose row is NaN.
pub fn embed(kernel: &Kernel<Embed>, bench: &Bench, dtype: DType) -> Tested {
    let (vocab, width, scale, tokens) = (7, 2056, 1.7f32, [3, 0, 7]);
    let (embedding, table) = bench.put_as(&Noise(21).floats(vocab * width, 1.0), dtype)?;
    let scales = bench.put(&powers(vocab))?;
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
pub fn rms_norm(kernel: &Kernel<RmsNorm>, bench: &Bench) -> Tested {
    let (mut values, weights) = (Noise(22).floats(ROWS * WIDTH, 3.0), Noise(20).floats(WIDTH, 1.0));
    let (weight, not_finite, y) = (bench.put(&weights)?, bench.put(&[0i32])?, bench.room::<f32>(ROWS * WIDTH)?);
    for finite in [ROWS, ROWS - 1] {
        values.iter_mut().skip(finite * WIDTH + 5).take(1).for_each(|x| *x = f32::INFINITY);
        let x = bench.put(&values)?;
        let parameters = RmsNorm { x, weight, offset: OFFSET, eps: EPS, width: WIDTH.into(), y, not_finite };
        bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
        let want = norm(&values[..finite * WIDTH], &weights).into_iter().map(|y| near(y, y.abs(), NORM));
        bench.compare(&format!("y of {finite} finite rows"), y, want)?;
        bench.compare("not_finite", not_finite, [exact(i32::from(finite < ROWS))])?;
    }
    Ok(())
}

pub fn rms_norm_f16(kernel: &Kernel<RmsNormF16>, bench: &Bench) -> Tested {
    let (values, weights) = (Noise(23).floats(ROWS * WIDTH, 3.0), Noise(20).floats(WIDTH, 1.0));
    let (x, weight, to) = (bench.put(&values)?, bench.put(&weights)?, bench.rounded_room(ROWS, WIDTH)?);
    let parameters = RmsNormF16 { x, weight, offset: OFFSET, eps: EPS, width: WIDTH.into(), to };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    bench.compare_rounded("y", (to, WIDTH), &norm(&values, &weights), WIDTH, NORM)
}

pub fn add_rms_norm(kernel: &Kernel<AddRmsNorm>, bench: &Bench) -> Tested {
    let (before, values) = (Noise(24).floats(ROWS * WIDTH, 2.0), Noise(27).floats(ROWS * WIDTH, 3.0));
    let weights = Noise(20).floats(WIDTH, 1.0);
    let (x, h, weight) = (bench.put(&before)?, bench.put(&values)?, bench.put(&weights)?);
    let parameters = AddRmsNorm { x, h, weight, offset: OFFSET, eps: EPS, width: WIDTH.into() };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let added = wide(&before).into_iter().zip(norm(&values, &weights));
    bench.compare("x", x, added.map(|(x, y)| near(x + y, x.abs() + y.abs(), NORM)))
}

/// A row of zeros, a large one, and an ordinary one.
pub fn round_rows(kernel: &Kernel<RoundRows>, bench: &Bench) -> Tested {
    let mut values = Noise(12).floats(ROWS * WIDTH, 30.0);
    values[..WIDTH].fill(0.0);
    values[WIDTH..2 * WIDTH].iter_mut().for_each(|x| *x *= 1e9);
    let (x, to) = (bench.put(&values)?, bench.rounded_room(ROWS, WIDTH)?);
    bench.device.launch(kernel, [ROWS, 1, 1], &RoundRows { x, width: WIDTH.into(), to })?;
    bench.compare_rounded("y", (to, WIDTH), &wide(&values), WIDTH, 0.0)
}

/// A row near the end of bf16's range, one over 30 binades, which f16 with a scale still holds exactly, and an ordinary one.
pub fn narrow_weights(kernel: &Kernel<NarrowWeights>, bench: &Bench) -> Tested {
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

pub fn gated_act(kernel: &Kernel<GatedAct>, bench: &Bench) -> Tested {
    const COUNT: usize = 1304;
    let (gates, ups) = (Noise(25).floats(COUNT, 6.0), Noise(28).floats(COUNT, 2.0));
    let (gate, up) = (bench.put(&gates)?, bench.put(&ups)?);
    for activation in [Silu, GeluTanh] {
        let y = bench.room::<f32>(COUNT)?;
        let number = (activation == GeluTanh).into();
        let parameters = GatedAct { gate, up, y, count: COUNT.into(), activation: number };
        bench.device.launch(kernel, [COUNT.div_ceil(1024), 1, 1], &parameters)?;
        // the exponential or tanh is within a few U of 1
        let pairs = wide(&gates).into_iter().zip(wide(&ups));
        let want = pairs.map(|(g, u)| near(activate(activation, g) * u, (g * u).abs(), 16.0 * U));
        bench.compare(&format!("{activation:?}"), y, want)?;
    }
    Ok(())
}

/// Written with output scales; added without.
pub fn scale(kernel: &Kernel<ScaleProducts>, bench: &Bench) -> Tested {
    let (rows, outs) = (5, 300);
    let (values, before) = (Noise(13).floats(rows * outs, 30.0), Noise(14).floats(rows * outs, 30.0));
    let (products, powers) = (bench.put(&values)?, bench.put(&powers(outs))?);
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
        let want = (0..rows * outs).map(|i| {
            let (out, before) = if add { (1.0, before[i].into()) } else { (power(i % outs).into(), 0.0) };
            let product = f64::from(values[i]) * f64::from(power(i / outs)) * out;
            near(product + before, product.abs() + f64::abs(before), U)
        });
        bench.compare(case, y, want)?;
    }
    Ok(())
}

/// Rows of one sequence, more than are kept, some of them twice, and a row of a sequence that records nothing.
pub fn layer_sums(kernel: &Kernel<LayerSum>, bench: &Bench) -> Tested {
    const PLACES: usize = 2;
    let layers = LayerSums::new(bench.device, PLACES, HIDDEN)?;
    let trace = TraceView { layers: layers.view(), ..TraceView::default() };
    let sequences = bench.put(&[traced(trace), SequenceView::default()])?;
    let (mut noise, mut latest) = (Noise(43), vec![vec![0f32; HIDDEN]; 2 * KEPT]);
    // the first row is not traced; the last one of the first pass comes again
    for pass in [FIRST - 1..FIRST + 4, FIRST + 3..FIRST + 2 * KEPT as i32] {
        let row = |position| RowState { position, ..RowState::default() };
        let mut rows: Vec<RowState> = pass.clone().map(row).collect();
        rows.push(RowState { slot: 1, ..row(FIRST) });
        let values = noise.floats(rows.len() * HIDDEN, 1.0);
        for (position, x) in pass.zip(values.chunks(HIDDEN)).filter(|(position, _)| *position >= FIRST) {
            latest[(position - FIRST) as usize] = x.to_vec();
        }
        let (x, n, rows) = (bench.put(&values)?, rows.len(), bench.put(&rows)?);
        for place in 0..PLACES {
            let (place, kept, width) = (place.into(), KEPT.into(), HIDDEN.into());
            let parameters = LayerSum { x, rows, n: n.into(), sequences, place, kept, width };
            bench.device.launch(kernel, [HIDDEN.div_ceil(COLUMNS), n, 1], &parameters)?;
        }
    }
    // all but the last row, and without rows of steps that ran ahead: the same sums in the same order
    for rows in [2 * KEPT - 1, KEPT] {
        let mean = |i: usize| latest[..rows].iter().map(|row| f64::from(row[i])).sum::<f64>() / rows as f64;
        let want = (0..PLACES * HIDDEN).map(|i| exact(mean(i % HIDDEN)));
        bench.check(&format!("means of {rows} rows"), layers.means(bench.device, rows)?.concat(), want);
    }
    Ok(())
}

/// Two traced rows, and one that is not.
pub fn cosines(kernel: &Kernel<Cosines>, bench: &Bench) -> Tested {
    let (hidden, states) = bench.put_as(&Noise(42).floats(2 * HIDDEN, 4.0), DType::F16)?;
    let (positions, answer) = ([FIRST, FIRST + 1, FIRST + 2], [FIRST + 1, FIRST]);
    let (columns, rows) = (answer.len(), positions.len());
    let out = bench.room::<f32>(rows * columns)?;
    let parameters = Cosines {
        sequences: bench.put(&[traced(TraceView { hidden: hidden.cast(), ..TraceView::default() })])?,
        slot: Int(0),
        traced: Int(2),
        hidden_size: HIDDEN.into(),
        positions: bench.put(&positions)?,
        answer: bench.put(&answer)?,
        out,
    };
    bench.device.launch(kernel, [columns, rows, 1], &parameters)?;
    let row = |position: i32| states.chunks(HIDDEN).nth((position - FIRST) as usize);
    let want = (0..rows * columns).map(|i| match (row(positions[i / columns]), row(answer[i % columns])) {
        (Some(a), Some(b)) => near(dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(), 1.0, 2.0 * U),
        _ => exact(0.0),
    });
    bench.compare("cosines", out, want)
}
