//! A response as its pass recorded it.

use crate::backend::Step;
use std::ops::Range;

/// A response, and what its pass recorded of each step.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The whole sequence: prompt, response, and the template's end tokens, if any.
    pub tokens: &'a [u32],
    /// Start of the response.
    pub prompt_len: usize,
    /// Text of each response token on its own: `token_texts[j]` belongs to `tokens[prompt_len + j]`.
    pub token_texts: &'a [String],
    /// `steps[j]` is row `prompt_len - 1 + j`, so it predicts response token j; one more than response tokens.
    pub steps: &'a [Step],
    /// [`Backend::layer_means`](crate::backend::Backend::layer_means), `[L + 1][hidden_size]`; empty if they were not recorded.
    pub layer_means: &'a [Vec<f64>],
}

/// The step of a row outside the response.
static NO_STEP: Step =
    Step { logprob: None, entropy: 0.0, top: Vec::new(), distribution: None, heads: Vec::new(), forced: false };

impl Response<'_> {
    /// The step at row T (absolute); an empty one outside `prompt_len - 1 .. tokens.len()`.
    pub fn step(&self, row: usize) -> &Step {
        (row + 1).checked_sub(self.prompt_len).and_then(|j| self.steps.get(j)).unwrap_or(&NO_STEP)
    }

    /// ln p(token at `position`), absolute, full vocabulary.
    pub fn logprob_at(&self, position: usize) -> f64 {
        position.checked_sub(1).and_then(|row| self.step(row).logprob).unwrap_or(f64::NEG_INFINITY)
    }

    /// Whether the model did not choose the token at `position` (absolute).
    pub fn is_forced(&self, position: usize) -> bool {
        position.checked_sub(1).is_some_and(|row| self.step(row).forced)
    }

    /// Whether the token at a position (absolute) has a digit in its text.
    pub fn has_digit(&self, position: usize) -> bool {
        self.token_text(position).contains(|c: char| c.is_ascii_digit())
    }

    /// The text of the token at `position` (absolute) on its own; empty outside the response.
    pub fn token_text(&self, position: usize) -> &str {
        position.checked_sub(self.prompt_len).and_then(|j| self.token_texts.get(j)).map_or("", String::as_str)
    }

    /// The texts of the tokens at these positions (absolute), concatenated.
    pub fn text(&self, positions: Range<usize>) -> String {
        positions.map(|position| self.token_text(position)).collect()
    }

    /// The row, relative to `prompt_len`, that predicts the token at `position` (absolute): -1 for the first response token.
    pub fn relative_row(&self, position: usize) -> i64 {
        position as i64 - 1 - self.prompt_len as i64
    }

    /// The position (absolute) of the token that a row relative to `prompt_len` predicts; the inverse of `relative_row`.
    pub fn position_after(&self, relative_row: i64) -> usize {
        relative_row.saturating_add(1).saturating_add(self.prompt_len as i64).max(0) as usize
    }
}

/// A copy of the response with one token replaced; later text is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Absolute position of the replaced token.
    pub position: usize,
    pub token: u32,
}
