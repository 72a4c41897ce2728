//! Decoding by the length of the context.

use super::measure::{Decoding, prompt, rate};
use super::report::{Spread, SweepRow};
use super::{BenchError, Settings, floors};
use crate::bench::machine::Machine;
use crate::engine::Engine;
use crate::uq::Profile;
use std::time::Instant;

/// Decode steps at each context.
const STEPS: usize = 32;

/// Plain and traced steps in turns behind contexts of `contexts` tokens.
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
        let mut base = engine.trace(&tokens, context - 1, Profile::Corrected)?;
        let prefill = context as f64 / start.elapsed().as_secs_f64();
        let decoding = Decoding { prompts: vec![tokens.clone()], tokens: STEPS + 1 };
        let (mut plain, mut traced, mut bandwidth) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..settings.rounds {
            bandwidth.push(machine.bandwidth()?);
            let [a, b] = decoding.pair(&mut base, round)?;
            plain.push(a.step);
            traced.push(b.step);
        }
        drop(base);
        let overhead: Vec<f64> = plain.iter().zip(&traced).map(|(a, b)| 100.0 * (b - a) / a).collect();
        let bytes = floors::step_bytes(engine, 1, context, STEPS);
        let speed = bytes / Spread::of(&plain).median;
        rows.push(SweepRow {
            context,
            prefill_tokens_per_second: prefill,
            plain_tokens_per_second: rate(1.0, &plain),
            traced_tokens_per_second: rate(1.0, &traced),
            trace_overhead_percent: Spread::of(&overhead),
            gb_per_second: speed / 1e9,
            share_of_bandwidth: speed / Spread::of(&bandwidth).median,
            cache_bytes: floors::cache_bytes(engine, context + STEPS) as u64,
        });
    }
    Ok(rows)
}
