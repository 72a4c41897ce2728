//! Answers that name one of the options of a question.

use super::words;
use regex::Regex;
use std::sync::LazyLock;

/// The option's letter, else the words of the answer.
pub(super) fn normal_form(answer: &str) -> String {
    letter(answer).map_or_else(|| words::normal_form(answer), |letter| letter.to_string())
}

/// The letter of an answer like `B`, `(b)`, `B) the cat`, `option B`, `\text{(B)}`, but not of `a cat`.
pub(super) fn letter(answer: &str) -> Option<char> {
    static LETTER: LazyLock<Regex> = LazyLock::new(|| {
        let found = r"(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])(?:[).:]|\s*$|\s+[-–—]))";
        Regex::new(&format!(r"^(?i:(?:the\s+)?(?:correct\s+)?(?:answer|option|choice)(?:\s+is)?:?\s+)?{found}"))
            .expect("the pattern is a constant")
    });
    static COMMAND: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\[A-Za-z]+").expect("the pattern is a constant"));
    let plain = COMMAND.replace_all(answer, " ").replace(['{', '}', '$', '*', '`', '"', '\\', '_'], " ");
    let found = LETTER.captures(plain.trim())?;
    let letter = found.get(1).or_else(|| found.get(2))?.as_str().chars().next()?;
    Some(letter.to_ascii_uppercase())
}

/// The letter of the option whose words an answer repeats; `question` lists them as `(A) …`, one a line.
pub(super) fn letter_of_text(answer: &str, question: &str) -> Option<char> {
    static OPTION: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?m)^[ \t]*\(?([A-Z])[).:][ \t]+(.+?)[ \t]*$").expect("the pattern is a constant")
    });
    let wanted = words::normal_form(answer);
    let options = OPTION.captures_iter(question);
    let mut fitting =
        options.filter(|option| words::normal_form(&option[2]) == wanted).map(|option| option[1].to_owned());
    let letter = fitting.next().filter(|_| !wanted.is_empty())?;
    if fitting.any(|other| other != letter) { None } else { letter.chars().next() }
}
