//! The input of `score`: JSON lines, plain or gzip, each a response that already exists.
//!
//! A line is `{id, input_ids, prompt_len}` (optionally `dataset` and `answer_span`) or `{id, messages | prompt, response}`
//! (optionally `dataset`); other fields are ignored. A line that cannot be used becomes a [`BadItem`] and the next one
//! is read; only a file that cannot be read further ends the iteration.

use super::item::{BadItem, Item, Problem, rescue_id};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A longer line is an error of its item, so that a file that is no JSONL cannot fill the memory.
const LINE_LIMIT: u64 = 1 << 30;

/// The input cannot be read (further).
#[derive(Debug, Error)]
#[error("{}: cannot read line {line}: {source}", file.display())]
pub struct InputError {
    pub file: PathBuf,
    /// 1-based
    pub line: u64,
    pub source: io::Error,
}

/// The items of an input; see the module. Blank lines are skipped, but count as lines.
pub struct Items {
    reader: Box<dyn BufRead>,
    file: PathBuf,
    /// Lines read so far.
    line: u64,
    buffer: Vec<u8>,
    limit: u64,
    ended: bool,
}

impl Items {
    /// Opens a file, or standard input for `-`. Gzip is recognised by its content, not by the name.
    pub fn open(path: &Path) -> Result<Items, InputError> {
        if path == Path::new("-") {
            return Items::new(io::stdin(), "standard input".into());
        }
        let broken = |source| InputError { file: path.to_owned(), line: 1, source };
        Items::new(File::open(path).map_err(broken)?, path.to_owned())
    }

    /// Reads from any source; `file` is its name in errors.
    pub fn new(source: impl Read + 'static, file: PathBuf) -> Result<Items, InputError> {
        let mut source = BufReader::with_capacity(1 << 16, source);
        // taken off and put back: a pipe may hold a single byte when it is peeked at
        let mut start = Vec::new();
        let sniffed = source.by_ref().take(2).read_to_end(&mut start);
        sniffed.map_err(|source| InputError { file: file.clone(), line: 1, source })?;
        let gzip = start == [0x1f, 0x8b];
        let source = Cursor::new(start).chain(source);
        let reader: Box<dyn BufRead> =
            if gzip { Box::new(BufReader::new(MultiGzDecoder::new(source))) } else { Box::new(source) };
        Ok(Items { reader, file, line: 0, buffer: Vec::new(), limit: LINE_LIMIT, ended: false })
    }

    /// Sets the length from which a line is an error.
    pub fn with_line_limit(mut self, bytes: u64) -> Items {
        self.limit = bytes;
        self
    }

    /// How many items are left, bad ones included; reads them all, but only as far as the lines.
    pub fn count_lines(mut self) -> Result<u64, InputError> {
        let mut lines = 0;
        while self.read_line()?.is_some() {
            lines += u64::from(!blank(&self.buffer));
        }
        Ok(lines)
    }

    /// Reads the next line into the buffer; `Some(false)` if it was over the limit (then its start is there).
    fn read_line(&mut self) -> Result<Option<bool>, InputError> {
        self.buffer.clear();
        let broken = |source| InputError { file: self.file.clone(), line: self.line + 1, source };
        let mut limited = (&mut self.reader).take(self.limit.saturating_add(1)); // one more, for the newline
        if limited.read_until(b'\n', &mut self.buffer).map_err(broken)? == 0 {
            return Ok(None);
        }
        let fits = self.buffer.len() as u64 <= self.limit || self.buffer.ends_with(b"\n");
        if !fits {
            self.reader.skip_until(b'\n').map_err(broken)?;
        }
        if self.line == 0 && self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.buffer.drain(..3); // a byte order mark
        }
        self.line += 1;
        Ok(Some(fits))
    }

    fn next_item(&mut self) -> Result<Option<Result<Item, BadItem>>, InputError> {
        while let Some(fits) = self.read_line()? {
            if !fits {
                let id = rescue_id(&self.buffer).unwrap_or_else(|| (self.line - 1).into());
                let problem = Box::new(Problem::TooLong { limit: self.limit });
                return Ok(Some(Err(BadItem { id, line: self.line, problem })));
            }
            if !blank(&self.buffer) {
                return Ok(Some(Item::parse(&self.buffer, self.line)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Items {
    type Item = Result<Result<Item, BadItem>, InputError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_item().transpose();
        // after a read error the position is unknown
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

fn blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use serde_json::{Value, json};
    use std::io::Write;

    fn items(bytes: &[u8]) -> Items {
        Items::new(Cursor::new(bytes.to_vec()), "test".into()).unwrap()
    }

    fn ids(items: Items) -> Vec<(bool, Value)> {
        items.map(|line| line.unwrap().map_or_else(|bad| (false, bad.id), |item| (true, item.id))).collect()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    const LINES: &[u8] = b"\xef\xbb\xbf{\"id\": \"a\", \"prompt\": \"p\", \"response\": \"r\"}\r\n\n  \nnot json\n\
        {\"prompt\": \"p\", \"response\": \"r\"}\n{\"id\": 7, \"prompt\": \"p\", \"response\": \"r\"}";

    #[test]
    fn bad_and_blank_lines_do_not_stop_the_others() {
        let expected = [(true, json!("a")), (false, json!(3)), (true, json!(4)), (true, json!(7))];
        assert_eq!(ids(items(LINES)), expected);
        assert_eq!(items(LINES).count_lines().unwrap(), 4);
        assert_eq!(ids(items(b"")), []);
        assert_eq!(ids(items(b"\n")), []);
    }

    #[test]
    fn gzip_is_read_whatever_its_name_and_in_several_members() {
        let mut packed = gzip(&LINES[..50]);
        packed.extend(gzip(&LINES[50..]));
        assert_eq!(ids(items(&packed)), ids(items(LINES)));
    }

    #[test]
    fn cut_off_gzip_is_an_error_after_its_whole_lines() {
        let packed = gzip(&[LINES, b"\n"].concat());
        let mut items = items(&packed[..packed.len() - 4]);
        let good = items.by_ref().take_while(Result::is_ok).count();
        assert_eq!(good, 4);
        assert!(items.next().is_none());
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_with_its_id() {
        let long = format!("{{\"id\": \"big\", \"prompt\": \"{}\"}}\n", "x".repeat(5000));
        let input = [long.as_bytes(), b"{\"id\": 1, \"prompt\": \"p\", \"response\": \"r\"}\n"].concat();
        assert_eq!(ids(items(&input).with_line_limit(100)), [(false, json!("big")), (true, json!(1))]);
        assert_eq!(items(&input).with_line_limit(100).count_lines().unwrap(), 2);
    }

    #[test]
    fn a_line_as_long_as_the_limit_fits() {
        let line = b"{\"id\": 1, \"prompt\": \"p\", \"response\": \"r\"}\n";
        let fits = items(line).with_line_limit(line.len() as u64 - 1);
        assert_eq!(ids(fits), [(true, json!(1))]);
    }

    #[test]
    fn missing_files_and_folders_are_named() {
        let error = Items::open(Path::new("/no/such/file.jsonl")).err().unwrap().to_string();
        assert!(error.starts_with("/no/such/file.jsonl: "), "{error}");
        assert!(Items::open(&std::env::temp_dir()).is_err());
    }
}
