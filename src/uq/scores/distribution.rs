//! Scores from whole predictions: a wide trace.
//!
//! DeepConf (Fu et al. 2025, "Deep Think with Confidence", arXiv 2508.15260, section 3; facebookresearch/deepconf): token
//! confidence C_t = −(1/20) Σ_{k ≤ 20} ln p_t(k) over the 20 most probable tokens, full vocabulary (eq. 2), and groups of w
//! consecutive tokens with their mean C (eq. 4). A response of fewer than w tokens is one group. The authors use w = 2,048;
//! nearly every response is shorter, so w = 64 is included too. They round C_t and means to three digits, and their engine
//! adds the sampled token to the 20 if it is not among them; neither is done here. Inputs: a wide trace.

use super::{Found, SINGLE_PASS, mean, window_means};
use crate::backend::Distribution;
use std::f64::consts::FRAC_2_PI;

/// The authors' group size, and one for responses of typical length.
const LONG: usize = 2048;
const SHORT: usize = 64;

scores! {
    SINGLE_PASS:
    // (1/n) Σ C_t (eq. 3).
    "deepconf", "DeepConf", "minus the mean log-probability of the top 20 tokens"
        => |found| Some(mean(&confidences(found, found.span())?));
    // The mean over the answer.
    "deepconf_answer", "DeepConf, answer", "DeepConf over the answer's tokens", of_answer: true
        => |found| Some(mean(&confidences(found, found.answer.clone())?));
    // The mean over the last w tokens (eq. 7).
    "deepconf_tail", "DeepConf, tail", "DeepConf over the last 2,048 tokens"
        => |found| Some(tail(&confidences(found, found.span())?, LONG));
    // The mean over the ⌊m/10⌋ (at least 1) of m groups with the lowest mean (eq. 5).
    "deepconf_bottom", "DeepConf, bottom 10 %", "DeepConf over the least confident tenth of 2,048-token groups"
        => |found| Some(bottom(&confidences(found, found.span())?, LONG));
    // The lowest mean of a group (eq. 6).
    "deepconf_lowest", "DeepConf, lowest", "DeepConf of the least confident 2,048-token group"
        => |found| window_means(&confidences(found, found.span())?, LONG).into_iter().reduce(f64::min);
    // `deepconf_tail` with w = 64.
    "deepconf_tail_64", "DeepConf, tail (64)", "DeepConf over the last 64 tokens"
        => |found| Some(tail(&confidences(found, found.span())?, SHORT));
    // `deepconf_bottom` with w = 64.
    "deepconf_bottom_64", "DeepConf, bottom 10 % (64)", "DeepConf over the least confident tenth of 64-token groups"
        => |found| Some(bottom(&confidences(found, found.span())?, SHORT));
    // `deepconf_lowest` with w = 64.
    "deepconf_lowest_64", "DeepConf, lowest (64)", "DeepConf of the least confident 64-token group"
        => |found| window_means(&confidences(found, found.span())?, SHORT).into_iter().reduce(f64::min);

    // Means, over the response or the answer, of statistics of each full prediction p over V tokens. Inputs: a wide trace
    // ([`Distribution`]).

    // KL(U ‖ p) = −(1/V) Σ_j ln(V p_j), mean over tokens (Kang, Zhao and Song 2025, "Scalable Best-of-N Selection for Large
    // Language Models via Self-Certainty", arXiv 2502.18581).
    "self_certainty", "Self-certainty", "mean distance of predictions from uniform, KL(U ‖ p), nats"
        => |found| over(found, found.span(), self_certainty);
    // The same over the answer.
    "self_certainty_answer", "Self-certainty, answer", "self-certainty over the answer's tokens", of_answer: true
        => |found| over(found, found.answer.clone(), self_certainty);
    // D_½(q ‖ U) = −2 ln Σ_j √(q_j / V), q the softmax at temperature 2, mean over tokens (Darrin, Piantanida and Colombo 2023,
    // "RainProof", arXiv 2212.09171, with α = ½). LM-Polygraph's RenyiNeg is this minus 2 ln V, as an uncertainty: both signs
    // are wrong there.
    "renyi", "Rényi", "mean distance of predictions from uniform, Rényi divergence, nats"
        => |found| over(found, found.span(), renyi);
    // The same over the answer.
    "renyi_answer", "Rényi, answer", "Rényi divergence over the answer's tokens", of_answer: true
        => |found| over(found, found.answer.clone(), renyi);
    // (2/π) arccos Σ_j √(q_j / V), q as above, mean over tokens (the same paper). LM-Polygraph's FisherRao: as above.
    "fisher_rao", "Fisher–Rao", "mean distance of predictions from uniform, Fisher–Rao distance"
        => |found| over(found, found.span(), fisher_rao);
    // The same over the answer.
    "fisher_rao_answer", "Fisher–Rao, answer", "Fisher–Rao distance over the answer's tokens", of_answer: true
        => |found| over(found, found.answer.clone(), fisher_rao);
    // b_t = Σ p of the dominant tokens if the written token is one of them, else its own p; mean over tokens (Dinh and Niehues
    // 2025, "Are Generative Models Underconfident?", arXiv 2502.11115). Dominant: see [`Distribution::dominant`].
    "boosted_prob", "BoostedProb", "mean token probability, dominant tokens counted together", is_probability: true
        => |found| over(found, found.span(), boosted);
    // The same over the answer.
    "boosted_prob_answer", "BoostedProb, answer", "BoostedProb over the answer's tokens",
        is_probability: true, of_answer: true => |found| over(found, found.answer.clone(), boosted);
}

/// C_t of the tokens at `positions` (absolute); `None` without a wide trace.
fn confidences(found: &Found, positions: impl Iterator<Item = usize>) -> Option<Vec<f64>> {
    Some(found.distributions(positions)?.iter().map(|d| -d.top_logprob).collect())
}

fn tail(values: &[f64], length: usize) -> f64 {
    mean(&values[values.len().saturating_sub(length)..])
}

fn bottom(values: &[f64], length: usize) -> f64 {
    let mut groups = window_means(values, length);
    groups.sort_by(f64::total_cmp);
    mean(&groups[..(groups.len() / 10).max(1).min(groups.len())])
}

/// The mean of `value`, called with a prediction and its token's ln p, over the tokens at `positions` (absolute).
fn over(found: &Found, positions: impl Iterator<Item = usize>, value: fn(&Distribution, f64) -> f64) -> Option<f64> {
    let positions: Vec<usize> = positions.collect();
    let logprobs = found.exact_logprobs(positions.iter().copied());
    let values: Vec<f64> =
        found.distributions(positions.into_iter())?.iter().zip(logprobs).map(|(d, p)| value(d, p)).collect();
    Some(mean(&values))
}

fn self_certainty(d: &Distribution, _: f64) -> f64 {
    d.uniform_kl
}

fn renyi(d: &Distribution, _: f64) -> f64 {
    0.0 - 2.0 * d.log_affinity
}

fn fisher_rao(d: &Distribution, _: f64) -> f64 {
    FRAC_2_PI * libm::acos(libm::exp(d.log_affinity))
}

fn boosted(d: &Distribution, logprob: f64) -> f64 {
    if logprob >= d.dominant_logprob { d.dominant } else { libm::exp(logprob) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_slide_by_one_token() {
        let values: Vec<f64> = (0..23).map(f64::from).collect();
        assert_eq!(window_means(&values, 4)[..2], [1.5, 2.5]);
        assert_eq!(window_means(&values, 30), [11.0]);
        assert_eq!((tail(&values, 3), tail(&values, 30)), (21.0, 11.0));
        // 20 groups, the two lowest
        assert_eq!((bottom(&values, 4), bottom(&values, 30)), (2.0, 11.0));
        assert_eq!((window_means(&[], 4), bottom(&[], 4)), (vec![], 0.0));
    }
}
