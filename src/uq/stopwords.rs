//! Tokens that carry no reasoning of their own and are no targets of the attention chain.

use super::rules::StopWords;
use std::collections::HashSet;
use std::sync::LazyLock;

/// The stop words by kind, in lower case; contractions have the typographic apostrophe (U+2019) only.
const WORDS: &[&[&str]] = &[
    // articles and demonstratives
    &["a", "an", "the", "this", "that", "these", "those"],
    // pronouns
    &[
        "i",
        "me",
        "my",
        "myself",
        "we",
        "our",
        "ours",
        "ourselves",
        "you",
        "your",
        "yours",
        "yourself",
        "yourselves",
        "he",
        "him",
        "his",
        "himself",
        "she",
        "her",
        "hers",
        "herself",
        "it",
        "its",
        "itself",
        "they",
        "them",
        "their",
        "theirs",
        "themselves",
    ],
    // question words
    &["what", "when", "where", "which", "who", "whom", "why", "how"],
    // auxiliaries
    &[
        "am", "is", "are", "was", "were", "be", "been", "being", "have", "has", "had", "having", "do", "does", "did",
        "doing", "could", "should", "would", "ought", "cannot",
    ],
    // contractions of pronouns and adverbs
    &[
        "he’d",
        "he’ll",
        "he’s",
        "here’s",
        "how’s",
        "i’d",
        "i’ll",
        "i’m",
        "i’ve",
        "it’s",
        "let’s",
        "she’d",
        "she’ll",
        "she’s",
        "that’s",
        "there’s",
        "they’d",
        "they’ll",
        "they’re",
        "they’ve",
        "we’d",
        "we’ll",
        "we’re",
        "we’ve",
        "what’s",
        "when’s",
        "where’s",
        "who’s",
        "why’s",
        "you’d",
        "you’ll",
        "you’re",
        "you’ve",
    ],
    // contractions of negations
    &[
        "aren’t",
        "can’t",
        "couldn’t",
        "didn’t",
        "doesn’t",
        "don’t",
        "hadn’t",
        "hasn’t",
        "haven’t",
        "isn’t",
        "mustn’t",
        "shan’t",
        "shouldn’t",
        "wasn’t",
        "weren’t",
        "won’t",
        "wouldn’t",
    ],
    // prepositions of place and time
    &[
        "about", "above", "after", "against", "at", "before", "below", "between", "by", "down", "during", "for",
        "from", "in", "into", "of", "off", "on", "out", "over", "through", "to", "under", "until", "up", "with",
    ],
    // conjunctions and negations
    &["and", "as", "because", "but", "if", "no", "nor", "not", "or", "than", "while"],
    // quantities
    &[
        "all", "any", "both", "each", "few", "more", "most", "only", "other", "own", "same", "some", "such", "too",
        "very",
    ],
    // adverbs
    &["again", "further", "here", "once", "so", "then", "there"],
];

/// The stop characters: punctuation that is no operator.
const CHARACTERS: &str = ".,!?;:'\"“”‘’()[]{}_…\\@~`";

/// All of them, and the empty string.
static STOP: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let words = WORDS.iter().copied().flatten().map(|word| (*word).to_owned());
    words.chain(CHARACTERS.chars().map(String::from)).chain([String::new()]).collect()
});

/// Whether a token's text, without any whitespace and in lower case, is a stop word, a stop character or nothing.
pub fn is_stop_word(token_text: &str) -> bool {
    STOP.contains(&folded(token_text))
}

/// The same for the `corrected` profile, where a letter or word that is the answer's own form is content: with the
/// answer `(A)`, the token ` a` is no article but the option the reasoning is about.
///
/// The answer's own form is its text without brackets, quotes, punctuation and a `\text{…}` around it, or the letter
/// that marks it as an option (`(A) the cat`).
pub fn is_stop_word_for_answer(token_text: &str, answer_text: &str) -> bool {
    let token = folded(token_text);
    STOP.contains(&token) && !(is_word(&token) && is_own_form(&token, answer_text))
}

/// Either of them, as the rule has it.
pub fn is_stop_word_under(rule: StopWords, token_text: &str, answer_text: &str) -> bool {
    match rule {
        StopWords::List => is_stop_word(token_text),
        StopWords::AnswerAware => is_stop_word_for_answer(token_text, answer_text),
    }
}

/// A text without whitespace, as Python sees it (also the four separators of ASCII), in lower case.
fn folded(text: &str) -> String {
    let is_space = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
    text.chars().filter(|c| !is_space(*c)).collect::<String>().to_lowercase()
}

/// Whether a stop word is one of letters, not punctuation and not empty.
fn is_word(folded: &str) -> bool {
    folded.contains(char::is_alphabetic)
}

/// Whether a word is what an answer says.
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

/// What stands around an answer and does not belong to it.
fn is_mark(c: char) -> bool {
    CHARACTERS.contains(c) || matches!(c, '*' | '$')
}

/// The inside of a formula's text command: of `\text{A}`, `A`.
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
        let words: Vec<&str> = WORDS.iter().copied().flatten().copied().collect();
        assert_eq!(words.len(), 174);
        assert_eq!(CHARACTERS.chars().count(), 24);
        assert_eq!(STOP.len(), 174 + 24 + 1);
        assert!(words.iter().all(|word| folded(word) == **word && !word.contains('\'')));
        assert_eq!(words.iter().filter(|word| word.contains('’')).count(), 50);
    }

    #[test]
    fn tokens_are_folded_first() {
        let stop = ["", " ", "\n\n", "\u{1c}", " The", "THE", " t he", "I’m", "…", " \\", "`", "cannot"];
        assert!(stop.iter().all(|text| is_stop_word(text)), "{:?}", stop.iter().find(|text| !is_stop_word(text)));
        let content =
            ["can't", "don't", "..", "-", "+", "=", "$", "<", "#", "12", "x", "cat", "us", "will", "can", "\u{200b}"];
        assert!(content.iter().all(|text| !is_stop_word(text)), "{:?}", content.iter().find(|text| is_stop_word(text)));
    }

    #[test]
    fn the_answers_own_form_is_content() {
        let content =
            [(" a", "(A)"), ("A", "A"), (" A", "\\text{A}"), ("a", "**A**"), ("I", "(I)"), ("A", "(A) the cat")];
        let content =
            content.iter().chain(&[(" No", "no"), ("not", "\"not\""), ("A", "A: a cat"), ("a", "$\\textbf{(A)}$")]);
        for (token, answer) in content {
            assert!(is_stop_word(token) && !is_stop_word_for_answer(token, answer), "{token:?} for {answer:?}");
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
            assert!(is_stop_word_for_answer(token, answer), "{token:?} for {answer:?}");
        }
        assert!(!is_stop_word_for_answer("12", "12"));
    }
}
