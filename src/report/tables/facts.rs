//! Every number of an analysis with its keys: the rows of the CSV, and the source of all table cells.

use crate::eval::analysis::holdout::{Answered, CalibrationErrors, HoldoutMethod};
use crate::eval::analysis::{Estimate, RunAnalysis, Summary, TaskAnalysis};
use crate::eval::metrics::Metric;
use crate::eval::metrics::balanced::MeanSd;
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
    /// Items behind the number.
    pub items: Option<usize>,
}

impl Number {
    pub fn new(value: Option<f64>, interval: Option<[f64; 2]>) -> Number {
        let [low, high] = interval.map_or([None; 2], |ends| ends.map(Some));
        Number { value, low, high, ..Number::default() }
    }

    fn over(self, items: usize) -> Number {
        Number { items: Some(items), ..self }
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
        Number { value: spread.map(|s| s.mean), sd: spread.map(|s| s.sd), ..Number::default() }
    }
}

/// Numbers of one view, setting and method.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Items or procedure: `answered`, `all`, `balanced`, `common`, `difference`, `mean`, `control`, `sweep`, ...
    pub view: &'static str,
    /// What a sweep or a control changes.
    pub setting: String,
    /// Key of a method; of `overhead` the stage.
    pub method: &'a str,
    pub numbers: Vec<(&'static str, Number)>,
}

impl<'a> Facts<'a> {
    fn new<T>(view: &'static str, method: &'a str, numbers: T) -> Facts<'a>
    where
        T: IntoIterator<Item = (&'static str, Number)>,
    {
        Facts { view, setting: String::new(), method, numbers: numbers.into_iter().collect() }
    }

    fn with_setting(self, setting: String) -> Facts<'a> {
        Facts { setting, ..self }
    }
}

/// The number with these keys; an empty one if there is none.
pub fn find(facts: &[Facts], view: &str, setting: &str, method: &str, metric: &str) -> Number {
    let here = facts.iter().filter(|of| of.method == method && of.view == view && of.setting == setting);
    here.flat_map(|of| &of.numbers).find(|(key, _)| *key == metric).map_or_else(Number::default, |(_, found)| *found)
}

type Metrics<T> = BTreeMap<Metric, Option<T>>;

fn metrics<T: Copy>(metrics: &Metrics<T>, items: usize) -> impl Iterator<Item = (&'static str, Number)>
where
    Number: From<Option<T>>,
{
    metrics.iter().map(move |(metric, value)| (metric.key(), Number::from(*value).over(items)))
}

/// All facts of a task.
pub fn of_task(task: &TaskAnalysis) -> Vec<Facts<'_>> {
    let mut facts = vec![summary(&task.summary)];
    for found in &task.methods {
        let items = found.answered.items;
        let of = |view, numbers| Facts::new(view, &found.method, numbers);
        facts.push(of("answered", metrics(&found.answered.metrics, items).collect::<Vec<_>>()));
        facts.push(of("all", metrics(&found.all.metrics, found.all.items).collect()));
        let balanced = found.balanced.as_ref().map(|b| metrics(&b.metrics, 2 * b.per_class));
        facts.push(of("balanced", balanced.into_iter().flatten().collect()));
        let by_length = Number::from(found.length_controlled_auroc).over(items);
        facts.push(of("answered", vec![("length_controlled_auroc", by_length)]));
    }
    for found in task.common.iter().flat_map(|common| &common.methods) {
        let items = found.measures.items;
        facts.push(Facts::new("common", &found.method, metrics(&found.measures.metrics, items)));
        facts.push(Facts::new("difference", &found.method, metrics(&found.difference, items)));
    }
    for control in &task.controls {
        for found in &control.methods {
            for (view, of) in
                [("control_own", &found.own), ("control", &found.control), ("control_difference", &found.difference)]
            {
                let numbers = Facts::new(view, &found.method, metrics(of, found.items));
                facts.push(numbers.with_setting(format!("chain={}", control.chain)));
            }
        }
    }
    if let Some(holdout) = &task.holdout {
        facts.extend(holdout.methods.iter().flat_map(|found| halves(found, holdout.fitted, holdout.held_out)));
    }
    for sweep in &task.sweep {
        let number = |(metric, value): (&'static str, Option<f64>), items| (metric, Number::from(value).over(items));
        let chain = [("chain_overlap", sweep.chain_overlap), ("same_chain", sweep.same_chain)];
        let chain = chain.map(|found| number(found, sweep.items));
        facts.push(Facts::new("sweep", "", chain).with_setting(sweep.name()));
        for found in &sweep.methods {
            let changes = [("mean_change", found.mean_change), ("largest_change", found.largest_change)];
            let changes = changes.map(|change| number(change, found.items));
            let numbers = metrics(&found.metrics, found.items).chain(changes);
            facts.push(Facts::new("sweep", &found.method, numbers).with_setting(sweep.name()));
        }
    }
    for stage in &task.overhead {
        let number = |value: Option<f64>| Number::from(value).over(stage.items);
        let numbers =
            [("seconds", number(Some(stage.seconds))), ("relative_to_generate", number(stage.relative_to_generate))];
        facts.push(Facts::new("overhead", &stage.stage, numbers));
    }
    facts
}

/// Facts over a run's benchmarks.
pub fn of_run(run: &RunAnalysis) -> Vec<Facts<'_>> {
    run.means.iter().map(|mean| Facts::new("mean", &mean.method, metrics(&mean.answered, mean.benchmarks))).collect()
}

fn halves(found: &HoldoutMethod, fitted: usize, held_out: usize) -> Vec<Facts<'_>> {
    let mut facts = Vec::new();
    if let Some(abstention) = &found.abstention {
        let answered = |half: Answered, items: usize| {
            let risk = Number::new(half.risk, half.risk_interval).over(items);
            [("coverage", Number::from(Some(half.coverage)).over(items)), ("risk", risk)]
        };
        let threshold = ("threshold", Number::from(abstention.threshold).over(fitted));
        let chosen = std::iter::once(threshold).chain(answered(abstention.fitted, fitted));
        facts.push(Facts::new("fitted", &found.method, chosen));
        facts.push(Facts::new("held_out", &found.method, answered(abstention.held_out, held_out)));
    }
    if let Some(calibration) = &found.calibration {
        let maps = [
            ("ece", "brier", calibration.as_is),
            ("ece_platt", "brier_platt", Some(calibration.platt)),
            ("ece_isotonic", "brier_isotonic", Some(calibration.isotonic)),
        ];
        let errors = |(ece, brier, errors): (_, _, Option<CalibrationErrors>)| {
            let number = |value: Option<f64>| Number::from(value).over(calibration.items);
            [(ece, number(errors.map(|e| e.ece))), (brier, number(errors.map(|e| e.brier)))]
        };
        facts.push(Facts::new("held_out", &found.method, maps.into_iter().flat_map(errors)));
    }
    facts
}

pub fn summary(summary: &Summary) -> Facts<'static> {
    let count = |n: usize| Some(n as f64);
    let values = [
        ("items", count(summary.items)),
        ("graded", count(summary.graded)),
        ("correct", count(summary.correct)),
        ("answered", count(summary.answered)),
        ("no_answer", count(summary.no_answer)),
        ("errors", count(summary.errors)),
        ("truncated", count(summary.truncated)),
        ("disagreements", count(summary.disagreements)),
        ("accuracy_reference", summary.accuracy_reference),
        ("majority_accuracy", summary.majority_accuracy),
        ("response_tokens", count(summary.response_tokens)),
        ("mean_response_tokens", summary.mean_response_tokens),
        ("mean_chain", summary.mean_chain),
        ("mean_kept", summary.mean_kept),
        ("mean_ensemble", summary.mean_ensemble),
        ("seconds", Some(summary.seconds)),
    ];
    let accuracy = ("accuracy", Number::new(summary.accuracy, summary.accuracy_interval));
    let values = values.map(|(metric, value)| (metric, Number::from(value)));
    let numbers = std::iter::once(accuracy).chain(values);
    Facts::new("summary", "", numbers.map(|(metric, number)| (metric, number.over(summary.items))))
}
