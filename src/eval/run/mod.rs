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
use crate::io::jsonl::append::Appender;
use crate::io::record::Status;
use crate::model::chat::Conversation;
use assess::Prompt;
use folder::{FolderError, RunFolder, Shard, open_lines};
use manifest::EvalOptions;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

/// What stops a run. What is wrong with one item stays with it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

/// How a task is run; none of it changes a result.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Responses that are generated at once.
    pub batch_size: usize,
    /// Only the first n items of each task.
    pub limit: Option<usize>,
    pub shard: Option<Shard>,
}

impl RunOptions {
    /// The items of a task that this run is about.
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
    /// An earlier run did it.
    pub earlier: bool,
    /// By stage, as in the sample; of an item that this run did.
    pub seconds: Option<&'a BTreeMap<String, f64>>,
    pub error: Option<&'a str>,
}

/// What is looked at in an earlier run's sample.
#[derive(Deserialize)]
struct Earlier {
    doc_id: usize,
    doc: Value,
    /// Each request's prompt and settings.
    arguments: Vec<(IgnoredAny, Map<String, Value>)>,
    metrics: BTreeMap<String, f64>,
    uq: EarlierUq,
}

#[derive(Deserialize)]
struct EarlierUq {
    status: Status,
    finish: FinishReason,
    error: Option<String>,
}

/// Runs the items of `task` that the folder does not have yet. `on_item` is called with every item, earlier runs' first.
pub fn run_task(
    engine: &mut Engine,
    task: &Task,
    options: &EvalOptions,
    run: &RunOptions,
    folder: &RunFolder,
    on_item: &mut dyn FnMut(Event),
) -> Result<(), RunError> {
    let (mut lines, earlier) = open_samples(folder, task, run)?;
    let mut waiting = Vec::new();
    for item in run.items(task) {
        match earlier.get(&item.doc_id) {
            None => waiting.push(item),
            Some(e) => on_item(Event {
                task: &task.name,
                doc_id: item.doc_id,
                status: e.uq.status,
                finish: e.uq.finish,
                correct: e.metrics.get("acc") == Some(&1.0),
                earlier: true,
                seconds: None,
                error: e.uq.error.as_deref(),
            }),
        }
    }
    let mut done = |sample: Sample| -> Result<(), FolderError> {
        lines.append(&sample)?;
        lines.sync()?;
        on_item(Event {
            task: &task.name,
            doc_id: sample.doc_id,
            status: sample.uq.status,
            finish: sample.uq.finish,
            correct: sample.metrics.get("acc") == Some(&1.0),
            earlier: false,
            seconds: Some(&sample.uq.seconds),
            error: sample.uq.error.as_deref(),
        });
        Ok(())
    };
    let plan = batching::Plan { task, options, batch_size: run.batch_size };
    batching::generate(engine, &plan, waiting, &mut done)
}

/// The task's samples in the folder, and what is there; its questions, and where its responses end, must be the task's.
fn open_samples(
    folder: &RunFolder,
    task: &Task,
    run: &RunOptions,
) -> Result<(Appender, HashMap<usize, Earlier>), FolderError> {
    let path = folder.lines("samples", &task.name, run.shard);
    let mut earlier: HashMap<usize, Earlier> = HashMap::new();
    let lines = open_lines(&path, |sample: Earlier| {
        earlier.insert(sample.doc_id, sample);
    })?;
    let same = |e: &Earlier| task.items.iter().find(|i| i.doc_id == e.doc_id).is_none_or(|item| item.doc == e.doc);
    let mut other: Vec<usize> = earlier.values().filter(|e| !same(e)).map(|e| e.doc_id).collect();
    other.sort_unstable();
    if let Some(doc_id) = other.first() {
        return Err(FolderError::OtherQuestion { path, doc_id: *doc_id });
    }
    let ours = Value::from(limits(task));
    let greedy = earlier.values().filter_map(|e| e.arguments.first());
    let mut theirs = greedy.map(|(_, found)| Value::from(only_limits(found)));
    match theirs.find(|theirs| *theirs != ours) {
        Some(found) => Err(FolderError::OtherLimits { path, found: found.to_string(), expected: ours.to_string() }),
        None => Ok((lines, earlier)),
    }
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
