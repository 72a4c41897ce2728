//! Running a task: prompts in, samples on the disk, one at a time, in any batch the same.
//!
//! Responses are generated [`RunOptions::batch_size`] at a time, whatever item they belong to; an item is assessed and written
//! when all of its have ended. A run that is killed loses the items in flight.

pub mod assess;
mod batching;
pub mod claims;
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
use crate::io::jsonl::append::{Appender, NewLines};
use crate::io::record::Status;
use crate::model::chat::Conversation;
use assess::Prompt;
use claims::{Chunks, Claims, Next};
use folder::{FolderError, RunFolder, Shard, open_lines};
use manifest::EvalOptions;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

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
#[derive(Clone, Copy)]
pub struct RunOptions<'c> {
    /// Responses that are generated at once.
    pub batch_size: usize,
    /// Only the first n items of each task.
    pub limit: Option<usize>,
    pub shard: Option<Shard>,
    /// With other processes, each taking what none has begun.
    pub claims: Option<&'c Claims>,
}

impl RunOptions<'_> {
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
    /// An earlier run did it, or another process of this one.
    pub earlier: bool,
    /// By stage, as in the sample; of an item that this run did.
    pub seconds: Option<&'a BTreeMap<String, f64>>,
    pub error: Option<&'a str>,
}

/// Called with every item, those that are there first.
pub type OnItem<'a> = dyn FnMut(Event) + 'a;

/// What is looked at in a sample that is there.
#[derive(Deserialize)]
struct Earlier {
    doc_id: usize,
    task: String,
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

impl Earlier {
    /// Its question, and where its response ends, must be the task's.
    fn check(&self, task: &Task, path: &Path) -> Result<(), FolderError> {
        let path = || path.to_owned();
        if task.items.iter().any(|item| item.doc_id == self.doc_id && item.doc != self.doc) {
            return Err(FolderError::OtherQuestion { path: path(), doc_id: self.doc_id });
        }
        let ours = limits(task);
        match self.arguments.first().map(|(_, found)| only_limits(found)).filter(|found| *found != ours) {
            Some(found) => {
                let [found, expected] = [found, ours].map(|limits| Value::from(limits).to_string());
                Err(FolderError::OtherLimits { path: path(), found, expected })
            }
            None => Ok(()),
        }
    }

    fn event<'a>(&'a self, task: &'a str) -> Event<'a> {
        Event {
            task,
            doc_id: self.doc_id,
            status: self.uq.status,
            finish: self.uq.finish,
            correct: self.metrics.get("acc") == Some(&1.0),
            earlier: true,
            seconds: None,
            error: self.uq.error.as_deref(),
        }
    }
}

/// A task's items in a folder: those that are there, and those that this process adds.
pub struct TaskRun<'t> {
    task: &'t Task,
    options: &'t EvalOptions,
    run: RunOptions<'t>,
    folder: &'t RunFolder,
    work: Work<'t>,
}

/// The items that are left.
enum Work<'t> {
    /// It has not been looked yet.
    Unknown,
    Own {
        lines: Appender,
        waiting: VecDeque<&'t Question>,
    },
    Shared {
        /// Made with the first sample.
        lines: Option<Appender>,
        /// Taken and not begun.
        waiting: VecDeque<&'t Question>,
        chunks: Chunks<'t, 't>,
        seen: NewLines,
    },
}

impl<'t> TaskRun<'t> {
    pub fn new(task: &'t Task, options: &'t EvalOptions, run: RunOptions<'t>, folder: &'t RunFolder) -> TaskRun<'t> {
        TaskRun { task, options, run, folder, work: Work::Unknown }
    }

    /// Runs the items that the folder does not have yet, and no process has begun. `wait`: for the others, too, to do what they
    /// have begun, or to fall silent.
    ///
    /// # Errors
    /// The folder, whose samples are of other questions or cannot be written, or the engine.
    pub fn go_on(&mut self, engine: &mut Engine, wait: bool, on_item: &mut OnItem) -> Result<(), RunError> {
        self.open(on_item)?;
        let plan = batching::Plan { task: self.task, options: self.options, batch_size: self.run.batch_size };
        batching::generate(engine, &plan, &mut Feed { task_run: self, wait, on_item })
    }

    fn open(&mut self, on_item: &mut OnItem) -> Result<(), FolderError> {
        let Work::Unknown = self.work else { return Ok(()) };
        let &mut TaskRun { task, ref run, folder, .. } = self;
        self.work = match run.claims {
            Some(claims) => {
                let chunks = Chunks::new(claims, &task.name, run.items(task));
                Work::Shared { lines: None, waiting: VecDeque::new(), chunks, seen: NewLines::default() }
            }
            None => {
                let path = folder.lines("samples", &task.name, run.shard);
                let mut earlier: HashMap<usize, Earlier> = HashMap::new();
                let lines = open_lines(&path, |sample: Earlier| {
                    earlier.insert(sample.doc_id, sample);
                })?;
                let mut doc_ids: Vec<&usize> = earlier.keys().collect();
                doc_ids.sort_unstable();
                doc_ids.into_iter().try_for_each(|doc_id| earlier[doc_id].check(task, &path))?;
                let (there, waiting): (Vec<_>, _) =
                    run.items(task).partition(|item| earlier.contains_key(&item.doc_id));
                there.iter().for_each(|item| on_item(earlier[&item.doc_id].event(&task.name)));
                Work::Own { lines, waiting: VecDeque::from(waiting) }
            }
        };
        self.note_done(on_item)
    }

    /// Notes what other processes have added since.
    fn note_done(&mut self, on_item: &mut OnItem) -> Result<(), FolderError> {
        let task = self.task;
        let Work::Shared { chunks, seen, .. } = &mut self.work else { return Ok(()) };
        for path in self.folder.all_lines(&task.name)? {
            let samples: Vec<Earlier> = seen.read(&path)?;
            for sample in samples.iter().filter(|sample| sample.task == task.name) {
                sample.check(task, &path)?;
                if chunks.done(sample.doc_id) {
                    on_item(sample.event(&task.name));
                }
            }
        }
        Ok(())
    }
}

/// What the batch takes its items from and gives its samples to.
struct Feed<'r, 't, 'o> {
    task_run: &'r mut TaskRun<'t>,
    wait: bool,
    on_item: &'r mut OnItem<'o>,
}

impl<'t> Feed<'_, 't, '_> {
    /// The next item to begin; `None`: there is none now, and where nothing else is running (`idle`), none to wait for.
    fn next(&mut self, idle: bool) -> Result<Option<&'t Question>, FolderError> {
        let mut looked = false;
        loop {
            let (waiting, chunks) = match &mut self.task_run.work {
                Work::Unknown => return Ok(None),
                Work::Own { waiting, .. } => return Ok(waiting.pop_front()),
                Work::Shared { waiting, chunks, .. } => (waiting, chunks),
            };
            if let Some(item) = waiting.pop_front() {
                return Ok(Some(item));
            }
            let found = if looked { chunks.take_over()? } else { chunks.take()? };
            match found {
                Next::Items(items) => waiting.extend(items),
                Next::Nothing => return Ok(None),
                Next::Later if looked && !(idle && self.wait) => return Ok(None),
                Next::Later if !chunks.is_time(idle && self.wait) => return Ok(None),
                Next::Later => {
                    self.task_run.note_done(self.on_item)?;
                    looked = true;
                }
            }
        }
    }

    /// Puts a sample on the disk.
    fn done(&mut self, sample: &Sample) -> Result<(), FolderError> {
        let TaskRun { task, folder, work, .. } = &mut *self.task_run;
        let lines = match work {
            Work::Unknown => return Ok(()),
            Work::Own { lines, .. } => lines,
            Work::Shared { lines: Some(lines), .. } => lines,
            Work::Shared { lines, chunks, .. } => {
                let path = folder.worker_lines(&task.name, chunks.worker());
                lines.insert(open_lines(&path, |_: IgnoredAny| ())?)
            }
        };
        lines.append(sample)?;
        lines.sync()?;
        (self.on_item)(Event {
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
