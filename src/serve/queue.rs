//! Requests on their way to the engine, and what comes back.

use super::error::ApiError;
use super::request::Task;
use crate::io::record::Record;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// A request that was understood. Once `events` is closed nobody waits for it any more.
pub struct Job {
    pub task: Task,
    pub events: UnboundedSender<Event>,
}

/// A token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    pub text: String,
    /// Where its text starts, in bytes of the choice's.
    pub offset: usize,
    /// ln p, full vocabulary; `None` for the first token of a prompt.
    pub logprob: Option<f64>,
    /// The most probable tokens, best first.
    pub top: Vec<(String, f64)>,
}

/// A choice that has ended, with all of its text.
#[derive(Clone, Debug)]
pub struct Ended {
    pub index: usize,
    pub text: String,
    /// Where log-probabilities were asked for.
    pub tokens: Vec<TokenInfo>,
    pub finish: &'static str,
    /// The `uqac` object.
    pub uqac: Option<Value>,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt: usize,
    pub completion: usize,
}

/// What the engine's thread says of a job.
pub enum Event {
    /// It runs, and nothing is wrong with it.
    Begun,
    /// More of a choice's text, where it is streamed.
    Piece {
        index: usize,
        text: String,
        tokens: Vec<TokenInfo>,
    },
    Ended(Box<Ended>),
    /// After the last choice.
    Done(Usage),
    /// A response that was scored.
    Record(Box<Record>),
    Failed(ApiError),
}

/// A bounded queue with one reader.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    max: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Why a job was not taken.
#[derive(Debug, PartialEq)]
pub enum Refused {
    Full,
    Closed,
}

impl Queue {
    pub fn new(max: usize) -> Queue {
        Queue { state: Mutex::default(), changed: Condvar::new(), max }
    }

    /// Adds a job, unless as many wait as may. Those that nobody waits for any more make room.
    pub fn push(&self, job: Job) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.jobs.len() >= self.max {
            state.jobs.retain(|job| !job.events.is_closed());
        }
        if state.jobs.len() >= self.max {
            return Err(Refused::Full);
        }
        state.jobs.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// The next job that somebody waits for; `wait`: for one to come. `None`: there is none, or never will be.
    pub fn pop(&self, wait: bool) -> Option<Job> {
        let mut state = self.lock();
        loop {
            while let Some(job) = state.jobs.pop_front() {
                if !job.events.is_closed() {
                    return Some(job);
                }
            }
            if !wait || state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// No more jobs are taken; those that wait stay.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::request::{Prompt, Task};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    fn job() -> (Job, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        (Job { task: Task::tokens(Prompt::Tokens(vec![1])), events }, receiver)
    }

    #[test]
    fn a_full_queue_refuses_until_somebody_leaves() {
        let queue = Queue::new(2);
        let ((first, _first), (second, second_waits), (third, _third)) = (job(), job(), job());
        assert_eq!((queue.push(first), queue.push(second)), (Ok(()), Ok(())));
        assert_eq!(queue.push(third), Err(Refused::Full));
        drop(second_waits);
        let (fourth, _fourth) = job();
        assert_eq!((queue.push(fourth), queue.len()), (Ok(()), 2));
        queue.close();
        assert_eq!(queue.push(job().0), Err(Refused::Closed));
        assert!(queue.pop(true).is_some() && queue.pop(true).is_some() && queue.pop(true).is_none());
    }
}
