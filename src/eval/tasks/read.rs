//! Records of JSON and JSONL files, compressed or not.

use super::TaskError;
use crate::files::{self, Capped, FileError, MAX_SETTINGS};
use crate::io::jsonl::{Line, Lines, unpacked};
use serde_json::Value;
use std::{io, path::Path, path::PathBuf};

/// A JSON object from a file, with its location.
pub(super) struct Record {
    pub value: Value,
    pub path: PathBuf,
    /// `line 3`, `example 0`.
    pub place: String,
}

impl Record {
    /// A field that must be a non-empty string.
    pub fn text(&self, field: &'static str) -> Result<String, TaskError> {
        match self.value.get(field) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
            _ => Err(self.wrong(field, "a text that is not empty")),
        }
    }

    /// A field that must be a string, number or boolean; returned as text.
    pub fn scalar(&self, field: &'static str) -> Result<String, TaskError> {
        match self.value.get(field) {
            Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            _ => Err(self.wrong(field, "a text that is not empty, or a number")),
        }
    }

    /// Error about a field's value.
    pub fn wrong(&self, field: &'static str, expected: &'static str) -> TaskError {
        self.error(field, expected, &shown(self.value.get(field)))
    }

    /// Error about a field.
    pub fn error(&self, field: &'static str, expected: &'static str, found: &str) -> TaskError {
        const MAX_CHARS: usize = 80;
        let cut = found.char_indices().nth(MAX_CHARS).map(|(end, _)| format!("{} …", &found[..end]));
        let (path, place, found) = (self.path.clone(), self.place.clone(), cut.unwrap_or_else(|| found.to_owned()));
        TaskError::Field { path, place, field, expected, found }
    }
}

/// A value, formatted for an error message.
fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| String::from("nothing"), Value::to_string)
}

/// A file's text, decompressed if gzipped, without its byte order mark.
pub(super) fn text(path: &Path) -> Result<String, TaskError> {
    let unpacked = files::open(path).and_then(unpacked);
    let read = unpacked.and_then(|file| io::read_to_string(Capped::new(file, MAX_SETTINGS)));
    let text = read.map_err(FileError::at(path))?;
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text))
}

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Max bytes of a JSONL file, decompressed, and of one line: a parsed line takes some forty times its length in memory.
const MAX_FILE: u64 = 256 << 20;
const MAX_LINE: u64 = 4 << 20;

/// The objects of a JSONL file.
pub(super) fn records(path: &Path) -> Result<impl Iterator<Item = Result<Record, TaskError>>, TaskError> {
    let path = path.to_path_buf();
    let file = files::open(&path).map_err(FileError::at(&path))?;
    let mut lines = Lines::new(file, path.clone())?.with_limit(MAX_LINE).with_max(MAX_FILE);
    Ok(std::iter::from_fn(move || lines.next_line().transpose().map(|line| line_record(&path, &line?))))
}

/// The first object of a JSONL file, if it can be read.
pub(super) fn first_record(path: &Path) -> Option<Record> {
    records(path).ok()?.next()?.ok()
}

fn line_record(path: &Path, line: &Line) -> Result<Record, TaskError> {
    let place = format!("line {}", line.number);
    if line.over_limit.is_some() {
        let found = format!("more in {place}");
        return Err(TaskError::Layout { path: path.to_path_buf(), expected: "lines of at most 4 MiB", found });
    }
    let not_json = |source| TaskError::Json { path: path.to_path_buf(), line: line.number, source };
    Ok(Record { value: serde_json::from_slice(line.bytes).map_err(not_json)?, path: path.to_path_buf(), place })
}

/// The object in a JSON file.
pub(super) fn record(path: &Path) -> Result<Record, TaskError> {
    let text = text(path)?;
    let not_json =
        |source: serde_json::Error| TaskError::Json { path: path.into(), line: source.line() as u64, source };
    let value = serde_json::from_str(&text).map_err(not_json)?;
    Ok(Record { value, path: path.to_path_buf(), place: String::from("its object") })
}

/// The objects in a JSON file's `examples` list.
pub(super) fn examples(path: &Path) -> Result<impl Iterator<Item = Result<Record, TaskError>>, TaskError> {
    let mut file = record(path)?;
    match file.value.get_mut("examples").map(Value::take) {
        Some(Value::Array(examples)) => {
            let path = path.to_path_buf();
            let record = move |(i, value)| Ok(Record { value, path: path.clone(), place: format!("example {i}") });
            Ok(examples.into_iter().enumerate().map(record))
        }
        found => Err(file.error("examples", "a list of objects", &shown(found.as_ref()))),
    }
}
