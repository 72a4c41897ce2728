//! The shape of the entropy over the response: H_t of the prediction of its t-th token, t = 1..n, over the full vocabulary.
//! After "Tracing Uncertainty in Language Model Reasoning" (Grünefeld et al. 2026, arXiv 2605.07776), where correct traces
//! fall more steeply and less linearly, and "Unveiling the Entropy Dynamics of Chain-of-Thought Reasoning" (Xu et al. 2026,
//! arXiv 2606.02020), which detects the change from exploring to converging by CUSUM. Theirs are classifier features and a
//! stopping rule; here each is a single value, higher meaning more confident. Inputs: the entropies.

use super::{SINGLE_PASS, mean};

scores! {
    SINGLE_PASS:
    // −b of the least-squares line H_t = a + b (t − 1)/(n − 1).
    "entropy_slope", "Entropy slope", "fall of the entropy from the first token to the last, nats"
        => |found| Some(0.0 - fit(&found.entropies(found.span())).0);
    // −R² of that line.
    "entropy_linearity", "Entropy linearity", "minus R² of a straight line through the entropies"
        => |found| Some(0.0 - fit(&found.entropies(found.span())).1);
    // max over k of (1/n) Σ_{t ≤ k} (H_t − H̄), the CUSUM statistic (Page 1954) for one drop of the mean.
    "entropy_cusum", "Entropy CUSUM", "entropy spent before the change to lower entropy, nats"
        => |found| Some(cusum(&found.entropies(found.span())));
}

/// Slope over the whole length and R² of the least-squares line; (0, 0) for fewer than two values, R² = 0 for equal ones.
fn fit(y: &[f64]) -> (f64, f64) {
    let (n, centre) = (y.len(), mean(y));
    let x = |i: usize| i as f64 / (n - 1) as f64 - 0.5;
    let sum = |f: &dyn Fn(usize, f64) -> f64| y.iter().enumerate().map(|(i, y)| f(i, y - centre)).sum::<f64>();
    if n < 2 {
        return (0.0, 0.0);
    }
    let (xx, xy, yy) = (sum(&|i, _| x(i) * x(i)), sum(&|i, y| x(i) * y), sum(&|_, y| y * y));
    (xy / xx, if yy > 0.0 { xy * xy / (xx * yy) } else { 0.0 })
}

/// The largest mean-centred partial sum, divided by the number of values; 0 for none.
fn cusum(y: &[f64]) -> f64 {
    let centre = mean(y);
    let partial = y.iter().scan(0.0, |sum, y| {
        *sum += y - centre;
        Some(*sum)
    });
    partial.fold(0.0, f64::max) / y.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_linear_and_a_step_is_a_change() {
        let (slope, r2) = fit(&[3.0, 2.0, 1.0]);
        assert!((slope + 2.0).abs() < 1e-12 && (r2 - 1.0).abs() < 1e-12);
        // numpy.polyfit([0, 1/3, 2/3, 1], [1, 1, 0, 0], 1)[0] = -1.2, numpy.corrcoef ** 2 = 0.8
        let (slope, r2) = fit(&[1.0, 1.0, 0.0, 0.0]);
        assert!((slope + 1.2).abs() < 1e-12 && (r2 - 0.8).abs() < 1e-12);
        assert_eq!((fit(&[]), fit(&[4.0]), fit(&[4.0, 4.0])), ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)));
        // partial sums of ±1/2: 1/2, 1, 1/2, 0
        assert_eq!(cusum(&[1.0, 1.0, 0.0, 0.0]), 0.25);
        assert_eq!((cusum(&[0.0, 0.0, 1.0, 1.0]), cusum(&[])), (0.0, 0.0));
    }
}
