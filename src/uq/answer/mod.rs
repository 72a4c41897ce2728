//! Locates the final answer in a response, as bytes of its text and as tokens.
//!
//! [`find_answer`] serves the `corrected` and `paper` profiles, [`find_answer_reference`] the `reference` profile. If the text
//! has an end of thought, [`find_answer`] searches after the last one first, and the whole text only if that fails.
//!
//! | step | what counts | [`AnswerRule::Number`] takes | the others take |
//! |---|---|---|---|
//! | 1 | the last closed, non-empty `\boxed{…}` or `\fbox{…}` | its number if it has exactly one, else its content | its content |
//! | 2 | the last of `the answer is X`, `answer: X`, an answer heading, `#### X`, `the correct option is X` that has one | the number X is; else the last number in X | a formula as it stands; the number X is (not [`AnswerRule::Words`]); else its words |
//! | 3 | a text that is one formula, or ends with an option's line (`C) Paris`) | — | that formula, the option's letter |
//! | 4 | the numbers of the text | the last one | the last one |
//! | 5 | a text of a single word | — | that word |
//!
//! The elements:
//!
//! | element | rule |
//! |---|---|
//! | box content | trimmed; braces nest, `\{` and `\}` are ignored; an inner `\text{…}` stays; `...` and `___` count as empty; if it is brackets only (`\boxed{] }}`), up to the last brace |
//! | X | ends with its sentence, its line, or after 400 bytes; `**`, `` ` ``, quotes, `$…$`, `\(…\)` around it are not part of it |
//! | formula | between `$…$`, `$$…$$`, `\(…\)` or `\[…\]`, complete except for a final period; for `x = 5` and `3 + 4 = 7`, the number |
//! | X is a number | one number, with at most "about", a currency sign or `x =` before it and a unit after it; anything after "because" or after a comma and a letter is ignored |
//! | words of X | in `the largest n is 34` the part after `is`; an option's letter (`(B) the cat` → `B`), a verdict (`yes, because …` → `yes`), otherwise X up to "because" and the like |
//! | number | sign, digits, thousands in groups of three (`,` `{,}` `\,` `,\!`, spaces where it cannot be two numbers), decimals (`.5` too), `3/4`, `\frac{3}{4}`, `2 1/2`, `3:30`, `1e5`, `3 \times 10^5`, `5 million` |
//! | sign | `-`, `−` or `+` directly before the digits, and not after a digit, a letter, a closing bracket or another sign |
//! | currency, percent | outside of a number's span, except in `-$5`, where the sign precedes the currency |
//! | weak numbers | in words (`x2`, `H2O`, `GPT-4`), indices and exponents (`m^2`), ordinals (`3rd`), list marks (`2. …`), versions (`1.2.3`): only if there is no other number |

pub(crate) use crate::model::chat::is_space;
use serde::{Deserialize, Serialize};
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

mod boxed;
pub(crate) mod custom;
mod number;
mod phrase;
mod reference;
mod tokens;

pub use custom::AnswerPattern;
pub use number::digit;
pub use reference::find_answer_reference;
pub(crate) use reference::{last_box_text, last_number_text};
pub use tokens::{tokens_of_span, tokens_of_span_reference};

/// Words for zero to nineteen, in order.
pub(crate) const SMALL_NUMBERS: &str = "zero one two three four five six seven eight nine ten eleven twelve thirteen \
    fourteen fifteen sixteen seventeen eighteen nineteen";

/// Words for twenty to ninety, in order.
pub(crate) const TENS: &str = "twenty thirty forty fifty sixty seventy eighty ninety";

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
}

impl AnswerRule {
    /// The rule for a dataset, recognised by a word in its name: `gsm8k`, `openai/GSM8K`, `math-500`, `bbh`.
    pub fn for_dataset(dataset: Option<&str>) -> Self {
        let name = dataset.unwrap_or_default().to_lowercase();
        let has = |known: &[&str]| name.split(|c: char| !c.is_alphanumeric()).any(|word| known.contains(&word));
        if has(&["gsm8k"]) {
            Self::Number
        } else if has(&["math", "math500", "bbh"]) {
            Self::Boxed
        } else {
            Self::Auto
        }
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
            Grader::Exact => AnswerRule::Words,
            Grader::Choice | Grader::Contains => AnswerRule::Auto,
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

/// End-of-thought markers of reasoning models; Gemma 4 uses the last one.
pub(crate) const ENDS_OF_THOUGHT: [&str; 2] = ["</think>", "<channel|>"];

/// An answer's position in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSpan {
    /// Bytes of the text, on character boundaries and never empty.
    pub bytes: Range<usize>,
    /// The rule that found it.
    pub form: AnswerForm,
}

/// The answer of a response for the `corrected` and `paper` profiles, found by the steps in the module's table.
///
/// `text` is the response without the template's end tokens.
pub fn find_answer(text: &str, rule: AnswerRule) -> Option<AnswerSpan> {
    let ends = ENDS_OF_THOUGHT.iter().filter_map(|end| Some(text.rfind(end)? + end.len()));
    if let Some(from) = ends.max()
        && let Some(span) = find_in(&text[from..], rule)
    {
        return Some(AnswerSpan { bytes: from + span.bytes.start..from + span.bytes.end, form: span.form });
    }
    find_in(text, rule)
}

/// The steps of the module's table applied to one text.
fn find_in(text: &str, rule: AnswerRule) -> Option<AnswerSpan> {
    let numbers = number::numbers(text);
    let span = |bytes, form| AnswerSpan { bytes, form };
    if let Some(content) = boxed::last_box(text) {
        let number = (rule == AnswerRule::Number).then(|| number::only_number(&numbers, &content)).flatten();
        return Some(span(number.unwrap_or(content), AnswerForm::Boxed));
    }
    if let Some(bytes) = phrase::announced(text, &numbers, rule) {
        return Some(span(bytes, AnswerForm::Phrase));
    }
    if rule != AnswerRule::Number
        && let Some(bytes) = phrase::only_formula(text, &numbers).or_else(|| phrase::option_line(text))
    {
        return Some(span(bytes, AnswerForm::Phrase));
    }
    if let Some(bytes) = number::last_number(&numbers, &(0..text.len())) {
        return Some(span(bytes, AnswerForm::Number));
    }
    let word = if rule == AnswerRule::Number { None } else { phrase::single_word(text) };
    word.map(|bytes| span(bytes, AnswerForm::Phrase))
}
