//! The words that announce an answer, as a table: `announcements.txt`.

use super::{boundary, tables::expanded, tables::grammar};
use crate::model::reply::rows;
use regex::Regex;
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
pub(super) struct Found<'t> {
    pub words: &'t str,
    /// What is announced, if the words have it; else the empty text where it starts.
    pub at: &'t str,
    pub then: Then,
}

static ANNOUNCEMENTS: LazyLock<Vec<(Then, Regex)>> = LazyLock::new(|| {
    let row = |row: Vec<&str>| {
        let then = match row[1] {
            "any" => Then::Anything,
            "value" => Then::Value,
            _ => Then::Letter,
        };
        let pattern = row[2].replace('@', &expanded("announced letter")).replace('~', &expanded("up to three words"));
        (then, Regex::new(&format!("(?im){pattern}")).expect("a constant pattern"))
    };
    rows(include_str!("announcements.txt")).map(row).collect()
});

/// The announcements of a text; those of letters only `with_letters`.
pub(super) fn announcements(text: &str, with_letters: bool) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    for (then, pattern) in ANNOUNCEMENTS.iter().filter(|(then, _)| with_letters || *then != Then::Letter) {
        for groups in pattern.captures_iter(text) {
            let Some(words) = groups.get(0) else { continue };
            let named = ["answer", "letter", "bracketed"].iter().find_map(|name| groups.name(name));
            let at = named.map_or(&text[words.end()..words.end()], |part| part.as_str());
            let before = &text[boundary(text, words.start().saturating_sub(100))..words.start()];
            let before = before.rsplit('\n').next().unwrap_or_default();
            let none = grammar(if *then == Then::Letter { "hearsay" } else { "other" });
            if !none.is_match(before) {
                found.push(Found { words: words.as_str(), at, then: *then });
            }
        }
    }
    found
}
