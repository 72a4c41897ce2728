//! Tables for a terminal, in GitHub Markdown, and in LaTeX with booktabs.

use super::{Cell, Table};
use crate::report::term::{Style, TermStyle, TextTable, cells, one_line, visible, wrap};

/// All tables. Columns that do not fit side by side continue in further blocks, each starting with the first column.
/// The best of a column is starred and bold.
pub fn text(tables: &[Table], style: TermStyle) -> String {
    tables.iter().map(|table| text_table(table, style)).collect::<Vec<_>>().join("\n")
}

fn text_table(table: &Table, style: TermStyle) -> String {
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

/// How a language writes plain text and rows, and marks the best of a column.
struct Markup {
    /// Characters escaped by a backslash.
    special: &'static str,
    /// Other characters, and their replacements.
    named: &'static [(char, &'static str)],
    best: [&'static str; 2],
    /// What is before, between and after the cells of a row.
    row: [&'static str; 3],
}

const MARKDOWN: Markup = Markup { special: "|*_`<[]\\#~", named: &[], best: ["**", "**"], row: ["| ", " | ", " |\n"] };

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
    row: ["  ", " & ", " \\\\\n"],
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

    fn row(&self, cells: impl Iterator<Item = String>) -> String {
        let [before, between, after] = self.row;
        format!("{before}{}{after}", cells.collect::<Vec<_>>().join(between))
    }

    fn head(&self, table: &Table) -> String {
        self.row(table.columns.iter().map(|head| self.escape(head)))
    }

    /// The rows of a table; before those of a section `rule`, and the row of its label.
    fn rows(&self, table: &Table, rule: &str, label: impl Fn(String) -> Vec<String>) -> String {
        let mut text = String::new();
        for section in &table.sections {
            text += rule;
            text.extend(section.label.iter().map(|name| self.row(label(self.escape(name)).into_iter())));
            text.extend(section.rows.iter().map(|cells| self.row(cells.iter().map(|cell| self.cell(cell)))));
        }
        text
    }
}

/// Every table in Markdown, each under a heading.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(markdown_table).collect::<Vec<_>>().join("\n")
}

fn markdown_table(table: &Table) -> String {
    let label = |name| {
        let mut cells = vec![format!("*{name}*")];
        cells.resize(table.columns.len(), String::new());
        cells
    };
    let title = MARKDOWN.escape(&table.title);
    let rule = MARKDOWN.row((0..table.columns.len()).map(|i| if i == 0 { ":--" } else { "--:" }.to_owned()));
    let rows = MARKDOWN.head(table) + &rule + &MARKDOWN.rows(table, "", label);
    let notes: String = table.notes.iter().map(|note| format!("\n{}\n", MARKDOWN.escape(note))).collect();
    format!("## {title}\n\n{rows}{notes}")
}

/// Every table in LaTeX, as a `table` with its title and notes as the caption.
pub fn latex(tables: &[Table]) -> String {
    "% \\usepackage{booktabs}\n\n".to_owned() + &tables.iter().map(latex_table).collect::<Vec<_>>().join("\n")
}

fn latex_table(table: &Table) -> String {
    let width = table.columns.len();
    let columns = format!("l{}", "r".repeat(width.saturating_sub(1)));
    let caption = LATEX.escape(&[&[format!("{}.", table.title)], &*table.notes].concat().join(" "));
    let label = |name| vec![format!("\\multicolumn{{{width}}}{{l}}{{\\textit{{{name}}}}}")];
    let rows = LATEX.head(table) + &LATEX.rows(table, "  \\midrule\n", label);
    format!(
        "\\begin{{table}}\n  \\centering\\small\n  \\caption{{{caption}}}\n  \\begin{{tabular}}{{{columns}}}\n  \\toprule\n\
         {rows}  \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
    )
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
