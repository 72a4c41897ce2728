//! Real models on the golden responses: log-probabilities, entropies, selected heads, the rows of α* and similarities
//! compared with the authors' processing in float64.

use serde_json::Value;
use test_support::{golden, model, numbers, read_lines, token_ids};
use uqac::engine::{Engine, EngineOptions};
use uqac::uq::{Parameters, Profile, Traced};

const MODELS: [(&str, &str); 3] = [
    ("smollm2-135m", "smollm2-135m-instruct"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct"),
    ("gemma-3-270m", "gemma-3-270m"),
];

/// Max errors over the items of one model.
#[derive(Debug, Default)]
struct Errors {
    logprob: f64,
    entropy: f64,
    head_entropy: f64,
    weight: f64,
    similarity: f64,
}

fn check_item(engine: &mut Engine, item: &Value, errors: &mut Errors) {
    let (tokens, prompt_len) = (token_ids(&item["input_ids"]), item["n_instr"].as_u64().unwrap() as usize);
    let mut traced =
        engine.trace(&tokens, prompt_len, Parameters::published(Profile::Reference).trace_parts()).unwrap();
    let rows: Vec<i64> = item["chain_src"].as_array().unwrap().iter().map(|r| r.as_i64().unwrap()).collect();
    for row in rows.iter().filter(|r| **r >= 0) {
        let record = traced.head_record(prompt_len + *row as usize).unwrap().unwrap();
        let key = row.to_string();
        if item["head_gap"][&key].as_f64().unwrap() > 1e-4 {
            let mut found = record.heads.clone();
            found.sort_unstable();
            assert_eq!(found, token_ids(&item["heads"][&key]), "{}: heads at row {row}", item["id"]);
            for (found, expected) in record.entropies.iter().zip(numbers(&item["head_entropy"][&key])) {
                errors.head_entropy = errors.head_entropy.max((f64::from(*found) - expected).abs());
            }
        }
    }
    let (response, mut queries) = traced.parts();
    for (key, found, error) in [
        ("token_logprob", response.steps.iter().map(|s| s.logprob).collect::<Vec<_>>(), &mut errors.logprob),
        ("full_entropy", response.steps.iter().map(|s| Some(s.entropy)).collect(), &mut errors.entropy),
    ] {
        for (found, expected) in found.into_iter().flatten().zip(numbers(&item[key])) {
            *error = error.max((found - expected).abs());
        }
    }
    for (key, top) in item["row_top8"].as_object().unwrap() {
        let row = prompt_len + key.parse::<usize>().unwrap();
        let weights = queries.attention_rows(&[row]).unwrap().remove(0);
        for entry in top.as_array().unwrap() {
            let found = f64::from(weights[entry[0].as_u64().unwrap() as usize]);
            errors.weight = errors.weight.max((found - entry[1].as_f64().unwrap()).abs());
        }
    }
    let answer: Vec<usize> =
        item["ans_src"].as_array().unwrap().iter().map(|r| (r.as_i64().unwrap() + 1) as usize + prompt_len).collect();
    let positions: Vec<usize> = rows.iter().map(|r| (*r + 1) as usize + prompt_len).collect();
    let cosines = queries.cosines(&positions, answer[0]..answer[0] + answer.len()).unwrap();
    for (found, expected) in cosines.chunks(answer.len()).zip(numbers(&item["sims"])) {
        let mean = found.iter().map(|x| f64::from(*x)).sum::<f64>() / answer.len() as f64;
        errors.similarity = errors.similarity.max((mean - expected).abs());
    }
}

#[test]
fn traces_equal_the_golden_ones() {
    let Some(golden) = golden() else { return };
    for (name, folder) in MODELS {
        let Some(folder) = model(folder) else { continue };
        let mut engine = Engine::load(&folder, EngineOptions::default()).unwrap();
        let mut errors = Errors::default();
        for item in read_lines(&golden.join(format!("uqac_{name}.jsonl.gz"))) {
            check_item(&mut engine, &item, &mut errors);
        }
        eprintln!("{name}: {errors:?}");
        // the golden file rounds log-probabilities and entropies to 1e-7; the rest comes from f32 arithmetic over the
        // layers
        assert!(errors.logprob < 2e-3 && errors.entropy < 2e-3, "{name}: {errors:?}");
        assert!(
            errors.head_entropy < 1e-4 * 10.0 && errors.weight < 1e-3 && errors.similarity < 1e-4,
            "{name}: {errors:?}"
        );
    }
}
