//! Statistics of a row of logits over the full vocabulary.

use super::super::simd::{Isa, Kernel, LANES, Simd};
use super::vector;
use crate::backend::distribution::LogitSums;

/// Logits whose exponentials are summed in f32, 32 per lane, before they are added to the f64 sums.
const BLOCK: usize = 32 * LANES;

/// Statistics of a row's softmax for the sampler and the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitStats {
    /// ln Σ e^logit: log-probability = logit - lse.
    pub lse: f64,
    /// -Σ p ln p in nats.
    pub entropy: f64,
    /// The index of the largest logit; ties: the lowest.
    pub argmax: usize,
}

/// [`LogitStats`] of a row in two passes. Logits of -∞ have probability 0. A NaN makes `lse` and `entropy` NaN; when no
/// logit is above -∞, `lse` is -∞ and the entropy 0.
pub fn softmax_stats(isa: Isa, logits: &[f32]) -> LogitStats {
    let (max, argmax) = argmax(isa, logits);
    let (lse, entropy) = from_max(isa, logits, max);
    LogitStats { lse, entropy, argmax }
}

/// The largest logit and its (lowest) index; NaN is skipped.
pub fn argmax(isa: Isa, x: &[f32]) -> (f32, usize) {
    let (max, start) = isa.run(Max(x));
    let offset = x[start..].iter().position(|&v| v == max).unwrap_or(0);
    (max, start + offset)
}

/// The largest logit, and the start of the first block that contains it.
struct Max<'a>(&'a [f32]);

impl Kernel for Max<'_> {
    type Output = (f32, usize);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f32, usize) {
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, block) in self.0.chunks(BLOCK).enumerate() {
            // SAFETY: started by `Isa::run`. `max` returns its second argument if one is NaN.
            let max = unsafe {
                let mut max = S::splat(f32::NEG_INFINITY);
                for i in 0..block.len().div_ceil(LANES) {
                    max = S::max(vector::<S>(block, i, f32::NEG_INFINITY), max);
                }
                S::max_lane(max)
            };
            if max > best.0 {
                best = (max, i * BLOCK);
            }
        }
        best
    }
}

/// ln Σ e^x and the entropy: with d = x - max, Z = Σ e^d and T = Σ e^d·d they are max + ln Z and ln Z - T/Z.
///
/// Within a block a lane takes 32 roundings and the sum of the lanes 4, so Z and T have relative errors below
/// 36·2^-24 + those of the exponentials, in the worst case: 3e-6; rounding to nearest makes it some 1e-7.
fn from_max(isa: Isa, x: &[f32], max: f32) -> (f64, f64) {
    if max == f32::NEG_INFINITY {
        let lse = if x.iter().any(|v| v.is_nan()) { f64::NAN } else { f64::NEG_INFINITY };
        return (lse, if lse.is_nan() { lse } else { 0.0 });
    }
    let (z, t) = isa.run(Sums { x, max });
    if t.is_nan() {
        return (f64::NAN, f64::NAN);
    }
    (max as f64 + z.ln(), z.ln() - t / z)
}

/// Z and T of [`from_max`].
struct Sums<'a> {
    x: &'a [f32],
    max: f32,
}

impl Kernel for Sums<'_> {
    type Output = (f64, f64);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let (mut z, mut t) = (0.0, 0.0);
        for block in self.x.chunks(BLOCK) {
            // SAFETY: started by `Isa::run`.
            unsafe {
                let (mut lanes_z, mut lanes_t) = (S::splat(0.0), S::splat(0.0));
                for i in 0..block.len().div_ceil(LANES) {
                    let x = vector::<S>(block, i, f32::NEG_INFINITY);
                    // e^-100 counts as 0, and 0·-100 is 0 where 0·-∞ would be NaN
                    let d = S::max(S::splat(-100.0), S::sub(x, S::splat(self.max)));
                    let e = S::exp(d);
                    lanes_z = S::add(lanes_z, e);
                    lanes_t = S::fma(e, d, lanes_t);
                }
                z += S::sum(lanes_z) as f64;
                t += S::sum(lanes_t) as f64;
            }
        }
        (z, t)
    }
}

/// [`LogitSums`] of a row whose largest logit is `max`; the exponentials' sums have the same error as in `from_max`.
pub fn logit_sums(isa: Isa, x: &[f32], max: f32) -> LogitSums {
    let (half, quarter) = isa.run(RootSums { x, max });
    LogitSums { deviation: deviation(x, max), half, quarter }
}

/// Σ (x − max) in f64, lane by lane, so that the compiler vectorizes it.
fn deviation(x: &[f32], max: f32) -> f64 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0f64; LANES];
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f64::from(*x - max));
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| f64::from(*x - max)).sum::<f64>()
}

/// Σ e^{(x−max)/2} and Σ e^{(x−max)/4}, by the same exponential.
struct RootSums<'a> {
    x: &'a [f32],
    max: f32,
}

impl Kernel for RootSums<'_> {
    type Output = (f64, f64);
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let (mut half, mut quarter) = (0.0, 0.0);
        for block in self.x.chunks(BLOCK) {
            // SAFETY: started by `Isa::run`.
            unsafe {
                let (mut lanes_half, mut lanes_quarter) = (S::splat(0.0), S::splat(0.0));
                for i in 0..block.len().div_ceil(LANES) {
                    let d = S::sub(vector::<S>(block, i, f32::NEG_INFINITY), S::splat(self.max));
                    let e = S::exp(S::mul(d, S::splat(0.25)));
                    lanes_quarter = S::add(lanes_quarter, e);
                    lanes_half = S::fma(e, e, lanes_half);
                }
                half += S::sum(lanes_half) as f64;
                quarter += S::sum(lanes_quarter) as f64;
            }
        }
        (half, quarter)
    }
}

/// The k largest values with their indices, largest first, ties by index; NaN is skipped. One pass: almost all values
/// of a long row are below the k-th so far, and only the rest cost more than a comparison.
pub fn top_k(x: &[f32], k: usize) -> Vec<(u32, f32)> {
    const SKIP: usize = 64;
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(k + 1);
    for (chunk, values) in x.chunks(SKIP).enumerate() {
        if k > 0 && top.len() == k {
            let min = top[k - 1].1;
            if !values.iter().fold(false, |any, &v| any | (v > min)) {
                continue;
            }
        }
        for (i, &value) in values.iter().enumerate() {
            let place = top.partition_point(|&(_, v)| v >= value);
            if place < k && !value.is_nan() {
                top.truncate(k - 1);
                top.insert(place, ((chunk * SKIP + i) as u32, value));
            }
        }
    }
    top
}
