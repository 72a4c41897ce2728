//! Questions of one's own: a JSONL file that says with each how its answer is to be compared.

use super::read::{Record, records};
use super::source::file_name;
use super::{Grader, MAX_TOKENS, Question, Task, TaskError, TaskOptions, items, user};
use crate::uq::answer::AnswerRule;
use std::path::Path;

pub(super) fn load(path: &Path, options: &TaskOptions) -> Result<Task, TaskError> {
    let items = items(records(path)?, item)?;
    let all = |grader: Grader| items.iter().all(|item| item.grader == grader);
    let rule = if all(Grader::Number) {
        AnswerRule::Number
    } else if all(Grader::Math) {
        AnswerRule::Boxed
    } else {
        AnswerRule::Auto
    };
    let name = file_name(path);
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let task = Task {
        name: name.strip_suffix(".jsonl").unwrap_or(name).to_owned(),
        rule,
        items,
        source: path.to_path_buf(),
        max_tokens: MAX_TOKENS.of(options),
        stop: options.stop.clone().unwrap_or_default(),
    };
    task.not_empty()
}

fn item(doc_id: usize, record: Record) -> Result<Question, TaskError> {
    let (question, target) = (record.text("question")?, record.scalar("answer")?);
    let grader = match record.text("grader")?.as_str() {
        "number" => Grader::Number,
        "math" => Grader::Math,
        "choice" => Grader::Choice,
        "exact" => Grader::Exact,
        other => return Err(record.error("grader", "number, math, choice or exact", other)),
    };
    Ok(Question { doc_id, messages: user(question), target, grader, doc: record.value })
}
