//! Numbers in words.

use super::rational::Rational;
use super::vocabulary::{Words, multiplier};
use std::borrow::Cow;
use std::ops::Range;

const SMALL: Words = Words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen \
     eighteen nineteen",
);
const TENS: Words = Words("twenty thirty forty fifty sixty seventy eighty ninety");
/// Parts of one, from halves on.
const PARTS: Words = Words("half third quarter fifth sixth seventh eighth ninth tenth");

/// The numbers in words in a text and their values: `twenty-one`, `two hundred and five`, `two and a half`, `three quarters`,
/// `five point two`. Words that make no number (`one two`) are left out.
pub(crate) fn spoken(text: &str) -> impl Iterator<Item = (Range<usize>, Rational)> {
    let run = pattern!({
        let either = |words: &[&str]| words.join(" ").replace(' ', "|");
        let (small, large) =
            (either(&[SMALL.0, TENS.0]), "dozens?|hundreds?|thousand|million|billion|trillion|lakh|crore");
        let part = format!("(?:{}|fourth)s?|halves", either(&[PARTS.0]));
        let one = format!(r"an?[\s-]+(?:{large}|{part})|{small}|{large}");
        format!(r"(?i)\b(?:{one}|half)(?:[\s-]+(?:and[\s-]+|point[\s-]+)?(?:{one}|{part}))*\b")
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

/// A text whose `minus` and `negative` before a number are signs, and its `and a half` after one is part of it.
pub(super) fn signed(text: &str) -> Cow<'_, str> {
    let minus = pattern!(r"(?:\\text\{(?i:minus|negative)\}|\b(?i:minus|negative)\b) ?([0-9.($\\])");
    match minus.replace_all(text, "-$1") {
        text if text.contains("and a half") => {
            let half = pattern!(r"([0-9]) ?(?:\\text\{)?and a half\b\}?").replace_all(&text, r"$1\frac{1}{2}");
            Cow::Owned(half.into_owned())
        }
        text => text,
    }
}

fn value(words: &str) -> Option<Rational> {
    let words = words.replace("halves", "halfs").replace("fourth", "quarter");
    let words: Vec<&str> =
        words.split(|c: char| c == '-' || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let singular = |word: &str| word.strip_suffix('s').unwrap_or(word).to_owned();
    let (mut total, mut group, mut smallest) = (Rational::ZERO, None, Rational::integer(i128::MAX));
    for (at, word) in words.iter().enumerate() {
        let small = SMALL.position(word).or_else(|| Some(20 + 10 * TENS.position(word)?));
        if let Some(small) = small {
            // `twenty one` and `two hundred five`, not `one two`
            let fits = |before: &usize| {
                *before > 0
                    && (before.is_multiple_of(100) || (before.is_multiple_of(10) && before % 100 > 10 && small < 10))
            };
            group = Some(group.map_or(Some(0), |before| Some(before).filter(fits))? + small);
        } else if *word == "and" {
            // `two and a half`, not `two hundred and five`
            if words.last().is_some_and(|last| PARTS.contains(&singular(last))) {
                total = total.add(Rational::integer(group.take()? as i128))?;
            }
        } else if *word == "point" {
            let digit = |word: &&str| Some(SMALL.position(word).filter(|digit| *digit < 10)?.to_string());
            let decimals: String = words[at + 1..].iter().map(digit).collect::<Option<_>>()?;
            return total.add(Rational::decimal(&format!("{}.{decimals}", group?))?);
        } else if matches!(*word, "a" | "an") {
            group = Some(group.is_none().then_some(1)?);
        } else if *word == "hundred" {
            group = Some(100 * Some(group.unwrap_or(1)).filter(|before| *before < 100)?);
        } else if let Some(part) = PARTS.position(&singular(word)) {
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
