//! The phrases that announce an answer, and others around it, as a table: `announcements.txt`.

use super::boundary;
use crate::model::reply::rows;
use regex::Regex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

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
    /// Where its words start.
    pub from: usize,
    /// What is announced, if that comes before the words; else where it starts, an empty range.
    pub at: Range<usize>,
    pub then: Then,
}

/// An option's letter, `@` in the table: `B`, `(b)`, `**B) Lyon**`.
const LETTER: &str = r#"(?:\((?P<bracketed>[A-Z])\)|(?:\b|\p{Han}|\p{Hiragana}|\p{Hangul})(?P<letter>(?-i:[A-Z])))(?:[):][^.,;:()\n]{0,40}?| ?\([^()\n]{1,60}\))?["'*_]*"#;

/// Up to three words, `~` in the table.
const WORDS: &str = r"(?:[ *_]+\p{Alphabetic}+){0,3}?[*_]*";

/// The kinds of announcements in the table.
const ANNOUNCEMENTS: [(&str, Then); 3] = [("any", Then::Anything), ("value", Then::Value), ("letter", Then::Letter)];

/// The patterns of each kind: of announcements one by one, of other phrases all in one.
static PATTERNS: LazyLock<HashMap<&str, Vec<Regex>>> = LazyLock::new(|| {
    let mut patterns: HashMap<&str, Vec<String>> = HashMap::new();
    for row in rows(include_str!("announcements.txt")) {
        let of = patterns.entry(row[1]).or_default();
        if ANNOUNCEMENTS.iter().any(|(kind, _)| *kind == row[1]) || of.is_empty() {
            of.push(row[2].replace('@', LETTER).replace('~', WORDS));
        } else {
            of[0].extend(["|", row[2]]);
        }
    }
    let regex = |pattern: String| Regex::new(&format!("(?im){pattern}")).expect("a constant pattern");
    patterns.into_iter().map(|(kind, patterns)| (kind, patterns.into_iter().map(regex).collect())).collect()
});

/// The pattern of a kind of phrase.
pub(super) fn phrase(kind: &str) -> &'static Regex {
    &PATTERNS[kind][0]
}

/// The announcements of a text, in order; those of letters only `with_letters`.
pub(super) fn announcements(text: &str, with_letters: bool) -> Vec<Found> {
    let mut found = Vec::new();
    for (kind, then) in ANNOUNCEMENTS.into_iter().filter(|(_, then)| with_letters || *then != Then::Letter) {
        for groups in PATTERNS[kind].iter().flat_map(|pattern| pattern.captures_iter(text)) {
            let Some(whole) = groups.get(0) else { continue };
            let named = ["answer", "letter", "bracketed"].iter().find_map(|name| groups.name(name));
            let at = named.map_or(whole.end()..whole.end(), |part| part.range());
            let before = &text[line_start(text, whole.start())..whole.start()];
            if then == Then::Letter || !phrase("other").is_match(before) {
                found.push(Found { from: whole.start(), at, then });
            }
        }
    }
    found.sort_by_key(|found| found.at.start);
    found
}

/// The start of the line that `at` is on, or of its last hundred bytes.
fn line_start(text: &str, at: usize) -> usize {
    let from = boundary(text, at.saturating_sub(100));
    text[from..at].rfind('\n').map_or(from, |newline| from + newline + 1)
}

/// The pattern of a row of `grammar.txt`.
pub(super) fn expanded(name: &str) -> String {
    let alternatives = rows(include_str!("grammar.txt")).filter(|row| row[1] == name).map(|row| row[2]);
    let pattern = alternatives.collect::<Vec<_>>().join("|");
    let other = |found: &regex::Captures| format!("(?:{})", expanded(&found[1]));
    pattern!("⟨([^⟩]+)⟩").replace_all(&pattern, other).into_owned()
}

/// [`expanded`], compiled on first use.
pub(crate) fn grammar(name: &'static str) -> &'static Regex {
    static PATTERNS: LazyLock<HashMap<&str, OnceLock<Regex>>> =
        LazyLock::new(|| rows(include_str!("grammar.txt")).map(|row| (row[1], OnceLock::new())).collect());
    PATTERNS[name].get_or_init(|| Regex::new(&expanded(name)).expect("a constant pattern"))
}
