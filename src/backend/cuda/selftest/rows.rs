//! Tests of kernels that work on rows: `embed.cu`, `norm.cu`, `weights.cu`, `attn_select.cu`, `layer_sums.cu`, and
//! the rounding of `gemm.cu`.

use super::super::abi::{
    AddRmsNorm, AttnSelect, Embed, HeadState, LayerShape, LayerSum, NarrowWeights, Norm, RmsNorm, RmsNormF16,
    RoundRows, RowState, SequenceView, TraceView,
};
use super::super::kernel_set::{TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS};
use super::super::launch::{Int, Kernel};
use super::super::layers::{COLUMNS, KEPT, LayerSums};
use super::super::memory::DevicePtr;
use super::data::{Bench, Noise, Tested, U, exact, near, power, powers, wide};
use crate::backend::reference::dot;
use crate::model::weights::DType;

/// A width that is no multiple of a block's step.
const ROWS: usize = 3;
const WIDTH: usize = 1160;
const EPS: f32 = 1e-5;
/// Added to norm weights, as in Gemma.
const OFFSET: f32 = 1.0;

/// Width of hidden states in a trace, and its first row.
const HIDDEN: usize = 300;
const FIRST: i32 = 7;

/// A sum of squares by 256 threads, a factor and two products.
const NORM: f64 = 32.0 * U;

/// A sequence with a trace.
fn traced(trace: TraceView) -> SequenceView {
    SequenceView { first_traced_row: FIRST, trace, ..SequenceView::default() }
}

pub fn norm_of(weight: DevicePtr<f32>) -> Norm {
    Norm { weight, offset: OFFSET, eps: EPS }
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
    let (mut values, (weight, weights)) = (Noise(22).floats(ROWS * WIDTH, 3.0), bench.noise(20, WIDTH, 1.0)?);
    let (by, not_finite, y) = (norm_of(weight), bench.put(&[0i32])?, bench.room::<f32>(ROWS * WIDTH)?);
    for finite in [ROWS, ROWS - 1] {
        values.iter_mut().skip(finite * WIDTH + 5).take(1).for_each(|x| *x = f32::INFINITY);
        let x = bench.put(&values)?;
        let parameters = RmsNorm { x, norm: by, width: WIDTH.into(), y, not_finite };
        bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
        let want = norm(&values[..finite * WIDTH], &weights).into_iter().map(|y| near(y, y.abs(), NORM));
        bench.compare(&format!("y of {finite} finite rows"), y, want)?;
        bench.compare("not_finite", not_finite, [exact(i32::from(finite < ROWS))])?;
    }
    Ok(())
}

pub fn rms_norm_f16(kernel: &Kernel<RmsNormF16>, bench: &Bench) -> Tested {
    let ((x, values), (weight, weights)) = (bench.noise(23, ROWS * WIDTH, 3.0)?, bench.noise(20, WIDTH, 1.0)?);
    let to = bench.rounded_room(ROWS, WIDTH)?;
    let parameters = RmsNormF16 { x, norm: norm_of(weight), width: WIDTH.into(), to };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    bench.compare_rounded("y", (to, WIDTH), &norm(&values, &weights), WIDTH, NORM)
}

pub fn add_rms_norm(kernel: &Kernel<AddRmsNorm>, bench: &Bench) -> Tested {
    let ((x, before), (h, values)) = (bench.noise(24, ROWS * WIDTH, 2.0)?, bench.noise(27, ROWS * WIDTH, 3.0)?);
    let (weight, weights) = bench.noise(20, WIDTH, 1.0)?;
    let parameters = AddRmsNorm { x, h, norm: norm_of(weight), width: WIDTH.into(), factor: 1.0 };
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

/// The heads of lowest entropy of the trace's second row: all layers in one launch, and one launch per layer.
pub fn select(kernel: &Kernel<AttnSelect>, bench: &Bench, head_dim: usize) -> Tested {
    const KEEP: usize = 3;
    const SCALE: f32 = 4.0;
    let (mut noise, d) = (Noise(41), head_dim);
    let mut number = |low: f32, high: f32| low + (high - low) * (noise.next() + 1.0) / 2.0;
    let state = |_| -> HeadState { [1.0, 2.0, number(-1.0, 1.0), number(1.0, 20.0), number(-20.0, 0.0)] };
    let states: Vec<HeadState> = (0..LAYERS * HEADS).map(state).collect();
    let entropy = |head: &usize| f64::from(states[*head][3]).ln() - f64::from(states[*head][4] / states[*head][3]);
    let mut kept: Vec<usize> = (0..states.len()).collect();
    kept.sort_by(|a, b| entropy(a).total_cmp(&entropy(b)));
    let next = entropy(&kept.split_off(KEEP)[0]);
    let last = entropy(&kept[KEEP - 1]);
    let (queries, hidden) = (noise.floats(states.len() * d, 1.0), noise.floats(HIDDEN, 1.0));
    let (s, q, h) = (bench.put(&states)?, bench.put(&queries)?, bench.put(&hidden)?);
    let rows = bench.put(&[RowState { position: FIRST + 1, ..RowState::default() }])?;
    let shapes = bench.put(&[LayerShape { head_dim: d as i32, ..LayerShape::default() }; LAYERS])?;
    for layers in [LAYERS, 1] {
        let trace = TraceView {
            heads: bench.room(2 * KEEP)?,
            entropies: bench.room(2 * KEEP)?,
            maxima: bench.room(2 * KEEP)?,
            sums: bench.room(2 * KEEP)?,
            queries: bench.room(2 * KEEP * d)?,
            hidden: bench.room(2 * HIDDEN)?,
            gaps: bench.room(2)?,
            ..TraceView::default()
        };
        let sequences = bench.put(&[traced(trace)])?;
        for first in (0..LAYERS).step_by(layers) {
            let finish = first + layers == LAYERS;
            let parameters = AttnSelect {
                states: s.add(first * HEADS),
                queries: q.add(first * HEADS * d),
                hidden: if finish { h } else { DevicePtr::NULL },
                rows,
                sequences,
                shapes,
                first_layer: first.into(),
                layers: layers.into(),
                heads: HEADS.into(),
                head_dim: d.into(),
                hidden_size: HIDDEN.into(),
                hidden_scale: SCALE,
                keep: KEEP.into(),
                regularized: Int(0),
                begin: (first == 0).into(),
                finish: finish.into(),
            };
            bench.device.launch(kernel, [1, 1, 1], &parameters)?;
        }
        let kept = || kept.iter();
        bench.compare("heads", trace.heads.add(KEEP), kept().map(|head| exact(*head as i32)))?;
        let entropies = kept().map(entropy).map(|entropy| near(entropy, entropy.abs(), 2.0 * U));
        bench.compare("entropies", trace.entropies.add(KEEP), entropies)?;
        bench.compare("maxima", trace.maxima.add(KEEP), kept().map(|head| exact(states[*head][2])))?;
        bench.compare("sums", trace.sums.add(KEEP), kept().map(|head| exact(states[*head][3])))?;
        let kept_queries = kept().flat_map(|head| &queries[head * d..][..d]);
        bench.compare("queries", trace.queries.add(KEEP * d), kept_queries.map(|x| exact(*x)))?;
        bench.compare("gap", trace.gaps.add(1), [near(next - last, next.abs() + last.abs(), 4.0 * U)])?;
        let halves = bench.get_as(trace.hidden.add(HIDDEN).cast(), DType::F16, HIDDEN)?;
        bench.check("hidden", halves, hidden.iter().map(|x| exact(DType::F16.round(x * SCALE))));
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
