//! Published shapes as checkpoints with random weights: needs neither network nor downloaded models. Of the GPU benchmark and of the
//! example `random_weights`.

pub mod checkpoint;

use serde_json::{Value, json};
use uqac::{ModelSpec, Weights};

macro_rules! with_files {
    ($($name:literal)+) => { [$(($name, include_str!(concat!($name, ".json"))),)+] };
}

/// Names used on the command line and in results, with the sizes from each model's published `config.json`. Without an
/// end token, every response has the requested length.
const PUBLISHED: [(&str, &str); 8] = with_files! {
    "llama-3.1-8b" "llama-3.2-1b" "qwen2.5-7b" "gemma-2-9b" "qwen3-30b-a3b" "qwen3.5-0.8b" "gemma-4-e2b" "gemma-4-26b-a4b"
};

/// The shapes' names.
pub fn names() -> [&'static str; PUBLISHED.len()] {
    PUBLISHED.map(|(name, _)| name)
}

/// One model's shape.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub spec: ModelSpec,
    /// `config.json`
    pub config: Value,
}

/// The shape with this name; `NAME/small` is its shrunken form, `NAME/N` keeps its first N layers.
pub fn find(name: &str) -> Option<Shape> {
    let (name, form) = name.split_once('/').map_or((name, None), |(name, form)| (name, Some(form)));
    let (name, config) = PUBLISHED.into_iter().find(|(known, _)| *known == name)?;
    let shape = Shape::new(name, serde_json::from_str(config).ok()?)?;
    match form {
        None => Some(shape),
        Some("small") => shape.shrunken(),
        Some(layers) => shape.shortened(layers.parse().ok()?),
    }
}

impl Shape {
    fn new(name: &'static str, config: Value) -> Option<Shape> {
        Some(Shape { name, spec: ModelSpec::from_config(&config).ok()?, config })
    }

    /// This shape with some sizes replaced, keyed by their names in `config.json`.
    pub fn with(&self, sizes: &Value) -> Option<Shape> {
        let mut config = self.config.clone();
        config.as_object_mut()?.extend(sizes.as_object()?.clone());
        Shape::new(self.name, config)
    }

    /// The same family, small enough to run quickly anywhere; its head size, GQA ratio, biases, softcaps and windows
    /// take the same code paths as the full shape.
    pub fn shrunken(&self) -> Option<Shape> {
        let heads = 2 * self.spec.num_attention_heads / self.spec.num_key_value_heads;
        let mut sizes = json!({
            "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 512,
            "num_attention_heads": heads, "num_key_value_heads": 2, "sliding_window": 64
        });
        if self.spec.experts.is_some() {
            (sizes["num_experts"], sizes["moe_intermediate_size"]) = (json!(8), json!(64));
        }
        if self.config.get("layer_types").is_some() {
            let types = ["sliding_attention", "full_attention"];
            (sizes["num_hidden_layers"], sizes["layer_types"]) = (json!(4), json!([types, types].concat()));
            sizes["vocab_size_per_layer_input"] = json!(512);
            if self.spec.layer_input.is_some() {
                (sizes["hidden_size_per_layer_input"], sizes["num_kv_shared_layers"]) = (json!(16), json!(2));
            }
        }
        if self.spec.delta_net.is_some() {
            (sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]) = (json!(2), json!(2));
            sizes["full_attention_interval"] = json!(2);
        }
        self.with(&sizes)
    }

    /// The first `layers` layers, with the same proportion of KV-sharing layers as the full model.
    fn shortened(&self, layers: usize) -> Option<Shape> {
        let all = self.spec.layers.len();
        let mut sizes = json!({ "num_hidden_layers": Some(layers).filter(|layers| (1..=all).contains(layers))? });
        if let Some(types) = self.config.get("layer_types").and_then(Value::as_array) {
            sizes["layer_types"] = json!(types[..layers]);
            let shared = self.spec.layers.iter().enumerate().filter(|(index, layer)| layer.kv_layer != *index).count();
            sizes["num_kv_shared_layers"] = json!(shared * layers / all);
        }
        self.with(&sizes)
    }

    /// Every tensor's name and row-major shape.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        // a published config that parses has tensors
        Weights::tensors(&self.spec).unwrap_or_default()
    }

    /// Checkpoint size in bytes, in bf16.
    pub fn byte_len(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| 2 * shape.iter().product::<usize>()).sum()
    }
}
