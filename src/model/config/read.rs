//! The keys of `config.json` and `generation_config.json`, and the [`ModelSpec`] built from them.

mod per_layer;
mod rope;

use super::families::{FAMILIES, Family, Multimodal, Slides};
use super::{Activation, DeltaNetSpec, ExpertSpec, LayerSpec};
use crate::files::is_nothing;
use crate::model::{ModelError, ModelSpec, Result, read_json};
use per_layer::Sizes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{collections::HashMap, path::Path};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// Settings of `generation_config.json` that change a greedy response in transformers, by the number that asks for nothing.
const GREEDY_SETTINGS: [(f64, &str); 3] = [
    (1.0, "repetition_penalty encoder_repetition_penalty num_beams guidance_scale"),
    (0.0, "no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens penalty_alpha"),
    (
        -1.0,
        "suppress_tokens begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id \
         forced_decoder_ids exponential_decay_length_penalty stop_strings token_healing watermarking_config force_words_ids \
         dola_layers max_time",
    ),
];

impl ModelSpec {
    /// Reads `config.json` and, if present, `generation_config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] names the file and the key, what was expected and what was found.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let adapter = folder.join("adapter_config.json");
        if adapter.is_file() {
            let base = read_json::<Value>(&adapter)?["base_model_name_or_path"].as_str().unwrap_or("BASE").to_owned();
            return Err(ModelError::Adapter { folder: folder.to_owned(), base });
        }
        let path = folder.join(CONFIG);
        let mut spec = ModelSpec::of_config(&path, &read_json(&path)?)?;
        let generation = folder.join(GENERATION_CONFIG);
        if generation.is_file() {
            let tree: Value = read_json(&generation)?;
            spec.add_ends(typed::<Generation>(&generation, &tree)?.eos_token_id.0, GENERATION_CONFIG);
            for (nothing, keys) in GREEDY_SETTINGS {
                let found = keys.split_whitespace().filter_map(|key| Some((key, tree.get(key)?.clone())));
                spec.greedy_settings
                    .extend(found.filter(|(_, value)| !is_nothing(value) && value.as_f64() != Some(nothing)));
            }
        }
        Ok(spec)
    }

    /// From a `config.json` that is not a file, such as that of a published shape.
    ///
    /// # Errors
    /// As [`ModelSpec::from_folder`].
    pub fn from_config(config: &Value) -> Result<Self> {
        ModelSpec::of_config(Path::new(CONFIG), config)
    }

    /// The settings of `config.json` alone; errors refer to it as `path`.
    fn of_config(path: &Path, config: &Value) -> Result<Self> {
        let error = |(key, message): Wrong| ModelError::Config { path: path.to_owned(), key: key.to_owned(), message };
        let named = typed::<Named>(path, config)?;
        let (architecture, family) = family(&named).map_err(error)?;
        let config = typed::<Config>(path, &settings(config, &architecture, family))?;
        let mut spec = config.spec(architecture, family).map_err(error)?;
        spec.fp8_block = named.quantization_config.and_then(|found| found.weight_block_size);
        Ok(spec)
    }
}

/// The family of a text model, or of the `text_config` of a multimodal one.
fn family(named: &Named) -> Result<(String, &'static Family), Wrong> {
    let (key, method) = match (&named.quantization, &named.quantization_config) {
        // MLX writes both keys
        (Some(_), _) => ("quantization", Some("MLX")),
        (None, found) => (
            "quantization_config",
            found.as_ref().map(|found| found.quant_method.as_deref().unwrap_or("an unnamed method")),
        ),
    };
    let format = named.quantization_config.as_ref().and_then(|found| found.format.as_deref());
    let is_fp8 = |method: &str| method == "fp8" || (method, format) == ("compressed-tensors", Some("float-quantized"));
    if let Some(method) = method.filter(|method| !is_fp8(method)) {
        let instead = "use the original checkpoint, in 8 bits with --weights q8";
        return Err((key, format!("weights quantized by {method} are not supported; {instead}")));
    }
    let families = || FAMILIES.families.iter();
    let multimodal = || FAMILIES.multimodal.iter();
    let known = || {
        let text = families().map(|family| (&family.architecture, &family.model_type));
        text.chain(multimodal().map(|model| (&model.architecture, &model.model_type)))
    };
    // without a name, model_type tells as much
    let by_type = || known().find(|(_, kind)| named.model_type.as_ref() == Some(*kind)).map(|(name, _)| name);
    let name = named.architectures.as_ref().and_then(|names| names.first()).or_else(by_type);
    let name = name.ok_or(("architectures", "expected a list with one name, found none".to_owned()))?.to_owned();
    if let Some(family) = families().find(|family| family.architecture == name) {
        return Ok((name, family));
    }
    let Some(multimodal) = multimodal().find(|model| model.architecture == name) else {
        let known = known().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(("architectures", format!("{name} is not supported (supported: {known})")));
    };
    let text = named.text_config.as_ref().ok_or(("text_config", "expected an object, found nothing".to_owned()))?;
    let model_type = text.model_type.as_ref().unwrap_or(&multimodal.text_model_type);
    let family = families().find(|family| family.model_type == *model_type);
    let family = family.ok_or(("text_config.model_type", format!("{model_type} is not supported")))?;
    Ok((name, family))
}

/// The keys that the family reads, from `text_config` if present, or else its defaults.
fn settings(tree: &Value, architecture: &str, family: &Family) -> Value {
    /// Taken from the whole model if both have the key.
    const OUTER: [&str; 2] = ["tie_word_embeddings", "eos_token_id"];
    let text = tree.get("text_config").filter(|text| !text.is_null()).unwrap_or(tree);
    // whether the head is tied is a setting of the whole model only
    let multimodal = FAMILIES.multimodal.iter().find(|model| model.architecture == architecture);
    let tied = multimodal.map(|model: &Multimodal| json!(model.tied));
    let found = |key: &str| {
        let outer = tree.get(key).filter(|value| OUTER.contains(&key) && !value.is_null());
        let outer = outer.or(tied.as_ref().filter(|_| key == "tie_word_embeddings"));
        outer.or(text.get(key)).filter(|value| match value {
            Value::Null => key != "rope_parameters",
            // an empty rope_scaling counts as none
            Value::Object(table) => !table.is_empty() || key == "per_layer_config",
            _ => true,
        })
    };
    let mut settings = json!({});
    for (key, absent) in FAMILIES.common.iter().chain(&family.keys) {
        let value = found(key).or(Some(absent).filter(|absent| !absent.is_null()));
        value.into_iter().for_each(|value| settings[key] = value.clone());
    }
    family.fixed.iter().for_each(|(key, value)| settings[key] = value.clone());
    settings
}

/// Values of a file's tree; an error names the file and the key.
fn typed<T: DeserializeOwned>(path: &Path, tree: &Value) -> Result<T> {
    serde_path_to_error::deserialize(tree).map_err(|error| {
        let (key, message) = (error.path().to_string(), error.inner().to_string());
        ModelError::Config { path: path.to_owned(), key, message }
    })
}

/// One id or a list of them; anything that is not an id (transformers writes -1, for example) is skipped.
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
struct Positive(f64);

impl TryFrom<Value> for Positive {
    type Error = String;

    fn try_from(value: Value) -> Result<Positive, String> {
        match value.as_f64() {
            Some(x) if x > 0.0 && (x as f32).is_finite() && x as f32 > 0.0 => Ok(Positive(x)),
            _ => Err(format!("expected a positive number, found {value}")),
        }
    }
}

impl Positive {
    fn f32(self) -> f32 {
        self.0 as f32
    }
}

/// The used keys of `generation_config.json`.
#[derive(Deserialize)]
struct Generation {
    #[serde(default)]
    eos_token_id: TokenIds,
}

/// The keys of `config.json` that name the architecture.
#[derive(Deserialize)]
struct Named {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    text_config: Option<TextConfig>,
    quantization_config: Option<Quantization>,
    /// MLX's own key.
    quantization: Option<Value>,
}

#[derive(Deserialize)]
struct Quantization {
    quant_method: Option<String>,
    format: Option<String>,
    weight_block_size: Option<[usize; 2]>,
}

#[derive(Deserialize)]
struct TextConfig {
    model_type: Option<String>,
}

/// Declares a struct of a file's keys, by the type of their values.
macro_rules! keys {
    ($(#[$of_struct:meta])* struct $name:ident { $($type:ty: $($(#[$of_key:meta])* $key:ident),+;)* }) => {
        $(#[$of_struct])*
        struct $name {
            $($($(#[$of_key])* $key: $type,)+)*
        }
    };
}

keys! {
    /// A family's keys of `config.json`, under its names, with its defaults; the other families' keys are `None`.
    #[derive(Deserialize)]
    struct Config {
        Size: hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, vocab_size, max_position_embeddings;
        Option<Size>:
            num_key_value_heads, head_dim, global_head_dim, num_global_key_value_heads, no_rope_layer_interval,
            sliding_window_pattern, full_attention_interval, vocab_size_per_layer_input, num_experts,
            /// The newer name of `num_experts`.
            num_local_experts,
            #[serde(alias = "top_k_experts")]
            num_experts_per_tok,
            moe_intermediate_size, shared_expert_intermediate_size, decoder_sparse_step, linear_num_key_heads,
            linear_num_value_heads, linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim;
        Option<Positive>:
            rms_norm_eps, query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping, embedding_multiplier,
            attention_multiplier, residual_multiplier, logits_scaling, rope_theta, rope_local_base_freq,
            partial_rotary_factor, original_max_position_embeddings;
        Option<bool>:
            tie_word_embeddings, attention_bias, mlp_bias, attention_k_eq_v, use_double_wide_mlp, enable_moe_block,
            norm_topk_prob, use_sliding_window;
        Option<String>: hidden_act, hidden_activation;
        Option<Rope>:
            rope_scaling,
            /// transformers 5: one table, or one per layer type.
            rope_parameters;
        Option<Vec<u32>>: no_rope_layers;
        Option<Vec<usize>>: mlp_only_layers;
        Option<Vec<LayerType>>: layer_types;
        Option<usize>: num_kv_shared_layers, max_window_layers;
        Option<u32>: hidden_size_per_layer_input;
        Option<Value>:
            /// A flag, or the kind of attention: "vision" means that of images only.
            use_bidirectional_attention,
            /// Some configs that do not use it contain 0 or -1.
            sliding_window;
        Option<HashMap<usize, Sizes>>:
            #[serde(default, deserialize_with = "per_layer::written")]
            per_layer_config;
        TokenIds:
            #[serde(default)]
            eos_token_id;
    }
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
enum LayerType {
    #[serde(rename = "full_attention")]
    Full,
    #[serde(rename = "sliding_attention")]
    Sliding,
    /// A gated delta net.
    #[serde(rename = "linear_attention")]
    Linear,
}

keys! {
    /// One table as written, or (for `rope_parameters`) one per layer type.
    #[derive(Clone, Default, Deserialize)]
    struct Rope {
        Option<Box<Rope>>: full_attention, sliding_attention;
        Option<Positive>:
            rope_theta, partial_rotary_factor, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings,
            attention_factor, beta_fast, beta_slow, mscale, mscale_all_dim, llama_4_scaling_beta;
        Option<Vec<Positive>>: short_factor, long_factor;
        Option<bool>: truncate;
        Option<String>:
            rope_type,
            /// The older name of `rope_type`.
            #[serde(rename = "type")]
            kind;
    }
}

/// The deepest models have some hundred layers; each is allocated before the weights can show whether it exists.
const MAX_LAYERS: usize = 4096;

/// Max of a delta net's sizes, whose products are then far from overflow.
const MAX_DELTA_SIZE: usize = 1 << 16;

/// A key, and what is wrong with its value.
type Wrong = (&'static str, String);

impl Config {
    fn spec(self, architecture: String, family: &Family) -> Result<ModelSpec, Wrong> {
        let (hidden_size, heads) = (self.hidden_size.0, self.num_attention_heads.0);
        let kv_heads = self.num_key_value_heads.map_or(heads, |heads| heads.0);
        let head_dim = self.head_dim.map_or(hidden_size / heads, |dim| dim.0);
        if self.use_bidirectional_attention.as_ref().is_some_and(|whose| whose == true || whose == "all") {
            return Err(("use_bidirectional_attention", "expected false: only causal models are supported".to_owned()));
        }
        let attention_bias = self.attention_bias.unwrap_or(false);
        let by_width = 1.0 / self.query_pre_attn_scalar.map_or(head_dim as f32, Positive::f32).sqrt();
        let experts = self.experts()?;
        let delta_net = self.delta_net()?;
        let layers = self.layers(family, experts.is_some(), delta_net.is_some(), (head_dim, kv_heads))?;
        let rope = self.rope(family, |table| {
            layers.iter().find(|layer| layer.rope == table).map_or(head_dim, |layer| layer.head_dim)
        })?;
        let (query_growth, query_period) = self.query_scaling();
        let rope_source = match (&self.rope_scaling, &self.rope_parameters) {
            (Some(_), _) => "rope_scaling",
            (None, Some(_)) => "rope_parameters",
            (None, None) => "rope_theta",
        };
        let mut spec = ModelSpec {
            architecture,
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            vocab_size: self.vocab_size.0,
            max_position_embeddings: self.context(),
            rms_norm_eps: self.rms_norm_eps.map_or(1e-6, Positive::f32),
            family: family.traits,
            activation: self.activation(family)?,
            embedding_scale: match family.scaled_embedding {
                true => Some((hidden_size as f64).sqrt() as f32),
                false => self.embedding_multiplier.map(Positive::f32),
            },
            qkv_bias: family.qkv_bias || attention_bias,
            output_bias: attention_bias,
            mlp_bias: self.mlp_bias.unwrap_or(false),
            residual_multiplier: self.residual_multiplier.map_or(1.0, Positive::f32),
            logits_scaling: self.logits_scaling.map_or(1.0, Positive::f32),
            attention_scale: self.attention_multiplier.map_or(by_width, Positive::f32),
            query_growth,
            query_period,
            attn_logit_softcapping: self.attn_logit_softcapping.map(Positive::f32),
            final_logit_softcapping: self.final_logit_softcapping.map(Positive::f32),
            tie_word_embeddings: self.tie_word_embeddings.unwrap_or(false),
            delta_net: delta_net.filter(|_| layers.iter().any(|layer| layer.delta_net)),
            layers,
            experts,
            layer_input: self.layer_input(),
            rope,
            sources: vec![("rope".to_owned(), rope_source.to_owned())],
            eos_token_ids: Vec::new(),
            greedy_settings: Vec::new(),
            fp8_block: None,
        };
        spec.add_ends(self.eos_token_id.0, CONFIG);
        Ok(spec)
    }

    fn activation(&self, family: &Family) -> Result<Activation, Wrong> {
        let (key, name) = match &self.hidden_activation {
            Some(name) => ("hidden_activation", name.as_str()),
            None => ("hidden_act", self.hidden_act.as_deref().unwrap_or("silu")),
        };
        match name {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
            "gelu" if family.gelu_is_tanh => Ok(Activation::GeluTanh),
            other => Err((key, format!("expected silu or gelu_pytorch_tanh, found {other}"))),
        }
    }

    fn experts(&self) -> Result<Option<ExpertSpec>, Wrong> {
        let found = (self.num_local_experts.or(self.num_experts), self.num_experts_per_tok, self.moe_intermediate_size);
        let dense_beside = self.enable_moe_block == Some(true);
        let (Some(num_experts), Some(chosen), Some(inner)) = found else {
            let message = || "expected num_experts, top_k_experts and moe_intermediate_size beside it".to_owned();
            return if dense_beside { Err(("enable_moe_block", message())) } else { Ok(None) };
        };
        if self.enable_moe_block == Some(false) {
            return Ok(None);
        }
        if chosen.0 > num_experts.0 {
            let message = format!("expected at most num_experts ({}), found {}", num_experts.0, chosen.0);
            return Err(("num_experts_per_tok", message));
        }
        Ok(Some(ExpertSpec {
            num_experts: num_experts.0,
            num_experts_per_tok: chosen.0,
            moe_intermediate_size: inner.0,
            norm_topk_prob: dense_beside || self.norm_topk_prob.unwrap_or(false),
            shared_expert_intermediate_size: self.shared_expert_intermediate_size.map(|size| size.0),
            dense_beside,
        }))
    }

    fn delta_net(&self) -> Result<Option<DeltaNetSpec>, Wrong> {
        let size = |key, found: Option<Size>| match found.map_or(0, |size| size.0) {
            n @ 1..=MAX_DELTA_SIZE => Ok(n),
            n => Err((key, format!("expected an integer from 1 to {MAX_DELTA_SIZE}, found {n}"))),
        };
        if self.linear_num_key_heads.is_none() {
            return Ok(None);
        }
        let net = DeltaNetSpec {
            num_key_heads: size("linear_num_key_heads", self.linear_num_key_heads)?,
            num_value_heads: size("linear_num_value_heads", self.linear_num_value_heads)?,
            key_head_dim: size("linear_key_head_dim", self.linear_key_head_dim)?,
            value_head_dim: size("linear_value_head_dim", self.linear_value_head_dim)?,
            conv_kernel_dim: size("linear_conv_kernel_dim", self.linear_conv_kernel_dim)?,
        };
        if !net.num_value_heads.is_multiple_of(net.num_key_heads) {
            let (keys, values) = (net.num_key_heads, net.num_value_heads);
            let message = format!("expected a multiple of linear_num_key_heads ({keys}), found {values}");
            return Err(("linear_num_value_heads", message));
        }
        Ok(Some(net))
    }

    /// Layers with this `head_dim` and the model's number of key/value heads.
    fn layers(
        &self,
        family: &Family,
        has_experts: bool,
        has_delta_nets: bool,
        (head_dim, num_key_value_heads): (usize, usize),
    ) -> Result<Vec<LayerSpec>, Wrong> {
        let count = self.num_hidden_layers.0;
        if count > MAX_LAYERS {
            return Err(("num_hidden_layers", format!("expected at most {MAX_LAYERS}, found {count}")));
        }
        let turns = self.layers_with_rope(count)?;
        let windows = self.windows(family, &turns)?;
        let delta_nets = self.delta_nets(count, has_delta_nets)?;
        let (step, dense) =
            (self.decoder_sparse_step.map_or(1, |n| n.0), self.mlp_only_layers.as_deref().unwrap_or(&[]));
        let layer = |(index, (window, turns)): (usize, (Option<usize>, bool))| LayerSpec {
            window,
            rope: usize::from(!turns || family.local_rope && window.is_some()),
            experts: has_experts && (index + 1).is_multiple_of(step) && !dense.contains(&index),
            delta_net: delta_nets[index],
            head_dim,
            num_key_value_heads,
            intermediate_size: self.intermediate_size.0,
            kv_layer: index,
            keys_are_values: false,
        };
        let mut layers: Vec<LayerSpec> = windows.into_iter().zip(turns).enumerate().map(layer).collect();
        self.differ(&mut layers)?;
        Ok(layers)
    }

    /// Whether each layer is a delta net.
    fn delta_nets(&self, count: usize, has_delta_nets: bool) -> Result<Vec<bool>, Wrong> {
        let nets: Vec<bool> = match (&self.layer_types, self.full_attention_interval) {
            (Some(types), _) => types.iter().map(|layer| *layer == LayerType::Linear).collect(),
            (None, Some(interval)) => (1..=count).map(|layer| layer % interval.0 != 0).collect(),
            (None, None) => vec![false; count],
        };
        match nets.iter().all(|net| *net) || nets.contains(&true) && !has_delta_nets {
            true => Err(("layer_types", "expected layers of attention, found linear_attention".to_owned())),
            false => Ok(nets),
        }
    }

    /// Whether each layer has rotary positions.
    fn layers_with_rope(&self, count: usize) -> Result<Vec<bool>, Wrong> {
        let every = self.no_rope_layer_interval.map_or(usize::MAX, |n| n.0);
        let Some(listed) = &self.no_rope_layers else {
            return Ok((1..=count).map(|layer| layer % every != 0).collect());
        };
        entries("no_rope_layers", listed, count)?;
        Ok(listed.iter().map(|has_rope| *has_rope != 0).collect())
    }

    /// Every layer's window.
    fn windows(&self, family: &Family, turns: &[bool]) -> Result<Vec<Option<usize>>, Wrong> {
        let count = turns.len();
        let wanted = self.use_sliding_window != Some(false);
        let written = self.sliding_window.as_ref().filter(|_| wanted);
        let pattern = |n: usize| (1..=count).map(|layer| layer % n != 0).collect();
        let mut slides: Vec<bool> = match (&self.layer_types, family.slides) {
            (Some(types), _) => {
                entries("layer_types", types, count)?;
                types.iter().map(|layer| *layer == LayerType::Sliding).collect()
            }
            (None, Slides::Pattern(n)) => pattern(self.sliding_window_pattern.map_or(n, |n| n.0)),
            (None, _) if written.is_none() => vec![false; count],
            (None, Slides::Never) => vec![false; count],
            (None, Slides::All) => vec![true; count],
            (None, Slides::FromMaxWindowLayers) => {
                (0..count).map(|layer| layer >= self.max_window_layers.unwrap_or(0)).collect()
            }
            (None, Slides::WithoutRope) => turns.iter().map(|turns| !turns).collect(),
        };
        if let Some(last) = slides.last_mut().filter(|_| family.last_is_full) {
            *last = false;
        }
        if !slides.contains(&true) {
            return Ok(vec![None; count]);
        }
        let wrong = |message| ("sliding_window", message);
        let found = written.ok_or_else(|| wrong("expected a positive integer, found nothing".to_owned()))?;
        let window = Size::try_from(found.clone()).map_err(wrong)?.0;
        Ok(slides.into_iter().map(|slides| slides.then_some(window)).collect())
    }
}

fn entries<T>(key: &'static str, list: &[T], expected: usize) -> Result<(), Wrong> {
    match list.len() {
        found if found == expected => Ok(()),
        found => Err((key, format!("expected {expected} entries (num_hidden_layers), found {found}"))),
    }
}
