//! An evaluation's record of one item: a line of `samples_<task>.jsonl`.
//!
//! The outer keys are those of lm-evaluation-harness, so that its readers work; `uq` is ours. A non-finite number is written
//! as `null`.

use crate::io::record::{Answer, CutOff, Status};
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::uq::{Link, Member, Outcome, Reading, Scores};
use crate::{engine::FinishReason, model::chat::encode_plain, units::is_default};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, ops::Range};

/// Scores by name; `None` where one could not be computed. Higher is more confident.
pub type ScoreMap = BTreeMap<String, Option<f64>>;

/// The scores of a response by name.
pub fn score_map(scores: &Scores) -> ScoreMap {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    scores.iter().map(|(score, value)| (score.key.to_owned(), finite(value))).collect()
}

/// One item of a task, its response, its grade and its confidences. Checked on reading: positions must be in range, and
/// parallel lists must have equal lengths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")] // so that `deserialize` can be followed by `check`
pub struct Sample {
    /// The item's index in the task, from 0.
    pub doc_id: usize,
    /// The record's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Value>,
    /// The task, with a subtask after a colon: `gsm8k`, `bbh:causal_judgement`.
    pub task: String,
    /// The publisher's record.
    pub doc: Value,
    /// The correct answer, as text.
    pub target: String,
    /// Each request: the rendered prompt, and how the response was generated.
    pub arguments: Vec<(String, Map<String, Value>)>,
    /// The responses to each request.
    pub resps: Vec<Vec<String>>,
    /// The answer found in each request's response; `null` where there is none.
    pub filtered_resps: Vec<Option<String>>,
    /// `acc`: 1 if the answer is correct, else 0. `acc_reference`: the same under the authors' extraction and grading, if
    /// theirs finds an answer. `acc_majority`: the same for the answer that self-consistency's samples agree on.
    pub metrics: BTreeMap<String, f64>,
    pub uq: Uq,
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Sample::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sample, D::Error> {
        let sample = Sample::deserialize(deserializer)?;
        sample.check().map_err(D::Error::custom)?;
        Ok(sample)
    }
}

/// A sample's sequence cannot be reconstructed.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(
        "{task} {doc_id}: the prompt has {found} tokens, but had {expected} (n_instr) when the response was generated: \
         tokenizer.json or tokenizer_config.json of the model is another one now"
    )]
    OtherPrompt { task: String, doc_id: usize, expected: usize, found: usize },
}

impl Sample {
    /// The whole sequence, its prompt re-encoded, and the start of the response.
    ///
    /// # Errors
    /// The prompt encodes to a different number of tokens than before, which would shift positions.
    pub fn sequence(&self, tokenizer: &Tokenizer) -> Result<(Vec<u32>, usize), SequenceError> {
        let text = self.arguments.first().map_or("", |(text, _)| text);
        let expected = self.uq.prompt_len;
        let templated = tokenizer.encode(text, false)?;
        // a prompt without a template gets the tokenizer's own special tokens
        let mut tokens = if templated.len() == expected { templated } else { encode_plain(tokenizer, text)? };
        if tokens.len() != expected {
            let (task, doc_id, found) = (self.task.clone(), self.doc_id, tokens.len());
            return Err(SequenceError::OtherPrompt { task, doc_id, expected, found });
        }
        tokens.extend(&self.uq.tokens.ids);
        Ok((tokens, expected))
    }

    /// Returns an inconsistency: the field, expected and found.
    fn check(&self) -> Result<(), String> {
        let Uq { tokens: ResponseTokens { ids, offsets, logprobs }, prompt_len, .. } = &self.uq;
        let (count, start, end) = (ids.len(), *prompt_len, prompt_len.saturating_add(ids.len()));
        for (name, found) in [("offsets", offsets.len()), ("logprobs", logprobs.len())] {
            if found != count {
                return Err(format!("uq.tokens.{name}: expected {count}, one for each of ids, found {found}"));
            }
        }
        let text = self.resps.first().and_then(|texts| texts.first()).map_or("", String::as_str);
        if let Some([from, to]) = offsets.iter().find(|[from, to]| text.get(*from..*to).is_none()) {
            let len = text.len();
            return Err(format!(
                "uq.tokens.offsets: expected parts of the response's {len} bytes, found [{from}, {to}]"
            ));
        }
        match &self.uq.answer {
            Some(Answer { tokens, .. }) if tokens.start < start || tokens.is_empty() || tokens.end > end => {
                let Range { start: from, end: to } = tokens;
                let expected = format!("[start, end) with {start} <= start < end <= {end}");
                return Err(format!("uq.answer.tokens: expected {expected}, found [{from}, {to}]"));
            }
            None if self.uq.status == Status::Ok => {
                return Err("uq.answer: expected one where uq.status is ok, found null".to_owned());
            }
            _ => (),
        }
        let mut rows = self.uq.chain.iter().map(|link| link.row).chain(self.uq.kept.iter().copied());
        match rows.find(|row| !(-1..count as i64).contains(row)) {
            Some(row) => Err(format!("uq.chain, uq.kept: expected rows from -1 to {}, found {row}", count as i64 - 1)),
            None => Ok(()),
        }
    }
}

/// The confidences of a response, and their ingredients. Rows are relative to `prompt_len` (row r predicts response token
/// r + 1, row -1 the first); positions are absolute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Uq {
    pub status: Status,
    /// The reason, if `status` is `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it was measured under: the profile, and the rules and parameters that differ from it.
    #[serde(flatten)]
    pub reading: Reading,
    /// `length`: the response was cut off (truncated).
    pub finish: FinishReason,
    /// Where it was cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
    #[serde(rename = "n_instr")]
    pub prompt_len: usize,
    /// Tokens of the response before its reply; all of them, if it was cut off in its thought.
    #[serde(default, skip_serializing_if = "is_default")]
    pub thought: usize,
    pub tokens: ResponseTokens,
    /// Positions `[start, end)` of tokens that the model did not choose: they close a thought over budget.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<[usize; 2]>,
    pub answer: Option<Answer>,
    pub chain: Vec<Link>,
    /// Rows of the chain that the similarity filter kept.
    pub kept: Vec<i64>,
    pub ensemble: Vec<EnsembleMember>,
    /// Present if there is a chain, and response tokens before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub similarity: Option<Similarity>,
    /// Every method's score for this response: the keys of [`crate::uq::Scores`], and further methods'.
    pub scores: ScoreMap,
    /// By [measure](crate::engine::running::Measure): each new low of its mean over [`WINDOW`](crate::engine::running::WINDOW)
    /// tokens, as [tokens written, mean]. Only for runs with a wide trace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub running_lows: BTreeMap<String, Vec<(usize, f64)>>,
    /// Details of methods with their own passes, by key: `self_consistency`, `verbalized` ...
    #[serde(flatten)]
    pub details: Map<String, Value>,
    /// The same response under other parameters: its [controls](crate::eval::run::controls).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sweep: Vec<SweepPoint>,
    /// Seconds by stage: `generate` (batch time by tokens), `chain`, `ensemble`, `self_consistency`, `verbalized` ...
    pub seconds: BTreeMap<String, f64>,
}

/// The response's tokens, as parallel lists; end token included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponseTokens {
    pub ids: Vec<u32>,
    /// Byte range `[start, end)` of the response's text for each token; empty for the end token, and for tokens whose bytes
    /// form a character only together with their neighbour's.
    pub offsets: Vec<[usize; 2]>,
    /// ln p over the full vocabulary.
    pub logprobs: Vec<Option<f64>>,
}

/// Mean cosine similarity of final hidden states to those of the answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Similarity {
    /// Over the chain's tokens, excluding the answer's.
    pub chain: f64,
    /// Over all response tokens before the answer.
    pub response: f64,
}

/// A member of the ensemble, and the text of the token it substitutes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnsembleMember {
    #[serde(flatten)]
    pub member: Member,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The response's confidences under parameters other than the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Differences by their command-line names: `k`, `theta`, `kept`, `tau`, `targets`, `chain` (with the index of the `draw`
    /// if it is random), `k-cache`, `v-cache`.
    pub setting: BTreeMap<String, Value>,
    /// Rows of the chain, and those kept.
    pub chain: Vec<i64>,
    pub kept: Vec<i64>,
    pub scores: ScoreMap,
}

impl SweepPoint {
    /// Results under a setting.
    pub fn of(setting: BTreeMap<String, Value>, outcome: Outcome) -> SweepPoint {
        let chain = outcome.chain.iter().map(|link| link.row).collect();
        SweepPoint { setting, chain, kept: outcome.kept, scores: score_map(&outcome.scores) }
    }
}
