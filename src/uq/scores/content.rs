//! Over content tokens alone, neither stop word, punctuation nor whitespace (the chain's own list,
//! `uq/stopwords.rs`), the answer's own form counting as content.

use super::{Found, SINGLE_PASS, Score, mean};
use crate::uq::predictions::step_of;
use crate::uq::stopwords::is_stop_word_for_answer;

pub(super) const SCORES: &[Score] = &[
    // Σ ln p. Inputs: log-probabilities and texts of tokens.
    Score {
        key: "content_logprob",
        name: "ln P(content)",
        meaning: "log-probability of the content tokens",
        compute: |found| Some(0.0 + logprobs(found).iter().sum::<f64>()),
        ..SINGLE_PASS
    },
    // (1/n) Σ ln p.
    Score {
        key: "content_mean_logprob",
        name: "ln P(content), mean",
        meaning: "mean log-probability of the content tokens",
        compute: |found| Some(mean(&logprobs(found))),
        ..SINGLE_PASS
    },
    // min p; 1 of no content.
    Score {
        key: "content_min_prob",
        name: "Least content p",
        meaning: "minimum probability of a content token",
        is_probability: true,
        compute: |found| Some(logprobs(found).into_iter().fold(0.0, f64::min).exp()),
        ..SINGLE_PASS
    },
    // −(1/n) Σ H of the predictions of content tokens, full vocabulary.
    Score {
        key: "content_entropy",
        name: "Content entropy, mean",
        meaning: "minus the mean entropy at content tokens, nats",
        compute: |found| Some(0.0 - mean(&entropies(found))),
        ..SINGLE_PASS
    },
];

/// Positions (absolute) of the response's content tokens.
fn content<'a>(found: &'a Found) -> impl Iterator<Item = usize> + 'a {
    let answer = found.response.text(found.answer.clone());
    found.span().filter(move |position| !is_stop_word_for_answer(found.response.token_text(*position), &answer))
}

fn logprobs(found: &Found) -> Vec<f64> {
    found.exact_logprobs(content(found))
}

fn entropies(found: &Found) -> Vec<f64> {
    content(found).map(|position| step_of(found.response, position, found.rules).entropy).collect()
}
