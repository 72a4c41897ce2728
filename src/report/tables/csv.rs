//! Every number as a row of its own, in full precision, for whatever reads CSV (RFC 4180).

use crate::eval::analysis::{Analysis, Estimate, Measures, RunAnalysis, Summary, TaskAnalysis};
use crate::eval::metrics::Metric;
use crate::report::term::sanitize::one_line;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// A number. `view`: which items it is of (`answered`, `all`, `balanced`, `common`), or what else it is (`summary`,
/// `difference`, `mean`, `fitted` and `held_out`, `sweep`, `overhead`). Empty: not defined, or not there.
#[derive(Clone, Debug, Default, Serialize)]
struct Row<'a> {
    #[serde(serialize_with = "cell")]
    run: &'a str,
    #[serde(serialize_with = "cell")]
    profile: &'a str,
    #[serde(serialize_with = "cell")]
    task: &'a str,
    view: &'a str,
    /// Of a sweep: what differs.
    #[serde(serialize_with = "cell")]
    setting: String,
    /// A method's key; of `overhead` the stage.
    #[serde(serialize_with = "cell")]
    method: &'a str,
    metric: &'a str,
    value: Option<f64>,
    /// 95 % interval
    low: Option<f64>,
    high: Option<f64>,
    /// Over the balanced subsamples.
    sd: Option<f64>,
    items: Option<usize>,
}

const HEADER: [&str; 12] =
    ["run", "profile", "task", "view", "setting", "method", "metric", "value", "low", "high", "sd", "items"];

/// A name that comes from a file: nothing for a terminal to act upon, and no formula for a spreadsheet, which would run
/// what begins with one of these signs. The apostrophe is the spreadsheets' own mark of text.
fn cell<T: AsRef<str>, S: Serializer>(text: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let text = one_line(text.as_ref());
    let formula = text.trim_start().starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    serializer.serialize_str(&if formula { format!("'{text}") } else { text })
}

/// The whole analysis.
pub fn csv(analysis: &Analysis) -> Result<String, ::csv::Error> {
    let mut writer = ::csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(HEADER)?;
    for run in &analysis.runs {
        let base = Row { run: &run.name, profile: run.profile.as_deref().unwrap_or_default(), ..Row::default() };
        for task in &run.tasks {
            for row in rows_of(task, &Row { task: &task.task, ..base.clone() }) {
                writer.serialize(row)?;
            }
        }
        for row in means(run, &base) {
            writer.serialize(row)?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn rows_of<'a>(task: &'a TaskAnalysis, base: &Row<'a>) -> Vec<Row<'a>> {
    let mut rows = summary(&task.summary, base);
    for method in &task.methods {
        let of = Row { method: &method.method, ..base.clone() };
        rows.extend(measures(&method.answered, &Row { view: "answered", ..of.clone() }));
        rows.extend(measures(&method.all, &Row { view: "all", ..of.clone() }));
        for (metric, spread) in method.balanced.iter().flat_map(|balanced| &balanced.metrics) {
            let (value, sd) = (spread.map(|spread| spread.mean), spread.map(|spread| spread.sd));
            let items = method.balanced.as_ref().map(|balanced| 2 * balanced.per_class);
            rows.push(Row { view: "balanced", metric: metric.key(), value, sd, items, ..of.clone() });
        }
        let value = method.length_controlled_auroc;
        let items = Some(method.answered.items);
        rows.push(Row { view: "answered", metric: "length_controlled_auroc", value, items, ..of });
    }
    if let Some(common) = &task.common {
        for method in &common.methods {
            let of = Row { method: &method.method, ..base.clone() };
            rows.extend(measures(&method.measures, &Row { view: "common", ..of.clone() }));
            rows.extend(estimates(&method.difference, method.measures.items, &Row { view: "difference", ..of }));
        }
    }
    for control in &task.controls {
        for method in &control.methods {
            let setting = format!("chain={}", control.chain);
            let of = |view| Row { method: &method.method, setting: setting.clone(), view, ..base.clone() };
            rows.extend(estimates(&method.own, method.items, &of("control_own")));
            rows.extend(estimates(&method.control, method.items, &of("control")));
            rows.extend(estimates(&method.difference, method.items, &of("control_difference")));
        }
    }
    rows.extend(holdout(task, base));
    rows.extend(sweep(task, base));
    for stage in &task.overhead {
        let of = Row { view: "overhead", method: &stage.stage, items: Some(stage.items), ..base.clone() };
        rows.push(Row { metric: "seconds", value: Some(stage.seconds), ..of.clone() });
        rows.push(Row { metric: "relative_to_generate", value: stage.relative_to_generate, ..of });
    }
    rows
}

fn holdout<'a>(task: &'a TaskAnalysis, base: &Row<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let Some(holdout) = &task.holdout else { return rows };
    for method in &holdout.methods {
        let of = Row { method: &method.method, items: Some(holdout.held_out), ..base.clone() };
        if let Some(abstention) = &method.abstention {
            let fitted = Row { view: "fitted", items: Some(holdout.fitted), ..of.clone() };
            rows.push(Row { metric: "threshold", value: abstention.threshold, ..fitted.clone() });
            for (base, answered) in
                [(fitted, abstention.fitted), (Row { view: "held_out", ..of.clone() }, abstention.held_out)]
            {
                let [low, high] = [0, 1].map(|end| answered.risk_interval.map(|interval| interval[end]));
                rows.push(Row { metric: "coverage", value: Some(answered.coverage), ..base.clone() });
                rows.push(Row { metric: "risk", value: answered.risk, low, high, ..base });
            }
        }
        if let Some(calibration) = &method.calibration {
            let of = Row { view: "held_out", items: Some(calibration.items), ..of };
            let maps = [
                ("ece", "brier", calibration.as_is),
                ("ece_platt", "brier_platt", Some(calibration.platt)),
                ("ece_isotonic", "brier_isotonic", Some(calibration.isotonic)),
            ];
            for (ece, brier, errors) in maps {
                rows.push(Row { metric: ece, value: errors.map(|errors| errors.ece), ..of.clone() });
                rows.push(Row { metric: brier, value: errors.map(|errors| errors.brier), ..of.clone() });
            }
        }
    }
    rows
}

fn summary<'a>(summary: &Summary, base: &Row<'a>) -> Vec<Row<'a>> {
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
    let of = Row { view: "summary", items: Some(summary.items), ..base.clone() };
    let [low, high] = [0, 1].map(|end| summary.accuracy_interval.map(|interval| interval[end]));
    let accuracy = Row { metric: "accuracy", value: summary.accuracy, low, high, ..of.clone() };
    let rest = values.into_iter().map(|(metric, value)| Row { metric, value, ..of.clone() });
    std::iter::once(accuracy).chain(rest).collect()
}

fn measures<'a>(measures: &Measures, base: &Row<'a>) -> Vec<Row<'a>> {
    estimates(&measures.metrics, measures.items, base)
}

fn estimates<'a>(metrics: &BTreeMap<Metric, Option<Estimate>>, items: usize, base: &Row<'a>) -> Vec<Row<'a>> {
    let row = |(metric, estimate): (&Metric, &Option<Estimate>)| {
        let end = |i: usize| estimate.and_then(|estimate| Some(estimate.interval?[i]));
        let value = estimate.map(|estimate| estimate.value);
        Row { metric: metric.key(), value, low: end(0), high: end(1), items: Some(items), ..base.clone() }
    };
    metrics.iter().map(row).collect()
}

fn sweep<'a>(task: &'a TaskAnalysis, base: &Row<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for setting in &task.sweep {
        let of = Row { view: "sweep", setting: setting.name(), items: Some(setting.items), ..base.clone() };
        let chain = [("chain_overlap", setting.chain_overlap), ("same_chain", setting.same_chain)];
        rows.extend(chain.map(|(metric, value)| Row { metric, value, ..of.clone() }));
        for method in &setting.methods {
            let of = Row { method: &method.method, items: Some(method.items), ..of.clone() };
            let changes = [("mean_change", method.mean_change), ("largest_change", method.largest_change)];
            let metrics = method.metrics.iter().map(|(metric, value)| (metric.key(), *value));
            rows.extend(metrics.chain(changes).map(|(metric, value)| Row { metric, value, ..of.clone() }));
        }
    }
    rows
}

fn means<'a>(run: &'a RunAnalysis, base: &Row<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for mean in &run.means {
        let of = Row { view: "mean", method: &mean.method, items: Some(mean.benchmarks), ..base.clone() };
        let row = |(metric, value): (&Metric, &Option<f64>)| Row { metric: metric.key(), value: *value, ..of.clone() };
        rows.extend(mean.answered.iter().map(row));
    }
    rows
}
