//! A model as published: `config.json`, weights, tokenizer, chat template.

mod boundary;
pub mod chat;
pub mod config;
pub mod demo;
pub mod hub;
pub mod reply;
pub mod tokenizer;
pub mod weights;

pub use config::ModelSpec;
pub use weights::Weights;

use crate::files::{self, json_fault};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The value in a JSON file, as Python writes and reads it: the last of duplicate keys counts, and there may be `NaN` and
/// `Infinity` where nothing reads them.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = files::read(path, files::MAX_SETTINGS);
    let mut text = text.map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    files::replace_non_numbers(&mut text);
    serde_json::from_slice(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// Errors of a model folder.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{}: cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {}", path.display(), json_fault(source))]
    Json { path: PathBuf, source: serde_json::Error },
    /// `key` is `.` if the whole file is meant, as when a key is missing.
    #[error("{}: {}{message}", path.display(), if key == "." { String::new() } else { format!("{key}: ") })]
    Config { path: PathBuf, key: String, message: String },
    #[error("{}: not a readable safetensors file (truncated download?): {message}", path.display())]
    Safetensors { path: PathBuf, message: String },
    #[error(
        "{folder} has a LoRA adapter (adapter_config.json) of {base}; merge it and give the folder MERGED: python -c \"from peft import \
         AutoPeftModelForCausalLM as M; M.from_pretrained('{folder}').merge_and_unload().save_pretrained('MERGED'); from \
         transformers import AutoTokenizer as T; T.from_pretrained('{base}').save_pretrained('MERGED')\"; to use the \
         model without it, move its two files elsewhere",
        folder = folder.display()
    )]
    Adapter { folder: PathBuf, base: String },
    #[error("{}: no weights here: expected model.safetensors or model.safetensors.index.json", folder.display())]
    NoWeights { folder: PathBuf },
    #[error("{}: tensor {tensor} is missing{}", path.display(), hint.as_deref().unwrap_or(""))]
    MissingTensor { path: PathBuf, tensor: String, hint: Option<String> },
    #[error("{}: tensor {tensor}: expected shape {expected:?}, found {found:?}", path.display())]
    Shape { path: PathBuf, tensor: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("{}: tensor {tensor}: expected BF16, F16 or F32, found {found}", path.display())]
    Dtype { path: PathBuf, tensor: String, found: String },
    #[error("{}: tensor {tensor} holds a value that is not finite (NaN or infinity) at index {index}", path.display())]
    NotFinite { path: PathBuf, tensor: String, index: usize },
}
