//! Means, over the response or the answer, of statistics of each full prediction p over V tokens. Inputs: a wide trace
//! ([`Distribution`]).

use super::{Found, SINGLE_PASS, mean};
use crate::backend::Distribution;
use std::f64::consts::FRAC_2_PI;

scores! {
    SINGLE_PASS:
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
    FRAC_2_PI * d.log_affinity.exp().acos()
}

fn boosted(d: &Distribution, logprob: f64) -> f64 {
    if logprob >= d.dominant_logprob { d.dominant } else { logprob.exp() }
}
