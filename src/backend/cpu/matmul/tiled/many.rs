//! More rows than [`few`](super::few) takes: weights are laid out once per block of rows.
//!
//! Rows of a tile are one term of sixteen rows of x, a group. One term of two groups is multiplied by two strips of sixteen outputs
//! at a time, so that each loaded tile takes part in two products. The results of two groups are written while the next ones are
//! multiplied: writing needs no tiles.

use super::super::super::simd::tiles::{DEPTH, ROW, SIDE, Tiles};
use super::super::super::simd::{Isa, Kernel, LANES, Simd};
use super::super::super::threads::{Disjoint, ThreadPool};
use super::super::{INPUTS, Line, Product, SCRATCH, TASKS, for_panels, with_lines};
use super::{CUT, Depth, TERMS, split, step_of, weights, weights_of};
use std::{marker::PhantomData, ops::Range};

/// Groups of sixteen rows, and strips of sixteen outputs, that are multiplied together.
const GROUPS: usize = 2;
const STRIPS: usize = 2;

/// Outputs of these strips.
const WIDTH: usize = STRIPS * SIDE;

/// Max rows of a task.
const MAX_BLOCK: usize = 256;

pub fn multiply<T: Tiles>(pool: &ThreadPool, isa: Isa, products: &[Product], x: &[f32], n: usize, depth: Depth) {
    let groups = n.div_ceil(SIDE);
    with_lines(&INPUTS, at(depth, groups, 0, 0), |lines| {
        let to = Disjoint::new(&mut *lines);
        pool.run(groups, &|group| isa.run(Arrange { x, n, depth, group, to: &to }));
        let inputs = &*lines;
        let outs: usize = products.iter().map(|product| product.w.rows).sum();
        let blocks = n.div_ceil(MAX_BLOCK);
        let block = groups.div_ceil(blocks).next_multiple_of(GROUPS) * SIDE;
        let panel = outs.div_ceil((TASKS * pool.threads()).div_ceil(blocks)).next_multiple_of(WIDTH);
        for_panels(pool, products, panel, n, block, &|product, rows, outs| {
            with_lines(&SCRATCH, SCRATCH_LINES, |scratch| {
                isa.run(Many::<T> { product, depth, inputs, rows, outs, scratch, unit: PhantomData });
            });
        });
    });
}

/// The line where a step of one term of a group begins: inputs are [groups][terms][steps][16 rows].
fn at(depth: Depth, group: usize, term: usize, step: usize) -> usize {
    ((group * TERMS + term) * depth.steps + step) * SIDE
}

/// Lays out a group of x [n, k] in its part of `to`; missing rows are zeros.
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
        let to = unsafe { to.slice(at(depth, group, 0, 0)..at(depth, group + 1, 0, 0)) };
        for step in 0..depth.steps {
            for row in 0..SIDE {
                let terms = match group * SIDE + row {
                    row if row < n => split(step_of(&x[row * depth.k..][..depth.k], step, 0.0)),
                    _ => [Line::ZERO; TERMS],
                };
                for (term, line) in terms.into_iter().enumerate() {
                    to[at(depth, 0, term, step) + row] = line;
                }
            }
        }
    }
}

/// Lines of the weights of [`WIDTH`] outputs in a cut.
const WEIGHT_LINES: usize = CUT * WIDTH;

/// Lines of the sums of the groups: [terms][groups][strips][16 rows].
const SUM_LINES: usize = TERMS * SUMS * SIDE;

/// Tiles of sums of a term; the tiles of two groups and two strips follow.
const SUMS: usize = GROUPS * STRIPS;

const SCRATCH_LINES: usize = WEIGHT_LINES + SUM_LINES;

/// y[rows, outs].
struct Many<'a, T> {
    product: &'a Product<'a>,
    depth: Depth,
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

/// Sums of [`GROUPS`] groups by [`STRIPS`] strips in the scratch.
#[derive(Clone, Copy)]
struct Made {
    group: usize,
    out: usize,
    cut: usize,
}

impl<T: Tiles> Many<'_, T> {
    /// All outputs and rows.
    ///
    /// # Safety
    /// As for [`Simd`] and [`Tiles`], which are open; no other thread writes these outputs.
    #[inline(always)]
    unsafe fn all<S: Simd>(&mut self) {
        let groups = self.rows.start / SIDE..self.rows.end.div_ceil(SIDE);
        let mut before: Option<Made> = None;
        for cut in 0..self.depth.cuts {
            for out in self.outs.clone().step_by(WIDTH) {
                for group in groups.clone().step_by(GROUPS) {
                    let made = Made { group, out, cut };
                    // SAFETY: the caller's promise.
                    unsafe { self.sum_up::<S>(made, before, &groups) };
                    before = Some(made);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.write::<S>(before, 0..GROUPS * SIDE) };
    }

    /// Computes the sums of groups into the scratch, term by term. The first groups lay out the weights. During the first term,
    /// writes the previous sums; during the last, prefetches the lines of y for the new ones, and a part of the next weights.
    ///
    /// # Safety
    /// As for [`all`](Self::all).
    #[inline(always)]
    unsafe fn sum_up<S: Simd>(&mut self, made: Made, before: Option<Made>, groups: &Range<usize>) {
        let steps = self.depth.cut(made.cut);
        let (part, parts) = ((made.group - groups.start) / GROUPS, groups.len().div_ceil(GROUPS));
        let next = made.out + WIDTH + part * WIDTH / parts..made.out + WIDTH + (part + 1) * WIDTH / parts;
        // rows written per step
        let each = (GROUPS * SIDE).div_ceil(steps.len().max(1));
        if steps.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.write::<S>(before, 0..GROUPS * SIDE) };
        }
        for term in 0..TERMS {
            // SAFETY: the caller's promise; there is a tile of inputs for every step of every group and term; the scratch has room for
            // the weights of a cut, and for sums.
            unsafe {
                (0..SUMS).for_each(|sums| T::zero(sums));
                for (i, step) in steps.clone().enumerate() {
                    let rows = i * each..(GROUPS * SIDE).min((i + 1) * each);
                    if term == 0 {
                        if made.group == groups.start {
                            self.arrange::<S>(made.out, step, i);
                        }
                        self.write::<S>(before, rows);
                    } else if term == TERMS - 1 {
                        self.ask_for_y::<S>(made, rows);
                        self.ask_for_weights::<S>(next.clone(), step);
                    }
                    let inputs = |group| self.inputs[at(self.depth, group, term, step)..][..SIDE].as_ptr().cast();
                    let weights = self.scratch[i * WIDTH..][..WIDTH].as_ptr();
                    T::load_passing(4, inputs(made.group), ROW);
                    T::load(6, weights.cast(), ROW);
                    T::dot(0, 4, 6);
                    T::load(7, weights.add(SIDE).cast(), ROW);
                    T::dot(1, 4, 7);
                    if made.group + 1 < groups.end {
                        T::load_passing(5, inputs(made.group + 1), ROW);
                        T::dot(2, 5, 6);
                        T::dot(3, 5, 7);
                    }
                }
                let to = self.scratch[WEIGHT_LINES + term * SUMS * SIDE..][..SUMS * SIDE].as_mut_ptr();
                (0..SUMS).for_each(|sums| T::store(sums, to.add(sums * SIDE).cast(), ROW));
            }
        }
    }

    /// Lays out the strips' weights of a step: one line per pair along k, of sixteen outputs.
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

    /// Prefetches a step's weights of outputs, which need not exist.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn ask_for_weights<S: Simd>(&self, outs: Range<usize>, step: usize) {
        let start = weights(self.product).as_ptr().wrapping_add(step * DEPTH);
        for out in outs {
            // SAFETY: the caller's promise.
            unsafe { S::prefetch_later(start.wrapping_add(out * self.depth.k).cast()) };
        }
    }

    /// Prefetches the lines that rows of the groups are written to, which need not exist.
    ///
    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn ask_for_y<S: Simd>(&self, made: Made, rows: Range<usize>) {
        let y = self.product.y.at(0..0).cast_const();
        for row in rows {
            let at = (made.group * SIDE + row) * self.product.w.rows + made.out;
            for line in 0..STRIPS {
                // SAFETY: the caller's promise.
                unsafe { S::prefetch(y.wrapping_add(at + line * LANES).cast()) };
            }
        }
    }

    /// Sums the terms of rows of the groups, and adds the result to y.
    ///
    /// # Safety
    /// As for [`all`](Self::all).
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, made: Option<Made>, rows: Range<usize>) {
        let Some(Made { group, out, cut }) = made else { return };
        let (first, last) = (group * SIDE, cut + 1 == self.depth.cuts);
        for row in rows.start..rows.end.min(self.rows.end - first) {
            for strip in 0..STRIPS {
                let line = |term: usize| {
                    let sums = (term * GROUPS + row / SIDE) * STRIPS + strip;
                    self.scratch[WEIGHT_LINES + sums * SIDE + row % SIDE].0.as_ptr()
                };
                // SAFETY: lines have sixteen elements; the caller's promise.
                unsafe {
                    let all = S::add(S::load(line(0)), S::add(S::load(line(1)), S::load(line(2))));
                    self.product.put::<S>(all, first + row, out + strip * SIDE, cut > 0, last);
                }
            }
        }
    }
}
