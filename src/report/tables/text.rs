//! Tables for a terminal.

use super::{Cell, Table};
use crate::report::term::colour::{Style, TermStyle};
use crate::report::term::layout::{self, Align, TextTable, paint, wrap};
use crate::report::term::sanitize::{one_line, text_width, visible};

/// Every table. Columns that do not fit side by side follow in further blocks, each after the first column. The best of a
/// column has a star and is bold.
pub fn text(tables: &[Table], style: TermStyle) -> String {
    tables.iter().map(|table| one(table, style)).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table, style: TermStyle) -> String {
    let mut text = style.paint(Style::BOLD, &one_line(&table.title)) + "\n";
    let rows = rows(table);
    for columns in blocks(table, &rows, style.width) {
        let align = |column: usize| if column == 0 { Align::Left } else { Align::Right };
        let mut block = TextTable::new(columns.iter().map(|&column| (table.columns[column].clone(), align(column))));
        for row in &rows {
            block.row(columns.iter().map(|&column| row[column].clone()).collect::<Vec<_>>());
        }
        text.extend(block.render(style).lines().map(|line| line.trim_end().to_owned() + "\n"));
    }
    for note in &table.notes {
        let cells: Vec<_> =
            visible(note).chars().map(|c| layout::Cell { c, style: Style::DIM, marked: false }).collect();
        for line in wrap(&cells, style.width.saturating_sub(2)) {
            text += &format!("  {}\n", paint(&line, style));
        }
    }
    text
}

/// Labels and rows. In a column with a star, the other cells leave room for one.
fn rows(table: &Table) -> Vec<Vec<(String, Style)>> {
    let all = || table.sections.iter().flat_map(|section| &section.rows);
    let starred: Vec<bool> = (0..table.columns.len()).map(|column| all().any(|row| row[column].best)).collect();
    let shown = |(cell, starred): (&Cell, &bool)| match (cell.best, starred) {
        (true, _) => (one_line(&cell.text) + "*", Style::BOLD),
        (false, true) => (one_line(&cell.text) + " ", Style::PLAIN),
        (false, false) => (one_line(&cell.text), Style::PLAIN),
    };
    let mut rows = Vec::new();
    for section in &table.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![(one_line(label), Style::DIM)];
            cells.resize(table.columns.len(), (String::new(), Style::PLAIN));
            rows.push(cells);
        }
        rows.extend(section.rows.iter().map(|row| row.iter().zip(&starred).map(shown).collect()));
    }
    rows
}

/// Columns side by side, with the first in every block.
fn blocks(table: &Table, rows: &[Vec<(String, Style)>], width: usize) -> Vec<Vec<usize>> {
    let width_of = |column: usize| {
        let head = text_width(&one_line(&table.columns[column]));
        2 + rows.iter().map(|row| text_width(&row[column].0)).fold(head, usize::max)
    };
    let first = width_of(0);
    let mut blocks = vec![vec![0]];
    let mut used = first;
    for column in 1..table.columns.len() {
        let needed = width_of(column);
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
