//! The same input produces the same bits, regardless of the batch, the thread count, the pass width, and whether a
//! token was generated or only scored.

use std::ops::ControlFlow;
use test_support::{model, tiny};
use uqac::backend::sampling::Sampling;
use uqac::backend::{DType, Step, ValueType, WeightFormat};
use uqac::engine::{Engine, EngineOptions, FinishReason, GenerateOptions, Generation, TraceParts};
use uqac::uq::{Traced, Variant};

fn engine(folder: &std::path::Path, threads: usize) -> Engine {
    Engine::load(folder, EngineOptions { threads, ..EngineOptions::default() }).unwrap()
}

fn prompts(engine: &Engine) -> Vec<Vec<u32>> {
    let long = "How many are left? ".repeat(30);
    let texts = ["Tom has 3 boxes.", "a", &long, "What is 17 + 25?", "zz", "12 pencils each, 7 given away", "b c d"];
    texts.iter().map(|t| engine.tokenizer().encode(t, true).unwrap()).collect()
}

fn options(sampling: Sampling, max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling, ..GenerateOptions::default() }
}

fn generate(engine: &mut Engine, prompts: &[Vec<u32>], options: &GenerateOptions) -> Vec<Generation> {
    engine.generate(prompts, options, |_| ControlFlow::Continue(())).unwrap()
}

fn check(folder: &std::path::Path, max_tokens: usize) {
    let mut one = engine(folder, 1);
    let prompts = prompts(&one);
    let greedy = options(Sampling::GREEDY, max_tokens);
    let single: Vec<Generation> =
        prompts.iter().map(|p| generate(&mut one, std::slice::from_ref(p), &greedy).remove(0)).collect();
    for threads in [1, 2, 3, 5] {
        let mut engine = engine(folder, threads);
        assert_eq!(generate(&mut engine, &prompts, &greedy), single, "{threads} threads, batch of {}", prompts.len());
    }
    // scoring reproduces what was generated
    for generation in &single {
        let mut traced = one.trace(&generation.tokens, generation.prompt_len, TraceParts::default()).unwrap();
        let (response, _) = traced.parts();
        assert_eq!(response.steps, generation.steps);
    }
}

#[test]
fn batch_threads_and_scoring_agree_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    check(folder.path(), 150);
    check(tiny::delta_model().path(), 150);
}

#[test]
fn batch_threads_and_scoring_agree_bit_for_bit_on_a_real_model() {
    let Some(folder) = model("smollm2-135m-instruct") else { return };
    check(&folder, 20);
}

#[test]
fn samples_depend_on_the_seed_alone() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let mut engine = engine(folder.path(), 2);
    let prompts = vec![engine.tokenizer().encode("What is 17 + 25?", true).unwrap(); 4];
    let hot = |seed| options(Sampling { temperature: 1.0, top_p: 0.95, seed, ..Sampling::GREEDY }, 30);
    let first = generate(&mut engine, &prompts, &hot(1));
    assert_eq!(first, generate(&mut engine, &prompts, &hot(1)));
    assert_ne!(first, generate(&mut engine, &prompts, &hot(2)));
    assert_ne!(first[0].tokens, first[1].tokens, "streams of a batch draw apart");
}

#[test]
fn generation_ends_at_eos_at_the_limit_and_when_broken_off() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let mut engine = engine(folder.path(), 2);
    let prompt = engine.tokenizer().encode("Tom", true).unwrap();
    let limited = generate(&mut engine, std::slice::from_ref(&prompt), &options(Sampling::GREEDY, 9)).remove(0);
    assert_eq!((limited.finish, limited.tokens.len()), (FinishReason::Length, prompt.len() + 9));
    assert_eq!(limited.steps.len(), 10);
    let stop = GenerateOptions { ends: Some(vec![limited.tokens[prompt.len() + 4]]), ..options(Sampling::GREEDY, 9) };
    let stopped = generate(&mut engine, std::slice::from_ref(&prompt), &stop).remove(0);
    assert_eq!(stopped.finish, FinishReason::Stop);
    assert!(limited.tokens.starts_with(&stopped.tokens) && stopped.tokens.len() <= prompt.len() + 5);
    let mut seen = 0;
    let broken = engine.generate(&[prompt], &options(Sampling::GREEDY, 9), |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(broken.unwrap()[0].finish, FinishReason::Interrupted);
}

/// Logprobs of a variant from a separate pass, starting at the first token.
fn from_scratch(engine: &mut Engine, tokens: &[u32], prompt_len: usize, variant: Variant, at: &[usize]) -> Vec<f64> {
    let mut tokens = tokens.to_vec();
    tokens[variant.position] = variant.token;
    let mut traced = engine.trace(&tokens, prompt_len, TraceParts::default()).unwrap();
    let (response, _) = traced.parts();
    at.iter().map(|p| response.logprob_at(*p)).collect()
}

#[test]
fn variants_on_the_shared_prefix_equal_passes_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    check_variants(&mut engine(folder.path(), 2));
    check_variants(&mut engine(tiny::delta_model().path(), 2));
}

fn check_variants(engine: &mut Engine) {
    let tokens = engine.tokenizer().encode(&"Carl has 4 times as many marbles as Sean. ".repeat(14), true).unwrap();
    let (prompt_len, last) = (20, tokens.len() - 1);
    let at: Vec<usize> = vec![prompt_len, 40, 41, 130, 256, 400, last - 1, last];
    let mut variants = Vec::new();
    for position in [prompt_len, 40, 130, 130, 400, last] {
        variants.push(Variant { position, token: (position % 250) as u32 });
    }
    let mut traced = engine.trace(&tokens, prompt_len, TraceParts::default()).unwrap();
    let (response, mut queries) = traced.parts();
    // one replacement is listed in its row, so that both ways of obtaining its own logprob are exercised
    variants.push(Variant { position: 41, token: response.step(40).top[1].token });
    let scored = queries.score_variants(&variants, &at).unwrap();
    drop(traced);
    for (variant, scored) in variants.iter().zip(scored) {
        assert_eq!(scored, from_scratch(engine, &tokens, prompt_len, *variant, &at), "{variant:?}");
    }
}

#[test]
fn narrower_caches_change_little_and_stay_deterministic() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let steps = |k_cache, v_cache, threads| -> Vec<Step> {
        let options =
            EngineOptions { k_cache: Some(k_cache), v_cache: Some(v_cache), threads, ..EngineOptions::default() };
        let mut engine = Engine::load(folder.path(), options).unwrap();
        let tokens = engine.tokenizer().encode(&"Tom has 3 boxes with 12 pencils each. ".repeat(8), true).unwrap();
        let mut traced = engine.trace(&tokens, 10, TraceParts::default()).unwrap();
        traced.parts().0.steps.to_vec()
    };
    let exact = steps(DType::F32, ValueType::F32, 2);
    let error = |k, v| {
        let found = steps(k, v, 2);
        assert_eq!(found, steps(k, v, 1));
        let pairs = found.iter().zip(&exact).filter_map(|(a, b)| Some((a.logprob?, b.logprob?)));
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let (half, brain) = (error(DType::F16, ValueType::F16), error(DType::Bf16, ValueType::Bf16));
    // both round, and bf16 has three bits fewer
    assert!(half > 0.0 && half < brain, "f16 {half}, bf16 {brain}");
    assert!(error(DType::F32, ValueType::F16) > 0.0 && error(DType::F16, ValueType::F32) > 0.0);
    assert!(error(DType::F32, ValueType::Q8) > 0.0);
}

#[test]
fn weights_in_eight_bits_change_a_little_and_stay_deterministic() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    check_eight_bits(folder.path());
    check_eight_bits(tiny::delta_model().path());
}

fn check_eight_bits(folder: &std::path::Path) {
    let load = |weights, threads| {
        Engine::load(folder, EngineOptions { weights, threads, ..EngineOptions::default() }).unwrap()
    };
    let mut exact = load(WeightFormat::File, 2);
    let prompts = prompts(&exact);
    let greedy = options(Sampling::GREEDY, 20);
    let mut q8 = load(WeightFormat::Q8, 1);
    let single: Vec<Generation> =
        prompts.iter().map(|p| generate(&mut q8, std::slice::from_ref(p), &greedy).remove(0)).collect();
    assert_eq!(generate(&mut load(WeightFormat::Q8, 3), &prompts, &greedy), single);
    let tokens = &single[2].tokens;
    let logprobs = |engine: &mut Engine| -> Vec<f64> {
        let mut traced = engine.trace(tokens, 10, TraceParts::default()).unwrap();
        traced.parts().0.steps.iter().filter_map(|step| step.logprob).collect()
    };
    let pairs = logprobs(&mut q8).into_iter().zip(logprobs(&mut exact));
    let mean = pairs.map(|(a, b)| (a - b).abs()).sum::<f64>() / (tokens.len() - 10) as f64;
    assert!(mean > 0.0 && mean < 0.1, "{mean}");
    assert!(q8.device().contains("q8") && q8.weight_bytes_per_token() < exact.weight_bytes_per_token() * 6 / 10);
}
