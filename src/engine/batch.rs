//! Responses generated together: prompts join and finished responses leave while the rest continue, each with its own options.
//! Every token is the same as if its sequence ran alone.

use super::generate::{FinishReason, GenerateOptions, Generation, OnToken, Progress, Ticket};
use super::{Engine, EngineError, Result, TraceParts, TracedSequence, lookup::Lookup, running::Measure, trace::shared};
use super::{pace::Guess, pace::MAX_SHARED, thinking::StopText, thinking::Watch};
use crate::backend::forward;
use crate::backend::{DecodeRow, Next, Pass, Prediction, Row, SequenceId, Step, TokenLogprob, TraceOptions};
use std::{collections::VecDeque, sync::Arc};

/// Default batch size of an evaluation or a list of questions.
pub const BATCH_SIZE: usize = 16;

/// A response that has ended, and the error that ended it. One that failed has left the batch.
pub type Ended = (Ticket, Result<()>);

/// Sequences being generated. Dropping it frees their caches.
pub struct Batch<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) request: Request,
    /// In start order.
    pub(super) running: Vec<Running>,
    /// Sequences that failed, until [`Batch::next`] returns them.
    pub(super) failed: VecDeque<(Ticket, EngineError)>,
    /// Texts, besides a sequence's own, from which its next tokens are guessed.
    pub(super) others: Lookup,
    /// Whether responses that are taken out are added to them. Only for responses of a single user: token timing would reveal them
    /// to others.
    pub shares_guesses: bool,
    /// Number of responses ever started.
    started: u64,
}

/// Generation options, shared by responses, with their end ids and everything their running confidence needs.
#[derive(Clone, Default)]
pub struct Request(Arc<GenerateOptions>);

impl Request {
    /// Whether tokens are chosen from logits with a repetition penalty.
    fn is_penalized(&self) -> bool {
        self.0.sampling.repetition_penalty != 1.0
    }
}

/// A sequence of a batch.
#[derive(Default)]
pub(super) struct Running {
    ticket: Ticket,
    pub(super) id: SequenceId,
    stream: u64,
    request: Request,
    /// Max tokens of the response: as in the options, or fewer if the model's context ends earlier.
    limit: usize,
    /// [`ModelSpec::short_context`](crate::model::ModelSpec::short_context)
    short: Option<usize>,
    /// Whether it was run with the frequencies of longer texts.
    is_long: bool,
    pub(super) generation: Generation,
    /// If there are stop strings.
    text: Option<StopText>,
    /// If thoughts have a budget.
    watch: Option<Watch>,
    /// The tokens that close its thought, which is over budget: they come next.
    pub(super) closing: Vec<u32>,
    /// Its own tokens, if tokens are guessed.
    pub(super) lookup: Option<Lookup>,
    pub(super) guess: Option<Guess>,
    /// Set once the response has ended.
    pub(super) finished: bool,
    /// Why it failed.
    error: Option<EngineError>,
    /// Set once [`Batch::next`] has returned it.
    reported: bool,
}

impl Engine {
    /// An empty batch; its responses use these options unless they have their own.
    pub fn batch(&mut self, options: &GenerateOptions) -> Batch<'_> {
        let request = self.request(options);
        let (running, failed, others) = (Vec::new(), VecDeque::new(), Lookup::default());
        Batch { engine: self, request, running, failed, others, shares_guesses: false, started: 0 }
    }

    /// Options for responses of a batch.
    pub fn request(&self, options: &GenerateOptions) -> Request {
        let ends = options.ends.clone().unwrap_or_else(|| self.spec().eos_token_ids.clone());
        let wide = options.running.is_some_and(|running| running.measure == Measure::Group);
        let trace = options.trace.map(|trace| TraceParts { wide: trace.wide || wide, ..trace });
        Request(Arc::new(GenerateOptions { ends: Some(ends), trace, ..options.clone() }))
    }
}

impl Batch<'_> {
    /// Whether all started responses have been taken out, or returned as failed.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.failed.is_empty()
    }

    /// Responses that have not ended: the rows of a decode step.
    pub fn unfinished(&self) -> usize {
        self.running.iter().filter(|r| !r.finished).count()
    }

    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// Adds a prompt: runs it, and chooses the first token. `stream` identifies the sequence to the sampler and in [`Progress`].
    /// A prefix shared with another sequence of the batch is copied from its cache if that changes no bit.
    pub fn start(&mut self, prompt: &[u32], stream: u64, on_token: OnToken) -> Result<Ticket> {
        self.start_with(None, prompt, stream, self.request.clone(), on_token)
    }

    /// [`start`](Self::start) with its own options; if the prompt begins like the response `base` of the batch, the shared prefix
    /// is copied from its cache on every device.
    pub fn start_with(
        &mut self,
        base: Option<Ticket>,
        prompt: &[u32],
        stream: u64,
        request: Request,
        on_token: OnToken,
    ) -> Result<Ticket> {
        let backend = &self.engine.backend;
        let shared = |r: &Running| (r.id, backend.resumes_at(r.id, shared(backend.spec(), prompt, r.cached())));
        let base = match base {
            Some(ticket) => self.running.iter().find(|r| r.ticket == ticket).map(shared),
            None => {
                let others = self.running.iter().filter(|_| backend.is_bit_equal_at_any_width());
                others.map(shared).max_by_key(|(_, shared)| *shared).filter(|(_, shared)| *shared > 0)
            }
        };
        self.start_from(base, prompt, stream, request, on_token)
    }

    /// Adds an existing response, `tokens[prompt_len..]`, as [`Engine::trace`] runs it: it has ended, and is there for others to
    /// share and to be taken out.
    ///
    /// # Errors
    /// As [`Engine::trace`].
    pub fn add(&mut self, tokens: &[u32], prompt_len: usize, parts: TraceParts) -> Result<Ticket> {
        let (id, generation) = self.engine.trace_sequence(tokens, prompt_len, parts)?;
        let running = self.enter(id, 0, self.request.clone(), generation);
        (running.finished, running.reported) = (true, true);
        Ok(running.ticket)
    }

    /// Adds a prompt whose first n tokens backend sequence `base` holds: they are copied from its cache, not recomputed.
    pub(super) fn start_from(
        &mut self,
        base: Option<(SequenceId, usize)>,
        prompt: &[u32],
        stream: u64,
        request: Request,
        on_token: OnToken,
    ) -> Result<Ticket> {
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.engine.check(prompt, 1)?;
        let trace = request.0.trace.map(|parts| TraceOptions { first_row: prompt.len() - 1, parts });
        let backend = &mut self.engine.backend;
        let start = base.map_or(0, |(from, shared)| backend.resumes_at(from, shared));
        let id = match base.filter(|_| start > 0) {
            Some((from, _)) => backend.fork(from, start, trace)?,
            None => backend.open_for(prompt.len(), trace)?,
        };
        backend.expect_fork(id, prompt.len() - 1);
        let (tokens, prompt_len, steps) = (prompt.to_vec(), prompt.len(), Vec::new());
        let generation = Generation { tokens, prompt_len, finish: FinishReason::Length, steps };
        let has_stop = !request.0.stop.is_empty();
        let text = has_stop.then(|| StopText::new(&self.engine.tokenizer));
        let watched = request.0.thinking_budget.clone();
        let mut watch = watched.map(|budget| Watch::new(&self.engine.tokenizer, prompt, budget)).transpose()?;
        let closing = watch.as_mut().map(|watch| watch.closing(&[])).transpose()?.flatten().unwrap_or_default();
        let guesses =
            self.engine.guesses() && !request.is_penalized() && trace.is_none_or(|trace| !trace.parts.layer_means);
        let running = self.enter(id, stream, request, generation);
        (running.text, running.watch, running.closing) = (text, watch, closing);
        running.lookup = guesses.then(|| Lookup::of(prompt));
        let ticket = running.ticket;
        let started = self.run_last(start, on_token);
        self.close_failed();
        if let Some(failed) = self.failed.iter().position(|(failed, _)| *failed == ticket) {
            return self.failed.remove(failed).map_or(Ok(ticket), |(_, error)| Err(error));
        }
        started.inspect_err(|_| drop(self.take(ticket)))?;
        Ok(ticket)
    }

    /// Adds a backend sequence.
    fn enter(&mut self, id: SequenceId, stream: u64, request: Request, generation: Generation) -> &mut Running {
        let ticket = Ticket(self.started);
        self.started += 1;
        let (context, short) = (self.engine.spec().max_position_embeddings, self.engine.spec().short_context());
        let limit = request.0.max_tokens.min(context - generation.prompt_len);
        let index = self.running.len();
        let is_long = self.engine.spec().is_long(generation.tokens.len());
        let running = Running { ticket, id, stream, request, limit, is_long, generation, ..Running::default() };
        self.running.push(Running { short, ..running });
        &mut self.running[index]
    }

    /// Decodes until a response ends that has not been returned before; `None` if none is left. It stays in the batch, with its
    /// cache for others to share, until it is taken out; one that failed does not, and the others go on.
    ///
    /// # Errors
    /// The engine is [lost](EngineError::is_lost).
    pub fn next(&mut self, on_token: OnToken) -> Result<Option<Ended>> {
        self.next_or_pause(on_token, &mut || false)
    }

    /// [`next`](Self::next), which also returns `None` soon after `pause` returns true: others may then be started, and unfinished
    /// ones continue with the next call.
    pub fn next_or_pause(&mut self, on_token: OnToken, pause: &mut dyn FnMut() -> bool) -> Result<Option<Ended>> {
        if self.failed.is_empty() && !self.running.iter().any(Running::is_news) {
            self.decode(on_token, &mut |ended| ended || pause())?;
        }
        if let Some((ticket, error)) = self.failed.pop_front() {
            return Ok(Some((ticket, Err(error))));
        }
        Ok(self.running.iter_mut().find(|r| r.is_news()).map(|running| {
            running.reported = true;
            (running.ticket, Ok(()))
        }))
    }

    /// Frees the caches of failed sequences.
    pub(super) fn close_failed(&mut self) {
        for Running { id, ticket, error, .. } in self.running.extract_if(.., |r| r.error.is_some()) {
            self.engine.backend.close(id);
            self.failed.extend(error.map(|error| (ticket, error)));
        }
    }

    /// The error of the first sequence that failed.
    pub(super) fn first_failure(&mut self) -> Result<()> {
        self.failed.pop_front().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// A response so far.
    pub fn generation(&self, ticket: Ticket) -> Option<&Generation> {
        self.sequence(ticket).map(|(_, generation)| generation)
    }

    pub(super) fn sequence(&self, ticket: Ticket) -> Option<(SequenceId, &Generation)> {
        self.running.iter().find(|r| r.ticket == ticket).map(|r| (r.id, &r.generation))
    }

    /// Takes a response out and frees its cache.
    pub fn take(&mut self, ticket: Ticket) -> Option<Generation> {
        let running = self.remove(ticket)?;
        self.engine.backend.close(running.id);
        Some(running.generation)
    }

    /// Takes a response out with its cache and trace. An empty one (`max_tokens` 0) is an error.
    pub fn take_traced(&mut self, ticket: Ticket) -> Option<Result<TracedSequence<'_>>> {
        let Running { id, generation, .. } = self.remove(ticket)?;
        Some(TracedSequence::new(self.engine, id, generation))
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Running> {
        let running = self.running.extract_if(.., |r| r.ticket == ticket).next()?;
        if self.shares_guesses && running.lookup.is_some() {
            self.guess_from(&running.generation.tokens[running.generation.prompt_len..]);
        }
        Some(running)
    }

    /// Decodes until every response has ended and takes them all, in start order.
    pub(super) fn finish(&mut self, on_token: OnToken) -> Result<Vec<Generation>> {
        self.decode(on_token, &mut |_| false)?;
        self.first_failure()?;
        let finished = std::mem::take(&mut self.running);
        finished.iter().for_each(|r| self.engine.backend.close(r.id));
        Ok(finished.into_iter().map(|r| r.generation).collect())
    }

    /// Adds a text from which other responses may guess tokens.
    pub(super) fn guess_from(&mut self, response: &[u32]) {
        if self.others.len() + response.len() <= MAX_SHARED {
            self.others.add(response);
        }
    }

    /// Runs the rows of the last sequence's prompt from `start` on and chooses the first token (none with `max_tokens` 0).
    fn run_last(&mut self, start: usize, on_token: OnToken) -> Result<()> {
        let Batch { engine, running, .. } = self;
        let Some(running) = running.last_mut() else { return Ok(()) };
        engine.backend.reserve(running.id, running.generation.tokens.len() + running.limit)?;
        running.run_from(start, engine, on_token)?;
        if running.finished { self.last_rows() } else { Ok(()) }
    }

    /// Runs the sequences that take no part in a common step, each on its own: those with a thought over budget, which is closed,
    /// and one token of those whose logits are penalized. Returns whether a response has ended, `None` if there are none.
    pub(super) fn steps_alone(&mut self, on_token: OnToken) -> Result<Option<bool>> {
        let Batch { engine, running, .. } = self;
        let mut ended = None;
        for running in running.iter_mut().filter(|r| !r.finished && !r.is_common()) {
            let ran = running.run_from(running.generation.tokens.len() - 1, engine, on_token);
            running.settle(ran)?;
            ended = Some(ended == Some(true) || running.finished);
        }
        Ok(ended)
    }

    /// The rows of finished responses' last tokens, which predict nothing: similarities need their hidden states.
    pub(super) fn last_rows(&mut self) -> Result<()> {
        let Batch { engine, running, .. } = self;
        for running in running.iter_mut().filter(|r| r.is_misfit() || r.needs_last_row()) {
            let ran = running.run_last_row(engine);
            running.settle(ran)?;
        }
        Ok(())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for running in &self.running {
            self.engine.backend.close(running.id);
        }
    }
}

impl Running {
    /// Reports the token just chosen and records whether it ends the response.
    pub(super) fn advance(&mut self, on_token: OnToken) {
        let (generate, g) = (&*self.request.0, &self.generation);
        let (Some(last), Some(step)) = (g.tokens.last(), g.steps.last()) else { return };
        let token = TokenLogprob { token: *last, logprob: step.logprob.unwrap_or(f64::NEG_INFINITY) };
        let running = generate.running.filter(|_| generate.trace.is_some());
        let confidence = running.and_then(|running| running.after(&g.steps));
        let flow = on_token(Progress { stream: self.stream, ticket: self.ticket, token, step, confidence });
        // a token without text cannot complete a stop string
        let stopped_after = self.text.as_mut().and_then(|text| text.push(*last, &generate.stop).ok().flatten());
        let finish = if generate.ends.as_ref().is_some_and(|ends| ends.contains(last)) {
            FinishReason::Stop
        } else if let Some(kept) = stopped_after {
            self.generation.cut(kept, generate.trace.is_some());
            FinishReason::Stop
        } else if flow.is_break() {
            FinishReason::Interrupted
        } else if running.is_some_and(|running| running.stops(confidence)) {
            FinishReason::Unsure
        } else if g.tokens.len() - g.prompt_len >= self.limit {
            FinishReason::Length
        } else {
            let watched = self.watch.as_mut().map(|watch| watch.closing(&g.tokens[g.prompt_len..]));
            self.closing = watched.and_then(|closing| closing.ok().flatten()).unwrap_or_default();
            return;
        };
        (self.generation.finish, self.finished) = (finish, true);
    }

    /// Whether it outgrows the short context with `more` tokens after its last one.
    pub(super) fn outgrows(&self, more: usize) -> bool {
        let last = self.last_row().position;
        let crosses = |short: usize| self.generation.prompt_len <= short && (last..=last + more).contains(&short);
        self.short.is_some_and(crosses)
    }

    /// Whether it has ended at a length whose frequencies it was not run with: its last token is the first beyond the short context,
    /// or a stop string has cut it back to that.
    fn is_misfit(&self) -> bool {
        let differs = |short| self.is_long != (self.generation.tokens.len() > short);
        self.finished && self.error.is_none() && self.short.is_some_and(differs)
    }

    /// Starts again with the frequencies of a text of `length` tokens, which its steps so far are then predicted with; returns the
    /// first row to run.
    fn restart(&mut self, engine: &mut Engine, length: usize) -> Result<usize> {
        let Generation { tokens, prompt_len, steps, .. } = &mut self.generation;
        let trace = self.request.0.trace.map(|parts| TraceOptions { first_row: *prompt_len - 1, parts });
        let backend = &mut *engine.backend;
        let id = backend.open_for(length, trace)?;
        backend.close(std::mem::replace(&mut self.id, id));
        self.is_long = backend.spec().is_long(length);
        if steps.is_empty() {
            return Ok(0);
        }
        let ran = *prompt_len - 1 + steps.len();
        for (step, again) in steps.iter_mut().zip(super::trace_response(backend, id, tokens, ran, *prompt_len)?) {
            *step = Step { forced: step.forced, ..again };
        }
        backend.reserve(id, *prompt_len + self.limit)?;
        Ok(ran)
    }

    /// Runs the row of its last token, which predicts nothing; all rows again if it [is a misfit](Self::is_misfit).
    fn run_last_row(&mut self, engine: &mut Engine) -> Result<()> {
        if self.is_misfit() {
            self.restart(engine, self.generation.tokens.len())?;
        }
        if !self.needs_last_row() {
            return Ok(());
        }
        let prediction = Prediction { row: 0, next: Next::Given(None), detail: true };
        forward::forward(&mut *engine.backend, &Pass::all(&[self.last_row()], true))?;
        self.push(engine.backend.predict(&[prediction])?.remove(0));
        Ok(())
    }

    /// Runs its tokens from `start` on and those that close its thought, and chooses the token after them.
    fn run_from(&mut self, start: usize, engine: &mut Engine, on_token: OnToken) -> Result<()> {
        let (room, closing, vocabulary) = (self.tokens_left(), std::mem::take(&mut self.closing), engine.vocabulary());
        // a response ends at its limit, whose row predicts nothing
        let closed = &closing[..closing.len().min(room.saturating_sub(1))];
        let start = if self.outgrows(closed.len()) { self.restart(engine, usize::MAX)? } else { start };
        let (first, last) = (self.last_row().position, self.decode_row());
        let tokens = [&self.generation.tokens[start..], closed].concat();
        let (mut results, predicts) = (Vec::new(), |row: usize| row >= first && room > 0);
        let (request, history) = (self.request.clone(), [&self.generation.tokens[..], &closing].concat());
        forward::extend::<EngineError>(
            &mut *engine.backend,
            self.id,
            start,
            &tokens,
            true,
            predicts,
            |backend, rows| {
                let mut requests = Vec::new();
                for position in rows.clone().filter(|row| predicts(*row)) {
                    let (row, detail) = (position - rows.start, last.detail);
                    let chosen = DecodeRow { row: Row { position, ..last.row }, ..last }.choice(vocabulary);
                    let next = match closing.get(position - first) {
                        Some(token) => Next::Given(Some(*token)),
                        None if request.is_penalized() => {
                            let mut logits = backend.next_logits(row)?;
                            chosen.sampling.penalize(&mut logits, &history[..=position]);
                            Next::Given(Some(chosen.token(&logits)))
                        }
                        None => Next::Choose(chosen),
                    };
                    requests.push(Prediction { row, next, detail });
                }
                if !requests.is_empty() {
                    results.extend(backend.predict(&requests)?);
                }
                Ok(())
            },
        )?;
        (self.guess, self.finished) = (None, room == 0);
        let count = results.len();
        for (index, (step, token)) in results.into_iter().enumerate() {
            self.push((Step { forced: index < closing.len(), ..step }, token));
            self.advance(on_token);
            if self.finished && index + 1 < count {
                engine.backend.truncate(self.id, first + index + 1);
            }
            if self.finished {
                break;
            }
        }
        Ok(())
    }

    /// Whether its next token is chosen by the backend, in a step together with others.
    pub(super) fn is_common(&self) -> bool {
        self.closing.is_empty() && !self.request.is_penalized() && !self.outgrows(0)
    }

    fn is_news(&self) -> bool {
        self.finished && !self.reported
    }

    /// Whether it has ended and its last token's row, which the trace needs, has not been run.
    fn needs_last_row(&self) -> bool {
        let (g, generate) = (&self.generation, &self.request.0);
        let traced = generate.trace.is_some() && generate.max_tokens > 0 && self.error.is_none();
        self.finished && traced && g.steps.len() == g.tokens.len() - g.prompt_len
    }

    /// Ends the response if it failed, unless the engine is lost.
    fn settle(&mut self, ran: Result<()>) -> Result<()> {
        match ran {
            Err(error) if !error.is_lost() => self.fail(error),
            ran => return ran,
        }
        Ok(())
    }

    /// Ends the response with an error.
    pub(super) fn fail(&mut self, error: impl Into<EngineError>) {
        (self.finished, self.error) = (true, Some(error.into()));
    }

    pub(super) fn push(&mut self, (step, token): (Step, Option<u32>)) {
        self.generation.steps.push(step);
        self.generation.tokens.extend(token);
        if let Some(lookup) = &mut self.lookup {
            lookup.extend(token.as_slice());
        }
    }

    /// Tokens until its limit.
    pub(super) fn tokens_left(&self) -> usize {
        self.limit.saturating_sub(self.generation.tokens.len() - self.generation.prompt_len)
    }

    /// The tokens whose keys and values are cached; the last token's row may not have been run.
    fn cached(&self) -> &[u32] {
        &self.generation.tokens[..self.generation.tokens.len() - 1]
    }

    /// Its last token, which is the next row.
    pub(super) fn last_row(&self) -> Row {
        let position = self.generation.tokens.len() - 1;
        Row { sequence: self.id, position, token: self.generation.tokens[position] }
    }

    pub(super) fn decode_row(&self) -> DecodeRow {
        let (sampling, detail) = (self.request.0.sampling, self.request.0.trace.is_some());
        DecodeRow { row: self.last_row(), sampling, stream: self.stream, detail }
    }
}
