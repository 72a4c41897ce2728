//! Tables as columns over things: a format and a number for each.

use super::facts::Number;
use super::format::Format;
use super::{Cell, Section, Table};
use crate::eval::analysis::Method;
use std::borrow::Cow;

/// A column of numbers about `T`.
pub(super) struct Column<'a, T> {
    head: Cow<'static, str>,
    format: Format,
    number: Box<dyn Fn(&T) -> Number + 'a>,
    /// Whether the best is marked in a table of methods.
    ranked: bool,
}

pub(super) type MethodColumn<'a, 'm> = Column<'a, &'m Method>;

impl<'a, T> Column<'a, T> {
    pub(super) fn new<N: Into<Number>>(
        head: impl Into<Cow<'static, str>>,
        format: Format,
        number: impl Fn(&T) -> N + 'a,
    ) -> Column<'a, T> {
        Column { head: head.into(), format, number: Box::new(move |of: &T| number(of).into()), ranked: true }
    }

    pub(super) fn unranked(self) -> Column<'a, T> {
        Column { ranked: false, ..self }
    }

    fn cell(&self, of: &T) -> Cell {
        self.format.show((self.number)(of)).into()
    }
}

/// Rows with their names.
type NamedRows<T> = Vec<(String, T)>;

/// A table of sections of named things.
pub(super) fn table<T>(
    title: String,
    first: &'static str,
    columns: &[Column<'_, T>],
    sections: Vec<(Option<String>, NamedRows<T>)>,
    notes: Vec<String>,
) -> Table {
    let row = |(name, of): &(String, T)| {
        std::iter::once(Cell::from(name.as_str())).chain(columns.iter().map(|column| column.cell(of))).collect()
    };
    let sections: Vec<Section> =
        sections.into_iter().map(|(label, rows)| Section { label, rows: rows.iter().map(row).collect() }).collect();
    let heads = columns.iter().map(|column| column.head.clone());
    let columns = std::iter::once(Cow::from(first)).chain(heads).collect();
    Table { title, columns, sections, notes }
}

/// A table with a row per method, by groups, the best of each ranked column marked.
pub(super) fn method_table<'a>(
    title: String,
    methods: impl IntoIterator<Item = &'a Method>,
    columns: &[MethodColumn<'_, 'a>],
    notes: Vec<String>,
) -> Table {
    let methods: Vec<&Method> = methods.into_iter().collect();
    let sections = methods.chunk_by(|a, b| a.group == b.group).map(|group| {
        let rows = group.iter().map(|method| (method.name.clone(), *method));
        (Some(group[0].group.name().to_owned()), rows.collect())
    });
    let mut table = table(title, "Method", columns, sections.collect(), notes);
    for (i, column) in columns.iter().enumerate() {
        let better: fn(f64, f64) -> f64 = match arrow(&column.head) {
            "↑" if column.ranked => f64::max,
            "↓" if column.ranked => f64::min,
            _ => continue,
        };
        let values: Vec<Option<f64>> = methods.iter().map(|method| (column.number)(method).value).collect();
        let Some(best) = values.iter().copied().flatten().reduce(better) else { continue };
        let rows = table.sections.iter_mut().flat_map(|section| &mut section.rows);
        rows.zip(values).for_each(|(row, value)| row[i + 1].best = value == Some(best));
    }
    if table.sections.iter().flat_map(|section| &section.rows).flatten().any(|cell| cell.best) {
        table.notes.push(format!("*: best of {}, post hoc.", methods.len()));
    }
    table
}

/// Heads of columns of which more is better, and of which less is: after a task, and before a comma or an interval.
const MORE: [&str; 7] = ["Accuracy", "Majority", "AUROC", "by length", "AUPRC", "PRR", "Coverage"];
const LESS: [&str; 10] =
    ["No answer", "Truncated", "Errors", "ECE", "Brier", "AURC", "Risk", "Seconds", "Per item", "Of generation"];

/// An arrow towards what is better in a column, if anything is, by its head: `AUROC [95 %]`, `gsm8k: AUROC`.
pub fn arrow(head: &str) -> &'static str {
    let measure = head.rsplit(": ").next().unwrap_or(head);
    let is =
        |name: &&str| measure.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ' ']));
    match (MORE.iter().any(is), LESS.iter().any(is)) {
        (true, _) => "↑",
        (_, true) => "↓",
        _ => "",
    }
}
