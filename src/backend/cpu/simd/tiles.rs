//! Tile registers: units that multiply sixteen rows with sixteen columns of bf16 numbers at once.

/// Rows of a tile, and columns of a tile of sums.
pub const SIDE: usize = 16;

/// Numbers along k that [`Tiles::dot`] adds up.
pub const DEPTH: usize = 32;

/// Bytes of a row of any tile.
pub const ROW: usize = 64;

/// Bytes of a tile.
pub const TILE: usize = SIDE * ROW;

/// Tiles of sums that there are.
pub const SUMS: usize = 6;

/// One thread's tile registers: [`SUMS`] tiles of sums, [16, 16] in f32; a left one, [16 rows, 32 along k] in bf16; a right one,
/// [16 pairs along k, 16 columns, 2] in bf16.
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
    unsafe fn zero(sums: usize);
    unsafe fn load_left(p: *const u8, stride: usize);
    /// Sixteen rows without gaps.
    unsafe fn load_right(p: *const u8);
    /// sums += left · right
    unsafe fn dot(sums: usize);
    unsafe fn store(sums: usize, p: *mut u8, stride: usize);
}

/// The unit in software, for tests where no CPU has it and beside those that have.
#[cfg(test)]
pub mod emulated {
    use super::*;
    use std::cell::RefCell;

    pub struct Emulated;

    struct Registers {
        sums: [[[f32; SIDE]; SIDE]; SUMS],
        left: [[u16; DEPTH]; SIDE],
        right: [[u16; DEPTH]; SIDE],
    }

    thread_local! {
        static REGISTERS: RefCell<Option<Registers>> = const { RefCell::new(None) };
    }

    fn with<R>(f: impl FnOnce(&mut Registers) -> R) -> R {
        REGISTERS.with_borrow_mut(|registers| f(registers.as_mut().expect("tiles are open")))
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
            let registers = Registers {
                // what nobody has set is seen
                sums: [[[f32::NAN; SIDE]; SIDE]; SUMS],
                left: [[0x7fc0; DEPTH]; SIDE],
                right: [[0x7fc0; DEPTH]; SIDE],
            };
            REGISTERS.set(Some(registers));
        }
        unsafe fn close() {
            REGISTERS.set(None);
        }
        unsafe fn zero(sums: usize) {
            with(|r| r.sums[sums] = [[0.0; SIDE]; SIDE]);
        }
        unsafe fn load_left(p: *const u8, stride: usize) {
            // SAFETY: the trait's contract; so below.
            with(|r| {
                (0..SIDE)
                    .for_each(|i| r.left[i] = unsafe { p.add(i * stride).cast::<[u16; DEPTH]>().read_unaligned() });
            });
        }
        unsafe fn load_right(p: *const u8) {
            with(|r| {
                (0..SIDE).for_each(|i| r.right[i] = unsafe { p.add(i * ROW).cast::<[u16; DEPTH]>().read_unaligned() });
            });
        }
        unsafe fn dot(sums: usize) {
            with(|r| {
                for (sums, left) in r.sums[sums].iter_mut().zip(&r.left) {
                    for (column, sum) in sums.iter_mut().enumerate() {
                        *sum = dot(*sum, left, |k| r.right[k / 2][2 * column + k % 2]);
                    }
                }
            });
        }
        unsafe fn store(sums: usize, p: *mut u8, stride: usize) {
            with(|r| {
                (0..SIDE)
                    .for_each(|i| unsafe { p.add(i * stride).cast::<[f32; SIDE]>().write_unaligned(r.sums[sums][i]) });
            });
        }
    }
}
