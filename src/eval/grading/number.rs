//! Answers that are a number.

use super::expression::parse;
use super::latex::clean;
use super::rational::Rational;
use super::vocabulary::{is_unit_letter, multiplier};
use super::words;

/// Words for parts of one.
const FRACTIONS: [&str; 6] = ["half", "halves", "third", "thirds", "quarter", "quarters"];

/// A number, and whether a percent sign was there.
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

/// The value as a fraction in lowest terms; of what is no number, its words.
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

/// What the words after a number multiply it with: 1, or a million; `None` where they say more: `i`, `and a half`.
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

/// The part of a text that is its number, without the words before it, and the words after it, if they hold no other
/// number.
fn numeral(text: &str) -> Option<(&str, &str)> {
    let starts = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '(' | '[' | '\\' | '⌊' | '|');
    let first_word = text.find(char::is_alphabetic).unwrap_or(text.len());
    let start = match text.find(starts) {
        Some(start) if start < first_word && !text[start..].starts_with("\\text") => start,
        _ => text.find(|c: char| c.is_ascii_digit()).map(|digit| sign_before(text, digit))?,
    };
    let text = &text[start..];
    let end = word_start(text).unwrap_or(text.len());
    let mut rest = text[end..].chars().scan(' ', |before, c| Some((std::mem::replace(before, c), c)));
    let more =
        rest.any(|(before, c)| c.is_ascii_digit() && !(before == '^' || before == '{' || before.is_alphabetic()));
    (!more).then(|| (text[..end].trim_end_matches([' ', '.', '/', '-']), &text[end..]))
}

/// Where the sign or the point before a digit is.
fn sign_before(text: &str, digit: usize) -> usize {
    let before = text[..digit].strip_suffix('.').unwrap_or(&text[..digit]);
    before.trim_end_matches(['-', '+']).len()
}

/// Where the words after a number start; commands for fractions, roots and powers of ten are no words.
fn word_start(text: &str) -> Option<usize> {
    let mut letters = text.char_indices().filter(|(_, c)| c.is_alphabetic()).map(|(at, _)| at);
    letters.find_map(|at| {
        let before = &text[..at];
        let command = before.rfind('\\').filter(|start| before[start + 1..].chars().all(|c| c.is_ascii_alphabetic()));
        let name =
            |start: usize| text[start + 1..].split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
        match command {
            Some(start) if name(start) == "text" => Some(start),
            Some(_) => None,
            None if is_exponent(text, at) => None,
            None => Some(at),
        }
    })
}

/// Whether the letter is the `e` of `1e5`.
fn is_exponent(text: &str, at: usize) -> bool {
    let after = text[at..].strip_prefix(['e', 'E']).map(|rest| rest.strip_prefix(['-', '+']).unwrap_or(rest));
    text[..at].ends_with(|c: char| c.is_ascii_digit())
        && after.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// A text without the commas that stand between a digit and three more.
fn without_commas(text: &str) -> String {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let separates = |at: usize| at > 0 && bytes[at - 1].is_ascii_digit() && digits(at + 1) == 3;
    text.char_indices().filter(|(at, c)| *c != ',' || !separates(*at)).map(|(_, c)| c).collect()
}

/// Of a number in words, up to ninety-nine.
fn in_words(text: &str) -> Option<Rational> {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
    if text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = words::normal_form(text);
    let words: Vec<&str> = text.split([' ', '-']).collect();
    let place = |list: &[&str], word: &str| list.iter().position(|known| *known == word);
    let first = words.first()?;
    let (value, length) = match (place(&TENS, first), words.get(1).and_then(|word| place(&SMALL[1..10], word))) {
        (Some(tens), Some(ones)) => (20 + 10 * tens + ones + 1, 2),
        (Some(tens), None) => (20 + 10 * tens, 1),
        (None, _) => (place(&SMALL, first)?, 1),
    };
    // "one hundred", "two thirds", "five or six" say more than this reads.
    let larger = |word: &str| multiplier(word).is_some() || word == "dozen" || FRACTIONS.contains(&word);
    let more = |word: &&str| place(&SMALL, word).is_some() || place(&TENS, word).is_some() || larger(word);
    (!words[length..].iter().any(more)).then(|| i128::try_from(value).ok().map(Rational::integer))?
}
