//! The streaming state of one attention row and head: softmax, and the entropy of the reweighted attention. Both are defined
//! only here; every chunk of the KV cache produces a state, and states are merged.

use crate::names::named;

/// γ of the reweighting, nearest position first: w_{T-1-i} = γ_i.
pub const GAMMA: [f64; 10] = [
    0.16644488, 0.20938152, 0.32959151, 0.46061748, 0.59304059, 0.67549127, 0.73914525, 0.81274293, 0.87378443,
    0.93925344,
];

/// The γ of a run: the published one, or one fitted to a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gamma {
    weights: [f32; Gamma::MAX_NEAREST],
    nearest: usize,
}

impl Default for Gamma {
    fn default() -> Gamma {
        Gamma::PUBLISHED
    }
}

impl Gamma {
    /// The largest C.
    pub const MAX_NEAREST: usize = 18;

    /// [`GAMMA`]
    pub const PUBLISHED: Gamma = {
        let mut weights = [1.0; Gamma::MAX_NEAREST];
        let mut i = 0;
        while i < GAMMA.len() {
            weights[i] = GAMMA[i] as f32;
            i += 1;
        }
        Gamma { weights, nearest: GAMMA.len() }
    };

    /// γ for C positions, nearest first; `None` for more than [`MAX_NEAREST`](Self::MAX_NEAREST) or for a value outside [0, 1].
    pub fn new(gamma: &[f64]) -> Option<Gamma> {
        let valid = gamma.len() <= Gamma::MAX_NEAREST && gamma.iter().all(|gamma| (0.0..=1.0).contains(gamma));
        let mut weights = [1.0; Gamma::MAX_NEAREST];
        weights.iter_mut().zip(gamma).for_each(|(weight, gamma)| *weight = *gamma as f32);
        valid.then_some(Gamma { weights, nearest: gamma.len() })
    }

    /// C values, nearest first.
    pub fn values(&self) -> &[f32] {
        &self.weights[..self.nearest]
    }

    /// w_t of row T: 0 at the first position and at the row's own, γ at the C positions before it, 1 elsewhere.
    pub fn weight(&self, row: usize, t: usize) -> f32 {
        match row.checked_sub(t) {
            None | Some(0) => 0.0,
            _ if t == 0 => 0.0,
            Some(distance) => self.values().get(distance - 1).copied().unwrap_or(1.0),
        }
    }
}

/// Σ e^{s-m} with its m; `max = -∞, sum = 0` is the empty state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxState {
    pub max: f32,
    /// Z
    pub sum: f32,
}

/// The reweighted attention of a row: with m' the maximum over positions with w > 0 (separate, since a strong first-token sink
/// would underflow the rest), Z' = Σ w e^{s-m'} and S' = Σ w e^{s-m'} (s - m' + ln w).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntropyState {
    /// m'
    pub max: f32,
    /// Z'
    pub sum: f32,
    /// S'
    pub weighted: f32,
}

named! {
    /// Whether the regularized normalization of the authors' code is followed.
    #[derive(Hash)]
    pub enum EntropyRule {
        /// H = ln Z' - S'/Z'.
        Exact = "exact",
        /// The authors divide by Σ w α + 1e-12, so that a head whose attention is all on masked positions has an entropy
        /// near 0 and wins the selection.
        Regularized = "regularized",
    }
}

/// e^x; when two states are merged, x = 0 for one of them.
fn exp(x: f32) -> f32 {
    if x == 0.0 { 1.0 } else { libm::expf(x) }
}

impl SoftmaxState {
    pub const EMPTY: SoftmaxState = SoftmaxState { max: f32::NEG_INFINITY, sum: 0.0 };

    /// The factors that rescale the two states' sums (and outputs) to their common maximum.
    pub fn scales(&self, other: &SoftmaxState) -> (f32, f32) {
        if self.sum == 0.0 {
            (0.0, 1.0)
        } else if other.sum == 0.0 {
            (1.0, 0.0)
        } else {
            let max = self.max.max(other.max);
            (exp(self.max - max), exp(other.max - max))
        }
    }

    /// The state over the positions of both.
    pub fn merge(&self, other: &SoftmaxState) -> SoftmaxState {
        let (a, b) = self.scales(other);
        SoftmaxState { max: self.max.max(other.max), sum: self.sum * a + other.sum * b }
    }
}

impl EntropyState {
    pub const EMPTY: EntropyState = EntropyState { max: f32::NEG_INFINITY, sum: 0.0, weighted: 0.0 };

    /// The same sums relative to a maximum larger by `d ≥ 0`: S' ← e^{-d}(S' - d Z'), Z' ← e^{-d} Z'.
    fn raised(&self, d: f32) -> EntropyState {
        let e = exp(-d);
        EntropyState { max: self.max + d, sum: e * self.sum, weighted: e * (self.weighted - d * self.sum) }
    }

    /// The state over the positions of both.
    pub fn merge(&self, other: &EntropyState) -> EntropyState {
        if self.sum == 0.0 {
            return *other;
        }
        if other.sum == 0.0 {
            return *self;
        }
        let max = self.max.max(other.max);
        let (a, b) = (self.raised(max - self.max), other.raised(max - other.max));
        EntropyState { max, sum: a.sum + b.sum, weighted: a.weighted + b.weighted }
    }

    /// H of the reweighted attention in nats; `None` if every weight is 0 (T < 2): such a row has no attention.
    pub fn entropy(&self) -> Option<f64> {
        (self.sum > 0.0).then(|| {
            let z = f64::from(self.sum);
            libm::log(z) - f64::from(self.weighted) / z
        })
    }

    /// The sum f of the normalized weights, and their entropy, under `rule`.
    ///
    /// [`EntropyRule::Regularized`]: with σ = Σ w α the authors' weights are α' · f, f = σ / (σ + 1e-12), and
    /// H = -Σ fα' ln(fα') = f (H_exact - ln f); their 1e-12 inside the logarithm is below the precision of f32.
    pub fn finish(&self, softmax: &SoftmaxState, rule: EntropyRule) -> (f64, f64) {
        match (self.entropy(), rule) {
            (Some(h), EntropyRule::Exact) => (1.0, h),
            (None, EntropyRule::Exact) => (0.0, f64::INFINITY),
            (None, EntropyRule::Regularized) => (0.0, 0.0),
            (Some(h), EntropyRule::Regularized) => {
                let log_share = libm::log(self.sum.into()) + f64::from(self.max)
                    - f64::from(softmax.max)
                    - libm::log(softmax.sum.into());
                let share = libm::exp(log_share);
                let f = share / (share + 1e-12);
                if f == 0.0 { (0.0, 0.0) } else { (f, f * (h - libm::log(f))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_gamma_of_its_own_has_its_own_length() {
        let gamma = Gamma::new(&[0.25, 0.5]).unwrap();
        let weights: Vec<f32> = (0..=5).map(|t| gamma.weight(5, t)).collect();
        assert_eq!(weights, [0.0, 1.0, 1.0, 0.5, 0.25, 0.0]);
        assert_eq!(Gamma::new(&GAMMA), Some(Gamma::PUBLISHED));
        assert_eq!(Gamma::new(&[]).unwrap().weight(9, 8), 1.0);
        assert_eq!((Gamma::new(&[1.5]), Gamma::new(&[f64::NAN]), Gamma::new(&[0.5; 19])), (None, None, None));
    }

    /// Entropy of the reweighted row in f64, two passes.
    fn two_pass(scores: &[f32], row: usize) -> Option<f64> {
        let weights: Vec<f64> = (0..scores.len()).map(|t| f64::from(Gamma::PUBLISHED.weight(row, t))).collect();
        let max =
            scores.iter().zip(&weights).filter(|(_, w)| **w > 0.0).map(|(s, _)| f64::from(*s)).reduce(f64::max)?;
        let terms: Vec<f64> = scores.iter().zip(&weights).map(|(s, w)| w * (f64::from(*s) - max).exp()).collect();
        let sum: f64 = terms.iter().sum();
        Some(-terms.iter().map(|e| e / sum).filter(|a| *a > 0.0).map(|a| a * a.ln()).sum::<f64>())
    }

    /// One position with score `s` and weight `w`.
    fn of(score: f32, weight: f32) -> EntropyState {
        if weight == 0.0 {
            return EntropyState::EMPTY;
        }
        EntropyState { max: score, sum: weight, weighted: weight * weight.ln() }
    }

    fn streamed(scores: &[f32], row: usize, split: usize) -> EntropyState {
        let part = |range: std::ops::Range<usize>| {
            range.fold(EntropyState::EMPTY, |state, t| state.merge(&of(scores[t], Gamma::PUBLISHED.weight(row, t))))
        };
        let mut state = EntropyState::EMPTY;
        let mut start = 0;
        while start < scores.len() {
            let end = (start + split).min(scores.len());
            state = state.merge(&part(start..end));
            start = end;
        }
        state
    }

    proptest! {
        #[test]
        fn streaming_equals_two_passes(
            mut scores in prop::collection::vec(-30.0f32..30.0, 1..400),
            split in 1usize..150,
            sink in prop::option::of(50.0f32..120.0),
        ) {
            if let Some(sink) = sink {
                scores[0] = sink;
            }
            let row = scores.len() - 1;
            let state = streamed(&scores, row, split);
            match two_pass(&scores, row) {
                None => prop_assert_eq!(state.entropy(), None),
                Some(exact) => {
                    // Each of n terms is rounded a few times in f32, relative to sums of which S'/Z' is at most
                    // max|s - m'| ≤ 60: n · 4 · 2^-24 · 60 bounds it; the fold below merges term by term.
                    let bound = 4.0 * scores.len() as f64 * 60.0 / f64::from(1u32 << 24) + 1e-6;
                    let h = state.entropy().unwrap();
                    prop_assert!((h - exact).abs() <= bound, "{h} {exact} bound {bound}");
                }
            }
        }
    }

    #[test]
    fn rows_without_attention_never_win() {
        for row in 0..2 {
            let state = streamed(&[1.0, 2.0][..=row], row, 1);
            assert_eq!(state.entropy(), None);
            let softmax = SoftmaxState { max: 2.0, sum: 1.0 };
            assert_eq!(state.finish(&softmax, EntropyRule::Exact), (0.0, f64::INFINITY));
            assert_eq!(state.finish(&softmax, EntropyRule::Regularized), (0.0, 0.0));
        }
    }

    #[test]
    fn regularization_matters_only_for_vanishing_shares() {
        let state = EntropyState { max: 0.0, sum: 2.0, weighted: -1.0 };
        let exact = state.entropy().unwrap();
        let (f, h) = state.finish(&SoftmaxState { max: 0.0, sum: 4.0 }, EntropyRule::Regularized);
        assert!((f - 1.0).abs() < 1e-11 && (h - exact).abs() < 1e-10);
        // all but 1e-12 of the attention on the first token: the authors' weights add up to one half
        let max = (1e12f64).ln() as f32;
        let (f, h) = state.finish(&SoftmaxState { max, sum: 2.0 }, EntropyRule::Regularized);
        assert!((f - 0.5).abs() < 1e-5 && (h - 0.5 * (exact + 2f64.ln())).abs() < 1e-5, "{f} {h}");
    }
}
