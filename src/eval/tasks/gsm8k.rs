//! GSM8K: grade-school word problems whose answer is a number.

use super::read::{Record, first_record, records};
use super::{Benchmark, BoxedInstruction, DEFAULT_MAX_TOKENS, Grader, Question, TaskError, TaskOptions, asked, items};
use crate::{io::target::Target, uq::answer::AnswerRule};

pub(super) const GSM8K: Benchmark = Benchmark {
    key: "gsm8k",
    patterns: &["gsm8k/test.jsonl", "gsm8k/*test*.jsonl", "gsm8k*test*.jsonl", "gsm8k*.jsonl"],
    shared_patterns: &["grade_school_math/data/test.jsonl", "main/test.jsonl", "data/test.jsonl", "test.jsonl"],
    fits: |path| {
        let answer = first_record(path).and_then(|record| record.text("answer").ok());
        answer.is_some_and(|answer| answer.contains("####"))
    },
    hub: &["openai/gsm8k"],
    how: "get it with: python -m uqac.tasks gsm8k -o gsm8k.jsonl (needs pip install datasets)\nthen give -t gsm8k.jsonl",
    embedded: None,
    subtasks: None,
    rule: AnswerRule::Number,
    max_tokens: [DEFAULT_MAX_TOKENS; 2],
    stop: &[],
    read: |path, options| items(records(path)?, |doc_id, record| item(doc_id, record, options)),
};

fn item(doc_id: usize, record: Record, options: &TaskOptions) -> Result<Question, TaskError> {
    let question = record.text("question")?;
    let answer = record.text("answer")?;
    let target = answer.rsplit_once("####").map(|(_, target)| target.trim()).filter(|target| !target.is_empty());
    let target = target.ok_or_else(|| record.error("answer", "a text that ends in \"#### N\"", &answer))?;
    let target = Target::new(&question, target, Grader::Number);
    let prompt = asked(question, BoxedInstruction::All, options);
    Ok(Question { doc_id, prompt, target, pattern: None, doc: record.value })
}
