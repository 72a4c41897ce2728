//! The rounding of CUDA's tensor-core products, applied here to find out without a GPU what it does to results.
//!
//! A tensor core multiplies 16-bit numbers, so a pass of more than 16 rows splits each f32 input there into two such
//! terms, hi + lo, and adds up both products in f32. What is lost is what the two terms do not hold.

use super::matmul::Elements;
use half::{bf16, f16};

/// How matrix products of many rows treat their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputRounding {
    /// As they are, in f32.
    #[default]
    F32,
    /// In passes of more than 16 rows, rounded to what two terms hold, as on CUDA: inputs of products with bf16 weights
    /// to 2^-17 of their size, with f16 weights to 2^-23; queries and f32 keys of the attention as those of f16. (Its
    /// softmax weights are rounded to 2^-23 there, the size of an exponential's own error: that is left out.)
    TwoTerms,
}

impl InputRounding {
    /// Whether the inputs of a pass of `rows` rows are rounded.
    pub fn applies(self, rows: usize) -> bool {
        self == InputRounding::TwoTerms && rows > 16
    }
}

/// Rounds the inputs of a product with these weights; f32 weights are multiplied in f32 there, too.
pub fn round_inputs(x: &mut [f32], weights: Elements) {
    match weights {
        Elements::F32(_) => {}
        Elements::Bf16(_) => x.iter_mut().for_each(|x| *x = split(*x, |x| bf16::from_f32(x).to_f32())),
        Elements::F16(_) => round_operands(x),
    }
}

/// Rounds queries or keys. The kernels scale queries by powers of two first, so that no term is subnormal; here the lower
/// term may lose a few bits more.
pub fn round_operands(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = split(*x, |x| f16::from_f32(x).to_f32()));
}

fn split(x: f32, round: impl Fn(f32) -> f32) -> f32 {
    let hi = round(x);
    hi + round(x - hi)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_terms_hold_what_they_say() {
        let (mut bf16_error, mut f16_error) = (0.0_f32, 0.0_f32);
        for i in 0..4096 {
            let x = 1.0 + (i as f32) * 0.7321 / 4096.0 + f32::EPSILON * (i % 7) as f32;
            let mut rounded = [x, -x];
            round_inputs(&mut rounded, Elements::Bf16(&[]));
            assert_eq!(rounded[0], -rounded[1]);
            bf16_error = bf16_error.max((rounded[0] - x).abs() / x);
            let mut rounded = [x];
            round_operands(&mut rounded);
            f16_error = f16_error.max((rounded[0] - x).abs() / x);
            let mut same = [x];
            round_inputs(&mut same, Elements::F32(&[]));
            assert_eq!(same, [x]);
        }
        // half a unit of the lower term, which is at most half a unit of the upper one: 2^-9 · 2^-8 and 2^-12 · 2^-11
        assert!(bf16_error > 0.25 / 131072.0 && bf16_error <= 1.0 / 131072.0, "{bf16_error}");
        assert!(f16_error <= 1.0 / 8388608.0, "{f16_error}");
    }
}
