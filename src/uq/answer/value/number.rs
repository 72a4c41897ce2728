//! Contents that are a number, and nothing more.

use super::expression::{measure, parse};
use super::latex::{clean, without_thousands};
use super::rational::Rational;
use super::spoken::in_digits;
use super::text::split;
use super::vocabulary::{is_unit_letter, list};
use regex::Captures;

/// The value of a content that is one number, in lowest terms, and whether it is a percentage.
///
/// Whatever equals a number counts: `\sqrt{16}`, `5!`, `3 + 4 = 7`, `f(2) = 7`. Words and units around it are ignored, an aside in
/// brackets too. A content that says more has no value: a bound (`\ge 5`, `at least 5`), two numbers (`a = 3, b = 4`, `5 or 6`),
/// a factor of something else (`2\pi`, `3x`).
pub(crate) fn number(content: &str) -> Option<(Rational, bool)> {
    let clean = clean(content)?;
    if clean.text.contains(['<', '>', '≤', '≥', '≠', '±', '∓', '≡']) {
        return None;
    }
    // asides in brackets, and the half of the day
    let ignored = pattern!(r"(?i) \([^()]*\)$| ?\([^()]*\p{L}{2}[^()]*\)| ?(?:\\text\{ ?)?\b[ap]\.? ?m\b\.?(?: ?\})?$");
    let text = ignored.replace_all(&clean.text, "");
    let digits = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    let text = if digits(&text) { text.into_owned() } else { in_digits(&text) };
    let text = pattern!(r"([0-9]) ?(?:\\text\{)?and\}? ?([0-9]+/[0-9]+)").replace_all(&text, "$1 $2"); // `3 and 1/2`
    let text = with_words(&without_thousands(&text));
    let mut parts = split(&text, &[',', ';']).into_iter().filter(|part| digits(part));
    let (only, None) = (parts.next()?, parts.next()) else { return None };
    let sides = split(only, &['=', '≈']);
    let (value, names) = sides.split_last()?;
    if names.iter().any(|name| name.contains("\\text{or}") || name.contains("\\text{and}")) {
        return None; // `x = 3 or x = 4`
    }
    Some((parse(value)?.as_rational()?, clean.percent))
}

/// The measure of a content that is a number with a known unit, in base units; contents of different measures are different.
pub(crate) fn quantity(content: &str) -> Option<String> {
    let text = with_words(&without_thousands(&clean(content)?.text));
    // `2 hours and 30 minutes`, not `3 cm and 4 cm`
    let and = pattern!(r"\\text\{([^}]*)\} ?(?:\\text\{and\}|,) ?([0-9.]+ ?\\text\{([^}]*)\})");
    let joined = |found: &Captures| match found[1] == found[3] {
        true => found[0].to_owned(),
        false => format!("\\text{{{}}} {}", &found[1], &found[2]),
    };
    let text = and.replace_all(&text, joined);
    measure(split(&text, &['=', '≈']).last()?)
}

/// A text whose words are in `\text{…}`, one by one. Single letters are variables, but for a unit's after a number.
fn with_words(text: &str) -> String {
    let words = pattern!(
        r"(?P<kept>\\text\{[^}]*\}|\\[A-Za-z]+|[0-9][eE][-+]?[0-9])|(?P<number>[0-9] ?|\} )(?P<unit>[A-Za-zΩ])\b|",
        r"(?P<words>(?:\b[aAI] )?[\p{L}--\p{Greek}][’'-]?\p{L}[\p{L}’'-]*|[\p{L}--[\p{Greek}A-Za-z]])[:.]?"
    );
    let marked = |found: &Captures| {
        let part = |name: &str| found.name(name).map(|part| part.as_str());
        match (part("words"), part("number").zip(part("unit"))) {
            (Some(words), _)
                if !list("functions").contains(&words) && !matches!(words, "sqrt" | "pi" | "inf" | "infinity") =>
            {
                format!("\\text{{{words}}}")
            }
            (_, Some((number, unit))) if unit.starts_with(is_unit_letter) => format!("{number}\\text{{{unit}}}"),
            _ => match found[0].strip_prefix("\\text{") {
                Some(words) => words.trim_end_matches('}').split(' ').map(|word| format!("\\text{{{word}}}")).collect(),
                None => found[0].to_owned(),
            },
        }
    };
    words.replace_all(text, marked).into_owned()
}
