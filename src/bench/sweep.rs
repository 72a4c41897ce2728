//! Decoding and scoring by the length of the context.

use super::decoding::{Decoding, prompt, rate};
use super::interleave::{added_percent, interleave};
use super::report::{MedianRange, Scoring, SweepRow};
use super::roofline::{self, ANSWER};
use super::{BenchError, Settings};
use crate::bench::machine::Machine;
use crate::engine::{Engine, HeadSelection};
use crate::uq::{Parameters, Profile, chain, similarity};
use std::time::Instant;

/// Decode steps at each context.
const STEPS: usize = 32;

/// The prompt of a context that is scored as a response.
const PROMPT: usize = 64;

/// Times that a context is scored, at most: each takes as long as many decode steps.
const SCORED: usize = 3;

/// Shortest context that is scored.
const MIN_SCORED: usize = 16;

/// Plain and traced steps, interleaved, after contexts of the lengths in `settings.sweep`.
pub fn sweep(
    engine: &mut Engine,
    machine: &mut Machine,
    settings: &Settings,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<SweepRow>, BenchError> {
    let mut rows = Vec::new();
    for &context in &settings.sweep {
        progress(&format!("context of {context} tokens"));
        let tokens = prompt(engine, context, 0)?;
        let start = Instant::now();
        let mut base = engine.trace(&tokens, context - 1, HeadSelection::default())?;
        let prefill = context as f64 / start.elapsed().as_secs_f64();
        let decoding = Decoding { prompts: vec![tokens.clone()], tokens: STEPS + 1 };
        let (mut plain, mut traced, mut bandwidth) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..settings.rounds {
            bandwidth.push(machine.bandwidth()?);
            let [a, b] = interleave(round, |traced| decoding.greedy(&mut base, traced))?;
            plain.push(a.step);
            traced.push(b.step);
        }
        drop(base);
        let bytes = roofline::step_bytes(engine, 1, context, STEPS);
        let speed = bytes / MedianRange::of(&plain).median;
        rows.push(SweepRow {
            context,
            prefill_tokens_per_second: prefill,
            plain_tokens_per_second: rate(1.0, &plain),
            traced_tokens_per_second: rate(1.0, &traced),
            trace_overhead_percent: MedianRange::of(&added_percent(&plain, &traced)),
            gb_per_second: speed / 1e9,
            share_of_bandwidth: speed / MedianRange::of(&bandwidth).median,
            cache_bytes: roofline::cache_bytes(engine, context + STEPS) as u64,
            score: score(engine, machine, settings, &tokens)?,
        });
    }
    Ok(rows)
}

/// Scores `tokens` as a prompt and its response, whose last tokens are the answer.
fn score(
    engine: &mut Engine,
    machine: &Machine,
    settings: &Settings,
    tokens: &[u32],
) -> Result<Option<Scoring>, BenchError> {
    if tokens.len() < MIN_SCORED {
        return Ok(None);
    }
    let parameters = Parameters::published(Profile::Corrected);
    let (prompt_len, answer) = (PROMPT.min(tokens.len() / 2), tokens.len() - ANSWER..tokens.len());
    let (mut seconds, mut extra) = (Vec::new(), None);
    for _ in 0..settings.rounds.min(SCORED) {
        let before = machine.in_use()?;
        let watch = machine.watch().ok();
        let start = Instant::now();
        let mut traced = engine.trace(tokens, prompt_len, HeadSelection::default())?;
        let (response, mut queries) = traced.parts();
        let mut links = chain::attention_chain(&response, answer.clone(), &parameters, &mut queries)?;
        similarity::measure(&response, answer.clone(), &mut links, &mut queries)?;
        seconds.push(start.elapsed().as_secs_f64());
        extra = extra.max(watch.and_then(|watch| watch.peak().ok()).map(|peak| peak.saturating_sub(before)));
    }
    Ok(Some(Scoring { seconds: MedianRange::of(&seconds), extra_bytes: extra }))
}
