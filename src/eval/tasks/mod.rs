//! Benchmarks in their publishers' formats, with the paper's prompts. To add one, write a file with a `Benchmark` and add a row
//! to `BENCHMARKS`.
//!
//! | task | questions | prompt |
//! |---|---|---|
//! | `gsm8k` | JSONL with `question`, `answer` ending in `#### N` | the question (zero-shot) |
//! | `math` | folder `test/<subject>/*.json` with `problem`, `solution`; or MATH-500's JSONL | the problem; optionally a box instruction |
//! | `bbh`, `bbh:SUBTASK` | `bbh/*.json` with `examples` of `input`, `target`, and `cot-prompts/*.txt` | three worked examples, their answers in a box, then the question |
//! | `abacus` | JSONL with `question`, `answer`; one is bundled with the program | the question |
//! | `FILE.jsonl` | `question`, `answer`, `grader`, and optionally `id` | the question |
//!
//! Files may be compressed (`.gz`). The search covers the given folder ([`TaskOptions::data`]), then the Hugging Face cache;
//! nothing is downloaded; the error names the download command.

use crate::uq::answer::{AnswerPattern, AnswerRule};
use crate::{files::FileError, files::json_fault, io::jsonl::ReadError, io::target::Target, model::demo::DemoError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

mod abacus;
mod bbh;
mod custom;
mod gsm8k;
mod math;
mod read;
mod shots;
mod source;

pub use crate::uq::answer::Grader;
use read::Record;
pub use shots::PLACEHOLDER;

/// All named benchmarks.
static BENCHMARKS: &[Benchmark] = &[gsm8k::GSM8K, math::MATH, bbh::BBH, abacus::ABACUS];

/// The subtasks in a file or folder, by name.
type Subtasks = fn(&Path) -> Vec<(String, PathBuf)>;

/// A benchmark: its files, prompts and grader.
struct Benchmark {
    /// Its name in `--tasks`.
    key: &'static str,
    /// Paths below a data folder, in order of preference. `*` matches any part of a name; case is ignored.
    patterns: &'static [&'static str],
    /// Further paths that other benchmarks may share: used if `fits`.
    shared_patterns: &'static [&'static str],
    /// Whether a file or folder looks like this benchmark.
    fits: fn(&Path) -> bool,
    /// Hugging Face Hub datasets that contain such files.
    hub: &'static [&'static str],
    /// Hint if the files are missing: the command to get them.
    how: &'static str,
    /// Its files, if bundled with the program.
    embedded: Option<fn() -> Result<PathBuf, TaskError>>,
    /// Its subtasks in the file or folder found, by name.
    subtasks: Option<Subtasks>,
    /// How an answer is found in a response.
    rule: AnswerRule,
    /// Max tokens per response, as published: for most models, and for those that reason at length before answering
    /// (DeepSeek-R1-Distill-Llama-8B).
    max_tokens: [usize; 2],
    /// Stop strings: text with which a model continues after its answer.
    stop: &'static [&'static str],
    /// Reads the questions, with prompts and graders, from a file or folder: the benchmark's or a subtask's.
    read: fn(&Path, &TaskOptions) -> Result<Vec<Question>, TaskError>,
}

/// For tasks without their own limit.
pub const DEFAULT_MAX_TOKENS: usize = 1024;

impl Benchmark {
    /// The benchmark's tasks: one, or all its subtasks, or the named subtask.
    fn load(&self, subtask: Option<&str>, options: &TaskOptions) -> Result<Vec<Task>, TaskError> {
        let path = match (self.find(options), self.embedded) {
            (Err(TaskError::Missing { .. }), Some(embedded)) => embedded()?,
            (found, _) => found?,
        };
        let Some(subtasks) = self.subtasks else {
            return Ok(vec![self.task(self.key.to_owned(), &path, options)?]);
        };
        let available = subtasks(&path);
        let chosen = available.iter().filter(|(name, _)| subtask.is_none_or(|subtask| name == subtask));
        let load = |(name, path): &(String, PathBuf)| self.task(format!("{}:{name}", self.key), path, options);
        let tasks = chosen.map(load).collect::<Result<Vec<_>, _>>()?;
        match subtask {
            None if tasks.is_empty() => Err(TaskError::Empty { path }),
            Some(name) if tasks.is_empty() => Err(TaskError::NoSubtask {
                task: self.key,
                name: name.to_owned(),
                folder: path,
                available: available.into_iter().map(|(name, _)| name).collect(),
            }),
            _ => Ok(tasks),
        }
    }

    /// The task `name`, with its questions in this file or folder.
    fn task(&self, name: String, path: &Path, options: &TaskOptions) -> Result<Task, TaskError> {
        let own_stop = || self.stop.iter().map(|stop| (*stop).to_owned()).collect();
        Ok(Task {
            name,
            rule: Some(self.rule),
            items: (self.read)(path, options)?,
            source: path.to_path_buf(),
            max_tokens: options.max_tokens.unwrap_or(self.max_tokens[usize::from(options.thinking)]),
            stop: options.stop.clone().unwrap_or_else(own_stop),
        })
    }
}

/// Values of `--tasks`: `gsm8k, math, bbh, bbh:SUBTASK, abacus, FILE.jsonl`.
pub fn names() -> String {
    let name = |benchmark: &Benchmark| match benchmark.subtasks {
        None => benchmark.key.to_owned(),
        Some(_) => format!("{0}, {0}:SUBTASK", benchmark.key),
    };
    BENCHMARKS.iter().map(|benchmark| name(benchmark) + ", ").collect::<String>() + "FILE.jsonl"
}

/// A question with its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Index in the task, from 0.
    pub doc_id: usize,
    /// The publisher's record.
    pub doc: Value,
    /// The user's message, before the model's chat template.
    pub prompt: String,
    pub target: Target,
    /// Finds the answer, overriding the task's rule.
    pub pattern: Option<AnswerPattern>,
}

/// The questions of a benchmark.
#[derive(Clone, Debug)]
pub struct Task {
    /// `gsm8k`, `math`, `bbh:causal_judgement`, `abacus`, or a file name without its extensions.
    pub name: String,
    /// How an answer is found in a response; `None`: by each question's grader.
    pub rule: Option<AnswerRule>,
    pub items: Vec<Question>,
    /// The file or folder that the questions were read from.
    pub source: PathBuf,
    /// Max tokens per response.
    pub max_tokens: usize,
    /// Stop strings.
    pub stop: Vec<String>,
}

/// Where tasks are found, and how their prompts are built.
#[derive(Clone, Debug, Default)]
pub struct TaskOptions {
    /// Folder with the benchmarks' files, in any of their publishers' layouts.
    pub data: Option<PathBuf>,
    pub boxed_instruction: BoxedInstruction,
    /// Max tokens per response; `None`: the task's own.
    pub max_tokens: Option<usize>,
    /// Stop strings; `None`: the task's own.
    pub stop: Option<Vec<String>>,
    /// Whether the model reasons at length before answering; longer responses were published for such models.
    pub thinking: bool,
    /// Number of each task's first questions to show, with their answers, before each remaining question.
    pub shots: usize,
    /// A template in which `{question}` is replaced by the question.
    pub prompt_template: Option<String>,
}

/// Which questions get the instruction to put the answer in a `\boxed{ }`, besides those that always have it. In JSON `false`,
/// `true` (MATH's) and `"all"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Serialize, Deserialize)]
#[serde(into = "Value", try_from = "Value")]
pub enum BoxedInstruction {
    #[default]
    None,
    /// MATH's: the paper uses it for Gemma, which would not box its answer unprompted.
    Math,
    /// GSM8K's and MATH's.
    All,
}

impl From<BoxedInstruction> for Value {
    fn from(instruction: BoxedInstruction) -> Value {
        match instruction {
            BoxedInstruction::None => false.into(),
            BoxedInstruction::Math => true.into(),
            BoxedInstruction::All => "all".into(),
        }
    }
}

impl TryFrom<Value> for BoxedInstruction {
    type Error = String;

    fn try_from(value: Value) -> Result<BoxedInstruction, String> {
        let known = [BoxedInstruction::None, BoxedInstruction::Math, BoxedInstruction::All];
        let found = known.into_iter().find(|instruction| Value::from(*instruction) == value);
        found.ok_or_else(|| format!("boxed_instruction: expected false, true or \"all\", found {value}"))
    }
}

/// Why a task could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A file or folder exists but cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Line(#[from] ReadError),
    /// Not JSON; `line` counts from 1.
    #[error("{}, line {line}: {}", path.display(), json_fault(source))]
    Json { path: PathBuf, line: u64, source: serde_json::Error },
    /// A record's field is missing or has another type.
    #[error("{}, {place}: field \"{field}\": expected {expected}, found {found}", path.display())]
    Field { path: PathBuf, place: String, field: &'static str, expected: &'static str, found: String },
    /// The bundled questions cannot be unpacked.
    #[error(transparent)]
    Embedded(#[from] DemoError),
    /// A file does not have the layout of its kind, or is too large.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Layout { path: PathBuf, expected: &'static str, found: String },
    /// A file without a single question.
    #[error("{}: there are no questions in it", path.display())]
    Empty { path: PathBuf },
    /// The benchmark's files were not found.
    #[error("{task}: no data found, looked for {}\n{how}", looked.join(", "))]
    Missing { task: String, looked: Vec<String>, how: String },
    /// More than one file could be the benchmark.
    #[error("{task}: several files could be it: {}; give one of them with --data", shown_paths(found))]
    Ambiguous { task: &'static str, found: Vec<PathBuf> },
    /// The benchmark has no such subtask here.
    #[error("{task}: no subtask \"{name}\" in {}; valid names: {}", folder.display(), available.join(", "))]
    NoSubtask { task: &'static str, name: String, folder: PathBuf, available: Vec<String> },
    /// All questions would be examples.
    #[error("{task}: --shots {shots}: expected fewer than its {questions} questions")]
    Shots { task: String, shots: usize, questions: usize },
    /// The name matches no task.
    #[error("unknown task \"{spec}\"; valid names: {}", names())]
    Unknown { spec: String },
}

fn shown_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The tasks that `spec` names: a benchmark (all its subtasks), `BENCHMARK:SUBTASK`, or a `FILE.jsonl`.
///
/// # Errors
/// The file, line and field at fault, or the command that gets missing files.
pub fn load(spec: &str, options: &TaskOptions) -> Result<Vec<Task>, TaskError> {
    let tasks = if spec.ends_with(".jsonl") || spec.ends_with(".jsonl.gz") {
        vec![custom::load(Path::new(spec), options)?]
    } else {
        let (key, subtask) = spec.split_once(':').map_or((spec, None), |(key, subtask)| (key, Some(subtask)));
        let fits = |benchmark: &&Benchmark| {
            benchmark.key == key && subtask.is_none_or(|subtask| benchmark.subtasks.is_some() && !subtask.is_empty())
        };
        let benchmark = BENCHMARKS.iter().find(fits).ok_or_else(|| TaskError::Unknown { spec: spec.to_owned() })?;
        benchmark.load(subtask, options)?
    };
    if let Some(Task { source, .. }) = tasks.iter().find(|task| task.items.is_empty()) {
        return Err(TaskError::Empty { path: source.clone() });
    }
    tasks.into_iter().map(|task| shots::arranged(task, options)).collect()
}

/// Max questions per task: all are held in memory.
const MAX_ITEMS: usize = 1 << 20;

/// Converts records to questions, in order.
fn items(
    records: impl IntoIterator<Item = Result<Record, TaskError>>,
    item: impl Fn(usize, Record) -> Result<Question, TaskError>,
) -> Result<Vec<Question>, TaskError> {
    let question = |(doc_id, record): (usize, Result<Record, TaskError>)| match record? {
        Record { path, .. } if doc_id == MAX_ITEMS => {
            Err(TaskError::Layout { path, expected: "at most 1048576 questions", found: String::from("more") })
        }
        record => item(doc_id, record),
    };
    records.into_iter().enumerate().map(question).collect()
}

/// The prompt for a question, followed by the instruction if the option is at `least` or above.
fn asked(question: String, least: BoxedInstruction, options: &TaskOptions) -> String {
    if options.boxed_instruction < least {
        return question;
    }
    format!("{}\n\nPut your final answer in `\\boxed{{ }}`.", question.trim())
}
