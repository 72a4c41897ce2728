//! Stop strings: a response ends when its text contains one.

use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use std::sync::Arc;

/// The text of one response as it is written, searched for stop strings. O(1) per token: of the text before a new token,
/// only as much is searched as a stop string ending in the token can cover.
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

    /// Adds a token. If it completes one of the strings `stop` (empty ones are ignored), returns how many tokens the
    /// response keeps: those beginning before the stop string, and at least one.
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
