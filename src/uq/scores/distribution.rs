//! Means over the response, or the answer, of statistics of each whole prediction p over V tokens. Inputs: a wide trace
//! ([`Distribution`]).

use super::{Found, SINGLE_PASS, Score, mean};
use crate::backend::Distribution;
use std::f64::consts::FRAC_2_PI;
use std::ops::Range;

pub(super) const SCORES: &[Score] = &[
    // KL(U ‖ p) = −(1/V) Σ_j ln(V p_j), mean over tokens (Kang, Zhao and Song 2025, "Scalable Best-of-N Selection for Large
    // Language Models via Self-Certainty", arXiv 2502.18581).
    Score {
        key: "self_certainty",
        name: "Self-certainty",
        meaning: "mean distance of predictions from uniform, KL(U ‖ p), nats",
        compute: |found| over(found, found.span(), self_certainty),
        ..SINGLE_PASS
    },
    // The same over the answer.
    Score {
        key: "self_certainty_answer",
        name: "Self-certainty, answer",
        meaning: "self-certainty over the answer's tokens",
        compute: |found| over(found, found.answer.clone(), self_certainty),
        of_answer: true,
        ..SINGLE_PASS
    },
    // D_½(q ‖ U) = −2 ln Σ_j √(q_j / V), q the softmax at temperature 2, mean over tokens (Darrin, Piantanida and Colombo 2023,
    // "RainProof", arXiv 2212.09171, with α = ½). LM-Polygraph's RenyiNeg is this less 2 ln V, as an uncertainty: both
    // signs are wrong there.
    Score {
        key: "renyi",
        name: "Rényi",
        meaning: "mean distance of predictions from uniform, Rényi divergence, nats",
        compute: |found| over(found, found.span(), renyi),
        ..SINGLE_PASS
    },
    // The same over the answer.
    Score {
        key: "renyi_answer",
        name: "Rényi, answer",
        meaning: "Rényi divergence over the answer's tokens",
        compute: |found| over(found, found.answer.clone(), renyi),
        of_answer: true,
        ..SINGLE_PASS
    },
    // (2/π) arccos Σ_j √(q_j / V), q as above, mean over tokens (the same paper). LM-Polygraph's FisherRao: as above.
    Score {
        key: "fisher_rao",
        name: "Fisher–Rao",
        meaning: "mean distance of predictions from uniform, Fisher–Rao distance",
        compute: |found| over(found, found.span(), fisher_rao),
        ..SINGLE_PASS
    },
    // The same over the answer.
    Score {
        key: "fisher_rao_answer",
        name: "Fisher–Rao, answer",
        meaning: "Fisher–Rao distance over the answer's tokens",
        compute: |found| over(found, found.answer.clone(), fisher_rao),
        of_answer: true,
        ..SINGLE_PASS
    },
    // b_t = Σ p of the dominant tokens if the token written is one of them, else its own p; mean over tokens (Dinh and Niehues
    // 2025, "Are Generative Models Underconfident?", arXiv 2502.11115). Dominant: see [`Distribution::dominant`].
    Score {
        key: "boosted_prob",
        name: "BoostedProb",
        meaning: "mean token probability, dominant tokens counted together",
        is_probability: true,
        compute: |found| over(found, found.span(), boosted),
        ..SINGLE_PASS
    },
    // The same over the answer.
    Score {
        key: "boosted_prob_answer",
        name: "BoostedProb, answer",
        meaning: "BoostedProb over the answer's tokens",
        is_probability: true,
        compute: |found| over(found, found.answer.clone(), boosted),
        of_answer: true,
        ..SINGLE_PASS
    },
];

/// The mean of `value`, which gets a prediction and the token's ln p, over the tokens at `positions` (absolute).
fn over(found: &Found, positions: Range<usize>, value: fn(&Distribution, f64) -> f64) -> Option<f64> {
    let logprobs = found.exact_logprobs(positions.clone());
    let values: Vec<f64> = found.distributions(positions)?.iter().zip(logprobs).map(|(d, p)| value(d, p)).collect();
    Some(mean(&values))
}

fn self_certainty(d: &Distribution, _: f64) -> f64 {
    d.uniform_kl
}

fn renyi(d: &Distribution, _: f64) -> f64 {
    0.0 - 2.0 * d.log_affinity
}

fn fisher_rao(d: &Distribution, _: f64) -> f64 {
    FRAC_2_PI * d.log_affinity.exp().acos()
}

fn boosted(d: &Distribution, logprob: f64) -> f64 {
    if logprob >= d.dominant_logprob { d.dominant } else { logprob.exp() }
}
