//! Lower bounds on a stage's work: bytes read from memory, and floating-point operations.

use crate::{backend::position_bytes, engine::Engine, model::config::LayerSpec};

/// Number of answer tokens at the end of each measured response.
pub const ANSWER: usize = 3;

/// Positions attended to over all layers, each weighted by its layer's `count`, summed over `rows` rows starting at
/// `first`.
fn attended(engine: &Engine, first: usize, rows: usize, count: impl Fn(&LayerSpec) -> usize) -> f64 {
    let layers = || engine.spec().attention_layers().map(|layer| &engine.spec().layers[layer]);
    let of_row = |row: usize, layer: &LayerSpec| layer.window.unwrap_or(usize::MAX).min(row + 1) * count(layer);
    (first..first + rows).map(|row| layers().map(|l| of_row(row, l)).sum::<usize>() as f64).sum()
}

/// KV cache size of `tokens` positions, in bytes.
pub fn cache_bytes(engine: &Engine, tokens: usize) -> f64 {
    let position = engine.spec().cached_layers().map(|(_, layer)| position_bytes(layer, engine.cache_types()));
    (tokens * position.sum::<usize>()) as f64
}

/// Bytes read by a decode step of `batch` sequences, averaged over rows `first .. first + steps`: each weight once, and
/// each sequence's own cache.
pub fn step_bytes(engine: &Engine, batch: usize, first: usize, steps: usize) -> f64 {
    let layer = |layer: &LayerSpec| position_bytes(layer, engine.cache_types());
    let cache = attended(engine, first, steps, layer) / steps.max(1) as f64;
    engine.weight_bytes_per_token() as f64 + batch as f64 * cache
}

/// Operations of rows `first .. first + rows` in one pass, with the head evaluated for `predictions` of them: products
/// with weights, q·k and α·v, without the softmax.
pub fn operations(engine: &Engine, first: usize, rows: usize, predictions: usize) -> f64 {
    let spec = engine.spec();
    let matrices = engine.weights().matrices();
    let layers = matrices
        .iter()
        .filter(|w| !w.name.contains("embed_tokens") && w.name != engine.weights().head.name)
        .map(|w| w.rows * w.in_features)
        .sum::<usize>();
    let head = predictions * spec.vocab_size * spec.hidden_size;
    let attention = attended(engine, first, rows, |layer| 4 * spec.num_attention_heads * layer.head_dim);
    2.0 * (layers * rows + head) as f64 + attention
}

/// Positions of `variants` replaced tokens, evenly spread over the response before its answer, so that on average half
/// of the response is scored again. With random weights, a chain would place them arbitrarily.
pub fn replaced(prompt_len: usize, tokens: usize, variants: usize) -> Vec<usize> {
    let before = tokens.saturating_sub(ANSWER);
    (0..variants).map(|i| prompt_len + (2 * i + 1) * before / (2 * variants)).collect()
}

/// Operations of the ensemble up to row `last`: for each variant, the rows from its replaced position on, with
/// predictions for the answer and for later replaced positions.
pub fn ensemble_operations(engine: &Engine, replaced: &[usize], last: usize) -> f64 {
    let variant = |at: &usize| {
        let later = replaced.iter().filter(|other| *other > at).count() + ANSWER;
        operations(engine, *at, last - at, later)
    };
    replaced.iter().map(variant).sum()
}
