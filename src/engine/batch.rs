//! Responses generated together: prompts join and finished responses leave while the others go on. Every token is the
//! same as if its sequence ran alone.

use super::generate::{FinishReason, GenerateOptions, Generation, Progress};
use super::stop::StopText;
use super::{Engine, EngineError, TracedSequence};
use crate::backend::forward;
use crate::backend::sampling::Choice;
use crate::backend::{DecodeOptions, DecodeRow, Next, Pass, Prediction, Row, SequenceId, Step, TokenLogprob};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Sequences being generated. Dropping it frees their caches.
pub struct Batch<'e> {
    engine: &'e mut Engine,
    options: GenerateOptions,
    /// The model's end tokens and the options'.
    stop_ids: Vec<u32>,
    /// As in the options, shared by the sequences.
    stop: Arc<[String]>,
    running: Vec<Running>,
}

/// A sequence of a batch.
struct Running {
    id: SequenceId,
    stream: u64,
    generation: Generation,
    /// Where there are stop strings.
    text: Option<StopText>,
    /// Set once the response has ended.
    finished: bool,
}

impl Engine {
    /// An empty batch.
    pub fn batch(&mut self, options: &GenerateOptions) -> Batch<'_> {
        let mut stop_ids = if options.ignore_ends { Vec::new() } else { self.spec().eos_token_ids.clone() };
        stop_ids.extend(&options.stop_ids);
        let stop = options.stop.clone().into();
        Batch { engine: self, options: options.clone(), stop_ids, stop, running: Vec::new() }
    }
}

impl Batch<'_> {
    /// Responses that have been started and not yet taken out.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Adds a prompt: runs it, and chooses the first token. `stream` numbers the sequence for the sampler and for
    /// progress.
    pub fn start(
        &mut self,
        prompt: &[u32],
        stream: u64,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let id = self.open(prompt)?;
        self.push(id, prompt, stream);
        let prefilled = self.prefill(prompt, 0);
        self.started(prefilled, on_token)
    }

    /// Adds a prompt that begins as sequence `from` (whose tokens are `cached`) does: what they share is copied from its
    /// cache, not computed again.
    pub(super) fn start_sharing(
        &mut self,
        (from, cached): (SequenceId, &[u32]),
        prompt: &[u32],
        stream: u64,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.check(prompt)?;
        // the prompt's last row is run: it is what the first token is predicted from
        let shared = prompt[..prompt.len() - 1].iter().zip(cached).take_while(|(a, b)| a == b).count();
        let trace = self.options.trace.map(|selection| selection.options(prompt.len()));
        let id = self.engine.backend.fork(from, shared, trace)?;
        self.push(id, prompt, stream);
        let prefilled = self.prefill(prompt, shared);
        self.started(prefilled, on_token)
    }

    /// Decodes until a response ends and takes it out, with its cache and trace and the number it was
    /// started with; `None` if the batch is empty. The others stay where they are. A response of no token (`max_tokens`
    /// 0) is an error.
    pub fn next(
        &mut self,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<(u64, FinishReason, TracedSequence<'_>)>, EngineError> {
        if !self.running.iter().any(|r| r.finished) {
            self.decode(true, on_token)?;
        }
        let Some(index) = self.running.iter().position(|r| r.finished) else { return Ok(None) };
        let Running { id, stream, generation, .. } = self.running.remove(index);
        let finish = generation.finish;
        Ok(Some((stream, finish, TracedSequence::of_generation(self.engine, id, generation)?)))
    }

    /// Decodes until every response has ended and takes them all, in the order in which they were started.
    pub(super) fn finish(
        mut self,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<(SequenceId, Generation)>, EngineError> {
        self.decode(false, on_token)?;
        Ok(std::mem::take(&mut self.running).into_iter().map(|r| (r.id, r.generation)).collect())
    }

    fn check(&self, prompt: &[u32]) -> Result<(), EngineError> {
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.engine.check_length(prompt.len() + 1)
    }

    fn open(&mut self, prompt: &[u32]) -> Result<SequenceId, EngineError> {
        self.check(prompt)?;
        let trace = self.options.trace.map(|selection| selection.options(prompt.len()));
        Ok(self.engine.backend.open(trace)?)
    }

    fn push(&mut self, id: SequenceId, prompt: &[u32], stream: u64) {
        let prompt_len = prompt.len();
        let generation =
            Generation { tokens: prompt.to_vec(), prompt_len, finish: FinishReason::Length, steps: Vec::new() };
        let text = StopText::new(&self.engine.tokenizer, &self.stop);
        self.running.push(Running { id, stream, generation, text, finished: false });
    }

    /// Runs the rows of the last sequence's prompt from `start` on and chooses the first token (none if no token is
    /// wanted).
    fn prefill(&mut self, prompt: &[u32], start: usize) -> Result<(), EngineError> {
        let Batch { engine, options, running, .. } = self;
        let vocabulary = engine.tokenizer.vocab_size();
        let Some(running) = running.last_mut() else { return Ok(()) };
        let (id, rest) = (running.id, &prompt[start..]);
        let context = engine.spec().max_position_embeddings;
        engine.backend.reserve(id, prompt.len().saturating_add(options.max_tokens).min(context))?;
        let predicts = |row| row + 1 == prompt.len();
        forward::extend::<EngineError>(&mut *engine.backend, id, start, rest, true, predicts, |backend, positions| {
            if positions.end == prompt.len() && options.max_tokens > 0 {
                let (sampling, stream) = (options.sampling, running.stream);
                let next = Next::Choose(Choice { sampling, stream, position: prompt.len(), vocabulary });
                let (row, detail) = (positions.len() - 1, options.trace.is_some());
                let step = backend.predict(&[Prediction { row, next, detail }])?.remove(0);
                running.push(step);
            }
            Ok(())
        })
    }

    /// After the first token of the last sequence: it may be all there is. A sequence that could not be started is taken
    /// out.
    fn started(
        &mut self,
        prefilled: Result<(), EngineError>,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let ended = prefilled.and_then(|()| {
            let limits = self.limits();
            let Some(running) = self.running.last_mut() else { return Ok(()) };
            running.advance(&limits, on_token);
            if running.finished { self.last_rows() } else { Ok(()) }
        });
        if ended.is_err()
            && let Some(running) = self.running.pop()
        {
            self.engine.backend.close(running.id);
        }
        ended
    }

    /// Decode steps of all unfinished sequences, until one ends (`first`) or all have.
    fn decode(
        &mut self,
        first: bool,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let limits = self.limits();
        let Batch { engine, options, running, .. } = self;
        let mut active: Vec<&mut Running> = running.iter_mut().filter(|r| !r.finished).collect();
        if active.is_empty() {
            return Ok(());
        }
        let rows: Vec<DecodeRow> = active.iter().map(|r| DecodeRow { row: r.last_row(), stream: r.stream }).collect();
        let decode = DecodeOptions {
            sampling: options.sampling,
            vocabulary: engine.tokenizer.vocab_size(),
            detail: options.trace.is_some(),
        };
        let mut ended = false;
        engine.backend.decode(&rows, &decode, &mut |index, step, token| {
            let running = &mut *active[index];
            running.push((step, Some(token)));
            running.advance(&limits, on_token);
            ended |= running.finished;
            if running.finished || (first && ended) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.last_rows()
    }

    /// The rows of finished responses' last tokens, which predict nothing: similarities need their hidden states.
    fn last_rows(&mut self) -> Result<(), EngineError> {
        if self.options.trace.is_none() || self.options.max_tokens == 0 {
            return Ok(());
        }
        let backend = &mut *self.engine.backend;
        let mut finished: Vec<&mut Running> = self.running.iter_mut().filter(|r| r.needs_last_row()).collect();
        for group in finished.chunks_mut(backend.decode_rows()) {
            let rows: Vec<Row> = group.iter().map(|r| r.last_row()).collect();
            forward::forward(backend, &Pass::all(&rows, true))?;
            let requests: Vec<Prediction> =
                (0..group.len()).map(|row| Prediction { row, next: Next::Given(None), detail: true }).collect();
            for (running, step) in group.iter_mut().zip(backend.predict(&requests)?) {
                running.push(step);
            }
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits {
            max_tokens: self.options.max_tokens,
            context: self.engine.spec().max_position_embeddings,
            stop_ids: self.stop_ids.clone(),
            traced: self.options.trace.is_some(),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for running in &self.running {
            self.engine.backend.close(running.id);
        }
    }
}

/// What ends a response.
struct Limits {
    max_tokens: usize,
    context: usize,
    stop_ids: Vec<u32>,
    /// Whether responses are traced, so that their last rows are run.
    traced: bool,
}

impl Running {
    /// Reports the token just chosen and notes whether the response ends with it.
    fn advance(&mut self, limits: &Limits, on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>) {
        let g = &self.generation;
        let (Some(last), Some(step)) = (g.tokens.get(g.prompt_len..).and_then(|r| r.last()), g.steps.last()) else {
            self.finished = true; // no token is wanted
            return;
        };
        let token = TokenLogprob { token: *last, logprob: step.logprob.unwrap_or(f64::NEG_INFINITY) };
        let flow = on_token(Progress { stream: self.stream, token });
        // a token without text cannot complete a stop string
        let stopped_after = self.text.as_mut().and_then(|text| text.push(*last).ok().flatten());
        let finish = if limits.stop_ids.contains(last) {
            FinishReason::Stop
        } else if let Some(kept) = stopped_after {
            self.generation.cut(kept, limits.traced);
            FinishReason::Stop
        } else if flow.is_break() {
            FinishReason::Interrupted
        } else if g.tokens.len() - g.prompt_len >= limits.max_tokens || g.tokens.len() >= limits.context {
            FinishReason::Length
        } else {
            return;
        };
        (self.generation.finish, self.finished) = (finish, true);
    }

    /// Whether it has ended and its last token's row has not been run.
    fn needs_last_row(&self) -> bool {
        let g = &self.generation;
        self.finished && g.steps.len() == g.tokens.len() - g.prompt_len
    }

    fn push(&mut self, (step, token): (Step, Option<u32>)) {
        self.generation.steps.push(step);
        self.generation.tokens.extend(token);
    }

    /// Its last token, which is the next row.
    fn last_row(&self) -> Row {
        let position = self.generation.tokens.len() - 1;
        Row { sequence: self.id, position, token: self.generation.tokens[position] }
    }
}
