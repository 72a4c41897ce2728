//! Stop strings: a response ends where its text contains one.

use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use std::sync::Arc;

/// The text of one response as it is written, looked through for stop strings. O(1) per token: of the text before a new
/// token only as much is read as a stop string that ends in the token can reach back.
pub(super) struct StopText {
    stream: TextStream<Arc<Tokenizer>>,
    text: String,
    /// Bytes of `text` before each token.
    starts: Vec<usize>,
}

impl StopText {
    pub fn new(tokenizer: &Arc<Tokenizer>) -> StopText {
        StopText { stream: TextStream::new(tokenizer.clone()), text: String::new(), starts: Vec::new() }
    }

    /// Adds a token. If one of the strings `stop` (an empty one is none) is complete with it: how many tokens the response
    /// keeps: those beginning before the stop string, and at least one.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(&mut self, token: u32, stop: &[String]) -> Result<Option<usize>, TokenizerError> {
        self.starts.push(self.text.len());
        let piece = self.stream.push(token)?;
        let before = self.text.len();
        self.text.push_str(&piece);
        let found = stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| {
            let reach = before.saturating_sub(stop.len() - 1);
            let from = (0..=reach).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0);
            self.text[from..].find(stop.as_str()).map(|at| from + at)
        });
        Ok(found.min().map(|at| self.starts.partition_point(|start| *start < at).max(1)))
    }
}
