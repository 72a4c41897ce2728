//! Pieces of a formula: digits, groups in braces, repeating decimals, fractions.

use super::rational::Rational;

/// An argument under TeX's rules: digits in braces, or a single digit.
const TEX: &str = r"\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))";

/// Number of ASCII digits at the start of a text.
pub(super) fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// The ASCII letters at the start of a text.
pub(super) fn letters(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_alphabetic).count()]
}

/// Takes the first character off a text.
pub(super) fn take_char(text: &mut &str) -> Option<char> {
    let mut chars = text.chars();
    let first = chars.next();
    *text = chars.as_str();
    first
}

/// Content of the braces at the start of a text, and the text after them.
pub(crate) fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let closes = |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    };
    let end = text.find(closes).filter(|_| text.starts_with('{'))?;
    Some((&text[1..end], &text[end + 1..]))
}

/// Period of a repeating decimal, and the text after it: `\overline{3}`, `\bar 3`, `\dot{1}4\dot{2}`, `(3)`.
pub(super) fn period(text: &str) -> Option<(String, &str)> {
    let pattern =
        pattern!(r"^(?:\\(?:overline|bar)", TEX, r"|\(([0-9]+)\)|\\dot", TEX, r"(?:([0-9]*)\\dot", TEX, ")?)");
    let found = pattern.captures(text)?;
    let rest = &text[found[0].len()..];
    let open = found[0].matches("\\dot").count() == 1;
    if open && (digits(rest) > 0 || rest.starts_with("\\dot")) {
        return None;
    }
    Some((found.iter().skip(1).flatten().map(|part| part.as_str()).collect(), rest))
}

/// Proper fraction after a whole number (`\frac{1}{2}`, ` 1/2`), and the text after it.
pub(super) fn proper_fraction(text: &str) -> Option<(Rational, &str)> {
    let pattern = pattern!(r"^(?:\s*\\frac", TEX, TEX, r"|\s+([0-9]+)/([0-9]+))");
    let found = pattern.captures(text)?;
    let mut parts = found.iter().skip(1).flatten().map(|part| part.as_str().parse::<u32>());
    let (above, below) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let rest = &text[found[0].len()..];
    let proper = 0 < above && above < below && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '/' || c == '.');
    proper.then_some((Rational::new(above.into(), below.into())?, rest))
}

/// Splits at separators outside brackets and LaTeX environments.
pub(crate) fn split<'a>(text: &'a str, separators: &[char]) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '\\' if text[at..].starts_with("\\begin") => depth += 1,
            '\\' if text[at..].starts_with("\\end") => depth -= 1,
            _ if depth == 0 && separators.contains(&c) => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => depth += nesting(c),
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Change of the bracket depth at a character.
pub(crate) fn nesting(c: char) -> i32 {
    i32::from(matches!(c, '(' | '[' | '{' | '⟨')) - i32::from(matches!(c, ')' | ']' | '}' | '⟩'))
}
