//! Wrapping of styled text, and tables.

use super::{colour::Style, colour::TermStyle, sanitize::one_line, sanitize::text_width, sanitize::width};

/// A character and its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub c: char,
    pub style: Style,
}

/// A text's cells; a tab expands to four.
pub fn cells(text: &str, style: Style) -> Vec<Cell> {
    text.replace('\t', "    ").chars().map(|c| Cell { c, style }).collect()
}

/// Wraps text into lines indented by two spaces, up to the style's width: at newlines, else after a space, else (in a
/// long word) anywhere.
pub fn wrap(text: &[Cell], style: TermStyle) -> String {
    let columns = style.width.saturating_sub(2).max(2);
    let lines = text.split(|cell| cell.c == '\n').flat_map(|paragraph| wrap_paragraph(paragraph, columns));
    lines.map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {}\n", paint(&line, style)) }).collect()
}

fn wrap_paragraph(text: &[Cell], columns: usize) -> Vec<Vec<Cell>> {
    let (mut lines, mut break_at) = (Vec::new(), None);
    let (mut start, mut used, mut i) = (0, 0, 0);
    while i < text.len() {
        let Cell { c, .. } = text[i];
        if used + width(c) > columns && c != ' ' {
            let end = break_at.take().unwrap_or(i);
            lines.push(trim_end(&text[start..end]));
            start = end;
            used = text[start..i].iter().map(|cell| width(cell.c)).sum();
            continue;
        }
        used += width(c);
        i += 1;
        break_at = if c == ' ' { Some(i) } else { break_at };
    }
    lines.push(trim_end(&text[start..]));
    lines
}

fn trim_end(line: &[Cell]) -> Vec<Cell> {
    let len = line.iter().rposition(|cell| cell.c != ' ').map_or(0, |last| last + 1);
    line[..len].to_vec()
}

/// A line as text; without colours the styles are dropped.
fn paint(line: &[Cell], style: TermStyle) -> String {
    let runs = line.chunk_by(|a, b| a.style == b.style);
    runs.map(|run| style.paint(run[0].style, &run.iter().map(|cell| cell.c).collect::<String>())).collect()
}

/// Rows under a dim header, two spaces between columns, each column as wide as its widest cell. Cell contents stay on
/// their line and are sanitized for the terminal.
pub struct TextTable {
    /// Each name, and whether its column is right-aligned.
    header: Vec<(String, bool)>,
    rows: Vec<Vec<(String, Style)>>,
}

impl TextTable {
    /// An empty table. `align` has an `l` (left) or `r` (right) for each column; a header of empty names is not shown.
    pub fn new<S: AsRef<str>>(align: &str, header: impl IntoIterator<Item = S>) -> TextTable {
        let column = |(name, align): (S, char)| (one_line(name.as_ref()), align == 'r');
        TextTable { header: header.into_iter().zip(align.chars()).map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row: one cell per column.
    pub fn row(&mut self, cells: impl Into<Vec<(String, Style)>>) {
        self.rows.push(cells.into().into_iter().map(|(text, style)| (one_line(&text), style)).collect());
    }

    /// The table as lines, each ended with a newline and indented by two spaces.
    pub fn render(&self, style: TermStyle) -> String {
        self.block(&(0..self.header.len()).collect::<Vec<_>>(), style)
    }

    /// Like [`render`](TextTable::render), but columns that do not fit side by side continue in further blocks, each
    /// starting with the first column.
    pub fn render_within(&self, style: TermStyle) -> String {
        let (mut text, mut block) = (String::new(), vec![0]);
        for column in 1..self.header.len() {
            let used: usize = block.iter().chain([&column]).map(|column| 2 + self.width(*column)).sum();
            if used > style.width && block.len() > 1 {
                text += &self.block(&block, style);
                block.truncate(1);
            }
            block.push(column);
        }
        text + &self.block(&block, style)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|(text, _)| text_width(text)).fold(text_width(&self.header[column].0), usize::max)
    }

    /// A block with the given columns.
    fn block(&self, columns: &[usize], style: TermStyle) -> String {
        let header: Vec<_> = self.header.iter().map(|(name, _)| (name.clone(), Style::DIM)).collect();
        let header = Some(&header).filter(|header| header.iter().any(|(name, _)| !name.is_empty()));
        let widths: Vec<usize> = columns.iter().map(|column| self.width(*column)).collect();
        let mut lines = String::new();
        for row in header.into_iter().chain(&self.rows) {
            let mut gap = 2; // spaces due before the next text; deferred so that no line ends with any
            for (&column, &width) in columns.iter().zip(&widths) {
                let Some((text, cell_style)) = row.get(column).filter(|(text, _)| !text.is_empty()) else {
                    gap += width + 2;
                    continue;
                };
                let fill = width - text_width(text);
                let (before, after) = if self.header[column].1 { (fill, 0) } else { (0, fill) };
                lines += &" ".repeat(gap + before);
                lines += &style.paint(*cell_style, text);
                gap = after + 2;
            }
            lines.push('\n');
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TermStyle = TermStyle { colour: false, width: 80 };

    fn wrapped(text: &str, columns: usize) -> Vec<String> {
        let lines = wrap(&cells(text, Style::PLAIN), TermStyle { width: columns + 2, ..PLAIN });
        lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned()).collect()
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
    fn a_table_lines_up() {
        let mut table = TextTable::new("rlr", ["row", "token", "p"]);
        let plain = |text: &str| (text.to_string(), Style::PLAIN);
        table.row([plain("7"), plain("家"), plain("0.5")]);
        table.row([plain("1234"), plain("abc"), plain("")]);
        assert_eq!(table.render(PLAIN), "   row  token    p\n     7  家     0.5\n  1234  abc\n");
    }
}
