//! The response's text with some of its tokens marked: in colours, or with brackets without colours.

use super::colour::{Style, TermStyle, ramp};
use super::layout::Cell;
use super::sanitize::stand_in;
use std::ops::Range;

/// What a token is to the answer; the later ones win where two tokens share a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    Chain,
    Kept,
    Answer,
}

impl Mark {
    /// With colours: the chain underlined in its probability's colour, kept ones bold, the answer inverse.
    fn style(self, p: f64) -> Style {
        let chain = Style { underline: true, colour: Some(ramp(p)), ..Style::PLAIN };
        match self {
            Mark::Chain => chain,
            Mark::Kept => Style { bold: true, ..chain },
            Mark::Answer => Style { bold: true, inverse: true, ..Style::PLAIN },
        }
    }

    /// Without colours.
    fn brackets(self) -> (char, char) {
        match self {
            Mark::Chain => ('‹', '›'),
            Mark::Kept => ('«', '»'),
            Mark::Answer => ('⟦', '⟧'),
        }
    }
}

/// What the marks style like.
pub fn legend(style: TermStyle) -> String {
    let entry = |mark: Mark, name: &str| {
        let (open, close) = mark.brackets();
        if style.colour { mark.style(1.0).paint(name) } else { format!("{open}{name}{close}") }
    };
    let marks = [entry(Mark::Chain, "chain"), entry(Mark::Kept, "kept"), entry(Mark::Answer, "answer")];
    let mut legend = marks.join("  ");
    if style.colour {
        legend += "  p";
        for (min, label) in [(0.0, "<0.5"), (0.5, "<0.8"), (0.8, "<0.95"), (0.95, "≥0.95")] {
            legend += &format!(" {}", Style { colour: Some(ramp(min)), ..Style::PLAIN }.paint(label));
        }
    }
    legend
}

/// The text as cells: token j covers the bytes `ranges[j]` and is marked with `marks[j]`; `p(j)` is its probability.
pub fn cells(
    text: &str,
    ranges: &[Range<usize>],
    marks: &[Option<Mark>],
    p: impl Fn(usize) -> f64,
    colour: bool,
) -> Vec<Cell> {
    let owners = owners(text.len(), ranges, marks);
    // Neighbours share brackets; in colours, each chain token has a colour of its own.
    let separate = |mark: Mark| colour && mark != Mark::Answer;
    let key = |at: usize| owners[at].map(|(mark, j)| (mark, separate(mark).then_some(j)));
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut cells = Vec::new();
    for run in chars.chunk_by(|a, b| key(a.0) == key(b.0)) {
        let shown: Vec<char> = run.iter().map(|(_, c)| *c).collect();
        match owners[run[0].0] {
            None => cells.extend(shown.into_iter().flat_map(plain)),
            Some((mark, j)) if colour => append_marked(&mut cells, &shown, mark.style(p(j)), None),
            Some((mark, _)) => append_marked(&mut cells, &shown, Style::PLAIN, Some(mark.brackets())),
        }
    }
    cells
}

/// For each byte of the text, the marked token that it belongs to.
fn owners(len: usize, ranges: &[Range<usize>], marks: &[Option<Mark>]) -> Vec<Option<(Mark, usize)>> {
    let mut owners: Vec<Option<(Mark, usize)>> = vec![None; len];
    for (j, (range, mark)) in ranges.iter().zip(marks).enumerate() {
        let (Some(mark), Some(bytes)) = (mark, owners.get_mut(range.clone())) else { continue };
        for owner in bytes {
            if owner.is_none_or(|(earlier, _)| earlier < *mark) {
                *owner = Some((*mark, j));
            }
        }
    }
    owners
}

/// A marked run: the space around it stays bare, a run of space alone is made visible.
fn append_marked(cells: &mut Vec<Cell>, run: &[char], style: Style, brackets: Option<(char, char)>) {
    let marked = |c: char| Cell { c, style, marked: true };
    let (open, close) = brackets.unzip();
    let Some(first) = run.iter().position(|c| !c.is_whitespace()) else {
        let symbol = |c: &char| if *c == '\n' { '⏎' } else { '␣' };
        cells.extend(open.map(marked));
        cells.extend(run.iter().map(|c| marked(symbol(c))));
        cells.extend(close.map(marked));
        cells.extend(run.iter().filter(|c| **c == '\n').flat_map(|c| plain(*c)));
        return;
    };
    let last = run.iter().rposition(|c| !c.is_whitespace()).unwrap_or(first);
    cells.extend(run[..first].iter().flat_map(|c| plain(*c)));
    cells.extend(open.map(marked));
    cells.extend(run[first..=last].iter().flat_map(|c| plain(*c)).map(|cell| marked(cell.c)));
    cells.extend(close.map(marked));
    cells.extend(run[last + 1..].iter().flat_map(|c| plain(*c)));
}

/// An unmarked character, made harmless; a tab takes as many cells as columns.
fn plain(c: char) -> impl Iterator<Item = Cell> {
    const TAB: usize = 4;
    let (c, times) = if c == '\t' { (' ', TAB) } else { (stand_in(c).unwrap_or(c), 1) };
    std::iter::repeat_n(Cell { c, style: Style::PLAIN, marked: false }, times)
}
