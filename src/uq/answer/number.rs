//! Numbers as written by people and models.

use regex::Regex;
use std::ops::Range;

/// A number in a text.
pub(super) struct Number {
    /// Sign, digits, separators, decimals; for a compound (`3/4`, `2^{10}`), all of it.
    pub range: Range<usize>,
    /// Part of a word, an index, an ordinal, a list mark or a version: a number only if there is no other.
    pub weak: bool,
}

/// All numbers in a text, in order and disjoint.
pub(super) fn numbers(text: &str) -> Vec<Number> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = next_start(text, at) {
        let (end, version) = number_end(text, start);
        let signed = sign_start(text, at, start);
        let weak = version || in_word(text, start, signed) || is_ordinal(text, end) || is_list_mark(text, signed, end);
        found.push(Number { range: signed..end, weak });
        at = end;
    }
    found
}

/// The last number within a range; weak ones only if there are no others.
pub(super) fn last_number(numbers: &[Number], within: &Range<usize>) -> Option<Range<usize>> {
    let inside = numbers_in(numbers, within);
    inside.iter().rfind(|number| !number.weak).or_else(|| inside.last()).map(|number| number.range.clone())
}

/// The number in a range that contains exactly one.
pub(super) fn only_number(numbers: &[Number], within: &Range<usize>) -> Option<Range<usize>> {
    let mut strong = numbers_in(numbers, within).iter().filter(|number| !number.weak);
    let only = strong.next()?;
    strong.next().is_none().then(|| only.range.clone())
}

/// The numbers that lie within a range.
pub(super) fn numbers_in<'a>(numbers: &'a [Number], within: &Range<usize>) -> &'a [Number] {
    let first = numbers.partition_point(|number| number.range.start < within.start);
    let end = numbers.partition_point(|number| number.range.end <= within.end);
    numbers.get(first..end).unwrap_or_default()
}

/// The value of a decimal digit in the common scripts.
pub fn digit(c: char) -> Option<u32> {
    const ZEROS: [u32; 7] = [0x30, 0x660, 0x6f0, 0x966, 0x9e6, 0xe50, 0xff10];
    ZEROS.iter().filter_map(|zero| u32::from(c).checked_sub(*zero)).find(|digit| *digit < 10)
}

fn is_digit(c: char) -> bool {
    digit(c).is_some()
}

/// A letter of a script that separates words by spaces: a digit next to a Chinese character is not inside a word.
fn is_letter(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

fn is_sign(c: char) -> bool {
    matches!(c, '-' | '\u{2212}' | '+')
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(is_digit)
}

/// End of the digits that start at `at`.
fn digits(text: &str, at: usize) -> usize {
    text[at..].find(|c| !is_digit(c)).map_or(text.len(), |length| at + length)
}

/// Start of the unsigned part of the next number.
fn next_start(text: &str, from: usize) -> Option<usize> {
    text[from..].char_indices().find_map(|(offset, c)| {
        let at = from + offset;
        let starts = match c {
            '.' => starts_with_digit(&text[at + 1..]) && point_starts_number(&text[..at]),
            '\\' => fraction_end(text, at).is_some(),
            _ => is_digit(c),
        };
        starts.then_some(at)
    })
}

/// Whether a decimal point after `before` can start a number (`.5`) rather than end something else.
fn point_starts_number(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '.' | ')' | ']' | '}' | '%' | '_'))
}

/// End of a number whose unsigned part starts at `start`, and whether it is a version (`1.2.3`).
fn number_end(text: &str, start: usize) -> (usize, bool) {
    if let Some(end) = fraction_end(text, start) {
        return (end, false);
    }
    let whole = integer_end(text, start);
    let end = decimals_end(text, whole);
    let after_decimals = if end > whole { decimals_end(text, end) } else { end };
    if after_decimals > end {
        return (version_end(text, after_decimals), true);
    }
    if end == whole
        && let Some(end) = mixed_end(text, start, whole)
    {
        return (end, false);
    }
    let end = joined_end(text, end);
    (half_of_day_end(text, scale_end(text, power_end(text, exponent_end(text, end)))), false)
}

/// End of an integer: digits, then groups of exactly three after thousands separators.
fn integer_end(text: &str, start: usize) -> usize {
    const SEPARATORS: [&str; 8] = [",\\! ", ",\\!", "{,}", "\\,", ",", "\u{202f}", "\u{2009}", "\u{a0}"];
    let mut end = digits(text, start);
    let first = &text[start..end];
    if first.is_empty() || first.starts_with('0') || first.chars().count() > 3 {
        return end;
    }
    while let Some(separator) = SEPARATORS.iter().find(|separator| text[end..].starts_with(**separator)) {
        let group = end + separator.len();
        let group_end = digits(text, group);
        if text[group..group_end].chars().count() != 3 {
            break;
        }
        end = group_end;
    }
    if end == start + first.len() { spaced_end(text, start, end) } else { end }
}

/// End of the space-separated groups: `1 000`, `12 345 678`; for `3 200` and `100 200 300`, the first number's.
fn spaced_end(text: &str, start: usize, first_end: usize) -> usize {
    let (mut end, mut groups, mut zeros) = (first_end, 0, false);
    while text[end..].starts_with(' ') {
        let group_end = digits(text, end + 1);
        if text[end + 1..group_end].chars().count() != 3 {
            break;
        }
        zeros |= text[end + 1..].starts_with('0');
        groups += 1;
        end = group_end;
    }
    let separated = zeros || (groups > 1 && first_end - start < 3);
    if separated { end } else { first_end }
}

/// End of the decimals (`.25`) at `at`, or `at`.
fn decimals_end(text: &str, at: usize) -> usize {
    match text[at..].strip_prefix('.') {
        Some(rest) if starts_with_digit(rest) => digits(text, at + 1),
        _ => at,
    }
}

/// End of the further `.3.4` at `at`.
fn version_end(text: &str, mut at: usize) -> usize {
    loop {
        let end = decimals_end(text, at);
        if end == at {
            return at;
        }
        at = end;
    }
}

/// End of the components of a fraction, ratio, time or date joined to a number: `3/4`, `3:30`, `05/01/2021`.
fn joined_end(text: &str, mut at: usize) -> usize {
    while let Some(rest) = text[at..].strip_prefix(['/', ':'])
        && starts_with_digit(rest)
    {
        at = decimals_end(text, integer_end(text, at + 1));
    }
    at
}

/// End of a `\frac{3}{4}` or `\frac34` at `at`.
fn fraction_end(text: &str, at: usize) -> Option<usize> {
    let fraction = pattern!({
        let part = |sign: &str| format!(r"(?:\{{\s*{sign}[0-9][0-9,]*(?:\.[0-9]+)?\s*\}}|[0-9])");
        format!(r"^\\[dtc]?frac\s*{}\s*{}", part("[-\u{2212}]?"), part(""))
    });
    prefix_end(fraction, text, at)
}

/// End of a mixed number, `2 1/2` or `2\frac{1}{2}`, whose whole part is `start..whole`.
fn mixed_end(text: &str, start: usize, whole: usize) -> Option<usize> {
    if start == whole {
        return None;
    }
    let space = text[whole..].starts_with(' ') as usize;
    if let Some(end) = fraction_end(text, whole + space) {
        return Some(end);
    }
    let parts = pattern!(r"^ ([0-9]{1,4})/([0-9]{1,4})\b").captures(&text[whole..])?;
    let value = |group: usize| parts.get(group).and_then(|part| part.as_str().parse::<u32>().ok());
    let proper = value(1)? < value(2)?;
    (proper && !text[whole + parts[0].len()..].starts_with('/')).then(|| whole + parts[0].len())
}

/// End of a power-of-ten factor, `e5` or `\times 10^{5}` or `×10⁵`, at `at`; else `at`.
fn exponent_end(text: &str, at: usize) -> usize {
    let times = pattern!(
        r"^\s*(?:×|\\times|\\cdot|\*|x)\s*10\s*",
        r"(?:\^\s*(?:\{\s*[-+−]?[0-9]+\s*\}|[-+−]?[0-9]+)|[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
    );
    let letter = prefix_end(pattern!("^[eE][-+\u{2212}]?[0-9]+"), text, at)
        .filter(|end| !text[*end..].starts_with(char::is_alphanumeric));
    letter.or_else(|| prefix_end(times, text, at)).unwrap_or(at)
}

/// End of an integer power, `^{10}`, at `at`; else `at`.
fn power_end(text: &str, at: usize) -> usize {
    prefix_end(pattern!(r"^\^(?:\{\s*[-+−]?[0-9]+\s*\}|[-+−]?[0-9]+)"), text, at).unwrap_or(at)
}

/// End of a word like `million` that belongs to the number at `at`; else `at`.
fn scale_end(text: &str, at: usize) -> usize {
    let word = pattern!({
        let word = "(?:hundred|thousand|million|billion|trillion)";
        format!(r"^(?: {word}\b|\s*\\text\{{\s*{word}\s*\}})")
    });
    prefix_end(word, text, at).unwrap_or(at)
}

/// End of the `PM` or `\text{ p.m.}` of a time that ends at `at`; else `at`.
fn half_of_day_end(text: &str, at: usize) -> usize {
    prefix_end(pattern!(r"^(?: ?(?i:[ap]m\b|[ap]\.m\.)| ?\\text\{ ?(?i:[ap]m|[ap]\.m\.) ?\})"), text, at).unwrap_or(at)
}

/// Start of the number including its sign: `-5`, `$-5` and `-$5`, not before `floor` (the previous number's end).
fn sign_start(text: &str, floor: usize, start: usize) -> usize {
    let signed = |end: usize| {
        let sign = text[floor..end].chars().next_back().filter(|c| is_sign(*c))?;
        let at = end - sign.len_utf8();
        may_be_signed(&text[..at]).then_some(at)
    };
    let before_currency = |end: usize| {
        let rest = text[floor..end].strip_suffix(['$', '£', '€', '¥'])?;
        let rest = rest.strip_suffix('\\').unwrap_or(rest);
        // `$3$-$5$` is a range in math mode, not minus five dollars.
        signed(floor + rest.len()).filter(|at| !text[..*at].ends_with('$'))
    };
    signed(start).or_else(|| before_currency(start)).unwrap_or(start)
}

/// Whether a `-` or `+` after `before` is a sign rather than an operator, a hyphen or the dash of a range.
fn may_be_signed(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| {
        !(is_letter(c) || c.is_numeric() || is_sign(c) || matches!(c, ')' | ']' | '}' | '.' | '%' | '_' | '!' | '°'))
    })
}

/// Whether a number belongs to a word (`x2`, `GPT-4`), or is an index or exponent (`v_{0}`, `m^2`).
fn in_word(text: &str, start: usize, signed: usize) -> bool {
    let before = &text[..signed];
    let script = before.strip_suffix('{').unwrap_or(before);
    let word = text[..start].strip_suffix('-').filter(|_| signed == start).unwrap_or(&text[..start]);
    script.ends_with(['^', '_']) || (word.ends_with(is_letter) && !text[start..].starts_with('\\'))
}

/// Whether an ordinal suffix follows at `end`.
fn is_ordinal(text: &str, end: usize) -> bool {
    pattern!(r"^(?:st|nd|rd|th)\b").is_match(&text[end..])
}

/// Whether `start..end` numbers a list item: first on its line, then a period or bracket, a space and the item.
fn is_list_mark(text: &str, start: usize, end: usize) -> bool {
    let line_starts = text[..start].trim_end_matches([' ', '\t', '*', '_', '#', '>']);
    (line_starts.is_empty() || line_starts.ends_with('\n'))
        && text[start..end].bytes().all(|byte| byte.is_ascii_digit())
        && end - start <= 3
        && pattern!(r"^[.)][*_]*[ \t]+\S").is_match(&text[end..])
}

/// End of an anchored pattern's match at `at`.
fn prefix_end(pattern: &Regex, text: &str, at: usize) -> Option<usize> {
    pattern.find(&text[at..]).map(|found| at + found.end())
}
