//! Predictive entropy as a confidence, −Σ H, and its length-normalized form, 1 − mean H (0 and 1 of no rows), whose
//! calibration the paper measures as that of a probability, though it may be below 0.

use super::{Found, SINGLE_PASS, Score};
use crate::uq::predictions::{entropies, response_entropies};

pub(super) const SCORES: &[Score] = &[
    Score {
        key: "predictive_entropy",
        name: "Entropy",
        meaning: "minus the summed entropy, nats",
        place: 0,
        compute: |found| Some(negative_sum(&of_response(found))),
        ..SINGLE_PASS
    },
    Score {
        key: "ln_predictive_entropy",
        name: "Entropy, mean",
        meaning: "1 - mean entropy",
        place: 0,
        is_probability: true,
        compute: |found| Some(one_minus_mean(&of_response(found))),
        ..SINGLE_PASS
    },
    Score {
        key: "answer_entropy",
        name: "Answer entropy",
        meaning: "minus the summed entropy of the answer's tokens",
        place: 0,
        compute: |found| Some(negative_sum(&of_answer(found))),
        of_answer: true,
        ..SINGLE_PASS
    },
    Score {
        key: "ln_answer_entropy",
        name: "Answer entropy, mean",
        meaning: "1 - mean entropy of the answer's tokens",
        place: 0,
        is_probability: true,
        compute: |found| Some(one_minus_mean(&of_answer(found))),
        of_answer: true,
        ..SINGLE_PASS
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
