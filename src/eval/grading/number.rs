//! Answers that are a number.

use super::expression::parse;
use super::latex::clean;
use super::rational::Rational;
use super::text::digits;
use super::vocabulary::{FRACTIONS, SMALL_NUMBERS, TENS, is_unit_letter, multiplier};
use super::words;
use crate::uq::answer::pattern;

/// A number with or without a percent sign.
struct Number {
    value: Rational,
    percent: bool,
}

/// Whether two numbers are equal; `50%` is 50 and also 0.5.
pub(super) fn equal(answer: &str, target: &str) -> bool {
    match (number(answer), number(target)) {
        (Some(a), Some(b)) => {
            let hundredth = |x: &Number| Rational::new(1, 100).and_then(|hundredth| x.value.mul(hundredth));
            a.value == b.value
                || (a.percent && !b.percent && hundredth(&a) == Some(b.value))
                || (b.percent && !a.percent && hundredth(&b) == Some(a.value))
        }
        _ => normal_form(answer) == normal_form(target),
    }
}

/// The value as a fraction in lowest terms; the words of an answer that is no number.
pub(super) fn normal_form(answer: &str) -> String {
    number(answer).map_or_else(|| words::normal_form(answer), |number| number.value.to_string())
}

fn number(answer: &str) -> Option<Number> {
    let clean = clean(answer)?;
    if clean.text.contains(['<', '>', '≤', '≥', '≠']) {
        return None;
    }
    let text = clean.text.rsplit(['=', '≈']).next().unwrap_or_default().trim();
    let text = without_commas(text);
    let value = in_words(&text).or_else(|| {
        let (numeral, words) = numeral(&text)?;
        parse(numeral)?.as_rational()?.mul(multiplied_by(words)?)
    })?;
    Some(Number { value, percent: clean.percent })
}

/// Factor of the words after a number: 1, or a million; `None` where they change it: `i`, `and a half`.
fn multiplied_by(words: &str) -> Option<Rational> {
    let plain = words.replace("\\text{", " ").replace('}', " ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    let first = words.first().copied().unwrap_or_default();
    let variable = match words.as_slice() {
        [word] => word.chars().count() == 1 && word.chars().any(|c| c.is_alphabetic() && !is_unit_letter(c)),
        _ => false,
    };
    let fraction = first == "and" && words.iter().any(|word| FRACTIONS.contains(word));
    let formula = plain.contains(['+', '*', '=']);
    (!variable && !fraction && !formula).then(|| multiplier(first).unwrap_or(Rational::ONE))
}

/// The number of a text and the words after it; `None` if these have another number.
fn numeral(text: &str) -> Option<(&str, &str)> {
    let starts = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '(' | '[' | '\\' | '⌊' | '|');
    let first_word = text.find(char::is_alphabetic).unwrap_or(text.len());
    let start = match text.find(starts) {
        Some(start) if start < first_word && !text[start..].starts_with("\\text") => start,
        _ => pattern!(r"[-+]*\.?[0-9]").find(text)?.start(),
    };
    let text = &text[start..];
    let end = word_start(text).unwrap_or(text.len());
    let mut rest = text[end..].chars().scan(' ', |before, c| Some((std::mem::replace(before, c), c)));
    let more =
        rest.any(|(before, c)| c.is_ascii_digit() && !(before == '^' || before == '{' || before.is_alphabetic()));
    (!more).then(|| (text[..end].trim_end_matches([' ', '.', '/', '-']), &text[end..]))
}

/// Where the words after a number start. Commands (`\frac`) and the `e` of `1e5` are no words.
fn word_start(text: &str) -> Option<usize> {
    let exponent_or_word = pattern!(r"\\text\b|\\[A-Za-z]+|[0-9][eE][-+]?[0-9]|\p{Alphabetic}");
    let found = exponent_or_word
        .find_iter(text)
        .find(|found| found.as_str() == "\\text" || found.as_str().starts_with(char::is_alphabetic))?;
    Some(found.start())
}

/// A text without the commas between a digit and three more.
fn without_commas(text: &str) -> String {
    let separates = |at: usize| text[..at].ends_with(|c: char| c.is_ascii_digit()) && digits(&text[at + 1..]) == 3;
    text.char_indices().filter(|(at, c)| *c != ',' || !separates(*at)).map(|(_, c)| c).collect()
}

/// Value of a number in words, up to ninety-nine.
fn in_words(text: &str) -> Option<Rational> {
    if text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = words::normal_form(text);
    let words: Vec<&str> = text.split([' ', '-']).collect();
    let first = words.first()?;
    let ones = words.get(1).and_then(|word| SMALL_NUMBERS.position(word)).filter(|ones| (1..10).contains(ones));
    let (value, length) = match (TENS.position(first), ones) {
        (Some(tens), Some(ones)) => (20 + 10 * tens + ones, 2),
        (Some(tens), None) => (20 + 10 * tens, 1),
        (None, _) => (SMALL_NUMBERS.position(first)?, 1),
    };
    // "one hundred", "two thirds", "five or six" are more than this number.
    let larger = |word: &str| multiplier(word).is_some() || word == "dozen" || FRACTIONS.contains(word);
    let more = |word: &&str| SMALL_NUMBERS.contains(word) || TENS.contains(word) || larger(word);
    (!words[length..].iter().any(more)).then(|| i128::try_from(value).ok().map(Rational::integer))?
}
