//! The built-in model: its output, to the token, and that the program finds it anywhere.

use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output};
use uqac::{Conversation, Engine, EngineOptions, GenerateOptions, Message, encode_prompt};

/// Greedy responses by another implementation of the architecture, in float32 (`models/abacus/train/golden.py`).
fn golden() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus/golden.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn it_writes_the_golden_responses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus");
    let mut engine = Engine::load(&folder, EngineOptions::default()).unwrap();
    let items = golden();
    assert!(items.len() >= 10);
    let prompt = |item: &Value| {
        let asked = Conversation::Messages(vec![Message::new("user", item["question"].as_str().unwrap())]);
        let prompt = encode_prompt(&engine, &asked, true).unwrap();
        assert_eq!(prompt, engine.tokenizer().encode(item["prompt"].as_str().unwrap(), false).unwrap());
        prompt
    };
    let prompts: Vec<Vec<u32>> = items.iter().map(prompt).collect();
    let generations = engine.generate(&prompts, &GenerateOptions::default(), |_| ControlFlow::Continue(())).unwrap();
    for (item, generation) in items.iter().zip(&generations) {
        assert_eq!(generation.tokens[generation.prompt_len..], ids(&item["ids"]), "{}", item["question"]);
    }
}

/// `uqac` in an empty folder, with only a cache folder in its environment.
fn uqac(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_clear().env("UQAC_CACHE", cache).current_dir(cache).args(arguments);
    command.output().unwrap()
}

#[test]
fn a_question_needs_no_model() {
    let cache = tempfile::tempdir().unwrap();
    let item = &golden()[0];
    let question = item["question"].as_str().unwrap();
    // once when it is unpacked, once when it is already there
    for _ in 0..2 {
        let output = uqac(cache.path(), &["ask", "--json", "--device", "cpu", question]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("abacus"), "{said}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["response"].as_str().unwrap().trim_end(), item["text"].as_str().unwrap().trim_end());
        let p = answer["scores"]["p"].as_f64().unwrap();
        assert!(answer["status"] == "ok" && 0.0 < p && p <= 1.0, "{answer}");
    }
    assert_eq!(std::fs::read_dir(cache.path().join("models")).unwrap().count(), 1);
}

#[test]
fn its_test_set_comes_along() {
    let cache = tempfile::tempdir().unwrap();
    let output = uqac(
        cache.path(),
        &["eval", "--tasks", "abacus", "--limit", "6", "--output", "run", "--device", "cpu", "--json"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let samples = std::fs::read_to_string(cache.path().join("run/samples_abacus.jsonl")).unwrap();
    assert_eq!(samples.lines().count(), 6);
    let manifest = std::fs::read_to_string(cache.path().join("run/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["model"]["name"], "abacus");
}

#[test]
fn without_a_folder_for_caches_it_says_what_to_set() {
    let output = Command::new(env!("CARGO_BIN_EXE_uqac")).env_clear().args(["ask", "1 + 1?"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("UQAC_CACHE"), "{said}");
}

/// A folder of the same name, as left by training, is not mistaken for it.
#[test]
fn its_name_is_its_own_beside_a_folder_of_that_name() {
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::create_dir(elsewhere.path().join("abacus")).unwrap();
    let inspect = |model: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_uqac"));
        command.current_dir(elsewhere.path()).args(["inspect", model]).output().unwrap()
    };
    let embedded = inspect("abacus");
    assert!(embedded.status.success(), "{}", String::from_utf8_lossy(&embedded.stderr));
    let folder = inspect("./abacus");
    assert!(String::from_utf8_lossy(&folder.stderr).contains("config.json is missing"));
}
