//! A response whose KV cache and trace an engine holds, and queries on it.

use super::generate::{FinishReason, GenerateOptions, Generation, OnToken, Progress};
use super::rescore::{self, Rescored};
use super::{Engine, EngineError, Result, response::Response, response::Variant, trace_response};
use crate::backend::{Backend, HeadRecord, Row, SequenceId, TraceOptions, TraceParts};
use crate::{backend::entropy::EntropyRule, backend::forward, backend::reference::dot, model::ModelSpec};
use std::ops::{ControlFlow, Range};

/// K, as published.
pub const SELECTED_HEADS: usize = 16;

impl TraceParts {
    /// K as published, exact entropies, and nothing else.
    pub const PUBLISHED: TraceParts = TraceOptions::new(0, SELECTED_HEADS, EntropyRule::Exact).parts;
}

impl Default for TraceParts {
    fn default() -> Self {
        TraceParts::PUBLISHED
    }
}

/// A traced response. Dropping it frees the cache and the trace.
pub struct TracedSequence<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) sequence: SequenceId,
    pub(super) generation: Generation,
    token_texts: Vec<String>,
    layer_means: Vec<Vec<f64>>,
    /// From this position on the cache holds a variant's rows.
    stale_from: usize,
}

impl<'e> TracedSequence<'e> {
    /// A response whose rows have been run; an empty one is an error.
    pub(super) fn new(
        engine: &'e mut Engine,
        sequence: SequenceId,
        generation: Generation,
    ) -> Result<TracedSequence<'e>> {
        let (token_texts, layer_means, stale_from) = (Vec::new(), Vec::new(), usize::MAX);
        let mut traced = TracedSequence { engine, sequence, generation, token_texts, layer_means, stale_from };
        let Generation { tokens, prompt_len, steps, .. } = &mut traced.generation;
        if tokens.len() == *prompt_len {
            return Err(EngineError::NoResponse { prompt_len: *prompt_len, tokens: *prompt_len });
        }
        let heads = traced.engine.spec().num_attention_heads;
        for (row, step) in (*prompt_len - 1..).zip(steps) {
            let attention = traced.engine.backend.head_attention(sequence, row)?.unwrap_or_default();
            step.heads = attention.chunks(heads).map(<[_]>::to_vec).collect();
        }
        for token in &tokens[*prompt_len..] {
            traced.token_texts.push(traced.engine.tokenizer.decode_token(*token)?);
        }
        traced.layer_means = traced.engine.backend.layer_means(sequence)?.unwrap_or_default();
        Ok(traced)
    }

    /// Splits into the recorded response and the queries on it.
    pub fn parts(&mut self) -> (Response<'_>, TraceQueries<'_>) {
        let (Generation { tokens, prompt_len, steps, .. }, token_texts) = (&self.generation, &self.token_texts);
        let (prompt_len, layer_means) = (*prompt_len, &self.layer_means);
        let response = Response { tokens, prompt_len, token_texts, steps, layer_means };
        let (backend, stale_from) = (&mut *self.engine.backend, &mut self.stale_from);
        (response, TraceQueries { backend, sequence: self.sequence, response, stale_from })
    }

    /// The whole sequence, and where the response starts.
    pub fn tokens(&self) -> (&[u32], usize) {
        (&self.generation.tokens, self.generation.prompt_len)
    }

    /// Sets why the response ended, as far as known of one that was not generated here.
    pub fn set_finish(&mut self, finish: FinishReason) {
        self.generation.finish = finish;
    }

    /// The response's tokens that the model did not choose, as ranges of positions `[start, end)`.
    pub fn forced(&self) -> Vec<[usize; 2]> {
        let Generation { prompt_len, steps, .. } = &self.generation;
        let positions: Vec<usize> =
            (*prompt_len..).zip(steps).filter(|(_, step)| step.forced).map(|(at, _)| at).collect();
        positions.chunk_by(|a, b| a + 1 == *b).map(|run| [run[0], run[0] + run.len()]).collect()
    }

    /// Marks the tokens at these positions of an existing response as not chosen by the model.
    pub fn set_forced(&mut self, ranges: &[[usize; 2]]) {
        let Generation { prompt_len, steps, .. } = &mut self.generation;
        for (position, step) in (*prompt_len..).zip(steps) {
            step.forced = ranges.iter().any(|[start, end]| (*start..*end).contains(&position));
        }
    }

    /// Whether the response would have continued.
    pub fn is_cut_off(&self) -> bool {
        self.generation.finish.is_cut_off()
    }

    /// The heads selected at row `row` (absolute).
    pub fn head_record(&self, row: usize) -> Result<Option<HeadRecord>> {
        Ok(self.engine.backend.head_record(self.sequence, row)?)
    }

    /// α' of a row (absolute), for each of its selected heads: T + 1 weights.
    pub fn head_rows(&mut self, row: usize) -> Result<Vec<Vec<f32>>> {
        self.parts().1.restore()?;
        Ok(self.engine.backend.head_rows(self.sequence, row)?)
    }

    /// ln p of each of `tokens` given only those before it, in a separate sequence; the first has none and is omitted.
    pub fn logprobs_alone(&mut self, tokens: &[u32]) -> Result<Vec<f64>> {
        if tokens.len() < 2 {
            return Ok(Vec::new());
        }
        self.engine.check(tokens, 0)?;
        let backend = &mut *self.engine.backend;
        let sequence = backend.open_for(tokens.len(), None)?;
        let steps = trace_response(backend, sequence, tokens, tokens.len(), 1);
        backend.close(sequence);
        Ok(steps?.iter().filter_map(|step| step.logprob).collect())
    }

    /// The attention of the last of `tokens` to all of them, `[tokens]`: the mean over all layers and heads of its softmax weights,
    /// in a separate sequence that takes the common prefix from this one's cache.
    pub fn mean_attention(&mut self, tokens: &[u32]) -> Result<Vec<f64>> {
        self.parts().1.restore()?;
        self.engine.check(tokens, 0)?;
        let Some((last, before)) = tokens.split_last() else { return Ok(Vec::new()) };
        // the last token of a response may not have been run
        let cached = &self.generation.tokens;
        let backend = &mut *self.engine.backend;
        let shared = shared(backend.spec(), tokens, &cached[..cached.len() - 1]);
        let start = backend.resumes_at(self.sequence, shared);
        let sequence = match start {
            0 => backend.open_for(tokens.len(), None)?,
            _ => backend.fork(self.sequence, start, None)?,
        };
        let entered = forward::enter(backend, sequence, start, &before[start..]);
        let row = Row { sequence, position: before.len(), token: *last };
        let attention = entered.and_then(|()| forward::mean_attention(backend, row));
        backend.close(sequence);
        Ok(attention?)
    }

    /// Final hidden states (after the final norm) of the response's rows, `[R + 1, hidden_size]`: the prompt's last token and each
    /// token of the response.
    pub fn hidden_states(&self) -> Result<Vec<f32>> {
        let (tokens, prompt_len) = self.tokens();
        Ok(self.engine.backend.hidden_states(self.sequence, prompt_len - 1..tokens.len())?)
    }

    /// Generates further responses, to prompts that begin like this sequence: the common prefix is taken from its cache. More
    /// samples for its own prompt share the prompt; a next turn shares everything so far. `streams` identify them to the sampler;
    /// `on_token` receives every token as it is chosen and may stop its response.
    pub fn generate_sharing(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        streams: impl IntoIterator<Item = u64>,
        on_token: OnToken,
    ) -> Result<Vec<Generation>> {
        self.parts().1.restore()?;
        let mut batch = self.engine.batch(options);
        let Generation { tokens, prompt_len, .. } = &self.generation;
        batch.guess_from(&tokens[*prompt_len..]);
        for (prompt, stream) in prompts.iter().zip(streams) {
            let base = Some((self.sequence, shared(batch.engine.spec(), prompt, tokens)));
            batch.start_from(base, prompt, stream, batch.request.clone(), on_token)?;
        }
        batch.finish(on_token)
    }

    /// Bytes held: (KV cache, trace).
    pub fn memory(&self) -> (usize, usize) {
        self.engine.backend.memory(self.sequence)
    }

    pub fn engine(&self) -> &Engine {
        self.engine
    }
}

impl Engine {
    /// Generates a response to one prompt and keeps its cache and trace. An empty response (`max_tokens` 0, or stopped immediately)
    /// is an error.
    pub fn generate_traced(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        mut on_token: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(FinishReason, TracedSequence<'_>)> {
        let options = GenerateOptions { trace: Some(options.trace.unwrap_or_default()), ..options.clone() };
        let mut batch = self.batch(&options);
        let ticket = batch.start(prompt, 0, &mut on_token)?;
        batch.decode(&mut on_token, &mut |_| false)?;
        batch.first_failure()?;
        let ended = batch.remove(ticket).ok_or(EngineError::EmptyPrompt)?;
        drop(batch);
        Ok((ended.generation.finish, TracedSequence::new(self, ended.id, ended.generation)?))
    }
}

/// Length of the common prefix of a prompt and `cached`, without the prompt's last token: its row predicts the response's first. 0 if
/// their frequencies differ.
pub(super) fn shared(spec: &ModelSpec, prompt: &[u32], cached: &[u32]) -> usize {
    let [one, other] = [prompt, cached].map(|tokens| spec.is_long(tokens.len()));
    let before = &prompt[..prompt.len().saturating_sub(1)];
    if one == other { before.iter().zip(cached).take_while(|(a, b)| a == b).count() } else { 0 }
}

impl Drop for TracedSequence<'_> {
    fn drop(&mut self) {
        self.engine.backend.close(self.sequence);
    }
}

/// Hidden states read at a time for cosines.
const STATES: usize = 256;

/// In f64 until the end; 0 for a zero vector.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms > 0.0 { (dot(a, b) / norms) as f32 } else { 0.0 }
}

/// Queries of the method to the owner of a response's KV cache and trace: an engine, or a test with fixed results.
pub trait Traced {
    type Error;

    /// α* of each row (absolute): `max` over the row's K selected heads of the reweighted, normalized attention α'.
    /// Row T yields T + 1 weights; positions 0 and T are 0.
    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>, Self::Error>;

    /// Cosines of final hidden states (after the final norm), row-major `[positions, answer]`; all positions absolute. 0 if one of
    /// the two was not traced.
    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>, Self::Error>;

    /// For each variant and each of `positions` (absolute, ascending): ln p(the variant's token at that position |
    /// the variant's tokens before it), full vocabulary. Positions up to the variant's own are those of the response
    /// (at its own: the replacement's).
    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>, Self::Error>;
}

/// Queries about a [`Response`], in any order: cache entries that scoring variants overwrites are restored before the next query
/// that reads them.
pub struct TraceQueries<'a> {
    backend: &'a mut dyn Backend,
    sequence: SequenceId,
    response: Response<'a>,
    /// As in [`TracedSequence`].
    stale_from: &'a mut usize,
}

impl Traced for TraceQueries<'_> {
    type Error = EngineError;

    fn attention_rows(&mut self, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
        self.restore()?;
        Ok(self.backend.attention_rows(self.sequence, rows)?)
    }

    fn cosines(&mut self, positions: &[usize], answer: Range<usize>) -> Result<Vec<f32>> {
        let (width, mut cosines) =
            (self.backend.spec().hidden_size, Vec::with_capacity(positions.len() * answer.len()));
        let answer = self.backend.hidden_states(self.sequence, answer)?;
        for some in positions.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(STATES)) {
            let states = self.backend.hidden_states(self.sequence, some[0]..some[0] + some.len())?;
            let pairs = states.chunks(width).flat_map(|a| answer.chunks(width).map(move |b| cosine(a, b)));
            cosines.extend(pairs);
        }
        Ok(cosines)
    }

    fn score_variants(&mut self, variants: &[Variant], positions: &[usize]) -> Result<Vec<Vec<f64>>> {
        self.restore()?;
        let (response, sequence) = (self.response, self.sequence);
        let mut rescored: Vec<Rescored> = variants.iter().map(|v| Rescored::new(&response, *v, positions)).collect();
        let mut in_place = !self.backend.mixes_sequences();
        if !in_place {
            match rescore::score(self.backend, sequence, &response, &mut rescored, None) {
                // no memory for even one copy of the cache
                Err(EngineError::Backend(error)) if error.is_out_of_memory() => in_place = true,
                scored => scored?,
            }
        }
        if in_place {
            rescore::score(self.backend, sequence, &response, &mut rescored, Some(self.stale_from))?;
        }
        Ok(rescored.into_iter().map(|variant| variant.logprobs).collect())
    }
}

impl TraceQueries<'_> {
    /// Reruns the response's own rows where the cache holds a variant's.
    pub(super) fn restore(&mut self) -> Result<()> {
        let stale = std::mem::replace(self.stale_from, usize::MAX);
        let start = self.backend.resumes_at(self.sequence, stale);
        let Some(tokens) = self.response.tokens.get(start..).filter(|_| stale < usize::MAX) else { return Ok(()) };
        let restored = forward::enter(self.backend, self.sequence, start, tokens);
        Ok(restored.inspect_err(|_| *self.stale_from = stale)?)
    }
}
