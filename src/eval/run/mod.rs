//! Running a task: prompts in, samples on the disk, one at a time, in any batch the same.
//!
//! Responses are generated [`RunOptions::batch_size`] at a time, whatever item they belong to; an item is assessed and written
//! when all of its have ended. A run that is killed loses the items in flight.

pub mod assess;
mod batching;
pub mod controls;
pub mod fingerprint;
pub mod folder;
pub mod manifest;
pub mod methods;
pub mod sidecar;
pub mod sweep;

use crate::engine::encode::{EncodeError, encode_prompt};
use crate::engine::{Engine, EngineError, FinishReason};
use crate::eval::sample::{Sample, SequenceError};
use crate::eval::tasks::{Question, Task};
use crate::io::record::Status;
use crate::model::chat::Conversation;
use assess::Prompt;
use folder::{FolderError, RunFolder, Shard, open_lines};
use manifest::EvalOptions;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use sweep::SweepError;

/// What stops a run. What is wrong with one item stays with it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

/// How a task is run; none of it changes a result.
#[derive(Clone, Copy)]
pub struct RunOptions {
    /// Responses generated at once.
    pub batch_size: usize,
    /// Only the first n items of each task.
    pub limit: Option<usize>,
    pub shard: Option<Shard>,
}

impl RunOptions {
    /// The items of a task in this run.
    pub fn items<'t>(&self, task: &'t Task) -> impl Iterator<Item = &'t Question> + use<'t> {
        let shard = self.shard;
        let limited = task.items.iter().take(self.limit.unwrap_or(usize::MAX));
        limited.filter(move |item| shard.is_none_or(|shard| shard.has(item.doc_id)))
    }
}

/// What happened to an item, for progress.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub task: &'a str,
    pub doc_id: usize,
    pub status: Status,
    pub finish: FinishReason,
    pub correct: bool,
    /// Done by an earlier run.
    pub earlier: bool,
    /// By stage, as in the sample; of an item that this run did.
    pub seconds: Option<&'a BTreeMap<String, f64>>,
    pub error: Option<&'a str>,
}

/// Called with every item, those that are there first.
pub type OnItem<'a> = dyn FnMut(Event) + 'a;

impl Event<'_> {
    fn of(sample: &Sample, earlier: bool) -> Event<'_> {
        Event {
            task: &sample.task,
            doc_id: sample.doc_id,
            status: sample.uq.status,
            finish: sample.uq.finish,
            correct: sample.metrics.get("acc") == Some(&1.0),
            earlier,
            seconds: (!earlier).then_some(&sample.uq.seconds),
            error: sample.uq.error.as_deref(),
        }
    }
}

/// The question of a sample that is there, and where its response ends, must be the task's.
fn check(sample: &Sample, task: &Task, path: &Path) -> Result<(), FolderError> {
    let (path, doc_id) = (path.to_owned(), sample.doc_id);
    if task.items.iter().any(|item| item.doc_id == doc_id && item.doc != sample.doc) {
        return Err(FolderError::OtherQuestion { path, doc_id });
    }
    let ours = limits(task);
    match sample.arguments.first().map(|(_, found)| only_limits(found)).filter(|found| *found != ours) {
        Some(found) => {
            let [found, expected] = [found, ours].map(|limits| Value::from(limits).to_string());
            Err(FolderError::OtherLimits { path, found, expected })
        }
        None => Ok(()),
    }
}

/// Runs the items of a task that the folder does not have yet.
///
/// # Errors
/// The folder, whose samples are of other questions or cannot be written, or the engine.
pub fn run_task(
    engine: &mut Engine,
    task: &Task,
    options: &EvalOptions,
    run: RunOptions,
    folder: &RunFolder,
    on_item: &mut OnItem,
) -> Result<(), RunError> {
    let path = folder.lines("samples", &task.name, run.shard);
    let mut earlier: BTreeMap<usize, Sample> = BTreeMap::new();
    let lines = open_lines(&path, |sample: Sample| {
        earlier.insert(sample.doc_id, sample);
    })?;
    earlier.values().try_for_each(|sample| check(sample, task, &path))?;
    let mut waiting = VecDeque::new();
    for item in run.items(task) {
        match earlier.get(&item.doc_id) {
            Some(sample) => on_item(Event::of(sample, true)),
            None => waiting.push_back(item),
        }
    }
    batching::generate(engine, (task, options), run.batch_size, waiting, lines, on_item)
}

/// Where a task's responses end, in lm-evaluation-harness's terms.
fn limits(task: &Task) -> Map<String, Value> {
    let mut fields = Map::from_iter([("max_gen_toks".to_owned(), task.max_tokens.into())]);
    if !task.stop.is_empty() {
        fields.insert("until".to_owned(), task.stop.clone().into());
    }
    fields
}

/// A request's limits.
fn only_limits(arguments: &Map<String, Value>) -> Map<String, Value> {
    let limits = arguments.iter().filter(|(key, _)| ["max_gen_toks", "until"].contains(&key.as_str()));
    limits.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// An item's prompt as text and as tokens.
fn prompt(engine: &Engine, item: &Question, options: &EvalOptions) -> Result<Prompt, EncodeError> {
    let conversation = Conversation::Messages(item.messages.clone());
    if options.chat_template {
        let template = engine.chat_template().ok_or(EncodeError::NoChatTemplate)?;
        let text = template.render(&conversation.to_messages(), true)?;
        return Ok(Prompt { tokens: encode_prompt(engine, &conversation, true)?, text });
    }
    let text = item.messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("\n\n");
    Ok(Prompt { tokens: encode_prompt(engine, &Conversation::Prompt(text.clone()), false)?, text })
}
