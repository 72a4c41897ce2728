//! Answers that are a number.

use super::expression::parse;
use super::latex::clean;
use super::rational::Rational;
use super::text::digits;
use super::vocabulary::{FRACTIONS, SMALL_NUMBERS, TENS, is_unit_letter, multiplier};
use super::words;
use crate::uq::answer::pattern;

/// Whether two numbers are equal; `50%` is 50 and also 0.5.
pub(super) fn equal(answer: &str, target: &str) -> bool {
    let (Some((a, a_percent)), Some((b, b_percent))) = (number(answer), number(target)) else {
        return normal_form(answer) == normal_form(target);
    };
    let (percent, plain) = if a_percent { (a, b) } else { (b, a) };
    let hundredth = || percent.mul(Rational::new(1, 100)?);
    a == b || (a_percent != b_percent && hundredth() == Some(plain))
}

/// The value as a fraction in lowest terms; for a non-number, its words.
pub(super) fn normal_form(answer: &str) -> String {
    number(answer).map_or_else(|| words::normal_form(answer), |(value, _)| value.to_string())
}

/// A number, and whether it is a percentage.
fn number(answer: &str) -> Option<(Rational, bool)> {
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
    Some((value, clean.percent))
}

/// Factor from the words after a number: 1, or a million; `None` if they change it: `i`, `and a half`.
fn multiplied_by(words: &str) -> Option<Rational> {
    let plain = words.replace("\\text{", " ").replace('}', " ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    let first = words.first().copied().unwrap_or_default();
    let is_variable = |c: char| c.is_alphabetic() && !is_unit_letter(c);
    let variable = words.len() == 1 && first.chars().count() == 1 && first.starts_with(is_variable);
    let fraction = first == "and" && words.iter().any(|word| FRACTIONS.contains(word));
    let formula = plain.contains(['+', '*', '=']);
    (!variable && !fraction && !formula).then(|| multiplier(first).unwrap_or(Rational::ONE))
}

/// The number in a text and the words after it; `None` if these contain another number.
fn numeral(text: &str) -> Option<(&str, &str)> {
    let starts = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '(' | '[' | '\\' | '⌊' | '|');
    let first_word = text.find(char::is_alphabetic).unwrap_or(text.len());
    let start = match text.find(starts) {
        Some(start) if start < first_word && !text[start..].starts_with("\\text") => start,
        _ => pattern!(r"[-+]*\.?[0-9]").find(text)?.start(),
    };
    let text = &text[start..];
    // commands (`\frac`) and the `e` of `1e5` do not count as words
    let mut parts = pattern!(r"(\\text\b|\p{Alphabetic})|\\[A-Za-z]+|[0-9][eE][-+]?[0-9]").captures_iter(text);
    let (numeral, words) = text.split_at(parts.find_map(|part| Some(part.get(1)?.start())).unwrap_or(text.len()));
    let more = pattern!(r"(?:^|[^\^{\p{Alphabetic}])[0-9]").is_match(words);
    (!more).then(|| (numeral.trim_end_matches([' ', '.', '/', '-']), words))
}

/// The text without commas between a digit and three more.
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
    let mut words = text.split([' ', '-']).peekable();
    let first = words.next()?;
    let value = match TENS.position(first) {
        Some(tens) => {
            let ones = words.peek().and_then(|word| SMALL_NUMBERS.position(word)).filter(|ones| (1..10).contains(ones));
            words.next_if(|_| ones.is_some());
            20 + 10 * tens + ones.unwrap_or_default()
        }
        None => SMALL_NUMBERS.position(first)?,
    };
    // "one hundred", "two thirds", "five or six" say more than this number.
    let larger = |word: &str| multiplier(word).is_some() || word == "dozen" || FRACTIONS.contains(word);
    let more = words.any(|word| SMALL_NUMBERS.contains(word) || TENS.contains(word) || larger(word));
    (!more).then_some(Rational::integer(value as i128))
}
