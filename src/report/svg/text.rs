//! How wide a text is going to be, without fonts: an estimate, on the wide side, for common sans-serif fonts.

use crate::report::term::sanitize;

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

/// The text cut to `max` units, with an ellipsis where something is missing.
pub fn cut(text: &str, size: f64, max: f64) -> String {
    if width(text, size) <= max {
        return text.to_owned();
    }
    let mut used = width("…", size);
    let fits = |c: &char| {
        used += em(*c) * size;
        used <= max
    };
    let mut short: String = text.chars().take_while(fits).collect();
    short.push('…');
    short
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

/// A number for a person: three decimals, fewer for large ones; a dash where there is none.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if !a.is_finite() => "–".to_owned(),
        a if a >= 1e6 => format!("{x:.1e}"),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
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
    fn numbers_are_short() {
        let numbers = [0.12345, -0.5, 12.345, 1234.5, 1e9, f64::NAN].map(number);
        assert_eq!(numbers, ["0.123", "-0.500", "12.3", "1234", "1.0e9", "–"]);
    }
}
