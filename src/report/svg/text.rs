//! Text in a picture: escaped, cut and wrapped. Widths are estimated without fonts, erring on the wide side, for common
//! sans-serif fonts.

use crate::report::term::sanitize;

/// Font size of ticks and legends.
pub const SMALL: f64 = 11.0;

/// Width in units of a text drawn at `size`.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size
}

fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | ' ' => 0.32,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' | '·' => 0.42,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '—' => 0.95,
        'A'..='Z' | '_' | '=' | '<' | '>' | '+' | '×' | '→' | '±' => 0.74,
        c => 0.58 * sanitize::width(c) as f64,
    }
}

/// The text cut to `max` units, with an ellipsis if truncated.
pub fn cut(text: &str, size: f64, max: f64) -> String {
    sanitize::cut_to(text, max / size, em)
}

/// Lines of at most `max` units, broken at spaces; at most `lines` of them, the last one cut.
pub fn wrap(text: &str, size: f64, max: f64, lines: usize) -> Vec<String> {
    let mut wrapped: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let full = wrapped.len() == lines;
        let fits = |line: &String| width(line, size) + width(" ", size) + width(word, size) <= max;
        match wrapped.last_mut().filter(|line| full || fits(line)) {
            Some(line) => *line += &format!(" {word}"),
            None => wrapped.push(word.to_owned()),
        }
    }
    wrapped.iter().map(|line| cut(line, size, max)).collect()
}

/// Escapes and sanitizes text for an element or an attribute.
pub fn escape(text: &str) -> String {
    const NO_CHARACTERS: [char; 2] = ['\u{fffe}', '\u{ffff}']; // in XML
    minijinja::HtmlEscape(&sanitize::visible(text).replace(NO_CHARACTERS, "\u{fffd}")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_and_wrapped_to_their_width() {
        assert_eq!(cut("short", 12.0, 100.0), "short");
        let long = "word ".repeat(40);
        assert!(width(&cut(&long, 12.0, 100.0), 12.0) <= 100.0);
        let lines = wrap(&long, 12.0, 100.0, 2);
        assert_eq!(lines.len(), 2);
        assert!(lines[1].ends_with('…') && lines.iter().all(|line| width(line, 12.0) <= 100.0), "{lines:?}");
        assert!(wrap("", 12.0, 100.0, 2).is_empty());
        assert!(width(&wrap(&"x".repeat(300), 12.0, 100.0, 2)[0], 12.0) <= 100.0, "one long word");
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b>&\"'\u{0}\u{202e}\u{ffff}"), "a&lt;b&gt;&amp;&quot;&#x27;␀\u{fffd}\u{fffd}");
        assert_eq!(escape("plain é 家"), "plain é 家");
    }
}
