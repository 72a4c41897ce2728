//! GSM8K: grade-school word problems whose answer is a number.

use super::read::{Record, records};
use super::{Grader, Item, Task, TaskError, TaskOptions, task, user};
use crate::uq::answer::AnswerRule;
use std::path::{Path, PathBuf};

pub(super) fn load(options: &TaskOptions) -> Result<Task, TaskError> {
    let path = find(options)?;
    let items = records(&path)?.into_iter().enumerate().map(|(doc_id, record)| item(doc_id, record));
    task("gsm8k", AnswerRule::Number, items.collect::<Result<_, _>>()?, &path)
}

fn item(doc_id: usize, record: Record) -> Result<Item, TaskError> {
    let question = record.text("question")?;
    let answer = record.text("answer")?;
    let target = answer.rsplit_once("####").map(|(_, target)| target.trim()).filter(|target| !target.is_empty());
    let target = target.ok_or_else(|| record.error("answer", "a text that ends in \"#### N\"", &answer))?;
    Ok(Item { doc_id, messages: user(question), target: target.to_owned(), grader: Grader::Number, doc: record.value })
}

fn find(options: &TaskOptions) -> Result<PathBuf, TaskError> {
    let folder = options.data.as_deref().unwrap_or(Path::new("."));
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    names.sort();
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("gsm8k") && (name.ends_with(".jsonl") || name.ends_with(".jsonl.gz"))
    };
    names.into_iter().find(is_it).ok_or_else(|| TaskError::Missing {
        task: String::from("gsm8k"),
        looked: vec![folder.join("gsm8k*.jsonl").display().to_string()],
        how: String::from("get it from https://github.com/openai/grade-school-math"),
    })
}
