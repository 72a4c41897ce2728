//! Speculative decoding beside one token a pass, on prompts of a task: what it gains depends on the text.

use super::{BenchError, MedianRange};
use crate::engine::{Engine, GenerateOptions, Generation, Speculate};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// The response to one prompt, decoded both ways.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub prompt_tokens: usize,
    pub response_tokens: usize,
    /// Tokens a second after the prompt, one token a pass.
    pub plain_tokens_per_second: f64,
    pub tokens_per_second: f64,
    pub tokens_per_pass: f64,
    /// Share of the guessed tokens that were right; `None` where nothing was guessed.
    pub accepted: Option<f64>,
}

/// Comparisons of a model's responses.
#[derive(Clone, Debug, Serialize)]
pub struct Speculation {
    pub model: String,
    pub device: String,
    pub responses: Vec<Comparison>,
    /// Of speeds, response by response.
    pub speedup: MedianRange,
    /// Σ of plain seconds over Σ of seconds.
    pub overall_speedup: f64,
    pub tokens_per_pass: f64,
}

/// Generates a traced response to each prompt with and without guesses, in turns.
///
/// # Errors
/// [`BenchError::Speculation`] if a bit of them differs.
pub fn run(
    engine: &mut Engine,
    model: String,
    prompts: &[(Vec<u32>, GenerateOptions)],
    progress: &mut dyn FnMut(&str),
) -> Result<Speculation, BenchError> {
    let (speculate, mut responses) = (engine.options().speculate, Vec::new());
    let (mut plain_seconds, mut seconds, mut passes, mut steps) = (0.0, 0.0, 0, 0);
    for (i, (prompt, options)) in prompts.iter().enumerate() {
        progress(&format!("response {} of {}", i + 1, prompts.len()));
        let (mut runs, before) = ([None, None], engine.speculation());
        // the first of a pair meets colder caches
        for turn in [i % 2, 1 - i % 2] {
            engine.set_speculate([Speculate::Off, speculate][turn]);
            runs[turn] = Some(response(engine, prompt, options)?);
        }
        let [Some((plain, own_plain_seconds)), Some((generation, own_seconds))] = runs else { continue };
        if plain != generation {
            return Err(BenchError::Speculation { prompt: i });
        }
        let after = engine.speculation();
        let (guessed, accepted) = (after.guessed - before.guessed, after.accepted - before.accepted);
        let decoded = generation.steps.len().saturating_sub(2); // but the prompt's, and the last row's
        if decoded == 0 {
            continue;
        }
        let own_passes = decoded - (accepted as usize).min(decoded - 1);
        responses.push(Comparison {
            prompt_tokens: prompt.len(),
            response_tokens: generation.tokens.len() - prompt.len(),
            plain_tokens_per_second: decoded as f64 / own_plain_seconds,
            tokens_per_second: decoded as f64 / own_seconds,
            tokens_per_pass: decoded as f64 / own_passes as f64,
            accepted: (guessed > 0).then(|| accepted as f64 / guessed as f64),
        });
        (plain_seconds, seconds) = (plain_seconds + own_plain_seconds, seconds + own_seconds);
        (passes, steps) = (passes + own_passes, steps + decoded);
    }
    engine.set_speculate(speculate);
    let speedup = |c: &Comparison| c.tokens_per_second / c.plain_tokens_per_second;
    Ok(Speculation {
        model,
        device: engine.device(),
        speedup: MedianRange::of(&responses.iter().map(speedup).collect::<Vec<_>>()),
        overall_speedup: plain_seconds / seconds,
        tokens_per_pass: steps as f64 / passes as f64,
        responses,
    })
}

/// A response, and the seconds after its first token.
fn response(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions) -> Result<(Generation, f64), BenchError> {
    let mut first = None;
    let mut generations = engine.generate(&[prompt.to_vec()], options, |_| {
        first.get_or_insert_with(Instant::now);
        ControlFlow::Continue(())
    })?;
    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    Ok((generations.swap_remove(0), seconds))
}
