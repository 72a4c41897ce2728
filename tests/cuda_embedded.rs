//! The model that comes with the program on the CUDA backend, its kernels run on the CPU by `tests/cuda_host`: the golden
//! answers, and the chains and confidences that the CPU backend gives.

mod common;

use common::cuda_host;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use uqac::backend::CacheType::{F16, F32};
use uqac::backend::DeviceChoice;
use uqac::engine::encode::encode_prompt;
use uqac::engine::{Engine, EngineOptions, GenerateOptions};
use uqac::model::chat::Message;
use uqac::report::item::Conversation;
use uqac::scoring;
use uqac::uq::answer::AnswerRule;
use uqac::uq::{Outcome, Parameters, Profile};

/// The shortest of the golden responses: every token takes the emulated kernels a while.
const RESPONSES: usize = 3;

fn engine(device: DeviceChoice) -> Engine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus");
    let options =
        EngineOptions { device, threads: 1, k_cache: Some(F32), v_cache: Some(F16), ..EngineOptions::default() };
    Engine::load(&folder, options).unwrap()
}

/// The response to a question, and its assessment.
fn answer(engine: &mut Engine, question: &str) -> (Vec<u32>, Outcome) {
    let asked = Conversation::Messages(vec![Message::new("user", question)]);
    let prompt = encode_prompt(engine, &asked, true).unwrap();
    let options = GenerateOptions { trace: Some(Profile::Corrected), ..GenerateOptions::default() };
    let (_, mut traced) = engine.generate_traced(&prompt, &options, |_| ControlFlow::Continue(())).unwrap();
    let parameters = Parameters::published(Profile::Corrected);
    let (_, outcome) = scoring::assess(&mut traced, AnswerRule::Number, None, &parameters).unwrap().unwrap();
    (traced.tokens().0[prompt.len()..].to_vec(), outcome)
}

#[test]
fn answers_chains_and_confidences_are_those_of_the_cpu() {
    if !cuda_host::load() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus/golden.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut golden: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    golden.sort_by_key(|item| item["ids"].as_array().unwrap().len());
    let (mut device, mut host) = (engine(DeviceChoice::Cuda(0)), engine(DeviceChoice::Cpu));
    for item in &golden[..RESPONSES] {
        let question = item["question"].as_str().unwrap();
        let ids: Vec<u32> = item["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let ((tokens, found), (_, expected)) = (answer(&mut device, question), answer(&mut host, question));
        assert_eq!(tokens, ids, "{question}");
        let rows = |outcome: &Outcome| outcome.chain.iter().map(|link| link.row).collect::<Vec<_>>();
        assert_eq!(rows(&found), rows(&expected), "{question}: chain");
        assert_eq!(found.kept, expected.kept, "{question}: kept rows");
        let members = |outcome: &Outcome| outcome.ensemble.iter().map(|m| (m.position, m.token)).collect::<Vec<_>>();
        assert_eq!(members(&found), members(&expected), "{question}: ensemble");
        // products of at most some fifty probabilities, whose logarithms differ by 2e-4 at most
        for (found, expected) in [
            (found.scores.p, expected.scores.p),
            (found.scores.p_sim, expected.scores.p_sim),
            (found.scores.p_attn, expected.scores.p_attn),
        ] {
            assert!((found - expected).abs() <= 1e-2 * expected, "{question}: {found} not {expected}");
        }
    }
}
