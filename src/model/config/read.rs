//! The keys of `config.json` and `generation_config.json`, and the [`ModelSpec`] that they make.

use super::{Activation, FAMILIES, Family, LayerSpec, RopeScaling, RopeSpec, architectures};
use crate::files;
use crate::model::{ModelError, ModelSpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

pub(super) const CONFIG: &str = "config.json";

/// See [`ModelSpec::from_folder`].
pub(super) fn spec(folder: &Path) -> Result<ModelSpec, ModelError> {
    let path = folder.join(CONFIG);
    let mut spec = of_config(&path, &read_tree(&path)?)?;
    let generation = folder.join("generation_config.json");
    if generation.is_file() {
        for id in typed::<Generation>(&generation, &read_tree(&generation)?)?.eos_token_id.0 {
            if !spec.eos_token_ids.contains(&id) {
                spec.eos_token_ids.push(id);
            }
        }
    }
    Ok(spec)
}

/// What `config.json` alone says; errors name it by `path`.
pub(super) fn of_config(path: &Path, tree: &Value) -> Result<ModelSpec, ModelError> {
    let error = |(key, message): Wrong| ModelError::Config { path: path.to_owned(), key: key.to_owned(), message };
    // first, since other architectures have other keys
    let (architecture, family) = typed::<Named>(path, tree)?.family().map_err(error)?;
    typed::<Config>(path, tree)?.spec(architecture, family).map_err(error)
}

/// The tree of a JSON file. Of two equal keys the last counts, as in Python.
fn read_tree(path: &Path) -> Result<Value, ModelError> {
    let text = files::read_to_string(path, files::MAX_SETTINGS)
        .map_err(|source| ModelError::Io { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

/// What is wanted of a file's tree; an error names the file and the key.
fn typed<T: DeserializeOwned>(path: &Path, tree: &Value) -> Result<T, ModelError> {
    serde_path_to_error::deserialize(tree).map_err(|error| {
        let (key, message) = (error.path().to_string(), error.inner().to_string());
        ModelError::Config { path: path.to_owned(), key, message }
    })
}

/// One id or a list of them; whatever is no id (transformers writes -1, for example) is passed over.
#[derive(Default, Deserialize)]
#[serde(from = "Value")]
struct TokenIds(Vec<u32>);

impl From<Value> for TokenIds {
    fn from(value: Value) -> TokenIds {
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        match &value {
            Value::Array(ids) => TokenIds(ids.iter().filter_map(id).collect()),
            one => TokenIds(id(one).into_iter().collect()),
        }
    }
}

/// An integer from 1 to u32::MAX.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct Size(usize);

impl TryFrom<Value> for Size {
    type Error = String;

    fn try_from(value: Value) -> Result<Size, String> {
        match value.as_u64() {
            Some(n) if (1..=u64::from(u32::MAX)).contains(&n) => Ok(Size(n as usize)),
            _ => Err(format!("expected a positive integer, found {value}")),
        }
    }
}

/// A finite number above 0.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct Positive(f32);

impl TryFrom<Value> for Positive {
    type Error = String;

    fn try_from(value: Value) -> Result<Positive, String> {
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Positive(x as f32)),
            _ => Err(format!("expected a positive number, found {value}")),
        }
    }
}

/// What is read of `generation_config.json`.
#[derive(Deserialize)]
struct Generation {
    #[serde(default)]
    eos_token_id: TokenIds,
}

/// The one key of `config.json` that says which others there are.
#[derive(Deserialize)]
struct Named {
    architectures: Option<Vec<String>>,
}

/// What is read of `config.json`, under its names; `null` counts as absent, as in transformers.
#[derive(Deserialize)]
struct Config {
    hidden_size: Size,
    num_hidden_layers: Size,
    num_attention_heads: Size,
    num_key_value_heads: Option<Size>,
    head_dim: Option<Size>,
    intermediate_size: Size,
    vocab_size: Size,
    max_position_embeddings: Size,
    rms_norm_eps: Option<Positive>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    query_pre_attn_scalar: Option<Positive>,
    attn_logit_softcapping: Option<Positive>,
    final_logit_softcapping: Option<Positive>,
    tie_word_embeddings: Option<bool>,
    hidden_activation: Option<String>,
    hidden_act: Option<String>,
    rope_theta: Option<Positive>,
    rope_local_base_freq: Option<Positive>,
    rope_scaling: Option<Rope>,
    /// transformers 5, instead of the three before it: one table, or one by layer type.
    rope_parameters: Option<Rope>,
    layer_types: Option<Vec<LayerType>>,
    // the rest is not of every family: some write 0 or -1 where they do not use it
    sliding_window: Option<Value>,
    sliding_window_pattern: Option<Value>,
    _sliding_window_pattern: Option<Value>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<Value>,
    #[serde(default)]
    bos_token_id: TokenIds,
    #[serde(default)]
    eos_token_id: TokenIds,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum LayerType {
    FullAttention,
    SlidingAttention,
}

/// One table as it is written, or (of `rope_parameters`) one for each layer type.
#[derive(Deserialize)]
struct Rope {
    full_attention: Option<Box<Rope>>,
    sliding_attention: Option<Box<Rope>>,
    rope_theta: Option<Positive>,
    rope_type: Option<String>,
    /// The older name of `rope_type`.
    #[serde(rename = "type")]
    kind: Option<String>,
    factor: Option<Positive>,
    low_freq_factor: Option<Positive>,
    high_freq_factor: Option<Positive>,
    original_max_position_embeddings: Option<Positive>,
}

/// The deepest models have some hundred layers; each is allocated before the weights show whether they are there.
const MAX_LAYERS: usize = 4096;

/// A key, and what is wrong with its value.
type Wrong = (&'static str, String);

impl Named {
    fn family(self) -> Result<(String, &'static Family), Wrong> {
        let name = self.architectures.and_then(|names| names.into_iter().next());
        let name = name.ok_or(("architectures", "expected a list with one name, found none".to_owned()))?;
        match FAMILIES.iter().find(|(known, _)| *known == name) {
            Some((_, family)) => Ok((name, family)),
            None => {
                let known = architectures().collect::<Vec<_>>().join(", ");
                Err(("architectures", format!("{name} is not supported (supported: {known})")))
            }
        }
    }
}

impl Config {
    fn spec(self, architecture: String, family: &Family) -> Result<ModelSpec, Wrong> {
        let (hidden_size, heads) = (self.hidden_size.0, self.num_attention_heads.0);
        let kv_heads = self.num_key_value_heads.map_or(heads, |heads| heads.0);
        let head_dim = self.head_dim.map_or(hidden_size / heads, |dim| dim.0);
        if heads % kv_heads != 0 {
            let message = format!("{kv_heads} does not divide num_attention_heads ({heads})");
            return Err(("num_key_value_heads", message));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(("head_dim", format!("expected an even number, found {head_dim}")));
        }
        let attention_bias = self.attention_bias.unwrap_or(false);
        let query_scalar = self.query_pre_attn_scalar.filter(|_| family.gemma).map_or(head_dim as f32, |x| x.0);
        Ok(ModelSpec {
            architecture,
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            intermediate_size: self.intermediate_size.0,
            vocab_size: self.vocab_size.0,
            max_position_embeddings: self.max_position_embeddings.0,
            rms_norm_eps: self.rms_norm_eps.map_or(1e-6, |x| x.0),
            norm_weight_offset: family.norm_weight_offset,
            activation: self.activation()?,
            embedding_scale: family.gemma.then(|| (hidden_size as f64).sqrt() as f32),
            qkv_bias: family.qkv_bias.unwrap_or(attention_bias),
            output_bias: family.qkv_bias.is_none() && attention_bias,
            mlp_bias: self.mlp_bias.unwrap_or(false),
            qk_norm: family.qk_norm,
            post_norms: family.gemma,
            attention_scale: 1.0 / query_scalar.sqrt(),
            attn_logit_softcapping: self.attn_logit_softcapping.map(|x| x.0),
            final_logit_softcapping: self.final_logit_softcapping.map(|x| x.0),
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(family.tied),
            layers: self.layers(family)?,
            rope: self.rope(family)?,
            boxed_instruction: family.gemma,
            bos_token_id: self.bos_token_id.0.first().copied(),
            eos_token_ids: self.eos_token_id.0,
        })
    }

    fn activation(&self) -> Result<Activation, Wrong> {
        let (key, name) = match &self.hidden_activation {
            Some(name) => ("hidden_activation", Some(name)),
            None => ("hidden_act", self.hidden_act.as_ref()),
        };
        match name.map(String::as_str) {
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            other => Err((key, format!("expected silu or gelu_pytorch_tanh, found {}", other.unwrap_or("nothing")))),
        }
    }

    /// One table, or two where sliding layers have their own: index 0 is the full layers'.
    fn rope(&self, family: &Family) -> Result<Vec<RopeSpec>, Wrong> {
        let parameters = self.rope_parameters.as_ref();
        let full = parameters.map(|p| p.full_attention.as_deref().unwrap_or(p));
        let local = parameters.and_then(|p| p.sliding_attention.as_deref());
        let table = |theta: Option<Positive>, scaling| RopeSpec { theta: theta.map_or(10_000.0, |x| x.0), scaling };
        let scaling = full.or(self.rope_scaling.as_ref()).map_or(Ok(RopeScaling::None), Rope::scaling)?;
        let full = table(full.map_or(self.rope_theta, |p| p.rope_theta), scaling);
        let local = table(local.map_or(self.rope_local_base_freq, |p| p.rope_theta), RopeScaling::None);
        Ok(if family.local_rope { vec![full, local] } else { vec![full] })
    }

    fn layers(&self, family: &Family) -> Result<Vec<LayerSpec>, Wrong> {
        if self.num_hidden_layers.0 > MAX_LAYERS {
            let message = format!("expected at most {MAX_LAYERS}, found {}", self.num_hidden_layers.0);
            return Err(("num_hidden_layers", message));
        }
        let sliding = self.sliding_layers(self.num_hidden_layers.0, family.sliding_pattern)?;
        let window = match size("sliding_window", &self.sliding_window) {
            _ if !sliding.contains(&true) => None,
            Ok(None) => return Err(("sliding_window", "expected a positive integer, found nothing".into())),
            window => window?,
        };
        let layer = |slides: bool| LayerSpec {
            window: window.filter(|_| slides),
            rope: usize::from(slides && family.local_rope),
        };
        Ok(sliding.into_iter().map(layer).collect())
    }

    /// Which layers slide: `layer_types` where present, else the older keys.
    fn sliding_layers(&self, count: usize, pattern: Option<usize>) -> Result<Vec<bool>, Wrong> {
        if let Some(types) = &self.layer_types {
            if types.len() != count {
                let message = format!("expected {count} entries (num_hidden_layers), found {}", types.len());
                return Err(("layer_types", message));
            }
            return Ok(types.iter().map(|layer| *layer == LayerType::SlidingAttention).collect());
        }
        if let Some(default) = pattern {
            let written = size("sliding_window_pattern", &self.sliding_window_pattern)?;
            let pattern = written.or(size("_sliding_window_pattern", &self._sliding_window_pattern)?);
            return Ok((1..=count).map(|layer| layer % pattern.unwrap_or(default) != 0).collect());
        }
        let first = match self.use_sliding_window {
            Some(true) => size("max_window_layers", &self.max_window_layers)?.unwrap_or(count),
            _ => count,
        };
        Ok((0..count).map(|layer| layer >= first).collect())
    }
}

/// A value that is checked only where it is used.
fn size(key: &'static str, value: &Option<Value>) -> Result<Option<usize>, Wrong> {
    let size = value.clone().map(Size::try_from).transpose();
    size.map(|size| size.map(|n| n.0)).map_err(|message| (key, message))
}

impl Rope {
    fn scaling(&self) -> Result<RopeScaling, Wrong> {
        let need = |key, value: Option<Positive>| {
            value.map(|x| x.0).ok_or((key, "expected a positive number, found nothing".to_owned()))
        };
        let factor = || need("rope_scaling.factor", self.factor);
        match self.rope_type.as_ref().or(self.kind.as_ref()).map_or("default", String::as_str) {
            "default" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: need("rope_scaling.low_freq_factor", self.low_freq_factor)?,
                high_freq_factor: need("rope_scaling.high_freq_factor", self.high_freq_factor)?,
                original_max_position_embeddings: need(
                    "rope_scaling.original_max_position_embeddings",
                    self.original_max_position_embeddings,
                )?,
            }),
            other => Err(("rope_scaling.rope_type", format!("expected default, linear or llama3, found {other}"))),
        }
    }
}
