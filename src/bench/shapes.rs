//! Published shapes as checkpoints of random weights: no network, and no model that a machine might not have.

use crate::model::ModelSpec;
use crate::model::config::{DeltaNetSpec, Norms, QkNorm};
use serde_json::{Value, json};

/// Names on the command line and in results, with the sizes in each model's published `config.json`. Without an end token
/// every response has the requested length.
const PUBLISHED: [(&str, &str); 6] = [
    ("llama-3.1-8b", include_str!("shapes/llama-3.1-8b.json")),
    ("llama-3.2-1b", include_str!("shapes/llama-3.2-1b.json")),
    ("qwen2.5-7b", include_str!("shapes/qwen2.5-7b.json")),
    ("gemma-2-9b", include_str!("shapes/gemma-2-9b.json")),
    ("qwen3-30b-a3b", include_str!("shapes/qwen3-30b-a3b.json")),
    ("qwen3.5-0.8b", include_str!("shapes/qwen3.5-0.8b.json")),
];

/// The shapes' names.
pub const NAMES: [&str; 6] =
    [PUBLISHED[0].0, PUBLISHED[1].0, PUBLISHED[2].0, PUBLISHED[3].0, PUBLISHED[4].0, PUBLISHED[5].0];

/// One model's shape.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub spec: ModelSpec,
    config: Value,
}

/// One tensor of a checkpoint, uniform in `center ± half_width`.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// Row-major, as in the checkpoint.
    pub shape: Vec<usize>,
    pub center: f32,
    pub half_width: f32,
}

/// The shape with this name; `NAME/small` is its shrunken form.
pub fn find(name: &str) -> Option<Shape> {
    let (name, small) = name.strip_suffix("/small").map_or((name, false), |name| (name, true));
    let (name, config) = PUBLISHED.into_iter().find(|(known, _)| *known == name)?;
    let shape = Shape::new(name, serde_json::from_str(config).ok()?)?;
    if small { shape.shrunken() } else { Some(shape) }
}

impl Tensor {
    fn new(name: &str, shape: Vec<usize>, center: f32, half_width: f32) -> Tensor {
        Tensor { name: name.to_owned(), shape, center, half_width }
    }

    /// Bytes in bf16.
    pub fn byte_len(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }
}

impl Shape {
    fn new(name: &'static str, config: Value) -> Option<Shape> {
        Some(Shape { name, spec: ModelSpec::from_config(&config).ok()?, config })
    }

    /// This shape with some sizes replaced, under their names in `config.json`.
    pub fn with(&self, sizes: &Value) -> Option<Shape> {
        let mut config = self.config.clone();
        config.as_object_mut()?.extend(sizes.as_object()?.clone());
        Shape::new(self.name, config)
    }

    /// The same family, small enough to run anywhere in a moment; its head size, GQA ratio, biases, softcaps and windows
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
        if self.spec.delta_net.is_some() {
            (sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]) = (json!(2), json!(2));
            sizes["full_attention_interval"] = json!(2);
        }
        self.with(&sizes)
    }

    /// `config.json`
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// Every tensor, in a range that keeps activations finite: after a norm a product has deviation `gain`.
    pub fn tensors(&self) -> Vec<Tensor> {
        let spec = &self.spec;
        let (hidden, inner) = (spec.hidden_size, spec.intermediate_size);
        // a uniform variable's deviation is its half width / √3
        let half_width = |width: usize, gain: f32| gain * (3.0 / width as f32).sqrt();
        let product = |name: &str, rows: usize, width: usize, gain: f32| {
            Tensor::new(&format!("{name}.weight"), vec![rows, width], 0.0, half_width(width, gain))
        };
        let norm_of =
            |name: &str, width| Tensor::new(&format!("{name}.weight"), vec![width], 1.0 - spec.norm_weight_offset, 0.1);
        let norm = |name: &str| norm_of(name, hidden);
        // logits with deviation 3: the likeliest token is likely, as in a language model, but not certain
        let mut list = vec![product("model.embed_tokens", spec.vocab_size, hidden, 3.0), norm("model.norm")];
        if !spec.tie_word_embeddings {
            list.push(product("lm_head", spec.vocab_size, hidden, 3.0));
        }
        let (q, kv) = (spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim);
        let four_norms: &[&str] = match spec.norms {
            Norms::BeforeAndAfter => &["pre_feedforward_layernorm", "post_feedforward_layernorm"],
            Norms::Before | Norms::After => &[],
        };
        for layer in 0..spec.layers.len() {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let norms = ["input_layernorm", "post_attention_layernorm"].iter().chain(four_norms);
            list.extend(norms.map(|part| norm(&name(part))));
            if let Some(net) = spec.delta_net.filter(|_| spec.layers[layer].delta_net) {
                list.extend(delta_net(&net, &name("linear_attn"), hidden, &product));
            } else {
                // attention scores with deviation 3: heads of low and of high entropy; a gate beside the queries
                let q_rows = if spec.output_gate { 2 * q } else { q };
                list.extend([
                    product(&name("self_attn.q_proj"), q_rows, hidden, 1.7),
                    product(&name("self_attn.k_proj"), kv, hidden, 1.7),
                    product(&name("self_attn.v_proj"), kv, hidden, 1.0),
                    product(&name("self_attn.o_proj"), hidden, q, 1.0),
                ]);
                let normed = spec.qk_norm == QkNorm::Head;
                let norms = ["q", "k"].map(|part| norm_of(&name(&format!("self_attn.{part}_norm")), spec.head_dim));
                list.extend(norms.into_iter().filter(|_| normed));
            }
            match spec.experts.filter(|_| spec.layers[layer].experts) {
                Some(experts) => {
                    let (count, inner) = (experts.num_experts, experts.moe_intermediate_size);
                    let stack = |part: &str, rows: usize, width: usize| {
                        let name = name(&format!("mlp.experts.{part}"));
                        Tensor::new(&name, vec![count, rows, width], 0.0, half_width(width, 1.0))
                    };
                    list.push(product(&name("mlp.gate"), count, hidden, 1.0));
                    list.extend([stack("gate_up_proj", 2 * inner, hidden), stack("down_proj", hidden, inner)]);
                }
                None => list.extend([
                    product(&name("mlp.gate_proj"), inner, hidden, 1.0),
                    product(&name("mlp.up_proj"), inner, hidden, 1.0),
                    product(&name("mlp.down_proj"), hidden, inner, 1.0),
                ]),
            }
            if spec.qkv_bias {
                let bias =
                    |part, rows| Tensor::new(&name(&format!("self_attn.{part}_proj.bias")), vec![rows], 0.0, 0.5);
                list.extend([bias("q", q), bias("k", kv), bias("v", kv)]);
            }
        }
        list
    }

    /// Bytes of the checkpoint.
    pub fn byte_len(&self) -> usize {
        self.tensors().iter().map(Tensor::byte_len).sum()
    }
}

/// The tensors of a gated delta net.
fn delta_net(
    net: &DeltaNetSpec,
    name: &str,
    hidden: usize,
    product: &dyn Fn(&str, usize, usize, f32) -> Tensor,
) -> Vec<Tensor> {
    let (heads, values) = (net.num_value_heads, net.num_value_heads * net.value_head_dim);
    let mixed = 2 * net.num_key_heads * net.key_head_dim + values;
    let vector =
        |part: &str, width, center, half_width| Tensor::new(&format!("{name}.{part}"), vec![width], center, half_width);
    let kernel = vec![mixed, 1, net.conv_kernel_dim];
    vec![
        product(&format!("{name}.in_proj_qkv"), mixed, hidden, 1.0),
        product(&format!("{name}.in_proj_z"), values, hidden, 1.0),
        product(&format!("{name}.in_proj_a"), heads, hidden, 1.0),
        product(&format!("{name}.in_proj_b"), heads, hidden, 1.0),
        Tensor::new(&format!("{name}.conv1d.weight"), kernel, 0.0, 0.5),
        vector("A_log", heads, 0.0, 2.0),
        vector("dt_bias", heads, 0.0, 1.0),
        vector("norm.weight", net.value_head_dim, 1.0, 0.1),
        product(&format!("{name}.out_proj"), hidden, values, 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_config_is_read_and_shrinks() {
        for name in NAMES {
            let shape = find(name).unwrap();
            let small = find(&format!("{name}/small")).unwrap();
            assert_eq!((small.spec.layers.len(), small.spec.head_dim), (2, shape.spec.head_dim));
            assert!(small.byte_len() < 1 << 23 && shape.byte_len() > 1 << 30, "{name}");
        }
        assert!(find("gpt-5").is_none());
    }
}
