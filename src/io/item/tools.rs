//! Responses as other tools write them: vLLM, and lm-evaluation-harness.

use super::{Content, Fields, list, missing, typed, wrong};
use crate::{files::json_fault, model::chat::Conversation, model::chat::Message, uq::answer::pattern};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// vLLM's RequestOutput: `prompt_token_ids` with `token_ids` of the first of `outputs`, or else `prompt` with its `text`.
pub(super) fn vllm(outputs: &RawValue, fields: &Fields) -> Result<(Content, Option<String>), String> {
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
pub(super) fn harness(responses: &RawValue, fields: &Fields) -> Result<Content, String> {
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
    let read = |found: &RawValue| serde_json::from_str::<Value>(found.get()).map_err(json_fault);
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

/// The texts of a list as Python prints it, which is how lm-evaluation-harness writes a target of several.
pub(super) fn python_list(text: &str) -> Option<Vec<String>> {
    let element = pattern!(r#"(?s)^(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")(?:, |\]$)"#);
    let (mut rest, mut texts) = (text.trim().strip_prefix('[')?, Vec::new());
    while let Some(found) = element.captures(rest) {
        let text = found.get(1).or_else(|| found.get(2))?.as_str();
        texts.push(text.replace("\\'", "'").replace("\\\\", "\\"));
        rest = &rest[found[0].len()..];
    }
    (rest.is_empty() && !texts.is_empty()).then_some(texts)
}

#[cfg(test)]
mod tests {
    use super::super::Item;
    use super::*;
    use serde_json::json;

    fn parse(text: &str) -> Result<Item, (Value, String)> {
        Item::parse(text.as_bytes(), 8).map_err(|bad| (bad.id.clone(), bad.to_string()))
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
}
