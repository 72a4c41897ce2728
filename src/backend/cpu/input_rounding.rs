//! The rounding of CUDA's tensor-core products, emulated here to measure its effect on results without a GPU.
//!
//! A tensor core multiplies 16-bit values, so on CUDA a pass of more than 16 rows rounds each f32 input of a product to one
//! f16 value, with a power of two per row. Queries, f32 keys (as cached) and softmax weights are split into two in every
//! pass. (So are the inputs of products in passes of up to 16 rows: omitted here.) All products are accumulated in f32.

use super::matmul::Elements;
use half::f16;

/// Rounding of the inputs of matrix products of many rows, with 16-bit weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputRounding {
    /// Not rounded: f32.
    #[default]
    F32,
    /// In passes of more than 16 rows, rounded to one f16 term with a power of two per row, as on CUDA. (There, the outputs of
    /// gates and attention have a power of two per 32 values, which loses no more. bf16 weights are f16 values there with a power
    /// of two per row: exact over 32 binades, and to 2^-39 of the row's maximum below: omitted here.) In all passes, the
    /// attention's queries and f32 keys are rounded to two f16 terms, 2^-23 of their magnitude. (Its softmax weights are rounded
    /// to 2^-23 there, the size of an exponential's own error: omitted here.)
    OneTerm,
    /// Like [`OneTerm`](Self::OneTerm), with one f16 term also for the queries and softmax weights of these passes.
    OneTermAttention,
}

/// Rounds the inputs [rows, k] of a product with these weights, if `rounds`; f32 weights are multiplied in f32 on CUDA, too.
pub fn round_inputs(x: &mut [f32], k: usize, weights: Elements, rounds: bool) {
    if rounds && !matches!(weights, Elements::F32(_)) {
        x.chunks_exact_mut(k).for_each(round_row);
    }
}

/// One f16 term, scaled by a power of two that brings the row's maximum into 2^14 .. 2^15.
pub fn round_row(row: &mut [f32]) {
    let max = row.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    if max == 0.0 || !max.is_finite() {
        return;
    }
    // in f64, where both factors stay in range
    let scale = 2f64.powi(14 - libm::log2(max.into()).floor() as i32);
    row.iter_mut().for_each(|x| *x = (f64::from(f16::from_f64(f64::from(*x) * scale)) / scale) as f32);
}

/// Rounds queries or keys. The kernels scale queries by powers of two first, so that no term is subnormal; here the lower
/// term may lose a few more bits.
pub fn round_operands(x: &mut [f32]) {
    x.iter_mut().for_each(|x| {
        let high = f16::from_f32(*x).to_f32();
        *x = high + f16::from_f32(*x - high).to_f32();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_terms_hold_what_they_say() {
        let mut error = 0.0_f32;
        for i in 0..4096 {
            let x = 1.0 + (i as f32) * 0.7321 / 4096.0 + f32::EPSILON * (i % 7) as f32;
            let mut rounded = [x, -x];
            round_operands(&mut rounded);
            assert_eq!(rounded[0], -rounded[1]);
            error = error.max((rounded[0] - x).abs() / x);
        }
        // half a unit of the lower term, which is at most half a unit of the upper one: 2^-12 · 2^-11
        assert!(error > 0.0 && error <= 1.0 / 8388608.0, "{error}");
        let mut same = [1.0 + f32::EPSILON];
        round_inputs(&mut same, 1, Elements::F32(&[]), true);
        assert_eq!(same, [1.0 + f32::EPSILON]);
    }
    #[test]
    fn one_term_holds_eleven_bits_of_the_rows_maximum_and_of_all_that_is_near_it() {
        let mut row: Vec<f32> = (0..4096).map(|i| (1.0 + (i as f32) * 0.7321) * 2f32.powi(-(i % 60))).collect();
        let (before, max) = (row.clone(), row.iter().fold(0.0, |max: f32, x| max.max(*x)));
        let elements = row.len();
        round_inputs(&mut row, elements, Elements::Bf16(&[]), true);
        let mut largest = 0.0_f32;
        for (x, rounded) in before.iter().zip(&row) {
            // half a unit in the last place of f16: 2^-11 of a normal number, and for subnormals half of 2^-24, 2^-39 of
            // the scaled maximum
            let bound = (x / 2048.0).max(max * 2f32.powi(-39));
            assert!((x - rounded).abs() <= bound, "{x} {rounded}");
            largest = largest.max((x - rounded).abs() / x);
        }
        assert!(largest > 0.25 / 2048.0, "{largest}");
    }
}
