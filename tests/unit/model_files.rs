//! The forms that published checkpoints come in: shards, f32 and f16 beside bf16, an untied head. The same numbers give
//! the same bits whatever file they come from.

use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;
use test_support::tiny;
use uqac::backend::Step;
use uqac::engine::{Engine, EngineOptions, HeadSelection};

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
    engine.trace(&tokens, 5, HeadSelection::default()).unwrap().parts().0.steps.to_vec()
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
