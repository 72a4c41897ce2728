//! From run folders to a report's figures, without a model.
//!
//! ```text
//! run folders ─ load: runs of items (shards merged) ─┬─ summary ─────┐
//!                                                    ├─ methods      ├─ Analysis ─ tables, pictures, results.json
//!                                                    ├─ sweeps       │
//!                                                    └─ overhead ────┘
//! ```
//!
//! Two views of the items: **answered** (the main one, as in the paper: responses in which an answer was found and the method
//! has a score) and **all** (every graded item; one without a score ranks lowest, as probability 0). An item without an answer
//! counts as wrong in both the accuracy and the second view.

pub mod calibrate;
mod compare;
mod compute;
pub mod controls;
pub mod early;
pub mod load;
pub mod methods;
mod summary;

pub use compute::analyse;
pub use load::{AnalysisError, Item, for_each_line, sample_files};
pub use methods::{Group, Method};

use controls::Control;
use early::EarlyStopping;

use super::{metrics::Balanced, metrics::Metric, sample::Similarity};
use crate::units::{count, text_of, whole};
use clap::Parser;
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf};

/// Format version of [`results_json`].
pub const FORMAT: u32 = 1;

/// Options of an analysis; also those of the command line.
#[derive(Clone, Debug, PartialEq, Serialize, clap::Parser)]
pub struct AnalysisOptions {
    /// Bootstrap resamples; 0: no intervals
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = count(0..=100_000))]
    pub resamples: usize,
    /// Seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u32>(0..=u32::MAX.into()))]
    pub seed: u32,
    /// Methods to report, by their keys in uq.scores [default: all]
    #[arg(long, value_delimiter = ',', value_name = "METHOD,...")]
    pub methods: Vec<String>,
    /// Baseline for differences
    #[arg(long, value_name = "METHOD", default_value = "p")]
    pub against: String,
}

impl Default for AnalysisOptions {
    fn default() -> Self {
        AnalysisOptions::parse_from([""])
    }
}

/// A task's data: items, and methods, not all of which have a score on every item.
#[derive(Clone, Copy)]
struct Data<'a> {
    items: &'a [Item],
    methods: &'a [Method],
    options: &'a AnalysisOptions,
}

/// Everything a report shows.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    pub format: u32,
    pub options: AnalysisOptions,
    /// Every method that any run has a score of, in display order.
    pub methods: Vec<Method>,
    pub runs: Vec<RunAnalysis>,
}

impl Analysis {
    /// Every benchmark of every run.
    pub fn benchmarks(&self) -> impl Iterator<Item = (&RunAnalysis, &TaskAnalysis)> {
        self.runs.iter().flat_map(|run| run.benchmarks().map(move |task| (run, task)))
    }

    /// Methods with a row of their own: a logarithm ranks like its probability and shares that row.
    pub fn rows(&self) -> impl Iterator<Item = &Method> {
        let has_twin = |method: &Method| self.methods.iter().any(|other| other.log == Some(method.key.as_str()));
        self.methods.iter().filter(move |method| method.key == self.options.against || !has_twin(method))
    }

    /// The rows of a task, each with the methods that rank its items identically and share the row: for non-probability
    /// methods, nothing but the ranking is measured.
    pub fn rows_of(&self, task: &TaskAnalysis) -> Vec<(&Method, Vec<&Method>)> {
        let mut rows: Vec<(&Method, Vec<&Method>)> = Vec::new();
        let mut orders: Vec<Vec<Option<(usize, bool)>>> = Vec::new();
        for method in self.rows() {
            let order = task.order(method);
            let same = orders.iter().position(|other| !method.probability && *other == order);
            match same.filter(|_| method.key != self.options.against) {
                Some(row) => rows[row].1.push(method),
                None => {
                    rows.push((method, Vec::new()));
                    orders.push(order);
                }
            }
        }
        rows
    }

    /// A method's display name.
    pub fn name_of<'a>(&'a self, key: &'a str) -> &'a str {
        self.methods.iter().find(|method| method.key == key).map_or(key, |method| &method.name)
    }
}

/// One evaluation of a model: a folder, or the folders of its shards.
#[derive(Clone, Debug, Serialize)]
pub struct RunAnalysis {
    /// The model's name; with the folder's name if two runs share it.
    pub name: String,
    pub model: String,
    pub profile: Option<String>,
    pub device: Option<String>,
    pub folders: Vec<PathBuf>,
    /// As found, from the first folder.
    pub manifest: Value,
    /// Notes for the reader: missing shards, half-written lines.
    pub notes: Vec<String>,
    /// Benchmarks by name, each followed by its subtasks.
    pub tasks: Vec<TaskAnalysis>,
    /// Means over the benchmarks, if there is more than one.
    pub means: Vec<MethodMeans>,
}

impl RunAnalysis {
    /// Top-level tasks: subtasks pooled.
    pub fn benchmarks(&self) -> impl Iterator<Item = &TaskAnalysis> {
        self.tasks.iter().filter(|task| task.level == Level::Benchmark)
    }

    /// The variant of expected calibration error for this run's profile.
    pub fn ece(&self) -> Metric {
        if self.profile.as_deref() == Some("paper") { Metric::EceRight } else { Metric::Ece }
    }
}

/// Whether a task is top-level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A task, or all subtasks of one together (`bbh`).
    Benchmark,
    /// `bbh:causal_judgement`; its items are in its benchmark too.
    Subtask,
}

/// Results of a task.
#[derive(Clone, Debug, Serialize)]
pub struct TaskAnalysis {
    pub task: String,
    pub level: Level,
    pub summary: Summary,
    /// In the order of [`Analysis::methods`]; only methods that have a score here.
    pub methods: Vec<MethodAnalysis>,
    /// `None` with fewer than two methods.
    pub common: Option<Common>,
    /// If the run drew them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<Control>,
    pub sweep: Vec<SweepSetting>,
    /// For runs with a wide trace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub early: Vec<EarlyStopping>,
    pub overhead: Vec<Stage>,
    /// By task and doc_id.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// Right answers, and wrong ones, that it takes for a comparison: with fewer there is no finding, no interval and no best method.
const MIN_OF_CLASS: usize = 20;

/// Why items cannot tell methods apart, if they cannot.
fn too_few(items: &[Item]) -> Option<String> {
    let count = |right| items.iter().filter(|item| item.answered() && item.correct == Some(right)).count();
    let (right, wrong) = (count(true), count(false));
    let needed = format!("too few to compare methods, which takes {MIN_OF_CLASS} of each");
    (right.min(wrong) < MIN_OF_CLASS).then(|| format!("{right} right and {wrong} wrong answers are {needed}"))
}

impl TaskAnalysis {
    /// Why its items cannot tell methods apart, if they cannot.
    pub fn too_few(&self) -> Option<String> {
        too_few(&self.items)
    }

    /// Results of the method with this key.
    pub fn method(&self, key: &str) -> Option<&MethodAnalysis> {
        self.methods.iter().find(|method| method.method == key)
    }

    /// Each item's position in a method's ranking, lowest first, and whether its answer is correct.
    fn order(&self, method: &Method) -> Vec<Option<(usize, bool)>> {
        let judged: Vec<_> = self.items.iter().map(|item| item.judged(method)).collect();
        let mut ranks: Vec<f64> = judged.iter().flatten().map(|(confidence, _)| confidence.rank).collect();
        ranks.sort_by(f64::total_cmp);
        let place = |rank: f64| ranks.partition_point(|other| *other < rank);
        judged.iter().map(|found| found.map(|(confidence, correct)| (place(confidence.rank), correct))).collect()
    }
}

/// Counts over a task's items.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub items: usize,
    /// Items with a grade; those with an error may have none.
    pub graded: usize,
    pub correct: usize,
    /// Over the graded items; those without an answer count as wrong.
    pub accuracy: Option<f64>,
    /// Wilson's 95 % score interval.
    pub accuracy_interval: Option<[f64; 2]>,
    /// Items with an answer and scores.
    pub answered: usize,
    pub no_answer: usize,
    pub errors: usize,
    /// Truncated responses, with an answer or without, and those of them that ended in a thought.
    pub truncated: usize,
    pub truncated_in_thought: usize,
    /// Over the graded items whose responses are complete, with Wilson's interval.
    pub accuracy_completed: Option<f64>,
    pub accuracy_completed_interval: Option<[f64; 2]>,
    /// Items with both grades: how many, accuracy under the authors' grading, and number of disagreements.
    pub graded_twice: usize,
    pub accuracy_reference: Option<f64>,
    pub disagreements: usize,
    /// Accuracy of the majority answer, over the items with several samples.
    pub majority_accuracy: Option<f64>,
    /// Over all responses.
    pub response_tokens: usize,
    /// Means over the answered items: response tokens, chain links (answer tokens not counted), links kept, ensemble members.
    pub mean_response_tokens: Option<f64>,
    pub mean_chain: Option<f64>,
    pub mean_kept: Option<f64>,
    pub mean_ensemble: Option<f64>,
    /// Over the items that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_similarity: Option<Similarity>,
    pub seconds: f64,
}

/// A value with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
}

/// Metrics over one view of the items.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measures {
    pub items: usize,
    pub correct: usize,
    /// `None` where a metric is not defined.
    pub metrics: BTreeMap<Metric, Option<Estimate>>,
}

impl Measures {
    /// The metric with its interval; `None` where it is not defined.
    pub fn get(&self, metric: Metric) -> Option<Estimate> {
        self.metrics.get(&metric).copied().flatten()
    }

    /// The metric alone; `None` where it is not defined.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.get(metric).map(|estimate| estimate.value)
    }
}

/// A method on a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodAnalysis {
    pub method: String,
    /// Answered items without a score of this method.
    pub missing: usize,
    pub answered: Measures,
    pub all: Measures,
    /// On the paper's subsamples of the answered items.
    pub balanced: Option<Balanced>,
    /// AUROC within quintiles of response length, over the answered items.
    pub length_controlled_auroc: Option<f64>,
    /// Tokens generated over those of the responses; `None` if unknown.
    pub passes: Option<f64>,
}

/// Methods compared with one of them, each on the items scored by both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Common {
    /// The method the differences are taken against.
    pub against: String,
    /// Items scored by `against`.
    pub items: usize,
    pub methods: Vec<CommonMethod>,
}

/// A method on the items scored by both it and [`Common::against`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommonMethod {
    pub method: String,
    pub measures: Measures,
    /// Its metric minus that of `against` on the same items, with the paired-bootstrap interval.
    pub difference: BTreeMap<Metric, Option<Estimate>>,
}

/// A method's means over benchmarks, equally weighted; `None` unless the metric is defined on every one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodMeans {
    pub method: String,
    pub benchmarks: usize,
    pub answered: BTreeMap<Metric, Option<f64>>,
    pub balanced: BTreeMap<Metric, Option<f64>>,
    pub length_controlled_auroc: Option<f64>,
}

/// The same responses under other parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepSetting {
    /// Differences from the run; empty: the run's own parameters, over the same items.
    pub setting: BTreeMap<String, Value>,
    pub items: usize,
    /// Mean Jaccard overlap with the run's own chain, answer tokens not counted; share of items with the same chain.
    pub chain_overlap: Option<f64>,
    pub same_chain: Option<f64>,
    pub mean_chain: Option<f64>,
    pub methods: Vec<SweepMethod>,
}

impl SweepSetting {
    pub fn method(&self, key: &str) -> Option<&SweepMethod> {
        self.methods.iter().find(|method| method.method == key)
    }

    /// `k=8, theta=0.5`
    pub fn name(&self) -> String {
        let pairs: Vec<String> = self.setting.iter().map(|(key, value)| format!("{key}={}", text_of(value))).collect();
        pairs.join(", ")
    }
}

/// A method under a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepMethod {
    pub method: String,
    pub items: usize,
    pub metrics: BTreeMap<Metric, Option<f64>>,
    /// |score - the run's own score|.
    pub mean_change: Option<f64>,
    pub largest_change: Option<f64>,
}

/// Time spent in a stage of the evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub stage: String,
    /// Items that went through it.
    pub items: usize,
    pub seconds: f64,
    pub seconds_per_item: f64,
    /// Relative to the seconds of `generate` for the same items.
    pub relative_to_generate: Option<f64>,
}

/// Content of a run folder's `results.json`: the [`Analysis`] of this folder alone, without its path, since it may be moved.
pub fn results_json(analysis: &Analysis) -> Value {
    let mut json = serde_json::to_value(analysis).unwrap_or_default();
    json["runs"].as_array_mut().into_iter().flatten().for_each(|run| run["folders"] = Value::Array(Vec::new()));
    json
}
