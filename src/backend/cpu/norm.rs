//! Operations on single rows between the products: norms, activations, rotary positions, and the statistics of logits.
//!
//! All of it is f32 in and out, in a fixed order that depends only on the row itself.

mod tests;

use super::simd::{Isa, Kernel, LANES, Simd};
use crate::{backend::distribution::LogitSums, model::config::Activation};

/// Squares summed in f32 before they are added to the f64 sum.
const BLOCK: usize = 16 * LANES;

/// x = x / √(mean(x²) + eps) · (offset + weight), all `[width]`; `offset` is 1 for Gemma, whose weights are stored minus
/// one, else 0. Returns mean(x²), which is not finite if a value of x is not.
pub fn rms_norm(isa: Isa, x: &mut [f32], weight: &[f32], offset: f32, eps: f32) -> f32 {
    assert_eq!(x.len(), weight.len());
    let mean = (isa.run(SumOfSquares(x)) / x.len().max(1) as f64) as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * (offset + w);
    }
    mean
}

/// x = scale · x / √(Σ x² + 1e-6), in place: normalizes a delta net's queries and keys.
pub fn unit(isa: Isa, x: &mut [f32], scale: f32) {
    let scale = scale / (isa.run(SumOfSquares(x)) as f32 + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

struct SumOfSquares<'a>(&'a [f32]);

impl Kernel<f64> for SumOfSquares<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) -> f64 {
        let mut sum = 0.0;
        for block in self.0.chunks(BLOCK) {
            // SAFETY: started by `Isa::run`.
            unsafe {
                let mut acc = S::splat(0.0);
                for i in 0..block.len().div_ceil(LANES) {
                    let x = vector::<S>(block, i, 0.0);
                    acc = S::fma(x, x, acc);
                }
                sum += S::sum(acc) as f64;
            }
        }
        sum
    }
}

/// The i-th vector of x, the last one padded with `padding`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn vector<S: Simd>(x: &[f32], i: usize, padding: f32) -> S::V {
    let x = &x[i * LANES..];
    // SAFETY: both pointers are to 16 elements.
    unsafe {
        if x.len() >= LANES {
            return S::load(x.as_ptr());
        }
        let mut padded = [padding; LANES];
        padded[..x.len()].copy_from_slice(x);
        S::load(padded.as_ptr())
    }
}

/// The operation of an [`Update`] on a vector. Not a closure: those are compiled without the instruction set of the enclosing
/// kernel, so that every operation in them is a call.
trait Elementwise: Copy {
    /// # Safety
    /// As for [`Simd`].
    unsafe fn apply<S: Simd>(self, x: S::V, with: S::V) -> S::V;
}

/// silu(x)·with
#[derive(Clone, Copy)]
struct SiluMul;

impl Elementwise for SiluMul {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, x: S::V, with: S::V) -> S::V {
        // SAFETY: the caller's promise; so in the three below.
        unsafe { S::mul(times_sigmoid::<S>(x, x), with) }
    }
}

/// gelu(x)·with
#[derive(Clone, Copy)]
struct GeluMul;

impl Elementwise for GeluMul {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, x: S::V, with: S::V) -> S::V {
        unsafe { S::mul(gelu::<S>(x), with) }
    }
}

/// cap·tanh(x / cap)
#[derive(Clone, Copy)]
struct Capped(f32);

impl Elementwise for Capped {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, x: S::V, _: S::V) -> S::V {
        unsafe { capped::<S>(x, self.0) }
    }
}

/// x·sigmoid(gate), or x·silu(gate)
#[derive(Clone, Copy)]
struct Gated {
    silu: bool,
}

impl Elementwise for Gated {
    #[inline(always)]
    unsafe fn apply<S: Simd>(self, x: S::V, with: S::V) -> S::V {
        unsafe { S::mul(x, times_sigmoid::<S>(if self.silu { with } else { S::splat(1.0) }, with)) }
    }
}

/// x = x·sigmoid(gate), or x·silu(gate).
pub fn gate(isa: Isa, x: &mut [f32], gate: &[f32], silu: bool) {
    assert_eq!(x.len(), gate.len());
    isa.run(Update { x, with: Some(gate), f: Gated { silu } });
}

/// gate = act(gate)·up: silu(x) = x / (1 + e^-x), or the tanh form of Hugging Face's `gelu_pytorch_tanh`,
/// gelu(x) = x/2·(1 + tanh u) = x / (1 + e^-2u), where u = √(2/π)·(x + 0.044715 x³).
pub fn activate(isa: Isa, by: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    match by {
        Activation::Silu => isa.run(Update { x: gate, with: Some(up), f: SiluMul }),
        Activation::GeluTanh => isa.run(Update { x: gate, with: Some(up), f: GeluMul }),
    }
}

/// x / (1 + e^-z). Below z = -87 the exponential stays at e^87, so that the result is ±1e-38·x and never NaN.
#[inline(always)]
unsafe fn times_sigmoid<S: Simd>(x: S::V, z: S::V) -> S::V {
    // SAFETY: as for `Simd`.
    unsafe {
        let minus_z = S::sub(S::splat(0.0), S::max(z, S::splat(-87.0)));
        S::div(x, S::add(S::splat(1.0), S::exp(minus_z)))
    }
}

#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    const SLOPE: f64 = 1.595_769_121_605_730_7; // 2·√(2/π)
    // SAFETY: as for `Simd`.
    unsafe {
        let inner = S::fma(S::mul(x, x), S::splat((SLOPE * 0.044715) as f32), S::splat(SLOPE as f32));
        times_sigmoid::<S>(x, S::mul(x, inner))
    }
}

/// x = f(x, with), a vector at a time; `with` is [len of x], or zeros when absent.
struct Update<'a, F> {
    x: &'a mut [f32],
    with: Option<&'a [f32]>,
    f: F,
}

impl<F: Elementwise> Kernel for Update<'_, F> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Update { x, with, f } = self;
        for i in 0..x.len().div_ceil(LANES) {
            // SAFETY: started by `Isa::run`; a full vector is stored only where x has one.
            unsafe {
                let with = match with {
                    Some(with) => vector::<S>(with, i, 0.0),
                    None => S::splat(0.0),
                };
                let y = f.apply::<S>(vector::<S>(x, i, 0.0), with);
                let x = &mut x[i * LANES..];
                if x.len() >= LANES {
                    S::store(x.as_mut_ptr(), y);
                } else {
                    x.copy_from_slice(&S::to_array(y)[..x.len()]);
                }
            }
        }
    }
}

/// x = cap·tanh(x / cap), in place.
pub fn softcap(isa: Isa, x: &mut [f32], cap: f32) {
    isa.run(Update { x, with: None, f: Capped(cap) });
}

/// cap·tanh(x / cap) = x · 2q / (2 + m) with y = 2|x| / cap, m = e^y - 1 and q = m / y.
///
/// Below y = 1, where e^y - 1 would lose digits, q is the Taylor series of (e^y - 1)/y: its terms are positive, and the
/// remainder after the eleventh is below 2^-28 of it. x is clamped to ±20 cap (tanh is 1 there), where e^y is finite.
#[inline(always)]
unsafe fn capped<S: Simd>(x: S::V, cap: f32) -> S::V {
    // SAFETY: as for `Simd`.
    unsafe {
        let one = S::splat(1.0);
        let zero = S::splat(0.0);
        let limit = S::splat(-20.0 * cap);
        let x = S::sub(zero, S::max(limit, S::sub(zero, S::max(limit, x)))); // NaN is kept: `max` returns its second argument
        let y = S::mul(S::max(x, S::sub(zero, x)), S::splat(2.0 / cap));
        let large = S::div(S::sub(S::exp(y), one), y);
        let mut small = S::splat(1.0 / 479_001_600.0); // 1 / 12!
        let mut factorial = 479_001_600.0;
        for i in (2..=12).rev() {
            factorial /= i as f32;
            small = S::fma(small, y, S::splat(1.0 / factorial));
        }
        let below_one = S::splat(-1.0 + f32::EPSILON / 2.0);
        let q = S::add(S::zero_below(y, one, large), S::zero_below(S::sub(zero, y), below_one, small));
        S::div(S::mul(x, S::add(q, q)), S::fma(q, y, S::splat(2.0)))
    }
}

/// Rotary position embedding of one head x `[head_dim]` = [a, b], the half-split layout of Hugging Face:
/// a' = a·cos - b·sin, b' = b·cos + a·sin, for cos and sin [head_dim / 2].
pub fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    assert!(x.len() == 2 * cos.len() && cos.len() == sin.len());
    let (a, b) = x.split_at_mut(cos.len());
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

// Statistics of a row of logits over the full vocabulary.

/// Logits whose exponentials are summed in f32, 32 per lane, before they are added to the f64 sums.
const LOGIT_BLOCK: usize = 32 * LANES;

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

impl Kernel<(f32, usize)> for Max<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) -> (f32, usize) {
        let mut best = (f32::NEG_INFINITY, 0);
        for (i, block) in self.0.chunks(LOGIT_BLOCK).enumerate() {
            // SAFETY: started by `Isa::run`. `max` returns its second argument if one is NaN.
            let max = unsafe {
                let mut max = S::splat(f32::NEG_INFINITY);
                for i in 0..block.len().div_ceil(LANES) {
                    max = S::max(vector::<S>(block, i, f32::NEG_INFINITY), max);
                }
                S::max_lane(max)
            };
            if max > best.0 {
                best = (max, i * LOGIT_BLOCK);
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
    (max as f64 + libm::log(z), libm::log(z) - t / z)
}

/// Z and T of [`from_max`].
struct Sums<'a> {
    x: &'a [f32],
    max: f32,
}

impl Kernel<(f64, f64)> for Sums<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let (mut z, mut t) = (0.0, 0.0);
        for block in self.x.chunks(LOGIT_BLOCK) {
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

impl Kernel<(f64, f64)> for RootSums<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) -> (f64, f64) {
        let (mut half, mut quarter) = (0.0, 0.0);
        for block in self.x.chunks(LOGIT_BLOCK) {
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
