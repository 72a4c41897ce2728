//! The work after an answer: chain, similarities, ensemble.

use crate::measure::{Bench, StageError};
use crate::report::{Row, median};
use crate::roofline::{self, ANSWER};
use std::ops::{ControlFlow, Range};
use std::time::Instant;
use uqac::Sampling;
use uqac::internals::{Link, Variant, chain, ensemble, similarity};
use uqac::{Engine, EngineError, GenerateOptions, TraceParts, TracedSequence};
use uqac::{Parameters, Profile, Response};

/// Seconds spent in each part of one round.
struct Round {
    generation: f64,
    chain: f64,
    similarity: f64,
    ensemble: f64,
    links: usize,
}

impl Round {
    fn total(&self) -> f64 {
        self.chain + self.similarity + self.ensemble
    }
}

/// Chain, similarity and ensemble as a share of the generation's time.
pub fn answered(bench: &mut Bench) -> Result<Vec<Row>, StageError> {
    let (prompt, tokens, variants) = (bench.sizes.prompt, bench.sizes.answered, bench.sizes.variants);
    let prompt = bench.prompts(1, prompt).remove(0);
    let copies = bench.machine.bandwidth()?;
    let bandwidth = bench.read_floor(copies);
    let mut rounds = Vec::new();
    round(&mut bench.engine, &prompt, tokens.min(16), variants, 0)?;
    for i in 0..bench.sizes.rounds.min(3) {
        rounds.push(round(&mut bench.engine, &prompt, tokens, variants, i as u64)?);
    }
    let of = |part: fn(&Round) -> f64| median(&rounds.iter().map(part).collect::<Vec<_>>());
    let shares: Vec<f64> = rounds.iter().map(|r| 100.0 * r.total() / r.generation).collect();
    let floor = floor(bench, prompt.len(), tokens, variants, bandwidth);
    let what = format!("chain + similarity + ensemble, {variants} variants, {tokens} tokens");
    let because = "the rows after each replaced token at the matrix rate, the weights once; of the generation's time";
    Ok(vec![
        Row::new(bench.shape, what, "%", &shares)
            .floor(Some(100.0 * floor / of(|r| r.generation)), because)
            .fact("generation s", of(|r| r.generation))
            .fact("chain s", of(|r| r.chain))
            .fact("similarity s", of(|r| r.similarity))
            .fact("ensemble s", of(|r| r.ensemble))
            .fact("links", of(|r| r.links as f64))
            .target("≤ 3 %", bench.counts, |row| row.median <= 3.0),
    ])
}

/// Positions of replaced tokens, without duplicates.
fn replaced(prompt_len: usize, tokens: usize, variants: usize) -> Vec<usize> {
    let mut positions = roofline::replaced(prompt_len, tokens, variants);
    positions.dedup();
    positions
}

/// Minimum seconds that the ensemble needs.
fn floor(bench: &Bench, prompt_len: usize, tokens: usize, variants: usize, bandwidth: f64) -> f64 {
    let last = prompt_len + tokens - 1;
    let positions = replaced(prompt_len, tokens, variants);
    let operations = roofline::ensemble_operations(&bench.engine, &positions, last);
    let computed = bench.matrix_rate.map_or(0.0, |rate| operations / rate);
    computed.max(bench.engine.weight_bytes_per_token() as f64 / bandwidth)
}

fn round(engine: &mut Engine, prompt: &[u32], tokens: usize, variants: usize, seed: u64) -> Result<Round, StageError> {
    // sampled: greedy text of random weights soon repeats
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::GREEDY };
    let options = GenerateOptions { max_tokens: tokens, sampling, ..GenerateOptions::default() };
    let start = Instant::now();
    let (_, mut traced) = engine.generate_traced(prompt, &options, |_| ControlFlow::Continue(()))?;
    let generation = start.elapsed().as_secs_f64();
    let prompt_len = prompt.len();
    let answer = prompt_len + tokens - ANSWER..prompt_len + tokens;
    let parameters = Parameters::published(Profile::Corrected);

    let start = Instant::now();
    let mut links = chain(&mut traced, answer.clone(), &parameters)?;
    let chain = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let (response, mut queries) = traced.parts();
    similarity::measure(&response, answer.clone(), &mut links, &mut queries)?;
    similarity::filter(&response, answer.clone(), &links, &parameters);
    let similarity = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let variants: Vec<Variant> =
        replaced(prompt_len, tokens, variants).into_iter().map(|at| alternative(&response, at)).collect();
    let kept: Vec<i64> = variants.iter().map(|variant| response.relative_row(variant.position)).collect();
    ensemble::score(&response, answer, &kept, &variants, &parameters, &mut queries)?;
    Ok(Round { generation, chain, similarity, ensemble: start.elapsed().as_secs_f64(), links: links.len() })
}

/// The most probable token at `position` other than the response's own.
fn alternative(response: &Response, position: usize) -> Variant {
    let own = response.tokens[position];
    let listed = response.step(position - 1).top.iter().find(|top| top.token != own);
    Variant { position, token: listed.map_or(u32::from(own == 0), |top| top.token) }
}

fn chain(traced: &mut TracedSequence, answer: Range<usize>, parameters: &Parameters) -> Result<Vec<Link>, EngineError> {
    let (response, mut queries) = traced.parts();
    chain::attention_chain(&response, answer, parameters, &mut queries)
}

/// A traced pass over `tokens` and the chain from the last ones: the chain's length, and the
/// sequence's bytes.
pub fn chain_of(engine: &mut Engine, tokens: &[u32], prompt_len: usize) -> Result<(usize, usize), EngineError> {
    let mut traced = engine.trace(tokens, prompt_len, TraceParts::default())?;
    let answer = tokens.len() - ANSWER..tokens.len();
    let links = chain(&mut traced, answer, &Parameters::published(Profile::Corrected))?;
    let (cache, trace) = traced.memory();
    Ok((links.len(), cache + trace))
}
