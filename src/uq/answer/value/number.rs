//! Contents that are a number, and nothing more; numbers in words.

use super::latex::{clean, rewritten, split, without_thousands};
use super::{super::tables::grammar, super::tables::list, expression::measure, expression::parse};
use super::{rational::Rational, vocabulary::multiplier};
use regex::Captures;
use std::ops::Range;

/// The value of a content that is one number, in lowest terms, and whether it is a percentage.
///
/// Whatever equals a number counts: `\sqrt{16}`, `5!`, `3 + 4 = 7`, `f(2) = 7`. Words and units around it are ignored, an aside in
/// brackets too. A content that says more has no value: a bound (`\ge 5`, `at least 5`), two numbers (`a = 3, b = 4`, `5 or 6`),
/// a factor of something else (`2\pi`, `3x`).
pub(crate) fn number(content: &str) -> Option<(Rational, bool)> {
    let (text, percent) = clean(content)?;
    if text.contains(['<', '>', '≤', '≥', '≠', '±', '∓', '≡']) {
        return None;
    }
    // asides in brackets, and the half of the day
    let ignored = pattern!(r"(?i) \([^()]*\)$| ?\([^()]*\p{L}{2}[^()]*\)| ?(?:\\text\{ ?)?\b[ap]\.? ?m\b\.?(?: ?\})?$");
    let text = ignored.replace_all(&text, "");
    let digits = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    let text = if digits(&text) { text.into_owned() } else { in_digits(&text) };
    let text = rewritten("number", &text); // `3 and 1/2`
    let text = with_words(&without_thousands(&text));
    let mut parts = split(&text, &[',', ';']).into_iter().filter(|part| digits(part));
    let (only, None) = (parts.next()?, parts.next()) else { return None };
    let sides = split(only, &['=', '≈']);
    let (value, names) = sides.split_last()?;
    if names.iter().any(|name| name.contains("\\text{or}") || name.contains("\\text{and}")) {
        return None; // `x = 3 or x = 4`
    }
    Some((parse(value)?.as_rational()?, percent))
}

/// The measure of a content that is a number with a known unit, in base units; contents of different measures are different.
pub(crate) fn quantity(content: &str) -> Option<String> {
    let text = with_words(&without_thousands(&clean(content)?.0));
    // `2 hours and 30 minutes`, not `3 cm and 4 cm`
    let and = pattern!(r"(\\text\{([^}]*)\})( ?(?:\\text\{and\}|,) ?)([0-9.]+ ?\\text\{([^}]*)\})");
    let joined = |found: &Captures| [&found[1], if found[2] == found[5] { &found[3] } else { " " }, &found[4]].concat();
    let text = and.replace_all(&text, joined);
    measure(split(&text, &['=', '≈']).last()?)
}

/// A text whose words are in `\text{…}`, one by one. Single letters are variables, but for a unit's after a number.
fn with_words(text: &str) -> String {
    let marked = |found: &Captures| match (found.name("words"), found.name("unit")) {
        (Some(words), _) => format!("\\text{{{}}}", words.as_str()),
        (_, Some(unit)) => format!("{}\\text{{{}}}", &found["number"], unit.as_str()),
        _ => match found[0].strip_prefix("\\text{") {
            Some(words) => words.trim_end_matches('}').split(' ').map(|word| format!("\\text{{{word}}}")).collect(),
            None => found[0].to_owned(),
        },
    };
    grammar("words in a formula").replace_all(text, marked).into_owned()
}

/// The numbers in words in a text and their values: `twenty-one`, `two hundred and five`, `two and a half`, `three quarters`,
/// `five point two`. Words that make no number (`one two`) are left out.
pub(crate) fn spoken(text: &str) -> impl Iterator<Item = (Range<usize>, Rational)> {
    grammar("number in words").find_iter(text).filter_map(|found| {
        let plain =
            found.as_str().to_lowercase().replace("halves", "halfs").replace("fourth", "quarter").replace('-', " ");
        let words: Vec<&str> = plain.split_whitespace().collect();
        Some((found.range(), value(Some(&words).filter(|words| words.len() < 40)?)?))
    })
}

/// A text with the digits of its numbers in words, and without `\text`.
fn in_digits(text: &str) -> String {
    let text = &*pattern!(r"\\text\{([^}]*)\}").replace_all(text, " $1 ");
    let (mut digits, mut from) = (String::new(), 0);
    for (range, value) in spoken(text) {
        digits.push_str(&text[from..range.start]);
        digits.push_str(&if value.whole().is_some() { value.to_string() } else { format!("({value})") });
        from = range.end;
    }
    rewritten("sign", &(digits + &text[from..]))
}

fn value(words: &[&str]) -> Option<Rational> {
    let (one, whole) = (Rational::ONE, |number: usize| Rational::integer(number as i128));
    let singular = |word: &str| word.strip_suffix('s').unwrap_or(word).to_owned();
    let place = |of, word: &str| list(of).iter().position(|known| *known == word);
    let (last, before) = words.split_last()?;
    if let ["minus" | "negative", number @ ..] = words {
        return value(number)?.mul(Rational::integer(-1));
    }
    // `half`, `three quarters`, `two and a half`; `one fifth` and `two fifths`, not `twenty fifth`
    if let Some(part) = place("parts", &singular(last)) {
        let and = before.iter().rposition(|word| *word == "and");
        let (number, parts) =
            and.map_or((Some(Rational::ZERO), before), |at| (value(&before[..at]), &before[at + 1..]));
        let parts = if parts.is_empty() && part == 0 { one } else { value(parts)? };
        let fits = (parts == one) != last.ends_with('s');
        return number?.add(parts.mul(Rational::new(fits.then_some(1)?, part as i128 + 2)?)?);
    }
    // `two hundred and five`, `half a million`: the largest factor, what it multiplies, what is added
    let factor = |at: usize| Some((multiplier(&singular(words[at]))?.whole()?, at));
    if let Some((factor, at)) =
        (0..words.len()).filter_map(factor).max_by_key(|(factor, at)| (*factor, words.len() - at))
    {
        let of = words[..at].strip_suffix(&["a"]).filter(|of| !of.is_empty()).unwrap_or(&words[..at]);
        let of = if of.is_empty() { one } else { value(of)? };
        let more = words[at + 1..].strip_prefix(&["and"]).unwrap_or(&words[at + 1..]);
        let more = if more.is_empty() { Rational::ZERO } else { value(more)? };
        let fits = more.to_f64() < factor as f64 && (factor != 100 || of.to_f64() < 100.0);
        return of.mul(Rational::integer(fits.then_some(factor)?))?.add(more);
    }
    if let Some(at) = words.iter().position(|word| *word == "point") {
        let digit = |word: &&str| Some(place("small", word).filter(|digit| *digit < 10)?.to_string());
        let decimals: String = words[at + 1..].iter().map(digit).collect::<Option<_>>()?;
        return Rational::decimal(&format!("{}.{decimals}", value(&words[..at])?));
    }
    match words {
        ["a" | "an"] => Some(one),
        [number] => place("small", number).or_else(|| Some(20 + 10 * place("tens", number)?)).map(whole),
        [ten, digit] => {
            let digit = place("small", digit).filter(|digit| (1..10).contains(digit))?;
            Some(whole(20 + 10 * place("tens", ten)? + digit))
        }
        _ => None,
    }
}
