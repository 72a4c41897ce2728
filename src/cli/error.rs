//! Reasons why a command failed.

use crate::files::FileError;
use std::{error::Error, io, path::PathBuf};

/// Any error that ends a command: one of its own, or one from a lower layer, shown unchanged.
pub type Failure = Box<dyn Error>;

/// The commands' own errors.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(
        "no model given: use --model FOLDER|NAME or set UQAC_MODEL\n\
         any dense Llama, Qwen, Gemma, Mistral, Phi, OLMo, SmolLM or Granite model in Hugging Face layout will do, or \
         abacus, the small model inside this program; to get one:\n  \
         hf download Qwen/Qwen2.5-0.5B-Instruct\n  \
         uqac ask --model Qwen/Qwen2.5-0.5B-Instruct \"What is 17 * 23?\""
    )]
    NoModel,
    #[error("the question is empty")]
    NoQuestion,
    #[error("{}: input and output are the same file", .0.display())]
    SameFile(PathBuf),
    #[error("{}: the file is there already; use --overwrite", .0.display())]
    Exists(PathBuf),
    #[error("{}: a file of the run itself; give another --output", .0.display())]
    RunFile(PathBuf),
    #[error("the report as CSV: {0}")]
    Csv(csv::Error),
    #[error("the report as JSON: {0}")]
    Json(serde_json::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("--methods {0} needs a chat template for its further turns and cannot be used with --no-chat-template")]
    NeedsChatTemplate(&'static str),
    #[error("--samples and --temperature are those of --methods self-consistency; add it, or leave them out")]
    NoSamples,
    #[error("--thinking-budget needs marked thoughts and cannot be used with --thinking none")]
    NoThoughts,
    #[error("{address}: {source}{}", listen_hint(source))]
    Listen { address: std::net::SocketAddr, source: io::Error },
}

/// Remedy for an address that cannot be bound.
fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; give another --port, or --port 0 for any that is free",
        io::ErrorKind::PermissionDenied => "; ports below 1024 are the system's, give another --port",
        _ => "",
    }
}

/// Whether the reader of our output has closed it.
pub fn is_broken_pipe(failure: &(dyn Error + 'static)) -> bool {
    match failure.downcast_ref() {
        Some(CliError::File(error)) => error.is_broken_pipe(),
        _ => failure.downcast_ref().is_some_and(FileError::is_broken_pipe),
    }
}
