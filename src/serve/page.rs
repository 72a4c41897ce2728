//! The page at `/`: one self-contained document. It draws responses with the report's scripts.

use crate::report::html::{RESPONSE_SCRIPTS, STYLE, policy, script_safe};
use crate::report::svg::escape;
use crate::uq::scores;
use axum::body::Bytes;
use serde_json::json;

const TEMPLATE: &str = include_str!("page.html");
const OWN_STYLE: &str = include_str!("page.css");
const OWN_SCRIPT: &str = include_str!("page.js");

pub struct Page {
    pub text: Bytes,
    /// Its content security policy.
    pub policy: String,
}

/// Renders the page; `key`: whether the server requires an API key.
pub fn render(model: &str, key: bool) -> Page {
    let methods: Vec<_> = scores::as_shown().iter().map(|score| json!([score.key, score.name])).collect();
    let head =
        script_safe(&json!({"methods": methods, "runs": [{"model": model, "task": ""}], "key": key}).to_string());
    let style = format!("\n{STYLE}{OWN_STYLE}");
    let script = format!("\n\"use strict\";\n{}{OWN_SCRIPT}", RESPONSE_SCRIPTS.concat());
    let policy = format!("{}; connect-src 'self'; frame-ancestors 'none'", policy(&style, &script));
    // the script last: its text is not searched for placeholders
    let text = [
        ("{{ title }}", escape(model).into_owned()),
        ("{{ head }}", head),
        ("{{ style }}", style),
        ("{{ script }}", script),
    ]
    .into_iter()
    .fold(TEMPLATE.to_owned(), |page, (place, text)| page.replace(place, &text));
    Page { text: text.into(), policy }
}
