//! Small models of every family with random shapes and weights, generated on the fly, for comparing backends without
//! an oracle.

use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use test_support::tiny;
use uqac::backend::DType;
use uqac::model::{ModelSpec, Weights};

/// The families supported by [`RandomModel::new`].
pub const RANDOM_FAMILIES: [&str; 18] = [
    "llama",
    "llama3",
    "yarn",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "mistral",
    "smollm3",
    "olmo2",
    "olmo3",
    "phi3",
    "granite",
    "qwen3moe",
    "qwen3_5",
    "qwen3_5moe",
    "gemma4",
];

/// A model's description, which determines its weights.
#[derive(Clone, Debug)]
pub struct RandomModel {
    pub config: Value,
    /// The weights' type.
    pub dtype: DType,
    pub seed: u64,
}

/// The set of shapes to draw from.
#[derive(Clone, Copy, PartialEq)]
pub enum Shapes {
    /// Odd sizes, any even head_dim.
    Any,
    /// Shapes supported by the CUDA kernels.
    Cuda,
}

impl RandomModel {
    /// Sizes, ratios, windows, biases, a tied or untied head and the weights' type are determined by `seed`.
    pub fn new(family: &str, seed: u64, shapes: Shapes) -> RandomModel {
        let mut noise = tiny::noise(seed + 1);
        let mut pick = |from: usize, to: usize| from + ((noise() + 1.0) / 2.0 * (to + 1 - from) as f32) as usize;
        let (kv_heads, group, layers) = (pick(1, if shapes == Shapes::Cuda { 2 } else { 3 }), pick(1, 4), pick(2, 4));
        let (hidden, inner, head_dim) = match shapes {
            Shapes::Any => (pick(9, 70), pick(9, 90), 2 * pick(1, 17)),
            Shapes::Cuda => (8 * pick(2, 9), 8 * pick(2, 9), 16 * pick(1, 2)),
        };
        let mut config = json!({
            "hidden_size": hidden, "intermediate_size": inner, "vocab_size": pick(30, 200), "head_dim": head_dim,
            "num_attention_heads": kv_heads * group, "num_key_value_heads": kv_heads, "num_hidden_layers": layers,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": pick(0, 1) == 1
        });
        let gemma = json!({
            "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": pick(4, 40), "sliding_window": pick(1, 40)
        });
        let flag = pick(0, 1) == 1;
        let (architecture, own, common) = match family {
            "llama" => ("Llama", json!({"attention_bias": flag, "mlp_bias": !flag}), json!({})),
            "llama3" => (
                "Llama",
                json!({"rope_theta": 5e5, "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32
                }}),
                json!({}),
            ),
            "qwen2" => {
                ("Qwen2", json!({"use_sliding_window": flag, "max_window_layers": 1, "sliding_window": 21}), json!({}))
            }
            "yarn" => (
                "Llama",
                json!({"rope_parameters": {
                    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e3,
                    "attention_factor": if flag { json!(1.2) } else { json!(null) }
                }}),
                json!({}),
            ),
            "qwen3" => ("Qwen3", json!({"rope_theta": 1e6}), json!({})),
            "qwen3moe" => {
                let (experts, step) = (pick(2, 9), pick(1, 2));
                let inner = if shapes == Shapes::Cuda { 8 * pick(1, 5) } else { pick(5, 40) };
                let own = json!({
                    "num_experts": experts, "num_experts_per_tok": pick(1, experts), "moe_intermediate_size": inner,
                    "norm_topk_prob": flag, "decoder_sparse_step": step
                });
                ("Qwen3Moe", own, json!({}))
            }
            "qwen3_5" | "qwen3_5moe" => {
                let key_heads = pick(1, 3);
                // one layer of attention at any position, and possibly more
                let attention = pick(0, layers - 1);
                let kind = |delta: bool| if delta { "linear_attention" } else { "full_attention" };
                let types: Vec<&str> = (0..layers).map(|layer| kind(layer != attention && pick(0, 3) > 0)).collect();
                let turning = 2 * pick(1, head_dim / 2);
                let (key_dim, value_dim, moe_inner, shared_inner) = match shapes {
                    Shapes::Any => (pick(1, 21), pick(1, 40), pick(5, 40), pick(5, 40)),
                    Shapes::Cuda => (2 * pick(1, 21), 8 * pick(1, 9), 8 * pick(1, 5), 8 * pick(1, 5)),
                };
                let own = json!({
                    "attention_bias": flag, "layer_types": types, "partial_rotary_factor": turning as f64 / head_dim as f64,
                    "linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * pick(1, 3),
                    "linear_key_head_dim": key_dim, "linear_value_head_dim": value_dim,
                    "linear_conv_kernel_dim": pick(1, 5)
                });
                if family == "qwen3_5" {
                    ("Qwen3_5", own, json!({}))
                } else {
                    let experts = pick(2, 7);
                    let own_experts = json!({
                        "num_experts": experts, "num_experts_per_tok": pick(1, experts), "moe_intermediate_size": moe_inner,
                        "shared_expert_intermediate_size": shared_inner
                    });
                    ("Qwen3_5Moe", own, own_experts)
                }
            }
            "gemma" => ("Gemma", json!({}), gemma),
            "mistral" => ("Mistral", json!({"sliding_window": if flag { json!(21) } else { json!(null) }}), json!({})),
            "smollm3" => ("SmolLM3", json!({"no_rope_layer_interval": 2, "rope_theta": 1e4}), json!({})),
            "olmo2" => ("Olmo2", json!({"attention_bias": flag}), json!({})),
            "olmo3" => (
                "Olmo3",
                json!({"sliding_window": 21, "rope_scaling": {
                    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64
                }}),
                json!({}),
            ),
            "phi3" => {
                // an even number of a head's dimensions
                let turning = 2 * pick(1, head_dim / 2);
                let short = vec![1.5; turning / 2];
                let scaling = json!({"type": "longrope", "short_factor": short, "long_factor": short});
                let own = json!({
                    "partial_rotary_factor": turning as f64 / head_dim as f64, "original_max_position_embeddings": 128,
                    "rope_scaling": if flag { scaling } else { json!(null) }
                });
                ("Phi3", own, json!({}))
            }
            "granite" => (
                "Granite",
                json!({
                    "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.22,
                    "logits_scaling": 2.5, "attention_bias": flag, "mlp_bias": flag
                }),
                json!({}),
            ),
            "gemma2" => ("Gemma2", json!({"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}), gemma),
            "gemma3" => (
                "Gemma3",
                json!({
                    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2,
                    "rope_scaling": {"rope_type": "linear", "factor": 8.0}
                }),
                gemma,
            ),
            "gemma4" => {
                let global_kv = [1, kv_heads, kv_heads * group][pick(0, 2)];
                // one unshared layer of each type
                let types: Vec<&str> =
                    (1..=layers + 2).map(|i| ["full_attention", "sliding_attention"][i % 2]).collect();
                let (global_dim, input, moe_inner) = match shapes {
                    Shapes::Any => (2 * pick(1, 20), pick(3, 20), pick(5, 40)),
                    Shapes::Cuda => (16 << pick(0, 2), 8 * pick(1, 2), 8 * pick(1, 5)),
                };
                let own = json!({
                    "num_hidden_layers": layers + 2, "layer_types": types, "num_kv_shared_layers": pick(0, layers - 1),
                    "global_head_dim": global_dim, "num_global_key_value_heads": global_kv,
                    "attention_k_eq_v": flag, "use_double_wide_mlp": pick(0, 1) == 1, "attention_bias": pick(0, 1) == 1,
                    "vocab_size_per_layer_input": config["vocab_size"],
                    "hidden_size_per_layer_input": if pick(0, 2) > 0 { input } else { 0 },
                    "final_logit_softcapping": 6.0, "enable_moe_block": pick(0, 1) == 1, "num_experts": 5,
                    "top_k_experts": pick(1, 5), "moe_intermediate_size": moe_inner
                });
                ("Gemma4", own, gemma)
            }
            other => panic!("no family {other}"),
        };
        config["architectures"] = json!([format!("{architecture}ForCausalLM")]);
        for (key, value) in common.as_object().unwrap().iter().chain(own.as_object().unwrap()) {
            config[key] = value.clone();
        }
        RandomModel { config, dtype: [DType::F32, DType::Bf16, DType::F16][pick(0, 2)], seed }
    }

    /// The model's folder, without a tokenizer.
    pub fn write(&self) -> TempDir {
        let dtype = match self.dtype {
            DType::F32 => Dtype::F32,
            DType::Bf16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
        };
        self.write_as(dtype, |_, _| ())
    }

    /// The same model with each weight changed by up to `relative` of its magnitude, which requires f32 weights.
    pub fn write_perturbed(&self, relative: f64) -> TempDir {
        let mut noise = tiny::noise(self.seed + 1000);
        self.write_as(Dtype::F32, |_, values| {
            for x in values {
                *x = (f64::from(self.dtype.round(*x)) * (1.0 + relative * f64::from(noise()))) as f32;
            }
        })
    }

    fn write_as(&self, dtype: Dtype, edit: impl FnMut(&str, &mut Vec<f32>)) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        tiny::write_random_weights(folder.path(), &self.config, dtype, self.seed, edit);
        folder
    }

    /// Random tokens.
    pub fn tokens(&self, len: usize, seed: u64) -> Vec<u32> {
        let (mut noise, vocab) = (tiny::noise(seed + 1), self.config["vocab_size"].as_u64().unwrap() as f32);
        (0..len).map(|_| ((noise() + 1.0) / 2.0 * vocab) as u32).collect()
    }
}

pub fn open(folder: &Path) -> (ModelSpec, Arc<Weights>) {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Weights::open(folder, &spec).unwrap();
    (spec, Arc::new(weights))
}
