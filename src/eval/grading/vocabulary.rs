//! The words, letters and commands that are known in an answer.

use super::rational::Rational;

/// Words that measure: they say nothing against a number without them.
pub(super) const UNITS: &[&str] = &[
    "cm",
    "mm",
    "km",
    "ft",
    "kg",
    "mg",
    "ml",
    "lb",
    "lbs",
    "oz",
    "mph",
    "kph",
    "hr",
    "hrs",
    "min",
    "mins",
    "sec",
    "secs",
    "inch",
    "inches",
    "foot",
    "feet",
    "yard",
    "yards",
    "mile",
    "miles",
    "meter",
    "meters",
    "metre",
    "metres",
    "unit",
    "units",
    "square",
    "cubic",
    "sq",
    "cu",
    "per",
    "degree",
    "degrees",
    "deg",
    "radian",
    "radians",
    "rad",
    "dollar",
    "dollars",
    "cent",
    "cents",
    "pound",
    "pounds",
    "ounce",
    "ounces",
    "gram",
    "grams",
    "liter",
    "liters",
    "second",
    "seconds",
    "minute",
    "minutes",
    "hour",
    "hours",
    "day",
    "days",
    "week",
    "weeks",
    "month",
    "months",
    "year",
    "years",
    "people",
    "percent",
    "pct",
    "percentage",
    "ways",
    "way",
    "points",
    "times",
    "gallon",
    "gallons",
    "cup",
    "cups",
    "students",
    "apples",
];

/// Letters that measure where `\text` marks them as no variable.
const UNIT_LETTERS: &str = "msghlLJNWVKCFAΩ";

/// Commands that stand for themselves. Any other that is not listed makes an answer unreadable: it is neither a symbol nor
/// a unit.
pub(super) const SYMBOLS: &[&str] = &[
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "vartheta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "varrho",
    "sigma",
    "varsigma",
    "tau",
    "upsilon",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "Gamma",
    "Delta",
    "Theta",
    "Lambda",
    "Xi",
    "Pi",
    "Sigma",
    "Upsilon",
    "Phi",
    "Psi",
    "Omega",
    "ell",
    "hbar",
    "partial",
    "nabla",
    "angle",
    "measuredangle",
    "triangle",
];

/// Commands that, with their argument, make a symbol of it: `\vec{v}`.
pub(super) const MARKS: &[&str] = &[
    "overline",
    "bar",
    "vec",
    "hat",
    "widehat",
    "tilde",
    "widetilde",
    "overrightarrow",
    "overleftrightarrow",
    "overarc",
    "underline",
    "dot",
    "ddot",
];

/// What a word multiplies the number before it with.
pub(super) fn multiplier(word: &str) -> Option<Rational> {
    let power = match word.to_lowercase().as_str() {
        "hundred" => 2,
        "thousand" => 3,
        "million" => 6,
        "billion" => 9,
        "trillion" => 12,
        _ => return None,
    };
    Rational::integer(10).power(power)
}

/// Whether a single letter measures, rather than stands for a number.
pub(super) fn is_unit_letter(letter: char) -> bool {
    UNIT_LETTERS.contains(letter)
}

/// Morning or afternoon, which no number says.
pub(super) fn is_half_of_day(words: &str) -> bool {
    matches!(words.trim().to_lowercase().replace('.', "").as_str(), "am" | "pm")
}
