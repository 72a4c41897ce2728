//! A choice's text as it is streamed, withholding text that may become part of a stop string.

use super::answer::TokenInfo;
use crate::backend::TokenLogprob;
use crate::engine::Progress;
use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use std::sync::Arc;

/// Length of `text` before the first stop string. Empty stop strings are ignored.
pub fn cut(text: &str, stop: &[String]) -> usize {
    let found = stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str()));
    found.min().unwrap_or(text.len())
}

/// Length of the prefix of `text` that no later text can make part of a stop string.
fn settled(text: &str, stop: &[String]) -> usize {
    let partial = |stop: &String| {
        let ends = (1..stop.len()).rev().filter(|n| stop.is_char_boundary(*n));
        ends.filter(|n| text.ends_with(&stop[..*n])).max().unwrap_or(0)
    };
    cut(text, stop).min(text.len() - stop.iter().map(partial).max().unwrap_or(0))
}

/// A token's log-probability and those of its alternatives; `offset`: characters before it.
///
/// # Errors
/// An id outside the vocabulary.
pub fn token_info(
    tokenizer: &Tokenizer,
    token: u32,
    logprob: Option<f64>,
    offset: usize,
    alternatives: &[TokenLogprob],
) -> Result<TokenInfo, TokenizerError> {
    let bytes = |token| tokenizer.token_bytes(token, offset == 0);
    let top = alternatives.iter().map(|t| Ok((bytes(t.token)?, t.logprob))).collect::<Result<_, TokenizerError>>()?;
    Ok(TokenInfo { bytes: bytes(token)?, offset, logprob, top })
}

/// The unsent rest of a streamed choice.
pub struct Streamed {
    stream: TextStream<Arc<Tokenizer>>,
    text: String,
    /// Each token with the end of its text.
    tokens: Vec<(TokenInfo, usize)>,
    /// Bytes and tokens sent.
    sent: (usize, usize),
    /// Characters of the whole text.
    characters: usize,
}

impl Streamed {
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Streamed {
        let stream = TextStream::new(tokenizer.clone());
        Streamed { stream, text: String::new(), tokens: Vec::new(), sent: (0, 0), characters: 0 }
    }

    /// Adds a token; returns the text and tokens that can be sent before any stop string. `logprobs`: alternatives per
    /// token.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(
        &mut self,
        Progress { token, step, .. }: &Progress,
        stop: &[String],
        logprobs: Option<usize>,
    ) -> Result<(String, Vec<TokenInfo>), TokenizerError> {
        // it begins within the character that is held, unless that turns out to be a broken one
        let (mut begun, held) = (self.stream.held().to_vec(), self.stream.held().len());
        begun.extend(self.stream.tokenizer.token_bytes(token.token, false)?.first());
        let error = std::str::from_utf8(&begun).err();
        let breaks = error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len() == Some(held));
        let offset = self.characters + usize::from(held > 0 && breaks);
        let piece = self.stream.push(token.token)?;
        self.characters += piece.chars().count();
        self.text += &piece;
        if let Some(top) = logprobs {
            let alternatives = &step.top[..top.min(step.top.len())];
            let info = token_info(&self.stream.tokenizer, token.token, Some(token.logprob), offset, alternatives)?;
            self.tokens.push((info, self.sent.0 + self.text.len()));
        }
        let rest = self.text.split_off(settled(&self.text, stop));
        let text = std::mem::replace(&mut self.text, rest);
        self.sent.0 += text.len();
        let whole = self.tokens.iter().take_while(|(_, end)| *end <= self.sent.0).count();
        self.sent.1 += whole;
        Ok((text, self.tokens.drain(..whole).map(|(info, _)| info).collect()))
    }

    /// The unsent part of a finished choice.
    pub fn rest(&self, text: &str, tokens: &[TokenInfo]) -> (String, Vec<TokenInfo>) {
        let (bytes, count) = self.sent;
        (text.get(bytes..).unwrap_or_default().to_owned(), tokens.get(count..).unwrap_or_default().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_stop_strings_are_withheld() {
        let stop = ["\n\n".to_owned(), "END.".to_owned(), String::new(), "é!".to_owned()];
        for (text, shown, before_stop) in [
            ("", 0, 0),
            ("a\n", 1, 2),
            ("a\n\nb", 1, 1),
            ("the EN", 4, 6),
            ("the ENd", 7, 7),
            ("the END. and", 4, 4),
            ("caf\u{e9}", 3, 5),
            ("caf\u{e9}s", 6, 6),
        ] {
            assert_eq!((settled(text, &stop), cut(text, &stop)), (shown, before_stop), "{text:?}");
        }
        assert_eq!((settled("a\n", &[]), cut("a\n", &[])), (2, 2));
    }
}
