//! Tables in GitHub's Markdown.

use super::{Align, Field, Table};
use crate::report::term::sanitize::visible;

/// Every table under a heading; the best of a column is bold.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("## {}\n\n", escape(&table.title));
    text += &row(table.columns.iter().map(|(name, _)| escape(name)).collect());
    let rule = |align: &Align| if *align == Align::Right { "--:" } else { ":--" }.to_owned();
    text += &row(table.columns.iter().map(|(_, align)| rule(align)).collect());
    for section in &table.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![format!("*{}*", escape(label))];
            cells.resize(table.columns.len(), String::new());
            text += &row(cells);
        }
        for fields in &section.rows {
            text += &row(fields.iter().map(cell).collect());
        }
    }
    for note in &table.notes {
        text += &format!("\n{}\n", escape(note));
    }
    text
}

fn cell(field: &Field) -> String {
    let text = escape(&field.text);
    if field.best { format!("**{text}**") } else { text }
}

/// Nothing of a text is markup, nor ends its cell.
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
