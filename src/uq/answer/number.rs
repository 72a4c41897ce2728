//! Numbers as written by people and models.

use super::statement::{Number, Text, around, formulas};
use super::{boundary, tables::expanded, tables::grammar, value};
use fancy_regex::Regex;
use std::{collections::HashSet, sync::LazyLock};

/// The pattern of a number, which looks at what is around it.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(&expanded("number")).expect("a constant pattern"));

/// All numbers in a text, in order and disjoint.
pub(super) fn numbers(text: &str) -> Vec<Number<'_>> {
    let list_marks = grammar("list mark").captures_iter(text).filter_map(|mark| Some(mark.get(1)?.range()));
    let list_marks: HashSet<_> = list_marks.collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(Some(number)) = NUMBER.captures_from_pos(text, at) {
        let Some(whole) = number.get(0) else { break };
        let (start, mut end) = (whole.start(), whole.end());
        let mixed = number.name("mixed").filter(|mixed| {
            let values = mixed.as_str().trim_start_matches(" and").trim().split_once('/');
            values.is_none_or(|(above, below)| above.parse::<u32>().ok() >= below.parse().ok())
        });
        if let Some(mixed) = mixed {
            end = mixed.start(); // `day 3 5/2`
        }
        let weak = ["inside", "ordinal", "version"].iter().any(|group| number.name(group).is_some());
        found.push(Number { text: &text[start..end], weak: weak || list_marks.contains(&(start..end)) });
        at = end;
    }
    found
}

impl<'t> Text<'t> {
    /// The number that a part says and nothing more: the narrowest that says it, or all of the part.
    pub fn said(&self, part: &'t str) -> Option<&'t str> {
        /// A number in words alone is short.
        const MAX_WORDS: usize = 100;
        let inside = self.numbers_in(part);
        let (value, percent) = value::number(Some(part).filter(|part| part.len() <= MAX_WORDS || !inside.is_empty())?)?;
        let says = |number: &&Number| {
            let percent = percent && !self.around(number.text).1.starts_with(['%', '\\']); // `50 percent`
            value::number(number.text) == Some((value, percent))
        };
        Some(inside.iter().rfind(says).map_or_else(|| part.trim(), |number| number.text))
    }

    /// The number in a part that contains exactly one.
    pub fn only_number(&self, part: &'t str) -> Option<&'t str> {
        let mut strong = self.numbers_in(part).iter().filter(|number| !number.weak);
        strong.next().filter(|_| strong.next().is_none()).map(|only| only.text)
    }

    /// Whether a part is a list of numbers: `12 or 13`, `a = 3, b = 4`.
    pub fn is_list(&self, part: &str) -> bool {
        let numbers = self.numbers_in(part);
        let Some(first) = numbers.first().filter(|_| numbers.len() > 1) else { return false };
        let separated = |pair: &[Number]| {
            let rest = self.around(pair[0].text).1;
            grammar("in a list").is_match(around(rest, pair[1].text).0)
        };
        grammar("before a list").is_match(around(part, first.text).0) && numbers.windows(2).all(separated)
    }

    /// The last number that counts within a part; weak ones only if there are no others.
    ///
    /// A number in a formula is taken with what it stands in: the formula's side is the answer where that is not the number
    /// alone (`2\pi`, `\sqrt{16}`), unless it has to be a number and is none (`only`); then an earlier number counts.
    pub fn last_number(&self, part: &'t str, only: bool, counts: impl Fn(&Number) -> bool) -> Option<&'t str> {
        /// Numbers tried, from the last, and bytes at the end in which formulas are looked for.
        const TRIED: usize = 16;
        const WINDOW: usize = 4000;
        let inside = self.numbers_in(part);
        let strong = || inside.iter().rev().filter(|number| !number.weak && counts(number));
        let window = &part[boundary(part, part.len().saturating_sub(WINDOW))..];
        let formulas: Vec<&'t str> = formulas(window).map(|(_, inner)| inner).collect();
        let standing = |number: &Number<'t>| {
            let (number, side) = (number.text, side(&formulas, number.text));
            let (value, whole) = (value::number(number), value::number(side));
            match whole {
                _ if side.len() == number.len() || value.is_none() => (!self.is_part(number)).then_some(number),
                Some((whole, _)) if value.is_some_and(|(value, _)| value == whole) => Some(number),
                Some(_) => Some(side),
                None => (!only).then_some(side),
            }
        };
        match strong().next() {
            Some(_) if only => strong().take(TRIED).find_map(standing),
            Some(last) => standing(last).or(Some(last.text)),
            None if only => inside.last().and_then(standing),
            None => inside.last().map(|number| number.text),
        }
    }

    /// Whether a number outside of a formula is part of an expression, or is denied: `3x`, `√16`, `± 5`, `x > 5`, `not 5`.
    pub fn is_part(&self, number: &str) -> bool {
        let (before, after) = self.around(number);
        let before = &before[boundary(before, before.len().saturating_sub(24))..];
        grammar("before a part").is_match(before) || grammar("after a part").is_match(after)
    }

    /// The numbers that lie within a part.
    pub fn numbers_in(&self, part: &str) -> &[Number<'t>] {
        let within = part.as_bytes().as_ptr_range();
        let first = self.numbers.partition_point(|number| number.text.as_ptr() < within.start);
        let end = self.numbers.partition_point(|number| number.text.as_bytes().as_ptr_range().end <= within.end);
        self.numbers.get(first..end).unwrap_or_default()
    }
}

/// The side of the equation in a formula that a number belongs to; outside of formulas, the number.
fn side<'t>(formulas: &[&'t str], number: &'t str) -> &'t str {
    let end = |part: &str| part.as_bytes().as_ptr_range().end;
    let at = formulas.partition_point(|formula| end(formula) < end(number));
    let Some(formula) = formulas.get(at).filter(|formula| formula.as_ptr() <= number.as_ptr()) else { return number };
    let (before, after) = around(formula, number);
    let start = grammar("side end").find_iter(before).last().map_or(0, |found| found.end());
    let end =
        grammar("side end").find(after).map_or(formula.len(), |found| formula.len() - after.len() + found.start());
    let side = formula[start..end].trim_start();
    let tail = around(side, number).1.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '.' | ',' | ';'));
    &side[..side.len() - around(side, number).1.len() + tail.len()]
}
