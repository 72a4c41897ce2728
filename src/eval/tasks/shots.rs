//! Custom prompts: a template around each question, and few-shot examples before it.

use super::{Question, Task, TaskError, TaskOptions};
use crate::uq::answer::pattern;

/// Placeholder for the question in a prompt template.
pub const PLACEHOLDER: &str = "{question}";

/// The task with its first questions as examples for the rest, each formatted by the template.
pub(super) fn arranged(mut task: Task, options: &TaskOptions) -> Result<Task, TaskError> {
    let (shots, questions) = (options.shots, task.items.len());
    if shots >= questions {
        return Err(TaskError::Shots { task: task.name, shots, questions });
    }
    let template = options.prompt_template.as_deref();
    let asked = |question: &Question| {
        template.map_or_else(|| question.prompt.clone(), |t| t.replace(PLACEHOLDER, &question.prompt))
    };
    // a template ends where the answer begins
    let between = if template.is_some() { " " } else { "\n" };
    let example = |question: Question| format!("{}{between}{}\n\n", asked(&question), worked(&question));
    let examples: String = task.items.drain(..shots).map(example).collect();
    for question in &mut task.items {
        question.prompt = examples.clone() + &asked(question);
    }
    Ok(task)
}

/// The publisher's worked solution, or else a sentence that states the answer.
fn worked(question: &Question) -> String {
    let text = |field: &str| question.doc.get(field)?.as_str().filter(|text| text.trim() != question.target.shown());
    match text("solution").or_else(|| text("answer")) {
        // GSM8K's calculator annotations are not meant for readers
        Some(solution) => pattern!("<<[^>]*>>").replace_all(solution.trim(), "").into_owned(),
        None => format!("The answer is {}.", question.target.shown()),
    }
}
