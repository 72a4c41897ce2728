//! Scores over content tokens only, which are neither stop words, punctuation nor whitespace (by
//! the chain's own list, `uq/stopwords.rs`); the answer's own form counts as content.

use super::{Found, SINGLE_PASS, mean};
use crate::{uq::predictions::step_of, uq::rules::StopWords, uq::stopwords::is_stop_word};

scores! {
    SINGLE_PASS:
    // Σ ln p. Inputs: log-probabilities and texts of tokens.
    "content_logprob", "ln P(content)", "log-probability of the content tokens"
        => |found| Some(0.0 + found.exact_logprobs(content(found)).iter().sum::<f64>());
    // (1/n) Σ ln p.
    "content_mean_logprob", "ln P(content), mean", "mean log-probability of the content tokens"
        => |found| Some(mean(&found.exact_logprobs(content(found))));
    // min p; 1 without content.
    "content_min_prob", "Least content p", "minimum probability of a content token", is_probability: true
        => |found| Some(libm::exp(found.exact_logprobs(content(found)).into_iter().fold(0.0, f64::min)));
    // −(1/n) Σ H of the predictions of content tokens, full vocabulary.
    "content_entropy", "Content entropy, mean", "minus the mean entropy at content tokens, nats"
        => |found| Some(0.0 - mean(&entropies(found)));
}

/// Positions (absolute) of the response's content tokens.
fn content<'a>(found: &'a Found) -> impl Iterator<Item = usize> + 'a {
    let answer = found.response.text(found.answer.clone());
    let text = |position: usize| found.response.token_text(position);
    found.span().filter(move |position| !is_stop_word(StopWords::AnswerAware, text(*position), &answer))
}

fn entropies(found: &Found) -> Vec<f64> {
    content(found).map(|position| step_of(found.response, position, found.rules).entropy).collect()
}
