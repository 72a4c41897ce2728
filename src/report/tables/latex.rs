//! Tables for LaTeX with booktabs.

use super::{Cell, Table};
use crate::report::term::sanitize::visible;

/// Every table as a `table` with its title and notes as the caption; the best of a column is bold.
pub fn latex(tables: &[Table]) -> String {
    let head = "% \\usepackage{booktabs}\n\n".to_owned();
    head + &tables.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("  {} \\\\\n", cells.join(" & "));
    let columns = format!("l{}", "r".repeat(table.columns.len().saturating_sub(1)));
    let caption: Vec<String> = std::iter::once(format!("{}.", table.title))
        .chain(table.notes.iter().cloned())
        .map(|text| escape(&text))
        .collect();
    let mut text = format!("\\begin{{table}}\n  \\centering\\small\n  \\caption{{{}}}\n", caption.join(" "));
    text += &format!("  \\begin{{tabular}}{{{columns}}}\n  \\toprule\n");
    text += &row(table.columns.iter().map(|head| escape(head)).collect());
    for section in &table.sections {
        text += "  \\midrule\n";
        if let Some(label) = &section.label {
            let width = table.columns.len();
            text += &row(vec![format!("\\multicolumn{{{width}}}{{l}}{{\\textit{{{}}}}}", escape(label))]);
        }
        for cells in &section.rows {
            text += &row(cells.iter().map(cell).collect());
        }
    }
    text + "  \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
}

fn cell(cell: &Cell) -> String {
    let text = escape(&cell.text);
    if cell.best { format!("\\textbf{{{text}}}") } else { text }
}

/// Text without commands. A `[` at the start of a row would be an argument of the line break before it.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in visible(text).chars() {
        match c {
            '\\' => escaped.push_str("\\textbackslash{}"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', c]),
            '[' => escaped.push_str("{[}"),
            '<' => escaped.push_str("$<$"),
            '>' => escaped.push_str("$>$"),
            '|' => escaped.push_str("$|$"),
            '±' => escaped.push_str("$\\pm$"),
            '—' => escaped.push_str("--"),
            '\n' | '\t' => escaped.push(' '),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_command() {
        assert_eq!(escape("50 % of P_sim\\x"), "50 \\% of P\\_sim\\textbackslash{}x");
        assert_eq!(escape("0.5 ± 0.1 [0, 1]"), "0.5 $\\pm$ 0.1 {[}0, 1]");
    }
}
