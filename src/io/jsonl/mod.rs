//! JSON lines: one reader, of plain and gzip files, and one writer that resumes ([`append`]).

pub mod append;

use crate::files::{self, Capped};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, Take};
use std::{fs::File, path::Path, path::PathBuf};
use thiserror::Error;

/// Max bytes of a line: a file that is not JSONL must not exhaust memory.
pub const LINE_LIMIT: u64 = 64 << 20;

/// A read error, with its position.
#[derive(Debug, Error)]
#[error("{}: cannot read line {line}: {source}", file.display())]
pub struct ReadError {
    pub file: PathBuf,
    /// 1-based
    pub line: u64,
    pub source: io::Error,
}

/// A line that is not blank.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// 1-based; blank lines count.
    pub number: u64,
    /// The line with its end, without the file's byte order mark.
    pub bytes: &'a [u8],
    /// Set if the line exceeds this limit in bytes; `bytes` is then only its start.
    pub over_limit: Option<u64>,
}

/// The lines of a file, without blank ones.
pub struct Lines {
    reader: Box<dyn BufRead>,
    file: PathBuf,
    /// Lines read so far.
    number: u64,
    buffer: Vec<u8>,
    limit: u64,
}

impl Lines {
    /// Opens a file, or standard input for `-`. Gzip is recognised by its content. A regular file is read up to its current
    /// length.
    pub fn open(path: &Path) -> Result<Lines, ReadError> {
        let (file, name) = match path == Path::new("-") {
            true => (files::stdin(), "standard input".into()),
            false => (File::open(path), path.to_owned()),
        };
        let file = file.and_then(until_now).map_err(|source| ReadError { file: name.clone(), line: 1, source })?;
        Lines::new(file, name)
    }

    /// Reads from any source; `file` is its name in errors.
    pub fn new(source: impl Read + 'static, file: PathBuf) -> Result<Lines, ReadError> {
        let reader = unpacked(source).map_err(|source| ReadError { file: file.clone(), line: 1, source })?;
        Ok(Lines { reader, file, number: 0, buffer: Vec::new(), limit: LINE_LIMIT })
    }

    /// Sets the maximum length of a line in bytes; only the start of longer ones is read.
    pub fn with_limit(mut self, bytes: u64) -> Lines {
        self.limit = bytes;
        self
    }

    /// Sets the maximum number of bytes, decompressed; more are a read error.
    pub fn with_max(mut self, bytes: u64) -> Lines {
        self.reader = Box::new(BufReader::new(Capped::new(self.reader, bytes)));
        self
    }

    /// The next line that is not blank. After an error the position is unknown.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, ReadError> {
        loop {
            self.buffer.clear();
            let broken = |source| ReadError { file: self.file.clone(), line: self.number + 1, source };
            let mut limited = (&mut self.reader).take(self.limit.saturating_add(1)); // one more, for the newline
            if limited.read_until(b'\n', &mut self.buffer).map_err(broken)? == 0 {
                return Ok(None);
            }
            let fits = self.buffer.len() as u64 <= self.limit || self.buffer.ends_with(b"\n");
            if !fits {
                self.reader.skip_until(b'\n').map_err(broken)?;
            }
            if self.number == 0 && self.buffer.starts_with(b"\xef\xbb\xbf") {
                self.buffer.drain(..3); // a byte order mark
            }
            self.number += 1;
            files::replace_non_numbers(&mut self.buffer);
            if !fits || !self.buffer.trim_ascii().is_empty() {
                let over_limit = (!fits).then_some(self.limit);
                return Ok(Some(Line { number: self.number, bytes: &self.buffer, over_limit }));
            }
        }
    }

    /// Number of remaining lines, up to the first read error.
    pub fn count(mut self) -> u64 {
        std::iter::from_fn(|| self.next_line().ok()?.map(|_| ())).count() as u64
    }
}

/// A file from its position to its current end.
fn until_now(mut file: File) -> io::Result<Take<File>> {
    let metadata = file.metadata()?;
    let left = match metadata.is_file() {
        true => metadata.len().saturating_sub(file.stream_position()?),
        false => u64::MAX,
    };
    Ok(file.take(left))
}

/// The content of a source, decompressed if it is gzip (with any number of members).
pub fn unpacked(source: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    // read and put back: a pipe may hold only a single byte when peeked at
    let mut start = Vec::new();
    source.by_ref().take(2).read_to_end(&mut start)?;
    let gzip = start == [0x1f, 0x8b];
    let source = Cursor::new(start).chain(source);
    Ok(if gzip { Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(source))) } else { Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn lines(bytes: &[u8]) -> Lines {
        Lines::new(Cursor::new(bytes.to_vec()), "test".into()).unwrap()
    }

    /// Number and text of every line, without its end.
    fn all(mut lines: Lines) -> Result<Vec<(u64, String)>, (usize, ReadError)> {
        let mut found = Vec::new();
        loop {
            match lines.next_line() {
                Ok(None) => return Ok(found),
                Ok(Some(line)) => {
                    found.push((line.number, String::from_utf8_lossy(line.bytes).trim_end().to_owned()));
                }
                Err(error) => return Err((found.len(), error)),
            }
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// As Python writes them; only where nothing reads them.
    #[test]
    fn numbers_that_json_lacks() {
        let found = all(lines(br#"{"id": "NaN", "score": NaN, "x": [-Infinity]}"#)).unwrap();
        assert_eq!(found, [(1, r#"{"id": "NaN", "score": { }, "x": [{       }]}"#.to_owned())]);
    }

    const TEXT: &[u8] = b"\xef\xbb\xbf{\"a\": 1}\r\n\n  \nnot json\n{\"a\": 2}\n{\"a\": 3}";

    #[test]
    fn blank_lines_count_and_are_left_out() {
        let text = |line: &str| line.to_owned();
        let expected =
            [(1, text("{\"a\": 1}")), (4, text("not json")), (5, text("{\"a\": 2}")), (6, text("{\"a\": 3}"))];
        assert_eq!(all(lines(TEXT)).unwrap(), expected);
        assert_eq!(lines(TEXT).count(), 4);
        assert_eq!(all(lines(b"")).unwrap(), []);
        assert_eq!(all(lines(b"\n")).unwrap(), []);
    }

    #[test]
    fn gzip_is_read_whatever_its_name_and_in_several_members() {
        let mut packed = gzip(&TEXT[..20]);
        packed.extend(gzip(&TEXT[20..]));
        assert_eq!(all(lines(&packed)).unwrap(), all(lines(TEXT)).unwrap());
    }

    #[test]
    fn cut_off_gzip_is_an_error_after_its_whole_lines() {
        let packed = gzip(&[TEXT, b"\n"].concat());
        let (good, error) = all(lines(&packed[..packed.len() - 4])).unwrap_err();
        assert_eq!((good, error.line), (4, 7));
        assert_eq!(lines(&packed[..packed.len() - 4]).count(), 4);
    }

    #[test]
    fn what_is_added_while_a_file_is_read_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.jsonl");
        std::fs::write(&path, "1\n2\n").unwrap();
        let mut lines = Lines::open(&path).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        let mut read = 0;
        while lines.next_line().unwrap().is_some() {
            file.write_all(b"3\n").unwrap();
            read += 1;
            assert!(read < 10);
        }
        assert_eq!(read, 2);
    }

    #[test]
    fn only_the_start_of_a_line_over_the_limit_is_read() {
        let input = [&[b'x'; 5000][..], b"\n1\n"].concat();
        let mut limited = lines(&input).with_limit(100);
        let long = limited.next_line().unwrap().unwrap();
        assert_eq!((long.over_limit, long.bytes.len()), (Some(100), 101));
        let next = limited.next_line().unwrap().unwrap();
        assert_eq!((next.number, next.over_limit, serde_json::from_slice::<u8>(next.bytes).unwrap()), (2, None, 1));
        assert_eq!(lines(&input).with_limit(100).count(), 2);
        // as long as the limit fits
        assert_eq!(lines(b"12345\n").with_limit(5).next_line().unwrap().unwrap().over_limit, None);
    }

    #[test]
    fn missing_files_and_folders_are_named() {
        let error = Lines::open(Path::new("/no/such/file.jsonl")).err().unwrap().to_string();
        assert!(error.starts_with("/no/such/file.jsonl: "), "{error}");
        assert!(Lines::open(&std::env::temp_dir()).is_err());
    }
}
