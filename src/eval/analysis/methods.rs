//! What is known of each score by its key: how it is shown, and whether it is a probability.

use crate::eval::run::methods::METHODS;
pub use crate::uq::scores::Group;
use crate::uq::scores::as_shown;
use serde::Serialize;

/// A method, as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Method {
    /// Its key in `uq.scores`.
    pub key: String,
    /// Its name for people.
    pub name: String,
    pub group: Group,
    /// Whether its scores claim to be probabilities, so that calibration can be measured.
    pub probability: bool,
}

/// (key, name, group, whether it is a probability) of all scores, in the order in which reports show them.
fn known() -> impl Iterator<Item = (&'static str, &'static str, Group, bool)> {
    let single_pass = as_shown().iter().map(|score| (score.key, score.name, score.group, score.is_probability));
    let more_passes = METHODS.iter().flat_map(|method| method.scores());
    single_pass.chain(more_passes.map(|score| (score.key, score.name, Group::MorePasses, score.is_probability)))
}

impl Method {
    /// A method by its key. One that is not known counts as a probability if all its `scores` are in [0, 1].
    pub fn of(key: &str, mut scores: impl Iterator<Item = f64>) -> Method {
        let (name, group, probability) = match known().find(|(known, ..)| *known == key) {
            Some((_, name, group, probability)) => (name, group, probability),
            None => (key, Group::Other, scores.all(|score| (0.0..=1.0).contains(&score))),
        };
        Method { key: key.to_owned(), name: name.to_owned(), group, probability }
    }

    /// Where reports show it.
    pub(super) fn rank(&self) -> (usize, &str) {
        (known().position(|(key, ..)| key == self.key).unwrap_or(usize::MAX), &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_score_has_a_key_of_its_own_and_is_shown_by_what_it_costs() {
        let keys: BTreeSet<&str> = known().map(|(key, ..)| key).collect();
        assert_eq!(keys.len(), known().count());
        let groups: Vec<Group> = known().map(|(key, ..)| Method::of(key, std::iter::empty()).group).collect();
        assert!(groups.is_sorted() && !groups.contains(&Group::Other));
    }

    #[test]
    fn an_unknown_method_is_judged_by_its_scores() {
        assert!(Method::of("mine", [0.0, 1.0].into_iter()).probability);
        assert!(!Method::of("mine", [0.0, 1.1].into_iter()).probability);
        assert!(!Method::of("trace_length", [0.5].into_iter()).probability);
        assert_eq!(Method::of("mine", std::iter::empty()).name, "mine");
    }
}
