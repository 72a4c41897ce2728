//! The page at `/`: one text that loads nothing. What draws a response is the report's.

use crate::report::html::{RESPONSE_SCRIPTS, STYLE, policy, script_safe};
use crate::report::svg::escape;
use crate::uq::scores;
use hyper::body::Bytes;
use serde_json::json;

const TEMPLATE: &str = include_str!("page.html");
const OWN_STYLE: &str = include_str!("page.css");
const OWN_SCRIPT: &str = include_str!("page.js");

/// The page, rendered once.
pub struct Page {
    pub text: Bytes,
    /// Its content security policy.
    pub policy: String,
}

/// The page of a server of this model; `key`: whether the server asks for one.
pub fn render(model: &str, key: bool) -> Page {
    let methods: Vec<_> = scores::as_shown().iter().map(|score| json!([score.key, score.name])).collect();
    let head =
        script_safe(&json!({"methods": methods, "runs": [{"model": model, "task": ""}], "key": key}).to_string());
    let style = format!("\n{STYLE}{OWN_STYLE}");
    let script = format!("\n\"use strict\";\n{}{OWN_SCRIPT}", RESPONSE_SCRIPTS.concat());
    let policy = format!("{}; connect-src 'self'; frame-ancestors 'none'", policy(&style, &script));
    // what is put in last is not looked through for further places
    let text = [
        ("{{ title }}", escape(model).into_owned()),
        ("{{ head }}", head),
        ("{{ style }}", style),
        ("{{ script }}", script),
    ]
    .into_iter()
    .fold(TEMPLATE.to_owned(), |page, (place, text)| page.replacen(place, &text, usize::MAX));
    Page { text: text.into(), policy }
}
