//! The events of a job, in order.

use crate::Error;
use crate::arrays::Array;
use crate::results::{Response, Token};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval at which signals are polled.
const TICK: Duration = Duration::from_millis(50);

/// An event of a job.
pub enum Event {
    Token(Token),
    /// A response, and its index among the requested ones.
    Response(usize, Box<Response>),
    Traced(Box<Response>, Vec<(&'static str, Array)>),
    Ids(Vec<u32>),
    Text(String),
    Failed(String),
}

/// The job's side of the event channel.
pub struct Reporter {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
}

impl Reporter {
    /// Sends an event; without a receiver, the job stops.
    pub fn send(&self, event: Event) {
        if self.events.send(event).is_err() {
            self.stop.store(true, Relaxed);
        }
    }

    /// Whether the receiver is gone or has stopped the job.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// The events of a job, in order. Dropping it stops the job at its next token.
#[pyclass(frozen, module = "uqac._uqac")]
pub struct Events {
    receiver: Mutex<Receiver<Event>>,
    stop: Arc<AtomicBool>,
}

/// Both ends of a job's events.
pub fn events() -> (Reporter, Events) {
    let (sender, receiver) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    (Reporter { events: sender, stop: stop.clone() }, Events { receiver: Mutex::new(receiver), stop })
}

#[pymethods]
impl Events {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// The next event; ends the iteration if there are no more. A signal (Ctrl-C) stops the job.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let wait = || self.receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(TICK);
        loop {
            match py.detach(wait) {
                Ok(event) => return event.into_python(py).map(Some),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| self.stop())?,
            }
        }
    }

    /// Stops the job at its next token.
    fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Event {
    fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Event::Token(Token { id, text, logprob, response_logprob, min_token_prob, running }) => {
                (id, text, logprob, response_logprob, min_token_prob, running).into_bound_py_any(py)
            }
            Event::Response(index, response) => (index, *response).into_bound_py_any(py),
            Event::Traced(response, arrays) => {
                let dict = PyDict::new(py);
                for (name, Array { dtype, shape, bytes }) in arrays {
                    dict.set_item(name, (dtype, shape, PyBytes::new(py, &bytes)))?;
                }
                (*response, dict).into_bound_py_any(py)
            }
            Event::Ids(ids) => ids.into_bound_py_any(py),
            Event::Text(text) => text.into_bound_py_any(py),
            Event::Failed(why) => Err(Error::new_err(why)),
        }
    }
}
