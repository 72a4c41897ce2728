//! Known words, letters and commands.

use super::rational::Rational;
use crate::uq::answer::{self, pattern};

/// A space-separated word list.
pub(super) struct Words(pub &'static str);

impl Words {
    /// Whether a word is in the list; case-sensitive.
    pub fn contains(&self, word: &str) -> bool {
        self.position(word).is_some()
    }

    /// Index of a word in the list.
    pub fn position(&self, word: &str) -> Option<usize> {
        self.0.split_whitespace().position(|known| known == word)
    }
}

/// Units of measure, in lower case. A number with a unit equals the number without it.
pub(super) const UNITS: Words = Words(
    "cm mm km ft kg mg ml lb lbs oz mph kph hr hrs min mins sec secs inch inches foot feet yard yards mile miles \
     meter meters metre metres unit units square cubic sq cu per degree degrees deg radian radians rad dollar dollars \
     cent cents pound pounds ounce ounces gram grams liter liters second seconds minute minutes hour hours day days \
     week weeks month months year years people percent pct percentage ways way points times gallon gallons cup cups \
     students apples",
);

/// Words for the percent sign.
pub(super) const PERCENT: Words = Words("percent pct percentage");

/// Functions written before their argument, with or without a backslash.
pub(super) const FUNCTIONS: Words = Words("sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh ln log lg exp");

/// Commands that denote themselves. An answer with a command from no list is not parsed as a formula.
pub(super) const SYMBOLS: Words = Words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma \
     varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar \
     partial nabla angle measuredangle triangle",
);

/// Commands that form a symbol together with their argument: `\vec{v}`.
pub(super) const MARKS: Words =
    Words("overline bar vec hat widehat tilde widetilde overrightarrow overleftrightarrow overarc underline dot ddot");

/// Zero to nineteen.
pub(super) const SMALL_NUMBERS: Words = Words(answer::SMALL_NUMBERS);

/// Twenty to ninety.
pub(super) const TENS: Words = Words(answer::TENS);

/// Fractions of one.
pub(super) const FRACTIONS: Words = Words("half halves third thirds quarter quarters");

/// Factor denoted by a word after a number: `million`.
pub(super) fn multiplier(word: &str) -> Option<Rational> {
    const POWERS_OF_TEN: [(&str, i128); 5] =
        [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];
    let (_, power) = POWERS_OF_TEN.iter().find(|(name, _)| *name == word.to_lowercase())?;
    Rational::integer(10).power(*power)
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
pub(super) fn half_of_day(answer: &str) -> Option<&'static str> {
    let found = pattern!(r"(?i)[0-9]\s*(?:\\?text\{\s*|\\[,;! ]?\s*)?([ap])\.?\s?m\b").captures(answer)?;
    Some(if found[1].eq_ignore_ascii_case("a") { "am" } else { "pm" })
}
