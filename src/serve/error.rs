//! Errors in the format that OpenAI's clients expect.

use crate::model::{chat::ChatError, tokenizer::TokenizerError};
use crate::{backend::BackendError, backend::cuda::CudaError, engine::EngineError, engine::encode::EncodeError};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The code of [`ApiError::lost`].
const LOST: &str = "engine_lost";

#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: u16,
    pub code: Option<&'static str>,
    /// The offending field.
    pub param: Option<String>,
    pub message: String,
    /// Seconds until a retry.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(status: u16, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        const MAX_CHARS: usize = 2000; // a message may quote the request
        let message = message.into().chars().take(MAX_CHARS).collect();
        ApiError { status, code, param: None, message, retry_after: None }
    }

    /// Malformed or unsupported content of a field.
    pub fn invalid(param: &str, problem: impl std::fmt::Display) -> ApiError {
        let name = if param.is_empty() { "the body" } else { param };
        let param = Some(param.to_owned()).filter(|param| !param.is_empty());
        ApiError { param, ..ApiError::new(400, None, format!("{name}: {problem}")) }
    }

    /// Like [`invalid`](ApiError::invalid), unless `holds`.
    pub fn unless(holds: bool, param: &str, problem: impl std::fmt::Display) -> Result<(), ApiError> {
        if holds { Ok(()) } else { Err(ApiError::invalid(param, problem)) }
    }

    pub fn retry_after(self, seconds: u64) -> ApiError {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// The engine cannot answer anything any more.
    pub fn lost(message: impl Into<String>) -> ApiError {
        ApiError::new(503, Some(LOST), message)
    }

    /// `Ok` if the error is a request's own.
    pub fn unless_lost(self) -> Result<(), ApiError> {
        if self.code == Some(LOST) { Err(self) } else { Ok(()) }
    }

    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(500, None, message)
    }

    pub fn json(&self) -> Value {
        let ApiError { status, code, param, message, .. } = self;
        let kind = match status {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.json())).into_response();
        let mut set = |name, value: HeaderValue| drop(response.headers_mut().insert(name, value));
        if let Some(seconds) = self.retry_after {
            set(header::RETRY_AFTER, seconds.into());
        }
        match self.status {
            401 => set(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            408 | 413 => set(header::CONNECTION, HeaderValue::from_static("close")), // the rest of the body stays unread
            _ => (),
        }
        response.extensions_mut().insert(self); // for the log
        response
    }
}

impl<E: Into<EngineError>> From<E> for ApiError {
    fn from(error: E) -> ApiError {
        let error = error.into();
        match &error {
            EngineError::ContextLength { tokens, context } => {
                let full =
                    format!("the prompt has {} tokens and leaves no room for a response", tokens.saturating_sub(1));
                let message = format!("{full} in the model's context of {context} (max_position_embeddings)");
                ApiError::new(400, Some("context_length_exceeded"), message)
            }
            _ if error.is_lost() => ApiError::lost(format!("the device is lost: {error}")),
            EngineError::Backend(backend) if backend.is_out_of_memory() => {
                ApiError::new(503, Some("out_of_memory"), error.to_string()).retry_after(5)
            }
            EngineError::EmptyPrompt
            | EngineError::NoResponse { .. }
            | EngineError::Unreadable { .. }
            | EngineError::Backend(BackendError::Unsupported { .. } | BackendError::Cuda(CudaError::Unsupported(_)))
            | EngineError::Tokenizer(TokenizerError::UnknownId { .. }) => ApiError::new(400, None, error.to_string()),
            EngineError::Backend(_) | EngineError::Tokenizer(_) => ApiError::internal(error.to_string()),
        }
    }
}

impl From<EncodeError> for ApiError {
    fn from(error: EncodeError) -> ApiError {
        let code = matches!(error, EncodeError::TooLong { .. }).then_some("context_length_exceeded");
        let message = match error {
            EncodeError::Chat(ChatError::Role { ref field, .. }) => {
                return ApiError { param: Some(field.clone()), ..ApiError::new(400, None, error.to_string()) };
            }
            EncodeError::Chat(ChatError::Unread { field }) => {
                return ApiError::invalid(&field, "the model's chat template does not read it");
            }
            EncodeError::NoChatTemplate => "the model has no chat template; use /v1/completions".to_owned(),
            other => other.to_string(),
        };
        ApiError::new(400, code, message)
    }
}
