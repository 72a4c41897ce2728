//! Routes, the checks before them, and each request's log line and metrics.

use super::{Job, Shared, error::ApiError, metrics::lock};
use super::{answer::Event, answer::Reply, answer::Told, request::Task};
use crate::{report::html::Document, report::term::OUT_OF_RANGE, report::term::UNCALIBRATED, uq::scores};
use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, FromRequestParts, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header, request, uri::Authority};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{self, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::{io::Write, net::IpAddr, sync::Arc, sync::Mutex, time::Duration, time::Instant};
use tokio::time::timeout;

/// Maximum size of a request body in bytes.
const MAX_BODY: usize = 8 << 20;

/// Time for a client to send a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

type Server = State<Arc<Shared>>;

pub fn router(shared: &Arc<Shared>) -> Router {
    let not_found = || async { ApiError::new(404, Some("unknown_url"), "no such path") };
    let wrong_method = || async { ApiError::new(405, None, "method not allowed") };
    Router::new()
        .route("/", get(page))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/chat/completions", engine(Task::chat))
        .route("/v1/completions", engine(Task::completion))
        .route("/v1/score", engine(Task::score))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(shared.clone(), track))
        .with_state(shared.clone())
}

/// The page at `/`: one self-contained document. It draws responses with the report's scripts.
pub struct Page {
    text: Bytes,
    /// Its content security policy.
    policy: String,
}

impl Page {
    /// Renders the page; `key`: whether the server requires an API key.
    pub fn new(model: &str, key: bool) -> Page {
        let method = |score: &&scores::Score| json!([score.key, score.name, score.meaning]);
        let document = Document {
            title: &format!("{model} · uqac"),
            body: include_str!("page.html"),
            style: include_str!("page.css"),
            script: include_str!("page.js"),
            connects: true,
            head: json!({
                "methods": scores::as_shown().iter().map(method).collect::<Vec<_>>(),
                "runs": [{"model": model, "task": ""}], "ranking": scores::RANKING, "key": key,
                "texts": {"uncalibrated": UNCALIBRATED, "out_of_range": OUT_OF_RANGE},
            }),
        };
        let (text, policy) = document.render(minijinja::context! { key, model });
        Page { text: text.into(), policy: policy + "; frame-ancestors 'none'" }
    }
}

async fn page(State(shared): Server) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, shared.page.policy.as_str()),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    (headers, shared.page.text.clone()).into_response()
}

async fn health(State(shared): Server) -> Result<Json<Value>, ApiError> {
    shared.ready().map(|_| Json(json!({"status": "ok"})))
}

async fn metrics(_: Authorized, State(shared): Server) -> Response {
    let text = shared.metrics.render(shared.queued());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn models(_: Authorized, State(shared): Server) -> Json<Value> {
    Json(json!({"object": "list", "data": [description(&shared)]}))
}

/// A name that is in the path.
type Named = Result<Path<String>, axum::extract::rejection::PathRejection>;

async fn model(_: Authorized, State(shared): Server, name: Named) -> Result<Json<Value>, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::invalid("model", error))?;
    if name == shared.settings.model {
        return Ok(Json(description(&shared)));
    }
    let message = format!("unknown model {name:?}; this server has {}", shared.settings.model);
    Err(ApiError { param: Some("model".to_owned()), ..ApiError::new(404, Some("model_not_found"), message) })
}

fn description(shared: &Shared) -> Value {
    json!({"id": shared.settings.model, "object": "model", "created": shared.started, "owned_by": "uqac"})
}

/// A route to the engine; `parse` parses the body.
fn engine(parse: fn(Value) -> Result<Task, ApiError>) -> MethodRouter<Arc<Shared>> {
    post(move |_: Authorized, Extension(access): Extension<Arc<Access>>, request: Request| async move {
        submit(access, parse(json_body(request).await?)?).await
    })
}

/// Queues a task and waits for its answer, or for a stream's first chunk.
async fn submit(access: Arc<Access>, task: Task) -> Result<Response, ApiError> {
    let shared = &access.shared;
    let (events, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let chat = matches!(&task, Task::Generate(generate) if generate.chat);
    let reply = Reply {
        id: format!("{}-{:x}-{:x}", if chat { "chatcmpl" } else { "cmpl" }, shared.started, access.id),
        chat,
        created: Timestamp::now().as_second(),
        model: shared.settings.model.clone(),
        events,
        told: access.told.clone(),
    };
    shared.submit(Job { task, reply })?;
    let first = match receiver.recv().await {
        None => return Err(ApiError::internal("the engine has stopped")),
        Some(Event::Failed(error)) => return Err(error),
        Some(Event::Whole(body)) => return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response()),
        Some(event) => event,
    };
    let events = stream::iter([first]).chain(stream::poll_fn(move |context| receiver.poll_recv(context)));
    let sse = Sse::new(events.map(move |event| {
        access.complete.store(!matches!(event, Event::Chunk(_)), Relaxed);
        let data = match event {
            Event::Chunk(json) | Event::Whole(json) => json,
            Event::Done => "[DONE]".to_owned(),
            Event::Failed(error) => error.json().to_string(),
        };
        Ok::<_, std::convert::Infallible>(sse::Event::default().data(data))
    }));
    Ok(([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], sse).into_response())
}

/// Reads a JSON body. Pages of other sites cannot send its content type without CORS.
async fn json_body(request: Request) -> Result<Value, ApiError> {
    match timeout(BODY_TIMEOUT, Json::from_request(request, &())).await {
        Ok(Ok(Json(body))) => Ok(body),
        Ok(Err(rejection)) => {
            let status = rejection.status();
            let code = (status == StatusCode::PAYLOAD_TOO_LARGE).then_some("request_too_large");
            Err(ApiError::new(status.as_u16(), code, rejection.body_text()))
        }
        Err(_) => Err(ApiError::new(408, None, "timeout while reading the body")),
    }
}

/// Extractor that requires the API key, if the server has one.
struct Authorized;

impl FromRequestParts<Arc<Shared>> for Authorized {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut request::Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let Some(key) = &shared.settings.api_key else { return Ok(Authorized) };
        let sent = parts.headers.get(header::AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
        let (scheme, sent) = sent.split_at_checked("Bearer ".len()).unwrap_or_default();
        let sent = if scheme.eq_ignore_ascii_case(b"Bearer ") { sent.trim_ascii() } else { &[] };
        // compares digests, so that timing reveals nothing about the key
        if Sha256::digest(key) != Sha256::digest(sent) {
            let message = "invalid API key; expected the header Authorization: Bearer KEY";
            return Err(ApiError::new(401, Some("invalid_api_key"), message));
        }
        Ok(Authorized)
    }
}

/// Protection against DNS rebinding: a page whose host name resolves to this machine sends that name as
/// `Host`.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let authority = Authority::try_from(host.as_bytes()).ok();
    let name = authority.as_ref().map_or("", Authority::host).trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Attaches an [`Access`] to each request; rejects requests to a loopback address under another host's
/// name.
async fn track(State(shared): Server, path: Option<MatchedPath>, mut request: Request, next: Next) -> Response {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let refused = shared.loopback && !is_local(request.headers());
    let access = Arc::new(Access {
        shared,
        id: NEXT.fetch_add(1, Relaxed),
        path: path.as_ref().map_or("other", MatchedPath::as_str).to_owned(),
        told: Arc::new(Told { begun: Instant::now(), fields: Mutex::default() }),
        status: AtomicU16::new(499),
        complete: AtomicBool::new(false),
    });
    request.extensions_mut().insert(access.clone());
    let mut response = match refused {
        true => ApiError::new(403, None, "the Host header names another machine").into_response(),
        false => next.run(request).await,
    };
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    access.status.store(response.status().as_u16(), Relaxed);
    response.extensions().get().into_iter().for_each(|error: &ApiError| access.told.error(error));
    access.complete.store(response.body().size_hint().exact().is_some(), Relaxed); // not yet of a stream
    response
}

/// A request in flight, logged and counted when its handler, or the stream that answers it, is dropped.
struct Access {
    shared: Arc<Shared>,
    id: u64,
    /// The route rather than the raw path, so that clients cannot create metric labels.
    path: String,
    told: Arc<Told>,
    /// 499 until there is an answer: the client disconnected before.
    status: AtomicU16,
    /// Whether the answer is complete.
    complete: AtomicBool,
}

impl Drop for Access {
    fn drop(&mut self) {
        let Access { shared, id, path, told, .. } = self;
        let (took, status, complete) = (told.begun.elapsed(), self.status.load(Relaxed), self.complete.load(Relaxed));
        shared.metrics.answered(path, status, took, complete);
        if shared.settings.log {
            let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
            let seconds = (took.as_secs_f64() * 1e4).round() / 1e4;
            let mut line = json!({
                "time": time, "event": "request", "request": id, "path": path, "status": status, "seconds": seconds,
                "complete": complete
            });
            line.as_object_mut().into_iter().for_each(|line| line.extend(lock(&told.fields).clone()));
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_must_be_loopback() {
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
}
