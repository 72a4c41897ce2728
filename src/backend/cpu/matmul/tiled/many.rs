//! More than sixteen rows: weights are laid out once for a block of rows.
//!
//! Rows of a tile are one term of sixteen rows of x, a group; the three terms meet two strips of sixteen outputs at a time. What
//! became of a group is written while the next one is multiplied: tiles take no part in that.

use super::super::super::simd::tiles::{DEPTH, ROW, SIDE, SUMS, Tiles};
use super::super::super::simd::{Isa, Kernel, LANES, Simd};
use super::super::super::threads::{Disjoint, ThreadPool};
use super::super::{INPUTS, Line, Product, SCRATCH, TASKS, for_panels, with_lines};
use super::{CUT, Depth, TERMS, split, step_of, weights, weights_of};
use std::marker::PhantomData;
use std::ops::Range;

/// Strips of sixteen outputs that are multiplied together.
const STRIPS: usize = 2;

/// Outputs of them.
const WIDTH: usize = STRIPS * SIDE;

/// Max rows of a task.
const MAX_BLOCK: usize = 256;

pub fn multiply<T: Tiles>(pool: &ThreadPool, isa: Isa, products: &[Product], x: &[f32], n: usize, depth: Depth) {
    let groups = n.div_ceil(SIDE);
    with_lines(&INPUTS, at(depth, groups, 0), |lines| {
        let to = Disjoint::new(&mut *lines);
        pool.run(groups, &|group| isa.run(Arrange { x, n, depth, group, to: &to }));
        let inputs = &*lines;
        let outs: usize = products.iter().map(|product| product.w.rows).sum();
        let blocks = n.div_ceil(MAX_BLOCK);
        let block = groups.div_ceil(blocks) * SIDE;
        let panel = outs.div_ceil((TASKS * pool.threads()).div_ceil(blocks)).next_multiple_of(WIDTH);
        for_panels(pool, products, panel, n, block, &|product, rows, outs| {
            with_lines(&SCRATCH, SCRATCH_LINES, |scratch| {
                isa.run(Many::<T> { product, depth, n, inputs, rows, outs, scratch, unit: PhantomData });
            });
        });
    });
}

/// The line where a step of a group's inputs begins: they are [steps][terms][16 rows].
fn at(depth: Depth, group: usize, step: usize) -> usize {
    (group * depth.steps() + step) * TERMS * SIDE
}

/// Lays out a group of x [n, k] in its part of `to`; rows that are missing are zeros.
struct Arrange<'a> {
    x: &'a [f32],
    n: usize,
    depth: Depth,
    group: usize,
    to: &'a Disjoint<'a, Line>,
}

impl Kernel for Arrange<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Arrange { x, n, depth, group, to } = self;
        // SAFETY: one task per group.
        let to = unsafe { to.slice(at(depth, group, 0)..at(depth, group + 1, 0)) };
        for (step, to) in to.as_chunks_mut::<{ TERMS * SIDE }>().0.iter_mut().enumerate() {
            for row in 0..SIDE {
                let terms = match group * SIDE + row {
                    row if row < n => split(step_of(&x[row * depth.k..][..depth.k], step, 0.0)),
                    _ => [Line::ZERO; TERMS],
                };
                for (term, line) in terms.into_iter().enumerate() {
                    to[term * SIDE + row] = line;
                }
            }
        }
    }
}

/// Lines of the weights of a [`WIDTH`] in a cut.
const WEIGHT_LINES: usize = CUT * WIDTH;

/// Lines of the sums of a group: [strips][terms][16 rows].
const SUM_LINES: usize = SUMS * SIDE;

/// Sums of one group are written while those of the next are made.
const SCRATCH_LINES: usize = WEIGHT_LINES + 2 * SUM_LINES;

/// y[rows, outs].
struct Many<'a, T> {
    product: &'a Product<'a>,
    depth: Depth,
    n: usize,
    /// All of x, from [`Arrange`].
    inputs: &'a [Line],
    /// Whole groups, or to the end.
    rows: Range<usize>,
    outs: Range<usize>,
    /// [`SCRATCH_LINES`]
    scratch: &'a mut [Line],
    unit: PhantomData<T>,
}

impl<T: Tiles> Kernel for Many<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        // SAFETY: the caller has chosen a unit that the CPU has; started by `Isa::run`; `Product::new` has checked the sizes.
        unsafe {
            T::open();
            self.all::<S>();
            T::close();
        }
    }
}

/// Sums of a group that wait for being written.
#[derive(Clone, Copy)]
struct Made {
    group: usize,
    out: usize,
    cut: usize,
    /// Where they are in the scratch.
    at: usize,
}

impl<T: Tiles> Many<'_, T> {
    /// All outputs and rows.
    ///
    /// # Safety
    /// As for [`Simd`] and [`Tiles`], which are open; no other thread writes these outputs.
    #[inline(always)]
    unsafe fn all<S: Simd>(&mut self) {
        const { assert!(STRIPS * TERMS == SUMS) };
        let groups = self.rows.start / SIDE..self.rows.end.div_ceil(SIDE);
        let mut before: Option<Made> = None;
        for cut in 0..self.depth.cuts() {
            for out in self.outs.clone().step_by(WIDTH) {
                for group in groups.clone() {
                    let at = if before.is_some_and(|before| before.at == WEIGHT_LINES) { SUM_LINES } else { 0 };
                    let made = Made { group, out, cut, at: WEIGHT_LINES + at };
                    // SAFETY: the caller's promise.
                    unsafe { self.sum_up::<S>(made, before, &groups) };
                    before = Some(made);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.write::<S>(before, 0..SIDE) };
    }

    /// The sums of a group, to the scratch. The first group lays out the weights. Beside that, writes the sums from before, and
    /// asks for the next weights.
    ///
    /// # Safety
    /// As for [`all`](Self::all).
    #[inline(always)]
    unsafe fn sum_up<S: Simd>(&mut self, made: Made, before: Option<Made>, groups: &Range<usize>) {
        let steps = self.depth.cut(made.cut);
        let (part, parts) = (made.group - groups.start, groups.len());
        let next = made.out + WIDTH + part * WIDTH / parts..made.out + WIDTH + (part + 1) * WIDTH / parts;
        // rows that are written in a step
        let each = SIDE.div_ceil(steps.len().max(1));
        // SAFETY: the caller's promise; there are three tiles of inputs for every step; the scratch has room for the weights of a
        // cut, and for sums.
        unsafe {
            for sums in 0..SUMS {
                T::zero(sums);
            }
            for (i, step) in steps.enumerate() {
                if made.group == groups.start {
                    self.arrange::<S>(made.out, step, i);
                }
                self.ask::<S>(next.clone(), step);
                let rows = i * each..SIDE.min((i + 1) * each);
                for row in rows.clone() {
                    // what this group's sums are going to be written to
                    let y = (made.group * SIDE + row) * self.product.y_stride + made.out;
                    for line in 0..STRIPS {
                        S::prefetch(self.product.y.at(0..0).wrapping_add(y + line * LANES).cast());
                    }
                }
                self.write::<S>(before, rows);
                let inputs = self.inputs[at(self.depth, made.group, step)..][..TERMS * SIDE].as_ptr();
                let weights = self.scratch[i * WIDTH..][..WIDTH].as_ptr();
                for s in 0..STRIPS {
                    T::load_right(weights.add(s * SIDE).cast());
                    for term in 0..TERMS {
                        T::load_left(inputs.add(term * SIDE).cast(), ROW);
                        T::dot(s * TERMS + term);
                    }
                }
            }
            if self.depth.k == 0 {
                self.write::<S>(before, 0..SIDE);
            }
            let to = self.scratch[made.at..][..SUM_LINES].as_mut_ptr();
            for sums in 0..SUMS {
                T::store(sums, to.add(sums * SIDE).cast(), ROW);
            }
        }
    }

    /// Lays out the strips' weights of a step: a line for each pair along k, of sixteen outputs.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn arrange<S: Simd>(&mut self, out: usize, step: usize, at: usize) {
        for s in 0..STRIPS {
            let from = weights_of(self.product, out + s * SIDE, step);
            let to = &mut self.scratch[at * WIDTH + s * SIDE..][..SIDE];
            // SAFETY: sixteen rows of sixteen pairs; the caller's promise.
            unsafe { S::transpose(from.as_ptr().cast(), LANES, to.as_mut_ptr().cast(), LANES) };
        }
    }

    /// Asks for a step's weights of outputs, which need not exist.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn ask<S: Simd>(&self, outs: Range<usize>, step: usize) {
        let start = weights(self.product).as_ptr().wrapping_add(step * DEPTH);
        for out in outs {
            // SAFETY: the caller's promise.
            unsafe { S::prefetch_later(start.wrapping_add(out * self.depth.k).cast()) };
        }
    }

    /// Adds up the terms of rows of a group, and adds that to y.
    ///
    /// # Safety
    /// As for [`all`](Self::all).
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, made: Option<Made>, rows: Range<usize>) {
        let Some(Made { group, out, cut, at }) = made else { return };
        let last = cut + 1 == self.depth.cuts();
        for row in rows.start..rows.end.min(SIDE).min(self.n - group * SIDE) {
            for s in 0..STRIPS {
                let line = |term: usize| self.scratch[at + (s * TERMS + term) * SIDE + row].0.as_ptr();
                // SAFETY: lines have sixteen numbers; the caller's promise.
                unsafe {
                    let all = S::add(S::load(line(0)), S::add(S::load(line(1)), S::load(line(2))));
                    self.product.put::<S>(all, group * SIDE + row, out + s * SIDE, cut > 0, last);
                }
            }
        }
    }
}
