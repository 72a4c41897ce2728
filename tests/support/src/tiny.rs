//! A small random model in Hugging Face layout, generated on the fly, for tests that need a whole model folder but no
//! oracle.

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

/// A uniform stream in [-1, 1), determined by the seed.
pub fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Names and shapes of all tensors in a model with this `config`.
fn tensors(config: &Value) -> Vec<(String, Vec<usize>)> {
    let n = |key: &str| config[key].as_u64().unwrap() as usize;
    let family = config["architectures"][0].as_str().unwrap();
    let flag = |key: &str| config[key] == json!(true);
    let (hidden, inner, head) = (n("hidden_size"), n("intermediate_size"), n("head_dim"));
    let (q, kv) = (n("num_attention_heads") * head, n("num_key_value_heads") * head);
    let (olmo, fused) = (family.starts_with("Olmo"), family.starts_with("Phi3"));
    let four_norms = ["Gemma2", "Gemma3", "Gemma4"].iter().any(|f| family.starts_with(f));
    let llama_bias = flag("attention_bias");
    let qkv_bias = family.starts_with("Qwen2") || llama_bias;
    let head_norms = ["Qwen3", "Gemma3", "Gemma4", "Olmo"].iter().any(|f| family.starts_with(f));
    let (q_norm, k_norm) = if olmo { (q, kv) } else { (head, head) };
    let gated = family.starts_with("Qwen3_5");
    let q_rows = if gated { 2 * q } else { q };
    let mut list = vec![
        ("embed_tokens.weight".to_owned(), vec![n("vocab_size"), hidden]),
        ("norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..n("num_hidden_layers") {
        for (name, shape, present) in [
            ("input_layernorm.weight", vec![hidden], !olmo),
            ("self_attn.q_proj.weight", vec![q_rows, hidden], !fused),
            ("self_attn.k_proj.weight", vec![kv, hidden], !fused),
            ("self_attn.v_proj.weight", vec![kv, hidden], !fused),
            ("self_attn.qkv_proj.weight", vec![q + 2 * kv, hidden], fused),
            ("self_attn.o_proj.weight", vec![hidden, q], true),
            ("post_attention_layernorm.weight", vec![hidden], true),
            ("mlp.gate_proj.weight", vec![inner, hidden], !fused),
            ("mlp.up_proj.weight", vec![inner, hidden], !fused),
            ("mlp.gate_up_proj.weight", vec![2 * inner, hidden], fused),
            ("mlp.down_proj.weight", vec![hidden, inner], true),
            ("self_attn.q_proj.bias", vec![q_rows], qkv_bias),
            ("self_attn.k_proj.bias", vec![kv], qkv_bias),
            ("self_attn.v_proj.bias", vec![kv], qkv_bias),
            ("self_attn.o_proj.bias", vec![hidden], llama_bias),
            ("mlp.gate_proj.bias", vec![inner], flag("mlp_bias")),
            ("mlp.up_proj.bias", vec![inner], flag("mlp_bias")),
            ("mlp.down_proj.bias", vec![hidden], flag("mlp_bias")),
            ("self_attn.q_norm.weight", vec![q_norm], head_norms),
            ("self_attn.k_norm.weight", vec![k_norm], head_norms),
            ("pre_feedforward_layernorm.weight", vec![hidden], four_norms),
            ("post_feedforward_layernorm.weight", vec![hidden], four_norms || olmo),
        ] {
            if present {
                list.push((format!("layers.{layer}.{name}"), shape));
            }
        }
    }
    if let Some(experts) = config["num_experts"].as_u64().filter(|_| !family.starts_with("Gemma4")) {
        let (step, width) = (config["decoder_sparse_step"].as_u64().unwrap_or(1) as usize, n("moe_intermediate_size"));
        for layer in (0..n("num_hidden_layers")).filter(|layer| (layer + 1) % step == 0) {
            list.retain(|(name, _)| !name.starts_with(&format!("layers.{layer}.mlp.")));
            list.push((format!("layers.{layer}.mlp.gate.weight"), vec![experts as usize, hidden]));
            for expert in 0..experts {
                let name = |part: &str| format!("layers.{layer}.mlp.experts.{expert}.{part}_proj.weight");
                list.extend([(name("gate"), vec![width, hidden]), (name("up"), vec![width, hidden])]);
                list.push((name("down"), vec![hidden, width]));
            }
            if let Some(width) = config["shared_expert_intermediate_size"].as_u64() {
                let name = |part: &str| format!("layers.{layer}.mlp.shared_expert{part}.weight");
                list.extend([".gate_proj", ".up_proj"].map(|part| (name(part), vec![width as usize, hidden])));
                list.push((name(".down_proj"), vec![hidden, width as usize]));
                list.push((name("_gate"), vec![1, hidden]));
            }
        }
    }
    for layer in (0..n("num_hidden_layers")).filter(|layer| gated && is_delta_net(config, *layer)) {
        let [key_heads, key, heads, value] = ["num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim"]
            .map(|key| n(&format!("linear_{key}")));
        let (values, mixed) = (heads * value, 2 * key_heads * key + heads * value);
        list.retain(|(name, _)| !name.starts_with(&format!("layers.{layer}.self_attn.")));
        for (name, shape) in [
            ("in_proj_qkv.weight", vec![mixed, hidden]),
            ("in_proj_z.weight", vec![values, hidden]),
            ("in_proj_a.weight", vec![heads, hidden]),
            ("in_proj_b.weight", vec![heads, hidden]),
            ("conv1d.weight", vec![mixed, 1, n("linear_conv_kernel_dim")]),
            ("A_log", vec![heads]),
            ("dt_bias", vec![heads]),
            ("norm.weight", vec![value]),
            ("out_proj.weight", vec![hidden, values]),
        ] {
            list.push((format!("layers.{layer}.linear_attn.{name}"), shape));
        }
    }
    if family.starts_with("Gemma4") {
        gemma4(config, &mut list);
    }
    list.iter_mut().for_each(|(name, _)| name.insert_str(0, "model."));
    if !flag("tie_word_embeddings") {
        list.push(("lm_head.weight".to_owned(), vec![n("vocab_size"), hidden]));
    }
    list
}

fn is_delta_net(config: &Value, layer: usize) -> bool {
    match config["layer_types"].as_array() {
        Some(types) => types[layer] == json!("linear_attention"),
        None => !(layer as u64 + 1).is_multiple_of(config["full_attention_interval"].as_u64().unwrap_or(4)),
    }
}

/// Converts a model's tensors, with identical layers, to those of Gemma 4.
fn gemma4(config: &Value, list: &mut Vec<(String, Vec<usize>)>) {
    let n = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
    let (layers, hidden, heads) = (n("num_hidden_layers"), n("hidden_size"), n("num_attention_heads"));
    let first_shared = layers - n("num_kv_shared_layers");
    let set = |flag: &str| config[flag] == json!(true);
    list.retain_mut(|(name, shape)| {
        let Some((layer, part)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) else {
            return true;
        };
        let layer: usize = layer.parse().unwrap();
        // the last layer always uses full attention, whatever the config says
        let full = config["layer_types"][layer] == json!("full_attention") || layer + 1 == layers;
        let shared = layer >= first_shared;
        if full {
            let (dim, k_eq_v) = (n("global_head_dim"), set("attention_k_eq_v"));
            let kv_heads = n(if k_eq_v { "num_global_key_value_heads" } else { "num_key_value_heads" });
            match part {
                "self_attn.q_proj.weight" | "self_attn.q_proj.bias" => shape[0] = heads * dim,
                "self_attn.o_proj.weight" => shape[1] = heads * dim,
                "self_attn.k_proj.weight" | "self_attn.k_proj.bias" => shape[0] = kv_heads * dim,
                "self_attn.v_proj.weight" | "self_attn.v_proj.bias" if k_eq_v => return false,
                "self_attn.v_proj.weight" | "self_attn.v_proj.bias" => shape[0] = kv_heads * dim,
                "self_attn.q_norm.weight" | "self_attn.k_norm.weight" => shape[0] = dim,
                _ => (),
            }
        }
        if shared && set("use_double_wide_mlp") {
            match part {
                "mlp.gate_proj.weight" | "mlp.up_proj.weight" => shape[0] *= 2,
                "mlp.down_proj.weight" => shape[1] *= 2,
                _ => (),
            }
        }
        !shared || !["self_attn.k_", "self_attn.v_"].iter().any(|own| part.starts_with(own))
    });
    let input = n("hidden_size_per_layer_input");
    for layer in 0..layers {
        let name = |part: &str| format!("layers.{layer}.{part}");
        list.push((name("layer_scalar"), vec![1]));
        if set("enable_moe_block") {
            let (experts, width) = (n("num_experts"), n("moe_intermediate_size"));
            let norms = ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"];
            list.extend(norms.map(|norm| (name(&format!("{norm}.weight")), vec![hidden])));
            list.push((name("router.proj.weight"), vec![experts, hidden]));
            list.push((name("router.scale"), vec![hidden]));
            list.push((name("router.per_expert_scale"), vec![experts]));
            list.push((name("experts.gate_up_proj"), vec![experts, 2 * width, hidden]));
            list.push((name("experts.down_proj"), vec![experts, hidden, width]));
        }
        if input > 0 {
            list.push((name("per_layer_input_gate.weight"), vec![input, hidden]));
            list.push((name("per_layer_projection.weight"), vec![hidden, input]));
            list.push((name("post_per_layer_input_norm.weight"), vec![hidden]));
        }
    }
    if input > 0 {
        list.push(("embed_tokens_per_layer.weight".to_owned(), vec![n("vocab_size_per_layer_input"), layers * input]));
        list.push(("per_layer_model_projection.weight".to_owned(), vec![layers * input, hidden]));
        list.push(("per_layer_projection_norm.weight".to_owned(), vec![input]));
    }
}

/// Writes bf16 weights; `edit` sees every tensor's values before rounding.
pub fn write_weights(folder: &Path, config: &Value, edit: impl FnMut(&str, &mut Vec<f32>)) {
    write_weights_as(folder, config, Dtype::BF16, edit);
}

/// The same in bf16, f16 or f32.
pub fn write_weights_as(folder: &Path, config: &Value, dtype: Dtype, edit: impl FnMut(&str, &mut Vec<f32>)) {
    write_random_weights(folder, config, dtype, 7, edit);
}

/// The same from another seed.
pub fn write_random_weights(
    folder: &Path,
    config: &Value,
    dtype: Dtype,
    seed: u64,
    mut edit: impl FnMut(&str, &mut Vec<f32>),
) {
    let mut random = noise(seed);
    let mut data = BTreeMap::new();
    // Gemma before version 4 and Qwen 3.5 store norm weights minus one
    let family = config["architectures"][0].as_str().unwrap();
    let gemma = family.starts_with("Gemma") && !family.starts_with("Gemma4");
    let norm = if gemma || family.starts_with("Qwen3_5") { 0.0 } else { 1.0 };
    for (file_name, shape) in tensors(config) {
        let name = file_name.trim_start_matches("model.").trim_end_matches(".weight");
        let len: usize = shape.iter().product();
        let (shift, scale) = match shape[..] {
            [_] if name.ends_with("bias") => (0.0, 1.0),
            [_] if name.ends_with("A_log") => (0.0, 2.0),
            [_] if name.ends_with("linear_attn.norm") => (1.0, 0.1),
            [_] => (norm, 0.1),
            _ => (0.0, 3.0 / (shape[1..].iter().product::<usize>() as f32).sqrt()),
        };
        let mut values: Vec<f32> = (0..len).map(|_| shift + scale * random()).collect();
        edit(name, &mut values);
        let bytes = |x: &f32| match dtype {
            Dtype::BF16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        };
        let bytes: Vec<u8> = values.iter().flat_map(bytes).collect();
        data.insert(file_name, (shape, bytes));
    }
    let views = data.iter().map(|(k, (shape, b))| (k.clone(), TensorView::new(dtype, shape.clone(), b).unwrap()));
    serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

/// A byte-level tokenizer: one token per byte, and an end token.
pub fn write_tokenizer(folder: &Path) {
    // the printable stand-ins of byte-level BPE: printable bytes map to themselves, the rest to U+0100 onwards
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

/// A whole model folder with these settings overriding those of [`config`], and weights of this type.
pub fn model_with(settings: &[(&str, Value)], dtype: Dtype) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    for (name, value) in settings {
        config[*name] = value.clone();
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    write_weights_as(folder.path(), &config, dtype, |_, _| ());
    write_tokenizer(folder.path());
    folder
}

/// A model most of whose layers are gated delta nets.
pub fn delta_model() -> tempfile::TempDir {
    let settings = [
        ("architectures", json!(["Qwen3_5ForCausalLM"])),
        ("head_dim", json!(16)),
        ("num_hidden_layers", json!(4)),
        ("layer_types", json!(["linear_attention", "full_attention", "linear_attention", "full_attention"])),
        ("partial_rotary_factor", json!(0.5)),
        ("linear_num_key_heads", json!(2)),
        ("linear_num_value_heads", json!(4)),
        ("linear_key_head_dim", json!(8)),
        ("linear_value_head_dim", json!(20)),
        ("linear_conv_kernel_dim", json!(4)),
    ];
    model_with(&settings, Dtype::BF16)
}

/// A Gemma 4 model whose layers have heads of size 16 and `global_head_dim`, shared keys and values, values equal to
/// keys, per-layer inputs, and experts next to a dense network.
pub fn gemma4_model(global_head_dim: usize, dtype: Dtype) -> tempfile::TempDir {
    let [sliding, full] = ["sliding_attention", "full_attention"];
    let settings = [
        ("architectures", json!(["Gemma4ForCausalLM"])),
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("head_dim", json!(16)),
        ("global_head_dim", json!(global_head_dim)),
        ("num_global_key_value_heads", json!(1)),
        ("attention_k_eq_v", json!(true)),
        ("num_hidden_layers", json!(5)),
        ("num_kv_shared_layers", json!(2)),
        ("layer_types", json!([sliding, sliding, full, sliding, full])),
        ("sliding_window", json!(20)),
        ("hidden_size_per_layer_input", json!(16)),
        ("vocab_size_per_layer_input", json!(VOCAB)),
        ("use_double_wide_mlp", json!(true)),
        ("enable_moe_block", json!(true)),
        ("num_experts", json!(6)),
        ("top_k_experts", json!(2)),
        ("moe_intermediate_size", json!(24)),
    ];
    model_with(&settings, dtype)
}

/// A model with room for long sequences and a short attention window: time grows linearly with length, not
/// quadratically.
pub fn windowed_model() -> tempfile::TempDir {
    let settings = [
        ("hidden_size", json!(16)),
        ("intermediate_size", json!(16)),
        ("num_attention_heads", json!(2)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(64)),
        ("num_hidden_layers", json!(1)),
        ("layer_types", json!(["sliding_attention"])),
        ("sliding_window", json!(32)),
        ("max_position_embeddings", json!(32_768)),
    ];
    model_with(&settings, Dtype::BF16)
}
