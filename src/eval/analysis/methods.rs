//! Properties of each score by key: its name and position in reports, and whether it is a probability.

use crate::eval::run::methods::{METHODS, own_passes};
pub use crate::uq::scores::Group;
use crate::uq::scores::{
    Score, as_shown,
    samples::{AGREEMENT, G4_AGREEMENT},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// A method, as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Method {
    /// Its key in `uq.scores`.
    pub key: String,
    /// Display name.
    pub name: String,
    /// Definition; empty for a score that this program does not know.
    pub meaning: &'static str,
    pub group: Group,
    /// Whether its scores claim to be probabilities, so that their calibration can be measured.
    pub probability: bool,
    /// Whether it scores an answer of its own (the samples' majority) rather than the response's.
    #[serde(skip)]
    pub own_answer: bool,
    /// The score that holds its logarithm, if any item has it; ranking uses it.
    #[serde(skip)]
    pub log: Option<&'static str>,
}

/// Scores of the first samples alone are reported for up to as many.
pub const MOST_SAMPLES: usize = 8;

/// The key of a score of the first n samples.
pub fn of_samples(key: &str, n: usize) -> String {
    format!("{key}:{n}")
}

/// The score and n of such a key.
pub(super) fn first_samples(key: &str) -> Option<(&str, usize)> {
    let (key, n) = key.split_once(':').filter(|(key, _)| [AGREEMENT, G4_AGREEMENT].contains(key))?;
    Some((key, n.parse().ok()?))
}

/// The baseline that uses only an item's subtask.
pub const TASK_IDENTITY: &str = "task_identity";

/// Keys of the scores of a run's methods with their own passes.
pub fn of_run(manifest: &Value) -> Vec<&'static str> {
    let keys: Vec<String> = Deserialize::deserialize(&manifest["options"]["methods"]).unwrap_or_default();
    own_passes(&keys).flat_map(|method| method.scores).map(|score| score.key).collect()
}

/// All scores, in report order.
pub fn known() -> impl Iterator<Item = &'static Score> {
    let is_new = |score: &&Score| as_shown().iter().all(|shown| shown.key != score.key);
    as_shown().iter().copied().chain(METHODS.iter().flat_map(|method| method.scores).filter(is_new))
}

impl Method {
    /// A method by its key, over items that have the scores `keys`. An unknown one counts as a probability if all its
    /// `scores` are in [0, 1].
    pub fn of(key: &str, keys: &BTreeSet<&str>, mut scores: impl Iterator<Item = f64>) -> Method {
        let first = first_samples(key);
        let whole = first.map_or(key, |(key, _)| key);
        let known = known().find(|known| known.key == whole);
        let other = if key == TASK_IDENTITY { "Task identity" } else { key };
        let name = known.map_or(other, |known| known.name);
        let in_unit_interval = || key != TASK_IDENTITY && scores.all(|score| (0.0..=1.0).contains(&score));
        Method {
            key: key.to_owned(),
            name: first.map_or(name.to_owned(), |(_, n)| format!("{name} ({n})")),
            meaning: known.map_or("", |known| known.meaning),
            group: known.map_or(Group::Other, |known| known.group),
            probability: known.map_or_else(in_unit_interval, |known| known.is_probability),
            own_answer: known.is_some_and(|known| known.of_majority),
            log: known.and_then(|known| known.log).filter(|log| first.is_none() && keys.contains(log)),
        }
    }

    /// Whether samples hold its scores, instead of the analysis alone.
    pub fn is_recorded(&self) -> bool {
        self.key != TASK_IDENTITY && first_samples(&self.key).is_none()
    }

    /// Its position in reports.
    pub(super) fn rank(&self) -> (Group, usize, &str) {
        (self.group, known().position(|known| known.key == self.key).unwrap_or(usize::MAX), &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_score_has_a_key_of_its_own_and_is_shown_by_what_it_costs() {
        let keys: BTreeSet<&str> = known().map(|score| score.key).collect();
        assert_eq!(keys.len(), known().count());
        assert_eq!(known().filter_map(|known| known.log).filter(|log| keys.contains(log)).count(), 5);
        let groups: Vec<Group> = known().map(|score| score.group).collect();
        assert!(groups.is_sorted() && !groups.contains(&Group::Other));
    }

    #[test]
    fn an_unknown_method_is_judged_by_its_scores() {
        let of = |key: &str, scores: &[f64]| Method::of(key, &BTreeSet::new(), scores.iter().copied());
        assert!(of("mine", &[0.0, 1.0]).probability);
        assert!(!of("mine", &[0.0, 1.1]).probability);
        assert!(!of("trace_length", &[0.5]).probability);
        assert_eq!(of("mine", &[]).name, "mine");
    }
}
