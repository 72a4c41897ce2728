//! What ranking costs: AUROC against passes, which are the tokens generated over those of the responses.

use super::compare::estimates;
use super::*;
use crate::eval::metrics::{Confidence, Ranking, auroc, length_controlled_auroc};
use crate::eval::{grading::normal_form, run, run::methods::METHODS};
use crate::{
    io::record::Samples,
    uq::answer::Grader,
    uq::scores::samples::{G4_AGREEMENT, sigmoid},
};
use serde::Deserialize;

/// The share of samples that agree with the response, alone.
pub const AGREEMENT: &str = "agreement";

/// A score's ranking of the answered items, and its cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Key of the score, or [`AGREEMENT`].
    pub method: String,
    /// The first samples of each item that it counts; `None` for a score of something else, or as recorded.
    pub samples: Option<usize>,
    /// 1 for a score that needs nothing but the response.
    pub passes: f64,
    pub items: usize,
    pub auroc: Option<Estimate>,
    pub length_controlled_auroc: Option<f64>,
}

/// The recorded scores, then agreement, alone and with G4, at 1 to N samples; empty if nothing but the responses was generated.
pub(super) fn costs(data: Data, analysed: &[MethodAnalysis]) -> Vec<Cost> {
    let cost = |found: &MethodAnalysis| {
        let of = METHODS.iter().find(|of| of.scores.iter().any(|score| score.key == found.method));
        let drawn = |item: &Item, of: &run::methods::Method| -> Option<u64> {
            let tokens = item.uq.details.get(&of.field())?["response_tokens"].as_array()?;
            tokens.iter().map(Value::as_u64).sum()
        };
        let tokens = |item| Some((item, of.map_or(Some(0), |of| drawn(item, of))?));
        Some(Cost {
            method: found.method.clone(),
            samples: None,
            passes: passes(data.items.iter().filter_map(tokens))?,
            items: found.answered.items,
            auroc: found.answered.get(Metric::Auroc),
            length_controlled_auroc: found.length_controlled_auroc,
        })
    };
    let drawn: Vec<Drawn> = data.items.iter().enumerate().filter_map(Drawn::of).collect();
    let most = drawn.iter().map(|drawn| drawn.samples.answers.len()).min().unwrap_or(0);
    let is_swept = |found: &&MethodAnalysis| most == 0 || found.method != G4_AGREEMENT;
    let mut costs: Vec<Cost> = analysed.iter().filter(is_swept).filter_map(cost).collect();
    for n in 1..=most {
        costs.extend([AGREEMENT, G4_AGREEMENT].map(|method| of_samples(data, &drawn, method, n)));
    }
    let more = costs.iter().any(|cost| cost.passes > 1.0);
    if more { costs } else { Vec::new() }
}

/// Of items and the tokens generated beside their responses.
fn passes<'i>(of: impl Iterator<Item = (&'i Item, u64)>) -> Option<f64> {
    let (own, more) = of.fold((0, 0), |(own, sum), (item, more)| (own + item.response_tokens, sum + more));
    (own > 0).then(|| 1.0 + more as f64 / own as f64)
}

/// An answered, graded item with samples.
struct Drawn<'i> {
    index: usize,
    item: &'i Item,
    correct: bool,
    g4: f64,
    samples: Samples,
}

impl<'i> Drawn<'i> {
    fn of((index, item): (usize, &'i Item)) -> Option<Drawn<'i>> {
        let (correct, g4) = (item.correct.filter(|_| item.answered())?, item.score("g4")?);
        let mut samples = Samples::deserialize(item.uq.details.get("self_consistency")?).ok()?;
        if samples.agrees.is_empty() {
            // of an older version: numbers and formulas, for which one grader does
            let form = |answer: &String| normal_form(answer, Grader::Math);
            let own = item.uq.answer.as_ref().map(|answer| form(&answer.text));
            samples.agrees = samples.answers.iter().map(|answer| answer.as_ref().map(form) == own).collect();
        }
        Some(Drawn { index, item, correct, g4, samples })
    }

    /// As `method` scores its first `n` samples.
    fn score(&self, method: &str, n: usize) -> f64 {
        let share = self.samples.agrees.iter().take(n).filter(|agrees| **agrees).count() as f64 / n as f64;
        if method == G4_AGREEMENT { share + sigmoid(self.g4) } else { share }
    }
}

fn of_samples(data: Data, drawn: &[Drawn], method: &str, n: usize) -> Cost {
    let judged = |drawn: &Drawn| (drawn.index, Confidence::from(drawn.score(method, n)), drawn.correct);
    let ranking = Ranking::new(drawn.iter().map(judged));
    let by_length = |drawn: &Drawn| (drawn.score(method, n), drawn.item.response_tokens, drawn.correct);
    let tokens = |drawn: &Drawn| drawn.samples.response_tokens.iter().take(n).sum::<usize>() as u64;
    Cost {
        method: method.to_owned(),
        samples: Some(n),
        passes: passes(drawn.iter().map(|drawn| (drawn.item, tokens(drawn)))).unwrap_or(f64::NAN),
        items: drawn.len(),
        auroc: estimates(data, |counts| vec![auroc(&ranking.resampled(counts))]).pop().flatten(),
        length_controlled_auroc: length_controlled_auroc(&drawn.iter().map(by_length).collect::<Vec<_>>()),
    }
}
