//! Broken models and impossible requests: a typed error that names the file, the tensor, and the expected and found
//! values.

use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;
use test_support::tiny;
use uqac::engine::{Engine, EngineOptions, GenerateOptions, TraceParts};

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    folder
}

fn load(folder: &Path) -> Result<Engine, String> {
    Engine::load(folder, EngineOptions { threads: 1, ..EngineOptions::default() }).map_err(|e| e.to_string())
}

/// The error of loading a model after `break_it` has damaged it.
fn error(break_it: impl FnOnce(&Path)) -> String {
    let folder = folder();
    break_it(folder.path());
    load(folder.path()).err().expect("the model loaded")
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let mut config = tiny::config();
    edit(&mut config);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn missing_files() {
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        says(&error(|f| std::fs::remove_file(f.join(file)).unwrap()), &[file]);
    }
    let message = error(|f| {
        std::fs::remove_file(f.join("model.safetensors")).unwrap();
        let index = json!({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}});
        std::fs::write(f.join("model.safetensors.index.json"), index.to_string()).unwrap();
    });
    says(&message, &["model-00001-of-00002.safetensors"]);
}

#[test]
fn shard_names_stay_in_the_folder() {
    let message = error(|f| {
        std::fs::remove_file(f.join("model.safetensors")).unwrap();
        let index = json!({"weight_map": {"model.norm.weight": "../../etc/passwd"}});
        std::fs::write(f.join("model.safetensors.index.json"), index.to_string()).unwrap();
    });
    says(&message, &["weight_map", "../../etc/passwd"]);
}

#[test]
fn truncated_and_garbled_weights() {
    for keep in [0, 4, 100, 10_000] {
        let message = error(|f| {
            let path = f.join("model.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..keep]).unwrap();
        });
        says(&message, &["model.safetensors"]);
    }
    says(&error(|f| std::fs::write(f.join("model.safetensors"), [0xFF; 4096]).unwrap()), &["model.safetensors"]);
}

#[test]
fn broken_json() {
    says(&error(|f| std::fs::write(f.join("config.json"), "{").unwrap()), &["config.json", "JSON"]);
    says(&error(|f| std::fs::write(f.join("config.json"), [0xFF, 0xFE]).unwrap()), &["config.json"]);
    says(&error(|f| std::fs::write(f.join("tokenizer.json"), "[]").unwrap()), &["tokenizer.json"]);
}

#[test]
fn wrong_shapes_and_missing_tensors_are_named() {
    let message = error(|f| edit_config(f, |c| c["intermediate_size"] = json!(64)));
    says(&message, &["model.layers.0.mlp.gate_proj.weight", "[64, 48]", "[96, 48]"]);
    let message = error(|f| edit_config(f, |c| c["num_hidden_layers"] = json!(4)));
    says(&message, &["model.layers.3.", "missing"]);
    let message = error(|f| edit_config(f, |c| c["tie_word_embeddings"] = json!(false)));
    says(&message, &["lm_head.weight", "tie_word_embeddings"]);
}

#[test]
fn unknown_architectures_are_named_with_the_known_ones() {
    let message = error(|f| edit_config(f, |c| c["architectures"] = json!(["GPT2LMHeadModel"])));
    says(&message, &["GPT2LMHeadModel", "LlamaForCausalLM", "Gemma3ForCausalLM"]);
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let message = error(|f| {
        tiny::write_weights(f, &tiny::config(), |name, v| {
            if name == "norm" {
                v[5] = f32::NAN
            }
        });
    });
    says(&message, &["model.norm.weight", "index 5"]);
    // matrices are checked only when a pass is not finite: reading them all would defeat the purpose of mapping them
    let folder = folder();
    tiny::write_weights(folder.path(), &tiny::config(), |name, v| {
        if name == "layers.1.mlp.up_proj" {
            v[77] = f32::INFINITY;
        }
    });
    let mut engine = load(folder.path()).unwrap();
    let message = engine.trace(&[1, 2, 3, 4], 2, TraceParts::default()).err().unwrap().to_string();
    says(&message, &["model.layers.1.mlp.up_proj.weight", "index 77"]);
}

#[test]
fn impossible_sequences() {
    let mut engine = load(folder().path()).unwrap();
    let mut trace = |tokens: &[u32], prompt_len| {
        engine.trace(tokens, prompt_len, TraceParts::default()).err().map_or(String::new(), |e| e.to_string())
    };
    says(&trace(&[1, 2, 257, 3], 1), &["257", "cannot read"]);
    says(&trace(&[1, 2, 3], 3), &["n_instr", "3"]);
    says(&trace(&[1, 2, 3], 0), &["n_instr", "0"]);
    says(&trace(&[], 0), &["n_instr"]);
    says(&trace(&vec![1; 2049], 5), &["2049", "2048", "max_position_embeddings"]);
    assert_eq!(trace(&[1, 2, 3], 1), "", "a good one still works");
    let generate = |engine: &mut Engine, prompt: Vec<u32>| {
        let result = engine.generate(&[prompt], &GenerateOptions::default(), |_| std::ops::ControlFlow::Break(()));
        result.err().map_or(String::new(), |e| e.to_string())
    };
    says(&generate(&mut engine, vec![]), &["empty"]);
    says(&generate(&mut engine, vec![1; 2048]), &["2049", "2048"]);
    says(&generate(&mut engine, vec![1, 999]), &["999"]);
    assert_eq!(generate(&mut engine, vec![1]), "");
}

#[test]
fn an_unaligned_file_is_read_all_the_same() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let before =
        load(folder.path()).unwrap().trace(&[1, 2, 3, 4], 2, TraceParts::default()).unwrap().parts().0.steps.to_vec();
    // one more space in the header moves every tensor to an odd offset
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut moved = (len as u64 + 1).to_le_bytes().to_vec();
    moved.extend_from_slice(&bytes[8..8 + len]);
    moved.push(b' ');
    moved.extend_from_slice(&bytes[8 + len..]);
    std::fs::write(&path, &moved).unwrap();
    let mut engine = load(folder.path()).unwrap();
    assert_eq!(engine.trace(&[1, 2, 3, 4], 2, TraceParts::default()).unwrap().parts().0.steps, before);
    drop(engine);
    // an invalid value in a copy is invalid in the file, too: NaN in every type
    moved[8 + len + 1..].fill(0xff);
    std::fs::write(&path, moved).unwrap();
    says(&load(folder.path()).map_or_else(|e| e.to_string(), |_| String::new()), &["model.safetensors", "norm"]);
}
