//! Cases of `attn_select.cu`, `cosines.cu` and `layer_sums.cu`: the trace.

use super::super::abi::{AttnSelect, Cosines, HeadState, LayerSum, RowState, SequenceView, TraceView};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::kernel_set::{TESTED_HEADS as HEADS, TESTED_LAYERS as LAYERS};
use super::super::launch::{Int, Kernel};
use super::super::layers::{COLUMNS, KEPT, LayerSums};
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, U, unwritten, upload};
use half::f16;

const KEEP: usize = 3;
const HIDDEN: usize = 300;
/// Of hidden states.
const SCALE: f32 = 4.0;
/// Of the trace, whose first row this is.
const FIRST: i32 = 7;

/// The arrays of a trace of two rows.
struct Trace {
    heads: Buffer<i32>,
    entropies: Buffer<f32>,
    maxima: Buffer<f32>,
    sums: Buffer<f32>,
    queries: Buffer<f32>,
    hidden: Buffer<u16>,
    gaps: Buffer<f32>,
}

impl Trace {
    fn new(device: &Device, head_dim: usize) -> Result<Trace, CudaError> {
        Ok(Trace {
            heads: unwritten(device, 2 * KEEP)?,
            entropies: unwritten(device, 2 * KEEP)?,
            maxima: unwritten(device, 2 * KEEP)?,
            sums: unwritten(device, 2 * KEEP)?,
            queries: unwritten(device, 2 * KEEP * head_dim)?,
            hidden: unwritten(device, 2 * HIDDEN)?,
            gaps: unwritten(device, 2)?,
        })
    }

    fn views(&self, device: &Device) -> Result<Buffer<SequenceView>, CudaError> {
        let trace = TraceView {
            heads: self.heads.ptr(),
            entropies: self.entropies.ptr(),
            maxima: self.maxima.ptr(),
            sums: self.sums.ptr(),
            queries: self.queries.ptr(),
            hidden: self.hidden.ptr(),
            gaps: self.gaps.ptr(),
            ..TraceView::default()
        };
        upload(device, &[SequenceView { first_traced_row: FIRST, trace, ..SequenceView::default() }])
    }
}

/// Hidden states as a trace has them.
fn halves(hidden: &[f32]) -> Vec<u16> {
    hidden.iter().map(|x| f16::from_f32(x * SCALE).to_bits()).collect()
}

/// The heads of lowest entropy of the second row of the trace, all layers at once and layer by layer.
pub fn select(device: &Device, kernel: &Kernel<AttnSelect>, head_dim: usize) -> Result<Outcome, CudaError> {
    let mut noise = Noise(41);
    let mut number = |low: f32, high: f32| low + (high - low) * (noise.next() + 1.0) / 2.0;
    let state = |_| -> HeadState { [1.0, 2.0, number(-1.0, 1.0), number(1.0, 20.0), number(-20.0, 0.0)] };
    let states: Vec<HeadState> = (0..LAYERS * HEADS).map(state).collect();
    let entropy = |s: &HeadState| f64::from(s[3]).ln() - f64::from(s[4]) / f64::from(s[3]);
    let mut order: Vec<usize> = (0..states.len()).collect();
    order.sort_by(|a, b| entropy(&states[*a]).total_cmp(&entropy(&states[*b])));
    let queries = noise.floats(states.len() * head_dim, 1.0);
    let hidden = noise.floats(HIDDEN, 1.0);
    let rows = upload(device, &[RowState { position: FIRST + 1, ..RowState::default() }])?;
    let (s, q) = (upload(device, &states)?, upload(device, &queries)?);
    let h = upload(device, &hidden)?;
    let mut outcome = Outcome::default();
    for layers in [LAYERS, 1] {
        let trace = Trace::new(device, head_dim)?;
        let views = trace.views(device)?;
        for first in (0..LAYERS).step_by(layers) {
            let last = first + layers == LAYERS;
            let parameters = AttnSelect {
                states: s.ptr().add(first * HEADS),
                queries: q.ptr().add(first * HEADS * head_dim),
                hidden: if last { h.ptr() } else { DevicePtr::NULL },
                rows: rows.ptr(),
                sequences: views.ptr(),
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
            device.launch(kernel, [1, 1, 1], &parameters)?;
        }
        let heads: Vec<i32> = device.read(&trace.heads, KEEP, KEEP)?;
        outcome.same(heads, order[..KEEP].iter().map(|head| *head as i32).collect());
        let floats = |buffer: &Buffer<f32>, each: usize| device.read(buffer, KEEP * each, KEEP * each);
        let (entropies, maxima, sums) =
            (floats(&trace.entropies, 1)?, floats(&trace.maxima, 1)?, floats(&trace.sums, 1)?);
        let kept = floats(&trace.queries, head_dim)?;
        for (i, head) in order[..KEEP].iter().enumerate() {
            let want = entropy(&states[*head]);
            outcome.compare(entropies[i], want, want.abs(), 2.0 * U);
            outcome.same((maxima[i], sums[i]), (states[*head][2], states[*head][3]));
            outcome.same(&kept[i * head_dim..][..head_dim], &queries[head * head_dim..][..head_dim]);
        }
        let (last, next) = (entropy(&states[order[KEEP - 1]]), entropy(&states[order[KEEP]]));
        outcome.compare(device.read(&trace.gaps, 1, 1)?[0], next - last, next.abs() + last.abs(), 4.0 * U);
        outcome.same(device.read(&trace.hidden, HIDDEN, HIDDEN)?, halves(&hidden));
    }
    Ok(outcome)
}

/// Rows of one sequence, more than are kept and some of them twice, and a row of another that records nothing.
pub fn layer_sums(device: &Device, kernel: &Kernel<LayerSum>) -> Result<Outcome, CudaError> {
    const PLACES: usize = 2;
    let layers = LayerSums::new(device, PLACES, HIDDEN)?;
    let trace = TraceView { layers: layers.view(), ..TraceView::default() };
    let view = SequenceView { first_traced_row: FIRST, trace, ..SequenceView::default() };
    let views = upload(device, &[view, SequenceView::default()])?;
    let mut noise = Noise(43);
    let mut latest = vec![vec![0f32; HIDDEN]; 2 * KEPT];
    // the first is not traced; the last of the first pass comes again
    for pass in [FIRST - 1..FIRST + 4, FIRST + 3..FIRST + 2 * KEPT as i32] {
        let mut rows: Vec<RowState> =
            pass.clone().map(|position| RowState { position, ..RowState::default() }).collect();
        rows.push(RowState { slot: 1, position: FIRST, ..RowState::default() });
        let values = noise.floats(rows.len() * HIDDEN, 1.0);
        for (position, x) in pass.zip(values.chunks(HIDDEN)).filter(|(position, _)| *position >= FIRST) {
            latest[(position - FIRST) as usize] = x.to_vec();
        }
        let (x, n) = (upload(device, &values)?, rows.len());
        let rows = upload(device, &rows)?;
        for place in 0..PLACES {
            let parameters = LayerSum {
                x: x.ptr(),
                rows: rows.ptr(),
                n: n.into(),
                sequences: views.ptr(),
                place: place.into(),
                kept: KEPT.into(),
                width: HIDDEN.into(),
            };
            device.launch(kernel, [HIDDEN.div_ceil(COLUMNS), n, 1], &parameters)?;
        }
    }
    let mut outcome = Outcome::default();
    // all but the last, and without the rows of steps that ran ahead: the same sums in the same order
    for rows in [2 * KEPT - 1, KEPT] {
        let mean = |i: usize| latest[..rows].iter().map(|row| f64::from(row[i])).sum::<f64>() / rows as f64;
        let means: Vec<f64> = (0..HIDDEN).map(mean).collect();
        outcome.same(layers.means(device, rows)?, vec![means; PLACES]);
    }
    Ok(outcome)
}

/// Of two traced rows, and of one that is not.
pub fn cosines(device: &Device, kernel: &Kernel<Cosines>) -> Result<Outcome, CudaError> {
    let halves = halves(&Noise(42).floats(2 * HIDDEN, 1.0));
    let hidden: Vec<f32> = halves.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect();
    let trace = Trace::new(device, 16)?;
    device.write(&trace.hidden, 0, &halves)?;
    let views = trace.views(device)?;
    let (positions, answer) = ([FIRST, FIRST + 1, FIRST + 2], [FIRST + 1, FIRST]);
    let (rows, columns) = (upload(device, &positions)?, upload(device, &answer)?);
    let count = positions.len() * answer.len();
    let out = unwritten::<f32>(device, count)?;
    let parameters = Cosines {
        sequences: views.ptr(),
        slot: Int(0),
        traced: Int(2),
        hidden_size: HIDDEN.into(),
        positions: rows.ptr(),
        answer: columns.ptr(),
        out: out.ptr(),
    };
    device.launch(kernel, [answer.len(), positions.len(), 1], &parameters)?;
    let row = |position: i32| hidden.chunks(HIDDEN).nth((position - FIRST) as usize);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut outcome = Outcome::default();
    for (i, got) in device.read(&out, 0, count)?.into_iter().enumerate() {
        match (row(positions[i / 2]), row(answer[i % 2])) {
            (Some(a), Some(b)) => outcome.compare(got, dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(), 1.0, 2.0 * U),
            _ => outcome.same(got, 0.0),
        }
    }
    Ok(outcome)
}
