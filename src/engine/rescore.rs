//! Runs the ensemble's variants through the model: only the rows from a replaced token on, and in the last layer only those that
//! yield a wanted probability.

use super::{Result, response::Response, response::Variant};
use crate::backend::{Backend, BackendError, Next, Pass, Prediction, Row, SequenceId};
use crate::{backend::forward, order::sort_by};
use std::ops::Range;

/// Max variants in one pass: each holds its own copy of the cache chunk that it writes to, in every layer.
const IN_FLIGHT: usize = 8;

/// A variant, the positions to score, and the log-probabilities found so far.
pub(super) struct Rescored<'p> {
    variant: Variant,
    /// Positions (absolute) to score.
    positions: &'p [usize],
    /// Aligned with `positions`; initially the response's own.
    pub logprobs: Vec<f64>,
    /// Rows to run.
    rows: Range<usize>,
}

impl<'p> Rescored<'p> {
    pub fn new(response: &Response, variant: Variant, positions: &'p [usize]) -> Rescored<'p> {
        let listed = response.step(variant.position - 1).top.iter().find(|t| t.token == variant.token);
        let own = listed.map(|t| t.logprob);
        let known = |p: &usize| {
            if *p == variant.position { own.unwrap_or(f64::NAN) } else { response.logprob_at(*p) }
        };
        let logprobs = positions.iter().map(known).collect();
        // a replacement that its row does not list needs that row again
        let start = variant.position - usize::from(own.is_none());
        let end = positions.iter().copied().filter(|p| *p > variant.position || own.is_none()).max().unwrap_or(0);
        Rescored { variant, positions, logprobs, rows: start..end.max(start) }
    }

    fn token(&self, response: &Response, position: usize) -> u32 {
        if position == self.variant.position { self.variant.token } else { response.tokens[position] }
    }

    /// The wanted probabilities computed from `rows` (absolute): index in `logprobs`, and a request for the row at `first` + its
    /// distance from the start of `rows`.
    fn requests(&self, response: &Response, rows: Range<usize>, first: usize) -> Vec<(usize, Prediction)> {
        let from = |i: &usize| [&rows, &self.rows].iter().all(|rows| rows.contains(&(self.positions[*i] - 1)));
        let request = |i: usize| {
            let next = Next::Given(Some(self.token(response, self.positions[i])));
            (i, Prediction { row: first + self.positions[i] - 1 - rows.start, next, detail: false })
        };
        (0..self.positions.len()).filter(from).map(request).collect()
    }
}

/// Runs the variants' rows back to back in passes as wide as the backend allows, each variant in its own sequence that begins with
/// the response's cache: every weight is read once for hundreds of rows, however few a variant has. If a sequence cannot be forked
/// anywhere, a copy of it runs ahead of them, from the first replaced position to the last.
///
/// With `stale_from`, that of [`super::TracedSequence`], runs them in the response's own sequence instead, variant by variant from
/// the last replaced position to the first: everything before the rows that one overwrites is still the response's own, neither
/// recomputed nor copied.
pub(super) fn score(
    backend: &mut dyn Backend,
    sequence: SequenceId,
    response: &Response,
    variants: &mut [Rescored],
    mut stale_from: Option<&mut usize>,
) -> Result<()> {
    let mut order: Vec<usize> = (0..variants.len()).filter(|i| !variants[*i].rows.is_empty()).collect();
    sort_by(&mut order, |a, b| variants[*b].rows.start.cmp(&variants[*a].rows.start));
    if stale_from.is_none() && !backend.rewinds() {
        order.reverse();
    }
    let from = Ahead { sequence, tokens: response.tokens, copy: None };
    let mut together = Together { backend, from, rows: Vec::new(), requests: Vec::new(), open: Vec::new() };
    for index in order {
        let mut left = variants[index].rows.clone();
        let id = match &mut stale_from {
            Some(stale_from) => {
                together.run(variants)?;
                left.start = together.backend.resumes_at(sequence, left.start);
                **stale_from = left.start.min(**stale_from);
                sequence
            }
            None => together.fork(left.start, variants)?,
        };
        while !left.is_empty() {
            let part = left.start..left.end.min(left.start + together.room());
            left.start = part.end;
            together.push(response, index, &variants[index], part, id);
            if together.room() == 0 {
                together.run(variants)?;
                together.close(if left.is_empty() { None } else { Some(id) });
            }
        }
    }
    together.run(variants)
}

/// A pass being filled.
struct Together<'b> {
    backend: &'b mut dyn Backend,
    from: Ahead<'b>,
    rows: Vec<Row>,
    /// Variant, index in its probabilities, request.
    requests: Vec<(usize, usize, Prediction)>,
    /// Sequences that the rows belong to.
    open: Vec<SequenceId>,
}

impl Together<'_> {
    fn room(&self) -> usize {
        self.backend.max_rows() - self.rows.len()
    }

    /// A new sequence for a variant. Open ones are run first if there are enough of them, or no memory for more.
    fn fork(&mut self, positions: usize, variants: &mut [Rescored]) -> Result<SequenceId> {
        let fork = |this: &mut Self| {
            let from = this.from.at(this.backend, positions)?;
            this.backend.fork(from, positions, None)
        };
        if self.open.len() == IN_FLIGHT {
            self.run(variants)?;
            self.close(None);
        }
        let id = match fork(self) {
            Err(error) if error.is_out_of_memory() && !self.open.is_empty() => {
                self.run(variants)?;
                self.close(None);
                fork(self)
            }
            forked => forked,
        }?;
        self.open.push(id);
        Ok(id)
    }

    fn push(&mut self, response: &Response, index: usize, variant: &Rescored, part: Range<usize>, id: SequenceId) {
        let requests = variant.requests(response, part.clone(), self.rows.len());
        self.requests.extend(requests.into_iter().map(|(i, request)| (index, i, request)));
        let row = |position| Row { sequence: id, position, token: variant.token(response, position) };
        self.rows.extend(part.map(row));
    }

    fn run(&mut self, variants: &mut [Rescored]) -> Result<()> {
        let (rows, requests) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.requests));
        if rows.is_empty() {
            return Ok(());
        }
        let mut wanted = vec![false; rows.len()];
        requests.iter().for_each(|(_, _, request)| wanted[request.row] = true);
        forward::forward(self.backend, &Pass { rows: &rows, record: false, wanted: &|row| wanted[row] })?;
        let predictions: Vec<Prediction> = requests.iter().map(|(_, _, request)| *request).collect();
        for ((index, i, _), (step, _)) in requests.iter().zip(self.backend.predict(&predictions)?) {
            variants[*index].logprobs[*i] = step.logprob.unwrap_or(f64::NEG_INFINITY);
        }
        Ok(())
    }

    /// Closes the sequences whose rows have all been run.
    fn close(&mut self, but: Option<SequenceId>) {
        self.open.extract_if(.., |id| but != Some(*id)).for_each(|id| self.backend.close(id));
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.close(None);
        self.from.close(self.backend);
    }
}

/// The response's sequence, or a copy of its beginning that has advanced to where the sequence itself cannot be forked.
struct Ahead<'r> {
    sequence: SequenceId,
    tokens: &'r [u32],
    /// With the number of tokens run.
    copy: Option<(SequenceId, usize)>,
}

impl Ahead<'_> {
    /// A sequence that can be forked at `positions`, which must not decrease from call to call.
    fn at(&mut self, backend: &mut dyn Backend, positions: usize) -> Result<SequenceId, BackendError> {
        let start = backend.resumes_at(self.sequence, positions);
        if start == positions {
            return Ok(self.sequence);
        }
        if self.copy.is_none_or(|(_, entered)| entered < start) {
            self.close(backend);
            self.copy = Some((backend.fork(self.sequence, start, None)?, start));
        }
        let Some((id, entered)) = self.copy else { return Ok(self.sequence) };
        forward::enter(backend, id, entered, &self.tokens[entered..positions]).inspect_err(|_| self.close(backend))?;
        self.copy = Some((id, positions));
        Ok(id)
    }

    fn close(&mut self, backend: &mut dyn Backend) {
        self.copy.take().into_iter().for_each(|(id, _)| backend.close(id));
    }
}
