//! Operations on single rows between the products: norms, activations, rotary positions, and the statistics of logits.
//!
//! All of it is f32 in and out, in a fixed order that depends only on the row itself.

mod logits;
mod tests;

pub use logits::{LogitStats, argmax, logit_sums, softmax_stats, top_k};

use super::simd::{Isa, Kernel, LANES, Simd};
use crate::model::config::Activation;

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

impl Kernel for SumOfSquares<'_> {
    type Output = f64;
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
    type Output = ();
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
