//! Output of the commands: results on standard output, everything else on standard error.

use super::error::CliError;
use crate::{files::FileError, report::term::visible};
use serde::Serialize;
use std::{io::Write, path::Path, sync::atomic::AtomicU8, sync::atomic::Ordering::Relaxed};

/// Amount of output besides the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors.
    Quiet,
    /// Also notes, progress and summaries.
    Normal,
    /// Also what runs on which device.
    Verbose,
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Normal as u8);

/// Sets the output level from now on.
pub fn set(level: Level) {
    LEVEL.store(level as u8, Relaxed);
}

/// Whether output of this level is printed.
pub fn says(level: Level) -> bool {
    level as u8 <= LEVEL.load(Relaxed)
}

/// A message for the user, unless --quiet is set.
pub fn note(line: &str) {
    say(Level::Normal, line);
}

/// A line of this level on standard error, sanitized because errors quote files. A closed standard error is ignored.
pub fn say(level: Level, line: &str) {
    if says(level) {
        let _ = writeln!(std::io::stderr(), "{}", visible(line));
    }
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(printed.map_err(FileError::at(Path::new("standard output")))?)
}

/// Writes a value to standard output, as a line of JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print(&(serde_json::to_string(value).map_err(CliError::Json)? + "\n"))
}

/// Writes a value to standard output, as a line of JSON or as human-readable text.
pub fn show(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), CliError> {
    if json { print_json(value) } else { print(&text()) }
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<(), CliError> {
    Ok(std::fs::write(path, text).map_err(FileError::at(path))?)
}

/// `1 error`, `2 errors`
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
