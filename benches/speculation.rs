//! Speculative decoding compared with one token per pass, on questions of a task, since the gain depends on the text.
//! Every response is generated with and without guesses, in alternating order; any difference in a bit is an error.
//! `cargo bench --bench speculation -- MODEL TASK [--data FOLDER] [--limit N] [--threads N] [--json]`, with tasks as `uqac eval` names
//! them; --limit is per subtask.

use clap::Parser;
use serde::Serialize;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;
use uqac::internals::MedianRange;
use uqac::internals::tasks::{self, TaskOptions};
use uqac::{Conversation, DeviceChoice, Engine, EngineOptions, GenerateOptions, Generation, Speculate};

#[derive(Parser)]
struct Arguments {
    model: String,
    task: String,
    /// Folder with the task's files
    #[arg(long)]
    data: Option<PathBuf>,
    /// Questions of the task, or of each of its subtasks
    #[arg(long, default_value_t = 10)]
    limit: usize,
    /// CPU threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    #[arg(long)]
    json: bool,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// The response to one prompt, decoded both ways.
#[derive(Serialize)]
struct Comparison {
    prompt_tokens: usize,
    response_tokens: usize,
    /// Tokens per second after the prompt, at one token per pass.
    plain_tokens_per_second: f64,
    tokens_per_second: f64,
    tokens_per_pass: f64,
    /// Share of guessed tokens that were accepted; `None` if nothing was guessed.
    accepted: Option<f64>,
}

/// Comparisons of a model's responses.
#[derive(Serialize)]
struct Speculation {
    model: String,
    device: String,
    responses: Vec<Comparison>,
    /// Ratio of speeds, per response.
    speedup: MedianRange,
    /// Σ of plain seconds over Σ of seconds.
    overall_speedup: f64,
    tokens_per_pass: f64,
}

/// A prompt's tokens, and the options of its response.
type Prompt = (Vec<u32>, GenerateOptions);

fn prompts(engine: &Engine, of: &Arguments) -> Result<Vec<Prompt>, Box<dyn Error>> {
    let (mut prompts, chat) = (Vec::new(), engine.chat_template().is_some());
    for task in tasks::load(&of.task, &TaskOptions { data: of.data.clone(), ..TaskOptions::default() })? {
        let options = GenerateOptions { max_tokens: task.max_tokens, stop: task.stop, ..GenerateOptions::default() };
        for question in task.items.into_iter().take(of.limit) {
            let tokens = uqac::encode_prompt(engine, &Conversation::Prompt(question.prompt), chat)?;
            prompts.push((tokens, options.clone()));
        }
    }
    Ok(prompts)
}

fn compare(engine: &mut Engine, of: &Arguments) -> Result<Speculation, Box<dyn Error>> {
    let (guessing, prompts) = (engine.options().speculate, prompts(engine, of)?);
    let mut responses = Vec::new();
    let (mut plain_seconds, mut seconds, mut passes, mut steps) = (0.0, 0.0, 0, 0);
    for (i, prompt) in prompts.iter().enumerate() {
        eprintln!("response {} of {}", i + 1, prompts.len());
        let (mut runs, before) = ([None, None], engine.speculation());
        // the first of a pair runs with colder caches
        for turn in [i % 2, 1 - i % 2] {
            engine.set_speculate([Speculate::Off, guessing][turn]);
            runs[turn] = Some(response(engine, prompt)?);
        }
        let [Some((plain, own_plain_seconds)), Some((generation, own_seconds))] = runs else { continue };
        if plain != generation {
            return Err(format!("prompt {i}: the response with guesses differs from that without").into());
        }
        let after = engine.speculation();
        let (guessed, accepted) = (after.guessed - before.guessed, after.accepted - before.accepted);
        let decoded = generation.steps.len().saturating_sub(2); // excludes the prompt's and the last row's
        if decoded == 0 {
            continue;
        }
        let own_passes = decoded - (accepted as usize).min(decoded - 1);
        responses.push(Comparison {
            prompt_tokens: prompt.0.len(),
            response_tokens: generation.tokens.len() - prompt.0.len(),
            plain_tokens_per_second: decoded as f64 / own_plain_seconds,
            tokens_per_second: decoded as f64 / own_seconds,
            tokens_per_pass: decoded as f64 / own_passes as f64,
            accepted: (guessed > 0).then(|| accepted as f64 / guessed as f64),
        });
        (plain_seconds, seconds) = (plain_seconds + own_plain_seconds, seconds + own_seconds);
        (passes, steps) = (passes + own_passes, steps + decoded);
    }
    let speedup = |c: &Comparison| c.tokens_per_second / c.plain_tokens_per_second;
    Ok(Speculation {
        model: of.model.clone(),
        device: engine.device(),
        speedup: MedianRange::of(&responses.iter().map(speedup).collect::<Vec<_>>()),
        overall_speedup: plain_seconds / seconds,
        tokens_per_pass: steps as f64 / passes as f64,
        responses,
    })
}

/// A traced response, and the seconds after its first token.
fn response(engine: &mut Engine, (prompt, options): &Prompt) -> Result<(Generation, f64), Box<dyn Error>> {
    let mut first = None;
    let mut generations = engine.generate(std::slice::from_ref(prompt), options, |_| {
        first.get_or_insert_with(Instant::now);
        ControlFlow::Continue(())
    })?;
    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    Ok((generations.swap_remove(0), seconds))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let options = EngineOptions { device: DeviceChoice::Cpu, threads: arguments.threads, ..EngineOptions::default() };
    let mut engine = Engine::load(&uqac::locate_model(&arguments.model)?, options)?;
    let found = compare(&mut engine, &arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    println!(
        "{} · {}\n\nprompt  response  tokens/s off  tokens/s  tokens a pass  guesses right",
        found.model, found.device
    );
    for c in &found.responses {
        let right = c.accepted.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
        let (plain, speed, a_pass) = (c.plain_tokens_per_second, c.tokens_per_second, c.tokens_per_pass);
        println!(
            "{:6}  {:8}  {plain:12.1}  {speed:8.1}  {a_pass:13.2}  {right:>13}",
            c.prompt_tokens, c.response_tokens
        );
    }
    let MedianRange { median, min, max } = found.speedup;
    println!(
        "\n{:.2} × the speed of one token a pass (a response: {median:.2}, from {min:.2} to {max:.2}), {:.2} tokens a pass; every bit equal",
        found.overall_speedup, found.tokens_per_pass
    );
    Ok(())
}
