//! An OpenAI-compatible server over one engine. Every answer carries its confidence.
//!
//! ```text
//! connections ─ routes ─ request ─ queue ─ worker: the engine's batch ─ answer ─ routes ─ connections
//! (one thread)                 (bounded)   (the thread that owns the engine)   (JSON or SSE)
//! ```
//!
//! Requests join the running batch as soon as there is room and leave it when they end. Their tokens and confidences
//! are bit-exact regardless of concurrent requests. `ask` and `score` share the code that computes them.

mod answer;
mod error;
mod fields;
mod metrics;
mod request;
mod routes;
mod worker;

use crate::{engine::Engine, eval::assess, units::count};
use error::ApiError;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Metrics;
use std::{io, net::TcpListener, sync::Arc, sync::OnceLock, time::Duration, time::Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

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
    task: request::Task,
    reply: answer::Reply,
}

/// State shared by all threads.
struct Shared {
    settings: Settings,
    /// The queue's sending side, which lives until the server shuts down.
    queue: mpsc::WeakSender<Job>,
    metrics: Metrics,
    page: routes::Page,
    started: i64,
    /// Whether only this machine can connect.
    loopback: bool,
    /// Why and when the engine was lost.
    lost: OnceLock<(ApiError, Instant)>,
}

/// Time that a server without an engine answers before it ends, so that a health check can read why.
const LOST_GRACE: Duration = Duration::from_secs(30);

const MAX_CONNECTIONS: usize = 1024;

/// Time for a client to send a request's head; idle connections are closed after it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for clients to read their answers after the engine's last one.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Interval at which `stop` is polled.
const TICK: Duration = Duration::from_millis(50);

impl Shared {
    fn queued(&self) -> usize {
        self.queue.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity())
    }

    /// Why requests are not answered, if they are not.
    fn ready(&self) -> Result<mpsc::Sender<Job>, ApiError> {
        self.lost.get().map_or(Ok(()), |(error, _)| Err(error.clone()))?;
        let stopping = || ApiError::new(503, Some("shutting_down"), "the server is shutting down").retry_after(5);
        self.queue.upgrade().ok_or_else(stopping)
    }

    fn submit(&self, job: Job) -> Result<(), ApiError> {
        self.ready()?.try_send(job).map_err(|_| {
            let message = format!("the queue is full: {} requests are waiting", self.settings.queue);
            ApiError::new(429, Some("queue_full"), message).retry_after(self.metrics.retry_after())
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
        page: routes::Page::new(&settings.model, settings.api_key.is_some()),
        started: jiff::Timestamp::now().as_second(),
        loopback: listener.local_addr().is_ok_and(|address| address.ip().is_loopback()),
        lost: OnceLock::new(),
        settings,
    });
    listener.set_nonblocking(true)?;
    let (done, engine_done) = oneshot::channel();
    let front = std::thread::Builder::new().name("http".to_owned()).spawn({
        let shared = shared.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
            let closing = runtime.block_on(accept(listener, &shared, &stop))?;
            drop(sender); // which ends the worker
            runtime.block_on(async {
                let _ = engine_done.await;
                let _ = timeout(SHUTDOWN_GRACE, closing).await;
            });
            Ok::<_, io::Error>(())
        }
    })?;
    worker::run(engine, &common, queue, &shared);
    let _ = done.send(());
    front.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    shared.lost.get().map_or(Ok(()), |(error, _)| Err(io::Error::other(error.message.clone())))
}

/// Accepts connections until `stop` returns true, or for a while after the engine is lost; returns their graceful shutdown.
/// HTTP/1.1, with hyper-util instead of `axum::serve`, which sets no header timeout.
async fn accept(listener: TcpListener, shared: &Arc<Shared>, stop: &dyn Fn() -> bool) -> io::Result<JoinHandle<()>> {
    let service = hyper_util::service::TowerToHyperService::new(routes::router(shared));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = hyper_util::server::graceful::GracefulShutdown::new();
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(64 << 10);
    while !stop() && shared.lost.get().is_none_or(|(_, since)| since.elapsed() < LOST_GRACE) {
        if connections.count() >= MAX_CONNECTIONS {
            sleep(TICK).await;
            continue;
        }
        match timeout(TICK, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let _ = stream.set_nodelay(true);
                let connection = builder.serve_connection(TokioIo::new(stream), service.clone());
                // errors are the client's fault: it disconnected, or sent something other than HTTP
                tokio::spawn(connections.watch(connection));
            }
            Ok(Err(_)) => sleep(TICK).await, // out of file descriptors, or already disconnected
            Err(_) => (),
        }
    }
    Ok(tokio::spawn(connections.shutdown()))
}
