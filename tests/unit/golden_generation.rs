//! Greedy generation from the golden prompts reproduces the golden text, with all prompts in one
//! batch.

use serde_json::Value;
use std::ops::ControlFlow;
use test_support::{golden, model, read_lines, token_ids};
use uqac::engine::{Engine, EngineOptions, GenerateOptions, Generation};

/// The position where two responses diverge, and by how much the chosen token led the golden one.
fn margin(engine: &Engine, generation: &Generation, golden: &[u32]) -> String {
    let n = generation.prompt_len;
    let Some(at) = (n..generation.tokens.len()).find(|i| golden.get(*i) != generation.tokens.get(*i)) else {
        return "ours is a prefix".to_owned();
    };
    let step = &generation.steps[at - n];
    let logprob = |id: Option<&u32>| step.top.iter().find(|t| Some(&t.token) == id).map(|t| t.logprob);
    let text = |id: Option<&u32>| id.and_then(|id| engine.tokenizer().decode_token(*id).ok()).unwrap_or_default();
    let (ours, theirs) = (generation.tokens.get(at), golden.get(at));
    format!(
        "at response token {}: {:?} ({:?}) instead of {:?} ({:?})",
        at - n,
        text(ours),
        logprob(ours),
        text(theirs),
        logprob(theirs)
    )
}

#[test]
fn greedy_text_equals_the_golden_one() {
    let Some(golden) = golden() else { return };
    for (name, folder, least) in
        [("smollm2-135m", "smollm2-135m-instruct", 7), ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct", 16)]
    {
        let Some(folder) = model(folder) else { continue };
        let items: Vec<Value> = read_lines(&golden.join(format!("uqac_{name}.jsonl.gz")));
        let mut engine = Engine::load(&folder, EngineOptions::default()).unwrap();
        let ids: Vec<Vec<u32>> = items.iter().map(|item| token_ids(&item["input_ids"])).collect();
        let prompt_len = |item: &Value| item["n_instr"].as_u64().unwrap() as usize;
        let prompts: Vec<Vec<u32>> = items.iter().zip(&ids).map(|(i, ids)| ids[..prompt_len(i)].to_vec()).collect();
        let longest = items.iter().zip(&ids).map(|(i, ids)| ids.len() - prompt_len(i)).max().unwrap();
        let options = GenerateOptions { max_tokens: longest, trace: None, ..GenerateOptions::default() };
        let generations = engine.generate(&prompts, &options, |_| ControlFlow::Continue(())).unwrap();
        let mut equal = 0;
        for ((item, ids), generation) in items.iter().zip(&ids).zip(&generations) {
            let text = engine.tokenizer().decode(&generation.tokens[generation.prompt_len..]).unwrap();
            // a golden response truncated at its own limit is a prefix of ours
            if text.trim_start().starts_with(item["generated"].as_str().unwrap().trim()) {
                equal += 1;
            } else {
                eprintln!("{name}, {}: {}", item["id"], margin(&engine, generation, ids));
            }
        }
        eprintln!("{name}: {equal} of {} texts are the golden ones", items.len());
        assert!(equal >= least, "{name}: {equal} of {}", items.len());
    }
}
