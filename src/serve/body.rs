//! The body of an answer, whole or as server-sent events, and the record of the request that it answers.

use super::answer::Head;
use super::error::ApiError;
use super::queue::Event;
use super::{Shared, log};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedReceiver;

/// A request that is being answered, for the log and the counts: it ends when it is dropped.
pub struct Visit {
    pub shared: Arc<Shared>,
    pub id: u64,
    pub path: &'static str,
    pub begun: Instant,
    pub status: u16,
    /// Whether the engine was asked.
    pub engine: bool,
    /// Whether the whole answer was sent.
    pub complete: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let Visit { ref shared, id, path, begun, status, engine, complete } = *self;
        let took = begun.elapsed();
        shared.metrics.answered(path, status, took, engine && complete);
        if !complete {
            shared.metrics.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        if shared.settings.log {
            let seconds = (took.as_secs_f64() * 1e4).round() / 1e4;
            let fields =
                json!({"request": id, "path": path, "status": status, "seconds": seconds, "complete": complete});
            log::line("request", fields);
        }
    }
}

/// The body of an answer.
pub enum Outgoing {
    Whole(Option<Bytes>),
    Events(Box<Stream>),
}

/// Server-sent events, made of the engine's as they come.
pub struct Stream {
    receiver: UnboundedReceiver<Event>,
    head: Head,
    include_usage: bool,
    /// Whether log-probabilities were asked for.
    logprobs: bool,
    /// Choices of which something was sent.
    begun: Vec<usize>,
    waiting: VecDeque<Bytes>,
    over: bool,
    pub visit: Option<Visit>,
}

impl Stream {
    /// What `receiver` gets, as an answer with this head.
    pub fn new(receiver: UnboundedReceiver<Event>, head: Head, include_usage: bool, logprobs: bool) -> Self {
        let (begun, waiting) = (Vec::new(), VecDeque::new());
        Self { receiver, head, include_usage, logprobs, begun, waiting, over: false, visit: None }
    }

    fn push(&mut self, event: Event) {
        match event {
            Event::Begun | Event::Record(_) => (),
            Event::Piece { index, text, tokens } => {
                self.begin(index);
                let tokens = self.logprobs.then_some(&tokens[..]);
                self.send(&self.head.piece(index, &text, tokens));
            }
            Event::Ended(choice) => {
                self.begin(choice.index);
                self.send(&self.head.last(choice.index, choice.finish, choice.uqac));
            }
            Event::Done(usage) => {
                if self.include_usage {
                    self.send(&self.head.usage(usage));
                }
                self.waiting.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                self.over = true;
            }
            Event::Failed(error) => {
                self.send(&error.json());
                self.over = true;
            }
        }
    }

    fn begin(&mut self, index: usize) {
        if !self.begun.contains(&index) {
            self.begun.push(index);
            if let Some(first) = self.head.first(index) {
                self.send(&first);
            }
        }
    }

    fn send(&mut self, value: &Value) {
        self.waiting.push_back(format!("data: {value}\n\n").into());
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Outgoing::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Outgoing::Events(stream) => loop {
                if let Some(bytes) = stream.waiting.pop_front() {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                if stream.over {
                    if let Some(visit) = &mut stream.visit {
                        visit.complete = true;
                    }
                    return Poll::Ready(None);
                }
                match ready!(stream.receiver.poll_recv(context)) {
                    Some(event) => stream.push(event),
                    None => stream.push(Event::Failed(ApiError::internal("the engine has stopped"))),
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Whole(bytes) => bytes.is_none(),
            Outgoing::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Outgoing::Events(_) => SizeHint::default(),
        }
    }
}
