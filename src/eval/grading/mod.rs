//! Whether an answer is right.

use super::tasks::Grader;

/// Whether `answer`, as extracted from a response, equals `target`.
#[must_use]
pub fn correct(answer: &str, target: &str, grader: Grader) -> bool {
    normal_form(answer, grader) == normal_form(target, grader)
}

/// A form of the answer that equal answers share: votes of self-consistency are counted by it.
#[must_use]
pub fn normal_form(answer: &str, grader: Grader) -> String {
    let answer = answer.trim();
    match grader {
        Grader::Number => {
            let digits: String = answer.chars().filter(|c| !matches!(c, ',' | '$' | '%' | ' ')).collect();
            digits.parse::<f64>().map_or(digits, |value| value.to_string())
        }
        Grader::Math => answer.split_whitespace().collect(),
        Grader::Choice => answer.trim_matches(['(', ')', '.']).to_uppercase(),
        Grader::Exact => answer.to_lowercase(),
    }
}
