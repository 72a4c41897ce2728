//! Tile registers: units that multiply sixteen rows by sixteen columns of bf16 values at a time.

/// Rows of a tile, and columns of a tile of sums.
pub const SIDE: usize = 16;

/// Elements along k that one [`Tiles::dot`] sums.
pub const DEPTH: usize = 32;

/// Bytes of a row of any tile.
pub const ROW: usize = 64;

/// Bytes of a tile.
pub const TILE: usize = SIDE * ROW;

/// Tile registers of a thread.
pub const TILES: usize = 8;

/// One thread's [`TILES`] tile registers. Each holds sums, [16, 16] in f32; or the left operand of a product, [16 rows, 32 along k]
/// in bf16; or the right operand, [16 pairs along k, 16 columns, 2] in bf16.
///
/// *Arithmetic* of [`dot`](Self::dot) (Intel's manual, TDPBF16PS), for each sum: products at even k are accumulated from zero in
/// order, each step one fused multiply-add, and likewise those at odd k; the two are added, and the result is added to the
/// previous sum. Everything rounds to nearest; subnormal operands and results are flushed to zero. So a sum depends only on its
/// own row and column.
///
/// # Safety
/// The CPU has the unit. Every function is called between [`open`](Self::open) and [`close`](Self::close) on the thread that called
/// them. Pointers are valid for 16 rows of 64 bytes, `stride` bytes apart.
#[allow(clippy::missing_safety_doc)] // stated once, above
pub trait Tiles {
    /// Configures the registers.
    unsafe fn open();
    /// Releases the registers: a thread without them is cheaper to switch.
    unsafe fn close();
    unsafe fn zero(tile: usize);
    unsafe fn load(tile: usize, p: *const u8, stride: usize);
    /// Like `load`, for streamed data that must not displace what stays in the L1 cache.
    unsafe fn load_passing(tile: usize, p: *const u8, stride: usize);
    /// sums += left · right. Instructions name tiles by constants, so only these combinations exist: left 6 and right 7 with sums 0
    /// to 5; or left 4 or 5 and right 6 or 7 with a square of sums 0 to 3, row by row.
    unsafe fn dot(sums: usize, left: usize, right: usize);
    unsafe fn store(tile: usize, p: *mut u8, stride: usize);
}

/// The unit in software, for tests on CPUs without it and for comparison on those with it.
#[cfg(test)]
pub mod emulated {
    use super::*;
    use std::cell::RefCell;

    pub struct Emulated;

    /// Rows of words: sums, or two 16-bit values, the lower one first.
    type Tile = [[u32; SIDE]; SIDE];

    thread_local! {
        static REGISTERS: RefCell<Option<[Tile; TILES]>> = const { RefCell::new(None) };
    }

    fn with<R>(f: impl FnOnce(&mut [Tile; TILES]) -> R) -> R {
        REGISTERS.with_borrow_mut(|registers| f(registers.as_mut().expect("tiles are open")))
    }

    fn halves(words: [u32; SIDE]) -> [u16; DEPTH] {
        std::array::from_fn(|k| (words[k / 2] >> (k % 2 * 16)) as u16)
    }

    fn flushed(x: f32) -> f32 {
        if x.is_subnormal() { 0.0 * x } else { x }
    }

    /// A 16-bit value as the unit reads it.
    fn widened(x: u16) -> f32 {
        flushed(f32::from_bits(u32::from(x) << 16))
    }

    /// One step of a sum.
    pub fn dot(sum: f32, left: &[u16; DEPTH], right: impl Fn(usize) -> u16) -> f32 {
        let mut halves = [0.0; 2];
        for (k, &l) in left.iter().enumerate() {
            let half = &mut halves[k % 2];
            *half = flushed(widened(l).mul_add(widened(right(k)), *half));
        }
        flushed(flushed(sum) + flushed(halves[0] + halves[1]))
    }

    impl Tiles for Emulated {
        unsafe fn open() {
            // exposes reads of unset registers: NaN in f32 and in bf16
            REGISTERS.set(Some([[[0x7fc0_7fc0; SIDE]; SIDE]; TILES]));
        }
        unsafe fn close() {
            REGISTERS.set(None);
        }
        unsafe fn zero(tile: usize) {
            with(|tiles| tiles[tile] = [[0; SIDE]; SIDE]);
        }
        unsafe fn load(tile: usize, p: *const u8, stride: usize) {
            // SAFETY: the trait's contract.
            let row = |i| unsafe { p.add(i * stride).cast::<[u32; SIDE]>().read_unaligned() };
            with(|tiles| tiles[tile] = std::array::from_fn(row));
        }
        unsafe fn load_passing(tile: usize, p: *const u8, stride: usize) {
            // SAFETY: the trait's contract.
            unsafe { Emulated::load(tile, p, stride) };
        }
        unsafe fn dot(sums: usize, left: usize, right: usize) {
            with(|tiles| {
                let (left, right) = (tiles[left].map(halves), tiles[right].map(halves));
                for (sums, left) in tiles[sums].iter_mut().zip(left) {
                    for (column, sum) in sums.iter_mut().enumerate() {
                        *sum = dot(f32::from_bits(*sum), &left, |k| right[k / 2][2 * column + k % 2]).to_bits();
                    }
                }
            });
        }
        unsafe fn store(tile: usize, p: *mut u8, stride: usize) {
            with(|tiles| {
                for (i, row) in tiles[tile].into_iter().enumerate() {
                    // SAFETY: the trait's contract.
                    unsafe { p.add(i * stride).cast::<[u32; SIDE]>().write_unaligned(row) };
                }
            });
        }
    }
}
