//! The registry of scores: one entry per score, in the file of its family. An entry contains the score's key in JSON, its name
//! and definition in reports, and the function that computes it.

/// Declares a family's entries: key, name and meaning of each, fields that differ from the defaults, and its value.
macro_rules! scores {
    ($defaults:ident: $($key:literal, $name:literal, $meaning:literal $(, $field:ident: $value:expr)*
        => $compute:expr;)+) => {
        pub const SCORES: &[super::Score] = &[$(super::Score {
            key: $key,
            name: $name,
            meaning: $meaning,
            compute: $compute,
            $($field: $value,)*
            ..$defaults
        },)+];
    };
}

mod attention;
mod content;
mod distribution;
mod entropy;
mod likelihood;
mod profile;
mod rivals;
pub mod samples;
mod uqac;

use super::{Link, Member, Response, predictions::chosen, predictions::response_span, rules::Rules};
use crate::{backend::Distribution, backend::Step, names::named};
use samples::{AGREEMENT, G4_AGREEMENT};
use serde::{Serialize, Serializer};
use std::{ops::Index, ops::Range, sync::LazyLock};

named! {
    /// Cost of a score beyond the response itself, and its group in reports.
    #[derive(PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Group {
        Uqac = "UQAC": "UQAC and its components.",
        SinglePass = "single pass": "From the same pass as the response.",
        MorePasses = "more passes": "From further responses or turns.",
        Other = "other": "Not known to this program.",
    }
}

/// A score of a response. Higher is more confident.
pub struct Score {
    /// Its name in JSON and in options.
    pub key: &'static str,
    /// Its name in tables and figures.
    pub name: &'static str,
    /// A one-line definition.
    pub meaning: &'static str,
    pub group: Group,
    /// Rank within its group in reports; ties keep the registry's order.
    pub rank: u8,
    /// Whether it is meant as a probability, so that its calibration can be measured.
    pub is_probability: bool,
    /// Key of the score that holds the logarithm of this product of probabilities.
    pub log: Option<&'static str>,
    /// Whether it needs the answer's position.
    pub of_answer: bool,
    /// Whether it needs the ensemble, the only part of the method with passes of its own.
    pub of_ensemble: bool,
    /// Whether it scores the answer that several responses agree on instead of the response's own.
    pub of_majority: bool,
    /// `None` if its inputs were not recorded; some need an extended trace, some their own passes.
    pub compute: fn(&Found) -> Option<f64>,
}

/// Defaults of the single-pass scores, listed after the paper's own baselines.
pub const SINGLE_PASS: Score = Score {
    key: "",
    name: "",
    meaning: "",
    group: Group::SinglePass,
    rank: 2,
    is_probability: false,
    log: None,
    of_answer: false,
    of_ensemble: false,
    of_majority: false,
    compute: |_| None,
};

/// Defaults of UQAC's scores.
const UQAC: Score = Score { group: Group::Uqac, is_probability: true, of_answer: true, ..SINGLE_PASS };

/// The registry: the entries of every family, in JSON order.
const FAMILIES: [&[Score]; 9] = [
    likelihood::SCORES,
    uqac::SCORES,
    entropy::SCORES,
    rivals::SCORES,
    content::SCORES,
    profile::SCORES,
    distribution::SCORES,
    attention::SCORES,
    samples::SCORES,
];

/// The score to rank answers by if there is no calibration, and no sample: in a run registered beforehand, it ranked better than
/// log P(response) (`benches/EVIDENCE.md`, R6).
pub const RANKING: &str = "g4";

/// Every score, in JSON order.
pub fn all() -> impl Iterator<Item = &'static Score> {
    FAMILIES.into_iter().flatten()
}

/// Whether the score of this key needs the ensemble.
pub fn needs_ensemble(key: &str) -> bool {
    all().any(|score| score.key == key && score.of_ensemble)
}

/// Every score, in report order.
pub fn as_shown() -> &'static [&'static Score] {
    static SHOWN: LazyLock<Vec<&'static Score>> = LazyLock::new(|| {
        let mut scores: Vec<&Score> = all().collect();
        scores.sort_by_key(|score| (score.group, score.rank));
        scores
    });
    &SHOWN
}

/// The method's findings for a response: all inputs of a score.
#[derive(Clone, Copy)]
pub struct Found<'a> {
    pub response: &'a Response<'a>,
    /// Positions (absolute) of the answer's tokens.
    pub answer: &'a Range<usize>,
    pub chain: &'a [Link],
    /// Rows (relative) of the chain that the similarity filter kept.
    pub kept: &'a [i64],
    pub ensemble: &'a [Member],
    pub rules: &'a Rules,
}

impl Found<'_> {
    /// Positions (absolute) of the response's tokens that the model chose.
    fn span(&self) -> impl Iterator<Item = usize> {
        chosen(self.response, response_span(self.response, self.answer, self.rules))
    }

    /// ln p of the tokens at `positions` (absolute), over the full vocabulary whatever the rules.
    fn exact_logprobs(&self, positions: impl Iterator<Item = usize>) -> Vec<f64> {
        positions.map(|position| self.response.logprob_at(position)).collect()
    }

    /// The step that predicts the token at `position` (absolute); `None` for the sequence's first.
    fn step_before(&self, position: usize) -> Option<&Step> {
        Some(self.response.step(position.checked_sub(1)?))
    }

    /// Entropies of the predictions of the tokens at `positions` (absolute), over the full vocabulary.
    fn entropies(&self, positions: impl Iterator<Item = usize>) -> Vec<f64> {
        positions.filter_map(|position| Some(self.step_before(position)?.entropy)).collect()
    }

    /// The distributions that predict the tokens at `positions` (absolute); `None` if the trace was not wide or there are no
    /// tokens.
    fn distributions(&self, positions: impl Iterator<Item = usize>) -> Option<Vec<Distribution>> {
        let found: Option<Vec<_>> = positions.map(|position| self.step_before(position)?.distribution).collect();
        found.filter(|found| !found.is_empty())
    }
}

/// The mean; 0 without values.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The means of all windows of `length` consecutive values; if there are fewer, the mean of all.
fn window_means(values: &[f64], length: usize) -> Vec<f64> {
    values.windows(length.min(values.len()).max(1)).map(mean).collect()
}

/// The scores of one response whose inputs were recorded, in the registry's order. As JSON: a map from key to value.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores(Vec<Option<f64>>);

impl Scores {
    pub fn compute(found: &Found) -> Self {
        let known = |score: &Score| !score.of_ensemble || !found.ensemble.is_empty();
        Scores(all().map(|score| (score.compute)(found).filter(|_| known(score))).collect())
    }

    /// The scores of a response without an answer: those that cover the whole response.
    pub fn of_response(response: &Response, rules: &Rules) -> Self {
        let end = response.tokens.len();
        let found = Found { response, answer: &(end..end), chain: &[], kept: &[], ensemble: &[], rules };
        Scores(all().map(|score| (score.compute)(&found).filter(|_| !score.of_answer)).collect())
    }

    /// A value for each score, as without samples.
    #[cfg(test)]
    pub fn from_fn(mut value: impl FnMut(&'static Score) -> f64) -> Self {
        Scores(all().map(|score| (!samples::needs_samples(score.key)).then(|| value(score))).collect())
    }

    /// The score to rank by and its value: [`RANKING`], with samples [`G4_AGREEMENT`]; NaN if its inputs were not recorded.
    pub fn ranking(&self) -> (&'static str, f64) {
        let of = |key| Some((key, self.get(key)?));
        of(G4_AGREEMENT).or_else(|| of(RANKING)).unwrap_or((RANKING, f64::NAN))
    }

    /// Adds scores of samples, and with G4 what combines them.
    pub fn add(&mut self, of_samples: &[(&str, Option<f64>)]) {
        let find = |key: &str| of_samples.iter().find(|(found, _)| *found == key).and_then(|(_, score)| *score);
        let with_g4 = find(AGREEMENT).zip(self.get("g4")).map(|(share, g4)| share + samples::sigmoid(g4));
        for (score, value) in all().zip(&mut self.0).filter(|(score, _)| samples::needs_samples(score.key)) {
            *value = if score.key == G4_AGREEMENT { with_g4 } else { find(score.key) };
        }
    }

    /// `None` for an unknown key, or if the score's inputs were not recorded.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.iter().find(|(score, _)| score.key == key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static Score, f64)> {
        all().zip(&self.0).filter_map(|(score, value)| Some((score, (*value)?)))
    }
}

impl Index<&str> for Scores {
    type Output = f64;

    /// # Panics
    /// If there is no score with this key, or its inputs were not recorded.
    fn index(&self, key: &str) -> &f64 {
        let found = all().zip(&self.0).find(|(score, _)| score.key == key);
        found.and_then(|(_, value)| value.as_ref()).unwrap_or_else(|| panic!("there is no score \"{key}\""))
    }
}

impl Serialize for Scores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(score, value)| (score.key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_and_every_score_says_what_it_is() {
        let keys: BTreeSet<&str> = all().map(|score| score.key).collect();
        assert_eq!(keys.len(), all().count());
        assert!(all().all(|score| !score.key.is_empty() && !score.name.is_empty() && !score.meaning.is_empty()));
        assert_eq!(as_shown().len(), all().count());
        assert_eq!(as_shown()[0].key, "p");
    }

    #[test]
    fn json_has_the_registrys_order() {
        let mut next = 0.0;
        let scores = Scores::from_fn(|_| {
            next += 1.0;
            next
        });
        let text = serde_json::to_string(&scores).unwrap();
        assert!(text.starts_with(r#"{"answer_prob":1.0,"answer_mean":2.0,"#), "{text}");
        assert_eq!((scores["answer_mean"], scores.get("answer_mean"), scores.get("none")), (2.0, Some(2.0), None));
    }
}
