//! The thread that has the engine: requests join its one batch, and leave it with their confidences.

use super::Shared;
use super::answer::{finish_name, uqac};
use super::error::ApiError;
use super::queue::{Ended, Event, Job, TokenInfo, Usage};
use super::request::{Generate, Prompt, Score, Task};
use super::text::{Streamed, cut, token_info};
use crate::backend::Step;
use crate::engine::encode::{ResponseText, encode_prompt};
use crate::engine::{Batch, Engine, FinishReason, GenerateOptions, Generation, Progress, Request, Ticket};
use crate::eval::assess::{self, assess, record, sequence};
use crate::eval::calibration::Calibration;
use crate::eval::sample::ResponseTokens;
use crate::model::chat::Conversation;
use crate::model::tokenizer::TokenizerError;
use crate::uq::Parameters;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc::UnboundedSender;

/// Answers jobs until the queue is closed and empty.
pub fn run(engine: &mut Engine, parameters: &Parameters, calibration: Option<&Calibration>, shared: &Shared) {
    loop {
        let mut worker = Worker {
            batch: engine.batch(&GenerateOptions { max_tokens: 0, ..GenerateOptions::default() }),
            parameters,
            calibration,
            shared,
            jobs: HashMap::new(),
            next_job: 0,
            waiting: VecDeque::new(),
            active: HashMap::new(),
        };
        match worker.work() {
            Ok(()) => return,
            // what ran is lost, and the next begins with an empty batch
            Err(error) => worker.jobs.values().for_each(|job| job.fail(&error)),
        }
    }
}

/// A request of which responses are being generated.
struct Running {
    generate: Generate,
    events: UnboundedSender<Event>,
    request: Request,
    prompts: Vec<Encoded>,
    usage: Usage,
    /// Choices that have not ended.
    missing: usize,
}

/// A prompt as tokens; with `echo`, what it says of itself.
struct Encoded {
    tokens: Vec<u32>,
    text: String,
    /// Bytes that the tokens' text has before it: of the token that begins a sequence.
    before: usize,
    infos: Vec<TokenInfo>,
    /// Its pass, for its responses to share.
    pass: Option<Ticket>,
}

/// A choice that has no place in the batch yet.
struct Waiting {
    job: u64,
    choice: usize,
}

/// A choice that is being generated.
struct Active {
    job: u64,
    choice: usize,
    events: UnboundedSender<Event>,
    /// Where it is streamed.
    streamed: Option<Streamed>,
    ends: Vec<u32>,
}

struct Worker<'e, 's> {
    batch: Batch<'e>,
    parameters: &'s Parameters,
    calibration: Option<&'s Calibration>,
    shared: &'s Shared,
    jobs: HashMap<u64, Running>,
    next_job: u64,
    waiting: VecDeque<Waiting>,
    active: HashMap<Ticket, Active>,
}

impl Worker<'_, '_> {
    /// Until there is nothing left to do.
    fn work(&mut self) -> Result<(), ApiError> {
        let max_batch = self.shared.settings.max_batch.max(1);
        loop {
            while self.batch.unfinished() < max_batch {
                if let Some(waiting) = self.waiting.pop_front() {
                    self.start(&waiting)?;
                } else if let Some(job) = self.shared.queue.pop(self.batch.is_empty()) {
                    self.accept(job);
                } else if self.batch.is_empty() {
                    return Ok(());
                } else {
                    break;
                }
            }
            let Worker { batch, active, shared, .. } = self;
            let running = batch.unfinished();
            shared.metrics.running.store(running, Relaxed);
            let room = running < max_batch;
            let mut on_token = |progress: Progress| match active.get_mut(&progress.ticket) {
                Some(active) => active.token(&progress),
                None => ControlFlow::Break(()),
            };
            let ended = batch.next_or_pause(&mut on_token, &mut || room && shared.queue.len() > 0)?;
            // before the answer is sent: who has it may ask how many are left
            shared.metrics.running.store(batch.unfinished(), Relaxed);
            if let Some(ticket) = ended {
                self.end(ticket);
            }
        }
    }

    /// Makes a job's prompts into tokens and lets its choices wait for places; or scores its response.
    fn accept(&mut self, job: Job) {
        let Job { task, events } = job;
        let failed = match task {
            Task::Generate(generate) => self.accept_generate(*generate, events.clone()),
            Task::Score(score) => self.score(*score).map(|record| drop(events.send(record))),
        };
        if let Err(error) = failed {
            let _ = events.send(Event::Failed(error));
        }
    }

    fn accept_generate(&mut self, generate: Generate, events: UnboundedSender<Event>) -> Result<(), ApiError> {
        let engine = self.batch.engine();
        let room = usize::from(generate.max_tokens > 0);
        let mut prompts = Vec::new();
        for prompt in &generate.prompts {
            let encoded = encoded(engine, prompt, generate.echo)?;
            let context = engine.spec().max_position_embeddings;
            if encoded.tokens.len() + room > context {
                return Err(ApiError::context(encoded.tokens.len(), context));
            }
            prompts.push(encoded);
        }
        let traced = generate.uqac.is_some() || generate.logprobs.is_some_and(|top| top > 0);
        let request = engine.request(&GenerateOptions {
            max_tokens: generate.max_tokens,
            stop: generate.stop.clone(),
            sampling: generate.sampling,
            trace: traced.then(|| self.parameters.head_selection()),
            running: generate.uqac.as_ref().and_then(|wish| wish.running),
            ..GenerateOptions::default()
        });
        let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        self.shared.metrics.prompt_tokens.fetch_add(prompt_tokens as u64, Relaxed);
        let missing = generate.n * prompts.len();
        let job = self.next_job;
        self.next_job += 1;
        self.waiting.extend((0..missing).map(|choice| Waiting { job, choice }));
        let _ = events.send(Event::Begun);
        let usage = Usage { prompt: prompt_tokens, completion: 0 };
        self.jobs.insert(job, Running { generate, events, request, prompts, usage, missing });
        Ok(())
    }

    /// Gives a choice its place in the batch. An error is one of the engine itself, after which nothing goes on.
    fn start(&mut self, waiting: &Waiting) -> Result<(), ApiError> {
        let &Waiting { job: id, choice } = waiting;
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(()) };
        if job.events.is_closed() {
            self.forget(id);
            return Ok(());
        }
        let started = start_choice(&mut self.batch, job, self.parameters, (id, choice));
        match started {
            Ok(Some((ticket, active))) => {
                self.active.insert(ticket, active);
                Ok(())
            }
            Ok(None) => {
                let Encoded { text, infos, .. } = &job.prompts[choice / job.generate.n];
                let (text, tokens) = (text.clone(), infos.clone());
                self.done(id, Ended { index: choice, text, tokens, finish: "length", uqac: None });
                Ok(())
            }
            Err(error) if error.status < 500 => {
                job.fail(&error);
                self.forget(id);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a response that has ended out of the batch and sends it with its confidence.
    fn end(&mut self, ticket: Ticket) {
        let (Some(active), Some(generation)) = (self.active.remove(&ticket), self.batch.generation(ticket)) else {
            self.batch.take(ticket);
            return;
        };
        let completion = generation.tokens.len() - generation.prompt_len;
        self.shared.metrics.completion_tokens.fetch_add(completion as u64, Relaxed);
        let Some(job) = self.jobs.get_mut(&active.job).filter(|_| generation.finish != FinishReason::Interrupted)
        else {
            self.batch.take(ticket);
            return self.forget(active.job);
        };
        job.usage.completion += completion;
        let ended = finished(&mut self.batch, ticket, job, &active, (self.parameters, self.calibration));
        match ended {
            Ok(ended) => {
                if let Some(streamed) = &active.streamed {
                    let (text, tokens) = streamed.rest(&ended.text, &ended.tokens);
                    if !text.is_empty() || !tokens.is_empty() {
                        let (text, tokens) = (text.to_owned(), tokens.to_vec());
                        let _ = job.events.send(Event::Piece { index: ended.index, text, tokens });
                    }
                }
                self.done(active.job, ended);
            }
            Err(error) => {
                job.fail(&error);
                self.batch.take(ticket);
                self.forget(active.job);
            }
        }
    }

    /// Sends a choice, and after the last one how much it was.
    fn done(&mut self, id: u64, ended: Ended) {
        if let Some(job) = self.jobs.get_mut(&id) {
            let _ = job.events.send(Event::Ended(Box::new(ended)));
            job.missing -= 1;
            if job.missing == 0 {
                let _ = job.events.send(Event::Done(job.usage));
                self.jobs.remove(&id);
            }
        }
    }

    /// Drops a job and everything of it that waits or runs.
    fn forget(&mut self, id: u64) {
        let passes = self.jobs.remove(&id).into_iter().flat_map(|job| job.prompts).filter_map(|prompt| prompt.pass);
        let tickets: Vec<Ticket> = self.active.iter().filter(|(_, a)| a.job == id).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets.iter().copied().chain(passes) {
            self.active.remove(&ticket);
            self.batch.take(ticket);
        }
        self.waiting.retain(|waiting| waiting.job != id);
    }

    /// A response that exists, as `uqac score` scores it.
    fn score(&mut self, Score { item, explain }: Score) -> Result<Event, ApiError> {
        let Worker { batch, parameters, calibration, .. } = self;
        let engine = batch.engine();
        let chat = engine.chat_template().is_some();
        let (tokens, prompt_len, answer) = sequence(engine, &item.content, chat, parameters)?;
        self.shared.metrics.prompt_tokens.fetch_add(tokens.len() as u64, Relaxed);
        let ticket = batch.add(&tokens, prompt_len, parameters.head_selection())?;
        let Some(traced) = batch.take_traced(ticket) else { return Err(ApiError::internal("the response is gone")) };
        let mut traced = traced?;
        let dataset = item.dataset.as_deref();
        let request = assess::Request { parameters, calibration: *calibration, dataset, answer, trace: explain };
        let assessed = assess(&mut traced, &request)?;
        let record = record(item.id, parameters.reading, prompt_len, assessed, traced.engine());
        Ok(Event::Record(Box::new(record)))
    }
}

impl Running {
    fn fail(&self, error: &ApiError) {
        let _ = self.events.send(Event::Failed(error.clone()));
    }
}

impl Active {
    /// Streams a token; stops where nobody reads any more.
    fn token(&mut self, progress: &Progress) -> ControlFlow<()> {
        if self.events.is_closed() {
            return ControlFlow::Break(());
        }
        if let Some(streamed) = self.streamed.as_mut().filter(|_| !self.ends.contains(&progress.token.token))
            && let Ok(Some((text, tokens))) = streamed.push(progress)
        {
            let _ = self.events.send(Event::Piece { index: self.choice, text, tokens });
        }
        ControlFlow::Continue(())
    }
}

/// A prompt's tokens, checked against the vocabulary.
fn encoded(engine: &Engine, prompt: &Prompt, echo: bool) -> Result<Encoded, ApiError> {
    let tokens = match prompt {
        Prompt::Chat(conversation) => encode_prompt(engine, conversation, true)?,
        Prompt::Text(text) => encode_prompt(engine, &Conversation::Prompt(text.clone()), false)?,
        Prompt::Tokens(tokens) => tokens.clone(),
    };
    if tokens.is_empty() {
        return Err(ApiError::invalid("prompt", "the prompt is empty"));
    }
    let vocabulary = engine.tokenizer().vocab_size();
    if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
        let message = format!("prompt: token id {id} is not in the tokenizer's vocabulary of {vocabulary}");
        return Err(ApiError::invalid("prompt", message));
    }
    let whole = if echo { engine.tokenizer().decode_with_offsets(&tokens)?.0 } else { String::new() };
    let (text, before) = match prompt {
        Prompt::Text(text) if echo => (text.clone(), whole.strip_suffix(text.as_str()).map_or(0, str::len)),
        _ => (whole, 0),
    };
    Ok(Encoded { tokens, text, before, infos: Vec::new(), pass: None })
}

/// Runs a choice's prompt; `None` where nothing is to be generated. The first choice of a prompt that is echoed with
/// log-probabilities runs it as a response that exists, which all its choices share.
fn start_choice(
    batch: &mut Batch,
    job: &mut Running,
    parameters: &Parameters,
    (id, choice): (u64, usize),
) -> Result<Option<(Ticket, Active)>, ApiError> {
    let Running { generate, events, request, prompts, .. } = job;
    let (prompt, sample) = (&mut prompts[choice / generate.n], choice % generate.n);
    if let Some(top) = generate.logprobs.filter(|_| generate.echo && sample == 0) {
        let steps = match prompt.tokens.len() {
            1 => Vec::new(),
            _ => {
                let ticket = batch.add(&prompt.tokens, 1, parameters.head_selection())?;
                prompt.pass = Some(ticket);
                batch.generation(ticket).map(|generation| generation.steps.clone()).unwrap_or_default()
            }
        };
        let before_first = Step::default();
        let steps: Vec<&Step> = std::iter::once(&before_first).chain(&steps).collect();
        prompt.infos = infos(batch.engine(), &prompt.tokens, &steps, top)?;
        prompt.infos.iter_mut().for_each(|info| info.offset = info.offset.saturating_sub(prompt.before));
    }
    let started = if generate.max_tokens == 0 {
        None
    } else {
        let engine = batch.engine();
        let streamed = generate.stream.then(|| Streamed::new(engine.tokenizer(), &generate.stop, generate.logprobs));
        let ends = engine.spec().eos_token_ids.clone();
        let mut active = Active { job: id, choice, events: events.clone(), streamed, ends };
        let (stream, request) = (sample as u64, request.clone());
        let mut on_token = |progress: Progress| active.token(&progress);
        let ticket = match prompt.pass {
            Some(pass) => batch.start_after(pass, &prompt.tokens, stream, request, &mut on_token)?,
            None => batch.start_with(&prompt.tokens, stream, request, &mut on_token)?,
        };
        Some((ticket, active))
    };
    if sample + 1 == generate.n {
        prompt.pass.take().and_then(|pass| batch.take(pass));
    }
    Ok(started)
}

/// Tokens with their log-probabilities; `steps[i]` predicts `tokens[i]`.
fn infos(engine: &Engine, tokens: &[u32], steps: &[&Step], top: usize) -> Result<Vec<TokenInfo>, TokenizerError> {
    let (_, ranges) = engine.tokenizer().decode_with_offsets(tokens)?;
    let info = |((token, range), step): ((&u32, &std::ops::Range<usize>), &&Step)| {
        token_info(engine.tokenizer(), *token, (step.logprob, step), (range.start, top))
    };
    tokens.iter().zip(&ranges).zip(steps).map(info).collect()
}

/// A response that has ended: its text up to the first stop string, log-probabilities and confidence.
fn finished(
    batch: &mut Batch,
    ticket: Ticket,
    job: &Running,
    active: &Active,
    (parameters, calibration): (&Parameters, Option<&Calibration>),
) -> Result<Ended, ApiError> {
    let gone = || ApiError::internal("the response is gone");
    let Running { generate, prompts, .. } = job;
    let engine = batch.engine();
    let Generation { tokens, prompt_len, steps, finish } = batch.generation(ticket).ok_or_else(gone)?;
    let (prompt_len, finish, response) = (*prompt_len, finish_name(*finish), &tokens[*prompt_len..]);
    let ResponseText { text, ranges } = ResponseText::new(engine, response)?;
    let shown = cut(&text, &generate.stop);
    let kept = match shown == text.len() {
        // the end token has no text; a completion's log-probabilities have it, as its log-likelihood does
        true => {
            if generate.chat {
                ranges.len()
            } else {
                response.len()
            }
        }
        false => ranges.iter().take_while(|range| range.start < shown).count(),
    };
    let infos = match generate.logprobs {
        Some(top) => infos(engine, &response[..kept], &steps.iter().take(kept).collect::<Vec<_>>(), top)?,
        None => Vec::new(),
    };
    let length = text.len();
    let offsets = (0..response.len()).map(|i| ranges.get(i).map_or([length; 2], |r| [r.start, r.end])).collect();
    let logprobs = steps.iter().take(response.len()).map(|step| step.logprob).collect();
    let at_end = generate.uqac.as_ref().and_then(|wish| wish.running?.after(&steps[..response.len()]));
    let response = ResponseTokens { ids: response.to_vec(), offsets, logprobs };
    let found = match &generate.uqac {
        None => {
            batch.take(ticket);
            None
        }
        Some(wish) => {
            let mut traced = batch.take_traced(ticket).ok_or_else(gone)??;
            let request = assess::Request { parameters, calibration, dataset: None, answer: None, trace: wish.explain };
            let assessed = assess(&mut traced, &request)?;
            let record = record(serde_json::Value::Null, parameters.reading, prompt_len, assessed, traced.engine());
            let seed = (generate.sampling.temperature > 0.0).then_some(generate.sampling.seed);
            Some(uqac(record, response, wish, at_end, (seed, traced.engine().tokenizer()))?)
        }
    };
    let prompt = &prompts[active.choice / generate.n];
    let after_prompt = |info: TokenInfo| TokenInfo { offset: prompt.text.len() + info.offset, ..info };
    let tokens = prompt.infos.iter().cloned().chain(infos.into_iter().map(after_prompt)).collect();
    let text = format!("{}{}", prompt.text, &text[..shown]);
    Ok(Ended { index: active.choice, text, tokens, finish, uqac: found })
}
