//! From tokens to text with the tokens kept apart.
//!
//! `tokenizer.json` describes its decoder as steps over the list of all tokens, and the step that joins them loses
//! track of which token wrote what. [`Plan`] holds the same steps, split into per-token ones and the one that joins,
//! so that the join can be done here: for a whole sequence with byte ranges, or token by token for a stream.
//! Hand-written, since the `DecodeStream` of `tokenizers` has no byte ranges.

use std::ops::{Deref, Range};

use tokenizers::Decoder;
use tokenizers::decoders::{DecoderWrapper, strip::Strip};

use super::{super::boundary::caught, Result, Tokenizer, TokenizerError};

/// How tokens are joined into a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// No decoder: tokens with a space between them.
    Spaces,
    /// The tokens' texts, concatenated.
    Text,
    /// Like `Text`, but tokens `<0xNN>` are bytes. A run of them that is not valid UTF-8 is one U+FFFD per byte.
    ByteRuns,
    /// Tokens spell bytes in the alphabet of byte-level BPE; U+FFFD where the bytes are not valid UTF-8.
    Bytes,
}

/// The decoder of `tokenizer.json` in the order: per token, join, strip.
#[derive(Debug)]
pub(super) struct Plan {
    per_token: Vec<DecoderWrapper>,
    join: Join,
    /// A character, and the max number of it stripped from the start of the joined text.
    strip: Option<(char, usize)>,
}

/// A token's part of a text.
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

impl Plan {
    /// Sorts the steps of `decoder`.
    ///
    /// # Errors
    /// The name of an unsupported step: it looks beyond one token, or follows the join.
    pub fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, String> {
        let mut plan = Self { per_token: Vec::new(), join: Join::Spaces, strip: None };
        let Some(decoder) = decoder else { return Ok(plan) };
        plan.join = Join::Text;
        let mut steps = Vec::new();
        flatten(decoder, &mut steps);
        let mut fused = false;
        for step in steps {
            let apart = plan.join == Join::Text && !fused;
            match step {
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::ByteLevel(_) if apart => (plan.join, fused) = (Join::Bytes, true),
                DecoderWrapper::ByteFallback(_) if apart => plan.join = Join::ByteRuns,
                DecoderWrapper::Strip(Strip { stop: 0, start, content, .. }) if fused && plan.strip.is_none() => {
                    plan.strip = Some((*content, *start));
                }
                DecoderWrapper::Strip(Strip { stop: 0, .. })
                | DecoderWrapper::Replace(_)
                | DecoderWrapper::Metaspace(_)
                | DecoderWrapper::WordPiece(_)
                    if apart =>
                {
                    plan.per_token.push(step.clone());
                }
                other => return Err(step_name(other)),
            }
        }
        Ok(plan)
    }

    /// The bytes of `token` after `previous` (none: it is the first, which some steps treat differently).
    fn piece(&self, token: &str, previous: Option<&str>) -> Result<Piece> {
        let mut tokens: Vec<String> = previous.into_iter().chain([token]).map(str::to_string).collect();
        for step in &self.per_token {
            tokens = caught(|| step.decode_chain(tokens)).map_err(TokenizerError::Decode)?;
        }
        let text = tokens.pop().unwrap_or_default();
        Ok(match self.join {
            Join::Spaces if previous.is_some() => Piece::Text(format!(" {text}")),
            Join::Spaces | Join::Text => Piece::Text(text),
            Join::Bytes => Piece::Bytes(byte_level(text)),
            Join::ByteRuns => match fallback_byte(&text) {
                Some(byte) => Piece::Bytes(vec![byte]),
                None => Piece::Text(text),
            },
        })
    }

    /// The bytes of `token` at the `start` of a text, or after other tokens; see [`Tokenizer::token_bytes`].
    pub fn bytes(&self, token: &str, start: bool) -> Result<Vec<u8>> {
        // steps only distinguish the first token from the rest
        let mut bytes = match self.piece(token, (!start).then_some("a"))? {
            Piece::Bytes(bytes) => bytes,
            Piece::Text(text) => text.into_bytes(),
        };
        if start {
            bytes.drain(..self.stripped(&bytes, self.max_stripped()));
        }
        Ok(bytes)
    }

    /// Bytes stripped from the start of a text, at most `max` characters.
    fn stripped(&self, text: &[u8], max: usize) -> usize {
        let content = self.strip.map_or_else(String::new, |(content, _)| content.to_string());
        let parts = text.chunks(content.len().max(1)).take(max);
        parts.take_while(|part| *part == content.as_bytes()).count() * content.len()
    }

    fn max_stripped(&self) -> usize {
        self.strip.map_or(0, |(_, max)| max)
    }

    /// The text of `tokens` and each token's byte range in it; see [`Tokenizer::decode_with_offsets`].
    pub fn text_with_ranges(&self, tokens: &[String]) -> Result<(String, Vec<Range<usize>>)> {
        let mut text = String::new();
        let mut ranges = Vec::with_capacity(tokens.len());
        let mut run: Vec<Vec<u8>> = Vec::new();
        let mut previous = None;
        for token in tokens {
            match self.piece(token, previous)? {
                Piece::Bytes(bytes) => run.push(bytes),
                Piece::Text(piece) => {
                    self.append_run(&mut run, &mut text, &mut ranges);
                    ranges.push(text.len()..text.len() + piece.len());
                    text.push_str(&piece);
                }
            }
            previous = Some(token.as_str());
        }
        self.append_run(&mut run, &mut text, &mut ranges);
        self.strip_start(&mut text, &mut ranges);
        Ok((text, ranges))
    }

    /// Turns the bytes of consecutive tokens into text and empties `run`.
    fn append_run(&self, run: &mut Vec<Vec<u8>>, text: &mut String, ranges: &mut Vec<Range<usize>>) {
        let bytes = run.concat();
        // Per byte the range, in `text`, of the character it belongs to.
        let mut owner = Vec::with_capacity(bytes.len());
        let mut add = |text: &mut String, c: char, n_bytes: usize| {
            let start = text.len();
            text.push(c);
            owner.extend(std::iter::repeat_n(start..text.len(), n_bytes));
        };
        if self.join == Join::ByteRuns && std::str::from_utf8(&bytes).is_err() {
            bytes.iter().for_each(|_| add(text, char::REPLACEMENT_CHARACTER, 1));
        } else {
            for chunk in bytes.utf8_chunks() {
                chunk.valid().chars().for_each(|c| add(text, c, c.len_utf8()));
                if !chunk.invalid().is_empty() {
                    add(text, char::REPLACEMENT_CHARACTER, chunk.invalid().len());
                }
            }
        }
        let mut next = 0;
        for token in run.drain(..) {
            let start = owner.get(next).map_or(text.len(), |r| r.start);
            next += token.len();
            let end = if token.is_empty() { start } else { owner[next - 1].end };
            ranges.push(start..end);
        }
    }

    fn strip_start(&self, text: &mut String, ranges: &mut [Range<usize>]) {
        let cut = self.stripped(text.as_bytes(), self.max_stripped());
        text.drain(..cut);
        for range in ranges {
            *range = range.start.saturating_sub(cut)..range.end.saturating_sub(cut);
        }
    }
}

/// Text as it is written, one token at a time.
///
/// Concatenated, the texts of [`push`](Self::push) and [`finish`](Self::finish) are
/// [`Tokenizer::decode_with_offsets`]'s text. (One exception: if a run of `<0xNN>` tokens turns out not to be valid
/// UTF-8, the characters in it that were complete have already been emitted, while the whole run decodes to U+FFFD.)
pub struct TextStream<T> {
    /// A reference to a tokenizer, or an owner of it.
    pub(crate) tokenizer: T,
    previous: Option<String>,
    /// Up to three bytes: the beginning of a character.
    held: Vec<u8>,
    /// Leading characters that may still be stripped.
    strip_left: usize,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// The bytes held: the beginning of a character.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    pub fn new(tokenizer: T) -> Self {
        let strip_left = tokenizer.plan.max_stripped();
        Self { tokenizer, previous: None, held: Vec::new(), strip_left }
    }

    /// The text that `id` completes: nothing while a character is incomplete, never half of one.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary; the stream is then unchanged.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let token = self.tokenizer.token_text(id)?;
        let mut out = String::new();
        match self.tokenizer.plan.piece(&token, self.previous.as_deref())? {
            Piece::Bytes(bytes) => {
                self.held.extend(bytes);
                self.release(&mut out, false);
            }
            Piece::Text(text) => {
                self.release(&mut out, true);
                out.push_str(&text);
            }
        }
        self.previous = Some(token);
        Ok(self.strip(out))
    }

    /// The held-back rest: empty, or U+FFFD if the sequence ends within a character.
    pub fn finish(mut self) -> String {
        let mut out = String::new();
        self.release(&mut out, true);
        self.strip(out)
    }

    /// Moves complete characters from `held` to `out`; with `all`, the incomplete rest as U+FFFD too.
    fn release(&mut self, out: &mut String, all: bool) {
        let held = std::mem::take(&mut self.held);
        let mut chunks = held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            out.push_str(chunk.valid());
            let bad = chunk.invalid();
            let incomplete =
                chunks.peek().is_none() && std::str::from_utf8(bad).is_err_and(|e| e.error_len().is_none());
            if incomplete && !all {
                self.held = bad.to_vec();
            } else if !bad.is_empty() {
                let n = if self.tokenizer.plan.join == Join::ByteRuns { bad.len() } else { 1 };
                out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, n));
            }
        }
    }

    fn strip(&mut self, mut out: String) -> String {
        let cut = self.tokenizer.plan.stripped(out.as_bytes(), self.strip_left);
        // only leading characters are stripped
        self.strip_left = if cut == out.len() { self.strip_left - out.chars().count() } else { 0 };
        out.split_off(cut)
    }
}

/// Flattens nested sequences into one list.
fn flatten<'d>(decoder: &'d DecoderWrapper, steps: &mut Vec<&'d DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|d| flatten(d, steps)),
        other => steps.push(other),
    }
}

/// The name of a step in `tokenizer.json`.
fn step_name(step: &DecoderWrapper) -> String {
    let json = serde_json::to_value(step).unwrap_or_default();
    json.get("type").and_then(|t| t.as_str()).map_or_else(|| "of unknown type".to_string(), str::to_string)
}

/// The byte of a byte-fallback token `<0xNN>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// The bytes a token spells in the byte-level alphabet. A token with any other character (added tokens are written as
/// text) stands for itself.
fn byte_level(token: String) -> Vec<u8> {
    token.chars().map(byte_of_char).collect::<Option<_>>().unwrap_or_else(|| token.into_bytes())
}

/// The alphabet of byte-level BPE (GPT-2): printable Latin-1 bytes are themselves, the other 68 map, in order, to the
/// characters from U+0100 on.
pub fn byte_of_char(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8), // 0x00 ..= 0x20
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8), // 0x7f ..= 0xa0
        0x143 => Some(0xad),
        _ => None,
    }
}
