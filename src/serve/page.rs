//! The page at `/`: one self-contained document. It draws responses with the report's scripts.

use crate::report::html::Document;
use crate::report::term::{ABSTAINED, OUT_OF_RANGE, UNCALIBRATED};
use crate::uq::scores;
use serde_json::json;

pub struct Page {
    pub text: axum::body::Bytes,
    /// Its content security policy.
    pub policy: String,
}

/// Renders the page; `key`: whether the server requires an API key.
pub fn render(model: &str, key: bool) -> Page {
    let method = |score: &&scores::Score| json!([score.key, score.name, score.meaning]);
    let document = Document {
        title: &format!("{model} · uqac"),
        body: include_str!("page.html"),
        style: include_str!("page.css"),
        script: include_str!("page.js"),
        connects: true,
        head: json!({
            "methods": scores::as_shown().iter().map(method).collect::<Vec<_>>(),
            "runs": [{"model": model, "task": ""}], "ranking": scores::RANKING, "key": key,
            "texts": {"uncalibrated": UNCALIBRATED, "out_of_range": OUT_OF_RANGE, "abstained": ABSTAINED},
        }),
    };
    let (text, policy) = document.render(minijinja::context! { key, model });
    Page { text: text.into(), policy: policy + "; frame-ancestors 'none'" }
}
