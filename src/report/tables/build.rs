//! The tables of a report: columns over facts.

use super::columns::Format::{self, *};
use super::columns::{Column, MethodColumn, method_table, table};
use super::{Table, facts::Facts, facts::Number};
use crate::eval::analysis::controls::{Control, ControlMethod};
use crate::eval::analysis::early::{EarlyPoint, EarlyStopping};
use crate::eval::analysis::methods::{self, TASK_IDENTITY};
use crate::eval::analysis::{Analysis, Item, Method, RunAnalysis, Stage, SweepSetting, TaskAnalysis};
use crate::uq::scores::samples::G4_AGREEMENT;
use crate::{eval::metrics::MeanSd, eval::metrics::Metric, eval::sample::Similarity, report::term::quoted};

/// Every table of a report, in order; tables for one benchmark or across several only if they have rows.
pub fn tables(analysis: &Analysis) -> Vec<Table> {
    let mut tables = Vec::new();
    for run in &analysis.runs {
        let scope = |task| {
            let (ece, mut facts, rows) = (run.ece().key(), Facts::of_task(task), analysis.rows_of(task));
            silent(analysis, run, task).for_each(|key| facts.add(("answered", "", key), 0, [("auroc", None::<f64>)]));
            Scope { analysis, run, task, ece, facts, rows }
        };
        let scopes: Vec<Scope> = run.benchmarks().map(scope).collect();
        for scope in &scopes {
            tables.extend([scope.methods(), scope.compared(), scope.controls()]);
        }
        tables.extend([over_tasks(analysis, run), means(analysis, run)]);
        tables.extend(scopes.iter().map(Scope::sweep));
        tables.extend(scopes.iter().flat_map(|scope| scope.task.early.iter().map(|early| scope.early(early))));
        tables.extend(scopes.iter().map(Scope::overhead));
    }
    tables.extend([over_models(analysis), similarity(analysis)]);
    let mut tables: Vec<Table> = tables.into_iter().flatten().collect();
    tables.iter_mut().for_each(|table| table.sections.retain(|section| !section.rows.is_empty()));
    tables.retain(|table| !table.sections.is_empty());
    tables.insert(0, summary(analysis));
    tables
}

/// Keys of the main scores.
pub const MAIN: [&str; 6] = ["p", "response_prob", "min_token_prob", "g4", G4_AGREEMENT, "trace_length"];

/// Summary at the end of a run: accuracy, and the AUROC of the main scores, one row per benchmark.
pub fn brief(analysis: &Analysis) -> Table {
    const NOTE: &str = "From the seventh column on: AUROC over the items with an answer; Length is a control.";
    let too_few = |task: &TaskAnalysis| Some(format!("{}: {}.", task.task, task.too_few()?));
    let in_reply = |of: &Facts| Some(of.summary("truncated").value? - of.summary("truncated_in_thought").value?);
    let mut columns = vec![
        summary_column("Items", Count, "items"),
        summary_column("Accuracy [95 %]", PercentInterval, "accuracy"),
        summary_column("Of the completed [95 %]", PercentInterval, "accuracy_completed"),
        summary_column("Cut in a thought", Count, "truncated_in_thought"),
        Column::new("in the reply", Count, in_reply),
        summary_column("No answer", Count, "no_answer"),
    ];
    let main = analysis.methods.iter().filter(|method| MAIN.contains(&method.key.as_str()));
    let auroc = |key| move |of: &Facts| of.find("answered", "", key, "auroc");
    columns.extend(main.map(|method| Column::new(&method.name, Decimals, auroc(&method.key))));
    let tasks = || analysis.runs.iter().flat_map(RunAnalysis::benchmarks);
    let facts = |task| match too_few(task) {
        None => Facts::of_task(task),
        Some(_) => Facts::of_summary(&task.summary),
    };
    let rows = tasks().map(|task| (task.task.clone(), facts(task))).collect();
    let notes = std::iter::once(NOTE.to_owned()).chain(tasks().filter_map(too_few)).collect();
    let title = "Accuracy, and AUROC of the main scores".to_owned();
    table(title, "Task", &columns, vec![(None, rows)], notes)
}

/// A column with one metric of a task's summary.
fn summary_column<'a, 'f>(head: &str, format: Format, metric: &'static str) -> Column<'a, Facts<'f>> {
    Column::new(head, format, move |of: &Facts| of.summary(metric))
}

/// Reported scores requested by the run's options that no item of the task has.
fn silent<'a>(of: &'a Analysis, run: &'a RunAnalysis, task: &'a TaskAnalysis) -> impl Iterator<Item = &'a str> {
    let keys = methods::of_run(&run.manifest).into_iter();
    keys.filter(|key| of.methods.iter().any(|method| method.key == *key) && task.method(key).is_none())
}

/// A benchmark of a run with its facts.
struct Scope<'a> {
    analysis: &'a Analysis,
    run: &'a RunAnalysis,
    task: &'a TaskAnalysis,
    /// Key of the calibration error that the run's profile uses.
    ece: &'static str,
    facts: Facts<'a>,
    rows: Vec<(&'a Method, Vec<&'a Method>)>,
}

impl<'a> Scope<'a> {
    fn title(&self, what: &str) -> String {
        format!("{} on {}: {what}", self.run.name, self.task.task)
    }

    /// Methods that have facts in a view.
    fn methods_of(&self, view: &str) -> impl Iterator<Item = &'a Method> {
        let has = move |method: &str| self.facts.0.iter().any(|fact| fact.method == method && fact.view == view);
        self.rows.iter().map(|(method, _)| *method).filter(move |method| has(&method.key))
    }

    /// A column with one metric of a view, by method.
    fn of(&self, head: &'static str, format: Format, view: &'static str, metric: &'static str) -> MethodColumn<'_, 'a> {
        Column::new(head, format, move |method: &&Method| self.facts.find(view, "", &method.key, metric))
    }

    fn methods(&self) -> Option<Table> {
        let columns = [
            self.of("n", Items, "answered", "auroc"),
            self.of("AUROC [95 %]", Interval, "answered", "auroc"),
            self.of("ECE", Decimals, "answered", self.ece),
            self.of("Brier", Decimals, "answered", "brier"),
            self.of("AUPRC", Decimals, "answered", "auprc"),
            self.of("AURC", Decimals, "answered", "aurc"),
            self.of("PRR", Decimals, "answered", "prr"),
            self.of("AUROC, balanced", Spread, "balanced", "auroc"),
            self.of("ECE, balanced", Spread, "balanced", self.ece),
            self.of("by length", Decimals, "answered", "length_controlled_auroc"),
            self.of("Passes", OneDecimal, "answered", "passes"),
            self.of("AUROC, all", Decimals, "all", "auroc"),
        ];
        Some(method_table(
            self.title("methods"),
            self.methods_of("answered"),
            &columns,
            self.method_notes(),
            self.task.too_few(),
        ))
    }

    fn method_notes(&self) -> Vec<String> {
        let (run, task) = (self.run, self.task);
        let answered = task.items.iter().filter(|i| i.answered() && i.correct.is_some()).count();
        let unanswered = task.summary.graded - answered;
        let ends = if run.ece() == Metric::Ece { "[a, b)" } else { "(a, b]" };
        let balanced = per_class(task).map_or("undefined, one class only".to_owned(), |n| {
            format!("mean ± sd over 5 subsamples of {n} right and {n} wrong items")
        });
        let most_missing = task.methods.iter().max_by_key(|method| method.missing).filter(|method| method.missing > 0);
        let logarithms = "Products of probabilities rank by their logarithms, which have no rows of their own.";
        let unknown_gain = "No control chains: the chain's gain over random tokens is unknown.";
        let identity = "Task identity: accuracy of the item's subtask, the gain of telling subtasks apart.";
        let notes = [
            Some(format!(
                "n: answered items with a score, of {answered}. All: with the {unanswered} unanswered items, ranked lowest."
            )),
            Some(format!("ECE: 20 bins {ends}, probabilities only. Balanced: {balanced}.")),
            Some("By length: AUROC within fifths of response length.".to_owned()),
            self.analysis.methods.iter().any(|method| method.log.is_some()).then(|| logarithms.to_owned()),
            task.items.iter().all(|item| item.sweep.is_empty()).then(|| unknown_gain.to_owned()),
            task.method(TASK_IDENTITY).is_some().then(|| identity.to_owned()),
            most_missing.map(|most| {
                let name = self.analysis.name_of(&most.method);
                format!("{name} has no score for {} answered items.", most.missing)
            }),
        ];
        let shared = self.rows.iter().filter(|(_, same)| !same.is_empty()).map(|(method, same)| {
            let names: Vec<&str> = same.iter().map(|method| method.name.as_str()).collect();
            format!("Same ranking as {}: {}.", method.name, names.join("; "))
        });
        let silent = silent(self.analysis, run, task).map(|key| {
            let (name, graded) = (self.analysis.name_of(key), task.summary.graded);
            format!("{name}: 0 of {graded} items have a score; a reply that cannot be read gives none.")
        });
        let begin = |text: &str| quoted(&text.chars().take(60).collect::<String>());
        let reply = |item: &Item| Some(begin(item.uq.details.get("verbalized")?["response"].as_str()?));
        let shown = self.analysis.methods.iter().any(|method| method.key == "verbalized");
        let replies: Vec<String> = task.items.iter().filter(|_| shown).filter_map(reply).take(3).collect();
        let replies = (!replies.is_empty()).then(|| format!("Verbalized, the first replies: {}.", replies.join(", ")));
        notes.into_iter().flatten().chain(silent).chain(shared).chain(replies).collect()
    }

    /// Methods on the items that they share with the reference method, and their differences to it.
    fn compared(&self) -> Option<Table> {
        let common = self.task.common.as_ref()?;
        let against = self.analysis.name_of(&common.against);
        let columns = [
            self.of("n", Items, "common", "auroc"),
            self.of("AUROC [95 %]", Interval, "common", "auroc"),
            self.of("Difference [95 %]", Difference, "difference", "auroc"),
            self.of("ECE [95 %]", Interval, "common", self.ece),
            self.of("Difference [95 %]", Difference, "difference", self.ece),
        ];
        let notes = vec![format!(
            "n: items with scores of the method and of {against} ({} items). Difference: to {against} on these items, paired \
             bootstrap.",
            common.items
        )];
        let (title, too_few) = (self.title("methods compared"), self.task.too_few());
        let mut table = method_table(title, self.methods_of("common"), &columns, notes, too_few);
        let rows = table.sections.iter_mut().flat_map(|section| &mut section.rows);
        for row in rows.filter(|row| row[0].text == against) {
            (row[3], row[5]) = Default::default();
        }
        Some(table)
    }

    /// The run's chain next to control chains.
    fn controls(&self) -> Option<Table> {
        const NOTE: &str = "The same scores of the same responses over equally many tokens that attention did not choose \
            (random: any; random-digits: with a digit, all where there are fewer; digits-matched: the chain with its digits \
            exchanged for as many at random; random-content: no stop words; similarity: most similar to the answer) or over all \
            tokens (none). Means over draws, each measured by itself. Paired bootstrap over items; an interval that contains 0 \
            shows no gain from attention.";
        type Of<'c> = (&'c Control, &'c ControlMethod);
        let column = |head, format, view, metric| {
            Column::new(head, format, move |(control, found): &Of| {
                self.facts.find(view, &format!("chain={}", control.chain), &found.method, metric)
            })
        };
        let columns = [
            column("n", Items, "control", "auroc"),
            Column::new("Draws", Count, |(control, _): &Of| Some(control.draws as f64)),
            column("AUROC, chain's", Decimals, "control_own", "auroc"),
            column("Control's [95 %]", Interval, "control", "auroc"),
            column("Chain's - control's [95 %]", Difference, "control_difference", "auroc"),
            column("ECE, chain's", Decimals, "control_own", self.ece),
            column("Control's [95 %]", Interval, "control", self.ece),
            column("Chain's - control's [95 %]", Difference, "control_difference", self.ece),
        ];
        let shown = |found: &&ControlMethod| self.analysis.rows().any(|method| method.key == found.method);
        let section = |control: &'a Control| {
            let row = |found: &'a ControlMethod| (self.analysis.name_of(&found.method).to_owned(), (control, found));
            (Some(control.chain.clone()), control.methods.iter().filter(shown).map(row).collect())
        };
        let sections = self.task.controls.iter().map(section).collect();
        Some(table(self.title("the chain beside its controls"), "Score", &columns, sections, vec![NOTE.to_owned()]))
    }

    fn sweep(&self) -> Option<Table> {
        let has = |key: &str| self.task.sweep.iter().any(|setting| setting.method(key).is_some());
        let against = self.analysis.rows().find(|m| m.key == self.analysis.options.against && has(&m.key));
        let shown = against.or_else(|| self.analysis.rows().find(|method| has(&method.key)))?;
        let of = |head, format, method: &'a str, metric| {
            let number = move |setting: &&SweepSetting| self.facts.find("sweep", &setting.name(), method, metric);
            Column::new(head, format, number)
        };
        let columns = [
            of("Items", Items, "", "same_chain"),
            Column::new("Chain", OneDecimal, |setting: &&SweepSetting| setting.mean_chain),
            of("Overlap", Decimals, "", "chain_overlap"),
            of("Same chain", Percent, "", "same_chain"),
            of("AUROC", Decimals, &shown.key, "auroc"),
            of("ECE", Decimals, &shown.key, self.ece),
            of("Mean change", Decimals, &shown.key, "mean_change"),
            of("Largest", Decimals, &shown.key, "largest_change"),
        ];
        let notes = vec![format!(
            "Of {}, over the same responses. Overlap: mean Jaccard index of the chains with the run's own, without answer \
             tokens. Change: |score - the run's own|.",
            shown.name
        )];
        let name = |setting: &SweepSetting| if setting.setting.is_empty() { OWN.to_owned() } else { setting.name() };
        let rows = self.task.sweep.iter().map(|setting| (name(setting), setting)).collect();
        Some(table(self.title("other parameters"), "Setting", &columns, vec![(None, rows)], notes))
    }

    fn early(&self, early: &EarlyStopping) -> Option<Table> {
        type Of<'p> = &'p EarlyPoint;
        let accuracy = |point: &Of| Number::new(Some(point.accuracy), point.accuracy_interval);
        let columns = [
            Column::new("Stopped", Count, |point: &Of| Some(point.stopped as f64)),
            Column::new("Of them right", Count, |point: &Of| Some(point.right_stopped as f64)),
            Column::new("Tokens saved", Percent, |point: &Of| Some(point.tokens_saved)),
            Column::new("Accuracy [95 %]", PercentInterval, accuracy),
            Column::new("By a coin", Percent, |point: &Of| Some(point.accuracy_by_chance)),
            Column::new("AUROC of the rest [95 %]", Interval, |point: &Of| point.auroc),
        ];
        let EarlyStopping { measure, window, items, points, .. } = early;
        let against = self.analysis.name_of(&self.analysis.options.against);
        let notes = vec![format!(
            "Effect of --stop-below with --running {measure} --window {window} on {items} items: a response ends without an \
             answer when its running confidence falls below the threshold. By a coin: accuracy if equally many responses \
             ended at random. AUROC: of {against}, over the other responses."
        )];
        let rows = points.iter().map(|point| (Decimals.show(point.threshold), point)).collect();
        let title = self.title(&format!("stopping early ({measure})"));
        Some(table(title, "Threshold", &columns, vec![(None, rows)], notes))
    }

    fn overhead(&self) -> Option<Table> {
        let columns = [
            Column::new("Items", Count, |stage: &&Stage| Some(stage.items as f64)),
            Column::new("Seconds", OneDecimal, |stage: &&Stage| Some(stage.seconds)),
            Column::new("Per item", Decimals, |stage: &&Stage| Some(stage.seconds_per_item)),
            Column::new("Of generation", Percent, |stage: &&Stage| stage.relative_to_generate),
        ];
        let rows = self.task.overhead.iter().map(|stage| (stage.stage.clone(), stage)).collect();
        let notes = vec!["Of generation: relative to the time for generating the same responses.".to_owned()];
        Some(table(self.title("time by stage"), "Stage", &columns, vec![(None, rows)], notes))
    }
}

/// Label of the run's own parameters within a sweep.
const OWN: &str = "the run's own";

/// Items, accuracy and failures, by run and task.
fn summary(analysis: &Analysis) -> Table {
    const NOTE: &str = "Unanswered and failed items count as wrong. Labels differ: our grading against the authors'. Tokens, \
        chain and ensemble: means over answered items.";
    // only where both graded
    let differ = |of: &Facts| of.summary("accuracy_reference").value.and(of.summary("disagreements").value);
    let columns = [
        summary_column("Items", Count, "items"),
        summary_column("Accuracy [95 %]", PercentInterval, "accuracy"),
        summary_column("Of the completed [95 %]", PercentInterval, "accuracy_completed"),
        summary_column("Majority", Percent, "majority_accuracy"),
        summary_column("No answer", Count, "no_answer"),
        summary_column("Truncated", Count, "truncated"),
        summary_column("In a thought", Count, "truncated_in_thought"),
        summary_column("Errors", Count, "errors"),
        Column::new("Labels differ", Count, differ),
        summary_column("Accuracy ref.", Percent, "accuracy_reference"),
        summary_column("Tokens", OneDecimal, "mean_response_tokens"),
        summary_column("Chain", OneDecimal, "mean_chain"),
        summary_column("Ensemble", OneDecimal, "mean_ensemble"),
    ];
    let mut notes = vec![NOTE.to_owned()];
    for run in &analysis.runs {
        notes.extend(run.notes.iter().map(|note| format!("{}: {note}", run.name)));
    }
    let sections = analysis.runs.iter().map(|run| {
        let by = run.profile.as_ref().map_or(String::new(), |profile| format!(", {profile}"));
        let rows = run.tasks.iter().map(|task| (task.task.clone(), Facts::of_summary(&task.summary)));
        (Some(format!("{}{by}", run.name)), rows.collect())
    });
    table("Runs".to_owned(), "Task", &columns, sections.collect(), notes)
}

/// Items per class in the balanced subsamples.
fn per_class(task: &TaskAnalysis) -> Option<usize> {
    task.methods.iter().filter_map(|method| method.balanced.as_ref()).map(|balanced| balanced.per_class).max()
}

/// A task's name, and the runs that include it.
type Shared<'a> = (&'a str, Vec<(&'a RunAnalysis, &'a TaskAnalysis)>);

/// The paper's main table: every method on every task, on the balanced subsamples.
fn over_tasks(analysis: &Analysis, run: &RunAnalysis) -> Option<Table> {
    let tasks: Vec<Shared> = run.benchmarks().map(|task| (task.task.as_str(), vec![(run, task)])).collect();
    let class = |task: &TaskAnalysis| format!("{} {}", task.task, per_class(task).unwrap_or(0));
    let classes: Vec<String> = run.benchmarks().map(class).collect();
    let note = format!("Mean ± sd over 5 balanced subsamples; items per class: {}.", classes.join(", "));
    (tasks.len() > 1).then(|| spreads(analysis, format!("{}: methods over tasks", run.name), &tasks, note))
}

/// The paper's table of means over models: every method on every task shared by several runs, all runs weighted
/// equally.
fn over_models(analysis: &Analysis) -> Option<Table> {
    let mut tasks: Vec<Shared> = Vec::new();
    for (run, task) in analysis.benchmarks() {
        match tasks.iter_mut().find(|(name, _)| *name == task.task) {
            Some((_, found)) => found.push((run, task)),
            None => tasks.push((&task.task, vec![(run, task)])),
        }
    }
    tasks.retain(|(_, found)| found.len() > 1);
    let runs: Vec<String> = tasks.iter().map(|(name, found)| format!("{name} {}", found.len())).collect();
    let note = format!(
        "Mean ± sd over runs of the means over balanced subsamples, of methods in every run. Runs: {}.",
        runs.join(", ")
    );
    (!tasks.is_empty()).then(|| spreads(analysis, "Means over models".to_owned(), &tasks, note))
}

/// AUROC and ECE of every method on every task: with one run, the spread over balanced subsamples; with several, the
/// spread of their means.
fn spreads(analysis: &Analysis, title: String, tasks: &[Shared], note: String) -> Table {
    let mut columns = Vec::new();
    for metric in [Metric::Auroc, Metric::Ece] {
        columns.extend(tasks.iter().map(|(name, found)| {
            let number = move |method: &&Method| {
                let of_run = |(run, task): &(&RunAnalysis, &TaskAnalysis)| {
                    let metric = if metric == Metric::Ece { run.ece() } else { metric };
                    task.method(&method.key)?.balanced.as_ref()?.get(metric)
                };
                match found.as_slice() {
                    [one] => of_run(one),
                    all => MeanSd::of(&all.iter().map(|one| Some(of_run(one)?.mean)).collect::<Option<Vec<_>>>()?),
                }
            };
            Column::new(&format!("{name}: {}", metric.name()), Spread, number)
        }));
    }
    let too_few = tasks.iter().flat_map(|(_, found)| found).find_map(|(_, task)| task.too_few());
    method_table(title, analysis.rows(), &columns, vec![note], too_few)
}

/// Similarity of hidden states to the answer's: for the chain, and for the whole response before the answer.
fn similarity(analysis: &Analysis) -> Option<Table> {
    const NOTE: &str = "Mean cosine of final hidden states with the answer's tokens: of the chain's tokens, and of all response \
        tokens before the answer; means over items.";
    let columns = [
        Column::new("Similarity, chain", Decimals, |found: &Similarity| Some(found.chain)),
        Column::new("Similarity, response", Decimals, |found: &Similarity| Some(found.response)),
    ];
    let row = |task: &TaskAnalysis| Some((task.task.clone(), task.summary.mean_similarity?));
    let section = |run: &RunAnalysis| (Some(run.name.clone()), run.tasks.iter().filter_map(row).collect());
    let sections = analysis.runs.iter().map(section).collect();
    Some(table("Similarity to the answer".to_owned(), "Task", &columns, sections, vec![NOTE.to_owned()]))
}

fn means(analysis: &Analysis, run: &RunAnalysis) -> Option<Table> {
    type Of<'m> = &'m Method;
    let find = |method: &Of| run.means.iter().find(|mean| mean.method == method.key);
    let answered = |head, metric: Metric| {
        Column::new(head, Decimals, move |method: &Of| find(method)?.answered.get(&metric).copied().flatten())
    };
    let balanced = |head, metric: Metric| {
        Column::new(head, Decimals, move |method: &Of| find(method)?.balanced.get(&metric).copied().flatten())
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
        Column::new("by length", Decimals, |method: &Of| find(method)?.length_controlled_auroc),
    ];
    let tasks: Vec<&str> = run.benchmarks().map(|task| task.task.as_str()).collect();
    let notes = vec![format!("All tasks with the same weight: {}.", tasks.join(", "))];
    let rows = analysis.rows().filter(|method| find(method).is_some());
    Some(method_table(
        format!("{}: means over tasks", run.name),
        rows,
        &columns,
        notes,
        run.benchmarks().find_map(TaskAnalysis::too_few),
    ))
}
