//! The rounds: in each, every stage once, so that a drift of the machine's clock meets all of them; of
//! decodings with and without traces, which goes first changes.

use super::decoding::{Decoding, prompt};
use super::interleave::added_percent;
use super::report::{MedianRange, Report, Stage};
use super::roofline::{self, ANSWER, replaced};
use super::settings::Settings;
use super::{BenchError, sweep};
use crate::bench::machine::Machine;
use crate::engine::{Engine, HeadSelection, TracedSequence};
use crate::uq::{Parameters, Profile, Response, Variant, chain, ensemble, similarity};
use std::collections::BTreeMap;
use std::time::Instant;

/// Tokens of the question how sure the model is, and of its reply.
const QUESTION: usize = 48;
const REPLY: usize = 24;

impl Settings {
    /// Fails where something cannot be measured.
    fn check(&self, engine: &Engine) -> Result<(), BenchError> {
        let context = engine.spec().max_position_embeddings;
        let longest = self.sweep.iter().copied().chain([self.prompt_tokens]).max().unwrap_or(0);
        let needed = longest + self.gen_tokens + QUESTION + REPLY;
        let fail = |what, found, expected: String| Err(BenchError::Setting { what, found, expected });
        if needed > context {
            return fail("the longest sequence", needed, format!("at most {context}, the model's context"));
        }
        let minimum = [
            ("the prompt", self.prompt_tokens, 2),
            ("the response", self.gen_tokens, ANSWER + 2),
            ("the batch", self.batch, 1),
            ("the number of rounds", self.rounds, 1),
            ("the number of variants", self.variants, 1),
            ("the number of samples", self.samples, 1),
            ("a context of the sweep", self.sweep.iter().copied().min().unwrap_or(2), 2),
        ];
        match minimum.into_iter().find(|(_, found, min)| found < min) {
            Some((what, found, min)) => fail(what, found, format!("at least {min}")),
            None => Ok(()),
        }
    }
}

/// Stages that decode the same response, and with which trace. Which goes first changes from round to round, so that a drift
/// of the clock favours none.
const DECODINGS: [(&str, Option<HeadSelection>); 5] = {
    let usual = HeadSelection::PUBLISHED;
    [
        ("decode", None),
        ("decode, traced", Some(usual)),
        ("decode, wide trace", Some(HeadSelection { wide: true, ..usual })),
        ("decode, head trace", Some(HeadSelection { wide: true, head_attention: true, ..usual })),
        ("decode, layer trace", Some(HeadSelection { layer_means: true, ..usual })),
    ]
};

/// Times and peaks, collected.
#[derive(Default)]
struct Times {
    /// Seconds by stage, a value a round.
    seconds: BTreeMap<&'static str, Vec<f64>>,
    peak: BTreeMap<&'static str, u64>,
}

impl Times {
    /// Runs a stage.
    fn time<T, E>(
        &mut self,
        machine: &Machine,
        stage: &'static str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        // where the system does not say, there is no peak
        let watch = machine.watch().ok();
        let start = Instant::now();
        let done = work()?;
        self.push(stage, start.elapsed().as_secs_f64());
        if let Some(bytes) = watch.and_then(|watch| watch.peak().ok()) {
            let max = self.peak.entry(stage).or_default();
            *max = bytes.saturating_sub(machine.own_bytes()).max(*max);
        }
        Ok(done)
    }

    fn push(&mut self, stage: &'static str, seconds: f64) {
        self.seconds.entry(stage).or_default().push(seconds);
    }

    /// Replaces a stage's last time by one that was taken inside it.
    fn correct(&mut self, stage: &'static str, seconds: f64) {
        if let Some(last) = self.seconds.get_mut(stage).and_then(|values| values.last_mut()) {
            *last = seconds;
        }
    }

    fn of(&self, stage: &str) -> &[f64] {
        self.seconds.get(stage).map_or(&[], Vec::as_slice)
    }
}

/// Measures everything. `progress` is called with what is being done.
pub fn run(
    engine: &mut Engine,
    machine: &mut Machine,
    settings: &Settings,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    settings.check(engine)?;
    progress("warming up");
    let warm = Settings { prompt_tokens: settings.prompt_tokens.min(16), gen_tokens: 5, ..settings.clone() };
    round(engine, machine, &warm, 0, &mut Times::default())?;
    let mut times = Times::default();
    let (mut bandwidth, mut peak, mut links) = (Vec::new(), Vec::new(), 0);
    for i in 0..settings.rounds {
        progress(&format!("round {} of {}", i + 1, settings.rounds));
        bandwidth.push(machine.bandwidth()?);
        peak.extend(machine.arithmetic_peak());
        links = round(engine, machine, settings, i, &mut times)?;
    }
    let sweep = sweep::sweep(engine, machine, settings, progress)?;
    let bandwidth = MedianRange::of(&bandwidth);
    let peak = (!peak.is_empty()).then(|| MedianRange::of(&peak));
    let overhead = |stage: &str| MedianRange::of(&added_percent(times.of("decode"), times.of(stage)));
    let (k_cache, v_cache) = engine.cache_types();
    let mut types: Vec<&str> = engine.weights().matrices().iter().map(|w| w.dtype.name()).collect();
    if !engine.options().weights.is_file() {
        types = vec![engine.options().weights.name()];
    }
    types.sort_unstable();
    types.dedup();
    Ok(Report {
        settings: settings.clone(),
        device: engine.device(),
        k_cache: k_cache.name(),
        v_cache: v_cache.name(),
        weights: types.join(", "),
        weight_bytes_per_step: engine.weight_bytes_per_token(),
        bandwidth,
        arithmetic_peak: peak,
        stages: stages(engine, settings, &times, bandwidth, peak),
        trace_overhead_percent: overhead("decode, traced"),
        wide_trace_overhead_percent: overhead("decode, wide trace"),
        head_trace_overhead_percent: overhead("decode, head trace"),
        layer_trace_overhead_percent: overhead("decode, layer trace"),
        chain_links: links,
        sweep,
    })
}

/// One round; returns the links of the chain.
fn round(
    engine: &mut Engine,
    machine: &Machine,
    settings: &Settings,
    round: usize,
    times: &mut Times,
) -> Result<usize, BenchError> {
    let tokens = prompt(engine, settings.prompt_tokens, 0)?;
    let mut base =
        times.time(machine, "prefill", || engine.trace(&tokens, tokens.len() - 1, HeadSelection::default()))?;
    let decoding = Decoding { prompts: vec![tokens.clone(); settings.batch], tokens: settings.gen_tokens };
    let steps = settings.gen_tokens as f64;
    let mut whole = tokens.clone();
    for i in 0..DECODINGS.len() {
        let (stage, trace) = DECODINGS[(i + round) % DECODINGS.len()];
        let mut decoded = times.time(machine, stage, || decoding.run(&mut base, trace, 0.0))?;
        times.correct(stage, steps * decoded.step);
        whole = decoded.generations.remove(0).tokens; // every time the same
    }
    drop(base);
    let prompt_len = tokens.len();
    let mut traced = times.time(machine, "score", || engine.trace(&whole, prompt_len, HeadSelection::default()))?;
    after(&mut traced, machine, settings, times)
}

/// What comes after the last token of a response.
fn after(
    traced: &mut TracedSequence,
    machine: &Machine,
    settings: &Settings,
    times: &mut Times,
) -> Result<usize, BenchError> {
    let parameters = Parameters::published(Profile::Corrected);
    let (whole, prompt_len) = (traced.tokens().0.to_vec(), traced.tokens().1);
    let answer = whole.len() - ANSWER..whole.len();
    let (response, mut queries) = traced.parts();
    let mut links = times
        .time(machine, "chain", || chain::attention_chain(&response, answer.clone(), &parameters, &mut queries))?;
    times.time(machine, "similarity", || {
        similarity::measure(&response, answer.clone(), &mut links, &mut queries)?;
        similarity::filter(&response, answer.clone(), &links, &parameters);
        Ok::<_, BenchError>(())
    })?;
    let samples =
        Decoding { prompts: vec![whole[..prompt_len].to_vec(); settings.samples], tokens: settings.gen_tokens };
    times.time(machine, "self-consistency", || samples.run(traced, None, 0.5))?;
    let mut question = whole.clone();
    question.extend(prompt(traced.engine(), QUESTION, 1)?);
    let reply = Decoding { prompts: vec![question], tokens: REPLY };
    times.time(machine, "verbalized", || reply.greedy(traced, false))?;

    let (response, mut queries) = traced.parts();
    let variants: Vec<Variant> = replaced(prompt_len, settings.gen_tokens, settings.variants)
        .into_iter()
        .map(|at| alternative(&response, at))
        .collect();
    let kept: Vec<i64> = variants.iter().map(|variant| response.relative_row(variant.position)).collect();
    times.time(machine, "ensemble", || {
        ensemble::score(&response, answer, &kept, &variants, &parameters, &mut queries)
    })?;
    Ok(links.len())
}

/// The likeliest token that the response does not have at `position`.
fn alternative(response: &Response, position: usize) -> Variant {
    let own = response.tokens[position];
    let listed = response.step(position - 1).top.iter().find(|top| top.token != own);
    Variant { position, token: listed.map_or(u32::from(own == 0), |top| top.token) }
}

/// The stages in the order in which an answer meets them, with what they had to read or to compute.
fn stages(
    engine: &Engine,
    settings: &Settings,
    times: &Times,
    bandwidth: MedianRange,
    peak: Option<MedianRange>,
) -> Vec<Stage> {
    let Settings { prompt_tokens, gen_tokens, batch, samples, variants, .. } = *settings;
    let generation = MedianRange::of(times.of("prefill")).median + MedianRange::of(times.of("decode")).median;
    let stage =
        |name: &'static str, what: String, tokens: Option<usize>, bytes: Option<f64>, operations: Option<f64>| {
            let seconds = MedianRange::of(times.of(name));
            let (read, done) = (bytes.map(|b| b / seconds.median), operations.map(|o| o / seconds.median));
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
    let decoded = |batch: usize, first, steps| Some(steps as f64 * roofline::step_bytes(engine, batch, first, steps));
    let last = prompt_tokens + gen_tokens - 1;
    let ensemble = roofline::ensemble_operations(engine, &replaced(prompt_tokens, gen_tokens, variants), last);
    let each = |n: usize, what: &str| if n == 1 { String::new() } else { format!(", {n} {what}") };
    let response = format!("{gen_tokens} tokens{}", each(batch, "sequences"));
    let operations = |tokens, predictions| Some(roofline::operations(engine, 0, tokens, predictions));
    let (decode, all) = (decoded(batch, prompt_tokens, gen_tokens), Some(batch * gen_tokens));
    let (prefill, score) = (operations(prompt_tokens, 2), operations(last + 1, gen_tokens + 1));
    let drawn = Some(samples * gen_tokens);
    vec![
        stage("prefill", format!("{prompt_tokens} tokens"), Some(prompt_tokens), None, prefill),
        stage("decode", response.clone(), all, decode, None),
        stage("decode, traced", response.clone(), all, decode, None),
        stage("decode, wide trace", format!("{response}, --wide-trace"), all, decode, None),
        stage("decode, head trace", format!("{response}, --head-trace too"), all, decode, None),
        stage("decode, layer trace", format!("{response}, --layer-trace"), all, decode, None),
        stage("score", format!("{} tokens", last + 1), Some(last + 1), None, score),
        stage("chain", "backtracking".to_owned(), None, None, None),
        stage("similarity", "filter".to_owned(), None, None, None),
        stage("ensemble", format!("{variants} variants"), None, None, Some(ensemble)),
        stage(
            "self-consistency",
            format!("{samples} samples"),
            drawn,
            decoded(samples, prompt_tokens, gen_tokens),
            None,
        ),
        stage("verbalized", format!("{QUESTION} + {REPLY} tokens"), Some(REPLY), None, None),
    ]
}
