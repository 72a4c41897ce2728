//! Connections: HTTP/1.1 on one thread. Uses hyper-util instead of `axum::serve`, which sets no header timeout.

use super::{Job, LOST_GRACE, Shared, routes};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

const MAX_CONNECTIONS: usize = 1024;

/// Time for a client to send a request's head; idle connections are closed after it.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for clients to read their answers after the engine's last one.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Interval at which `stop` is polled.
const TICK: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` returns true; returns once accepted requests are answered. The queue closes when
/// its sender is dropped here, which ends the worker.
pub fn run(
    listener: TcpListener,
    shared: &Arc<Shared>,
    stop: &dyn Fn() -> bool,
    queue: mpsc::Sender<Job>,
    engine_done: oneshot::Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let service = TowerToHyperService::new(routes::router(shared));
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let connections = GracefulShutdown::new();
        let mut builder = http1::Builder::new();
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
        drop((listener, queue));
        let closed = tokio::spawn(connections.shutdown());
        let _ = engine_done.await;
        let _ = timeout(SHUTDOWN_GRACE, closed).await;
        Ok(())
    })
}
