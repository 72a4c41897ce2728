//! Input of `score`: JSON lines of existing responses.
//!
//! A line is `{id, input_ids, n_instr}` (optionally `dataset` and `answer_span`) or `{id, messages | prompt, response}`
//! (optionally `dataset`, and the thought as `reasoning_content` or `reasoning`), or the output of vLLM (`outputs`), of OpenAI's
//! API (`choices`) or of lm-evaluation-harness (`arguments`, `resps`). All may have `target` with `grader`, `answer_regex` with
//! `answer_match`, and `finish_reason`; other fields are ignored. An invalid line becomes a [`BadItem`]; only a read error ends
//! the iteration.

mod tools;

use super::{jsonl::Line, jsonl::Lines, jsonl::ReadError, target::Target};
use crate::uq::answer::{AnswerPattern, AnswerRule, Finder, Grader};
use crate::{files::json_fault, model::chat::Conversation};
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
            (None, Some(outputs), _) => tools::vllm(outputs, fields)?,
            (None, None, Some(responses)) => (tools::harness(responses, fields)?, None),
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
        let value: &RawValue = serde_json::from_slice(text).map_err(json_fault)?;
        return Err(wrong("the line", "an object", value.get()));
    }
    serde_json::from_slice(text).map_err(json_fault)
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
    let mut value: Value = serde_json::from_str(target.get()).map_err(json_fault)?;
    if let (Some(_), Some(alternatives)) = (fields.resps, value.as_str().and_then(tools::python_list)) {
        value = alternatives.into();
    }
    let read = Target::read(&value, typed("grader", Grader::NAMES, grader)?, question, choices);
    Ok(Some(read.map_err(|expected| wrong("target", expected, target.get()))?))
}

/// `answer_regex`, whose first or last (default) match counts, by `answer_match`.
fn pattern(fields: &Fields) -> Result<Option<AnswerPattern>, String> {
    let Some(found) = fields.answer_regex else { return Ok(None) };
    let regex: String = typed("answer_regex", "a string", found)?;
    let matched = fields.answer_match.map(|found| typed("answer_match", "\"first\" or \"last\"", found));
    let built = AnswerPattern::new(&regex, matched.transpose()?.unwrap_or_default());
    Ok(Some(built.map_err(|why| wrong("answer_regex", format!("a regular expression ({why})"), found.get()))?))
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
    fn parts_of_a_message_are_one_text() {
        let parts = r#"[{"type": "text", "text": "What is "}, {"type": "text", "text": "17 + 25?"}]"#;
        let line =
            |content: &str| format!(r#"{{"messages": [{{"role": "user", "content": {content}}}], "response": "42"}}"#);
        assert_eq!(parse(&line(parts)).unwrap().content, parse(&line("\"What is 17 + 25?\"")).unwrap().content);
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
