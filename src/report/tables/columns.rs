//! Tables as columns over row subjects: a number for each and its format, and the meanings of the column headers.

use super::{Cell, Section, Table, facts::Number};
use crate::{eval::analysis::Method, names::Named};

/// Format of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    /// The items behind the number.
    Items,
    Count,
    OneDecimal,
    /// `0.712`
    Decimals,
    /// `0.712 [0.655, 0.770]`
    Interval,
    /// `+0.021 [-0.004, +0.050]`
    Difference,
    /// `0.712 ± 0.004`
    Spread,
    /// `72.8 %`
    Percent,
    /// `72.8 % [70.0, 75.5]`
    PercentInterval,
}

impl Format {
    pub fn show(self, number: impl Into<Number>) -> String {
        use Format::*;
        let number = number.into();
        let value = if self == Items { number.items.map(|items| items as f64) } else { number.value };
        let Some(value) = value else { return "—".to_owned() };
        let show = |x: f64| match self {
            Items | Count => format!("{x:.0}"),
            OneDecimal => format!("{x:.1}"),
            Percent | PercentInterval => format!("{:.1}", 100.0 * x),
            Difference => format!("{x:+.3}"),
            Decimals | Interval | Spread => format!("{x:.3}"),
        };
        let unit = if matches!(self, Percent | PercentInterval) { " %" } else { "" };
        let precision = match (self, number.low.zip(number.high)) {
            (Spread, _) => format!(" ± {}", show(number.sd.unwrap_or_default())),
            (Interval | Difference | PercentInterval, Some((low, high))) => format!(" [{}, {}]", show(low), show(high)),
            _ => String::new(),
        };
        show(value) + unit + &precision
    }
}

/// A column of numbers about `T`.
pub(super) struct Column<'a, T> {
    head: String,
    format: Format,
    number: Box<dyn Fn(&T) -> Number + 'a>,
}

pub(super) type MethodColumn<'a, 'm> = Column<'a, &'m Method>;

impl<'a, T> Column<'a, T> {
    pub(super) fn new<N: Into<Number>>(head: &str, format: Format, number: impl Fn(&T) -> N + 'a) -> Column<'a, T> {
        Column { head: head.to_owned(), format, number: Box::new(move |of: &T| number(of).into()) }
    }
}

/// Rows with their names.
type NamedRows<T> = Vec<(String, T)>;

/// A table with one section per group of named rows.
pub(super) fn table<T>(
    title: String,
    first: &'static str,
    columns: &[Column<'_, T>],
    sections: Vec<(Option<String>, NamedRows<T>)>,
    notes: Vec<String>,
) -> Table {
    let cell = |text| Cell { text, best: false };
    let row = |(name, of): &(String, T)| {
        let numbers = columns.iter().map(|column| cell(column.format.show((column.number)(of))));
        std::iter::once(cell(name.clone())).chain(numbers).collect()
    };
    let sections: Vec<Section> =
        sections.into_iter().map(|(label, rows)| Section { label, rows: rows.iter().map(row).collect() }).collect();
    let heads = columns.iter().map(|column| column.head.clone());
    Table { title, columns: std::iter::once(first.to_owned()).chain(heads).collect(), sections, notes }
}

/// A table with one row per method, in groups, with the best of each column marked unless `too_few` answers tell methods apart.
pub(super) fn method_table<'a>(
    title: String,
    methods: impl IntoIterator<Item = &'a Method>,
    columns: &[MethodColumn<'_, 'a>],
    notes: Vec<String>,
    too_few: Option<String>,
) -> Table {
    let methods: Vec<&Method> = methods.into_iter().collect();
    let sections = methods.chunk_by(|a, b| a.group == b.group).map(|group| {
        let rows = group.iter().map(|method| (method.name.clone(), *method));
        (Some(group[0].group.name().to_owned()), rows.collect())
    });
    let mut table = table(title, "Method", columns, sections.collect(), notes);
    for (i, column) in columns.iter().enumerate().filter(|_| too_few.is_none()) {
        let better: fn(f64, f64) -> f64 = match meaning(&column.head) {
            Some(("↑", _)) => f64::max,
            Some(("↓", _)) => f64::min,
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
    table.notes.splice(0..0, too_few.map(|why| format!("{why}.")));
    table
}

/// The arrow in the direction of better values, and the meaning, of a column header: `AUROC [95 %]`,
/// `gsm8k: AUROC`.
pub fn meaning(head: &str) -> Option<(&'static str, &'static str)> {
    let measure = head.rsplit(": ").next().unwrap_or(head);
    let ends = |rest: &str| rest.is_empty() || rest.starts_with([',', ' ']);
    let fits = |name: &str| measure.strip_prefix(name).is_some_and(ends);
    heads().find(|[name, ..]| fits(name)).map(|[_, arrow, meaning]| (arrow, meaning))
}

/// Every column header without a task: its name, arrow and meaning.
pub fn heads() -> impl Iterator<Item = [&'static str; 3]> {
    include_str!("heads.txt")
        .lines()
        .filter_map(|line| line.split('|').map(str::trim).collect::<Vec<_>>().try_into().ok())
}
