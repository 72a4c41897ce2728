//! Answers as OpenAI's JSON, whole and as chunks, and their `uqac` object.

use super::error::ApiError;
use super::request::UqacOptions;
use crate::engine::FinishReason;
use crate::engine::running::RunningConfidence;
use crate::eval::sample::{EnsembleMember, ResponseTokens};
use crate::io::record::Record;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

/// A message from the engine's thread to a request's client.
pub enum Event {
    /// A chunk of a stream.
    Chunk(String),
    /// The end of a stream.
    Done,
    /// An answer that is not streamed.
    Whole(String),
    Failed(ApiError),
}

/// The connection to a request's client, and the fields that each part of its answer repeats.
pub struct Reply {
    pub id: String,
    pub chat: bool,
    pub created: u64,
    pub model: String,
    pub events: UnboundedSender<Event>,
}

/// A token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    pub text: String,
    /// Start of its text, in bytes of the choice's.
    pub offset: usize,
    /// ln p over the full vocabulary; `None` for a prompt's first token.
    pub logprob: Option<f64>,
    /// The most probable tokens, best first.
    pub top: Vec<(String, f64)>,
}

/// A finished choice.
#[derive(Clone, Debug)]
pub struct Choice {
    pub index: usize,
    pub text: String,
    /// Empty without logprobs.
    pub tokens: Vec<TokenInfo>,
    pub finish: &'static str,
    pub uqac: Option<Value>,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt: usize,
    pub completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        let Usage { prompt, completion } = self;
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }
}

impl Reply {
    /// Whether the client disconnected.
    pub fn is_closed(&self) -> bool {
        self.events.is_closed()
    }

    /// Sends an event; the client may have disconnected.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends the answer to a request that is not streamed.
    pub fn whole(&self, mut choices: Vec<Choice>, usage: Usage, logprobs: bool) {
        choices.sort_by_key(|choice| choice.index);
        let json = |Choice { index, text, tokens, finish, uqac }: Choice| {
            let logprobs = if logprobs { self.logprobs(&tokens, &text) } else { Value::Null };
            let content = match self.chat {
                true => ("message", json!({"role": "assistant", "content": text, "refusal": null})),
                false => ("text", text.into()),
            };
            choice(index, content, logprobs, Some(finish), uqac)
        };
        let kind = if self.chat { "chat.completion" } else { "text_completion" };
        let mut whole = self.object(kind, choices.into_iter().map(json).collect());
        whole["usage"] = usage.json();
        self.send(Event::Whole(whole.to_string()));
    }

    /// Sends the first chunk of a choice. Completions have none.
    pub fn first(&self, index: usize) {
        if self.chat {
            let delta = json!({"role": "assistant", "content": ""});
            self.chunk(vec![choice(index, ("delta", delta), Value::Null, None, None)], None);
        }
    }

    /// Sends more of a choice.
    pub fn piece(&self, index: usize, text: &str, tokens: Option<&[TokenInfo]>) {
        let logprobs = tokens.map_or(Value::Null, |tokens| self.logprobs(tokens, text));
        let content = if self.chat { ("delta", json!({"content": text})) } else { ("text", text.into()) };
        self.chunk(vec![choice(index, content, logprobs, None, None)], None);
    }

    /// Sends the last chunk of a choice.
    pub fn last(&self, index: usize, finish: &str, uqac: Option<Value>) {
        let content = if self.chat { ("delta", json!({})) } else { ("text", "".into()) };
        self.chunk(vec![choice(index, content, Value::Null, Some(finish), uqac)], None);
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
        let mut chunk = self.object(kind, choices);
        if let Some(usage) = usage {
            chunk["usage"] = usage.json();
        }
        self.send(Event::Chunk(chunk.to_string()));
    }

    fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices})
    }

    fn logprobs(&self, tokens: &[TokenInfo], text: &str) -> Value {
        if self.chat {
            let entry =
                |text: &str, logprob: Option<f64>| json!({"token": text, "logprob": logprob, "bytes": bytes(text)});
            let token = |token: &TokenInfo| {
                let mut json = entry(&token.text, token.logprob);
                json["top_logprobs"] = token.top.iter().map(|(text, logprob)| entry(text, Some(*logprob))).collect();
                json
            };
            return json!({"content": tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null});
        }
        // includes the token itself
        let top = |token: &TokenInfo| -> Value {
            let Some(own) = token.logprob else { return Value::Null };
            let mut map = Map::new();
            for (text, logprob) in token.top.iter().map(|(text, logprob)| (text, *logprob)).chain([(&token.text, own)])
            {
                map.entry(text.as_str()).or_insert(json!(logprob));
            }
            Value::Object(map)
        };
        let characters = |token: &TokenInfo| text.get(..token.offset).map_or(token.offset, |t| t.chars().count());
        json!({
            "tokens": tokens.iter().map(|token| token.text.as_str()).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": tokens.iter().map(characters).collect::<Vec<_>>(),
        })
    }
}

fn choice(
    index: usize,
    (key, content): (&str, Value),
    logprobs: Value,
    finish: Option<&str>,
    uqac: Option<Value>,
) -> Value {
    let mut choice = json!({"index": index, key: content, "logprobs": logprobs, "finish_reason": finish});
    if let Some(uqac) = uqac {
        choice["uqac"] = uqac;
    }
    choice
}

/// A token's bytes; `null` for part of a character.
fn bytes(text: &str) -> Value {
    match text.contains(char::REPLACEMENT_CHARACTER) {
        true => Value::Null,
        false => text.as_bytes().into(),
    }
}

/// `finish_reason` in JSON.
pub fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        // not one of OpenAI's; only with `stop_below`
        FinishReason::Unsure => "unsure",
        FinishReason::Length | FinishReason::Interrupted => "length",
    }
}

/// The `uqac` object: the [`Record`] reduced to the requested fields, with P first. `confidence_at_end`: the running
/// confidence after the last token, if requested and its window is full.
///
/// # Errors
/// A token outside the vocabulary.
pub fn uqac(
    record: &Record,
    tokens: &ResponseTokens,
    options: &UqacOptions,
    confidence_at_end: Option<f64>,
    (seed, tokenizer): (Option<u64>, &Tokenizer),
) -> Result<Value, TokenizerError> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(record) else { return Ok(Value::Null) };
    for unused in ["id", "ensemble", "scores"] {
        fields.shift_remove(unused);
    }
    let mut object = Map::new();
    object.insert("confidence".to_owned(), json!(record.scores.as_ref().map(|scores| scores.p())));
    object.extend(fields.shift_remove("confidence").map(|calibrated| ("calibrated".to_owned(), calibrated)));
    object.extend(fields);
    let score = |key: &&'static str| json!(record.scores.as_ref().and_then(|scores| scores.get(key)));
    let scores: Map<String, Value> = options.scores.iter().map(|key| ((*key).to_owned(), score(key))).collect();
    object.insert("scores".to_owned(), scores.into());
    if let Some(RunningConfidence { measure, window, stop_below }) = options.running {
        let running =
            json!({"measure": measure, "window": window, "stop_below": stop_below, "confidence": confidence_at_end});
        object.insert("running".to_owned(), running);
    }
    object.extend(seed.map(|seed| ("seed".to_owned(), json!(seed))));
    if options.explain {
        let mut ensemble = Vec::new();
        for member in &record.ensemble {
            let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
            ensemble.push(EnsembleMember { member: member.clone(), text });
        }
        object.insert("ensemble".to_owned(), json!(ensemble));
        object.insert("tokens".to_owned(), json!(tokens));
    }
    Ok(Value::Object(object))
}
