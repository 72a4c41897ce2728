//! Speculation changes no bit: tokens, log-probabilities, trace, memory and query results equal those of one token per
//! pass, over families, batches, sampling settings and limits.

use super::random_models::{RANDOM_FAMILIES, RandomModel, Shapes};
use std::ops::ControlFlow;
use std::path::Path;
use test_support::{cuda_host, long_tests, tiny};
use uqac::backend::sampling::Sampling;
use uqac::backend::{DType, DeviceChoice, HeadRecord, ValueType};
use uqac::engine::{
    Engine, EngineOptions, FinishReason, GenerateOptions, Generation, Speculate, SpeculationStats, TraceParts,
    Traced as _,
};

const ALL: TraceParts = TraceParts { wide: true, head_attention: true, ..TraceParts::PUBLISHED };

fn load(folder: &Path, device: DeviceChoice, speculate: Speculate) -> Engine {
    // the types that CUDA supports, on every device
    let (k_cache, v_cache) = (Some(DType::F32), Some(ValueType::F32));
    let options = EngineOptions { device, threads: 2, k_cache, v_cache, speculate, ..EngineOptions::default() };
    Engine::load(folder, options).unwrap()
}

/// Results queried from a traced response.
#[derive(Debug, PartialEq)]
struct Traced {
    finish: FinishReason,
    tokens: Vec<u32>,
    heads: Vec<Option<HeadRecord>>,
    attention: Vec<Vec<f32>>,
    cosines: Vec<f32>,
    memory: (usize, usize),
    /// Samples that share the prompt.
    samples: Vec<Generation>,
}

fn traced(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions) -> Traced {
    let (finish, mut traced) = engine.generate_traced(prompt, options, |_| ControlFlow::Continue(())).unwrap();
    let memory = traced.memory();
    let tokens = traced.tokens().0.to_vec();
    let rows: Vec<usize> = (prompt.len() - 1..tokens.len()).collect();
    let heads = rows.iter().map(|row| traced.head_record(*row).unwrap()).collect();
    let (_, mut queries) = traced.parts();
    let attention = queries.attention_rows(&rows).unwrap();
    let cosines = queries.cosines(&rows[1..], tokens.len() - 1..tokens.len()).unwrap();
    let hot = GenerateOptions { sampling: hot(9), trace: None, ..options.clone() };
    let samples =
        traced.generate_sharing(&vec![prompt.to_vec(); 3], &hot, 0.., &mut |_| ControlFlow::Continue(())).unwrap();
    Traced { finish, tokens, heads, attention, cosines, memory, samples }
}

fn hot(seed: u64) -> Sampling {
    Sampling { temperature: 0.4, top_p: 0.9, top_k: 20, seed, ..Sampling::GREEDY }
}

/// A response of each kind, and the statistics.
fn everything(
    mut engine: Engine,
    prompts: &[Vec<u32>],
    max_tokens: usize,
) -> (Vec<Generation>, Traced, SpeculationStats) {
    let greedy = GenerateOptions { max_tokens, trace: Some(ALL), ..GenerateOptions::default() };
    let layers = TraceParts { layer_means: true, ..ALL };
    let mut found = Vec::new();
    for options in [
        greedy.clone(),
        GenerateOptions { sampling: hot(1), ..greedy.clone() },
        GenerateOptions { trace: None, ..greedy.clone() },
        GenerateOptions { trace: Some(layers), max_tokens: 9, ..greedy.clone() },
    ] {
        found.extend(engine.generate(&prompts[..1], &options, |_| ControlFlow::Continue(())).unwrap());
        found.extend(engine.generate(prompts, &options, |_| ControlFlow::Continue(())).unwrap());
    }
    let traced = traced(&mut engine, &prompts[0], &greedy);
    (found, traced, engine.speculation())
}

/// Compares speculation of these lengths with none; returns the numbers of correct and incorrect guesses.
fn check(model: &RandomModel, device: DeviceChoice, lengths: &[Speculate], max_tokens: usize) -> (u64, u64) {
    let folder = model.write();
    tiny::write_tokenizer(folder.path());
    // repetitive text, and text without repetition
    let (phrase, other) = (model.tokens(9, model.seed), model.tokens(23, model.seed + 1));
    let prompts = [phrase.repeat(3), other, phrase.repeat(2)];
    let (expected, expected_trace, none) =
        everything(load(folder.path(), device, Speculate::Off), &prompts, max_tokens);
    assert_eq!(none.passes, 0);
    let (mut right, mut wrong) = (0, 0);
    for &speculate in lengths {
        let (found, trace, stats) = everything(load(folder.path(), device, speculate), &prompts, max_tokens);
        assert_eq!(found, expected, "{speculate} {:?}", model.config);
        assert_eq!(trace, expected_trace, "{speculate} {:?}", model.config);
        (right, wrong) = (right + stats.accepted, wrong + stats.guessed - stats.accepted);
    }
    (right, wrong)
}

#[test]
fn guesses_change_no_bit() {
    let (mut right, mut wrong) = (0, 0);
    let lengths = [Speculate::Fixed(1), Speculate::Fixed(3), Speculate::Fixed(7), Speculate::Auto];
    for (seed, family) in (7..).zip(RANDOM_FAMILIES) {
        let model = RandomModel::new(family, seed, Shapes::Any);
        let found = check(&model, DeviceChoice::Cpu, &lengths, 40);
        (right, wrong) = (right + found.0, wrong + found.1);
    }
    assert!(right > 1000 && wrong > 1000, "the test needs guesses of both kinds: {right} right, {wrong} wrong");
}

#[test]
fn guesses_change_no_bit_of_the_reference() {
    let model = RandomModel::new("gemma3", 3, Shapes::Any);
    let (right, wrong) = check(&model, DeviceChoice::Reference, &[Speculate::Fixed(3)], 16);
    assert!(right > 0 && wrong > 0, "the test needs guesses of both kinds: {right} right, {wrong} wrong");
}

#[test]
fn guesses_change_no_bit_on_cuda() {
    if !cuda_host::load() {
        return;
    }
    let (mut right, mut wrong) = (0, 0);
    let families = if long_tests() { &[(5, "llama"), (6, "gemma3")][..] } else { &[(5, "llama")] };
    for &(seed, family) in families {
        let model = RandomModel::new(family, seed, Shapes::Cuda);
        let found = check(&model, DeviceChoice::Cuda(0), &[Speculate::Fixed(4)], 10);
        (right, wrong) = (right + found.0, wrong + found.1);
    }
    assert!(right > 0 && wrong > 0, "the test needs guesses of both kinds: {right} right, {wrong} wrong");
}
