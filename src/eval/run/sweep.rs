//! The responses of a run under other parameters: each is generated once and assessed many times. Rows go to
//! `sweep_<task>.jsonl`, so a sweep can be added to a run that is finished, and resume where it ended.

use super::RunError;
use super::controls::draw_number;
use super::folder::{FolderError, RunFolder, Shard, open_lines};
use super::manifest::{EvalOptions, Model};
use crate::backend::DType;
use crate::engine::{Engine, HeadSelection};
use crate::eval::sample::{Sample, SweepPoint, score_map};
use crate::io::jsonl::append::Appender;
use crate::io::record::Status;
use crate::uq::rules::RULES;
use crate::uq::{ChainRule, Parameters, Profile, Reading, RuleError, pipeline};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};

/// Max heads that a row's trace holds on every device.
const MAX_HEADS: usize = 32;

/// A line of `sweep_<task>.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    pub doc_id: usize,
    #[serde(flatten)]
    pub point: SweepPoint,
}

/// Max settings of a sweep.
const MAX_SETTINGS: usize = 1000;

/// What differs from the run: values by name.
pub type Setting = BTreeMap<String, Value>;

/// A sweep that cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SweepError {
    #[error("\"{0}\": expected NAME=VALUE,VALUE..., such as theta=0.5,0.7")]
    Shape(String),
    #[error("\"{0}\" cannot be swept; valid names: k, theta, kept, similarity, tau, targets, chain, k-cache, v-cache, {rules}", rules = rules().join(", "))]
    Name(String),
    #[error("more than {MAX_SETTINGS} settings; every response is assessed under each")]
    TooMany,
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("{name}={value}: expected {expected}")]
    Value { name: String, value: String, expected: &'static str },
}

/// The settings of `--sweep k=8,16 theta=0.5,0.7`: each value alone.
///
/// | name | parameter | |
/// |---|---|---|
/// | `k` | K, heads per row | 1 to 32 |
/// | `theta` | θ, min score of a target | ≥ 0 |
/// | `kept` | L', kept by the similarity filter | ≥ 0 |
/// | `similarity` | the cosine that a kept token has at least: the paper's threshold of similarity | -1 to 1 |
/// | `tau` | τ, min probability of an alternative | 0.01 to 1: less is not recorded |
/// | `targets` | L_tgt, targets per step | ≥ 1 |
/// | `chain` | where the chain comes from; random ones as often as `draws` says | [`ChainRule`]'s names |
/// | `k-cache`, `v-cache` | types of the cached keys and values | `f32`, `f16`, `bf16` |
/// | a rule | one of [`RULES`], but not how the responses and answers came about | its values |
pub fn settings(arguments: &[String], draws: usize) -> Result<Vec<Setting>, SweepError> {
    let drawn = |setting: Setting| {
        let chain = setting.get("chain").and_then(|name| serde_json::from_value::<ChainRule>(name.clone()).ok());
        let draws = if chain.is_some_and(ChainRule::is_random) { draws.max(1) } else { 0 };
        let numbered = (0..draws).map(|draw| {
            let mut setting = setting.clone();
            setting.insert("draw".to_owned(), json!(draw));
            setting
        });
        let numbered: Vec<Setting> = numbered.collect();
        if numbered.is_empty() { vec![setting] } else { numbered }
    };
    Ok(axes(arguments)?.into_iter().flat_map(drawn).collect())
}

/// The distinct settings; a random chain once for all its draws.
fn axes(arguments: &[String]) -> Result<Vec<Setting>, SweepError> {
    let mut settings = Vec::new();
    for argument in arguments {
        let (name, values) = argument.split_once('=').ok_or_else(|| SweepError::Shape(argument.clone()))?;
        for text in values.split(',') {
            let setting = Setting::from([(name.to_owned(), value(name, text.trim())?)]);
            if !settings.contains(&setting) {
                settings.push(setting);
            }
            if settings.len() > MAX_SETTINGS {
                return Err(SweepError::TooMany);
            }
        }
    }
    Ok(settings)
}

/// A value of one name, checked.
fn value(name: &str, text: &str) -> Result<Value, SweepError> {
    let wrong = |expected| SweepError::Value { name: name.to_owned(), value: text.to_owned(), expected };
    let whole = |min: usize, max: usize, expected| {
        let number = text.parse().ok().filter(|n: &usize| (min..=max).contains(n));
        number.map(Value::from).ok_or_else(|| wrong(expected))
    };
    let real = |min: f64, max: f64, expected| {
        let number = text.parse().ok().filter(|x: &f64| (min..=max).contains(x));
        number.map(Value::from).ok_or_else(|| wrong(expected))
    };
    let cache = || {
        let known = text.parse::<DType>().map_err(|_| wrong("f32, f16 or bf16"));
        known.map(|t| json!(t))
    };
    match name {
        "k" => whole(1, MAX_HEADS, "a number of heads from 1 to 32"),
        "theta" => real(0.0, f64::MAX, "a number ≥ 0"),
        "kept" => whole(0, usize::MAX, "a number of tokens"),
        "similarity" => real(-1.0, 1.0, "a cosine from -1 to 1"),
        "tau" => real(0.01, 1.0, "a probability ≥ 0.01"),
        "targets" => whole(1, usize::MAX, "a number of targets ≥ 1"),
        "chain" => text
            .parse::<ChainRule>()
            .map(|c| json!(c))
            .map_err(|_| wrong("attention, random, random-digits, random-content, similarity or none")),
        "k-cache" | "v-cache" => cache(),
        _ if rules().contains(&name) => Ok(Reading::new(Profile::Corrected, [(name, text)]).map(|_| json!(text))?),
        _ => Err(SweepError::Name(name.to_owned())),
    }
}

/// Names of the rules that can be swept: a run's tokens and answers are what they are.
fn rules() -> Vec<&'static str> {
    RULES.iter().map(|rule| rule.name).filter(|name| !["encoding", "extraction"].contains(name)).collect()
}

/// A setting as text, the same for equal settings.
fn key(setting: &Setting) -> String {
    serde_json::to_string(setting).unwrap_or_default()
}

/// What a setting makes of the run's parameters.
struct Applied<'s> {
    setting: &'s Setting,
    parameters: Parameters,
    caches: (DType, DType),
}

fn apply<'s>(setting: &'s Setting, options: &EvalOptions, model: &Model) -> Applied<'s> {
    let mut parameters = options.parameters.clone();
    let mut caches = (model.k_cache, model.v_cache);
    let whole = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    for (name, value) in setting {
        match name.as_str() {
            "k" => parameters.selected_heads = whole(value).unwrap_or(parameters.selected_heads),
            "theta" => parameters.score_threshold = value.as_f64().unwrap_or(parameters.score_threshold),
            "kept" => parameters.max_kept = whole(value).unwrap_or(parameters.max_kept),
            "similarity" => parameters.min_similarity = value.as_f64().unwrap_or(parameters.min_similarity),
            "tau" => parameters.min_alternative = value.as_f64().unwrap_or(parameters.min_alternative),
            "targets" => parameters.targets_per_step = whole(value).unwrap_or(parameters.targets_per_step),
            "chain" => parameters.chain = serde_json::from_value(value.clone()).unwrap_or(parameters.chain),
            "draw" => parameters.draw = draw_number(options.seed, value.as_u64().unwrap_or_default()),
            "k-cache" => caches.0 = serde_json::from_value(value.clone()).unwrap_or(caches.0),
            "v-cache" => caches.1 = serde_json::from_value(value.clone()).unwrap_or(caches.1),
            // its value was checked when it was read
            rule => parameters.reading.set(rule, value.as_str().unwrap_or_default()).unwrap_or_default(),
        }
    }
    Applied { setting, parameters, caches }
}

/// What is done with an engine.
type Work<'w> = &'w mut dyn FnMut(&mut Engine) -> Result<(), RunError>;

/// Does work with an engine of these types of cached keys and values.
pub type WithEngine<'e, E> = dyn FnMut((DType, DType), Work) -> Result<(), E> + 'e;

/// A sweep over the samples of one task.
pub struct Sweep<'a> {
    pub folder: &'a RunFolder,
    pub task: &'a str,
    pub shard: Option<Shard>,
    pub options: &'a EvalOptions,
    pub model: &'a Model,
    pub settings: &'a [Setting],
}

impl Sweep<'_> {
    /// Assesses every answered sample under every setting that its rows do not have yet. `engine` gives the engine with
    /// these types of cached keys and values; `on_row` is called after each row with the rows so far and their total.
    pub fn run<E: From<RunError>>(
        &self,
        engine: &mut WithEngine<E>,
        on_row: &mut dyn FnMut(usize, usize),
    ) -> Result<(), E> {
        let samples = self.samples().map_err(RunError::from)?;
        let (mut lines, mut done) = self.open().map_err(RunError::from)?;
        let applied: Vec<Applied> = self.settings.iter().map(|s| apply(s, self.options, self.model)).collect();
        let total = samples.len() * applied.len();
        let mut rows = 0;
        let mut groups: Vec<(DType, DType)> = Vec::new();
        for a in &applied {
            if !groups.contains(&a.caches) {
                groups.push(a.caches);
            }
        }
        for caches in groups {
            let settings: Vec<&Applied> = applied.iter().filter(|a| a.caches == caches).collect();
            let missing = |sample: &Sample, done: &HashSet<(usize, String)>| -> Vec<&Applied> {
                let is_missing = |a: &&&Applied| !done.contains(&(sample.doc_id, key(a.setting)));
                settings.iter().filter(is_missing).copied().collect()
            };
            rows += samples.iter().map(|s| settings.len() - missing(s, &done).len()).sum::<usize>();
            if samples.iter().all(|s| missing(s, &done).is_empty()) {
                continue;
            }
            engine(caches, &mut |engine| {
                for sample in &samples {
                    for row in self.assess(engine, sample, &missing(sample, &done))? {
                        lines.append(&row).and_then(|()| lines.sync()).map_err(FolderError::from)?;
                        done.insert((row.doc_id, key(&row.point.setting)));
                        rows += 1;
                        on_row(rows, total);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The run's samples that have an answer.
    fn samples(&self) -> Result<Vec<Sample>, FolderError> {
        let mut samples = BTreeMap::new();
        let path = self.folder.lines("samples", self.task, self.shard);
        open_lines(&path, |sample: Sample| {
            samples.insert(sample.doc_id, sample);
        })?;
        Ok(samples.into_values().filter(|s| s.uq.status == Status::Ok).collect())
    }

    fn open(&self) -> Result<(Appender, HashSet<(usize, String)>), FolderError> {
        let mut done = HashSet::new();
        let path = self.folder.lines("sweep", self.task, self.shard);
        let lines = open_lines(&path, |row: SweepRow| {
            done.insert((row.doc_id, key(&row.point.setting)));
        })?;
        Ok((lines, done))
    }

    /// The rows of one sample. Its response is run once for each selection of heads.
    fn assess(&self, engine: &mut Engine, sample: &Sample, settings: &[&Applied]) -> Result<Vec<SweepRow>, RunError> {
        let Some(answer) = &sample.uq.answer else { return Ok(Vec::new()) };
        let (tokens, prompt_len) = sample.sequence(engine.tokenizer())?;
        let answer = answer.tokens.clone();
        let mut by_selection: Vec<(HeadSelection, Vec<&Applied>)> = Vec::new();
        for a in settings {
            let selection = a.parameters.head_selection();
            match by_selection.iter_mut().find(|(other, _)| *other == selection) {
                Some((_, same)) => same.push(a),
                None => by_selection.push((selection, vec![a])),
            }
        }
        by_selection.sort_by_key(|(selection, _)| selection.heads);
        let mut rows = Vec::new();
        for (selection, settings) in by_selection {
            let mut traced = engine.trace(&tokens, prompt_len, selection)?;
            let (response, mut queries) = traced.parts();
            for a in settings {
                let (outcome, _) = pipeline::run(&response, answer.clone(), None, &a.parameters, &mut queries)?;
                let point = SweepPoint {
                    setting: a.setting.clone(),
                    chain: outcome.chain.iter().map(|link| link.row).collect(),
                    kept: outcome.kept,
                    scores: score_map(&outcome.scores),
                };
                rows.push(SweepRow { doc_id: sample.doc_id, point });
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Vec<String>, SweepError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        Ok(settings(&arguments, 2)?.iter().map(key).collect())
    }

    #[test]
    fn each_value_is_a_setting() {
        let alone = parsed(&["k=8,16", "theta=0.5, 0.7", "k=8"]).unwrap();
        assert_eq!(alone, [r#"{"k":8}"#, r#"{"k":16}"#, r#"{"theta":0.5}"#, r#"{"theta":0.7}"#]);
        assert_eq!(parsed(&[]).unwrap(), Vec::<String>::new());
        let drawn = parsed(&["chain=none,random"]).unwrap();
        assert_eq!(drawn, [r#"{"chain":"none"}"#, r#"{"chain":"random","draw":0}"#, r#"{"chain":"random","draw":1}"#]);
    }

    #[test]
    fn what_cannot_be_swept_is_explained() {
        for (argument, says) in [
            ("k", "NAME=VALUE"),
            ("heads=3", "valid names: k, theta"),
            ("k=33", "1 to 32"),
            ("k=", "1 to 32"),
            ("tau=0.001", "≥ 0.01"),
            ("similarity=2", "from -1 to 1"),
            ("theta=nan", "≥ 0"),
            ("k-cache=f8", "f32, f16 or bf16"),
            ("chain=all", "similarity or none"),
            ("threshold=over", "at-least or above"),
            ("extraction=full", "cannot be swept"),
            (
                &format!("kept={}", (0..1001).map(|n| n.to_string()).collect::<Vec<_>>().join(",")),
                "more than 1000 settings",
            ),
        ] {
            let error = parsed(&[argument]).unwrap_err().to_string();
            assert!(error.contains(says), "{argument}: {error}");
        }
    }
}
