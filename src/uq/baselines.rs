//! Baselines from the same pass, and the token probabilities and entropies that every score is made of.

use super::{Profile, Response, Step};
use std::ops::Range;

/// `reference` knows so many tokens of a prediction.
pub const REFERENCE_TOP: usize = 5;

/// Length in tokens of a window of [`lowest_window`].
const WINDOW: usize = 64;

/// `reference`: the step that is read for the token at `position`. Row -1 wraps: the first response token is looked up
/// in the response's last row.
pub fn reference_row<'a>(response: &'a Response, position: usize) -> &'a Step {
    let row = if position <= response.prompt_len { response.tokens.len() } else { position };
    response.step(row.saturating_sub(1))
}

/// ln p of the response token at `position` (absolute). Exact log-probabilities of the full vocabulary, but in
/// `reference`: probabilities come from the top 5 tokens, and a token outside them gets the top-1's.
pub fn token_logprob(response: &Response, position: usize, profile: Profile) -> f64 {
    if profile != Profile::Reference {
        return response.logprob_at(position);
    }
    let top = &reference_row(response, position).top;
    let among = top.iter().take(REFERENCE_TOP).find(|top| response.tokens.get(position) == Some(&top.token));
    among.or(top.first()).map_or(f64::NEG_INFINITY, |top| top.logprob)
}

/// Positions (absolute) of the tokens that count as the response. `corrected`: it ends at the answer's last token.
/// `reference` does not count the first token.
pub fn response_positions(response: &Response, answer: &Range<usize>, profile: Profile) -> Range<usize> {
    let end = response.tokens.len();
    match profile {
        Profile::Reference => response.prompt_len + 1..end,
        Profile::Paper => response.prompt_len..end,
        Profile::Corrected => response.prompt_len..answer.end,
    }
}

/// Entropy in nats of a row's prediction: full vocabulary; in `reference` -Σ p ln p over its top 5 tokens.
fn entropy(step: &Step, profile: Profile) -> f64 {
    match profile {
        Profile::Reference => {
            let term = |logprob: f64| if logprob == f64::NEG_INFINITY { 0.0 } else { -logprob.exp() * logprob };
            step.top.iter().take(REFERENCE_TOP).map(|top| term(top.logprob)).sum()
        }
        Profile::Paper | Profile::Corrected => step.entropy,
    }
}

/// Entropies of the predictions of `positions`' tokens. `reference` wraps the first token's.
pub fn entropies(response: &Response, positions: Range<usize>, profile: Profile) -> Vec<f64> {
    let step = |position: usize| match profile {
        Profile::Reference => reference_row(response, position),
        Profile::Paper | Profile::Corrected => response.step(position.saturating_sub(1)),
    };
    positions.map(|position| entropy(step(position), profile)).collect()
}

/// Entropies of the rows that count for the response's: those that predict its tokens; in `reference` all response rows,
/// template tokens after the answer and the last row included.
pub fn response_entropies(response: &Response, answer: &Range<usize>, profile: Profile) -> Vec<f64> {
    match profile {
        Profile::Reference => {
            let rows = response.prompt_len..response.tokens.len();
            rows.map(|row| entropy(response.step(row), profile)).collect()
        }
        Profile::Paper | Profile::Corrected => {
            entropies(response, response_positions(response, answer, profile), profile)
        }
    }
}

/// Predictive entropy as a confidence, -Σ H, and its length-normalized form, 1 - mean H (0 and 1 of no rows).
pub fn predictive_entropy(entropies: &[f64]) -> (f64, f64) {
    let sum: f64 = entropies.iter().sum();
    (0.0 - sum, 1.0 - sum / entropies.len().max(1) as f64)
}

/// ∏ p and the mean of p (1 and 0 of no tokens).
pub fn product_and_mean(logprobs: &[f64]) -> (f64, f64) {
    let product = logprobs.iter().sum::<f64>().exp();
    let mean = logprobs.iter().map(|logprob| logprob.exp()).sum::<f64>() / logprobs.len().max(1) as f64;
    (product, mean)
}

/// Least p of a token (1 of no tokens).
pub fn min_token_prob(logprobs: &[f64]) -> f64 {
    logprobs.iter().copied().fold(0.0, f64::min).exp()
}

/// DeepConf's lowest group confidence: the least mean of ln p over any window of 64 consecutive tokens (all of them where
/// there are fewer), as a probability.
pub fn lowest_window(logprobs: &[f64]) -> f64 {
    let length = logprobs.len().clamp(1, WINDOW);
    let mean = |window: &[f64]| window.iter().sum::<f64>() / length as f64;
    logprobs.windows(length).map(mean).fold(0.0, f64::min).exp()
}
