//! The correct answer of a question, as publishers and other tools write it.

use crate::uq::answer::{Grader, last_box, pattern};
use serde::Deserialize;
use serde_json::Value;

/// The correct answers of a question, and how they are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// May list options, whose words then count as their letters.
    pub question: String,
    /// Any of them is right; not empty.
    pub answers: Vec<String>,
    pub grader: Grader,
}

/// A record's options: their texts (MMLU's `choices`), or texts with labels (ARC's).
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Choices {
    Texts(Vec<String>),
    Labelled { text: Vec<String>, label: Vec<String> },
}

const TEXT: &str = "a text that is not empty, a number, or a list of these";
const CHOICE: &str = "an option's letter; an index counts the record's choices, or the options in the question, from 0";

impl Target {
    pub fn new(question: &str, answer: &str, grader: Grader) -> Target {
        Target { question: question.to_owned(), answers: vec![answer.to_owned()], grader }
    }

    /// Reads a text, a number or a boolean, or a list of alternatives: a worked solution counts as its answer, an index of a
    /// choice as the option's letter.
    ///
    /// # Errors
    /// What was expected.
    pub fn read(value: &Value, grader: Grader, question: String, of: Option<Choices>) -> Result<Target, &'static str> {
        let one = |value: &Value| {
            let text = match value {
                Value::String(text) => stated(text).trim().to_owned(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => return Err(TEXT),
            };
            if text.is_empty() {
                return Err(TEXT);
            }
            // a label like `2)` if nothing could be counted
            let counts = value.is_number() || of.is_some() || !options(&question).is_empty();
            let is_index = grader == Grader::Choice && counts && text.bytes().all(|byte| byte.is_ascii_digit());
            if is_index { letter(&text, value.is_number(), &question, of.as_ref()).ok_or(CHOICE) } else { Ok(text) }
        };
        let answers: Vec<String> = match value {
            Value::Array(values) => values.iter().map(one).collect::<Result<_, _>>()?,
            value => vec![one(value)?],
        };
        let found = Target { question, answers, grader };
        if found.answers.is_empty() { Err(TEXT) } else { Ok(found) }
    }

    /// The answer to show.
    pub fn shown(&self) -> &str {
        self.answers.first().map_or("", String::as_str)
    }
}

/// The final answer of a publisher's worked solution: after GSM8K's `####`, or in MATH's last box; any other text as it is.
pub fn stated(text: &str) -> &str {
    let marked = text.rsplit_once("####").map(|(_, answer)| answer.trim()).filter(|answer| !answer.is_empty());
    marked.or_else(|| last_box(text).map(|content| &text[content])).unwrap_or(text)
}

/// The letter of the option that a number names by its label, its text or its index; `None` if it names none, or two.
fn letter(number: &str, is_index: bool, question: &str, choices: Option<&Choices>) -> Option<String> {
    let (texts, labels): (&[String], &[String]) = match choices {
        Some(Choices::Texts(texts)) => (texts, &[]),
        Some(Choices::Labelled { text, label }) => (text, label),
        None => (&[], &[]),
    };
    let listed = || options(question).into_iter();
    let given = || ('A'..='Z').zip(texts.iter().map(String::as_str));
    let (letters, texts): (Vec<char>, Vec<&str>) = if choices.is_none() { listed().unzip() } else { given().unzip() };
    let count = texts.len().min(letters.len());
    let index = number.parse().ok().filter(|index: &usize| labels.is_empty() && *index < count);
    let named = labels.iter().position(|label| label == number);
    let named = named.or_else(|| texts.iter().position(|text| *text == number)).filter(|_| !is_index);
    let mut found = index.into_iter().chain(named.filter(|named| *named < count));
    let first = found.next()?;
    found.all(|other| other == first).then(|| letters[first].to_string())
}

/// The options of a text's last list, each on a line like `(A) Louis` or `B. Bernard`: letters and texts.
pub fn options(question: &str) -> Vec<(char, &str)> {
    let mut options: Vec<(char, &str)> = Vec::new();
    for option in pattern!(r"(?m)^[ \t]*[(\[]?([A-Z])[)\].:][ \t]+(.+?)[ \t]*$").captures_iter(question) {
        let (_, [letter, text]) = option.extract();
        if letter == "A" {
            options.clear(); // an example's list is over
        }
        options.extend(letter.chars().map(|letter| (letter, text)));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn targets_are_read_as_meant() {
        let listed = "Which?\nA) 28\nB) 29\nC) 30";
        let (texts, arc) = (json!(["8", "9", "1"]), json!({"text": ["x", "y"], "label": ["1", "2"]}));
        let none = Value::Null;
        for (value, grader, question, choices, expected) in [
            (json!("2 * 2 = <<2*2=4>>4.\n#### 4"), Grader::Number, "", &none, Ok(vec!["4"])),
            (json!("so $\\boxed{\\frac12}$, as \\boxed{} says"), Grader::Math, "", &none, Ok(vec!["\\frac12"])),
            (json!("####"), Grader::Exact, "", &none, Ok(vec!["####"])),
            (json!(" 72\n"), Grader::Number, "", &none, Ok(vec!["72"])),
            (json!(72.0), Grader::Number, "", &none, Ok(vec!["72.0"])),
            (json!(true), Grader::Exact, "", &none, Ok(vec!["true"])),
            (json!(["4", 5, "#### 6"]), Grader::Number, "", &none, Ok(vec!["4", "5", "6"])),
            (json!([]), Grader::Number, "", &none, Err(TEXT)),
            (json!([["4"]]), Grader::Number, "", &none, Err(TEXT)),
            (json!({"text": "4"}), Grader::Number, "", &none, Err(TEXT)),
            (json!(" "), Grader::Number, "", &none, Err(TEXT)),
            (json!("(b)"), Grader::Choice, "", &none, Ok(vec!["(b)"])),
            (json!(1), Grader::Choice, listed, &none, Ok(vec!["B"])),
            (json!("0"), Grader::Choice, listed, &none, Ok(vec!["A"])),
            (json!("29"), Grader::Choice, listed, &none, Ok(vec!["B"])),
            (json!(3), Grader::Choice, listed, &none, Err(CHOICE)),
            (json!(1), Grader::Choice, "no options", &none, Err(CHOICE)),
            (json!(1), Grader::Choice, "", &texts, Ok(vec!["B"])),
            (json!("1"), Grader::Choice, "", &texts, Err(CHOICE)), // the index or the text
            (json!([0, 2]), Grader::Choice, "", &texts, Ok(vec!["A", "C"])),
            (json!("2"), Grader::Choice, "", &arc, Ok(vec!["B"])),
            (json!("0"), Grader::Choice, "", &arc, Err(CHOICE)),
        ] {
            let target = Target::read(&value, grader, question.to_owned(), Choices::deserialize(choices).ok());
            let answers = target.as_ref().map(|target| target.answers.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(answers.map_err(|expected| *expected), expected, "{value} {question}");
        }
    }

    #[test]
    fn the_last_list_has_the_options() {
        let shots = "Q: a?\n(A) x\n(B) y\nA: (B)\n\nQ: b?\n(A) u\n(B) v w \n(C) x.";
        assert_eq!(options(shots), [('A', "u"), ('B', "v w"), ('C', "x.")]);
        assert_eq!(options("Plan A. Go."), []);
    }
}
