//! What is known of each method by its key: how it is shown, and whether its scores are probabilities.

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

/// Scores of methods with passes of their own, (key, name), all of them probabilities; reports show them after those of the
/// response's pass.
const MORE_PASSES: [(&str, &str); 3] = [
    ("self_consistency", "Self-consistency"),
    ("self_consistency_majority", "Majority weight"),
    ("verbalized", "Verbalized"),
];

impl Method {
    /// A method by its key. One that is not known counts as a probability if all its `scores` are in [0, 1].
    pub fn of(key: &str, mut scores: impl Iterator<Item = f64>) -> Method {
        let method =
            |name: &str, group, probability| Method { key: key.to_owned(), name: name.to_owned(), group, probability };
        if let Some(score) = as_shown().iter().find(|score| score.key == key) {
            return method(score.name, score.group, score.is_probability);
        }
        match MORE_PASSES.iter().find(|(known, _)| *known == key) {
            Some((_, name)) => method(name, Group::MorePasses, true),
            None => method(key, Group::Other, scores.all(|score| (0.0..=1.0).contains(&score))),
        }
    }

    /// Where reports show it.
    pub(super) fn rank(&self) -> (usize, &str) {
        let mut known = as_shown().iter().map(|score| score.key).chain(MORE_PASSES.map(|(key, _)| key));
        (known.position(|key| key == self.key).unwrap_or(usize::MAX), &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_shown_by_what_they_cost() {
        let keys = as_shown().iter().map(|score| score.key).chain(MORE_PASSES.map(|(key, _)| key)).chain(["mine"]);
        let methods: Vec<Method> = keys.map(|key| Method::of(key, std::iter::empty())).collect();
        assert!(methods.is_sorted_by_key(|method| (method.group, method.rank().0)));
        assert_eq!(methods.last().unwrap().group, Group::Other);
    }

    #[test]
    fn an_unknown_method_is_judged_by_its_scores() {
        assert!(Method::of("mine", [0.0, 1.0].into_iter()).probability);
        assert!(!Method::of("mine", [0.0, 1.1].into_iter()).probability);
        assert!(!Method::of("trace_length", [0.5].into_iter()).probability);
        assert_eq!(Method::of("mine", std::iter::empty()).name, "mine");
    }
}
