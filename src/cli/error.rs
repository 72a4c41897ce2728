//! Why a command could not do its work.

use crate::bench::BenchError;
use crate::engine::encode::EncodeError;
use crate::engine::{EngineError, LoadError};
use crate::eval::analysis::AnalysisError;
use crate::eval::analysis::calibrate::CalibrateError;
use crate::eval::calibration::CalibrationError;
use crate::eval::run::RunError;
use crate::eval::run::folder::FolderError;
use crate::eval::run::sweep::SweepError;
use crate::eval::sample::SequenceError;
use crate::eval::tasks::TaskError;
use crate::io::jsonl::ReadError;
use crate::io::jsonl::append::AppendError;
use crate::io::record::OutputError;
use crate::model::hub::LocateError;
use crate::model::tokenizer::TokenizerError;
use crate::report::html::HtmlError;
use crate::serve::ServeError;
use crate::uq::RuleError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum CliError {
    #[error(
        "no model given: use --model FOLDER|NAME or set UQAC_MODEL\n\
         any dense Llama, Qwen, Gemma, Mistral, Phi, OLMo, SmolLM or Granite model in Hugging Face layout will do, or \
         abacus, the small model inside this program; to get one:\n  \
         hf download Qwen/Qwen2.5-0.5B-Instruct\n  \
         uqac ask --model Qwen/Qwen2.5-0.5B-Instruct \"What is 17 * 23?\""
    )]
    NoModel,
    #[error(transparent)]
    Locate(#[from] LocateError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("the question is empty")]
    NoQuestion,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: input and output are the same file", .0.display())]
    SameFile(PathBuf),
    #[error("{}: the file is there already; use --overwrite", .0.display())]
    Exists(PathBuf),
    #[error("{}: a file of the run itself; give another --output", .0.display())]
    RunFile(PathBuf),
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error(transparent)]
    Html(#[from] HtmlError),
    #[error("the report as CSV: {0}")]
    Csv(#[from] csv::Error),
    #[error("the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("--methods {0} needs a chat template for its further turns and cannot be used with --no-chat-template")]
    NeedsChatTemplate(&'static str),
    #[error(transparent)]
    Sweep(#[from] SweepError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("{}: no responses that are long enough; run `uqac eval` into this folder first", .0.display())]
    NoResponses(PathBuf),
    #[error("{address}: {source}{}", listen_hint(source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("standard input: {0}")]
    Stdin(io::Error),
    #[error("standard output: {0}")]
    Stdout(io::Error),
}

/// Remedy for an address that cannot be bound.
fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; give another --port, or --port 0 for any that is free",
        io::ErrorKind::PermissionDenied => "; ports below 1024 are the system's, give another --port",
        _ => "",
    }
}

impl CliError {
    /// Whether the reader of our output has gone away.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            CliError::Stdout(error) => error.kind() == io::ErrorKind::BrokenPipe,
            CliError::Append(error) => error.is_broken_pipe(),
            _ => false,
        }
    }
}
