//! Products with a few rows of activations: a stream of weights from memory, widened in registers and used immediately.

use super::super::simd::{Isa, Kernel, LANES, Simd, Stored, bytes_ahead};
use super::{Line, Product, are_bf16, with_weights};
use std::ops::Range;

/// The largest number of rows of activations for which streaming is faster: beyond it, laying out the weights for `wide` takes less
/// time than widening them in every tile. Sixteen vectors of eight lanes are too few to hide the widening of f16 and 8 bits.
pub fn max_rows(isa: Isa, products: &[Product]) -> usize {
    match isa.registers() {
        32.. => 32,
        8.. if are_bf16(products) => 32,
        8.. => 8,
        _ => 2,
    }
}

/// Number of register tiles for n rows. Each tile widens every weight, and needs registers for at least two outputs next to its
/// rows, so that a loaded input serves two products. With 16 vectors of eight lanes, four rows are one tile with one output: two
/// tiles were 8 % slower. One row each if there are no registers for tiles: sixteen lanes without vectors, unrolled for each of
/// them, took a fifth of the crate's time in the optimizer.
const fn tile_count<S: Simd>(n: usize) -> usize {
    match S::REGISTERS {
        32.. => n.div_ceil(8),
        8.. if n == 4 => 1,
        8.. => n.div_ceil(3),
        _ => n,
    }
}

/// Outputs of one task: several tasks per thread, of 256 KiB at most for 16-bit weights. A multiple of every tile's outputs.
pub fn panel(k: usize, outs: usize, threads: usize) -> usize {
    outs.div_ceil(8 * threads).min((1 << 17) / k.max(1)).max(1).next_multiple_of(24)
}

/// The rows of each tile.
fn tiles<S: Simd>(n: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = tile_count::<S>(n);
    (0..tiles).map(move |i| i * n / tiles..(i + 1) * n / tiles)
}

/// Lays out x [n, k] in tiles: [tiles][⌈k/16⌉, rows of the tile] lines, the last k mod 16 padded with zeros.
pub struct Arrange<'a> {
    pub x: &'a [f32],
    pub n: usize,
    pub k: usize,
    /// [n, ⌈k/16⌉] lines
    pub lines: &'a mut [Line],
}

impl Kernel for Arrange<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let steps = self.k.div_ceil(LANES);
        for rows in tiles::<S>(self.n) {
            let tile = &mut self.lines[rows.start * steps..rows.end * steps];
            for row in rows.clone() {
                let x = &self.x[row * self.k..(row + 1) * self.k];
                // SAFETY: started by `Isa::run`.
                unsafe { arrange_row::<S>(x, tile, row - rows.start, rows.len()) };
            }
        }
    }
}

/// Writes x as the vectors of the `row`-th of `height` rows of a tile, the last one padded with zeros.
///
/// # Safety
/// `S` as for [`Simd`].
#[inline(always)]
unsafe fn arrange_row<S: Simd>(x: &[f32], tile: &mut [Line], row: usize, height: usize) {
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
            S::store(to, f32::load_part::<S>(rest.as_ptr(), rest.len()));
        }
    }
}

/// y[0..n, outs], n ≤ [`max_rows`].
pub struct Narrow<'a> {
    pub product: &'a Product<'a>,
    /// x, from [`Arrange`] with the same instruction set.
    pub lines: &'a [Line],
    pub n: usize,
    pub outs: Range<usize>,
}

impl Kernel for Narrow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for rows in tiles::<S>(self.n) {
            // SAFETY: `Product::new` has checked the sizes; started by `Isa::run`.
            unsafe { with_weights!(self.product.w.numbers, w => self.group::<S, _>(w, rows)) }
        }
    }
}

impl Narrow<'_> {
    /// The tile for this number of rows: outputs at a time are chosen by the registers available for accumulators.
    ///
    /// # Safety
    /// As for [`tiles`](Self::tiles).
    #[inline(always)]
    unsafe fn group<S: Simd, W: Stored>(&self, w: &[W], rows: Range<usize>) {
        let row = rows.start;
        // SAFETY: the caller's promise.
        unsafe {
            if S::REGISTERS >= 32 {
                match rows.len() {
                    1 => self.tiles::<S, W, 1, 4>(w, row),
                    2 => self.tiles::<S, W, 2, 4>(w, row),
                    3 => self.tiles::<S, W, 3, 4>(w, row),
                    4 => self.tiles::<S, W, 4, 6>(w, row),
                    5 => self.tiles::<S, W, 5, 4>(w, row),
                    6 => self.tiles::<S, W, 6, 4>(w, row),
                    7 => self.tiles::<S, W, 7, 3>(w, row),
                    _ => self.tiles::<S, W, 8, 3>(w, row),
                }
            } else if S::REGISTERS < 8 {
                self.tiles::<S, W, 1, 1>(w, row);
            } else {
                match rows.len() {
                    1 => self.tiles::<S, W, 1, 4>(w, row),
                    2 => self.tiles::<S, W, 2, 3>(w, row),
                    3 => self.tiles::<S, W, 3, 2>(w, row),
                    _ => self.tiles::<S, W, 4, 1>(w, row),
                }
            }
        }
    }

    /// All outputs, C at a time. Those of a tile are far apart, so that their weights come from memory in C long sequential
    /// streams: faster than one stream per core, and than many short ones.
    ///
    /// # Safety
    /// `S` as for [`Simd`], w is [rows, k], a tile of x has the R rows from `row`, and no other thread writes these outputs.
    #[inline(always)]
    unsafe fn tiles<S: Simd, W: Stored, const R: usize, const C: usize>(&self, w: &[W], row: usize) {
        let Range { start, end } = self.outs;
        let (apart, ahead) = ((end - start) / C, bytes_ahead(C));
        // SAFETY: the caller's promise.
        unsafe {
            for out in start..start + apart {
                let acc = self.tile::<S, W, R, C>(w, row, out, apart, ahead);
                self.write::<S, R, C>(&acc, row, out, apart);
            }
            for out in start + C * apart..end {
                let acc = self.tile::<S, W, R, 1>(w, row, out, 1, ahead);
                self.write::<S, R, 1>(&acc, row, out, 1);
            }
        }
    }

    /// The accumulators of R rows and C outputs, spaced `apart` from `out` on, with weights prefetched `ahead` bytes before use.
    ///
    /// # Safety
    /// As for [`tiles`](Self::tiles), and these outputs exist.
    #[inline(always)]
    unsafe fn tile<S: Simd, W: Stored, const R: usize, const C: usize>(
        &self,
        w: &[W],
        row: usize,
        out: usize,
        apart: usize,
        ahead: usize,
    ) -> [[S::V; R]; C] {
        let (k, steps) = (self.product.w.k, self.product.w.k.div_ceil(LANES));
        // SAFETY: row out + c·apart of w has k elements: full vectors end at k, the last part has k mod 16. The tile of x
        // has R lines a step.
        unsafe {
            let x = self.lines[row * steps..(row + R) * steps].as_ptr().cast::<f32>();
            let w = W::at(w.as_ptr(), out * k);
            let mut acc = [[S::splat(0.0); R]; C];
            for i in 0..k / LANES {
                let mut weights = [S::splat(0.0); C];
                for (c, weights) in weights.iter_mut().enumerate() {
                    let p = W::at(w, c * apart * k + i * LANES);
                    S::prefetch(p.cast::<u8>().wrapping_add(ahead));
                    *weights = W::load::<S>(p);
                }
                step::<S, R, C>(&mut acc, x.add(i * R * LANES), weights);
            }
            let (full, rest) = (k - k % LANES, k % LANES);
            if rest > 0 {
                let mut weights = [S::splat(0.0); C];
                for (c, weights) in weights.iter_mut().enumerate() {
                    *weights = W::load_part::<S>(W::at(w, c * apart * k + full), rest);
                }
                step::<S, R, C>(&mut acc, x.add(full * R), weights);
            }
            acc
        }
    }

    /// Sums the lanes of a tile of accumulators and writes y[row + r, out + c·apart] for r < R and c < C, with the bias.
    ///
    /// # Safety
    /// `S` as for [`Simd`]; no other thread is writing these elements of y.
    #[inline(always)]
    unsafe fn write<S: Simd, const R: usize, const C: usize>(
        &self,
        acc: &[[S::V; R]; C],
        row: usize,
        out: usize,
        apart: usize,
    ) {
        let Product { w, bias, ref y } = *self.product;
        let mut sums = [[0.0; C]; R];
        let mut i = 0;
        // SAFETY: the caller's promise; `sums` has R·C elements.
        unsafe {
            let flat = sums.as_mut_ptr().cast::<f32>();
            while i + 4 <= R * C {
                let mut four = [S::splat(0.0); 4];
                for (j, v) in four.iter_mut().enumerate() {
                    *v = acc[(i + j) % C][(i + j) / C];
                }
                flat.add(i).cast::<[f32; 4]>().write(S::sum_four(four));
                i += 4;
            }
            while i < R * C {
                flat.add(i).write(S::sum(acc[i % C][i / C]));
                i += 1;
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let out = out + c * apart;
                let sum = if let Some(bias) = bias { sum + bias[out] } else { *sum };
                // SAFETY: the caller's promise.
                unsafe { y.put((row + r) * w.rows + out, sum) };
            }
        }
    }
}

/// Multiplies sixteen inputs of R rows at x by the weights of C outputs: acc[c][r] += w[c]·x[r]. There are fewer outputs than rows
/// if registers are scarce, so the weights stay in registers and the inputs stream through.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn step<S: Simd, const R: usize, const C: usize>(acc: &mut [[S::V; R]; C], x: *const f32, w: [S::V; C]) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let x = S::load(x.add(r * LANES));
            for (acc, w) in acc.iter_mut().zip(w) {
                acc[r] = S::fma(w, x, acc[r]);
            }
        }
    }
}
