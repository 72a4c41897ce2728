//! MATH: competition problems whose answer is in the solution's `\boxed{…}`.

use super::read::{Record, first_record, record, records};
use super::{Benchmark, BoxedInstruction, Grader, Question, TaskError, TaskOptions, asked, items, source::matches};
use crate::{files, io::target::Target, uq::answer::AnswerRule, uq::answer::last_box};
use std::path::{Path, PathBuf};

pub(super) const MATH: Benchmark = Benchmark {
    key: "math",
    patterns: &["math/test", "math-500/test.jsonl", "math500/test.jsonl", "math*500*.jsonl", "math*.jsonl"],
    shared_patterns: &["test", "test.jsonl"],
    fits: |path| {
        let folder = || matches(path, "*/*.json").first().and_then(|path| record(path).ok());
        let first = if path.is_dir() { folder() } else { first_record(path) };
        first.is_some_and(|record| record.text("problem").is_ok() && record.text("solution").is_ok())
    },
    hub: &["HuggingFaceH4/MATH-500"],
    how: "get MATH-500 with: python -m uqac.tasks math-500 -o math.jsonl (needs pip install datasets)\nthen give \
          -t math.jsonl, or give --data the folder that holds the published MATH folder (MATH/test/<subject>/*.json)",
    embedded: None,
    subtasks: None,
    rule: AnswerRule::Boxed,
    max_tokens: [1024, 1536],
    stop: &[],
    read: |path, options| {
        let item = |doc_id, record| item(doc_id, record, options);
        if path.is_dir() { items(folder_records(path), item) } else { items(records(path)?, item) }
    },
};

/// The problems in a folder, by subject, then by number.
fn folder_records(folder: &Path) -> impl Iterator<Item = Result<Record, TaskError>> {
    let entries = |folder: &Path| files::entries(folder).unwrap_or_default();
    let mut found: Vec<PathBuf> = entries(folder).iter().flat_map(|subject| entries(subject)).collect();
    found.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    let number = |path: &PathBuf| files::name(path).trim_end_matches(".json").parse::<u64>().unwrap_or(u64::MAX);
    found.sort_by_cached_key(|path| (path.parent().map(Path::to_path_buf), number(path), path.clone()));
    found.into_iter().map(|path| record(&path))
}

fn item(doc_id: usize, record: Record, options: &TaskOptions) -> Result<Question, TaskError> {
    let problem = record.text("problem")?;
    let target = match record.value.get("answer") {
        Some(_) => record.scalar("answer")?,
        None => boxed_answer(&record)?,
    };
    let target = Target::new(&problem, &target, Grader::Math);
    let prompt = asked(problem, BoxedInstruction::Math, options);
    Ok(Question { doc_id, prompt, target, pattern: None, doc: record.value })
}

/// Content of the solution's last box.
fn boxed_answer(record: &Record) -> Result<String, TaskError> {
    let solution = record.text("solution")?;
    let content =
        last_box(&solution).ok_or_else(|| record.wrong("solution", "a text with a \\boxed{…} that is not empty"))?;
    Ok(solution[content].to_owned())
}
