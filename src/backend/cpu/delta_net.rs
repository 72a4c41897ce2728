//! Gated delta nets: convolutions over the last rows, and the delta rule (formulas in `reference/delta_net.rs`). Rows of a
//! sequence are processed in order, whatever the width of their pass, and the columns of a state are independent: so heads are
//! computed in parallel, sixteen columns at a time, which stay in the L1 cache from row to row.

use super::{CpuBackend, cache::value_stride, input_rounding::round_inputs, layer::each_row, norm, threads::Disjoint};
use super::{matmul::Job, matmul::matmul_many, simd::Kernel, simd::LANES, simd::Simd, simd::Stored};
use crate::backend::{BackendError, Result, Row, STATE_INTERVAL, reference};
use crate::{model::config::DeltaNetSpec, model::weights::DeltaNetWeights};
use std::{collections::BTreeMap, collections::HashSet, ops::Range, sync::Arc};

/// Consecutive rows of one sequence, at most up to one after which the states are kept.
struct Segment {
    rows: Range<usize>,
    keep: bool,
}

/// A pass's delta-net buffers; dimensions are named as in [`DeltaNetSpec`].
#[derive(Default)]
pub struct DeltaRows {
    /// In rounds: the segments of one round belong to different sequences.
    rounds: Vec<Vec<Segment>>,
    /// First row of each row's run.
    firsts: Vec<usize>,
    /// Queries, keys and values, before and after their convolutions.
    raw: [Vec<f32>; 3],
    mixed: [Vec<f32>; 3],
    /// `[rows, num_value_heads]`, both
    a: Vec<f32>,
    b: Vec<f32>,
}

impl CpuBackend {
    /// Returns to the states before each sequence's first row, and marks where states are kept.
    pub(super) fn begin_delta_nets(&mut self, rows: &[Row], record: bool) -> Result<()> {
        let delta = &mut self.pass.delta;
        (delta.rounds, delta.firsts) = Default::default();
        let mut seen = HashSet::new();
        for run in rows.chunk_by(Row::precedes) {
            let (Row { sequence, position, .. }, first) = (run[0], delta.firsts.len());
            let Some(states) = &mut self.sequences[sequence.0].states else { return Ok(()) };
            if !seen.insert(sequence) || !states.resume(position) {
                return Err(BackendError::NotHeld { position });
            }
            let keeps = |row: &Row| record && states.keeps(row.position + 1);
            for (round, segment) in run.split_inclusive(keeps).enumerate() {
                if round == delta.rounds.len() {
                    delta.rounds.push(Vec::new());
                }
                let (start, keep) = (delta.firsts.len(), segment.last().is_some_and(keeps));
                delta.firsts.resize(start + segment.len(), first);
                delta.rounds[round].push(Segment { rows: start..start + segment.len(), keep });
            }
        }
        Ok(())
    }

    /// Gate, rates, and queries, keys and values after their convolutions, from h.
    pub(super) fn project_delta_net(&mut self, layer: usize, net: &DeltaNetSpec) {
        let (weights, index) = (self.weights.clone(), self.spec.index_in_kind(layer));
        let l = &weights.layers[layer];
        let (Some(w), Some(gate), Some(w_k), Some(w_v)) = (&l.delta_net, &l.output_gate, &l.k, &l.v) else { return };
        let (isa, n, pool, pass) = (self.options.isa, self.pass.rows.len(), &self.pool, &mut self.pass);
        let (delta, widths) = (&mut pass.delta, net.widths());
        let [q, k, v] = &mut delta.raw;
        let outputs =
            [(&l.q, q), (w_k, k), (w_v, v), (gate, &mut pass.output_gate), (&w.a, &mut delta.a), (&w.b, &mut delta.b)];
        let mut jobs = outputs.map(|(w, y)| Job { w: self.packed.matrix(w), bias: None, y });
        round_inputs(&mut pass.h, self.spec.hidden_size, l.q.elements(), pass.rounds);
        matmul_many(pool, isa, &mut jobs, &pass.h, n);
        let (activation, ones) = (self.spec.activation, vec![1.0; widths[0].max(widths[2])]);
        let (sequences, rows, firsts) = (&self.sequences, &pass.rows, &delta.firsts);
        for (part, (mixed, raw)) in delta.mixed.iter_mut().zip(&delta.raw).enumerate() {
            let width = widths[part];
            mixed.resize(n * width, 0.0);
            each_row(pool, mixed, width, &|row, out| {
                let Some(states) = &sequences[rows[row].sequence.0].states else { return };
                let before = &states.layers[index].inputs[part];
                convolve(before, &raw[firsts[row] * width..(row + 1) * width], &w.conv[part], out);
                norm::activate(isa, activation, out, &ones[..width]);
                for head in out.chunks_exact_mut(net.key_head_dim).filter(|_| part < 2) {
                    norm::unit(isa, head, if part == 0 { (net.key_head_dim as f32).sqrt().recip() } else { 1.0 });
                }
            });
        }
    }

    /// The delta rule over the rows of every sequence.
    pub(super) fn attend_delta_net(&mut self, layer: usize, net: &DeltaNetSpec) {
        let (weights, isa, index) = (self.weights.clone(), self.options.isa, self.spec.index_in_kind(layer));
        let Some(w) = &weights.layers[layer].delta_net else { return };
        let (pass, heads, width) = (&mut self.pass, net.num_value_heads, net.widths()[2]);
        let rates = rates(w, &pass.delta.a, &pass.delta.b);
        pass.attended.resize(pass.rows.len() * width, 0.0);
        let out = Disjoint::new(&mut pass.attended);
        for segments in &pass.delta.rounds {
            let sequence = |segment: &Segment| pass.rows[segment.rows.start].sequence.0;
            let mut taken: Vec<Arc<LayerState>> = Vec::with_capacity(segments.len());
            for segment in segments {
                let states = self.sequences[sequence(segment)].states.as_mut();
                taken.push(states.map(|states| states.take(index)).unwrap_or_default());
            }
            let states: Vec<&mut LayerState> = taken.iter_mut().map(Arc::make_mut).collect();
            let mut memories = Vec::with_capacity(states.len());
            for (segment, LayerState { inputs, memory }) in segments.iter().zip(states) {
                for (part, inputs) in inputs.iter_mut().enumerate() {
                    let (width, len) = (net.widths()[part], inputs.len());
                    let raw = &pass.delta.raw[part][segment.rows.start * width..segment.rows.end * width];
                    inputs.extend_from_slice(&raw[raw.len().saturating_sub(len)..]);
                    inputs.drain(..inputs.len() - len);
                }
                memories.push(Disjoint::new(memory));
            }
            let (mixed, rates, out) = (&pass.delta.mixed, &rates[..], &out);
            let head_len = net.key_head_dim * value_stride(net.value_head_dim);
            self.pool.run(segments.len() * heads, &|task| {
                let (index, head) = (task / heads, task % heads);
                // SAFETY: one task for each head of each state.
                let memory = unsafe { memories[index].slice(head * head_len..(head + 1) * head_len) };
                isa.run(DeltaRule { net, head, rows: segments[index].rows.clone(), mixed, rates, memory, out });
            });
            drop(memories);
            for (segment, state) in segments.iter().zip(taken) {
                let tokens = pass.rows[segment.rows.end - 1].position + 1;
                if let Some(states) = &mut self.sequences[sequence(segment)].states {
                    states.put(index, state, tokens, segment.keep);
                }
            }
        }
    }
}

/// α and β of every row and head.
fn rates(w: &DeltaNetWeights, a: &[f32], b: &[f32]) -> Vec<(f32, f32)> {
    let heads = w.a_log.len();
    let rate = |(i, (a, b)): (usize, (&f32, &f32))| {
        let (alpha, beta) = reference::delta_net::rates(w, i % heads, *a, *b);
        (alpha as f32, beta as f32)
    };
    a.iter().zip(b).enumerate().map(rate).collect()
}

/// out = Σ_t w_t x_t per component, over the last rows x that w `[conv_kernel_dim, components]` covers; `raw` ends with the row's
/// own, and `before` holds those before its first.
fn convolve(before: &[f32], raw: &[f32], w: &[f32], out: &mut [f32]) {
    let width = out.len();
    out.fill(0.0);
    let rows = before.chunks_exact(width).chain(raw.chunks_exact(width));
    let taps = w.chunks_exact(width);
    for (x, w) in rows.skip(raw.len() / width - 1).zip(taps) {
        out.iter_mut().zip(x).zip(w).for_each(|((out, x), w)| *out += w * x);
    }
}

/// The delta rule of one head over consecutive rows of one sequence.
struct DeltaRule<'a> {
    net: &'a DeltaNetSpec,
    head: usize,
    rows: Range<usize>,
    /// Queries, keys and values of the pass.
    mixed: &'a [Vec<f32>; 3],
    /// α and β: `[rows of the pass][num_value_heads]`
    rates: &'a [(f32, f32)],
    /// The head's.
    memory: &'a mut [f32],
    /// `[rows of the pass, values]`, of which the head's part is written.
    out: &'a Disjoint<'a, f32>,
}

impl Kernel for DeltaRule<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let DeltaRule { net, head, rows, mixed: [q, k, v], rates, memory, out } = self;
        let (d_k, d_v, [key_width, _, width]) = (net.key_head_dim, net.value_head_dim, net.widths());
        let shared = head / (net.num_value_heads / net.num_key_heads) * d_k;
        for (block, memory) in memory.chunks_exact_mut(d_k * LANES).enumerate() {
            let columns = block * LANES..d_v.min((block + 1) * LANES);
            for row in rows.clone() {
                let keys = row * key_width + shared..row * key_width + shared + d_k;
                let values = row * width + head * d_v + columns.start..row * width + head * d_v + columns.end;
                let (q, k, v) = (&q[keys.clone()], &k[keys], &v[values.clone()]);
                let rate = rates[row * net.num_value_heads + head];
                // SAFETY: started by `Isa::run`; one task for these values.
                unsafe {
                    let answer =
                        S::to_array(columns_of_row::<S>(memory, q, k, f32::load_part::<S>(v.as_ptr(), v.len()), rate));
                    out.slice(values).copy_from_slice(&answer[..columns.len()]);
                }
            }
        }
    }
}

/// Output of [`LANES`] columns of a memory for q, after their correction for k. Four sums shorten the dependency chain.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn columns_of_row<S: Simd>(
    memory: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: S::V,
    (alpha, beta): (f32, f32),
) -> S::V {
    assert!(memory.len() == k.len() * LANES && q.len() == k.len());
    let (s, whole) = (memory.as_mut_ptr(), k.len() - k.len() % 4);
    // SAFETY: within the lengths just compared.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        for i in (0..whole).step_by(4) {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(S::load(s.add((i + j) * LANES)), S::splat(k[i + j]), *sum);
            }
        }
        for (i, k) in k.iter().enumerate().skip(whole) {
            sums[0] = S::fma(S::load(s.add(i * LANES)), S::splat(*k), sums[0]);
        }
        let alpha = S::splat(alpha);
        let recalled = S::mul(alpha, total::<S>(sums));
        let correction = S::mul(S::splat(beta), S::sub(v, recalled));
        let mut sums = [S::splat(0.0); 4];
        for i in (0..whole).step_by(4) {
            for (j, sum) in sums.iter_mut().enumerate() {
                let (s, k, q) = (s.add((i + j) * LANES), k[i + j], q[i + j]);
                *sum = S::fma(update::<S>(s, alpha, k, correction), S::splat(q), *sum);
            }
        }
        for (i, (k, q)) in k.iter().zip(q).enumerate().skip(whole) {
            sums[0] = S::fma(update::<S>(s.add(i * LANES), alpha, *k, correction), S::splat(*q), sums[0]);
        }
        total::<S>(sums)
    }
}

/// s ← α s + k · correction
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn update<S: Simd>(s: *mut f32, alpha: S::V, k: f32, correction: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe {
        let updated = S::fma(S::splat(k), correction, S::mul(alpha, S::load(s)));
        S::store(s, updated);
        updated
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn total<S: Simd>(sums: [S::V; 4]) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])) }
}

// The states of a sequence's delta nets. A state cannot be rewound, so copies are kept to resume a sequence from an earlier
// position. A copy costs only memory: a state is copied on its next write.

/// The state of one layer.
#[derive(Clone, Default)]
pub struct LayerState {
    /// The last inputs to the convolutions of queries, keys and values, oldest first: `[conv_kernel_dim - 1, components]`
    pub inputs: [Vec<f32>; 3],
    /// `[num_value_heads, value_stride / LANES, key_head_dim, LANES]`
    pub memory: Vec<f32>,
}

impl LayerState {
    fn new(net: &DeltaNetSpec) -> LayerState {
        LayerState {
            inputs: net.widths().map(|width| vec![0.0; (net.conv_kernel_dim - 1) * width]),
            memory: vec![0.0; net.num_value_heads * net.key_head_dim * value_stride(net.value_head_dim)],
        }
    }
}

/// The states of all delta nets of one sequence.
#[derive(Clone)]
pub struct States {
    /// By the layer's index among delta nets.
    layers: Vec<Arc<LayerState>>,
    /// Tokens processed; `None` from the start of a pass until its last delta net.
    len: Option<usize>,
    /// Copies by token count; those of a failed pass have fewer layers.
    pub kept: BTreeMap<usize, Vec<Arc<LayerState>>>,
    /// Token counts at which copies are kept, in addition to every [`STATE_INTERVAL`].
    pub expected: Vec<usize>,
}

impl States {
    pub fn new(net: &DeltaNetSpec, layers: usize) -> States {
        let layers: Vec<_> = std::iter::repeat_n(Arc::new(LayerState::new(net)), layers).collect();
        States { kept: BTreeMap::from([(0, layers.clone())]), layers, len: Some(0), expected: Vec::new() }
    }

    /// Bytes of the states after one token.
    pub fn bytes_of_one(net: &DeltaNetSpec, layers: usize) -> usize {
        let LayerState { inputs, memory } = LayerState::new(net);
        4 * layers * (memory.len() + inputs.iter().map(Vec::len).sum::<usize>())
    }

    /// The largest token count up to `positions` for which the states are held.
    pub fn resumes_at(&self, positions: usize) -> usize {
        let whole = |(_, states): &(&usize, &Vec<_>)| states.len() == self.layers.len();
        let kept = self.kept.range(..=positions).rev().find(whole).map_or(0, |(tokens, _)| *tokens);
        self.len.filter(|len| *len <= positions).map_or(kept, |len| len.max(kept))
    }

    /// Returns to the states after `positions` tokens and drops later ones; false if they are not held.
    pub fn resume(&mut self, positions: usize) -> bool {
        if self.resumes_at(positions) != positions {
            return false;
        }
        if self.len != Some(positions) {
            self.layers.clone_from(&self.kept[&positions]);
        }
        self.kept.split_off(&(positions + 1));
        self.len = Some(positions);
        true
    }

    /// Whether a copy is kept after `tokens` tokens.
    pub fn keeps(&self, tokens: usize) -> bool {
        tokens.is_multiple_of(STATE_INTERVAL) || self.expected.contains(&tokens)
    }

    /// Takes a state out for writing; the rest are then ahead of it or behind.
    pub fn take(&mut self, index: usize) -> Arc<LayerState> {
        self.len = None;
        std::mem::take(&mut self.layers[index])
    }

    /// Puts the state back, as it is after `tokens` tokens.
    pub fn put(&mut self, index: usize, state: Arc<LayerState>, tokens: usize, keep: bool) {
        if keep {
            self.kept.entry(tokens).or_default().push(state.clone());
        }
        self.layers[index] = state;
        self.len = Some(tokens).filter(|_| index + 1 == self.layers.len());
    }
}
