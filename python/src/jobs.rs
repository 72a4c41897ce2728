//! The jobs of the model's thread: generating or reading responses, and assessing them.

use crate::arrays::{Array, matrix, vector};
use crate::events::{Event, Reporter};
use crate::options::Options;
use crate::results::{Response, Token};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use uqac::internals::Link;
use uqac::internals::assess::{Request, assess, calibration, sequence};
use uqac::internals::samples::Drawing;
use uqac::{
    AnswerRecord, BadItem, Batch, Calibration, Conversation, Engine, FinishReason, GenerateOptions, Item, Message,
    Parameters, Progress, Reading, Record, TextStream, Ticket, Tokenizer, Traced, TracedSequence, encode_prompt,
};

/// A model, and what has been loaded along with it.
pub struct Loaded {
    pub engine: Engine,
    pub folder: PathBuf,
    /// The calibration found for each reading of the method, and for whether a certified threshold is
    /// required.
    calibrations: Vec<((Reading, bool), Option<Calibration>)>,
}

impl Loaded {
    pub fn new(engine: Engine, folder: PathBuf) -> Loaded {
        Loaded { engine, folder, calibrations: Vec::new() }
    }

    fn calibration(&mut self, reading: &Reading, abstain: bool) -> Result<Option<Calibration>, String> {
        let known = (*reading, abstain);
        if let Some((_, found)) = self.calibrations.iter().find(|(other, _)| *other == known) {
            return Ok(found.clone());
        }
        let found = calibration(&self.folder, &self.engine, None, reading, abstain).map_err(text)?;
        self.calibrations.push((known, found.clone()));
        Ok(found)
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// A conversation as passed from Python.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of messages, each with a role and a content")]
pub enum Question {
    Text(String),
    Messages(Vec<Message>),
}

impl Question {
    /// The text shown as the question.
    fn shown(&self) -> &str {
        match self {
            Question::Text(text) => text,
            Question::Messages(messages) => {
                let asked = messages.iter().rfind(|message| message.role == "user").or(messages.last());
                asked.and_then(|message| message.content.as_deref()).unwrap_or_default()
            }
        }
    }
}

impl From<&Question> for Conversation {
    fn from(question: &Question) -> Conversation {
        match question {
            Question::Text(text) => Conversation::Prompt(text.clone()),
            Question::Messages(messages) => Conversation::Messages(messages.clone()),
        }
    }
}

/// A response being generated.
struct Running<'q> {
    index: usize,
    question: &'q Question,
}

/// Statistics of a response's tokens, updated as they arrive.
struct Watch {
    first: Instant,
    last: Instant,
    tokens: usize,
    text: TextStream<Arc<Tokenizer>>,
    response_logprob: f64,
    min_logprob: f64,
}

/// Watches the tokens of a batch.
struct Watcher<'r> {
    reporter: &'r Reporter,
    tokenizer: Arc<Tokenizer>,
    ends: Vec<u32>,
    stream: bool,
    watched: HashMap<Ticket, Watch>,
}

impl Watcher<'_> {
    /// A token of a response, or of one of its samples.
    fn token(&mut self, progress: Option<Progress>) -> ControlFlow<()> {
        progress.into_iter().for_each(|progress| self.own_token(progress));
        if self.reporter.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn own_token(&mut self, Progress { ticket, token, step, confidence: running, .. }: Progress) {
        let now = Instant::now();
        let watch = self.watched.entry(ticket).or_insert_with(|| Watch {
            first: now,
            last: now,
            tokens: 0,
            text: TextStream::new(self.tokenizer.clone()),
            response_logprob: 0.0,
            min_logprob: 0.0,
        });
        (watch.last, watch.tokens) = (now, watch.tokens + 1);
        if self.stream {
            if !step.forced {
                watch.response_logprob += token.logprob;
                watch.min_logprob = watch.min_logprob.min(token.logprob);
            }
            let is_end = self.ends.contains(&token.token);
            let text = if is_end { String::new() } else { watch.text.push(token.token).unwrap_or_default() };
            let &mut Watch { response_logprob, min_logprob, .. } = watch;
            let (id, logprob, min_token_prob) = (token.token, token.logprob, min_logprob.exp());
            self.reporter.send(Event::Token(Token { id, text, logprob, response_logprob, min_token_prob, running }));
        }
    }

    /// Tokens per second of a finished response; `None` with too few tokens to tell.
    fn speed(&mut self, ticket: Ticket) -> Option<f64> {
        let Watch { first, last, tokens, .. } = self.watched.remove(&ticket)?;
        let seconds = (last - first).as_secs_f64();
        (tokens > 1 && seconds > 0.0).then(|| (tokens - 1) as f64 / seconds)
    }
}

/// Answers questions, `batch_size` concurrently, and reports each response as it finishes.
pub fn ask(
    loaded: &mut Loaded,
    questions: &[Question],
    options: &Options,
    parameters: &Parameters,
    generate: &GenerateOptions,
    reporter: &Reporter,
) {
    let calibration = match loaded.calibration(&parameters.reading, options.abstain) {
        Ok(calibration) => calibration,
        Err(why) => return reporter.send(Event::Failed(why)),
    };
    let mut watcher = Watcher {
        reporter,
        tokenizer: loaded.engine.tokenizer().clone(),
        ends: loaded.engine.spec().eos_token_ids.clone(),
        stream: options.stream,
        watched: HashMap::new(),
    };
    let Options { abstain, trace, .. } = *options;
    let request = Request { calibration: calibration.as_ref(), abstain, trace, ..Request::of(parameters) };
    let mut waiting = questions.iter().enumerate();
    let mut running: HashMap<Ticket, Running> = HashMap::new();
    let (mut batch, mut drawing) = (loaded.engine.batch(generate), Drawing::default());
    let failed = |index, why: String| {
        let record = Record::error(Value::Null, parameters.reading, None, why);
        reporter.send(Event::Response(index, Box::new(Response::failed(record))));
    };
    loop {
        let mut on_token = |_, token: Option<Progress>| watcher.token(token);
        while batch.unfinished() < options.batch_size.max(1) && !reporter.is_stopped() {
            if drawing.start(&mut batch, &mut on_token) {
                continue;
            }
            let Some((index, question)) = waiting.next() else { break };
            let started = encode_prompt(batch.engine(), &question.into(), options.chat_template)
                .map_err(text)
                .and_then(|prompt| {
                    let mut on_token = |progress: Progress| on_token(progress.ticket, Some(progress));
                    batch.start(&prompt, index as u64, &mut on_token).map_err(text)
                });
            match started {
                Ok(ticket) => {
                    drawing.add(&batch, ticket, options.samples, index as u64, generate);
                    running.insert(ticket, Running { index, question });
                }
                Err(why) => failed(index, why),
            }
        }
        let ended = match drawing.next_or_pause(&mut batch, &mut on_token, &mut || false) {
            Ok(Some(ended)) if !reporter.is_stopped() => ended,
            Ok(None) if drawing.waits() && !reporter.is_stopped() => continue,
            Ok(_) => return,
            Err(error) => return reporter.send(Event::Failed(text(error))),
        };
        let (ticket, outcome) = ended;
        let Some(Running { index, question }) = running.remove(&ticket) else { continue };
        let (speed, samples) = (watcher.speed(ticket), drawing.take(&mut batch, ticket));
        let request = Request { samples: &samples, ..request.clone() };
        match outcome.map_err(text).and_then(|()| answer(&mut batch, ticket, question, &request, speed)) {
            Ok(response) => reporter.send(Event::Response(index, Box::new(response))),
            Err(why) => failed(index, why),
        }
        batch.take(ticket); // unless its trace was taken
    }
}

/// Assesses a finished response.
fn answer(
    batch: &mut Batch,
    ended: Ticket,
    question: &Question,
    request: &Request,
    tokens_per_second: Option<f64>,
) -> Result<Response, String> {
    let finish_reason = batch.generation(ended).map_or(FinishReason::Interrupted, |generation| generation.finish);
    let mut traced = batch.take_traced(ended).ok_or("the response is gone")?.map_err(text)?;
    let record = assess(&mut traced, Value::Null, request).map_err(text)?;
    Response::new(&mut traced, record, |record, response, response_tokens| {
        let question = question.shown();
        let record = AnswerRecord { record, question, response, finish_reason, response_tokens, tokens_per_second };
        serde_json::to_string(&record)
    })
}

/// An error, and the start of the response if known.
type ItemError = (Option<usize>, String);

/// Scores an item. An error in it affects only its own result.
pub fn score(loaded: &mut Loaded, item: Result<Item, BadItem>, options: &Options, parameters: &Parameters) -> Response {
    let (id, scored) = match item {
        Ok(item) => (item.id.clone(), score_item(loaded, item, options, parameters, |_, _| Ok(()))),
        Err(bad) => (bad.id, Err((None, bad.problem))),
    };
    scored
        .map(|(response, ())| response)
        .unwrap_or_else(|(prompt_len, why)| Response::failed(Record::error(id, parameters.reading, prompt_len, why)))
}

/// Scores an item; `more` computes anything else needed from its traced response.
fn score_item<T>(
    loaded: &mut Loaded,
    item: Item,
    options: &Options,
    parameters: &Parameters,
    more: impl FnOnce(&mut TracedSequence, &[Link]) -> Result<T, String>,
) -> Result<(Response, T), ItemError> {
    let unread = |why| (None, why);
    let calibration = loaded.calibration(&parameters.reading, options.abstain).map_err(unread)?;
    let engine = &mut loaded.engine;
    let (tokens, prompt_len, answer) =
        sequence(engine, &item, options.chat_template, parameters).map_err(text).map_err(unread)?;
    let read = |why: String| (Some(prompt_len), why);
    let mut traced = engine.trace(&tokens, prompt_len, parameters.trace_parts()).map_err(text).map_err(read)?;
    let Options { abstain, trace, .. } = *options;
    let request = Request { calibration: calibration.as_ref(), abstain, trace, ..Request::of(parameters) };
    let request = request.of_item(&item, answer);
    let record = assess(&mut traced, item.id.clone(), &request).map_err(text).map_err(read)?;
    let more = more(&mut traced, &record.chain).map_err(read)?;
    let json = |record, _: &str, _| serde_json::to_string(&record);
    let response = Response::new(&mut traced, record, json).map_err(read)?;
    Ok((response, more))
}

/// The full recorded trace of an item's response.
pub fn trace(
    loaded: &mut Loaded,
    item: Item,
    rows: &Rows,
    options: &Options,
    parameters: &Parameters,
) -> Result<Event, String> {
    let hidden = options.hidden;
    let arrays = |traced: &mut TracedSequence, chain: &[Link]| arrays(traced, chain, rows, hidden);
    let (response, arrays) = score_item(loaded, item, options, parameters, arrays).map_err(|(_, why)| why)?;
    Ok(Event::Traced(Box::new(response), arrays))
}

/// The requested rows of α*.
#[derive(Deserialize)]
#[serde(untagged, expecting = "rows: expected positions, \"chain\" or \"all\"")]
pub enum Rows {
    Named(NamedRows),
    At(Vec<usize>),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamedRows {
    /// The rows of the chain.
    Chain,
    /// Every row of the response.
    All,
}

impl Rows {
    /// The rows as positions, from `first` up to `end`.
    fn positions(&self, chain: &[Link], first: usize, end: usize) -> Result<Vec<usize>, String> {
        let rows = match self {
            Rows::Named(NamedRows::All) => (first..end).collect(),
            Rows::Named(NamedRows::Chain) => {
                chain.iter().filter_map(|link| (first + 1).checked_add_signed(link.row as isize)).collect()
            }
            Rows::At(rows) => rows.clone(),
        };
        match rows.iter().find(|row| !(first..end).contains(row)) {
            Some(row) => Err(format!("rows: expected positions from {first} to {}, found {row}", end - 1)),
            None => Ok(rows),
        }
    }
}

/// The arrays of a trace; their names and shapes are in the docstring of `uqac.Trace`.
fn arrays(
    traced: &mut TracedSequence,
    chain: &[Link],
    rows: &Rows,
    hidden: bool,
) -> Result<Vec<(&'static str, Array)>, String> {
    let (response, mut queries) = traced.parts();
    let (len, first) = (response.tokens.len(), response.prompt_len - 1);
    let rows = rows.positions(chain, first, len)?;
    let attention = matrix(&queries.attention_rows(&rows).map_err(text)?, len, 0.0);
    let (response, _) = traced.parts();
    let top = || response.steps.iter().flat_map(|step| &step.top);
    let offsets = response.steps.iter().scan(0, |end, step| {
        *end += step.top.len() as i64;
        Some(*end)
    });
    let mut arrays = vec![
        ("input_ids", vector(response.tokens.iter().copied())),
        ("logprobs", vector(response.steps.iter().filter_map(|step| step.logprob))),
        ("entropies", vector(response.steps.iter().map(|step| step.entropy))),
        ("top_ids", vector(top().map(|top| top.token))),
        ("top_logprobs", vector(top().map(|top| top.logprob))),
        ("top_offsets", vector(std::iter::once(0).chain(offsets))),
        ("rows", vector(rows.iter().map(|row| *row as i64))),
        ("attention", attention),
    ];
    let heads = response.steps.iter().flat_map(|step| step.heads.iter().flatten());
    let heads = vector(heads.flat_map(|head| [head.entropy, head.own, head.previous, head.first, head.prompt]));
    let [layers, per_layer] =
        response.steps.first().map_or([0; 2], |s| [s.heads.len(), s.heads.first().map_or(0, Vec::len)]);
    let shape = vec![response.steps.len(), layers, per_layer, 5];
    arrays.push(("head_statistics", Array { shape, ..heads }));
    let means = response.layer_means;
    arrays.push(("layer_means", matrix(means, means.first().map_or(0, Vec::len), f64::NAN)));
    let states = if hidden { traced.hidden_states().map_err(text)? } else { Vec::new() };
    let shape = vec![len - first, states.len() / (len - first)];
    arrays.push(("hidden_states", Array { shape, ..vector(states) }));
    let records = (first..len).map(|row| Ok(traced.head_record(row).map_err(text)?.unwrap_or_default()));
    let (heads, entropies): (Vec<_>, Vec<_>) =
        records.collect::<Result<Vec<_>, String>>()?.into_iter().map(|record| (record.heads, record.entropies)).unzip();
    let selected = heads.first().map_or(0, Vec::len);
    arrays.push(("head_ids", matrix(&heads, selected, u32::MAX)));
    arrays.push(("head_entropies", matrix(&entropies, selected, f32::NAN)));
    Ok(arrays)
}
