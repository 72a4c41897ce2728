//! Weights in 8 bits: blocks of sixteen along k, each with its own scale. A block takes 18 bytes instead of 32 in bf16, so a
//! decode step reads 56 % of the bytes. `pack_q8` in `kernels/weights.cu` produces the same values.
//!
//! *Error.* w is rounded to a multiple of s, the smallest bf16 number with 127 s ≥ max |w| of the block: |w - w'| ≤ s/2, and
//! s ≤ (1 + 2^-7) max |w| / 127, so at most 0.4 % of the largest weight of the block.

use crate::model::weights::Elements;
use half::bf16;

/// Weights that share a scale.
pub const BLOCK: usize = 16;

/// Sixteen weights: weight i is `scale` · `quants[i]`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q8Block {
    pub scale: bf16,
    pub quants: [i8; BLOCK],
}

impl Q8Block {
    fn of(weights: [f32; BLOCK]) -> Q8Block {
        let max_abs = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let mut scale = bf16::from_f32(max_abs / 127.0);
        if scale.to_f32() * 127.0 < max_abs {
            scale = bf16::from_bits(scale.to_bits() + 1); // upward: scales are not negative
        }
        let inverse = if max_abs > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
        Q8Block { scale, quants: weights.map(|w| (w * inverse).round_ties_even() as i8) }
    }

    /// Weight `i`, rounded once, as in the kernels.
    pub fn get(&self, i: usize) -> f32 {
        self.scale.to_f32() * f32::from(self.quants[i])
    }
}

/// Whether rows of `k` weights can be stored in 8 bits.
pub fn fits(k: usize) -> bool {
    k > 0 && k.is_multiple_of(BLOCK)
}

/// The weights of a matrix [rows, k] in blocks; `None` if k is not a multiple of [`BLOCK`].
pub fn quantize(elements: Elements, k: usize) -> Option<Vec<Q8Block>> {
    let block = |b: usize| Q8Block::of(std::array::from_fn(|i| elements.get(b * BLOCK + i)));
    fits(k).then(|| (0..elements.len() / BLOCK).map(block).collect())
}

/// Rounds the values of rows of `k` to what 8 bits can represent.
pub fn round(numbers: &mut [f32], k: usize) {
    for block in numbers.chunks_exact_mut(BLOCK).filter(|_| fits(k)) {
        let of: &[f32; BLOCK] = (&*block).try_into().expect("a block");
        let q8 = Q8Block::of(*of);
        (0..BLOCK).for_each(|i| block[i] = q8.get(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_within_half_a_step() {
        let weights: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.01 * (1 + i / 16) as f32).collect();
        let blocks = quantize(Elements::F32(&weights), 32).unwrap();
        for (block, weights) in blocks.iter().zip(weights.chunks(BLOCK)) {
            let max_abs = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
            let scale = block.scale.to_f32();
            assert!(scale <= max_abs / 127.0 * (1.0 + 1.0 / 128.0) && scale * 127.0 >= max_abs);
            for (q, w) in block.quants.iter().zip(weights) {
                // plus the rounding of the product with the inverse
                assert!((f32::from(*q) * scale - w).abs() <= 0.5 * scale * (1.0 + 1e-4), "{w}");
            }
        }
        assert_eq!(Q8Block::of([0.0; BLOCK]), Q8Block::default());
        assert!(quantize(Elements::F32(&weights), 24).is_none());
        assert_eq!(size_of::<Q8Block>(), 18);
    }
}
