//! Lower bounds of the work in a stage: bytes read from memory, and floating-point operations.

use crate::engine::Engine;

/// Tokens of the answer at the end of each measured response.
pub const ANSWER: usize = 3;

/// Bytes of one position of one layer in the KV cache.
fn layer_position(engine: &Engine) -> usize {
    let (spec, (k, v)) = (engine.spec(), engine.cache_types());
    spec.num_key_value_heads * spec.head_dim * (k.size() + v.size())
}

/// Positions attended to in all layers together, summed over `rows` rows from `first` on.
fn attended(engine: &Engine, first: usize, rows: usize) -> f64 {
    let spec = engine.spec();
    let windows = || spec.attention_layers().map(|layer| spec.layers[layer].window.unwrap_or(usize::MAX));
    (first..first + rows).map(|row| windows().map(|window| window.min(row + 1)).sum::<usize>() as f64).sum()
}

/// Bytes of the KV cache of `tokens` positions.
pub fn cache_bytes(engine: &Engine, tokens: usize) -> f64 {
    (tokens * engine.spec().attention_layers().count() * layer_position(engine)) as f64
}

/// Bytes that a decode step of `batch` sequences reads, averaged over rows `first .. first + steps`: each weight once, and
/// each sequence's own cache.
pub fn step_bytes(engine: &Engine, batch: usize, first: usize, steps: usize) -> f64 {
    let cache = layer_position(engine) as f64 * attended(engine, first, steps) / steps.max(1) as f64;
    engine.weight_bytes_per_token() as f64 + batch as f64 * cache
}

/// Operations of rows `first .. first + rows` in one pass, the head for `predictions` of them: products with weights,
/// q·k and α·v, without the softmax.
pub fn operations(engine: &Engine, first: usize, rows: usize, predictions: usize) -> f64 {
    let spec = engine.spec();
    let matrices = engine.weights().matrices();
    let layers = matrices.iter().filter(|w| w.name.contains(".layers.")).map(|w| w.rows * w.in_features).sum::<usize>();
    let head = predictions * spec.vocab_size * spec.hidden_size;
    let attention = (4 * spec.num_attention_heads * spec.head_dim) as f64 * attended(engine, first, rows);
    2.0 * (layers * rows + head) as f64 + attention
}

/// Positions of `variants` replaced tokens, evenly spread over the response before its answer. Half of the response is
/// scored again on average. A chain in random weights would place them arbitrarily.
pub fn replaced(prompt_len: usize, tokens: usize, variants: usize) -> Vec<usize> {
    let before = tokens.saturating_sub(ANSWER);
    (0..variants).map(|i| prompt_len + (2 * i + 1) * before / (2 * variants)).collect()
}

/// Operations of the ensemble up to row `last`: for each variant the rows from its replaced position on, with predictions
/// for the answer and for later replaced positions.
pub fn ensemble_operations(engine: &Engine, replaced: &[usize], last: usize) -> f64 {
    let variant = |at: &usize| {
        let later = replaced.iter().filter(|other| *other > at).count() + ANSWER;
        operations(engine, *at, last - at, later)
    };
    replaced.iter().map(variant).sum()
}
