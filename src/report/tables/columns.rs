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
    /// Whether the highest number is the best, which is then marked.
    higher_is_better: Option<bool>,
}

impl<'a, T> Column<'a, T> {
    pub(super) fn new<N: Into<Number>>(
        head: impl Into<Cow<'static, str>>,
        format: Format,
        number: impl Fn(&T) -> N + 'a,
    ) -> Column<'a, T> {
        let number = Box::new(move |of: &T| number(of).into());
        Column { head: head.into(), format, number, higher_is_better: None }
    }

    pub(super) fn ranked(self, higher_is_better: bool) -> Column<'a, T> {
        Column { higher_is_better: Some(higher_is_better), ..self }
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
    methods: &[&'a Method],
    columns: &[Column<'_, &'a Method>],
    notes: Vec<String>,
) -> Table {
    let sections = methods.chunk_by(|a, b| a.group == b.group).map(|group| {
        let rows = group.iter().map(|method| (method.name.clone(), *method));
        (Some(group[0].group.name().to_owned()), rows.collect())
    });
    let mut table = table(title, "Method", columns, sections.collect(), notes);
    for (i, column) in columns.iter().enumerate() {
        let Some(higher) = column.higher_is_better else { continue };
        let values: Vec<Option<f64>> = methods.iter().map(|method| (column.number)(method).value).collect();
        let better = |a: f64, b: f64| if higher { a.max(b) } else { a.min(b) };
        let Some(best) = values.iter().copied().flatten().reduce(better) else { continue };
        let rows = table.sections.iter_mut().flat_map(|section| &mut section.rows);
        rows.zip(values).for_each(|(row, value)| row[i + 1].best = value == Some(best));
    }
    table
}
