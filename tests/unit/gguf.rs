//! GGUF files made here: they become the model that they were made from, whatever their format, and no damage is a panic.

use serde_json::{Value, json};
use std::path::Path;
use test_support::{read_json, repository, tiny};
use uqac::engine::{Engine, EngineOptions, HeadSelection};
use uqac::model::gguf::unpack;

/// Formats of tensors.
const F32: u32 = 0;
const BF16: u32 = 30;

/// A file as it is written: metadata, and tensors as (name, dimensions from the fastest on, format, bytes).
#[derive(Default)]
struct Gguf {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The type's number and the bytes of a value; numbers are u32 or f32.
fn value(value: &Value) -> (u32, Vec<u8>) {
    let mut bytes = Vec::new();
    let kind = match value {
        Value::Bool(flag) => {
            bytes.push(u8::from(*flag));
            7
        }
        Value::String(string) => {
            text(&mut bytes, string);
            8
        }
        Value::Array(list) => {
            let parts: Vec<(u32, Vec<u8>)> = list.iter().map(self::value).collect();
            bytes.extend(parts.first().map_or(4, |(kind, _)| *kind).to_le_bytes());
            bytes.extend((parts.len() as u64).to_le_bytes());
            parts.into_iter().for_each(|(_, part)| bytes.extend(part));
            9
        }
        number => match number.as_u64() {
            Some(integer) => {
                bytes.extend((integer as u32).to_le_bytes());
                4
            }
            None => {
                bytes.extend((number.as_f64().unwrap() as f32).to_le_bytes());
                6
            }
        },
    };
    (kind, bytes)
}

impl Gguf {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, entry) in &self.metadata {
            let (kind, entry) = value(entry);
            text(&mut bytes, key);
            bytes.extend(kind.to_le_bytes());
            bytes.extend(entry);
        }
        let mut offset = 0u64;
        for (name, dimensions, format, data) in &self.tensors {
            text(&mut bytes, name);
            bytes.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|d| bytes.extend(d.to_le_bytes()));
            bytes.extend(format.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, data) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(data);
        }
        bytes
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_owned(), value));
    }
}

/// The file of a model folder that [`tiny`] wrote: bf16 weights, a byte-level tokenizer.
fn gguf_of(folder: &Path) -> Gguf {
    let (config, tokenizer) = (read_json(&folder.join("config.json")), read_json(&folder.join("tokenizer.json")));
    let mut file = Gguf::default();
    file.set("general.architecture", json!("llama"));
    for (key, from) in [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("context_length", "max_position_embeddings"),
    ] {
        file.set(&format!("llama.{key}"), config[from].clone());
    }
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<(&String, u64)> = vocabulary.iter().map(|(t, id)| (t, id.as_u64().unwrap())).collect();
    tokens.sort_by_key(|(_, id)| *id);
    let mut names: Vec<&str> = tokens.iter().map(|(token, _)| token.as_str()).collect();
    names.push("<end>");
    let types: Vec<u32> = (0..names.len()).map(|id| if id == tiny::END as usize { 3 } else { 1 }).collect();
    file.set("tokenizer.ggml.model", json!("gpt2"));
    file.set("tokenizer.ggml.pre", json!("gpt-2"));
    file.set("tokenizer.ggml.tokens", json!(names));
    file.set("tokenizer.ggml.token_type", json!(types));
    file.set("tokenizer.ggml.merges", json!([]));
    file.set("tokenizer.ggml.eos_token_id", json!(tiny::END));
    let template = read_json(&folder.join("tokenizer_config.json"))["chat_template"].clone();
    file.set("tokenizer.chat_template", template);

    let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
    for (name, tensor) in safetensors::SafeTensors::deserialize(&weights).unwrap().iter() {
        let (mut stem, mut data) = (name.trim_start_matches("model.").to_owned(), tensor.data().to_vec());
        for (theirs, ours) in [
            ("embed_tokens", "token_embd"),
            ("layers.", "blk."),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ] {
            stem = stem.replace(theirs, ours);
        }
        let stem = if stem == "norm.weight" { "output_norm.weight".to_owned() } else { stem };
        if stem.contains("attn_q.") || stem.contains("attn_k.") {
            // rows (head, half, i) as (head, i, half), as llama.cpp has them
            let (row, half) = (2 * tensor.shape()[1], config["head_dim"].as_u64().unwrap() as usize / 2);
            let rows: Vec<&[u8]> = tensor.data().chunks(row).collect();
            let heads = rows.chunks(2 * half);
            data = heads.flat_map(|head| (0..half).flat_map(|i| [head[i], head[half + i]].concat())).collect();
        }
        let dimensions = tensor.shape().iter().rev().map(|d| *d as u64).collect();
        file.tensors.push((stem, dimensions, BF16, data));
    }
    file
}

/// Unpacks a file of these bytes into a cache of its own.
fn unpacked(bytes: &[u8]) -> Result<(tempfile::TempDir, std::path::PathBuf), String> {
    let cache = tempfile::tempdir().unwrap();
    let path = cache.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let folder = unpack(&path, cache.path()).map_err(|error| error.to_string())?;
    assert_eq!(unpack(&path, cache.path()).unwrap(), folder, "unpacked once");
    Ok((cache, folder))
}

#[test]
fn a_file_becomes_the_model_that_it_was_made_from() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let (_cache, unpacked) = unpacked(&gguf_of(folder.path()).bytes()).unwrap();
    let found = [folder.path(), &unpacked].map(|folder| {
        let mut engine = Engine::load(folder, EngineOptions::default()).unwrap();
        assert_eq!(engine.spec().eos_token_ids, [tiny::END]);
        let tokens = engine.tokenizer().encode("Tom has 3 boxes, ünder them 12 pencils.<end>", true).unwrap();
        assert_eq!(tokens.last(), Some(&tiny::END));
        let message = uqac::Conversation::Prompt("Hi".into());
        let prompt = uqac::encode_prompt(&engine, &message, true).unwrap();
        let mut traced = engine.trace(&tokens, 5, HeadSelection::default()).unwrap();
        (traced.parts().0.steps.to_vec(), tokens, prompt)
    });
    assert_eq!(found[0], found[1]);
}

#[test]
fn every_format_is_read_as_ggml_defines_it() {
    let cases = std::fs::read_to_string(repository().join("tests/data/gguf_blocks.jsonl")).unwrap();
    for case in cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let hex = case["block"].as_str().unwrap();
        let block: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let numbers = case["numbers"].as_array().unwrap();
        let folder = tempfile::tempdir().unwrap();
        tiny::write_model(folder.path());
        let mut file = gguf_of(folder.path());
        // two rows of a block each
        let (dimensions, kind) = (vec![numbers.len() as u64, 2], case["kind"].as_u64().unwrap() as u32);
        file.tensors.push(("output.weight".to_owned(), dimensions, kind, [block.clone(), block].concat()));
        let (_cache, unpacked) = unpacked(&file.bytes()).unwrap();
        let weights = std::fs::read(unpacked.join("model.safetensors")).unwrap();
        let weights = safetensors::SafeTensors::deserialize(&weights).unwrap();
        let head = weights.tensor("lm_head.weight").unwrap();
        let found = head.data().chunks(2).map(|x| f64::from(half::f16::from_le_bytes([x[0], x[1]])));
        let expected = numbers.iter().chain(numbers).filter_map(Value::as_f64);
        assert!(found.eq(expected), "{}", case["format"]);
    }
}

#[test]
fn sentence_pieces_are_merged_by_their_scores() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let mut file = gguf_of(folder.path());
    let pieces = ["<unk>", "<s>", "<end>", "▁", "a", "b", "ab", "▁a", "b▁", "ba", "<0xC3>", "<0xBC>"];
    let scores = [0.0, 0.0, 0.0, -9.5, -8.5, -7.5, -2.5, -1.5, -0.5, -3.5, 0.0, 0.0];
    file.set("tokenizer.ggml.model", json!("llama"));
    file.set("tokenizer.ggml.tokens", json!(pieces));
    file.set("tokenizer.ggml.scores", json!(scores.map(|score: f64| score - 0.25)));
    file.set("tokenizer.ggml.token_type", json!([2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6]));
    file.set("tokenizer.ggml.bos_token_id", json!(1));
    file.set("tokenizer.ggml.eos_token_id", json!(2));
    file.set("tokenizer.ggml.unknown_token_id", json!(0));
    file.tensors.retain(|(name, ..)| name != "token_embd.weight");
    let table = vec![0u8; 4 * 48 * pieces.len()];
    file.tensors.push(("token_embd.weight".to_owned(), vec![48, pieces.len() as u64], F32, table));
    let (_cache, unpacked) = unpacked(&file.bytes()).unwrap();
    let engine = Engine::load(&unpacked, EngineOptions::default()).unwrap();
    // a space comes first; of two overlapping pairs the one of the better score is merged
    for (text, expected) in [("ab", vec![1, 7, 5]), ("bab a", vec![1, 3, 9, 8, 4]), ("ü<end>", vec![1, 3, 10, 11, 2])]
    {
        assert_eq!(engine.tokenizer().encode(text, true).unwrap(), expected, "{text}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let refused = |edit: &dyn Fn(&mut Gguf), says: &str| {
        let mut file = gguf_of(folder.path());
        edit(&mut file);
        let error = unpacked(&file.bytes()).unwrap_err();
        assert!(error.contains("model.gguf") && error.contains(says), "{error}");
    };
    refused(&|file| file.set("general.architecture", json!("mamba")), "the architecture \"mamba\"");
    refused(&|file| file.set("tokenizer.ggml.model", json!("t5")), "the tokenizer \"t5\"");
    refused(&|file| file.set("tokenizer.ggml.pre", json!("viking")), "the pre-tokenizer \"viking\"");
    refused(&|file| file.set("split.count", json!(3)), "llama-gguf-split --merge");
    refused(&|file| file.set("llama.rope.scaling.type", json!("spiral")), "the rope scaling \"spiral\"");
    refused(&|file| file.set("llama.attention.head_count", json!(0)), "expected a number above 0");
    refused(&|file| file.tensors[0].0 = "blk.0.ffn_gate_exps.weight".to_owned(), "blk.0.ffn_gate_exps.weight");
    refused(&|file| file.tensors[0].2 = 19, "in format 19");
    refused(&|file| file.tensors[0].1 = vec![1 << 62, 8], "lies beyond its end");
}

#[test]
fn no_damage_is_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let mut file = gguf_of(folder.path());
    file.metadata.retain(|(key, _)| !key.ends_with("tokens") && !key.ends_with("token_type"));
    let bytes = file.bytes();
    let metadata = 1500.min(bytes.len());
    for end in (0..metadata).step_by(7) {
        assert!(unpacked(&bytes[..end]).unwrap_err().contains("damaged"), "{end}");
    }
    let mut noise = tiny::noise(5);
    for _ in 0..300 {
        let mut broken = bytes.clone();
        let at = ((noise() + 1.0) / 2.0 * metadata as f32) as usize;
        broken[at] = ((noise() + 1.0) * 127.0) as u8;
        // an error or a folder
        let _ = unpacked(&broken);
    }
}
