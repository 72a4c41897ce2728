//! Cheap competing scores from the same pass. They are not the authors': they use exact probabilities under every profile.

use super::{Found, SINGLE_PASS, mean, window_means};

/// Window length of [`lowest_window`], in tokens.
const WINDOW: usize = 64;

/// Standard deviations of −ln of the four terms of [`g4`], averaged over runs R1 to R5 (`benches/evidence/tables.py`, *G4*).
/// Frozen, as required by the registration of R6.
const SPREAD: [f64; 4] = [0.925, 0.784, 2.082, 2.481];

/// Lower bound of a term, in nats: a response without digits has 0 for the digits' term.
const LEAST_PART: f64 = 1e-4;

scores! {
    SINGLE_PASS:
    "trace_length", "Length", "minus the number of tokens", rank: 1
        => |found| Some(-(found.exact_logprobs(found.span()).len() as f64));
    "min_token_prob", "Least token p", "minimum token probability", rank: 0, is_probability: true
        => |found| Some(libm::exp(found.exact_logprobs(found.span()).into_iter().fold(0.0, f64::min))); // 1 without tokens
    "lowest_window", "Lowest window", "minimum over 64-token windows of the geometric mean probability",
        rank: 0, is_probability: true => |found| Some(lowest_window(&found.exact_logprobs(found.span())));
    "g4", "G4", "mean −ln of NLL and entropy; what to rank by", rank: 1, of_answer: true
        => |found| Some(g4(found));
}

/// The mean of −ln of the response's negative log-likelihood and summed entropy, the answer's summed entropy and the negative
/// log-likelihood of the tokens with a digit, each divided by its spread.
fn g4(found: &Found) -> f64 {
    let nll = |positions: Vec<usize>| -found.exact_logprobs(positions.into_iter()).iter().sum::<f64>();
    let entropy = |positions: Vec<usize>| found.entropies(positions.into_iter()).iter().sum::<f64>();
    let parts = [
        nll(found.span().collect()),
        entropy(found.span().collect()),
        entropy(found.answer.clone().collect()),
        nll(found.span().filter(|at| found.response.has_digit(*at)).collect()),
    ];
    mean(&parts.iter().zip(SPREAD).map(|(part, spread)| -libm::log(part.max(LEAST_PART)) / spread).collect::<Vec<_>>())
}

/// The lowest mean of ln p over any window of 64 consecutive tokens (over all if there are fewer), as a probability. DeepConf's
/// (`distribution.rs`) uses the top 20 tokens of each step instead of the one written.
fn lowest_window(logprobs: &[f64]) -> f64 {
    libm::exp(window_means(logprobs, WINDOW).into_iter().fold(0.0, f64::min))
}
