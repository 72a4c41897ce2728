//! The method on one traced response, with what `--trace` shows of its chain; and the flags that choose its reading.

use super::error::CliError;
use super::fingerprint;
use crate::backend::entropy::Gamma;
use crate::engine::{Engine, EngineError, TracedSequence};
use crate::eval::calibration::Calibration;
use crate::eval::run::fingerprint::Fingerprint;
use crate::io::record::{Calibrated, Record, RowTrace, top_entries};
use crate::uq::answer::AnswerRule;
use crate::uq::rules::{self, FirstRow, Named};
use crate::uq::{ChainRule, Link, Outcome, Parameters, Profile, Reading, RuleSetting, pipeline};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::ops::Range;
use std::path::Path;

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
}

impl ReadingArgs {
    /// The published parameters under the reading.
    pub fn parameters(&self) -> Result<Parameters, CliError> {
        let (wide_trace, head_trace) = (self.wide_trace, self.head_trace);
        Ok(Parameters { wide_trace, head_trace, ..Parameters::published(self.reading()?) })
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
    named(Profile::meaning)
}

/// Reads a [`ChainRule`] by its name; help lists them.
pub fn chain_rule() -> impl TypedValueParser<Value = ChainRule> {
    named(ChainRule::meaning)
}

fn named<T: Named + Send + Sync>(meaning: fn(T) -> &'static str) -> impl TypedValueParser<Value = T> {
    let possible = |(value, name): &(T, &'static str)| PossibleValue::new(*name).help(meaning(*value));
    let names = PossibleValuesParser::new(T::VALUES.iter().map(possible));
    names.try_map(|name| T::named(&name).ok_or("not one of the possible values"))
}

/// The calibration of a model under a reading of the method, if there is one; `known`: the model's fingerprint, where it has
/// been taken.
pub fn calibration(
    folder: &Path,
    engine: &Engine,
    known: Option<&Fingerprint>,
    reading: &Reading,
) -> Result<Option<Calibration>, CliError> {
    if !Calibration::may_exist(folder) || engine.options().gamma != Gamma::PUBLISHED {
        return Ok(None);
    }
    let model = known.cloned().map_or_else(|| fingerprint(folder, engine), Ok)?;
    Ok(Calibration::find(folder, &model, reading)?)
}

/// What is to be found out about a response.
pub struct Request<'a> {
    pub parameters: &'a Parameters,
    pub calibration: Option<&'a Calibration>,
    pub dataset: Option<&'a str>,
    /// The answer's positions (absolute, within the response) if they are known.
    pub answer: Option<Range<usize>>,
    /// Whether the chain's rows are to be described.
    pub trace: bool,
}

/// What was found out.
pub struct Assessed {
    pub answer_text: String,
    pub outcome: Outcome,
    /// Where there is a calibration.
    pub confidence: Option<Calibrated>,
    pub trace: Option<Vec<RowTrace>>,
}

/// [`pipeline::assess`], and a description of the chain's rows. `None` where the response has no final answer.
pub fn assess(traced: &mut TracedSequence<'_>, request: &Request<'_>) -> Result<Option<Assessed>, EngineError> {
    let (parameters, rule) = (request.parameters, AnswerRule::for_dataset(request.dataset));
    let assessed = pipeline::assess(traced, rule, request.answer.clone(), parameters)?;
    let Some(pipeline::Assessed { answer, outcome, .. }) = assessed else { return Ok(None) };
    let trace = if request.trace { Some(row_traces(traced, &outcome.chain, parameters)?) } else { None };
    let confidence = request.calibration.and_then(|found| found.confidence(|key| outcome.scores.get(key)));
    Ok(Some(Assessed { answer_text: answer.text, outcome, confidence, trace }))
}

/// The chosen heads and the largest entries of α* of every row of the chain. In the authors' code there is no row -1, so
/// under [`FirstRow::Wrapped`] there is none here.
fn row_traces(
    traced: &mut TracedSequence<'_>,
    chain: &[Link],
    parameters: &Parameters,
) -> Result<Vec<RowTrace>, EngineError> {
    let first = if parameters.rules().first_row == FirstRow::Wrapped { 0 } else { -1 };
    let relative: Vec<i64> = chain.iter().map(|link| link.row).filter(|row| *row >= first).collect();
    let (response, mut queries) = traced.parts();
    let prompt_len = response.prompt_len;
    let rows: Vec<usize> = relative.iter().filter_map(|row| prompt_len.checked_add_signed(*row as isize)).collect();
    let weights = queries.attention_rows(&rows)?;
    let describe = |((row, absolute), weights): ((&i64, &usize), &Vec<f32>)| {
        let record = traced.head_record(*absolute)?.unwrap_or_default();
        Ok(RowTrace {
            row: *row,
            heads: record.heads,
            entropies: record.entropies,
            gap: Some(record.gap).filter(|gap| gap.is_finite()),
            top: top_entries(weights),
        })
    };
    relative.iter().zip(&rows).zip(&weights).map(describe).collect()
}

impl Assessed {
    /// As a line of output.
    pub fn into_record(self, id: serde_json::Value, reading: Reading, prompt_len: usize) -> Record {
        Record {
            confidence: self.confidence,
            trace: self.trace,
            ..Record::ok(id, reading, prompt_len, self.answer_text, self.outcome)
        }
    }
}
