//! A response's text cut up along its tokens.

use crate::report::term::sanitize::visible;

/// The pieces of a text; put together, tokens and gaps in turn, they are the text (made harmless to show).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// The text of each token; empty where a token has none of its own.
    pub tokens: Vec<String>,
    /// Text of no token, and the index of the token that it stands before (the number of tokens for what comes last).
    pub gaps: Vec<(usize, String)>,
}

/// Cuts `text` at the tokens' bytes `[start, end)`. Offsets that go back, leave the text or split a character are moved
/// to the nearest place further on where the text can be cut: no text is lost or shown twice.
pub fn segments(text: &str, offsets: &[[usize; 2]]) -> Segments {
    let mut segments = Segments { tokens: Vec::with_capacity(offsets.len()), gaps: Vec::new() };
    let mut at = 0;
    for (i, [start, end]) in offsets.iter().enumerate() {
        let start = cut_at(text, at.max(*start));
        // A token without text leaves what lies before it to the next one.
        let end = if *end <= start { start } else { cut_at(text, *end) };
        if end == start {
            segments.tokens.push(String::new());
            continue;
        }
        if start > at {
            segments.gaps.push((i, visible(&text[at..start]).into_owned()));
        }
        segments.tokens.push(visible(&text[start..end]).into_owned());
        at = end;
    }
    if at < text.len() {
        segments.gaps.push((offsets.len(), visible(&text[at..]).into_owned()));
    }
    segments
}

/// The first place from `at` on where the text can be cut.
fn cut_at(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(segments: &Segments) -> String {
        let mut text = String::new();
        for i in 0..=segments.tokens.len() {
            text.extend(segments.gaps.iter().filter(|(before, _)| *before == i).map(|(_, gap)| gap.as_str()));
            text += segments.tokens.get(i).map_or("", String::as_str);
        }
        text
    }

    #[test]
    fn tokens_without_text_and_gaps_keep_their_places() {
        let cut = segments("ab é c", &[[0, 2], [2, 2], [3, 5], [6, 6]]);
        assert_eq!(cut.tokens, ["ab", "", "é", ""]);
        assert_eq!(cut.gaps, [(2, " ".to_owned()), (4, " c".to_owned())]);
        assert_eq!(segments("x", &[]).gaps, [(0, "x".to_owned())]);
        assert_eq!(segments("", &[[0, 0]]), Segments { tokens: vec![String::new()], gaps: vec![] });
        assert_eq!(segments("a\u{202e}\0", &[[0, 5]]).tokens, ["a\u{fffd}␀"]);
    }

    proptest! {
        #[test]
        fn no_text_is_lost_or_doubled(text in "[a-c é家\u{301}]{0,12}", offsets in proptest::collection::vec([0usize..40, 0usize..40], 0..8)) {
            let cut = segments(&text, &offsets);
            prop_assert_eq!(cut.tokens.len(), offsets.len());
            prop_assert_eq!(joined(&cut), text);
        }
    }
}
