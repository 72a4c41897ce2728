//! Up to [`MAX_ROWS`] rows: a stream of weights from memory, which tiles load as it is.
//!
//! Columns of a tile are terms of rows of x: all first terms, all second ones, all third ones, tile by tile. So five rows cost no
//! more than one, and 32 take six tiles, each with a tile of sums.

use super::super::super::simd::tiles::{DEPTH, ROW, SIDE, TILE, Tiles};
use super::super::super::simd::{Isa, Kernel, LANES, Simd};
use super::super::super::threads::ThreadPool;
use super::super::{INPUTS, Line, Product, SCRATCH, for_panels, with_lines};
use super::{CUT, Depth, TERMS, split, step_of, weights, weights_of};
use half::bf16;
use std::{marker::PhantomData, ops::Range};

/// Rows whose terms fill all tiles of sums.
pub const MAX_ROWS: usize = SUMS * SIDE / TERMS;

/// Tiles of sums; the tiles of the two operands follow.
const SUMS: usize = 6;
const LEFT: usize = 6;
const RIGHT: usize = 7;

/// Outputs are multiplied in strips of sixteen, up to this many at a time.
const MAX_STRIPS: usize = 4;

/// The CPU prefetches rows of weights longer than this, in bytes, on its own.
const LONG_ROW: usize = 4096;

pub fn multiply<T: Tiles>(pool: &ThreadPool, isa: Isa, products: &[Product], x: &[f32], n: usize, depth: Depth) {
    let tiles = (TERMS * n).div_ceil(SIDE);
    with_lines(&INPUTS, depth.steps * tiles * SIDE, |lines| {
        isa.run(Arrange { x, n, depth, tiles, lines });
        let inputs = &*lines;
        let outs: usize = products.iter().map(|product| product.w.rows).sum();
        let panel = outs.div_ceil(4 * pool.threads()).next_multiple_of(MAX_STRIPS * SIDE);
        for_panels(pool, products, panel, n, n, &|product, _, outs| {
            with_lines(&SCRATCH, SCRATCH_LINES, |scratch| {
                isa.run(Few::<T> { product, depth, n, tiles, inputs, outs, scratch, unit: PhantomData });
            });
        });
    });
}

/// Lays out x [n, k]: [steps][tiles] of sixteen lines, each a pair along k of sixteen columns.
struct Arrange<'a> {
    x: &'a [f32],
    n: usize,
    depth: Depth,
    tiles: usize,
    lines: &'a mut [Line],
}

impl Kernel for Arrange<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Arrange { x, n, depth, tiles, lines } = self;
        let mut columns = [Line::ZERO; SUMS * SIDE];
        for (step, to) in lines.chunks_exact_mut(tiles * SIDE).enumerate() {
            for row in 0..n {
                let terms = split(step_of(&x[row * depth.k..][..depth.k], step, 0.0));
                for (term, line) in terms.into_iter().enumerate() {
                    columns[term * n + row] = line;
                }
            }
            for (columns, to) in columns.as_chunks::<SIDE>().0.iter().zip(to.as_chunks_mut::<SIDE>().0) {
                // SAFETY: sixteen lines on both sides; started by `Isa::run`.
                unsafe { S::transpose(columns.as_ptr().cast(), LANES, to.as_mut_ptr().cast(), LANES) };
            }
        }
    }
}

/// Lines of a copy of one strip's weights in a cut.
const STRIP_LINES: usize = CUT * SIDE;

/// Lines of the sums of all strips: [16 outputs of a strip][tiles].
const SUM_LINES: usize = SIDE * SUMS;

const SCRATCH_LINES: usize = MAX_STRIPS * STRIP_LINES + SUM_LINES;

/// y[0..n, outs].
struct Few<'a, T> {
    product: &'a Product<'a>,
    depth: Depth,
    n: usize,
    tiles: usize,
    /// x, from [`Arrange`].
    inputs: &'a [Line],
    outs: Range<usize>,
    /// [`SCRATCH_LINES`]
    scratch: &'a mut [Line],
    unit: PhantomData<T>,
}

impl<T: Tiles> Kernel for Few<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        // SAFETY: the caller has chosen a unit that the CPU has; started by `Isa::run`; `Product::new` has checked the sizes.
        unsafe {
            T::open();
            match self.tiles {
                1 => self.panel::<S, 1, 4>(),
                2 => self.panel::<S, 2, 2>(),
                3 => self.panel::<S, 3, 2>(),
                4 => self.panel::<S, 4, 1>(),
                5 => self.panel::<S, 5, 1>(),
                _ => self.panel::<S, 6, 1>(),
            }
            T::close();
        }
    }
}

/// A strip's weights in a cut, as tiles.
#[derive(Clone, Copy)]
struct Source {
    start: *const u8,
    /// Bytes between rows.
    row: usize,
    /// Bytes between steps.
    step: usize,
}

impl<T: Tiles> Few<'_, T> {
    /// All outputs, STRIPS strips at a time.
    ///
    /// # Safety
    /// As for [`Simd`] and [`Tiles`], which are open; the inputs are C tiles; no other thread writes these outputs.
    #[inline(always)]
    unsafe fn panel<S: Simd, const C: usize, const STRIPS: usize>(&mut self) {
        const { assert!(C * STRIPS <= SUMS && STRIPS <= MAX_STRIPS) };
        for first in self.outs.clone().step_by(STRIPS * SIDE) {
            let there = STRIPS.min((self.outs.end - first).div_ceil(SIDE));
            // missing strips are replaced by the first
            let outs: [usize; STRIPS] = std::array::from_fn(|s| if s < there { first + s * SIDE } else { first });
            for cut in 0..self.depth.cuts {
                let sources = std::array::from_fn(|s| self.source(s, outs[s], cut));
                // SAFETY: the caller's promise.
                unsafe {
                    self.sum_up::<S, C, STRIPS>(sources, cut);
                    for (s, out) in outs.into_iter().enumerate().take(there) {
                        self.write::<S>(s * C, out, cut);
                    }
                }
            }
        }
    }

    /// The weights of a strip: in place, if they are whole tiles; else a copy.
    #[inline(always)]
    fn source(&mut self, strip: usize, out: usize, cut: usize) -> Source {
        let (k, steps) = (self.depth.k, self.depth.cut(cut));
        if out + SIDE <= self.product.w.rows && k.is_multiple_of(DEPTH) {
            let w = &weights(self.product)[out * k..(out + SIDE) * k];
            let start = w.as_ptr().wrapping_add(steps.start * DEPTH).cast();
            return Source { start, row: k * size_of::<bf16>(), step: ROW };
        }
        let copy = &mut self.scratch[strip * STRIP_LINES..][..steps.len() * SIDE];
        for (copy, step) in copy.as_chunks_mut::<SIDE>().0.iter_mut().zip(steps) {
            *copy = weights_of(self.product, out, step).map(bytemuck::cast);
        }
        Source { start: copy.as_ptr().cast(), row: ROW, step: TILE }
    }

    /// Computes the sums of the strips in one cut, into the scratch.
    ///
    /// # Safety
    /// As for [`panel`](Self::panel), and the sources have the cut's steps.
    #[inline(always)]
    unsafe fn sum_up<S: Simd, const C: usize, const STRIPS: usize>(&mut self, sources: [Source; STRIPS], cut: usize) {
        // SAFETY: the caller's promise; there are C tiles of inputs for every step; the scratch has room for the sums.
        unsafe {
            for sums in 0..C * STRIPS {
                T::zero(sums);
            }
            for (i, step) in self.depth.cut(cut).enumerate() {
                let inputs = self.inputs[step * C * SIDE..][..C * SIDE].as_ptr();
                for (s, source) in sources.iter().enumerate() {
                    self.prefetch::<S, STRIPS>(source, i, step);
                    T::load(LEFT, source.start.wrapping_add(i * source.step), source.row);
                    for c in 0..C {
                        if C > 1 || s == 0 {
                            let tile = inputs.wrapping_add(c * SIDE).cast();
                            // with more than three tiles, the inputs of all steps exceed the L1 cache
                            if C > 3 { T::load_passing(RIGHT, tile, ROW) } else { T::load(RIGHT, tile, ROW) }
                        }
                        T::dot(s * C + c, LEFT, RIGHT);
                    }
                }
            }
            let sums = self.scratch[MAX_STRIPS * STRIP_LINES..].as_mut_ptr();
            for tile in 0..C * STRIPS {
                T::store(tile, sums.add(tile).cast(), SUMS * ROW);
            }
        }
    }

    /// Prefetches a strip's weights of the next set of strips, in sequence: at step `step` overall, the `i`-th of the cut, as many
    /// bytes as a step takes.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd, const STRIPS: usize>(&self, source: &Source, i: usize, step: usize) {
        if source.step != ROW || source.row > LONG_ROW {
            return;
        }
        let strip = source.start.wrapping_sub((step - i) * ROW);
        let next = strip.wrapping_add(STRIPS * SIDE * source.row + step * TILE);
        for line in 0..SIDE {
            // SAFETY: the caller's promise.
            unsafe { S::prefetch_later(next.wrapping_add(line * ROW)) };
        }
    }

    /// Sums the terms of a strip, whose first tile is `tile`, and adds the result to y[0..n, out..].
    ///
    /// # Safety
    /// As for [`panel`](Self::panel).
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, tile: usize, out: usize, cut: usize) {
        let sums = self.scratch[MAX_STRIPS * STRIP_LINES..][..SUM_LINES].as_ptr().cast::<f32>();
        let last = cut + 1 == self.depth.cuts;
        let (mut added, mut turned) = ([Line::ZERO; SIDE], [Line::ZERO; SIDE]);
        for rows in (0..self.n).step_by(SIDE) {
            // SAFETY: an output has 96 columns. A strip's are the terms of n rows one after another in C tiles from `tile` on, so the last
            // column that is read, 16·tile + 2·n + rows + 15, is at most 95: 48 + 10 + 0 + 15 with C = 1 (n ≤ 5), 32 + 20 + 15 with
            // 2 (n ≤ 10), 48 + 32 + 15 with 3 (n ≤ 16), and 0 + 64 + 16 + 15 with more (n ≤ 32). The caller's promise.
            unsafe {
                for (i, to) in added.iter_mut().enumerate() {
                    let first = sums.add((i * SUMS + tile) * LANES + rows);
                    let rest = S::add(S::load(first.add(self.n)), S::load(first.add(2 * self.n)));
                    S::store(to.0.as_mut_ptr(), S::add(S::load(first), rest));
                }
                S::transpose(added.as_ptr().cast(), LANES, turned.as_mut_ptr().cast(), LANES);
                for (row, sums) in turned.iter().enumerate().take(self.n - rows) {
                    self.product.put::<S>(S::load(sums.0.as_ptr()), rows + row, out, cut > 0, last);
                }
            }
        }
    }
}
