//! Stop words: tokens without reasoning content, never targets of the attention chain.

use super::{answer::is_space, rules::StopWords};
use std::{collections::HashSet, sync::LazyLock};

/// The stop words, in lower case; contractions only with the typographic apostrophe (U+2019). `#` lines are headings.
const WORDS: &str = include_str!("stopwords.txt");

fn words() -> impl Iterator<Item = &'static str> {
    WORDS.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace)
}

/// The stop characters: punctuation that is not an operator.
const CHARACTERS: &str = ".,!?;:'\"“”‘’()[]{}_…\\@~`";

/// All stop words and characters, and the empty string.
static STOP: LazyLock<HashSet<String>> = LazyLock::new(|| {
    words().map(str::to_owned).chain(CHARACTERS.chars().map(String::from)).chain([String::new()]).collect()
});

/// Whether a token's text, lower-cased and without whitespace, is a stop word, a stop character or empty.
///
/// [`StopWords::AnswerAware`]: but a letter or word that is the answer itself counts as content: if the answer is `(A)`, the
/// token ` a` is the option, not an article. The answer itself: its text without surrounding brackets, quotes, punctuation
/// and `\text{…}`, or its option letter (`(A) the cat`).
pub fn is_stop_word(rule: StopWords, token_text: &str, answer_text: &str) -> bool {
    let token = folded(token_text);
    let is_answer = || rule == StopWords::AnswerAware && is_word(&token) && is_own_form(&token, answer_text);
    STOP.contains(&token) && !is_answer()
}

/// Lower-cased without whitespace, as in Python.
fn folded(text: &str) -> String {
    text.chars().filter(|c| !is_space(*c)).collect::<String>().to_lowercase()
}

/// Whether a stop word contains letters (is not punctuation or empty).
fn is_word(folded: &str) -> bool {
    folded.contains(char::is_alphabetic)
}

/// Whether a word is the answer itself.
fn is_own_form(word: &str, answer_text: &str) -> bool {
    let answer = without_command(answer_text);
    let mut parts = answer.split(|c: char| c.is_whitespace()).filter(|part| is_word(part));
    let Some(first) = parts.next() else { return false };
    let alone = parts.next().is_none();
    let letter = first.trim_start_matches(is_mark);
    let name = letter.trim_end_matches(is_mark);
    // "A cat" has an article, "A) a cat" and "A: a cat" an option.
    let marks_option = name.chars().count() == 1 && letter.len() > name.len();
    (alone || marks_option) && folded(name) == word
}

/// Markup and punctuation around an answer.
fn is_mark(c: char) -> bool {
    CHARACTERS.contains(c) || matches!(c, '*' | '$')
}

/// The content of a formula's text command: `A` for `\text{A}`.
fn without_command(text: &str) -> &str {
    const COMMANDS: [&str; 5] = ["\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{", "\\mbox{"];
    let text = text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '$' | '*'));
    let inner = COMMANDS.iter().find_map(|command| text.strip_prefix(command));
    inner.and_then(|inner| inner.strip_suffix('}')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_has_no_doubles() {
        let words: Vec<&str> = words().collect();
        assert_eq!(words.len(), 174);
        assert_eq!(CHARACTERS.chars().count(), 24);
        assert_eq!(STOP.len(), 174 + 24 + 1);
        assert!(words.iter().all(|word| folded(word) == *word && !word.contains('\'')));
        assert_eq!(words.iter().filter(|word| word.contains('’')).count(), 50);
    }

    #[test]
    fn tokens_are_folded_first() {
        let stop = ["", " ", "\n\n", "\u{1c}", " The", "THE", " t he", "I’m", "…", " \\", "`", "cannot"];
        let is_stop = |text: &&&str| is_stop_word(StopWords::List, text, "");
        assert_eq!(stop.iter().find(|text| !is_stop(text)), None);
        let content =
            ["can't", "don't", "..", "-", "+", "=", "$", "<", "#", "12", "x", "cat", "us", "will", "can", "\u{200b}"];
        assert_eq!(content.iter().find(is_stop), None);
    }

    #[test]
    fn the_answers_own_form_is_content() {
        let content =
            [(" a", "(A)"), ("A", "A"), (" A", "\\text{A}"), ("a", "**A**"), ("I", "(I)"), ("A", "(A) the cat")];
        let content =
            content.iter().chain(&[(" No", "no"), ("not", "\"not\""), ("A", "A: a cat"), ("a", "$\\textbf{(A)}$")]);
        for (token, answer) in content {
            let listed = is_stop_word(StopWords::List, token, answer);
            assert!(listed && !is_stop_word(StopWords::AnswerAware, token, answer), "{token:?} for {answer:?}");
        }
        let stop = [
            (" a", "(B)"),
            ("a", "A cat"),
            ("(", "(A)"),
            ("", ""),
            (" ", "A"),
            (")", ")"),
            ("the", "12"),
            ("no", "yes"),
        ];
        for (token, answer) in stop {
            assert!(is_stop_word(StopWords::AnswerAware, token, answer), "{token:?} for {answer:?}");
        }
        assert!(!is_stop_word(StopWords::AnswerAware, "12", "12"));
    }
}
