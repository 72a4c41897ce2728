//! The named rules in which the paper, the authors' published code and this program differ. A profile is a value for each;
//! each can be set alone ([`Reading::set`]), which makes an ablation of that one difference.
//!
//! [`Reading::set`]: super::Reading::set

use crate::backend::entropy::EntropyRule;
use crate::engine::encode::Encoding;

/// A type with few values, each of which has a name on the command line and in JSON.
pub trait Named: Copy + PartialEq + 'static {
    /// Every value with its name.
    const VALUES: &'static [(Self, &'static str)];

    fn name(self) -> &'static str {
        Self::VALUES.iter().find(|(value, _)| *value == self).map_or("", |(_, name)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::VALUES.iter().find(|(_, known)| *known == name).map(|(value, _)| *value)
    }
}

/// Names joined for a message: `a, b or c`.
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// Declares the enum of a rule and the names of its values.
macro_rules! rule {
    ($(#[$doc:meta])* $type:ident { $($(#[$value_doc:meta])* $value:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$value_doc])* $value,)+ }

        impl Named for $type {
            const VALUES: &'static [(Self, &'static str)] = &[$(($type::$value, $name),)+];
        }
    };
}

impl Named for EntropyRule {
    const VALUES: &'static [(Self, &'static str)] =
        &[(EntropyRule::Exact, "exact"), (EntropyRule::Regularized, "regularized")];
}

impl Named for Encoding {
    const VALUES: &'static [(Self, &'static str)] = &[(Encoding::Separate, "separate"), (Encoding::Joint, "joint")];
}

rule! {
    /// How the answer is found in the text.
    Extraction {
        /// By the table of [`answer`](super::answer), before the first end token.
        Full = "full",
        /// As the authors do, in the whole text, which is tokenized again.
        Published = "published",
    }
}

rule! {
    /// Over which tokens a prediction is known.
    Vocabulary {
        /// All of them.
        Full = "full",
        /// The five most probable; a token outside them gets the probability of the first.
        Top5 = "top5",
    }
}

rule! {
    /// Which rows the entropies of a response belong to.
    EntropyRows {
        /// Those that predict its tokens.
        Predicting = "predicting",
        /// Those of its own tokens, the last included.
        Own = "own",
    }
}

rule! {
    /// What stands for row −1, relative to the response: the one that predicts its first token.
    FirstRow {
        /// The prompt's last row.
        Prompt = "prompt",
        /// An array's index −1: its prediction is looked up in the response's last row; its attention is padded with zeros.
        Wrapped = "wrapped",
    }
}

rule! {
    /// Whether P(response) counts the response's first token.
    FirstToken { Counted = "counted", Skipped = "skipped", }
}

rule! {
    /// Where the response ends for scores over all of it.
    ResponseEnd {
        /// With the answer's last token.
        Answer = "answer",
        /// With the sequence, the template's end tokens included.
        Sequence = "sequence",
    }
}

rule! {
    /// Which tokens are stop words.
    StopWords {
        /// Those of the list, but not the answer's own form: with the answer `(A)`, ` a` is content.
        AnswerAware = "answer-aware",
        /// Those of the list.
        List = "list",
    }
}

rule! {
    /// How much of a source's row of α* adds to φ.
    Positions {
        /// All of it.
        All = "all",
        /// The five highest weights, counted before the filters; more only while nothing has been found in this step
        /// and the chain is short.
        Top5 = "top5",
    }
}

rule! {
    /// When stop words are dropped from the targets of a step.
    StopFilter {
        /// Before the best L_tgt are taken.
        BeforeTop = "before-top",
        /// After.
        AfterTop = "after-top",
    }
}

rule! {
    /// Which targets pass θ.
    Threshold {
        /// φ ≥ θ
        AtLeast = "at-least",
        /// φ > θ
        Above = "above",
    }
}

rule! {
    /// How the targets picked in this step count towards the chain length from which θ applies.
    LengthCount { Once = "once", Twice = "twice", }
}

rule! {
    /// Which alternatives make the ensemble.
    Candidates {
        /// Every one with p > τ at each filtered position.
        AboveTau = "above-tau",
        /// Of the top five at every filtered position, the 10 + n most probable with p > τ over all n positions together,
        /// originals included, then originals removed.
        MostProbable = "most-probable",
    }
}

rule! {
    /// The least probability that a token of an ensemble member is taken to have.
    MemberFloor { None = "none", Published = "1e-12", }
}

impl MemberFloor {
    /// ln of it.
    pub fn ln(self) -> f64 {
        match self {
            MemberFloor::None => f64::NEG_INFINITY,
            MemberFloor::Published => 1e-12_f64.ln(),
        }
    }
}

/// Every difference between the paper, the published code and this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub encoding: Encoding,
    pub extraction: Extraction,
    pub head_entropy: EntropyRule,
    pub first_row: FirstRow,
    pub positions: Positions,
    pub stop_words: StopWords,
    pub stop_filter: StopFilter,
    pub threshold: Threshold,
    pub length_count: LengthCount,
    pub candidates: Candidates,
    pub member_floor: MemberFloor,
    pub probabilities: Vocabulary,
    pub entropies: Vocabulary,
    pub entropy_rows: EntropyRows,
    pub first_token: FirstToken,
    pub response_end: ResponseEnd,
}

/// The paper's intent without the defects of text or code.
pub const CORRECTED: Rules = Rules {
    encoding: Encoding::Separate,
    extraction: Extraction::Full,
    head_entropy: EntropyRule::Exact,
    first_row: FirstRow::Prompt,
    positions: Positions::All,
    stop_words: StopWords::AnswerAware,
    stop_filter: StopFilter::BeforeTop,
    threshold: Threshold::AtLeast,
    length_count: LengthCount::Once,
    candidates: Candidates::AboveTau,
    member_floor: MemberFloor::None,
    probabilities: Vocabulary::Full,
    entropies: Vocabulary::Full,
    entropy_rows: EntropyRows::Predicting,
    first_token: FirstToken::Counted,
    response_end: ResponseEnd::Answer,
};

/// The paper's text.
pub const PAPER: Rules =
    Rules { stop_words: StopWords::List, stop_filter: StopFilter::AfterTop, threshold: Threshold::Above, ..CORRECTED };

/// The authors' published code.
pub const REFERENCE: Rules = Rules {
    encoding: Encoding::Joint,
    extraction: Extraction::Published,
    head_entropy: EntropyRule::Regularized,
    first_row: FirstRow::Wrapped,
    positions: Positions::Top5,
    stop_words: StopWords::List,
    stop_filter: StopFilter::BeforeTop,
    threshold: Threshold::AtLeast,
    length_count: LengthCount::Twice,
    candidates: Candidates::MostProbable,
    member_floor: MemberFloor::Published,
    probabilities: Vocabulary::Top5,
    entropies: Vocabulary::Top5,
    entropy_rows: EntropyRows::Own,
    first_token: FirstToken::Skipped,
    response_end: ResponseEnd::Sequence,
};

/// A rule by its name.
pub struct Rule {
    pub name: &'static str,
    /// What it decides.
    pub meaning: &'static str,
    /// The names of its values.
    pub values: fn() -> Vec<&'static str>,
    /// The name of its value.
    pub get: fn(&Rules) -> &'static str,
    /// Sets it to a value by its name; `None` if there is none of that name.
    pub set: fn(&mut Rules, &str) -> Option<()>,
}

/// The row of [`RULES`] for a field of [`Rules`].
macro_rules! row {
    ($field:ident, $name:literal, $meaning:literal) => {
        Rule {
            name: $name,
            meaning: $meaning,
            values: || names_of(|rules| rules.$field),
            get: |rules| rules.$field.name(),
            set: |rules, name| Named::named(name).map(|value| rules.$field = value),
        }
    };
}

/// Names of the values of a field's type.
fn names_of<T: Named>(_field: fn(&Rules) -> T) -> Vec<&'static str> {
    T::VALUES.iter().map(|(_, name)| *name).collect()
}

/// All rules, in the order in which a response meets them.
pub const RULES: [Rule; 16] = [
    row!(encoding, "encoding", "score: prompt and response become tokens separately, or as one text"),
    row!(extraction, "extraction", "how the answer is found in the text"),
    row!(head_entropy, "head-entropy", "how the attention is normalized whose entropy selects heads"),
    row!(first_row, "first-row", "what stands for the row that predicts the first response token"),
    row!(positions, "positions", "how much of a source's row of attention adds to φ"),
    row!(stop_words, "stop-words", "whether the answer's own form can be a stop word"),
    row!(stop_filter, "stop-filter", "when stop words are dropped: before the top L_tgt are taken, or after"),
    row!(threshold, "threshold", "which targets pass θ: φ ≥ θ, or φ > θ"),
    row!(length_count, "length-count", "how this step's targets count towards the length from which θ applies"),
    row!(candidates, "candidates", "which alternatives make the ensemble"),
    row!(member_floor, "member-floor", "the least probability of a token of an ensemble member"),
    row!(probabilities, "probabilities", "over which tokens the scores' probabilities are known"),
    row!(entropies, "entropies", "over which tokens entropies are summed"),
    row!(entropy_rows, "entropy-rows", "which rows a response's entropies belong to"),
    row!(first_token, "first-token", "whether P(response) counts the first token"),
    row!(response_end, "response-end", "where the response ends for scores over all of it"),
];

/// The rules as lines for a person: `name=value|value`, and what each decides.
pub fn help() -> String {
    let line =
        |rule: &Rule| format!("  {:<38} {}\n", format!("{}={}", rule.name, (rule.values)().join("|")), rule.meaning);
    RULES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_can_be_set_to_each_of_its_values_and_nothing_else() {
        for rule in &RULES {
            let values = (rule.values)();
            assert!(values.len() >= 2 && values.contains(&(rule.get)(&PAPER)), "{}", rule.name);
            for value in values {
                let mut rules = CORRECTED;
                (rule.set)(&mut rules, value).unwrap();
                assert_eq!((rule.get)(&rules), value);
                let others = RULES.iter().filter(|other| other.name != rule.name);
                assert!(
                    others.into_iter().all(|other| (other.get)(&rules) == (other.get)(&CORRECTED)),
                    "{}",
                    rule.name
                );
            }
            assert_eq!((rule.set)(&mut CORRECTED.clone(), "no such value"), None);
        }
    }

    /// Every rule is a difference between profiles, and is in the table: set one by one they turn one into another.
    #[test]
    fn the_table_holds_every_field() {
        for target in [PAPER, REFERENCE] {
            let mut rules = CORRECTED;
            for rule in &RULES {
                (rule.set)(&mut rules, (rule.get)(&target)).unwrap();
            }
            assert_eq!(rules, target);
        }
        let differs = |rule: &&Rule| (rule.get)(&REFERENCE) != (rule.get)(&CORRECTED);
        let in_paper = |rule: &&Rule| (rule.get)(&PAPER) != (rule.get)(&CORRECTED);
        assert!(RULES.iter().all(|rule| differs(&rule) || in_paper(&rule)));
    }
}
