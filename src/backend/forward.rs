//! One pass of the transformer: the same sequence of operations for every family.

use crate::backend::{Backend, BackendError, DecodeOptions, DecodeRow, Next, Prediction, Row, SequenceId, Step};
use std::ops::ControlFlow;

/// Runs `rows` (at most [`Backend::max_rows`]) through all layers. Afterwards the backend answers `predict`.
pub fn forward<B: Backend + ?Sized>(backend: &mut B, rows: &[Row], record: bool) -> Result<(), BackendError> {
    forward_for(backend, rows, record, |_| true)
}

/// [`forward`], but of the rows (indices into `rows`) only those that are `wanted` will be asked of: the others are in the
/// cache, which is all that is needed of them in the last layer.
pub fn forward_for<B: Backend + ?Sized>(
    backend: &mut B,
    rows: &[Row],
    record: bool,
    wanted: impl Fn(usize) -> bool,
) -> Result<(), BackendError> {
    backend.embed(rows, record)?;
    let layers = backend.spec().layers.len();
    for layer in 0..layers {
        backend.project_qkv(layer);
        if layer + 1 == layers {
            backend.narrow(&wanted);
        }
        backend.attend(layer);
        backend.project_output(layer);
        backend.feed_forward(layer);
    }
    backend.final_norm()
}

/// Runs `tokens` at positions `start ..` of one sequence, a chunk at a time; `after` is called behind each chunk with
/// the positions it covered, while those of their rows that are `wanted` (positions) can be predicted from.
pub fn extend<E: From<BackendError>>(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    start: usize,
    tokens: &[u32],
    record: bool,
    wanted: impl Fn(usize) -> bool,
    mut after: impl FnMut(&mut dyn Backend, std::ops::Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let max_rows = backend.max_rows();
    let mut first = start;
    for chunk in tokens.chunks(max_rows) {
        let rows: Vec<Row> =
            (first..).zip(chunk).map(|(position, token)| Row { sequence, position, token: *token }).collect();
        forward_for(backend, &rows, record, |row| wanted(first + row))?;
        after(backend, first..first + chunk.len())?;
        first += chunk.len();
    }
    Ok(())
}

/// Decode steps by passes and predictions, one row for each sequence: what [`Backend::decode`] does where the backend
/// has no way of its own.
pub fn decode<B: Backend + ?Sized>(
    backend: &mut B,
    rows: &[DecodeRow],
    options: &DecodeOptions,
    on_step: &mut dyn FnMut(usize, Step, u32) -> ControlFlow<()>,
) -> Result<(), BackendError> {
    let mut active: Vec<(usize, DecodeRow)> = rows.iter().copied().enumerate().collect();
    while !active.is_empty() {
        let mut next = Vec::with_capacity(active.len());
        for group in active.chunks(backend.decode_rows()) {
            let rows: Vec<Row> = group.iter().map(|(_, r)| r.row).collect();
            forward(backend, &rows, true)?;
            let request = |(row, (_, r)): (usize, &(usize, DecodeRow))| Prediction {
                row,
                next: Next::Choose(options.choice(r)),
                detail: options.detail,
            };
            let requests: Vec<Prediction> = group.iter().enumerate().map(request).collect();
            for ((index, r), (step, token)) in group.iter().zip(backend.predict(&requests)?) {
                let token = token.unwrap_or_default(); // asked to choose, it does
                if on_step(*index, step, token).is_continue() {
                    let row = Row { position: r.row.position + 1, token, ..r.row };
                    next.push((*index, DecodeRow { row, ..*r }));
                }
            }
        }
        active = next;
    }
    Ok(())
}
