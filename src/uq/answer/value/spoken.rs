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
    run.find_iter(text).filter_map(|found| Some((found.range(), value(&found.as_str().to_lowercase())?)))
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

fn value(words: &str) -> Option<Rational> {
    let words = words.replace("halves", "halfs").replace("fourth", "quarter");
    let words: Vec<&str> =
        words.split(|c: char| c == '-' || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let singular = |word: &str| word.strip_suffix('s').unwrap_or(word).to_owned();
    let part = |word: &str| list("parts").iter().position(|part| *part == singular(word));
    let number = |of, word: &str| list(of).iter().position(|number| *number == word);
    match words.as_slice() {
        ["minus" | "negative", rest @ ..] => return value(&rest.join(" "))?.mul(Rational::integer(-1)),
        // `half a million`, `two and a half thousand`
        [before @ .., large]
            if before.iter().any(|word| part(word).is_some()) && multiplier(&singular(large)).is_some() =>
        {
            let before = before.strip_suffix(&["a"]).unwrap_or(before);
            return value(&before.join(" "))?.mul(multiplier(&singular(large))?);
        }
        _ => {}
    }
    let (mut total, mut group, mut smallest) = (Rational::ZERO, None, Rational::integer(i128::MAX));
    for (at, word) in words.iter().enumerate() {
        let small = number("small", word).or_else(|| Some(20 + 10 * number("tens", word)?));
        if let Some(small) = small {
            // `twenty one` and `two hundred five`, not `one two`
            let fits = |before: &usize| {
                *before > 0
                    && (before.is_multiple_of(100) || (before.is_multiple_of(10) && before % 100 > 10 && small < 10))
            };
            group = Some(group.map_or(Some(0), |before| Some(before).filter(fits))? + small);
        } else if *word == "and" {
            // `two and a half`, not `two hundred and five`
            if words.last().is_some_and(|last| part(last).is_some()) {
                total = total.add(Rational::integer(group.take()? as i128))?;
            }
        } else if *word == "point" {
            let digit = |word: &&str| Some(number("small", word).filter(|digit| *digit < 10)?.to_string());
            let decimals: String = words[at + 1..].iter().map(digit).collect::<Option<_>>()?;
            return total.add(Rational::decimal(&format!("{}.{decimals}", group?))?);
        } else if matches!(*word, "a" | "an") {
            group = Some(group.is_none().then_some(1)?);
        } else if *word == "hundred" {
            group = Some(100 * Some(group.unwrap_or(1)).filter(|before| *before < 100)?);
        } else if let Some(part) = part(word) {
            let parts = group.or((words.len() == 1).then_some(1).filter(|_| part == 0))?;
            // `one fifth` and `two fifths`, not `twenty fifth`
            let fits = (parts == 1) != word.ends_with('s');
            return total.add(Rational::new(fits.then_some(parts as i128)?, part as i128 + 2)?);
        } else {
            let factor = multiplier(&singular(word)).filter(|factor| *factor < smallest)?;
            total = total.add(Rational::integer(group.take().unwrap_or(1) as i128).mul(factor)?)?;
            smallest = factor;
        }
    }
    total.add(Rational::integer(group.unwrap_or(0) as i128))
}
