//! The scores' inputs from the forward pass: token probabilities and prediction entropies, under the rules.

use super::rules::{EntropyRows, FirstRow, FirstToken, ResponseEnd, Rules, Vocabulary};
use super::{Response, Step};
use std::ops::Range;

/// Number of tokens per prediction under [`Vocabulary::Top5`].
pub const TOP: usize = 5;

/// Whether the token at `position` is predicted by a row other than the one before it.
fn is_wrapped(response: &Response, position: usize, rules: &Rules) -> bool {
    rules.first_row == FirstRow::Wrapped && position <= response.prompt_len
}

/// The step that predicts the token at `position` (absolute).
pub fn step_of<'a>(response: &'a Response, position: usize, rules: &Rules) -> &'a Step {
    let row = if is_wrapped(response, position, rules) { response.tokens.len() } else { position };
    response.step(row.saturating_sub(1))
}

/// ln p of the response token at `position` (absolute): exact, unless the rules limit it to the prediction's listed tokens;
/// then an unlisted token gets the first one's.
pub fn token_logprob(response: &Response, position: usize, rules: &Rules) -> f64 {
    if rules.probabilities == Vocabulary::Full && !is_wrapped(response, position, rules) {
        return response.logprob_at(position);
    }
    let top = &step_of(response, position, rules).top;
    let among = top.iter().take(TOP).find(|top| response.tokens.get(position) == Some(&top.token));
    among.or(top.first()).map_or(f64::NEG_INFINITY, |top| top.logprob)
}

/// Positions (absolute) of the response's tokens, up to the answer or the end.
pub fn response_span(response: &Response, answer: &Range<usize>, rules: &Rules) -> Range<usize> {
    match rules.response_end {
        ResponseEnd::Answer => response.prompt_len..answer.end,
        ResponseEnd::Sequence => response.prompt_len..response.tokens.len(),
    }
}

/// [`response_span`] without the first token if the rules skip it.
pub fn counted_span(response: &Response, answer: &Range<usize>, rules: &Rules) -> Range<usize> {
    let Range { start, end } = response_span(response, answer, rules);
    start + usize::from(rules.first_token == FirstToken::Skipped)..end
}

/// Those of `positions` (absolute) whose tokens the model chose.
pub fn chosen(response: &Response, positions: impl IntoIterator<Item = usize>) -> impl Iterator<Item = usize> {
    positions.into_iter().filter(|position| !response.is_forced(*position))
}

/// Entropy of a prediction in nats.
fn entropy(step: &Step, rules: &Rules) -> f64 {
    match rules.entropies {
        Vocabulary::Full => step.entropy,
        Vocabulary::Top5 => {
            let term = |logprob: f64| if logprob == f64::NEG_INFINITY { 0.0 } else { -libm::exp(logprob) * logprob };
            step.top.iter().take(TOP).map(|top| term(top.logprob)).sum()
        }
    }
}

/// Entropies of the predictions of `positions`' tokens.
pub fn entropies(response: &Response, positions: Range<usize>, rules: &Rules) -> Vec<f64> {
    chosen(response, positions).map(|position| entropy(step_of(response, position, rules), rules)).collect()
}

/// Entropies of the response's rows.
pub fn response_entropies(response: &Response, answer: &Range<usize>, rules: &Rules) -> Vec<f64> {
    match rules.entropy_rows {
        EntropyRows::Predicting => entropies(response, counted_span(response, answer, rules), rules),
        EntropyRows::Own => {
            let rows = response_span(response, answer, rules).filter(|row| !response.step(*row).forced);
            rows.map(|row| entropy(response.step(row), rules)).collect()
        }
    }
}

/// ∏ p and the mean of p (1 and 0 without tokens).
pub fn product_and_mean(logprobs: &[f64]) -> (f64, f64) {
    let product = libm::exp(logprobs.iter().sum());
    let mean = logprobs.iter().map(|logprob| libm::exp(*logprob)).sum::<f64>() / logprobs.len().max(1) as f64;
    (product, mean)
}
