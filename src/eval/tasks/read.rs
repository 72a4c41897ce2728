//! Records of JSON and JSONL files, compressed or not.

use super::TaskError;
use flate2::read::MultiGzDecoder;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// An object of a file, and where it stands.
pub(super) struct Record {
    pub value: Value,
    pub path: PathBuf,
    /// `line 3`, `example 0`.
    pub place: String,
}

impl Record {
    /// A field that must be a text, and not an empty one.
    pub fn text(&self, field: &'static str) -> Result<String, TaskError> {
        match self.value.get(field) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
            found => Err(self.error(field, "a text that is not empty", &shown(found))),
        }
    }

    /// What is wrong with a field.
    pub fn error(&self, field: &'static str, expected: &'static str, found: &str) -> TaskError {
        let found = shortened(found);
        TaskError::Field { path: self.path.clone(), place: self.place.clone(), field, expected, found }
    }
}

/// A value as an error shows it.
pub(super) fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| String::from("nothing"), Value::to_string)
}

/// A text of at most 80 characters.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// A file's text, decompressed if its name ends in `.gz`.
pub(super) fn text(path: &Path) -> Result<String, TaskError> {
    let failed = |source| TaskError::Read { path: path.to_path_buf(), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    if path.extension().is_none_or(|ending| ending != "gz") {
        return String::from_utf8(bytes)
            .map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error())));
    }
    let mut text = String::new();
    MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// The objects of a JSONL file. Blank lines are passed over.
pub(super) fn records(path: &Path) -> Result<Vec<Record>, TaskError> {
    let text = text(path)?;
    let lines = text.trim_start_matches('\u{feff}').lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let record = |(i, line): (usize, &str)| {
        let value = serde_json::from_str(line).map_err(|source| TaskError::Json {
            path: path.to_path_buf(),
            line: i + 1,
            source,
        })?;
        Ok(Record { value, path: path.to_path_buf(), place: format!("line {}", i + 1) })
    };
    lines.map(record).collect()
}
