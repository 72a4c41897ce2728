//! Every number of an analysis with its keys: the rows of the CSV (RFC 4180), and the source of most table cells.

use crate::eval::analysis::{Analysis, Estimate, Summary, TaskAnalysis};
use crate::{eval::metrics::MeanSd, eval::metrics::Metric, report::term::one_line};
use serde::Serialize;
use std::collections::BTreeMap;

/// A number with its precision. Fields that are undefined or unknown are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Number {
    pub value: Option<f64>,
    /// 95 % interval.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Standard deviation over balanced subsamples or runs.
    pub sd: Option<f64>,
    /// Number of items the value is computed over.
    pub items: Option<usize>,
}

impl Number {
    pub fn new(value: Option<f64>, interval: Option<[f64; 2]>) -> Number {
        let [low, high] = interval.map_or([None; 2], |ends| ends.map(Some));
        Number { value, low, high, ..Number::default() }
    }
}

impl From<Option<f64>> for Number {
    fn from(value: Option<f64>) -> Number {
        Number::new(value, None)
    }
}

impl From<Option<Estimate>> for Number {
    fn from(estimate: Option<Estimate>) -> Number {
        Number::new(estimate.map(|e| e.value), estimate.and_then(|e| e.interval))
    }
}

impl From<Option<MeanSd>> for Number {
    fn from(spread: Option<MeanSd>) -> Number {
        Number { sd: spread.map(|s| s.sd), ..Number::from(spread.map(|s| s.mean)) }
    }
}

/// A number and its keys.
#[derive(Clone, Debug)]
pub struct Fact<'a> {
    /// Items or procedure: `answered`, `all`, `balanced`, `common`, `difference`, `mean`, `control`, `sweep`, ...
    pub view: &'static str,
    /// Parameter changes of a sweep or a control.
    pub setting: String,
    /// Key of a method; in the view `overhead`, the stage.
    pub method: &'a str,
    pub metric: &'static str,
    pub number: Number,
}

#[derive(Clone, Debug, Default)]
pub struct Facts<'a>(pub Vec<Fact<'a>>);

impl<'a> Facts<'a> {
    /// Adds numbers with these keys, computed over `items` items.
    pub(super) fn add<N: Into<Number>>(
        &mut self,
        (view, setting, method): (&'static str, &str, &'a str),
        items: usize,
        numbers: impl IntoIterator<Item = (&'static str, N)>,
    ) {
        self.0.extend(numbers.into_iter().map(|(metric, number)| {
            let number = Number { items: Some(items), ..number.into() };
            Fact { view, setting: setting.to_owned(), method, metric, number }
        }));
    }

    /// The number with these keys; an empty one if there is none.
    pub fn find(&self, view: &str, setting: &str, method: &str, metric: &str) -> Number {
        let keys = (method, view, metric);
        let is = |fact: &&Fact| (fact.method, fact.view, fact.metric) == keys && fact.setting == setting;
        self.0.iter().find(is).map_or_else(Number::default, |fact| fact.number)
    }

    pub(super) fn summary(&self, metric: &str) -> Number {
        self.find("summary", "", "", metric)
    }

    /// All facts of a task.
    pub fn of_task(task: &'a TaskAnalysis) -> Facts<'a> {
        let mut facts = Facts::of_summary(&task.summary);
        for found in &task.methods {
            let (method, items) = (found.method.as_str(), found.answered.items);
            facts.add(("answered", "", method), items, metrics(&found.answered.metrics));
            facts.add(("all", "", method), found.all.items, metrics(&found.all.metrics));
            if let Some(balanced) = &found.balanced {
                facts.add(("balanced", "", method), 2 * balanced.per_class, metrics(&balanced.metrics));
            }
            let by_length = ("length_controlled_auroc", found.length_controlled_auroc);
            facts.add(("answered", "", method), items, [by_length, ("passes", found.passes)]);
        }
        for found in task.common.iter().flat_map(|common| &common.methods) {
            let (method, items) = (found.method.as_str(), found.measures.items);
            facts.add(("common", "", method), items, metrics(&found.measures.metrics));
            facts.add(("difference", "", method), items, metrics(&found.difference));
        }
        for control in &task.controls {
            let setting = format!("chain={}", control.chain);
            for found in &control.methods {
                let (method, items) = (found.method.as_str(), found.items);
                facts.add(("control_own", &setting, method), items, metrics(&found.own));
                facts.add(("control", &setting, method), items, metrics(&found.control));
                facts.add(("control_difference", &setting, method), items, metrics(&found.difference));
            }
        }
        for sweep in &task.sweep {
            let (setting, overlap) = (sweep.name(), ("chain_overlap", sweep.chain_overlap));
            facts.add(("sweep", &setting, ""), sweep.items, [overlap, ("same_chain", sweep.same_chain)]);
            for found in &sweep.methods {
                let keys = ("sweep", setting.as_str(), found.method.as_str());
                facts.add(keys, found.items, metrics(&found.metrics));
                let mean = ("mean_change", found.mean_change);
                facts.add(keys, found.items, [mean, ("largest_change", found.largest_change)]);
            }
        }
        for stage in &task.overhead {
            let relative = ("relative_to_generate", stage.relative_to_generate);
            facts.add(("overhead", "", &stage.stage), stage.items, [("seconds", Some(stage.seconds)), relative]);
        }
        facts
    }

    pub fn of_summary(summary: &Summary) -> Facts<'a> {
        /// Those that are plain numbers, by their names in JSON.
        const NUMBERS: &str = "items graded correct answered no_answer errors truncated truncated_in_thought disagreements \
            accuracy_reference majority_accuracy response_tokens mean_response_tokens mean_chain mean_kept mean_ensemble seconds";
        let (mut facts, keys, values) = (Facts::default(), ("summary", "", ""), serde_json::json!(summary));
        let accuracy = Number::new(summary.accuracy, summary.accuracy_interval);
        let completed = Number::new(summary.accuracy_completed, summary.accuracy_completed_interval);
        facts.add(keys, summary.items, [("accuracy", accuracy), ("accuracy_completed", completed)]);
        facts.add(keys, summary.items, NUMBERS.split(' ').map(|name| (name, values[name].as_f64())));
        facts
    }
}

fn metrics<T: Copy>(metrics: &BTreeMap<Metric, Option<T>>) -> impl Iterator<Item = (&'static str, Option<T>)> {
    metrics.iter().map(|(metric, value)| (metric.key(), *value))
}

const HEADER: [&str; 12] =
    ["run", "profile", "task", "view", "setting", "method", "metric", "value", "low", "high", "sd", "items"];

/// Neutralizes a name from a file for terminals and for spreadsheets, which would evaluate text that begins with one of
/// these signs as a formula. The apostrophe is the spreadsheets' own marker for text.
fn name(text: &str) -> String {
    let text = one_line(text);
    let formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if formula { format!("'{text}") } else { text }
}

/// The whole analysis, one row per number, in full precision.
pub fn csv(analysis: &Analysis) -> Result<String, csv::Error> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(HEADER)?;
    for run in &analysis.runs {
        let mut means = Facts::default();
        for mean in &run.means {
            means.add(("mean", "", &mean.method), mean.benchmarks, metrics(&mean.answered));
        }
        let tasks = run.tasks.iter().map(|task| (task.task.as_str(), Facts::of_task(task)));
        for (task, facts) in tasks.chain([("", means)]) {
            let scope = [&run.name, run.profile.as_deref().unwrap_or_default(), task].map(name);
            for Fact { view, setting, method, metric, number } in facts.0 {
                writer.serialize((&scope, view, name(&setting), name(method), metric, number))?;
            }
        }
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
