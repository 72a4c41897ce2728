//! Answers in OpenAI's JSON, whole and in pieces, and the `uqac` object in them.

use super::queue::{Ended, TokenInfo, Usage};
use super::request::Wish;
use crate::engine::FinishReason;
use crate::engine::running::RunningConfidence;
use crate::eval::sample::{EnsembleMember, ResponseTokens};
use crate::io::record::Record;
use crate::model::tokenizer::{Tokenizer, TokenizerError};
use serde_json::{Map, Value, json};

/// What all parts of an answer repeat.
#[derive(Clone, Debug)]
pub struct Head {
    pub id: String,
    pub chat: bool,
    pub created: u64,
    pub model: String,
}

impl Head {
    fn object(&self, chunk: bool, choices: Vec<Value>) -> Map<String, Value> {
        let object = match (self.chat, chunk) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            (false, _) => "text_completion",
        };
        let mut map = Map::new();
        map.insert("id".to_owned(), self.id.as_str().into());
        map.insert("object".to_owned(), object.into());
        map.insert("created".to_owned(), self.created.into());
        map.insert("model".to_owned(), self.model.as_str().into());
        map.insert("choices".to_owned(), choices.into());
        map
    }

    /// The answer to a request that is not streamed.
    pub fn whole(&self, mut choices: Vec<Ended>, usage: Usage, logprobs: bool) -> Value {
        choices.sort_by_key(|choice| choice.index);
        let choice = |Ended { index, text, tokens, finish, uqac }: Ended| {
            let logprobs = if logprobs { self.logprobs(&tokens, &text) } else { Value::Null };
            let mut choice = match self.chat {
                true => json!({"index": index, "message": {"role": "assistant", "content": text, "refusal": null}}),
                false => json!({"index": index, "text": text}),
            };
            choice["logprobs"] = logprobs;
            choice["finish_reason"] = finish.into();
            if let Some(uqac) = uqac {
                choice["uqac"] = uqac;
            }
            choice
        };
        let mut map = self.object(false, choices.into_iter().map(choice).collect());
        map.insert("usage".to_owned(), usage_json(usage));
        Value::Object(map)
    }

    /// The beginning of a choice that is streamed; completions have none.
    pub fn first(&self, index: usize) -> Option<Value> {
        let choice = json!({
            "index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null
        });
        self.chat.then(|| Value::Object(self.object(true, vec![choice])))
    }

    /// More of a choice; `tokens`: where log-probabilities are asked for.
    pub fn piece(&self, index: usize, text: &str, tokens: Option<&[TokenInfo]>) -> Value {
        let logprobs = tokens.map_or(Value::Null, |tokens| self.logprobs(tokens, text));
        let choice = match self.chat {
            true => json!({"index": index, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": null}),
            false => json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null}),
        };
        Value::Object(self.object(true, vec![choice]))
    }

    /// The end of a choice, with its confidence.
    pub fn last(&self, index: usize, finish: &str, uqac: Option<Value>) -> Value {
        let mut choice = match self.chat {
            true => json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish}),
            false => json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish}),
        };
        if let Some(uqac) = uqac {
            choice["uqac"] = uqac;
        }
        Value::Object(self.object(true, vec![choice]))
    }

    pub fn usage(&self, usage: Usage) -> Value {
        let mut map = self.object(true, Vec::new());
        map.insert("usage".to_owned(), usage_json(usage));
        Value::Object(map)
    }

    fn logprobs(&self, tokens: &[TokenInfo], text: &str) -> Value {
        if self.chat {
            let entry =
                |text: &str, logprob: Option<f64>| json!({"token": text, "logprob": logprob, "bytes": bytes(text)});
            let token = |token: &TokenInfo| {
                let mut entry_of = entry(&token.text, token.logprob);
                entry_of["top_logprobs"] = token.top.iter().map(|(text, p)| entry(text, Some(*p))).collect();
                entry_of
            };
            return json!({"content": tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null});
        }
        // a token's own log-probability is always among them
        let top = |token: &TokenInfo| -> Value {
            let Some(own) = token.logprob else { return Value::Null };
            let mut map = Map::new();
            for (text, logprob) in &token.top {
                map.entry(text.as_str()).or_insert(json!(logprob));
            }
            map.entry(token.text.as_str()).or_insert(json!(own));
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

/// A token's bytes; `null` of one that is part of a character.
fn bytes(text: &str) -> Value {
    match text.contains(char::REPLACEMENT_CHARACTER) {
        true => Value::Null,
        false => text.as_bytes().into(),
    }
}

fn usage_json(Usage { prompt, completion }: Usage) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// `finish_reason` in JSON.
pub fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        // OpenAI has no such reason; a request gets it only where it asks for `stop_below`
        FinishReason::Unsure => "unsure",
        FinishReason::Length | FinishReason::Interrupted => "length",
    }
}

/// The `uqac` object: the [`Record`] without what was not asked for, and P on top. `confidence_at_end`: the running confidence
/// after the last token, where one was asked for and its window is full.
///
/// # Errors
/// A token outside the vocabulary.
pub fn uqac(
    record: Record,
    tokens: ResponseTokens,
    wish: &Wish,
    confidence_at_end: Option<f64>,
    (seed, tokenizer): (Option<u64>, &Tokenizer),
) -> Result<Value, TokenizerError> {
    let confidence = record.scores.as_ref().map(|scores| scores.p());
    let scores: Map<String, Value> = wish
        .scores
        .iter()
        .map(|key| ((*key).to_owned(), json!(record.scores.as_ref().and_then(|s| s.get(key)))))
        .collect();
    let mut ensemble = Vec::new();
    for member in record.ensemble.iter().filter(|_| wish.explain) {
        let text = member.token.map(|token| tokenizer.decode_token(token)).transpose()?;
        ensemble.push(EnsembleMember { member: member.clone(), text });
    }
    let Ok(Value::Object(mut fields)) = serde_json::to_value(&record) else { return Ok(Value::Null) };
    for unused in ["id", "ensemble", "scores"] {
        fields.shift_remove(unused);
    }
    let calibrated = fields.shift_remove("confidence");
    let mut object = Map::new();
    object.insert("confidence".to_owned(), json!(confidence));
    object.extend(calibrated.map(|calibrated| ("calibrated".to_owned(), calibrated)));
    object.extend(fields);
    object.insert("scores".to_owned(), scores.into());
    if let Some(RunningConfidence { measure, window, stop_below }) = wish.running {
        let running =
            json!({"measure": measure, "window": window, "stop_below": stop_below, "confidence": confidence_at_end});
        object.insert("running".to_owned(), running);
    }
    object.extend(seed.map(|seed| ("seed".to_owned(), json!(seed))));
    if wish.explain {
        object.insert("ensemble".to_owned(), json!(ensemble));
        object.insert("tokens".to_owned(), json!(tokens));
    }
    Ok(Value::Object(object))
}
