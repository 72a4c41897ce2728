//! The forms of published checkpoints: shards, f32 and f16 in addition to bf16, an untied head. The same values produce
//! the same bits from any file.

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;
use test_support::tiny;
use uqac::backend::Step;
use uqac::engine::{Engine, EngineOptions, TraceParts};

struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    folder
}

fn read(folder: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let value = |b: &[u8]| bf16::from_le_bytes([b[0], b[1]]).to_f32();
    SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, view)| Tensor {
            name: name.to_owned(),
            shape: view.shape().to_vec(),
            values: view.data().chunks_exact(2).map(value).collect(),
        })
        .collect()
}

fn write(path: &Path, tensors: &[Tensor], dtype: Dtype) {
    let encode = |x: &f32| match dtype {
        Dtype::F32 => x.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        _ => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.values.iter().flat_map(encode).collect()).collect();
    let views =
        tensors.iter().zip(&bytes).map(|(t, b)| (t.name.clone(), TensorView::new(dtype, t.shape.clone(), b).unwrap()));
    serialize_to_file(views, None, path).unwrap();
}

fn steps(folder: &Path) -> Vec<Step> {
    let mut engine = Engine::load(folder, EngineOptions { threads: 2, ..EngineOptions::default() }).unwrap();
    let tokens = engine.tokenizer().encode("Tom has 3 boxes with 12 pencils each.", true).unwrap();
    engine.trace(&tokens, 5, TraceParts::default()).unwrap().parts().0.steps.to_vec()
}

#[test]
fn shards_equal_one_file() {
    let folder = folder();
    let expected = steps(folder.path());
    let tensors = read(folder.path());
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let mut weight_map = serde_json::Map::new();
    let chunks: Vec<&[Tensor]> = tensors.chunks(tensors.len().div_ceil(3)).collect();
    for (i, chunk) in chunks.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, chunks.len());
        write(&folder.path().join(&file), chunk, Dtype::BF16);
        weight_map.extend(chunk.iter().map(|t| (t.name.clone(), json!(file))));
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    assert_eq!(steps(folder.path()), expected);
}

#[test]
fn f32_and_f16_files_hold_the_same_numbers() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let expected = steps(folder.path());
    let mut tensors = read(folder.path());
    write(&path, &tensors, Dtype::F32);
    assert_eq!(steps(folder.path()), expected, "every bf16 number is an f32");
    tensors.iter_mut().for_each(|t| t.values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()));
    write(&path, &tensors, Dtype::F16);
    let half = steps(folder.path());
    write(&path, &tensors, Dtype::F32);
    assert_eq!(half, steps(folder.path()), "every f16 number is an f32");
}

#[test]
fn an_untied_head_is_used_where_the_config_says_so() {
    let folder = folder();
    let tied = steps(folder.path());
    let mut tensors = read(folder.path());
    let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight").unwrap();
    let (shape, values) = (embedding.shape.clone(), embedding.values.clone());
    tensors.push(Tensor { name: "lm_head.weight".to_owned(), shape, values });
    let mut config = tiny::config();
    config["tie_word_embeddings"] = json!(false);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    write(&folder.path().join("model.safetensors"), &tensors, Dtype::BF16);
    assert_eq!(steps(folder.path()), tied, "a head equal to the embedding");
    tensors.last_mut().unwrap().values.iter_mut().for_each(|x| *x = -*x);
    write(&folder.path().join("model.safetensors"), &tensors, Dtype::BF16);
    assert_ne!(steps(folder.path()), tied);
}

/// If the file contains a head that differs from the embedding, it is used, regardless of `tie_word_embeddings`.
#[test]
fn a_head_beside_a_tied_config_is_used_with_a_warning() {
    let folder = folder();
    let (path, tied) = (folder.path().join("model.safetensors"), steps(folder.path()));
    let warnings = || {
        let engine = Engine::load(folder.path(), EngineOptions::default()).unwrap();
        engine.warnings().cloned().collect::<Vec<String>>()
    };
    let mut tensors = read(folder.path());
    let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight").unwrap();
    tensors.push(Tensor {
        name: "lm_head.weight".to_owned(),
        shape: embedding.shape.clone(),
        values: embedding.values.clone(),
    });
    write(&path, &tensors, Dtype::BF16);
    assert_eq!((steps(folder.path()), warnings()), (tied.clone(), Vec::new()), "a head equal to the embedding");
    tensors.last_mut().unwrap().values.iter_mut().for_each(|x| *x = -*x);
    write(&path, &tensors, Dtype::BF16);
    assert_ne!(steps(folder.path()), tied);
    assert!(warnings()[0].contains("tie_word_embeddings: true, but lm_head.weight"), "{:?}", warnings());
}

#[test]
fn a_single_file_beside_a_stale_index_is_read() {
    let folder = folder();
    let expected = steps(folder.path());
    let stale = json!({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}});
    std::fs::write(folder.path().join("model.safetensors.index.json"), stale.to_string()).unwrap();
    assert_eq!(steps(folder.path()), expected);
}

/// Sequence start and end tokens are found in whichever file defines them.
#[test]
fn special_tokens_are_found_in_every_file() {
    let folder = folder();
    let put =
        |name: &str, value: serde_json::Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let mut config = tiny::config();
    config["eos_token_id"] = json!(null);
    put("config.json", config);
    let ends = || {
        let engine = Engine::load(folder.path(), EngineOptions::default()).unwrap();
        (engine.spec().eos_token_ids.clone(), engine.tokenizer().config.special_tokens.get("bos_token").cloned())
    };
    let _ = std::fs::remove_file(folder.path().join("tokenizer_config.json"));
    assert_eq!(ends(), (vec![], None));
    put("special_tokens_map.json", json!({"eos_token": {"content": "<end>"}, "bos_token": "<end>"}));
    assert_eq!(ends(), (vec![tiny::END], Some("<end>".to_owned())));
    put("special_tokens_map.json", json!({}));
    put("tokenizer_config.json", json!({"eos_token": "<end>"}));
    assert_eq!(ends(), (vec![tiny::END], None));
    put("generation_config.json", json!({"eos_token_id": [7]}));
    assert_eq!(ends().0, [7, tiny::END], "all of them end a response");
}

/// Folders that are something other than a supported model.
#[test]
fn quantized_checkpoints_are_named() {
    let folder = folder();
    let mut config = tiny::config();
    config["quantization_config"] = json!({"quant_method": "awq", "bits": 4});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = Engine::load(folder.path(), EngineOptions::default()).err().unwrap().to_string();
    assert!(error.contains("weights quantized by awq are not supported") && error.contains("--weights q8"), "{error}");
}
