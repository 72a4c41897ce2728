//! A run's responses under other parameters: each is generated once and assessed many times. Rows go to `sweep_<task>.jsonl`,
//! so a sweep can be added to a finished run, and resumes where it stopped.

use super::folder::{FolderError, RunFolder, Shard, open_lines};
use super::{RunError, controls::draw_number, controls::setting, manifest::Manifest};
use crate::uq::{Parameters, Profile, RuleError, pipeline};
use crate::{backend::DType, backend::ValueType, eval::sample::Sample, eval::sample::SweepPoint, names::Named};
use crate::{engine::Engine, io::jsonl::append::Appender, io::record::Status, units::text_of, uq::values::names};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{collections::BTreeMap, collections::HashSet};

/// A line of `sweep_<task>.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    pub doc_id: usize,
    #[serde(flatten)]
    pub point: SweepPoint,
}

/// Max settings of a sweep.
const MAX_SETTINGS: usize = 1000;

/// Differences from the run's parameters: values by name.
pub type Setting = BTreeMap<String, Value>;

/// Invalid sweep arguments.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SweepError {
    #[error("\"{0}\": expected NAME=VALUE,VALUE..., such as theta=0.5,0.7")]
    Shape(String),
    #[error("\"{0}\" cannot be swept; valid names: chain, k-cache, v-cache, {names}", names = names())]
    Name(String),
    #[error("more than {MAX_SETTINGS} settings; every response is assessed under each")]
    TooMany,
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("{name}={value}: {why}")]
    Value { name: String, value: String, why: String },
}

/// The settings of `--sweep k=8,16 theta=0.5,0.7`: each value on its own.
///
/// | name | parameter | |
/// |---|---|---|
/// | `chain` | source of the chain; random ones `draws` times | [`ChainRule`]'s names |
/// | `k-cache`, `v-cache` | types of the cached keys and values | `f32`, `f16`, `bf16`; for values also `q8` |
/// | a parameter | one of [`PARAMETERS`](crate::uq::values::PARAMETERS) | its range |
/// | a rule | one of [`RULES`](crate::uq::rules::RULES), except those that determine responses and answers | its values |
pub fn settings(arguments: &[String], draws: usize) -> Result<Vec<Setting>, SweepError> {
    let mut settings: Vec<Setting> = Vec::new();
    let mut count = 0;
    for argument in arguments {
        let (name, values) = argument.split_once('=').ok_or_else(|| SweepError::Shape(argument.clone()))?;
        for text in values.split(',').map(str::trim) {
            let (parameters, caches) = (Parameters::published(Profile::Corrected), (DType::F32, ValueType::F32));
            let mut applied = Applied { setting: Setting::new(), parameters, caches };
            let one = Setting::from([(name.to_owned(), applied.set(name, text)?)]);
            let chain = applied.parameters.chain;
            let drawn = |draw| setting(chain, draw);
            let these = if chain.is_random() { (0..draws.max(1) as u64).map(drawn).collect() } else { vec![one] };
            if settings.contains(&these[0]) {
                continue;
            }
            settings.extend(these);
            count += 1;
            if count > MAX_SETTINGS {
                return Err(SweepError::TooMany);
            }
        }
    }
    Ok(settings)
}

/// Rules that cannot be swept: a run's tokens and answers are fixed.
const FIXED: [&str; 2] = ["encoding", "extraction"];

/// A run's parameters and cache types under a setting.
struct Applied {
    setting: Setting,
    parameters: Parameters,
    caches: (DType, ValueType),
}

impl Applied {
    /// Applies a setting to a run.
    fn of(setting: &Setting, Manifest { model, options, .. }: &Manifest) -> Result<Applied, SweepError> {
        let (parameters, caches) = (options.parameters.clone(), (model.k_cache, model.v_cache));
        let mut applied = Applied { setting: setting.clone(), parameters, caches };
        for (name, value) in setting {
            if name == "draw" {
                applied.parameters.draw = draw_number(options.seed, value.as_u64().unwrap_or_default());
            } else {
                applied.set(name, &text_of(value))?;
            }
        }
        Ok(applied)
    }

    /// Sets one parameter; returns its value in JSON.
    fn set(&mut self, name: &str, text: &str) -> Result<Value, SweepError> {
        let Applied { parameters: to, caches: (k, v), .. } = self;
        let set = match name {
            "chain" => set(Named::named(text), &mut to.chain),
            "k-cache" => set(text.parse(), k),
            "v-cache" => set(text.parse(), v),
            _ if FIXED.contains(&name) => return Err(SweepError::Name(name.to_owned())),
            _ => match to.reading.set(name, text) {
                Err(RuleError::Name(name)) => return Err(SweepError::Name(name)),
                other => return Ok(other?),
            },
        };
        set.map_err(|why| SweepError::Value { name: name.to_owned(), value: text.to_owned(), why })
    }

    /// Whether a sample's row exists.
    fn is_in(&self, done: &HashSet<(usize, Setting)>, sample: &Sample) -> bool {
        done.contains(&(sample.doc_id, self.setting.clone()))
    }
}

/// Puts a value into `to`; returns it in JSON.
fn set<T: Serialize>(value: Result<T, impl ToString>, to: &mut T) -> Result<Value, String> {
    *to = value.map_err(|why| why.to_string())?;
    Ok(json!(to))
}

/// A sweep over the samples of one task.
pub struct Sweep {
    /// The run's samples with an answer.
    samples: Vec<Sample>,
    settings: Vec<Applied>,
    lines: Appender,
    /// The existing rows: doc_id and setting.
    done: HashSet<(usize, Setting)>,
}

impl Sweep {
    /// Opens the sweep of a task (or of one shard) in a run's folder.
    ///
    /// # Errors
    /// Samples or rows that cannot be read, or a file that cannot be written.
    pub fn open(
        folder: &RunFolder,
        task: &str,
        shard: Option<Shard>,
        manifest: &Manifest,
        settings: &[Setting],
    ) -> Result<Sweep, RunError> {
        let (mut samples, mut done) = (BTreeMap::new(), HashSet::new());
        open_lines(&folder.lines("samples", task, shard), |sample: Sample| {
            samples.insert(sample.doc_id, sample);
        })?;
        let lines = open_lines(&folder.lines("sweep", task, shard), |row: SweepRow| {
            done.insert((row.doc_id, row.point.setting));
        })?;
        let samples = samples.into_values().filter(|sample| sample.uq.status == Status::Ok).collect();
        let settings = settings.iter().map(|setting| Applied::of(setting, manifest)).collect::<Result<_, _>>()?;
        Ok(Sweep { samples, settings, lines, done })
    }

    /// The KV cache types an engine needs for the missing rows.
    pub fn caches(&self) -> Vec<(DType, ValueType)> {
        let mut caches = Vec::new();
        for applied in &self.settings {
            let missing = self.samples.iter().any(|sample| !applied.is_in(&self.done, sample));
            if missing && !caches.contains(&applied.caches) {
                caches.push(applied.caches);
            }
        }
        caches
    }

    /// Assesses every sample under the settings that have no row yet and match this engine's caches; `on_row` is called after
    /// each row. A response is run once per head selection.
    ///
    /// # Errors
    /// The engine, a prompt that is no longer encoded as it was, or a file that cannot be written.
    pub fn run(&mut self, engine: &mut Engine, on_row: &mut dyn FnMut()) -> Result<(), RunError> {
        let selection = |applied: &&Applied| applied.parameters.trace_parts();
        for sample in &self.samples {
            let fits = |a: &&Applied| a.caches == engine.cache_types() && !a.is_in(&self.done, sample);
            let mut missing: Vec<&Applied> = self.settings.iter().filter(fits).collect();
            let Some(answer) = sample.uq.answer.as_ref().filter(|_| !missing.is_empty()) else { continue };
            missing.sort_by_key(|applied| (selection(applied).heads, selection(applied).entropy as u8));
            let (tokens, prompt_len) = sample.sequence(engine.tokenizer())?;
            for same in missing.chunk_by(|a, b| selection(a) == selection(b)) {
                let mut traced = engine.trace(&tokens, prompt_len, selection(&same[0]))?;
                traced.set_forced(&sample.uq.forced);
                let (response, mut queries) = traced.parts();
                for applied in same {
                    let answer = answer.tokens.clone();
                    let (outcome, _) = pipeline::run(&response, answer, None, &applied.parameters, &mut queries)?;
                    let point = SweepPoint::of(applied.setting.clone(), outcome);
                    let row = SweepRow { doc_id: sample.doc_id, point };
                    self.lines.append(&row).and_then(|()| self.lines.sync()).map_err(FolderError::from)?;
                    on_row();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Vec<String>, SweepError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        Ok(settings(&arguments, 2)?.iter().map(|setting| json!(setting).to_string()).collect())
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
            ("heads=3", "valid names: chain, k-cache, v-cache, k, theta"),
            ("k=33", "1 to 32"),
            ("k=", "1 to 32"),
            ("tau=0.001", "≥ 0.01"),
            ("similarity=2", "from -1 to 1"),
            ("theta=nan", "≥ 0"),
            ("k-cache=q8", "f32, f16 or bf16"),
            ("v-cache=f8", "f32, f16, bf16 or q8"),
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
