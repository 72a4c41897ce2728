//! Tables for a terminal.

use super::{Field, Sheet};
use crate::report::colour::{Look, Style};
use crate::report::layout::{Cell, Table, paint, wrap};
use crate::report::sanitize::{text_width, visible};

/// Every sheet; columns that do not fit beside each other follow below, each time behind the first column. The best of a
/// column has a star and, with colours, is bold.
pub fn text(sheets: &[Sheet], look: Look) -> String {
    sheets.iter().map(|sheet| one(sheet, look)).collect::<Vec<_>>().join("\n")
}

fn one(sheet: &Sheet, look: Look) -> String {
    let mut text = look.paint(Style::BOLD, &visible(&sheet.title)) + "\n";
    for columns in blocks(sheet, look.width) {
        text += &block(sheet, &columns, look);
    }
    for note in &sheet.notes {
        let cells: Vec<Cell> = visible(note).chars().map(|c| Cell { c, style: Style::DIM, marked: false }).collect();
        for line in wrap(&cells, look.width.saturating_sub(2)) {
            text += &format!("  {}\n", paint(&line, look));
        }
    }
    text
}

/// What a field shows: in a column with a best one, room for the star behind the others.
fn shown(field: &Field, starred: bool) -> String {
    let mark = match (field.best, starred) {
        (true, _) => "*",
        (false, true) => " ",
        (false, false) => "",
    };
    visible(&field.text).into_owned() + mark
}

/// Whether a column has a best one.
fn starred(sheet: &Sheet, column: usize) -> bool {
    sheet.sections.iter().flat_map(|section| &section.rows).any(|row| row[column].best)
}

/// The columns that are shown beside each other, the first in each.
fn blocks(sheet: &Sheet, width: usize) -> Vec<Vec<usize>> {
    let rows = || sheet.sections.iter().flat_map(|section| &section.rows);
    let labels = sheet.sections.iter().filter_map(|section| section.label.as_deref());
    let width_of = |column: usize| {
        let star = starred(sheet, column);
        let widest = rows().map(|row| text_width(&shown(&row[column], star))).max().unwrap_or(0);
        widest.max(text_width(&sheet.columns[column].0) + usize::from(star))
    };
    let first = width_of(0).max(labels.map(|label| text_width(&visible(label))).max().unwrap_or(0)) + 2;
    let mut blocks = vec![vec![0]];
    let mut used = first;
    for column in 1..sheet.columns.len() {
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

fn block(sheet: &Sheet, columns: &[usize], look: Look) -> String {
    let stars: Vec<bool> = columns.iter().map(|&column| starred(sheet, column)).collect();
    let mut table = Table::new(columns.iter().map(|&column| sheet.columns[column].clone()));
    for section in &sheet.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![(visible(label).into_owned(), Style::DIM)];
            cells.resize(columns.len(), (String::new(), Style::PLAIN));
            table.row(cells);
        }
        for row in &section.rows {
            let cell = |(&column, &star): (&usize, &bool)| {
                let style = if row[column].best { Style::BOLD } else { Style::PLAIN };
                (shown(&row[column], star), style)
            };
            table.row(columns.iter().zip(&stars).map(cell).collect::<Vec<_>>());
        }
    }
    table.render(look).lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
