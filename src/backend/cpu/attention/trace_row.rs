//! The attention of one traced head, position by position: the attention rows that the chain needs.

use super::scores::{CHUNK, Scores};
use super::{AttentionShape, chunks};
use crate::backend::cpu::cache::{KvCache, with_block};
use crate::backend::cpu::norm;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd};

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
    type Output = ();
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
