//! What a run of the benchmark is asked for.

use serde::Serialize;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// The model's name in the report.
    pub model: String,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens of each response; the model's end tokens do not end it.
    pub gen_tokens: usize,
    /// Sequences that are decoded together.
    pub batch: usize,
    pub rounds: usize,
    /// Variants of the ensemble: as many tokens, evenly spread over the response, are replaced, each once.
    pub variants: usize,
    /// Samples of self-consistency.
    pub samples: usize,
    /// Contexts after which decoding is measured as well.
    #[serde(skip)] // the report has its rows
    pub sweep: Vec<usize>,
}
