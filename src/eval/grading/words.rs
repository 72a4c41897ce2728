//! Answers in words, and answers that name one of the question's options.

use crate::uq::answer::{grammar, pattern};
use std::collections::BTreeSet;

/// Lower-case words with single spaces, without surrounding quotes, punctuation and formatting; an answer of brackets
/// only (the closing ones of BIG-Bench Hard's `dyck_languages`) without spaces.
pub(super) fn normal_form(answer: &str) -> String {
    let text = pattern!(r"\\(?:text|textbf|textit|mathrm|mathbf|boxed)\{").replace_all(answer.trim(), "{");
    if let Some(brackets) = brackets(&text) {
        return brackets;
    }
    let text =
        initials(&text.replace(['{', '}', '$', '*', '`', '"', '“', '”', '\\', '~'], " ").replace(['’', '‘'], "'"));
    let loose = |c: char| matches!(c, '.' | '!' | '?' | ':' | '\'' | '(' | ')' | '[' | ']');
    let words = text.split([' ', '\t', '\n', '\r', ',', ';', '\u{a0}']).map(|word| word.trim_matches(loose));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    words.join(" ")
}

/// A text with initials as one word: `J. K.` and `J.K.` are `JK`, `U.S.A.` is `USA`.
fn initials(text: &str) -> String {
    let dotted = pattern!(r"\b(?:\p{Lu}\.[ \u{a0}]?)+(?:\p{Lu}\b\.?)?");
    let joined = |found: &regex::Captures| {
        let letters: String = found[0].chars().filter(|c| c.is_alphabetic()).collect();
        if letters.chars().count() > 1 { letters + " " } else { found[0].to_owned() }
    };
    dotted.replace_all(text, joined).into_owned()
}

/// An answer that consists only of brackets.
fn brackets(text: &str) -> Option<String> {
    let plain = text.replace("\\langle", "<").replace("\\rangle", ">").replace(['$', '\\', ',', '"', '`'], "");
    let plain: String = plain.split_whitespace().collect();
    let found = !plain.is_empty() && plain.chars().all(|c| "()[]{}<>".contains(c));
    found.then_some(plain)
}

/// The letter in an answer like `B`, `(b)`, `B) the cat`, `option B`, `\text{(B)}`, but not in `a cat`.
pub(super) fn letter(answer: &str) -> Option<char> {
    let plain = pattern!(r"\\[A-Za-z]+").replace_all(answer, " ");
    let plain = plain.replace(['{', '}', '$', '*', '`', '"', '\\', '_'], " ");
    let found = grammar("letter of an answer").captures(plain.trim())?;
    let letter = found.iter().skip(1).flatten().next()?;
    (!grammar("more options").is_match(&plain.trim()[letter.end()..]))
        .then(|| letter.as_str().to_ascii_uppercase().chars().next())
        .flatten()
}

/// The letter of an answer, or the letters of a list, in order; else its words.
pub(super) fn letters(answer: &str) -> String {
    match letter(answer) {
        Some(letter) => letter.into(),
        None if grammar("letters of an answer").is_match(answer) => {
            let letters: BTreeSet<char> = answer.chars().filter(char::is_ascii_uppercase).collect();
            letters.into_iter().map(|letter| format!("{letter};")).collect()
        }
        None => normal_form(answer),
    }
}

/// The letter of the option whose words an answer repeats.
pub(super) fn letter_of_text(answer: &str, options: &[(char, &str)]) -> Option<char> {
    let wanted = normal_form(answer);
    let mut fitting = options.iter().filter(|(_, text)| normal_form(text) == wanted).map(|(letter, _)| *letter);
    let letter = fitting.next().filter(|_| !wanted.is_empty())?;
    if fitting.any(|other| other != letter) { None } else { Some(letter) }
}
