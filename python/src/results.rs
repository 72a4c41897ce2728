//! The results of jobs, tokens and responses, as exposed to Python.

use pyo3::prelude::*;
use uqac::internals::html;
use uqac::internals::term::{AskReport, TermStyle};
use uqac::{Record, TracedSequence};

/// A token as it is sampled, with the response's running values of the scores of these names.
pub struct Token {
    pub id: u32,
    /// Text that the token adds; empty for an end token, or while a character is incomplete.
    pub text: String,
    pub logprob: f64,
    pub response_logprob: f64,
    pub min_token_prob: f64,
    /// The running confidence, if requested and its window is full.
    pub running: Option<f64>,
}

/// A response and its assessment.
#[pyclass(frozen, module = "uqac._uqac")]
pub struct Response {
    /// The record, as in `uqac ask --json` or `uqac score`.
    #[pyo3(get)]
    json: String,
    /// The whole sequence.
    #[pyo3(get)]
    input_ids: Vec<u32>,
    report: AskReport,
}

#[pymethods]
impl Response {
    /// The response's text, up to its first end token.
    #[getter]
    fn text(&self) -> &str {
        &self.report.text
    }

    /// The text of each response token.
    #[getter]
    fn token_texts(&self) -> Vec<String> {
        self.report.token_texts.clone()
    }

    /// ln p of each token of the response.
    #[getter]
    fn logprobs(&self) -> Vec<f64> {
        self.report.logprobs.clone()
    }

    /// The report of `uqac ask`, without colours.
    fn report(&self, width: usize) -> String {
        self.report.render(true, TermStyle { colour: false, width })
    }

    /// The response with its chain drawn on it, as a standalone page or as a fragment of one.
    fn html(&self, page: bool) -> String {
        html::answer(&self.report, page)
    }
}

impl Response {
    /// The result of an item that could not be scored.
    pub fn failed(record: Record) -> Response {
        let json = serde_json::to_string(&record).unwrap_or_default();
        Response { json, input_ids: Vec::new(), report: AskReport { record, ..AskReport::default() } }
    }

    /// An assessed response; `json` writes its record, given the text and the number of tokens.
    pub fn new(
        traced: &mut TracedSequence,
        record: Record,
        json: impl FnOnce(Record, &str, usize) -> serde_json::Result<String>,
    ) -> Result<Response, String> {
        let report = AskReport::of(traced, record).map_err(|error| error.to_string())?;
        let (tokens, prompt_len) = traced.tokens();
        let json = json(report.record.clone(), &report.text, tokens.len() - prompt_len);
        let (json, input_ids) = (json.map_err(|error| error.to_string())?, tokens.to_vec());
        Ok(Response { json, input_ids, report })
    }
}
