//! Real-world config settings, compared with how transformers interprets them
//! (`tests/peers/configs.py`).

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use uqac::model::ModelSpec;
use uqac::model::config::{Activation, LayerSpec, RopeScaling};

#[derive(Deserialize)]
struct Line {
    config: Value,
    /// `None` if transformers rejects it.
    expected: Option<Facts>,
}

#[derive(Deserialize)]
struct Facts {
    head_dim: usize,
    kv_heads: usize,
    context: usize,
    eps: f32,
    act: String,
    tied: bool,
    windows: Vec<Option<usize>>,
    /// For every layer; `None` without rotary positions.
    rope: Vec<Option<Table>>,
    scale: f64,
    attn_cap: Option<f32>,
    final_cap: Option<f32>,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    /// embedding, residual, logits
    multipliers: Option<[f32; 3]>,
    /// Set if layers differ.
    layers: Option<Vec<Layer>>,
    layer_input: usize,
}

#[derive(Deserialize, PartialEq)]
struct Layer {
    head_dim: usize,
    kv_heads: usize,
    inner: usize,
    /// The layer whose keys and values it reads.
    kv_layer: usize,
    keys_are_values: bool,
}

#[derive(Deserialize)]
struct Table {
    inv_freq: Vec<f32>,
    factor: f64,
}

/// Tolerance for f32 arithmetic in a different order: a power, a product and a ramp.
const NEAR: f64 = 16.0 / (1u32 << 24) as f64;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= NEAR * a.abs().max(b.abs())
}

/// The context: YaRN stretches the trained one, which transformers does not check.
fn scaled(spec: &ModelSpec, context: usize) -> usize {
    match spec.rope[0].scaling {
        RopeScaling::Yarn { factor, original_max_position_embeddings: trained, .. } => {
            context.max((trained * factor) as usize)
        }
        _ => context,
    }
}

impl Facts {
    /// The first differing fact.
    fn difference(&self, spec: &ModelSpec) -> Option<&'static str> {
        let sizes = (spec.head_dim, spec.num_key_value_heads, spec.rms_norm_eps, spec.tie_word_embeddings);
        let act = if spec.activation == Activation::Silu { "silu" } else { "gelu_tanh" };
        let windows: Vec<Option<usize>> = spec.layers.iter().map(|layer| layer.window).collect();
        let caps = (spec.attn_logit_softcapping, spec.final_logit_softcapping);
        let biases = (spec.qkv_bias, spec.output_bias, spec.mlp_bias);
        let multipliers = [spec.embedding_scale.unwrap_or(1.0), spec.residual_multiplier, spec.logits_scaling];
        let layer = |l: &LayerSpec| Layer {
            head_dim: l.head_dim,
            kv_heads: l.num_key_value_heads,
            inner: l.intermediate_size,
            kv_layer: l.kv_layer,
            keys_are_values: l.keys_are_values,
        };
        let layers: Vec<_> = spec.layers.iter().map(layer).collect();
        let checks = [
            ("sizes", sizes == (self.head_dim, self.kv_heads, self.eps, self.tied)),
            ("context", spec.max_position_embeddings == scaled(spec, self.context)),
            ("activation", act == self.act),
            ("windows", windows == self.windows),
            ("scale", near(spec.attention_scale.into(), self.scale)),
            ("softcapping", caps == (self.attn_cap, self.final_cap)),
            ("biases", biases == (self.qkv_bias, self.o_bias, self.mlp_bias)),
            ("layers", self.layers.as_ref().is_none_or(|expected| *expected == layers)),
            ("layer input", spec.layer_input.map_or(0, |input| input.hidden_size) == self.layer_input),
            ("multipliers", self.multipliers.is_none_or(|expected| expected == multipliers)),
            ("rope", (0..spec.layers.len()).all(|layer| self.same_rope(spec, layer))),
        ];
        checks.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
    }

    fn same_rope(&self, spec: &ModelSpec, layer: usize) -> bool {
        let rope = &spec.rope[spec.layers[layer].rope];
        let rotation = rope.rotation(spec.layers[layer].head_dim, false);
        let Some(table) = &self.rope[layer] else { return rotation.frequencies.iter().all(|w| *w == 0.0) };
        let pairs = table.inv_freq.iter().zip(&rotation.frequencies);
        rope.rotary_dim == 2 * table.inv_freq.len()
            && near(rope.attention_factor.into(), table.factor)
            && pairs.into_iter().all(|(a, b)| near(f64::from(*a), f64::from(*b)))
    }
}

#[test]
fn settings_are_read_as_by_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs.jsonl.gz");
    let lines = BufReader::new(GzDecoder::new(std::fs::File::open(path).unwrap())).lines();
    let (mut read, mut refused, mut different) = (0, Vec::new(), Vec::new());
    for line in lines {
        let Line { config, expected } = serde_json::from_str(&line.unwrap()).unwrap();
        match (ModelSpec::from_config(&config), expected) {
            (_, None) => (),
            (Err(error), Some(_)) => refused.push(format!("{error}: {config}")),
            (Ok(spec), Some(expected)) => {
                read += 1;
                different.extend(expected.difference(&spec).map(|what| format!("{what}: {spec:?}: {config}")));
            }
        }
    }
    assert!(
        different.is_empty(),
        "{} of {read} differ, such as\n{}",
        different.len(),
        different[..different.len().min(3)].join("\n")
    );
    assert!(refused.is_empty(), "{} of {read} are refused:\n{}", refused.len(), refused.join("\n"));
}
