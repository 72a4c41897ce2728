//! GSM8K: grade-school word problems whose answer is a number.

use super::read::{Record, first_record, records};
use super::source::Files;
use super::{Grader, Item, Task, TaskError, TaskOptions, task, user};
use crate::uq::answer::AnswerRule;

const FILES: Files = Files {
    task: "gsm8k",
    patterns: &["gsm8k/test.jsonl", "gsm8k/*test*.jsonl", "gsm8k*test*.jsonl", "gsm8k*.jsonl"],
    shared_patterns: &["grade_school_math/data/test.jsonl", "main/test.jsonl", "data/test.jsonl", "test.jsonl"],
    fits: |path| {
        let answer = first_record(path).and_then(|record| record.text("answer").ok());
        answer.is_some_and(|answer| answer.contains("####"))
    },
    hub: &["openai/gsm8k"],
    how: "get it with: mkdir -p DATA/gsm8k && curl -Lo DATA/gsm8k/test.jsonl https://raw.githubusercontent.com/openai/\
          grade-school-math/master/grade_school_math/data/test.jsonl\nthen give --data DATA (the copy on the Hugging \
          Face hub is Parquet, which is not read)",
};

pub(super) fn load(options: &TaskOptions) -> Result<Task, TaskError> {
    let path = FILES.find(options)?;
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
