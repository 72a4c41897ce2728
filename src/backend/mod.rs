//! The few fused operations of a transformer pass, in the order a token meets them, and what they leave behind.

pub mod cpu;
pub mod cuda;
mod device;
pub mod entropy;
pub mod forward;
pub mod reference;
pub mod sampling;

pub use device::DeviceChoice;

pub use crate::model::weights::DType;
use crate::model::{ModelError, ModelSpec, Weights};
use entropy::EntropyRule;
use sampling::{Choice, Sampling};
use serde::{Deserialize, Serialize};
use std::ops::{ControlFlow, Range};

/// How the CPU holds the weights of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// As the file has them.
    #[default]
    File,
    /// In 8 bits with a scale for each sixteen: faster to read, and not quite the same model.
    Q8,
}

impl WeightFormat {
    pub fn is_file(&self) -> bool {
        *self == WeightFormat::File
    }

    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::File => "file",
            WeightFormat::Q8 => "q8",
        }
    }
}

/// A sequence that a backend holds a KV cache for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub usize);

/// One row of a pass: `token` enters at `position` of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub sequence: SequenceId,
    pub position: usize,
    pub token: u32,
}

/// A sequence of a decode run: `row` enters first; `stream` numbers the sequence for the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeRow {
    pub row: Row,
    pub stream: u64,
}

/// How a decode run chooses, and what it tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOptions {
    pub sampling: Sampling,
    /// As [`Choice::vocabulary`].
    pub vocabulary: usize,
    /// As [`Prediction::detail`].
    pub detail: bool,
}

impl DecodeOptions {
    /// The choice of what follows a row.
    pub fn choice(&self, row: &DecodeRow) -> Choice {
        let DecodeOptions { sampling, vocabulary, .. } = *self;
        Choice { sampling, stream: row.stream, position: row.row.position + 1, vocabulary }
    }
}

/// What is recorded of a sequence's rows for row reconstruction and similarity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Rows before this one leave nothing.
    pub first_row: usize,
    /// K: so many heads of lowest entropy are kept per row.
    pub heads: usize,
    pub rule: EntropyRule,
}

/// A token and its natural-log probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprob: f64,
}

/// What one row left behind about its prediction.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Step {
    /// ln p(x_{T+1}) under the full vocabulary; `None` at the last row, whose prediction is not part of the sequence.
    pub logprob: Option<f64>,
    /// Entropy of the prediction in nats, full vocabulary.
    pub entropy: f64,
    /// The most probable tokens, best first (ties: lower id): every one with p > 0.01, and at least five.
    pub top: Vec<TokenLogprob>,
}

/// The selected heads of a traced row, lowest entropy first (ties: lower id).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct HeadRecord {
    /// l·H + h
    pub heads: Vec<u32>,
    /// In nats, aligned with `heads`.
    pub entropies: Vec<f32>,
    /// Distance from the last selected entropy to the best one that was not selected.
    pub gap: f32,
}

/// What is wanted of a row's prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The next token is known, or nothing follows.
    Given(Option<u32>),
    /// The next token is chosen here.
    Choose(Choice),
}

/// A request to [`Backend::predict`]: `row` is an index into the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub row: usize,
    pub next: Next,
    /// Whether the step's entropy and alternatives are wanted; without, the entropy is 0 and `top` is empty.
    pub detail: bool,
}

/// Bytes, besides the weights'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedMemory {
    pub cache: usize,
    /// Of one position.
    pub cache_row: usize,
    pub trace: usize,
    pub trace_row: usize,
    /// What passes of any size work in, where it is taken beforehand.
    pub working: usize,
}

/// What a backend can fail with.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("token id {token} is out of range: the vocabulary has {vocab_size}")]
    TokenRange { token: u32, vocab_size: usize },
    #[error("the hidden state at position {position} is not finite, though all weights are: the arithmetic overflowed")]
    NotFinite { position: usize },
    #[error("the hidden state at position {position} is not finite: {source}")]
    BadWeights { position: usize, source: ModelError },
    #[error("{what} is not available on {device}; use --device cpu")]
    Unsupported { what: &'static str, device: String },
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
}

impl BackendError {
    /// The error for a hidden state or logits that are not finite: names the tensor if a weight is to blame.
    fn not_finite(weights: &Weights, position: usize) -> BackendError {
        match weights.check_finite() {
            Ok(()) => BackendError::NotFinite { position },
            Err(source) => BackendError::BadWeights { position, source },
        }
    }
}

/// A device that runs the model. One pass is [`embed`](Backend::embed), then for every layer
/// [`project_qkv`](Backend::project_qkv), [`attend`](Backend::attend), [`project_output`](Backend::project_output) and
/// [`feed_forward`](Backend::feed_forward), then [`final_norm`](Backend::final_norm) and, for the rows that need it,
/// [`predict`](Backend::predict). `backend::forward` is that order. Every row's bits are independent of the other rows
/// of its pass (a device may round wide passes and those of up to [`decode_rows`](Backend::decode_rows) rows differently).
pub trait Backend {
    fn spec(&self) -> &ModelSpec;

    /// What it runs on, for display.
    fn device(&self) -> String;

    /// The types that keys and values are cached in.
    fn cache_types(&self) -> (DType, DType);

    /// Bytes of the weights that a decode step reads, where that is not what their files have.
    fn weight_bytes_per_token(&self) -> Option<usize> {
        None
    }

    /// Rows that one pass may have.
    fn max_rows(&self) -> usize;

    /// Sequences that one decode step may have.
    fn decode_rows(&self) -> usize {
        self.max_rows()
    }

    /// A new, empty sequence; with a trace if `trace` is given.
    fn open(&mut self, trace: Option<TraceOptions>) -> SequenceId;

    /// A hint: the sequence is expected to have so many positions in the end.
    fn reserve(&mut self, _sequence: SequenceId, _positions: usize) {}

    /// A new sequence, with a trace of its own if `trace` is given, whose first `positions` keys and values are a copy of
    /// another's.
    fn fork(
        &mut self,
        sequence: SequenceId,
        positions: usize,
        trace: Option<TraceOptions>,
    ) -> Result<SequenceId, BackendError>;

    /// Whether a [`fork`](Backend::fork) costs next to nothing and a pass of any width may mix sequences: rows of several
    /// short sequences then go through the weights together.
    fn mixes_sequences(&self) -> bool {
        false
    }

    /// Frees a sequence's cache and trace.
    fn close(&mut self, sequence: SequenceId);

    /// Starts a pass: residual stream `x = E[token]` (· embedding scale), `[rows, hidden_size]`. A row may overwrite an
    /// earlier position of its sequence; what was cached behind it is then stale. `record`: rows go to the trace.
    fn embed(&mut self, rows: &[Row], record: bool) -> Result<(), BackendError>;

    /// norm(x) → q, k, v (+ bias, + norm per head), rotated; k and v go to the cache.
    fn project_qkv(&mut self, layer: usize);

    /// A hint, in the last layer before its attention: of this pass's rows (indices) only the wanted and the recorded ones
    /// will be asked of. Indices stay those of the whole pass.
    fn narrow(&mut self, _wanted: &dyn Fn(usize) -> bool) {}

    /// Streaming attention over the cache; heads of low entropy are noted for the trace.
    fn attend(&mut self, layer: usize);

    /// x += (norm of) W_o · attention.
    fn project_output(&mut self, layer: usize);

    /// x += (norm of) W_down · (act(W_gate · norm(x)) ⊙ W_up · norm(x)).
    fn feed_forward(&mut self, layer: usize);

    /// Ends the pass: final norm, and the traced rows' records. Fails if a hidden state is not finite; a device that
    /// computes later than it is told to says so at the latest in [`predict`](Backend::predict).
    fn final_norm(&mut self) -> Result<(), BackendError>;

    /// Logits of some rows of the pass that has just ended, as far as what they tell: one [`Step`] per request, its
    /// `logprob` that of the given or chosen token, and that token.
    fn predict(&mut self, requests: &[Prediction]) -> Result<Vec<(Step, Option<u32>)>, BackendError>;

    /// Decode steps of several sequences: in each step every sequence's row enters, is recorded, and the next token is
    /// chosen, which is the next row. `on_step` is told (index in `rows`, what the step left, the token), steps in order
    /// and rows in order within a step, and says whether the sequence goes on. Returns when none does. A sequence's tokens
    /// are the same whatever else runs.
    fn decode(
        &mut self,
        rows: &[DecodeRow],
        options: &DecodeOptions,
        on_step: &mut dyn FnMut(usize, Step, u32) -> ControlFlow<()>,
    ) -> Result<(), BackendError> {
        forward::decode(self, rows, options, on_step)
    }

    /// The final hidden state (after the norm) of a row of the pass that has just ended: `[hidden_size]`.
    fn hidden(&self, row: usize) -> Result<Vec<f32>, BackendError>;

    /// The heads selected at a traced row (absolute); `None` if it was not traced.
    fn head_record(&self, sequence: SequenceId, row: usize) -> Result<Option<HeadRecord>, BackendError>;

    /// α* of traced rows (absolute): row T gives T + 1 weights. A row that was not traced gives zeros.
    fn attention_rows(&mut self, sequence: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>, BackendError>;

    /// α' of a traced row (absolute), one by one of its K heads in the order of its record: T + 1 weights each. For
    /// measurements; a device need not have it.
    fn head_rows(&mut self, _sequence: SequenceId, _row: usize) -> Result<Vec<Vec<f32>>, BackendError> {
        Err(BackendError::Unsupported { what: "attention by head", device: self.device() })
    }

    /// Cosines of traced final hidden states, `[positions, answer]`; 0 where a position was not traced.
    fn cosines(
        &mut self,
        sequence: SequenceId,
        positions: &[usize],
        answer: Range<usize>,
    ) -> Result<Vec<f32>, BackendError>;

    /// Bytes that one sequence of so many positions will take, all of them traced.
    fn expected_memory(&self, positions: usize, trace: TraceOptions) -> ExpectedMemory {
        let (spec, (k, v)) = (self.spec(), self.cache_types());
        let elements = spec.layers.len() * spec.num_key_value_heads * spec.head_dim;
        // per row and head: id, entropy, m, Z', slot, query; per row: the hidden state
        let row = 4 * (trace.heads * (6 + spec.head_dim) + spec.hidden_size);
        let cache_row = elements * (k.size() + v.size());
        let (cache, trace, working) = (positions * cache_row, positions * row, self.working_memory());
        ExpectedMemory { cache, cache_row, trace, trace_row: row, working }
    }

    /// Bytes that are held for passes of any size.
    fn working_memory(&self) -> usize {
        0
    }

    /// Bytes held for a sequence: (KV cache, trace).
    fn memory(&self, sequence: SequenceId) -> (usize, usize);
}
