//! BIG-Bench Hard: 27 kinds of puzzles, each with three worked examples.

use super::{Benchmark, Grader, Question, TaskError, items, read::Record, read::examples, read::text, source::matches};
use crate::{files, io::target::Target, uq::answer::AnswerRule, uq::answer::pattern};
use regex::{Captures, Regex};
use std::path::{Path, PathBuf};

pub(super) const BBH: Benchmark = Benchmark {
    key: "bbh",
    patterns: &["bbh/bbh", "bbh", "big-bench-hard/bbh"],
    shared_patterns: &["."],
    fits: |path| prompt_folder(path).is_some(),
    hub: &[],
    how: "get it with: git clone --depth 1 https://github.com/suzgunmirac/BIG-Bench-Hard\nthen give --data BIG-Bench-Hard; \
          or, without the worked examples: python -m uqac.tasks bbh:NAME -o bbh.jsonl, then -t bbh.jsonl",
    embedded: None,
    subtasks: Some(subtasks),
    rule: AnswerRule::Boxed,
    max_tokens: [1536; 2],
    // after its answer a model continues with a question of its own, imitating the worked examples
    stop: &["\nQ:", "\nQUESTION"],
    read: |path, _| {
        let prompt = read_prompt(path)?;
        items(examples(path)?, |doc_id, record| item(doc_id, record, &prompt))
    },
};

fn subtasks(path: &Path) -> Vec<(String, PathBuf)> {
    let files = if path.is_file() { vec![path.to_path_buf()] } else { matches(path, "*.json") };
    files.into_iter().map(|file| (subtask(&file), file)).collect()
}

/// The subtask name of a question file: the file name without its extension.
fn subtask(file: &Path) -> String {
    files::name(file).trim_end_matches(".json").to_owned()
}

fn item(doc_id: usize, record: Record, examples: &str) -> Result<Question, TaskError> {
    let (question, target) = (record.text("input")?, record.text("target")?);
    let target = Target::new(&question, &target, grader(&target));
    let prompt = format!("{examples}\n\nQUESTION\n------\nQ: {question}");
    Ok(Question { doc_id, prompt, target, pattern: None, doc: record.value })
}

/// Chosen by the answer itself: a few published questions need a different grader than the rest of their subtask.
fn grader(target: &str) -> Grader {
    if pattern!(r"^\([A-Z]\)$").is_match(target) {
        Grader::Choice
    } else if target.parse::<i64>().is_ok() {
        Grader::Number
    } else {
        Grader::Exact
    }
}

/// The folder of worked examples that belongs to a folder of questions.
fn prompt_folder(folder: &Path) -> Option<PathBuf> {
    let near = [folder.join("cot-prompts"), folder.join("../cot-prompts")];
    near.into_iter().find(|path| path.is_dir())
}

/// The text before the question: the instruction, and the worked examples with their answers in boxes.
fn read_prompt(questions: &Path) -> Result<String, TaskError> {
    let subtask = subtask(questions);
    let folder = questions.parent().and_then(prompt_folder);
    let path = folder.map(|folder| folder.join(format!("{subtask}.txt"))).filter(|path| path.is_file());
    let path = path.ok_or_else(|| TaskError::Missing {
        task: format!("bbh:{subtask}"),
        looked: vec![format!("cot-prompts/{subtask}.txt beside {}", questions.display())],
        how: BBH.how.to_owned(),
    })?;
    let text = text(&path)?;
    // The publisher's warning against training on the data ends with a line of dashes.
    let published = text.split_once("\n-----\n").map_or(text.as_str(), |(_, published)| published);
    prompt(published).map_err(|found| TaskError::Layout {
        path,
        expected: "an instruction, then examples that start with \"Q: \" and say \"the answer is …\" once each",
        found,
    })
}

/// The instruction is the first line: the rest of `snarks`' ends up among the examples, in the paper's code too.
fn prompt(published: &str) -> Result<String, String> {
    let (instruction, examples) = published.trim_start().split_once('\n').ok_or("a single line")?;
    let (questions, answers) = (pattern!("(?m)^Q: ").find_iter(examples).count(), answer().find_iter(examples).count());
    if questions == 0 || questions != answers {
        return Err(format!("{questions} questions and {answers} answers"));
    }
    Ok(format!(
        "{} Put your final answer in `\\boxed{{ }}`.\n\nEXAMPLES\n------\n{}",
        instruction.trim(),
        box_answers(examples.trim())
    ))
}

/// An answer extends to the end of its sentence or line.
fn answer() -> &'static Regex {
    pattern!(r"(?m)\b((?i:the answer is)\s+)(.+?)(\.?[ \t]*$|\.[ \t])")
}

/// "the answer is (B)." becomes "the answer is \boxed{(B)}."
fn box_answers(examples: &str) -> String {
    let boxed = |found: &Captures| format!("{}\\boxed{{{}}}{}", &found[1], found[2].trim(), &found[3]);
    answer().replace_all(examples, boxed).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_boxed() {
        let cases = [
            ("So the answer is (B).", r"So the answer is \boxed{(B)}."),
            ("So the answer is False.\n\nQ: a", "So the answer is \\boxed{False}.\n\nQ: a"),
            ("So the answer is -219.", r"So the answer is \boxed{-219}."),
            ("So the answer is 2.5.", r"So the answer is \boxed{2.5}."),
            ("So the answer is ] } ].", r"So the answer is \boxed{] } ]}."),
            ("So the answer is (A). Done.\n", "So the answer is \\boxed{(A)}. Done.\n"),
            ("The answer is oven sioux", r"The answer is \boxed{oven sioux}"),
            ("the answer should be the chief", "the answer should be the chief"),
        ];
        for (published, expected) in cases {
            assert_eq!(box_answers(published), expected);
        }
    }

    #[test]
    fn a_prompt_has_as_many_answers_as_questions() {
        assert!(prompt("Do it.\n\nQ: a\nA: b. So the answer is c.\n").is_ok());
        for bad in ["", "Do it.", "Do it.\nNothing.", "Do it.\n\nQ: a\nA: c.\n", "Do it.\nthe answer is c."] {
            assert!(prompt(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn targets_choose_the_grader() {
        let cases = [
            ("(B)", Grader::Choice),
            ("(R)", Grader::Choice),
            ("-1344", Grader::Number),
            ("Monsters, Inc", Grader::Exact),
            (") ]", Grader::Exact),
            ("()", Grader::Exact),
            ("yes", Grader::Exact),
        ];
        for (target, expected) in cases {
            assert_eq!(grader(target), expected, "{target}");
        }
    }
}
