//! Tile registers: units that multiply sixteen rows with sixteen columns of bf16 numbers at once.

/// Rows of a tile, and columns of a tile of sums.
pub const SIDE: usize = 16;

/// Numbers along k that [`Tiles::dot`] adds up.
pub const DEPTH: usize = 32;

/// Bytes of a row of any tile.
pub const ROW: usize = 64;

/// Bytes of a tile.
pub const TILE: usize = SIDE * ROW;

/// Tile registers of a thread.
pub const TILES: usize = 8;

/// One thread's [`TILES`] tile registers. One holds sums, [16, 16] in f32; or is the left side of a product, [16 rows, 32 along k] in
/// bf16; or the right side, [16 pairs along k, 16 columns, 2] in bf16.
///
/// *Arithmetic* of [`dot`](Self::dot) (Intel's manual, TDPBF16PS), for each of the sums: products at even k are added up from
/// zero in order, each step one fused multiply-add, those at odd k as well; the two sums are added, and then added to what
/// there was. All of it rounds to nearest; subnormal operands and results are zeros. So a sum depends on its own row and
/// column alone.
///
/// # Safety
/// The CPU has the unit. Every function is called between [`open`](Self::open) and [`close`](Self::close) on the thread that
/// called them. Pointers are valid for 16 rows of 64 bytes, `stride` bytes apart.
#[allow(clippy::missing_safety_doc)] // said once, above
pub trait Tiles {
    /// Makes the registers ready.
    unsafe fn open();
    /// Gives the registers up: a thread without them is cheaper to switch.
    unsafe fn close();
    unsafe fn zero(tile: usize);
    unsafe fn load(tile: usize, p: *const u8, stride: usize);
    /// The same of what takes no room in the first-level cache from what stays there.
    unsafe fn load_passing(tile: usize, p: *const u8, stride: usize);
    /// sums += left · right. An instruction names its tiles by constants, so left and right are 6 and 7 of sums 0 to 5, or 4 or 5 and
    /// 6 or 7 of a square of sums 0 to 3, row by row.
    unsafe fn dot(sums: usize, left: usize, right: usize);
    unsafe fn store(tile: usize, p: *mut u8, stride: usize);
}

/// The unit in software, for tests where no CPU has it and beside those that have.
#[cfg(test)]
pub mod emulated {
    use super::*;
    use std::cell::RefCell;

    pub struct Emulated;

    /// Rows of words: sums, or two numbers of 16 bits, the lower one first.
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

    /// A number of 16 bits as the unit reads it.
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
            // what nobody has set is seen: not a number, in f32 and in bf16
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
