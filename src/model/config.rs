//! `config.json` → [`ModelSpec`]: what distinguishes the families is data here, and nothing downstream asks for a name.

mod read;

use super::ModelError;
use serde_json::Value;
use std::path::Path;

/// The gate's activation in the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// Gelu in its tanh approximation (`gelu_pytorch_tanh`).
    GeluTanh,
}

/// How rotary frequencies are stretched beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by the factor.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by the factor, short ones kept, a ramp between.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_max_position_embeddings: f32,
    },
}

/// One rotary table; layers name it by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// `rope_theta`
    pub theta: f32,
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Inverse frequencies, `[head_dim / 2]`, rounded where Hugging Face rounds (they are f32 there).
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let plain = (0..head_dim / 2).map(|i| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            1.0 / (f64::from(self.theta).powf(f64::from(exponent)) as f32)
        });
        plain.map(|f| self.scaling.apply(f)).collect()
    }
}

impl RopeScaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: old,
            } => {
                let wavelength = 2.0 * std::f32::consts::PI / frequency;
                if wavelength < old / high_freq_factor {
                    frequency
                } else if wavelength > old / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (old / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    }
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// Row T attends to positions T - window + 1 ..= T only (`sliding_window`).
    pub window: Option<usize>,
    /// Index into [`ModelSpec::rope`].
    pub rope: usize,
}

/// A decoder-only transformer of the Llama / Qwen / Gemma families. Names are the published config keys.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `architectures[0]`, for display only.
    pub architecture: String,
    pub hidden_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub intermediate_size: usize,
    /// Rows of the embedding and of the head; a tokenizer may have fewer tokens.
    pub vocab_size: usize,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    /// Added to every norm weight: 1 in Gemma (which stores w - 1), else 0.
    pub norm_weight_offset: f32,
    pub activation: Activation,
    /// Factor on the embedding (Gemma: √hidden_size).
    pub embedding_scale: Option<f32>,
    /// q, k and v projections have a bias (Qwen2; `attention_bias`).
    pub qkv_bias: bool,
    /// The output projection has a bias (`attention_bias` of Llama).
    pub output_bias: bool,
    /// gate, up and down have a bias (`mlp_bias`).
    pub mlp_bias: bool,
    /// q and k are normed per head before rope (Qwen3, Gemma-3).
    pub qk_norm: bool,
    /// Attention and feed-forward outputs are normed before they join the residual stream (Gemma).
    pub post_norms: bool,
    /// Factor on q·k: 1/√head_dim, or 1/√query_pre_attn_scalar.
    pub attention_scale: f32,
    /// s ← cap · tanh(s / cap) on attention scores.
    pub attn_logit_softcapping: Option<f32>,
    /// The same on the logits.
    pub final_logit_softcapping: Option<f32>,
    pub tie_word_embeddings: bool,
    /// One table, or the full and the sliding layers' ones.
    pub rope: Vec<RopeSpec>,
    /// `num_hidden_layers` of them.
    pub layers: Vec<LayerSpec>,
    /// Whether mathematical questions must ask for a boxed answer; other families box it unasked.
    pub boxed_instruction: bool,
    pub bos_token_id: Option<u32>,
    /// Every id that ends a generation, `generation_config.json` included.
    pub eos_token_ids: Vec<u32>,
}

/// What a family's name alone says, before any key is read.
struct Family {
    norm_weight_offset: f32,
    gemma: bool,
    qkv_bias: Option<bool>,
    qk_norm: bool,
    /// Rope of sliding layers differs from that of full ones.
    local_rope: bool,
    /// Without `layer_types`: every n-th layer is full, the others slide.
    sliding_pattern: Option<usize>,
    tied: bool,
}

const LLAMA: Family = Family {
    norm_weight_offset: 0.0,
    gemma: false,
    qkv_bias: None,
    qk_norm: false,
    local_rope: false,
    sliding_pattern: None,
    tied: false,
};

const GEMMA: Family = Family { norm_weight_offset: 1.0, gemma: true, tied: true, ..LLAMA };

/// Every family by its name in `architectures`.
const FAMILIES: &[(&str, Family)] = &[
    ("LlamaForCausalLM", LLAMA),
    ("Qwen2ForCausalLM", Family { qkv_bias: Some(true), ..LLAMA }),
    ("Qwen3ForCausalLM", Family { qk_norm: true, ..LLAMA }),
    ("Gemma2ForCausalLM", Family { sliding_pattern: Some(2), ..GEMMA }),
    ("Gemma3ForCausalLM", Family { qk_norm: true, local_rope: true, sliding_pattern: Some(6), ..GEMMA }),
];

/// The architectures that [`ModelSpec::from_folder`] understands.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

impl ModelSpec {
    /// Reads `config.json` and, where there is one, `generation_config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] names the file and the key, what was expected and what was found.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        read::spec(folder)
    }

    /// Of a `config.json` that is no file, such as that of a published shape.
    ///
    /// # Errors
    /// As [`ModelSpec::from_folder`].
    pub fn from_config(config: &Value) -> Result<Self, ModelError> {
        read::of_config(Path::new(read::CONFIG), config)
    }

    /// L · H, the number of attention heads of the whole model.
    pub fn total_heads(&self) -> usize {
        self.layers.len() * self.num_attention_heads
    }

    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(edit: impl FnOnce(&mut Value)) -> Result<ModelSpec, ModelError> {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160, "vocab_size": 256,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6, "hidden_act": "silu",
            "max_position_embeddings": 512, "eos_token_id": [1, 2], "bos_token_id": 0
        });
        edit(&mut config);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [2, 7]}"#).unwrap();
        ModelSpec::from_folder(folder.path())
    }

    #[test]
    fn llama_defaults_and_all_eos_ids() {
        let s = spec(|_| ()).unwrap();
        assert_eq!((s.head_dim, s.group_size(), s.total_heads()), (16, 2, 24));
        assert_eq!(s.eos_token_ids, [1, 2, 7]);
        assert_eq!(s.attention_scale, 0.25);
        assert!(s.layers.iter().all(|l| l.window.is_none()));
    }

    #[test]
    fn gemma3_without_layer_types_slides_five_of_six() {
        let s = spec(|c| {
            c["architectures"] = json!(["Gemma3ForCausalLM"]);
            c["hidden_activation"] = json!("gelu_pytorch_tanh");
            c["sliding_window"] = json!(32);
            c["rope_theta"] = json!(1e6);
            c["query_pre_attn_scalar"] = json!(64);
        })
        .unwrap();
        assert_eq!(
            s.layers.iter().map(|l| l.window.is_some()).collect::<Vec<_>>(),
            [true, true, true, true, true, false]
        );
        assert_eq!((s.rope[s.layers[0].rope].theta, s.rope[s.layers[5].rope].theta), (1e4, 1e6));
        assert_eq!((s.attention_scale, s.embedding_scale), (0.125, Some(8.0)));
        assert!(s.tie_word_embeddings && s.post_norms && s.qk_norm);
    }

    #[test]
    fn transformers_five_rope_parameters() {
        let s =
            spec(|c| c["rope_parameters"] = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5})).unwrap();
        assert_eq!(s.rope, [RopeSpec { theta: 5e5, scaling: RopeScaling::Linear { factor: 8.0 } }]);
    }

    /// Published configs have them: `null`, ids of -1, window keys of other families.
    #[test]
    fn what_is_not_used_is_not_checked() {
        let s = spec(|c| {
            c["head_dim"] = Value::Null;
            c["rope_scaling"] = Value::Null;
            c["eos_token_id"] = json!([-1, "</s>", 3]);
            c["sliding_window"] = json!(-1);
            c["max_window_layers"] = json!(0);
            c["use_sliding_window"] = json!(false);
        })
        .unwrap();
        assert_eq!((s.head_dim, s.eos_token_ids), (16, vec![3, 2, 7]));
        let message = spec(|c| {
            c["sliding_window"] = json!(-1);
            c["max_window_layers"] = json!(3);
            c["use_sliding_window"] = json!(true);
        });
        assert!(message.unwrap_err().to_string().ends_with("sliding_window: expected a positive integer, found -1"));
    }

    #[test]
    fn errors_name_the_key_and_what_was_found() {
        let message = |edit: fn(&mut Value)| spec(edit).unwrap_err().to_string();
        let says = |edit: fn(&mut Value), end: &str| {
            let message = message(edit);
            assert!(message.ends_with(&format!("config.json: {end}")), "{message}");
        };
        says(|c| c["hidden_size"] = json!(0), "hidden_size: expected a positive integer, found 0");
        says(
            |c| c["num_hidden_layers"] = json!(u32::MAX),
            "num_hidden_layers: expected at most 4096, found 4294967295",
        );
        says(|c| drop(c.as_object_mut().unwrap().remove("vocab_size")), "missing field `vocab_size`");
        says(|c| c["rms_norm_eps"] = json!("x"), "rms_norm_eps: expected a positive number, found \"x\"");
        says(
            |c| c["rope_scaling"] = json!({"type": "linear"}),
            "rope_scaling.factor: expected a positive number, found nothing",
        );
        says(
            |c| c["rope_parameters"] = json!({"full_attention": {"factor": -1}}),
            "rope_parameters.full_attention.factor: expected a positive number, found -1",
        );
        assert!(message(|c| c["architectures"] = json!(["MambaForCausalLM"])).contains("MambaForCausalLM"));
        assert!(message(|c| c["hidden_size"] = json!("x")).contains("hidden_size"));
        assert!(message(|c| c["num_key_value_heads"] = json!(3)).contains("does not divide"));
        assert!(message(|c| c["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4})).contains("yarn"));
        assert!(message(|c| c["layer_types"] = json!(["full_attention"])).contains("expected 6 entries"));
        assert!(message(|c| c["hidden_act"] = json!("relu")).contains("relu"));
    }
}
