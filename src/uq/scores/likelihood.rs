//! P(answer) and P(response): ∏ p of the tokens and the mean of p, their logarithms, and the least p of the answer.

use super::{Found, SINGLE_PASS, Score, mean};
use crate::uq::predictions::{counted_span, product_and_mean, token_logprob};

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "answer_prob",
        name: "P(answer)",
        meaning: "probability of the answer's tokens",
        place: 0,
        is_probability: true,
        compute: |found| Some(product_and_mean(&found.answer_logprobs()).0),
        of_answer: true,
        ..SINGLE_PASS
    },
    Score {
        key: "answer_mean",
        name: "P(answer), mean",
        meaning: "mean probability of the answer's tokens",
        place: 0,
        is_probability: true,
        compute: |found| Some(product_and_mean(&found.answer_logprobs()).1),
        of_answer: true,
        ..SINGLE_PASS
    },
    Score {
        key: "response_prob",
        name: "P(response)",
        meaning: "probability of the whole response",
        place: 0,
        is_probability: true,
        compute: |found| Some(product_and_mean(&found.response_logprobs()).0),
        ..SINGLE_PASS
    },
    Score {
        key: "response_mean",
        name: "P(response), mean",
        meaning: "mean token probability",
        place: 0,
        is_probability: true,
        compute: |found| Some(product_and_mean(&found.response_logprobs()).1),
        ..SINGLE_PASS
    },
    // Σ ln p over the answer: P(answer) where that underflows.
    Score {
        key: "answer_logprob",
        name: "ln P(answer)",
        meaning: "log-probability of the answer's tokens",
        compute: |found| Some(found.answer_logprobs().iter().sum()),
        of_answer: true,
        ..SINGLE_PASS
    },
    // (1/n) Σ ln p over the answer, minus the log of its perplexity.
    Score {
        key: "answer_mean_logprob",
        name: "ln P(answer), mean",
        meaning: "mean log-probability of the answer's tokens",
        compute: |found| Some(mean(&found.answer_logprobs())),
        of_answer: true,
        ..SINGLE_PASS
    },
    // min p over the answer.
    Score {
        key: "answer_min_prob",
        name: "Least answer p",
        meaning: "minimum probability of an answer token",
        is_probability: true,
        compute: |found| Some(found.answer_logprobs().into_iter().fold(0.0, f64::min).exp()),
        of_answer: true,
        ..SINGLE_PASS
    },
    // Σ ln p over the response: P(response) where that underflows.
    Score {
        key: "response_logprob",
        name: "ln P(response)",
        meaning: "log-probability of the whole response",
        compute: |found| Some(0.0 + found.response_logprobs().iter().sum::<f64>()),
        ..SINGLE_PASS
    },
    // (1/n) Σ ln p over the response, minus the log of its perplexity.
    Score {
        key: "response_mean_logprob",
        name: "ln P(response), mean",
        meaning: "mean log-probability of a token",
        compute: |found| Some(mean(&found.response_logprobs())),
        ..SINGLE_PASS
    },
];

impl Found<'_> {
    /// ln p of the answer's tokens; an answer without tokens has probability 0.
    pub(super) fn answer_logprobs(&self) -> Vec<f64> {
        if self.answer.is_empty() {
            return vec![f64::NEG_INFINITY];
        }
        self.answer.clone().map(|position| token_logprob(self.response, position, self.rules)).collect()
    }

    /// ln p of the response's tokens.
    pub(super) fn response_logprobs(&self) -> Vec<f64> {
        let counted = counted_span(self.response, self.answer, self.rules);
        counted.map(|position| token_logprob(self.response, position, self.rules)).collect()
    }
}
