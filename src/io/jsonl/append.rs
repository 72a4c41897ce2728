//! The JSON Lines writer: files hold whole lines only and can be resumed after an interruption.
//!
//! Each line is one write. In a `.gz` file each is its own gzip member (together an ordinary gzip file), so that such a
//! file can be truncated and continued like a plain one.

use super::LINE_LIMIT;
use crate::files::{self, FileError};
use flate2::{Compression, write::GzEncoder};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::{fs::File, fs::OpenOptions, fs::TryLockError, path::Path, path::PathBuf};
use thiserror::Error;

/// Treatment of an output file that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// Append to its lines.
    Resume,
    Overwrite,
}

/// Lines cannot be written.
#[derive(Debug, Error)]
pub enum AppendError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: the file is not empty; use --resume or --overwrite", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: only a regular file can be resumed", .0.display())]
    NotResumable(PathBuf),
    #[error("{}: another run is writing to this file", .0.display())]
    Busy(PathBuf),
    #[error("{}: line {line}: not a record of an earlier run, so the file is left alone: {why}", file.display())]
    Foreign { file: PathBuf, line: u64, why: String },
    #[error("{}: gzip data from byte {offset} on is damaged, so the file is left alone: {source}", file.display())]
    Damaged { file: PathBuf, offset: u64, source: io::Error },
}

/// An output that has been examined but not changed.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    gzip: bool,
    /// For a regular or new file: its length, and the length to keep.
    length_and_keep: Option<(u64, u64)>,
}

impl Output {
    /// Examines the output (`-`: standard output) and, for [`Existing::Resume`], calls `on_line` with the 1-based number
    /// and value of each existing line. An incomplete last line is dropped if it begins with `start`; any other line that
    /// is not a `T` is an error.
    pub fn examine<T: DeserializeOwned>(
        path: &Path,
        existing: Existing,
        start: &'static str,
        mut on_line: impl FnMut(u64, T),
    ) -> Result<Output, AppendError> {
        let gzip = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
        let length_and_keep = if path == Path::new("-") { None } else { regular_length(path)? };
        let keep = match (length_and_keep, existing) {
            (None, Existing::Resume) => return Err(AppendError::NotResumable(path.to_owned())),
            (None | Some(0), _) | (_, Existing::Overwrite) => 0,
            (_, Existing::Refuse) => return Err(AppendError::NotEmpty(path.to_owned())),
            (_, Existing::Resume) => {
                let mut on_line = |number, line: &[u8]| {
                    on_line(number, serde_json::from_slice(line)?);
                    Ok(())
                };
                let mut earlier = Earlier { path, start: start.as_bytes(), lines: 0, on_line: &mut on_line };
                let file = BufReader::with_capacity(1 << 16, File::open(path).map_err(FileError::at(path))?);
                if gzip { earlier.read_members(file)? } else { earlier.read_lines(file)? }
            }
        };
        Ok(Output { path: path.to_owned(), gzip, length_and_keep: length_and_keep.map(|length| (length, keep)) })
    }

    /// Whether it is a regular or new file, which can be resumed.
    pub fn is_file(&self) -> bool {
        self.length_and_keep.is_some()
    }

    /// Opens the output for appending; only here is the file truncated.
    pub fn open(self) -> Result<Appender, AppendError> {
        let Output { path, gzip, length_and_keep } = self;
        if path == Path::new("-") {
            let sink = Sink::Stream(Box::new(io::stdout()));
            return Ok(Appender { sink, path: "standard output".into(), gzip });
        }
        let io = FileError::at(&path);
        let mut options = OpenOptions::new();
        options.write(true);
        let sink = match length_and_keep {
            None => Sink::Stream(Box::new(options.open(&path).map_err(io)?)),
            Some((length, keep)) => {
                let mut file = options.create(true).truncate(false).open(&path).map_err(io)?;
                // A file system without locks is no reason to stop.
                let locked = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
                if locked || file.metadata().map_err(io)?.len() != length {
                    return Err(AppendError::Busy(path));
                }
                file.set_len(keep).and_then(|()| file.seek(SeekFrom::Start(keep))).map_err(io)?;
                Sink::File(file, keep)
            }
        };
        Ok(Appender { sink, path, gzip })
    }
}

/// The length of a regular file, 0 for a new one; `None` for a pipe or a device.
fn regular_length(path: &Path) -> Result<Option<u64>, AppendError> {
    let metadata = files::if_there(path.metadata()).map_err(FileError::at(path))?;
    Ok(metadata.map_or(Some(0), |metadata| metadata.is_file().then_some(metadata.len())))
}

/// Reads the lines of an earlier run.
struct Earlier<'a> {
    path: &'a Path,
    start: &'static [u8],
    lines: u64,
    on_line: &'a mut dyn FnMut(u64, &[u8]) -> serde_json::Result<()>,
}

impl Earlier<'_> {
    /// Reads whole lines of plain text; returns their length in bytes.
    fn read_lines(&mut self, mut text: impl BufRead) -> Result<u64, AppendError> {
        let (mut whole, mut line) = (0, Vec::new());
        loop {
            line.clear();
            let mut limited = (&mut text).take(LINE_LIMIT + 1);
            let read = limited.read_until(b'\n', &mut line).map_err(FileError::at(self.path))?;
            if read as u64 > LINE_LIMIT && !line.ends_with(b"\n") {
                return Err(self.foreign(self.lines + 1, format!("longer than {LINE_LIMIT} bytes")));
            }
            if !line.ends_with(b"\n") {
                self.check_fragment(&line)?;
                return Ok(whole);
            }
            self.lines += 1;
            (self.on_line)(self.lines, &line).map_err(|error| self.foreign(self.lines, error))?;
            whole += read as u64;
        }
    }

    /// Reads the lines of whole gzip members; returns the members' length in bytes.
    fn read_members(&mut self, mut file: BufReader<File>) -> Result<u64, AppendError> {
        /// First bytes of every member.
        const MAGIC: [u8; 2] = [0x1f, 0x8b];
        let mut text = Vec::new();
        loop {
            let offset = file.stream_position().map_err(FileError::at(self.path))?;
            let start = file.fill_buf().map_err(FileError::at(self.path))?;
            if start.is_empty() {
                return Ok(offset);
            }
            // also if it is too short to be more than the start of a member
            if start.iter().zip(&MAGIC).any(|(found, expected)| found != expected) {
                return Err(self.foreign(self.lines + 1, "it is not gzip, although the file's name ends in .gz"));
            }
            text.clear();
            match flate2::bufread::GzDecoder::new(&mut file).take(LINE_LIMIT + 1).read_to_end(&mut text) {
                Ok(_) if text.len() as u64 > LINE_LIMIT => {
                    let why = format!("a gzip member holds more than {LINE_LIMIT} bytes");
                    return Err(self.foreign(self.lines + 1, why));
                }
                Ok(_) => {
                    if self.read_lines(text.as_slice())? != text.len() as u64 {
                        return Err(self.foreign(self.lines, "a gzip member ends within it"));
                    }
                }
                // A member written here holds one line; cutting off more than that would lose finished work.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof && !text.trim_ascii_end().contains(&b'\n') =>
                {
                    self.check_fragment(&text)?;
                    return Ok(offset);
                }
                Err(source) => return Err(AppendError::Damaged { file: self.path.to_owned(), offset, source }),
            }
        }
    }

    /// Only the start of a record may be truncated: a wrong file name must not truncate another file.
    fn check_fragment(&self, fragment: &[u8]) -> Result<(), AppendError> {
        match fragment.starts_with(self.start) || self.start.starts_with(fragment) {
            true => Ok(()),
            false => Err(self.foreign(self.lines + 1, "it does not start as a record does")),
        }
    }

    fn foreign(&self, line: u64, why: impl ToString) -> AppendError {
        AppendError::Foreign { file: self.path.to_owned(), line, why: why.to_string() }
    }
}

enum Sink {
    /// With the length of its whole lines, to which a failed write rolls it back.
    File(File, u64),
    /// Standard output, a pipe, a device.
    Stream(Box<dyn Write>),
}

impl Drop for Sink {
    fn drop(&mut self) {
        if let Sink::File(file, _) = self {
            // a child process between fork and exec also holds the file, and with it the lock
            let _ = file.unlock();
        }
    }
}

impl Sink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stream(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Sink::File(file, len) => {
                if let Err(error) = file.write_all(bytes) {
                    // If even this fails, --resume still finds and drops the half line.
                    let _ = file.set_len(*len);
                    let _ = file.seek(SeekFrom::Start(*len));
                    return Err(error);
                }
                *len += bytes.len() as u64;
                Ok(())
            }
        }
    }
}

/// Writes lines, each flushed to the system before the call returns.
pub struct Appender {
    sink: Sink,
    path: PathBuf,
    gzip: bool,
}

impl Appender {
    /// Appends a line. A failed write leaves a regular file unchanged.
    pub fn append(&mut self, record: &impl Serialize) -> Result<(), FileError> {
        line(record, self.gzip).and_then(|bytes| self.sink.append(&bytes)).map_err(FileError::at(&self.path))
    }

    /// Syncs the file to disk.
    pub fn sync(&mut self) -> Result<(), FileError> {
        let Sink::File(file, _) = &self.sink else { return Ok(()) };
        file.sync_data().map_err(FileError::at(&self.path))
    }
}

/// A record as the bytes of its line.
fn line(record: &impl Serialize, gzip: bool) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(record)?;
    text.push(b'\n');
    if !gzip {
        return Ok(text);
    }
    let mut member = GzEncoder::new(Vec::new(), Compression::default());
    member.write_all(&text)?;
    member.finish()
}
