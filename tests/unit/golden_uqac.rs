//! The whole method, profile `reference`, on real models compared with the authors' own classes: answer, chain,
//! similarity filter, ensemble and scores of every golden item.

use serde_json::Value;
use std::path::Path;
use test_support::{golden, model, read_lines, token_ids};
use uqac::engine::{Engine, EngineOptions};
use uqac::uq::answer::AnswerRule;
use uqac::uq::pipeline;
use uqac::uq::{Outcome, Parameters, Profile};

fn rows(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|r| r.as_i64().unwrap()).collect()
}

/// Our keys with the corresponding names in the golden file.
const NAMES: [(&str, &str); 13] = [
    ("answer_prob", "ans_probs_prod"),
    ("answer_mean", "ans_probs_mean"),
    ("p_attn", "attn_probs_prod"),
    ("attn_mean", "attn_probs_mean"),
    ("p_sim", "sims_probs_prod"),
    ("sim_mean", "sims_probs_mean"),
    ("response_prob", "pred_probs_prod"),
    ("response_mean", "pred_probs_mean"),
    ("predictive_entropy", "predictive_entropy"),
    ("ln_predictive_entropy", "length_norm_entropy"),
    ("answer_entropy", "ans_entropy"),
    ("ln_answer_entropy", "ans_length_norm_entropy"),
    ("p", "ens_marginal"),
];

fn check(id: &Value, item: &Value, prompt_len: usize, outcome: &Outcome) {
    let chain: Vec<i64> = outcome.chain.iter().map(|link| link.row).collect();
    assert_eq!(chain, rows(&item["chain_src"]), "{id}: chain");
    let answer: Vec<i64> = outcome.answer.clone().map(|p| p as i64 - 1 - prompt_len as i64).collect();
    assert_eq!(answer, rows(&item["ans_src"]), "{id}: answer");
    for (link, (score, similarity)) in outcome
        .chain
        .iter()
        .zip(test_support::numbers(&item["chain_scores"]).into_iter().zip(test_support::numbers(&item["sims"])))
    {
        assert!((link.score - score).abs() < 1e-3, "{id}: score of row {}: {} not {score}", link.row, link.score);
        assert!((link.similarity - similarity).abs() < 1e-4, "{id}: similarity of row {}", link.row);
    }
    assert_eq!(outcome.kept, rows(&item["sim_src"]), "{id}: kept rows");
    let members = item["ensemble"].as_array().unwrap();
    assert_eq!(outcome.ensemble.len(), members.len(), "{id}: ensemble size");
    for (found, expected) in outcome.ensemble.iter().zip(members) {
        let key = (expected["pos"].as_u64().map(|p| p as usize), expected["token"].as_u64().map(|t| t as u32));
        assert_eq!((found.position, found.token), key, "{id}: ensemble member");
        for (found, expected) in [(found.log_answer, &expected["log_ans"]), (found.log_chain, &expected["log_seq"])] {
            let expected = expected.as_f64().unwrap();
            // a dozen tokens at most, with log-probabilities within 2e-3 each
            assert!((found - expected).abs() < 2e-3 * 12.0, "{id}: {key:?}: {found} not {expected}");
        }
    }
    for (key, name) in NAMES {
        let (found, expected) = (outcome.scores[key], item["scores"][name].as_f64().unwrap());
        // 1 % relative; products over a whole response compound hundreds of factors
        let bound = 0.01 * expected.abs() + 1e-12;
        assert!((found - expected).abs() <= bound, "{id}: {name}: {found} not {expected}");
    }
}

/// Compares all items of a file; their number.
fn check_all(folder: &Path, file: &Path) -> usize {
    let parameters = Parameters::published(Profile::Reference);
    let mut engine = Engine::load(folder, EngineOptions::default()).unwrap();
    let items = read_lines(file);
    for item in &items {
        let (tokens, prompt_len) = (token_ids(&item["input_ids"]), item["n_instr"].as_u64().unwrap() as usize);
        let rule = AnswerRule::for_dataset(item["dataset"].as_str());
        let mut traced = engine.trace(&tokens, prompt_len, parameters.trace_parts()).unwrap();
        let assessed = pipeline::assess(&mut traced, rule, None, &parameters).unwrap().expect("an answer");
        check(&item["id"], item, prompt_len, &assessed.outcome);
    }
    items.len()
}

#[test]
fn reference_outcomes_equal_the_authors() {
    let Some(golden) = golden() else { return };
    for (name, folder) in [
        ("smollm2-135m", "smollm2-135m-instruct"),
        ("gemma-3-270m", "gemma-3-270m"),
        ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct"),
    ] {
        let Some(folder) = model(folder) else { continue };
        let items = check_all(&folder, &golden.join(format!("uqac_{name}.jsonl.gz")));
        eprintln!("{name}: all {items} items equal");
    }
}

/// The same on the model that is embedded in the program, so that any clone can run it (`tests/peers/authors.py`).
#[test]
fn reference_outcomes_of_the_embedded_model_equal_the_authors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(check_all(&root.join("models/abacus"), &root.join("tests/data/authors.jsonl.gz")), 12);
}
