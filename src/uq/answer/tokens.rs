//! Maps a position in the text to tokens of the response.

use std::ops::Range;

/// Tokens from the first to the last that share a byte with `span`; `offsets[i]` is token i's byte range in the text.
///
/// `None` if no token does, as for an empty span.
pub fn tokens_of_span(offsets: &[Range<usize>], span: &Range<usize>) -> Option<Range<usize>> {
    let overlaps = |token: &Range<usize>| token.start.max(span.start) < token.end.min(span.end);
    let first = offsets.iter().position(overlaps)?;
    let last = offsets.iter().rposition(overlaps)?;
    Some(first..last + 1)
}

/// Tokens of a span for the `reference` profile, whose authors look up the span's ends among the ranges of individually
/// decoded tokens. `span` is in bytes of `text`; everything inside counts characters, as their code does.
///
/// An end on the boundary of two tokens belongs to the first of them that contains or touches it.
pub fn tokens_of_span_reference(token_texts: &[String], text: &str, span: &Range<usize>) -> Option<Range<usize>> {
    let chars_before = |byte: usize| text.char_indices().take_while(|(at, _)| *at < byte).count();
    let (span_start, span_end) = (chars_before(span.start), chars_before(span.end));
    let (mut start, mut end) = (None, None);
    for (i, token) in token_ranges(token_texts, text).into_iter().enumerate() {
        if token.start <= span_start && span_start < token.end {
            start = Some(i);
        }
        if token.start <= span_end && span_end <= token.end {
            end = Some(i + 1);
        }
        if let (Some(start), Some(end)) = (start, end) {
            return Some(start..end);
        }
    }
    None
}

/// Range of every token in characters of `text`.
///
/// A token that is not found (part of a character, decoded to U+FFFD) is placed after the previous one with its own
/// length; guessing ends at the next token found after the last found one, so guessed ranges may overlap others.
fn token_ranges(token_texts: &[String], text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity(token_texts.len());
    let (mut cursor, mut cursor_chars) = (0, 0); // end of the last found token, in bytes and in characters
    let mut previous_end = 0;
    for token in token_texts {
        let length = token.chars().count();
        let range = match find_token(&text[cursor..], token) {
            Some(skipped) => {
                let start = cursor_chars + text[cursor..cursor + skipped].chars().count();
                cursor += skipped + token.len();
                cursor_chars = start + length;
                start..cursor_chars
            }
            None => previous_end..previous_end + length,
        };
        previous_end = range.end;
        ranges.push(range);
    }
    ranges
}

/// Position of a token in the rest of the text. U+FFFD stands for lost bytes: it matches only directly at the start.
fn find_token(rest: &str, token: &str) -> Option<usize> {
    let lost = token.contains(char::REPLACEMENT_CHARACTER);
    if lost { rest.starts_with(token).then_some(0) } else { rest.find(token) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_tokens_it_touches() {
        let offsets = [0..3, 3..3, 3..5, 5..9];
        assert_eq!(tokens_of_span(&offsets, &(4..6)), Some(2..4));
        assert_eq!(tokens_of_span(&offsets, &(3..5)), Some(2..3));
        assert_eq!(tokens_of_span(&offsets, &(0..9)), Some(0..4));
        assert_eq!(tokens_of_span(&offsets, &(8..20)), Some(3..4));
        assert_eq!(tokens_of_span(&offsets, &(4..4)), None);
        assert_eq!(tokens_of_span(&offsets, &(9..12)), None);
        assert_eq!(tokens_of_span(&[], &(0..1)), None);
    }

    #[test]
    fn the_reference_maps_characters_to_tokens() {
        let tokens = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let of = |texts: &[&str], text: &str, span: Range<usize>| tokens_of_span_reference(&tokens(texts), text, &span);
        assert_eq!(of(&["is", " 1", "2", "."], "is 12.", 3..5), Some(1..3));
        assert_eq!(of(&["is", " 1", "2", "."], "is 12.", 2..3), Some(1..2));
        assert_eq!(of(&["is"], "is", 2..2), None);
        assert_eq!(of(&[], "", 0..0), None);
        // characters, not bytes
        assert_eq!(of(&["é", "ü", "1"], "éü1", 4..5), Some(2..3));
        // one character in three tokens: each is guessed to be one character long, until the text is found again
        let parts = ["a", "\u{fffd}", "\u{fffd}", "\u{fffd}", " 7", "!"];
        assert_eq!(of(&parts, "a🙂 7!", 7..8), Some(5..6));
        // a guess on the span comes first and wins
        assert_eq!(of(&parts, "a🙂 7!", 6..7), Some(3..4));
        assert_eq!(of(&parts, "a🙂 7!", 1..5), Some(1..2));
        // a guess that only overlaps its start is overruled by the token found there
        let parts = ["a", "\u{fffd}\u{fffd}", "7", "8"];
        assert_eq!(of(&parts, "aé78", 3..5), Some(2..4));
        // U+FFFD in the text itself, and a token that lost its space
        assert_eq!(of(&["\u{fffd}", "7"], "\u{fffd}7", 3..4), Some(1..2));
        assert_eq!(of(&["a", "cat", "sat"], "a cat sat", 2..5), Some(1..2));
    }
}
