//! Abacus: sums in many steps, the test set of the small model that comes with this program.

use super::read::{Record, first_record, records};
use super::source::Files;
use super::{Grader, Item, Task, TaskError, TaskOptions, task, user};
use crate::model::demo;
use crate::uq::answer::AnswerRule;

const FILES: Files = Files {
    task: "abacus",
    patterns: &["models/abacus/test.jsonl", "abacus/test.jsonl", "abacus*.jsonl"],
    shared_patterns: &["test.jsonl"],
    fits: |path| first_record(path).is_some_and(|record| record.value.get("template").is_some()),
    hub: &[],
    how: "it comes with this program",
};

pub(super) fn load(options: &TaskOptions) -> Result<Task, TaskError> {
    let path = match FILES.find(options) {
        Err(TaskError::Missing { .. }) => demo::folder()?.join(demo::TEST_SET),
        found => found?,
    };
    let items = records(&path)?.into_iter().enumerate().map(|(doc_id, record)| item(doc_id, record));
    task("abacus", AnswerRule::Number, items.collect::<Result<_, _>>()?, &path)
}

fn item(doc_id: usize, record: Record) -> Result<Item, TaskError> {
    let (question, target) = (record.text("question")?, record.scalar("answer")?);
    Ok(Item { doc_id, messages: user(question), target, grader: Grader::Number, doc: record.value })
}
