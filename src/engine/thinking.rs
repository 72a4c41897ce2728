//! A budget for thoughts: a thought that reaches it is closed in the model's name, and the model goes on with its reply.

use super::encode::prompt_end;
use crate::model::reply::Thinking;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
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
