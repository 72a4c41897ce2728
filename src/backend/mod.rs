//! The few fused operations of a transformer pass, in the order a token passes through them, and their outputs.
//!
//! [`Operations`] are the steps of one pass, which [`forward`] runs layer by layer; [`Backend`] adds the sequences that passes
//! extend, and the results read from them. An operation has the same name here and in every backend. [`mod@reference`] is the one
//! to read; the others are checked against it.

pub mod cpu;
pub mod cuda;
mod device;
pub mod distribution;
pub mod entropy;
pub mod forward;
pub mod q8;
pub mod reference;
pub mod sampling;

pub use device::{DeviceChoice, ValueType, WeightFormat};

pub use crate::model::weights::DType;
use crate::{model::ModelError, model::ModelSpec, model::Weights, model::config::LayerSpec, model::weights::Weight};
use bytemuck::{Pod, Zeroable};
pub use distribution::Distribution;
use entropy::EntropyRule;
use sampling::{Choice, Sampling};
use serde::{Deserialize, Serialize};
use std::{ops::ControlFlow, ops::Range, sync::Arc};

/// A sequence that a backend holds a KV cache for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SequenceId(pub usize);

/// One row of a pass: `token` is the input at `position` of its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub sequence: SequenceId,
    pub position: usize,
    pub token: u32,
}

impl Row {
    /// Whether `next` is the row after this one.
    pub fn precedes(&self, next: &Row) -> bool {
        next.sequence == self.sequence && next.position == self.position + 1
    }
}

/// A sequence of a decode run: where it begins, how its tokens are chosen, and what its steps output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeRow {
    /// The first input.
    pub row: Row,
    pub sampling: Sampling,
    /// Identifies the sequence to the sampler.
    pub stream: u64,
    /// As [`Prediction::detail`].
    pub detail: bool,
}

impl DecodeRow {
    /// The choice of the token after this row, among the first `vocabulary` tokens.
    pub fn choice(&self, vocabulary: usize) -> Choice {
        Choice { sampling: self.sampling, stream: self.stream, position: self.row.position + 1, vocabulary }
    }
}

/// Receives the steps of [`Backend::decode`].
pub type OnStep<'a> = dyn FnMut(usize, Step, u32) -> ControlFlow<()> + 'a;

/// Contents of each row's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParts {
    /// K: the number of lowest-entropy heads kept.
    pub heads: usize,
    /// Normalization of that entropy.
    pub entropy: EntropyRule,
    /// Whether [`Step::distribution`] is recorded.
    pub wide: bool,
    /// Whether [`HeadAttention`] is recorded for every head.
    pub head_attention: bool,
    /// Whether [`Backend::layer_means`] are kept.
    pub layer_means: bool,
}

/// Recorded data of a sequence's rows, for row reconstruction and similarity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceOptions {
    /// Rows before this one are not recorded.
    pub first_row: usize,
    pub parts: TraceParts,
}

impl TraceOptions {
    /// Lowest-entropy heads only.
    pub const fn new(first_row: usize, heads: usize, entropy: EntropyRule) -> TraceOptions {
        let parts = TraceParts { heads, entropy, wide: false, head_attention: false, layer_means: false };
        TraceOptions { first_row, parts }
    }
}

/// Tokens between kept copies of the delta nets' states: the max recomputed when a sequence continues differently.
pub const STATE_INTERVAL: usize = 256;

/// Min alternatives of a step: the max of OpenAI's `top_logprobs`.
pub const MIN_TOP: usize = 20;

/// A token and its natural-log probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprob: f64,
}

/// A row's prediction.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Step {
    /// ln p(x_{T+1}) under the full vocabulary; `None` at the last row, whose prediction is not part of the sequence.
    pub logprob: Option<f64>,
    /// Entropy of the prediction in nats, full vocabulary.
    pub entropy: f64,
    /// The most probable tokens, best first (ties: lower id): every one with p > 0.01, and at least [`MIN_TOP`].
    pub top: Vec<TokenLogprob>,
    /// Only with detail, in a sequence with a wide trace.
    pub distribution: Option<Distribution>,
    /// With [`TraceParts::head_attention`], once the response is complete: attention targets of the row's heads,
    /// `[layers][heads]`.
    pub heads: Vec<Vec<HeadAttention>>,
    /// Whether the token after the row was given to the model in the middle of its response, so that no score counts it.
    pub forced: bool,
}

/// Attention targets of one head of one row: its softmax weights α_t, t = 0..=T.
#[repr(C)] // `HeadPlaces` of `kernels/common.cuh`
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HeadAttention {
    /// Entropy of the reweighted attention in nats, by which heads are selected.
    pub entropy: f32,
    /// α_T, on the row's own token.
    pub own: f32,
    /// α_{T−1}; 0 at T = 0.
    pub previous: f32,
    /// α_0.
    pub first: f32,
    /// Σ α_t over the prompt, t ≤ [`TraceOptions::first_row`].
    pub prompt: f32,
}

/// The selected heads of a traced row, lowest entropy first (ties: lower id).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct HeadRecord {
    /// l·H + h, where l is the layer's index among those with attention.
    pub heads: Vec<u32>,
    /// In nats, aligned with `heads`.
    pub entropies: Vec<f32>,
    /// Distance from the last selected entropy to the best unselected one.
    pub gap: f32,
}

/// A request for a row's prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// The next token is known, or nothing follows.
    Given(Option<u32>),
    /// The backend chooses the next token.
    Choose(Choice),
}

/// A request to [`Backend::predict`]: `row` is an index into the rows of the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub row: usize,
    pub next: Next,
    /// Whether to compute the step's entropy and alternatives; if not, the entropy is 0 and `top` is empty.
    pub detail: bool,
}

/// A request's step and token, or the error of its row.
pub type Predicted = Result<(Step, Option<u32>)>;

/// Memory in bytes, excluding weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedMemory {
    pub cache: usize,
    /// Per position.
    pub cache_row: usize,
    /// Delta-net states, copies included.
    pub states: usize,
    pub trace: usize,
    pub trace_row: usize,
    /// Scratch memory for passes of any size, if allocated in advance.
    pub working: usize,
}

/// Bytes of the keys and values of one position of a layer, in these types.
pub fn position_bytes(layer: &LayerSpec, (k, v): (DType, ValueType)) -> usize {
    layer.num_key_value_heads * (k.size() * layer.head_dim + v.bytes(layer.head_dim))
}

pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// Errors of a backend. All but a lost device belong to the sequences that were run.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("token id {token} is out of range: the vocabulary has {vocab_size}")]
    TokenRange { token: u32, vocab_size: usize },
    #[error("row {row} of the pass cannot be read: it was not among the rows that were wanted")]
    RowNotWanted { row: usize },
    #[error("the hidden state at position {position} is not finite, though all weights are: the arithmetic overflowed")]
    NotFinite { position: usize },
    #[error("the hidden state at position {position} is not finite: {source}")]
    BadWeights { position: usize, source: Arc<ModelError> },
    #[error("the sequence cannot go on at position {position}: its delta nets' states there are not held")]
    NotHeld { position: usize },
    /// Sequences of a decode run that failed, by their index in its rows; the others have finished the step.
    #[error("{}", .0.first().map_or(String::new(), |(_, error)| error.to_string()))]
    Rows(Vec<(usize, BackendError)>),
    #[error("{what} is not available on {device}; use --device cpu")]
    Unsupported { what: &'static str, device: String },
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
}

impl BackendError {
    /// Whether the device cannot be used any more, by any sequence.
    pub fn is_lost(&self) -> bool {
        // the driver's errors are sticky: every later call in the context fails with them
        matches!(self, BackendError::Cuda(cuda::CudaError::Driver { .. }))
    }

    /// Whether the device is out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, BackendError::Cuda(cuda::CudaError::OutOfMemory { .. }))
    }

    /// The error for a hidden state or logits that are not finite: names the tensor if a weight is to blame.
    fn not_finite(weights: &Weights, position: usize) -> BackendError {
        match weights.check_finite() {
            Ok(()) => BackendError::NotFinite { position },
            Err(source) => BackendError::BadWeights { position, source },
        }
    }
}

/// The rows of one pass, and which of them will be read afterwards.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    pub rows: &'a [Row],
    /// Whether the rows are recorded in their sequences' traces.
    pub record: bool,
    /// Rows (indices into `rows`) whose final hidden state is read, by [`Backend::predict`] or [`Backend::hidden`]. The rest are
    /// needed only for keys, values and the trace: a backend may drop them after the last keys and values.
    pub wanted: &'a dyn Fn(usize) -> bool,
}

impl<'a> Pass<'a> {
    /// A pass any of whose rows may be read afterwards.
    pub fn all(rows: &'a [Row], record: bool) -> Pass<'a> {
        Pass { rows, record, wanted: &|_| true }
    }
}

/// The operations of the pass started by [`Backend::begin`], in the order [`forward::run`] calls them. Dimensions are named as in
/// [`ModelSpec`].
pub trait Operations {
    fn spec(&self) -> &ModelSpec;

    /// x = E\[token\] (· embedding scale): the residual stream, `[rows, hidden_size]`.
    fn embed(&mut self) -> Result<()>;

    /// q, k, v = W · norm(x) (+ bias, normed per head), rotated; k and v are cached. In a delta net: convolved, not rotated.
    fn project_qkv(&mut self, layer: usize) -> Result<()>;

    /// Streaming attention over the cache; for recorded rows, the lowest-entropy heads are kept. In a delta net: the delta rule.
    fn attend(&mut self, layer: usize) -> Result<()>;

    /// x += (norm of) W_o · attention.
    fn project_output(&mut self, layer: usize) -> Result<()>;

    /// x += (norm of) W_down · (act(W_gate · norm(x)) ⊙ W_up · norm(x)); then, if layers have inputs, the layer's own.
    fn feed_forward(&mut self, layer: usize) -> Result<()>;

    /// Ends the pass: the final norm, and the recorded rows' trace entries. A row whose hidden state is not finite fails alone:
    /// its predictions are errors, and so is [`Backend::check`].
    fn final_norm(&mut self) -> Result<()>;
}

/// A device that runs the model and holds the KV caches of its sequences. A pass is [`begin`](Backend::begin), its [`Operations`]
/// and, for wanted rows, [`predict`](Backend::predict): see [`forward`]. Every row's bits are independent of the other rows in its
/// pass (a device may round wide passes differently from those of up to [`decode_rows`](Backend::decode_rows) rows).
pub trait Backend: Operations {
    /// The device, for display.
    fn device(&self) -> String;

    /// Warnings about the device for the user.
    fn warnings(&self) -> &[String] {
        &[]
    }

    /// The types of cached keys and values.
    fn cache_types(&self) -> (DType, ValueType);

    /// Bytes of a matrix as held in memory.
    fn weight_bytes(&self, weight: &Weight) -> usize {
        weight.byte_len()
    }

    /// Max rows of one pass.
    fn max_rows(&self) -> usize;

    /// Max rows of a pass that is rounded like a decode step.
    fn decode_rows(&self) -> usize {
        self.max_rows()
    }

    /// A new, empty sequence; with a trace if `trace` is given. It must not outgrow the model's
    /// [short context](ModelSpec::short_context), if there is one.
    fn open(&mut self, trace: Option<TraceOptions>) -> Result<SequenceId> {
        self.open_for(0, trace)
    }

    /// [`open`](Backend::open) for at least `tokens` tokens: if that is [long](ModelSpec::is_long), it has the frequencies of long
    /// sequences, and so have its forks.
    fn open_for(&mut self, tokens: usize, trace: Option<TraceOptions>) -> Result<SequenceId>;

    /// Hints that the sequence is expected to reach `positions` positions, so that memory can be reserved.
    fn reserve(&mut self, _sequence: SequenceId, _positions: usize) -> Result<()> {
        Ok(())
    }

    /// A new sequence, with its own trace if `trace` is given, whose first `positions` keys and values are copied from another. As
    /// when overwriting rows, [`resumes_at`](Backend::resumes_at) returns the possible positions.
    fn fork(&mut self, sequence: SequenceId, positions: usize, trace: Option<TraceOptions>) -> Result<SequenceId>;

    /// The largest token count, up to `positions`, at which the sequence can be forked or its rows overwritten: with delta nets,
    /// one whose states are held. To continue at `positions`, rerun the tokens from the returned count on.
    fn resumes_at(&self, _sequence: SequenceId, positions: usize) -> usize {
        positions
    }

    /// Hints that the sequence, which has not reached `positions` tokens yet, is expected to be forked there.
    fn expect_fork(&mut self, _sequence: SequenceId, _positions: usize) {}

    /// Whether a row gets the same bits in a pass of any width: the length of a prompt's prefix taken from another sequence's cache
    /// then changes nothing, and guessed tokens may widen every pass.
    fn is_bit_equal_at_any_width(&self) -> bool {
        false
    }

    /// Whether a [`fork`](Backend::fork) is cheap and a pass of any width may mix sequences: rows of several short sequences then
    /// share one read of the weights.
    fn mixes_sequences(&self) -> bool {
        false
    }

    /// Whether [`truncate`](Backend::truncate) works: it does not if layers keep a state of the sequence instead of its keys.
    fn rewinds(&self) -> bool {
        self.spec().delta_net.is_none()
    }

    /// Drops rows from `positions` on from a sequence's cache and trace (except [`layer_means`](Backend::layer_means)), as if they
    /// had not been run.
    fn truncate(&mut self, sequence: SequenceId, positions: usize);

    /// Frees a sequence's cache and trace.
    fn close(&mut self, sequence: SequenceId);

    /// Begins a pass of at most [`max_rows`](Backend::max_rows) rows. A row may overwrite an earlier position of its sequence;
    /// anything cached after it is then stale. With delta nets, a sequence's rows are adjacent, at consecutive positions.
    ///
    /// # Errors
    /// A token id beyond the vocabulary, a sequence that is not open, or insufficient device memory.
    fn begin(&mut self, pass: &Pass) -> Result<()>;

    /// Fails if a token of a pass about to begin is out of range.
    fn check_tokens(&self, rows: &[Row]) -> Result<()> {
        let vocab_size = self.spec().readable_tokens();
        match rows.iter().find(|row| row.token as usize >= vocab_size) {
            Some(Row { token, .. }) => Err(BackendError::TokenRange { token: *token, vocab_size }),
            None => Ok(()),
        }
    }

    /// Fails if a row of the pass that has just ended is not finite; a device that computes asynchronously reports it in
    /// [`predict`](Backend::predict) of a later pass of the sequence.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Predictions for rows of the pass that has just ended: per request one [`Step`], with the `logprob` of the given or chosen
    /// token, and that token. A row that was not `wanted` is an error.
    fn predict(&mut self, requests: &[Prediction]) -> Result<Vec<(Step, Option<u32>)>> {
        self.predict_each(requests)?.into_iter().collect()
    }

    /// [`predict`](Backend::predict), with the errors of single rows in their places.
    fn predict_each(&mut self, requests: &[Prediction]) -> Result<Vec<Predicted>>;

    /// The logits `[vocab_size]` (softcapped) of a wanted row of the pass that has just ended.
    fn next_logits(&mut self, row: usize) -> Result<Vec<f32>>;

    /// One pass of at most [`decode_rows`](Backend::decode_rows) rows, each recorded and followed by a choice; returns their steps
    /// and tokens. Rows of one sequence are at consecutive positions.
    fn step(&mut self, rows: &[DecodeRow], vocabulary: usize) -> Result<Vec<(Step, u32)>> {
        forward::step(self, rows, vocabulary)
    }

    /// Decode steps of several sequences: each step runs and records every sequence's row, and chooses the next token, which
    /// becomes the next row; `vocabulary` as in [`Choice::vocabulary`]. `on_step` receives (index in `rows`, the step's output, the
    /// token), in order of steps, then of rows, and returns whether the sequence continues. Returns when none does, or after a step
    /// in which some fail ([`BackendError::Rows`]). A sequence's tokens do not depend on what else runs.
    fn decode(&mut self, rows: &[DecodeRow], vocabulary: usize, on_step: &mut OnStep) -> Result<()> {
        forward::decode(self, rows, vocabulary, on_step)
    }

    /// The final hidden state (after the norm) of a row of the pass that has just ended: `[hidden_size]`.
    #[cfg(test)]
    fn hidden(&self, row: usize) -> Result<Vec<f32>>;

    /// The heads selected at a traced row (absolute); `None` if it was not traced.
    fn head_record(&self, sequence: SequenceId, row: usize) -> Result<Option<HeadRecord>>;

    /// Attention targets of every head (l·H + h) of a traced row (absolute); `None` without [`TraceParts::head_attention`].
    fn head_attention(&self, sequence: SequenceId, row: usize) -> Result<Option<Vec<HeadAttention>>>;

    /// With [`TraceParts::layer_means`], the mean over the sequence's traced rows except the last (whose prediction is not part
    /// of the sequence) of the embedding, the residual stream after each layer but the last, and the final hidden state:
    /// `[L + 1, hidden_size]`, as in Hugging Face's `hidden_states`. `None` if fewer than two rows were traced.
    fn layer_means(&self, sequence: SequenceId) -> Result<Option<Vec<Vec<f64>>>>;

    /// α* of traced rows (absolute): row T yields T + 1 weights; an untraced row yields zeros.
    fn attention_rows(&mut self, sequence: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>>;

    /// α' of a traced row (absolute) for each of its K heads, in the order of its record: T + 1 weights each. For measurements;
    /// optional for a device.
    fn head_rows(&mut self, _sequence: SequenceId, _row: usize) -> Result<Vec<Vec<f32>>> {
        Err(BackendError::Unsupported { what: "attention by head", device: self.device() })
    }

    /// Σ over the heads of a layer of the softmax weights α_t, t = 0..=T, of the first row of the pass in flight, right after
    /// [`Operations::attend`] of that layer: see [`forward::mean_attention`].
    fn layer_attention(&mut self, layer: usize) -> Result<Vec<f32>>;

    /// Final hidden states (after the norm) of traced positions, `[positions, hidden_size]`; zeros for untraced ones.
    fn hidden_states(&self, sequence: SequenceId, positions: Range<usize>) -> Result<Vec<f32>>;

    /// Expected bytes of one sequence of this many positions, all of them traced.
    fn expected_memory(&self, positions: usize, trace: TraceOptions) -> ExpectedMemory {
        let spec = self.spec();
        // per row and head: id, entropy, m, Z', slot, query; per row: the hidden state
        let heads = if trace.parts.head_attention { spec.total_heads() * size_of::<HeadAttention>() } else { 0 };
        let row = 4 * (trace.parts.heads * (6 + spec.widest(|layer| layer.head_dim)) + spec.hidden_size) + heads;
        let cache_row = spec.cached_layers().map(|(_, layer)| position_bytes(layer, self.cache_types())).sum();
        // a sum in f64 and the last row in f32
        let sums = if trace.parts.layer_means { 12 * (spec.layers.len() + 1) * spec.hidden_size } else { 0 };
        let (cache, trace, working) = (positions * cache_row, positions * row + sums, self.working_memory());
        ExpectedMemory { cache, cache_row, states: self.state_memory(positions), trace, trace_row: row, working }
    }

    /// Bytes taken by the states of a sequence of this many positions, copies included.
    fn state_memory(&self, _positions: usize) -> usize {
        0
    }

    /// Bytes held for passes of any size.
    fn working_memory(&self) -> usize {
        0
    }

    /// Bytes held for a sequence: (KV cache, trace).
    fn memory(&self, sequence: SequenceId) -> (usize, usize);
}
