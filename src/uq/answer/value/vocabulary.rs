//! Known words, letters and commands.

use super::rational::Rational;

/// A space-separated word list.
pub(crate) struct Words(pub &'static str);

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

/// Words after or before a number that make it another one, or no value: `5 or more`, `at least 5`, `not 5`.
const QUALIFIERS: Words = Words(
    "and or nor not no than least most between under over below above minus plus negative half squared cubed root to up \
     unless if except without",
);

/// Factor denoted by a word after a number: `million`.
pub(crate) fn multiplier(word: &str) -> Option<Rational> {
    const FACTORS: [(&str, i128); 10] = [
        ("dozen", 12),
        ("hundred", 100),
        ("thousand", 1000),
        ("lakh", 100_000),
        ("million", 1_000_000),
        ("mn", 1_000_000),
        ("crore", 10_000_000),
        ("billion", 1_000_000_000),
        ("bn", 1_000_000_000),
        ("trillion", 1_000_000_000_000),
    ];
    let (_, factor) = FACTORS.iter().find(|(name, _)| *name == word.to_lowercase())?;
    Some(Rational::integer(*factor))
}

/// Whether words qualify the number they stand beside.
pub(super) fn qualifies(words: &str) -> bool {
    words.split(|c: char| !c.is_alphabetic()).any(|word| QUALIFIERS.contains(&word.to_lowercase()))
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
