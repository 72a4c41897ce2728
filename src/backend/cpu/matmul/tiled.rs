//! Products of bf16 weights in tile registers.
//!
//! A tile holds bf16 values, and an input is the sum of three: its first eight bits, the next eight, and the rest ([`split`]).
//! So every product of a term with a weight is exact in f32, and each term has its own sums. Every output element is computed
//! the same way, regardless of the other rows and the threads: k in even cuts of at most [`CUT`] steps of 32; for each cut, the
//! sums of the three terms, step by step as [`Tiles`] defines them, from zero; these combined as first + (second + third); the
//! cuts in order; then the bias.
//!
//! *Error.* A product passes through at most 17 roundings in its step, one for each step of its cut, two where terms are added
//! and one for each cut: |y - exact| ≤ γ(39 + ⌈k/640⌉) Σ|w||x| with γ as in the [module](super), since the terms of an input
//! have its sign and their magnitudes add up to its own. Values below 2^-126 are flushed to zero: at most
//! 2^-126 (4 + |w| + |x|) more for each k.
//!
//! [`few`] takes weights as they come from memory, [`many`] lays them out for blocks of rows.

mod few;
mod many;

use super::super::simd::tiles::{DEPTH, SIDE, Tiles};
use super::super::simd::{Isa, LANES};
use super::super::threads::ThreadPool;
use super::{Elements, Line, Numbers, Product};
use half::bf16;
use std::ops::Range;

/// bf16 terms of an input.
const TERMS: usize = 3;

/// Max steps whose sums stay in tiles. In a cut, the weights that [`many`] multiplies at a time fill most of the L1 cache, and
/// the inputs of its rows half of the L2 cache.
const CUT: usize = 20;

#[inline(always)]
fn weights<'a>(product: &Product<'a>) -> &'a [bf16] {
    match product.w.numbers {
        Numbers::File(Elements::Bf16(weights)) => weights,
        _ => unreachable!("`are_bf16` was asked"),
    }
}

/// The products, of x [n, k].
pub fn multiply<T: Tiles>(pool: &ThreadPool, isa: Isa, products: &[Product], x: &[f32], n: usize, k: usize) {
    let depth = Depth::new(k);
    if n <= few::MAX_ROWS {
        few::multiply::<T>(pool, isa, products, x, n, depth);
    } else {
        many::multiply::<T>(pool, isa, products, x, n, depth);
    }
}

/// Partition of k.
#[derive(Clone, Copy)]
struct Depth {
    k: usize,
    /// The last step is padded with zeros.
    steps: usize,
    /// One even if k is 0: there is an output.
    cuts: usize,
    /// Steps per cut. The last may have fewer.
    length: usize,
}

impl Depth {
    fn new(k: usize) -> Depth {
        let steps = k.div_ceil(DEPTH);
        let cuts = steps.div_ceil(CUT).max(1);
        Depth { k, steps, cuts, length: steps.div_ceil(cuts) }
    }

    /// The steps of a cut.
    fn cut(self, cut: usize) -> Range<usize> {
        cut * self.length..self.steps.min((cut + 1) * self.length)
    }
}

/// A step's elements of a row along k, padded with zeros.
#[inline(always)]
fn step_of<N: Copy>(row: &[N], step: usize, zero: N) -> [N; DEPTH] {
    let rest = &row[step * DEPTH..];
    match rest.first_chunk() {
        Some(numbers) => *numbers,
        None => {
            let mut padded = [zero; DEPTH];
            padded[..rest.len()].copy_from_slice(rest);
            padded
        }
    }
}

/// The bf16 terms of a step's inputs. Each takes the first eight bits of what the previous ones leave, so three cover all 24.
#[inline(always)]
fn split(x: [f32; DEPTH]) -> [Line; TERMS] {
    const UPPER: u32 = 0xffff_0000;
    let (mut even, mut odd): ([f32; LANES], [f32; LANES]) = ([0.0; LANES], [0.0; LANES]);
    let mut terms = [[0; LANES]; TERMS];
    // by index: iterators are not inlined here, and these loops must be vectorized
    for i in 0..LANES {
        (even[i], odd[i]) = (x[2 * i], x[2 * i + 1]);
    }
    for term in &mut terms {
        for i in 0..LANES {
            let (first, second) = (even[i].to_bits(), odd[i].to_bits());
            term[i] = first >> 16 | second & UPPER;
            even[i] -= f32::from_bits(first & UPPER);
            odd[i] -= f32::from_bits(second & UPPER);
        }
    }
    bytemuck::cast(terms)
}

/// A step's weights of sixteen outputs from `first`; missing outputs and the end of k are padded with zeros.
#[inline(always)]
fn weights_of(product: &Product, first: usize, step: usize) -> [[bf16; DEPTH]; SIDE] {
    let mut padded = [[bf16::ZERO; DEPTH]; SIDE];
    let (w, k) = (weights(product), product.w.k);
    for (i, padded) in padded.iter_mut().enumerate().take(product.w.rows.saturating_sub(first)) {
        *padded = step_of(&w[(first + i) * k..][..k], step, bf16::ZERO);
    }
    padded
}
