//! A choice's text on its way to the client, which must not see what a stop string may yet cut off.

use super::queue::TokenInfo;
use crate::engine::Progress;
use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use std::sync::Arc;

/// Where `text` ends before the first of these stop strings; an empty one is none.
pub fn cut(text: &str, stop: &[String]) -> usize {
    let found = stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str()));
    found.min().unwrap_or(text.len())
}

/// How much of `text` can be shown, though more may follow: what no stop string has, or has begun with.
fn settled(text: &str, stop: &[String]) -> usize {
    let begun = |stop: &String| {
        let ends = (1..stop.len()).rev().filter(|n| stop.is_char_boundary(*n));
        ends.filter(|n| text.ends_with(&stop[..*n])).max().unwrap_or(0)
    };
    cut(text, stop).min(text.len() - stop.iter().map(begun).max().unwrap_or(0))
}

/// A token's log-probabilities; `top`: alternatives to list.
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

/// A choice that is streamed.
pub struct Streamed {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream<Arc<Tokenizer>>,
    /// What has not been sent, and how many bytes have.
    held: String,
    sent: usize,
    stop: Vec<String>,
    /// Alternatives that are listed, where log-probabilities are.
    logprobs: Option<usize>,
    /// Tokens that have not been sent, each with where its text ends.
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

    /// Adds a token; what can be sent now, if anything.
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

    /// Of a choice that has ended, what was not sent.
    pub fn rest<'t>(&self, text: &'t str, tokens: &'t [TokenInfo]) -> (&'t str, &'t [TokenInfo]) {
        (text.get(self.sent..).unwrap_or_default(), tokens.get(self.sent_tokens..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_become_a_stop_string_is_held_back() {
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
