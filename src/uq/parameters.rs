//! The method's options: a profile, single rules, and the published parameters.

use super::rules::{self, RULES, Rules};
use crate::engine::{SELECTED_HEADS, ThinkingBudget, TraceParts};
use crate::names::{Named, named, one_of};
use crate::{backend::entropy::EntropyRule, model::reply::Thinking};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, str::FromStr};

named! {
    /// A reading of the method: the authors' code differs from their paper, and both have defects.
    #[derive(Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Profile {
        Reference = "reference": "The authors' published code, defects included: for comparison with published numbers",
        Paper = "paper": "The paper's text",
        #[default]
        Corrected = "corrected": "The paper's intent, without the defects of either",
    }
}

impl Profile {
    pub fn rules(self) -> Rules {
        match self {
            Profile::Reference => rules::REFERENCE,
            Profile::Paper => rules::PAPER,
            Profile::Corrected => rules::CORRECTED,
        }
    }
}

named! {
    /// Source of the chain. All but `Attention` are [controls](super::chain::control).
    #[derive(Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum ChainRule {
        Attention = "attention": "Backtracking along the attention",
        Random = "random": "A control: the same number of response tokens, at random",
        RandomDigits = "random-digits": "A control: the same number of tokens with a digit, at random",
        DigitsMatched = "digits-matched": "A control: the chain, its tokens with a digit replaced by random ones with a digit",
        RandomContent = "random-content": "A control: the same number of tokens that are not stop words, at random",
        Similarity = "similarity": "A control: the same number of tokens, those most similar to the answer",
        None = "none": "An ablation: every token of the response",
    }
}

impl ChainRule {
    /// Whether it is random, so that a single draw is not representative.
    pub fn is_random(self) -> bool {
        !matches!(self, ChainRule::Attention | ChainRule::Similarity | ChainRule::None)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ChainRule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Named::named(name)
    }
}

/// An invalid rule setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("\"{0}\": expected NAME=VALUE, such as threshold=above")]
    Shape(String),
    #[error("there is no rule \"{0}\"; valid names: {names}", names = RULES.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", "))]
    Name(String),
    #[error("rule {rule}: expected {}, found \"{found}\"", one_of(valid))]
    Value { rule: &'static str, valid: Vec<&'static str>, found: String },
}

/// A rule and a value by name: `threshold=above`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RuleSetting {
    pub name: String,
    pub value: String,
}

impl FromStr for RuleSetting {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (name, value) = text.split_once('=').ok_or_else(|| RuleError::Shape(text.to_owned()))?;
        Reading::from(Profile::Corrected).set(name, value)?;
        Ok(RuleSetting { name: name.to_owned(), value: value.to_owned() })
    }
}

impl TryFrom<String> for RuleSetting {
    type Error = RuleError;

    fn try_from(text: String) -> Result<Self, RuleError> {
        text.parse()
    }
}

/// A profile with single rules changed.
///
/// In JSON: the profile's name, and in `rules` those that differ from the profile's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "WrittenReading", try_from = "WrittenReading")]
pub struct Reading {
    pub profile: Profile,
    pub rules: Rules,
}

impl Reading {
    /// A profile with some rules changed, given as names of rules and values.
    ///
    /// # Errors
    /// An unknown rule or value.
    pub fn new<S: AsRef<str>>(profile: Profile, settings: impl IntoIterator<Item = (S, S)>) -> Result<Self, RuleError> {
        let mut reading = Reading::from(profile);
        settings.into_iter().try_for_each(|(name, value)| reading.set(name.as_ref(), value.as_ref()))?;
        Ok(reading)
    }

    /// Sets a rule by the names of the rule and its value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), RuleError> {
        let rule = RULES.iter().find(|rule| rule.name == name).ok_or_else(|| RuleError::Name(name.to_owned()))?;
        (rule.set)(&mut self.rules, value).ok_or_else(|| RuleError::Value {
            rule: rule.name,
            valid: (rule.values)(),
            found: value.to_owned(),
        })
    }

    /// The rules that differ from the profile's: names and values.
    pub fn changed(&self) -> BTreeMap<String, String> {
        let own = self.profile.rules();
        let changed = RULES.iter().filter(|rule| (rule.get)(&self.rules) != (rule.get)(&own));
        changed.map(|rule| (rule.name.to_owned(), (rule.get)(&self.rules).to_owned())).collect()
    }
}

impl Default for Reading {
    fn default() -> Self {
        Profile::default().into()
    }
}

impl From<Profile> for Reading {
    fn from(profile: Profile) -> Self {
        Reading { profile, rules: profile.rules() }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.profile)?;
        self.changed().iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A [`Reading`] in JSON.
#[derive(Serialize, Deserialize)]
struct WrittenReading {
    profile: Profile,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rules: BTreeMap<String, String>,
}

impl From<Reading> for WrittenReading {
    fn from(reading: Reading) -> Self {
        WrittenReading { profile: reading.profile, rules: reading.changed() }
    }
}

impl TryFrom<WrittenReading> for Reading {
    type Error = RuleError;

    fn try_from(written: WrittenReading) -> Result<Self, RuleError> {
        Reading::new(written.profile, written.rules)
    }
}

/// The method's parameters, with the paper's symbols.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    #[serde(flatten)]
    pub reading: Reading,
    pub chain: ChainRule,
    /// Seed of a random chain.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub draw: u64,
    /// L_tgt: maximum number of targets per backtracking step.
    pub targets_per_step: usize,
    /// θ: minimum score of a target, once the chain is long enough.
    pub score_threshold: f64,
    /// Chain length (without answer tokens) from which θ applies.
    pub min_chain_length: usize,
    /// L': maximum number of chain tokens kept by the similarity filter.
    pub max_kept: usize,
    /// Minimum cosine similarity of a token kept by the similarity filter.
    pub min_similarity: f64,
    /// τ: an alternative token joins the ensemble if its probability exceeds this.
    pub min_alternative: f64,
    /// [`Candidates::MostProbable`](super::rules::Candidates) only: the ensemble comes from this many candidates plus one per
    /// kept token.
    pub max_alternatives: usize,
    /// K: heads kept per row.
    pub selected_heads: usize,
    /// Record [`Step::distribution`](super::Step), for the scores that need whole distributions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wide_trace: bool,
    /// Record [`Step::heads`](super::Step), for the scores that need every head's attention.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub head_trace: bool,
    /// Record [`Response::layer_means`](super::Response), for the chain-of-embeddings scores.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer_trace: bool,
    /// The formats in which a thought, which has no answer, is separated from its reply.
    #[serde(default, skip_serializing_if = "Thinking::is_auto")]
    pub thinking: Thinking,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Parameters {
    /// A budget of thoughts, which are marked as these parameters say.
    pub fn budget(&self, tokens: usize) -> ThinkingBudget {
        ThinkingBudget { tokens, thinking: self.thinking.clone() }
    }

    /// The published values: L_tgt = 3, θ = 0.5, L' = 10, τ = 0.01, K = 16.
    pub fn published(reading: impl Into<Reading>) -> Self {
        Parameters {
            reading: reading.into(),
            chain: ChainRule::Attention,
            draw: 0,
            targets_per_step: 3,
            score_threshold: 0.5,
            min_chain_length: 5,
            max_kept: 10,
            min_similarity: 0.0,
            min_alternative: 0.01,
            max_alternatives: 10,
            selected_heads: SELECTED_HEADS,
            wide_trace: false,
            head_trace: false,
            layer_trace: false,
            thinking: Thinking::Auto,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.reading.rules
    }

    /// Data that the engine must record.
    pub fn trace_parts(&self) -> TraceParts {
        let entropy: EntropyRule = self.rules().head_entropy;
        let (heads, wide) = (self.selected_heads, self.wide_trace);
        TraceParts { heads, entropy, wide, head_attention: self.head_trace, layer_means: self.layer_trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for (profile, name, _) in Profile::VALUES {
            assert_eq!(Profile::named(&profile.to_string()), Ok(*profile));
            assert_eq!(serde_json::to_value(profile).unwrap(), *name);
        }
        for (chain, name, _) in ChainRule::VALUES {
            assert_eq!((name.parse(), serde_json::to_value(chain).unwrap()), (Ok(*chain), (*name).into()));
        }
        let unknown = Profile::named("Paper").unwrap_err();
        assert_eq!(unknown, "expected reference, paper or corrected, found \"Paper\"");
    }

    #[test]
    fn only_rules_that_differ_are_written() {
        let plain = Parameters::published(Profile::Paper);
        let value = serde_json::to_value(&plain).unwrap();
        assert_eq!(value["profile"], "paper");
        assert_eq!(value.get("rules"), None);
        assert_eq!(serde_json::from_value::<Parameters>(value).unwrap(), plain);

        let settings = [("threshold", "at-least"), ("stop-words", "list")];
        let changed = Parameters::published(Reading::new(Profile::Paper, settings).unwrap());
        let value = serde_json::to_value(&changed).unwrap();
        assert_eq!(value["rules"], serde_json::json!({ "threshold": "at-least" }));
        assert_eq!(serde_json::from_value::<Parameters>(value).unwrap(), changed);
        assert_eq!(changed.reading.to_string(), "paper threshold=at-least");
    }

    #[test]
    fn what_cannot_be_set_is_explained() {
        let error = |text: &str| text.parse::<RuleSetting>().unwrap_err().to_string();
        assert!(error("threshold").contains("NAME=VALUE"));
        assert!(error("theta=1").contains("valid names: encoding, extraction, head-entropy"));
        assert_eq!(error("threshold=over"), "rule threshold: expected at-least or above, found \"over\"");
    }
}
