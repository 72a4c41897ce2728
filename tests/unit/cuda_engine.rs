//! The whole path on the CUDA backend, with its kernels run on the CPU by `tests/cuda_host`: generation, the method and
//! the command line produce the same as on the CPU backend with the same cache types.

use super::batch::{one_fails_and_the_others_go_on, repetitions_are_penalized, responses_outgrow_the_short_context};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::Path;
use test_support::{cuda_host, golden, long_tests, tiny};
use uqac::backend::DType::{F16, F32};
use uqac::backend::ValueType;
use uqac::backend::sampling::Sampling;
use uqac::backend::{DeviceChoice, Step};
use uqac::engine::encode::encode_prompt;
use uqac::engine::running::{Measure, RunningConfidence};
use uqac::engine::{
    Engine, EngineOptions, FinishReason, GenerateOptions, Generation, Progress, Request, ThinkingBudget, Ticket,
};
use uqac::model::chat::Conversation;
use uqac::model::chat::Message;
use uqac::model::demo;
use uqac::model::reply::Thinking;
use uqac::uq::answer::AnswerRule;
use uqac::uq::pipeline;
use uqac::uq::{Outcome, Parameters, Profile};

/// Model folders with a tokenizer: the oracle's, in the short variant the first `few`, or if these are missing, one generated
/// here, in f32 like those: wide products of 16-bit weights round their inputs on CUDA (`cuda_backend` compares those).
fn folders(few: usize) -> Vec<(String, tempfile::TempDir)> {
    let Some(golden) = golden() else {
        test_support::skipped("all families but one; one model made here stands in for the oracle's");
        return vec![("made here".to_owned(), model_of(2048, Dtype::F32))];
    };
    let copy = |family: &&str| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(golden.join(format!("tiny_{family}")).join(file), folder.path().join(file)).unwrap();
        }
        tiny::write_tokenizer(folder.path());
        ((*family).to_owned(), folder)
    };
    let all = ["qwen3_5", "gemma3", "gemma4_small", "llama", "llama3", "qwen2", "qwen3", "gemma2"];
    all.iter().take(if long_tests() { all.len() } else { few }).map(copy).collect()
}

/// A small bf16 model with a head_dim supported by the kernels.
fn model() -> tempfile::TempDir {
    model_of(2048, Dtype::BF16)
}

/// The same with this context length and dtype.
fn model_of(context: usize, dtype: Dtype) -> tempfile::TempDir {
    tiny::model_with(&[("max_position_embeddings", json!(context)), ("head_dim", json!(16))], dtype)
}

fn engine(folder: &Path, device: DeviceChoice) -> Engine {
    let options = EngineOptions {
        device,
        threads: 1,
        k_cache: Some(F32),
        v_cache: Some(ValueType::F32),
        ..EngineOptions::default()
    };
    Engine::load(folder, options).unwrap()
}

/// Tokens below 250: the models without a trained tokenizer have no end of text there.
fn prompt(len: usize, seed: u64) -> Vec<u32> {
    let mut noise = tiny::noise(seed + 11);
    (0..len).map(|_| (125.0 + 124.0 * noise()) as u32).collect()
}

fn generate(engine: &mut Engine, prompts: &[Vec<u32>], options: &GenerateOptions) -> Vec<Generation> {
    engine.generate(prompts, options, |_| ControlFlow::Continue(())).unwrap()
}

/// Asserts that steps differ by no more than both backends may differ from float64.
fn same_steps(what: &str, found: &[Step], expected: &[Step]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let pairs = found.logprob.into_iter().zip(expected.logprob).chain([(found.entropy, expected.entropy)]);
        for (found, expected) in pairs {
            assert!((found - expected).abs() <= 2e-4 * expected.abs().max(1.0), "{what}: {found} not {expected}");
        }
        assert_eq!(found.top.first().map(|t| t.token), expected.top.first().map(|t| t.token), "{what}");
    }
}

#[test]
fn generations_are_those_of_the_cpu() {
    if !cuda_host::load() {
        return;
    }
    let long = long_tests();
    for (name, folder) in folders(1) {
        let (mut device, mut host) =
            (engine(folder.path(), DeviceChoice::Cuda(0)), engine(folder.path(), DeviceChoice::Cpu));
        let thinking = b"17 + 25?<think>".map(u32::from).to_vec();
        let prompts = [prompt(3, 0), prompt(20, 1), prompt(40, 2), thinking];
        let thinking_budget = Some(ThinkingBudget { tokens: 4, thinking: Thinking::Auto });
        let hot = Sampling { temperature: 0.8, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, hot] {
            let thinking_budget = thinking_budget.clone();
            let limited = GenerateOptions { max_tokens: 13, sampling, thinking_budget, ..GenerateOptions::default() };
            let expected = generate(&mut host, &prompts, &limited);
            assert!(expected[3].steps[4..].iter().all(|step| step.forced || step.logprob.is_none()), "{name}");
            // a token that one of them generates in the middle ends it
            let ends = Some(vec![expected[1].tokens[prompts[1].len() + 5]]);
            let stopped = GenerateOptions { ends, ..limited.clone() };
            for options in [stopped, limited].into_iter().take(if long { 2 } else { 1 }) {
                let (found, expected) =
                    (generate(&mut device, &prompts, &options), generate(&mut host, &prompts, &options));
                for (found, expected) in found.iter().zip(&expected) {
                    assert_eq!(found.tokens, expected.tokens, "{name}");
                    assert_eq!(found.finish, expected.finish, "{name}");
                    same_steps(&name, &found.steps, &expected.steps);
                }
            }
        }
    }
}

/// A response whose running confidence needs whole distributions shares steps with one that records none.
#[test]
fn wide_traces_and_others_share_a_batch() {
    if !cuda_host::load() {
        return;
    }
    let folder = model();
    let mut engine = engine(folder.path(), DeviceChoice::Cuda(0));
    let plain = GenerateOptions { max_tokens: 9, ..GenerateOptions::default() };
    let running = RunningConfidence { measure: Measure::Group, window: 2, stop_below: None };
    let options = [plain.clone(), GenerateOptions { running: Some(running), ..plain }];
    let prompts = [prompt(5, 0), prompt(7, 1)];
    let alone: Vec<Generation> = prompts
        .iter()
        .zip(&options)
        .map(|(prompt, options)| generate(&mut engine, std::slice::from_ref(prompt), options).remove(0))
        .collect();
    let mut batch = engine.batch(&options[0]);
    let requests = options.map(|options| batch.engine().request(&options));
    let mut start = |(prompt, request): (&Vec<u32>, Request)| {
        batch.start_with(None, prompt, 0, request, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let tickets: Vec<Ticket> = prompts.iter().zip(requests).map(&mut start).collect();
    while batch.next(&mut |_| ControlFlow::Continue(())).unwrap().is_some() {}
    for (i, (ticket, alone)) in tickets.iter().zip(&alone).enumerate() {
        assert_eq!(&batch.take(*ticket).unwrap(), alone);
        assert!(alone.steps[1..].iter().all(|step| step.distribution.is_some() == (i == 1)));
    }
}

fn same_outcome(what: &str, found: &Outcome, expected: &Outcome) {
    let rows = |outcome: &Outcome| outcome.chain.iter().map(|link| link.row).collect::<Vec<_>>();
    assert_eq!(rows(found), rows(expected), "{what}: chain");
    assert_eq!(found.kept, expected.kept, "{what}: kept rows");
    let members = |outcome: &Outcome| outcome.ensemble.iter().map(|m| (m.position, m.token)).collect::<Vec<_>>();
    assert_eq!(members(found), members(expected), "{what}: ensemble");
    for (found, expected) in found.ensemble.iter().zip(&expected.ensemble) {
        for (found, expected) in [(found.log_answer, expected.log_answer), (found.log_chain, expected.log_chain)] {
            // sums of at most a dozen log-probabilities
            assert!(
                (found - expected).abs() <= 12.0 * 2e-4 * expected.abs().max(1.0),
                "{what}: {found} not {expected}"
            );
        }
    }
    // relative to their magnitudes, which are products of many probabilities
    for (found, expected) in
        [(found.scores["p_sim"], expected.scores["p_sim"]), (found.scores["p"], expected.scores["p"])]
    {
        assert!((found - expected).abs() <= 1e-2 * expected, "{what}: {found} not {expected}");
    }
}

#[test]
fn the_method_gives_the_same_chain_and_scores() {
    if !cuda_host::load() {
        return;
    }
    let profiles = [Profile::Corrected, Profile::Reference, Profile::Paper];
    let long = long_tests();
    for (index, (name, folder)) in folders(3).into_iter().enumerate() {
        let (mut device, mut host) =
            (engine(folder.path(), DeviceChoice::Cuda(0)), engine(folder.path(), DeviceChoice::Cpu));
        // each profile gets its turn, with generated or with scored responses
        let turns = [(profiles[index % 3], index % 2 == 0), (profiles[(index + 1) % 3], index % 2 == 1)];
        for (profile, generated) in turns.into_iter().take(if long { 2 } else { 1 }) {
            let parameters = Parameters::published(crate::uq::Reading::new(profile, [("k", "4")]).unwrap());
            let assess = |engine: &mut Engine| {
                // hot: when cold, these models repeat tokens, so that rows are alike and attention is tied
                let sampling = Sampling { temperature: 2.0, seed: 5, ..Sampling::GREEDY };
                let trace = Some(parameters.trace_parts());
                let options = GenerateOptions { max_tokens: 16, sampling, trace, ..Default::default() };
                let all = prompt(28, 7);
                let mut traced = match generated {
                    true => engine.generate_traced(&all[..12], &options, |_| ControlFlow::Continue(())).unwrap().1,
                    false => engine.trace(&all, 12, parameters.trace_parts()).unwrap(),
                };
                let end = traced.tokens().0.len() - 1;
                let rule = AnswerRule::for_dataset(None);
                pipeline::assess(&mut traced, rule, Some(end - 3..end), &parameters).unwrap().unwrap().outcome
            };
            let what = format!("{name}, {profile:?}, generated: {generated}");
            same_outcome(&what, &assess(&mut device), &assess(&mut host));
        }
    }
}

/// The built-in model's response to a question, and its assessment.
fn answer(engine: &mut Engine, question: &str) -> (Vec<u32>, Outcome) {
    let asked = Conversation::Messages(vec![Message::new("user", question)]);
    let prompt = encode_prompt(engine, &asked, true).unwrap();
    let (_, mut traced) =
        engine.generate_traced(&prompt, &GenerateOptions::default(), |_| ControlFlow::Continue(())).unwrap();
    let parameters = Parameters::published(Profile::Corrected);
    let assessed = pipeline::assess(&mut traced, AnswerRule::Number, None, &parameters).unwrap().unwrap();
    (traced.tokens().0[prompt.len()..].to_vec(), assessed.outcome)
}

#[test]
fn the_embedded_model_answers_as_it_does_on_the_cpu() {
    if !cuda_host::load() {
        return;
    }
    let lines = include_str!("../../models/abacus/golden.jsonl").lines();
    let mut golden: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    golden.sort_by_key(|item| item["ids"].as_array().unwrap().len());
    let folder = demo::folder().unwrap();
    let load = |device| {
        let types = EngineOptions { k_cache: Some(F32), v_cache: Some(ValueType::F16), ..EngineOptions::default() };
        Engine::load(&folder, EngineOptions { device, threads: 1, ..types }).unwrap()
    };
    let (mut device, mut host) = (load(DeviceChoice::Cuda(0)), load(DeviceChoice::Cpu));
    // the shortest: every token takes the host-run kernels a while
    let responses = if long_tests() { 3 } else { 1 };
    for item in &golden[..responses] {
        let question = item["question"].as_str().unwrap();
        let ids: Vec<u32> = item["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let ((tokens, found), (_, expected)) = (answer(&mut device, question), answer(&mut host, question));
        assert_eq!(tokens, ids, "{question}");
        same_outcome(question, &found, &expected);
    }
}

#[test]
fn a_response_that_is_broken_off_or_one_token_long() {
    if !cuda_host::load() {
        return;
    }
    let folder = model_of(64, Dtype::BF16);
    let mut engine = engine(folder.path(), DeviceChoice::Cuda(0));
    let prompt = prompt(6, 1);
    for (limit, breaks_at, finish, len) in
        [(1, 99, FinishReason::Length, 1), (2, 99, FinishReason::Length, 2), (50, 3, FinishReason::Interrupted, 3)]
    {
        let options = GenerateOptions { max_tokens: limit, ..GenerateOptions::default() };
        let mut seen = 0;
        let on_token = |_: Progress| {
            seen += 1;
            if seen == breaks_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let generation = engine.generate(std::slice::from_ref(&prompt), &options, on_token).unwrap().remove(0);
        assert_eq!((generation.finish, generation.tokens.len() - 6, seen), (finish, len, len));
        assert_eq!(generation.steps.len(), len + 1);
    }
    // up to the end of the model's context
    let long = vec![3; 56];
    let generation = generate(&mut engine, &[long], &GenerateOptions::default()).remove(0);
    assert!(generation.tokens.len() == 64 || generation.finish == FinishReason::Stop);
}

#[test]
fn cached_keys_are_f32_and_values_f16_unless_given() {
    if !cuda_host::load() {
        return;
    }
    let folder = model();
    let types = |k_cache, v_cache| {
        let options = EngineOptions { device: DeviceChoice::Auto, k_cache, v_cache, ..EngineOptions::default() };
        let engine = Engine::load(folder.path(), options).unwrap();
        assert!(engine.device().starts_with("cuda:0"), "{}", engine.device());
        engine.cache_types()
    };
    assert_eq!(types(None, None), (F32, ValueType::F16));
    assert_eq!(types(Some(F16), None), (F16, ValueType::F16));
    assert_eq!(types(None, Some(ValueType::F32)), (F32, ValueType::F32));
}

#[test]
fn an_error_belongs_to_its_sequence() {
    if cuda_host::load() {
        for folder in [model(), tiny::delta_model()] {
            one_fails_and_the_others_go_on(folder.path(), DeviceChoice::Cuda(0));
        }
    }
}

#[test]
fn repetitions_are_penalized_as_by_the_reference() {
    if cuda_host::load() {
        let folder = model();
        let mut reference = engine(folder.path(), DeviceChoice::Reference);
        repetitions_are_penalized(&mut engine(folder.path(), DeviceChoice::Cuda(0)), &mut reference);
    }
}

#[test]
fn responses_outgrow_the_short_context_on_cuda() {
    if cuda_host::load() {
        responses_outgrow_the_short_context(DeviceChoice::Cuda(0), false);
    }
}
