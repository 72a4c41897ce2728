//! Generation: prompts in, responses out. [`super::batch`] does it.

use super::running::{Measure, RunningConfidence};
use super::trace::{HeadSelection, TracedSequence, shared};
use super::{Engine, EngineError};
use crate::backend::sampling::Sampling;
use crate::backend::{SequenceId, Step, TokenLogprob};
use std::ops::ControlFlow;

/// Options of a generation.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    pub max_tokens: usize,
    pub sampling: Sampling,
    /// Which heads are traced; `None`: plain inference, no trace.
    pub trace: Option<HeadSelection>,
    /// Ids that end a response besides the model's own.
    pub stop_ids: Vec<u32>,
    /// Texts that end a response: it is cut before the first token that lies wholly in one or after it (its first token
    /// stays). What such tokens recorded is dropped with them.
    pub stop: Vec<String>,
    /// The confidence that progress reports while a traced response is written, and below which it stops.
    pub running: Option<RunningConfidence>,
    /// The model's own end tokens do not end a response: for measurements of a given length.
    pub ignore_ends: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: 1024,
            sampling: Sampling::GREEDY,
            trace: Some(HeadSelection::default()),
            stop_ids: Vec::new(),
            stop: Vec::new(),
            running: None,
            ignore_ends: false,
        }
    }
}

impl GenerateOptions {
    /// The trace: the selected heads, and whole distributions where the running confidence needs them.
    pub(super) fn heads(&self) -> Option<HeadSelection> {
        let needs = self.running.is_some_and(|running| running.measure == Measure::Group);
        self.trace.map(|heads| HeadSelection { wide: heads.wide || needs, ..heads })
    }
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model wrote an end token, which is the response's last, or a stop string, before which it was cut.
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
    /// Whether the response would have gone on.
    pub fn is_cut_off(self) -> bool {
        matches!(self, FinishReason::Length | FinishReason::Unsure)
    }
}

/// A response of a batch, by which it is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub(super) u64);

/// A token as it is chosen, for streaming; a stop string may yet cut it off.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Number of the sequence: the index of its prompt, or what it was started with.
    pub stream: u64,
    /// The sequence's place in its batch.
    pub ticket: Ticket,
    pub token: TokenLogprob,
    /// The prediction that it was chosen from; without a trace only its log-probability.
    pub step: &'a Step,
    /// The running confidence after the token, if one is configured and its window is full.
    pub confidence: Option<f64>,
}

/// Called with every token as it is chosen; may break its response off.
pub type OnToken<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// One finished response.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Prompt and response.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub finish: FinishReason,
    /// Row `prompt_len - 1 + j` at j; when traced, one more than response tokens (the last token's row predicts nothing).
    /// Without a trace they hold only log-probabilities.
    pub steps: Vec<Step>,
}

impl Generation {
    /// Whether the response would have gone on: it was as long as it was allowed to be, or too unsure.
    pub fn is_cut_off(&self) -> bool {
        self.finish.is_cut_off()
    }

    /// Drops the response's tokens after the first `kept`. Where it is traced the step of the last one stays: its row has
    /// been run, but what it predicted is no longer part of the sequence.
    pub(super) fn cut(&mut self, kept: usize, traced: bool) {
        self.tokens.truncate(self.prompt_len + kept);
        self.steps.truncate(kept + usize::from(traced));
        if let Some(last) = self.steps.get_mut(kept) {
            last.logprob = None;
        }
    }
}

impl Engine {
    /// Generates a response to each prompt, all at once. `on_token` sees every token as it is chosen and may stop
    /// it. The caches are freed; for a response that answers queries, see [`Engine::generate_traced`].
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        mut on_token: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Generation>, EngineError> {
        let mut batch = self.batch(options);
        for (stream, prompt) in (0..).zip(prompts) {
            batch.start(prompt, stream, &mut on_token)?;
        }
        batch.finish(&mut on_token)
    }

    /// Generates a response to one prompt and keeps its cache and trace. A response of no token (`max_tokens` 0, or
    /// stopped at once) is an error.
    pub fn generate_traced(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut on_token: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(FinishReason, TracedSequence<'_>), EngineError> {
        let options = GenerateOptions { trace: Some(options.trace.unwrap_or_default()), ..options.clone() };
        let mut batch = self.batch(&options);
        batch.start(prompt, 0, &mut on_token)?;
        let Some((id, generation)) = batch.finish_traced(&mut on_token)?.pop() else {
            return Err(EngineError::EmptyPrompt);
        };
        drop(batch);
        Ok((generation.finish, TracedSequence::of_generation(self, id, generation)?))
    }
}

impl<'e> TracedSequence<'e> {
    /// A generated response; one of no token is an error.
    pub(super) fn of_generation(
        engine: &'e mut Engine,
        sequence: SequenceId,
        generation: Generation,
    ) -> Result<TracedSequence<'e>, EngineError> {
        let cut_off = generation.is_cut_off();
        let Generation { tokens, prompt_len, steps, .. } = generation;
        if tokens.len() == prompt_len {
            engine.backend.close(sequence);
            return Err(EngineError::NoResponse { prompt_len, tokens: prompt_len });
        }
        let mut traced = TracedSequence::new(engine, sequence, tokens, prompt_len, steps)?;
        traced.cut_off = cut_off;
        Ok(traced)
    }

    /// Generates further responses, to prompts that begin as this sequence does: what they share with it is taken from
    /// its cache. More samples for its own prompt share the prompt; a next turn shares everything so far. `streams`
    /// number them for the sampler.
    pub fn generate_sharing(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        streams: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<Generation>, EngineError> {
        self.generate_sharing_with(prompts, options, streams, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`generate_sharing`](Self::generate_sharing); `on_token` sees every token as it is chosen and may break off.
    pub fn generate_sharing_with(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        streams: impl IntoIterator<Item = u64>,
        on_token: OnToken,
    ) -> Result<Vec<Generation>, EngineError> {
        self.parts().1.restore()?;
        let mut batch = self.engine.batch(options);
        batch.guess_from(&self.tokens[self.prompt_len..]);
        for (prompt, stream) in prompts.iter().zip(streams) {
            let base = Some((self.sequence, shared(prompt, &self.tokens)));
            batch.start_from(base, prompt, stream, batch.request.clone(), on_token)?;
        }
        batch.finish(on_token)
    }
}
