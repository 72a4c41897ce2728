//! What a measurement could reach at best: the fewest bytes that must be moved, the operations that must be done.

use crate::engine::Engine;
use crate::model::ModelSpec;

/// Positions that row T of a layer reads.
pub fn positions(window: Option<usize>, row: usize) -> usize {
    window.unwrap_or(usize::MAX).min(row + 1)
}

/// Bytes of one position of one layer in the KV cache.
fn layer_position(engine: &Engine) -> usize {
    let (spec, (k, v)) = (engine.spec(), engine.cache_types());
    spec.num_key_value_heads * spec.head_dim * (k.size() + v.size())
}

/// Bytes of the KV cache that the step with row `row` reads.
pub fn cache_bytes_read(engine: &Engine, row: usize) -> f64 {
    let read: usize = engine.spec().layers.iter().map(|layer| positions(layer.window, row)).sum();
    (read * layer_position(engine)) as f64
}

/// Bytes of the KV cache of `tokens` positions.
pub fn cache_bytes(engine: &Engine, tokens: usize) -> f64 {
    (tokens * engine.spec().layers.len() * layer_position(engine)) as f64
}

/// Bytes that a decode step of `batch` sequences reads, on average over rows `first .. first + steps`: each weight
/// once, each sequence's own cache.
pub fn step_bytes(engine: &Engine, batch: usize, first: usize, steps: usize) -> f64 {
    let cache: f64 = (first..first + steps).map(|row| cache_bytes_read(engine, row)).sum();
    engine.weight_bytes_per_token() as f64 + batch as f64 * cache / steps.max(1) as f64
}

/// Bytes that the trace adds per row, with K as published.
pub fn trace_bytes(engine: &Engine) -> f64 {
    engine.expected_memory(1).trace_row as f64
}

/// Floating-point operations of rows `first .. first + rows` in one pass, the head for `predictions` of them. Each
/// activation once in full: what a softmax or the splitting into terms does is left out.
pub fn operations(engine: &Engine, first: usize, rows: usize, predictions: usize) -> f64 {
    let spec = engine.spec();
    let layer_weights: usize = engine
        .weights()
        .matrices()
        .iter()
        .filter(|w| w.name.contains(".layers."))
        .map(|w| w.rows * w.in_features)
        .sum();
    let head = 2 * predictions * spec.vocab_size * spec.hidden_size;
    2.0 * layer_weights as f64 * rows as f64 + head as f64 + attention_operations(spec, first, rows)
}

/// Tokens of the answer at the response's end, where what follows an answer is measured.
pub const ANSWER: usize = 3;

/// Positions of replaced tokens there: evenly spread over the response before the answer, so that half of it is scored again on
/// average. (A chain in random weights says nothing about where real ones lie.)
pub fn replaced(prompt_len: usize, tokens: usize, variants: usize) -> Vec<usize> {
    let before = tokens.saturating_sub(ANSWER);
    (0..variants).map(|i| prompt_len + (2 * i + 1) * before / (2 * variants)).collect()
}

/// Operations of the ensemble's variants up to row `last`: of each the rows from its replaced position on, with the predictions of
/// the answer and of positions that are replaced later.
pub fn ensemble_operations(engine: &Engine, replaced: &[usize], last: usize) -> f64 {
    let of_variant = |at: &usize| {
        let later = replaced.iter().filter(|other| *other > at).count() + ANSWER;
        operations(engine, *at, last - at, later)
    };
    replaced.iter().map(of_variant).sum()
}

/// q·k and α·v: four operations for each position, head and element.
pub fn attention_operations(spec: &ModelSpec, first: usize, rows: usize) -> f64 {
    let per_position = (4 * spec.num_attention_heads * spec.head_dim) as f64;
    let of_layer = |window| (first..first + rows).map(|row| positions(window, row) as f64).sum::<f64>();
    // most layers are alike: a sum for each kind of window
    let mut windows: Vec<(Option<usize>, usize)> = Vec::new();
    for layer in &spec.layers {
        match windows.iter_mut().find(|(window, _)| *window == layer.window) {
            Some((_, count)) => *count += 1,
            None => windows.push((layer.window, 1)),
        }
    }
    per_position * windows.iter().map(|(window, count)| *count as f64 * of_layer(*window)).sum::<f64>()
}
