//! Generation: prompts in, responses out. Implemented by [`super::batch`].

use super::{Engine, Result, ThinkingBudget, TraceParts, running::RunningConfidence};
use crate::backend::{Step, TokenLogprob, sampling::Sampling};
use std::ops::ControlFlow;

/// Options of a generation.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Heads to trace; `None`: plain inference, no trace.
    pub trace: Option<TraceParts>,
    /// Ids that end a response; `None`: the model's end tokens.
    pub ends: Option<Vec<u32>>,
    /// Stop strings: the response is cut before the first token that lies entirely within or after one (its first token
    /// is kept). Data recorded for the dropped tokens is dropped with them.
    pub stop: Vec<String>,
    pub thinking_budget: Option<ThinkingBudget>,
    /// The confidence reported with progress while a traced response is written; below its threshold the response stops.
    pub running: Option<RunningConfidence>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: 1024,
            sampling: Sampling::GREEDY,
            trace: Some(TraceParts::default()),
            ends: None,
            stop: Vec::new(),
            thinking_budget: None,
            running: None,
        }
    }
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model wrote an end token, which is the response's last, or a stop string, before which the response was cut.
    Stop,
    /// `max_tokens`, or the model's context, was reached.
    Length,
    /// Its running confidence fell below the threshold.
    Unsure,
    /// The caller stopped it.
    #[default]
    Interrupted,
}

impl FinishReason {
    /// Whether the response would have continued: it reached its maximum length, or was too unsure.
    pub fn is_cut_off(self) -> bool {
        matches!(self, FinishReason::Length | FinishReason::Unsure)
    }
}

/// Handle by which a response is taken out of its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ticket(pub(super) u64);

/// A token as it is chosen, for streaming; a stop string may still cut it off.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Identifies the sequence: the index of its prompt, or the number it was started with.
    pub stream: u64,
    /// The sequence's handle in its batch.
    pub ticket: Ticket,
    pub token: TokenLogprob,
    /// The prediction it was chosen from; without a trace, only its log-probability.
    pub step: &'a Step,
    /// The running confidence after the token, if one is configured and its window is full.
    pub confidence: Option<f64>,
}

/// Called with every token as it is chosen; may stop its response.
pub type OnToken<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// One finished response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Prompt and response.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub finish: FinishReason,
    /// Row `prompt_len - 1 + j` at j; when traced, one more than response tokens (the last token's row predicts nothing).
    /// Without a trace, only log-probabilities are set.
    pub steps: Vec<Step>,
}

impl Generation {
    /// ln P of the response: Σ over the tokens that the model chose; `None` where a logit was not finite.
    pub fn logprob(&self) -> Option<f64> {
        let chosen = self.steps.iter().take(self.tokens.len() - self.prompt_len).filter(|step| !step.forced);
        chosen.map(|step| step.logprob).sum()
    }

    /// Drops the response's tokens after the first `kept`. When traced, the step of the last kept token stays: its row
    /// has been run, but its prediction is no longer part of the sequence.
    pub(super) fn cut(&mut self, kept: usize, traced: bool) {
        self.tokens.truncate(self.prompt_len + kept);
        self.steps.truncate(kept + usize::from(traced));
        if let Some(last) = self.steps.get_mut(kept) {
            last.logprob = None;
        }
    }
}

impl Engine {
    /// Generates a response to each prompt, all in one batch. `on_token` receives every token as it is chosen and may
    /// stop its response. The caches are freed; for a response that answers queries, see [`Engine::generate_traced`].
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        mut on_token: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Generation>> {
        let mut batch = self.batch(options);
        for (stream, prompt) in (0..).zip(prompts) {
            batch.start(prompt, stream, &mut on_token)?;
        }
        batch.finish(&mut on_token)
    }
}
