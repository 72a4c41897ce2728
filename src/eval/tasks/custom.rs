//! Questions of one's own: a JSONL file that says with each how its answer is to be compared.

use super::read::{Record, records};
use super::source::file_name;
use super::{DEFAULT_MAX_TOKENS, Grader, Question, Task, TaskError, TaskOptions, items};
use crate::uq::answer::AnswerRule;
use std::path::Path;

pub(super) fn load(path: &Path, options: &TaskOptions) -> Result<Task, TaskError> {
    let items = items(records(path)?, item)?;
    let all = |grader: Grader| items.iter().all(|item| item.grader == grader);
    let rule = if all(Grader::Number) {
        AnswerRule::Number
    } else if all(Grader::Math) {
        AnswerRule::Boxed
    } else if all(Grader::Exact) {
        AnswerRule::Words
    } else {
        AnswerRule::Auto
    };
    let name = file_name(path);
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    Ok(Task {
        name: name.strip_suffix(".jsonl").unwrap_or(name).to_owned(),
        rule,
        items,
        source: path.to_path_buf(),
        max_tokens: options.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        stop: options.stop.clone().unwrap_or_default(),
    })
}

fn item(doc_id: usize, record: Record) -> Result<Question, TaskError> {
    let (question, target) = (record.text("question")?, record.scalar("answer")?);
    let name = record.text("grader")?;
    let grader = serde_json::from_value(name.clone().into());
    let grader = grader.map_err(|_| record.error("grader", "number, math, choice or exact", &name))?;
    Ok(Question { doc_id, prompt: question, target, grader, doc: record.value })
}
