//! Answers as OpenAI's JSON, whole and as chunks, and their `uqac` object.

use super::error::ApiError;
use super::request::UqacOptions;
use crate::engine::FinishReason;
use crate::engine::running::RunningConfidence;
use crate::eval::sample::{EnsembleMember, ResponseTokens};
use crate::io::record::Record;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use crate::uq::Member;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

/// A message from the engine thread to a request's client.
pub enum Event {
    /// A chunk of a stream.
    Chunk(String),
    /// The end of a stream.
    Done,
    /// An answer that is not streamed.
    Whole(String),
    Failed(ApiError),
}

/// The connection to a request's client, and the fields that every part of its answer repeats.
pub struct Reply {
    pub id: String,
    pub chat: bool,
    pub created: i64,
    pub model: String,
    /// Closed once the client has disconnected.
    pub events: UnboundedSender<Event>,
}

/// A token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    /// Its part of the choice's text; may begin or end within a character.
    pub bytes: Vec<u8>,
    /// Characters of the choice's text before its own.
    pub offset: usize,
    /// ln p over the full vocabulary; `None` for a prompt's first token.
    pub logprob: Option<f64>,
    /// The most probable tokens, best first, or the named ones.
    pub top: Vec<(Vec<u8>, f64)>,
}

/// A choice, or a part of one on its stream.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub index: usize,
    pub text: String,
    /// `None` without logprobs.
    pub tokens: Option<Vec<TokenInfo>>,
    /// Set for a whole choice and for a stream's last part, which has no text. `unsure`, only with `stop_below`, is not
    /// OpenAI's.
    pub finish: Option<FinishReason>,
    pub uqac: Option<Value>,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt: usize,
    pub completion: usize,
}

impl Reply {
    /// Sends an event; the client may have disconnected.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends the answer to a non-streaming request.
    pub fn whole(&self, mut choices: Vec<Choice>, usage: Usage) {
        choices.sort_by_key(|choice| choice.index);
        let message = |text: &str| json!({"role": "assistant", "content": text, "refusal": null});
        let choices = choices.into_iter().map(|choice| self.choice("message", message(&choice.text), choice)).collect();
        let kind = if self.chat { "chat.completion" } else { "text_completion" };
        self.send(Event::Whole(self.object(kind, choices, Some(usage))));
    }

    /// Sends the chunk that precedes a choice's parts. Completions have none.
    pub fn first(&self, index: usize) {
        if self.chat {
            let delta = json!({"role": "assistant", "content": ""});
            self.chunk(vec![self.choice("delta", delta, Choice { index, ..Choice::default() })], None);
        }
    }

    /// Sends a part of a choice.
    pub fn part(&self, part: Choice) {
        let delta = if part.finish.is_some() { json!({}) } else { json!({"content": part.text}) };
        self.chunk(vec![self.choice("delta", delta, part)], None);
    }

    /// Ends a stream.
    pub fn done(&self, usage: Option<Usage>) {
        if usage.is_some() {
            self.chunk(Vec::new(), usage);
        }
        self.send(Event::Done);
    }

    fn chunk(&self, choices: Vec<Value>, usage: Option<Usage>) {
        let kind = if self.chat { "chat.completion.chunk" } else { "text_completion" };
        self.send(Event::Chunk(self.object(kind, choices, usage)));
    }

    fn object(&self, kind: &str, choices: Vec<Value>, usage: Option<Usage>) -> String {
        let Reply { id, created, model, .. } = self;
        let mut object = json!({"id": id, "object": kind, "created": created, "model": model, "choices": choices});
        if let Some(Usage { prompt, completion }) = usage {
            let total = prompt + completion;
            object["usage"] = json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total});
        }
        object.to_string()
    }

    /// A choice as JSON; in a chat, its text is `content` under `key`.
    fn choice(&self, key: &str, content: Value, Choice { index, text, tokens, finish, uqac }: Choice) -> Value {
        let logprobs = tokens.map_or(Value::Null, |tokens| self.logprobs(&tokens));
        let (key, content) = if self.chat { (key, content) } else { ("text", text.into()) };
        let mut choice = json!({"index": index, key: content, "logprobs": logprobs, "finish_reason": finish});
        if let Some(uqac) = uqac {
            choice["uqac"] = uqac;
        }
        choice
    }

    fn logprobs(&self, tokens: &[TokenInfo]) -> Value {
        if self.chat {
            let entry = |bytes: &[u8], logprob: Option<f64>| json!({"token": text_of(bytes), "logprob": logprob, "bytes": bytes});
            let token = |token: &TokenInfo| {
                let mut json = entry(&token.bytes, token.logprob);
                json["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| entry(bytes, Some(*logprob))).collect();
                json
            };
            return json!({"content": tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null});
        }
        // includes the token itself
        let top = |token: &TokenInfo| -> Value {
            let Some(own) = token.logprob else { return Value::Null };
            let mut map = Map::new();
            for (bytes, logprob) in token.top.iter().chain([&(token.bytes.clone(), own)]) {
                map.entry(text_of(bytes)).or_insert(json!(logprob));
            }
            Value::Object(map)
        };
        json!({
            "tokens": tokens.iter().map(|token| text_of(&token.bytes)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": tokens.iter().map(|token| token.offset).collect::<Vec<_>>(),
        })
    }
}

/// A token's text; for one with a partial character, its bytes as OpenAI writes them, so that tokens stay distinct.
fn text_of(bytes: &[u8]) -> String {
    let escaped = || bytes.iter().fold(String::from("bytes:"), |text, byte| text + &format!("\\x{byte:02x}"));
    std::str::from_utf8(bytes).map_or_else(|_| escaped(), str::to_owned)
}

/// The `uqac` object: the [`Record`] reduced to the requested fields, with P first. `at_end`: the running confidence after the
/// last token, if requested and its window is full.
///
/// # Errors
/// A token outside the vocabulary.
pub fn uqac(
    record: &Record,
    tokens: &ResponseTokens,
    options: &UqacOptions,
    at_end: Option<f64>,
    (seed, tokenizer): (Option<u64>, &Tokenizer),
) -> Result<Value, TokenizerError> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(record) else { return Ok(Value::Null) };
    for unused in ["id", "ensemble", "scores"] {
        fields.shift_remove(unused);
    }
    let score = |key: &str| json!(record.scores.as_ref().and_then(|scores| scores.get(key)));
    let mut object = Map::from_iter([("p".to_owned(), score("p"))]);
    object.extend(fields);
    let mut add = |name: &str, value: Value| object.insert(name.to_owned(), value);
    add("scores", options.scores.iter().map(|key| (*key, score(key))).collect());
    if let Some(RunningConfidence { measure, window, stop_below }) = options.running {
        add("running", json!({"measure": measure, "window": window, "stop_below": stop_below, "value": at_end}));
    }
    if let Some(seed) = seed {
        add("seed", seed.into());
    }
    if options.explain {
        let explained = |member: &Member| {
            let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
            Ok(EnsembleMember { member: member.clone(), text })
        };
        let ensemble = record.ensemble.iter().map(explained).collect::<Result<Vec<_>, TokenizerError>>()?;
        add("ensemble", json!(ensemble));
        add("tokens", json!(tokens));
    }
    Ok(Value::Object(object))
}
