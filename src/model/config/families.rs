//! The families' differences, as data: the keys that a family reads, and transformers' defaults for absent ones.

use super::{FamilyTraits, Norms, QkNorm};
use serde_json::{Value, json};

/// A decoder-only text model of transformers.
pub(super) struct Family {
    /// In `architectures`.
    pub architecture: &'static str,
    /// In `text_config` of a multimodal checkpoint.
    pub model_type: &'static str,
    /// Keys of `config.json` besides [`COMMON`], with the defaults of absent ones in transformers' config class; `null`: no
    /// default, as for sizes that every checkpoint has. All other keys are ignored, as in transformers.
    pub keys: fn() -> Value,
    /// Settings that no key changes.
    pub fixed: fn() -> Value,
    pub traits: FamilyTraits,
    /// The embedding is multiplied by √hidden_size.
    pub scaled_embedding: bool,
    /// q, k and v have a bias whatever `attention_bias` is, and o has none.
    pub qkv_bias: bool,
    /// `hidden_act: gelu` means its tanh form.
    pub gelu_is_tanh: bool,
    pub slides: Slides,
    /// The last layer never slides.
    pub last_is_full: bool,
    /// Sliding layers have their own rotary table.
    pub local_rope: bool,
}

/// A function that returns these settings.
macro_rules! settings {
    ($settings:tt) => {
        || json!($settings)
    };
}

/// Which layers slide if there is no `layer_types`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Slides {
    Never,
    /// Every layer, if there is a `sliding_window`.
    All,
    /// All but every n-th (`sliding_window_pattern`).
    Pattern(usize),
    /// Those from `max_window_layers` on.
    FromMaxWindowLayers,
    /// Those without rotary positions.
    WithoutRope,
}

/// Keys that every family reads.
pub(super) const COMMON: fn() -> Value = settings!({
    "hidden_size": null, "num_hidden_layers": null, "num_attention_heads": null, "num_key_value_heads": null,
    "head_dim": null, "intermediate_size": null, "vocab_size": null, "max_position_embeddings": null,
    "rms_norm_eps": null, "hidden_act": null, "tie_word_embeddings": null, "rope_theta": null, "rope_scaling": null,
    "rope_parameters": null, "eos_token_id": null,
});

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    keys: settings!({"max_position_embeddings": 2048, "attention_bias": null, "mlp_bias": null}),
    fixed: settings!({}),
    traits: FamilyTraits {
        norm_weight_offset: 0.0,
        norms: Norms::Before,
        qk_norm: QkNorm::None,
        value_norm: false,
        layer_scalar: false,
        fused: false,
        output_gate: false,
        boxed_instruction: false,
    },
    scaled_embedding: false,
    qkv_bias: false,
    gelu_is_tanh: false,
    slides: Slides::Never,
    last_is_full: false,
    local_rope: false,
};

const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    keys: settings!({"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}),
    slides: Slides::All,
    ..LLAMA
};

const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    keys: settings!({
        "max_position_embeddings": 32768, "num_key_value_heads": 32, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28, "layer_types": null,
    }),
    qkv_bias: true,
    slides: Slides::FromMaxWindowLayers,
    ..LLAMA
};

const GEMMA: Family = Family {
    architecture: "GemmaForCausalLM",
    model_type: "gemma",
    keys: settings!({
        "max_position_embeddings": 8192, "head_dim": 256, "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": true, "attention_bias": null, "use_bidirectional_attention": null,
    }),
    traits: FamilyTraits { norm_weight_offset: 1.0, boxed_instruction: true, ..LLAMA.traits },
    scaled_embedding: true,
    gelu_is_tanh: true,
    ..LLAMA
};

const GEMMA2: Family = Family {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    keys: settings!({
        "max_position_embeddings": 8192, "head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "sliding_window": 4096, "tie_word_embeddings": true, "attention_bias": null, "layer_types": null,
        "use_bidirectional_attention": null,
    }),
    traits: FamilyTraits { norms: Norms::BeforeAndAfter, ..GEMMA.traits },
    slides: Slides::Pattern(2),
    gelu_is_tanh: false,
    ..GEMMA
};

const QWEN3_5: Family = Family {
    architecture: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    keys: settings!({
        "max_position_embeddings": 32768, "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "attention_bias": null, "layer_types": null,
    }),
    traits: FamilyTraits { norm_weight_offset: 1.0, qk_norm: QkNorm::Head, output_gate: true, ..LLAMA.traits },
    ..LLAMA
};

/// All families.
pub(super) const FAMILIES: &[Family] = &[
    LLAMA,
    MISTRAL,
    Family {
        architecture: "MinistralForCausalLM",
        model_type: "ministral",
        keys: settings!({
            "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096, "layer_types": null,
        }),
        ..MISTRAL
    },
    Family {
        architecture: "Ministral3ForCausalLM",
        model_type: "ministral3",
        keys: settings!({
            "max_position_embeddings": 262144, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
            "sliding_window": null,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        }),
        ..MISTRAL
    },
    QWEN2,
    Family {
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        keys: settings!({
            "max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128, "use_sliding_window": false,
            "sliding_window": 4096, "max_window_layers": 28, "attention_bias": null, "layer_types": null,
        }),
        traits: FamilyTraits { qk_norm: QkNorm::Head, ..QWEN2.traits },
        qkv_bias: false,
        ..QWEN2
    },
    Family {
        architecture: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        keys: settings!({
            "max_position_embeddings": 32768, "num_key_value_heads": 4, "use_sliding_window": false,
            "sliding_window": 4096, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
            "attention_bias": null, "num_experts": null, "num_local_experts": null, "norm_topk_prob": null,
            "mlp_only_layers": null,
        }),
        traits: FamilyTraits { qk_norm: QkNorm::Head, ..QWEN2.traits },
        qkv_bias: false,
        slides: Slides::All,
        ..QWEN2
    },
    QWEN3_5,
    Family {
        architecture: "Qwen3_5MoeForCausalLM",
        model_type: "qwen3_5_moe_text",
        keys: || {
            let own = json!({
                "hidden_size": 2048, "intermediate_size": 512, "num_hidden_layers": 40, "num_key_value_heads": 2, "num_experts": 256,
                "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            });
            let mut keys = (QWEN3_5.keys)();
            own.as_object().into_iter().flatten().for_each(|(key, value)| keys[key] = value.clone());
            keys
        },
        fixed: settings!({"norm_topk_prob": true}),
        ..QWEN3_5
    },
    GEMMA,
    GEMMA2,
    Family {
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        // published multimodal checkpoints omit even sizes
        keys: settings!({
            "max_position_embeddings": 131072, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 4096, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true,
            "attention_bias": null, "attn_logit_softcapping": null, "final_logit_softcapping": null,
            "sliding_window_pattern": null, "layer_types": null, "use_bidirectional_attention": null,
        }),
        traits: FamilyTraits { qk_norm: QkNorm::Head, ..GEMMA2.traits },
        slides: Slides::Pattern(6),
        local_rope: true,
        ..GEMMA2
    },
    Family {
        architecture: "Gemma4ForCausalLM",
        model_type: "gemma4_text",
        keys: settings!({
            "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
            "max_position_embeddings": 131072, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "global_head_dim": 512, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
            "tie_word_embeddings": true, "vocab_size_per_layer_input": 262144,
            "hidden_size_per_layer_input": 256, "enable_moe_block": false,
            "rope_parameters": {
                "sliding_attention": {"rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
            "attention_bias": null, "final_logit_softcapping": null, "layer_types": null,
            "use_bidirectional_attention": null, "num_global_key_value_heads": null, "per_layer_config": null,
            "attention_k_eq_v": null, "num_kv_shared_layers": null, "use_double_wide_mlp": null,
            "num_experts": null, "top_k_experts": null, "moe_intermediate_size": null,
        }),
        fixed: settings!({"attention_multiplier": 1.0}),
        traits: FamilyTraits {
            norm_weight_offset: 0.0,
            qk_norm: QkNorm::Head,
            value_norm: true,
            layer_scalar: true,
            ..GEMMA2.traits
        },
        slides: Slides::Pattern(6),
        last_is_full: true,
        local_rope: true,
        ..GEMMA2
    },
    Family {
        architecture: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        keys: settings!({
            "max_position_embeddings": 32768, "num_key_value_heads": 4, "rope_theta": 2e6, "no_rope_layer_interval": 4,
            "use_sliding_window": false, "tie_word_embeddings": true, "attention_bias": null, "mlp_bias": null,
            "sliding_window": null, "layer_types": null, "no_rope_layers": null,
        }),
        slides: Slides::WithoutRope,
        ..LLAMA
    },
    Family {
        architecture: "Olmo2ForCausalLM",
        model_type: "olmo2",
        keys: settings!({"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "attention_bias": null}),
        traits: FamilyTraits { norms: Norms::After, qk_norm: QkNorm::Whole, ..LLAMA.traits },
        ..LLAMA
    },
    Family {
        architecture: "Olmo3ForCausalLM",
        model_type: "olmo3",
        keys: settings!({
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5,
            "attention_bias": null, "layer_types": null,
        }),
        fixed: settings!({"rope_local_base_freq": 5e5}),
        traits: FamilyTraits { norms: Norms::After, qk_norm: QkNorm::Whole, ..LLAMA.traits },
        slides: Slides::Pattern(4),
        local_rope: true,
        ..LLAMA
    },
    Family {
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        keys: settings!({
            "max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "partial_rotary_factor": 1.0,
            "rms_norm_eps": 1e-5, "sliding_window": null,
        }),
        traits: FamilyTraits { fused: true, ..LLAMA.traits },
        slides: Slides::All,
        ..LLAMA
    },
    Family {
        architecture: "GraniteForCausalLM",
        model_type: "granite",
        keys: settings!({
            "max_position_embeddings": 2048, "embedding_multiplier": 1.0, "attention_multiplier": 1.0,
            "residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_bias": null, "mlp_bias": null,
        }),
        ..LLAMA
    },
];

/// Architecture and `model_type` of a multimodal checkpoint, the `model_type` of its text model if `text_config` has none, and
/// whether the head is tied if nothing says so.
pub(super) type Multimodal = (&'static str, &'static str, &'static str, bool);

/// Multimodal checkpoints whose text model is one of [`FAMILIES`].
pub(super) const MULTIMODAL: &[Multimodal] = &[
    ("Gemma3ForConditionalGeneration", "gemma3", "gemma3_text", true),
    ("Gemma4ForConditionalGeneration", "gemma4", "gemma4_text", true),
    ("Mistral3ForConditionalGeneration", "mistral3", "mistral", true),
    ("Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text", false),
    ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text", false),
];
