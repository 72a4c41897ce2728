//! Abacus: sums in many steps, made for the small model that comes with this program.

use super::read::{Record, first_record, records};
use super::source::Files;
use super::{Grader, Item, Task, TaskError, TaskOptions, task, user};
use crate::uq::answer::AnswerRule;
use std::path::PathBuf;

const FILES: Files = Files {
    task: "abacus",
    patterns: &["models/abacus/test.jsonl", "abacus/test.jsonl", "abacus*.jsonl"],
    shared_patterns: &["test.jsonl"],
    fits: |path| first_record(path).is_some_and(|record| record.value.get("template").is_some()),
    hub: &[],
    how: "it comes with this program's sources: give --data the folder of the checkout",
};

pub(super) fn load(options: &TaskOptions) -> Result<Task, TaskError> {
    let path = match FILES.find(options) {
        Err(missing @ TaskError::Missing { .. }) => beside_the_program().ok_or(missing)?,
        found => found?,
    };
    let items = records(&path)?.into_iter().enumerate().map(|(doc_id, record)| item(doc_id, record));
    task("abacus", AnswerRule::Number, items.collect::<Result<_, _>>()?, &path)
}

fn item(doc_id: usize, record: Record) -> Result<Item, TaskError> {
    let (question, target) = (record.text("question")?, record.scalar("answer")?);
    Ok(Item { doc_id, messages: user(question), target, grader: Grader::Number, doc: record.value })
}

/// In the folder of the program or one above it: `target/release` is two below the checkout.
fn beside_the_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(4).map(|folder| folder.join("models/abacus/test.jsonl"));
    folders.into_iter().find(|path| path.is_file())
}
