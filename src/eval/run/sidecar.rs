//! The manifest next to `score`'s output: prevents adding records of another model, other options or another input.

use super::folder::{self, FolderError, read_manifest};
use super::{fingerprint::add, fingerprint::digits, manifest::Input, manifest::Manifest, manifest::ScoreOptions};
use crate::{cache, files, files::FileError};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// `out.jsonl.manifest.json`
pub fn path(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".manifest.json");
    name.into()
}

/// The manifest next to an output; `None` if there is none, as with older versions.
pub fn read(output: &Path) -> Result<Option<Manifest<ScoreOptions>>, FolderError> {
    match read_manifest(&path(output)) {
        Err(FolderError::File(error)) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Writes the manifest next to an output.
pub fn write(output: &Path, manifest: &Manifest<ScoreOptions>) -> Result<(), FileError> {
    let path = path(output);
    let text = serde_json::to_string_pretty(manifest).map_err(io::Error::from);
    let written = text.and_then(|text| cache::write(&path, (text + "\n").as_bytes()));
    written.map_err(FileError::at(&path))
}

/// Whether a run's records may be appended to those of `earlier`. The input may have grown: only its earlier part is
/// compared, `start` being that part as it is now.
pub fn check(
    output: &Path,
    earlier: &Manifest<ScoreOptions>,
    now: &Manifest<ScoreOptions>,
    start: Option<Input>,
) -> Result<(), FolderError> {
    let mut now = now.clone();
    now.options.input = earlier.options.input.as_ref().and(start);
    folder::check(output, earlier, &now)
}

impl Input {
    /// Fingerprints of an input file (`-`: standard input) from its current position on, and of its first `start` bytes;
    /// `None` for an input that can be read only once.
    pub fn of(path: &Path, start: u64) -> io::Result<Option<(Input, Input)>> {
        let mut file = if path == Path::new("-") {
            files::stdin()?
        } else if path.metadata()?.is_file() {
            files::open(path)?
        } else {
            return Ok(None);
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        let begin = file.stream_position()?;
        let mut hash = Sha256::new();
        let mut state = |len: u64, hash: &mut Sha256| -> io::Result<Input> {
            add(&mut (&mut file).take(len), hash)?;
            Ok(Input { bytes: file.stream_position()? - begin, hash: digits(hash.clone().finalize()) })
        };
        let first = state(start, &mut hash)?;
        let whole = state(metadata.len().saturating_sub(begin + first.bytes), &mut hash)?;
        file.seek(SeekFrom::Start(begin))?; // its reader shares the position
        Ok(Some((whole, first)))
    }
}
