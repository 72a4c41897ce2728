//! From queries and a chunk of the cache to scores, and from scores to exponentials and their sums.

use super::{AttentionShape, HeadState, chunks};
use crate::backend::cpu::cache::{CHUNK, KvCache, with_block};
use crate::backend::cpu::norm;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd, Stored};
use crate::backend::entropy::{EntropyState, Gamma, SoftmaxState};
use std::ops::Range;

/// Score of a position that the row does not attend to: its exponential is 0, and 0 times it is 0.
const MASKED: f32 = -1e30;

/// scores[g, t] = q[g] · k[t] for one chunk.
pub struct Scores<'a, K> {
    /// `[heads, head_dim]`
    pub queries: &'a [f32],
    /// `[CHUNK / LANES, head_dim, LANES]`
    pub keys: &'a [K],
    pub head_dim: usize,
    /// `[heads, CHUNK]`
    pub scores: &'a mut [f32],
}

impl<K: Stored> Kernel for Scores<'_, K> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let heads = self.scores.len() / CHUNK;
        assert!(self.keys.len() == self.head_dim * CHUNK && self.queries.len() == heads * self.head_dim);
        let a = Panel { data: self.queries.as_ptr(), rows: heads, stride: self.head_dim };
        let (apart, inner) = (self.head_dim * LANES, 0..self.head_dim);
        let b = Block { data: self.keys.as_ptr(), stride: LANES, apart, inner };
        // SAFETY: the assertions give the shapes that `panel_product` reads and writes.
        unsafe { panel_product::<S, K>(a, b, CHUNK, self.scores.as_mut_ptr()) }
    }
}

/// w over one chunk of a row, if it is not 1 everywhere.
pub struct Reweighting {
    weights: [f32; CHUNK],
    /// ln w, and 0 where w is 0.
    logs: [f32; CHUNK],
    /// Added to scores to exclude them from the maximum: [`MASKED`] where w is 0, 0 elsewhere.
    masks: [f32; CHUNK],
}

impl Reweighting {
    /// For the chunk from position `start`, of which row `row` attends to `valid`; `None` if w is 1 at all of these.
    pub fn of(gamma: &Gamma, row: usize, start: usize, valid: &Range<usize>) -> Option<Reweighting> {
        let (last, nearest) = (start + valid.end - 1, gamma.values().len());
        if start > 0 && last + nearest < row {
            return None;
        }
        let (mut weights, mut logs, mut masks) = ([0.0; CHUNK], [0.0; CHUNK], [MASKED; CHUNK]);
        weights[valid.clone()].fill(1.0);
        masks[valid.clone()].fill(0.0);
        let near = row.saturating_sub(nearest).max(start + valid.start)..last + 1;
        for t in near.chain((start + valid.start == 0).then_some(0)).map(|t| t - start) {
            weights[t] = gamma.weight(row, start + t);
            (logs[t], masks[t]) = if weights[t] > 0.0 { (libm::logf(weights[t]), 0.0) } else { (0.0, MASKED) };
        }
        Some(Reweighting { weights, logs, masks })
    }
}

/// Computation of a chunk's entropy state.
#[derive(Clone, Copy)]
pub enum Entropy<'a> {
    Off,
    /// From the softmax's own sums: w is 1.
    Plain,
    Reweighted(&'a Reweighting),
}

/// Turns one row's scores of a chunk into exponentials e^{s-m}, and computes the states.
pub struct Softmax<'a> {
    /// `[group, CHUNK]`
    pub scores: &'a mut [f32],
    /// `[group]`
    pub states: &'a mut [HeadState],
    /// Positions of the chunk that the row attends to.
    pub valid: Range<usize>,
    pub entropy: Entropy<'a>,
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        assert!(self.scores.len() == self.states.len() * CHUNK);
        for (state, scores) in self.states.iter_mut().zip(self.scores.chunks_exact_mut(CHUNK)) {
            scores[..self.valid.start].fill(MASKED);
            scores[self.valid.end..].fill(MASKED);
            // SAFETY: started by `Isa::run`; `scores` has CHUNK elements.
            unsafe {
                let mut lanes = S::load(scores.as_ptr());
                for i in (LANES..CHUNK).step_by(LANES) {
                    lanes = S::max(lanes, S::load(scores.as_ptr().add(i)));
                }
                let max = S::max_lane(lanes);
                // reads the scores that `exponentials` replaces
                let special = match self.entropy {
                    Entropy::Reweighted(w) => reweighted::<S>(scores, w),
                    Entropy::Off | Entropy::Plain => EntropyState::EMPTY,
                };
                let (sum, weighted) = exponentials::<S>(scores, max);
                state.softmax = SoftmaxState { max, sum };
                state.entropy = match self.entropy {
                    Entropy::Plain => EntropyState { max, sum, weighted },
                    Entropy::Off | Entropy::Reweighted(_) => special,
                };
            }
        }
    }
}

/// Replaces CHUNK scores s by e^{s-m}; returns Σ e^{s-m} and Σ e^{s-m} (s - m).
///
/// # Safety
/// As [`Simd`]'s functions.
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: &mut [f32], max: f32) -> (f32, f32) {
    assert!(scores.len() == CHUNK);
    // SAFETY: within the CHUNK elements just asserted.
    unsafe {
        let (mut sum, mut weighted) = (S::splat(0.0), S::splat(0.0));
        for i in (0..CHUNK).step_by(LANES) {
            let shifted = S::sub(S::load(scores.as_ptr().add(i)), S::splat(max));
            let e = S::exp(shifted);
            S::store(scores.as_mut_ptr().add(i), e);
            sum = S::add(sum, e);
            weighted = S::fma(e, shifted, weighted);
        }
        (S::sum(sum), S::sum(weighted))
    }
}

/// The entropy state of a chunk in which some weights are not 1.
///
/// # Safety
/// As [`Simd`]'s functions.
#[inline(always)]
unsafe fn reweighted<S: Simd>(scores: &[f32], w: &Reweighting) -> EntropyState {
    assert!(scores.len() == CHUNK);
    // SAFETY: all arrays have CHUNK elements.
    unsafe {
        let mut lanes = S::splat(MASKED);
        for i in (0..CHUNK).step_by(LANES) {
            lanes = S::max(S::add(S::load(scores.as_ptr().add(i)), S::load(w.masks.as_ptr().add(i))), lanes);
        }
        let max = S::max_lane(lanes);
        if max <= MASKED {
            return EntropyState::EMPTY;
        }
        let (mut sum, mut weighted) = (S::splat(0.0), S::splat(0.0));
        for i in (0..CHUNK).step_by(LANES) {
            let kept = S::add(S::load(scores.as_ptr().add(i)), S::load(w.masks.as_ptr().add(i)));
            let shifted = S::sub(kept, S::splat(max));
            let e = S::mul(S::load(w.weights.as_ptr().add(i)), S::exp(shifted));
            sum = S::add(sum, e);
            weighted = S::fma(e, S::add(shifted, S::load(w.logs.as_ptr().add(i))), weighted);
        }
        EntropyState { max, sum: S::sum(sum), weighted: S::sum(weighted) }
    }
}

/// out[g] = Σ_t e[g, t] v[t] for one chunk.
pub struct Values<'a, V> {
    /// e: `[heads, CHUNK]`
    pub scores: &'a [f32],
    /// `[CHUNK, stride]`
    pub values: &'a [V],
    /// Positions outside of which every e is 0.
    pub valid: Range<usize>,
    /// `[heads, stride]`
    pub out: &'a mut [f32],
}

impl<V: Stored> Kernel for Values<'_, V> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (heads, stride) = (self.scores.len() / CHUNK, self.values.len() / CHUNK);
        assert!(self.valid.end <= CHUNK && self.out.len() == heads * stride && stride.is_multiple_of(LANES));
        let a = Panel { data: self.scores.as_ptr(), rows: heads, stride: CHUNK };
        let b = Block { data: self.values.as_ptr(), stride, apart: LANES, inner: self.valid };
        // SAFETY: the assertions give the shapes that `panel_product` reads and writes.
        unsafe { panel_product::<S, V>(a, b, stride, self.out.as_mut_ptr()) }
    }
}

// Small dense products of f32 rows with a block of the cache, in register tiles.

/// The left factor of [`panel_product`]: `[rows, stride]`.
#[derive(Clone, Copy)]
pub struct Panel {
    pub data: *const f32,
    pub rows: usize,
    pub stride: usize,
}

/// The right factor, of which only rows `inner` are used.
#[derive(Clone)]
pub struct Block<E> {
    pub data: *const E,
    /// Strides between rows, and within a row between groups of sixteen columns.
    pub stride: usize,
    pub apart: usize,
    pub inner: Range<usize>,
}

/// out[g, j] = Σ_{i in inner} a[g, i] · b[i, j], i ascending, for any tile size: `out` is `[a.rows, columns]`.
///
/// # Safety
/// Shapes as stated; `columns` is a multiple of [`LANES`]; and [`Simd`]'s contract.
#[inline(always)]
pub unsafe fn panel_product<S: Simd, E: Stored>(a: Panel, b: Block<E>, columns: usize, out: *mut f32) {
    let mut column = 0;
    while column < columns {
        let left = (columns - column) / LANES;
        // SAFETY: every strip lies inside the shapes that the caller vouches for.
        column += LANES
            * unsafe {
                if S::REGISTERS >= 32 && left >= 4 {
                    strip::<S, E, 4, 6>(a, &b, column, columns, out)
                } else if S::REGISTERS >= 32 && left >= 2 {
                    strip::<S, E, 2, 6>(a, &b, column, columns, out)
                } else if S::REGISTERS >= 8 {
                    strip::<S, E, 1, 6>(a, &b, column, columns, out)
                } else {
                    strip::<S, E, 1, 2>(a, &b, column, columns, out)
                }
            };
    }
}

/// All rows of C vectors of columns, up to R rows at a time; returns C.
///
/// # Safety
/// As [`panel_product`].
#[inline(always)]
unsafe fn strip<S: Simd, E: Stored, const C: usize, const R: usize>(
    a: Panel,
    b: &Block<E>,
    column: usize,
    columns: usize,
    out: *mut f32,
) -> usize {
    let mut row = 0;
    while row < a.rows {
        // SAFETY: the caller's promise.
        unsafe {
            let part = Panel { data: a.data.add(row * a.stride), ..a };
            let first = b.data.add(column / LANES * b.apart);
            let tile = (part, b, first, out.add(row * columns + column), columns);
            row += match (a.rows - row).min(R) {
                6.. => tile_product::<S, E, 6, C>(tile),
                4 | 5 => tile_product::<S, E, 4, C>(tile),
                3 => tile_product::<S, E, 3, C>(tile),
                2 => tile_product::<S, E, 2, C>(tile),
                _ => tile_product::<S, E, 1, C>(tile),
            };
        }
    }
    C
}

/// R rows × C vectors of [`panel_product`]; returns R.
///
/// # Safety
/// As [`panel_product`].
#[inline(always)]
unsafe fn tile_product<S: Simd, E: Stored, const R: usize, const C: usize>(
    (a, b, first, out, columns): (Panel, &Block<E>, *const E, *mut f32, usize),
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        for i in b.inner.clone() {
            let from = first.add(i * b.stride);
            let mut columns = [S::splat(0.0); C];
            for (c, column) in columns.iter_mut().enumerate() {
                *column = E::load::<S>(from.add(c * b.apart));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = S::splat(*a.data.add(r * a.stride + i));
                for (sum, column) in row.iter_mut().zip(columns) {
                    *sum = S::fma(x, column, *sum);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (c, sum) in row.iter().enumerate() {
                S::store(out.add(r * columns + c * LANES), *sum);
            }
        }
    }
    R
}

// The attention of one traced head, position by position: the attention rows that the chain needs.

/// A head's query in a row, and what turns its scores into weights.
#[derive(Clone, Copy, Debug)]
pub struct RowHead<'a> {
    /// `[head_dim]`, rotated and scaled.
    pub query: &'a [f32],
    /// m, or m' of a traced row.
    pub max: f32,
    /// Z, or Z' (over f under the regularized rule).
    pub sum: f32,
}

/// α*_t ← max(α*_t, α'_t) over the positions of one row: α'_t = w_t e^{s_t - m'} / Z', from the cached keys.
/// `head` counts those of the layer; `row` is `[position + 1]`.
pub fn accumulate_row(isa: Isa, shape: &AttentionShape, cache: &KvCache, head: usize, of: &RowHead, row: &mut [f32]) {
    let position = row.len() - 1;
    each_weight(isa, shape, cache, head, of, position, |t, weight| {
        row[t] = row[t].max(shape.gamma.weight(position, t) * weight);
    });
}

/// row_t ← row_t + α_t over the positions of one row: α_t = e^{s_t - m} / Z. `row` is `[position + 1]`.
pub fn add_row(isa: Isa, shape: &AttentionShape, cache: &KvCache, head: usize, of: &RowHead, row: &mut [f32]) {
    each_weight(isa, shape, cache, head, of, row.len() - 1, |t, weight| row[t] += weight);
}

/// Calls `each` with every position that row `position` attends to and e^{min(s_t - m, 0)} / Z.
fn each_weight(
    isa: Isa,
    shape: &AttentionShape,
    cache: &KvCache,
    head: usize,
    of: &RowHead,
    position: usize,
    mut each: impl FnMut(usize, f32),
) {
    if of.sum <= 0.0 {
        return;
    }
    let attended = shape.positions(position);
    let kv_head = head / shape.group();
    let mut scores = [0.0; CHUNK];
    for index in chunks(shape, position) {
        with_block!(&cache.chunk(shape.layer, index).keys, keys => {
            let keys = &keys[kv_head * shape.head_dim * CHUNK..(kv_head + 1) * shape.head_dim * CHUNK];
            isa.run(Scores { queries: of.query, keys, head_dim: shape.head_dim, scores: &mut scores });
        });
        if let Some(cap) = shape.softcap {
            norm::softcap(isa, &mut scores, cap);
        }
        isa.run(Weights { scores: &mut scores, max: of.max, sum: of.sum });
        let start = index * CHUNK;
        for t in attended.start.max(start)..attended.end.min(start + CHUNK) {
            each(t, scores[t - start]);
        }
    }
}

/// e^{min(s - m, 0)} / Z: only positions with weight 0 are above m'.
struct Weights<'a> {
    scores: &'a mut [f32; CHUNK],
    max: f32,
    sum: f32,
}

impl Kernel for Weights<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for i in (0..CHUNK).step_by(LANES) {
            // SAFETY: within CHUNK elements.
            unsafe {
                let p = self.scores.as_mut_ptr().add(i);
                let below = S::max(S::sub(S::splat(self.max), S::load(p)), S::splat(0.0));
                S::store(p, S::div(S::exp(S::sub(S::splat(0.0), below)), S::splat(self.sum)));
            }
        }
    }
}
