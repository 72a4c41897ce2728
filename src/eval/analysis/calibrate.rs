//! `uqac calibrate`: of graded runs, the score and the map whose probabilities are best, and how good they are on answers that
//! took no part in the choice.
//!
//! ```text
//! answers ─┬─ 5 folds ─ on 4: best of every score and map by 5-fold Brier, fitted ─ the 5th predicted ─ held-out figures
//!          └─ best of every score and map by 5-fold Brier, fitted on all ─ the calibration
//! ```

use super::load::{self, Item};
use super::{AnalysisError, Method};
use crate::eval::calibration::{Calibration, FORMAT, HeldOut, Input, Map, bounded};
use crate::eval::metrics::calibrators::{Isotonic, Platt};
use crate::eval::metrics::mt19937::Mt19937;
use crate::eval::metrics::{Binning, Ranking, auroc, brier, ece};
use crate::eval::run::fingerprint::Fingerprint;
use crate::uq::Reading;
use crate::uq::scores::Group;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Parts of a cross-validation.
pub const FOLDS: usize = 5;

/// Fewest answers, and fewest right and wrong ones, that a map is fitted on: a map of two parameters, cross-validated twice.
const MIN_ITEMS: usize = 50;
const MIN_OF_CLASS: usize = 10;

/// Fewest answers for isotonic regression, whose steps at the ends hold a few answers each.
const MIN_ISOTONIC: usize = 500;

/// Why runs cannot be calibrated on.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    #[error("{name}: the manifest has no {what}; run `uqac eval` with this version")]
    Manifest { name: String, what: &'static str },
    #[error("{first} and {other} have different {what}; a calibration covers one")]
    Different { first: String, other: String, what: &'static str },
    #[error(
        "{items} graded answers, {correct} of them right: expected at least {MIN_ITEMS}, and {MIN_OF_CLASS} right and wrong ones"
    )]
    TooFew { items: usize, correct: usize },
    #[error("no score \"{score}\" on every answer; valid names: auto, {}", known.join(", "))]
    NoScore { score: String, known: Vec<String> },
}

/// Answers with what a map needs of them.
struct Answers {
    scores: Vec<Scored>,
    correct: Vec<bool>,
}

/// A score of every answer.
struct Scored {
    method: Method,
    /// The score, and its logarithm where one is stored.
    values: Vec<(f64, Option<f64>)>,
}

/// A score and a kind of map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// Which of [`Answers::scores`].
    score: usize,
    input: Input,
    isotonic: bool,
}

/// The calibration of a model from its runs: of the score with this key, or with `None` of the best one from the responses' own
/// passes (others would cost `ask` more of them).
///
/// # Errors
/// Runs that cannot be read, are of different models or readings, or have too few answers; a score that they do not have.
pub fn calibrate(folders: &[PathBuf], score: Option<&str>, seed: u32) -> Result<Calibration, CalibrateError> {
    let runs = load::load(folders)?;
    let name = |run: &load::Run| run.folders.first().map_or(String::new(), |folder| folder.display().to_string());
    let of = |run: &load::Run| -> Result<(Fingerprint, Reading), CalibrateError> {
        let missing = |what| CalibrateError::Manifest { name: name(run), what };
        let model = parsed(&run.manifest["model"]).ok_or_else(|| missing("hashes of the model"))?;
        Ok((model, parsed(&run.manifest["options"]).ok_or_else(|| missing("profile"))?))
    };
    let Some((first, others)) = runs.split_first() else {
        return Err(CalibrateError::TooFew { items: 0, correct: 0 });
    };
    let (model, reading) = of(first)?;
    for run in others {
        let different = |what| CalibrateError::Different { first: name(first), other: name(run), what };
        let other = of(run)?;
        if other.0 != model {
            return Err(different("models"));
        }
        if other.1 != reading {
            return Err(different("profiles or rules"));
        }
    }
    let items = runs.iter().flat_map(|run| run.items.values());
    let items: Vec<&Item> = items.filter(|item| item.answered() && item.correct.is_some()).collect();
    let correct = items.iter().filter(|item| item.correct == Some(true)).count();
    let too_few = || CalibrateError::TooFew { items: items.len(), correct };
    if items.len() < MIN_ITEMS || correct.min(items.len() - correct) < MIN_OF_CLASS {
        return Err(too_few());
    }
    let answers = Answers::of(&items, score)?;
    let all = Mt19937::new(seed).permutation(items.len());
    let held_out = answers.held_out(&all).ok_or_else(too_few)?;
    let (candidate, map) = answers.best(&all).ok_or_else(too_few)?;
    let method = &answers.scores[candidate.score].method;
    Ok(Calibration {
        format: FORMAT,
        model,
        reading,
        tasks: items.iter().map(|item| item.task.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
        items: items.len(),
        correct,
        score: method.key.clone(),
        log: method.log.map(str::to_owned),
        map,
        held_out,
        replaces: false,
    })
}

fn parsed<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

impl Answers {
    fn of(items: &[&Item], score: Option<&str>) -> Result<Answers, CalibrateError> {
        let keys: BTreeSet<&str> = items.iter().flat_map(|item| item.uq.scores.keys().map(String::as_str)).collect();
        let methods = keys.iter().map(|key| Method::among(key, &keys, std::iter::empty()));
        let mut scores = Vec::new();
        for method in methods.filter(|method| matches!(method.group, Group::Uqac | Group::SinglePass)) {
            let of = |item: &&Item| {
                let log = method.log.and_then(|log| item.score(log));
                item.score(&method.key).map(|score| (score, log))
            };
            let values: Option<Vec<(f64, Option<f64>)>> = items.iter().map(of).collect();
            scores.extend(values.map(|values| Scored { method, values }));
        }
        if let Some(score) = score {
            let known = scores.iter().map(|scored: &Scored| scored.method.key.clone()).collect();
            scores.retain(|scored| scored.method.key == score);
            if scores.is_empty() {
                return Err(CalibrateError::NoScore { score: score.to_owned(), known });
            }
        }
        Ok(Answers { scores, correct: items.iter().map(|item| item.correct == Some(true)).collect() })
    }

    /// Every score with every map that suits it.
    fn candidates(&self) -> impl Iterator<Item = Candidate> + use<'_> {
        let of_score = |(score, scored): (usize, &Scored)| {
            let inputs: &[Input] =
                if scored.method.probability { &[Input::LogOdds, Input::Log] } else { &[Input::Score] };
            let platt = inputs.iter().map(move |input| Candidate { score, input: *input, isotonic: false });
            // isotonic regression depends on the order alone, but for what lies between two knots
            let isotonic = Candidate { score, input: inputs[0], isotonic: true };
            platt.chain(Some(isotonic).filter(|_| self.correct.len() >= MIN_ISOTONIC))
        };
        self.scores.iter().enumerate().flat_map(of_score)
    }

    /// The candidate fitted on these answers.
    fn fit(&self, candidate: Candidate, answers: &[usize]) -> Option<Map> {
        let Candidate { score, input, isotonic } = candidate;
        let of = |item: &usize| {
            let (score, log) = self.scores[score].values[*item];
            (input.of(score, log), self.correct[*item])
        };
        let (mut inputs, mut labels): (Vec<f64>, Vec<bool>) = answers.iter().map(of).unzip();
        if isotonic {
            // one wrong answer more at the top and one right one at the bottom: a step of a few answers alike is no certainty
            let ends = [(f64::max as fn(f64, f64) -> f64, false), (f64::min, true)];
            for (end, label) in ends {
                inputs.extend(inputs.iter().copied().reduce(end));
                labels.push(label);
            }
            return Isotonic::fit(&inputs, &labels).map(|knots| Map::Isotonic { input, knots });
        }
        let Platt { slope, intercept } = Platt::fit(&inputs, &labels)?;
        // a score is higher for more confidence: a map that says otherwise has found noise
        (slope > 0.0).then_some(Map::Platt { input, slope, intercept })
    }

    /// Every answer's probability by what `choose` makes of the other folds.
    fn cross_validate(
        &self,
        answers: &[usize],
        mut choose: impl FnMut(&[usize]) -> Option<(Candidate, Map)>,
    ) -> Option<(Vec<f64>, Vec<bool>)> {
        let mut predicted = Vec::new();
        for fold in 0..FOLDS {
            let (rest, part) = split(answers, fold);
            let (candidate, map) = choose(&rest)?;
            predicted.extend(part.into_iter().map(|item| {
                let (score, log) = self.scores[candidate.score].values[item];
                (bounded(map.at(score, log), rest.len()), self.correct[item])
            }));
        }
        Some(predicted.into_iter().unzip())
    }

    /// The candidate of the least cross-validated Brier score on these answers (of equals the first), fitted on all of them.
    fn best(&self, answers: &[usize]) -> Option<(Candidate, Map)> {
        let fitted = |candidate: Candidate, answers: &[usize]| Some((candidate, self.fit(candidate, answers)?));
        let brier_of = |candidate: Candidate| {
            let (predicted, labels) = self.cross_validate(answers, |rest| fitted(candidate, rest))?;
            Some(predicted.iter().zip(labels).map(|(p, label)| (p - f64::from(u8::from(label))).powi(2)).sum::<f64>())
        };
        let scored = self.candidates().filter_map(|candidate| Some((brier_of(candidate)?, candidate)));
        let (_, candidate) = scored.min_by(|a, b| a.0.total_cmp(&b.0))?;
        fitted(candidate, answers)
    }

    /// The procedure on parts that it has not seen.
    fn held_out(&self, answers: &[usize]) -> Option<HeldOut> {
        let (mut base, mut chosen) = (Vec::new(), BTreeMap::<String, usize>::new());
        let (predicted, labels) = self.cross_validate(answers, |rest| {
            let right = rest.iter().filter(|item| self.correct[**item]).count();
            base.resize(base.len() + answers.len() - rest.len(), right as f64 / rest.len() as f64);
            let (candidate, map) = self.best(rest)?;
            *chosen.entry(map.name(&self.scores[candidate.score].method.key)).or_default() += 1;
            Some((candidate, map))
        })?;
        let levels = Ranking::of(&predicted, &labels).levels();
        Some(HeldOut {
            folds: FOLDS,
            ece: ece(&levels, Binning::Left)?,
            brier: brier(&levels)?,
            auroc: auroc(&levels),
            brier_of_base_rate: brier(&Ranking::of(&base, &labels).levels())?,
            chosen,
        })
    }
}

/// Answers without a fold's, and the fold's: every [`FOLDS`]th.
fn split(answers: &[usize], fold: usize) -> (Vec<usize>, Vec<usize>) {
    let those = |own: bool| {
        let items = answers.iter().enumerate().filter(|(i, _)| (i % FOLDS == fold) == own);
        items.map(|(_, item)| *item).collect()
    };
    (those(false), those(true))
}
