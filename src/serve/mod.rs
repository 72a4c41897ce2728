//! An OpenAI-compatible server over one engine, whose answers carry their confidences.
//!
//! ```text
//! connections ─ http ─ request ─ queue ─ worker: the engine's one batch ─ events ─ answer ─ http
//! (a thread)                     (bounded)  (the thread that has the engine)       (JSON or SSE)
//! ```
//!
//! Requests join the running batch as soon as there is a place, and leave it when they end; the tokens and confidences of each
//! are the same bits whatever else runs. Everything that is computed is computed by the code that `ask` and `score` use.

mod answer;
mod body;
mod error;
mod http;
mod log;
mod metrics;
mod page;
mod queue;
mod request;
mod text;
mod worker;

use crate::engine::Engine;
use crate::eval::calibration::Calibration;
use crate::uq::Parameters;
use metrics::Metrics;
use page::Page;
use queue::Queue;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The model's name in requests and answers.
    pub model: String,
    /// Where there is one, `/v1/…` and `/metrics` ask for it.
    pub api_key: Option<String>,
    /// Responses that are generated at once.
    pub max_batch: usize,
    /// Requests that may wait.
    pub max_queue: usize,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Whether every request is a line on standard error.
    pub log: bool,
}

/// The server could not go on.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {source}")]
pub struct ServeError {
    pub address: SocketAddr,
    pub source: std::io::Error,
}

/// What all threads share.
struct Shared {
    settings: Settings,
    queue: Queue,
    metrics: Metrics,
    page: Page,
    started: u64,
    stopping: AtomicBool,
    /// The engine has answered all that it ever will.
    done: AtomicBool,
}

/// Serves until `stop` says so, then answers what was accepted and returns. `parameters` and `calibration` are those of every
/// confidence.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve(
    engine: &mut Engine,
    (parameters, calibration): (&Parameters, Option<&Calibration>),
    listener: TcpListener,
    settings: Settings,
    stop: impl Fn() -> bool + Send + 'static,
) -> Result<(), ServeError> {
    let address = listener.local_addr().unwrap_or(([0, 0, 0, 0], 0).into());
    let failed = |source| ServeError { address, source };
    let shared = Arc::new(Shared {
        queue: Queue::new(settings.max_queue),
        metrics: Metrics::default(),
        page: page::render(&settings.model, settings.api_key.is_some()),
        started: unix_seconds(),
        stopping: AtomicBool::new(false),
        done: AtomicBool::new(false),
        settings,
    });
    listener.set_nonblocking(true).map_err(failed)?;
    let front = std::thread::Builder::new().name("http".to_owned());
    let front = front.spawn({
        let shared = shared.clone();
        move || {
            let ended = http::run(listener, &shared, &stop);
            shared.queue.close();
            ended
        }
    });
    let front = front.map_err(failed)?;
    worker::run(engine, parameters, calibration, &shared);
    shared.done.store(true, Ordering::Release);
    match front.join() {
        Ok(ended) => ended.map_err(failed),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
