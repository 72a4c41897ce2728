//! A small random model in Hugging Face layout, made on the spot: tests that need a whole model folder and no oracle.

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Layer count, heads, key/value heads, head_dim, hidden size, inner size, vocabulary (bytes, then end of text).
const VOCAB: usize = 257;
pub const END: u32 = 256;

pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 48, "intermediate_size": 96, "vocab_size": VOCAB,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3,
        "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "eos_token_id": END
    })
}

/// A uniform stream in [-1, 1), the same for the same seed.
pub fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Names and shapes of every tensor of `config`.
fn tensors(config: &Value) -> Vec<(String, Vec<usize>)> {
    let n = |key: &str| config[key].as_u64().unwrap() as usize;
    let (hidden, inner, head) = (n("hidden_size"), n("intermediate_size"), n("head_dim"));
    let (q, kv) = (n("num_attention_heads") * head, n("num_key_value_heads") * head);
    let mut list = vec![("embed_tokens".to_owned(), vec![VOCAB, hidden]), ("norm".to_owned(), vec![hidden])];
    for layer in 0..n("num_hidden_layers") {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            list.push((format!("layers.{layer}.{name}"), shape));
        }
    }
    list
}

/// Writes bf16 weights; `edit` sees every tensor's values before they are rounded.
pub fn write_weights(folder: &Path, config: &Value, edit: impl FnMut(&str, &mut Vec<f32>)) {
    write_weights_as(folder, config, Dtype::BF16, edit);
}

/// The same in bf16, f16 or f32.
pub fn write_weights_as(folder: &Path, config: &Value, dtype: Dtype, mut edit: impl FnMut(&str, &mut Vec<f32>)) {
    let mut random = noise(7);
    let mut data = BTreeMap::new();
    for (name, shape) in tensors(config) {
        let len: usize = shape.iter().product();
        let scale = if shape.len() == 1 { 0.1 } else { 3.0 / (shape[1] as f32).sqrt() };
        let shift = if shape.len() == 1 { 1.0 } else { 0.0 };
        let mut values: Vec<f32> = (0..len).map(|_| shift + scale * random()).collect();
        edit(&name, &mut values);
        let bytes = |x: &f32| match dtype {
            Dtype::BF16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        };
        let bytes: Vec<u8> = values.iter().flat_map(bytes).collect();
        data.insert(format!("model.{name}.weight"), (shape, bytes));
    }
    let views = data.iter().map(|(k, (shape, b))| (k.clone(), TensorView::new(dtype, shape.clone(), b).unwrap()));
    serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// A byte-level tokenizer: one token a byte, and an end token.
pub fn write_tokenizer(folder: &Path) {
    // the printable stand-ins of byte-level BPE: bytes that print stand for themselves, the others from U+0100 on
    let prints = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256u32 {
        let character = if prints(byte) { byte } else { next };
        next += u32::from(!prints(byte));
        vocab.insert(char::from_u32(character).unwrap().to_string(), json!(byte));
    }
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": END, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": []}
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    let config = json!({"eos_token": "<end>", "chat_template": template});
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// A whole model folder.
pub fn write_model(folder: &Path) {
    let config = config();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    write_weights(folder, &config, |_, _| ());
    write_tokenizer(folder);
}
