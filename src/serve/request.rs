//! What a request asks for, read from its JSON. A field that is `null` is as if it were not there; one that is not known is
//! ignored; one that would change the answer and is not supported is an error.

use super::error::ApiError;
use crate::backend::sampling::Sampling;
use crate::engine::GenerateOptions;
use crate::engine::running::{MAX_WINDOW, Measure, RunningConfidence, WINDOW};
use crate::io::item::Item;
use crate::model::chat::{Conversation, Message};
use crate::uq::scores;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Alternatives that can be listed: those that the engine lists of every prediction.
const MAX_TOP_LOGPROBS: u64 = 5;

/// Choices of one request.
const MAX_CHOICES: usize = 128;

const MAX_STOP: usize = 16;

/// What OpenAI's `/v1/completions` takes where nothing is said.
const COMPLETION_TOKENS: u64 = 16;

/// What the engine does for a request.
pub enum Task {
    Generate(Box<Generate>),
    Score(Box<Score>),
}

/// A response that exists.
pub struct Score {
    pub item: Item,
    pub explain: bool,
}

/// Responses to be generated.
pub struct Generate {
    pub chat: bool,
    pub prompts: Vec<Prompt>,
    /// Responses to each prompt.
    pub n: usize,
    pub max_tokens: usize,
    pub stop: Vec<String>,
    pub sampling: Sampling,
    /// Alternatives listed beside each token's log-probability; `None`: neither.
    pub logprobs: Option<usize>,
    /// The prompt is part of the answer.
    pub echo: bool,
    pub stream: bool,
    pub include_usage: bool,
    /// `None`: no confidence is wanted, and nothing is traced for it.
    pub uqac: Option<Wish>,
}

pub enum Prompt {
    Chat(Conversation),
    Text(String),
    Tokens(Vec<u32>),
}

/// What the `uqac` object is to have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// Keys of scores beside the confidence itself.
    pub scores: Vec<&'static str>,
    /// The ensemble, the tokens, and how the rows of the chain attend.
    pub explain: bool,
    /// The running confidence, and where a response ends by it.
    pub running: Option<RunningConfidence>,
}

impl Task {
    /// Reads the body of `/v1/chat/completions` for the model that is called `served`.
    pub fn chat(body: &[u8], served: &str) -> Result<Task, ApiError> {
        let body = object(body)?;
        let fields = Fields { path: "", map: &body };
        fields.refuse(&["tools", "functions", "audio", "prediction", "web_search_options"])?;
        fields.model(served)?;
        let messages = fields.get("messages").ok_or_else(|| missing("messages"))?;
        let prompt = Prompt::Chat(Conversation::Messages(messages_of(messages)?));
        let default = GenerateOptions::default().max_tokens as u64;
        let limits =
            [fields.integer("max_completion_tokens", 1..=u64::MAX)?, fields.integer("max_tokens", 1..=u64::MAX)?];
        let [own, old] = limits;
        let alternatives = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
        let logprobs = match (fields.boolean("logprobs")?, alternatives) {
            (true, alternatives) => Some(alternatives.unwrap_or(0) as usize),
            (false, None) => None,
            (false, Some(_)) => return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs: true")),
        };
        let generate = Generate {
            max_tokens: own.or(old).unwrap_or(default) as usize,
            logprobs,
            ..fields.generate(vec![prompt], true)?
        };
        Ok(Task::Generate(Box::new(generate)))
    }

    /// Reads the body of `/v1/completions`.
    pub fn completion(body: &[u8], served: &str) -> Result<Task, ApiError> {
        let body = object(body)?;
        let fields = Fields { path: "", map: &body };
        fields.refuse(&["suffix"])?;
        fields.model(served)?;
        let prompts = prompts(fields.get("prompt").ok_or_else(|| missing("prompt"))?)?;
        let generate = fields.generate(prompts, false)?;
        if let Some(best_of) = fields.integer("best_of", 1..=MAX_CHOICES as u64)?
            && best_of as usize != generate.n
        {
            return Err(ApiError::invalid("best_of", "best_of: not supported, unless it is equal to n"));
        }
        let max_tokens = fields.integer("max_tokens", 0..=u64::MAX)?.unwrap_or(COMPLETION_TOKENS) as usize;
        let logprobs = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|n| n as usize);
        let echo = fields.boolean("echo")?;
        if echo && generate.stream {
            return Err(ApiError::invalid("echo", "echo: not supported with stream"));
        }
        Ok(Task::Generate(Box::new(Generate { max_tokens, logprobs, echo, ..generate })))
    }

    /// Reads the body of `/v1/score`: a line of the input of `uqac score`.
    pub fn score(body: &[u8], served: &str) -> Result<Task, ApiError> {
        let map = object(body)?;
        let fields = Fields { path: "", map: &map };
        fields.model(served)?;
        let Wish { explain, running, .. } = fields.wish()?.unwrap_or_default();
        if running.is_some() {
            let message = "uqac.stop_below, uqac.running: only of a response that is generated";
            return Err(ApiError::invalid("uqac.running", message));
        }
        let item = Item::parse(body, 1).map_err(|bad| ApiError::invalid("", bad.problem.to_string()))?;
        Ok(Task::Score(Box::new(Score { item, explain })))
    }

    #[cfg(test)]
    pub fn tokens(prompt: Prompt) -> Task {
        let map = Map::new();
        Task::Generate(Box::new(Fields { path: "", map: &map }.generate(vec![prompt], false).unwrap()))
    }
}

/// The fields of an object, and where it stands in the body.
struct Fields<'a> {
    path: &'static str,
    map: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, expected: &str) -> ApiError {
        wrong(format!("{}{name}", self.path), expected, self.get(name).unwrap_or(&Value::Null))
    }

    fn boolean(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(name, "true or false")),
        }
    }

    fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = value.as_u64().filter(|n| range.contains(n));
        let to = if *range.end() == u64::MAX { String::new() } else { format!(" and at most {}", range.end()) };
        whole.map(Some).ok_or_else(|| self.wrong(name, &format!("a whole number, at least {}{to}", range.start())))
    }

    fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|x| range.contains(x));
        let expected = format!("a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.wrong(name, &expected))
    }

    fn model(&self, served: &str) -> Result<(), ApiError> {
        match self.get("model") {
            None => Ok(()),
            Some(Value::String(name)) if name == served => Ok(()),
            Some(Value::String(name)) => Err(no_model(name, served)),
            Some(_) => Err(self.wrong("model", "a string")),
        }
    }

    /// Errors where one of these asks for something.
    fn refuse(&self, names: &[&str]) -> Result<(), ApiError> {
        let asked = |value: &Value| match value {
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::Number(number) => number.as_f64() != Some(0.0),
            _ => true,
        };
        match names.iter().find(|name| self.get(name).is_some_and(asked)) {
            Some(name) => Err(ApiError::invalid(*name, format!("{name}: not supported"))),
            None => Ok(()),
        }
    }

    /// What both ways of generating have in common.
    fn generate(&self, prompts: Vec<Prompt>, chat: bool) -> Result<Generate, ApiError> {
        self.refuse(&["logit_bias", "presence_penalty", "frequency_penalty"])?;
        let format = self.get("response_format").and_then(|format| format.get("type"));
        if self.get("response_format").is_some() && format.and_then(Value::as_str) != Some("text") {
            return Err(self.wrong("response_format", "{\"type\": \"text\"}"));
        }
        let n = self.integer("n", 1..=MAX_CHOICES as u64)?.unwrap_or(1) as usize;
        if n * prompts.len() > MAX_CHOICES {
            let message = format!("expected at most {MAX_CHOICES} choices, found {}", n * prompts.len());
            return Err(ApiError::invalid("n", message));
        }
        let sampling = Sampling {
            temperature: self.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32,
            top_p: self.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32,
            top_k: self.integer("top_k", 0..=u64::from(u32::MAX))?.unwrap_or(0) as usize,
            seed: self.seed()?,
        };
        let stream = self.boolean("stream")?;
        let include_usage = match self.get("stream_options") {
            None => false,
            Some(Value::Object(map)) if stream => Fields { path: "stream_options.", map }.boolean("include_usage")?,
            Some(Value::Object(_)) => {
                return Err(ApiError::invalid("stream_options", "stream_options: only with stream: true"));
            }
            Some(_) => return Err(self.wrong("stream_options", "an object")),
        };
        Ok(Generate {
            chat,
            prompts,
            n,
            max_tokens: 0,
            stop: self.stop()?,
            sampling,
            logprobs: None,
            echo: false,
            stream,
            include_usage,
            uqac: self.wish()?,
        })
    }

    /// The seed; without one, another for every request, so that equal requests are samples.
    fn seed(&self) -> Result<u64, ApiError> {
        match self.get("seed") {
            None => Ok(fresh_seed()),
            Some(value) => {
                let signed = value.as_i64().map(|seed| seed as u64);
                value.as_u64().or(signed).ok_or_else(|| self.wrong("seed", "a whole number of at most 64 bits"))
            }
        }
    }

    fn stop(&self) -> Result<Vec<String>, ApiError> {
        let wrong = || self.wrong("stop", &format!("a string or a list of at most {MAX_STOP} strings"));
        match self.get("stop") {
            None => Ok(Vec::new()),
            Some(Value::String(stop)) => Ok(vec![stop.clone()]),
            Some(Value::Array(list)) if list.len() <= MAX_STOP => {
                list.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// `uqac`: an object, or `false`.
    fn wish(&self) -> Result<Option<Wish>, ApiError> {
        let map = match self.get("uqac") {
            None | Some(Value::Bool(true)) => return Ok(Some(Wish::default())),
            Some(Value::Bool(false)) => return Ok(None),
            Some(Value::Object(map)) => map,
            Some(_) => return Err(self.wrong("uqac", "an object or false")),
        };
        let fields = Fields { path: "uqac.", map };
        let scores = match fields.get("scores") {
            None => Vec::new(),
            Some(Value::String(all)) if all == "all" => scores::all().map(|score| score.key).collect(),
            Some(Value::Array(keys)) => keys.iter().map(score_key).collect::<Result<_, _>>()?,
            Some(_) => return Err(fields.wrong("scores", "a list of keys or \"all\"")),
        };
        Ok(Some(Wish { scores, explain: fields.boolean("explain")?, running: fields.running()? }))
    }

    /// `stop_below`, `running` and `window` of `uqac`, as the options of `ask` are called.
    fn running(&self) -> Result<Option<RunningConfidence>, ApiError> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| self.wrong("stop_below", "a number"));
        let stop_below = self.get("stop_below").map(number).transpose()?;
        let named = |value: &Value| Measure::ALL.into_iter().find(|measure| value.as_str() == Some(measure.name()));
        let names = || self.wrong("running", &Measure::ALL.map(|measure| format!("{:?}", measure.name())).join(" or "));
        let measure = self.get("running").map(|value| named(value).ok_or_else(names)).transpose()?;
        let window = self.integer("window", 1..=MAX_WINDOW as u64)?;
        if measure.is_none() && stop_below.is_none() {
            let alone =
                window.map(|_| ApiError::invalid("uqac.window", "uqac.window: only with stop_below or running"));
            return alone.map_or(Ok(None), Err);
        }
        let window = window.map_or(WINDOW, |window| window as usize);
        Ok(Some(RunningConfidence { measure: measure.unwrap_or_default(), window, stop_below }))
    }
}

/// A number that no earlier request had.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) >> 11 // whole in JSON's double precision, so that it can be sent back
}

fn score_key(value: &Value) -> Result<&'static str, ApiError> {
    let known = value.as_str().and_then(|key| scores::all().find(|score| score.key == key));
    known.map(|score| score.key).ok_or_else(|| {
        let names: Vec<&str> = scores::all().map(|score| score.key).collect();
        wrong("uqac.scores".to_owned(), &format!("one of {}", names.join(", ")), value)
    })
}

/// A body that is an object.
fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::invalid("", format!("the body is not valid JSON: {error}")))?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(wrong("the body".to_owned(), "an object", &other)),
    }
}

pub fn no_model(name: &str, served: &str) -> ApiError {
    let message = format!("there is no model {}; this server has {served}", shortened(&Value::from(name)));
    let error = ApiError::new(404, "invalid_request_error", Some("model_not_found"), message);
    ApiError { param: Some("model".to_owned()), ..error }
}

fn missing(name: &str) -> ApiError {
    ApiError::invalid(name, format!("missing required {name}"))
}

fn wrong(name: String, expected: &str, found: &Value) -> ApiError {
    let message = format!("{name}: expected {expected}, found {}", shortened(found));
    ApiError::invalid(name, message)
}

/// A value as JSON, cut to what fits a message.
fn shortened(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    let text = match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn messages_of(value: &Value) -> Result<Vec<Message>, ApiError> {
    const LIST: &str = "a list of at least one message";
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| wrong("messages".to_owned(), LIST, value))?;
    list.iter().enumerate().map(|(i, message)| message_of(i, message)).collect()
}

fn message_of(index: usize, value: &Value) -> Result<Message, ApiError> {
    let at = |name: &str| format!("messages[{index}]{name}");
    let map = value.as_object().ok_or_else(|| wrong(at(""), "an object with role and content", value))?;
    let role = match map.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role) => role,
        None => return Err(wrong(at(".role"), "a string", map.get("role").unwrap_or(&Value::Null))),
    };
    if map.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Err(ApiError::invalid(at(".tool_calls"), format!("{}: not supported", at(".tool_calls"))));
    }
    let content = match map.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let mut content = String::new();
            for (i, part) in parts.iter().enumerate() {
                let is_text = part.get("type").and_then(Value::as_str) == Some("text");
                let Some(text) = part.get("text").and_then(Value::as_str).filter(|_| is_text) else {
                    let expected = "{\"type\": \"text\", \"text\": …}";
                    return Err(wrong(at(&format!(".content[{i}]")), expected, part));
                };
                content += text;
            }
            content
        }
        other => return Err(wrong(at(".content"), "a string or a list of texts", other.unwrap_or(&Value::Null))),
    };
    Ok(Message::new(role, content))
}

/// A string, a list of strings, token ids, or a list of lists of token ids.
fn prompts(value: &Value) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, token ids, or a list of these";
    let bad = || wrong("prompt".to_owned(), expected, value);
    let text = |value: &Value| value.as_str().map(|text| Prompt::Text(text.to_owned()));
    let tokens = |value: &Value| {
        let ids = value.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
        Some(Prompt::Tokens(ids.collect::<Option<_>>()?))
    };
    match value {
        Value::String(_) => Ok(text(value).into_iter().collect()),
        Value::Array(list) if list.is_empty() => Err(bad()),
        Value::Array(list) if list.iter().all(Value::is_number) => Ok(vec![tokens(value).ok_or_else(bad)?]),
        Value::Array(list) => list.iter().map(|one| text(one).or_else(|| tokens(one)).ok_or_else(bad)).collect(),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(more: Value) -> Result<Generate, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        match Task::chat(body.to_string().as_bytes(), "abacus")? {
            Task::Generate(generate) => Ok(*generate),
            Task::Score(_) => unreachable!(),
        }
    }

    #[test]
    fn what_is_not_said_is_as_openai_has_it() {
        let generate =
            chat(json!({"stop": null, "model": "abacus", "tools": [], "logit_bias": {}, "user": 7})).unwrap();
        assert_eq!((generate.n, generate.max_tokens, generate.logprobs), (1, 1024, None));
        assert_eq!((generate.sampling.temperature, generate.sampling.top_p), (1.0, 1.0));
        assert_eq!(generate.uqac, Some(Wish::default()));
        assert_ne!(generate.sampling.seed, chat(json!({})).unwrap().sampling.seed);
        let wish = chat(json!({"uqac": {"scores": ["answer_prob"], "explain": true}})).unwrap().uqac;
        assert_eq!(wish, Some(Wish { scores: vec!["answer_prob"], explain: true, running: None }));
        let running = |uqac: Value| chat(json!({"uqac": uqac})).unwrap().uqac.unwrap().running;
        let group = RunningConfidence { measure: Measure::Group, window: WINDOW, stop_below: Some(-1.0) };
        assert_eq!(running(json!({"stop_below": -1})), Some(group));
        let entropy = RunningConfidence { measure: Measure::Entropy, window: 3, stop_below: None };
        assert_eq!(running(json!({"running": "entropy", "window": 3, "stop_below": null})), Some(entropy));
        assert_eq!(chat(json!({"uqac": false})).unwrap().uqac, None);
        assert_eq!(chat(json!({"max_tokens": 3, "max_completion_tokens": 4, "seed": -1})).unwrap().max_tokens, 4);
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (more, param, status) in [
            (json!({"model": "other"}), "model", 404),
            (json!({"messages": "x"}), "messages", 400),
            (json!({"messages": []}), "messages", 400),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content", 400),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
                "messages[0].content[0]",
                400,
            ),
            (json!({"messages": [7]}), "messages[0]", 400),
            (json!({"n": 0}), "n", 400),
            (json!({"n": 1.5}), "n", 400),
            (json!({"max_tokens": -1}), "max_tokens", 400),
            (json!({"temperature": 2.1}), "temperature", 400),
            (json!({"top_p": "high"}), "top_p", 400),
            (json!({"seed": 1e30}), "seed", 400),
            (json!({"stop": ["a", 1]}), "stop", 400),
            (json!({"top_logprobs": 2}), "top_logprobs", 400),
            (json!({"logprobs": true, "top_logprobs": 6}), "top_logprobs", 400),
            (json!({"stream": 1}), "stream", 400),
            (json!({"stream_options": {}}), "stream_options", 400),
            (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage", 400),
            (json!({"tools": [{}]}), "tools", 400),
            (json!({"presence_penalty": 0.5}), "presence_penalty", 400),
            (json!({"response_format": {"type": "json_object"}}), "response_format", 400),
            (json!({"uqac": 1}), "uqac", 400),
            (json!({"uqac": {"scores": ["none"]}}), "uqac.scores", 400),
            (json!({"uqac": {"explain": "yes"}}), "uqac.explain", 400),
            (json!({"uqac": {"stop_below": "low"}}), "uqac.stop_below", 400),
            (json!({"uqac": {"stop_below": 1, "running": "mean"}}), "uqac.running", 400),
            (json!({"uqac": {"stop_below": 1, "window": 0}}), "uqac.window", 400),
            (json!({"uqac": {"window": 8}}), "uqac.window", 400),
        ] {
            let error = chat(more.clone()).err().unwrap_or_else(|| panic!("{more}"));
            assert_eq!((error.param.as_deref(), error.status), (Some(param), status), "{more}: {}", error.message);
        }
    }

    #[test]
    fn prompts_have_four_forms() {
        let count = |prompt: Value| prompts(&prompt).map(|prompts| prompts.len()).ok();
        assert_eq!(count(json!("x")), Some(1));
        assert_eq!(count(json!(["x", "y"])), Some(2));
        assert_eq!(count(json!([1, 2, 3])), Some(1));
        assert_eq!(count(json!([[1, 2], [3]])), Some(2));
        for bad in [json!(1), json!([]), json!([1, -2]), json!([[1], 2]), json!([1.5]), json!({}), json!([null])] {
            assert_eq!(count(bad), None);
        }
    }
}
