//! Abacus: the small model embedded in the program (`models/abacus/README.md`), so that the first command works on any
//! machine. It is unpacked into the cache folder at first use, and from then on is a model like any other.

use crate::{cache, units};
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::{fs::File, path::Path, path::PathBuf};

/// Its name for `--model`.
pub const NAME: &str = "abacus";

/// Its own test set, a file in the folder.
pub const TEST_SET: &str = "test.jsonl";

macro_rules! files {
    ($($name:literal),*) => { &[$(($name, include_bytes!(concat!("../../models/abacus/", $name)))),*] };
}

static FILES: &[(&str, &[u8])] = files![
    "config.json",
    "generation_config.json",
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
    #[error("no cache folder for the model {NAME}: set UQAC_CACHE, or give another --model")]
    NoFolder,
    /// The folder cannot be written.
    #[error("the model {NAME} could not be unpacked: {}: {source}\nset UQAC_CACHE to a folder that can be written", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The model's folder, unpacked if it is missing and replaced if anything in it has changed: `<cache>/models/abacus-<hash>`.
///
/// # Errors
/// There is no cache folder, it cannot be written, or another user could have filled it.
pub fn folder() -> Result<PathBuf, DemoError> {
    unpack(&cache::folder().ok_or(DemoError::NoFolder)?)
}

fn unpack(cache: &Path) -> Result<PathBuf, DemoError> {
    /// Other processes may unpack at the same time; one of them is first.
    const ATTEMPTS: usize = 8;
    let models = cache::private(cache, "models").map_err(|(path, source)| DemoError::Write { path, source })?;
    let folder = models.join(format!("{NAME}-{}", hash()));
    let mut error = None;
    for _ in 0..ATTEMPTS {
        if is_whole(&folder) {
            return Ok(folder);
        }
        error = replace(&models, &folder).err();
    }
    let source = error.unwrap_or_else(|| io::Error::other("its files change while they are written"));
    Err(DemoError::Write { path: folder, source })
}

/// Whether the folder holds exactly the files, each unchanged: a chat template placed there by someone else would be part of
/// the model. Compared in full: it is a few megabytes, and a damaged weight would silently produce wrong answers.
fn is_whole(folder: &Path) -> bool {
    let is_folder = folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let names = || folder.read_dir().map_or(0, Iterator::count);
    is_folder
        && names() == FILES.len()
        && FILES.iter().all(|(name, bytes)| cache::read(&folder.join(name)).is_ok_and(|found| found == *bytes))
}

/// Replaces whatever is there by a new folder; a process that has mapped the old one's weights keeps them.
fn replace(models: &Path, folder: &Path) -> io::Result<()> {
    let draft = cache::draft_folder(models)?;
    for (name, bytes) in FILES {
        let mut file = File::create_new(draft.path().join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    if folder.symlink_metadata().is_ok() {
        let old = cache::draft_folder(models)?;
        std::fs::rename(folder, old.path().join("old"))?;
    }
    std::fs::rename(draft.path(), folder)?;
    let _ = draft.keep(); // it has been renamed
    Ok(())
}

/// The first twelve hexadecimal digits of the files' SHA-256: another version of the model gets another folder.
fn hash() -> String {
    let mut hash = Sha256::new();
    for (name, bytes) in FILES {
        hash.update(name);
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    units::hex(&hash.finalize()[..6])
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
        assert_eq!(written(), first, "not written again");
        std::fs::write(&weights, b"cut off").unwrap();
        std::fs::remove_file(folder.join("config.json")).unwrap();
        unpack(cache.path()).unwrap();
        assert_eq!(std::fs::metadata(&weights).unwrap().len(), length);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), FILES.len());
        assert_eq!(std::fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn nothing_that_does_not_belong_there_stays() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path()).unwrap();
        std::fs::write(folder.join("chat_template.jinja"), "planted").unwrap();
        unpack(cache.path()).unwrap();
        assert!(!folder.join("chat_template.jinja").exists());
        // a link in place of a file, and of the folder: its target is not touched
        #[cfg(unix)]
        {
            let elsewhere = tempfile::tempdir().unwrap();
            let (file, target) = (folder.join("config.json"), elsewhere.path().join("config.json"));
            std::fs::rename(&file, &target).unwrap();
            std::os::unix::fs::symlink(&target, &file).unwrap();
            unpack(cache.path()).unwrap();
            assert!(file.symlink_metadata().unwrap().is_file() && target.exists());
            std::fs::rename(&folder, elsewhere.path().join("model")).unwrap();
            std::os::unix::fs::symlink(elsewhere.path().join("model"), &folder).unwrap();
            unpack(cache.path()).unwrap();
            assert!(folder.symlink_metadata().unwrap().is_dir());
            assert_eq!(std::fs::read_dir(elsewhere.path().join("model")).unwrap().count(), FILES.len());
        }
    }

    #[test]
    fn many_first_runs_at_once_have_one_folder() {
        let cache = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| unpack(cache.path()).unwrap());
            }
        });
        assert_eq!(std::fs::read_dir(cache.path().join("models")).unwrap().count(), 1);
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
