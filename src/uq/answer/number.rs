//! Numbers as written by people and models.

use super::boxed::trim;
use super::digit;
use super::value;
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
        let letter = text[..end].ends_with(char::is_alphabetic) && text[..signed].ends_with(is_currency);
        let money = text[..signed].chars().next_back().filter(|_| letter).map_or(0, char::len_utf8); // `$5M`
        found.push(Number { range: signed - money..end, weak });
        at = end;
    }
    found
}

/// The number that a range says and nothing more: the narrowest that says it, or all of the range.
pub(super) fn said(text: &str, numbers: &[Number], within: &Range<usize>) -> Option<Range<usize>> {
    /// A number in words alone is short.
    const MAX_WORDS: usize = 100;
    let may_be = within.len() <= MAX_WORDS || !numbers_in(numbers, within).is_empty();
    let (value, percent) = if may_be { value::number(&text[within.clone()])? } else { return None };
    let says = |number: &&Number| {
        let percent = percent && !text[number.range.end..].starts_with(['%', '\\']); // `50 percent`
        value::number(&text[number.range.clone()]) == Some((value, percent))
    };
    let narrowest = numbers_in(numbers, within).iter().rfind(says);
    Some(narrowest.map_or_else(|| trim(text, within.clone()), |number| number.range.clone()))
}

/// The number in a range that contains exactly one.
pub(super) fn only_number(numbers: &[Number], within: &Range<usize>) -> Option<Range<usize>> {
    let mut strong = numbers_in(numbers, within).iter().filter(|number| !number.weak);
    let only = strong.next()?;
    strong.next().is_none().then(|| only.range.clone())
}

/// Whether a range is a list of numbers: `12 or 13`, `a = 3, b = 4`.
pub(super) fn is_list(text: &str, numbers: &[Number], within: &Range<usize>) -> bool {
    let numbers = numbers_in(numbers, within);
    let between = numbers.windows(2).map(|pair| &text[pair[0].range.end..pair[1].range.start]);
    let lead = numbers.first().is_some_and(|first| {
        pattern!(r"^(?:either |between |from )?[$\s(]*(?:[A-Za-z]\s*=)?[$\s]*$")
            .is_match(&text[within.start..first.range.start])
    });
    let separates = pattern!(r"^[$\s]*(?:,|;|,?\s*\b(?:or|and|to)\b)[$\s]*(?:[A-Za-z]\s*=)?[$\s]*$");
    lead && numbers.len() > 1 && between.into_iter().all(|between| separates.is_match(between))
}

/// The last number that counts within a range; weak ones only if there are no others.
///
/// A number in a formula is taken with what it stands in: the formula's side is the answer where that is not the number alone
/// (`2\pi`, `\sqrt{16}`), unless it has to be a number and is none (`only`); then an earlier number counts.
pub(super) fn last_number(
    text: &str,
    numbers: &[Number],
    within: &Range<usize>,
    only: bool,
    counts: impl Fn(&Number) -> bool,
) -> Option<Range<usize>> {
    /// Numbers tried, from the last, and bytes at the end in which formulas are looked for.
    const TRIED: usize = 16;
    const WINDOW: usize = 4000;
    let inside = numbers_in(numbers, within);
    let strong = || inside.iter().rev().filter(|number| !number.weak && counts(number));
    let window = (within.end.saturating_sub(WINDOW).max(within.start)..).find(|at| text.is_char_boundary(*at));
    let formulas = formulas(text, &(window.unwrap_or(within.start)..within.end));
    let standing = |number: &Number| {
        let own = &text[number.range.clone()];
        let side = side(text, &formulas, &number.range);
        let (value, whole) = (value::number(own), value::number(&text[side.clone()]));
        match whole {
            _ if side == number.range || value.is_none() => {
                (!is_part(text, &number.range)).then(|| number.range.clone())
            }
            Some(whole) if Some(whole.0) == value.map(|(value, _)| value) => Some(number.range.clone()),
            Some(_) => Some(side),
            None => (!only).then_some(side),
        }
    };
    match strong().next() {
        Some(_) if only => strong().take(TRIED).find_map(standing),
        Some(last) => standing(last).or_else(|| Some(last.range.clone())),
        None if only => inside.last().and_then(standing),
        None => inside.last().map(|number| number.range.clone()),
    }
}

/// The formulas within a range, without their delimiters, in order.
fn formulas(text: &str, within: &Range<usize>) -> Vec<Range<usize>> {
    let formula = pattern!(
        r"(?s)\\\$|\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|",
        r"\$((?:\\[^\n]|[^$\s\\])(?:(?:\\[^\n]|[^$\n\\])*(?:\\[^\n]|[^$\s\\]))?)\$"
    );
    let inside = &text[within.clone()];
    let found = formula.captures_iter(inside).filter_map(|found| {
        let amount = found.get(4).is_some() && inside[found.get(0)?.end()..].starts_with(is_digit); // `$5 and $6`
        let inner = found.iter().skip(1).flatten().next().filter(|_| !amount)?;
        Some(within.start + inner.start()..within.start + inner.end())
    });
    found.collect()
}

/// The side of the equation in a formula that a number belongs to; outside of formulas, the number.
fn side(text: &str, formulas: &[Range<usize>], number: &Range<usize>) -> Range<usize> {
    let at = formulas.partition_point(|formula| formula.end < number.end);
    let Some(formula) = formulas.get(at).filter(|formula| formula.start <= number.start) else { return number.clone() };
    let ends = pattern!(r"\\\\|[&=≈]|\\(?:(?:approx|implies|Rightarrow|rightarrow|to)\b|(?:begin|end)\{[^}]*\})");
    let before = ends.find_iter(&text[formula.start..number.start]).last().map_or(0, |found| found.end());
    let after = ends.find(&text[number.end..formula.end]).map_or(formula.end, |found| number.end + found.start());
    let side = trim(text, formula.start + before..after);
    let end = side.start + text[side.clone()].trim_end_matches(['.', ',', ';', ' ']).len();
    side.start..end.max(number.end)
}

/// Whether a number outside of a formula is part of an expression, or is denied: `3x`, `√16`, `± 5`, `x > 5`, `not 5`.
pub(super) fn is_part(text: &str, number: &Range<usize>) -> bool {
    let from = (number.start.saturating_sub(24)..).find(|at| text.is_char_boundary(*at)).unwrap_or(number.start);
    let before = pattern!(
        r"(?i)(?:[√±∓≤≥≠]|\\(?:pm|mp|sqrt|leq?|geq?|neq?|log|ln)\b\s*\{?|\b(?:sqrt|log|ln)\b\(?|[\w#:]\s+[<>]=?|[xyzn]\s+[-+*/]|",
        r"\b[xyzn]\s?/|\^\{?|\b(?:than|not))\s*$"
    );
    let after = pattern!(r"^(?:\s?(?:π|\\pi\b)|[xyzni]\b|√|\\sqrt|\s+[-+*/]\s+[xyzn]\b|/[xyzn]\b)");
    before.is_match(&text[from..number.start]) || after.is_match(&text[number.end..])
}

/// The numbers that lie within a range.
pub(super) fn numbers_in<'a>(numbers: &'a [Number], within: &Range<usize>) -> &'a [Number] {
    let first = numbers.partition_point(|number| number.range.start < within.start);
    let end = numbers.partition_point(|number| number.range.end <= within.end);
    numbers.get(first..end).unwrap_or_default()
}

fn is_digit(c: char) -> bool {
    digit(c).is_some()
}

/// A letter of a script that separates words by spaces: a digit next to a Chinese character is not inside a word.
fn is_letter(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

fn is_sign(c: char) -> bool {
    matches!(c, '-' | '−' | '–' | '－' | '﹣' | '+' | '＋')
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
            _ => is_digit(c) || is_vulgar(c),
        };
        starts.then_some(at)
    })
}

/// Whether a decimal point after `before` can start a number (`.5`) rather than end something else.
fn point_starts_number(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '.' | ')' | ']' | '}' | '%' | '_'))
}

/// Whether a character is a fraction: `½`.
fn is_vulgar(c: char) -> bool {
    matches!(c, '½' | '¼' | '¾' | '⅐'..='⅞')
}

/// A digit of the common scripts, as in [`digit`].
const DIGIT: &str = "[0-9٠-٩۰-۹०-९০-৯๐-๙０-９]";

/// End of a number whose unsigned part starts at `start`, and whether it is a version (`1.2.3`).
fn number_end(text: &str, start: usize) -> (usize, bool) {
    // `3/4`, `05/01/2021`, `3:30 pm`; `e5`, `\times 10^{5}`, `×10⁵`; `^{10}`; `million`, the `M` of an amount of money
    let rest = pattern!({
        let (d, power) = (DIGIT, r"(?:\^\s*(?:\{\s*[-+−]?[0-9]+\s*\}|[-+−]?[0-9]+)|[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)");
        let scale = "(?:hundred|thousand|[mb]illion|trillion|lakh|crore|dozen|[mb]n)";
        let joined = format!(r"(?:\.{d}+)?(?:[/:]{d}+(?:,{d}{{3}})*(?:\.{d}+)?)*");
        let powers = format!(r"(?:[eE][-+−]?[0-9]+\b|\s*(?:[×·⋅*xX]|\\times|\\cdot)\s*10\s*{power})?{power}?");
        let scales = format!(r"(?: ?{scale}\b|\s*\\text\{{\s*{scale}\s*\}}|(?P<letter>[KkMmBbTt]\b))?");
        let half = r"(?: ?(?i:[ap]m\b|[ap]\.m\.)| ?\\text\{ ?(?i:[ap]m|[ap]\.m\.) ?\})?";
        format!(r"^(?:(?P<version>(?:\.{d}+){{2,}})|{joined}{powers}{scales}{half})")
    });
    if let Some(end) = fraction_end(text, start) {
        return (end, false);
    }
    let whole = integer_end(text, start);
    if let Some(end) = mixed_end(text, whole) {
        return (end, false);
    }
    let Some(found) = rest.captures(&text[whole..]) else { return (whole, false) };
    let money = text[..start].trim_end_matches([' ', '-', '−', '–']).ends_with(is_currency);
    let letter = found.name("letter").filter(|_| !money);
    (whole + letter.map_or(found[0].len(), |letter| letter.start()), found.name("version").is_some())
}

/// End of an integer: digits, then groups of three after thousands separators; the groups of `1,23,456`, `1.234.567`. Spaces
/// separate groups in `1 000` and `12 345 678`; for `3 200` and `100 200 300`, the first number's end.
fn integer_end(text: &str, start: usize) -> usize {
    let other = pattern!(r"^(?:[0-9]{1,2}(?:,[0-9]{2}){1,6},[0-9]{3}|[0-9]{1,3}(?:\.[0-9]{3}){2,6})");
    let groups = pattern!({
        let (d, separator) = (DIGIT, r"(?:,\\! ?|\{,\}|\\,|[,，٬'’_\u{202f}\u{2009}\u{a0}])");
        format!("^{d}{{1,3}}(?:(?:{separator}{d}{{3}})+|(?: {d}{{3}})+)")
    });
    let first = digits(text, start);
    if text[start..].starts_with('0') {
        return first;
    }
    if let Some(end) = prefix_end(other, text, start).filter(|end| !text[*end..].starts_with(is_digit)) {
        return end;
    }
    let Some(mut end) = prefix_end(groups, text, start) else { return first };
    if text[end..].starts_with(is_digit) {
        // the group of four of `1,234,5678` is another number
        end = start + text[start..end].trim_end_matches(is_digit).trim_end_matches(|c| !is_digit(c)).len();
    }
    let spaced = &text[first..end];
    let two =
        spaced.starts_with(' ') && !spaced.contains(" 0") && (spaced.matches(' ').count() < 2 || first - start > 2);
    if two { first } else { end }
}

/// A `\frac{3}{4}` or `\frac34`.
fn fraction() -> String {
    let part = |sign: &str| format!(r"(?:\{{\s*{sign}[0-9][0-9,]*(?:\.[0-9]+)?\s*\}}|[0-9])");
    format!(r"\\[dtc]?frac\s*{}\s*{}", part("[-−]?"), part(""))
}

fn fraction_end(text: &str, at: usize) -> Option<usize> {
    prefix_end(pattern!({ format!("^{}", fraction()) }), text, at)
}

/// End of the fraction of a mixed number whose whole part ends at `whole`: `2 1/2`, `2\frac{1}{2}`, `2½`.
fn mixed_end(text: &str, whole: usize) -> Option<usize> {
    let mixed = pattern!({ format!(r"^(?: ?[½¼¾⅐-⅞]| ?{}| ([0-9]{{1,4}})/([0-9]{{1,4}})\b)", fraction()) });
    let parts = mixed.captures(&text[whole..])?;
    let value = |group: usize| parts.get(group).and_then(|part| part.as_str().parse::<u32>().ok());
    let end = whole + parts[0].len();
    let proper = || value(1) < value(2) && !text[end..].starts_with('/');
    (parts.get(1).is_none() || proper()).then_some(end)
}

/// Start of the number including its sign: `-5`, `$-5` and `-$5`, not before `floor` (the previous number's end).
fn sign_start(text: &str, floor: usize, start: usize) -> usize {
    let signed = |end: usize| {
        let sign = text[floor..end].chars().next_back().filter(|c| is_sign(*c))?;
        let at = end - sign.len_utf8();
        may_be_signed(&text[..at]).then_some(at)
    };
    let before_currency = |end: usize| {
        let rest = text[floor..end].strip_suffix(is_currency)?;
        let rest = rest.strip_suffix('\\').unwrap_or(rest);
        // `$3$-$5$` is a range in math mode, not minus five dollars.
        signed(floor + rest.len()).filter(|at| !text[..*at].ends_with('$'))
    };
    let before = || {
        let apart = pattern!(r"(?i)\b(?P<word>minus|negative)\s+$|[=≈(]\s*(?P<dash>[-−–])\s+$")
            .captures(&text[floor..start])?;
        let sign = apart.name("dash").or_else(|| apart.name("word"))?;
        Some((floor + sign.start(), apart.name("dash").is_some()))
    };
    // `10 minus 5` is no sign
    let is_sign = |at: usize| may_be_signed(text[..at].trim_end_matches(|c| is_letter(c) || c == ' '));
    let apart = || before().filter(|(at, dash)| *dash || is_sign(*at)).map(|(at, _)| at);
    signed(start).or_else(|| before_currency(start)).or_else(apart).unwrap_or(start)
}

fn is_currency(c: char) -> bool {
    matches!(c, '$' | '£' | '€' | '¥' | '₹')
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
