//! Checkpoints whose files disagree with one another: what counts, as in transformers, and what is refused by name.

use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;
use test_support::tiny;
use uqac::backend::Step;
use uqac::engine::{Engine, EngineOptions, TraceParts};
use uqac::model::ModelSpec;

/// By name: type, shape, bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const WEIGHTS: &str = "model.safetensors";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    folder
}

/// The model with changes of `config.json`.
fn with(edit: impl FnOnce(&mut Value)) -> TempDir {
    let (folder, mut config) = (folder(), tiny::config());
    edit(&mut config);
    put(folder.path(), "config.json", config);
    folder
}

fn put(folder: &Path, name: &str, value: Value) {
    std::fs::write(folder.join(name), value.to_string()).unwrap();
}

fn read(folder: &Path) -> Tensors {
    let bytes = std::fs::read(folder.join(WEIGHTS)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor =
        |(name, view): (String, TensorView)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    tensors.tensors().into_iter().map(tensor).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let mut views = Vec::new();
    for (name, (dtype, shape, bytes)) in tensors {
        views.push((name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    }
    serialize_to_file(views, None, path).unwrap();
}

fn load(folder: &Path) -> Result<Engine, String> {
    Engine::load(folder, EngineOptions { threads: 2, ..EngineOptions::default() }).map_err(|error| error.to_string())
}

fn steps(folder: &Path) -> Vec<Step> {
    let mut engine = load(folder).unwrap();
    let tokens = engine.tokenizer().encode("Tom has 3 boxes with 12 pencils each.", true).unwrap();
    engine.trace(&tokens, 5, TraceParts::default()).unwrap().parts().0.steps.to_vec()
}

fn warnings(folder: &Path) -> Vec<String> {
    load(folder).unwrap().warnings().cloned().collect()
}

/// The index decides where a tensor is; a second copy is not read.
#[test]
fn a_stale_copy_in_another_shard() {
    let (folder, shards) = (folder(), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
    let (path, expected) = (folder.path(), steps(folder.path()));
    let mut first = read(path);
    let mut second = first.split_off("model.layers.1");
    std::fs::remove_file(path.join(WEIGHTS)).unwrap();
    let (named, stale) = ("model.layers.0.mlp.down_proj.weight", first["model.layers.0.mlp.down_proj.weight"].clone());
    second.insert(named.to_owned(), (stale.0, stale.1, vec![0; stale.2.len()]));
    let mut map: BTreeMap<&str, &str> = second.keys().map(|name| (name.as_str(), shards[1])).collect();
    map.extend(first.keys().map(|name| (name.as_str(), shards[0])));
    write(&path.join(shards[0]), &first);
    write(&path.join(shards[1]), &second);
    put(path, "model.safetensors.index.json", json!({"weight_map": map}));
    assert_eq!(steps(path), expected);
    map.remove(named);
    put(path, "model.safetensors.index.json", json!({"weight_map": map}));
    let error = load(path).err().unwrap();
    assert!(error.contains(&format!("weight_map: {named}: expected in one file, found in {}", shards[0])), "{error}");
}

/// Tensors under other names, and the tied pair of which a file has only the head.
#[test]
fn names_without_a_prefix_and_a_head_alone() {
    let folder = folder();
    let (path, expected, tensors) = (folder.path(), steps(folder.path()), read(folder.path()));
    let renamed = |name: fn(&str) -> String| tensors.iter().map(|(old, tensor)| (name(old), tensor.clone())).collect();
    let names: [fn(&str) -> String; 4] = [
        |old| format!("model.{old}"),
        |old| old.trim_start_matches("model.").to_owned(),
        |old| old.replace("model.embed_tokens", "lm_head"),
        |old| old.replace("model.embed_tokens", "lm_head").trim_start_matches("model.").to_owned(),
    ];
    for name in names {
        write(&path.join(WEIGHTS), &renamed(name));
        assert_eq!((steps(path), warnings(path)), (expected.clone(), vec![]));
    }
}

/// One warning names the tensors that the settings do not announce; other modalities and the like are no news.
#[test]
fn tensors_that_are_not_read() {
    let folder = with(|config| config["num_hidden_layers"] = json!(2));
    let mut tensors = read(folder.path());
    let bias = (Dtype::BF16, vec![48], vec![0; 96]);
    for name in ["layers.0.self_attn.q_proj.bias", "layers.0.self_attn.rotary_emb.inv_freq", "vision_tower.x"] {
        tensors.insert(format!("model.{name}"), bias.clone());
    }
    write(&folder.path().join(WEIGHTS), &tensors);
    let warnings = warnings(folder.path());
    let layer: Vec<&String> = tensors.keys().filter(|name| name.starts_with("model.layers.2.")).collect();
    assert_eq!(warnings.len(), 1);
    let says = format!(": {} tensors are not read, since config.json does not announce them: ", 1 + layer.len());
    assert!(warnings[0].contains(&says), "{warnings:?}");
    assert!(
        warnings[0].contains("model.layers.0.self_attn.q_proj.bias, model.layers.2.input_layernorm"),
        "{warnings:?}"
    );
}

/// FP8 with scales per block, row and tensor against values computed one by one, rounded to bf16.
#[test]
fn fp8_is_dequantized() {
    // every code's value, from the format's definition: S.EEEE.MMM, bias 7
    let number = |code: u8| {
        let (sign, e, m) = (if code >> 7 == 1 { -1.0 } else { 1.0 }, f64::from(code >> 3 & 15), f64::from(code & 7));
        let value = if e == 0.0 { m / 512.0 } else { (8.0 + m) / 8.0 * 2f64.powf(e - 7.0) };
        (sign * value) as f32
    };
    let fp8 = |block: Value| json!({"quant_method": "fp8", "weight_block_size": block});
    let compressed = json!({"quant_method": "compressed-tensors", "format": "float-quantized"});
    for (quantization, block, scale_type, end) in [
        (fp8(json!([32, 16])), Some([32, 16]), Dtype::F32, "_scale_inv"),
        (fp8(json!([32, 16])), Some([32, 16]), Dtype::F8_E8M0, "_scale_inv"),
        (fp8(json!(null)), None, Dtype::BF16, "_scale_inv"),
        (fp8(json!([40, 40])), Some([40, 40]), Dtype::F32, "_scale_inv"),
        (compressed.clone(), Some([1, usize::MAX]), Dtype::BF16, "_scale"),
        (compressed, None, Dtype::F32, "_scale"),
    ] {
        let folder = with(|config| config["quantization_config"] = quantization.clone());
        let (mut quantized, mut plain) = (read(folder.path()), read(folder.path()));
        for (name, (_, shape, bytes)) in read(folder.path()).into_iter().filter(|(name, _)| name.contains("_proj.")) {
            let (rows, columns) = (shape[0], shape[1]);
            let codes: Vec<u8> =
                (0..rows * columns).map(|i| bytes[2 * i] & 0xbf).map(|c| if c & 127 == 127 { 0 } else { c }).collect();
            let [height, width] = block.unwrap_or([rows, columns]);
            let grid = [rows.div_ceil(height), columns.div_ceil(width)];
            let powers = scale_type == Dtype::F8_E8M0;
            let scale = |i: usize| if powers { 2f32.powi(i as i32 % 5 - 7) } else { 0.01 + 0.003 * i as f32 };
            let scales: Vec<f32> = (0..grid[0] * grid[1]).map(|i| bf16::from_f32(scale(i)).to_f32()).collect();
            let value = |i: usize| {
                let scale = scales[i / columns / height * grid[1] + i % columns / width];
                bf16::from_f32(number(codes[i]) * scale).to_le_bytes()
            };
            plain.insert(name.clone(), (Dtype::BF16, shape.clone(), (0..codes.len()).flat_map(value).collect()));
            let scales = scales.iter().flat_map(|scale| match scale_type {
                Dtype::F32 => scale.to_le_bytes().to_vec(),
                Dtype::F8_E8M0 => vec![(scale.log2() + 127.0) as u8],
                _ => bf16::from_f32(*scale).to_le_bytes().to_vec(),
            });
            let grid = if block.is_some() { grid.to_vec() } else { Vec::new() };
            quantized.insert(format!("{name}{end}"), (scale_type, grid, scales.collect()));
            quantized.insert(name.replace("weight", "activation_scale"), (Dtype::F32, Vec::new(), vec![0; 4]));
            quantized.insert(name, (Dtype::F8_E4M3, shape, codes));
        }
        write(&folder.path().join(WEIGHTS), &plain);
        let expected = steps(folder.path());
        write(&folder.path().join(WEIGHTS), &quantized);
        assert_eq!((steps(folder.path()), warnings(folder.path())), (expected, vec![]), "{block:?}");
        let name = format!("model.layers.0.mlp.up_proj.weight{end}");
        quantized.get_mut(&name).unwrap().1 = vec![0];
        quantized.get_mut(&name).unwrap().2.clear();
        write(&folder.path().join(WEIGHTS), &quantized);
        assert!(load(folder.path()).err().unwrap().contains(&format!("{name}: expected shape")));
    }
}

/// Settings that are there in another form, and those of other programs.
#[test]
fn settings_in_other_forms() {
    let spec = |edit: fn(&mut Value)| ModelSpec::from_folder(with(edit).path());
    let plain = spec(|_| ()).unwrap();
    let mut by_type = spec(|config| {
        config["architectures"] = json!(null);
        config["model_type"] = json!("llama");
        config["text_config"] = json!(null);
    })
    .unwrap();
    by_type.sources.clone_from(&plain.sources);
    assert_eq!(by_type, plain);
    let recipe = spec(|config| {
        config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048});
    });
    assert_eq!(recipe.unwrap().max_position_embeddings, 8192);
    let tied = |edit: fn(&mut Value)| {
        let folder = with(|config| {
            let mut text = std::mem::take(config);
            text.as_object_mut().unwrap().retain(|key, _| key != "tie_word_embeddings" && key != "architectures");
            text["model_type"] = json!("ministral3");
            *config = json!({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text});
            edit(config);
        });
        ModelSpec::from_folder(folder.path()).unwrap().tie_word_embeddings
    };
    assert!(tied(|_| ()) && !tied(|config| config["tie_word_embeddings"] = json!(false)));
    assert!(tied(|config| config["text_config"]["tie_word_embeddings"] = json!(false)), "the whole model's setting");
    let error = |edit| spec(edit).unwrap_err().to_string();
    let mlx = error(|config| config["quantization"] = json!({"group_size": 64, "bits": 4}));
    assert!(mlx.contains("quantization: weights quantized by MLX are not supported; use the original"), "{mlx}");
}

/// As Python writes them; only where nothing reads them.
#[test]
fn infinity_and_nan() {
    let folder = folder();
    let path = folder.path().join("config.json");
    let text = tiny::config().to_string();
    let written = |more: &str| std::fs::write(&path, text.replacen('{', &format!("{{{more}, "), 1)).unwrap();
    written(r#""time_step_limit": [0.0, Infinity], "x": -Infinity, "y": NaN, "z": "NaN""#);
    assert_eq!(ModelSpec::from_folder(folder.path()).unwrap().hidden_size, 48);
    written(r#""rope_parameters": {"rope_theta": Infinity}"#);
    let error = ModelSpec::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("rope_parameters.rope_theta: expected a positive number"), "{error}");
}

/// An adapter changes every response: it is never ignored. What Git left in place of the weights is named.
#[test]
fn an_adapter_and_a_pointer() {
    let folder = folder();
    put(folder.path(), "adapter_config.json", json!({"base_model_name_or_path": "org/base"}));
    for _ in 0..2 {
        let error = load(folder.path()).err().unwrap();
        assert!(error.contains("has a LoRA adapter (adapter_config.json) of org/base; merge it"), "{error}");
        assert!(error.contains("merge_and_unload().save_pretrained('MERGED')"), "{error}");
        let _ = std::fs::remove_file(folder.path().join(WEIGHTS));
    }
    std::fs::remove_file(folder.path().join("adapter_config.json")).unwrap();
    std::fs::write(folder.path().join(WEIGHTS), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
    let error = load(folder.path()).err().unwrap();
    assert!(error.contains("a Git LFS pointer instead of the file; run git lfs pull"), "{error}");
}

/// All of them end a response, and each says where it is from.
#[test]
fn end_tokens_of_three_files() {
    let folder = with(|config| config["eos_token_id"] = json!([1, 2]));
    put(
        folder.path(),
        "generation_config.json",
        json!({"eos_token_id": [2, 3], "repetition_penalty": 1.05,
        "suppress_tokens": [], "forced_eos_token_id": 0, "min_new_tokens": 0, "num_beams": 1, "no_repeat_ngram_size": 2,
        "stop_strings": ["\n\n"], "token_healing": false, "max_time": null}),
    );
    put(folder.path(), "tokenizer_config.json", json!({"eos_token": "<end>"}));
    let engine = load(folder.path()).unwrap();
    assert_eq!(engine.spec().eos_token_ids, [1, 2, 3, tiny::END]);
    let place = |id: u32| {
        let setting = format!("eos {id}");
        engine.spec().sources.iter().find(|(name, _)| *name == setting).unwrap().1.clone()
    };
    assert_eq!(
        [1, 2, 3, tiny::END].map(place),
        ["config.json", "config.json, generation_config.json", "generation_config.json", "the tokenizer",]
    );
    let expected = [
        ("repetition_penalty", json!(1.05)),
        ("no_repeat_ngram_size", json!(2)),
        ("forced_eos_token_id", json!(0)),
        ("stop_strings", json!(["\n\n"])),
    ];
    assert_eq!(engine.spec().greedy_settings, expected);
}

/// A template in each of the places where a model may have one.
#[test]
fn templates_in_files_of_their_own() {
    let folder = folder();
    let template = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let source = || load(folder.path()).map(|engine| engine.chat_template().map(|t| t.source().to_owned()));
    for name in ["chat_template.jinja", "tokenizer_config.json"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    assert_eq!(source().unwrap(), None);
    template("chat_template.json", r#"{"chat_template": "processor"}"#);
    assert_eq!(source().unwrap().unwrap(), "processor");
    put(folder.path(), "tokenizer_config.json", json!({"chat_template": "config"}));
    assert_eq!(source().unwrap().unwrap(), "config");
    template("additional_chat_templates/rag.jinja", "rag");
    assert!(source().unwrap_err().contains("the model has several chat templates (rag) and none is named"));
    template("chat_template.jinja", "own");
    assert_eq!(source().unwrap().unwrap(), "own");
    template("additional_chat_templates/default.jinja", "default");
    assert_eq!(source().unwrap().unwrap(), "default");
}

/// What `inspect` shows before a download: all that does not depend on values.
#[test]
fn a_config_alone() {
    let folder = folder();
    let whole = load(folder.path()).unwrap();
    for name in [WEIGHTS, "tokenizer.json", "generation_config.json", "tokenizer_config.json"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    let outline = Engine::outline(folder.path()).unwrap();
    assert_eq!(outline.spec().layers, whole.spec().layers);
    assert_eq!(outline.weights().byte_len(), whole.weights().byte_len());
    assert_eq!(outline.tokenizer().vocab_size(), 0);
    assert_eq!(outline.expected_memory(100).cache, whole.expected_memory(100).cache);
}
