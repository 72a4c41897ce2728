//! Blocks of 8-bit weights, as a vector of [`LANES`].

use super::super::simd::{Simd, Stored};
use super::{LANES, Weight};
use crate::backend::q8::{BLOCK, Q8Block};

const _: () = assert!(BLOCK == LANES);

impl Weight for Q8Block {
    const EACH: usize = LANES;
}

impl Stored for Q8Block {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Q8Block) -> S::V {
        // SAFETY: the caller's pointer is that of a block.
        unsafe {
            let Q8Block { scale, ref quants } = *p;
            S::mul(S::splat(f32::from_bits(u32::from(scale.to_bits()) << 16)), S::load_i8(quants.as_ptr()))
        }
    }
}
