//! Tables for a terminal.

use super::{Cell, Table};
use crate::report::term::{Style, TermStyle, TextTable, cells, one_line, visible, wrap};

/// All tables. Columns that do not fit side by side continue in further blocks, each starting with the first column.
/// The best of a column is starred and bold.
pub fn text(tables: &[Table], style: TermStyle) -> String {
    tables.iter().map(|table| one(table, style)).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table, style: TermStyle) -> String {
    let mut lines = TextTable::new(&format!("l{}", "r".repeat(table.columns.len())), &table.columns);
    let all = || table.sections.iter().flat_map(|section| &section.rows);
    let starred: Vec<bool> = (0..table.columns.len()).map(|column| all().any(|row| row[column].best)).collect();
    // In a column with a star, the other cells reserve room for one.
    let shown = |(cell, starred): (&Cell, &bool)| match (cell.best, starred) {
        (true, _) => (one_line(&cell.text) + "*", Style::BOLD),
        (false, true) => (one_line(&cell.text) + " ", Style::PLAIN),
        (false, false) => (one_line(&cell.text), Style::PLAIN),
    };
    for section in &table.sections {
        if let Some(label) = &section.label {
            lines.row([(label.clone(), Style::DIM)]);
        }
        section.rows.iter().for_each(|row| lines.row(row.iter().zip(&starred).map(shown).collect::<Vec<_>>()));
    }
    let mut text = style.paint(Style::BOLD, &one_line(&table.title)) + "\n";
    text.extend(lines.render_within(style).lines().map(|line| line.trim_end().to_owned() + "\n"));
    text.extend(table.notes.iter().map(|note| wrap(&cells(&visible(note), Style::DIM), style)));
    text
}
