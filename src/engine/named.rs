//! Log-probabilities of named tokens.

use super::{Batch, EngineError, Result, Ticket};
use crate::backend::{Next, Pass, Prediction, Row, forward};

impl Batch<'_> {
    /// ln p of each of `ids` at every token of a response, `[tokens][ids]`: its rows are run again in a copy of its sequence.
    ///
    /// # Errors
    /// A response that is gone, or the backend's.
    pub fn logprobs_of(&mut self, ticket: Ticket, ids: &[u32]) -> Result<Vec<Vec<f64>>> {
        let (id, generation) = self.sequence(ticket).ok_or(EngineError::EmptyPrompt)?;
        let (tokens, prompt_len) = (generation.tokens.clone(), generation.prompt_len);
        let backend = &mut *self.engine.backend;
        let (first, end) = (prompt_len - 1, tokens.len() - 1);
        let start = backend.resumes_at(id, first);
        let copy = backend.fork(id, start, None)?;
        let mut logprobs = Vec::with_capacity(end - first);
        let mut run = || {
            forward::enter(backend, copy, start, &tokens[start..first])?;
            // as wide as decode steps, which are rounded alike
            for from in (first..end).step_by(backend.decode_rows()) {
                let part = from..end.min(from + backend.decode_rows());
                let rows = part.clone().map(|position| Row { sequence: copy, position, token: tokens[position] });
                forward::forward(backend, &Pass::all(&rows.collect::<Vec<_>>(), false))?;
                for row in 0..part.len() {
                    let request = |id: &u32| Prediction { row, next: Next::Given(Some(*id)), detail: false };
                    let steps = backend.predict(&ids.iter().map(request).collect::<Vec<_>>())?;
                    logprobs
                        .push(steps.into_iter().map(|(step, _)| step.logprob.unwrap_or(f64::NEG_INFINITY)).collect());
                }
            }
            Ok(())
        };
        let ran = run();
        backend.close(copy);
        ran.map(|()| logprobs)
    }
}
