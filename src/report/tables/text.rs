//! Tables for a terminal.

use super::{Field, Table};
use crate::report::term::colour::{Style, TermStyle};
use crate::report::term::layout::{Cell, TextTable, paint, wrap};
use crate::report::term::sanitize::{one_line, text_width, visible};

/// Every table; columns that do not fit beside each other follow below, each time after the first column. The best of a
/// column has a star and, with colours, is bold.
pub fn text(tables: &[Table], style: TermStyle) -> String {
    tables.iter().map(|table| one(table, style)).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table, style: TermStyle) -> String {
    let mut text = style.paint(Style::BOLD, &one_line(&table.title)) + "\n";
    for columns in blocks(table, style.width) {
        text += &block(table, &columns, style);
    }
    for note in &table.notes {
        let cells: Vec<Cell> = visible(note).chars().map(|c| Cell { c, style: Style::DIM, marked: false }).collect();
        for line in wrap(&cells, style.width.saturating_sub(2)) {
            text += &format!("  {}\n", paint(&line, style));
        }
    }
    text
}

/// What a field shows: in a column with a best one, room for the star after the others.
fn shown(field: &Field, starred: bool) -> String {
    let mark = match (field.best, starred) {
        (true, _) => "*",
        (false, true) => " ",
        (false, false) => "",
    };
    one_line(&field.text) + mark
}

/// Whether a column has a best one.
fn starred(table: &Table, column: usize) -> bool {
    table.sections.iter().flat_map(|section| &section.rows).any(|row| row[column].best)
}

/// The columns that are shown beside each other, the first in each.
fn blocks(table: &Table, width: usize) -> Vec<Vec<usize>> {
    let rows = || table.sections.iter().flat_map(|section| &section.rows);
    let labels = table.sections.iter().filter_map(|section| section.label.as_deref());
    let width_of = |column: usize| {
        let star = starred(table, column);
        let widest = rows().map(|row| text_width(&shown(&row[column], star))).max().unwrap_or(0);
        widest.max(text_width(&one_line(&table.columns[column].0)) + usize::from(star))
    };
    let first = width_of(0).max(labels.map(|label| text_width(&one_line(label))).max().unwrap_or(0)) + 2;
    let mut blocks = vec![vec![0]];
    let mut used = first;
    for column in 1..table.columns.len() {
        let needed = width_of(column) + 2;
        let last = blocks.len() - 1;
        if used + needed > width && blocks[last].len() > 1 {
            blocks.push(vec![0, column]);
            used = first + needed;
        } else {
            blocks[last].push(column);
            used += needed;
        }
    }
    blocks
}

fn block(table: &Table, columns: &[usize], style: TermStyle) -> String {
    let stars: Vec<bool> = columns.iter().map(|&column| starred(table, column)).collect();
    let mut lines = TextTable::new(columns.iter().map(|&column| table.columns[column].clone()));
    for section in &table.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![(one_line(label), Style::DIM)];
            cells.resize(columns.len(), (String::new(), Style::PLAIN));
            lines.row(cells);
        }
        for row in &section.rows {
            let cell = |(&column, &star): (&usize, &bool)| {
                let style = if row[column].best { Style::BOLD } else { Style::PLAIN };
                (shown(&row[column], star), style)
            };
            lines.row(columns.iter().zip(&stars).map(cell).collect::<Vec<_>>());
        }
    }
    lines.render(style).lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
