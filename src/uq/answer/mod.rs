//! Locates the final answer in a response, as bytes of its text and as tokens.
//!
//! [`find_answer`] serves the `corrected` and `paper` profiles, [`find_answer_reference`] the `reference` profile. Only the
//! [reply](crate::model::reply) is searched, never the thought: a response that ends in its thought has no answer.
//!
//! | step | what counts | [`AnswerRule::Number`] takes | the others take |
//! |---|---|---|---|
//! | 1 | the last closed, non-empty `\boxed{…}` or `\fbox{…}`, or several with nothing but commas or "and" between them, unless an announcement after it says only a value | the number that its whole content says, else its content | its content |
//! | 2 | the last of `announcements.txt` (`the answer is X`, `答案：X`, `<answer>X`, `"answer": X`, …) or `#### X` that has one | the number that X says, or a list of numbers; else the last number in X | a formula as it stands; the number X is (not [`AnswerRule::Words`]); else its words; a letter first ([`AnswerRule::Choice`]) |
//! | 3 | a text that is one formula, or ends with an option's line (`C) Paris`) | — | that formula, the option's letter |
//! | 4 | what a text starts with: alone on its line, or before a comma, colon, dash or period and the reason | its number | number, formula, letter, verdict, a few words |
//! | 5 | the last bold part of the last paragraph; what the only or concluding sentence says something is; where options are meant, what the first sentence begins with (`Mars is the …`) | its number | as above; an expression |
//! | 6 | the numbers of the text, without its check, citations and asides if it has others | the last one that is no part of something else (`2\pi`, `3x`, `\pm 5`) | the last one |
//! | 7 | a text of a single word | — | that word |
//!
//! The text is read in normalization form C, with ASCII forms of full-width characters, and without code: blocks in a programming
//! language, calls in backticks. A text that ends where an announced answer was to come has none from step 3 on.
//!
//! The patterns are tables: `announcements.txt` has the words that announce an answer, `grammar.txt` what a number, an option or the
//! end of an answer looks like, and `value/` the spellings, words and units of values.
//!
//! The elements:
//!
//! | element | rule |
//! |---|---|
//! | box content | trimmed; braces nest, `\{` and `\}` are ignored; an inner `\text{…}` stays; `...` and `___` count as empty; if it is brackets only (`\boxed{] }}`), up to the last brace |
//! | X | ends with its sentence (not at an abbreviation or initial), its line, its tag, or after 400 bytes; a question, or what the answer is not, is none; of `not A but B`, B; `**`, `` ` ``, quotes, `$…$`, `\(…\)` around it are not part of it |
//! | formula | between `$…$`, `$$…$$`, `\(…\)` or `\[…\]`, complete except for a final period; for `x = 5` and `3 + 4 = 7`, the number |
//! | X is a number | one number, with at most "about", a currency sign or `x =` before it and a unit after it; anything after "because" or after a comma and a letter is ignored |
//! | words of X | in `the largest n is 34` the part after `is`; an option's letter (`(B) the cat` → `B`, but `A, C` is a list), a verdict (`yes, because …` → `yes`), otherwise X up to "because" and the like |
//! | number | sign, digits, thousands in groups of three (`,` `{,}` `\,` `’` `_`, spaces where it cannot be two numbers; `1.234.567`, `1,23,456`), decimals (`.5` too), `3/4`, `\frac{3}{4}`, `2 1/2`, `1½`, `3:30`, `1e5`, `3 \times 10^5`, `10⁵`, `5 million`, `$1.2M` |
//! | what a content says | [`value`] reads it as the graders do: the number's narrowest form in it if that has the same value (`x = 5 \text{ cm}` → `5`), else all of it (`- 5`, `-\sqrt{4}`, `5 \text{ dozen}`) |
//! | sign | `-`, `−`, `–`, `－` or `+` directly before the digits, and not after a digit, a letter, a closing bracket or another sign; `minus`, `negative` |
//! | currency, percent | outside of a number's span, except in `-$5`, where the sign precedes the currency |
//! | weak numbers | in words (`x2`, `H2O`, `GPT-4`), indices and exponents (`m^2`), ordinals (`3rd`), list marks (`2. …`), versions (`1.2.3`): only if there is no other number |

pub(crate) use crate::model::chat::is_space;
use crate::model::reply::Thinking;
use announce::{Found, Then};
use serde::{Deserialize, Serialize};
use statement::Text;
use std::ops::Range;

/// A constant regular expression, concatenated from its arguments and compiled on first use.
macro_rules! pattern {
    ($($part:expr),+ $(,)?) => {{
        static PATTERN: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new(&[$($part),+].concat()).expect("a constant pattern"));
        &*PATTERN
    }};
}
pub(crate) use pattern;

mod announce;
mod boxed;
pub(crate) mod custom;
mod fold;
mod number;
mod plain;
mod reference;
mod statement;
mod tables;
mod tokens;
pub(crate) mod value;

pub(crate) use boxed::last_box;
pub use custom::AnswerPattern;
pub use fold::digit;
pub(crate) use fold::{ascii_digit, comparable};
pub use reference::find_answer_reference;
pub(crate) use reference::{last_box_text, last_number_text};
pub(crate) use tables::{grammar, list};
pub use tokens::{tokens_of_span, tokens_of_span_reference};

/// The kind of answer to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerRule {
    /// The answer is a number (GSM8K).
    Number,
    /// The answer is in a `\boxed{…}` and may be anything (MATH, BBH).
    Boxed,
    /// Nothing is known about the answer.
    Auto,
    /// The answer is compared as written: in `the answer is 20 km` the unit is part of it.
    Words,
    /// The answer is one of the question's options.
    Choice,
}

impl AnswerRule {
    /// The rule for a dataset, recognised by a word in its name: `gsm8k`, `openai/GSM8K`, `math-500`, `bbh`.
    pub fn for_dataset(dataset: Option<&str>) -> Self {
        let known = [("gsm8k", Self::Number), ("math", Self::Boxed), ("math500", Self::Boxed), ("bbh", Self::Boxed)];
        let name = dataset.unwrap_or_default().to_lowercase();
        let words: Vec<&str> = name.split(|c: char| !c.is_alphanumeric()).collect();
        known.into_iter().find(|(word, _)| words.contains(word)).map_or(Self::Auto, |(_, rule)| rule)
    }
}

/// How answers are compared with the correct one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grader {
    /// By value.
    Number,
    /// As mathematical expressions in LaTeX.
    Math,
    /// By the option's letter.
    Choice,
    /// As words, ignoring case and punctuation.
    Exact,
    /// As words anywhere in the answer, or in the response if no answer is found.
    Contains,
}

impl Grader {
    /// The graders' names.
    pub const NAMES: &str = "number, math, choice, exact or contains";

    /// The answer-search rule for this grader.
    pub fn rule(self) -> AnswerRule {
        match self {
            Grader::Number => AnswerRule::Number,
            Grader::Math => AnswerRule::Boxed,
            Grader::Exact | Grader::Contains => AnswerRule::Words,
            Grader::Choice => AnswerRule::Choice,
        }
    }
}

/// How a response's answer is found.
#[derive(Clone, Copy, Debug)]
pub enum Finder<'a> {
    Rule(AnswerRule),
    Pattern(&'a AnswerPattern),
}

impl From<AnswerRule> for Finder<'_> {
    fn from(rule: AnswerRule) -> Self {
        Finder::Rule(rule)
    }
}

/// The form in which an answer was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerForm {
    /// In a `\boxed{…}` or `\fbox{…}`.
    Boxed,
    /// After words that announce it, or as the response's only formula or word.
    Phrase,
    /// As the last number.
    Number,
}

/// An answer's position in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSpan {
    /// Bytes of the text, on character boundaries and never empty.
    pub bytes: Range<usize>,
    /// The rule that found it.
    pub form: AnswerForm,
}

/// The answer of a response for the `corrected` and `paper` profiles, found in its reply by the steps in the module's table.
///
/// `text` is the response without the template's end tokens. Its thought, marked in any of the known formats, has no answer.
pub fn find_answer(text: &str, rule: AnswerRule) -> Option<AnswerSpan> {
    let reply = Thinking::Auto.split("", text);
    let AnswerSpan { bytes, form } = find_in_reply(&reply.text, rule)?;
    Some(AnswerSpan { bytes: reply.start + bytes.start..reply.start + bytes.end, form })
}

/// [`find_answer`] in a reply.
pub(crate) fn find_in_reply(text: &str, rule: AnswerRule) -> Option<AnswerSpan> {
    let (plain, offsets) = fold::folded(text);
    let (bytes, form) = search(&plain::without_code(&plain), rule)?;
    let end = offsets[bytes.end];
    // an ASCII percent sign is left to the caller
    let sign = if text[end..].starts_with('％') { '％'.len_utf8() } else { 0 };
    Some(AnswerSpan { bytes: offsets[bytes.start]..end + sign, form })
}

/// The steps of the module's table applied to one text.
fn search(text: &str, rule: AnswerRule) -> Option<(Range<usize>, AnswerForm)> {
    use AnswerForm::{Boxed, Number, Phrase};
    let text = &Text { text, numbers: number::numbers(text), rule };
    let place = |answer: &str| {
        let start = text.around(answer).0.len();
        start..start + answer.len()
    };
    let boxed = boxed::last_box(text.text);
    let mut found = announce::announcements(text.text, rule == AnswerRule::Choice);
    found.retain(|found| place(found.at).start >= boxed.as_ref().map_or(0, |content| content.end));
    found.sort_by_key(|found| place(found.at).start);
    let concluded = || found.iter().rev().find_map(|found| text.concluded(found)).map(|answer| (place(answer), Phrase));
    if let Some(content) = boxed {
        let number = if text.is_number() { text.said(&text.text[content.clone()]) } else { None };
        return concluded().or(Some((number.map_or(content, place), Boxed)));
    }
    let letter = if rule == AnswerRule::Choice { concluded() } else { None };
    let announced = || found.iter().rev().find_map(|found| text.announced(found));
    if let Some(answer) = letter.or_else(|| Some((place(announced()?), Phrase))) {
        return Some(answer);
    }
    // cut off where the answer was to come
    let rest = |found: &Found| text.around(found.at).1.trim_matches(['*', '_', ' ', '\n']);
    if found.iter().any(|found| found.then != Then::Letter && found.at.is_empty() && rest(found).is_empty()) {
        return None;
    }
    let other = !text.is_number();
    let phrase = if other { text.only_formula().or_else(|| text.option_line()) } else { None };
    let phrase = phrase.or_else(|| text.first()).or_else(|| text.last_sentence());
    if let Some(answer) = phrase.or_else(|| text.concluding_formula().filter(|_| other)) {
        return Some((place(answer), Phrase));
    }
    let number = text.closing_number().or_else(|| text.counted().filter(|_| !other));
    let word = || Some((place(text.single_word().filter(|_| other)?), Phrase));
    number.map(|number| (place(number), Number)).or_else(word)
}

/// The first character boundary from `at` on.
pub(crate) fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Whether a prompt lists options, so that a letter is an answer.
pub(crate) fn lists_options(prompt: &str) -> bool {
    pattern!(r"(?s)(?:^|[\s*_(])A[*_]*[).:][*_]*\s.*[\s*_(]B[*_]*[).:][*_]*\s").is_match(prompt)
}
