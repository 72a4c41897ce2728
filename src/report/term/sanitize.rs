//! Text from a model or a file, sanitized for a terminal: it stays readable, but cannot move the cursor, change
//! colours or titles, or reverse the direction of the text that follows.

use std::borrow::Cow;
use unicode_width::UnicodeWidthChar;

/// Replaces every character that a terminal would interpret; newlines and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| stand_in(c).is_none()) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| stand_in(c).unwrap_or(c)).collect())
}

/// [`visible`] on one line: in a table or a progress line, a newline could forge a row.
pub fn one_line(text: &str) -> String {
    visible(text).replace(['\n', '\t'], " ")
}

/// JSON without characters that a terminal or an editor interprets: each is written as its escape, so that the
/// parsed content is the same.
pub fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match stand_in(c) {
            Some(_) => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}")),
            None => escaped.push(c),
        }
    }
    escaped
}

/// Replacement for a character that must not reach the terminal; `None` if it may.
pub fn stand_in(c: char) -> Option<char> {
    match c {
        '\n' | '\t' => None,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32), // control pictures: ␛ for escape
        '\u{7f}' => Some('␡'),
        // C1 controls, bidirectional marks and overrides, line separators, invisible tags
        '\u{80}'..='\u{9f}' => Some('�'),
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => Some('�'),
        '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}' => Some('�'),
        _ => None,
    }
}

/// A token's text on one line, quoted to make its spaces visible: `" a\n"`.
pub fn quoted(token: &str) -> String {
    let shown: String = token.chars().map(|c| if c == '\r' { c } else { stand_in(c).unwrap_or(c) }).collect();
    serde_json::Value::from(shown).to_string()
}

/// Width of a character in terminal columns: 0 for combining marks, 2 for East Asian wide ones and emoji.
pub fn width(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// Width in columns of a text without newlines.
pub fn text_width(text: &str) -> usize {
    text.chars().map(width).sum()
}

/// The text cut to `columns` columns, with an ellipsis if truncated.
pub fn cut(text: &str, columns: usize) -> String {
    cut_to(text, columns as f64, |c| width(c) as f64)
}

/// The text cut to `max`, by `width` of each character, with an ellipsis if truncated.
pub fn cut_to(text: &str, max: f64, width: impl Fn(char) -> f64) -> String {
    if text.chars().map(&width).sum::<f64>() <= max {
        return text.to_owned();
    }
    let mut used = width('…');
    let fits = |c: &char| {
        used += width(*c);
        used <= max
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_terminal_acts_upon_gets_through() {
        let shown = visible("a\u{1b}[31mred\u{9b}2J\r\u{7}\u{202e}x\u{7f}\0");
        assert_eq!(shown, "a␛[31mred�2J␍␇�x␡␀");
        assert!(shown.chars().all(|c| !c.is_control()));
        for c in (0..=0xffff).filter_map(char::from_u32).filter(|c| c.is_control() && !"\n\t".contains(*c)) {
            assert!(!visible(&c.to_string()).contains(c), "{c:?}");
        }
    }

    #[test]
    fn ordinary_text_is_not_touched() {
        for text in ["", "x = 3\n\ty", "naïve 家族 👨‍👩‍👧 ½"] {
            assert!(matches!(visible(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn tokens_are_quoted() {
        assert_eq!(quoted(" a\n\t\r\"\\\u{1b}"), r#"" a\n\t\r\"\\␛""#);
    }

    #[test]
    fn a_name_stays_on_its_line() {
        assert_eq!(one_line("a\nb\tc\u{1b}[2J\u{9b}1m\u{202e}"), "a b c␛[2J�1m�");
    }

    #[test]
    fn json_says_the_same_with_nothing_to_act_upon() {
        let text = "\u{1b}[2J \u{9b}1m \u{202e}x \u{e0041} é 家\n";
        let json = serde_json::to_string(text).unwrap();
        let escaped = escaped_json(&json);
        assert!(escaped.contains("\\u009b") && escaped.contains("\\u202e") && escaped.contains("é 家"), "{escaped}");
        assert!(escaped.chars().all(|c| stand_in(c).is_none()));
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }

    #[test]
    fn widths_and_cuts() {
        assert_eq!(text_width("e\u{301}家x"), 4);
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("家家家", 4), "家…");
        assert_eq!(cut("abc", 1), "…");
    }
}
