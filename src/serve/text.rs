//! A choice's text as it is streamed, withholding what may become part of a stop string.

use super::answer::TokenInfo;
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

/// A token's log-probabilities with `top` alternatives.
///
/// # Errors
/// An id outside the vocabulary.
pub fn token_info(
    tokenizer: &Tokenizer,
    token: u32,
    (logprob, step): (Option<f64>, &crate::backend::Step),
    (offset, top): (usize, usize),
) -> Result<TokenInfo, TokenizerError> {
    let listed = step.top.iter().take(top).map(|t| Ok((tokenizer.decode_token(t.token)?, t.logprob)));
    let top = listed.collect::<Result<_, TokenizerError>>()?;
    Ok(TokenInfo { text: tokenizer.decode_token(token)?, offset, logprob, top })
}

/// A streamed choice.
pub struct Streamed {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream<Arc<Tokenizer>>,
    /// Text not yet sent.
    held: String,
    /// Bytes sent.
    sent: usize,
    stop: Vec<String>,
    /// Number of alternatives per token; `None`: no logprobs.
    pub logprobs: Option<usize>,
    /// Tokens not yet sent, each with the end of its text.
    tokens: Vec<(TokenInfo, usize)>,
    sent_tokens: usize,
}

impl Streamed {
    pub fn new(tokenizer: &Arc<Tokenizer>, stop: &[String], logprobs: Option<usize>) -> Streamed {
        Streamed {
            tokenizer: tokenizer.clone(),
            stream: TextStream::new(tokenizer.clone()),
            held: String::new(),
            sent: 0,
            stop: stop.to_vec(),
            logprobs,
            tokens: Vec::new(),
            sent_tokens: 0,
        }
    }

    /// Adds a token; returns text and tokens that can be sent.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(&mut self, progress: &Progress) -> Result<Option<(String, Vec<TokenInfo>)>, TokenizerError> {
        let offset = self.sent + self.held.len();
        self.held += &self.stream.push(progress.token.token)?;
        if let Some(top) = self.logprobs {
            let logprobs = (Some(progress.token.logprob), progress.step);
            let info = token_info(&self.tokenizer, progress.token.token, logprobs, (offset, top))?;
            self.tokens.push((info, self.sent + self.held.len()));
        }
        let settled = settled(&self.held, &self.stop);
        let rest = self.held.split_off(settled);
        let text = std::mem::replace(&mut self.held, rest);
        self.sent += text.len();
        let whole = self.tokens.iter().take_while(|(_, end)| *end <= self.sent).count();
        let tokens: Vec<TokenInfo> = self.tokens.drain(..whole).map(|(info, _)| info).collect();
        self.sent_tokens += tokens.len();
        Ok(if text.is_empty() && tokens.is_empty() { None } else { Some((text, tokens)) })
    }

    /// The unsent part of a finished choice, if any.
    pub fn rest<'t>(&self, text: &'t str, tokens: &'t [TokenInfo]) -> Option<(&'t str, &'t [TokenInfo])> {
        let (text, tokens) = (text.get(self.sent..)?, tokens.get(self.sent_tokens..)?);
        (!text.is_empty() || !tokens.is_empty()).then_some((text, tokens))
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
