//! Cheap rivals from the same pass. They are not the authors': they read exact probabilities under every profile.

use super::{Found, SINGLE_PASS, Score};

/// Length in tokens of a window of [`lowest_window`].
const WINDOW: usize = 64;

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "trace_length",
        name: "Length",
        meaning: "minus the number of tokens",
        place: 1,
        compute: |found| Some(-(exact_logprobs(found).len() as f64)),
        ..SINGLE_PASS
    },
    Score {
        key: "min_token_prob",
        name: "Least token p",
        meaning: "minimum token probability",
        place: 0,
        is_probability: true,
        compute: |found| Some(exact_logprobs(found).into_iter().fold(0.0, f64::min).exp()), // 1 of no tokens
        ..SINGLE_PASS
    },
    Score {
        key: "lowest_window",
        name: "Lowest window",
        meaning: "minimum over 64-token windows of the geometric mean probability",
        place: 0,
        is_probability: true,
        compute: |found| Some(lowest_window(&exact_logprobs(found))),
        ..SINGLE_PASS
    },
];

fn exact_logprobs(found: &Found) -> Vec<f64> {
    found.exact_logprobs(found.span())
}

/// The least mean of ln p over any window of 64 consecutive tokens (all of them where there are fewer), as a probability.
/// DeepConf's (`deepconf.rs`) reads the top 20 tokens of each step instead of the one written.
fn lowest_window(logprobs: &[f64]) -> f64 {
    let length = logprobs.len().clamp(1, WINDOW);
    let mean = |window: &[f64]| window.iter().sum::<f64>() / length as f64;
    logprobs.windows(length).map(mean).fold(0.0, f64::min).exp()
}
