//! Products with many rows of activations. The activations are laid out once in the order in which the register tiles
//! read them. A strip of a few outputs is widened to f32 into the first-level cache and meets all rows of a block that
//! stays in the second-level cache. Long rows are cut along k; the accumulators wait in memory between the cuts, lane by
//! lane, so that a cut changes no bit.

use super::super::caches::Caches;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::threads::Disjoint;
use super::{Product, Weight, with_weights};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Outputs of one task, a multiple of every strip.
pub const PANEL: usize = 24;

/// Max inputs of a cut of k, see [`max_cut`].
const MAX_CUT: usize = 1024;

/// Steps of a tile between two looks at its end: counting takes slots that multiplications would have.
const UNROLLED: usize = 4;

/// Outputs of a strip, and max rows of a register tile.
const STRIP: usize = 6;
const MAX_TILE_ROWS: usize = 4;

/// Most rows of a block when k is cut, as each row needs accumulators.
const MAX_CUT_ROWS: usize = 128;

/// A vector of sixteen inputs, aligned to the cache line: a load that straddles two lines costs two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Line(#[allow(dead_code)] [f32; LANES]);

impl Line {
    pub const ZERO: Line = Line([0.0; LANES]);
}

/// Inputs of a cut of k: a strip of them and the rows of a tile leave an eighth of the first-level cache.
fn max_cut() -> usize {
    let lines = Caches::detect().first / 8 * 7 / (STRIP + MAX_TILE_ROWS) / size_of::<Line>();
    (lines * LANES).clamp(LANES, MAX_CUT)
}

/// Rows of a block: as many as fill half of the second-level cache, and enough for the widening of the weights to vanish
/// beside them. A multiple of [`GROUP`].
pub fn row_block(k: usize) -> usize {
    let elements = Caches::detect().second / 2 / size_of::<f32>();
    let rows = (elements / k.max(1)).clamp(2 * GROUP, 512) / GROUP * GROUP;
    if k > max_cut() { rows.min(MAX_CUT_ROWS) } else { rows }
}

/// Rows of a register tile: 4 × 6 accumulators, of all outputs of a strip, fill 32 registers; 2 × 3, of half of them, fill 8.
const fn tile_rows<S: Simd>() -> usize {
    if S::REGISTERS >= 32 { MAX_TILE_ROWS } else { 2 }
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
        let height = tile_rows::<S>();
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
    weights: [MaybeUninit<Line>; MAX_CUT / LANES * STRIP],
    /// The accumulators of a strip between two cuts: [block rows, strip].
    accumulators: [MaybeUninit<Line>; MAX_CUT_ROWS * STRIP],
}

/// One cut of a strip.
struct Cut {
    /// The inputs.
    k: Range<usize>,
    /// The outputs, at most [`STRIP`].
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
        let cuts = self.product.w.k.div_ceil(max_cut()).max(1);
        for i in 0..self.outs.len().div_ceil(STRIP) * cuts {
            let cut = self.cut(i, cuts);
            // SAFETY: `Product::new` has checked the sizes; started by `Isa::run`.
            unsafe {
                with_weights!(self.product.w.numbers, w => self.widen::<S, _>(w, &cut, &mut scratch));
                if S::REGISTERS >= 32 {
                    self.block::<S, MAX_TILE_ROWS, STRIP>(&cut, &mut scratch);
                } else {
                    self.block::<S, 2, { STRIP / 2 }>(&cut, &mut scratch);
                }
            }
        }
    }
}

impl Wide<'_> {
    /// The i-th cut: the `cuts` of the first strip, then of the second, and so on.
    #[inline(always)]
    fn cut(&self, i: usize, cuts: usize) -> Cut {
        let (k, end) = (self.product.w.k, self.outs.end);
        let length = k.div_ceil(cuts).next_multiple_of(LANES);
        let (out, from) = (self.outs.start + i / cuts * STRIP, i % cuts * length);
        Cut { k: k.min(from)..k.min(from + length), outs: end.min(out)..end.min(out + STRIP) }
    }

    /// Fills `scratch.weights`; outputs that the strip lacks are zeros.
    ///
    /// # Safety
    /// `S` as for [`Simd`], w is [rows, k] and the cut lies within it.
    #[inline(always)]
    unsafe fn widen<S: Simd, W: Weight>(&self, w: &[W], cut: &Cut, scratch: &mut Scratch) {
        let full = cut.k.len() / LANES;
        for c in 0..STRIP {
            // SAFETY: row `cut.outs.start + c` has k weights, of which the cut is a part; `weights` holds MAX_CUT/16 steps
            // of STRIP lines.
            unsafe {
                let mut to = scratch.weights.as_mut_ptr().add(c).cast::<f32>();
                if c >= cut.outs.len() {
                    for _ in 0..cut.k.len().div_ceil(LANES) {
                        S::store(to, S::splat(0.0));
                        to = to.wrapping_add(STRIP * LANES);
                    }
                    continue;
                }
                let w = W::at(w.as_ptr(), (cut.outs.start + c) * self.product.w.k + cut.k.start);
                for step in 0..full {
                    S::store(to, W::load::<S>(W::at(w, step * LANES)));
                    to = to.wrapping_add(STRIP * LANES);
                }
                if full * LANES < cut.k.len() {
                    S::store(to, W::load_part::<S>(W::at(w, full * LANES), cut.k.len() - full * LANES));
                }
            }
        }
    }

    /// All rows of the block against the widened strip: R rows at a time, which stay in the first-level cache for its parts
    /// of C outputs.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const C: usize>(&self, cut: &Cut, scratch: &mut Scratch) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let rows = R.min(self.rows.end - row);
            let mut part = 0;
            while part < cut.outs.len() {
                // SAFETY: the caller's promise.
                unsafe {
                    match rows {
                        1 => self.tile::<S, 1, C>(row, part, cut, scratch),
                        2 if R > 2 => self.tile::<S, 2, C>(row, part, cut, scratch),
                        3 if R > 3 => self.tile::<S, 3, C>(row, part, cut, scratch),
                        _ => self.tile::<S, R, C>(row, part, cut, scratch),
                    }
                }
                part += C;
            }
            row += rows;
        }
    }

    /// R rows from `row` against outputs `part` .. `part + C` of the strip: takes the accumulators from scratch unless the
    /// cut is the first, and puts them back or, after the last cut, writes y.
    ///
    /// # Safety
    /// `S` as for [`Simd`]; the lines hold a tile of R rows from `row`; `widen` has filled the weights of this cut, and
    /// earlier calls have done the earlier cuts; no other thread writes these outputs.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const C: usize>(
        &self,
        row: usize,
        part: usize,
        cut: &Cut,
        scratch: &mut Scratch,
    ) {
        let k = self.product.w.k;
        let first = row * k.div_ceil(LANES) + cut.k.start / LANES * R;
        let steps = cut.k.len().div_ceil(LANES);
        // SAFETY: the weights and the lines hold every step of the cut; the accumulators have room for `MAX_CUT_ROWS`
        // rows of the block, and `row_block` allows no more when there is a second cut.
        unsafe {
            let x = self.lines[first..first + steps * R].as_ptr();
            let w = scratch.weights.as_ptr().add(part);
            let at = (row - self.rows.start) * STRIP + part * R;
            let between = scratch.accumulators.as_mut_ptr().wrapping_add(at).cast::<f32>();
            let mut acc = [[S::splat(0.0); R]; C];
            if cut.k.start > 0 {
                for i in 0..R * C {
                    acc[i / R][i % R] = S::load(between.add(i * LANES));
                }
            }
            let mut i = 0;
            while i + UNROLLED <= steps {
                for j in i..i + UNROLLED {
                    step::<S, R, C>(&mut acc, x.add(j * R).cast(), w.add(j * STRIP).cast());
                }
                i += UNROLLED;
            }
            for j in i..steps {
                step::<S, R, C>(&mut acc, x.add(j * R).cast(), w.add(j * STRIP).cast());
            }
            if cut.k.end < k {
                for i in 0..R * C {
                    S::store(between.add(i * LANES), acc[i / R][i % R]);
                }
            } else {
                let outs = C.min(cut.outs.len() - part);
                self.product.write::<S, R, C>(&acc, row, (cut.outs.start + part, 1), outs);
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
