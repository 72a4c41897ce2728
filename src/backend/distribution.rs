//! A wide trace's record of a prediction's whole distribution: statistics over the full vocabulary that cannot be
//! derived from its entropy and its alternatives.

use super::TokenLogprob;

/// Tokens whose log-probabilities [`Distribution::top_logprob`] averages, as in DeepConf.
pub const TOP_LOGPROBS: usize = 20;

/// Number of most probable tokens searched for dominant ones; also in `head.cu`.
pub const DOMINANT_AMONG: usize = 128;

/// A drop in probability ends the dominant tokens if it exceeds this and `DOMINANT_SHARE` of the value it drops from.
pub const DOMINANT_DROP: f64 = 0.005;

/// See [`DOMINANT_DROP`].
const DOMINANT_SHARE: f64 = 0.3;

/// Statistics of one prediction p over V tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// Mean ln p of the [`TOP_LOGPROBS`] most probable tokens (of all if there are fewer).
    pub top_logprob: f64,
    /// KL(U ‖ p) = −ln V − mean ln p in nats, U uniform; infinite if a token has p = 0.
    pub uniform_kl: f64,
    /// ln Σ √(q/V) ≤ 0, the log Bhattacharyya coefficient of U and of q, the softmax at temperature 2.
    pub log_affinity: f64,
    /// Total probability of the dominant tokens: those up to the last position i, in descending order, with
    /// p_i − p_{i+1} > max(0.005, 0.3 p_i) (Dinh and Niehues 2025, section 4). 0 if there is no such position.
    pub dominant: f64,
    /// ln p of the least probable dominant token; infinite if there is none.
    pub dominant_logprob: f64,
}

/// Sums over a row's logits x, relative to their maximum m.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogitSums {
    /// Σ (x − m)
    pub deviation: f64,
    /// Σ e^{(x−m)/2}
    pub half: f64,
    /// Σ e^{(x−m)/4}
    pub quarter: f64,
}

impl Distribution {
    /// From `logits` `[vocab_size]`; `top` holds all of their tokens, best first.
    pub fn by_definition(logits: &[f64], top: &[TokenLogprob]) -> Distribution {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = |f: fn(f64) -> f64| logits.iter().map(|x| f(x - max)).sum();
        let sums =
            LogitSums { deviation: sum(|d| d), half: sum(|d| (d / 2.0).exp()), quarter: sum(|d| (d / 4.0).exp()) };
        let top: Vec<f64> = top.iter().map(|t| t.logprob).collect();
        Distribution::new(&top, top[0], &sums, logits.len())
    }

    /// `top`: ln p of the most probable tokens, descending: [`TOP_LOGPROBS`] of them, and as many as have
    /// p > [`DOMINANT_DROP`] plus one, at most [`DOMINANT_AMONG`]; fewer only if the vocabulary has no more.
    /// `max_logprob`: ln p of the largest logit.
    pub fn new(top: &[f64], max_logprob: f64, sums: &LogitSums, vocabulary: usize) -> Distribution {
        let v = vocabulary as f64;
        let best = &top[..top.len().min(TOP_LOGPROBS)];
        let (dominant, dominant_logprob) = dominant(&top[..top.len().min(DOMINANT_AMONG)]);
        Distribution {
            top_logprob: best.iter().sum::<f64>() / best.len() as f64,
            uniform_kl: -libm::log(v) - (max_logprob + sums.deviation / v),
            // √q_j = e^{x_j/4} / √Σ e^{x/2}
            log_affinity: (libm::log(sums.quarter) - (libm::log(sums.half) + libm::log(v)) / 2.0).min(0.0),
            dominant,
            dominant_logprob,
        }
    }
}

/// (Σ p of the dominant tokens, ln p of the last of them).
fn dominant(top: &[f64]) -> (f64, f64) {
    let (mut sum, mut found) = (0.0, (0.0, f64::INFINITY));
    for pair in top.windows(2) {
        let (p, next) = (libm::exp(pair[0]), libm::exp(pair[1]));
        if p <= DOMINANT_DROP {
            break;
        }
        sum += p;
        if p - next > DOMINANT_DROP.max(DOMINANT_SHARE * p) {
            found = (sum, pair[0]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dominants(p: &[f64]) -> (f64, f64) {
        let (sum, last) = dominant(&p.iter().map(|p| p.ln()).collect::<Vec<_>>());
        (sum, last.exp())
    }

    #[test]
    fn dominant_tokens_end_at_the_last_large_drop() {
        let close = |p: &[f64], mass: f64, last: f64| {
            let found = dominants(p);
            assert!((found.0 - mass).abs() < 1e-12 && (found.1 - last).abs() < 1e-12, "{p:?}: {found:?}");
        };
        close(&[0.9, 0.05, 0.03], 0.95, 0.05);
        close(&[0.3, 0.25, 0.2, 0.17, 0.08], 0.92, 0.17); // the first drops are below 0.3 of the value they drop from
        close(&[0.7, 0.009, 0.0045], 0.7, 0.7); // 0.0045 is below 0.005
        assert_eq!(dominants(&[0.25; 4]), (0.0, f64::INFINITY));
        assert_eq!(dominants(&[0.004, 0.001]), (0.0, f64::INFINITY));
        assert_eq!(dominants(&[1.0]), (0.0, f64::INFINITY));
    }

    #[test]
    fn a_uniform_prediction_is_at_distance_0_and_a_certain_one_at_the_largest() {
        let (v, n) = (64.0f64, 64);
        let sums = LogitSums { deviation: 0.0, half: v, quarter: v };
        let uniform = Distribution::new(&[-v.ln(); 64], -v.ln(), &sums, n);
        assert!(uniform.uniform_kl.abs() < 1e-12 && uniform.log_affinity.abs() < 1e-12);
        assert!((uniform.top_logprob + v.ln()).abs() < 1e-12);
        // one logit 400 above the others
        let sums = LogitSums { deviation: -400.0 * 63.0, half: 1.0, quarter: 1.0 };
        let mut top = [-400.0; 20];
        top[0] = 0.0;
        let certain = Distribution::new(&top, 0.0, &sums, n);
        assert!((certain.uniform_kl - (400.0 * 63.0 / v - v.ln())).abs() < 1e-9);
        assert!((certain.log_affinity + v.ln() / 2.0).abs() < 1e-12);
        assert_eq!((certain.top_logprob, certain.dominant, certain.dominant_logprob), (-380.0, 1.0, 0.0));
    }
}
