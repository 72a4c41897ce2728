//! UQAC: from a traced response to a confidence in `[0, 1]` for its final answer.
//!
//! Everything here is plain code over a [`Response`] (what each step of the pass left behind) and the three questions
//! of [`Traced`] that only an engine can answer. Positions are 0-based over the whole sequence; the response starts at
//! `prompt_len`; **row T** is what the model computes with token `x_T` as its input, so it predicts `x_{T+1}`.

pub mod answer;
pub mod baselines;
pub mod chain;
pub mod confidence;
pub mod ensemble;
pub mod pipeline;
pub mod recency;
pub mod similarity;
pub mod stopwords;

pub use crate::backend::{Step, TokenLogprob};

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which reading of the method is computed (the authors' code differs from their paper, and both have defects).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// What the authors' published code does, defects included: for comparison with published numbers.
    Reference,
    /// The paper's text.
    Paper,
    /// The paper's intent without the defects of either.
    Corrected,
}

/// Where the chain comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ChainRule {
    /// Backtracking along the attention.
    #[default]
    Attention,
    /// An ablation: every token of the response is in the chain.
    None,
}

/// The method's parameters; the symbols are the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    pub profile: Profile,
    pub chain: ChainRule,
    /// L_tgt: at most so many targets are chosen in one backtracking step.
    pub targets_per_step: usize,
    /// θ: a target needs at least this score, once the chain is long enough.
    pub score_threshold: f64,
    /// The length (answer tokens not counted) from which θ applies.
    pub min_chain_length: usize,
    /// L': so many tokens of the chain are kept by the similarity filter.
    pub max_kept: usize,
    /// Least similarity that the filter keeps.
    pub min_similarity: f64,
    /// τ: an alternative token joins the ensemble when its probability is above this.
    pub min_alternative: f64,
    /// `reference` only: the ensemble is drawn from this many candidates plus one per kept token.
    pub max_alternatives: usize,
}

impl Parameters {
    /// The published values: L_tgt = 3, θ = 0.5, L' = 10, τ = 0.01.
    pub fn published(profile: Profile) -> Self {
        Parameters {
            profile,
            chain: ChainRule::Attention,
            targets_per_step: 3,
            score_threshold: 0.5,
            min_chain_length: 5,
            max_kept: 10,
            min_similarity: 0.0,
            min_alternative: 0.01,
            max_alternatives: 10,
        }
    }
}

/// A response as the method sees it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The whole sequence: instruction, response, and the template's end tokens where it has them.
    pub tokens: &'a [u32],
    /// Where the response starts.
    pub prompt_len: usize,
    /// Text of each response token on its own: `token_texts[j]` belongs to `tokens[prompt_len + j]`.
    pub token_texts: &'a [String],
    /// `steps[j]` is row `prompt_len - 1 + j`, so it predicts response token j; one more than response tokens.
    pub steps: &'a [Step],
}

/// What a row outside the response left behind: nothing.
static NO_STEP: Step = Step { logprob: None, entropy: 0.0, top: Vec::new() };

impl Response<'_> {
    /// The step at row T (absolute); an empty one outside `prompt_len - 1 .. tokens.len()`.
    pub fn step(&self, row: usize) -> &Step {
        (row + 1).checked_sub(self.prompt_len).and_then(|j| self.steps.get(j)).unwrap_or(&NO_STEP)
    }

    /// ln p(token at `position`), absolute, as the response has it.
    pub fn logprob_at(&self, position: usize) -> f64 {
        position.checked_sub(1).and_then(|row| self.step(row).logprob).unwrap_or(f64::NEG_INFINITY)
    }

    /// The row, relative to `prompt_len`, that predicts the token at `position` (absolute): -1 for the first response token.
    pub fn relative_row(&self, position: usize) -> i64 {
        position as i64 - 1 - self.prompt_len as i64
    }

    /// The position (absolute) of the token that a row relative to `prompt_len` predicts; the inverse of `relative_row`.
    pub fn position_after(&self, relative_row: i64) -> usize {
        relative_row.saturating_add(1).saturating_add(self.prompt_len as i64).max(0) as usize
    }
}

/// A copy of the response with one token replaced; later text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Absolute position of the replaced token.
    pub position: usize,
    pub token: u32,
}

/// What the method asks of the engine that holds a response's KV cache and trace.
pub trait Traced {
    type Error;

    /// α* of each row (absolute): `max` over the row's K selected heads of the reweighted, normalized attention α'.
    /// Row T gives T + 1 weights; positions 0 and T are 0.
    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, Self::Error>;

    /// Cosines of final hidden states (after the final norm), row-major `[positions, answer]`; all positions absolute.
    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, Self::Error>;

    /// For each variant and each of `positions` (absolute, ascending): ln p(the variant's token at that position |
    /// the variant's tokens before it), full vocabulary. Positions up to the variant's own are those of the response
    /// (at its own: the replacement's). Overwrites the cache behind the earliest replaced position, which the next question
    /// that needs it has to restore.
    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, Self::Error>;
}

/// One link of the attention chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Row relative to `prompt_len`: it predicts response token `row + 1`. -1 is the row before the response.
    pub row: i64,
    /// φ, the summed α* that chose it; 0 for answer tokens, where the chain starts.
    pub score: f64,
    /// Mean cosine to the answer tokens.
    pub similarity: f64,
    /// The row (relative) whose attention gave it most; `None` for answer tokens.
    pub from: Option<i64>,
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

/// Every confidence of one response; higher is more confident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// ∏ p(answer tokens) and the mean of p
    pub answer_prob: f64,
    pub answer_mean: f64,
    /// ∏ p(response tokens) and the mean of p
    pub response_prob: f64,
    pub response_mean: f64,
    /// P_attn = ∏ p(chain) ∏ p(answer), and the mean of p over both
    pub p_attn: f64,
    pub attn_mean: f64,
    /// P_sim, the same over the filtered chain
    pub p_sim: f64,
    pub sim_mean: f64,
    /// P, the marginal over the ensemble: UQAC's confidence
    pub p: f64,
    /// −Σ H over the response's rows; 1 − mean H
    pub predictive_entropy: f64,
    pub ln_predictive_entropy: f64,
    /// the same over the rows that predict the answer
    pub answer_entropy: f64,
    pub ln_answer_entropy: f64,
    /// −(number of response tokens)
    pub trace_length: f64,
    /// least p of a response token
    pub min_token_prob: f64,
    /// least mean ln p over any window of consecutive response tokens, as a probability (DeepConf's lowest group)
    pub lowest_window: f64,
}

/// What the method found for one response.
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
