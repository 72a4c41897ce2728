//! The run folder: `manifest.json`, and JSONL files that only grow by whole lines, each on disk before the next is begun. A run
//! that died resumes after its last whole line.

use super::manifest::Manifest;
use crate::io::jsonl::append::{AppendError, Appender, Existing, Output};
use crate::{cache, files, files::FileError, files::json_fault};
use serde::{Serialize, de::DeserializeOwned};
use std::{io, path::Path, path::PathBuf};

/// Errors of a run folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: not a manifest of this program: {}; give another --output", path.display(), json_fault(source))]
    Manifest { path: PathBuf, source: serde_json::Error },
    #[error("{}: format {found}, this program writes format {expected}; use that version, or a new --output", path.display())]
    Format { path: PathBuf, expected: u32, found: u32 },
    #[error("{}: made with another model or other options; use those, or a new --output\n  {}", path.display(), differences.join("\n  "))]
    OtherOptions { path: PathBuf, differences: Vec<String> },
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error("{}: item {doc_id} was another question in an earlier run: the task's data has changed; use a new --output", path.display())]
    OtherQuestion { path: PathBuf, doc_id: usize },
    #[error("{}: other response limits: the folder has {found}, this run {expected}; use its --max-tokens and --stop, or a new --output", path.display())]
    OtherLimits { path: PathBuf, found: String, expected: String },
}

/// A folder that a run writes to.
#[derive(Debug)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// Creates the folder and its manifest, or checks that an earlier run's manifest matches.
    pub fn open(path: &Path, manifest: &Manifest) -> Result<RunFolder, FolderError> {
        std::fs::create_dir_all(path).map_err(FileError::at(path))?;
        cache::remove_leftovers(path);
        let file = path.join("manifest.json");
        let io = FileError::at(&file);
        let mut text = serde_json::to_string_pretty(manifest).map_err(|e| io(e.into()))?;
        text.push('\n');
        if !file.exists() {
            // shards may start simultaneously: the first complete manifest wins
            let draft = cache::draft(path, text.as_bytes()).map_err(io)?;
            draft.persist_noclobber(&file).map(drop).or_else(|failed| match failed.error.kind() {
                io::ErrorKind::AlreadyExists => Ok(()),
                _ => failed.file.persist(&file).map(drop).map_err(|e| io(e.error)), // a file system without links
            })?;
        }
        check(path, &read_manifest(&file)?, manifest)?;
        Ok(RunFolder(path.to_owned()))
    }

    /// The file of a task's samples, or of other records: `samples_bbh_word_sorting.shard-2-of-4.jsonl`.
    pub fn lines(&self, kind: &str, task: &str, shard: Option<Shard>) -> PathBuf {
        let shard = shard.map_or(String::new(), |s| format!(".shard-{}-of-{}", s.index, s.of));
        let task = task.replace(|c: char| !(c.is_alphanumeric() || "-.".contains(c)), "_");
        self.0.join(format!("{kind}_{task}{shard}.jsonl"))
    }
}

/// Checks that a run's output may be added to an earlier run's.
pub(super) fn check<O: Serialize>(path: &Path, earlier: &Manifest<O>, now: &Manifest<O>) -> Result<(), FolderError> {
    let differences = earlier.differences(now);
    let same = differences.is_empty().then_some(());
    same.ok_or_else(|| FolderError::OtherOptions { path: path.to_owned(), differences })
}

/// The manifest in a file.
pub(super) fn read_manifest<Options: DeserializeOwned>(path: &Path) -> Result<Manifest<Options>, FolderError> {
    let text = files::read_to_string(path, files::MAX_SETTINGS).map_err(FileError::at(path))?;
    let invalid = |source| FolderError::Manifest { path: path.to_owned(), source };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
    let format = value["format"].as_u64().and_then(|f| u32::try_from(f).ok());
    if let Some(found) = format.filter(|found| *found != super::manifest::FORMAT) {
        return Err(FolderError::Format { path: path.to_owned(), expected: super::manifest::FORMAT, found });
    }
    serde_json::from_value(value).map_err(invalid)
}

/// Part `index` (from 1) of `of`: every `of`-th item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub index: usize,
    pub of: usize,
}

/// Max shards of a run: each is a file.
const MAX_SHARDS: usize = 100_000;

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, of)) if (1..=of).contains(&index) && of <= MAX_SHARDS => Ok(Shard { index, of }),
            _ => Err(format!("expected I/N with I from 1 to N, such as 1/4, and N at most {MAX_SHARDS}")),
        }
    }
}

/// Opens a JSONL file for appending (created if missing) and calls `on_line` with each existing line.
pub fn open_lines<T: DeserializeOwned>(path: &Path, mut on_line: impl FnMut(T)) -> Result<Appender, FolderError> {
    let output = Output::examine(path, Existing::Resume, "{\"doc_id\":", |_, line| on_line(line))?;
    Ok(output.open()?)
}
