//! Tables in GitHub's Markdown.

use super::{Align, Field, Sheet};
use crate::report::sanitize::visible;

/// Every sheet under a heading; the best of a column is bold.
pub fn markdown(sheets: &[Sheet]) -> String {
    sheets.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(sheet: &Sheet) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("## {}\n\n", escape(&sheet.title));
    text += &row(sheet.columns.iter().map(|(name, _)| escape(name)).collect());
    let rule = |align: &Align| if *align == Align::Right { "--:" } else { ":--" }.to_owned();
    text += &row(sheet.columns.iter().map(|(_, align)| rule(align)).collect());
    for section in &sheet.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![format!("*{}*", escape(label))];
            cells.resize(sheet.columns.len(), String::new());
            text += &row(cells);
        }
        for fields in &section.rows {
            text += &row(fields.iter().map(cell).collect());
        }
    }
    for note in &sheet.notes {
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
