//! `uqac calibrate`: selects, from graded runs, the score and map that yield the best probabilities, and measures their quality
//! on answers that took no part in the selection.
//!
//! ```text
//! answers ─┬─ 5 folds ─ on 4: best score and map by 5-fold Brier, fitted ─ the 5th predicted ─ held-out figures
//!          ├─ best score and map by 5-fold Brier, fitted on all ─ the calibration
//!          └─ the lowest threshold of that score that holds the target risk, if there is one
//! ```
//!
//! Few scores are tried: among many, the best on one run is the luckiest, and its map is overconfident. The threshold's
//! guarantee covers the selection among them, because each could have been certified with its share of the failure probability.

use super::load::{self, Item};
use super::{AnalysisError, Method};
use crate::eval::calibration::{Calibration, Certified, Drawn, FORMAT, HeldOut, Input, Map, Uncertified, bounded};
use crate::eval::metrics::{Binning, Isotonic, Platt, Ranking, RiskControl, auroc, brier, ece, permutation};
use crate::eval::samples::{MAX_SAMPLES, TEMPERATURE};
use crate::{
    eval::metrics::risk::Controlled,
    eval::run::fingerprint::Fingerprint,
    order::sort_by,
    uq::Reading,
    uq::scores::{self, samples::needs_samples},
};
use serde::Deserialize;
use serde_json::Value;
use std::{collections::BTreeMap, collections::BTreeSet, path::PathBuf};

/// Folds of a cross-validation.
pub const FOLDS: usize = 5;

/// Minimum answers, in total and per class, to fit a map on: a map of two parameters, cross-validated twice.
const MIN_ITEMS: usize = 50;
const MIN_OF_CLASS: usize = 10;

/// Minimum answers for isotonic regression, whose outermost steps hold few answers each.
const MIN_ISOTONIC: usize = 500;

/// Candidate scores for `auto`.
const SCORES: [&str; 4] = ["p", "response_prob", "min_token_prob", "g4"];

/// Why runs cannot be used for calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    #[error("{name}: the manifest has no {what}; run `uqac eval` with this version")]
    Manifest { name: String, what: &'static str },
    #[error("{first} and {other} have different {what}; a calibration covers one")]
    Different { first: String, other: String, what: &'static str },
    #[error(
        "{name}: {} samples at temperature {}; ask and serve draw at most {MAX_SAMPLES}, at {TEMPERATURE}, so such are needed here",
        found.samples, found.temperature
    )]
    Samples { name: String, found: Drawn },
    #[error(
        "{items} graded answers, {correct} of them right: expected at least {MIN_ITEMS}, and {MIN_OF_CLASS} right and wrong ones"
    )]
    TooFew { items: usize, correct: usize },
    #[error("no score \"{score}\" on every answer; valid names: auto, {}", known.join(", "))]
    NoScore { score: String, known: Vec<String> },
}

/// The data of answers needed to fit a map.
struct Answers {
    scores: Vec<Scored>,
    correct: Vec<bool>,
}

/// One score, on every answer.
struct Scored {
    method: Method,
    /// The form in which maps take the score, and the scores in that form.
    input: Input,
    inputs: Vec<f64>,
}

/// The calibration of a model from its runs: of the score with this key, or with `None` of the best of [`SCORES`]; `risk`: the
/// limit a threshold must satisfy.
///
/// # Errors
/// Runs that cannot be read, are of different models or readings, or have too few answers; a score they lack.
pub fn calibrate(
    folders: &[PathBuf],
    score: Option<&str>,
    risk: Option<RiskControl>,
    seed: u32,
) -> Result<Calibration, CalibrateError> {
    let runs = load::load(folders)?;
    let name = |run: &load::Run| run.folders.first().map_or(String::new(), |folder| folder.display().to_string());
    let of = |run: &load::Run| -> Result<(Fingerprint, Reading), CalibrateError> {
        let missing = |what| CalibrateError::Manifest { name: name(run), what };
        let model = Fingerprint::deserialize(&run.manifest["model"]).map_err(|_| missing("hashes of the model"))?;
        Ok((model, Reading::deserialize(&run.manifest["options"]).map_err(|_| missing("profile"))?))
    };
    let Some((first, others)) = runs.split_first() else {
        return Err(CalibrateError::TooFew { items: 0, correct: 0 });
    };
    let (model, reading) = of(first)?;
    let samples = drawn(&first.manifest);
    let other = |of: &Drawn| of.temperature != f64::from(TEMPERATURE) || of.samples > MAX_SAMPLES;
    if let Some(found) = samples.filter(|found| other(found) && score.is_some_and(needs_samples)) {
        return Err(CalibrateError::Samples { name: name(first), found });
    }
    for run in others {
        let what = match of(run)? {
            (other, _) if other != model => "models",
            (_, other) if other != reading => "profiles or rules",
            _ if score.is_some_and(needs_samples) && drawn(&run.manifest) != samples => "samples",
            _ => continue,
        };
        return Err(CalibrateError::Different { first: name(first), other: name(run), what });
    }
    // a question of several runs counts once: in the first
    let items: BTreeMap<_, &Item> = runs.iter().rev().flat_map(|run| &run.items).collect();
    let items: Vec<&Item> = items.into_values().filter(|item| item.answered() && item.correct.is_some()).collect();
    let correct = items.iter().filter(|item| item.correct == Some(true)).count();
    let too_few = || CalibrateError::TooFew { items: items.len(), correct };
    if items.len() < MIN_ITEMS || correct.min(items.len() - correct) < MIN_OF_CLASS {
        return Err(too_few());
    }
    let answers = Answers::of(&items, score, samples.is_some())?;
    let all = permutation(seed, items.len());
    let held_out = answers.held_out(&all).ok_or_else(too_few)?;
    let (Scored { method, inputs, .. }, map) = answers.best(&all).ok_or_else(too_few)?;
    let (certified, uncertified) = match risk.map(|risk| answers.certified(inputs, risk)) {
        Some(Ok(certified)) => (Some(certified), None),
        Some(Err(uncertified)) => (None, Some(uncertified)),
        None => (None, None),
    };
    let range =
        [f64::min as fn(f64, f64) -> f64, f64::max].map(|end| inputs.iter().copied().reduce(end).unwrap_or(0.0));
    Ok(Calibration {
        format: FORMAT,
        model,
        reading,
        tasks: items.iter().map(|item| item.task.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
        items: items.len(),
        correct,
        score: method.key.clone(),
        samples: samples.filter(|_| needs_samples(&method.key)),
        log: method.log.map(str::to_owned),
        map,
        range,
        certified,
        uncertified,
        held_out,
        replaces: false,
    })
}

/// How a run drew its samples; `None` without any.
fn drawn(manifest: &Value) -> Option<Drawn> {
    let options = &manifest["options"];
    let draws = options["methods"].as_array()?.contains(&"self-consistency".into());
    if draws { Drawn::deserialize(options).ok() } else { None }
}

impl Answers {
    fn of(items: &[&Item], score: Option<&str>, samples: bool) -> Result<Answers, CalibrateError> {
        let keys: BTreeSet<&str> = items.iter().flat_map(|item| item.uq.scores.keys().map(String::as_str)).collect();
        let methods = keys.iter().map(|key| Method::of(key, &keys, std::iter::empty()));
        let mut scores = Vec::new();
        let known = |method: &Method| scores::all().any(|score| score.key == method.key && !score.of_majority);
        for method in methods.filter(|method| known(method) && (samples || !needs_samples(&method.key))) {
            let input = if method.probability { Input::LogLog } else { Input::Score };
            let of = |item: &&Item| {
                let log = method.log.and_then(|log| item.score(log));
                item.score(&method.key).map(|score| input.of(score, log))
            };
            let inputs: Option<Vec<f64>> = items.iter().map(of).collect();
            scores.extend(inputs.map(|inputs| Scored { method, input, inputs }));
        }
        let known = scores.iter().map(|scored: &Scored| scored.method.key.clone()).collect();
        scores
            .retain(|Scored { method, .. }| score.map_or(SCORES.contains(&&*method.key), |score| method.key == score));
        if scores.is_empty() {
            let score = score.map_or_else(|| SCORES.join("\", \""), str::to_owned);
            return Err(CalibrateError::NoScore { score, known });
        }
        Ok(Answers { scores, correct: items.iter().map(|item| item.correct == Some(true)).collect() })
    }

    /// The lowest threshold of a score that satisfies the risk, valid jointly for all candidate scores.
    fn certified(&self, inputs: &[f64], risk: RiskControl) -> Result<Certified, Uncertified> {
        let RiskControl { target, confidence } = risk;
        let mut items: Vec<(f64, bool)> = inputs.iter().copied().zip(self.correct.iter().copied()).collect();
        // Answers above the highest score are withheld too (they are out of range). Given that score, the others are
        // independent draws from what lies below it, and so is every answer that will be returned.
        sort_by(&mut items, |a, b| a.0.total_cmp(&b.0));
        items.pop();
        let share = RiskControl { confidence: 1.0 - (1.0 - confidence) / self.scores.len() as f64, ..risk };
        let Some(Controlled { above, bound }) = share.threshold(&items) else {
            let (lowest_risk, more_needed) = (share.lowest_risk(&items), share.more_needed(&items));
            return Err(Uncertified { target_risk: target, confidence, lowest_risk, more_needed });
        };
        let coverage = inputs.iter().filter(|x| **x > above).count() as f64 / inputs.len() as f64;
        Ok(Certified { target_risk: target, confidence, above, bound, coverage })
    }

    /// Fits a map of a score to these answers.
    fn fit(&self, &Scored { input, ref inputs, .. }: &Scored, isotonic: bool, answers: &[usize]) -> Option<Map> {
        let of = |item: &usize| (inputs[*item], self.correct[*item]);
        let (mut inputs, mut labels): (Vec<f64>, Vec<bool>) = answers.iter().map(of).unzip();
        if isotonic {
            // add a wrong answer at the top and a right one at the bottom: a step of a few unanimous answers is no certainty
            let ends = [(f64::max as fn(f64, f64) -> f64, false), (f64::min, true)];
            for (end, label) in ends {
                inputs.extend(inputs.iter().copied().reduce(end));
                labels.push(label);
            }
            return Isotonic::fit(&inputs, &labels).map(|knots| Map::Isotonic { input, knots });
        }
        let Platt { slope, intercept } = Platt::fit(&inputs, &labels)?;
        // scores increase with confidence: a decreasing map has fitted noise
        (slope > 0.0).then_some(Map::Platt { input, slope, intercept })
    }

    /// Every answer's probability under the score and map that `choose` derives from the other folds.
    fn cross_validate<'s>(
        &'s self,
        answers: &[usize],
        mut choose: impl FnMut(&[usize]) -> Option<(&'s Scored, Map)>,
    ) -> Option<(Vec<f64>, Vec<bool>)> {
        let mut predicted = Vec::new();
        for fold in 0..FOLDS {
            // every FOLDS-th answer belongs to the fold
            let of_others = answers.iter().enumerate().filter(|(i, _)| i % FOLDS != fold);
            let rest: Vec<usize> = of_others.map(|(_, item)| *item).collect();
            let (score, map) = choose(&rest)?;
            let of_item = |&item: &usize| (bounded(map.at(score.inputs[item]), rest.len()), self.correct[item]);
            predicted.extend(answers.iter().skip(fold).step_by(FOLDS).map(of_item));
        }
        Some(predicted.into_iter().unzip())
    }

    /// Among all scores with all maps that there are enough answers for, the one with the lowest cross-validated Brier score on
    /// these answers (ties: the first), fitted on all of them.
    fn best(&self, answers: &[usize]) -> Option<(&Scored, Map)> {
        let maps: &[bool] = if self.correct.len() >= MIN_ISOTONIC { &[false, true] } else { &[false] };
        let candidates = self.scores.iter().flat_map(|score| maps.iter().map(move |&isotonic| (score, isotonic)));
        let brier_of = |(score, isotonic)| {
            let fit = |rest: &[usize]| Some((score, self.fit(score, isotonic, rest)?));
            let (predicted, labels) = self.cross_validate(answers, fit)?;
            Some(predicted.iter().zip(labels).map(|(p, label)| (p - f64::from(label)).powi(2)).sum::<f64>())
        };
        let scored = candidates.filter_map(|candidate| Some((brier_of(candidate)?, candidate)));
        let (_, (score, isotonic)) = scored.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((score, self.fit(score, isotonic, answers)?))
    }

    /// Evaluates the procedure on held-out folds.
    fn held_out(&self, answers: &[usize]) -> Option<HeldOut> {
        let (mut base, mut chosen) = (Vec::new(), BTreeMap::<String, usize>::new());
        let (predicted, labels) = self.cross_validate(answers, |rest| {
            let right = rest.iter().filter(|item| self.correct[**item]).count();
            base.resize(base.len() + answers.len() - rest.len(), right as f64 / rest.len() as f64);
            let (score, map) = self.best(rest)?;
            *chosen.entry(map.name(&score.method.key)).or_default() += 1;
            Some((score, map))
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
