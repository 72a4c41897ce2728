//! What an evaluation records of one item: a line of `samples_<task>.jsonl`.
//!
//! The outer keys are those of lm-evaluation-harness, so that its readers find theirs; `uq` is ours. A number that is not
//! finite is written as `null`.

use crate::engine::FinishReason;
use crate::io::record::{Answer, Status};
use crate::model::chat::encode_plain;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::uq::{Link, Member, Profile, Scores};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Scores by name; `None` where one could not be computed. Higher is more confident.
pub type ScoreMap = BTreeMap<String, Option<f64>>;

/// The scores of a response by name.
pub fn score_map(scores: &Scores) -> ScoreMap {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    scores.iter().map(|(score, value)| (score.key.to_owned(), finite(value))).collect()
}

/// One item of a task, its response, its grade and its confidences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The item's index in the task, from 0.
    pub doc_id: usize,
    /// The task, a subtask after a colon: `gsm8k`, `bbh:causal_judgement`.
    pub task: String,
    /// The publisher's record.
    pub doc: Value,
    /// The right answer, as text.
    pub target: String,
    /// Each request: the rendered prompt, and how the response was generated.
    pub arguments: Vec<(String, Map<String, Value>)>,
    /// The responses to each request.
    pub resps: Vec<Vec<String>>,
    /// The answer found in each request's response; `null` where there is none.
    pub filtered_resps: Vec<Option<String>>,
    /// `acc`: 1 if the answer is right, else 0. `acc_reference`: the same by the authors' extraction and grading, where
    /// theirs finds an answer. `acc_majority`: the same of what self-consistency's samples agree on.
    pub metrics: BTreeMap<String, f64>,
    pub uq: Uq,
}

impl Sample {
    /// The whole sequence, its prompt encoded again, and where the response starts.
    pub fn sequence(&self, tokenizer: &Tokenizer) -> Result<(Vec<u32>, usize), TokenizerError> {
        let text = self.arguments.first().map_or("", |(text, _)| text);
        let templated = tokenizer.encode(text, false)?;
        // a prompt without a template has the tokenizer's own special tokens
        let mut tokens = if templated.len() == self.uq.prompt_len { templated } else { encode_plain(tokenizer, text)? };
        let prompt_len = tokens.len();
        tokens.extend(&self.uq.tokens.ids);
        Ok((tokens, prompt_len))
    }
}

/// The confidences of a response, and what they were made of. Rows are relative to `prompt_len` (row r predicts response
/// token r + 1, row -1 the first); positions are absolute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uq {
    pub status: Status,
    /// Why, where `status` is `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub profile: Profile,
    /// `length`: the response was cut off (truncated).
    pub finish: FinishReason,
    #[serde(rename = "n_instr")]
    pub prompt_len: usize,
    pub tokens: ResponseTokens,
    pub answer: Option<Answer>,
    pub chain: Vec<Link>,
    /// Rows of the chain that the similarity filter kept.
    pub kept: Vec<i64>,
    pub ensemble: Vec<EnsembleMember>,
    /// Every method's score of this response: the keys of [`crate::uq::Scores`], and further methods'.
    pub scores: ScoreMap,
    /// What methods with passes of their own tell, by their keys: `self_consistency`, `verbalized` ...
    #[serde(flatten)]
    pub details: Map<String, Value>,
    /// The same response under other parameters: its [controls](crate::eval::run::controls).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<SweepPoint>,
    /// Seconds by stage: `generate` (of its batch, by tokens), `chain`, `ensemble`, `self_consistency`, `verbalized` ...
    pub seconds: BTreeMap<String, f64>,
}

/// The response's tokens, aligned: end token included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseTokens {
    pub ids: Vec<u32>,
    /// Bytes `[start, end)` of the response's text that each token stands for; empty for the end token, and for tokens
    /// whose bytes become a character only with their neighbour's.
    pub offsets: Vec<[usize; 2]>,
    /// ln p, full vocabulary.
    pub logprobs: Vec<Option<f64>>,
}

/// A member of the ensemble, and the text of the token that it puts in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnsembleMember {
    #[serde(flatten)]
    pub member: Member,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The response's confidences under other parameters than the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// What differs, by its name on the command line: `k`, `theta`, `kept`, `tau`, `targets`, `chain` (with the number of the
    /// `draw` of one that is drawn), `k-cache`, `v-cache`.
    pub setting: BTreeMap<String, Value>,
    /// Rows of the chain, and of what was kept of it.
    pub chain: Vec<i64>,
    pub kept: Vec<i64>,
    pub scores: ScoreMap,
}
