//! The attention of one traced head, position by position: the rows of its attention that the chain needs.

use super::scores::{CHUNK, Scores};
use super::{AttentionShape, chunks};
use crate::backend::cpu::cache::{KvCache, with_block};
use crate::backend::cpu::norm;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd};

/// A selected head of a traced row, as [`accumulate_row`] needs it.
#[derive(Clone, Copy, Debug)]
pub struct TracedHead<'a> {
    /// Of the layer.
    pub head: usize,
    /// `[head_dim]`, rotated and scaled.
    pub query: &'a [f32],
    /// m'
    pub max: f32,
    /// Z' (over f under the regularized rule)
    pub sum: f32,
}

/// α*_t ← max(α*_t, α'_t) over the positions of one row: α'_t = w_t e^{s_t - m'} / Z', from the cached keys.
/// `row` is `[position + 1]`.
pub fn accumulate_row(isa: Isa, shape: &AttentionShape, cache: &KvCache, head: &TracedHead, row: &mut [f32]) {
    if head.sum <= 0.0 {
        return;
    }
    let position = row.len() - 1;
    let attended = shape.positions(position);
    let kv_head = head.head / shape.group();
    let mut scores = [0.0; CHUNK];
    for index in chunks(shape, position) {
        with_block!(&cache.chunk(shape.layer, index).keys, keys => {
            let keys = &keys[kv_head * shape.head_dim * CHUNK..(kv_head + 1) * shape.head_dim * CHUNK];
            isa.run(Scores { queries: head.query, keys, head_dim: shape.head_dim, scores: &mut scores });
        });
        if let Some(cap) = shape.softcap {
            norm::softcap(isa, &mut scores, cap);
        }
        isa.run(Weights { scores: &mut scores, max: head.max, sum: head.sum });
        let start = index * CHUNK;
        for t in attended.start.max(start)..attended.end.min(start + CHUNK) {
            row[t] = row[t].max(shape.gamma.weight(position, t) * scores[t - start]);
        }
    }
}

/// e^{min(s - m', 0)} / Z': positions above m' are those with weight 0.
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
