//! Predictive entropy as a confidence, −Σ H, and its length-normalized form, 1 − mean H (0 and 1 of no rows), whose
//! calibration the paper measures as that of a probability, though it may be below 0.

use super::Group::SinglePass;
use super::{Found, Score};
use crate::uq::predictions::{entropies, response_entropies};

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "predictive_entropy",
        name: "Entropy",
        meaning: "minus the summed entropy, nats",
        group: SinglePass,
        place: 0,
        is_probability: false,
        compute: |found| Some(negative_sum(&of_response(found))),
    },
    Score {
        key: "ln_predictive_entropy",
        name: "Entropy, mean",
        meaning: "1 - mean entropy",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| Some(one_minus_mean(&of_response(found))),
    },
    Score {
        key: "answer_entropy",
        name: "Answer entropy",
        meaning: "minus the summed entropy of the answer's tokens",
        group: SinglePass,
        place: 0,
        is_probability: false,
        compute: |found| Some(negative_sum(&of_answer(found))),
    },
    Score {
        key: "ln_answer_entropy",
        name: "Answer entropy, mean",
        meaning: "1 - their mean entropy",
        group: SinglePass,
        place: 0,
        is_probability: true,
        compute: |found| Some(one_minus_mean(&of_answer(found))),
    },
];

fn of_response(found: &Found) -> Vec<f64> {
    response_entropies(found.response, found.answer, found.rules)
}

fn of_answer(found: &Found) -> Vec<f64> {
    entropies(found.response, found.answer.clone(), found.rules)
}

fn negative_sum(entropies: &[f64]) -> f64 {
    0.0 - entropies.iter().sum::<f64>() // not -0 of no rows
}

fn one_minus_mean(entropies: &[f64]) -> f64 {
    1.0 - entropies.iter().sum::<f64>() / entropies.len().max(1) as f64
}
