//! A response whose KV cache and trace an engine holds: what the method asks its questions of.

use super::generate::{GenerateOptions, Generation, Progress};
use super::{Engine, EngineError, forward};
use crate::backend::{Backend, HeadRecord, Next, Prediction, SequenceId, Step};
use crate::uq::{Response, Traced, Variant};
use std::ops::{ControlFlow, Range};

/// A traced response. Dropping it frees the cache and the trace.
pub struct TracedSequence<'e> {
    engine: &'e mut Engine,
    sequence: SequenceId,
    tokens: Vec<u32>,
    n_instr: usize,
    steps: Vec<Step>,
    token_texts: Vec<String>,
    /// From this position on the cache holds a variant's rows.
    stale_from: usize,
}

impl<'e> TracedSequence<'e> {
    pub(super) fn new(
        engine: &'e mut Engine,
        sequence: SequenceId,
        tokens: Vec<u32>,
        n_instr: usize,
        steps: Vec<Step>,
    ) -> Result<TracedSequence<'e>, EngineError> {
        let stale_from = usize::MAX;
        let mut traced =
            TracedSequence { engine, sequence, tokens, n_instr, steps, token_texts: Vec::new(), stale_from };
        for token in &traced.tokens[n_instr..] {
            traced.token_texts.push(traced.engine.tokenizer.decode_token(*token)?);
        }
        Ok(traced)
    }

    /// A generated response; one of no token is an error.
    pub(super) fn of_generation(
        engine: &'e mut Engine,
        sequence: SequenceId,
        generation: Generation,
    ) -> Result<TracedSequence<'e>, EngineError> {
        let Generation { tokens, n_instr, steps, .. } = generation;
        if tokens.len() == n_instr {
            engine.backend.close(sequence);
            return Err(EngineError::NoResponse { n_instr, tokens: n_instr });
        }
        TracedSequence::new(engine, sequence, tokens, n_instr, steps)
    }

    /// Splits into what was left behind and the side that answers questions.
    pub fn parts(&mut self) -> (Response<'_>, Questions<'_>) {
        let response = Response {
            tokens: &self.tokens,
            n_instr: self.n_instr,
            token_texts: &self.token_texts,
            steps: &self.steps,
        };
        let (backend, stale_from) = (&mut *self.engine.backend, &mut self.stale_from);
        (response, Questions { backend, sequence: self.sequence, response, stale_from })
    }

    /// Generates further responses, to prompts that begin as this sequence does: what they share with it is taken from
    /// its cache. More samples for its own prompt share the prompt; a next turn shares everything so far. `streams`
    /// number them for the sampler.
    pub fn generate_sharing(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        streams: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<Generation>, EngineError> {
        self.generate_sharing_with(prompts, options, streams, &mut |_| ControlFlow::Continue(()))
    }

    /// As [`generate_sharing`](Self::generate_sharing); `on_token` sees every token as it is chosen and may break off.
    pub fn generate_sharing_with(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        streams: impl IntoIterator<Item = u64>,
        on_token: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Vec<Generation>, EngineError> {
        self.parts().1.restore()?;
        let mut batch = self.engine.batch(options);
        for (prompt, stream) in prompts.iter().zip(streams) {
            batch.start_sharing((self.sequence, &self.tokens), prompt, stream, on_token)?;
        }
        let finished = batch.finish(on_token)?;
        let mut generations = Vec::with_capacity(finished.len());
        for (id, generation) in finished {
            self.engine.backend.close(id);
            generations.push(generation);
        }
        Ok(generations)
    }

    /// The whole sequence, and where the response starts.
    pub fn tokens(&self) -> (&[u32], usize) {
        (&self.tokens, self.n_instr)
    }

    /// The heads selected at row `row` (absolute).
    pub fn head_record(&self, row: usize) -> Result<Option<HeadRecord>, EngineError> {
        Ok(self.engine.backend.head_record(self.sequence, row)?)
    }

    /// α' of a row (absolute), for each of its selected heads: T + 1 weights.
    pub fn head_rows(&mut self, row: usize) -> Result<Vec<Vec<f32>>, EngineError> {
        self.parts().1.restore()?;
        Ok(self.engine.backend.head_rows(self.sequence, row)?)
    }

    /// Bytes held: (KV cache, trace).
    pub fn memory(&self) -> (usize, usize) {
        self.engine.backend.memory(self.sequence)
    }

    pub fn engine(&self) -> &Engine {
        self.engine
    }
}

impl Drop for TracedSequence<'_> {
    fn drop(&mut self) {
        self.engine.backend.close(self.sequence);
    }
}

/// The engine behind a [`Response`].
pub struct Questions<'a> {
    backend: &'a mut dyn Backend,
    sequence: SequenceId,
    response: Response<'a>,
    /// As in [`TracedSequence`].
    stale_from: &'a mut usize,
}

impl Traced for Questions<'_> {
    type Error = EngineError;

    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.restore()?;
        Ok(self.backend.attention_rows(self.sequence, rows)?)
    }

    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, EngineError> {
        Ok(self.backend.cosines(self.sequence, positions, answer)?)
    }

    /// Visits the variants from the last replaced position to the first: a variant's rows overwrite the cache from its
    /// position on, so that what lies before is still the response's own, neither recomputed nor copied.
    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, EngineError> {
        self.restore()?;
        let mut order: Vec<usize> = (0..variants.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(variants[*i].position));
        let mut results = vec![Vec::new(); variants.len()];
        for index in order {
            results[index] = self.score_variant(variants[index], positions)?;
        }
        Ok(results)
    }
}

impl Questions<'_> {
    /// Runs the response's own rows again where the cache holds a variant's.
    fn restore(&mut self) -> Result<(), EngineError> {
        let stale = std::mem::replace(self.stale_from, usize::MAX);
        let Some(tokens) = self.response.tokens.get(stale..) else { return Ok(()) };
        let restored =
            forward::extend(self.backend, self.sequence, stale, tokens, false, |_, _| Ok::<(), EngineError>(()));
        restored.inspect_err(|_| *self.stale_from = stale)
    }

    fn score_variant(&mut self, variant: Variant, positions: &[usize]) -> Result<Vec<f64>, EngineError> {
        let response = self.response;
        let listed = response.step(variant.position - 1).top.iter().find(|t| t.token == variant.token);
        let own = listed.map(|t| t.logprob);
        // a replacement that its row does not list needs that row once more
        let start = variant.position - usize::from(own.is_none());
        let end = positions.iter().copied().filter(|p| *p > variant.position || own.is_none()).max().unwrap_or(0);
        let mut logprobs: Vec<f64> = positions
            .iter()
            .map(|p| if *p == variant.position { own.unwrap_or(f64::NAN) } else { response.logprob_at(*p) })
            .collect();
        if end <= start {
            return Ok(logprobs);
        }
        let mut tokens = response.tokens[start..end].to_vec();
        if let Some(replaced) = tokens.get_mut(variant.position - start) {
            *replaced = variant.token;
        }
        *self.stale_from = (*self.stale_from).min(start);
        let token_at = |p: usize| if p == variant.position { variant.token } else { response.tokens[p] };
        forward::extend::<EngineError>(self.backend, self.sequence, start, &tokens, false, |backend, rows| {
            let wanted: Vec<usize> = (0..positions.len()).filter(|i| rows.contains(&(positions[*i] - 1))).collect();
            let request = |i: &usize| Prediction {
                row: positions[*i] - 1 - rows.start,
                next: Next::Given(Some(token_at(positions[*i]))),
                detail: false,
            };
            let requests: Vec<Prediction> = wanted.iter().map(request).collect();
            for (i, (step, _)) in wanted.iter().zip(backend.predict(&requests)?) {
                logprobs[*i] = step.logprob.unwrap_or(f64::NEG_INFINITY);
            }
            Ok(())
        })?;
        Ok(logprobs)
    }
}
