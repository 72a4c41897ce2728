//! The words and patterns of answers, as tables: `vocabulary.txt` and `grammar.txt`.

use crate::model::reply::rows;
use regex::Regex;
use std::{collections::HashMap, sync::LazyLock, sync::OnceLock};

/// The words of a list.
pub(crate) fn list(name: &str) -> &'static [&'static str] {
    static LISTS: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
        let list = |row: Vec<&'static str>| (row[0], row[1].split(' ').collect());
        rows(include_str!("vocabulary.txt")).map(list).collect()
    });
    &LISTS[name]
}

/// The pattern of a row of `grammar.txt`, or of a list of words.
pub(super) fn expanded(name: &str) -> String {
    let alternatives = rows(include_str!("grammar.txt")).filter(|row| row[1] == name).map(|row| row[2]);
    let mut alternatives: Vec<&str> = alternatives.collect();
    if alternatives.is_empty() {
        alternatives = list(name).iter().filter_map(|word| word.split('=').next()).collect();
    }
    let pattern = alternatives.join("|");
    let other = |found: &regex::Captures| format!("(?:{})", expanded(&found[1]));
    pattern!("⟨([^⟩]+)⟩").replace_all(&pattern, other).into_owned()
}

/// [`expanded`], compiled on first use.
pub(crate) fn grammar(name: &'static str) -> &'static Regex {
    static PATTERNS: LazyLock<HashMap<&str, OnceLock<Regex>>> =
        LazyLock::new(|| rows(include_str!("grammar.txt")).map(|row| (row[1], OnceLock::new())).collect());
    PATTERNS[name].get_or_init(|| Regex::new(&expanded(name)).expect("a constant pattern"))
}
