//! Errors in the form that OpenAI's clients read.

use crate::engine::EngineError;
use crate::engine::encode::EncodeError;
use crate::model::tokenizer::TokenizerError;
use serde_json::{Value, json};

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: u16,
    /// `type` in JSON.
    pub kind: &'static str,
    pub code: Option<&'static str>,
    /// The field at fault.
    pub param: Option<String>,
    pub message: String,
    /// Seconds after which to try again.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(status: u16, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, code, param: None, message: message.into(), retry_after: None }
    }

    /// A request that cannot be understood, or asks for what there is not.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = Some(param.into()).filter(|param| !param.is_empty());
        ApiError { param, ..ApiError::new(400, "invalid_request_error", None, message) }
    }

    /// A prompt that does not fit.
    pub fn context(tokens: usize, context: usize) -> ApiError {
        let message = format!(
            "the model's context is {context} tokens (max_position_embeddings), and the prompt has {tokens}, which leaves \
             no room for a response"
        );
        ApiError::new(400, "invalid_request_error", Some("context_length_exceeded"), message)
    }

    pub fn stopping() -> ApiError {
        let message = "the server is shutting down";
        ApiError { retry_after: Some(5), ..ApiError::new(503, "server_error", Some("shutting_down"), message) }
    }

    /// Something that is not the request's fault.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(500, "server_error", None, message)
    }

    pub fn json(&self) -> Value {
        let ApiError { kind, code, param, message, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        match &error {
            EngineError::ContextLength { tokens, context } => ApiError::context(tokens.saturating_sub(1), *context),
            EngineError::EmptyPrompt | EngineError::NoResponse { .. } => ApiError::invalid("", error.to_string()),
            EngineError::Tokenizer(TokenizerError::UnknownId { .. }) => ApiError::invalid("", error.to_string()),
            EngineError::Backend(_) | EngineError::Tokenizer(_) => ApiError::internal(error.to_string()),
        }
    }
}

impl From<EncodeError> for ApiError {
    fn from(error: EncodeError) -> ApiError {
        let code = matches!(error, EncodeError::TooLong { .. }).then_some("context_length_exceeded");
        let message = match error {
            EncodeError::NoChatTemplate => {
                "the model has no chat template; for a base model, use /v1/completions".to_owned()
            }
            other => other.to_string(),
        };
        ApiError::new(400, "invalid_request_error", code, message)
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> ApiError {
        ApiError::from(EngineError::Tokenizer(error))
    }
}
