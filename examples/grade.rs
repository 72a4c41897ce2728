//! Finds and grades answers as `uqac score` does text, without a model. Each line of standard input is a line of its input (`prompt`,
//! `response`, `target`, `grader`; also `reasoning_content`, `answer_regex`, `finish_reason`, …), or has an `answer` in place of the
//! response; the grader is `math` by default. Each output line has the answer, its normal form and, with a target, whether it is
//! correct: `cargo run --example grade < cases.jsonl`

use serde_json::{Value, json};
use std::error::Error;
use uqac::{Grader, Item, Thinking, correct, find_answer, normal_form};

fn main() -> Result<(), Box<dyn Error>> {
    for (line, text) in std::io::stdin().lines().enumerate() {
        let mut fields: Value = serde_json::from_str(&text?)?;
        let grader = fields.get("grader").cloned().unwrap_or(json!("math"));
        fields["grader"] = grader.clone();
        let grader: Grader = serde_json::from_value(grader)?;
        let result = match (fields["answer"].as_str(), fields["response"].is_string()) {
            (Some(answer), false) => {
                let target = fields["target"].as_str();
                let right = target.map(|target| correct(answer, target, grader));
                json!({"answer": answer, "form": normal_form(answer, grader), "correct": right})
            }
            _ => graded(fields, grader, line as u64 + 1),
        };
        println!("{result}");
    }
    Ok(())
}

/// The answer of a response and whether it is correct; an invalid line has neither.
fn graded(mut fields: Value, grader: Grader, line: u64) -> Value {
    if fields["prompt"].is_null() && fields["messages"].is_null() {
        fields["prompt"] = json!("?");
    }
    let item = match Item::parse(fields.to_string().as_bytes(), line) {
        Ok(item) => item,
        Err(bad) => return json!({"answer": null, "form": null, "correct": null, "error": bad.problem}),
    };
    let response = fields["response"].as_str().unwrap_or_default();
    let thought = ["reasoning_content", "reasoning"].iter().find_map(|field| fields[field].as_str());
    let response = thought.map_or(response.to_owned(), |thought| Thinking::Auto.join("", "", thought, response));
    let reply = Thinking::Auto.split("", &response);
    let found = match &item.pattern {
        Some(pattern) => pattern.find(&reply.text).map(|found| reply.start + found.start..reply.start + found.end),
        None => find_answer(&response, grader.rule())
            .filter(|found| {
                // cut off: only a box is sure to be complete, an announced answer if something follows it
                let (form, goes_on) = (format!("{:?}", found.form), found.bytes.end < response.trim_end().len());
                !item.is_cut_off || form == "Boxed" || (form == "Phrase" && goes_on)
            })
            .map(|found| found.bytes),
    };
    let answer = found.map(|found| {
        let is_number = response[found.clone()].ends_with(|c: char| c.is_ascii_digit());
        let sign = ["%", "\\%"].iter().find(|sign| is_number && response[found.end..].starts_with(**sign));
        &response[found.start..found.end + sign.map_or(0, |sign| sign.len())]
    });
    let right = item.target.as_ref().map(|target| match answer {
        Some(answer) => target.accepts(answer),
        None => target.grader == Grader::Contains && target.accepts(&reply.text),
    });
    json!({"answer": answer, "form": answer.map(|answer| normal_form(answer, grader)), "correct": right})
}
