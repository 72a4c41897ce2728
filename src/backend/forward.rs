//! The forward pass: one order of operations for every family and every backend, prefill and decode alike.

use super::Result;
use crate::backend::{
    Backend, BackendError, DecodeRow, Next, OnStep, Operations, Pass, Predicted, Prediction, Row, SequenceId, Step,
};
use std::ops::Range;

/// Runs a pass through all layers. Afterwards [`Backend::predict`] and [`Backend::hidden`] read its rows.
pub fn forward<B: Backend + ?Sized>(backend: &mut B, pass: &Pass) -> Result<()> {
    backend.begin(pass)?;
    run(backend)
}

/// Runs the operations of a pass that has begun.
pub fn run<O: Operations + ?Sized>(pass: &mut O) -> Result<()> {
    run_observed(pass, |_, _| Ok(()))
}

/// The mean over all layers and heads of a row's softmax weights α_t, t = 0..=T, without γ. Runs the row in its sequence and
/// reads each layer's attention on the way.
pub fn mean_attention(backend: &mut dyn Backend, row: Row) -> Result<Vec<f64>> {
    backend.begin(&Pass::all(&[row], false))?;
    let mut mean = vec![0.0; row.position + 1];
    let heads = backend.spec().total_heads() as f64;
    run_observed(backend, |backend, layer| {
        let weights = backend.layer_attention(layer)?;
        mean.iter_mut().zip(weights).for_each(|(mean, weight)| *mean += f64::from(weight) / heads);
        Ok(())
    })?;
    backend.check().map(|()| mean)
}

/// [`run`], calling `attended` after the attention of each layer that has it.
fn run_observed<O: Operations + ?Sized>(
    pass: &mut O,
    mut attended: impl FnMut(&mut O, usize) -> Result<()>,
) -> Result<()> {
    pass.embed()?;
    for layer in 0..pass.spec().layers.len() {
        pass.project_qkv(layer)?;
        pass.attend(layer)?;
        if !pass.spec().layers[layer].delta_net {
            attended(pass, layer)?;
        }
        pass.project_output(layer)?;
        pass.feed_forward(layer)?;
    }
    pass.final_norm()
}

/// Runs `tokens` at positions `start ..` of one sequence, a chunk at a time; `after` is called after each chunk with the
/// positions it covered, while the `wanted` ones can be read.
pub fn extend<E: From<BackendError>>(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    start: usize,
    tokens: &[u32],
    record: bool,
    wanted: impl Fn(usize) -> bool,
    mut after: impl FnMut(&mut dyn Backend, Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let max_rows = backend.max_rows();
    let mut first = start;
    for chunk in tokens.chunks(max_rows) {
        let rows: Vec<Row> =
            (first..).zip(chunk).map(|(position, token)| Row { sequence, position, token: *token }).collect();
        forward(backend, &Pass { rows: &rows, record, wanted: &|row| wanted(first + row) })?;
        backend.check()?;
        after(backend, first..first + chunk.len())?;
        first += chunk.len();
    }
    Ok(())
}

/// Runs `tokens` at positions `start ..` of one sequence for their keys and values only.
pub fn enter(backend: &mut dyn Backend, sequence: SequenceId, start: usize, tokens: &[u32]) -> Result<()> {
    extend(backend, sequence, start, tokens, false, |_| false, |_, _| Ok(()))
}

/// A pass and the predictions of all its rows: [`Backend::step`] for backends without a faster one.
pub fn step<B: Backend + ?Sized>(backend: &mut B, rows: &[DecodeRow], vocabulary: usize) -> Result<Vec<(Step, u32)>> {
    step_each(backend, rows, vocabulary)?.into_iter().map(|found| found.map(chosen)).collect()
}

/// [`step`], with the errors of single rows in their places.
fn step_each<B: Backend + ?Sized>(backend: &mut B, rows: &[DecodeRow], vocabulary: usize) -> Result<Vec<Predicted>> {
    let entering: Vec<Row> = rows.iter().map(|r| r.row).collect();
    forward(backend, &Pass::all(&entering, true))?;
    let request =
        |(row, r): (usize, &DecodeRow)| Prediction { row, next: Next::Choose(r.choice(vocabulary)), detail: r.detail };
    let requests: Vec<Prediction> = rows.iter().enumerate().map(request).collect();
    backend.predict_each(&requests)
}

fn chosen((step, token): (Step, Option<u32>)) -> (Step, u32) {
    (step, token.unwrap_or_default()) // `Next::Choose` always yields a token
}

/// Decode steps one at a time, one row per sequence: [`Backend::decode`] for backends without a faster one.
pub fn decode<B: Backend + ?Sized>(
    backend: &mut B,
    rows: &[DecodeRow],
    vocabulary: usize,
    on_step: &mut OnStep,
) -> Result<()> {
    let mut active: Vec<(usize, DecodeRow)> = rows.iter().copied().enumerate().collect();
    let mut failed = Vec::new();
    while !active.is_empty() && failed.is_empty() {
        let mut next = Vec::with_capacity(active.len());
        for group in active.chunks(backend.decode_rows()) {
            let rows: Vec<DecodeRow> = group.iter().map(|(_, r)| *r).collect();
            for ((index, r), found) in group.iter().zip(step_each(backend, &rows, vocabulary)?) {
                match found.map(chosen) {
                    Ok((step, token)) => {
                        if on_step(*index, step, token).is_continue() {
                            let row = Row { position: r.row.position + 1, token, ..r.row };
                            next.push((*index, DecodeRow { row, ..*r }));
                        }
                    }
                    Err(error) => failed.push((*index, error)),
                }
            }
        }
        active = next;
    }
    if failed.is_empty() { Ok(()) } else { Err(BackendError::Rows(failed)) }
}
