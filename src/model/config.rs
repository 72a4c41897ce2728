//! `config.json` → [`ModelSpec`]: what distinguishes the families is data here, and nothing downstream asks for a name.

use super::ModelError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

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
    pub vocab_size: usize,
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
    pub rope: Vec<RopeSpec>,
    pub layers: Vec<LayerSpec>,
    /// Whether mathematical questions have to say that the answer belongs in a box; others' models put it there.
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

fn family(architecture: &str) -> Option<Family> {
    let base = Family {
        norm_weight_offset: 0.0,
        gemma: false,
        qkv_bias: None,
        qk_norm: false,
        local_rope: false,
        sliding_pattern: None,
        tied: false,
    };
    let gemma = Family { norm_weight_offset: 1.0, gemma: true, tied: true, ..base };
    match architecture {
        "LlamaForCausalLM" => Some(base),
        "Qwen2ForCausalLM" => Some(Family { qkv_bias: Some(true), ..base }),
        "Qwen3ForCausalLM" => Some(Family { qk_norm: true, ..base }),
        "Gemma2ForCausalLM" => Some(Family { sliding_pattern: Some(2), ..gemma }),
        "Gemma3ForCausalLM" => Some(Family { qk_norm: true, local_rope: true, sliding_pattern: Some(6), ..gemma }),
        _ => None,
    }
}

/// The architectures that [`ModelSpec::from_folder`] understands.
pub const ARCHITECTURES: [&str; 5] =
    ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"];

impl ModelSpec {
    /// Reads `config.json` and, where there is one, `generation_config.json`.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let config = Config { object: read_object(&path)?, path };
        let mut spec = config.spec()?;
        let generation = folder.join("generation_config.json");
        if generation.is_file() {
            let object = read_object(&generation)?;
            for id in token_ids(object.get("eos_token_id")) {
                if !spec.eos_token_ids.contains(&id) {
                    spec.eos_token_ids.push(id);
                }
            }
        }
        Ok(spec)
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

fn read_object(path: &Path) -> Result<Map<String, Value>, ModelError> {
    let text = std::fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(v) => id(v).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A parsed `config.json` with typed access; every error names the file and the key.
struct Config {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Config {
    fn error(&self, key: &str, message: impl Into<String>) -> ModelError {
        ModelError::Config { path: self.path.clone(), key: key.to_owned(), message: message.into() }
    }

    /// `null` counts as absent, as in transformers.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) if (1..=u64::from(u32::MAX)).contains(&n) => Ok(Some(n as usize)),
                _ => Err(self.error(key, format!("expected a positive integer, found {v}"))),
            },
        }
    }

    fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.optional_size(key)?.ok_or_else(|| self.error(key, "expected a positive integer, found nothing"))
    }

    fn number_in(&self, object: &Map<String, Value>, key: &str) -> Result<Option<f32>, ModelError> {
        match object.get(key).filter(|v| !v.is_null()) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x as f32)),
                _ => Err(self.error(key, format!("expected a positive number, found {v}"))),
            },
        }
    }

    fn number(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.number_in(&self.object, key)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.get(key)
            .map(|v| v.as_bool().ok_or_else(|| self.error(key, format!("expected true or false, found {v}"))))
            .transpose()
    }

    fn spec(&self) -> Result<ModelSpec, ModelError> {
        let architecture = self
            .get("architectures")
            .and_then(|v| v.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| self.error("architectures", "expected a list with one name, found none"))?;
        let family = family(architecture).ok_or_else(|| {
            self.error(
                "architectures",
                format!("{architecture} is not supported (supported: {})", ARCHITECTURES.join(", ")),
            )
        })?;
        let hidden_size = self.size("hidden_size")?;
        let num_attention_heads = self.size("num_attention_heads")?;
        let num_key_value_heads = self.optional_size("num_key_value_heads")?.unwrap_or(num_attention_heads);
        let head_dim = self.optional_size("head_dim")?.unwrap_or(hidden_size / num_attention_heads);
        if num_attention_heads % num_key_value_heads != 0 {
            let message = format!("{num_key_value_heads} does not divide num_attention_heads ({num_attention_heads})");
            return Err(self.error("num_key_value_heads", message));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(self.error("head_dim", format!("expected an even number, found {head_dim}")));
        }
        let attention_bias = self.flag("attention_bias")?.unwrap_or(false);
        let query_scalar = self.number("query_pre_attn_scalar")?.filter(|_| family.gemma).unwrap_or(head_dim as f32);
        let rope = self.rope(&family)?;
        Ok(ModelSpec {
            architecture: architecture.to_owned(),
            hidden_size,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size: self.size("intermediate_size")?,
            vocab_size: self.size("vocab_size")?,
            max_position_embeddings: self.size("max_position_embeddings")?,
            rms_norm_eps: self.number("rms_norm_eps")?.unwrap_or(1e-6),
            norm_weight_offset: family.norm_weight_offset,
            activation: self.activation()?,
            embedding_scale: family.gemma.then(|| (hidden_size as f64).sqrt() as f32),
            qkv_bias: family.qkv_bias.unwrap_or(attention_bias),
            output_bias: family.qkv_bias.is_none() && attention_bias,
            mlp_bias: self.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: family.qk_norm,
            post_norms: family.gemma,
            attention_scale: 1.0 / query_scalar.sqrt(),
            attn_logit_softcapping: self.number("attn_logit_softcapping")?,
            final_logit_softcapping: self.number("final_logit_softcapping")?,
            tie_word_embeddings: self.flag("tie_word_embeddings")?.unwrap_or(family.tied),
            layers: self.layers(&family)?,
            rope,
            boxed_instruction: family.gemma,
            bos_token_id: token_ids(self.get("bos_token_id")).first().copied(),
            eos_token_ids: token_ids(self.get("eos_token_id")),
        })
    }

    fn activation(&self) -> Result<Activation, ModelError> {
        let key = if self.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
        match self.get(key).and_then(Value::as_str) {
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            other => Err(self.error(key, format!("expected silu or gelu_pytorch_tanh, found {other:?}"))),
        }
    }

    /// One table, or two where sliding layers have their own: index 0 is the full layers'.
    fn rope(&self, family: &Family) -> Result<Vec<RopeSpec>, ModelError> {
        // transformers 5 writes `rope_parameters`, nested by layer type where they differ
        let parameters = self.get("rope_parameters").and_then(Value::as_object);
        let nested = |kind: &str| parameters.and_then(|p| p.get(kind)).and_then(Value::as_object);
        let full_parameters = nested("full_attention").or(parameters);
        let scaling = full_parameters.or_else(|| self.get("rope_scaling").and_then(Value::as_object));
        let theta = match full_parameters {
            Some(p) => self.number_in(p, "rope_theta")?,
            None => self.number("rope_theta")?,
        };
        let full = RopeSpec { theta: theta.unwrap_or(10_000.0), scaling: self.scaling(scaling)? };
        if !family.local_rope {
            return Ok(vec![full]);
        }
        let local = match nested("sliding_attention") {
            Some(p) => self.number_in(p, "rope_theta")?,
            None => self.number("rope_local_base_freq")?,
        };
        Ok(vec![full, RopeSpec { theta: local.unwrap_or(10_000.0), scaling: RopeScaling::None }])
    }

    fn scaling(&self, object: Option<&Map<String, Value>>) -> Result<RopeScaling, ModelError> {
        let Some(object) = object else { return Ok(RopeScaling::None) };
        let kind = object.get("rope_type").or_else(|| object.get("type")).and_then(Value::as_str).unwrap_or("default");
        let need = |key: &str| {
            self.number_in(object, key)?
                .ok_or_else(|| self.error(&format!("rope_scaling.{key}"), "expected a positive number, found nothing"))
        };
        match kind {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: need("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_position_embeddings: need("original_max_position_embeddings")?,
            }),
            other => {
                Err(self.error("rope_scaling.rope_type", format!("expected default, linear or llama3, found {other}")))
            }
        }
    }

    fn layers(&self, family: &Family) -> Result<Vec<LayerSpec>, ModelError> {
        let count = self.size("num_hidden_layers")?;
        let sliding = self.sliding_layers(count, family.sliding_pattern)?;
        let window = if sliding.contains(&true) { Some(self.size("sliding_window")?) } else { None };
        let layer = |slides: bool| LayerSpec {
            window: window.filter(|_| slides),
            rope: usize::from(slides && family.local_rope),
        };
        Ok(sliding.into_iter().map(layer).collect())
    }

    /// Which layers slide: `layer_types` where present, else the older keys.
    fn sliding_layers(&self, count: usize, pattern: Option<usize>) -> Result<Vec<bool>, ModelError> {
        if let Some(types) = self.get("layer_types").and_then(Value::as_array) {
            if types.len() != count {
                let message = format!("expected {count} entries (num_hidden_layers), found {}", types.len());
                return Err(self.error("layer_types", message));
            }
            return types.iter().map(|t| self.slides(t)).collect();
        }
        if let Some(default) = pattern {
            let written = self.optional_size("sliding_window_pattern")?;
            let pattern = written.or(self.optional_size("_sliding_window_pattern")?).unwrap_or(default);
            return Ok((1..=count).map(|layer| layer % pattern != 0).collect());
        }
        if self.flag("use_sliding_window")? == Some(true) {
            let first = self.optional_size("max_window_layers")?.unwrap_or(count);
            return Ok((0..count).map(|layer| layer >= first).collect());
        }
        Ok(vec![false; count])
    }

    fn slides(&self, layer_type: &Value) -> Result<bool, ModelError> {
        match layer_type.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => {
                let message = format!("expected full_attention or sliding_attention, found {layer_type}");
                Err(self.error("layer_types", message))
            }
        }
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

    #[test]
    fn errors_name_the_key_and_what_was_found() {
        let message = |edit: fn(&mut Value)| spec(edit).unwrap_err().to_string();
        assert!(message(|c| c["architectures"] = json!(["MambaForCausalLM"])).contains("MambaForCausalLM"));
        assert!(message(|c| c["hidden_size"] = json!("x")).contains("hidden_size"));
        assert!(message(|c| c["num_key_value_heads"] = json!(3)).contains("does not divide"));
        assert!(message(|c| c["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4})).contains("yarn"));
        assert!(message(|c| c["layer_types"] = json!(["full_attention"])).contains("expected 6 entries"));
        assert!(message(|c| c["hidden_act"] = json!("relu")).contains("relu"));
    }
}
