//! Known words, and units of measure as a table: `units.txt`.

use super::{super::tables::list, form::Form, latex::rewritten, rational::Rational};
use crate::model::reply::rows;
use std::sync::LazyLock;

/// The rows of `units.txt`: dimension, size, names.
static UNITS: LazyLock<Vec<(&str, Rational, Vec<&str>)>> = LazyLock::new(|| {
    let fraction = |size: &str| {
        let (above, below) = size.split_once('/').unwrap_or((size, "1"));
        Rational::new(above.parse().ok()?, below.parse().ok()?)
    };
    let row = |row: Vec<&'static str>| Some((row[0], fraction(row[1])?, row[2].split(' ').collect()));
    rows(include_str!("units.txt")).filter_map(row).collect()
});

/// Factor denoted by a word after a number: `million`.
pub(super) fn multiplier(word: &str) -> Option<Rational> {
    let word = &*word.to_lowercase();
    let factor = list("factors").iter().find_map(|factor| factor.split_once('=').filter(|(name, _)| *name == word));
    Rational::decimal(factor?.1)
}

/// Whether words qualify the number they stand beside.
pub(super) fn qualifies(text: &str) -> bool {
    text.split(|c: char| !c.is_alphabetic()).any(|word| list("qualifiers").contains(&&*word.to_lowercase()))
}

/// `am` or `pm` after a time in an answer.
pub(crate) fn half_of_day(answer: &str) -> Option<&'static str> {
    let found = pattern!(r"(?i)[0-9]\s*(?:\\?text\{\s*|\\[,;! ]?\s*)?([ap])\.?\s?m\b").captures(answer)?;
    Some(if found[1].eq_ignore_ascii_case("a") { "am" } else { "pm" })
}

/// Currency signs, which stand before or after their number.
pub(super) fn is_currency(c: char) -> bool {
    matches!(c, '$' | '¢' | '€' | '£' | '¥' | '₹' | '₩' | '₽')
}

/// The unit that words name, as a form of base units: `cm`, `square feet`, `miles per hour`, `m/s^2`; `None` if there is none.
/// Other words are left out (`cm of rope`), but not after `per`.
pub(super) fn unit(words: &str) -> Option<Form> {
    let plain = rewritten("unit", words);
    let only = plain.split_whitespace().count() == 1;
    let mut product = None;
    for (at, part) in plain.split("per ").enumerate() {
        let words = part.split_whitespace().filter(|word| only || *word != "in");
        let units: Vec<Form> = words
            .filter_map(|word| {
                let (name, exponent) = word.split_once('^').unwrap_or((word, "1"));
                let exponent: i128 = exponent.parse().ok()?;
                named(name)?.raised(if at == 0 { exponent } else { -exponent })
            })
            .collect();
        if at > 0 && units.is_empty() {
            return None;
        }
        for unit in units {
            product = Some(product.unwrap_or(Form::number(Rational::ONE)).mul(unit)?);
        }
    }
    product
}

/// The unit of one name, with or without a prefix. Case tells `mW` from `MW` and `a` from `A`.
fn named(name: &str) -> Option<Form> {
    let known = |name: &str| {
        let lower = if name.len() > 1 { name.to_lowercase() } else { name.to_owned() };
        UNITS.iter().find(|(kind, _, names)| *kind != "prefix" && (names.contains(&name) || names.contains(&&*lower)))
    };
    let prefixed = |(kind, factor, names): &(&str, Rational, Vec<&str>)| {
        let symbol = || name.strip_prefix(names[0]).filter(|rest| rest.len() < 3 || *rest == "mol");
        let rest = if *kind == "prefix" { symbol().or_else(|| name.strip_prefix(names[1])) } else { None };
        let (dimension, size, _) = known(rest?)?;
        let plain = *size == Rational::ONE || *size == Rational::new(1, 1000)?;
        plain.then_some((*dimension, size.mul(*factor)?))
    };
    let whole = known(name).map(|(dimension, size, _)| (*dimension, *size));
    let (dimension, size) = whole.or_else(|| UNITS.iter().find_map(prefixed))?;
    let mut form = Form::number(size);
    for base in dimension.split(' ').filter(|base| *base != "1") {
        let (base, power) = base.split_once('^').unwrap_or((base, "1"));
        form = form.mul(Form::symbol(format!("⟨{base}⟩")).raised(power.parse().ok()?)?)?;
    }
    Some(form)
}
