//! What is known of each method by its key: how it is shown, and whether its scores are probabilities.

use crate::eval::run::methods::{METHODS, Score};
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

/// Scores of methods with passes of their own; reports show them after those of the response's pass.
fn own_passes() -> impl Iterator<Item = &'static Score> {
    METHODS.iter().flat_map(|method| method.scores())
}

impl Method {
    /// A method by its key. One that is not known counts as a probability if all its `scores` are in [0, 1].
    pub fn of(key: &str, mut scores: impl Iterator<Item = f64>) -> Method {
        let method =
            |name: &str, group, probability| Method { key: key.to_owned(), name: name.to_owned(), group, probability };
        if let Some(score) = as_shown().iter().find(|score| score.key == key) {
            return method(score.name, score.group, score.is_probability);
        }
        match own_passes().find(|score| score.key == key) {
            Some(score) => method(score.name, Group::MorePasses, score.is_probability),
            None => method(key, Group::Other, scores.all(|score| (0.0..=1.0).contains(&score))),
        }
    }

    /// Where reports show it.
    pub(super) fn rank(&self) -> (usize, &str) {
        let mut known = as_shown().iter().map(|score| score.key).chain(own_passes().map(|score| score.key));
        (known.position(|key| key == self.key).unwrap_or(usize::MAX), &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_shown_by_what_they_cost() {
        let keys = as_shown().iter().map(|score| score.key).chain(own_passes().map(|score| score.key)).chain(["mine"]);
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
