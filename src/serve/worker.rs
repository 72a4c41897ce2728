//! The engine thread: requests join its batch and leave it with their confidences.

use super::answer::{Choice, Event, Reply, Streamed, TokenInfo, Usage, cut, hide, token_info, uqac};
use super::request::{Generate, Prompt, Task, UqacOptions};
use super::{Job, Shared, error::ApiError};
use crate::engine::{Batch, Engine, EngineError, FinishReason, GenerateOptions, Generation, Progress, Request, Ticket};
use crate::eval::assess::{self, assess, sequence};
use crate::model::{chat::Conversation, reply::Thinking, tokenizer::TokenizerError};
use crate::{backend::Step, backend::TokenLogprob, engine::encode::ResponseText, engine::encode::encode_prompt_with};
use crate::{eval::sample::ResponseTokens, eval::samples::Drawing, io::item::Item};
use serde_json::json;
use std::collections::{HashMap, HashSet, VecDeque};
use std::{cell::Cell, cell::RefCell, ops::ControlFlow, ops::Range, rc::Rc, sync::atomic::Ordering::Relaxed};
use std::{panic::AssertUnwindSafe, panic::catch_unwind};
use tokio::sync::mpsc::Receiver;

/// Answers jobs until the queue is closed and empty. Once the engine is lost, the answer is that.
pub fn run(engine: &mut Engine, common: &assess::Request<'_>, mut queue: Receiver<Job>, shared: &Shared) {
    let batch = engine.batch(&GenerateOptions { max_tokens: 0, ..GenerateOptions::default() });
    let thinking = &common.parameters.thinking;
    let hidden = batch.engine().tokenizer().special_tokens().filter(|(_, text)| !thinking.marks(text));
    let hidden = Rc::new(hidden.map(|(id, _)| id).collect());
    let (waiting, active, drawing) = (VecDeque::new(), HashMap::new(), Drawing::default());
    let mut worker = Worker { batch, common, queue: &mut queue, shared, hidden, waiting, active, drawing };
    let Err(error) = catch_unwind(AssertUnwindSafe(|| worker.work())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(ApiError::lost(format!("the engine has panicked: {}", text.unwrap_or_default())))
    }) else {
        return;
    };
    shared.lost.get_or_init(|| (error.clone(), std::time::Instant::now()));
    let active = worker.active.values().map(|active| &active.job);
    worker.waiting.iter().map(|(job, _)| job).chain(active).for_each(|job| drop(job.fail(error.clone())));
    std::mem::forget(worker.batch); // nothing runs on it any more
    while let Some(job) = queue.blocking_recv() {
        job.reply.send(Event::Failed(error.clone()));
    }
}

/// A request whose responses are being generated.
struct Running {
    generate: Generate,
    reply: Reply,
    options: GenerateOptions,
    request: Request,
    prompts: Vec<EncodedPrompt>,
    /// The finished choices; streamed ones without their content.
    finished: RefCell<(Usage, Vec<Choice>)>,
    failed: Cell<bool>,
    /// Whether a token has been generated.
    begun: Cell<bool>,
}

struct EncodedPrompt {
    tokens: Vec<u32>,
    /// The echoed text; empty without `echo`.
    text: String,
    /// Characters of decoded text before `text`: those of a token that begins the sequence.
    before: usize,
}

/// A choice in the batch.
struct Active {
    job: Rc<Running>,
    index: usize,
    /// The prompt's log-probabilities, if echoed.
    echoed: Vec<TokenInfo>,
    streamed: Option<Streamed>,
    /// Whether nothing is sent before the end: an answer may be withheld, and log-probabilities of named tokens come with
    /// the whole response.
    held: bool,
    eos: Vec<u32>,
    /// Tokens that its text is shown without.
    hidden: Rc<HashSet<u32>>,
}

struct Worker<'e, 's> {
    batch: Batch<'e>,
    /// Options for assessing every response.
    common: &'s assess::Request<'s>,
    queue: &'s mut Receiver<Job>,
    shared: &'s Shared,
    hidden: Rc<HashSet<u32>>,
    /// Choices waiting for a slot in the batch, by job and index.
    waiting: VecDeque<(Rc<Running>, usize)>,
    active: HashMap<Ticket, Active>,
    /// Their samples.
    drawing: Drawing,
}

impl Worker<'_, '_> {
    /// Runs until the queue is closed and all work is done.
    ///
    /// # Errors
    /// The engine is lost. Any other error is a request's own.
    fn work(&mut self) -> Result<(), ApiError> {
        let max_batch = self.shared.settings.max_batch.max(1);
        loop {
            while self.batch.unfinished() < max_batch {
                let Worker { batch, drawing, active, shared, .. } = self;
                let mut on_token = |of, token: Option<Progress>| pass_on(active, of, token, shared);
                if drawing.start(batch, &mut on_token) {
                    continue;
                } else if let Some((job, index)) = self.waiting.pop_front() {
                    self.start(job, index)?;
                } else if let Some(job) = self.next_job() {
                    self.accept(job)?;
                } else if self.batch.is_empty() {
                    return Ok(());
                } else {
                    break;
                }
            }
            let Worker { batch, active, shared, queue, drawing, .. } = self;
            let running = batch.unfinished();
            shared.metrics.running.store(running, Relaxed);
            let has_room = running < max_batch;
            let mut on_token = |of, token: Option<Progress>| pass_on(active, of, token, shared);
            let ended = drawing.next_or_pause(batch, &mut on_token, &mut || has_room && !queue.is_empty())?;
            // before the answer is sent, so that its client sees the new count
            shared.metrics.running.store(batch.unfinished(), Relaxed);
            if let Some((ticket, outcome)) = ended {
                self.end(ticket, outcome)?;
            }
        }
    }

    /// The next job with a connected client. Waits while the batch is empty; `None`: the queue is closed or empty.
    fn next_job(&mut self) -> Option<Job> {
        loop {
            let job = if self.batch.is_empty() { self.queue.blocking_recv() } else { self.queue.try_recv().ok() }?;
            if !job.reply.events.is_closed() {
                return Some(job);
            }
        }
    }

    fn accept(&mut self, Job { task, reply }: Job) -> Result<(), ApiError> {
        let generate = match task {
            Task::Generate(generate) => generate,
            Task::Score(item, options) => {
                let scored = self.score(*item, &options);
                reply.send(scored.clone().map_or_else(Event::Failed, Event::Whole));
                return scored.map_or_else(ApiError::unless_lost, |_| Ok(()));
            }
        };
        match generate.prompts.iter().map(|prompt| self.encoded(&generate, prompt)).collect() {
            Ok(prompts) => self.enqueue(*generate, prompts, reply),
            Err(error) => reply.send(Event::Failed(error)),
        }
        Ok(())
    }

    /// A prompt's tokens, if the model can read them and has room for a response.
    fn encoded(&self, generate: &Generate, prompt: &Prompt) -> Result<EncodedPrompt, ApiError> {
        let Generate { echo, options, template_arguments, switches, named, thinking_budget, .. } = generate;
        let engine = self.batch.engine();
        let assessed = !self.common.abstain || generate.uqac.is_some();
        ApiError::unless(assessed, "uqac", "this server withholds answers by their confidence (--abstain)")?;
        let thinks = self.common.parameters.thinking != Thinking::None || thinking_budget.is_none();
        ApiError::unless(thinks, "thinking_budget", "this server was told that responses have no thoughts")?;
        for (field, variable) in switches {
            let reads = engine.chat_template().is_some_and(|template| template.reads(variable));
            ApiError::unless(reads, field, format_args!("the model's chat template does not read {variable}"))?;
        }
        let (known, tokenizer) = (engine.spec().vocab_size.min(engine.tokenizer().id_bound()), engine.tokenizer());
        let unknown = named.iter().find(|id| **id as usize >= known);
        let problem = format_args!("expected ids below {known}, found {}", unknown.copied().unwrap_or_default());
        ApiError::unless(unknown.is_none(), "logprob_token_ids", problem)?;
        let encode = |conversation: &Conversation, chat| {
            encode_prompt_with(engine, conversation, chat, generate.add_special_tokens, template_arguments)
        };
        let tokens = match prompt {
            Prompt::Chat(conversation) => encode(conversation, true)?,
            Prompt::Text(text) => encode(&Conversation::Prompt(text.clone()), false)?,
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        ApiError::unless(!tokens.is_empty(), "prompt", "no tokens")?;
        let param = if matches!(prompt, Prompt::Chat(_)) { "messages" } else { "prompt" };
        let more = usize::from(options.max_tokens > 0);
        engine.check(&tokens, more).map_err(|error| ApiError { param: Some(param.to_owned()), ..error.into() })?;
        let decoded = if *echo { tokenizer.decode_with_offsets(&tokens)?.0 } else { String::new() };
        let before = |text: &String| decoded.strip_suffix(text.as_str()).map_or(0, |before| before.chars().count());
        let (text, before) = match prompt {
            Prompt::Text(text) if *echo => (text.clone(), before(text)),
            _ => (decoded, 0),
        };
        Ok(EncodedPrompt { tokens, text, before })
    }

    /// Queues a job's choices for the batch.
    fn enqueue(&mut self, generate: Generate, prompts: Vec<EncodedPrompt>, reply: Reply) {
        let traced = generate.uqac.is_some() || generate.logprobs.is_some_and(|top| top > 0);
        let options = GenerateOptions {
            trace: traced.then(|| self.common.parameters.trace_parts()),
            running: generate.uqac.as_ref().and_then(|options| options.running),
            thinking_budget: generate.thinking_budget.map(|tokens| self.common.parameters.budget(tokens)),
            ..generate.options.clone()
        };
        let request = self.batch.engine().request(&options);
        let prompt_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        self.shared.metrics.prompt_tokens.fetch_add(prompt_tokens as u64, Relaxed);
        let finished = RefCell::new((Usage { prompt: prompt_tokens, completion: 0 }, Vec::new()));
        let job = Rc::new(Running {
            generate,
            reply,
            options,
            request,
            prompts,
            finished,
            failed: Cell::new(false),
            begun: Cell::new(false),
        });
        for index in 0..job.choices() {
            if job.generate.stream {
                job.reply.first(index);
            }
            self.waiting.push_back((job.clone(), index));
        }
    }

    /// Adds a choice to the batch.
    fn start(&mut self, job: Rc<Running>, index: usize) -> Result<(), ApiError> {
        if job.is_cancelled() {
            return Ok(());
        }
        let prefilled = self.scored_prompt(&job, index).and_then(|pass| {
            let prefilled = self.prefill(&job, index, pass);
            pass.and_then(|pass| self.batch.take(pass));
            prefilled
        });
        prefilled.or_else(|error| job.fail(error))
    }

    /// A pass of its own over the prompt, if it is echoed with logprobs and has any.
    fn scored_prompt(&mut self, job: &Running, index: usize) -> Result<Option<Ticket>, ApiError> {
        let tokens = &job.prompt(index).tokens;
        let scored = job.generate.echo && job.generate.logprobs.is_some() && tokens.len() > 1;
        Ok(scored.then(|| self.batch.add(tokens, 1, self.common.parameters.trace_parts())).transpose()?)
    }

    /// Prefills a choice's prompt, and finishes the choice if there is nothing to generate. `pass`: of
    /// [`scored_prompt`](Self::scored_prompt).
    fn prefill(&mut self, job: &Rc<Running>, index: usize, pass: Option<Ticket>) -> Result<(), ApiError> {
        let Running { generate, request, .. } = &**job;
        let (prompt, batch) = (job.prompt(index), &mut self.batch);
        let mut echoed = Vec::new();
        if let Some(top) = generate.logprobs.filter(|_| generate.echo) {
            let mut steps = vec![Step::default()]; // nothing predicts the first token
            if let Some(pass) = pass {
                steps.extend(batch.generation(pass).ok_or_else(gone)?.steps.iter().cloned());
            }
            let (text, ranges) = batch.engine().tokenizer().decode_with_offsets(&prompt.tokens)?;
            let alternatives = |i: usize| most_probable(&steps[i], top);
            echoed = infos(batch.engine(), &prompt.tokens, (&text, &ranges), &steps, &alternatives)?;
            echoed.iter_mut().for_each(|info| info.offset = info.offset.saturating_sub(prompt.before));
        }
        if generate.options.max_tokens == 0 {
            let (text, tokens) = (prompt.text.clone(), generate.logprobs.map(|_| echoed));
            job.finish(Choice { index, text, tokens, finish: Some(FinishReason::Length), ..Choice::default() }, 0);
            return Ok(());
        }
        let engine = batch.engine();
        let streamed = generate.stream.then(|| Streamed::new(engine.tokenizer()));
        let (held, eos) = (self.common.abstain || !generate.named.is_empty(), engine.spec().eos_token_ids.clone());
        let hidden = if generate.skip_special_tokens { self.hidden.clone() } else { Rc::default() };
        let mut active = Active { job: job.clone(), index, echoed, streamed, held, eos, hidden };
        let (stream, request) = ((index % generate.n) as u64, request.clone());
        let mut on_token = |progress: Progress| active.token(Some(&progress), self.shared);
        let ticket = batch.start_with(pass, &prompt.tokens, stream, request, &mut on_token)?;
        self.active.insert(ticket, active);
        let samples = generate.uqac.as_ref().map_or(0, |options| options.samples);
        self.drawing.add(batch, ticket, samples, stream, &job.options);
        Ok(())
    }

    /// Removes an ended response and its samples from the batch and sends it with its confidence, or its error.
    fn end(&mut self, ticket: Ticket, outcome: Result<(), EngineError>) -> Result<(), ApiError> {
        let samples = self.drawing.take(&mut self.batch, ticket);
        let responses = self.batch.generation(ticket).into_iter().chain(&samples);
        let tokens = responses.map(|response| response.tokens.len() - response.prompt_len).sum::<usize>();
        self.shared.metrics.completion_tokens.fetch_add(tokens as u64, Relaxed);
        let mut ended = Ok(());
        if let Some(active) = self.active.remove(&ticket) {
            match outcome.map_err(ApiError::from) {
                Ok(()) if active.job.is_cancelled() => (),
                outcome => match outcome.and_then(|()| self.finished(ticket, &active, &samples)) {
                    Ok(choice) => active.finish(choice, tokens),
                    Err(error) => ended = active.job.fail(error),
                },
            }
        }
        self.batch.take(ticket); // unless its trace was taken
        ended
    }

    /// An ended response: its text before the first stop string, log-probabilities and confidence.
    fn finished(&mut self, ticket: Ticket, active: &Active, samples: &[Generation]) -> Result<Choice, ApiError> {
        let Active { job, index, echoed, .. } = active;
        let Worker { batch, common, shared, .. } = self;
        let (generate, prompt) = (&job.generate, job.prompt(*index));
        let named = if generate.named.is_empty() { Vec::new() } else { batch.logprobs_of(ticket, &generate.named)? };
        let engine = batch.engine();
        let Generation { tokens, prompt_len, steps, finish } = batch.generation(ticket).ok_or_else(gone)?;
        let response = &tokens[*prompt_len..];
        let ResponseText { text, mut ranges } = ResponseText::new(engine, response)?;
        let shown = cut(&text, &generate.options.stop);
        let kept = match (shown == text.len(), generate.chat) {
            // the end token has no text, but a completion's log-likelihood includes it
            (true, false) => response.len(),
            (true, true) => ranges.len(),
            (false, _) => ranges.iter().take_while(|range| range.start < shown).count(),
        };
        let text = hide(&text[..shown], &mut ranges, |i| active.hidden.contains(&response[i]));
        let mut logprobs = echoed.clone();
        if let Some(top) = generate.logprobs {
            let alternatives = |i: usize| match named.get(i) {
                Some(named) => named_tokens(response[i], &steps[i], &generate.named, named),
                None => most_probable(&steps[i], top),
            };
            let of_response = infos(engine, &response[..kept], (&text, &ranges), steps, &alternatives)?;
            let before = prompt.text.chars().count();
            logprobs.extend(of_response.into_iter().map(|info| TokenInfo { offset: before + info.offset, ..info }));
        }
        let whole = format!("{}{text}", prompt.text);
        let tokens = generate.logprobs.map(|_| logprobs);
        let mut choice = Choice { index: *index, text: whole, tokens, finish: Some(*finish), ..Choice::default() };
        if let Some(options) = &generate.uqac {
            let offsets = (0..response.len()).map(|i| ranges.get(i).map_or([text.len(); 2], |r| [r.start, r.end]));
            let logprobs = steps.iter().take(response.len()).map(|step| step.logprob).collect();
            let tokens = ResponseTokens { ids: response.to_vec(), offsets: offsets.collect(), logprobs };
            let at_end = options.running.and_then(|running| running.after(&steps[..response.len()]));
            let mut traced = batch.take_traced(ticket).ok_or_else(gone)??;
            let parameters = options.parameters(common.parameters);
            let (parameters, trace) = (&parameters, options.explain);
            let request = assess::Request { parameters, trace, samples, ..(*common).clone() };
            let mut record = assess(&mut traced, serde_json::Value::Null, &request)?;
            if let Some(withheld) = &mut record.withheld {
                choice.refusal = Some(format!("The answer is withheld: {}.", withheld.why));
                (withheld.response, choice.tokens) = (std::mem::take(&mut choice.text), None);
                shared.metrics.abstained.fetch_add(1, Relaxed);
            }
            let sampling = generate.options.sampling;
            let seed = (sampling.temperature > 0.0 || options.samples > 0).then_some(sampling.seed);
            choice.uqac = Some(uqac(&record, &tokens, options, at_end, (seed, traced.engine().tokenizer()))?);
        }
        Ok(choice)
    }

    /// Scores an existing response like `uqac score`; returns a line of its output.
    fn score(&mut self, item: Item, options: &UqacOptions) -> Result<String, ApiError> {
        let Worker { batch, common, .. } = self;
        let (engine, parameters) = (batch.engine(), options.parameters(common.parameters));
        let (tokens, prompt_len, answer) = sequence(engine, &item, engine.chat_template().is_some(), &parameters)?;
        self.shared.metrics.prompt_tokens.fetch_add(tokens.len() as u64, Relaxed);
        let ticket = batch.add(&tokens, prompt_len, parameters.trace_parts())?;
        let mut traced = batch.take_traced(ticket).ok_or_else(gone)??;
        let common = assess::Request { parameters: &parameters, trace: options.explain, ..(*common).clone() };
        let request = common.of_item(&item, answer);
        let record = assess(&mut traced, item.id.clone(), &request)?;
        serde_json::to_string(&record).map_err(|error| ApiError::internal(error.to_string()))
    }
}

impl Running {
    /// Number of choices.
    fn choices(&self) -> usize {
        self.generate.n * self.prompts.len()
    }

    fn prompt(&self, choice: usize) -> &EncodedPrompt {
        &self.prompts[choice / self.generate.n]
    }

    /// Whether the client disconnected or received an error.
    fn is_cancelled(&self) -> bool {
        self.failed.get() || self.reply.events.is_closed()
    }

    /// Tells the client; the error is passed on if the engine is lost.
    fn fail(&self, error: ApiError) -> Result<(), ApiError> {
        if !self.failed.replace(true) {
            self.reply.told.error(&error);
            self.reply.send(Event::Failed(error.clone()));
        }
        error.unless_lost()
    }

    /// Sends a finished choice, or the whole answer after the last one.
    fn finish(&self, mut choice: Choice, tokens: usize) {
        let Running { generate, reply, .. } = self;
        let (usage, choices) = &mut *self.finished.borrow_mut();
        usage.completion += tokens;
        if generate.stream {
            let finish = choice.finish;
            reply.part(Choice { text: String::new(), tokens: None, ..std::mem::take(&mut choice) });
            choice.finish = finish;
        }
        choices.push(choice);
        reply.told.add("prompt_tokens", usage.prompt);
        reply.told.add("completion_tokens", usage.completion);
        reply.told.add("finish_reasons", json!(choices.iter().map(|choice| choice.finish).collect::<Vec<_>>()));
        match (choices.len() == self.choices(), generate.stream) {
            (true, true) => reply.done(generate.include_usage.then_some(*usage)),
            (true, false) => reply.whole(std::mem::take(choices), *usage),
            (false, _) => (),
        }
    }
}

impl Active {
    /// Streams a token, unless it is a sample's; breaks if the request is cancelled.
    fn token(&mut self, progress: Option<&Progress>, shared: &Shared) -> ControlFlow<()> {
        if self.job.is_cancelled() {
            return ControlFlow::Break(());
        }
        let Some(progress) = progress else { return ControlFlow::Continue(()) };
        if !self.job.begun.replace(true) {
            shared.metrics.first_token(self.job.reply.told.begun.elapsed());
        }
        let Generate { options, logprobs, .. } = &self.job.generate;
        let token = &progress.token.token;
        let (shows, hides) = (!self.held && !self.eos.contains(token), self.hidden.contains(token));
        if let Some(streamed) = self.streamed.as_mut().filter(|_| shows)
            && let Ok((text, tokens)) = streamed.push(progress, &options.stop, *logprobs, hides)
        {
            self.send(text, tokens);
        }
        ControlFlow::Continue(())
    }

    fn send(&self, text: String, tokens: Vec<TokenInfo>) {
        if !text.is_empty() || !tokens.is_empty() {
            let tokens = self.job.generate.logprobs.map(|_| tokens);
            self.job.reply.part(Choice { index: self.index, text, tokens, ..Choice::default() });
        }
    }

    fn finish(&self, choice: Choice, tokens: usize) {
        if let Some(streamed) = &self.streamed {
            let (text, tokens) = streamed.rest(&choice.text, choice.tokens.as_deref().unwrap_or_default());
            self.send(text, tokens);
        }
        self.job.finish(choice, tokens);
    }
}

/// Passes on a response's token, or `None` for its sample's; breaks if it is there no more.
fn pass_on(active: &mut HashMap<Ticket, Active>, of: Ticket, token: Option<Progress>, to: &Shared) -> ControlFlow<()> {
    active.get_mut(&of).map_or(ControlFlow::Break(()), |active| active.token(token.as_ref(), to))
}

fn gone() -> ApiError {
    ApiError::internal("the response is gone from the batch")
}

/// The most probable tokens of a step, at most `top`.
fn most_probable(step: &Step, top: usize) -> Vec<TokenLogprob> {
    step.top.iter().take(top).copied().collect()
}

/// The chosen token, and the named ones.
fn named_tokens(token: u32, step: &Step, ids: &[u32], logprobs: &[f64]) -> Vec<TokenLogprob> {
    let named = ids.iter().zip(logprobs).map(|(&token, &logprob)| TokenLogprob { token, logprob });
    let chosen = step.logprob.map(|logprob| TokenLogprob { token, logprob });
    chosen.into_iter().chain(named.filter(|named| named.token != token)).collect()
}

/// Tokens with their log-probabilities; `ranges[i]` of the text belongs to `tokens[i]`, which `steps[i]` predicts and whose
/// alternatives are `alternatives(i)`. The last token may be without text.
fn infos(
    engine: &Engine,
    tokens: &[u32],
    (text, ranges): (&str, &[Range<usize>]),
    steps: &[Step],
    alternatives: &dyn Fn(usize) -> Vec<TokenLogprob>,
) -> Result<Vec<TokenInfo>, TokenizerError> {
    let (mut bytes, mut characters) = (0, 0);
    let info = |(i, (token, step)): (usize, (&u32, &Step))| {
        // starts do not decrease
        let start = ranges.get(i).map_or(text.len(), |range| range.start).max(bytes);
        characters += text[bytes..start].chars().count();
        bytes = start;
        token_info(engine.tokenizer(), *token, step.logprob, (characters, i == 0), &alternatives(i))
    };
    tokens.iter().zip(steps).enumerate().map(info).collect()
}
