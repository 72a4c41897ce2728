//! What is in each table.

use super::columns::{
    MethodColumn, method_table, number, percent, percent_with_interval, plain, ranked, title, with_interval,
    with_method,
};
use super::{Align, Field, NONE, Section, Table, early, holdout};
use crate::eval::analysis::controls::{Control, ControlMethod};
use crate::eval::analysis::methods::TASK_IDENTITY;
use crate::eval::analysis::{
    Analysis, Common, CommonMethod, Estimate, Method, MethodAnalysis, MethodMeans, RunAnalysis, Summary, SweepSetting,
    TaskAnalysis, Votes,
};
use crate::eval::metrics::Metric;
use crate::eval::metrics::balanced::MeanSd;
use crate::eval::sample::Similarity;
use Align::{Left, Right};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Every table of a report, in its order.
pub fn tables(analysis: &Analysis) -> Vec<Table> {
    let mut tables = vec![summary(analysis)];
    for run in &analysis.runs {
        for task in run.benchmarks() {
            tables.extend(methods(analysis, run, task));
            tables.extend(task.common.as_ref().map(|common| compared(analysis, run, task, common)));
            tables.extend(controls(analysis, run, task));
            tables.extend(holdout::tables(analysis, run, task));
        }
        tables.extend(over_tasks(analysis, run));
        tables.extend(means(analysis, run));
        tables.extend(run.benchmarks().filter_map(|task| sweep(analysis, run, task)));
        tables.extend(run.benchmarks().flat_map(|task| early::tables(analysis, run, task)));
        tables.extend(run.benchmarks().filter_map(|task| overhead(run, task)));
    }
    tables.extend(over_models(analysis));
    tables.extend(similarity(analysis));
    tables
}

fn heads(columns: &[(&'static str, Align)]) -> Vec<(Cow<'static, str>, Align)> {
    columns.iter().map(|(head, align)| (Cow::Borrowed(*head), *align)).collect()
}

/// `+0.021 [-0.004, +0.050]`
fn difference(estimate: Option<Estimate>) -> String {
    match estimate {
        Some(Estimate { value, interval: Some([low, high]) }) => format!("{value:+.3} [{low:+.3}, {high:+.3}]"),
        other => other.map_or(NONE.to_owned(), |estimate| format!("{:+.3}", estimate.value)),
    }
}

fn mean_sd(value: Option<MeanSd>) -> String {
    value.map_or(NONE.to_owned(), |MeanSd { mean, sd }| format!("{mean:.3} ± {sd:.3}"))
}

/// Items, accuracy and what went wrong, by run and task.
fn summary(analysis: &Analysis) -> Table {
    let columns = [
        ("Task", Left),
        ("Items", Right),
        ("Accuracy [95 %]", Right),
        ("Majority", Right),
        ("No answer", Right),
        ("Truncated", Right),
        ("Errors", Right),
        ("Labels differ", Right),
        ("Accuracy ref.", Right),
        ("Tokens", Right),
        ("Chain", Right),
        ("Ensemble", Right),
    ];
    let row = |task: &TaskAnalysis| -> Vec<Field> {
        let Summary { items, graded_twice, disagreements, .. } = task.summary;
        let s = &task.summary;
        let mean = |value: Option<f64>| value.map_or(NONE.to_owned(), |value| format!("{value:.1}"));
        let differ = if graded_twice > 0 { disagreements.to_string() } else { NONE.to_owned() };
        let counts = [s.no_answer, s.truncated, s.errors].map(|n| n.to_string());
        let [no_answer, truncated, errors] = counts;
        let texts = [
            task.task.clone(),
            items.to_string(),
            percent_with_interval(s.accuracy, s.accuracy_interval),
            percent(s.majority_accuracy),
            no_answer,
            truncated,
            errors,
            differ,
            percent(s.accuracy_reference),
            mean(s.mean_response_tokens),
            mean(s.mean_chain),
            mean(s.mean_ensemble),
        ];
        texts.map(Field::new).into()
    };
    let section = |run: &RunAnalysis| {
        let by = run.profile.as_ref().map_or(String::new(), |profile| format!(", {profile}"));
        Section { label: Some(format!("{}{by}", run.name)), rows: run.tasks.iter().map(row).collect() }
    };
    let mut notes = vec![
        "Items without an answer, or with an error, are wrong in the accuracy. Labels differ: our grading against the authors'. \
         Tokens, chain and ensemble: means over answered items."
            .to_owned(),
    ];
    for run in &analysis.runs {
        for task in run.benchmarks() {
            if let Some(Votes { samples, drawn, tokens, tokens_saved }) = task.summary.votes {
                notes.push(format!(
                    "{}, {}: {drawn} of {samples} samples were drawn ({tokens} tokens), after which the others could not have \
                     changed the majority; about {tokens_saved:.0} tokens saved, at the drawn samples' length.",
                    run.name, task.task
                ));
            }
        }
        notes.extend(run.notes.iter().map(|note| format!("{}: {note}", run.name)));
    }
    Table {
        title: "Runs".to_owned(),
        columns: heads(&columns),
        sections: analysis.runs.iter().map(section).collect(),
        notes,
    }
}

fn methods(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Option<Table> {
    let rows = with_method(analysis, &task.methods, |method| &method.method);
    let metric = |head, metric: Metric| {
        ranked(
            head,
            metric,
            move |m: &MethodAnalysis| number(m.answered.value(metric)),
            move |m| m.answered.value(metric),
        )
    };
    let balanced = |head, metric: Metric| {
        let of = move |m: &MethodAnalysis| m.balanced.as_ref()?.get(metric);
        ranked(head, metric, move |m| mean_sd(of(m)), move |m| of(m).map(|value| value.mean))
    };
    let auroc = |m: &MethodAnalysis| m.answered.get(Metric::Auroc);
    let columns = [
        plain("n", |m: &MethodAnalysis| m.answered.items.to_string()),
        ranked("AUROC [95 %]", Metric::Auroc, move |m| with_interval(auroc(m)), move |m| Some(auroc(m)?.value)),
        metric("ECE", run.ece()),
        metric("Brier", Metric::Brier),
        metric("AUPRC", Metric::Auprc),
        metric("AURC", Metric::Aurc),
        metric("PRR", Metric::Prr),
        balanced("AUROC, balanced", Metric::Auroc),
        balanced("ECE, balanced", run.ece()),
        ranked(
            "by length",
            Metric::Auroc,
            |m: &MethodAnalysis| number(m.length_controlled_auroc),
            |m| m.length_controlled_auroc,
        ),
        ranked(
            "AUROC, all",
            Metric::Auroc,
            |m: &MethodAnalysis| number(m.all.value(Metric::Auroc)),
            |m| m.all.value(Metric::Auroc),
        ),
    ];
    (!rows.is_empty()).then(|| method_table(title(run, task, "methods"), &rows, &columns, method_notes(run, task)))
}

fn method_notes(run: &RunAnalysis, task: &TaskAnalysis) -> Vec<String> {
    let (graded, answered) =
        (task.summary.graded, task.items.iter().filter(|i| i.answered() && i.correct.is_some()).count());
    let ends = if run.ece() == Metric::Ece { "[a, b)" } else { "(a, b]" };
    let per_class = task.methods.iter().filter_map(|m| m.balanced.as_ref()).map(|b| b.per_class).max();
    let balanced = per_class.map_or("not defined: one class only".to_owned(), |n| {
        format!("mean ± sd over 5 subsamples of {n} right and {n} wrong items")
    });
    let mut notes = vec![
        format!(
            "n: answered items with a score, of {answered}. All: also the {} without an answer, ranked lowest.",
            graded - answered
        ),
        format!("ECE: 20 bins {ends}, only of probabilities. Balanced: {balanced}."),
        "By length: AUROC among responses of like length (fifths). Best: *.".to_owned(),
    ];
    if task.controls.is_empty() {
        notes.push(
            "No control chains were drawn: what the chain adds to as many random tokens is not known.".to_owned(),
        );
    }
    if task.method(TASK_IDENTITY).is_some() {
        notes.push(
            "Task identity: the accuracy of the item's subtask, all that a method can gain from telling these apart."
                .to_owned(),
        );
    }
    if let Some(method) = task.methods.iter().max_by_key(|method| method.missing).filter(|method| method.missing > 0) {
        notes.push(format!("{} has no score of {} answered items.", method.method, method.missing));
    }
    notes
}

/// Methods on the same items, and how much they differ from one of them.
fn compared(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis, common: &Common) -> Table {
    let rows = with_method(analysis, &common.methods, |method| &method.method);
    let against = analysis.methods.iter().find(|method| method.key == common.against);
    let against = against.map_or(common.against.as_str(), |method| &method.name);
    let ece = run.ece();
    let change = |metric: Metric| {
        move |m: &CommonMethod| {
            let itself = m.method == common.against;
            if itself { String::new() } else { difference(m.difference.get(&metric).copied().flatten()) }
        }
    };
    let value = |metric: Metric| move |m: &CommonMethod| m.measures.value(metric);
    let columns = [
        plain("n", |m: &CommonMethod| m.measures.items.to_string()),
        ranked(
            "AUROC [95 %]",
            Metric::Auroc,
            |m: &CommonMethod| with_interval(m.measures.get(Metric::Auroc)),
            value(Metric::Auroc),
        ),
        plain("Difference [95 %]", change(Metric::Auroc)),
        ranked("ECE [95 %]", ece, move |m: &CommonMethod| with_interval(m.measures.get(ece)), value(ece)),
        plain("Difference [95 %]", change(ece)),
    ];
    let notes = vec![format!(
        "n: items of which the method and {against} (which has {}) have a score. Difference: to {against} on these, paired \
         bootstrap.",
        common.items
    )];
    method_table(title(run, task, "methods compared"), &rows, &columns, notes)
}

/// The run's chain beside chains that attention has no part in.
fn controls(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Option<Table> {
    let columns = [
        ("Score", Left),
        ("n", Right),
        ("Draws", Right),
        ("AUROC, chain's", Right),
        ("Control's [95 %]", Right),
        ("Chain's - control's [95 %]", Right),
        ("ECE, chain's", Right),
        ("Control's [95 %]", Right),
        ("Chain's - control's [95 %]", Right),
    ];
    let ece = run.ece();
    let section = |control: &Control| {
        let row = |found: &ControlMethod| -> Vec<Field> {
            let name = analysis.methods.iter().find(|method| method.key == found.method);
            let name = name.map_or(found.method.as_str(), |method| &method.name);
            let get = |of: &BTreeMap<Metric, Option<Estimate>>, metric| of.get(&metric).copied().flatten();
            let mut texts = vec![name.to_owned(), found.items.to_string(), control.draws.to_string()];
            for metric in [Metric::Auroc, ece] {
                texts.push(number(get(&found.own, metric).map(|estimate| estimate.value)));
                texts.push(with_interval(get(&found.control, metric)));
                texts.push(difference(get(&found.difference, metric)));
            }
            texts.into_iter().map(Field::new).collect()
        };
        Section { label: Some(control.chain.clone()), rows: control.methods.iter().map(row).collect() }
    };
    let notes = vec![
        "The same scores of the same responses over other tokens than the chain's, as many (random: any; random-digits: with a \
         digit; random-content: no stop words; similarity: those most like the answer; none: all). Of several draws each is \
         measured by itself, and the mean is shown. Paired bootstrap over items; an interval that holds 0 shows no use of the \
         attention."
            .to_owned(),
    ];
    (!task.controls.is_empty()).then(|| Table {
        title: title(run, task, "the chain beside its controls"),
        columns: heads(&columns),
        sections: task.controls.iter().map(section).collect(),
        notes,
    })
}

/// The paper's main table: every method on every task, AUROC and ECE on the balanced subsamples.
fn over_tasks(analysis: &Analysis, run: &RunAnalysis) -> Option<Table> {
    let tasks: Vec<&TaskAnalysis> = run.benchmarks().collect();
    if tasks.len() < 2 {
        return None;
    }
    let rows: Vec<(&Method, &Method)> = analysis.methods.iter().map(|method| (method, method)).collect();
    fn column<'a>(task: &'a TaskAnalysis, metric: Metric) -> MethodColumn<'a, Method> {
        let of = move |method: &Method| task.method(&method.key)?.balanced.as_ref()?.get(metric);
        let head = format!("{}: {}", task.task, metric.name());
        ranked(head, metric, move |m: &Method| mean_sd(of(m)), move |m| of(m).map(|value| value.mean))
    }
    let columns: Vec<_> =
        [Metric::Auroc, run.ece()].iter().flat_map(|metric| tasks.iter().map(|task| column(task, *metric))).collect();
    let classes = |task: &&TaskAnalysis| {
        let per_class = task.methods.iter().filter_map(|m| m.balanced.as_ref()).map(|b| b.per_class).max();
        format!("{} {}", task.task, per_class.unwrap_or(0))
    };
    let classes: Vec<String> = tasks.iter().map(classes).collect();
    let notes = vec![format!(
        "Mean ± sd over 5 balanced subsamples, items of each class at most: {}. Best: *.",
        classes.join(", ")
    )];
    Some(method_table(format!("{}: methods over tasks", run.name), &rows, &columns, notes))
}

/// The paper's table of means over models: every method on every task that several runs have, each run counting the same.
fn over_models(analysis: &Analysis) -> Option<Table> {
    type Found<'a> = [(&'a RunAnalysis, &'a TaskAnalysis)];
    let mut tasks: Vec<(&str, Vec<(&RunAnalysis, &TaskAnalysis)>)> = Vec::new();
    for run in &analysis.runs {
        for task in run.benchmarks() {
            match tasks.iter_mut().find(|(name, _)| *name == task.task) {
                Some((_, found)) => found.push((run, task)),
                None => tasks.push((&task.task, vec![(run, task)])),
            }
        }
    }
    tasks.retain(|(_, found)| found.len() > 1);
    fn column<'a>(name: &str, found: &'a Found<'a>, ece: bool) -> MethodColumn<'a, Method> {
        let of = move |method: &Method| {
            let value = |(run, task): &(&RunAnalysis, &TaskAnalysis)| {
                let metric = if ece { run.ece() } else { Metric::Auroc };
                Some(task.method(&method.key)?.balanced.as_ref()?.get(metric)?.mean)
            };
            let values: Option<Vec<f64>> = found.iter().map(value).collect();
            MeanSd::of(&values?)
        };
        let kind = if ece { Metric::Ece } else { Metric::Auroc };
        ranked(
            format!("{name}: {}", kind.name()),
            kind,
            move |m| mean_sd(of(m)),
            move |m| of(m).map(|value| value.mean),
        )
    }
    let both = [false, true].into_iter();
    let columns: Vec<_> =
        both.flat_map(|ece| tasks.iter().map(move |(name, found)| column(name, found, ece))).collect();
    let rows: Vec<(&Method, &Method)> = analysis.methods.iter().map(|method| (method, method)).collect();
    let runs: Vec<String> = tasks.iter().map(|(name, found)| format!("{name} {}", found.len())).collect();
    let notes = vec![format!(
        "Mean ± sd over runs of the means over balanced subsamples, of methods that every run has. Runs: {}. Best: *.",
        runs.join(", ")
    )];
    (!tasks.is_empty()).then(|| method_table("Means over models".to_owned(), &rows, &columns, notes))
}

/// How near the chain's hidden states are to the answer's, and those of the whole response before it.
fn similarity(analysis: &Analysis) -> Option<Table> {
    let columns = [("Task", Left), ("Similarity, chain", Right), ("Similarity, response", Right)];
    let row = |task: &TaskAnalysis| {
        let Similarity { chain, response } = task.summary.mean_similarity?;
        Some([task.task.clone(), format!("{chain:.3}"), format!("{response:.3}")].map(Field::new).into())
    };
    let section =
        |run: &RunAnalysis| Section { label: Some(run.name.clone()), rows: run.tasks.iter().filter_map(row).collect() };
    let mut sections: Vec<Section> = analysis.runs.iter().map(section).collect();
    sections.retain(|section| !section.rows.is_empty());
    let notes = vec![
        "Mean cosine with the answer's tokens of final hidden states: of the chain's tokens, and of all that the \
                      response has before the answer; means over items."
            .to_owned(),
    ];
    (!sections.is_empty()).then(|| Table {
        title: "Similarity to the answer".to_owned(),
        columns: heads(&columns),
        sections,
        notes,
    })
}

fn means(analysis: &Analysis, run: &RunAnalysis) -> Option<Table> {
    let rows = with_method(analysis, &run.means, |mean| &mean.method);
    let answered = |head, metric: Metric| {
        let of = move |m: &MethodMeans| m.answered.get(&metric).copied().flatten();
        ranked(head, metric, move |m| number(of(m)), of)
    };
    let balanced = |head, metric: Metric| {
        let of = move |m: &MethodMeans| m.balanced.get(&metric).copied().flatten();
        ranked(head, metric, move |m| number(of(m)), of)
    };
    let columns = [
        answered("AUROC", Metric::Auroc),
        answered("ECE", run.ece()),
        answered("Brier", Metric::Brier),
        answered("AUPRC", Metric::Auprc),
        answered("AURC", Metric::Aurc),
        answered("PRR", Metric::Prr),
        balanced("AUROC, balanced", Metric::Auroc),
        balanced("ECE, balanced", run.ece()),
        ranked(
            "by length",
            Metric::Auroc,
            |m: &MethodMeans| number(m.length_controlled_auroc),
            |m| m.length_controlled_auroc,
        ),
    ];
    let tasks: Vec<&str> = run.benchmarks().map(|task| task.task.as_str()).collect();
    let notes = vec![format!("Every task counts the same: {}. Best: *.", tasks.join(", "))];
    (!rows.is_empty()).then(|| method_table(format!("{}: means over tasks", run.name), &rows, &columns, notes))
}

fn sweep(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Option<Table> {
    let has = |key: &str| task.sweep.iter().any(|setting| setting.methods.iter().any(|method| method.method == key));
    let shown = analysis.methods.iter().find(|method| method.key == analysis.options.against && has(&method.key));
    let shown = shown.or_else(|| analysis.methods.iter().find(|method| has(&method.key)))?;
    let columns = [
        ("Setting", Left),
        ("Items", Right),
        ("Chain", Right),
        ("Overlap", Right),
        ("Same chain", Right),
        ("AUROC", Right),
        ("ECE", Right),
        ("Mean change", Right),
        ("Largest", Right),
    ];
    let row = |setting: &SweepSetting| -> Vec<Field> {
        let method = setting.methods.iter().find(|method| method.method == shown.key);
        let metric = |metric: Metric| number(method.and_then(|method| method.metrics.get(&metric).copied().flatten()));
        let name = if setting.setting.is_empty() { "the run's own".to_owned() } else { setting.name() };
        let texts = [
            name,
            setting.items.to_string(),
            setting.mean_chain.map_or(NONE.to_owned(), |mean| format!("{mean:.1}")),
            number(setting.chain_overlap),
            percent(setting.same_chain),
            metric(Metric::Auroc),
            metric(run.ece()),
            number(method.and_then(|method| method.mean_change)),
            number(method.and_then(|method| method.largest_change)),
        ];
        texts.map(Field::new).into()
    };
    let notes = vec![format!(
        "Of {}, over the same responses. Overlap: mean Jaccard of the chains with the run's own, answer tokens not counted. \
         Change: |score - the run's own|.",
        shown.name
    )];
    let sections = vec![Section { label: None, rows: task.sweep.iter().map(row).collect() }];
    Some(Table { title: title(run, task, "other parameters"), columns: heads(&columns), sections, notes })
}

fn overhead(run: &RunAnalysis, task: &TaskAnalysis) -> Option<Table> {
    let columns =
        [("Stage", Left), ("Items", Right), ("Seconds", Right), ("Per item", Right), ("Of generation", Right)];
    let rows: Vec<Vec<Field>> = task
        .overhead
        .iter()
        .map(|stage| {
            let texts = [
                stage.stage.clone(),
                stage.items.to_string(),
                format!("{:.1}", stage.seconds),
                format!("{:.3}", stage.seconds_per_item),
                percent(stage.relative_to_generate),
            ];
            texts.map(Field::new).into()
        })
        .collect();
    let notes = vec!["Of generation: over the seconds that writing the same items' responses took.".to_owned()];
    (!rows.is_empty()).then(|| Table {
        title: title(run, task, "time by stage"),
        columns: heads(&columns),
        sections: vec![Section { label: None, rows }],
        notes,
    })
}
