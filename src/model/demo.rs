//! Abacus: the small model that comes inside the program (`models/abacus/README.md`), so that the first command answers
//! on any machine. It is unpacked at first use into the folder for caches, and from there on a model like any other.

use crate::cache;
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What `--model` calls it.
pub const NAME: &str = "abacus";

/// Its own test set, a file in the folder.
pub const TEST_SET: &str = "test.jsonl";

macro_rules! files {
    ($($name:literal),*) => { &[$(($name, include_bytes!(concat!("../../models/abacus/", $name)))),*] };
}

static FILES: &[(&str, &[u8])] = files![
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "test.jsonl",
    "uqac-calibration.json"
];

/// Why the model could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No environment variable names a cache folder.
    #[error("there is no folder to unpack the model {NAME} into: set UQAC_CACHE to one, or give another --model")]
    NoFolder,
    /// The folder cannot be written.
    #[error("the model {NAME} could not be unpacked: {}: {source}\nset UQAC_CACHE to a folder that can be written", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The model's folder, unpacked if it is not there yet and repaired if it is damaged: `<cache>/models/abacus-<hash>`.
///
/// # Errors
/// There is no folder for caches, or it cannot be written.
pub fn folder() -> Result<PathBuf, DemoError> {
    unpack(&cache::folder().ok_or(DemoError::NoFolder)?.join("models"))
}

fn unpack(models: &Path) -> Result<PathBuf, DemoError> {
    let folder = models.join(format!("{NAME}-{}", hash()));
    for (name, bytes) in FILES {
        let path = folder.join(name);
        // Compared whole: it is a few megabytes, and a damaged weight would be a quietly wrong answer.
        if std::fs::read(&path).is_ok_and(|found| found == *bytes) {
            continue;
        }
        cache::write(&path, bytes).map_err(|source| DemoError::Write { path, source })?;
    }
    Ok(folder)
}

/// The first twelve hexadecimal digits of the files' SHA-256: another version of the model has another folder.
fn hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| {
        let mut hash = Sha256::new();
        for (name, bytes) in FILES {
            hash.update(name);
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        }
        hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_unpacked_once_and_repaired() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path()).unwrap();
        let weights = folder.join("model.safetensors");
        let written = || std::fs::metadata(&weights).unwrap().modified().unwrap();
        let (first, length) = (written(), std::fs::metadata(&weights).unwrap().len());
        assert_eq!(unpack(cache.path()).unwrap(), folder);
        assert_eq!(written(), first);
        std::fs::write(&weights, b"cut off").unwrap();
        std::fs::remove_file(folder.join("config.json")).unwrap();
        unpack(cache.path()).unwrap();
        assert_eq!(std::fs::metadata(&weights).unwrap().len(), length);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), FILES.len());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = unpack(&file).unwrap_err().to_string();
        assert!(message.contains("UQAC_CACHE") && message.contains("file"), "{message}");
    }
}
