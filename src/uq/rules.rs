//! The rules on which the paper, the authors' published code and this program differ. A profile sets all of them; setting a
//! single one ([`Reading::set`]) ablates that difference.
//!
//! [`Reading::set`]: super::Reading::set

use crate::{backend::entropy::EntropyRule, engine::encode::Encoding, names::Named, names::named};
use serde_json::Value;

named! {
    /// How the answer is found in the text.
    pub enum Extraction {
        Full = "full": "By the rules of [`answer`](super::answer), before the first end token.",
        Published = "published": "As the authors' code: in the whole text, tokenized again.",
    }

    /// The tokens of a prediction whose probabilities are known.
    pub enum Vocabulary {
        Full = "full": "All of them.",
        Top5 = "top5": "The five most probable; any other token gets the probability of the first.",
    }

    /// The rows of a response's entropies.
    pub enum EntropyRows {
        Predicting = "predicting": "The rows that predict its tokens.",
        Own = "own": "The rows of its own tokens, including the last.",
    }

    /// Row −1 relative to the response, which predicts its first token.
    pub enum FirstRow {
        Prompt = "prompt": "The prompt's last row.",
        Wrapped = "wrapped": "Array index −1: the prediction of the response's last row; zeros as attention.",
    }

    /// Whether P(response) counts the response's first token.
    pub enum FirstToken {
        Counted = "counted",
        Skipped = "skipped",
    }

    /// End of the response for scores over all of it.
    pub enum ResponseEnd {
        Answer = "answer": "The answer's last token.",
        Sequence = "sequence": "The end of the sequence, including the template's end tokens.",
    }

    /// Stop words.
    pub enum StopWords {
        AnswerAware = "answer-aware": "The list, except the answer itself: with the answer `(A)`, ` a` is content.",
        List = "list": "The list.",
    }

    /// Weights of a source's row of α* that add to φ.
    pub enum Positions {
        All = "all": "All.",
        /// The five highest, counted before filtering; more only while this step has found nothing and the chain is short.
        Top5 = "top5",
    }

    /// When stop words are dropped from a step's targets.
    pub enum StopFilter {
        BeforeTop = "before-top": "Before the top L_tgt are taken.",
        AfterTop = "after-top": "After the top L_tgt are taken.",
    }

    /// Which targets pass θ.
    pub enum Threshold {
        AtLeast = "at-least": "φ ≥ θ",
        Above = "above": "φ > θ",
    }

    /// Counting of this step's targets towards the chain length from which θ applies.
    pub enum LengthCount {
        Once = "once",
        Twice = "twice",
    }

    /// Alternatives that form the ensemble.
    pub enum Candidates {
        AboveTau = "above-tau": "All with p > τ at each filtered position.",
        /// The 10 + n most probable with p > τ among the top five at all n filtered positions, including the original tokens,
        /// which are then removed.
        MostProbable = "most-probable",
    }

    /// Minimum probability of a token of an ensemble member.
    pub enum MemberFloor {
        None = "none",
        Published = "1e-12",
    }
}

impl MemberFloor {
    /// Its natural logarithm.
    pub fn ln(self) -> f64 {
        match self {
            MemberFloor::None => f64::NEG_INFINITY,
            MemberFloor::Published => libm::log(1e-12),
        }
    }
}

/// What is set by name, as in `k=32`: a row of [`RULES`], or of the [parameters](super::values::PARAMETERS).
pub struct Setting<T> {
    /// Its name in options and in JSON.
    pub name: &'static str,
    pub meaning: &'static str,
    /// The names of its values; of a number, its range in words.
    pub values: fn() -> Vec<&'static str>,
    /// Its current value: a rule's by name.
    pub get: fn(&T) -> Value,
    /// Sets it; whether there is such a value.
    pub set: fn(&mut T, &str) -> bool,
}

/// Declares [`Rules`], the three profiles' values and [`RULES`] from one table.
macro_rules! rules {
    ($($field:ident: $type:ident, $name:literal, [$corrected:ident, $paper:ident, $reference:ident], $meaning:literal;)+) => {
        /// A value for every rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Rules {
            $(#[doc = $meaning] pub $field: $type,)+
        }

        /// The paper's intent, without the defects of its text or code.
        pub const CORRECTED: Rules = Rules { $($field: $type::$corrected,)+ };

        /// The paper's text.
        pub const PAPER: Rules = Rules { $($field: $type::$paper,)+ };

        /// The authors' published code.
        pub const REFERENCE: Rules = Rules { $($field: $type::$reference,)+ };

        /// All rules, in the order of the pipeline.
        pub const RULES: &[Setting<Rules>] = &[$(Setting {
            name: $name,
            meaning: $meaning,
            values: $type::names,
            get: |rules| rules.$field.name().into(),
            set: |rules, name| Named::named(name).map(|value| rules.$field = value).is_ok(),
        },)+];
    };
}

rules! {
    // field: type, name, [corrected, paper, reference], meaning
    encoding: Encoding, "encoding", [Separate, Separate, Joint],
        "score: whether prompt and response are tokenized separately or as one text";
    extraction: Extraction, "extraction", [Full, Full, Published], "how the answer is found in the text";
    head_entropy: EntropyRule, "head-entropy", [Exact, Exact, Regularized],
        "how attention is normalized for the entropy that selects heads";
    first_row: FirstRow, "first-row", [Prompt, Prompt, Wrapped], "the row that predicts the first response token";
    positions: Positions, "positions", [All, All, Top5], "which weights of a source's attention row add to φ";
    stop_words: StopWords, "stop-words", [AnswerAware, List, List], "whether the answer itself can be a stop word";
    stop_filter: StopFilter, "stop-filter", [BeforeTop, AfterTop, BeforeTop],
        "whether stop words are dropped before or after the top L_tgt are taken";
    threshold: Threshold, "threshold", [AtLeast, Above, AtLeast], "which targets pass θ: φ ≥ θ or φ > θ";
    length_count: LengthCount, "length-count", [Once, Once, Twice],
        "how this step's targets count towards the length from which θ applies";
    candidates: Candidates, "candidates", [AboveTau, AboveTau, MostProbable], "which alternatives form the ensemble";
    member_floor: MemberFloor, "member-floor", [None, None, Published],
        "minimum probability of a token of an ensemble member";
    probabilities: Vocabulary, "probabilities", [Full, Full, Top5], "tokens with known probabilities";
    entropies: Vocabulary, "entropies", [Full, Full, Top5], "tokens that entropies are summed over";
    entropy_rows: EntropyRows, "entropy-rows", [Predicting, Predicting, Own], "the rows of a response's entropies";
    first_token: FirstToken, "first-token", [Counted, Counted, Skipped], "whether P(response) counts the first token";
    response_end: ResponseEnd, "response-end", [Answer, Answer, Sequence],
        "end of the response for scores over all of it";
}

/// Help text: a line `name=value|value  meaning` per rule.
pub fn help() -> String {
    let line = |rule: &Setting<Rules>| {
        format!("  {:<38} {}\n", format!("{}={}", rule.name, (rule.values)().join("|")), rule.meaning)
    };
    RULES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_can_be_set_to_each_of_its_values_and_nothing_else() {
        for rule in RULES {
            let values = (rule.values)();
            assert!(values.len() >= 2 && values.iter().any(|value| (rule.get)(&PAPER) == *value), "{}", rule.name);
            for value in values {
                let mut rules = CORRECTED;
                assert!((rule.set)(&mut rules, value));
                assert_eq!((rule.get)(&rules), value);
                let others = RULES.iter().filter(|other| other.name != rule.name);
                assert!(
                    others.into_iter().all(|other| (other.get)(&rules) == (other.get)(&CORRECTED)),
                    "{}",
                    rule.name
                );
            }
            assert!(!(rule.set)(&mut CORRECTED.clone(), "no such value"));
        }
    }

    /// Every rule differs between profiles and is in the table: set one by one, they turn one profile into another.
    #[test]
    fn the_table_holds_every_field() {
        for target in [PAPER, REFERENCE] {
            let mut rules = CORRECTED;
            for rule in RULES {
                assert!((rule.set)(&mut rules, (rule.get)(&target).as_str().unwrap()));
            }
            assert_eq!(rules, target);
        }
        let differs = |rule: &&Setting<Rules>| (rule.get)(&REFERENCE) != (rule.get)(&CORRECTED);
        let in_paper = |rule: &&Setting<Rules>| (rule.get)(&PAPER) != (rule.get)(&CORRECTED);
        assert!(RULES.iter().all(|rule| differs(&rule) || in_paper(&rule)));
    }
}
