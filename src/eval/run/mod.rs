//! Runs a task: prompts in, samples written to disk one at a time, identical for any batch size.
//!
//! Responses are generated [`RunOptions::batch_size`] at a time, regardless of item; an item is assessed and written once all
//! its responses have ended. A killed run loses the items in flight.

mod batching;
pub mod controls;
pub mod fingerprint;
pub mod folder;
pub mod manifest;
pub mod methods;
pub mod sidecar;
pub mod sweep;

use crate::engine::{BATCH_SIZE, Engine, EngineError};
use crate::eval::sample::{Sample, SequenceError};
use crate::{engine::encode::EncodeError, engine::encode::encode_prompt, eval::tasks::Question, eval::tasks::Task};
use crate::{model::chat::Conversation, units::count};
use folder::{FolderError, RunFolder, Shard, open_lines};
use manifest::EvalOptions;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, collections::VecDeque, path::Path};
use sweep::SweepError;

/// Errors that stop a run, unlike an item's own error.
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

/// Options of a run that change no result; also those of the command line.
#[derive(Clone, Copy, clap::Args)]
pub struct RunOptions {
    /// Only the first N items of each task
    #[arg(short = 'n', long, value_name = "N", value_parser = count(0..=u64::MAX))]
    pub limit: Option<usize>,
    /// Part I of N (from 1): every N-th item; the parts may share a folder
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Responses generated at once: faster, more memory, same results
    #[arg(long, value_name = "N", value_parser = count(1..=1024), default_value_t = BATCH_SIZE)]
    pub batch_size: usize,
    /// Whether to start no more items and to return once those in flight are written.
    #[arg(skip)]
    pub stop: Option<fn() -> bool>,
}

impl RunOptions {
    /// The items of a task in this run.
    pub fn items<'t>(&self, task: &'t Task) -> impl Iterator<Item = &'t Question> + use<'t> {
        let shard = self.shard;
        let limited = task.items.iter().take(self.limit.unwrap_or(usize::MAX));
        limited.filter(move |item| shard.is_none_or(|Shard { index, of }| item.doc_id % of == index - 1))
    }
}

/// Progress of a run.
pub enum Event<'a> {
    /// An item's sample, existing ones first, and whether it comes from an earlier run.
    Item(&'a Sample, bool),
    /// A token of a response in flight.
    Token { in_flight: usize },
    /// The end of a response: an item's own, a sample, or a turn.
    Response,
    /// The start of an item's scoring, once its responses have ended.
    Scoring,
}

pub type OnEvent<'a> = dyn FnMut(Event) + 'a;

/// An existing sample's question, and its response's limits, must match the task's.
fn check(sample: &Sample, task: &Task, path: &Path) -> Result<(), FolderError> {
    let (path, doc_id) = (path.to_owned(), sample.doc_id);
    if task.items.iter().any(|item| item.doc_id == doc_id && item.doc != sample.doc) {
        return Err(FolderError::OtherQuestion { path, doc_id });
    }
    let ours = limits(task);
    let Some((_, mut found)) = sample.arguments.first().cloned() else { return Ok(()) };
    found.retain(|key, _| ["max_gen_toks", "until"].contains(&key.as_str()));
    let same = (found == ours).then_some(());
    let [found, expected] = [found, ours].map(|limits| Value::from(limits).to_string());
    same.ok_or(FolderError::OtherLimits { path, found, expected })
}

/// Runs the items of a task that the folder does not contain yet.
///
/// # Errors
/// The folder, if its samples are of other questions or it cannot be written, or the engine.
pub fn run_task(
    engine: &mut Engine,
    task: &Task,
    options: &EvalOptions,
    run: RunOptions,
    folder: &RunFolder,
    on_event: &mut OnEvent,
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
            Some(sample) => on_event(Event::Item(sample, true)),
            None => waiting.push_back(item),
        }
    }
    batching::generate(engine, (task, options), run, waiting, lines, on_event)
}

/// The limits of a task's responses, in lm-evaluation-harness's terms.
fn limits(task: &Task) -> Map<String, Value> {
    let mut fields = Map::from_iter([("max_gen_toks".to_owned(), task.max_tokens.into())]);
    if !task.stop.is_empty() {
        fields.insert("until".to_owned(), task.stop.clone().into());
    }
    fields
}

/// An item's prompt as text and as tokens.
fn prompt(engine: &Engine, item: &Question, options: &EvalOptions) -> Result<(String, Vec<u32>), EncodeError> {
    let conversation = Conversation::Prompt(item.prompt.clone());
    let tokens = encode_prompt(engine, &conversation, options.chat_template)?;
    let template = engine.chat_template().filter(|_| options.chat_template);
    let text = template.map(|template| template.render(&conversation.to_messages(), true)).transpose()?;
    Ok((text.unwrap_or_else(|| item.prompt.clone()), tokens))
}
