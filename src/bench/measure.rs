//! The measurement: each round runs every stage once, so that a drift of the machine's clock affects all stages
//! equally.

use super::roofline::{self, ANSWER};
use super::{BenchError, MedianRange, Report, Scoring, Settings, Stage, SweepRow, machine::Machine};
use crate::engine::{Engine, GenerateOptions, TraceParts, TracedSequence};
use crate::uq::{Parameters, Profile, Response, Variant, chain, ensemble, similarity};
use crate::{backend::sampling::Sampling, names::Named};
use std::{collections::BTreeMap, time::Instant};

/// Prompt text; any tokenizer can encode it.
const TEXT: &str = "Tom has 3 boxes with 12 pencils each. He gives away 7 and buys half as many again as he has left. \
                    A train leaves at 9 and runs 80 kilometres an hour; another follows an hour later at 100. \
                    How many are left, and when do they meet? Think step by step. ";

/// Tokens in the question for a verbalized confidence, and in its reply.
const QUESTION: usize = 48;
const REPLY: usize = 24;

/// In the sweep: decode steps at each context, prompt length of a scored context, and its maximum number of
/// repetitions.
const STEPS: usize = 32;
const SCORED_PROMPT: usize = 64;
const SCORED: usize = 3;

/// The measured kinds of decoding, by trace.
const DECODINGS: [(&str, Option<TraceParts>); 5] = {
    let usual = TraceParts::PUBLISHED;
    [
        ("decode", None),
        ("decode, traced", Some(usual)),
        ("decode, wide trace", Some(TraceParts { wide: true, ..usual })),
        ("decode, head trace", Some(TraceParts { wide: true, head_attention: true, ..usual })),
        ("decode, layer trace", Some(TraceParts { layer_means: true, ..usual })),
    ]
};

/// Seconds and peak memory by stage.
struct Times<'m> {
    machine: &'m mut Machine,
    /// One value per round.
    seconds: BTreeMap<&'static str, Vec<f64>>,
    peak: BTreeMap<&'static str, u64>,
}

impl Times<'_> {
    fn new(machine: &mut Machine) -> Times<'_> {
        Times { machine, seconds: BTreeMap::new(), peak: BTreeMap::new() }
    }

    /// Runs a stage.
    fn time<T, E>(&mut self, stage: &'static str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.run(stage, || {
            let start = Instant::now();
            let done = work()?;
            Ok((start.elapsed().as_secs_f64(), done))
        })
    }

    /// Runs a stage that reports its own time in seconds.
    fn run<T, E>(&mut self, stage: &'static str, work: impl FnOnce() -> Result<(f64, T), E>) -> Result<T, E> {
        let watch = self.machine.watch().ok();
        let (seconds, done) = work()?;
        self.seconds.entry(stage).or_default().push(seconds);
        if let Some(bytes) = watch.and_then(|watch| watch.peak().ok()) {
            let max = self.peak.entry(stage).or_default();
            *max = bytes.saturating_sub(self.machine.own_bytes()).max(*max);
        }
        Ok(done)
    }

    fn of(&self, stage: &str) -> &[f64] {
        self.seconds.get(stage).map_or(&[], Vec::as_slice)
    }

    /// Time added to plain decoding, in percent, round by round.
    fn added_percent(&self, stage: &str) -> MedianRange {
        let pairs = self.of("decode").iter().zip(self.of(stage));
        MedianRange::of(&pairs.map(|(plain, traced)| 100.0 * (traced - plain) / plain).collect::<Vec<_>>())
    }
}

/// `tokens` tokens of text; each `stream` starts at a different offset.
fn prompt(engine: &Engine, tokens: usize, stream: usize) -> Result<Vec<u32>, BenchError> {
    let text = engine.tokenizer().encode(TEXT, false)?;
    Ok(text.iter().copied().cycle().skip(stream * 7 % text.len().max(1)).take(tokens).collect())
}

/// Generates responses of `tokens` tokens to prompts that share a prefix with `base`, all sequences in one batch;
/// returns the seconds taken by `tokens` steps, and the first sequence with its prompt.
fn decode(
    base: &mut TracedSequence,
    prompts: &[Vec<u32>],
    tokens: usize,
    trace: Option<TraceParts>,
    temperature: f32,
) -> Result<(f64, Vec<u32>), BenchError> {
    let (sampling, ends) = (Sampling { temperature, ..Sampling::GREEDY }, Some(Vec::new()));
    let options = GenerateOptions { max_tokens: tokens, sampling, trace, ends, ..GenerateOptions::default() };
    // the prompt's prefill produces each sequence's first token
    let (mut count, mut first, mut last) = (0, Instant::now(), Instant::now());
    let mut generations = base.generate_sharing(prompts, &options, 0.., &mut |_| {
        last = Instant::now();
        count += 1;
        if count == prompts.len() {
            first = last;
        }
        std::ops::ControlFlow::Continue(())
    })?;
    let steps = generations.iter().flat_map(|g| g.steps.iter().take(g.tokens.len() - g.prompt_len));
    let logprob = steps.map(|step| step.logprob.unwrap_or(f64::NAN)).find(|logprob| !logprob.is_finite());
    if let Some(logprob) = logprob {
        return Err(BenchError::NotFinite { logprob });
    }
    let step = (last - first).as_secs_f64() / tokens.saturating_sub(1).max(1) as f64;
    Ok((tokens as f64 * step, generations.swap_remove(0).tokens))
}

/// Measures all stages and the sweep. `progress` receives a line before each part.
pub fn run(
    engine: &mut Engine,
    machine: &mut Machine,
    settings: &Settings,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let context = engine.spec().max_position_embeddings;
    let longest = settings.sweep.iter().copied().fold(settings.prompt_tokens, usize::max);
    let needed = longest + settings.gen_tokens + QUESTION + REPLY;
    if needed > context {
        return Err(BenchError::Context { needed, context });
    }
    progress("warming up");
    let warm = Settings { prompt_tokens: settings.prompt_tokens.min(16), gen_tokens: 5, ..settings.clone() };
    round(engine, &warm, 0, &mut Times::new(machine))?;
    let mut times = Times::new(machine);
    let (mut bandwidth, mut peak, mut chain_links) = (Vec::new(), Vec::new(), 0);
    for i in 0..settings.rounds {
        progress(&format!("round {} of {}", i + 1, settings.rounds));
        bandwidth.push(times.machine.bandwidth()?);
        peak.extend(times.machine.arithmetic_peak());
        chain_links = round(engine, settings, i, &mut times)?;
    }
    let mut sweep = Vec::new();
    for &context in &settings.sweep {
        progress(&format!("context of {context} tokens"));
        sweep.push(after_context(engine, Times::new(times.machine), settings.rounds, context)?);
    }
    let limits = (MedianRange::of(&bandwidth), (!peak.is_empty()).then(|| MedianRange::of(&peak)));
    let (k_cache, v_cache) = engine.cache_types();
    let format = engine.options().weights;
    Ok(Report {
        settings: settings.clone(),
        device: engine.device(),
        k_cache: k_cache.name(),
        v_cache: v_cache.name(),
        weights: if format.is_file() { engine.weights().types() } else { format.to_string() },
        weight_bytes_per_step: engine.weight_bytes_per_token(),
        bandwidth: limits.0,
        arithmetic_peak: limits.1,
        stages: stages(engine, settings, &times, limits),
        trace_overhead_percent: times.added_percent("decode, traced"),
        wide_trace_overhead_percent: times.added_percent("decode, wide trace"),
        head_trace_overhead_percent: times.added_percent("decode, head trace"),
        layer_trace_overhead_percent: times.added_percent("decode, layer trace"),
        chain_links,
        sweep,
    })
}

/// Runs each stage once; returns the number of links in the chain.
fn round(engine: &mut Engine, settings: &Settings, round: usize, times: &mut Times) -> Result<usize, BenchError> {
    let Settings { gen_tokens, samples, variants, .. } = *settings;
    let tokens = prompt(engine, settings.prompt_tokens, 0)?;
    let prompt_len = tokens.len();
    let prompts = vec![tokens.clone(); settings.batch];
    let mut base = times.time("prefill", || engine.trace(&tokens, prompt_len - 1, TraceParts::default()))?;
    let mut whole = Vec::new();
    // rotated, so that drift within a round favours no kind of trace
    for i in 0..DECODINGS.len() {
        let (stage, trace) = DECODINGS[(i + round) % DECODINGS.len()];
        whole = times.run(stage, || decode(&mut base, &prompts, gen_tokens, trace, 0.0))?;
    }
    drop(base);
    let mut traced = times.time("score", || engine.trace(&whole, prompt_len, TraceParts::default()))?;

    let parameters = Parameters::published(Profile::Corrected);
    let answer = whole.len() - ANSWER..whole.len();
    let (response, mut queries) = traced.parts();
    let answered = || answer.clone();
    let mut links = times.time("chain", || chain::attention_chain(&response, answered(), &parameters, &mut queries))?;
    times.time("similarity", || {
        similarity::measure(&response, answered(), &mut links, &mut queries)?;
        similarity::filter(&response, answered(), &links, &parameters);
        Ok::<_, BenchError>(())
    })?;
    times.time("self-consistency", || decode(&mut traced, &vec![tokens; samples], gen_tokens, None, 0.5))?;
    let question = [whole.clone(), prompt(traced.engine(), QUESTION, 1)?].concat();
    times.time("verbalized", || decode(&mut traced, &[question], REPLY, None, 0.0))?;

    let (response, mut queries) = traced.parts();
    let positions = roofline::replaced(prompt_len, gen_tokens, variants);
    let variants: Vec<Variant> = positions.into_iter().map(|at| alternative(&response, at)).collect();
    let kept: Vec<i64> = variants.iter().map(|variant| response.relative_row(variant.position)).collect();
    times.time("ensemble", || ensemble::score(&response, answer, &kept, &variants, &parameters, &mut queries))?;
    Ok(links.len())
}

/// The most probable token at `position` other than the response's own.
fn alternative(response: &Response, position: usize) -> Variant {
    let own = response.tokens[position];
    let listed = response.step(position - 1).top.iter().find(|top| top.token != own);
    Variant { position, token: listed.map_or(u32::from(own == 0), |top| top.token) }
}

/// Decodes after `context` tokens, and scores those tokens as a response.
fn after_context(engine: &mut Engine, mut times: Times, rounds: usize, context: usize) -> Result<SweepRow, BenchError> {
    let (tokens, mut bandwidth) = (prompt(engine, context, 0)?, Vec::new());
    let mut base = times.time("prefill", || engine.trace(&tokens, context - 1, TraceParts::default()))?;
    for round in 0..rounds {
        bandwidth.push(times.machine.bandwidth()?);
        for i in 0..2 {
            let (stage, trace) = DECODINGS[(i + round) % 2];
            let decoded = decode(&mut base, std::slice::from_ref(&tokens), STEPS + 1, trace, 0.0)?;
            times.seconds.entry(stage).or_default().push(decoded.0);
        }
    }
    drop(base);
    let before = times.machine.in_use().ok().map(|bytes| bytes.saturating_sub(times.machine.own_bytes()));
    for _ in 0..rounds.min(SCORED) {
        times.time("score", || score(engine, &tokens))?;
    }
    let rate = |stage| MedianRange::of(&times.of(stage).iter().map(|s| (STEPS + 1) as f64 / s).collect::<Vec<_>>());
    let plain = rate("decode");
    let speed = roofline::step_bytes(engine, 1, context, STEPS) * plain.median;
    Ok(SweepRow {
        context,
        prefill_tokens_per_second: context as f64 / MedianRange::of(times.of("prefill")).median,
        plain_tokens_per_second: plain,
        traced_tokens_per_second: rate("decode, traced"),
        trace_overhead_percent: times.added_percent("decode, traced"),
        gb_per_second: speed / 1e9,
        share_of_bandwidth: speed / MedianRange::of(&bandwidth).median,
        cache_bytes: roofline::cache_bytes(engine, context + STEPS) as u64,
        score: Scoring {
            seconds: MedianRange::of(times.of("score")),
            extra_bytes: times.peak.get("score").zip(before).map(|(peak, before)| peak.saturating_sub(before)),
        },
    })
}

/// Traced pass, chain and similarity of `tokens` as a prompt and its response.
fn score(engine: &mut Engine, tokens: &[u32]) -> Result<(), BenchError> {
    let parameters = Parameters::published(Profile::Corrected);
    let (prompt_len, answer) = (SCORED_PROMPT.min(tokens.len() / 2), tokens.len() - ANSWER..tokens.len());
    let mut traced = engine.trace(tokens, prompt_len, TraceParts::default())?;
    let (response, mut queries) = traced.parts();
    let mut links = chain::attention_chain(&response, answer.clone(), &parameters, &mut queries)?;
    Ok(similarity::measure(&response, answer, &mut links, &mut queries)?)
}

/// The minimum work of a stage, if known: bytes read, or operations.
type Floor = (Option<f64>, Option<f64>);

/// The hardware's limits: bytes and operations per second.
type Limits = (MedianRange, Option<MedianRange>);

/// The stages in the order in which an answer runs them.
fn stages(engine: &Engine, settings: &Settings, times: &Times, (bandwidth, peak): Limits) -> Vec<Stage> {
    let Settings { prompt_tokens, gen_tokens, batch, samples, variants, .. } = *settings;
    let last = prompt_tokens + gen_tokens - 1;
    let step = |batch| roofline::step_bytes(engine, batch, prompt_tokens, gen_tokens);
    let steps = |batch| (Some(gen_tokens as f64 * step(batch)), None);
    let pass = |tokens, predictions| (None, Some(roofline::operations(engine, 0, tokens, predictions)));
    let replaced = roofline::replaced(prompt_tokens, gen_tokens, variants);
    let ensemble = (None, Some(roofline::ensemble_operations(engine, &replaced, last)));
    let unknown = (None, None);
    let sequences = if batch == 1 { String::new() } else { format!(", {batch} sequences") };
    let decoded = |options: &str| format!("{gen_tokens} tokens{sequences}{options}");
    let (whole, all) = (last + 1, Some(batch * gen_tokens));
    let table: [(&str, String, Option<usize>, Floor); 12] = [
        ("prefill", format!("{prompt_tokens} tokens"), Some(prompt_tokens), pass(prompt_tokens, 2)),
        ("decode", decoded(""), all, steps(batch)),
        ("decode, traced", decoded(""), all, steps(batch)),
        ("decode, wide trace", decoded(", --trace wide"), all, steps(batch)),
        ("decode, head trace", decoded(", --trace wide,heads"), all, steps(batch)),
        ("decode, layer trace", decoded(", --trace layers"), all, steps(batch)),
        ("score", format!("{whole} tokens"), Some(whole), pass(whole, gen_tokens + 1)),
        ("chain", "backtracking".to_owned(), None, unknown),
        ("similarity", "filter".to_owned(), None, unknown),
        ("ensemble", format!("{variants} variants"), None, ensemble),
        ("self-consistency", format!("{samples} samples"), Some(samples * gen_tokens), steps(samples)),
        ("verbalized", format!("{QUESTION} + {REPLY} tokens"), Some(REPLY), unknown),
    ];
    let generation = MedianRange::of(times.of("prefill")).median + MedianRange::of(times.of("decode")).median;
    let stage = |(name, what, tokens, (bytes, operations)): (&'static str, String, Option<usize>, Floor)| {
        let seconds = MedianRange::of(times.of(name));
        let (read, done) = (bytes.map(|x| x / seconds.median), operations.map(|x| x / seconds.median));
        Stage {
            stage: name,
            what,
            seconds,
            tokens,
            tokens_per_second: tokens.map(|n| n as f64 / seconds.median),
            gb_per_second: read.map(|x| x / 1e9),
            share_of_bandwidth: read.map(|x| x / bandwidth.median),
            gflop_per_second: done.map(|x| x / 1e9),
            share_of_arithmetic: done.zip(peak).map(|(x, peak)| x / peak.median),
            peak_bytes: times.peak.get(name).copied(),
            relative_to_generation: seconds.median / generation,
        }
    };
    table.into_iter().map(stage).collect()
}
