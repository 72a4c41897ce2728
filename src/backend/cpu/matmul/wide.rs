//! Products with many rows of activations. The activations are laid out once in the order in which the register tiles
//! read them. A strip of a few outputs is widened to f32 into the first-level cache and meets all rows of a block that
//! stays in the second-level cache. Long rows are cut along k; the accumulators wait in memory between the cuts, lane by
//! lane, so that a cut changes no bit.

use super::super::simd::{Kernel, LANES, Simd};
use super::super::threads::Disjoint;
use super::{Product, Weight, with_weights};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Outputs of one task, a multiple of every strip.
pub const PANEL: usize = 24;

/// Longest cut of k: a strip of it and the rows of a tile fit into 48 KiB.
const CUT: usize = 1024;

/// Most outputs of a strip.
const MAX_STRIP: usize = 6;

/// How many steps ahead activations are asked for.
const AHEAD: usize = 8;

/// Most rows of a block when k is cut, as each row needs accumulators.
const MAX_CUT_ROWS: usize = 128;

/// A vector of sixteen inputs, aligned to the cache line: a load that straddles two lines costs two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line(#[allow(dead_code)] [f32; LANES]);

impl Line {
    pub const ZERO: Line = Line([0.0; LANES]);
}

/// Elements of such a block, 1.25 MiB.
const ROWS_BUDGET: usize = 5 << 16;

/// Rows of a block: what `ROWS_BUDGET` allows, and enough for the widening of the weights to vanish beside them.
/// A multiple of [`GROUP`].
pub fn row_block(k: usize) -> usize {
    let rows = (ROWS_BUDGET / k.max(1)).clamp(2 * GROUP, 512) / GROUP * GROUP;
    if k > CUT { rows.min(MAX_CUT_ROWS) } else { rows }
}

/// Rows and outputs of a register tile: 4 × 6 accumulators fill 32 registers, and 2 × 3 fill 8.
const fn tile_shape<S: Simd>() -> (usize, usize) {
    if S::REGISTERS >= 32 { (4, 6) } else { (2, 3) }
}

/// Rows that one task of [`Arrange`] lays out, a multiple of every tile's rows.
pub const GROUP: usize = 16;

/// Lays out `rows` of x [n, k] in tiles of R rows: [n / R, ⌈k/16⌉, R] lines, the last k mod 16 padded with zeros. The
/// last tile may have fewer rows.
pub struct Arrange<'a> {
    pub x: &'a [f32],
    pub k: usize,
    /// At most [`GROUP`], from a multiple of it.
    pub rows: Range<usize>,
    /// [n, ⌈k/16⌉] lines
    pub lines: &'a Disjoint<'a, Line>,
}

impl Kernel for Arrange<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Arrange { x, k, rows, lines } = self;
        let steps = k.div_ceil(LANES);
        let (height, _) = tile_shape::<S>();
        for row in rows.clone() {
            let first = row - row % height;
            let height = height.min(rows.end - first);
            // SAFETY: this task alone writes the lines of its rows, which tiles do not mix with those of other groups.
            unsafe {
                let tile = lines.slice(first * steps..(first + height) * steps);
                arrange_row::<S>(&x[row * k..][..k], tile, row - first, height);
            }
        }
    }
}

/// Writes x as the vectors of the `row`-th of `height` rows of a tile, the last one padded with zeros.
///
/// # Safety
/// `S` as for [`Simd`].
#[inline(always)]
pub unsafe fn arrange_row<S: Simd>(x: &[f32], tile: &mut [Line], row: usize, height: usize) {
    let (full, rest) = x.as_chunks::<LANES>();
    assert!(row < height && tile.len() == x.len().div_ceil(LANES) * height);
    let mut to = tile.as_mut_ptr().wrapping_add(row).cast::<f32>();
    // SAFETY: chunks have 16 elements; the tile has `height` lines a step.
    unsafe {
        for x in full {
            S::store(to, S::load(x.as_ptr()));
            to = to.wrapping_add(height * LANES);
        }
        if !rest.is_empty() {
            S::store(to, S::load_part(rest.as_ptr(), rest.len()));
        }
    }
}

/// y[rows, outs].
pub struct Wide<'a> {
    pub product: &'a Product<'a>,
    /// All of x, from [`Arrange`] with the same instruction set.
    pub lines: &'a [Line],
    /// At most [`row_block`], from a multiple of it.
    pub rows: Range<usize>,
    pub outs: Range<usize>,
}

/// What a task needs beside the registers.
struct Scratch {
    /// A strip of one cut, widened: [⌈cut/16⌉, strip].
    weights: [MaybeUninit<Line>; CUT / LANES * MAX_STRIP],
    /// The accumulators of a strip between two cuts: [block rows, strip].
    accumulators: [MaybeUninit<Line>; MAX_CUT_ROWS * MAX_STRIP],
}

/// One cut of a strip.
struct Cut {
    /// The inputs.
    k: Range<usize>,
    /// The outputs, as many as a strip has or fewer.
    outs: Range<usize>,
}

impl Kernel for Wide<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let mut scratch = Scratch {
            weights: [const { MaybeUninit::uninit() }; _],
            accumulators: [const { MaybeUninit::uninit() }; _],
        };
        let (_, strip) = tile_shape::<S>();
        let cuts = self.outs.len().div_ceil(strip) * self.product.w.k.div_ceil(CUT).max(1);
        for i in 0..cuts {
            let cut = self.cut(i, strip);
            // SAFETY: `Product::new` has checked the sizes; started by `Isa::run`.
            unsafe {
                with_weights!(self.product.w.numbers, w => self.widen::<S, _>(w, &cut, &mut scratch));
                if S::REGISTERS >= 32 {
                    self.block::<S, 4, 6>(&cut, &mut scratch);
                } else {
                    self.block::<S, 2, 3>(&cut, &mut scratch);
                }
            }
        }
    }
}

impl Wide<'_> {
    /// The i-th cut: those of the first strip, then of the second, and so on.
    #[inline(always)]
    fn cut(&self, i: usize, strip: usize) -> Cut {
        let (k, end) = (self.product.w.k, self.outs.end);
        let cuts = k.div_ceil(CUT).max(1);
        let length = k.div_ceil(cuts).next_multiple_of(LANES);
        let (out, from) = (self.outs.start + i / cuts * strip, i % cuts * length);
        Cut { k: k.min(from)..k.min(from + length), outs: end.min(out)..end.min(out + strip) }
    }

    /// Fills `scratch.weights`; outputs that the strip lacks are zeros.
    ///
    /// # Safety
    /// `S` as for [`Simd`], w is [rows, k] and the cut lies within it.
    #[inline(always)]
    unsafe fn widen<S: Simd, W: Weight>(&self, w: &[W], cut: &Cut, scratch: &mut Scratch) {
        let (_, strip) = tile_shape::<S>();
        let full = cut.k.len() / LANES;
        for c in 0..strip {
            // SAFETY: row `cut.outs.start + c` has k weights, of which the cut is a part; `weights` holds CUT/16 steps
            // of `strip` lines.
            unsafe {
                let mut to = scratch.weights.as_mut_ptr().add(c).cast::<f32>();
                if c >= cut.outs.len() {
                    for _ in 0..cut.k.len().div_ceil(LANES) {
                        S::store(to, S::splat(0.0));
                        to = to.wrapping_add(strip * LANES);
                    }
                    continue;
                }
                let w = W::at(w.as_ptr(), (cut.outs.start + c) * self.product.w.k + cut.k.start);
                for step in 0..full {
                    S::store(to, W::load::<S>(W::at(w, step * LANES)));
                    to = to.wrapping_add(strip * LANES);
                }
                if full * LANES < cut.k.len() {
                    S::store(to, W::load_part::<S>(W::at(w, full * LANES), cut.k.len() - full * LANES));
                }
            }
        }
    }

    /// All rows of the block against the widened strip, R at a time.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const C: usize>(&self, cut: &Cut, scratch: &mut Scratch) {
        let mut row = self.rows.start;
        // SAFETY: the caller's promise.
        unsafe {
            while row + R <= self.rows.end {
                self.tile::<S, R, C>(row, cut, scratch);
                row += R;
            }
            match self.rows.end - row {
                0 => {}
                1 => self.tile::<S, 1, C>(row, cut, scratch),
                2 if R > 2 => self.tile::<S, 2, C>(row, cut, scratch),
                3 if R > 2 => self.tile::<S, 3, C>(row, cut, scratch),
                _ => unreachable!("tiles have at most four rows"),
            }
        }
    }

    /// R rows from `row` against the strip: takes the accumulators from scratch unless the cut is the first, and puts
    /// them back or, after the last cut, writes y.
    ///
    /// # Safety
    /// `S` as for [`Simd`]; the lines hold a tile of R rows from `row`; `widen` has filled the weights of this cut, and
    /// earlier calls have done the earlier cuts; no other thread writes these outputs.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(&self, row: usize, cut: &Cut, scratch: &mut Scratch) {
        let k = self.product.w.k;
        let first = row * k.div_ceil(LANES) + cut.k.start / LANES * R;
        let steps = cut.k.len().div_ceil(LANES);
        // SAFETY: the weights and the lines hold every step of the cut; the accumulators have room for `MAX_CUT_ROWS`
        // rows of the block, and `row_block` allows no more when there is a second cut.
        unsafe {
            let x = self.lines[first..first + steps * R].as_ptr();
            let w = scratch.weights.as_ptr();
            let between = scratch.accumulators.as_mut_ptr().wrapping_add((row - self.rows.start) * C).cast::<f32>();
            let mut acc = [[S::splat(0.0); R]; C];
            if cut.k.start > 0 {
                for i in 0..R * C {
                    acc[i / R][i % R] = S::load(between.add(i * LANES));
                }
            }
            for i in 0..steps {
                let ahead = x.wrapping_add((i + AHEAD) * R);
                for r in 0..R {
                    S::prefetch(ahead.wrapping_add(r).cast());
                }
                step::<S, R, C>(&mut acc, x.add(i * R).cast(), w.add(i * C).cast());
            }
            if cut.k.end < k {
                for i in 0..R * C {
                    S::store(between.add(i * LANES), acc[i / R][i % R]);
                }
            } else {
                self.product.write::<S, R, C>(&acc, row, (cut.outs.start, 1), cut.outs.len());
            }
        }
    }
}

/// One step of a register tile: sixteen inputs of R rows at x meet those of C outputs at w, acc[c][r] += w[c]·x[r].
///
/// # Safety
/// As for [`Simd`]; R vectors at x and C at w.
#[inline(always)]
unsafe fn step<S: Simd, const R: usize, const C: usize>(acc: &mut [[S::V; R]; C], x: *const f32, w: *const f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [S::splat(0.0); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = S::load(x.add(r * LANES));
        }
        for (c, acc) in acc.iter_mut().enumerate() {
            let w = S::load(w.add(c * LANES));
            for (acc, x) in acc.iter_mut().zip(rows) {
                *acc = S::fma(w, x, *acc);
            }
        }
    }
}
