//! Pieces of a formula in braces.

use super::rational::Rational;

/// The inside of the braces that a text starts with, and what follows them.
pub(super) fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&text[1..at], &text[at + 1..]));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The digits that a decimal repeats, and what follows them: `\overline{3}`, `\bar 3`, `\dot{1}4\dot{2}`, `(3)`.
pub(super) fn period(text: &str) -> Option<(String, &str)> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let argument = |text: &'_ str| -> Option<(String, usize)> {
        let inner = text.trim_start();
        let before = text.len() - inner.len();
        let braced = inner.strip_prefix('{').and_then(|inside| inside.split_once('}')).map(|(inside, _)| inside);
        let (period, length) = braced.map_or((inner.get(..1)?, 1), |inside| (inside.trim(), inside.len() + 2));
        (!period.is_empty() && digits(period) == period.len()).then(|| (period.to_owned(), before + length))
    };
    if let Some(rest) = text.strip_prefix("\\overline").or_else(|| text.strip_prefix("\\bar")) {
        let (period, length) = argument(rest)?;
        return Some((period, &rest[length..]));
    }
    if let Some(rest) = text.strip_prefix('(') {
        let (period, rest) = rest.split_once(')')?;
        return (!period.is_empty() && digits(period) == period.len()).then(|| (period.to_owned(), rest));
    }
    let rest = text.strip_prefix("\\dot")?;
    let (first, length) = argument(rest)?;
    let rest = &rest[length..];
    let (between, after) = rest.split_at(digits(rest));
    match after.strip_prefix("\\dot").map(|last| (argument(last), last)) {
        Some((Some((last, length)), text)) => Some((first + between + &last, &text[length..])),
        Some((None, _)) => None,
        None => between.is_empty().then_some((first, after)),
    }
}

/// A proper fraction of whole numbers that follows a whole number, and what comes after it.
pub(super) fn proper_fraction(text: &str) -> Option<(Rational, &str)> {
    let inner = text.trim_start();
    let (above, below, rest) = if let Some(arguments) = inner.strip_prefix("\\frac") {
        let argument = |text: &'_ str| -> Option<(String, usize)> {
            let start = text.len() - text.trim_start().len();
            match text[start..].chars().next()? {
                '{' => group(&text[start..]).map(|(inside, _)| (inside.trim().to_owned(), start + inside.len() + 2)),
                c if c.is_ascii_digit() => Some((c.to_string(), start + 1)),
                _ => None,
            }
        };
        let (above, length) = argument(arguments)?;
        let arguments = &arguments[length..];
        let (below, length) = argument(arguments)?;
        (above, below, &arguments[length..])
    } else {
        if inner.len() == text.len() {
            return None; // digits without a space belong to the number before
        }
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (above, rest) = inner.split_at(digits(inner));
        let rest = rest.strip_prefix('/')?;
        let (below, rest) = rest.split_at(digits(rest));
        (above.to_owned(), below.to_owned(), rest)
    };
    let (above, below): (u32, u32) = (above.parse().ok()?, below.parse().ok()?);
    let proper = 0 < above && above < below && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '/' || c == '.');
    proper.then_some((Rational::new(above.into(), below.into())?, rest))
}
