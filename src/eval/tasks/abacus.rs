//! Abacus: multi-step sums, the test set of the small model bundled with this program.

use super::read::{Record, first_record, records};
use super::{Benchmark, DEFAULT_MAX_TOKENS, Grader, Question, TaskError, items};
use crate::{io::target::Target, model::demo, uq::answer::AnswerRule};

pub(super) const ABACUS: Benchmark = Benchmark {
    key: "abacus",
    patterns: &["models/abacus/test.jsonl", "abacus/test.jsonl", "abacus*.jsonl"],
    shared_patterns: &["test.jsonl"],
    fits: |path| first_record(path).is_some_and(|record| record.value.get("template").is_some()),
    hub: &[],
    how: "it comes with this program",
    embedded: Some(|| Ok(demo::folder()?.join(demo::TEST_SET))),
    subtasks: None,
    rule: AnswerRule::Number,
    max_tokens: [DEFAULT_MAX_TOKENS; 2],
    stop: &[],
    read: |path, _| items(records(path)?, item),
};

fn item(doc_id: usize, record: Record) -> Result<Question, TaskError> {
    let prompt = record.text("question")?;
    let target = Target::new(&prompt, &record.scalar("answer")?, Grader::Number);
    Ok(Question { doc_id, prompt, target, pattern: None, doc: record.value })
}
