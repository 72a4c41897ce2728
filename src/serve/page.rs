//! The page at `/`: one text that loads nothing. What draws a response is the report's.

use super::error::ApiError;
use super::http::{self, Outgoing};
use crate::report::html::{RESPONSE_SCRIPTS, STYLE, policy, script_safe};
use crate::report::svg::escape;
use crate::uq::scores;
use hyper::Response;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue, REFERRER_POLICY, X_FRAME_OPTIONS};
use serde_json::json;

const TEMPLATE: &str = include_str!("page.html");
const OWN_STYLE: &str = include_str!("page.css");
const OWN_SCRIPT: &str = include_str!("page.js");

/// The page of a server of this model; `key`: whether it asks for one.
pub fn response(model: &str, key: bool) -> Result<Response<Outgoing>, ApiError> {
    let methods: Vec<_> = scores::as_shown().iter().map(|score| json!([score.key, score.name])).collect();
    let head =
        script_safe(&json!({"methods": methods, "runs": [{"model": model, "task": ""}], "key": key}).to_string());
    let style = format!("\n{STYLE}{OWN_STYLE}");
    let script = format!("\n\"use strict\";\n{}{OWN_SCRIPT}", RESPONSE_SCRIPTS.concat());
    let policy = format!("{}; connect-src 'self'; frame-ancestors 'none'", policy(&style, &script));
    // what is put in last is not looked through for further places
    let page = [
        ("{{ title }}", escape(model).into_owned()),
        ("{{ head }}", head),
        ("{{ style }}", style),
        ("{{ script }}", script),
    ]
    .into_iter()
    .fold(TEMPLATE.to_owned(), |page, (place, text)| page.replacen(place, &text, usize::MAX));
    let mut response = http::response(200, "text/html; charset=utf-8", page);
    let headers = response.headers_mut();
    let policy = HeaderValue::from_str(&policy).map_err(|error| ApiError::internal(error.to_string()))?;
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    Ok(response)
}
