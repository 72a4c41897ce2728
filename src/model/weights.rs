//! Memory-mapped safetensors: one file, or shards named by `model.safetensors.index.json`. Matrices stay in place, in their file's
//! precision; only the norm weights and biases (one vector each) are widened to f32.

mod files;
mod fp8;
mod matrix;
mod parts;
mod random;

use super::config::{ExpertSpec, LayerSpec, Norms, QkNorm, head_order};
use super::{ModelError, ModelSpec, Result};
use crate::names::Named;
use files::{Source, TensorIndex};
pub use matrix::{DType, Elements, Weight};
use parts::Mixer;
pub use parts::{DeltaNetWeights, DenseBeside, LayerInput, LayerInputs};
pub use random::{Noise, range};
use std::{cell::RefCell, collections::BTreeSet, collections::HashSet, path::Path, sync::Arc, sync::OnceLock};

/// The weights of one transformer layer, its matrices in `M` and its vectors in `V`; shapes are named as in [`ModelSpec`], those of
/// a delta net's queries, keys and values as in [`DeltaNetSpec`](super::config::DeltaNetSpec).
#[derive(Clone, Debug)]
pub struct LayerWeights<M = Weight, V = Vec<f32>> {
    /// `[hidden_size]`, for attention's input, unless norms are [`Norms::After`].
    pub input_norm: Option<V>,
    /// `[num_attention_heads · head_dim, hidden_size]`
    pub q: M,
    /// `[num_key_value_heads · head_dim, hidden_size]`, both; none in a layer that uses another's, and no v if keys are values.
    pub k: Option<M>,
    pub v: Option<M>,
    pub q_bias: Option<V>,
    pub k_bias: Option<V>,
    pub v_bias: Option<V>,
    /// `[head_dim]`, or `[heads · head_dim]` each, depending on [`FamilyTraits::qk_norm`](super::config::FamilyTraits::qk_norm).
    pub q_norm: Option<V>,
    pub k_norm: Option<V>,
    /// `[head_dim]`, if values are normed: chosen so that the norm's factor is 1.
    pub v_norm: Option<V>,
    /// `[hidden_size, num_attention_heads · head_dim]`
    pub o: M,
    pub o_bias: Option<V>,
    /// As wide as o's input, which is multiplied by the gate's sigmoid, in a delta net by its silu.
    pub output_gate: Option<M>,
    pub output_gate_bias: Option<V>,
    pub delta_net: Option<DeltaNetWeights<M, V>>,
    /// `[hidden_size]`, for attention's output, unless norms are [`Norms::Before`].
    pub post_attention_norm: Option<V>,
    /// `[hidden_size]`, for the feed-forward network's input, as `input_norm`.
    pub feed_forward_norm: Option<V>,
    /// `[num_experts, hidden_size]`: the experts' logits, in a layer that has several.
    pub router: Option<M>,
    /// One in a dense layer.
    pub experts: Vec<Expert<M>>,
    /// Next to several experts, with its gate `[1, hidden_size]`.
    pub shared_expert: Option<(Expert<M>, M)>,
    pub dense_beside: Option<DenseBeside<M, V>>,
    pub gate_bias: Option<V>,
    pub up_bias: Option<V>,
    pub down_bias: Option<V>,
    /// `[hidden_size]`, for the feed-forward network's output, as `post_attention_norm`.
    pub post_feed_forward_norm: Option<V>,
    pub input: Option<LayerInput<M, V>>,
    /// Factor on the residual stream after the layer.
    pub scalar: f32,
}

/// A feed-forward network: down (act(gate x) ⊙ up x).
#[derive(Clone, Debug)]
pub struct Expert<M = Weight> {
    /// `[intermediate_size, hidden_size]`, both; in a mixture `[moe_intermediate_size, hidden_size]`.
    pub gate: M,
    pub up: M,
    /// The transposed shape.
    pub down: M,
}

/// All weights of a model.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`
    pub embedding: Weight,
    pub layer_inputs: Option<LayerInputs>,
    pub layers: Vec<LayerWeights>,
    /// `[hidden_size]`
    pub final_norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`; the embedding itself if the head is tied.
    pub head: Weight,
    /// Differences between the files and `config.json`.
    pub warnings: Vec<String>,
    /// What [`Weights::check_finite`] found.
    finite: OnceLock<Result<(), Arc<ModelError>>>,
}

impl Weights {
    /// Maps the folder's weights and checks every shape against `spec`. Those in FP8 are converted to bf16.
    pub fn open(folder: &Path, spec: &ModelSpec) -> Result<Self> {
        let index = TensorIndex::open(folder, spec.fp8_block)?;
        let mut weights = Weights::read(&index, spec)?;
        weights.warnings.extend(index.unread(spec));
        Ok(weights)
    }

    /// Whether a folder has weights, or an index of them.
    pub fn are_in(folder: &Path) -> bool {
        files::NAMES.iter().any(|name| folder.join(name).is_file())
    }

    /// The shapes of a model's weights, without values.
    ///
    /// # Errors
    /// Those of an inconsistent model.
    pub fn shapes(spec: &ModelSpec) -> Result<Self> {
        Weights::read(&TensorIndex::new(Source::Shapes(&RefCell::default())), spec)
    }

    /// Names and shapes of all tensors of a checkpoint, as files contain them (experts in two tensors per layer).
    pub fn tensors(spec: &ModelSpec) -> Result<Vec<(String, Vec<usize>)>> {
        let noted = RefCell::default();
        Weights::read(&TensorIndex::new(Source::Shapes(&noted)), spec)?;
        let mut tensors = noted.take();
        // a fused tensor is requested once for each of its parts
        let mut seen = HashSet::new();
        tensors.retain(|(name, _)| seen.insert(name.clone()));
        Ok(tensors)
    }

    fn read(index: &TensorIndex, spec: &ModelSpec) -> Result<Self> {
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let (embedding, head_name) = (index.text("embed_tokens.weight"), index.head_name());
        // safetensors' save_model keeps one of two tied tensors
        let only_head = head_name.as_ref().filter(|_| spec.tie_word_embeddings && index.has(&embedding) == Some(false));
        let embedding = index.matrix(only_head.unwrap_or(&embedding), vocab, hidden)?;
        let mut warnings = Vec::new();
        let head = match head_name {
            None if spec.tie_word_embeddings => embedding.clone(),
            None => index.matrix("lm_head.weight", vocab, hidden)?,
            Some(name) => {
                let head = index.matrix(&name, vocab, hidden)?;
                if !spec.tie_word_embeddings {
                    head
                } else if head.dtype == embedding.dtype && head.byte_slice() == embedding.byte_slice() {
                    embedding.clone()
                } else {
                    warnings.push(format!(
                        "{}: config.json says tie_word_embeddings: true, but {name} is not the embedding; the file's head is used",
                        index.path.display()
                    ));
                    head
                }
            }
        };
        let layers = (0..spec.layers.len()).map(|l| layer_weights(index, spec, l)).collect::<Result<_, _>>()?;
        let final_norm = index.vector(&index.text("norm.weight"), &[hidden])?;
        let layer_inputs = spec.layer_input.map(|input| LayerInputs::read(index, spec, input)).transpose()?;
        Ok(Weights { embedding, layer_inputs, layers, final_norm, head, warnings, finite: OnceLock::new() })
    }

    /// Every matrix once (a tied head is not named again).
    pub fn matrices(&self) -> Vec<&Weight> {
        let layers = self.layers.iter().flat_map(|l| l.products().chain(l.small()));
        let head = (self.head.name != self.embedding.name).then_some(&self.head);
        let inputs = self.layer_inputs.iter().flat_map(|inputs| [&inputs.embedding, &inputs.projection]);
        std::iter::once(&self.embedding).chain(inputs).chain(layers).chain(head).collect()
    }

    /// Every matrix multiplied with activations, except routers and other small ones.
    pub fn products(&self) -> impl Iterator<Item = &Weight> {
        let layers = self.layers.iter().flat_map(LayerWeights::products);
        layers.chain(self.layer_inputs.iter().map(|inputs| &inputs.projection)).chain(std::iter::once(&self.head))
    }

    /// The types of all matrices, each once, as `bf16, f32`.
    pub fn types(&self) -> String {
        let types: BTreeSet<&str> = self.matrices().iter().map(|w| w.dtype.name()).collect();
        types.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Bytes of all matrices in their files.
    pub fn byte_len(&self) -> usize {
        self.matrices().iter().map(|w| w.byte_len()).sum()
    }

    /// Bytes that one decode step reads, if a matrix takes `bytes`: all but the embeddings, of which it reads a row, and the
    /// experts that are not chosen.
    pub fn bytes_per_token(&self, spec: &ModelSpec, bytes: impl Fn(&Weight) -> usize) -> usize {
        let layer = |l: &LayerWeights| {
            let all: usize = l.products().chain(l.small()).map(&bytes).sum();
            let expert = |e: &Expert| [&e.gate, &e.up, &e.down].into_iter().map(&bytes).sum::<usize>();
            let idle = spec.experts.filter(|_| l.router.is_some()).map_or(0, |e| e.num_experts - e.num_experts_per_tok);
            all - idle * l.experts.first().map_or(0, expert)
        };
        let inputs = self.layer_inputs.as_ref().map_or(0, |inputs| bytes(&inputs.projection));
        self.layers.iter().map(layer).sum::<usize>() + bytes(&self.head) + inputs
    }

    /// Checks every matrix for NaN and infinity, to explain a pass that was not finite. Reads all weights, once.
    pub fn check_finite(&self) -> Result<(), Arc<ModelError>> {
        let check = || self.matrices().into_iter().try_for_each(Weight::check_finite).map_err(Arc::new);
        self.finite.get_or_init(check).clone()
    }
}

fn layer_weights(index: &TensorIndex, spec: &ModelSpec, layer: usize) -> Result<LayerWeights> {
    let LayerSpec { head_dim, num_key_value_heads, intermediate_size: inner, kv_layer, .. } = spec.layers[layer];
    let hidden = spec.hidden_size;
    let (q_rows, kv_rows) = (spec.num_attention_heads * head_dim, num_key_value_heads * head_dim);
    let name = |part: &str| index.text(&format!("layers.{layer}.{part}"));
    let matrix = |part: &str, rows, width| index.matrix(&name(&format!("{part}.weight")), rows, width);
    let vector = |present: bool, part: &str, width| present.then(|| index.vector(&name(part), &[width])).transpose();
    let norm = |present, part: &str, width| vector(present, &format!("{part}.weight"), width);
    let bias = |present, part: &str, width| vector(present, &format!("{part}.bias"), width);
    // a matrix, or the rows from `at` on of the one that it is fused into, which has `all` rows
    let part = |fused: &str, (at, all): (usize, usize), part: &str, rows: usize| match spec.family.fused {
        false => matrix(part, rows, hidden),
        true => Ok(matrix(fused, all, hidden)?.part(name(&format!("{part}.weight")), at..at + rows)),
    };
    let qkv = |at, name: &str, rows| part("self_attn.qkv_proj", (at, q_rows + 2 * kv_rows), name, rows);
    let gate_up = |at, name: &str| part("mlp.gate_up_proj", (at, 2 * inner), name, inner);
    let dense = || -> Result<Expert> {
        let (gate, up) = (gate_up(0, "mlp.gate_proj")?, gate_up(inner, "mlp.up_proj")?);
        Ok(Expert { gate, up, down: matrix("mlp.down_proj", hidden, inner)? })
    };
    let several = spec.experts.filter(|_| spec.layers[layer].experts);
    let shared_expert = several.and_then(|spec| spec.shared_expert_intermediate_size).map(|inner| {
        Ok((network(index, &name("mlp.shared_expert"), inner, hidden)?, matrix("mlp.shared_expert_gate", 1, hidden)?))
    });
    let beside = |mixture: ExpertSpec| {
        let sizes = (hidden, mixture.num_experts, spec.family.norm_weight_offset);
        DenseBeside::read(index, &name(""), dense()?, sizes)
    };
    let dense_beside = several.filter(|mixture| mixture.dense_beside).map(beside).transpose()?;
    let (router, experts) = match several {
        None => (None, vec![dense()?]),
        Some(mixture) => {
            let names = if mixture.dense_beside { ("router.proj", "experts") } else { ("mlp.gate", "mlp.experts") };
            let router = matrix(names.0, mixture.num_experts, hidden)?;
            (Some(router), experts(index, &name(names.1), mixture, hidden)?)
        }
    };
    let has_k = kv_layer == layer;
    let has_v = has_k && !spec.layers[layer].keys_are_values;
    let attention = || -> Result<Mixer> {
        let k = has_k.then(|| qkv(q_rows, K, kv_rows)).transpose()?;
        let v = has_v.then(|| qkv(q_rows + kv_rows, V, kv_rows)).transpose()?;
        let o = matrix("self_attn.o_proj", hidden, q_rows)?;
        if !spec.family.output_gate {
            return Ok((qkv(0, Q, q_rows)?, k, v, o, None, None));
        }
        let both = qkv(0, Q, 2 * q_rows)?;
        let gate = both.gathered(name("self_attn.q_proj.gate"), half_of_heads(2 * q_rows, head_dim, 1));
        let q = both.gathered(both.name.clone(), half_of_heads(2 * q_rows, head_dim, 0));
        Ok((q, k, v, o, Some(gate), None))
    };
    let delta_net = spec.delta_net.filter(|_| spec.layers[layer].delta_net);
    let (q, k, v, o, output_gate, delta_net) = match delta_net {
        None => attention()?,
        Some(net) => parts::delta_net(index, &name("linear_attn"), &net, hidden)?,
    };
    let (attends, gated) = (delta_net.is_none(), output_gate.is_some());
    let mut q_bias = bias(spec.qkv_bias && attends, Q, q_rows * if gated { 2 } else { 1 })?;
    let mut output_gate_bias = None;
    if let Some(both) = q_bias.as_mut().filter(|_| gated) {
        let half = |which| half_of_heads(both.len(), head_dim, which).into_iter().map(|i| both[i]).collect();
        (output_gate_bias, *both) = (Some(half(1)), half(0));
    }
    let (before, after) = (spec.family.norms != Norms::After, spec.family.norms != Norms::Before);
    // the norm of the feed-forward network's input is named after its position only if attention's output has a norm
    let feed_forward_norm = if after { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
    let (q_norm, k_norm) = match spec.family.qk_norm {
        QkNorm::Whole => (q_rows, kv_rows),
        QkNorm::None | QkNorm::Head => (head_dim, head_dim),
    };
    let has_qk_norm = spec.family.qk_norm != QkNorm::None && attends;
    let scalar = vector(spec.family.layer_scalar, "layer_scalar", 1)?;
    let mut weights = LayerWeights {
        input_norm: norm(before, "input_layernorm", hidden)?,
        q,
        k,
        v,
        q_bias,
        k_bias: bias(spec.qkv_bias && attends && has_k, K, kv_rows)?,
        v_bias: bias(spec.qkv_bias && attends && has_v, V, kv_rows)?,
        q_norm: norm(has_qk_norm, "self_attn.q_norm", q_norm)?,
        k_norm: norm(has_qk_norm && has_k, "self_attn.k_norm", k_norm)?,
        v_norm: spec.family.value_norm.then(|| vec![1.0 - spec.family.norm_weight_offset; head_dim]),
        o,
        o_bias: bias(spec.output_bias && attends, "self_attn.o_proj", hidden)?,
        output_gate,
        output_gate_bias,
        delta_net,
        post_attention_norm: norm(after, "post_attention_layernorm", hidden)?,
        feed_forward_norm: norm(before, feed_forward_norm, hidden)?,
        router,
        experts,
        shared_expert: shared_expert.transpose()?,
        dense_beside,
        gate_bias: bias(spec.mlp_bias, "mlp.gate_proj", inner)?,
        up_bias: bias(spec.mlp_bias, "mlp.up_proj", inner)?,
        down_bias: bias(spec.mlp_bias, "mlp.down_proj", hidden)?,
        post_feed_forward_norm: norm(after, "post_feedforward_layernorm", hidden)?,
        input: spec.layer_input.map(|input| LayerInput::read(index, &name(""), hidden, input)).transpose()?,
        scalar: scalar.map_or(1.0, |scalar| scalar[0]),
    };
    let turning = spec.rope[spec.layers[layer].rope].rotary_dim;
    if attends && turning > 0 && turning < head_dim {
        weights.reorder_heads(&head_order(head_dim, turning));
    }
    Ok(weights)
}

const Q: &str = "self_attn.q_proj";
const K: &str = "self_attn.k_proj";
const V: &str = "self_attn.v_proj";

/// The first (0) or second (1) half of every head's rows, if heads have a query and a gate of `head_dim` rows each.
fn half_of_heads(rows: usize, head_dim: usize, which: usize) -> Vec<usize> {
    (0..rows).filter(|row| row / head_dim % 2 == which).collect()
}

/// A feed-forward network whose tensor names start with `name`.
fn network(index: &TensorIndex, name: &str, inner: usize, hidden: usize) -> Result<Expert> {
    let matrix = |part: &str, rows, width| index.matrix(&format!("{name}.{part}_proj.weight"), rows, width);
    let (gate, up) = (matrix("gate", inner, hidden)?, matrix("up", inner, hidden)?);
    Ok(Expert { gate, up, down: matrix("down", hidden, inner)? })
}

/// A layer's experts: separate matrices, or all in two three-dimensional tensors.
fn experts(index: &TensorIndex, name: &str, spec: ExpertSpec, hidden: usize) -> Result<Vec<Expert>> {
    let inner = spec.moe_intermediate_size;
    let stacked = format!("{name}.gate_up_proj");
    if !index.has(&stacked).unwrap_or(true) {
        let expert = |expert| network(index, &format!("{name}.{expert}"), inner, hidden);
        return (0..spec.num_experts).map(expert).collect();
    }
    let gate_up = index.tensor(&stacked, &[spec.num_experts, 2 * inner, hidden])?;
    let down = index.tensor(&format!("{name}.down_proj"), &[spec.num_experts, hidden, inner])?;
    let rows = |of: &Weight, expert: usize, part: &str, first: usize, rows: usize| {
        of.part(format!("{name}.{expert}.{part}_proj.weight"), first..first + rows)
    };
    let expert = |e: usize| Expert {
        gate: rows(&gate_up, e, "gate", 2 * e * inner, inner),
        up: rows(&gate_up, e, "up", (2 * e + 1) * inner, inner),
        down: rows(&down, e, "down", e * hidden, hidden),
    };
    Ok((0..spec.num_experts).map(expert).collect())
}

impl LayerWeights {
    /// The matrices of all products except [`small`](Self::small) ones.
    pub fn products(&self) -> impl Iterator<Item = &Weight> {
        let shared = self.shared_expert.iter().map(|(expert, _)| expert);
        let beside = self.dense_beside.iter().map(|beside| &beside.network);
        let experts =
            self.experts.iter().chain(shared).chain(beside).flat_map(|expert| [&expert.gate, &expert.up, &expert.down]);
        let input = self.input.iter().flat_map(|input| [&input.gate, &input.projection]);
        let optional = self.k.iter().chain(&self.v).chain(&self.output_gate);
        [&self.q, &self.o].into_iter().chain(optional).chain(experts).chain(input)
    }

    /// Reorders the components of every query and key, the same way for both, which leaves their products unchanged.
    fn reorder_heads(&mut self, order: &[usize]) {
        let vector = |values: &mut Option<Vec<f32>>| {
            let heads = values.iter_mut().flat_map(|values| values.chunks_exact_mut(order.len()));
            for head in heads {
                let old = head.to_vec();
                head.iter_mut().zip(order).for_each(|(x, from)| *x = old[*from]);
            }
        };
        [&mut self.q_bias, &mut self.k_bias, &mut self.q_norm, &mut self.k_norm].into_iter().for_each(vector);
        std::iter::once(&mut self.q).chain(&mut self.k).for_each(|w| *w = w.reordered(order));
    }
}
