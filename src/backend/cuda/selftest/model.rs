//! The small random models of the self-test, and the table of its cases.

use super::super::kernel_set::{Set, Variants};
use super::{super::abi::MatrixType, super::error::CudaError, super::error::Result};
use crate::model::config::{LayerSpec, QkNorm, RopeSpec};
use crate::{backend::q8, model::ModelError, model::ModelSpec, model::Weights, model::weights::DType};
use serde_json::json;
use std::{fmt, sync::Arc};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// Rotation within the product, and more in-features than the warps of `gemv.cu` take at once.
    Llama,
    /// Norms everywhere, softcaps, a window in every other layer, biases, and gates on attention's output.
    Gemma,
    /// A delta net before an attention layer, gates, and experts.
    Qwen,
}

/// A case of the self-test: a pass of a model.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub family: Family,
    pub rows: usize,
    /// Runs as a decode step: a narrow pass, whatever its number of rows.
    pub decode: bool,
    pub traced: bool,
    /// Whether it tests the attention kernels of a head_dim and cache types.
    pub attention: bool,
}

const LLAMA: Case = Case { family: Family::Llama, rows: 0, decode: false, traced: true, attention: false };
const GEMMA: Case = Case { family: Family::Gemma, ..LLAMA };

/// The table of cases: every kernel is launched in one of them. Product variants for many rows are chosen by the layer's sizes.
pub const CASES: [Case; 11] = [
    Case { rows: 5, traced: false, attention: true, ..LLAMA },
    Case { rows: 9, ..LLAMA },
    Case { rows: 6, attention: true, ..GEMMA },
    Case { rows: 17, traced: false, decode: true, ..GEMMA },
    Case { rows: 22, attention: true, ..GEMMA },
    Case { rows: 66, traced: false, decode: true, ..GEMMA },
    Case { rows: 66, traced: false, ..GEMMA },
    // expert choices one by one, and grouped by expert
    Case { family: Family::Qwen, rows: 5, ..LLAMA },
    Case { family: Family::Qwen, rows: 7, ..LLAMA },
    // one row: the ring of bulk copies
    Case { rows: 1, traced: false, ..LLAMA },
    // 8-bit weights only
    Case { rows: 17, traced: false, decode: true, ..LLAMA },
];

impl Case {
    /// Positions before the first row: enough for several splits in `attn_decode`, and more than a window. None where they
    /// would need a state or take long.
    pub fn context(&self) -> usize {
        if self.family == Family::Qwen || !self.traced { 0 } else { 130 }
    }

    /// Whether it covers products with weights of this type.
    pub fn is_of(&self, dtype: MatrixType) -> bool {
        let q8 = dtype == MatrixType::Q8;
        if self.family == Family::Llama { q8 || !self.decode } else { !q8 }
    }

    /// Whether it covers more than other cases do for this model.
    pub fn is_needed(&self, variants: &Variants) -> bool {
        self.family != Family::Qwen || variants.delta_net || variants.experts.is_some()
    }

    /// Whether others have covered its kernels: only the fast set has some for many rows, and only without those of Hopper's in
    /// blocks of two sizes.
    pub fn is_repeated(&self, set: Set, hopper: bool) -> bool {
        self.rows > 64 && (set == Set::Plain || hopper && !self.decode)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let pass = if self.decode { "step" } else { "pass" };
        write!(f, "{:?}, {pass} of {} rows{}", self.family, self.rows, if self.traced { ", traced" } else { "" })
    }
}

impl Family {
    /// A model with a layer or two for each head_dim.
    pub fn spec(self, variants: &Variants) -> Result<ModelSpec> {
        let mut config = json!({
            "hidden_size": 72, "intermediate_size": 456, "num_attention_heads": 6, "num_key_value_heads": 2,
            "num_hidden_layers": 2, "head_dim": 64, "vocab_size": 264, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false
        });
        // with 8-bit weights, a line of k is twice as long
        let lines = if variants.types == [MatrixType::Q8] { 256 } else { 128 };
        let own = match self {
            Family::Llama => json!({
                "architectures": ["LlamaForCausalLM"], "hidden_size": lines * 9 / 2, "intermediate_size": lines / 2,
                "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 1
            }),
            Family::Gemma => json!({
                "architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 100,
                "attn_logit_softcapping": 20.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 64,
                "vocab_size": 4200
            }),
            Family::Qwen => json!({
                "architectures": [if variants.experts.is_some() { "Qwen3_5MoeForCausalLM" } else { "Qwen3_5ForCausalLM" }],
                "layer_types": [if variants.delta_net { "linear_attention" } else { "full_attention" }, "full_attention"],
                "num_experts": 20, "num_experts_per_tok": 3, "moe_intermediate_size": 456,
                "shared_expert_intermediate_size": 40, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
                "linear_key_head_dim": 20, "linear_value_head_dim": 72, "linear_conv_kernel_dim": 4
            }),
        };
        config.as_object_mut().into_iter().zip(own.as_object()).for_each(|(all, own)| all.extend(own.clone()));
        let mut spec = ModelSpec::from_config(&config).map_err(unsupported)?;
        let (layers, head_dims) = (std::mem::take(&mut spec.layers), &variants.head_dims);
        let of_size = |(rope, head_dim): (usize, &usize)| {
            let sized = |layer: &LayerSpec| LayerSpec { rope, head_dim: *head_dim, ..*layer };
            layers.iter().map(sized).collect::<Vec<_>>()
        };
        spec.layers = head_dims.iter().enumerate().flat_map(of_size).collect();
        (0..spec.layers.len()).for_each(|index| spec.layers[index].kv_layer = index);
        spec.rope = head_dims.iter().map(|head_dim| RopeSpec::plain(1e4, *head_dim)).collect();
        if self == Family::Gemma {
            let with_window = spec.layers.iter_mut().filter(|layer| layer.window.is_some());
            with_window.for_each(|layer| layer.intermediate_size = 72);
            (spec.family.qk_norm, spec.family.output_gate) = (QkNorm::Head, true);
            (spec.qkv_bias, spec.output_bias, spec.mlp_bias) = (true, true, true);
        }
        Ok(spec)
    }

    /// Weights of type `dtype` on the device; and the same values in f32, which the reference widens much faster than f16.
    pub fn weights(self, spec: &ModelSpec, variants: &Variants, dtype: MatrixType) -> Result<[Arc<Weights>; 2]> {
        let stored_as = |on_device| if on_device == MatrixType::F16 { DType::F16 } else { DType::F32 };
        let [embedding, experts] = [variants.embedding, variants.experts.unwrap_or(dtype)].map(stored_as);
        let of_name = move |name: &str| match name {
            _ if name.contains("embed_tokens") => embedding,
            _ if name.contains(".experts.") => experts,
            _ if name.contains("k_proj") && dtype != MatrixType::F32 => DType::Bf16, // converted on the device
            _ if name.contains("q_proj") && dtype == MatrixType::Q8 => DType::F16,
            _ => stored_as(dtype),
        };
        let round = move |name: &str, numbers: &mut [f32]| {
            let stored = of_name(name);
            numbers.iter_mut().for_each(|x| *x = stored.round(*x));
        };
        let as_stored = move |name: &str, _, numbers: &mut [f32]| {
            round(name, numbers);
            of_name(name)
        };
        let widened = move |name: &str, k, numbers: &mut [f32]| {
            round(name, numbers);
            if dtype == MatrixType::Q8 && (name.contains("_proj") || name.contains("lm_head")) {
                q8::round(numbers, k);
            }
            DType::F32
        };
        let stored = Weights::random(spec, as_stored).map_err(unsupported)?;
        let wide = Weights::random(spec, widened).map_err(unsupported)?;
        let without_gates = |mut weights: Weights| {
            // in wide passes, attention's output is rounded only without a gate
            let windows = weights.layers.iter_mut().zip(&spec.layers).filter(|(_, layer)| layer.window.is_some());
            windows.for_each(|(w, _)| (w.output_gate, w.output_gate_bias) = (None, None));
            Arc::new(weights)
        };
        Ok([stored, wide].map(without_gates))
    }
}

fn unsupported(error: ModelError) -> CudaError {
    CudaError::Unsupported(error.to_string())
}
