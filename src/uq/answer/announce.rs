//! The words that announce an answer, as a table: `announcements.txt`.

use regex::Regex;
use std::ops::Range;
use std::sync::LazyLock;

/// What may follow an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Anything,
    /// A number, a formula, an option or a verdict, and nothing else.
    Value,
    /// An option's letter.
    Letter,
}

/// An announcement found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// What is announced, if that comes before the words; else where it starts, an empty range.
    pub at: Range<usize>,
    pub then: Then,
}

/// An option's letter, `@` in the table: `B`, `(b)`, `**B) Lyon**`.
const LETTER: &str = r#"(?:\((?P<bracketed>[A-Z])\)|(?:\b|\p{Han}|\p{Hiragana}|\p{Hangul})(?P<letter>(?-i:[A-Z])))(?:[):][^.,;:()\n]{0,40}?| ?\([^()\n]{1,60}\))?["'*_]*"#;

/// Up to three words, `~` in the table.
const WORDS: &str = r"(?:[ *_]+\p{Alphabetic}+){0,3}?[*_]*";

/// Words before an announcement that make it none: "I hope this answer is clear", "if the answer is 3, then".
static OTHER: LazyLock<Regex> = LazyLock::new(|| {
    let words = r"(?i)\b(?:(?:this|that|your|each|every|any|an|another)|(?:if|whether|suppose|assuming|unless)(?: that)? (?:the|my))[\s*_]+(?:final |correct )?$";
    Regex::new(words).expect("a constant pattern")
});

static PATTERNS: LazyLock<Vec<(Regex, Then)>> = LazyLock::new(|| {
    let rows = include_str!("announcements.txt").lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let (then, pattern) = line.split_once('\t')?.1.split_once('\t')?;
        let then = [("any", Then::Anything), ("value", Then::Value), ("letter", Then::Letter)]
            .into_iter()
            .find_map(|(name, kind)| (name == then).then_some(kind))?;
        let pattern = pattern.replace('@', LETTER).replace('~', WORDS);
        Some((Regex::new(&format!("(?im){pattern}")).expect("a constant pattern"), then))
    };
    rows.filter_map(row).collect()
});

/// The announcements of a text, in order; those of letters only `with_letters`.
pub(super) fn announcements(text: &str, with_letters: bool) -> Vec<Found> {
    let mut found = Vec::new();
    for (pattern, then) in PATTERNS.iter().filter(|(_, then)| with_letters || *then != Then::Letter) {
        found.extend(pattern.captures_iter(text).filter_map(|groups| {
            let whole = groups.get(0)?;
            let named = ["answer", "letter", "bracketed"].iter().find_map(|name| groups.name(name));
            let at = named.map_or(whole.end()..whole.end(), |part| part.range());
            let before = &text[line_start(text, whole.start())..whole.start()];
            (*then == Then::Letter || !OTHER.is_match(before)).then_some(Found { at, then: *then })
        }));
    }
    found.sort_by_key(|found| found.at.start);
    found
}

/// The start of the line that `at` is on, or of its last hundred bytes.
fn line_start(text: &str, at: usize) -> usize {
    let from = (at.saturating_sub(100)..=at).find(|from| text.is_char_boundary(*from)).unwrap_or(at);
    text[from..at].rfind('\n').map_or(from, |newline| from + newline + 1)
}
