//! P(answer) and P(response): ∏ p of the tokens, and the mean of p.

use super::Group::SinglePass;
use super::{Found, Score};
use crate::uq::predictions::{counted_span, product_and_mean, token_logprob};

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "answer_prob",
        name: "P(answer)",
        meaning: "probability of the answer's tokens",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| product_and_mean(&found.answer_logprobs()).0,
    },
    Score {
        key: "answer_mean",
        name: "P(answer), mean",
        meaning: "their mean",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| product_and_mean(&found.answer_logprobs()).1,
    },
    Score {
        key: "response_prob",
        name: "P(response)",
        meaning: "probability of the whole response",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| product_and_mean(&found.response_logprobs()).0,
    },
    Score {
        key: "response_mean",
        name: "P(response), mean",
        meaning: "mean token probability",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| product_and_mean(&found.response_logprobs()).1,
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
    fn response_logprobs(&self) -> Vec<f64> {
        let counted = counted_span(self.response, self.answer, self.rules);
        counted.map(|position| token_logprob(self.response, position, self.rules)).collect()
    }
}
