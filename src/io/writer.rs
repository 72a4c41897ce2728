//! Where records go: a file that only ever holds whole lines, and can be taken up again after an interruption.
//!
//! Each record is one write. In a `.gz` file each is a gzip member of its own (together an ordinary gzip file), so that
//! such a file can be cut and continued just as a plain one.

use super::record::{Record, Status};
use crate::uq::{Profile, Reading};
use flate2::bufread::GzDecoder;
use flate2::{Compression, write::GzEncoder};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What to do with an output file that has content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// Keep its records and write only the others.
    Resume,
    Overwrite,
}

/// Records cannot be written.
#[derive(Debug, Error)]
pub enum OutputError {
    #[error("{}: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error("{}: the file is not empty; use --resume or --overwrite", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: only a regular file can be resumed", .0.display())]
    NotResumable(PathBuf),
    #[error("{}: another run is writing to this file", .0.display())]
    Busy(PathBuf),
    #[error("{}: line {line}: profile: expected {expected}, found {found}; resume with that profile or start a new file", file.display())]
    OtherProfile { file: PathBuf, line: usize, expected: Reading, found: Reading },
    #[error("{}: line {line}: not a record of an earlier run, so the file is left alone: {why}", file.display())]
    Foreign { file: PathBuf, line: usize, why: String },
    #[error("{}: gzip data from byte {offset} on is damaged, so the file is left alone: {source}", file.display())]
    Damaged { file: PathBuf, offset: u64, source: io::Error },
}

impl OutputError {
    /// Whether the reader of a pipe has gone away, which is its right.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, OutputError::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What an earlier run has already written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How often each id is there; an input may have an id twice.
    left: HashMap<String, usize>,
    pub ok: usize,
    pub no_answer: usize,
    pub error: usize,
}

impl Done {
    /// Whether an item with this id is already there; each record answers for one item.
    pub fn take(&mut self, id: &Value) -> bool {
        match self.left.get_mut(&id.to_string()) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.ok + self.no_answer + self.error
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn add(&mut self, line: &EarlierLine) {
        *self.left.entry(line.id.to_string()).or_default() += 1;
        match line.status {
            Status::Ok => self.ok += 1,
            Status::NoAnswer => self.no_answer += 1,
            Status::Error => self.error += 1,
        }
    }
}

/// What a record of an earlier run has to say; the rest of it stays unread.
#[derive(Deserialize)]
struct EarlierLine {
    id: Value,
    profile: Profile,
    #[serde(default)]
    rules: BTreeMap<String, String>,
    status: Status,
}

/// An output that has been looked at, and not yet changed.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    gzip: bool,
    /// Of a regular file (or one to be made): its length, and that of what stays.
    length_and_keep: Option<(u64, u64)>,
    pub done: Done,
}

impl Destination {
    /// Looks at the output (`-`: standard output) and, for [`Existing::Resume`], reads what is there: a half-written end
    /// does not count, anything else that is no record of this profile is an error.
    pub fn examine(path: &Path, existing: Existing, reading: impl Into<Reading>) -> Result<Destination, OutputError> {
        let gzip = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
        let mut found =
            Destination { path: path.to_owned(), gzip, length_and_keep: Some((0, 0)), done: Done::default() };
        let io = |source| OutputError::Io { file: path.to_owned(), source };
        let metadata = if path == Path::new("-") { None } else { Some(path.metadata()) };
        match metadata {
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Some(Err(error)) => return Err(io(error)),
            Some(Ok(metadata)) if metadata.is_file() && metadata.len() == 0 => {}
            Some(Ok(metadata)) if metadata.is_file() => {
                let keep = match existing {
                    Existing::Refuse => return Err(OutputError::NotEmpty(path.to_owned())),
                    Existing::Overwrite => 0,
                    Existing::Resume => found.read_earlier(reading.into())?,
                };
                found.length_and_keep = Some((metadata.len(), keep));
            }
            _ if existing == Existing::Resume => return Err(OutputError::NotResumable(path.to_owned())),
            _ => found.length_and_keep = None,
        }
        Ok(found)
    }

    /// Opens the output for writing after what is kept; only here is anything cut off.
    pub fn open(self) -> Result<(RecordWriter, Done), OutputError> {
        let Destination { path, gzip, length_and_keep, done } = self;
        if path == Path::new("-") {
            let sink = Sink::Stream(Box::new(io::stdout()));
            return Ok((RecordWriter { sink, path: "standard output".into(), gzip }, done));
        }
        let io = |source| OutputError::Io { file: path.clone(), source };
        let mut options = OpenOptions::new();
        options.write(true);
        let sink = match length_and_keep {
            None => Sink::Stream(Box::new(options.open(&path).map_err(io)?)),
            Some((length, keep)) => {
                let file = options.create(true).truncate(false).open(&path).map_err(io)?;
                // A file system without locks is no reason to stop.
                let locked = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                if locked || file.metadata().map_err(io)?.len() != length {
                    return Err(OutputError::Busy(path));
                }
                Sink::File(WholeLines::open(file, keep).map_err(io)?)
            }
        };
        Ok((RecordWriter { sink, path, gzip }, done))
    }

    /// Reads the records that are there and returns the length of what stays.
    fn read_earlier(&mut self, reading: Reading) -> Result<u64, OutputError> {
        let file = File::open(&self.path).map_err(|source| OutputError::Io { file: self.path.clone(), source })?;
        let reader = BufReader::with_capacity(1 << 16, file);
        let mut earlier = Earlier { path: &self.path, reading, lines: 0, done: Done::default() };
        let keep = if self.gzip { earlier.read_members(reader) } else { earlier.read_lines(reader) }?;
        self.done = earlier.done;
        Ok(keep)
    }
}

/// Reads the records of an earlier run.
struct Earlier<'a> {
    path: &'a Path,
    reading: Reading,
    lines: usize,
    done: Done,
}

impl Earlier<'_> {
    /// Adds the whole lines of plain text and returns their length in bytes.
    fn read_lines(&mut self, mut text: impl BufRead) -> Result<u64, OutputError> {
        let mut whole = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = text.read_until(b'\n', &mut line);
            let read = read.map_err(|source| OutputError::Io { file: self.path.to_owned(), source })?;
            if !line.ends_with(b"\n") {
                self.check_fragment(&line)?;
                return Ok(whole);
            }
            self.add_line(&line)?;
            whole += read as u64;
        }
    }

    /// Adds the records of whole gzip members and returns the length of those members in bytes.
    fn read_members(&mut self, file: impl BufRead) -> Result<u64, OutputError> {
        let mut file = Counting { inner: file, bytes: 0 };
        let mut text = Vec::new();
        loop {
            let offset = file.bytes;
            let at_end = file.fill_buf().map(<[u8]>::is_empty);
            if at_end.map_err(|source| OutputError::Io { file: self.path.to_owned(), source })? {
                return Ok(offset);
            }
            text.clear();
            match GzDecoder::new(&mut file).read_to_end(&mut text) {
                Ok(_) => {
                    if self.read_lines(text.as_slice())? != text.len() as u64 {
                        return Err(self.foreign("a gzip member ends within it".into()));
                    }
                }
                // A member of ours holds one line; cutting off more than that would lose finished work.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && !text.trim_ascii_end().contains(&b'\n') =>
                {
                    self.check_fragment(&text)?;
                    return Ok(offset);
                }
                Err(source) => return Err(OutputError::Damaged { file: self.path.to_owned(), offset, source }),
            }
        }
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), OutputError> {
        self.lines += 1;
        let record: EarlierLine = serde_json::from_slice(line).map_err(|error| self.foreign(error.to_string()))?;
        let found = Reading::new(record.profile, &record.rules).map_err(|error| self.foreign(error.to_string()))?;
        if found != self.reading {
            let expected = self.reading;
            return Err(OutputError::OtherProfile { file: self.path.to_owned(), line: self.lines, expected, found });
        }
        self.done.add(&record);
        Ok(())
    }

    /// What is to be cut off must look like the start of a record: a wrong file name must not cost a file its end.
    fn check_fragment(&mut self, fragment: &[u8]) -> Result<(), OutputError> {
        const START: &[u8] = b"{\"id\":";
        let common = fragment.len().min(START.len());
        if fragment[..common] == START[..common] {
            return Ok(());
        }
        self.lines += 1;
        Err(self.foreign("it does not start as a record does".into()))
    }

    fn foreign(&self, why: String) -> OutputError {
        OutputError::Foreign { file: self.path.to_owned(), line: self.lines, why }
    }
}

/// Counts the bytes that are consumed.
struct Counting<R> {
    inner: R,
    bytes: u64,
}

impl<R: BufRead> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counting<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.inner.consume(n);
        self.bytes += n as u64;
    }
}

/// A file that a failed write leaves as it was.
struct WholeLines {
    file: File,
    len: u64,
}

impl WholeLines {
    fn open(mut file: File, keep: u64) -> io::Result<WholeLines> {
        file.set_len(keep)?;
        file.seek(SeekFrom::Start(keep))?;
        Ok(WholeLines { file, len: keep })
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            // If even this fails, --resume still finds and drops the half line.
            let _ = self.file.set_len(self.len);
            let _ = self.file.seek(SeekFrom::Start(self.len));
            return Err(error);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }
}

enum Sink {
    File(WholeLines),
    /// Standard output, a pipe, a device.
    Stream(Box<dyn Write>),
}

/// Writes records, one line each, and hands every line to the system before it returns.
pub struct RecordWriter {
    sink: Sink,
    path: PathBuf,
    gzip: bool,
}

impl RecordWriter {
    pub fn write(&mut self, record: &Record) -> Result<(), OutputError> {
        let written = line(record, self.gzip).and_then(|bytes| match &mut self.sink {
            Sink::File(file) => file.append(&bytes),
            Sink::Stream(stream) => stream.write_all(&bytes).and_then(|()| stream.flush()),
        });
        written.map_err(|source| OutputError::Io { file: self.path.clone(), source })
    }
}

/// A record as the bytes of its line.
fn line(record: &Record, gzip: bool) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    if !gzip {
        return Ok(text);
    }
    let mut member = GzEncoder::new(Vec::new(), Compression::default());
    member.write_all(&text)?;
    member.finish()
}
