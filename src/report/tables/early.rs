//! The tables of what ending unsure responses early would have saved and cost.

use super::columns::{number, percent, percent_with_interval, title, with_interval};
use super::{Align, Field, NONE, Section, Table};
use crate::eval::analysis::early::{EarlyPoint, EarlyStopping};
use crate::eval::analysis::{Analysis, RunAnalysis, TaskAnalysis};
use Align::Right;

/// One for every running confidence that the run recorded.
pub fn tables(analysis: &Analysis, run: &RunAnalysis, task: &TaskAnalysis) -> Vec<Table> {
    let name = analysis.methods.iter().find(|method| method.key == analysis.options.against);
    let name = name.map_or(analysis.options.against.as_str(), |method| &method.name);
    task.early.iter().map(|early| table(early, name, title(run, task, "stopping early"))).collect()
}

fn table(early: &EarlyStopping, against: &str, title: String) -> Table {
    let columns = [
        "Threshold",
        "Stopped",
        "Of them right",
        "Tokens saved",
        "Accuracy [95 %]",
        "By a coin",
        "AUROC of the rest [95 %]",
    ];
    let row = |point: &EarlyPoint| -> Vec<Field> {
        let texts = [
            point.threshold.map_or(NONE.to_owned(), |threshold| number(Some(threshold))),
            format!("{} of {}", point.stopped, early.items),
            point.right_stopped.to_string(),
            percent(Some(point.tokens_saved)),
            percent_with_interval(Some(point.accuracy), point.accuracy_interval),
            percent(Some(point.accuracy_by_chance)),
            with_interval(point.auroc),
        ];
        texts.map(Field::new).into()
    };
    let notes = vec![format!(
        "What --stop-below would have done with --running {} --window {}: a response ends, without an answer, where its running \
         confidence falls below the threshold. By a coin: the accuracy where as many responses, whichever, end. AUROC: of {against}, \
         among the responses that go on.",
        early.measure, early.window
    )];
    Table {
        title: format!("{title} ({})", early.measure),
        columns: columns.map(|head| (head.into(), Right)).into(),
        sections: vec![Section { label: None, rows: early.points.iter().map(row).collect() }],
        notes,
    }
}
