//! Output records: one JSON object per input item, in input order.
//!
//! The field order is part of the format. A number that is not finite is written as `null`, so a line is always valid
//! JSON; everything else keeps the shortest digits that read back as the same float.

use super::jsonl::append::{AppendError, Existing, Output};
pub use crate::uq::pipeline::Answer;
use crate::uq::{Link, Member, Outcome, Reading, Scores, scores::samples::AGREEMENT};
use crate::{backend::WeightFormat, engine::FinishReason, model::reply::Reply, units::is_default};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Outcome of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Scored.
    Ok,
    /// The response has no final answer.
    NoAnswer,
    /// The item could not be scored; the reason is the record's `error`.
    #[default]
    Error,
}

/// Where a response was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOff {
    Thought,
    Reply,
}

impl CutOff {
    /// `None` for a complete response.
    pub fn of(is_cut_off: bool, reply: &Reply) -> Option<CutOff> {
        is_cut_off.then_some(if reply.is_open() { CutOff::Thought } else { CutOff::Reply })
    }
}

/// Trace of one row of the chain (`score --explain`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowTrace {
    /// Relative to `prompt_len`, as in [`Link`].
    pub row: i64,
    /// The heads with the lowest entropy, as layer · H + head, lowest entropy first.
    pub heads: Vec<u32>,
    /// Their entropies of the reweighted attention, in nats.
    pub entropies: Vec<f32>,
    /// Entropy gap from the last of them to the best head not chosen; `None` if unknown.
    pub gap: Option<f32>,
    /// The largest entries of α*, as (absolute position, weight), largest first.
    pub top: Vec<(usize, f32)>,
}

/// Maximum length of [`RowTrace::top`].
pub const TOP_ENTRIES: usize = 8;

/// The largest [`TOP_ENTRIES`] of a row of α*, largest first (ties: lower position). NaN entries come last.
pub fn top_entries(weights: &[f32]) -> Vec<(usize, f32)> {
    let mut entries: Vec<(usize, f32)> = weights.iter().copied().enumerate().collect();
    let key = |w: f32| if w.is_nan() { f32::NEG_INFINITY } else { w };
    entries.sort_by(|a, b| key(b.1).total_cmp(&key(a.1)));
    entries.truncate(TOP_ENTRIES);
    entries
}

/// The probability that an answer is correct, from a calibration of its model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibrated {
    #[serde(rename = "confidence")]
    pub value: f64,
    /// Key of the calibrated score.
    #[serde(rename = "from")]
    pub score: String,
    pub calibration: Origin,
    /// Whether the score lies outside of what the calibration was fitted on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out_of_range: bool,
    /// Whether the answer is above the calibration's certified threshold.
    #[serde(skip)]
    pub certified: bool,
}

/// Basis of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Origin {
    pub tasks: Vec<String>,
    /// Graded answers.
    pub n: usize,
    /// The calibration error on held-out answers.
    pub ece: f64,
}

/// The fields of a [`Calibrated`], or `"confidence": null`.
fn or_null<S: Serializer>(found: &Option<Calibrated>, serializer: S) -> Result<S::Ok, S::Error> {
    match found {
        Some(calibrated) => calibrated.serialize(serializer),
        None => serializer.collect_map([("confidence", ())]),
    }
}

/// Responses sampled from the same prompt, and their votes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    pub temperature: f64,
    /// Each sample's answer as text, `None` where it has none.
    pub answers: Vec<Option<String>>,
    /// Whether it is the response's answer; empty if that has none, and from older versions.
    #[serde(default)]
    pub agrees: Vec<bool>,
    /// The different answers, each as first written, and how many samples give it, most first.
    #[serde(default)]
    pub counts: Vec<(Option<String>, usize)>,
    /// Vote weights: ∏ p of each sample's answer tokens over the number of samples, 0 without an answer.
    pub weights: Vec<f64>,
    /// ln P of each sample, the sum over its tokens; `None` where a logit was not finite.
    #[serde(default)]
    pub logprobs: Vec<Option<f64>>,
    /// The answer with the largest weight, and that weight.
    pub majority: Option<String>,
    pub majority_weight: f64,
    pub response_tokens: Vec<usize>,
}

impl Samples {
    /// Number of samples that agree with the response.
    pub fn agreeing(&self) -> usize {
        self.agrees.iter().filter(|agrees| **agrees).count()
    }

    /// Their scores, as [`Scores::add`] takes them.
    pub fn scores(&self) -> [(&'static str, Option<f64>); 3] {
        let agreeing = self.weights.iter().zip(&self.agrees).filter(|(_, agrees)| **agrees);
        let there = |value: f64| (!self.agrees.is_empty()).then_some(value);
        [
            ("self_consistency", there(0.0 + agreeing.map(|(weight, _)| weight).sum::<f64>())),
            ("self_consistency_majority", self.majority.is_some().then_some(self.majority_weight)),
            (AGREEMENT, there(self.agreeing() as f64 / self.answers.len().max(1) as f64)),
        ]
    }
}

/// A response that is not to be taken for an answer, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Withheld {
    pub why: String,
    pub answer: Option<Answer>,
    pub response: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
}

/// One line of the output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Record {
    /// As in the input: a string or a number.
    pub id: Value,
    /// The profile, and `rules` for those set individually.
    #[serde(flatten)]
    pub reading: Reading,
    pub status: Status,
    /// Where the response was cut off, unless it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `None` if unknown, for an invalid item.
    #[serde(rename = "n_instr")]
    pub prompt_len: Option<usize>,
    /// Tokens of the response before its reply.
    #[serde(skip_serializing_if = "is_default")]
    pub thought: usize,
    /// Positions `[start, end)` of tokens that the model did not choose: they close a thought over budget.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<[usize; 2]>,
    pub answer: Option<Answer>,
    pub chain: Vec<Link>,
    /// Rows of the chain that the similarity filter kept.
    pub kept: Vec<i64>,
    pub scores: Option<Scores>,
    /// Responses sampled beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
    /// `None` without a calibration of the model.
    #[serde(flatten, serialize_with = "or_null")]
    pub confidence: Option<Calibrated>,
    /// With `--abstain`: whether the answer is withheld because it is not above the certified threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abstained: Option<bool>,
    /// What an abstained answer leaves out elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// Whether the answer matches the item's target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    pub ensemble: Vec<Member>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Vec<RowTrace>>,
    /// Weight format in memory, if not the files'.
    #[serde(skip_serializing_if = "WeightFormat::is_file")]
    pub weights: WeightFormat,
}

impl Record {
    /// A scored item; `text` is the answer's.
    pub fn ok(id: Value, reading: impl Into<Reading>, prompt_len: usize, text: String, outcome: Outcome) -> Record {
        let Outcome { answer: tokens, chain, kept, ensemble, scores } = outcome;
        Record {
            prompt_len: Some(prompt_len),
            answer: Some(Answer { text, tokens }),
            chain,
            kept,
            scores: Some(scores),
            ensemble,
            ..Record::empty(id, reading, Status::Ok)
        }
    }

    /// An item whose response has no final answer.
    pub fn no_answer(id: Value, reading: impl Into<Reading>, prompt_len: usize) -> Record {
        Record { prompt_len: Some(prompt_len), ..Record::empty(id, reading, Status::NoAnswer) }
    }

    /// An item that could not be scored, and why.
    pub fn error(id: Value, reading: impl Into<Reading>, prompt_len: Option<usize>, why: impl Into<String>) -> Record {
        Record { error: Some(why.into()), prompt_len, ..Record::empty(id, reading, Status::Error) }
    }

    /// Moves the answer and its response to [`withheld`](Self::withheld).
    /// `samples`: how many its calibration is of, if they were not drawn.
    pub fn withhold(self, response: String, samples: Option<usize>) -> Record {
        let why = match (&self.answer, &self.confidence) {
            (None, _) => "the response has no final answer",
            (_, None) => &samples.map_or("the calibrated score was not computed".to_owned(), |n| {
                format!("the calibration holds beside {n} samples (--samples {n}; in requests uqac.samples)")
            }),
            (_, Some(found)) if found.out_of_range => "no answer of the calibration has such a score",
            _ => "its score is not above the threshold certified by `uqac calibrate --target-risk`",
        };
        let withheld = Some(Withheld { why: why.to_owned(), answer: self.answer, response, samples: self.samples });
        Record { abstained: Some(true), answer: None, samples: None, withheld, ..self }
    }

    fn empty(id: Value, reading: impl Into<Reading>, status: Status) -> Record {
        Record { id, reading: reading.into(), status, ..Record::default() }
    }
}

/// Output of `ask --json`: the record of an item and the details of its generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerRecord<'a> {
    #[serde(flatten)]
    pub record: Record,
    pub question: &'a str,
    pub response: &'a str,
    pub finish_reason: FinishReason,
    pub response_tokens: usize,
    /// `null` for too few tokens.
    pub tokens_per_second: Option<f64>,
}

/// Records cannot be written.
#[derive(Debug, Error)]
pub enum OutputError {
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("{}: line {line}: profile: expected {expected}, found {found}; resume with that profile or start a new file", file.display())]
    OtherProfile { file: PathBuf, line: u64, expected: Box<Reading>, found: Box<Reading> },
}

/// Records of an earlier run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Records per id; an input may repeat an id.
    left: std::collections::HashMap<String, usize>,
    pub records: usize,
    pub errors: usize,
}

/// Fields read from an earlier run's record.
#[derive(Deserialize)]
struct Earlier {
    id: Value,
    #[serde(flatten)]
    reading: Reading,
    status: Status,
}

impl Done {
    /// Examines an output of records of this reading; see [`Output::examine`].
    pub fn examine(path: &Path, on: Existing, reading: impl Into<Reading>) -> Result<(Output, Done), OutputError> {
        let (mut done, mut other, reading) = (Done::default(), None, reading.into());
        let output = Output::examine(path, on, "{\"id\":", |line, earlier: Earlier| {
            *done.left.entry(earlier.id.to_string()).or_default() += 1;
            done.records += 1;
            done.errors += usize::from(earlier.status == Status::Error);
            if earlier.reading != reading {
                other.get_or_insert((line, earlier.reading));
            }
        })?;
        let Some((line, found)) = other else { return Ok((output, done)) };
        let (expected, found) = (Box::new(reading), Box::new(found));
        Err(OutputError::OtherProfile { file: path.to_owned(), line, expected, found })
    }

    /// Whether an item with this id is already done; each record counts for one item.
    pub fn take(&mut self, id: &Value) -> bool {
        let left = self.left.get_mut(&id.to_string()).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }
}
