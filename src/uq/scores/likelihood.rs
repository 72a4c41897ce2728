//! P(answer) and P(response): ∏ p of the tokens and the mean of p, their logarithms, and the answer's minimum p.

use super::{Found, SINGLE_PASS, mean};
use crate::uq::predictions::{chosen, counted_span, product_and_mean, token_logprob};

scores! {
    SINGLE_PASS:
    "answer_prob", "P(answer)", "probability of the answer's tokens", rank: 0, is_probability: true, of_answer: true,
        log: Some("answer_logprob")
        => |found| Some(product_and_mean(&found.answer_logprobs()).0);
    "answer_mean", "P(answer), mean", "mean probability of the answer's tokens",
        rank: 0, is_probability: true, of_answer: true => |found| Some(product_and_mean(&found.answer_logprobs()).1);
    "response_prob", "P(response)", "probability of the whole response", rank: 0, is_probability: true, log: Some("response_logprob")
        => |found| Some(product_and_mean(&found.response_logprobs()).0);
    "response_mean", "P(response), mean", "mean token probability", rank: 0, is_probability: true
        => |found| Some(product_and_mean(&found.response_logprobs()).1);
    // Σ ln p over the answer, for when P(answer) underflows.
    "answer_logprob", "ln P(answer)", "log-probability of the answer's tokens", of_answer: true
        => |found| Some(found.answer_logprobs().iter().sum());
    // (1/n) Σ ln p over the answer, minus the log of its perplexity.
    "answer_mean_logprob", "ln P(answer), mean", "mean log-probability of the answer's tokens", of_answer: true
        => |found| Some(mean(&found.answer_logprobs()));
    // min p over the answer.
    "answer_min_prob", "Least answer p", "minimum probability of an answer token", is_probability: true, of_answer: true
        => |found| Some(libm::exp(found.answer_logprobs().into_iter().fold(0.0, f64::min)));
    // Σ ln p over the response, for when P(response) underflows.
    "response_logprob", "ln P(response)", "log-probability of the whole response"
        => |found| Some(0.0 + found.response_logprobs().iter().sum::<f64>());
    // (1/n) Σ ln p over the response, minus the log of its perplexity.
    "response_mean_logprob", "ln P(response), mean", "mean log-probability of a token"
        => |found| Some(mean(&found.response_logprobs()));
}

impl Found<'_> {
    /// ln p of the answer's tokens; an answer without tokens has probability 0.
    pub(super) fn answer_logprobs(&self) -> Vec<f64> {
        if self.answer.is_empty() {
            return vec![f64::NEG_INFINITY];
        }
        self.answer.clone().map(|position| token_logprob(self.response, position, self.rules)).collect()
    }

    /// ln p of the response's tokens, as far as the model chose them.
    pub(super) fn response_logprobs(&self) -> Vec<f64> {
        let counted = chosen(self.response, counted_span(self.response, self.answer, self.rules));
        counted.map(|position| token_logprob(self.response, position, self.rules)).collect()
    }
}
