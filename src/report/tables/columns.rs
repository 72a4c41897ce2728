//! Tables with a row for each method: their columns, by groups, with the best of a column marked.

use super::{Align, Field, NONE, Section, Table};
use crate::eval::analysis::{Analysis, Estimate, Method, RunAnalysis, TaskAnalysis};
use crate::eval::metrics::Metric;
use std::borrow::Cow;

/// Three decimals.
pub(super) fn number(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{value:.3}"))
}

/// `0.712 [0.655, 0.770]`
pub(crate) fn with_interval(estimate: Option<Estimate>) -> String {
    match estimate {
        Some(Estimate { value, interval: Some([low, high]) }) => format!("{value:.3} [{low:.3}, {high:.3}]"),
        other => number(other.map(|estimate| estimate.value)),
    }
}

/// One decimal.
pub(crate) fn percent(value: Option<f64>) -> String {
    value.map_or(NONE.to_owned(), |value| format!("{:.1} %", 100.0 * value))
}

/// `72.8 % [70.0, 75.5]`
pub(super) fn percent_with_interval(value: Option<f64>, interval: Option<[f64; 2]>) -> String {
    match (value, interval) {
        (Some(_), Some([low, high])) => format!("{} [{:.1}, {:.1}]", percent(value), 100.0 * low, 100.0 * high),
        _ => percent(value),
    }
}

pub(super) fn title(run: &RunAnalysis, task: &TaskAnalysis, what: &str) -> String {
    format!("{} on {}: {what}", run.name, task.task)
}

/// A column about methods: its head, each method's text, and by what the best is found.
pub(super) struct MethodColumn<'a, T> {
    head: Cow<'static, str>,
    text: Box<dyn Fn(&T) -> String + 'a>,
    best: Option<Best<'a, T>>,
}

/// A method's value, and whether a higher one is better.
type Best<'a, T> = (Box<dyn Fn(&T) -> Option<f64> + 'a>, bool);

pub(super) fn plain<'a, T>(
    head: impl Into<Cow<'static, str>>,
    text: impl Fn(&T) -> String + 'a,
) -> MethodColumn<'a, T> {
    MethodColumn { head: head.into(), text: Box::new(text), best: None }
}

pub(super) fn ranked<'a, T>(
    head: impl Into<Cow<'static, str>>,
    metric: Metric,
    text: impl Fn(&T) -> String + 'a,
    value: impl Fn(&T) -> Option<f64> + 'a,
) -> MethodColumn<'a, T> {
    MethodColumn { head: head.into(), text: Box::new(text), best: Some((Box::new(value), metric.higher_is_better())) }
}

/// A table with a row for each method, by groups.
pub(super) fn method_table<T>(
    title: String,
    rows: &[(&Method, &T)],
    columns: &[MethodColumn<'_, T>],
    notes: Vec<String>,
) -> Table {
    let fields = |method: &Method, of: &T| {
        let name = std::iter::once(Field::new(&*method.name));
        name.chain(columns.iter().map(|column| Field::new((column.text)(of)))).collect::<Vec<Field>>()
    };
    let mut table: Vec<(&Method, Vec<Field>)> = rows.iter().map(|(method, of)| (*method, fields(method, of))).collect();
    for (i, column) in columns.iter().enumerate() {
        if let Some((value, higher)) = &column.best {
            let values: Vec<Option<f64>> = rows.iter().map(|(_, of)| value(of)).collect();
            mark_best(&mut table, i + 1, &values, *higher);
        }
    }
    let groups = table.chunk_by(|(a, _), (b, _)| a.group == b.group);
    let section = |group: &[(&Method, Vec<Field>)]| Section {
        label: Some(group[0].0.group.name().to_owned()),
        rows: group.iter().map(|(_, row)| row.clone()).collect(),
    };
    let heads = std::iter::once((Cow::from("Method"), Align::Left))
        .chain(columns.iter().map(|column| (column.head.clone(), Align::Right)));
    Table { title, columns: heads.collect(), sections: groups.map(section).collect(), notes }
}

/// Each of a list of things about methods with its method.
pub(super) fn with_method<'a, T>(
    analysis: &'a Analysis,
    list: &'a [T],
    key: impl Fn(&T) -> &str,
) -> Vec<(&'a Method, &'a T)> {
    let method = |of: &T| analysis.methods.iter().find(|method| method.key == key(of));
    list.iter().filter_map(|of| Some((method(of)?, of))).collect()
}

/// Marks, in a column of the rows, every one that has the best value.
fn mark_best(rows: &mut [(&Method, Vec<Field>)], column: usize, values: &[Option<f64>], higher: bool) {
    let better = |a: f64, b: f64| if higher { a.max(b) } else { a.min(b) };
    let Some(best) = values.iter().copied().flatten().reduce(better) else { return };
    for ((_, row), value) in rows.iter_mut().zip(values) {
        row[column].best = *value == Some(best);
    }
}
