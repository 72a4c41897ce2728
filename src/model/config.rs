//! `config.json` → [`ModelSpec`]: families differ by data here, and nothing downstream branches on a name.

mod families;
mod read;
mod rope;

pub use rope::{RopeScaling, RopeSpec, Rotation, head_order};
use serde::{Deserialize, Serialize};

/// The gate's activation in the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Silu,
    /// Gelu in its tanh approximation (`gelu_pytorch_tanh`).
    GeluTanh,
}

/// Norms of a block (attention, or the feed-forward network).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Norms {
    /// Of its input: x + f(norm(x)).
    Before,
    /// Of its output: x + norm(f(x)), as in OLMo 2.
    After,
    /// x + norm(f(norm(x))), as in Gemma 2 and 3.
    BeforeAndAfter,
}

/// The norm of queries and keys before rope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    None,
    /// Each head separately, weights `[head_dim]` (Qwen3, Gemma 3).
    Head,
    /// All heads together, weights `[heads · head_dim]` (OLMo 2).
    Whole,
}

/// Traits shared by all models of a family.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyTraits {
    /// Added to every norm weight: 1 in Gemma (which stores w - 1), else 0.
    pub norm_weight_offset: f32,
    pub norms: Norms,
    pub qk_norm: QkNorm,
    /// Each head of the values is normed, without weights (Gemma 4).
    pub value_norm: bool,
    /// The residual stream is scaled after each layer by a factor from the files (`layer_scalar`).
    pub layer_scalar: bool,
    /// q, k, v and gate, up are one matrix each in the file (`qkv_proj`, `gate_up_proj`).
    pub fused: bool,
    /// Attention's output is multiplied by the sigmoid of a gate, which `q_proj` stores after each head's query.
    pub output_gate: bool,
    /// Whether mathematical questions must ask for a boxed answer; other families box it unasked.
    pub boxed_instruction: bool,
}

/// A layer's own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSpec {
    /// Row T attends to positions T - window + 1 ..= T only (`sliding_window`).
    pub window: Option<usize>,
    /// Index into [`ModelSpec::rope`].
    pub rope: usize,
    /// The feed-forward network is a mixture of [`ModelSpec::experts`].
    pub experts: bool,
    /// Tokens are mixed by [`ModelSpec::delta_net`] instead of attention.
    pub delta_net: bool,
    pub head_dim: usize,
    pub num_key_value_heads: usize,
    pub intermediate_size: usize,
    /// The layer whose cached keys and values it attends to: itself, or an earlier one of the same sizes (`num_kv_shared_layers`).
    /// In the latter case it has no keys and values of its own.
    pub kv_layer: usize,
    /// Its values are its keys before norm and rotation (`attention_k_eq_v`).
    pub keys_are_values: bool,
}

/// Gated delta nets (arXiv 2412.06464): layers that remember the previous tokens in a fixed-size state, a matrix per value head
/// and the last inputs of a convolution. Names are the published config keys without `linear_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeltaNetSpec {
    pub num_key_heads: usize,
    /// A multiple of `num_key_heads`: value heads share key heads.
    pub num_value_heads: usize,
    pub key_head_dim: usize,
    pub value_head_dim: usize,
    /// Rows covered by the convolution, the token's own included.
    pub conv_kernel_dim: usize,
}

impl DeltaNetSpec {
    /// Components of queries, keys and values.
    pub fn widths(&self) -> [usize; 3] {
        let key = self.num_key_heads * self.key_head_dim;
        [key, key, self.num_value_heads * self.value_head_dim]
    }
}

/// Per-layer embeddings: every layer adds its own input to the residual stream, computed from the token and its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LayerInputSpec {
    /// `hidden_size_per_layer_input`
    pub hidden_size: usize,
    /// `vocab_size_per_layer_input`: number of tokens that have one.
    pub vocab_size: usize,
}

/// A mixture of experts: every token goes through those with the highest router probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpertSpec {
    pub num_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    /// The chosen experts' probabilities are scaled to a sum of 1.
    pub norm_topk_prob: bool,
    /// Size of an expert that every token goes through, whose output is multiplied by the sigmoid of a gate.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Whether a dense network of the layer's intermediate size runs next to the experts.
    pub dense_beside: bool,
}

/// A decoder-only transformer of the Llama / Qwen / Gemma families. Names are the published config keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelSpec {
    /// `architectures[0]`, for display only.
    pub architecture: String,
    pub hidden_size: usize,
    pub num_attention_heads: usize,
    /// This and the next field are those of most layers; [`LayerSpec`] has each layer's.
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Rows of the embedding and of the head; a tokenizer may have fewer tokens.
    pub vocab_size: usize,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f32,
    pub family: FamilyTraits,
    pub activation: Activation,
    /// Factor on the embedding (Gemma: √hidden_size; `embedding_multiplier`).
    pub embedding_scale: Option<f32>,
    /// q, k and v projections have a bias (Qwen2; `attention_bias`).
    pub qkv_bias: bool,
    /// The output projection has a bias (`attention_bias` of Llama).
    pub output_bias: bool,
    /// gate, up and down have a bias (`mlp_bias`).
    pub mlp_bias: bool,
    /// Factor on a block's output before it joins the residual stream (`residual_multiplier`); 1 in most models.
    pub residual_multiplier: f32,
    /// Divisor of the logits (`logits_scaling`); 1 in most models.
    pub logits_scaling: f32,
    /// Factor on q·k: 1/√head_dim, 1/√query_pre_attn_scalar, or `attention_multiplier`.
    pub attention_scale: f32,
    /// Queries at position p grow by 1 + `query_growth` · ln(1 + ⌊p / `query_period`⌋): Ministral 3's `llama_4_scaling_beta` (else 0)
    /// and trained context.
    pub query_growth: f32,
    pub query_period: usize,
    /// s ← cap · tanh(s / cap) on attention scores.
    pub attn_logit_softcapping: Option<f32>,
    /// The same on the logits.
    pub final_logit_softcapping: Option<f32>,
    pub tie_word_embeddings: bool,
    /// One table, or two: that of full layers, then that of sliding layers or of layers without positions.
    pub rope: Vec<RopeSpec>,
    /// `num_hidden_layers` of them.
    pub layers: Vec<LayerSpec>,
    pub experts: Option<ExpertSpec>,
    /// For the layers that are delta nets: some, but not all.
    pub delta_net: Option<DeltaNetSpec>,
    pub layer_input: Option<LayerInputSpec>,
    /// The source of settings that checkpoints keep in several places.
    pub sources: Vec<(String, String)>,
    /// Every id that ends a generation: those of `config.json`, `generation_config.json` and the tokenizer.
    pub eos_token_ids: Vec<u32>,
    /// Settings of `generation_config.json` that change a greedy response and are not applied, as written.
    pub greedy_settings: Vec<(&'static str, serde_json::Value)>,
    /// Rows and columns of a block with one scale, in a checkpoint in FP8 (`weight_block_size`).
    pub fp8_block: Option<[usize; 2]>,
}

impl ModelSpec {
    /// Adds ids that end a generation, found in `place`.
    pub fn add_ends(&mut self, ids: impl IntoIterator<Item = u32>, place: &str) {
        for id in ids {
            let setting = format!("eos {id}");
            match self.sources.iter_mut().find(|(known, _)| *known == setting) {
                Some((_, places)) => *places += &format!(", {place}"),
                None => {
                    self.eos_token_ids.push(id);
                    self.sources.push((setting, place.to_owned()));
                }
            }
        }
    }

    /// The last layer that stores anything of a sequence, keys and values or a state: rows whose output is not read end there.
    pub fn last_memory(&self) -> Option<usize> {
        (0..self.layers.len()).rfind(|index| self.layers[*index].delta_net || self.layers[*index].kv_layer == *index)
    }

    /// The layers that have attention. The trace and head ids (l·H + h) count only these: l is a layer's index among them, which
    /// is its layer index in models whose layers all have attention.
    pub fn attention_layers(&self) -> impl Iterator<Item = usize> {
        (0..self.layers.len()).filter(|layer| !self.layers[*layer].delta_net)
    }

    /// A layer's index among those of its kind: with attention, or delta nets.
    pub fn index_in_kind(&self, layer: usize) -> usize {
        self.layers[..layer].iter().filter(|other| other.delta_net == self.layers[layer].delta_net).count()
    }

    /// L · H, the number of attention heads of the whole model.
    pub fn total_heads(&self) -> usize {
        self.attention_layers().count() * self.num_attention_heads
    }

    /// The max of some size over all layers.
    pub fn widest(&self, size: impl Fn(&LayerSpec) -> usize) -> usize {
        self.layers.iter().map(size).max().unwrap_or(0)
    }

    /// Layers with their own cached keys and values, and their indices.
    pub fn cached_layers(&self) -> impl Iterator<Item = (usize, &LayerSpec)> {
        self.layers.iter().enumerate().filter(|(index, layer)| layer.kv_layer == *index && !layer.delta_net)
    }

    /// The rotation of each of [`ModelSpec::rope`]; `long`: in [long](ModelSpec::is_long) sequences.
    pub fn rotations(&self, long: bool) -> Vec<Rotation> {
        let head_dim =
            |table: usize| self.layers.iter().find(|l| l.rope == table).map_or(self.head_dim, |l| l.head_dim);
        self.rope.iter().enumerate().map(|(table, rope)| rope.rotation(head_dim(table), long)).collect()
    }

    /// The most tokens of a sequence whose keys and queries turn by [`RopeScaling::LongRope`]'s `short_factor`; those of longer ones
    /// turn by `long_factor`, from the first on. `None`: no length changes anything.
    pub fn short_context(&self) -> Option<usize> {
        let trained = |rope: &RopeSpec| match rope.scaling {
            RopeScaling::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        };
        self.rope.iter().filter_map(trained).min().filter(|trained| *trained < self.max_position_embeddings)
    }

    /// Whether a sequence of `tokens` tokens is longer than [`ModelSpec::short_context`].
    pub fn is_long(&self, tokens: usize) -> bool {
        self.short_context().is_some_and(|short| tokens > short)
    }

    /// Factor on q·k of the query at a position.
    pub fn query_scale(&self, position: usize) -> f32 {
        self.attention_scale * (1.0 + self.query_growth * libm::logf((1 + position / self.query_period) as f32))
    }

    /// Number of tokens that can be read: those with an embedding and, if layers have inputs, with one of these too.
    pub fn readable_tokens(&self) -> usize {
        self.layer_input.map_or(self.vocab_size, |input| input.vocab_size.min(self.vocab_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelError;
    use serde_json::{Value, json};

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
        assert_eq!((s.head_dim, s.num_key_value_heads, s.total_heads()), (16, 2, 24));
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
        assert!(s.tie_word_embeddings && s.family.norms == Norms::BeforeAndAfter && s.family.qk_norm == QkNorm::Head);
    }

    #[test]
    fn transformers_five_rope_parameters() {
        let s =
            spec(|c| c["rope_parameters"] = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5})).unwrap();
        assert_eq!(s.rope, [RopeSpec { scaling: RopeScaling::Linear { factor: 8.0 }, ..RopeSpec::plain(5e5, 16) }]);
    }

    /// Older keys next to the newer one: the older one's scaling counts, as in transformers; θ counts wherever it is.
    #[test]
    fn settings_in_two_places() {
        let s = spec(|c| {
            c["rope_theta"] = json!(5e5);
            c["rope_parameters"] = json!({"rope_type": "default"});
        });
        assert_eq!(s.unwrap().rope, [RopeSpec::plain(5e5, 16)]);
        let s = spec(|c| {
            c["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
            c["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        });
        let rope = s.unwrap().rope.remove(0);
        assert!(matches!(rope.scaling, RopeScaling::Yarn { factor: 4.0, .. }), "{rope:?}");
        assert!((rope.attention_factor - 1.138_629_4).abs() < 1e-6, "{rope:?}");
    }

    /// A multimodal checkpoint's text model, whose defaults are those of its config class.
    #[test]
    fn the_text_model_of_a_multimodal_checkpoint() {
        let s = spec(|c| {
            *c = json!({
                "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "vision_config": {},
                "text_config": {"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 160,
                                "num_hidden_layers": 7, "sliding_window": 32,
                                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
            });
        })
        .unwrap();
        assert_eq!((s.num_attention_heads, s.head_dim, s.vocab_size), (8, 256, 262_208));
        assert_eq!((s.rope[0].scaling.clone(), s.rope[1].theta), (RopeScaling::Linear { factor: 8.0 }, 1e4));
        assert_eq!(s.eos_token_ids, [1, 106, 2, 7]);
        assert!(s.tie_word_embeddings);
    }

    /// Without `layer_types`, three of four layers are delta nets; heads are counted over the rest.
    #[test]
    fn layers_of_qwen_3_5() {
        let qwen = |edit: fn(&mut Value)| {
            spec(|c| {
                *c = json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"num_hidden_layers": 8}});
                edit(&mut c["text_config"]);
            })
        };
        let s = qwen(|_| ()).unwrap();
        assert_eq!(s.attention_layers().collect::<Vec<_>>(), [3, 7]);
        assert_eq!((s.index_in_kind(7), s.index_in_kind(6), s.total_heads()), (1, 5, 2 * 16));
        assert_eq!((s.rope[0].rotary_dim, s.family.norm_weight_offset, s.family.output_gate), (64, 1.0, true));
        assert_eq!(s.delta_net.unwrap().widths(), [2048, 2048, 4096]);
        assert_eq!(qwen(|c| c["full_attention_interval"] = json!(1)).unwrap().delta_net, None);
        assert_eq!(qwen(|c| c["full_attention_interval"] = json!(2)).unwrap().attention_layers().count(), 4);
        let refused = |edit, end: &str| {
            let message = qwen(edit).unwrap_err().to_string();
            assert!(message.ends_with(end), "{message}");
        };
        refused(
            |c| c["layer_types"] = json!(vec!["linear_attention"; 8]),
            "layer_types: expected layers of attention, found linear_attention",
        );
        refused(
            |c| c["linear_num_key_heads"] = json!(5),
            "linear_num_value_heads: expected a multiple of linear_num_key_heads (5), found 32",
        );
        refused(
            |c| c["linear_key_head_dim"] = json!(1 << 20),
            "linear_key_head_dim: expected an integer from 1 to 65536, found 1048576",
        );
        let llama = spec(|c| {
            c["architectures"] = json!(["Qwen3ForCausalLM"]);
            c["layer_types"] = json!(["full_attention", "linear_attention", "full_attention", "full_attention"]);
            c["num_hidden_layers"] = json!(4);
        });
        assert!(llama.unwrap_err().to_string().contains("found linear_attention"));
    }

    /// What changes with the length of a text.
    #[test]
    fn longrope_and_scaled_queries() {
        let phi = spec(|c| {
            c["architectures"] = json!(["Phi3ForCausalLM"]);
            c["original_max_position_embeddings"] = json!(128);
            c["rope_scaling"] = json!({"type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]});
        })
        .unwrap();
        assert_eq!((phi.max_position_embeddings, phi.short_context()), (512, Some(128)));
        let [short, long] = [false, true].map(|long| phi.rotations(long).remove(0).frequencies);
        assert!(short.iter().zip(&long).all(|(short, long)| *short == 2.0 * long), "{short:?} {long:?}");
        let ministral = spec(|c| {
            c["architectures"] = json!(["Ministral3ForCausalLM"]);
            c["max_position_embeddings"] = json!(65_536);
        })
        .unwrap();
        assert_eq!((ministral.max_position_embeddings, ministral.short_context()), (262_144, None));
        let [before, after] = [16_383, 16_384].map(|position| ministral.query_scale(position));
        assert!((after / before - 1.069_314_7).abs() < 1e-6, "{before} {after}");
    }

    /// Published configs contain these: `null`, ids of -1, window keys of other families.
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
            c["architectures"] = json!(["Qwen2ForCausalLM"]);
            c["num_key_value_heads"] = json!(2);
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
        assert!(message(|c| c["rope_scaling"] = json!({"rope_type": "spiral", "factor": 4})).contains("spiral"));
        assert!(
            message(|c| {
                c["architectures"] = json!(["Qwen3ForCausalLM"]);
                c["layer_types"] = json!(["full_attention"]);
            })
            .contains("expected 6 entries")
        );
        assert!(message(|c| c["hidden_act"] = json!("relu")).contains("relu"));
        for family in ["Gemma", "Gemma2", "Gemma3"] {
            let found = spec(|c| {
                c["architectures"] = json!([format!("{family}ForCausalLM")]);
                c["hidden_activation"] = json!("gelu_pytorch_tanh");
                c["hidden_act"] = json!("gelu_pytorch_tanh");
                c["use_bidirectional_attention"] = json!(true);
            });
            assert!(found.unwrap_err().to_string().contains("use_bidirectional_attention: expected false"), "{family}");
        }
    }
}
