//! The device against the CPU backend on shrunken shapes, with equal cache types and identically rounded inputs of
//! products. The allowed difference is the effect of rounding all inputs: small differences flip some roundings, never
//! all.

use crate::log::{Failure, FailureKind};
use crate::measure::StageError;
use crate::report::Row;
use std::ops::ControlFlow;
use uqac::{Engine, GenerateOptions, TraceParts};
use uqac::{Parameters, Profile, internals::chain};

/// A prompt longer than one tile of any kernel, and a response that crosses a chunk boundary of the cache.
const PROMPT: usize = 75;
const RESPONSE: usize = 70;

/// The effect of a different f32 summation order.
const ORDER: f64 = 2e-4;

/// One engine's view of a sequence.
struct Seen {
    logprobs: Vec<f64>,
    entropies: Vec<f64>,
    /// Per row: the heads, and the gap to the best head that was not selected.
    heads: Vec<(Vec<u32>, f32)>,
    chain: Vec<i64>,
}

impl Seen {
    /// The largest difference of a log-probability or an entropy.
    fn difference(&self, other: &Seen) -> f64 {
        let largest = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        largest(&self.logprobs, &other.logprobs).max(largest(&self.entropies, &other.entropies))
    }
}

/// Compares the same work on all three engines: `cpu` rounds as the device does, `exact` does not round.
pub fn agreement(
    shape: &str,
    device: &mut Engine,
    cpu: &mut Engine,
    exact: &mut Engine,
) -> Result<Vec<Row>, StageError> {
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 37 + 11) % 500).collect();
    let written = [generate(device, &prompt)?, generate(cpu, &prompt)?];
    let same = written[0].iter().zip(&written[1]).take_while(|(a, b)| a == b).count();
    let row = |what: &str, unit: &str, value: f64| Row::new(shape, format!("against the CPU: {what}"), unit, &[value]);
    let tokens = row("tokens of a response before the first that differs", "tokens", (same - PROMPT) as f64);
    let (a, b) = (see(device, &written[1])?, see(cpu, &written[1])?);
    let rounding = b.difference(&see(exact, &written[1])?);
    let bound = rounding.max(ORDER);
    let difference = a.difference(&b);
    let (heads, compared) = same_heads(&a, &b, bound as f32);
    Ok(vec![
        tokens.target("all", true, |_| same == PROMPT + RESPONSE),
        row("largest difference of ln p or a prediction's entropy", "nats", difference)
            .fact("rounding", rounding)
            .target(&format!("≤ {bound:.1e}"), true, |row| row.median <= bound),
        row("rows with the same heads, of those with a clear gap", "rows", heads as f64)
            .fact("compared", compared as f64)
            .target("all", true, |_| heads == compared),
        row("the same chain", "of 1", f64::from(u8::from(a.chain == b.chain))).fact("links", b.chain.len() as f64),
    ])
}

/// A difference not explained by rounding.
pub fn unexplained(rows: &[Row]) -> Option<Failure> {
    let row = rows.iter().find(|row| row.met() == Some(false))?;
    Some(Failure { message: format!("unexplained: {}", row.line().trim()), kind: FailureKind::Wrong })
}

fn generate(engine: &mut Engine, prompt: &[u32]) -> Result<Vec<u32>, StageError> {
    let options = GenerateOptions { max_tokens: RESPONSE, ..GenerateOptions::default() };
    let mut generations = engine.generate(&[prompt.to_vec()], &options, |_| ControlFlow::Continue(()))?;
    let found = generations.pop().map_or(Vec::new(), |generation| generation.tokens);
    let expected = RESPONSE;
    if found.len() == PROMPT + RESPONSE {
        Ok(found)
    } else {
        Err(StageError::Short { sequence: 0, found: found.len().saturating_sub(PROMPT), expected })
    }
}

fn see(engine: &mut Engine, tokens: &[u32]) -> Result<Seen, StageError> {
    let mut traced = engine.trace(tokens, PROMPT, TraceParts::default())?;
    let rows = PROMPT - 1..tokens.len();
    let mut heads = Vec::new();
    for row in rows {
        if let Some(record) = traced.head_record(row)? {
            // as a set: heads with nearly equal entropies may swap
            heads.push((sorted(record.heads), record.gap));
        }
    }
    let (response, mut queries) = traced.parts();
    let parameters = Parameters::published(Profile::Corrected);
    let links = chain::attention_chain(&response, tokens.len() - 3..tokens.len(), &parameters, &mut queries)?;
    Ok(Seen {
        logprobs: response.steps.iter().filter_map(|step| step.logprob).collect(),
        entropies: response.steps.iter().map(|step| step.entropy).collect(),
        heads,
        chain: links.iter().map(|link| link.row).collect(),
    })
}

fn sorted(mut heads: Vec<u32>) -> Vec<u32> {
    heads.sort_unstable();
    heads
}

/// Number of rows with equal heads, and of rows whose selection is clear enough to compare.
fn same_heads(a: &Seen, b: &Seen, gap: f32) -> (usize, usize) {
    let clear = a.heads.iter().zip(&b.heads).filter(|(a, b)| a.1 > gap && b.1 > gap);
    clear.fold((0, 0), |(same, all), (a, b)| (same + usize::from(a.0 == b.0), all + 1))
}
