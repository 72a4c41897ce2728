//! The method's options: a profile, single rules, and the parameters.

pub mod values;

use super::rules::{self, RULES, Rules, Setting};
use crate::{backend::entropy::EntropyRule, model::reply::Thinking, units::is_default, units::text_of};
use crate::{engine::ThinkingBudget, engine::TraceParts, names::Named, names::named, names::one_of};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, str::FromStr};
use values::{PARAMETERS, Values};

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

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("\"{0}\": expected NAME=VALUE, such as k=32 or threshold=above; a question comes before --set")]
    Shape(String),
    #[error("there is no parameter or rule \"{0}\"; valid names: {names}", names = values::names())]
    Name(String),
    #[error("{name}: expected {expected}, found \"{found}\"")]
    Value { name: &'static str, expected: String, found: String },
}

/// A parameter or a rule, and a value, by name: `k=32`, `threshold=above`.
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

/// A profile with single rules and parameters changed: what scores must have in common to be compared.
///
/// In JSON: the profile's name, and in `rules` and `parameters` those that differ from the profile's and the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "WrittenReading", try_from = "WrittenReading")]
pub struct Reading {
    pub profile: Profile,
    pub rules: Rules,
    pub values: Values,
}

impl Reading {
    /// A profile with some rules and parameters changed, given as names and values.
    ///
    /// # Errors
    /// An unknown name or value.
    pub fn new<S: AsRef<str>>(profile: Profile, settings: impl IntoIterator<Item = (S, S)>) -> Result<Self, RuleError> {
        let mut reading = Reading::from(profile);
        settings.into_iter().try_for_each(|(name, value)| reading.set(name.as_ref(), value.as_ref()).map(|_| ()))?;
        Ok(reading)
    }

    /// Sets a parameter or a rule by its name and the value's; returns the value in JSON.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Value, RuleError> {
        let number = set(PARAMETERS, &mut self.values, name, value);
        let set = number.or_else(|| set(RULES, &mut self.rules, name, value));
        set.unwrap_or_else(|| Err(RuleError::Name(name.to_owned())))
    }
}

/// Sets the one with this name; `None` if there is none.
fn set<T>(settings: &[Setting<T>], of: &mut T, name: &str, value: &str) -> Option<Result<Value, RuleError>> {
    let Setting { name, values, get, set, .. } = settings.iter().find(|setting| setting.name == name)?;
    let invalid = || RuleError::Value { name, expected: one_of(&values()), found: value.to_owned() };
    Some(set(of, value).then(|| get(of)).ok_or_else(invalid))
}

/// Those that differ from the usual ones: names and values.
fn changed<T>(settings: &[Setting<T>], of: &T, usual: &T) -> BTreeMap<String, Value> {
    let changed = settings.iter().filter(|setting| (setting.get)(of) != (setting.get)(usual));
    changed.map(|setting| (setting.name.to_owned(), (setting.get)(of))).collect()
}

impl Default for Reading {
    fn default() -> Self {
        Profile::default().into()
    }
}

impl From<Profile> for Reading {
    fn from(profile: Profile) -> Self {
        Reading { profile, rules: profile.rules(), values: Values::PUBLISHED }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrittenReading { profile, rules, parameters } = (*self).into();
        f.write_str(profile.name())?;
        parameters.iter().chain(&rules).try_for_each(|(name, value)| write!(f, " {name}={}", text_of(value)))
    }
}

/// A [`Reading`] in JSON.
#[derive(Serialize, Deserialize)]
struct WrittenReading {
    profile: Profile,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rules: BTreeMap<String, Value>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<String, Value>,
}

impl From<Reading> for WrittenReading {
    fn from(reading: Reading) -> Self {
        let Reading { profile, rules, values } = reading;
        let parameters = changed(PARAMETERS, &values, &Values::PUBLISHED);
        WrittenReading { profile, rules: changed(RULES, &rules, &profile.rules()), parameters }
    }
}

impl TryFrom<WrittenReading> for Reading {
    type Error = RuleError;

    fn try_from(WrittenReading { profile, rules, parameters }: WrittenReading) -> Result<Self, RuleError> {
        let settings = rules.into_iter().chain(parameters);
        Reading::new(profile, settings.map(|(name, value)| (name, text_of(&value))))
    }
}

/// The method's options: its reading, and what is recorded and computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    #[serde(flatten)]
    pub reading: Reading,
    pub chain: ChainRule,
    /// Seed of a random chain.
    #[serde(default, skip_serializing_if = "is_default")]
    pub draw: u64,
    /// Whether variants are re-scored, for P: the only scores that need passes after the response's.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub ensemble: bool,
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

fn yes() -> bool {
    true
}

fn is_yes(set: &bool) -> bool {
    *set
}

impl Parameters {
    /// A budget of thoughts, which are marked as these parameters say.
    pub fn budget(&self, tokens: usize) -> ThinkingBudget {
        ThinkingBudget { tokens, thinking: self.thinking.clone() }
    }

    /// This reading, by default with the published values, of everything that the default trace holds.
    pub fn published(reading: impl Into<Reading>) -> Self {
        Parameters {
            reading: reading.into(),
            chain: ChainRule::Attention,
            draw: 0,
            ensemble: true,
            wide_trace: false,
            head_trace: false,
            layer_trace: false,
            thinking: Thinking::Auto,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.reading.rules
    }

    pub fn values(&self) -> &Values {
        &self.reading.values
    }

    /// Data that the engine must record.
    pub fn trace_parts(&self) -> TraceParts {
        let entropy: EntropyRule = self.rules().head_entropy;
        let (heads, wide) = (self.values().selected_heads, self.wide_trace);
        TraceParts { heads, entropy, wide, head_attention: self.head_trace, layer_means: self.layer_trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Named;

    #[test]
    fn names_read_back() {
        for (profile, name, _) in Profile::VALUES {
            assert_eq!(Profile::named(profile.name()), Ok(*profile));
            assert_eq!(serde_json::to_value(profile).unwrap(), *name);
        }
        for (chain, name, _) in ChainRule::VALUES {
            assert_eq!((ChainRule::named(name), serde_json::to_value(chain).unwrap()), (Ok(*chain), (*name).into()));
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

        let settings =
            [("threshold", "at-least"), ("stop-words", "list"), ("k", "32"), ("theta", "0.5"), ("kept", "4")];
        let changed = Parameters::published(Reading::new(Profile::Paper, settings).unwrap());
        let value = serde_json::to_value(&changed).unwrap();
        assert_eq!(value["rules"], serde_json::json!({ "threshold": "at-least" }));
        assert_eq!(value["parameters"], serde_json::json!({ "k": 32, "kept": 4 }));
        assert_eq!(serde_json::from_value::<Parameters>(value).unwrap(), changed);
        assert_eq!(changed.reading.to_string(), "paper k=32 kept=4 threshold=at-least");
        assert_eq!((changed.trace_parts().heads, changed.values().max_kept), (32, 4));
    }

    #[test]
    fn what_cannot_be_set_is_explained() {
        let error = |text: &str| text.parse::<RuleSetting>().unwrap_err().to_string();
        assert!(error("threshold").contains("NAME=VALUE"));
        assert!(
            error("heads=1").contains("valid names: k, theta, targets") && error("heads=1").contains("head-entropy")
        );
        assert_eq!(error("threshold=over"), "threshold: expected at-least or above, found \"over\"");
        for wrong in ["33", "0", "x", "1.5", ""] {
            let expected = format!("k: expected a number of heads from 1 to 32, found \"{wrong}\"");
            assert_eq!(error(&format!("k={wrong}")), expected);
        }
        assert!(
            ["theta=nan", "theta=-1", "tau=0.001", "similarity=2"].iter().all(|text| error(text).contains("expected"))
        );
    }
}
