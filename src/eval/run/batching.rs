//! Generates the responses for a task's items in one batch that is kept full: the items' own, the methods' extra samples, and
//! follow-up turns. Items in progress take precedence over new ones.

use super::RunOptions;
use super::methods::{Draw, Method, MethodError, Reading, Subject, own_passes};
use super::{Event, OnEvent, RunError, controls::controls, folder::FolderError, manifest::EvalOptions, prompt};
use crate::engine::running::{Measure, RunningConfidence, WINDOW};
use crate::engine::{Batch, Engine, EngineError, FinishReason, GenerateOptions, Generation, Ticket, TracedSequence};
use crate::eval::sample::{EnsembleMember, ResponseTokens, Sample, Similarity, Uq, score_map};
use crate::uq::{Outcome, Traced, pipeline};
use crate::{
    backend::sampling::Sampling, engine::encode::ResponseText, eval::grading, io::jsonl::append::Appender, names::Named,
};
use crate::{eval::tasks::Grader, eval::tasks::Question, eval::tasks::Task, io::record::CutOff, io::record::Status};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, collections::HashMap, collections::VecDeque, ops::ControlFlow, time::Instant};

/// An item whose responses are being generated.
struct Item<'t> {
    subject: Subject<'t>,
    /// Each method and its responses, in request order.
    methods: Vec<(&'static Method, Vec<Ticket>)>,
    /// Why one of the responses could not be generated.
    error: Option<String>,
}

/// A response's owner: the item, by its own response's ticket, and the method's index unless it is the item's own response.
type Owner = (Ticket, Option<usize>);

struct Run<'t, 'e, 'o, 'i> {
    task: &'t Task,
    options: &'t EvalOptions,
    batch: Batch<'e>,
    /// Items that have not begun.
    questions: VecDeque<&'t Question>,
    /// Sample output.
    lines: Appender,
    on_event: &'o mut OnEvent<'i>,
    /// Keyed by the ticket of their own response.
    items: HashMap<Ticket, Item<'t>>,
    /// Owner of every unfinished response.
    owners: HashMap<Ticket, Owner>,
    /// Responses waiting for a slot.
    waiting: VecDeque<(Owner, Draw)>,
    /// Seconds per response: batch time is apportioned by tokens.
    seconds: HashMap<Ticket, f64>,
}

/// Generates the responses to questions in batches and writes the samples in completion order.
pub(super) fn generate<'t>(
    engine: &mut Engine,
    (task, options): (&'t Task, &'t EvalOptions),
    RunOptions { batch_size, stop, .. }: RunOptions,
    questions: VecDeque<&'t Question>,
    lines: Appender,
    on_event: &mut OnEvent,
) -> Result<(), RunError> {
    let generate = GenerateOptions {
        max_tokens: task.max_tokens,
        stop: task.stop.clone(),
        sampling: Sampling { repetition_penalty: options.repetition_penalty(), ..Sampling::GREEDY },
        trace: Some(options.parameters.trace_parts()),
        running: options.running,
        thinking_budget: options.budget(),
        ..GenerateOptions::default()
    };
    let mut batch = engine.batch(&generate);
    batch.shares_guesses = true;
    let (items, owners, waiting, seconds) = (HashMap::new(), HashMap::new(), VecDeque::new(), HashMap::new());
    let mut run = Run { task, options, batch, questions, lines, on_event, items, owners, waiting, seconds };
    loop {
        if stop.is_some_and(|stop| stop()) {
            run.questions.clear();
        }
        while run.batch.unfinished() < batch_size.max(1) {
            if let Some((owner, draw)) = run.waiting.pop_front() {
                run.start_draw(owner, draw)?;
            } else if let Some(question) = run.questions.pop_front() {
                if let Err(why) = run.start_item(question) {
                    let why = why.of_item()?;
                    run.write(&failed(task, question, options, Some(why)))?;
                }
            } else {
                break;
            }
        }
        let (begun, mut of_tokens, in_flight) = (Instant::now(), Vec::new(), run.batch.unfinished());
        let next = run.batch.next(&mut |progress| {
            of_tokens.push(progress.ticket);
            (run.on_event)(Event::Token { in_flight });
            ControlFlow::Continue(())
        })?;
        let per_token = begun.elapsed().as_secs_f64() / of_tokens.len().max(1) as f64;
        of_tokens.into_iter().for_each(|ticket| *run.seconds.entry(ticket).or_default() += per_token);
        let Some((ticket, outcome)) = next else { return Ok(()) };
        run.response_ended(ticket, outcome)?;
    }
}

impl<'t> Run<'t, '_, '_, '_> {
    /// Starts an item's own response and queues its methods' draws. An error is the item's.
    fn start_item(&mut self, question: &'t Question) -> Result<(), MethodError> {
        let (task, options) = (self.task, self.options);
        let begun = Instant::now();
        let engine = self.batch.engine();
        let (prompt, prompt_tokens) = prompt(engine, question, options)?;
        let subject = Subject { task, item: question, options, prompt, prompt_tokens, reading: None };
        let draws = |method: &'static Method| Ok((method, (method.samples)(engine, &subject)?));
        let draws = own_passes(&options.methods).map(draws).collect::<Result<Vec<_>, MethodError>>()?;
        let own =
            self.batch.start(&subject.prompt_tokens, question.doc_id as u64, &mut |_| ControlFlow::Continue(()))?;
        self.seconds.insert(own, begun.elapsed().as_secs_f64());
        self.owners.insert(own, (own, None));
        let mut item = Item { subject, methods: Vec::new(), error: None };
        for (index, (method, draws)) in draws.into_iter().enumerate() {
            item.methods.push((method, Vec::new()));
            self.waiting.extend(draws.into_iter().map(|draw| ((own, Some(index)), draw)));
        }
        self.items.insert(own, item);
        Ok(())
    }

    /// Records a response's outcome, and finishes its item if this completes it.
    fn settle(&mut self, own: Ticket, outcome: Result<(), MethodError>) -> Result<(), RunError> {
        if let (Err(error), Some(item)) = (outcome, self.items.get_mut(&own)) {
            let why = error.of_item()?;
            item.error.get_or_insert(why);
        }
        let mut unfinished = self.owners.values().chain(self.waiting.iter().map(|(owner, _)| owner));
        if unfinished.any(|(of, _)| *of == own) { Ok(()) } else { self.finish(own) }
    }

    /// Starts a response for a method. If it cannot be started, the error is the item's.
    fn start_draw(&mut self, owner: Owner, Draw { prompt, stream, generate }: Draw) -> Result<(), RunError> {
        let (of, begun) = (owner.0, Instant::now());
        let request = self.batch.engine().request(&generate);
        match self.batch.start_with(Some(of), &prompt, stream, request, &mut |_| ControlFlow::Continue(())) {
            Ok(ticket) => {
                self.seconds.insert(ticket, begun.elapsed().as_secs_f64());
                self.owners.insert(ticket, owner);
                if let (Some(item), Some(method)) = (self.items.get_mut(&of), owner.1) {
                    item.methods[method].1.push(ticket);
                }
                Ok(())
            }
            Err(error) => self.settle(of, Err(error.into())),
        }
    }

    /// Handles a response that has ended.
    fn response_ended(&mut self, ticket: Ticket, outcome: Result<(), EngineError>) -> Result<(), RunError> {
        let Some((own, method)) = self.owners.remove(&ticket) else { return Ok(()) };
        (self.on_event)(Event::Response);
        let outcome = outcome.map_err(MethodError::from);
        let read = if method.is_none() { outcome.and_then(|()| self.read(own)) } else { outcome };
        self.settle(own, read)
    }

    /// Reads an item's own response and queues its follow-up turns.
    fn read(&mut self, own: Ticket) -> Result<(), MethodError> {
        let (Some(item), Some(response)) = (self.items.get_mut(&own), self.batch.generation(own)) else {
            return Ok(());
        };
        let engine = self.batch.engine();
        item.subject.reading = Some(Reading::of(engine, response, &item.subject)?);
        for (index, (method, _)) in item.methods.iter().enumerate() {
            let draws = (method.turns)(engine, &item.subject, &response.tokens)?;
            self.waiting.extend(draws.into_iter().map(|draw| ((own, Some(index)), draw)));
        }
        Ok(())
    }

    /// Assesses an item once all its responses have ended.
    fn finish(&mut self, own: Ticket) -> Result<(), RunError> {
        let Some(Item { subject, methods, error }) = self.items.remove(&own) else { return Ok(()) };
        (self.on_event)(Event::Scoring);
        let mut drawn: Vec<Drawn> = Vec::new();
        for (method, tickets) in methods {
            let seconds = tickets.iter().filter_map(|ticket| self.seconds.remove(ticket)).sum();
            let responses = tickets.into_iter().filter_map(|ticket| self.batch.take(ticket)).collect();
            drawn.push((method, responses, seconds));
        }
        let seconds = self.seconds.remove(&own).unwrap_or_default();
        let sample = match (error, &subject.reading, self.batch.take_traced(own)) {
            (None, Some(reading), Some(Ok(mut traced))) => {
                assess(&mut traced, &subject, reading, (seconds, &drawn)).map_err(MethodError::of_item)
            }
            (None, _, Some(Err(error))) => Err(MethodError::from(error).of_item()),
            (error, ..) => Err(Ok(error.unwrap_or_default())),
        };
        let sample = match sample {
            Ok(sample) => sample,
            Err(why) => failed(subject.task, subject.item, subject.options, Some(why?)),
        };
        self.write(&sample)
    }

    /// Writes a sample to disk.
    fn write(&mut self, sample: &Sample) -> Result<(), RunError> {
        self.lines.append(sample).and_then(|()| self.lines.sync()).map_err(FolderError::from)?;
        (self.on_event)(Event::Item(sample, false));
        Ok(())
    }
}

// Turns a response that has just ended into its sample: answer, grade, confidences.

/// A method, its responses for an item (samples, then turns), and the seconds they took.
pub type Drawn = (&'static Method, Vec<Generation>, f64);

/// The sample of an item whose responses have ended; `generate` is the seconds its own response took.
pub fn assess(
    traced: &mut TracedSequence,
    subject: &Subject,
    Reading { finish, text: response_text, reply, answer }: &Reading,
    (generate, drawn): (f64, &[Drawn]),
) -> Result<Sample, MethodError> {
    let &Subject { task, item, options, ref prompt, .. } = subject;
    let ResponseText { text, ranges } = response_text;
    let parameters = &options.parameters;
    let mut sample = failed(task, item, options, None);
    sample.uq.seconds.insert("generate".to_owned(), generate);

    sample.uq.forced = traced.forced();
    let (response, _) = traced.parts();
    let prompt_len = response.prompt_len;
    let ids = response.tokens[prompt_len..].to_vec();
    let steps = &response.steps[..ids.len().min(response.steps.len())];
    let logprobs = steps.iter().map(|step| step.logprob).collect();
    if parameters.wide_trace {
        let lows = |measure: Measure| {
            let running = RunningConfidence { measure, window: WINDOW, stop_below: None };
            (measure.name().to_owned(), running.lows(steps))
        };
        sample.uq.running_lows = Measure::VALUES.iter().map(|(measure, ..)| lows(*measure)).collect();
    }
    let offsets = (0..ids.len()).map(|i| ranges.get(i).map_or([text.len(); 2], |r| [r.start, r.end])).collect();
    (sample.uq.prompt_len, sample.uq.finish, sample.uq.thought) = (prompt_len, *finish, response_text.thought(reply));
    sample.uq.cut_off = CutOff::of(finish.is_cut_off(), reply);
    sample.uq.tokens = ResponseTokens { ids, offsets, logprobs };
    sample.arguments.push((prompt.clone(), arguments(task, options, None)));
    sample.resps.push(vec![text.clone()]);
    sample.filtered_resps.push(answer.as_ref().map(|answer| answer.text.clone()));
    (sample.uq.status, sample.uq.answer) = (Status::NoAnswer, answer.clone());

    let mut of_methods = Vec::new();
    for (method, responses, seconds) in drawn {
        let begun = Instant::now();
        let Some(mut found) = (method.run)(traced, subject, responses)? else { continue };
        if !responses.is_empty() {
            let length = |response: &Generation| response.tokens.len() - response.prompt_len;
            found.details["response_tokens"] = responses.iter().map(length).collect();
        }
        sample.uq.seconds.insert(method.field(), seconds + begun.elapsed().as_secs_f64());
        sample.uq.details.insert(method.field(), found.details);
        sample.uq.scores.extend(found.scores.iter().map(|(key, score)| ((*key).to_owned(), *score)));
        of_methods.extend(found.scores);
        sample.metrics.extend(found.metrics.into_iter().map(|(key, value)| (key.to_owned(), value)));
        if let Some((texts, answer)) = found.drawn {
            sample.arguments.push((prompt.clone(), arguments(task, options, Some(options.temperature))));
            sample.resps.push(texts);
            sample.filtered_resps.push(answer);
        }
    }
    if let Some(answer) = answer {
        sample.uq.status = Status::Ok;
        sample.metrics.insert("acc".to_owned(), f64::from(item.target.accepts(&answer.text)));
        let (response, mut queries) = traced.parts();
        let (mut outcome, seconds) = pipeline::run(&response, answer.tokens.clone(), None, parameters, &mut queries)?;
        outcome.scores.add(&of_methods);
        sample.uq.seconds.extend([("chain".to_owned(), seconds.chain), ("ensemble".to_owned(), seconds.ensemble)]);
        let begun = Instant::now();
        sample.uq.sweep = controls(traced, &outcome, options)?;
        if !sample.uq.sweep.is_empty() {
            sample.uq.seconds.insert("controls".to_owned(), begun.elapsed().as_secs_f64());
        }
        sample.uq.similarity = similarity(traced, &outcome)?;
        sample.uq.scores.extend(score_map(&outcome.scores));
        let tokenizer = traced.engine().tokenizer();
        for member in outcome.ensemble {
            let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
            sample.uq.ensemble.push(EnsembleMember { member, text });
        }
        (sample.uq.chain, sample.uq.kept) = (outcome.chain, outcome.kept);
    } else if item.target.grader == Grader::Contains {
        sample.metrics.insert("acc".to_owned(), f64::from(item.target.accepts(&reply.text)));
    }
    // the authors skip what their code cannot grade
    if let Some(right) = grading::label_reference(text, item.target.shown(), &task.name, item.target.grader) {
        sample.metrics.insert("acc_reference".to_owned(), f64::from(right));
    }
    Ok(sample)
}

/// The sample of an item without a response, with the reason.
pub fn failed(task: &Task, item: &Question, options: &EvalOptions, why: Option<String>) -> Sample {
    let reading = options.parameters.reading;
    Sample {
        doc_id: item.doc_id,
        id: item.doc.get("id").cloned(),
        task: task.name.clone(),
        doc: item.doc.clone(),
        target: item.target.shown().to_owned(),
        arguments: Vec::new(),
        resps: Vec::new(),
        filtered_resps: Vec::new(),
        metrics: BTreeMap::from([("acc".to_owned(), 0.0)]),
        uq: Uq { status: Status::Error, error: why, reading, finish: FinishReason::Interrupted, ..Uq::default() },
    }
}

/// Similarity to the answer: of the chain, and of the whole response before it.
fn similarity(traced: &mut TracedSequence, outcome: &Outcome) -> Result<Option<Similarity>, MethodError> {
    let (response, mut queries) = traced.parts();
    let before: Vec<usize> = (response.prompt_len..outcome.answer.start).collect();
    let links: Vec<f64> = outcome.chain.iter().filter(|link| link.from.is_some()).map(|link| link.similarity).collect();
    if before.is_empty() || links.is_empty() {
        return Ok(None);
    }
    let cosines = queries.cosines(&before, outcome.answer.clone())?;
    let whole = cosines.iter().map(|cosine| f64::from(*cosine)).sum::<f64>() / cosines.len() as f64;
    Ok(Some(Similarity { chain: links.iter().sum::<f64>() / links.len() as f64, response: whole }))
}

/// Generation arguments, in lm-evaluation-harness's terms.
fn arguments(task: &Task, options: &EvalOptions, temperature: Option<f32>) -> Map<String, Value> {
    let mut fields = super::limits(task);
    fields.insert("do_sample".to_owned(), json!(temperature.is_some()));
    fields.insert("temperature".to_owned(), json!(temperature.unwrap_or(0.0)));
    fields.extend(options.repetition_penalty.map(|penalty| ("repetition_penalty".to_owned(), json!(penalty))));
    if temperature.is_some() {
        fields.insert("seed".to_owned(), json!(options.seed));
    }
    fields
}
