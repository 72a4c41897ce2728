//! The flags that choose the reading of the method.

use super::error::CliError;
use crate::uq::rules::{self, Named};
use crate::uq::{ChainRule, Parameters, Profile, Reading, RuleSetting};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Which reading of the method is computed.
#[derive(Args)]
#[command(next_help_heading = "Method")]
pub struct ReadingArgs {
    /// Which reading of the method
    #[arg(long, value_parser = profile(), default_value_t = Profile::Corrected)]
    profile: Profile,
    /// Change one rule of the profile; can be repeated
    #[arg(long = "rule", value_name = "NAME=VALUE")]
    rules: Vec<RuleSetting>,
    /// Record each prediction's whole distribution too: DeepConf, self-certainty, Rényi, Fisher-Rao, BoostedProb
    #[arg(long)]
    wide_trace: bool,
    /// Record where every head attends too: RAUQ, attention score, lookback ratio
    #[arg(long)]
    head_trace: bool,
    /// Record the mean hidden state of every layer too: chain of embeddings
    #[arg(long)]
    layer_trace: bool,
}

impl ReadingArgs {
    /// The published parameters under the reading.
    pub fn parameters(&self) -> Result<Parameters, CliError> {
        let ReadingArgs { wide_trace, head_trace, layer_trace, .. } = *self;
        Ok(Parameters { wide_trace, head_trace, layer_trace, ..Parameters::published(self.reading()?) })
    }

    pub fn reading(&self) -> Result<Reading, CliError> {
        reading(self.profile, &self.rules)
    }
}

/// A profile with the rules that were set alone.
fn reading(profile: Profile, rules: &[RuleSetting]) -> Result<Reading, CliError> {
    Ok(Reading::new(profile, rules.iter().map(|rule| (&rule.name, &rule.value)))?)
}

/// The end of a command's help: examples of it, and the rules with their values.
pub fn examples_and_rules(examples: &str) -> String {
    format!("Examples:\n{examples}\n\nRules (--rule NAME=VALUE):\n{}", rules::help())
}

/// Reads a [`Profile`] by its name; help lists them.
pub fn profile() -> impl TypedValueParser<Value = Profile> {
    named()
}

/// Reads a [`ChainRule`] by its name; help lists them.
pub fn chain_rule() -> impl TypedValueParser<Value = ChainRule> {
    named()
}

fn named<T: Named + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let possible = |(_, name, meaning): &(T, &'static str, &'static str)| PossibleValue::new(*name).help(*meaning);
    PossibleValuesParser::new(T::VALUES.iter().map(possible)).try_map(|name| T::named(&name))
}
