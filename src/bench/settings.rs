//! What a run of the benchmark is asked for.

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The model's name in the report.
    pub model: String,
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
    pub sweep: Vec<usize>,
}
