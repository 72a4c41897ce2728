//! Connections: HTTP/1.1 by hyper, on one thread.

use super::Shared;
use super::answer::Head;
use super::body::{Outgoing, Stream, Visit};
use super::error::ApiError;
use super::page::Page;
use super::queue::{Event, Job, Refused};
use super::request::{Task, no_model};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Connections at once.
const MAX_CONNECTIONS: usize = 1024;

/// How long a client may take for a request's head, and for its body.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long clients may read what they were sent, once the engine has answered all.
const FAREWELL: Duration = Duration::from_secs(5);

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` says so, and returns once what was accepted is answered.
pub fn run(listener: TcpListener, shared: &Arc<Shared>, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(accept(listener, shared, stop))
}

async fn accept(listener: TcpListener, shared: &Arc<Shared>, stop: &dyn Fn() -> bool) -> io::Result<()> {
    let loopback = listener.local_addr()?.ip().is_loopback();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (stopping, stopped) = watch::channel(false);
    while !stop() {
        if stopping.receiver_count() > MAX_CONNECTIONS {
            sleep(TICK).await;
            continue;
        }
        match timeout(TICK, listener.accept()).await {
            Ok(Ok((stream, _))) => drop(tokio::spawn(connection(stream, shared.clone(), stopped.clone(), loopback))),
            Ok(Err(_)) => sleep(TICK).await, // too many open files, or a connection that is gone already
            Err(_) => (),
        }
    }
    drop((listener, stopped));
    shared.stopping.store(true, Ordering::Release);
    shared.queue.close();
    let _ = stopping.send(true);
    let mut farewell = None;
    while stopping.receiver_count() > 0 {
        if shared.done.load(Ordering::Acquire) && farewell.get_or_insert_with(Instant::now).elapsed() > FAREWELL {
            break;
        }
        sleep(TICK).await;
    }
    Ok(())
}

async fn connection(stream: TcpStream, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>, loopback: bool) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(request, shared, loopback).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(64 << 10);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut waits = pin!(async { stopped.wait_for(|stopped| *stopped).await.is_ok() });
    let mut serving = true;
    // an error is the client's: it went away, or spoke something else
    let _ = poll_fn(|context| {
        if serving && waits.as_mut().poll(context).is_ready() {
            serving = false;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await;
}

/// The paths that there are.
const PATHS: [(&str, Method); 8] = [
    ("/", Method::GET),
    ("/health", Method::GET),
    ("/metrics", Method::GET),
    ("/v1/models", Method::GET),
    ("/v1/models/{model}", Method::GET),
    ("/v1/chat/completions", Method::POST),
    ("/v1/completions", Method::POST),
    ("/v1/score", Method::POST),
];

async fn answer(request: hyper::Request<Incoming>, shared: Arc<Shared>, loopback: bool) -> Response<Outgoing> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = request.uri().path();
    let known =
        PATHS.iter().find(|(known, _)| *known == path || path.starts_with("/v1/models/") && known.ends_with('}'));
    let mut visit = Visit {
        path: known.map_or("other", |(path, _)| path),
        shared: shared.clone(),
        id,
        begun: Instant::now(),
        status: 499, // of a client that went away before there was an answer
        engine: false,
        complete: false,
    };
    let answered = match known {
        _ if loopback && !is_local(request.headers()) => Err(ApiError::new(
            403,
            "invalid_request_error",
            None,
            "the Host header names another machine than this one",
        )),
        None => Err(ApiError::new(404, "invalid_request_error", Some("unknown_url"), "there is no such path")),
        Some((_, method)) if request.method() != method => {
            Err(ApiError::new(405, "invalid_request_error", None, format!("expected {method}")))
        }
        Some((path, _)) if is_private(path) => match authorized(request.headers(), &shared) {
            Ok(()) => route(path, request, &mut visit).await,
            Err(error) => Err(error),
        },
        Some((path, _)) => route(path, request, &mut visit).await,
    };
    let (status, mut response) = match answered {
        Ok(response) => (response.status().as_u16(), response),
        Err(error) => (error.status, failed(&error, known.map(|(_, method)| method))),
    };
    visit.status = status;
    match response.body_mut() {
        Outgoing::Whole(_) => visit.complete = true,
        Outgoing::Events(stream) => stream.visit = Some(visit),
    }
    response
}

fn is_private(path: &str) -> bool {
    path.starts_with("/v1/") || path == "/metrics"
}

/// Whether a request to this machine names it as such. A page of another site that has its name resolve to this machine
/// does not.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let authority: Option<hyper::http::uri::Authority> = host.parse().ok();
    let name = authority.as_ref().map_or("", |authority| authority.host()).trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Checks the key in constant time: of the digests every byte is compared.
fn authorized(headers: &HeaderMap, shared: &Shared) -> Result<(), ApiError> {
    let Some(key) = &shared.settings.api_key else { return Ok(()) };
    let given = headers.get(header::AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
    let given = given.strip_prefix(b"Bearer ").unwrap_or_default();
    let (key, given) = (Sha256::digest(key.as_bytes()), Sha256::digest(given));
    let difference = key.iter().zip(given.iter()).fold(0, |sum, (a, b)| sum | (a ^ b));
    match std::hint::black_box(difference) {
        0 => Ok(()),
        _ => {
            let message = "expected the header Authorization: Bearer KEY with this server's key";
            Err(ApiError::new(401, "authentication_error", Some("invalid_api_key"), message))
        }
    }
}

async fn route(
    path: &str,
    request: hyper::Request<Incoming>,
    visit: &mut Visit,
) -> Result<Response<Outgoing>, ApiError> {
    let shared = visit.shared.clone();
    let settings = &shared.settings;
    let model = || json!({"id": settings.model, "object": "model", "created": shared.started, "owned_by": "uqac"});
    match path {
        "/" => {
            let Page { text, policy } = &shared.page;
            let mut response = response(200, "text/html; charset=utf-8", text.clone());
            let policy = HeaderValue::from_str(policy).map_err(|error| ApiError::internal(error.to_string()))?;
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
            headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
            Ok(response)
        }
        "/health" if shared.stopping.load(Ordering::Acquire) => Err(ApiError::stopping()),
        "/health" => Ok(of_json(200, &json!({"status": "ok"}))),
        "/metrics" => {
            let text = shared.metrics.render(shared.queue.len());
            Ok(response(200, "text/plain; version=0.0.4; charset=utf-8", text))
        }
        "/v1/models" => Ok(of_json(200, &json!({"object": "list", "data": [model()]}))),
        "/v1/models/{model}" => {
            let name = decoded(request.uri().path().strip_prefix("/v1/models/").unwrap_or_default());
            if name == settings.model { Ok(of_json(200, &model())) } else { Err(no_model(&name, &settings.model)) }
        }
        _ => {
            is_json(request.headers())?;
            let body = body(request, settings.max_body).await?;
            let read = match path {
                "/v1/chat/completions" => Task::chat,
                "/v1/completions" => Task::completion,
                _ => Task::score,
            };
            submit(read(&body, &settings.model)?, visit).await
        }
    }
}

/// A path's percent-encoded bytes as text.
fn decoded(path: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => (bytes.push(byte), rest = &after[2..]),
            None => (bytes.push(first), rest = after),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A page of another site can send a form or plain text without asking; JSON it cannot.
fn is_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => {
            let message = "expected the header Content-Type: application/json";
            Err(ApiError::new(415, "invalid_request_error", None, message))
        }
    }
}

/// The whole body. What is too long is read, but not kept, up to a limit: a client that is still sending would not see the answer.
async fn body(request: hyper::Request<Incoming>, max: usize) -> Result<Vec<u8>, ApiError> {
    const MAX_DISCARDED: usize = 64 << 20;
    let (mut body, mut whole, mut length) = (request.into_body(), Vec::new(), 0);
    let read = async {
        while let Some(frame) = body.frame().await {
            let data = frame?.into_data().unwrap_or_default();
            length += data.len();
            if length <= max {
                whole.extend_from_slice(&data);
            } else if length > max + MAX_DISCARDED {
                break;
            }
        }
        Ok::<(), hyper::Error>(())
    };
    match timeout(PATIENCE, read).await {
        Err(_) => Err(ApiError::new(408, "invalid_request_error", None, "the body took too long")),
        Ok(Err(error)) => Err(ApiError::invalid("", format!("the body cannot be read: {error}"))),
        Ok(Ok(())) if length > max => {
            let message = format!("the body is longer than {max} bytes");
            Err(ApiError::new(413, "invalid_request_error", Some("request_too_large"), message))
        }
        Ok(Ok(())) => Ok(whole),
    }
}

/// Puts a task into the queue and waits for its answer, or for the beginning of one that is streamed.
async fn submit(task: Task, visit: &mut Visit) -> Result<Response<Outgoing>, ApiError> {
    let shared = visit.shared.clone();
    let shape = match &task {
        Task::Generate(generate) => Some((generate.chat, generate.stream, generate.include_usage, generate.logprobs)),
        Task::Score(_) => None,
    };
    let (events, mut receiver) = unbounded_channel();
    match shared.queue.push(Job { task, events }) {
        Ok(()) => visit.engine = true,
        Err(Refused::Closed) => return Err(ApiError::stopping()),
        Err(Refused::Full) => {
            let message = format!("{} requests are waiting already", shared.settings.max_queue);
            let error = ApiError::new(429, "rate_limit_error", Some("queue_full"), message);
            return Err(ApiError { retry_after: Some(shared.metrics.retry_after()), ..error });
        }
    }
    let (chat, streamed, include_usage, logprobs) = shape.unwrap_or_default();
    let head = Head {
        id: format!("{}-{:x}-{:x}", if chat { "chatcmpl" } else { "cmpl" }, shared.started, visit.id),
        chat,
        created: super::unix_seconds(),
        model: shared.settings.model.clone(),
    };
    let mut ended = Vec::new();
    loop {
        match receiver.recv().await {
            Some(Event::Begun) if streamed => {
                let stream = Stream::new(receiver, head, include_usage, logprobs.is_some());
                let mut response = Response::new(Outgoing::Events(Box::new(stream)));
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                return Ok(response);
            }
            Some(Event::Begun | Event::Piece { .. }) => (),
            Some(Event::Ended(choice)) => ended.push(*choice),
            Some(Event::Done(usage)) => return Ok(of_json(200, &head.whole(ended, usage, logprobs.is_some()))),
            // written as `score` writes it, its f32 in their shortest digits
            Some(Event::Record(record)) => {
                let line = serde_json::to_string(&record).map_err(|error| ApiError::internal(error.to_string()))?;
                return Ok(response(200, "application/json", line + "\n"));
            }
            Some(Event::Failed(error)) => return Err(error),
            None => return Err(ApiError::internal("the engine has stopped")),
        }
    }
}

fn of_json(status: u16, value: &Value) -> Response<Outgoing> {
    response(status, "application/json", format!("{value}\n"))
}

/// An answer that is there as a whole.
fn response(status: u16, kind: &'static str, text: impl Into<Bytes>) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::Whole(Some(text.into())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn failed(error: &ApiError, method: Option<&Method>) -> Response<Outgoing> {
    let mut response = of_json(error.status, &error.json());
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    match error.status {
        401 => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        405 => drop(method.and_then(|method| headers.insert(header::ALLOW, method.as_str().parse().ok()?))),
        // what is left of the body is not read
        413 | 408 => drop(headers.insert(header::CONNECTION, HeaderValue::from_static("close"))),
        _ => (),
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machines_name_is_not_this_one() {
        let host = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, name.parse().unwrap());
            is_local(&headers)
        };
        for name in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.0.0.2", "[::1]:8080"] {
            assert!(host(name), "{name}");
        }
        for name in ["example.org", "localhost.example.org:8080", "10.0.0.1", "", "a b"] {
            assert!(!host(name), "{name}");
        }
        assert!(is_local(&HeaderMap::new()));
    }

    #[test]
    fn paths_are_decoded() {
        assert_eq!(decoded("Qwen%2FQwen2.5%2g%"), "Qwen/Qwen2.5%2g%");
    }
}
