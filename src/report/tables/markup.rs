//! Tables in GitHub Markdown, and in LaTeX with booktabs.

use super::{Cell, Table};
use crate::report::term::one_line;

/// How a language writes plain text, and marks the best of a column.
struct Markup {
    /// Characters escaped by a backslash.
    special: &'static str,
    /// Other characters, and their replacements.
    named: &'static [(char, &'static str)],
    best: [&'static str; 2],
}

const MARKDOWN: Markup = Markup { special: "|*_`<[]\\#~", named: &[], best: ["**", "**"] };

/// A `[` at the start of a row would be parsed as an argument of the preceding line break.
const LATEX: Markup = Markup {
    special: "&%$#_{}",
    named: &[
        ('\\', "\\textbackslash{}"),
        ('~', "\\textasciitilde{}"),
        ('^', "\\textasciicircum{}"),
        ('[', "{[}"),
        ('<', "$<$"),
        ('>', "$>$"),
        ('|', "$|$"),
        ('±', "$\\pm$"),
        ('—', "--"),
    ],
    best: ["\\textbf{", "}"],
};

impl Markup {
    /// Escapes text so that it contains no commands and stays in its cell.
    fn escape(&self, text: &str) -> String {
        let plain = |c: char| match self.named.iter().find(|(named, _)| *named == c) {
            Some((_, name)) => (*name).to_owned(),
            None if self.special.contains(c) => format!("\\{c}"),
            None => c.to_string(),
        };
        one_line(text).chars().map(plain).collect()
    }

    fn cell(&self, cell: &Cell) -> String {
        let (text, [open, close]) = (self.escape(&cell.text), self.best);
        if cell.best { format!("{open}{text}{close}") } else { text }
    }
}

/// Every table in Markdown, each under a heading.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(markdown_table).collect::<Vec<_>>().join("\n")
}

fn markdown_table(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = format!("## {}\n\n", MARKDOWN.escape(&table.title));
    text += &row(table.columns.iter().map(|head| MARKDOWN.escape(head)).collect());
    text += &row((0..table.columns.len()).map(|i| if i == 0 { ":--" } else { "--:" }.to_owned()).collect());
    for section in &table.sections {
        if let Some(label) = &section.label {
            let mut cells = vec![format!("*{}*", MARKDOWN.escape(label))];
            cells.resize(table.columns.len(), String::new());
            text += &row(cells);
        }
        for cells in &section.rows {
            text += &row(cells.iter().map(|cell| MARKDOWN.cell(cell)).collect());
        }
    }
    text + &table.notes.iter().map(|note| format!("\n{}\n", MARKDOWN.escape(note))).collect::<String>()
}

/// Every table in LaTeX, as a `table` with its title and notes as the caption.
pub fn latex(tables: &[Table]) -> String {
    let head = "% \\usepackage{booktabs}\n\n".to_owned();
    head + &tables.iter().map(latex_table).collect::<Vec<_>>().join("\n")
}

fn latex_table(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("  {} \\\\\n", cells.join(" & "));
    let columns = format!("l{}", "r".repeat(table.columns.len().saturating_sub(1)));
    let caption = [&[format!("{}.", table.title)], &*table.notes].concat().join(" ");
    let mut text = format!("\\begin{{table}}\n  \\centering\\small\n  \\caption{{{}}}\n", LATEX.escape(&caption));
    text += &format!("  \\begin{{tabular}}{{{columns}}}\n  \\toprule\n");
    text += &row(table.columns.iter().map(|head| LATEX.escape(head)).collect());
    for section in &table.sections {
        text += "  \\midrule\n";
        if let Some(label) = &section.label {
            let (width, label) = (table.columns.len(), LATEX.escape(label));
            text += &row(vec![format!("\\multicolumn{{{width}}}{{l}}{{\\textit{{{label}}}}}")]);
        }
        for cells in &section.rows {
            text += &row(cells.iter().map(|cell| LATEX.cell(cell)).collect());
        }
    }
    text + "  \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup_and_no_command() {
        assert_eq!(MARKDOWN.escape("a|b_c\n*<x>"), "a\\|b\\_c \\*\\<x>");
        assert_eq!(LATEX.escape("50 % of P_sim\\x"), "50 \\% of P\\_sim\\textbackslash{}x");
        assert_eq!(LATEX.escape("0.5 ± 0.1 [0, 1]"), "0.5 $\\pm$ 0.1 {[}0, 1]");
    }
}
