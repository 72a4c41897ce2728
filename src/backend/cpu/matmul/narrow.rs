//! Products with a few rows of activations: a stream of weights from memory, widened in registers and used at once.

use super::super::simd::{Kernel, LANES, Simd};
use super::{Product, Weight, step, with_weights};
use std::ops::Range;

/// Most rows of activations for which streaming is the faster way.
pub struct MostRows;

impl Kernel for MostRows {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        2 * most_at_once::<S>()
    }
}

/// Most rows of a register tile: with fewer outputs than three beside them, every weight is widened too often.
const fn most_at_once<S: Simd>() -> usize {
    if S::REGISTERS >= 32 { 8 } else { 4 }
}

/// Outputs of one task for rows of `k` weights: about 64 KiB or more, so that handing it out costs nothing against it.
/// A multiple of every tile's outputs.
pub fn panel(k: usize) -> usize {
    24 * (32768 / (24 * k.max(1))).clamp(1, 16)
}

/// y[0..n, outs], n ≤ [`MostRows`].
pub struct Narrow<'a> {
    pub product: &'a Product<'a>,
    pub n: usize,
    pub outs: Range<usize>,
}

impl Kernel for Narrow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self) {
        let groups = self.n.div_ceil(most_at_once::<S>());
        for group in 0..groups {
            let rows = group * self.n / groups..(group + 1) * self.n / groups;
            // SAFETY: `Product::new` has checked the sizes; started by `Level::run`.
            unsafe { with_weights!(self.product.w.numbers, w => self.group::<S, _>(w, rows)) }
        }
    }
}

impl Narrow<'_> {
    /// The tile for this number of rows: as many outputs at a time as the registers hold accumulators for.
    ///
    /// # Safety
    /// As for [`tiles`](Self::tiles).
    #[inline(always)]
    unsafe fn group<S: Simd, W: Weight>(&self, w: &[W], rows: Range<usize>) {
        let row = rows.start;
        // SAFETY: the caller's promise.
        unsafe {
            if S::REGISTERS >= 32 {
                match rows.len() {
                    1 => self.tiles::<S, W, 1, 8>(w, row),
                    2 => self.tiles::<S, W, 2, 8>(w, row),
                    3 => self.tiles::<S, W, 3, 6>(w, row),
                    4 => self.tiles::<S, W, 4, 6>(w, row),
                    5 => self.tiles::<S, W, 5, 4>(w, row),
                    6 => self.tiles::<S, W, 6, 4>(w, row),
                    7 => self.tiles::<S, W, 7, 3>(w, row),
                    _ => self.tiles::<S, W, 8, 3>(w, row),
                }
            } else {
                match rows.len() {
                    1 => self.tiles::<S, W, 1, 4>(w, row),
                    2 => self.tiles::<S, W, 2, 2>(w, row),
                    3 => self.tiles::<S, W, 3, 1>(w, row),
                    _ => self.tiles::<S, W, 4, 1>(w, row),
                }
            }
        }
    }

    /// All outputs, C at a time while there are so many.
    ///
    /// # Safety
    /// `S` as for [`Simd`], w is [rows, k], x has R rows from `row`, and no other thread writes these outputs.
    #[inline(always)]
    unsafe fn tiles<S: Simd, W: Weight, const R: usize, const C: usize>(&self, w: &[W], row: usize) {
        let mut out = self.outs.start;
        // SAFETY: the caller's promise.
        unsafe {
            while out + C <= self.outs.end {
                let acc = self.tile::<S, W, R, C>(w, row, out);
                self.product.write::<S, R, C>(&acc, row, out, C);
                out += C;
            }
            while out < self.outs.end {
                let acc = self.tile::<S, W, R, 1>(w, row, out);
                self.product.write::<S, R, 1>(&acc, row, out, 1);
                out += 1;
            }
        }
    }

    /// The accumulators of R rows and C outputs from `out`.
    ///
    /// # Safety
    /// As for [`tiles`](Self::tiles), and out + C ≤ rows.
    #[inline(always)]
    unsafe fn tile<S: Simd, W: Weight, const R: usize, const C: usize>(
        &self,
        w: &[W],
        row: usize,
        out: usize,
    ) -> [[S::V; R]; C] {
        let k = self.product.w.k;
        // SAFETY: row row + r of x and row out + c of w have k elements; full vectors end at k, the part has k mod 16.
        unsafe {
            let (x, w) = (self.product.x.as_ptr().add(row * k), W::at(w.as_ptr(), out * k));
            let mut acc = [[S::splat(0.0); R]; C];
            let full = k - k % LANES;
            for i in (0..full).step_by(LANES) {
                let x: [S::V; R] = std::array::from_fn(|r| S::load(x.add(r * k + i)));
                step::<S, R, C>(&mut acc, x, |c| {
                    let p = W::at(w, c * k + i);
                    // the same place of the next tile: rows are too short for the hardware to run ahead in them
                    S::prefetch(W::at(p, C * k).cast());
                    W::load::<S>(p)
                });
            }
            if full < k {
                let x: [S::V; R] = std::array::from_fn(|r| S::load_part(x.add(r * k + full), k - full));
                step::<S, R, C>(&mut acc, x, |c| W::load_part::<S>(W::at(w, c * k + full), k - full));
            }
            acc
        }
    }
}
