//! The response's text with some of its tokens marked: in colours, or with brackets without colours.

use super::colour::{Style, TermStyle, ramp};
use super::layout::{Cell, cells};
use super::tokens::Piece;

/// Role of a token for the answer, the strongest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    Chain,
    Kept,
    Answer,
}

impl Mark {
    pub fn name(self) -> &'static str {
        match self {
            Mark::Chain => "chain",
            Mark::Kept => "kept",
            Mark::Answer => "answer",
        }
    }

    /// The style, and what stands before and after. With colours the chain is underlined in its probability's colour, kept
    /// ones are bold, and the answer is inverse; without them there are brackets.
    fn look(self, p: f64, colour: bool) -> (Style, [&'static str; 2]) {
        let by_probability = Some(ramp(p));
        match (self, colour) {
            (Mark::Chain, true) => (Style { codes: "4", colour: by_probability }, ["", ""]),
            (Mark::Kept, true) => (Style { codes: "1;4", colour: by_probability }, ["", ""]),
            (Mark::Answer, true) => (Style { codes: "1;7", colour: None }, ["", ""]),
            (Mark::Chain, false) => (Style::PLAIN, ["‹", "›"]),
            (Mark::Kept, false) => (Style::PLAIN, ["«", "»"]),
            (Mark::Answer, false) => (Style::PLAIN, ["⟦", "⟧"]),
        }
    }
}

/// Styles of the marks.
pub fn legend(style: TermStyle) -> String {
    let entry = |mark: Mark| {
        let (look, [open, close]) = mark.look(1.0, style.colour);
        style.paint(look, &format!("{open}{}{close}", mark.name()))
    };
    let mut legend = [Mark::Chain, Mark::Kept, Mark::Answer].map(entry).join("  ");
    if style.colour {
        legend += "  p";
        for (min, label) in [(0.0, "<0.5"), (0.5, "<0.8"), (0.8, "<0.95"), (0.95, "≥0.95")] {
            legend += &format!(" {}", Style { colour: Some(ramp(min)), ..Style::PLAIN }.paint(label));
        }
    }
    legend
}

/// The pieces of a text, each with its mark, as cells; `p(j)` is the probability of token j.
pub fn marked_cells(pieces: &[(Option<Mark>, Piece)], p: impl Fn(Option<usize>) -> f64, colour: bool) -> Vec<Cell> {
    let pieces: Vec<_> = pieces.iter().filter(|(_, piece)| !piece.text.is_empty()).collect();
    // Neighbours share brackets; in colours, each chain token has a colour of its own.
    let separate = |mark: Option<Mark>| colour && matches!(mark, Some(Mark::Chain | Mark::Kept));
    let mut row = Vec::new();
    for run in pieces.chunk_by(|(a, _), (b, _)| a == b && !separate(*a)) {
        let text: String = run.iter().map(|(_, piece)| piece.text.as_str()).collect();
        let (mark, piece) = run[0];
        let Some(mark) = mark else {
            row.extend(cells(&text, Style::PLAIN, false));
            continue;
        };
        // The space around a marked run stays bare, a run of space alone is made visible.
        let core = text.trim();
        let (before, rest) = text.split_at(text.len() - text.trim_start().len());
        let (before, shown, after) = if core.is_empty() {
            let shown: String = text.chars().map(|c| if c == '\n' { '⏎' } else { '␣' }).collect();
            ("", shown, "\n".repeat(text.matches('\n').count()))
        } else {
            (before, core.to_owned(), rest[core.len()..].to_owned())
        };
        let (style, [open, close]) = mark.look(p(piece.token), colour);
        row.extend(cells(before, Style::PLAIN, false));
        row.extend(cells(&format!("{open}{shown}{close}"), style, true));
        row.extend(cells(&after, Style::PLAIN, false));
    }
    row
}
