//! Wrapping of styled text, and tables.

use super::colour::{Style, TermStyle};
use super::sanitize::{one_line, text_width, width};
use serde::Serialize;
use std::borrow::Cow;

/// A character and how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub c: char,
    pub style: Style,
    /// Something the reader looks for: its line is never left out.
    pub marked: bool,
}

/// Breaks text into lines of at most `columns`: at its newlines, else after a space, else (a long word) anywhere.
pub fn wrap(text: &[Cell], columns: usize) -> Vec<Vec<Cell>> {
    let paragraphs = text.split(|cell| cell.c == '\n');
    paragraphs.flat_map(|paragraph| wrap_paragraph(paragraph, columns.max(2))).collect()
}

fn wrap_paragraph(text: &[Cell], columns: usize) -> Vec<Vec<Cell>> {
    let mut lines = Vec::new();
    let (mut start, mut used) = (0, 0);
    let mut break_at = None;
    let mut i = 0;
    while i < text.len() {
        let w = width(text[i].c);
        if used + w > columns && text[i].c != ' ' {
            let end = break_at.take().unwrap_or(i);
            lines.push(trim_end(&text[start..end]));
            start = end;
            used = text[start..i].iter().map(|cell| width(cell.c)).sum();
            continue;
        }
        used += w;
        i += 1;
        if text[i - 1].c == ' ' {
            break_at = Some(i);
        }
    }
    lines.push(trim_end(&text[start..]));
    lines
}

fn trim_end(line: &[Cell]) -> Vec<Cell> {
    let len = line.iter().rposition(|cell| cell.c != ' ').map_or(0, |last| last + 1);
    line[..len].to_vec()
}

/// A line as text; without colours the styles are dropped.
pub fn paint(line: &[Cell], style: TermStyle) -> String {
    let runs = line.chunk_by(|a, b| a.style == b.style);
    runs.map(|run| style.paint(run[0].style, &run.iter().map(|cell| cell.c).collect::<String>())).collect()
}

/// What [`elide`] makes of lines: one of them, or how many were left out.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    Line(&'a [Cell]),
    Omitted(usize),
}

/// Leaves out the lines that are further than one line from anything marked, if there are more than `max` lines.
pub fn elide(lines: &[Vec<Cell>], max: usize) -> Vec<Shown<'_>> {
    let marked: Vec<bool> = lines.iter().map(|line| line.iter().any(|cell| cell.marked)).collect();
    let near = |i: usize| (i.saturating_sub(1)..=i + 1).any(|j| marked.get(j) == Some(&true));
    let mut shown = Vec::new();
    let mut omitted = 0;
    for (i, line) in lines.iter().enumerate() {
        if lines.len() > max && !near(i) {
            omitted += 1;
            continue;
        }
        if omitted > 0 {
            shown.push(Shown::Omitted(std::mem::take(&mut omitted)));
        }
        shown.push(Shown::Line(line));
    }
    if omitted > 0 {
        shown.push(Shown::Omitted(omitted));
    }
    shown
}

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Align {
    Left,
    Right,
}

/// Rows under a dim header, two spaces between columns, each column as wide as its widest cell. Whatever a cell holds, it
/// stays on its line and is nothing that a terminal acts upon.
pub struct TextTable {
    header: Vec<(String, Align)>,
    rows: Vec<Vec<(String, Style)>>,
}

impl TextTable {
    /// An empty table; a header of empty names is not shown.
    pub fn new<S: Into<Cow<'static, str>>>(header: impl IntoIterator<Item = (S, Align)>) -> TextTable {
        let header = header.into_iter().map(|(name, align)| (one_line(&name.into()), align)).collect();
        TextTable { header, rows: Vec::new() }
    }

    /// Adds a row of as many cells as the header has.
    pub fn row(&mut self, cells: impl Into<Vec<(String, Style)>>) {
        self.rows.push(cells.into().into_iter().map(|(text, style)| (one_line(&text), style)).collect());
    }

    /// The table as lines, each ended with a newline and indented by two spaces.
    pub fn render(&self, style: TermStyle) -> String {
        let column = |i: usize| self.rows.iter().filter_map(move |row| row.get(i)).map(|(text, _)| text_width(text));
        let widest = |(i, (name, _)): (usize, &(String, Align))| column(i).max().unwrap_or(0).max(text_width(name));
        let widths: Vec<usize> = self.header.iter().enumerate().map(widest).collect();
        let mut lines = String::new();
        if self.header.iter().any(|(name, _)| !name.is_empty()) {
            let names: Vec<_> = self.header.iter().map(|(name, _)| (name.clone(), Style::DIM)).collect();
            lines += &self.line(&names, &widths, style);
        }
        for row in &self.rows {
            lines += &self.line(row, &widths, style);
        }
        lines
    }

    fn line(&self, cells: &[(String, Style)], widths: &[usize], style: TermStyle) -> String {
        let mut line = String::new();
        let mut gap = 2; // spaces that are due before the next text, so that a line does not end with any
        for (((text, cell_style), (_, align)), &width) in cells.iter().zip(&self.header).zip(widths) {
            let fill = width - text_width(text);
            let (before, after) = if *align == Align::Right { (fill, 0) } else { (0, fill) };
            if text.is_empty() {
                gap += width + 2;
                continue;
            }
            line += &" ".repeat(gap + before);
            line += &style.paint(*cell_style, text);
            gap = after + 2;
        }
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TermStyle = TermStyle { colour: false, width: 80 };

    fn cells(text: &str) -> Vec<Cell> {
        text.chars().map(|c| Cell { c, style: Style::PLAIN, marked: c == '!' }).collect()
    }

    fn wrapped(text: &str, columns: usize) -> Vec<String> {
        wrap(&cells(text), columns).iter().map(|line| paint(line, PLAIN)).collect()
    }

    #[test]
    fn lines_break_at_spaces_newlines_and_within_long_words() {
        assert_eq!(wrapped("the quick brown", 9), ["the quick", "brown"]);
        assert_eq!(wrapped("a\n\nb ", 9), ["a", "", "b"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("a bcdefg", 4), ["a", "bcde", "fg"]);
        assert_eq!(wrapped("家家家", 4), ["家家", "家"]);
        assert_eq!(wrapped("  indented text", 10), ["  indented", "text"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn nothing_is_lost_and_no_line_is_too_wide() {
        let text = "It is 家 not   so  simple as-it-may-have-looked-before, is it?";
        for columns in 2..70 {
            let lines = wrapped(text, columns);
            assert!(lines.iter().all(|line| text_width(line) <= columns), "{columns}: {lines:?}");
            let squeeze = |s: &str| s.chars().filter(|c| *c != ' ').collect::<String>();
            assert_eq!(squeeze(&lines.concat()), squeeze(text));
        }
    }

    #[test]
    fn long_text_keeps_marked_lines_and_their_neighbours() {
        let lines = wrap(&cells("0\n1\n2\n3!\n4\n5\n6"), 80);
        assert_eq!(elide(&lines, 7).len(), 7);
        let shown = elide(&lines, 6);
        assert_eq!(shown.len(), 5);
        assert_eq!((&shown[0], &shown[4]), (&Shown::Omitted(2), &Shown::Omitted(2)));
        assert_eq!(shown[2], Shown::Line(&cells("3!")));
    }

    #[test]
    fn a_table_lines_up() {
        let mut table = TextTable::new([("row", Align::Right), ("token", Align::Left), ("p", Align::Right)]);
        let plain = |text: &str| (text.to_string(), Style::PLAIN);
        table.row([plain("7"), plain("家"), plain("0.5")]);
        table.row([plain("1234"), plain("abc"), plain("")]);
        assert_eq!(table.render(PLAIN), "   row  token    p\n     7  家     0.5\n  1234  abc\n");
    }
}
