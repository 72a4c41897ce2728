//! Generates the responses for a task's items in one batch that is kept full: the items' own, the methods' extra samples, and
//! follow-up turns. Items in progress take precedence over new ones.

use super::assess::{Drawn, assess, failed};
use super::folder::FolderError;
use super::manifest::EvalOptions;
use super::methods::{Draw, Method, MethodError, Reading, Subject, own_passes};
use super::{Event, OnEvent, RunError, prompt};
use crate::backend::sampling::Sampling;
use crate::engine::{Batch, Engine, EngineError, GenerateOptions, Generation, Ticket};
use crate::eval::sample::Sample;
use crate::eval::tasks::{Question, Task};
use crate::io::jsonl::append::Appender;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

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

/// Generates the responses to questions, `batch_size` at a time, and writes the samples in completion order.
pub(super) fn generate<'t>(
    engine: &mut Engine,
    (task, options): (&'t Task, &'t EvalOptions),
    batch_size: usize,
    questions: VecDeque<&'t Question>,
    lines: Appender,
    on_event: &mut OnEvent,
) -> Result<(), RunError> {
    let generate = GenerateOptions {
        max_tokens: task.max_tokens,
        stop: task.stop.clone(),
        sampling: Sampling::GREEDY,
        trace: Some(options.parameters.trace_parts()),
        running: options.running,
        thinking_budget: options.budget(),
        ..GenerateOptions::default()
    };
    let mut batch = engine.batch(&generate);
    batch.share_guesses();
    let (items, owners, waiting, seconds) = (HashMap::new(), HashMap::new(), VecDeque::new(), HashMap::new());
    let mut run = Run { task, options, batch, questions, lines, on_event, items, owners, waiting, seconds };
    loop {
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
        let draws = |method: &'static Method| Ok((method, (method.samples)(engine, &subject, &[])?));
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

    /// Whether a matching owner has a response that is unfinished or not yet started.
    fn has_more(&self, of: impl Fn(&Owner) -> bool) -> bool {
        self.owners.values().chain(self.waiting.iter().map(|(owner, _)| owner)).any(of)
    }

    /// Records a response's outcome, and finishes its item if this completes it.
    fn settle(&mut self, own: Ticket, outcome: Result<(), MethodError>) -> Result<(), RunError> {
        if let (Err(error), Some(item)) = (outcome, self.items.get_mut(&own)) {
            let why = error.of_item()?;
            item.error.get_or_insert(why);
        }
        if self.has_more(|(of, _)| *of == own) { Ok(()) } else { self.finish(own) }
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
        let read = outcome.map_err(MethodError::from).and_then(|()| match method {
            None => self.read(own),
            Some(method) => self.draw_more(own, method),
        });
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

    /// After the last of a method's responses, queues those that the method draws next.
    fn draw_more(&mut self, own: Ticket, method: usize) -> Result<(), MethodError> {
        let owner = (own, Some(method));
        let Some(item) = self.items.get(&own).filter(|item| item.error.is_none()) else { return Ok(()) };
        if !self.has_more(|other| *other == owner) {
            let (by, drawn) = &item.methods[method];
            let drawn: Vec<&Generation> = drawn.iter().filter_map(|ticket| self.batch.generation(*ticket)).collect();
            let draws = (by.samples)(self.batch.engine(), &item.subject, &drawn)?;
            self.waiting.extend(draws.into_iter().map(|draw| (owner, draw)));
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
