//! Fused attention over the KV cache: one streaming pass produces a row's output, its softmax state and the state of its
//! reweighted entropy, per head. Query heads that share a key/value head are computed together, and so are a few
//! consecutive rows of a sequence, so that each cached byte is read once for all of them. Scores exist for one chunk at a
//! time.

mod scores;

use super::cache::{CHUNK, KvCache, value_stride, with_block};
use super::simd::{Isa, Kernel, LANES, Simd};
use super::{norm, threads::Disjoint, threads::ThreadPool};
use crate::backend::entropy::{EntropyState, Gamma, SoftmaxState};
use half::f16;
use scores::{Entropy, Reweighting, Scores, Softmax, Values};
pub use scores::{RowHead, accumulate_row, add_row};
use std::ops::Range;

/// Query rows (of all heads) processed together per chunk: their scores and the chunk's keys stay in the L1 cache.
const QUERIES: usize = 24;

/// A layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// The layer whose cached keys and values are read.
    pub layer: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub gamma: Gamma,
    /// Whether softmax weights are one f16 term.
    pub one_term: bool,
}

impl AttentionShape {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Positions that row `row` attends to.
    fn positions(&self, row: usize) -> Range<usize> {
        self.window.map_or(0, |w| (row + 1).saturating_sub(w))..row + 1
    }
}

/// A row of a pass: position `position` of the sequence in `cache`.
#[derive(Clone, Copy)]
pub struct AttentionRow<'a> {
    pub cache: &'a KvCache,
    pub position: usize,
    /// Whether to compute the reweighted entropy; without it the entropy states stay empty.
    pub entropy: bool,
    /// The length of the prompt, to compute [`HeadState::places`]; without it they stay 0.
    pub prompt: Option<usize>,
}

/// The state of one head of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadState {
    pub softmax: SoftmaxState,
    pub entropy: EntropyState,
    /// e^{s-m} of the row's own position, of the one before it and of the first, and Σ e^{s-m} over the prompt.
    pub places: [f32; 4],
}

impl HeadState {
    pub const EMPTY: HeadState =
        HeadState { softmax: SoftmaxState::EMPTY, entropy: EntropyState::EMPTY, places: [0.0; 4] };
}

/// Attention of all rows of a pass in one layer.
///
/// `queries`: `[rows, heads, head_dim]`, rotated and scaled; `out`: the same shape; `states`: `[rows, heads]`.
/// The caches hold every position up to each row's own.
pub fn attend(
    pool: &ThreadPool,
    isa: Isa,
    shape: &AttentionShape,
    rows: &[AttentionRow],
    queries: &[f32],
    out: &mut [f32],
    states: &mut [HeadState],
) {
    assert!(queries.len() == rows.len() * shape.heads * shape.head_dim && out.len() == queries.len());
    assert!(states.len() == rows.len() * shape.heads);
    let (out, states) = (Disjoint::new(out), Disjoint::new(states));
    let blocks = blocks(shape, rows);
    let items = blocks.len() * shape.kv_heads;
    let task = |item: usize| Task {
        shape,
        rows: &rows[blocks[item / shape.kv_heads].clone()],
        first: blocks[item / shape.kv_heads].start,
        kv_head: item % shape.kv_heads,
    };
    if items >= 4 * pool.threads() {
        return pool.run(items, &|item| {
            let task = task(item);
            let queries = task.queries(queries);
            let (mut total, mut part) = (Partial::empty(&task), Partial::empty(&task));
            for chunk in task.chunks() {
                part.compute(isa, &task, chunk, &queries);
                total.merge(isa, &part);
            }
            // SAFETY: one task for each row and key/value head.
            unsafe { task.finish(&total, &out, &states) };
        });
    }
    // few rows: the chunks are distributed too, and merged in the same order
    let work: Vec<(usize, usize)> = (0..items).flat_map(|i| task(i).chunks().map(move |c| (i, c))).collect();
    let parts = pool.map(work.len(), |index| {
        let (item, chunk) = work[index];
        let task = task(item);
        let mut part = Partial::empty(&task);
        part.compute(isa, &task, chunk, &task.queries(queries));
        Some(part)
    });
    let mut work = work.iter().zip(parts).peekable();
    for item in 0..items {
        let task = task(item);
        let mut total = Partial::empty(&task);
        while let Some((_, part)) = work.next_if(|((of, _), _)| *of == item) {
            part.iter().for_each(|part| total.merge(isa, part));
        }
        // SAFETY: no thread works on the outputs any more.
        unsafe { task.finish(&total, &out, &states) };
    }
}

/// Splits a pass into runs of consecutive positions of one sequence that end in the same chunk, so that every row of a
/// run attends to the last chunk and to all others from some point on.
fn blocks(shape: &AttentionShape, rows: &[AttentionRow]) -> Vec<Range<usize>> {
    let most = (QUERIES / shape.group()).max(1);
    let follows = |before: &AttentionRow, row: &AttentionRow| {
        std::ptr::eq(before.cache, row.cache)
            && before.position + 1 == row.position
            && !row.position.is_multiple_of(CHUNK)
    };
    let mut end = 0;
    let block = |rows: &[AttentionRow]| {
        end += rows.len();
        end - rows.len()..end
    };
    rows.chunk_by(follows).flat_map(|run| run.chunks(most)).map(block).collect()
}

/// Chunks that row `row` attends to.
fn chunks(shape: &AttentionShape, row: usize) -> Range<usize> {
    let positions = shape.positions(row);
    positions.start / CHUNK..row / CHUNK + 1
}

/// A block of rows and one key/value head.
#[derive(Clone, Copy)]
struct Task<'a> {
    shape: &'a AttentionShape,
    rows: &'a [AttentionRow<'a>],
    /// Index of their first row in the pass.
    first: usize,
    kv_head: usize,
}

impl Task<'_> {
    /// Chunks that any row attends to: those of the first row, since all end in the same one.
    fn chunks(&self) -> Range<usize> {
        chunks(self.shape, self.rows[0].position)
    }

    /// The task's part of `queries`: `[rows, group, head_dim]`.
    fn queries(&self, queries: &[f32]) -> Vec<f32> {
        let part = self.shape.group() * self.shape.head_dim;
        let mut gathered = Vec::with_capacity(self.rows.len() * part);
        for row in 0..self.rows.len() {
            let start = ((self.first + row) * self.shape.kv_heads + self.kv_head) * part;
            gathered.extend_from_slice(&queries[start..start + part]);
        }
        gathered
    }

    /// Writes outputs and states of the task's rows and heads.
    ///
    /// # Safety
    /// No other thread writes these.
    unsafe fn finish(&self, total: &Partial, out: &Disjoint<f32>, states: &Disjoint<HeadState>) {
        let (group, head_dim) = (self.shape.group(), self.shape.head_dim);
        let stride = value_stride(head_dim);
        for row in 0..self.rows.len() {
            let first = ((self.first + row) * self.shape.kv_heads + self.kv_head) * group;
            // SAFETY: the caller's promise.
            let (out, states) = unsafe {
                (out.slice(first * head_dim..(first + group) * head_dim), states.slice(first..first + group))
            };
            states.copy_from_slice(&total.states[row * group..(row + 1) * group]);
            let from = total.out[row * group * stride..].chunks_exact(stride);
            for ((out, from), state) in out.chunks_exact_mut(head_dim).zip(from).zip(&*states) {
                out.iter_mut().zip(from).for_each(|(x, y)| *x = *y / state.softmax.sum);
            }
        }
    }
}

/// The attention of a task over some positions, not yet normalized.
#[derive(Clone)]
struct Partial {
    /// `[rows, group]`
    states: Vec<HeadState>,
    /// Σ e^{s-m} v: `[rows, group, value_stride]`
    out: Vec<f32>,
    /// `[rows, group, CHUNK]`, scratch
    scores: Vec<f32>,
    /// Query rows covered: the first `len`.
    len: usize,
}

impl Partial {
    fn empty(task: &Task) -> Partial {
        // a query row for each row and head of the group
        let len = task.rows.len() * task.shape.group();
        Partial {
            states: vec![HeadState::EMPTY; len],
            out: vec![0.0; len * value_stride(task.shape.head_dim)],
            scores: vec![0.0; len * CHUNK],
            len,
        }
    }

    /// The attention to one chunk, for the rows that attend to it at all.
    fn compute(&mut self, isa: Isa, task: &Task, chunk_index: usize, queries: &[f32]) {
        let (shape, start) = (task.shape, chunk_index * CHUNK);
        let (group, head_dim, stride) = (shape.group(), shape.head_dim, value_stride(shape.head_dim));
        let rows = task.rows.partition_point(|row| shape.positions(row.position).start / CHUNK <= chunk_index);
        self.len = rows * group;
        let chunk = task.rows[0].cache.chunk(shape.layer, chunk_index);
        let scores = &mut self.scores[..self.len * CHUNK];
        with_block!(&chunk.keys, keys => {
            let keys = &keys[task.kv_head * head_dim * CHUNK..(task.kv_head + 1) * head_dim * CHUNK];
            isa.run(Scores { queries: &queries[..self.len * head_dim], keys, head_dim, scores });
        });
        if let Some(cap) = shape.softcap {
            norm::softcap(isa, scores, cap);
        }
        let (mut from, mut to) = (CHUNK, 0);
        let parts = scores.chunks_exact_mut(group * CHUNK).zip(self.states.chunks_exact_mut(group));
        for (row, (scores, states)) in task.rows.iter().zip(parts) {
            let attended = shape.positions(row.position);
            let valid = attended.start.saturating_sub(start)..(attended.end - start).min(CHUNK);
            (from, to) = (from.min(valid.start), to.max(valid.end));
            let weights = if row.entropy { Reweighting::of(&shape.gamma, row.position, start, &valid) } else { None };
            let entropy = match &weights {
                _ if !row.entropy => Entropy::Off,
                None => Entropy::Plain,
                Some(weights) => Entropy::Reweighted(weights),
            };
            isa.run(Softmax { scores: &mut *scores, states: &mut *states, valid: valid.clone(), entropy });
            if let Some(prompt) = row.prompt {
                for (state, weights) in states.iter_mut().zip(scores.chunks_exact(CHUNK)) {
                    state.places = places(weights, start, &valid, row.position, prompt);
                }
            }
        }
        if shape.one_term {
            scores.iter_mut().for_each(|e| *e = f16::from_f32(*e * 16384.0).to_f32() / 16384.0); // as `WEIGHT_SCALE`
        }
        if let Some(scales) = chunk.value_scales(task.kv_head) {
            let rows = scores.chunks_exact_mut(CHUNK);
            rows.for_each(|row| row.iter_mut().zip(scales).for_each(|(x, scale)| *x *= scale));
        }
        with_block!(&chunk.values, values => {
            let values = &values[task.kv_head * CHUNK * stride..(task.kv_head + 1) * CHUNK * stride];
            isa.run(Values { scores, values, valid: from..to, out: &mut self.out[..self.len * stride] });
        });
    }

    fn merge(&mut self, isa: Isa, part: &Partial) {
        let stride = self.out.len() / self.states.len();
        let outs = self.out.chunks_exact_mut(stride).zip(part.out.chunks_exact(stride));
        for ((state, other), (x, y)) in self.states.iter_mut().zip(&part.states).zip(outs).take(part.len) {
            let (a, b) = state.softmax.scales(&other.softmax);
            isa.run(Mix { x, a, y, b });
            state.places = std::array::from_fn(|i| a * state.places[i] + b * other.places[i]);
            state.softmax = state.softmax.merge(&other.softmax);
            state.entropy = state.entropy.merge(&other.entropy);
        }
    }
}

/// [`HeadState::places`] for the chunk from position `start`. `weights`: its e^{s-m}; `valid`: the part that row `row` attends to.
fn places(weights: &[f32], start: usize, valid: &Range<usize>, row: usize, prompt: usize) -> [f32; 4] {
    let at = |t: Option<usize>| t?.checked_sub(start).filter(|i| valid.contains(i)).map(|i| weights[i]);
    let of_prompt = valid.start..prompt.saturating_sub(start).clamp(valid.start, valid.end);
    let [own, previous, first] = [Some(row), row.checked_sub(1), Some(0)].map(|t| at(t).unwrap_or(0.0));
    [own, previous, first, weights[of_prompt].iter().sum()]
}

/// x = a·x + b·y, both products rounded.
struct Mix<'a> {
    x: &'a mut [f32],
    a: f32,
    y: &'a [f32],
    b: f32,
}

impl Kernel for Mix<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        assert!(self.x.len() == self.y.len() && self.x.len().is_multiple_of(LANES));
        for i in (0..self.x.len()).step_by(LANES) {
            // SAFETY: started by `Isa::run`; within the lengths just compared.
            unsafe {
                let (x, y) = (self.x.as_mut_ptr().add(i), self.y.as_ptr().add(i));
                let scaled = S::mul(S::load(x), S::splat(self.a));
                S::store(x, S::add(scaled, S::mul(S::load(y), S::splat(self.b))));
            }
        }
    }
}
