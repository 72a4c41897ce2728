//! An OpenAI-compatible server over one engine. Every answer carries its confidence.
//!
//! ```text
//! connections ─ http ─ routes ─ request ─ queue ─ worker: the engine's batch ─ answer ─ routes ─ http
//! (one thread)                        (bounded)   (the thread that owns the engine)   (JSON or SSE)
//! ```
//!
//! Requests join the running batch as soon as there is room and leave it when they end. Their tokens and confidences
//! are bit-exact regardless of concurrent requests. `ask` and `score` share the code that computes them.

mod answer;
mod error;
mod fields;
mod http;
mod metrics;
mod page;
mod request;
mod routes;
mod text;
mod worker;

use crate::engine::Engine;
use crate::eval::assess;
use crate::units::count;
use answer::Reply;
use error::ApiError;
use jiff::Timestamp;
use metrics::Metrics;
use page::Page;
use request::Task;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Settings of a server; also options of the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// The model's name in requests and answers.
    #[arg(skip)]
    pub model: String,
    /// API key that clients must send [default: $UQAC_API_KEY, which the process list does not show]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Maximum number of concurrent responses
    #[arg(long, value_name = "N", default_value = "16", value_parser = count(1..=1024))]
    pub max_batch: usize,
    /// Maximum number of waiting requests; further ones get status 429
    #[arg(long, value_name = "N", default_value = "256", value_parser = count(1..=65536))]
    pub queue: usize,
    /// Whether each request is logged to standard error.
    #[arg(skip)]
    pub log: bool,
}

/// A parsed request in the queue.
struct Job {
    task: Task,
    reply: Reply,
}

/// State shared by all threads.
struct Shared {
    settings: Settings,
    /// The queue's sending side, which lives until the server shuts down.
    queue: mpsc::WeakSender<Job>,
    metrics: Metrics,
    page: Page,
    started: i64,
    /// Whether only this machine can connect.
    loopback: bool,
    /// Why and when the engine was lost.
    lost: OnceLock<(ApiError, Instant)>,
}

/// Time that a server without an engine answers before it ends, so that a health check can read why.
const LOST_GRACE: Duration = Duration::from_secs(30);

impl Shared {
    fn queued(&self) -> usize {
        self.queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity())
    }

    /// Why requests are not answered, if they are not.
    fn ready(&self) -> Result<mpsc::Sender<Job>, ApiError> {
        self.lost.get().map_or(Ok(()), |(error, _)| Err(error.clone()))?;
        self.queue.upgrade().ok_or_else(ApiError::stopping)
    }

    fn submit(&self, job: Job) -> Result<(), ApiError> {
        self.ready()?.try_send(job).map_err(|_| {
            let message = format!("the queue is full: {} requests are waiting", self.settings.queue);
            let error = ApiError::new(429, Some("queue_full"), message);
            ApiError { retry_after: Some(self.metrics.retry_after()), ..error }
        })
    }
}

/// Serves until `stop` returns true, answers every accepted request, and returns. `common` applies to every answer.
///
/// # Errors
/// The server cannot listen on the address, or the engine is lost.
pub fn serve(
    engine: &mut Engine,
    common: assess::Request<'_>,
    listener: TcpListener,
    settings: Settings,
    stop: impl Fn() -> bool + Send + 'static,
) -> io::Result<()> {
    let (sender, queue) = mpsc::channel(settings.queue.max(1));
    let shared = Arc::new(Shared {
        queue: sender.downgrade(),
        metrics: Metrics::default(),
        page: page::render(&settings.model, settings.api_key.is_some()),
        started: Timestamp::now().as_second(),
        loopback: listener.local_addr().is_ok_and(|address| address.ip().is_loopback()),
        lost: OnceLock::new(),
        settings,
    });
    listener.set_nonblocking(true)?;
    let (done, engine_done) = oneshot::channel();
    let front = std::thread::Builder::new().name("http".to_owned()).spawn({
        let shared = shared.clone();
        move || http::run(listener, &shared, &stop, sender, engine_done)
    })?;
    worker::run(engine, &common, queue, &shared);
    let _ = done.send(());
    front.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    shared.lost.get().map_or(Ok(()), |(error, _)| Err(io::Error::other(error.message.clone())))
}
