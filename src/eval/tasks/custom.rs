//! User-supplied questions: a JSONL file with a grader for each.

use super::{DEFAULT_MAX_TOKENS, Grader, Question, Task, TaskError, TaskOptions, items, read::Record, read::records};
use crate::{files, io::target::Choices, io::target::Target, uq::answer::AnswerPattern};
use serde::Deserialize;
use std::path::Path;

pub(super) fn load(path: &Path, options: &TaskOptions) -> Result<Task, TaskError> {
    let name = files::name(path);
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    Ok(Task {
        name: name.strip_suffix(".jsonl").unwrap_or(name).to_owned(),
        rule: None,
        items: items(records(path)?, item)?,
        source: path.to_path_buf(),
        max_tokens: options.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        stop: options.stop.clone().unwrap_or_default(),
    })
}

fn item(doc_id: usize, record: Record) -> Result<Question, TaskError> {
    let question = record.text("question")?;
    // GSM8K's own lines have none
    let is_gsm8k = record.value["answer"].as_str().is_some_and(|answer| answer.contains("\n#### "));
    let name = match record.value.get("grader") {
        None if is_gsm8k => "number".to_owned(),
        _ => record.text("grader")?,
    };
    let grader = serde_json::from_value(name.clone().into());
    let grader = grader.map_err(|_| record.error("grader", Grader::NAMES, &name))?;
    let choices = ["choices", "options"].iter().find_map(|field| Choices::deserialize(record.value.get(field)?).ok());
    let target = Target::read(&record.value["answer"], grader, question.clone(), choices);
    let target = target.map_err(|expected| record.wrong("answer", expected))?;
    Ok(Question { doc_id, prompt: question, target, pattern: pattern(&record)?, doc: record.value })
}

/// `answer_regex`; `answer_match` selects its first or last (default) match.
fn pattern(record: &Record) -> Result<Option<AnswerPattern>, TaskError> {
    let text = |field| record.value.get(field).map(|_| record.text(field)).transpose();
    let Some(regex) = text("answer_regex")? else { return Ok(None) };
    let matched = text("answer_match")?.map(|found| {
        serde_json::from_value(found.as_str().into()).map_err(|_| record.error("answer_match", "first or last", &found))
    });
    let built = AnswerPattern::new(&regex, matched.transpose()?.unwrap_or_default());
    Ok(Some(built.map_err(|why| record.error("answer_regex", "a regular expression", &format!("{regex} ({why})")))?))
}
