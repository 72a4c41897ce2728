//! Why a command could not do its work.

use std::io;
use std::path::PathBuf;
use thiserror::Error;
use uqac::engine::encode::EncodeError;
use uqac::engine::{EngineError, LoadError};
use uqac::model::locate::LocateError;
use uqac::model::tokenizer::TokenizerError;
use uqac::report::items::InputError;
use uqac::report::writer::OutputError;

#[derive(Debug, Error)]
pub enum CliError {
    #[error(
        "no model given: use --model FOLDER|NAME or set UQAC_MODEL\n\
         any Llama, Qwen2/2.5/3, Gemma-2 or Gemma-3 model in Hugging Face layout will do; to get one:\n  \
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
    #[error("the question is empty")]
    NoQuestion,
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: input and output are the same file", .0.display())]
    SameFile(PathBuf),
    #[error("standard input: {0}")]
    Stdin(io::Error),
    #[error("standard output: {0}")]
    Stdout(io::Error),
}

impl CliError {
    /// Whether the reader of our output has gone away.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            CliError::Stdout(error) => error.kind() == io::ErrorKind::BrokenPipe,
            CliError::Output(error) => error.is_broken_pipe(),
            _ => false,
        }
    }
}
