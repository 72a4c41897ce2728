//! UQAC: from a traced response to a confidence in `[0, 1]` for its final answer.
//!
//! [`pipeline`] is the whole path, read from top to bottom: find the answer, follow the attention [`chain`] back from it,
//! keep what is [similar](similarity), re-score the [`ensemble`], compute the [`scores`]. Everything here is plain code over
//! a [`Response`] (the pass's record of each step) and the three queries of [`Traced`] that only an engine can answer.
//! Positions are 0-based over the whole sequence; the response starts at `prompt_len`; **row T** is what the model computes
//! with token `x_T` as its input, so it predicts `x_{T+1}`.

pub mod answer;
pub mod chain;
pub mod ensemble;
mod parameters;
pub mod pipeline;
pub mod predictions;
pub mod rules;
pub mod scores;
pub mod similarity;
pub mod stopwords;

pub use crate::backend::{Step, TokenLogprob};
pub use crate::engine::{Response, Traced, Variant};
pub use parameters::{ChainRule, Parameters, Profile, Reading, RuleError, RuleSetting, values};
pub use scores::Scores;

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One link of the attention chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Row relative to `prompt_len`: it predicts response token `row + 1`. -1 is the row before the response.
    pub row: i64,
    /// φ, the summed α* by which it was chosen; 0 for answer tokens, where the chain starts.
    pub score: f64,
    /// Mean cosine similarity to the answer tokens.
    pub similarity: f64,
    /// The row (relative) that contributed most to its φ; `None` for answer tokens.
    pub from: Option<i64>,
}

impl Link {
    /// A link about which nothing else is known.
    pub fn at(row: i64) -> Link {
        Link { row, score: 0.0, similarity: 0.0, from: None }
    }
}

/// One member of the ensemble; `position` (absolute) and `token` are `None` for the response itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub position: Option<usize>,
    pub token: Option<u32>,
    /// ln ∏ p(answer tokens)
    pub log_answer: f64,
    /// ln ∏ p(kept chain tokens)
    pub log_chain: f64,
}

/// The method's findings for one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Positions (absolute) of the answer's tokens.
    pub answer: Range<usize>,
    /// Ascending by row; the answer's own rows included.
    pub chain: Vec<Link>,
    /// Rows (relative) of the chain that the similarity filter kept, ascending; answer rows not included.
    pub kept: Vec<i64>,
    pub ensemble: Vec<Member>,
    pub scores: Scores,
}
