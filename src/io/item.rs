//! Input of `score`: JSON lines of existing responses.
//!
//! A line is `{id, input_ids, n_instr}` (optionally `dataset` and `answer_span`) or `{id, messages | prompt, response}`
//! (optionally `dataset`, and the thought as `reasoning_content` or `reasoning`), or the output of vLLM (`outputs`), of OpenAI's
//! API (`choices`) or of lm-evaluation-harness (`arguments`, `resps`). All may have `target` with `grader`, `answer_regex` with
//! `answer_match`, and `finish_reason`; other fields are ignored. An invalid line becomes a [`BadItem`]; only a read error ends
//! the iteration.

use super::jsonl::{Line, Lines, ReadError};
use super::target::Target;
use crate::model::chat::{Conversation, Message};
use crate::uq::answer::{AnswerPattern, AnswerRule, Finder, Grader, pattern};
use regex::bytes::Regex;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use std::{fmt::Display, ops::Range, sync::OnceLock};
use thiserror::Error;

/// A response to score.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// A string or a number, as given; by default its document's or request's id, then the 0-based line number.
    pub id: Value,
    pub dataset: Option<String>,
    pub target: Option<Target>,
    /// Finds the answer.
    pub pattern: Option<AnswerPattern>,
    pub content: Content,
    /// Whether the response ended at a limit.
    pub is_cut_off: bool,
}

/// The response of an [`Item`].
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Tokens: `1 <= prompt_len < input_ids.len()`; the span lies in the response.
    Tokens { input_ids: Vec<u32>, prompt_len: usize, answer_span: Option<Range<usize>> },
    /// Text; `rendered`: the prompt exactly as the model received it, followed by the response; otherwise for the chat template.
    /// A thought given apart precedes the response, which may then be empty.
    Text { conversation: Conversation, thought: Option<String>, response: String, rendered: bool },
}

/// An invalid line.
#[derive(Debug, Error)]
#[error("line {line}: {problem}")]
pub struct BadItem {
    /// The line's id if readable, else `line N`.
    pub id: Value,
    /// 1-based
    pub line: u64,
    pub problem: String,
}

/// The items of an input. It ends after a read error, since the position is then unknown.
pub fn items(mut lines: Lines) -> impl Iterator<Item = Result<Result<Item, BadItem>, ReadError>> {
    let mut broken = false;
    std::iter::from_fn(move || {
        let next = if broken { Ok(None) } else { lines.next_line() };
        broken |= next.is_err();
        let read = |line: Line| match line.over_limit {
            None => Item::parse(line.bytes, line.number),
            Some(limit) => {
                let id = rescue_id(line.bytes).unwrap_or_else(|| place(line.number));
                Err(BadItem { id, line: line.number, problem: format!("longer than {limit} bytes") })
            }
        };
        next.map(|line| line.map(read)).transpose()
    })
}

/// Structs of raw fields: an invalid one leaves the others readable, and a hostile one builds no tree in memory.
macro_rules! raw_fields {
    ($($(#[$of_struct:meta])* struct $Name:ident { $($field:ident)+ })+) => {$(
        $(#[$of_struct])*
        #[derive(Default, Deserialize)]
        struct $Name<'a> {
            $(#[serde(borrow)] $field: Option<&'a RawValue>,)+
        }
    )+};
}

raw_fields! {
    /// The fields of a line.
    struct Fields {
        id doc_id request_id doc dataset input_ids n_instr answer_span messages prompt response reasoning_content reasoning
        finish_reason choices prompt_token_ids outputs arguments resps target grader answer_regex answer_match
    }

    /// The fields read from a benchmark's record.
    struct Doc { id choices options }
}

/// Values of `finish_reason` for a response that ended at a limit: vLLM's and OpenAI's, Anthropic's, and that of `--stop-below`.
const CUT_OFF: [&str; 3] = ["length", "max_tokens", "unsure"];

impl Item {
    /// Parses a line that is not blank; `line` is its 1-based number.
    pub fn parse(text: &[u8], line: u64) -> Result<Item, BadItem> {
        let bad = |id, problem| BadItem { id, line, problem };
        let fields = fields(text).map_err(|problem| bad(rescue_id(text).unwrap_or_else(|| place(line)), problem))?;
        let doc: Doc = fields.doc.and_then(|doc| serde_json::from_str(doc.get()).ok()).unwrap_or_default();
        let others = || [doc.id, fields.doc_id, fields.request_id].into_iter().flatten();
        let id = match fields.id {
            None => others().find_map(|id| checked_id(id.get()).ok()).unwrap_or(line.saturating_sub(1).into()),
            Some(id) => checked_id(id.get()).map_err(|problem| bad(place(line), problem))?,
        };
        Item::from_fields(id.clone(), &fields, &doc).map_err(|problem| bad(id, problem))
    }

    fn from_fields(id: Value, fields: &Fields, doc: &Doc) -> Result<Item, String> {
        let (content, finish) = match (fields.input_ids, fields.outputs, fields.resps) {
            (Some(ids), ..) => (tokens(ids, fields)?, None),
            (None, Some(outputs), _) => vllm(outputs, fields)?,
            (None, None, Some(responses)) => (harness(responses, fields)?, None),
            (None, None, None) => text(fields)?,
        };
        let dataset = fields.dataset.map(|dataset| typed("dataset", "a string", dataset)).transpose()?;
        let own = fields.finish_reason.map(|found| typed("finish_reason", "a string", found));
        let finish: Option<String> = finish.or(own.transpose()?);
        let is_cut_off = finish.is_some_and(|reason| CUT_OFF.contains(&reason.as_str()));
        let target = target(fields, doc, &content)?;
        Ok(Item { id, dataset, target, pattern: pattern(fields)?, content, is_cut_off })
    }

    /// How to find its answer.
    pub fn finder(&self) -> Finder<'_> {
        let rule = match &self.target {
            Some(target) if self.dataset.is_none() => target.grader.rule(),
            _ => AnswerRule::for_dataset(self.dataset.as_deref()),
        };
        self.pattern.as_ref().map_or(rule.into(), Finder::Pattern)
    }
}

fn fields(text: &[u8]) -> Result<Fields<'_>, String> {
    // serde would also read a struct from an array
    if text.trim_ascii_start().first() != Some(&b'{') {
        let value: &RawValue = serde_json::from_slice(text).map_err(not_json)?;
        return Err(wrong("the line", "an object", value.get()));
    }
    serde_json::from_slice(text).map_err(not_json)
}

fn not_json(error: serde_json::Error) -> String {
    format!("not valid JSON: {error}")
}

fn missing(field: &str) -> String {
    format!("missing field {field}")
}

/// The id of an invalid line whose own cannot be read: a text that is not a number, so that it is not another item's.
fn place(line: u64) -> Value {
    format!("line {line}").into()
}

/// The id at the start of an invalid line, such as a truncated one.
fn rescue_id(text: &[u8]) -> Option<Value> {
    static ID: OnceLock<Regex> = OnceLock::new();
    let start = r#"(?-u)^\s*\{\s*"id"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)\s*[,}]"#;
    let id = ID.get_or_init(|| Regex::new(start).expect("a constant expression"));
    checked_id(std::str::from_utf8(id.captures(text)?.get(1)?.as_bytes()).ok()?).ok()
}

/// An id must survive a round trip: no float rounded from a longer integer.
fn checked_id(id: &str) -> Result<Value, String> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    let scalar = if id.starts_with(['[', '{']) { None } else { serde_json::from_str(id).ok() };
    let usable = scalar.filter(|id| match id {
        Value::String(_) => true,
        Value::Number(n) => !n.is_f64() || n.as_f64().is_some_and(|x| x.abs() < EXACT),
        _ => false,
    });
    usable.ok_or_else(|| wrong("id", "a string or a number of at most 64 bits", id))
}

/// `input_ids`, `n_instr` and `answer_span`, with their ranges checked.
fn tokens(ids: &RawValue, fields: &Fields) -> Result<Content, String> {
    let input_ids: Vec<u32> = list("input_ids", ("at least two token ids", "a token id"), ids)?;
    let len = input_ids.len();
    let n_instr = fields.n_instr.ok_or_else(|| missing("n_instr"))?.get();
    let prompt_len = serde_json::from_str(n_instr).ok().filter(|n| (1..len).contains(n)).ok_or_else(|| {
        let expected = format!("a position from 1 to {}, so that a response follows an instruction", len - 1);
        wrong("n_instr", expected, n_instr)
    })?;
    let span = |span: &RawValue| match serde_json::from_str::<[usize; 2]>(span.get()) {
        Ok([start, end]) if prompt_len <= start && start < end && end <= len => Ok(start..end),
        _ => {
            let expected = format!("[start, end) with {prompt_len} <= start < end <= {len}");
            Err(wrong("answer_span", expected, span.get()))
        }
    };
    Ok(Content::Tokens { input_ids, prompt_len, answer_span: fields.answer_span.map(span).transpose()? })
}

/// `target` with its `grader`; a grader alone, as in questions, grades nothing.
fn target(fields: &Fields, doc: &Doc, content: &Content) -> Result<Option<Target>, String> {
    let (Some(target), Some(grader)) = (fields.target, fields.grader) else { return Ok(None) };
    let question = match content {
        Content::Text { conversation: Conversation::Prompt(prompt), .. } => prompt.clone(),
        Content::Text { conversation: Conversation::Messages(messages), .. } => {
            let turn = messages.iter().rfind(|message| message.role == "user");
            turn.and_then(|turn| turn.content.clone()).unwrap_or_default()
        }
        Content::Tokens { .. } => fields.prompt.and_then(|prompt| typed("prompt", "", prompt).ok()).unwrap_or_default(),
    };
    let mut choices = [doc.choices, doc.options, fields.choices].into_iter().flatten();
    let choices = choices.find_map(|choices| serde_json::from_str(choices.get()).ok());
    let mut value: Value = serde_json::from_str(target.get()).map_err(not_json)?;
    if let (Some(_), Some(alternatives)) = (fields.resps, value.as_str().and_then(python_list)) {
        value = alternatives.into();
    }
    let read = Target::read(&value, typed("grader", Grader::NAMES, grader)?, question, choices);
    Ok(Some(read.map_err(|expected| wrong("target", expected, target.get()))?))
}

/// The texts of a list as Python prints it, which is how lm-evaluation-harness writes a target of several.
fn python_list(text: &str) -> Option<Vec<String>> {
    let element = pattern!(r#"(?s)^(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")(?:, |\]$)"#);
    let (mut rest, mut texts) = (text.trim().strip_prefix('[')?, Vec::new());
    while let Some(found) = element.captures(rest) {
        let text = found.get(1).or_else(|| found.get(2))?.as_str();
        texts.push(text.replace("\\'", "'").replace("\\\\", "\\"));
        rest = &rest[found[0].len()..];
    }
    (rest.is_empty() && !texts.is_empty()).then_some(texts)
}

/// `answer_regex`, whose first or last (default) match counts, by `answer_match`.
fn pattern(fields: &Fields) -> Result<Option<AnswerPattern>, String> {
    let Some(found) = fields.answer_regex else { return Ok(None) };
    let regex: String = typed("answer_regex", "a string", found)?;
    let matched = fields.answer_match.map(|found| typed("answer_match", "\"first\" or \"last\"", found));
    let built = AnswerPattern::new(&regex, matched.transpose()?.unwrap_or_default());
    Ok(Some(built.map_err(|why| wrong("answer_regex", format!("a regular expression ({why})"), found.get()))?))
}

/// vLLM's RequestOutput: `prompt_token_ids` with `token_ids` of the first of `outputs`, or else `prompt` with its `text`.
fn vllm(outputs: &RawValue, fields: &Fields) -> Result<(Content, Option<String>), String> {
    #[derive(Deserialize)]
    struct Output {
        token_ids: Option<Vec<u32>>,
        text: Option<String>,
        finish_reason: Option<String>,
    }
    let outputs: Vec<Output> = list("outputs", ("at least one output", "an object with token_ids or text"), outputs)?;
    let first = outputs.into_iter().next();
    let Some(Output { token_ids, text, finish_reason }) = first else { return Err(missing("outputs[0]")) };
    let content = match (fields.prompt_token_ids, token_ids, fields.prompt, text.filter(|text| !text.is_empty())) {
        (Some(_), Some(ids), ..) if ids.is_empty() => {
            Err(wrong("outputs[0].token_ids", "at least one token id", "[]"))?
        }
        (Some(prompt), Some(ids), ..) => {
            let mut input_ids: Vec<u32> = list("prompt_token_ids", ("at least one token id", "a token id"), prompt)?;
            let prompt_len = input_ids.len();
            input_ids.extend(ids);
            Content::Tokens { input_ids, prompt_len, answer_span: None }
        }
        (_, _, Some(prompt), Some(response)) => {
            let conversation = Conversation::Prompt(typed("prompt", "a string", prompt)?);
            Content::Text { conversation, thought: None, response, rendered: true }
        }
        _ => return Err(missing("prompt_token_ids with outputs[0].token_ids, or prompt with outputs[0].text")),
    };
    Ok((content, finish_reason))
}

/// A sample of lm-evaluation-harness: the first text of `arguments`, the prompt as the model received it or messages in JSON, and
/// of `resps`.
fn harness(responses: &RawValue, fields: &Fields) -> Result<Content, String> {
    /// The first text, or list of messages, in lists and objects.
    fn first(value: &Value) -> Option<&Value> {
        match value {
            Value::String(text) if !text.is_empty() => Some(value),
            Value::Array(values) if values.first().is_some_and(|turn| turn.get("role").is_some()) => Some(value),
            Value::Array(values) => values.first().and_then(first),
            Value::Object(fields) => fields.values().next().and_then(first),
            _ => None,
        }
    }
    /// Whether these are a log-likelihood and whether the continuation is the most probable one, or a log-likelihood alone.
    fn is_likelihood(value: &Value) -> bool {
        let is_pair = |value: &Value, best: &Value| {
            let number = value.is_number() || value.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
            number && (best.is_boolean() || best == "True" || best == "False")
        };
        match value {
            Value::Array(values) if values.len() == 2 && is_pair(&values[0], &values[1]) => true,
            Value::Array(values) => values.first().is_some_and(is_likelihood),
            value => value.is_number(),
        }
    }
    let read = |found: &RawValue| serde_json::from_str::<Value>(found.get()).map_err(not_json);
    let found = fields.arguments.ok_or_else(|| missing("arguments"))?;
    let (arguments, resps) = (read(found)?, read(responses)?);
    let request = arguments.get(0).or_else(|| arguments.get("gen_args_0"));
    let second = request.and_then(|request| request.get(1).or_else(|| request.get("arg_1")));
    if second.is_some_and(Value::is_string) || is_likelihood(&resps) {
        const TEXT: &str =
            "a generated text (of a generate_until task); log-likelihoods of given continuations are no response";
        return Err(wrong("resps", TEXT, responses.get()));
    }
    let prompt = first(&arguments).ok_or_else(|| wrong("arguments", "a list that begins with a text", found.get()))?;
    let response = first(&resps).and_then(Value::as_str).map(str::to_owned);
    let response = response.ok_or_else(|| wrong("resps", "a list that begins with a text", responses.get()))?;
    let messages = match prompt {
        Value::String(text) if !text.starts_with("[{\"role\"") => None,
        Value::String(text) => Some(serde_json::from_str(text)),
        list => Some(Vec::<Message>::deserialize(list)),
    };
    let unread = |why| wrong("arguments", format!("messages of text ({why})"), found.get());
    let messages = messages.transpose().map_err(unread)?;
    let rendered = messages.is_none();
    let plain = || Conversation::Prompt(prompt.as_str().unwrap_or_default().to_owned());
    let conversation = messages.map_or_else(plain, Conversation::Messages);
    Ok(Content::Text { conversation, thought: None, response, rendered })
}

/// `messages` or `prompt`, and `response` or OpenAI's `choices`.
fn text(fields: &Fields) -> Result<(Content, Option<String>), String> {
    #[derive(Default, Deserialize)]
    struct Said {
        content: Option<String>,
        reasoning_content: Option<String>,
        reasoning: Option<String>,
    }
    #[derive(Default, Deserialize)]
    struct Choice {
        message: Option<Said>,
        text: Option<String>,
        finish_reason: Option<String>,
    }
    const MESSAGE: &str = "an object with a role and a content (a string or a list of text parts)";
    let conversation = match (fields.messages, fields.prompt) {
        (Some(_), Some(_)) => return Err("both messages and prompt are given; expected one of them".to_owned()),
        (Some(messages), None) => {
            Conversation::Messages(list("messages", ("a list of at least one message", MESSAGE), messages)?)
        }
        (None, Some(prompt)) => Conversation::Prompt(typed("prompt", "a string", prompt)?),
        (None, None) => return Err(missing("input_ids (or messages, or prompt)")),
    };
    let own = |name: &str, field: Option<&RawValue>| field.map(|found| typed(name, "a string", found)).transpose();
    let choices = fields.choices.filter(|_| fields.response.is_none());
    let first = choices.and_then(|choices| serde_json::from_str::<Vec<Choice>>(choices.get()).ok()?.into_iter().next());
    let Choice { message, text, finish_reason } = first.unwrap_or_default();
    let Said { content, reasoning_content, reasoning } = message.unwrap_or_default();
    let response: Option<String> = content.or(text).or(own("response", fields.response)?);
    let thought = own("reasoning_content", fields.reasoning_content)?.or(reasoning_content);
    // elsewhere it holds settings
    let own_reasoning = fields.reasoning.and_then(|found| serde_json::from_str(found.get()).ok());
    let thought = thought.or(own_reasoning).or(reasoning).filter(|text| !text.is_empty());
    let response = match (response, &thought) {
        (None, None) => return Err(missing("response")),
        (Some(text), None) if text.is_empty() => return Err(wrong("response", "some text", "\"\"")),
        (response, _) => response.unwrap_or_default(),
    };
    Ok((Content::Text { conversation, thought, response, rendered: false }, finish_reason))
}

fn typed<T: DeserializeOwned>(field: &str, expected: &str, found: &RawValue) -> Result<T, String> {
    serde_json::from_str(found.get()).map_err(|_| wrong(field, expected, found.get()))
}

/// A list that is not empty.
fn list<T: DeserializeOwned>(field: &str, (expected, each): (&str, &str), found: &RawValue) -> Result<Vec<T>, String> {
    let values: Vec<&RawValue> = serde_json::from_str(found.get()).unwrap_or_default();
    if values.is_empty() {
        return Err(wrong(field, expected, found.get()));
    }
    values.into_iter().enumerate().map(|(i, value)| typed(&format!("{field}[{i}]"), each, value)).collect()
}

/// A field's error; the value is cut to fit a message.
fn wrong(field: &str, expected: impl Display, found: &str) -> String {
    const MAX_CHARS: usize = 60;
    let (shown, dots) = found.char_indices().nth(MAX_CHARS).map_or((found, ""), |(cut, _)| (&found[..cut], "…"));
    format!("{field}: expected {expected}, found {shown}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uq::answer::custom::AnswerMatch;
    use serde_json::json;

    fn parse(text: &str) -> Result<Item, (Value, String)> {
        Item::parse(text.as_bytes(), 8).map_err(|bad| (bad.id.clone(), bad.to_string()))
    }

    #[test]
    fn both_forms_are_read() {
        let item =
            parse(r#"{"id": "a", "label": 1, "input_ids": [5, 6, 7, 8], "n_instr": 2, "dataset": "d"}"#).unwrap();
        assert_eq!((item.id, item.dataset.as_deref()), (json!("a"), Some("d")));
        assert_eq!(item.content, Content::Tokens { input_ids: vec![5, 6, 7, 8], prompt_len: 2, answer_span: None });
        let item = parse(r#"{"input_ids": [5, 6, 7, 8], "n_instr": 1, "answer_span": [2, 4], "id": null}"#).unwrap();
        assert_eq!(item.id, json!(7), "the 0-based line number");
        assert!(matches!(item.content, Content::Tokens { answer_span: Some(Range { start: 2, end: 4 }), .. }));
        let item = parse(r#"{"id": 3, "prompt": "1+1?", "response": "2"}"#).unwrap();
        let conversation = Conversation::Prompt("1+1?".into());
        assert_eq!(item.content, Content::Text { conversation, thought: None, response: "2".into(), rendered: false });
        let item = parse(r#"{"id": 3.5, "messages": [{"role": "user", "content": "x"}], "response": "2"}"#).unwrap();
        assert_eq!(item.id, json!(3.5));
    }

    fn ids(input: &[u8], limit: u64) -> Vec<(bool, Value)> {
        let lines = Lines::new(std::io::Cursor::new(input.to_vec()), "test".into()).unwrap().with_limit(limit);
        items(lines).map(|line| line.unwrap().map_or_else(|bad| (false, bad.id), |item| (true, item.id))).collect()
    }

    #[test]
    fn outputs_of_other_tools_are_read() {
        let vllm = r#"{"prompt": "1+1?", "prompt_token_ids": [5, 6], "outputs": [{"text": "2", "token_ids": [7, 8]}]}"#;
        let tokens = Content::Tokens { input_ids: vec![5, 6, 7, 8], prompt_len: 2, answer_span: None };
        assert_eq!(parse(vllm).unwrap().content, tokens);
        let conversation = Conversation::Prompt("Q: 1+1?\nA:".into());
        let rendered = Content::Text { conversation, thought: None, response: " 2".into(), rendered: true };
        for arguments in [r#"[["Q: 1+1?\nA:", {"until": []}]]"#, r#"{"gen_args_0": {"arg_0": "Q: 1+1?\nA:"}}"#] {
            let line = format!(r#"{{"doc_id": 0, "target": "2", "arguments": {arguments}, "resps": [[" 2"]]}}"#);
            let item = parse(&line).unwrap();
            assert_eq!((item.content, item.target), (rendered.clone(), None), "no grader, nothing to grade");
        }
        for (line, says) in [
            (r#"{"outputs": [{"token_ids": [1]}]}"#, "missing field prompt_token_ids"),
            (r#"{"prompt_token_ids": [5], "outputs": []}"#, "outputs: expected at least one output"),
            (
                r#"{"prompt_token_ids": [5], "outputs": [{"token_ids": []}]}"#,
                "outputs[0].token_ids: expected at least one",
            ),
            (r#"{"resps": [["x"]]}"#, "missing field arguments"),
            (r#"{"resps": [[]], "arguments": [["x"]]}"#, "resps: expected a list that begins with a text"),
            (r#"{"resps": [[""]], "arguments": [["x", {}]]}"#, "resps: expected a list that begins with a text"),
            (
                r#"{"resps": [[["-6.25", "False"]]], "arguments": {"gen_args_0": {"arg_0": "x", "arg_1": " 3"}}}"#,
                "no response",
            ),
            (
                r#"{"resps": [[[-1.25, true]], [[-4.5, false]]], "arguments": [["x", " 4"], ["x", " 5"]]}"#,
                "no response",
            ),
            (r#"{"resps": [[-6.25]], "arguments": [["x"]]}"#, "log-likelihoods of given continuations"),
        ] {
            let (_, message) = parse(line).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }

    /// Each line's conversation, thought, response, whether it is rendered, and whether it was cut off.
    #[test]
    fn replies_of_other_tools_are_read() {
        let (user, plain) = (r#"[{"role": "user", "content": "2+2?"}]"#, "\"prompt\": \"2+2?\"");
        let escaped = r#"[{\"role\": \"user\", \"content\": \"2+2?\", \"type\": \"text\"}]"#;
        for (line, expected) in [
            (
                format!(r#"{plain}, "response": "4", "reasoning_content": "2 and 2"}}"#),
                (Some("2 and 2"), "4", false, false),
            ),
            (format!(r#"{plain}, "response": "4", "reasoning": "2 and 2"}}"#), (Some("2 and 2"), "4", false, false)),
            (format!(r#"{plain}, "response": null, "reasoning": "2 and"}}"#), (Some("2 and"), "", false, false)),
            (format!(r#"{plain}, "response": "4", "reasoning": {{"effort": "low"}}}}"#), (None, "4", false, false)),
            (format!(r#"{plain}, "response": "4", "finish_reason": "length"}}"#), (None, "4", false, true)),
            (format!(r#"{plain}, "response": "4", "finish_reason": "stop"}}"#), (None, "4", false, false)),
            (format!(r#"{plain}, "outputs": [{{"text": "4", "finish_reason": "length"}}]}}"#), (None, "4", true, true)),
            (
                format!(
                    r#""messages": {user}, "choices": [{{"message": {{"content": "4", "reasoning_content": "2"}},
                        "finish_reason": "length"}}]}}"#
                ),
                (Some("2"), "4", false, true),
            ),
            (format!(r#"{plain}, "choices": [{{"text": "4", "finish_reason": "stop"}}]}}"#), (None, "4", false, false)),
            (format!(r#""arguments": [["{escaped}", {{}}]], "resps": [["4"]]}}"#), (None, "4", false, false)),
            (format!(r#""arguments": [[{user}, {{}}]], "resps": [["4", "5"]]}}"#), (None, "4", false, false)),
        ] {
            let item = parse(&format!("{{{line}")).unwrap();
            let Content::Text { conversation, thought, response, rendered } = item.content else { panic!("{line}") };
            assert_eq!((thought.as_deref(), response.as_str(), rendered, item.is_cut_off), expected, "{line}");
            assert_eq!(conversation.to_messages()[0].content.as_deref(), Some("2+2?"), "{line}");
        }
    }

    #[test]
    fn ids_and_targets_of_other_tools_are_read() {
        for (more, id, answers) in [
            (r#""doc_id": 3, "target": "4""#, json!(3), &["4"][..]),
            (r#""request_id": "8", "target": ["4", "four"]"#, json!("8"), &["4", "four"]),
            (r#""doc_id": 3, "doc": {"id": "q7"}, "target": 4"#, json!("q7"), &["4"]),
            (r#""doc_id": [3], "doc": 5, "target": "2+2=<<2+2=4>>4\n#### 4""#, json!(7), &["4"]),
            (
                r#""id": "own", "doc_id": 3, "target": "['4', \"it's 4\", 'a\\'b']""#,
                json!("own"),
                &["4", "it's 4", "a'b"],
            ),
            (r#""target": "[0, 1]""#, json!(7), &["[0, 1]"]),
        ] {
            let line = format!(r#"{{{more}, "grader": "exact", "arguments": [["2+2?", {{}}]], "resps": [["4"]]}}"#);
            let item = parse(&line).unwrap();
            assert_eq!(
                (item.id, &item.target.unwrap().answers[..]),
                (id, &answers.iter().map(|a| a.to_string()).collect::<Vec<_>>()[..])
            );
        }
        let line = r#"{"prompt": "x", "response": "B", "target": 1, "grader": "choice""#;
        assert_eq!(
            parse(&format!("{line}, \"doc\": {{\"choices\": [\"u\", \"v\"]}}}}")).unwrap().target.unwrap().shown(),
            "B"
        );
        assert!(parse(&format!("{line}}}")).unwrap_err().1.contains("target: expected an option's letter"));
    }

    #[test]
    fn a_target_and_a_pattern_are_read() {
        let line = |more: &str| format!(r#"{{"prompt": "1+1?", "response": "2", {more}}}"#);
        let item =
            parse(&line(r#""target": 2, "grader": "number", "answer_regex": "= (.*)", "answer_match": "first""#))
                .unwrap();
        assert_eq!(item.target, Some(Target::new("1+1?", "2", Grader::Number)));
        assert_eq!(item.pattern, Some(AnswerPattern::new("= (.*)", AnswerMatch::First).unwrap()));
        assert!(matches!(item.finder(), Finder::Pattern(_)));
        let item = parse(&line(r#""target": "2", "grader": "number""#)).unwrap();
        assert!(matches!(item.finder(), Finder::Rule(AnswerRule::Number)));
        for (more, says) in [
            (r#""target": "2", "grader": "value""#, "grader: expected number, math"),
            (r#""target": [], "grader": "number""#, "target: expected a text"),
            (r#""answer_regex": "(""#, "unclosed group"),
            (r#""answer_regex": "x", "answer_match": "best""#, "answer_match: expected"),
        ] {
            let (_, message) = parse(&line(more)).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn bad_and_blank_lines_do_not_stop_the_others() {
        let input = b"{\"id\": \"a\", \"prompt\": \"p\", \"response\": \"r\"}\r\n\n  \nnot json\n\
            {\"prompt\": \"p\", \"response\": \"r\"}\n{\"id\": 7, \"prompt\": \"p\", \"response\": \"r\"}";
        let expected = [(true, json!("a")), (false, json!("line 4")), (true, json!(4)), (true, json!(7))];
        assert_eq!(ids(input, 1000), expected);
        assert_eq!(ids(b"", 1000), []);
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_with_its_id() {
        let long = format!("{{\"id\": \"big\", \"prompt\": \"{}\"}}\n", "x".repeat(5000));
        let input = [long.as_bytes(), b"{\"id\": 1, \"prompt\": \"p\", \"response\": \"r\"}\n"].concat();
        assert_eq!(ids(&input, 100), [(false, json!("big")), (true, json!(1))]);
    }

    #[test]
    fn a_read_error_ends_the_items() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut packed, b"{\"id\": 1, \"prompt\": \"p\", \"response\": \"r\"}\n").unwrap();
        let packed = packed.finish().unwrap();
        let cut = std::io::Cursor::new(packed[..packed.len() - 4].to_vec());
        let mut items = items(Lines::new(cut, "test".into()).unwrap());
        assert!(items.next().unwrap().unwrap().is_ok());
        assert!(items.next().unwrap().is_err());
        assert!(items.next().is_none());
    }

    #[test]
    fn every_mistake_names_its_field_and_keeps_the_id() {
        for (line, id, says) in [
            (r#"{"id": "a", "n_instr": 1}"#, json!("a"), "missing field input_ids"),
            (r#"{"id": "a", "input_ids": [], "n_instr": 1}"#, json!("a"), "input_ids: expected at least two"),
            (
                r#"{"id": "a", "input_ids": [1, -2], "n_instr": 1}"#,
                json!("a"),
                "input_ids[1]: expected a token id, found -2",
            ),
            (r#"{"id": "a", "input_ids": [1, 4294967296], "n_instr": 1}"#, json!("a"), "found 4294967296"),
            (
                r#"{"id": "a", "input_ids": "x", "n_instr": 1}"#,
                json!("a"),
                "input_ids: expected at least two token ids",
            ),
            (r#"{"id": 4, "input_ids": [1, 2]}"#, json!(4), "missing field n_instr"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 0}"#, json!(4), "from 1 to 1"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 2}"#, json!(4), "found 2"),
            (r#"{"id": 4, "input_ids": [1], "n_instr": 1}"#, json!(4), "n_instr"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 1.0}"#, json!(4), "found 1.0"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 1, "answer_span": [0, 1]}"#, json!(4), "answer_span"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 1, "answer_span": [1]}"#, json!(4), "1 <= start < end <= 2"),
            (r#"{"id": 4, "input_ids": [1, 2], "n_instr": 1, "dataset": 3}"#, json!(4), "dataset: expected a string"),
            (r#"{"id": 4, "prompt": "x"}"#, json!(4), "missing field response"),
            (r#"{"id": 4, "prompt": "x", "response": ""}"#, json!(4), "response: expected some text"),
            (r#"{"id": 4, "prompt": "x", "messages": [], "response": "y"}"#, json!(4), "both messages and prompt"),
            (r#"{"id": 4, "messages": [], "response": "y"}"#, json!(4), "at least one message"),
            (
                r#"{"id": 4, "messages": ["hi"], "response": "y"}"#,
                json!(4),
                "messages[0]: expected an object with a role",
            ),
            (r#"{"id": [], "prompt": "x", "response": "y"}"#, json!("line 8"), "id: expected a string or a number"),
            (r#"{"id": 98765432109876543210, "prompt": "x", "response": "y"}"#, json!("line 8"), "at most 64 bits"),
            (r#"["a", 1]"#, json!("line 8"), "the line: expected an object"),
            (r#"{"id": "c\"ut", "input_ids": [1, 2"#, json!("c\"ut"), "not valid JSON"),
            (r#"{"id": 12, "input_ids": [1, 2"#, json!(12), "not valid JSON"),
            (r#"{"other": {"id": 12}, "input_ids": [1, 2"#, json!("line 8"), "not valid JSON"),
            ("nonsense", json!("line 8"), "not valid JSON"),
        ] {
            let (found, message) = parse(line).unwrap_err();
            assert_eq!(found, id, "{line}");
            assert!(message.starts_with("line 8: ") && message.contains(says), "{line}: {message}");
        }
    }

    /// A line parsed into a tree takes up to 16 times its bytes.
    #[test]
    fn hostile_values_are_read_in_a_bounded_amount_of_memory() {
        let many = |element: &str| vec![element; 100_000].join(",");
        for (line, says) in [
            (
                format!(r#"{{"id": "h", "input_ids": [[{}]], "n_instr": 1}}"#, many("1")),
                "input_ids[0]: expected a token id",
            ),
            (
                format!(r#"{{"id": "h", "messages": [{}], "response": "y"}}"#, many("{}")),
                "messages[0]: expected an object",
            ),
            (format!(r#"{{"id": "h", "prompt": [{}], "response": "y"}}"#, many("[[]]")), "prompt: expected a string"),
            (
                format!(r#"{{"id": "h", "prompt": {{{}}}, "response": "y"}}"#, many(r#""k": {}"#)),
                "prompt: expected a string",
            ),
        ] {
            let (id, message) = parse(&line).unwrap_err();
            assert!(id == "h" && message.contains(says) && message.len() < 200, "{message}");
        }
        // unknown fields are skipped
        let line = format!(r#"{{"id": 1, "other": [{}], "prompt": "p", "response": "r"}}"#, many("[1]"));
        assert!(parse(&line).is_ok());
    }

    #[test]
    fn a_long_value_is_cut_in_the_message() {
        let line = format!(r#"{{"id": 1, "prompt": ["{}"], "response": "y"}}"#, "é".repeat(500));
        assert!(parse(&line).unwrap_err().1.chars().count() < 120);
    }

    #[test]
    fn invalid_utf8_and_deep_nesting_are_errors_of_the_item() {
        let bad = Item::parse(b"{\"id\": \"u\", \"prompt\": \"\xff\xfe\", \"response\": \"y\"}", 1).unwrap_err();
        assert_eq!(bad.id, json!("u"));
        let deep = format!(r#"{{"id": "d", "prompt": {}"#, "[".repeat(100_000));
        assert_eq!(Item::parse(deep.as_bytes(), 1).unwrap_err().id, json!("d"));
    }
}
