//! Numbers in words.

use super::latex::signed;
use super::rational::Rational;
use super::vocabulary::{list, multiplier, multipliers};
use std::ops::Range;

/// The numbers in words in a text and their values: `twenty-one`, `two hundred and five`, `two and a half`, `three quarters`,
/// `five point two`. Words that make no number (`one two`) are left out.
pub(crate) fn spoken(text: &str) -> impl Iterator<Item = (Range<usize>, Rational)> {
    let run = pattern!({
        let large = multipliers().collect::<Vec<_>>().join("s?|") + "s?";
        let small = [list("small"), list("tens")].concat().join("|");
        let part = format!("(?:{}|fourth)s?|halves", list("parts").join("|"));
        let one = format!(r"an?[\s-]+(?:{large}|{part})|{small}|{large}");
        format!(
            r"(?i)\b(?:(?:minus|negative)\s+)?(?:{one}|half)(?:[\s-]+(?:and[\s-]+|point[\s-]+)?(?:{one}|{part}))*\b"
        )
    });
    run.find_iter(text).filter_map(|found| {
        let plain =
            found.as_str().to_lowercase().replace("halves", "halfs").replace("fourth", "quarter").replace('-', " ");
        Some((found.range(), value(&plain.split_whitespace().collect::<Vec<_>>())?))
    })
}

/// A text with the digits of its numbers in words, and without `\text`.
pub(super) fn in_digits(text: &str) -> String {
    let text = &*pattern!(r"\\text\{([^}]*)\}").replace_all(text, " $1 ");
    let (mut digits, mut from) = (String::new(), 0);
    for (range, value) in spoken(text) {
        digits.push_str(&text[from..range.start]);
        digits.push_str(&if value.whole().is_some() { value.to_string() } else { format!("({value})") });
        from = range.end;
    }
    signed(&(digits + &text[from..])).into_owned()
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
