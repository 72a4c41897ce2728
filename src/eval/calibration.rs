//! A calibration: a small file with the map from one score of a model to the probability that its answer is correct. `uqac
//! calibrate` fits it ([`super::analysis::calibrate`]); `ask`, `score` and `serve` find it by the hashes of the model's files
//! and report that probability, and no other number, as the confidence.
//!
//! It is looked up in the cache folder, then next to the model. A calibration fitted on another model, under another reading of
//! the method or by another version of the format is ignored.

use super::metrics::calibrators::{Isotonic, Platt, log_log};
use super::run::fingerprint::{Fingerprint, digits};
use crate::io::record::{Calibrated, Origin, Samples};
use crate::{cache, files, files::FileError, files::json_fault, uq::Reading};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, path::Path, path::PathBuf};

/// Version of the file's format.
pub const FORMAT: u32 = 2;

/// The file's name next to a model.
pub const FILE: &str = "uqac-calibration.json";

/// The subfolder for calibrations in the cache folder.
const CACHED: &str = "calibrations";

/// A fitted map, and what it was fitted on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub format: u32,
    /// Of the model it applies to.
    pub model: Fingerprint,
    /// The reading of the method that produced the scores.
    #[serde(flatten)]
    pub reading: Reading,
    pub tasks: Vec<String>,
    /// Answers it was fitted on, and how many of them are correct.
    pub items: usize,
    pub correct: usize,
    /// Key of the score that is mapped.
    pub score: String,
    /// How the samples were drawn that the score needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<Drawn>,
    /// Key of the score that holds its logarithm, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    pub map: Map,
    /// Lowest and highest of the answers' scores, in the map's input form. Nothing was observed beyond them.
    pub range: [f64; 2],
    /// Present if a threshold satisfies a target risk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified: Option<Certified>,
    /// Present instead if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertified: Option<Uncertified>,
    pub held_out: HeldOut,
    /// Whether it overrides one fitted on more answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
}

/// Samples beside a response: how many, and how they were drawn. With others a score of theirs means something else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    pub samples: usize,
    pub temperature: f64,
}

impl Drawn {
    /// Whether these were drawn so.
    pub fn is_of(&self, samples: Option<&Samples>) -> bool {
        samples.is_some_and(|found| (found.answers.len(), found.temperature) == (self.samples, self.temperature))
    }
}

/// A threshold above which the share of wrong answers is at most a target with some probability
/// ([`risk`](super::metrics::risk)): used by `--abstain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certified {
    pub target_risk: f64,
    /// The probability, over the answers it was chosen on, that the risk is at most the target.
    pub confidence: f64,
    /// Lower bound of an accepted score, in the map's input form.
    pub above: f64,
    /// Upper bound on the risk.
    pub bound: f64,
    /// Share of those answers above it.
    pub coverage: f64,
}

/// A target risk that no threshold satisfies, and what the answers can show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Uncertified {
    pub target_risk: f64,
    pub confidence: f64,
    /// The lowest risk that some threshold satisfies.
    pub lowest_risk: f64,
    /// About how many more answers like these would be needed; `None` if more would not help.
    pub more_needed: Option<usize>,
}

/// Clamps a probability fitted on n `items` to [1/(n + 2), 1 − 1/(n + 2)], the bounds of the rule of succession.
pub fn bounded(probability: f64, items: usize) -> f64 {
    let least = 1.0 / (items as f64 + 2.0);
    probability.clamp(least, 1.0 - least)
}

/// Held-out metrics of the whole procedure, including the choice of score and map: by cross-validation in which each fold is
/// predicted by what was chosen and fitted on the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    pub folds: usize,
    pub ece: f64,
    pub brier: f64,
    pub auroc: Option<f64>,
    /// Brier score of predicting the base rate of correct answers.
    pub brier_of_base_rate: f64,
    /// The folds' choices and their counts.
    pub chosen: BTreeMap<String, usize>,
}

/// A map from a score to a probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Map {
    /// σ(slope · x + intercept), where x is the score in this form.
    Platt { input: Input, slope: f64, intercept: f64 },
    /// Linear between knots (score in this form, probability), constant beyond them.
    Isotonic { input: Input, knots: Isotonic },
}

/// The form in which a map takes a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Unchanged.
    Score,
    /// −ln(−ln p) of a probability p: the log-odds near 1; near 0 it flattens ln p, which falls with every token.
    LogLog,
}

impl Input {
    /// A score in this form, finite; `log` is its logarithm, if known more precisely than from the score.
    pub fn of(self, score: f64, log: Option<f64>) -> f64 {
        match self {
            Input::Score => score,
            Input::LogLog => log_log(log.filter(|log| log.is_finite()).unwrap_or_else(|| libm::log(score))),
        }
    }
}

impl Map {
    pub fn input(&self) -> Input {
        let (Map::Platt { input, .. } | Map::Isotonic { input, .. }) = self;
        *input
    }

    /// The probability for a score in the form of [`input`](Self::input).
    pub fn at(&self, x: f64) -> f64 {
        match self {
            Map::Platt { slope, intercept, .. } => Platt { slope: *slope, intercept: *intercept }.at(x),
            Map::Isotonic { knots, .. } => knots.at(x),
        }
    }

    /// Display name of the map with this score: `Platt's sigmoid of −ln(−ln p)`.
    pub fn name(&self, score: &str) -> String {
        let what = if matches!(self, Map::Platt { .. }) { "Platt's sigmoid of" } else { "isotonic regression on" };
        match self.input() {
            Input::Score => format!("{what} {score}"),
            Input::LogLog => format!("{what} −ln(−ln {score})"),
        }
    }
}

/// A calibration cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: not a calibration: {}; make it again with `uqac calibrate`, or remove it", path.display(), json_fault(why))]
    Invalid { path: PathBuf, why: serde_json::Error },
    #[error("{}: fitted on {there} answers, more than these {items}; use --replace to take this one all the same", path.display())]
    Larger { path: PathBuf, there: usize, items: usize },
    #[error("--abstain: {}; run `uqac calibrate RUN --target-risk R`", if *calibrated { "the model's calibration has no certified threshold" } else { "the model has no calibration" })]
    NotCertified { calibrated: bool },
    #[error("no cache folder for the calibration: give --output FILE, or set UQAC_CACHE")]
    NoFolder,
}

impl Calibration {
    /// The calibrated confidence of an answer from its scores by key; `None` if the score is missing. A score outside the range
    /// gets the confidence of the nearest one inside.
    pub fn confidence(&self, score: impl Fn(&str) -> Option<f64>) -> Option<Calibrated> {
        let log = self.log.as_deref().and_then(&score);
        let x = self.map.input().of(score(&self.score).filter(|score| !score.is_nan())?, log);
        let [low, high] = self.range;
        let out_of_range = !(low..=high).contains(&x);
        Some(Calibrated {
            value: bounded(self.map.at(x.max(low).min(high)), self.items),
            score: self.score.clone(),
            calibration: Origin { tasks: self.tasks.clone(), n: self.items, ece: self.held_out.ece },
            out_of_range,
            certified: !out_of_range && self.certified.as_ref().is_some_and(|certified| x > certified.above),
        })
    }

    /// The calibration for this model and reading, if there is one: in the cache folder (the user's own) or next to the model.
    /// If both exist, the one with more answers, unless the user's [`replaces`](Self::replaces) the other.
    ///
    /// # Errors
    /// An existing file that is not a calibration.
    pub fn find(folder: &Path, model: &Fingerprint, reading: &Reading) -> Result<Option<Self>, CalibrationError> {
        let files = Self::files(folder, model)?.into_iter();
        let mut fitting = files.map(|(_, found)| found).filter(|found| found.reading == *reading);
        Ok(match (fitting.next(), fitting.next()) {
            (Some(own), Some(shipped)) if !own.replaces && shipped.items > own.items => Some(shipped),
            (first, _) => first,
        })
    }

    /// Files with a calibration of this model, under any reading: the user's own before the one next to the model.
    ///
    /// # Errors
    /// An existing file that is not a calibration.
    pub fn files(folder: &Path, model: &Fingerprint) -> Result<Vec<(PathBuf, Self)>, CalibrationError> {
        let read =
            |path: PathBuf| Ok(Self::read(&path)?.filter(|found| found.model == *model).map(|found| (path, found)));
        cached(model).into_iter().chain([folder.join(FILE)]).map(read).filter_map(Result::transpose).collect()
    }

    /// Removes the user's own calibration of a model and returns its path; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(model: &Fingerprint) -> Result<Option<PathBuf>, CalibrationError> {
        let Some(path) = cached(model) else { return Ok(None) };
        let removed = files::if_there(std::fs::remove_file(&path)).map_err(FileError::at(&path))?;
        Ok(removed.map(|()| path))
    }

    /// Reads a file; `None` if it is missing or in another format.
    fn read(path: &Path) -> Result<Option<Self>, CalibrationError> {
        let text = files::if_there(std::fs::read_to_string(path)).map_err(FileError::at(path))?;
        let Some(text) = text else { return Ok(None) };
        let invalid = |error| CalibrationError::Invalid { path: path.to_owned(), why: error };
        let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
        match value["format"].as_u64().is_some_and(|format| format != u64::from(FORMAT)) {
            true => Ok(None),
            false => serde_json::from_value(value).map(Some).map_err(invalid),
        }
    }

    /// Whether any file could be a calibration of the model in this folder; determining which requires the model's hashes.
    pub fn may_exist(folder: &Path) -> bool {
        folder.join(FILE).is_file() || cache::folder().is_some_and(|folder| folder.join(CACHED).is_dir())
    }

    /// Writes it to a file, by default to its place in the cache folder; returns the path.
    ///
    /// # Errors
    /// The file cannot be written, or holds a calibration of the same model and reading on more answers that this one does not
    /// replace; or there is no cache folder.
    pub fn write(&self, path: Option<PathBuf>) -> Result<PathBuf, CalibrationError> {
        let path = path.or_else(|| cached(&self.model)).ok_or(CalibrationError::NoFolder)?;
        let there = Self::read(&path).ok().flatten();
        let same = |there: &Self| there.model == self.model && there.reading == self.reading;
        if let Some(there) = there.filter(same).filter(|there| !self.replaces && there.items > self.items) {
            return Err(CalibrationError::Larger { path, there: there.items, items: self.items });
        }
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        cache::write(&path, text.as_bytes()).map_err(FileError::at(&path))?;
        Ok(path)
    }
}

/// `<cache>/calibrations/<hash of the model's hashes>.json`
fn cached(model: &Fingerprint) -> Option<PathBuf> {
    let text = serde_json::to_string(model).unwrap_or_default();
    Some(cache::folder()?.join(CACHED).join(format!("{}.json", digits(Sha256::digest(text)))))
}
