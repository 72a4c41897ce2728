//! Decoding of prompts of a given length, timed.

use super::BenchError;
use super::report::MedianRange;
use crate::backend::sampling::Sampling;
use crate::engine::{Engine, GenerateOptions, Generation, HeadSelection, TracedSequence};
use std::ops::ControlFlow;
use std::time::Instant;

/// What prompts are made of; every model's tokenizer knows such text.
const TEXT: &str = "Tom has 3 boxes with 12 pencils each. He gives away 7 and buys half as many again as he has left. \
                    A train leaves at 9 and runs 80 kilometres an hour; another follows an hour later at 100. \
                    How many are left, and when do they meet? Think step by step. ";

/// `tokens` tokens of text, each `stream`'s from another place of it.
pub(super) fn prompt(engine: &Engine, tokens: usize, stream: usize) -> Result<Vec<u32>, BenchError> {
    let text = engine.tokenizer().encode(TEXT, false)?;
    Ok(text.iter().copied().cycle().skip(stream * 7 % text.len().max(1)).take(tokens).collect())
}

/// Units a second from seconds.
pub(super) fn rate(units: f64, seconds: &[f64]) -> MedianRange {
    MedianRange::of(&seconds.iter().map(|s| units / s).collect::<Vec<_>>())
}

/// Responses to prompts that begin as a cached sequence does.
pub(super) struct Decoding {
    /// One a sequence.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens that each response has.
    pub tokens: usize,
}

/// Seconds of a decode step, all sequences together, and what was generated.
pub(super) struct Decoded {
    pub step: f64,
    /// One a sequence.
    pub generations: Vec<Generation>,
}

impl Decoding {
    /// Greedy, plain or with the trace.
    pub fn greedy(&self, base: &mut TracedSequence, traced: bool) -> Result<Decoded, BenchError> {
        self.run(base, traced.then(HeadSelection::default), 0.0)
    }

    /// All sequences at once, with the trace of a profile or without.
    pub fn run(
        &self,
        base: &mut TracedSequence,
        trace: Option<HeadSelection>,
        temperature: f32,
    ) -> Result<Decoded, BenchError> {
        let sampling = Sampling { temperature, ..Sampling::GREEDY };
        let options = GenerateOptions {
            max_tokens: self.tokens,
            sampling,
            trace,
            ignore_ends: true,
            ..GenerateOptions::default()
        };
        // the first token of each comes from a pass of its own
        let (mut count, mut first, mut last) = (0, Instant::now(), Instant::now());
        let generations = base.generate_sharing_with(&self.prompts, &options, 0.., &mut |_| {
            last = Instant::now();
            count += 1;
            if count == self.prompts.len() {
                first = last;
            }
            ControlFlow::Continue(())
        })?;
        check(&generations)?;
        let steps = self.tokens.saturating_sub(1).max(1);
        Ok(Decoded { step: (last - first).as_secs_f64() / steps as f64, generations })
    }
}

/// A fast run that went wrong is no result.
fn check(generations: &[Generation]) -> Result<(), BenchError> {
    for generation in generations {
        let response = generation.tokens.len() - generation.prompt_len;
        for (index, step) in generation.steps.iter().take(response).enumerate() {
            let logprob = step.logprob.unwrap_or(f64::NAN);
            if !logprob.is_finite() {
                return Err(BenchError::NotFinite { index, logprob });
            }
        }
    }
    Ok(())
}
