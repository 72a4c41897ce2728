//! Whether an answer is correct. Hand-written: no crate reads LaTeX answers by the rules of the MATH dataset's authors.
//!
//! | grader | counts as equal |
//! |---|---|
//! | [`Grader::Number`] | the same value, exactly, of the whole content: `1,234.50`, `\$1234.5`, `2469/2`, `5 million`, `\$1.2M`, `½`, `two hundred and five`, `minus 5`, `\sqrt{16}`; words around it are ignored; `50%` is 50 and 0.5; a bound (`\ge 5`), several numbers, `2\pi` and `3x` have no value |
//! | [`Grader::Math`] | what the MATH dataset's authors count as equal; and numbers of the same value (`\frac{1}{2}` and `0.5`, `\sqrt{12}` and `2\sqrt{3}`), expressions up to the order of terms and factors, sets and lists in any order, tuples, intervals and inequalities, matrices, equations up to a factor, residues, words; degree, percent and dollar signs and names (`x =`, `f^{-1}(x) =`, `P(X=2) =`, `m + n =`) are ignored; an answer with an unknown command equals only itself |
//! | both | a unit on one side is ignored; units on both sides count: `30 cm` is `0.3 m` and not `30 m` |
//! | [`Grader::Choice`] | the same letter: `B`, `(b)`, `B) the cat`; [`Target::accepts`] also takes the option's words |
//! | [`Grader::Exact`] | the same words, ignoring case, quotes, punctuation and `the` before them; the same number |
//! | [`Grader::Contains`] | as Exact, or the answer contains the target's words in sequence, or its characters in a script without spaces |

use crate::io::target::{Target, options};
use crate::uq::answer::value::{Rational, half_of_day, number, quantity};
use crate::uq::answer::{Grader, comparable, list, pattern};

mod math;
mod reference;
mod words;

/// Whether `answer`, as extracted from a response, equals `target`.
pub fn correct(answer: &str, target: &str, grader: Grader) -> bool {
    let (answer, target) = (&*comparable(answer), &*comparable(target));
    let half_days_differ = || half_of_day(answer).zip(half_of_day(target)).is_some_and(|(a, b)| a != b);
    if matches!(grader, Grader::Number | Grader::Math) {
        if half_days_differ() {
            return false;
        }
        // a unit on one side is ignored, but on both sides it is part of the value
        if let (Some(a), Some(b)) = (quantity(answer), quantity(target)) {
            return a == b;
        }
    }
    match grader {
        Grader::Number => equal_numbers(answer, target),
        Grader::Math => math::equal(answer, target),
        Grader::Choice | Grader::Exact => normal_form(answer, grader) == normal_form(target, grader),
        Grader::Contains => exact(answer) == exact(target) || contains(answer, target),
    }
}

/// A form that equal answers share, by which self-consistency votes are counted.
///
/// Answers that are equal only in a wider sense ([`correct`] accepts `50\%` for 0.5) differ.
pub fn normal_form(answer: &str, grader: Grader) -> String {
    let answer = &*comparable(answer);
    let form = match grader {
        Grader::Number => number_form(answer),
        Grader::Math => math::readings(answer).normal,
        Grader::Choice => return words::letters(answer),
        Grader::Exact | Grader::Contains => return exact(answer),
    };
    form + &half_of_day(answer).map_or(String::new(), |half| format!(" {half}"))
}

/// Whether two numbers are equal; `50%` is 50 and also 0.5.
fn equal_numbers(answer: &str, target: &str) -> bool {
    let (Some((a, a_percent)), Some((b, b_percent))) = (number(answer), number(target)) else {
        return number_form(answer) == number_form(target);
    };
    let (percent, plain) = if a_percent { (a, b) } else { (b, a) };
    let hundredth = || percent.mul(Rational::new(1, 100)?);
    a == b || (a_percent != b_percent && hundredth() == Some(plain))
}

/// The value as a fraction in lowest terms; for a non-number, its words.
fn number_form(answer: &str) -> String {
    number(answer).map_or_else(|| words::normal_form(answer), |(value, _)| value.to_string())
}

/// Whether the target's words occur in the answer, next to no other word; a script without spaces has no words.
fn contains(answer: &str, target: &str) -> bool {
    let [answer, target] = [answer, target].map(words::normal_form);
    let (Some(first), Some(last)) = (target.chars().next(), target.chars().next_back()) else { return false };
    let joins = |outer: Option<char>, inner: char| {
        let number = inner.is_ascii_digit() && outer.is_some_and(|c| matches!(c, '.' | '/' | ':' | '-'));
        number || outer.is_some_and(|c| c.is_alphanumeric() && !is_spaceless(c) && !is_spaceless(inner))
    };
    answer.match_indices(&target).any(|(at, found)| {
        let before = answer[..at].chars().next_back();
        !joins(before, first) && !joins(answer[at + found.len()..].chars().next(), last)
    })
}

/// Whether a character is of a script that puts no spaces between words, or, as Korean, none before endings.
fn is_spaceless(c: char) -> bool {
    let script = pattern!(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー々]");
    script.is_match(c.encode_utf8(&mut [0; 4]))
}

/// Words, a yes or no in English; for a number written only in digits, its value.
fn exact(answer: &str) -> String {
    let words = words::normal_form(answer);
    let digits = words.chars().all(|c| c.is_ascii_digit() || matches!(c, ' ' | '-' | '.'));
    let number = digits && words.contains(|c: char| c.is_ascii_digit()) && !answer.trim().contains(char::is_whitespace);
    let verdict = ["yes", "no"].into_iter().find(|verdict| list(verdict).contains(&&*words));
    let words = words.strip_prefix("the ").unwrap_or(&words);
    if number { number_form(answer) } else { verdict.unwrap_or(words).to_owned() }
}

impl Target {
    /// Whether an answer equals one of the question's; an option's words count as its letter.
    pub fn accepts(&self, answer: &str) -> bool {
        self.answers.iter().any(|right| match self.grader {
            Grader::Choice => normal_form_for(self, right) == normal_form_for(self, answer),
            grader => correct(answer, right, grader),
        })
    }
}

/// [`normal_form`] for a question, where an option's words count as its letter.
pub fn normal_form_for(target: &Target, answer: &str) -> String {
    let named = || words::letter_of_text(answer, &options(&target.question));
    let names_none = target.grader == Grader::Choice && words::letter(answer).is_none();
    let letter = if names_none { named() } else { None };
    letter.map_or_else(|| normal_form(answer, target.grader), String::from)
}

/// The authors' label; `None` for responses that their code cannot grade and skips, those without an answer.
///
/// `response` is the decoded text without the template's end tokens; `target` the correct answer, or the publisher's worked
/// solution containing it. `task` selects the comparison; for items from a file it depends on their grader.
pub fn label_reference(response: &str, target: &str, task: &str, grader: Grader) -> Option<bool> {
    let label = match (task.split(':').next()?, grader) {
        ("gsm8k", _) => reference::gsm8k,
        ("math", _) => reference::math,
        ("bbh", _) => reference::bbh,
        (_, Grader::Number) => reference::gsm8k,
        (_, Grader::Math) => reference::math,
        _ => reference::bbh,
    };
    label(response, target)
}
