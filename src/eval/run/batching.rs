//! The responses of a task's items in one batch that is kept full: the items' own, the samples that methods draw beside them,
//! and the turns that follow. What items that have begun still need comes before the next item.

use super::assess::{Drawn, Prompt, Reading, assess, failed};
use super::manifest::EvalOptions;
use super::methods::{Draw, Ended, Method, MethodError, Source, own_passes};
use super::{Feed, RunError, prompt};
use crate::backend::sampling::Sampling;
use crate::engine::{Batch, Engine, GenerateOptions, Generation, Ticket};
use crate::eval::tasks::{Question, Task};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

/// What a task's responses share.
pub(super) struct Plan<'t> {
    pub task: &'t Task,
    pub options: &'t EvalOptions,
    /// Responses that are generated at once.
    pub batch_size: usize,
}

/// An item whose responses are being generated.
struct Item<'t> {
    question: &'t Question,
    prompt: Prompt,
    /// Once its own response has ended.
    reading: Option<Reading>,
    methods: Vec<Drawing>,
    /// Of its responses, its own included, those that have not ended.
    missing: usize,
    /// Why one of them could not be generated.
    error: Option<String>,
}

/// A method's responses to an item.
struct Drawing {
    method: &'static dyn Method,
    /// In the order in which the method asked for them.
    drawn: Vec<Ticket>,
    /// Those of them, and of those that wait, that have not ended.
    missing: usize,
}

/// A response that waits for its place: of the item whose own response is `of`, for its `method`-th method.
struct Waiting {
    of: Ticket,
    method: usize,
    draw: Draw,
}

struct Run<'t, 'e> {
    plan: &'t Plan<'t>,
    batch: Batch<'e>,
    /// By the ticket of their own response.
    items: HashMap<Ticket, Item<'t>>,
    /// Of every response of a method, its item and the method's index.
    owners: HashMap<Ticket, (Ticket, usize)>,
    waiting: VecDeque<Waiting>,
    clock: Clock,
}

/// Generates the feed's items and gives it their samples, in the order in which they are complete.
pub(super) fn generate<'t>(engine: &mut Engine, plan: &Plan<'t>, feed: &mut Feed<'t, '_, '_>) -> Result<(), RunError> {
    let generate = GenerateOptions {
        max_tokens: plan.task.max_tokens,
        stop: plan.task.stop.clone(),
        sampling: Sampling::GREEDY,
        trace: Some(plan.options.parameters.head_selection()),
        running: plan.options.running,
        ..GenerateOptions::default()
    };
    let mut run = Run {
        plan,
        batch: engine.batch(&generate),
        items: HashMap::new(),
        owners: HashMap::new(),
        waiting: VecDeque::new(),
        clock: Clock::default(),
    };
    loop {
        while run.batch.unfinished() < plan.batch_size.max(1) {
            if let Some(waiting) = run.waiting.pop_front() {
                if let Some(complete) = run.start_draw(waiting) {
                    run.finish(complete, feed)?;
                }
            } else if let Some(question) = feed.waiting.pop_front() {
                if let Err(why) = run.start_item(question) {
                    feed.done(&failed(plan.task, question, plan.options, why))?;
                }
            } else {
                break;
            }
        }
        let mut interval = run.clock.interval();
        let next = run.batch.next(&mut |progress| {
            interval.token(progress.ticket);
            ControlFlow::Continue(())
        })?;
        interval.end();
        let Some(ticket) = next else { return Ok(()) };
        if let Some(complete) = run.ended(ticket) {
            run.finish(complete, feed)?;
        }
    }
}

impl<'t> Run<'t, '_> {
    /// Starts an item's own response; what methods draw beside it waits. The error is the item's.
    fn start_item(&mut self, question: &'t Question) -> Result<(), String> {
        let Plan { task, options, .. } = self.plan;
        let begun = Instant::now();
        let prompt = prompt(self.batch.engine(), question, options).map_err(|error| error.to_string())?;
        let mut draws = Vec::new();
        for method in own_passes(&options.methods) {
            let source = Source { engine: self.batch.engine(), prompt: &prompt.tokens, task, item: question, options };
            draws.push((method, method.samples(&source, &[]).map_err(|error| error.to_string())?));
        }
        let started = self.batch.start(&prompt.tokens, question.doc_id as u64, &mut |_| ControlFlow::Continue(()));
        let own = started.map_err(|error| error.to_string())?;
        self.clock.add(own, begun.elapsed().as_secs_f64());
        let mut item = Item { question, prompt, reading: None, methods: Vec::new(), missing: 1, error: None };
        for (index, (method, draws)) in draws.into_iter().enumerate() {
            item.methods.push(Drawing { method, drawn: Vec::new(), missing: 0 });
            wait(&mut self.waiting, (own, &mut item), index, draws);
        }
        self.items.insert(own, item);
        Ok(())
    }

    /// Starts a response of a method; the item that is complete because it cannot be started.
    fn start_draw(
        &mut self,
        Waiting { of, method, draw: Draw { prompt, stream, generate } }: Waiting,
    ) -> Option<Ticket> {
        let item = self.items.get_mut(&of)?;
        let begun = Instant::now();
        let request = self.batch.engine().request(&generate);
        match self.batch.start_after(of, &prompt, stream, request, &mut |_| ControlFlow::Continue(())) {
            Ok(ticket) => {
                self.clock.add(ticket, begun.elapsed().as_secs_f64());
                item.methods[method].drawn.push(ticket);
                self.owners.insert(ticket, (of, method));
                None
            }
            Err(error) => {
                item.error.get_or_insert_with(|| error.to_string());
                item.one_less().then_some(of)
            }
        }
    }

    /// Notes that a response has ended; the item that is complete with it.
    fn ended(&mut self, ticket: Ticket) -> Option<Ticket> {
        let (own, read) = match self.owners.remove(&ticket) {
            None => (ticket, self.read(ticket)),
            Some((own, method)) => (own, self.drew(own, method)),
        };
        if let Err(error) = read
            && let Some(item) = self.items.get_mut(&own)
        {
            item.error.get_or_insert_with(|| error.to_string());
        }
        self.items.get_mut(&own)?.one_less().then_some(own)
    }

    /// Reads an item's own response, and puts the turns that follow it in the queue.
    fn read(&mut self, own: Ticket) -> Result<(), MethodError> {
        let Plan { task, options, .. } = self.plan;
        let (Some(item), Some(response)) = (self.items.get_mut(&own), self.batch.generation(own)) else {
            return Ok(());
        };
        let (engine, tokens) = (self.batch.engine(), &response.tokens);
        let reading = Reading::of(engine, response, task, options.parameters.rules())?;
        let (text, answer) = (&reading.text.text, reading.answer.as_ref());
        let ended = Ended { engine, tokens, item: item.question, options, text, answer };
        for index in 0..item.methods.len() {
            let draws = item.methods[index].method.turns(&ended)?;
            wait(&mut self.waiting, (own, item), index, draws);
        }
        item.reading = Some(reading);
        Ok(())
    }

    /// Notes that a response of an item's method has ended; after the last one asks the method for more.
    fn drew(&mut self, own: Ticket, method: usize) -> Result<(), MethodError> {
        let Plan { task, options, .. } = self.plan;
        let Some(item) = self.items.get_mut(&own) else { return Ok(()) };
        let Drawing { method: by, drawn, missing } = &mut item.methods[method];
        *missing -= 1;
        if *missing > 0 || item.error.is_some() {
            return Ok(());
        }
        let drawn: Vec<&Generation> = drawn.iter().filter_map(|ticket| self.batch.generation(*ticket)).collect();
        let source =
            Source { engine: self.batch.engine(), prompt: &item.prompt.tokens, task, item: item.question, options };
        let draws = by.samples(&source, &drawn)?;
        wait(&mut self.waiting, (own, item), method, draws);
        Ok(())
    }

    /// Assesses an item of which every response has ended.
    fn finish(&mut self, own: Ticket, feed: &mut Feed) -> Result<(), RunError> {
        let Plan { task, options, .. } = self.plan;
        let Some(item) = self.items.remove(&own) else { return Ok(()) };
        let Item { question, prompt, reading, methods, error, .. } = item;
        let mut drawn = Vec::new();
        for Drawing { method, drawn: tickets, .. } in methods {
            let seconds = tickets.iter().map(|ticket| self.clock.take(*ticket)).sum();
            let responses = tickets.into_iter().filter_map(|ticket| self.batch.take(ticket)).collect();
            drawn.push(Drawn { method, responses, seconds });
        }
        let seconds = self.clock.take(own);
        let sample = match (error, reading, self.batch.take_traced(own)) {
            (None, Some(reading), Some(Ok(mut traced))) => {
                assess(&mut traced, task, question, &prompt, reading, options, (seconds, &drawn))
                    .map_err(|error| error.to_string())
            }
            (None, _, Some(Err(error))) => Err(error.to_string()),
            (error, ..) => Err(error.unwrap_or_default()),
        };
        feed.done(&sample.unwrap_or_else(|why| failed(task, question, options, why)))?;
        Ok(())
    }
}

impl Item<'_> {
    /// Notes that one of its responses has ended, or never will; whether it was the last.
    fn one_less(&mut self) -> bool {
        self.missing -= 1;
        self.missing == 0
    }
}

/// Puts what an item's `method`-th method draws in the queue.
fn wait(waiting: &mut VecDeque<Waiting>, (of, item): (Ticket, &mut Item), method: usize, draws: Vec<Draw>) {
    item.missing += draws.len();
    item.methods[method].missing += draws.len();
    waiting.extend(draws.into_iter().map(|draw| Waiting { of, method, draw }));
}

/// Shares the time of a batch out among its responses, by tokens.
#[derive(Default)]
struct Clock {
    seconds: HashMap<Ticket, f64>,
}

/// A stretch of decoding.
struct Interval<'c> {
    clock: &'c mut Clock,
    begun: Instant,
    tokens: HashMap<Ticket, usize>,
}

impl Clock {
    fn add(&mut self, response: Ticket, seconds: f64) {
        *self.seconds.entry(response).or_default() += seconds;
    }

    fn take(&mut self, response: Ticket) -> f64 {
        self.seconds.remove(&response).unwrap_or_default()
    }

    fn interval(&mut self) -> Interval<'_> {
        Interval { clock: self, begun: Instant::now(), tokens: HashMap::new() }
    }
}

impl Interval<'_> {
    fn token(&mut self, response: Ticket) {
        *self.tokens.entry(response).or_default() += 1;
    }

    fn end(self) {
        let per_token = self.begun.elapsed().as_secs_f64() / self.tokens.values().sum::<usize>().max(1) as f64;
        for (response, tokens) in &self.tokens {
            self.clock.add(*response, per_token * *tokens as f64);
        }
    }
}
