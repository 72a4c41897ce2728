//! Small dense products of f32 rows with a block of the cache, in register tiles.

use crate::backend::cpu::simd::{LANES, Simd, Stored};
use std::ops::Range;

/// The left factor of [`panel_product`]: `[rows, stride]`.
#[derive(Clone, Copy)]
pub struct Panel {
    pub data: *const f32,
    pub rows: usize,
    pub stride: usize,
}

/// The right factor, of which only rows `inner` are used.
#[derive(Clone)]
pub struct Block<E> {
    pub data: *const E,
    /// Strides between rows, and within a row between groups of sixteen columns.
    pub stride: usize,
    pub apart: usize,
    pub inner: Range<usize>,
}

/// out[g, j] = Σ_{i in inner} a[g, i] · b[i, j], i ascending, for any tile size: `out` is `[a.rows, columns]`.
///
/// # Safety
/// Shapes as stated; `columns` is a multiple of [`LANES`]; and [`Simd`]'s contract.
#[inline(always)]
pub unsafe fn panel_product<S: Simd, E: Stored>(a: Panel, b: Block<E>, columns: usize, out: *mut f32) {
    let mut column = 0;
    while column < columns {
        let left = (columns - column) / LANES;
        // SAFETY: every strip lies inside the shapes that the caller vouches for.
        column += LANES
            * unsafe {
                if S::REGISTERS >= 32 && left >= 4 {
                    strip::<S, E, 4, 6>(a, &b, column, columns, out)
                } else if S::REGISTERS >= 32 && left >= 2 {
                    strip::<S, E, 2, 6>(a, &b, column, columns, out)
                } else if S::REGISTERS >= 8 {
                    strip::<S, E, 1, 6>(a, &b, column, columns, out)
                } else {
                    strip::<S, E, 1, 2>(a, &b, column, columns, out)
                }
            };
    }
}

/// All rows of C vectors of columns, up to R rows at a time; returns C.
///
/// # Safety
/// As [`panel_product`].
#[inline(always)]
unsafe fn strip<S: Simd, E: Stored, const C: usize, const R: usize>(
    a: Panel,
    b: &Block<E>,
    column: usize,
    columns: usize,
    out: *mut f32,
) -> usize {
    let mut row = 0;
    while row < a.rows {
        // SAFETY: the caller's promise.
        unsafe {
            let part = Panel { data: a.data.add(row * a.stride), ..a };
            let first = b.data.add(column / LANES * b.apart);
            let tile = (part, b, first, out.add(row * columns + column), columns);
            row += match (a.rows - row).min(R) {
                6.. => tile_product::<S, E, 6, C>(tile),
                4 | 5 => tile_product::<S, E, 4, C>(tile),
                3 => tile_product::<S, E, 3, C>(tile),
                2 => tile_product::<S, E, 2, C>(tile),
                _ => tile_product::<S, E, 1, C>(tile),
            };
        }
    }
    C
}

/// R rows × C vectors of [`panel_product`]; returns R.
///
/// # Safety
/// As [`panel_product`].
#[inline(always)]
unsafe fn tile_product<S: Simd, E: Stored, const R: usize, const C: usize>(
    (a, b, first, out, columns): (Panel, &Block<E>, *const E, *mut f32, usize),
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        for i in b.inner.clone() {
            let from = first.add(i * b.stride);
            let mut columns = [S::splat(0.0); C];
            for (c, column) in columns.iter_mut().enumerate() {
                *column = E::load::<S>(from.add(c * b.apart));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let x = S::splat(*a.data.add(r * a.stride + i));
                for (sum, column) in row.iter_mut().zip(columns) {
                    *sum = S::fma(x, column, *sum);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (c, sum) in row.iter().enumerate() {
                S::store(out.add(r * columns + c * LANES), *sum);
            }
        }
    }
    R
}
