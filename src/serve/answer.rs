//! Answers as OpenAI's JSON, whole and as chunks, and their `uqac` object. What is streamed withholds text that may become part
//! of a stop string.

use super::{error::ApiError, metrics::lock, request::UqacOptions};
use crate::engine::{FinishReason, Progress, running::RunningConfidence};
use crate::model::tokenizer::{TextStream, Tokenizer, TokenizerError};
use crate::uq::{Member, scores::RANKING, scores::samples::SCORES};
use crate::{backend::TokenLogprob, eval::sample::EnsembleMember, eval::sample::ResponseTokens, io::record::Record};
use serde_json::{Map, Value, json};
use std::{ops::Range, sync::Arc, sync::Mutex, time::Instant};

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
    pub events: tokio::sync::mpsc::UnboundedSender<Event>,
    pub told: Arc<Told>,
}

/// What is known of a request besides its answer: fields of its log line.
pub struct Told {
    pub begun: Instant,
    pub fields: Mutex<Map<String, Value>>,
}

impl Told {
    pub fn add(&self, name: &str, value: impl Into<Value>) {
        lock(&self.fields).insert(name.to_owned(), value.into());
    }

    /// Field and reason, without what may be a long quotation.
    pub fn error(&self, ApiError { param, message, .. }: &ApiError) {
        const MAX_CHARS: usize = 200;
        self.add("param", param.clone());
        self.add("error", message.chars().take(MAX_CHARS).collect::<String>());
    }
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
    /// Why its text is withheld, as OpenAI's `refusal`.
    pub refusal: Option<String>,
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
        let message = |choice: &Choice| json!({"role": "assistant", "content": choice.text, "refusal": choice.refusal});
        let choices = choices.into_iter().map(|choice| self.choice("message", message(&choice), choice)).collect();
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
        let delta = match &part.refusal {
            Some(refusal) => json!({"refusal": refusal}),
            None if part.finish.is_some() => json!({}),
            None => json!({"content": part.text}),
        };
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
    fn choice(&self, key: &str, content: Value, Choice { index, text, tokens, finish, uqac, .. }: Choice) -> Value {
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
    let calibrated = record.confidence.iter().map(|found| found.score.as_str());
    let of_samples = record.samples.iter().flat_map(|_| SCORES).map(|score| score.key);
    let keys = options.scores.clone().unwrap_or_else(|| calibrated.chain([RANKING]).chain(of_samples).collect());
    add("scores", keys.iter().map(|key| (*key, score(key))).collect());
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

/// Length of `text` before the first stop string. Empty stop strings are ignored.
pub fn cut(text: &str, stop: &[String]) -> usize {
    let found = stop.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(stop.as_str()));
    found.min().unwrap_or(text.len())
}

/// Length of the prefix of `text` that no later text can make part of a stop string.
fn settled(text: &str, stop: &[String]) -> usize {
    let partial = |stop: &String| {
        let ends = (1..stop.len()).rev().filter(|n| stop.is_char_boundary(*n));
        ends.filter(|n| text.ends_with(&stop[..*n])).max().unwrap_or(0)
    };
    cut(text, stop).min(text.len() - stop.iter().map(partial).max().unwrap_or(0))
}

/// The beginning of a response's text without that of hidden tokens; moves the `ranges` of its tokens.
pub fn hide(text: &str, ranges: &mut [Range<usize>], hides: impl Fn(usize) -> bool) -> String {
    let (mut shown, mut done) = (String::new(), 0_usize);
    for (i, range) in ranges.iter_mut().enumerate() {
        let (start, end) = (range.start.min(text.len()), range.end.min(text.len()));
        // tokens may share a character
        let begin = shown.len() - done.saturating_sub(start).min(shown.len());
        shown += if hides(i) { "" } else { &text[start.max(done).min(end)..end] };
        (*range, done) = (begin..shown.len(), done.max(end));
    }
    shown
}

/// A token's log-probability and those of its alternatives; `offset`: characters before it; `start`: whether no token is.
///
/// # Errors
/// An id outside the vocabulary.
pub fn token_info(
    tokenizer: &Tokenizer,
    token: u32,
    logprob: Option<f64>,
    (offset, start): (usize, bool),
    alternatives: &[TokenLogprob],
) -> Result<TokenInfo, TokenizerError> {
    let bytes = |token| tokenizer.token_bytes(token, start);
    let top = alternatives.iter().map(|t| Ok((bytes(t.token)?, t.logprob))).collect::<Result<_, TokenizerError>>()?;
    Ok(TokenInfo { bytes: bytes(token)?, offset, logprob, top })
}

/// The unsent rest of a streamed choice.
pub struct Streamed {
    stream: TextStream<Arc<Tokenizer>>,
    /// With the text of hidden tokens, as stop strings see it, and without.
    text: String,
    shown: String,
    /// Bytes of the whole text before that, and ranges of it that are hidden.
    start: usize,
    hidden: Vec<Range<usize>>,
    /// Each token with the end of its text.
    tokens: Vec<(TokenInfo, usize)>,
    /// Bytes and tokens sent.
    sent: (usize, usize),
    /// Characters of the shown text.
    characters: usize,
}

impl Streamed {
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Streamed {
        let stream = TextStream::new(tokenizer.clone());
        let (text, shown, hidden, tokens) = (String::new(), String::new(), Vec::new(), Vec::new());
        Streamed { stream, text, shown, start: 0, hidden, tokens, sent: (0, 0), characters: 0 }
    }

    /// Adds a token; returns the text and tokens that can be sent before any stop string. `logprobs`: alternatives per
    /// token; `hides`: whether its text is not shown.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn push(
        &mut self,
        Progress { token, step, .. }: &Progress,
        stop: &[String],
        logprobs: Option<usize>,
        hides: bool,
    ) -> Result<(String, Vec<TokenInfo>), TokenizerError> {
        // it begins within the character that is held, unless that turns out to be a broken one
        let (mut begun, held) = (self.stream.held().to_vec(), self.stream.held().len());
        begun.extend(self.stream.tokenizer.token_bytes(token.token, false)?.first());
        let error = std::str::from_utf8(&begun).err();
        let breaks = error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len() == Some(held));
        let offset = self.characters + usize::from(held > 0 && breaks);
        let piece = self.stream.push(token.token)?;
        self.text += &piece;
        let end = self.start + self.text.len();
        let own = if hides { self.stream.tokenizer.token_bytes(token.token, false)?.len().min(piece.len()) } else { 0 };
        self.hidden.extend((own > 0).then_some(end - own..end));
        self.shown += &piece[..piece.len() - own];
        self.characters += piece[..piece.len() - own].chars().count();
        if let Some(top) = logprobs {
            let alternatives = &step.top[..top.min(step.top.len())];
            let place = (offset, self.sent.1 + self.tokens.len() == 0);
            let info = token_info(&self.stream.tokenizer, token.token, Some(token.logprob), place, alternatives)?;
            self.tokens.push((info, end));
        }
        let settled = settled(&self.text, stop);
        self.text.drain(..settled);
        self.start += settled;
        let hidden = self.hidden.iter().map(|range| range.end.min(self.start) - range.start.min(self.start));
        let text: String = self.shown.drain(..self.start - hidden.sum::<usize>() - self.sent.0).collect();
        self.sent.0 += text.len();
        let whole = self.tokens.iter().take_while(|(_, end)| *end <= self.start).count();
        self.sent.1 += whole;
        Ok((text, self.tokens.drain(..whole).map(|(info, _)| info).collect()))
    }

    /// The unsent part of a finished choice.
    pub fn rest(&self, text: &str, tokens: &[TokenInfo]) -> (String, Vec<TokenInfo>) {
        let (bytes, count) = self.sent;
        (text.get(bytes..).unwrap_or_default().to_owned(), tokens.get(count..).unwrap_or_default().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_stop_strings_are_withheld() {
        let stop = ["\n\n".to_owned(), "END.".to_owned(), String::new(), "é!".to_owned()];
        for (text, shown, before_stop) in [
            ("", 0, 0),
            ("a\n", 1, 2),
            ("a\n\nb", 1, 1),
            ("the EN", 4, 6),
            ("the ENd", 7, 7),
            ("the END. and", 4, 4),
            ("caf\u{e9}", 3, 5),
            ("caf\u{e9}s", 6, 6),
        ] {
            assert_eq!((settled(text, &stop), cut(text, &stop)), (shown, before_stop), "{text:?}");
        }
        assert_eq!((settled("a\n", &[]), cut("a\n", &[])), (2, 2));
    }
}
