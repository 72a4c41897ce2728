//! The results of jobs: tokens and responses, as Python sees them.

use pyo3::prelude::*;
use std::ops::Range;
use uqac::internals::html;
use uqac::internals::term::{AskReport, TermStyle};
use uqac::{Record, ResponseText, TracedSequence};

/// A token as it is chosen, with what the response comes to so far: the running values of the scores of these names.
pub struct Token {
    pub id: u32,
    /// What the token adds to the text; empty for an end token, or where a character is not yet whole.
    pub text: String,
    pub logprob: f64,
    pub response_logprob: f64,
    pub min_token_prob: f64,
    /// The running confidence, where one is asked for and its window is full.
    pub running: Option<f64>,
}

/// A response and what was found out about it.
#[pyclass(frozen, module = "uqac._uqac")]
pub struct Response {
    /// The record, as `uqac ask --json` or `uqac score` has it.
    #[pyo3(get)]
    json: String,
    /// The response's text, up to its first end token.
    #[pyo3(get)]
    text: String,
    /// The whole sequence.
    #[pyo3(get)]
    input_ids: Vec<u32>,
    /// The text of each token of the response on its own.
    #[pyo3(get)]
    token_texts: Vec<String>,
    /// ln p of each token of the response.
    #[pyo3(get)]
    logprobs: Vec<f64>,
    ranges: Vec<Range<usize>>,
    record: Record,
}

#[pymethods]
impl Response {
    /// The report of `uqac ask`, without colours.
    fn report(&self, width: usize) -> String {
        self.as_report().render(TermStyle { colour: false, width })
    }

    /// The response with its chain drawn on it, as a page of its own or as a part of one.
    fn html(&self, page: bool) -> PyResult<String> {
        html::answer(&self.as_report(), page).map_err(crate::options::failed)
    }
}

impl Response {
    fn as_report(&self) -> AskReport<'_> {
        AskReport {
            text: &self.text,
            ranges: &self.ranges,
            token_texts: &self.token_texts,
            logprobs: &self.logprobs,
            record: &self.record,
            all_scores: true,
        }
    }

    /// An item that could not be scored.
    pub fn failed(record: Record) -> Response {
        Response {
            json: serde_json::to_string(&record).unwrap_or_default(),
            text: String::new(),
            input_ids: Vec::new(),
            token_texts: Vec::new(),
            logprobs: Vec::new(),
            ranges: Vec::new(),
            record,
        }
    }

    /// A response that was assessed; `json` writes its record, given the text and how many tokens there are.
    pub fn new(
        traced: &mut TracedSequence,
        record: Record,
        json: impl FnOnce(Record, &str, usize) -> serde_json::Result<String>,
    ) -> Result<Response, String> {
        let (response, _) = traced.parts();
        let (prompt_len, input_ids) = (response.prompt_len, response.tokens.to_vec());
        let token_texts = response.token_texts.to_vec();
        let logprobs = response.steps.iter().filter_map(|step| step.logprob).collect();
        let engine = traced.engine();
        let ResponseText { text, ranges } =
            ResponseText::new(engine, &input_ids[prompt_len..]).map_err(|error| error.to_string())?;
        let json = json(record.clone(), &text, input_ids.len() - prompt_len).map_err(|error| error.to_string())?;
        Ok(Response { json, text, input_ids, token_texts, logprobs, ranges, record })
    }
}
