//! A budget for thoughts: a thought that reaches it is closed in the model's name, and the model goes on with its reply.

use super::encode::prompt_end;
use crate::model::reply::Thinking;
use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use std::sync::Arc;

/// Max tokens of a thought, and how thoughts are marked.
#[derive(Clone, Debug, PartialEq)]
pub struct ThinkingBudget {
    /// Of each thought, the opening marker included if the response has it.
    pub tokens: usize,
    pub thinking: Thinking,
}

/// What the model is given to say at the end of a thought over budget, before the marker that closes it.
const LINE: &str = "\n\nThat is enough thinking; now I give my final answer.\n";

/// Watches the thoughts of one response.
pub(super) struct Watch {
    budget: ThinkingBudget,
    tokenizer: Arc<Tokenizer>,
    /// The end of the prompt, which may open a thought.
    prompt: String,
    /// Tokens of the response at which a thought may next be over budget.
    next: usize,
}

impl Watch {
    /// # Errors
    /// A prompt outside of the vocabulary.
    pub fn new(tokenizer: &Arc<Tokenizer>, prompt: &[u32], budget: ThinkingBudget) -> Result<Watch, TokenizerError> {
        let prompt = prompt_end(tokenizer, prompt)?;
        Ok(Watch { next: budget.tokens, budget, tokenizer: tokenizer.clone(), prompt })
    }

    /// The tokens that close the thought in which a response ends, if that has reached the budget.
    ///
    /// # Errors
    /// A token outside of the vocabulary.
    pub fn closing(&mut self, response: &[u32]) -> Result<Option<Vec<u32>>, TokenizerError> {
        if response.len() < self.next {
            return Ok(None);
        }
        let (text, offsets) = self.tokenizer.decode_with_offsets(response)?;
        let reply = self.budget.thinking.split(&self.prompt, &text);
        // a thought that begins from here on
        self.next = response.len() + self.budget.tokens.max(1);
        let (Some(close), Some(thought)) = (reply.open, reply.thought.last()) else { return Ok(None) };
        let before = offsets.partition_point(|token| token.start < thought.start);
        let left = (before + self.budget.tokens).saturating_sub(response.len());
        if left > 0 {
            self.next = response.len() + left;
            return Ok(None);
        }
        let closing = self.tokenizer.encode(&format!("{LINE}{close}"), false)?;
        self.next += closing.len();
        Ok(Some(closing))
    }
}

// Stop strings: a response ends when its text contains one.

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
