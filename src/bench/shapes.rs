//! The published shapes that are measured: our own table of the numbers in the models' `config.json`, and the tensors
//! that follow from them. A shrunken shape keeps what makes a family different (head_dim, GQA ratio, biases, softcaps,
//! windows), so that a quick run goes through the same code.

use serde_json::{Value, json};

/// What differs between the families beyond sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Family {
    /// `factor` of the llama3 rope scaling.
    Llama { factor: f64 },
    /// Biases on q, k and v.
    Qwen2,
    /// Softcaps, four norms a layer, a window in every other layer.
    Gemma2 { window: usize },
}

/// One model's shape, in the terms of `config.json`.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// How it is named on the command line and in the results.
    pub name: &'static str,
    pub family: Family,
    /// `num_hidden_layers`
    pub layers: usize,
    /// `hidden_size`
    pub hidden: usize,
    /// `intermediate_size`
    pub inner: usize,
    /// `num_attention_heads`
    pub heads: usize,
    /// `num_key_value_heads`
    pub kv_heads: usize,
    pub head_dim: usize,
    /// `vocab_size`
    pub vocab: usize,
    /// `max_position_embeddings`
    pub context: usize,
    pub rope_theta: f64,
    /// The head is the embedding.
    pub tied: bool,
}

/// In the order in which they are measured.
pub const SHAPES: [ModelShape; 4] = [
    ModelShape {
        name: "llama-3.1-8b",
        family: Family::Llama { factor: 8.0 },
        layers: 32,
        hidden: 4096,
        inner: 14336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        context: 131_072,
        rope_theta: 5e5,
        tied: false,
    },
    ModelShape {
        name: "llama-3.2-1b",
        family: Family::Llama { factor: 32.0 },
        layers: 16,
        hidden: 2048,
        inner: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        context: 131_072,
        rope_theta: 5e5,
        tied: true,
    },
    ModelShape {
        name: "qwen2.5-7b",
        family: Family::Qwen2,
        layers: 28,
        hidden: 3584,
        inner: 18944,
        heads: 28,
        kv_heads: 4,
        head_dim: 128,
        vocab: 152_064,
        context: 32_768,
        rope_theta: 1e6,
        tied: false,
    },
    ModelShape {
        name: "gemma-2-9b",
        family: Family::Gemma2 { window: 4096 },
        layers: 42,
        hidden: 3584,
        inner: 14336,
        heads: 16,
        kv_heads: 8,
        head_dim: 256,
        vocab: 256_000,
        context: 8192,
        rope_theta: 1e4,
        tied: true,
    },
];

/// The shape of a name; `NAME/small` is it shrunken.
pub fn find(name: &str) -> Option<ModelShape> {
    let (name, small) = name.strip_suffix("/small").map_or((name, false), |name| (name, true));
    let shape = SHAPES.into_iter().find(|shape| shape.name == name)?;
    Some(if small { shape.shrunken() } else { shape })
}

/// One tensor of a checkpoint: uniform in `center ± half_width`.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    /// Row-major, as in the checkpoint.
    pub shape: Vec<usize>,
    pub center: f32,
    pub half_width: f32,
}

impl Tensor {
    /// Bytes in bf16.
    pub fn byte_len(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }
}

impl ModelShape {
    /// The same family in a size that every device runs in a moment, kernels run on a CPU included.
    pub fn shrunken(&self) -> ModelShape {
        let family = match self.family {
            Family::Gemma2 { .. } => Family::Gemma2 { window: 64 },
            other => other,
        };
        let (heads, kv_heads) = (2 * self.heads / self.kv_heads, 2);
        ModelShape { family, layers: 2, hidden: 256, inner: 512, heads, kv_heads, vocab: 512, ..self.clone() }
    }

    /// `config.json`. No token ends a response: every one runs to the length that is asked for.
    pub fn config(&self) -> Value {
        let mut config = json!({
            "hidden_size": self.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab, "max_position_embeddings": self.context, "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied, "torch_dtype": "bfloat16", "use_cache": true,
            "bos_token_id": null, "eos_token_id": null, "pad_token_id": null
        });
        let own = match self.family {
            Family::Llama { factor } => json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
                "rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                                 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
            }),
            Family::Qwen2 => json!({
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6,
                "use_sliding_window": false
            }),
            Family::Gemma2 { window } => json!({
                "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "rms_norm_eps": 1e-6,
                "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window,
                "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
            }),
        };
        if let (Some(config), Some(own)) = (config.as_object_mut(), own.as_object()) {
            config.extend(own.clone());
        }
        config
    }

    /// Every tensor, in a range that keeps activations finite: after a norm a product has deviation `gain`.
    pub fn tensors(&self) -> Vec<Tensor> {
        // the deviation of a uniform variable is its half width / √3
        let product = |name: String, rows: usize, width: usize, gain: f32| {
            let half_width = gain * (3.0 / width as f32).sqrt();
            Tensor { name: format!("{name}.weight"), shape: vec![rows, width], center: 0.0, half_width }
        };
        let norm_center = if matches!(self.family, Family::Gemma2 { .. }) { 0.0 } else { 1.0 };
        let norm = |name: String| Tensor {
            name: format!("{name}.weight"),
            shape: vec![self.hidden],
            center: norm_center,
            half_width: 0.1,
        };
        // logits of deviation 3: a token in a hundred thousand is likely, as in a language model, but not certain
        let mut list = vec![product("model.embed_tokens".to_owned(), self.vocab, self.hidden, 3.0)];
        list.push(norm("model.norm".to_owned()));
        if !self.tied {
            list.push(product("lm_head".to_owned(), self.vocab, self.hidden, 3.0));
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            list.extend(self.norms().iter().map(|part| norm(name(part))));
            let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
            // scores of deviation 3: heads of low and of high entropy
            list.push(product(name("self_attn.q_proj"), q, self.hidden, 1.7));
            list.push(product(name("self_attn.k_proj"), kv, self.hidden, 1.7));
            list.push(product(name("self_attn.v_proj"), kv, self.hidden, 1.0));
            list.push(product(name("self_attn.o_proj"), self.hidden, q, 1.0));
            list.push(product(name("mlp.gate_proj"), self.inner, self.hidden, 1.0));
            list.push(product(name("mlp.up_proj"), self.inner, self.hidden, 1.0));
            list.push(product(name("mlp.down_proj"), self.hidden, self.inner, 1.0));
            if self.family == Family::Qwen2 {
                list.extend([("q", q), ("k", kv), ("v", kv)].map(|(part, rows)| Tensor {
                    name: name(&format!("self_attn.{part}_proj.bias")),
                    shape: vec![rows],
                    center: 0.0,
                    half_width: 0.5,
                }));
            }
        }
        list
    }

    fn norms(&self) -> &'static [&'static str] {
        match self.family {
            Family::Gemma2 { .. } => &[
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ],
            Family::Llama { .. } | Family::Qwen2 => &["input_layernorm", "post_attention_layernorm"],
        }
    }

    /// Bytes of the checkpoint.
    pub fn byte_len(&self) -> usize {
        self.tensors().iter().map(Tensor::byte_len).sum()
    }
}
