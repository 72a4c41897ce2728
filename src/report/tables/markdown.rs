//! Tables in GitHub's Markdown.

use super::{Cell, Table};
use crate::report::term::sanitize::visible;

/// Every table under a heading; the best of a column is bold.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("## {}\n\n", escape(&table.title));
    text += &row(table.columns.iter().map(|head| escape(head)).collect());
    text += &row((0..table.columns.len()).map(|i| if i == 0 { ":--" } else { "--:" }.to_owned()).collect());
    for section in &table.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![format!("*{}*", escape(label))];
            cells.resize(table.columns.len(), String::new());
            text += &row(cells);
        }
        for cells in &section.rows {
            text += &row(cells.iter().map(cell).collect());
        }
    }
    for note in &table.notes {
        text += &format!("\n{}\n", escape(note));
    }
    text
}

fn cell(cell: &Cell) -> String {
    let text = escape(&cell.text);
    if cell.best { format!("**{text}**") } else { text }
}

/// Text without markup that stays in its cell.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in visible(text).chars() {
        match c {
            '\n' | '\t' => escaped.push(' '),
            '|' | '*' | '_' | '`' | '<' | '[' | ']' | '\\' | '#' | '~' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escape("a|b_c\n*<x>"), "a\\|b\\_c \\*\\<x>");
    }
}
