//! Known words and units, as tables: `vocabulary.txt` and `units.txt`.

use super::rational::Rational;
use crate::model::reply::rows;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The words of a list.
pub(crate) fn list(name: &str) -> &'static [&'static str] {
    static LISTS: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
        let list = |row: Vec<&'static str>| (row[0], row[1].split(' ').collect());
        rows(include_str!("vocabulary.txt")).map(list).collect()
    });
    &LISTS[name]
}

/// The rows of `units.txt`: dimension, size, names.
pub(super) static UNITS: LazyLock<Vec<(&str, Rational, Vec<&str>)>> = LazyLock::new(|| {
    let fraction = |size: &str| {
        let (above, below) = size.split_once('/').unwrap_or((size, "1"));
        Rational::new(above.parse().ok()?, below.parse().ok()?)
    };
    let row = |row: Vec<&'static str>| Some((row[0], fraction(row[1])?, row[2].split(' ').collect()));
    rows(include_str!("units.txt")).filter_map(row).collect()
});

/// The words for factors.
pub(crate) fn multipliers() -> impl Iterator<Item = &'static str> {
    UNITS.iter().filter(|(kind, ..)| *kind == "×").flat_map(|(_, _, names)| names.iter().copied())
}

/// Factor denoted by a word after a number: `million`.
pub(crate) fn multiplier(word: &str) -> Option<Rational> {
    let word = &*word.to_lowercase();
    UNITS.iter().find(|(kind, _, names)| *kind == "×" && names.contains(&word)).map(|(_, factor, _)| *factor)
}

/// Whether words qualify the number they stand beside.
pub(super) fn qualifies(text: &str) -> bool {
    text.split(|c: char| !c.is_alphabetic()).any(|word| list("qualifiers").contains(&&*word.to_lowercase()))
}

/// Whether a single letter inside `\text{…}`, where variables do not appear, is a unit.
pub(super) fn is_unit_letter(letter: char) -> bool {
    "msghlLJNWVKCFAΩ".contains(letter)
}

/// `am`, `P.M.`: part of a time, not a unit.
pub(super) fn is_half_of_day(words: &str) -> bool {
    matches!(words.trim().to_lowercase().replace('.', "").as_str(), "am" | "pm")
}

/// `am` or `pm` after a time in an answer.
pub(crate) fn half_of_day(answer: &str) -> Option<&'static str> {
    let found = pattern!(r"(?i)[0-9]\s*(?:\\?text\{\s*|\\[,;! ]?\s*)?([ap])\.?\s?m\b").captures(answer)?;
    Some(if found[1].eq_ignore_ascii_case("a") { "am" } else { "pm" })
}
