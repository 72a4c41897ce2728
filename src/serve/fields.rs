//! The names of a request's fields, and the values that ask for nothing, from one table: `fields.txt`.

use super::error::ApiError;
use crate::files::is_nothing;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// What a field's values get, as in the table; the values that ask for nothing; its name.
type Field = (&'static str, Option<Vec<Value>>, &'static str);

static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let lines = include_str!("fields.txt").lines().filter(|line| !line.starts_with('#'));
    let fields = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, nothing) = (words.next()?, serde_json::from_str(words.next()?).ok());
        Some(words.map(move |name| (kind, nothing.clone(), name)))
    });
    fields.flatten().collect()
});

/// Checks the names of a body's fields, and the values of those that are not read. `own`: the kind of fields that only this
/// endpoint reads.
pub fn check(body: &Map<String, Value>, own: &str) -> Result<(), ApiError> {
    let options = body.get("stream_options").and_then(Value::as_object).into_iter().flatten();
    let inner = options.map(|(name, value)| (format!("stream_options.{name}"), value));
    for (name, value) in body.iter().map(|(name, value)| (name.clone(), value)).chain(inner) {
        // tools that must not be used
        let choice = [("tools", "tool_choice"), ("functions", "function_call")].into_iter().find(|(of, _)| *of == name);
        let unused = choice.is_some_and(|(_, choice)| body.get(choice).is_some_and(|choice| choice == "none"));
        ApiError::unless(unused || takes(own, &name, value), &name, "not supported")?;
    }
    Ok(())
}

fn takes(own: &str, name: &str, value: &Value) -> bool {
    let is_here = |kind: &str| kind == own || !kind.starts_with("read-");
    let same = |a: &Value| a == value || a.as_f64().is_some_and(|a| value.as_f64() == Some(a));
    match FIELDS.iter().find(|(kind, _, field)| *field == name && is_here(kind)) {
        _ if value.is_null() => true,
        Some((_, nothing, _)) => nothing.as_ref().is_none_or(|nothing| nothing.iter().any(same)),
        None => !value.is_boolean() && is_nothing(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CHAT: &str = "read-chat";

    #[test]
    fn a_name_is_listed_once_for_each_endpoint() {
        for (kind, nothing, name) in FIELDS.iter() {
            assert!(["read", "read-chat", "read-completion", "ignored", "refused"].contains(kind), "{kind}");
            assert_eq!(*kind == "refused", nothing.is_some(), "{name}");
            assert_eq!(FIELDS.iter().filter(|field| (field.0, field.2) == (*kind, *name)).count(), 1, "{name}");
        }
    }

    /// The peers' own defaults, as their clients write them out, and the values that would change the answer.
    #[test]
    fn defaults_ask_for_nothing_and_other_values_are_refused() {
        for (name, nothing, something) in [
            ("include_reasoning", json!(true), json!(false)),
            ("reasoning_format", json!("none"), json!("deepseek")),
            ("n_discard", json!(0), json!(8)),
            ("add_generation_prompt", json!(true), json!(false)),
            ("ignore_eos", json!(false), json!(true)),
            ("return_token_ids", json!(false), json!(true)),
            ("continue_final_message", json!(false), json!(true)),
            ("modalities", json!(["text"]), json!(["text", "audio"])),
            ("function_call", json!("none"), json!({"name": "f"})),
            ("tool_choice", json!("auto"), json!("required")),
            ("typical_p", json!(1), json!(0.9)),
            ("mirostat", json!(0), json!(2)),
            ("repeat_penalty", json!(1.0), json!(1.1)),
            ("min_p", json!(0.0), json!(0.05)),
            ("best_of", json!(1), json!(2)),
            ("n_predict", json!(-1), json!(8)),
            ("logit_bias", json!({}), json!({"5": -100})),
            ("stop_token_ids", json!([]), json!([7])),
            ("response_format", json!({"type": "text"}), json!({"type": "json_object"})),
            ("stream_options", json!({"continuous_usage_stats": false}), json!({"continuous_usage_stats": true})),
            ("guided_json", Value::Null, json!({})),
            ("grammar", json!(""), json!("root ::= x")),
            ("web_search_options", Value::Null, json!({})),
            ("of_a_later_release", json!([]), json!(false)),
        ] {
            let takes = |value| check(&Map::from_iter([(name.to_owned(), value)]), CHAT).is_ok();
            assert!(takes(nothing), "{name}");
            assert!(takes(Value::Null) && !takes(something), "{name}");
        }
        for name in ["cache_prompt", "user", "keep_alive", "mirostat_tau"] {
            assert!(
                [json!(true), json!(false), json!(3)].iter().all(|value| takes("read-completion", name, value)),
                "{name}"
            );
        }
    }

    #[test]
    fn tools_that_must_not_be_used_ask_for_nothing() {
        let body = |choice: Value| json!({"tools": [{"type": "function"}], "tool_choice": choice});
        assert!(check(body(json!("none")).as_object().unwrap(), CHAT).is_ok());
        let refused = [json!("auto"), json!("required"), Value::Null];
        assert!(refused.into_iter().all(|choice| check(body(choice).as_object().unwrap(), CHAT).is_err()));
    }
}
