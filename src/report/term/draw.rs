//! A response's text split at its tokens, some of them marked: with colours, or with brackets where there are none.

use super::{colour::Style, colour::TermStyle, colour::ramp, layout::Cell, layout::cells, sanitize::visible};
use crate::{names::Named, names::named, uq::answer::boundary};

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token's index; `None` for text that belongs to no token.
    pub token: Option<usize>,
    pub text: String,
}

/// Splits `text` at the tokens' byte ranges `[start, end)`; concatenated, the pieces are the sanitized text. Each token
/// has a piece, empty if it has no text of its own. Offsets that go backwards, exceed the text or split a character are
/// moved to the next valid boundary or the end: no text is lost or shown twice.
pub fn pieces(text: &str, offsets: impl IntoIterator<Item = [usize; 2]>) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    let mut push = |token, text: &str| pieces.push(Piece { token, text: visible(text).into_owned() });
    for (i, [start, end]) in offsets.into_iter().enumerate() {
        let (start, end) = (boundary(text, at.max(start)), boundary(text, end));
        // A token without text leaves any text before it to the next token.
        let (start, end) = if end > start { (start, end) } else { (at, at) };
        if start > at {
            push(None, &text[at..start]);
        }
        push(Some(i), &text[start..end]);
        at = end;
    }
    if at < text.len() {
        push(None, &text[at..]);
    }
    pieces
}

named! {
    /// Role of a token for the answer, strongest last.
    #[derive(PartialOrd, Ord)]
    pub enum Mark {
        Chain = "chain",
        Kept = "kept",
        Answer = "answer",
    }
}

impl Mark {
    /// The style, and the text before and after. With colours the chain is underlined in its probability's colour, kept
    /// tokens are bold, and the answer is inverse; without them there are brackets.
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
            legend += &format!(" {}", style.paint(Style { colour: Some(ramp(min)), ..Style::PLAIN }, label));
        }
    }
    legend
}

/// The pieces of a text as cells, each with its mark; `p(j)` is the probability of token j.
pub fn marked_cells(pieces: &[(Option<Mark>, Piece)], p: impl Fn(Option<usize>) -> f64, colour: bool) -> Vec<Cell> {
    let pieces: Vec<_> = pieces.iter().filter(|(_, piece)| !piece.text.is_empty()).collect();
    // Neighbours share brackets; with colours, each chain token has its own colour.
    let separate = |mark: Option<Mark>| colour && matches!(mark, Some(Mark::Chain | Mark::Kept));
    let mut row = Vec::new();
    for run in pieces.chunk_by(|(a, _), (b, _)| a == b && !separate(*a)) {
        let text: String = run.iter().map(|(_, piece)| piece.text.as_str()).collect();
        let (mark, piece) = run[0];
        let Some(mark) = mark else {
            row.extend(cells(&text, Style::PLAIN));
            continue;
        };
        // The whitespace around a marked run stays unstyled; a run of whitespace alone is made visible.
        let core = text.trim();
        let (before, rest) = text.split_at(text.len() - text.trim_start().len());
        let (before, shown, after) = if core.is_empty() {
            let shown: String = text.chars().map(|c| if c == '\n' { '⏎' } else { '␣' }).collect();
            ("", shown, "\n".repeat(text.matches('\n').count()))
        } else {
            (before, core.to_owned(), rest[core.len()..].to_owned())
        };
        let (style, [open, close]) = mark.look(p(piece.token), colour);
        row.extend(cells(before, Style::PLAIN));
        row.extend(cells(&format!("{open}{shown}{close}"), style));
        row.extend(cells(&after, Style::PLAIN));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_without_text_and_gaps_keep_their_places() {
        let cut = |text: &str, offsets: &[[usize; 2]]| -> Vec<(Option<usize>, String)> {
            pieces(text, offsets.iter().copied()).into_iter().map(|piece| (piece.token, piece.text)).collect()
        };
        let piece = |token, text: &str| (token, text.to_owned());
        let gaps = [(Some(0), "ab"), (Some(1), ""), (None, " "), (Some(2), "é"), (Some(3), ""), (None, " c")];
        let gaps = gaps.map(|(token, text)| piece(token, text));
        assert_eq!(cut("ab é c", &[[0, 2], [2, 2], [3, 5], [6, 6]]), gaps);
        assert_eq!(cut("x", &[]), [piece(None, "x")]);
        assert_eq!(cut("", &[[0, 0]]), [piece(Some(0), "")]);
        assert_eq!(cut("a\u{202e}\0", &[[0, 5]]), [piece(Some(0), "a\u{fffd}␀")]);
    }

    proptest! {
        #[test]
        fn no_text_is_lost_or_doubled(text in "[a-c é家\u{301}]{0,12}", offsets in proptest::collection::vec([0usize..40, 0usize..40], 0..8)) {
            let cut = pieces(&text, offsets.iter().copied());
            prop_assert_eq!(cut.iter().filter_map(|piece| piece.token).collect::<Vec<_>>(), (0..offsets.len()).collect::<Vec<_>>());
            prop_assert_eq!(cut.into_iter().map(|piece| piece.text).collect::<String>(), text);
        }
    }
}
