//! A response's text cut up along its tokens.

use super::sanitize::visible;

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token's index; `None`: text of no token.
    pub token: Option<usize>,
    pub text: String,
}

/// Cuts `text` at the tokens' bytes `[start, end)`; the pieces put together are the text, made harmless to show. Each token
/// has a piece, empty where it has no text of its own. Offsets that go back, leave the text or split a character are moved to
/// the nearest place further on where the text can be cut: no text is lost or shown twice.
pub fn pieces(text: &str, offsets: impl IntoIterator<Item = [usize; 2]>) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    let mut push = |token, text: &str| pieces.push(Piece { token, text: visible(text).into_owned() });
    for (i, [start, end]) in offsets.into_iter().enumerate() {
        let (start, end) = (cut_at(text, at.max(start)), cut_at(text, end));
        // A token without text leaves what lies before it to the next one.
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

/// The first place from `at` on where the text can be cut.
fn cut_at(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
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
