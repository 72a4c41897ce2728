//! Predictive entropy as a confidence, −Σ H, and its length-normalized form, 1 − mean H (0 and 1 without rows),
//! whose calibration the paper measures as if it were a probability, though it may be below 0.

use super::{SINGLE_PASS, mean};
use crate::uq::predictions::{entropies, response_entropies};

scores! {
    SINGLE_PASS:
    "predictive_entropy", "Entropy", "minus the summed entropy, nats", rank: 0
        => |found| Some(negative_sum(&response_entropies(found.response, found.answer, found.rules)));
    "ln_predictive_entropy", "Entropy, mean", "1 - mean entropy", rank: 0, is_probability: true
        => |found| Some(1.0 - mean(&response_entropies(found.response, found.answer, found.rules)));
    "answer_entropy", "Answer entropy", "minus the summed entropy of the answer's tokens", rank: 0, of_answer: true
        => |found| Some(negative_sum(&entropies(found.response, found.answer.clone(), found.rules)));
    "ln_answer_entropy", "Answer entropy, mean", "1 - mean entropy of the answer's tokens",
        rank: 0, is_probability: true, of_answer: true
        => |found| Some(1.0 - mean(&entropies(found.response, found.answer.clone(), found.rules)));
}

fn negative_sum(entropies: &[f64]) -> f64 {
    0.0 - entropies.iter().sum::<f64>() // not -0 without rows
}
