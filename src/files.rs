//! Untrusted files: opened without blocking, read up to a size limit, compared by identity.

use serde_json::{Value, error::Category};
use std::io::{self, ErrorKind, Read, Take};
use std::{fs::File, fs::Metadata, fs::OpenOptions, path::Path, path::PathBuf, sync::LazyLock};

use regex::bytes::Regex;

/// Max bytes of a settings file: a config, an index, a manifest, options. Real ones are kilobytes, and the parsed tree is
/// held in memory.
pub(crate) const MAX_SETTINGS: u64 = 16 << 20;

/// A file or a folder that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// What an operation on `path` ends with.
    pub fn at(path: &Path) -> impl Fn(io::Error) -> FileError + Copy {
        move |source| FileError { path: path.to_owned(), source }
    }

    /// Whether the reader of a pipe has closed it.
    pub fn is_broken_pipe(&self) -> bool {
        self.source.kind() == ErrorKind::BrokenPipe
    }
}

/// `None` of a file that is not there.
pub(crate) fn if_there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Opens a regular file. Pipes and devices, which may block or never end, are errors.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "expected a regular file, found a pipe or a device"));
    }
    Ok(file)
}

/// The bytes of a regular file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Capped::new(open(path)?, max).read_to_end(&mut bytes)?;
    not_a_pointer(&bytes)?;
    Ok(bytes)
}

/// Refuses what Git leaves in the place of a large file that was not downloaded.
pub(crate) fn not_a_pointer(bytes: &[u8]) -> io::Result<()> {
    if !bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Ok(());
    }
    let message =
        "a Git LFS pointer instead of the file; run git lfs pull in the folder, or download it with hf download";
    Err(io::Error::new(ErrorKind::InvalidData, message))
}

/// Replaces `NaN`, `Infinity` and `-Infinity`, which Python writes although JSON lacks them, by empty objects of their length:
/// no setting accepts one, but where nothing reads the key they do no harm.
pub(crate) fn replace_non_numbers(json: &mut [u8]) {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(?s-u)"(?:[^"\\]|\\.)*"|NaN|-?Infinity"#).expect("a constant pattern"));
    let words = WORD.find_iter(json).map(|found| found.range()).filter(|word| json[word.start] != b'"');
    for word in words.collect::<Vec<_>>() {
        json[word.clone()].fill(b' ');
        (json[word.start], json[word.end - 1]) = (b'{', b'}');
    }
}

/// What is wrong with JSON, in a person's words; lines and columns count from 1.
pub(crate) fn json_fault(error: impl std::borrow::Borrow<serde_json::Error>) -> String {
    let error = error.borrow();
    let (text, column) = (error.to_string(), error.column());
    let why = text.split(" at line ").next().unwrap_or_default().replace("expected ident", "expected a value");
    match (error.classify(), error.line()) {
        (Category::Data | Category::Io, _) => why,
        (Category::Eof, _) => "not valid JSON: it ends too early".to_owned(),
        (Category::Syntax, 1) => format!("not valid JSON: {why} at column {column}"),
        (Category::Syntax, line) => format!("not valid JSON: {why} at line {line}, column {column}"),
    }
}

/// A reader that fails past `max` bytes: the only bound on the content of a small compressed file.
pub(crate) struct Capped<R> {
    source: Take<R>,
    max: u64,
}

impl<R: Read> Capped<R> {
    pub fn new(source: R, max: u64) -> Capped<R> {
        Capped { source: source.take(max), max }
    }
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.source.limit() == 0 && !buffer.is_empty() && self.source.get_mut().read(&mut [0])? > 0 {
            let message = format!("larger than {} bytes, the most that is read of such a file", self.max);
            return Err(io::Error::new(ErrorKind::FileTooLarge, message));
        }
        self.source.read(buffer)
    }
}

/// Like [`read`], for UTF-8 text.
pub(crate) fn read_to_string(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// The entries of a folder, sorted by name.
pub(crate) fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// The last component of a path, as text.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Standard input as a file, at its current position.
pub(crate) fn stdin() -> io::Result<File> {
    duplicate(&io::stdin())
}

/// Standard output as a file.
pub(crate) fn stdout() -> io::Result<File> {
    duplicate(&io::stdout())
}

#[cfg(unix)]
fn duplicate(stream: &impl std::os::fd::AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

#[cfg(windows)]
fn duplicate(stream: &impl std::os::windows::io::AsHandle) -> io::Result<File> {
    Ok(File::from(stream.as_handle().try_clone_to_owned()?))
}

/// Whether both are the same regular file, whatever its names.
pub(crate) fn same(a: &Metadata, b: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino())
    }
    #[cfg(windows)]
    {
        // stable Rust does not tell a file's index; two files do not share both times, which count 100 ns
        use std::os::windows::fs::MetadataExt;
        let of = |file: &Metadata| (file.creation_time(), file.last_write_time(), file.file_size());
        a.is_file() && of(a) == of(b)
    }
}

/// Whether a JSON value is as good as an absent one.
pub fn is_nothing(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false))
        || value.as_str().is_some_and(str::is_empty)
        || value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(|fields| fields.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(read_to_string(&path, 4).unwrap(), "four");
        assert_eq!(read(&path, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(open(folder.path()).unwrap_err().kind(), ErrorKind::IsADirectory);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_to_string(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0").unwrap();
        assert!(read(&path, 99).unwrap_err().to_string().contains("a Git LFS pointer"));
    }

    #[test]
    fn faults_of_json_are_said_in_words() {
        #[derive(Debug, serde::Deserialize)]
        struct Named {
            _name: String,
        }
        let fault = |text: &str| json_fault(serde_json::from_str::<Named>(text).unwrap_err());
        assert_eq!(fault("nonsense"), "not valid JSON: expected a value at column 2");
        assert_eq!(fault("{\n  5"), "not valid JSON: key must be a string at line 2, column 3");
        assert_eq!(fault("{\"_name\": \"x\"\n"), "not valid JSON: it ends too early");
        assert_eq!(fault("{\"_name\": 5}"), "invalid type: integer `5`, expected a string");
        assert_eq!(fault("{}"), "missing field `_name`");
    }

    #[test]
    fn non_numbers_of_python_are_replaced_outside_of_texts() {
        for (written, read) in [
            (r#"{"x": [NaN, -Infinity,Infinity], "y": 1}"#, r#"{"x": [{ }, {       },{      }], "y": 1}"#),
            (r#"{"NaN": "\"Infinity \\", "x":NaN}"#, r#"{"NaN": "\"Infinity \\", "x":{ }}"#),
            (r#"{"x": "é"}"#, r#"{"x": "é"}"#),
        ] {
            let mut json = written.as_bytes().to_vec();
            replace_non_numbers(&mut json);
            assert_eq!(String::from_utf8(json).unwrap(), read);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_device_and_a_pipe_without_a_writer_are_refused_at_once() {
        assert!(open(Path::new("/dev/zero")).unwrap_err().to_string().contains("regular file"));
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read(&pipe, 10).unwrap_err().to_string().contains("regular file"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_the_same_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "x").unwrap();
        std::fs::write(path("b"), "x").unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink(path("a"), path("soft")).unwrap();
        let metadata = |name: &str| path(name).metadata().unwrap();
        assert!(same(&metadata("a"), &metadata("hard")) && same(&metadata("a"), &metadata("soft")));
        assert!(!same(&metadata("a"), &metadata("b")));
        assert!(!same(&folder.path().metadata().unwrap(), &folder.path().metadata().unwrap()), "no regular file");
    }
}
