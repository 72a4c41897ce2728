//! Finds and grades answers as `uqac eval` does. Each line of standard input is a JSON object with `response` or
//! `answer`, optionally `target` and `grader` (`number`, `math`, `choice`, `exact`); each output line has the answer
//! and, with a target, whether it is correct: `cargo run --release --example grade < cases.jsonl`

use serde::Deserialize;
use serde_json::json;
use std::error::Error;
use uqac::Grader;
use uqac::{AnswerRule, find_answer};
use uqac::{correct, normal_form};

#[derive(Deserialize)]
struct Case {
    response: Option<String>,
    answer: Option<String>,
    target: Option<String>,
    #[serde(default = "math")]
    grader: Grader,
}

fn math() -> Grader {
    Grader::Math
}

fn main() -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lines() {
        let case: Case = serde_json::from_str(&line?)?;
        let rule = match case.grader {
            Grader::Number => AnswerRule::Number,
            Grader::Exact => AnswerRule::Words,
            Grader::Math | Grader::Choice => AnswerRule::Boxed,
            Grader::Contains => AnswerRule::Auto,
        };
        let found = |response: String| find_answer(&response, rule).map(|span| response[span.bytes].to_owned());
        let answer = case.answer.or_else(|| case.response.and_then(found));
        let form = answer.as_deref().map(|answer| normal_form(answer, case.grader));
        let right = case.target.map(|target| answer.as_deref().is_some_and(|a| correct(a, &target, case.grader)));
        println!("{}", json!({"answer": answer, "form": form, "correct": right}));
    }
    Ok(())
}
