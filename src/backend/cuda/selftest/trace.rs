//! Cases of the trace: `attn_select.cu`, `layer_sums.cu` and `cosines.cu`.

use super::super::abi::{AttnSelect, Cosines, HeadState, LayerSum, RowState, SequenceView, TraceView};
use super::super::error::CudaError;
use super::super::kernel_set::{TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS};
use super::super::launch::{Int, Kernel};
use super::super::layers::{COLUMNS, KEPT, LayerSums};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Bench, U, exact, near, wide};
use crate::model::weights::DType;

const KEEP: usize = 3;
const HIDDEN: usize = 300;
/// Scale of hidden states.
const SCALE: f32 = 4.0;
/// The first traced row.
const FIRST: i32 = 7;

fn view(trace: TraceView) -> SequenceView {
    SequenceView { first_traced_row: FIRST, trace, ..SequenceView::default() }
}

/// The heads of lowest entropy of the trace's second row: all layers in one launch, and one launch per layer.
pub fn select(kernel: &Kernel<AttnSelect>, bench: &Bench, head_dim: usize) -> Result<(), CudaError> {
    let mut noise = Noise(41);
    let mut number = |low: f32, high: f32| low + (high - low) * (noise.next() + 1.0) / 2.0;
    let state = |_| -> HeadState { [1.0, 2.0, number(-1.0, 1.0), number(1.0, 20.0), number(-20.0, 0.0)] };
    let states: Vec<HeadState> = (0..LAYERS * HEADS).map(state).collect();
    let entropy = |head: &usize| f64::from(states[*head][3]).ln() - f64::from(states[*head][4] / states[*head][3]);
    let mut order: Vec<usize> = (0..states.len()).collect();
    order.sort_by(|a, b| entropy(a).total_cmp(&entropy(b)));
    let (kept, next) = (&order[..KEEP], entropy(&order[KEEP]));
    let queries = noise.floats(states.len() * head_dim, 1.0);
    let hidden = noise.floats(HIDDEN, 1.0);
    let (s, q, h) = (bench.put(&states)?, bench.put(&queries)?, bench.put(&hidden)?);
    let rows = bench.put(&[RowState { position: FIRST + 1, ..RowState::default() }])?;
    for layers in [LAYERS, 1] {
        let trace = TraceView {
            heads: bench.room(2 * KEEP)?,
            entropies: bench.room(2 * KEEP)?,
            maxima: bench.room(2 * KEEP)?,
            sums: bench.room(2 * KEEP)?,
            queries: bench.room(2 * KEEP * head_dim)?,
            hidden: bench.room(2 * HIDDEN)?,
            gaps: bench.room(2)?,
            ..TraceView::default()
        };
        let sequences = bench.put(&[view(trace)])?;
        for first in (0..LAYERS).step_by(layers) {
            let last = first + layers == LAYERS;
            let parameters = AttnSelect {
                states: s.add(first * HEADS),
                queries: q.add(first * HEADS * head_dim),
                hidden: if last { h } else { DevicePtr::NULL },
                rows,
                sequences,
                first_layer: first.into(),
                layers: layers.into(),
                heads: HEADS.into(),
                head_dim: head_dim.into(),
                hidden_size: HIDDEN.into(),
                hidden_scale: SCALE,
                keep: KEEP.into(),
                regularized: Int(0),
                begin: (first == 0).into(),
                finish: last.into(),
            };
            bench.device.launch(kernel, [1, 1, 1], &parameters)?;
        }
        bench.compare("heads", trace.heads.add(KEEP), kept.iter().map(|head| exact(*head as i32)))?;
        let entropies = kept.iter().map(entropy);
        bench.compare("entropies", trace.entropies.add(KEEP), entropies.map(|e| near(e, e.abs(), 2.0 * U)))?;
        bench.compare("maxima", trace.maxima.add(KEEP), kept.iter().map(|head| exact(states[*head][2])))?;
        bench.compare("sums", trace.sums.add(KEEP), kept.iter().map(|head| exact(states[*head][3])))?;
        let kept_queries = kept.iter().flat_map(|head| &queries[head * head_dim..][..head_dim]);
        bench.compare("queries", trace.queries.add(KEEP * head_dim), kept_queries.map(|x| exact(*x)))?;
        let last = entropy(&kept[KEEP - 1]);
        bench.compare("gap", trace.gaps.add(1), [near(next - last, next.abs() + last.abs(), 4.0 * U)])?;
        let halves = bench.get_as(trace.hidden.add(HIDDEN).cast(), DType::F16, HIDDEN)?;
        bench.check("hidden", halves, hidden.iter().map(|x| exact(DType::F16.round(x * SCALE))));
    }
    Ok(())
}

/// Rows of one sequence, more than are kept, some of them twice, and a row of a sequence that records nothing.
pub fn layer_sums(kernel: &Kernel<LayerSum>, bench: &Bench) -> Result<(), CudaError> {
    const PLACES: usize = 2;
    let layers = LayerSums::new(bench.device, PLACES, HIDDEN)?;
    let trace = TraceView { layers: layers.view(), ..TraceView::default() };
    let sequences = bench.put(&[view(trace), SequenceView::default()])?;
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
pub fn cosines(kernel: &Kernel<Cosines>, bench: &Bench) -> Result<(), CudaError> {
    let (hidden, states) = bench.put_as(&Noise(42).floats(2 * HIDDEN, SCALE), DType::F16)?;
    let (positions, answer) = ([FIRST, FIRST + 1, FIRST + 2], [FIRST + 1, FIRST]);
    let (columns, rows) = (answer.len(), positions.len());
    let out = bench.room::<f32>(rows * columns)?;
    let parameters = Cosines {
        sequences: bench.put(&[view(TraceView { hidden: hidden.cast(), ..TraceView::default() })])?,
        slot: Int(0),
        traced: Int(2),
        hidden_size: HIDDEN.into(),
        positions: bench.put(&positions)?,
        answer: bench.put(&answer)?,
        out,
    };
    bench.device.launch(kernel, [columns, rows, 1], &parameters)?;
    let row = |position: i32| states.chunks(HIDDEN).nth((position - FIRST) as usize).map(wide);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let want = (0..rows * columns).map(|i| match (row(positions[i / columns]), row(answer[i % columns])) {
        (Some(a), Some(b)) => near(dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt(), 1.0, 2.0 * U),
        _ => exact(0.0),
    });
    bench.compare("cosines", out, want)
}
