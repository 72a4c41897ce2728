//! Numbers as written by people and models.

use super::announce::{expanded, grammar};
use super::boundary;
use super::boxed::trim;
use super::statement::{Text, formulas};
use super::value;
use fancy_regex::Regex;
use std::ops::Range;
use std::sync::LazyLock;

/// A number in a text.
pub(super) struct Number {
    /// Sign, digits, separators, decimals; for a compound (`3/4`, `2^{10}`), all of it.
    pub range: Range<usize>,
    /// Part of a word, an index, an ordinal, a list mark or a version: a number only if there is no other.
    pub weak: bool,
}

/// The pattern of a number, which looks at what is around it.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(&expanded("number")).expect("a constant pattern"));

/// All numbers in a text, in order and disjoint.
pub(super) fn numbers(text: &str) -> Vec<Number> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(Some(number)) = NUMBER.captures_from_pos(text, at) {
        let (Some(whole), Some(unsigned)) = (number.get(0), number.name("unsigned")) else { break };
        let (mut start, mut end) = (whole.start(), whole.end());
        let mixed = number.name("mixed").filter(|mixed| {
            let values = mixed.as_str().trim_start_matches(" and").trim().split_once('/');
            values.is_none_or(|(above, below)| above.parse::<u32>().ok() >= below.parse().ok())
        });
        let currency = |text: &str| text.ends_with(['$', '£', '€', '¥', '₹']);
        let money = currency(text[..unsigned.start()].trim_end_matches([' ', '-', '−', '–']));
        if let Some(other) = mixed.or(number.name("letter").filter(|_| !money)) {
            end = other.start(); // `day 3 5/2`, `5M`
        }
        if text[..end].ends_with(char::is_alphabetic) && currency(&text[..start]) {
            start -= text[..start].chars().next_back().map_or(0, char::len_utf8); // `$5M`
        }
        let weak = number.name("weak").is_some()
            || in_word(text, unsigned.start(), whole.start())
            || pattern!(r"^(?:st|nd|rd|th)\b").is_match(&text[end..])
            || is_list_mark(text, start, end);
        found.push(Number { range: start..end, weak });
        at = end;
    }
    found
}

/// Whether a number belongs to a word (`x2`, `GPT-4`), or is an index or exponent (`v_{0}`, `m^2`).
fn in_word(text: &str, start: usize, signed: usize) -> bool {
    let before = &text[..signed];
    let script = before.strip_suffix('{').unwrap_or(before);
    let word = text[..start].strip_suffix('-').filter(|_| signed == start).unwrap_or(&text[..start]);
    // next to a character of a script without spaces, a digit is not inside a word
    let is_letter = |c: char| c.is_lowercase() || c.is_uppercase();
    script.ends_with(['^', '_']) || (word.ends_with(is_letter) && !text[start..].starts_with('\\'))
}

/// Whether `start..end` numbers a list item: first on its line, then a period or bracket, a space and the item.
fn is_list_mark(text: &str, start: usize, end: usize) -> bool {
    let line_starts = text[..start].trim_end_matches([' ', '\t', '*', '_', '#', '>']);
    (line_starts.is_empty() || line_starts.ends_with('\n'))
        && text[start..end].bytes().all(|byte| byte.is_ascii_digit())
        && end - start <= 3
        && pattern!(r"^[.)][*_]*[ \t]+\S").is_match(&text[end..])
}

impl Text<'_> {
    /// The number that a range says and nothing more: the narrowest that says it, or all of the range.
    pub fn said(&self, within: &Range<usize>) -> Option<Range<usize>> {
        /// A number in words alone is short.
        const MAX_WORDS: usize = 100;
        let (text, inside) = (self.text, self.numbers_in(within));
        let may_be = within.len() <= MAX_WORDS || !inside.is_empty();
        let (value, percent) = if may_be { value::number(&text[within.clone()])? } else { return None };
        let says = |number: &&Number| {
            let percent = percent && !text[number.range.end..].starts_with(['%', '\\']); // `50 percent`
            value::number(&text[number.range.clone()]) == Some((value, percent))
        };
        let narrowest = inside.iter().rfind(says);
        Some(narrowest.map_or_else(|| trim(text, within.clone()), |number| number.range.clone()))
    }

    /// The number in a range that contains exactly one.
    pub fn only_number(&self, within: &Range<usize>) -> Option<Range<usize>> {
        let mut strong = self.numbers_in(within).iter().filter(|number| !number.weak);
        let only = strong.next()?;
        strong.next().is_none().then(|| only.range.clone())
    }

    /// Whether a range is a list of numbers: `12 or 13`, `a = 3, b = 4`.
    pub fn is_list(&self, within: &Range<usize>) -> bool {
        let numbers = self.numbers_in(within);
        let Some(first) = numbers.first().filter(|_| numbers.len() > 1) else { return false };
        let mut between = numbers.windows(2).map(|pair| &self.text[pair[0].range.end..pair[1].range.start]);
        grammar("before a list").is_match(&self.text[within.start..first.range.start])
            && between.all(|between| grammar("in a list").is_match(between))
    }

    /// The last number that counts within a range; weak ones only if there are no others.
    ///
    /// A number in a formula is taken with what it stands in: the formula's side is the answer where that is not the number
    /// alone (`2\pi`, `\sqrt{16}`), unless it has to be a number and is none (`only`); then an earlier number counts.
    pub fn last_number(
        &self,
        within: &Range<usize>,
        only: bool,
        counts: impl Fn(&Number) -> bool,
    ) -> Option<Range<usize>> {
        /// Numbers tried, from the last, and bytes at the end in which formulas are looked for.
        const TRIED: usize = 16;
        const WINDOW: usize = 4000;
        let (text, inside) = (self.text, self.numbers_in(within));
        let strong = || inside.iter().rev().filter(|number| !number.weak && counts(number));
        let window = boundary(text, within.end.saturating_sub(WINDOW).max(within.start));
        let formulas: Vec<Range<usize>> = formulas(text, window..within.end).map(|(_, inner)| inner).collect();
        let standing = |number: &Number| {
            let side = side(text, &formulas, &number.range);
            let (value, whole) = (value::number(&text[number.range.clone()]), value::number(&text[side.clone()]));
            match whole {
                _ if side == number.range || value.is_none() => {
                    (!self.is_part(&number.range)).then(|| number.range.clone())
                }
                Some((whole, _)) if value.is_some_and(|(value, _)| value == whole) => Some(number.range.clone()),
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

    /// Whether a number outside of a formula is part of an expression, or is denied: `3x`, `√16`, `± 5`, `x > 5`, `not 5`.
    pub fn is_part(&self, number: &Range<usize>) -> bool {
        let from = boundary(self.text, number.start.saturating_sub(24));
        grammar("before a part").is_match(&self.text[from..number.start])
            || grammar("after a part").is_match(&self.text[number.end..])
    }

    /// The numbers that lie within a range.
    pub fn numbers_in(&self, within: &Range<usize>) -> &[Number] {
        let first = self.numbers.partition_point(|number| number.range.start < within.start);
        let end = self.numbers.partition_point(|number| number.range.end <= within.end);
        self.numbers.get(first..end).unwrap_or_default()
    }
}

/// The side of the equation in a formula that a number belongs to; outside of formulas, the number.
fn side(text: &str, formulas: &[Range<usize>], number: &Range<usize>) -> Range<usize> {
    let at = formulas.partition_point(|formula| formula.end < number.end);
    let Some(formula) = formulas.get(at).filter(|formula| formula.start <= number.start) else { return number.clone() };
    let before =
        grammar("side end").find_iter(&text[formula.start..number.start]).last().map_or(0, |found| found.end());
    let after = grammar("side end")
        .find(&text[number.end..formula.end])
        .map_or(formula.end, |found| number.end + found.start());
    let side = trim(text, formula.start + before..after);
    let loose = |c: char| c.is_whitespace() || matches!(c, '.' | ',' | ';');
    let end = side.start + text[side.clone()].trim_end_matches(loose).len();
    side.start..end.max(number.end)
}
