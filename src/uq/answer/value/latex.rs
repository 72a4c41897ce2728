//! LaTeX with presentation-only markup removed: one spelling for everything the parsers look at.

use super::super::{comparable, grammar, tables::list};
use crate::model::reply::rows;
use regex::{Captures, Regex};
use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

/// Max bytes of an answer to be parsed as a formula.
const MAX_LENGTH: usize = 2000;

/// A row of `spellings.txt`: its kind, and the columns after it.
fn spellings() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    rows(include_str!("spellings.txt")).map(|row| (row[0], row[1], row.get(2).copied().unwrap_or_default()))
}

/// A text with the patterns of one kind of row replaced.
pub(crate) fn rewritten(kind: &str, text: &str) -> String {
    static PATTERNS: LazyLock<Vec<(&str, Regex, String)>> = LazyLock::new(|| {
        let patterns = spellings().filter(|(kind, ..)| !matches!(*kind, "is" | "ignored" | "thousands"));
        let regex = |pattern| Regex::new(pattern).expect("a constant pattern");
        patterns.map(|(kind, pattern, to)| (kind, regex(pattern), to.replace('␣', " "))).collect()
    });
    let patterns = PATTERNS.iter().filter(|(of, ..)| *of == kind);
    patterns.fold(text.to_owned(), |text, (_, pattern, to)| pattern.replace_all(&text, to).into_owned())
}

/// An answer in the normal forms of `spellings.txt`, with `\text{…}` for all words and single spaces, without percent signs, sizes
/// and fonts; and whether it has a percent sign or the word. A thousands separator is a comma or nothing; a dollar sign is money.
/// `None` for a text too long to be an answer.
pub(crate) fn clean(source: &str) -> Option<(String, bool)> {
    if source.len() > MAX_LENGTH {
        return None;
    }
    let source = &*comparable(source);
    // Outside a matrix, a double backslash is an escaped single one.
    let single = if source.contains("\\begin") { source.to_owned() } else { source.replace("\\\\", "\\") };
    let single = rewritten("before", &single);
    // money is not paired; a pair delimits a formula
    let dollar = pattern!(r"(\\.)|\$");
    let dollars = dollar.find_iter(&single).filter(|found| found.as_str() == "$").count();
    let single = if dollars % 2 == 1 { single } else { dollar.replace_all(&single, "$1").into_owned() };
    let normal = normal(&single);
    let normal = normal.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = without_groups(&normal);
    let (text, percent) = (rewritten("after", &text), pattern!(r"\b(?:percent|per cent|pct|percentage)\b"));
    let percent = source.contains('%') || percent.is_match(&text);
    let text = rewritten("sign", &text)
        .trim_end_matches(['.', ',', ';', ':', ' '])
        .trim_start_matches([',', ';', ':', ' '])
        .into();
    Some((text, percent))
}

/// A text in the normal forms of the table.
fn normal(mut rest: &str) -> String {
    /// By spelling: its normal form, and whether that only holds where it separates no thousands.
    static NORMAL: LazyLock<HashMap<&str, (String, bool)>> = LazyLock::new(|| {
        let of = |(kind, normal, spellings): (&'static str, &'static str, &'static str)| {
            let (normal, spellings) = if kind == "ignored" { ("", normal) } else { (normal, spellings) };
            spellings.split(' ').map(move |known| (known, (normal.replace('␣', " "), kind == "thousands")))
        };
        spellings().filter(|(kind, ..)| matches!(*kind, "is" | "ignored" | "thousands")).flat_map(of).collect()
    });
    static TOKENS: LazyLock<Regex> = LazyLock::new(|| {
        let mut others: Vec<&str> = NORMAL.keys().copied().collect();
        others.sort_by_key(|known| (std::cmp::Reverse(known.len()), *known));
        let end = |known: &str| if known.ends_with(|c: char| c.is_ascii_alphabetic()) { r"\b" } else { "" };
        let others: Vec<String> = others.iter().map(|known| regex::escape(known) + end(known)).collect();
        Regex::new(&format!(r"(?s){}|\\[A-Za-z]+|\\.?", others.join("|"))).expect("a constant pattern")
    });
    let three = pattern!("^[0-9]{3}(?:[^0-9]|$)");
    let mut text = String::new();
    while let Some(found) = TOKENS.find(rest) {
        text.push_str(&rest[..found.start()]);
        rest = &rest[found.end()..];
        match (NORMAL.get(found.as_str()), found.as_str().trim_start_matches('\\')) {
            (Some((_, true)), _) if text.ends_with(|c: char| c.is_ascii_digit()) && three.is_match(rest) => {}
            (Some((normal, _)), _) => text.push_str(normal),
            (_, font) if list("fonts").contains(&font) => {
                let Some(open) = rest.trim_start().strip_prefix('{') else { continue };
                let (inside, after) = group(rest.trim_start()).unwrap_or((open, ""));
                text.push_str(&in_words(inside));
                rest = after;
            }
            (_, "" | "{" | "}") => text.push_str(found.as_str()),
            (_, "!") => rest = if text.ends_with(',') { rest.trim_start() } else { rest },
            (_, name) if name.starts_with(|c: char| c.is_ascii_alphabetic()) => text.push_str(&format!("\\{name} ")),
            _ => text.push(' '),
        }
    }
    text + rest
}

/// The argument of a command for words.
fn in_words(argument: &str) -> String {
    let plain = argument.replace(['{', '}', '$', '\\', '~'], " ");
    match plain.trim() {
        function if list("functions").contains(&function) => format!("\\{function} "),
        constant @ ("mod" | "i" | "e") => format!(" {constant} "),
        number if pattern!(r"^(?:[-−–$]*[0-9][0-9.,/]*|[-−–+])$").is_match(number) => {
            number.replace(['−', '–'], "-")
        }
        words => format!("\\text{{{words}}}"),
    }
}

/// Joins groups of three digits that cannot be separate numbers: `1 000`, `12 345 678`, `1.234.567`, not `100 200 300`.
fn without_groups(text: &str) -> Cow<'_, str> {
    let joined = |found: &Captures| [&found[1], &found[2].replace([' ', '.'], ""), &found[3]].concat();
    grammar("groups in a formula").replace_all(text, joined)
}

/// Removes commas before groups of three digits, except in brackets, where a comma separates.
pub(crate) fn without_thousands(text: &str) -> String {
    let plain = |found: &Captures| {
        let before = &text[..found.get(0).map_or(0, |number| number.start())];
        let outside = || before.chars().map(nesting).sum::<i32>() == 0 && !before.ends_with('.');
        // `1,234`, `12,345,678` and `1,23,456`, not `1234,567`, `0,123` or `1,23`
        let separated = pattern!(r"^[1-9](?:[0-9]{0,2}(?:,[0-9]{3})+|[0-9]?(?:,[0-9]{2})+,[0-9]{3})$");
        if separated.is_match(&found[0]) && outside() { found[0].replace(',', "") } else { found[0].to_owned() }
    };
    pattern!("[0-9,]*[0-9]").replace_all(text, plain).into_owned()
}

/// The ASCII letters at the start of a text.
pub(super) fn letters(text: &str) -> &str {
    &text[..text.bytes().take_while(u8::is_ascii_alphabetic).count()]
}

/// Content of the braces at the start of a text, and the text after them.
pub(crate) fn group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let closes = |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    };
    let end = text.find(closes).filter(|_| text.starts_with('{'))?;
    Some((&text[1..end], &text[end + 1..]))
}

/// Splits at separators outside brackets and LaTeX environments.
pub(crate) fn split<'a>(text: &'a str, separators: &[char]) -> Vec<&'a str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        let command = |name| i32::from(c == '\\' && text[at..].starts_with(name));
        depth += nesting(c) + command("\\begin") - command("\\end");
        if depth == 0 && separators.contains(&c) {
            parts.push(&text[start..at]);
            start = at + c.len_utf8();
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Change of the bracket depth at a character.
pub(crate) fn nesting(c: char) -> i32 {
    i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'))
}
