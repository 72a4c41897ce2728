//! What is known of each method by its name: how it is shown, and whether its scores are probabilities.

use serde::Serialize;

/// What a method costs beyond the response itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// UQAC and its parts.
    Uqac,
    /// From the same pass as the response.
    SinglePass,
    /// By further responses or turns.
    MorePasses,
    /// Not in the table below.
    Other,
}

impl Group {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Group::Uqac => "UQAC",
            Group::SinglePass => "single pass",
            Group::MorePasses => "more passes",
            Group::Other => "other",
        }
    }
}

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

use Group::{MorePasses, SinglePass, Uqac};

/// (key, name, group, probability), in the order in which reports show them.
const KNOWN: [(&str, &str, Group, bool); 19] = [
    ("p", "UQAC P", Uqac, true),
    ("p_sim", "P_sim", Uqac, true),
    ("p_attn", "P_attn", Uqac, true),
    ("sim_mean", "P_sim, mean", Uqac, true),
    ("attn_mean", "P_attn, mean", Uqac, true),
    ("answer_prob", "P(answer)", SinglePass, true),
    ("answer_mean", "P(answer), mean", SinglePass, true),
    ("response_prob", "P(response)", SinglePass, true),
    ("response_mean", "P(response), mean", SinglePass, true),
    ("predictive_entropy", "Entropy", SinglePass, false),
    ("ln_predictive_entropy", "Entropy, mean", SinglePass, false),
    ("answer_entropy", "Answer entropy", SinglePass, false),
    ("ln_answer_entropy", "Answer entropy, mean", SinglePass, false),
    ("min_token_prob", "Least token p", SinglePass, true),
    ("lowest_window", "Lowest window", SinglePass, true),
    ("trace_length", "Length", SinglePass, false),
    ("self_consistency", "Self-consistency", MorePasses, true),
    ("self_consistency_majority", "Majority weight", MorePasses, true),
    ("verbalized", "Verbalized", MorePasses, true),
];

impl Method {
    /// A method by its key. One that is not known counts as a probability if all its `scores` are in [0, 1].
    pub fn of(key: &str, mut scores: impl Iterator<Item = f64>) -> Method {
        let known = KNOWN.iter().find(|(known, ..)| *known == key);
        let (name, group, probability) = match known {
            Some((_, name, group, probability)) => (*name, *group, *probability),
            None => (key, Group::Other, scores.all(|score| (0.0..=1.0).contains(&score))),
        };
        Method { key: key.to_owned(), name: name.to_owned(), group, probability }
    }

    /// Where reports show it.
    pub(super) fn rank(&self) -> (usize, &str) {
        (KNOWN.iter().position(|(known, ..)| *known == self.key).unwrap_or(KNOWN.len()), &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uq::Scores;

    #[test]
    fn every_score_of_the_method_is_known() {
        let scores = Scores {
            answer_prob: 0.0,
            answer_mean: 0.0,
            response_prob: 0.0,
            response_mean: 0.0,
            p_attn: 0.0,
            attn_mean: 0.0,
            p_sim: 0.0,
            sim_mean: 0.0,
            p: 0.0,
            predictive_entropy: 0.0,
            ln_predictive_entropy: 0.0,
            answer_entropy: 0.0,
            ln_answer_entropy: 0.0,
            trace_length: 0.0,
            min_token_prob: 0.0,
            lowest_window: 0.0,
        };
        let value = serde_json::to_value(scores).unwrap();
        for key in value.as_object().unwrap().keys() {
            assert_ne!(Method::of(key, std::iter::empty()).group, Group::Other, "{key}");
        }
    }

    #[test]
    fn an_unknown_method_is_judged_by_its_scores() {
        assert!(Method::of("mine", [0.0, 1.0].into_iter()).probability);
        assert!(!Method::of("mine", [0.0, 1.1].into_iter()).probability);
        assert!(!Method::of("trace_length", [0.5].into_iter()).probability);
        assert_eq!(Method::of("mine", std::iter::empty()).name, "mine");
    }
}
