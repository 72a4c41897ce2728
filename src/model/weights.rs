//! Memory-mapped safetensors: one file, or shards named by `model.safetensors.index.json`. Matrices stay in place, in their file's
//! precision; only the norm weights and biases (one vector each) are widened to f32.

mod parts;
mod random;

use super::config::{ExpertSpec, LayerSpec, Norms, QkNorm, head_order};
use super::{ModelError, ModelSpec, Result, read_json};
use crate::files;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use memmap2::Mmap;
use parts::Mixer;
pub use parts::{DeltaNetWeights, DenseBeside, LayerInput, LayerInputs};
use random::RandomTensors;
pub use random::{Noise, range};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{cell::RefCell, ops::Range, str::FromStr};

/// Elements as stored in a file.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl Elements<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(v) => v.len(),
            Elements::Bf16(v) => v.len(),
            Elements::F16(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The i-th element, widened to f32 without loss.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Elements::F32(v) => v[i],
            Elements::Bf16(v) => v[i].to_f32(),
            Elements::F16(v) => v[i].to_f32(),
        }
    }

    /// All of them, widened to f32 without loss.
    pub fn to_vec(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }
}

/// Storage type of a weight in its file, or of keys and values in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    #[default]
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
}

impl DType {
    /// The name on the command line and in results: `f32`, `f16`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The nearest value of this type, ties to even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Little-endian bytes of values in this type.
    pub(crate) fn encode(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        bytes.clear();
        match self {
            DType::F32 => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            DType::F16 => {
                let mut halves = vec![f16::ZERO; numbers.len()];
                halves.convert_from_f32_slice(numbers);
                bytes.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
            DType::Bf16 => bytes.extend(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
        }
    }
}

impl FromStr for DType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<DType, Self::Err> {
        [DType::F32, DType::F16, DType::Bf16].into_iter().find(|t| t.name() == name).ok_or("expected f32, f16 or bf16")
    }
}

/// A weight matrix `[rows, in_features]`, row-major, in its stored dtype: y = W x.
#[derive(Clone, Debug)]
pub struct Weight {
    pub name: String,
    pub rows: usize,
    pub in_features: usize,
    pub dtype: DType,
    /// `None`: random values, or only the shape is known.
    file: Option<Arc<MappedFile>>,
    /// A copy of data that is unaligned in the file (u64 provides the alignment), or of reordered rows.
    copy: Option<Arc<Vec<u64>>>,
    /// The first byte, in the copy or else in the file.
    start: usize,
}

/// The concatenated bytes, aligned for any type.
fn copy<'a>(parts: impl Iterator<Item = &'a [u8]>, len: usize) -> Arc<Vec<u64>> {
    let mut words = vec![0u64; len.div_ceil(8)];
    let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    for part in parts {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = after;
    }
    Arc::new(words)
}

#[derive(Debug)]
struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl Weight {
    /// The matrix's elements, `rows * in_features` of them.
    pub fn elements(&self) -> Elements<'_> {
        let bytes = self.byte_slice();
        match self.dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
        }
    }

    /// Size in the file.
    pub fn byte_len(&self) -> usize {
        self.rows * self.in_features * self.dtype.size()
    }

    /// A matrix of which only the shape is known; its rows are as long as the last dimension.
    fn of_shape(name: &str, shape: &[usize]) -> Weight {
        let in_features = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / in_features;
        let (name, dtype) = (name.to_owned(), DType::Bf16);
        Weight { name, rows, in_features, dtype, file: None, copy: None, start: 0 }
    }

    /// Whether only the shape is known.
    fn is_shape(&self) -> bool {
        self.file.is_none() && self.copy.is_none()
    }

    pub(crate) fn byte_slice(&self) -> &[u8] {
        let bytes = match (&self.copy, &self.file) {
            (Some(words), _) => bytemuck::cast_slice(words),
            (None, Some(file)) => &file.map[..],
            (None, None) => return &[],
        };
        &bytes[self.start..self.start + self.byte_len()]
    }

    /// Rows `rows`, under their own name.
    fn part(&self, name: String, rows: Range<usize>) -> Weight {
        let start = self.start + rows.start * self.in_features * self.dtype.size();
        Weight { name, rows: rows.len(), start, ..self.clone() }
    }

    /// The matrix with the rows of each head reordered.
    fn reordered(&self, order: &[usize]) -> Weight {
        let rows = (0..self.rows).map(|row| row - row % order.len() + order[row % order.len()]);
        self.gathered(self.name.clone(), rows.collect())
    }

    /// A copy of some rows, under their own name.
    fn gathered(&self, name: String, rows: Vec<usize>) -> Weight {
        let (old, row_len) = (self.byte_slice(), self.in_features * self.dtype.size());
        let numbers = || copy(rows.iter().map(|row| &old[row * row_len..][..row_len]), rows.len() * row_len);
        let copy = (!self.is_shape()).then(numbers);
        Weight { name, rows: rows.len(), copy, start: 0, ..self.clone() }
    }

    /// Checks for NaN and infinity.
    fn check_finite(&self) -> Result<()> {
        let elements = self.elements();
        let index = (0..elements.len()).find(|index| !elements.get(*index).is_finite());
        let path = self.file.as_ref().map_or_else(PathBuf::new, |file| file.path.clone());
        let error = |index| ModelError::NotFinite { path, tensor: self.name.clone(), index };
        index.map_or(Ok(()), |index| Err(error(index)))
    }
}

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
    /// Maps the folder's weights and checks every shape against `spec`.
    pub fn open(folder: &Path, spec: &ModelSpec) -> Result<Self> {
        Weights::read(&TensorIndex::open(folder)?, spec)
    }

    /// Names and shapes of all tensors of a checkpoint, as files contain them (experts in two tensors per layer).
    pub fn tensors(spec: &ModelSpec) -> Result<Vec<(String, Vec<usize>)>> {
        let noted = RefCell::default();
        let index = TensorIndex { path: PathBuf::new(), prefix: PREFIXES[0], source: Source::Shapes(&noted) };
        Weights::read(&index, spec)?;
        let mut tensors = noted.take();
        // a fused tensor is requested once for each of its parts
        let mut seen = HashSet::new();
        tensors.retain(|(name, _)| seen.insert(name.clone()));
        Ok(tensors)
    }

    fn read(index: &TensorIndex, spec: &ModelSpec) -> Result<Self> {
        let (hidden, vocab) = (spec.hidden_size, spec.vocab_size);
        let embedding = index.matrix(&index.text("embed_tokens.weight"), vocab, hidden)?;
        let mut warnings = Vec::new();
        let head = match index.head_name() {
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

/// Layouts of the text model's tensors: alone, and the two of multimodal checkpoints.
const PREFIXES: [&str; 3] = ["model.", "language_model.model.", "model.language_model."];

/// Every tensor of a model, by name.
struct TensorIndex<'a> {
    /// The file named by errors about a missing tensor.
    path: PathBuf,
    /// Prefix of the text model's tensors.
    prefix: &'static str,
    source: Source<'a>,
}

enum Source<'a> {
    Files(HashMap<String, Entry>),
    /// Random values for every tensor.
    Random(RandomTensors),
    /// No values; the names and shapes of what is read are recorded.
    Shapes(&'a RefCell<Vec<(String, Vec<usize>)>>),
}

struct Entry {
    file: Arc<MappedFile>,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Range in the file.
    bytes: Range<usize>,
}

impl TensorIndex<'_> {
    fn open(folder: &Path) -> Result<Self> {
        let (single, sharded) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        // an index next to a single file is left over from another version of the folder
        let (path, files) = if single.is_file() {
            (single.clone(), vec![single])
        } else if sharded.is_file() {
            let files = shard_names(&sharded)?.into_iter().map(|name| folder.join(name)).collect();
            (sharded, files)
        } else {
            return Err(ModelError::NoWeights { folder: folder.to_owned() });
        };
        let mut tensors = HashMap::new();
        for file in files {
            map_file(file, &mut tensors)?;
        }
        let has = |prefix: &&&str| tensors.contains_key(&format!("{prefix}embed_tokens.weight"));
        let prefix = PREFIXES.iter().find(has).unwrap_or(&PREFIXES[0]);
        Ok(TensorIndex { path, prefix, source: Source::Files(tensors) })
    }

    /// Name of a tensor of the text model.
    fn text(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The head, if the files have one.
    fn head_name(&self) -> Option<String> {
        let names = ["lm_head.weight", "language_model.lm_head.weight"];
        names.into_iter().find(|name| self.has(name) == Some(true)).map(str::to_owned)
    }

    /// Whether a tensor exists; `None` if all are assumed to.
    fn has(&self, name: &str) -> Option<bool> {
        match &self.source {
            Source::Files(tensors) => Some(tensors.contains_key(name)),
            Source::Random(_) => Some(false),
            Source::Shapes(_) => None,
        }
    }

    /// A tensor as a matrix with rows as long as its last dimension.
    fn tensor(&self, name: &str, expected: &[usize]) -> Result<Weight> {
        let tensors = match &self.source {
            Source::Files(tensors) => tensors,
            Source::Random(random) => return Ok(random.weight(name, expected)),
            Source::Shapes(noted) => {
                noted.borrow_mut().push((name.to_owned(), expected.to_owned()));
                return Ok(Weight::of_shape(name, expected));
            }
        };
        let entry = tensors.get(name).ok_or_else(|| ModelError::MissingTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            hint: (name == "lm_head.weight").then(|| " (config.json says tie_word_embeddings: false)".to_owned()),
        })?;
        let (path, tensor) = (entry.file.path.clone(), name.to_owned());
        if entry.shape != expected {
            return Err(ModelError::Shape { path, tensor, expected: expected.to_owned(), found: entry.shape.clone() });
        }
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::Bf16,
            Dtype::F16 => DType::F16,
            found => return Err(ModelError::Dtype { path, tensor, found: format!("{found:?}") }),
        };
        let Entry { file, bytes, .. } = entry;
        let data = &file.map[bytes.clone()];
        let unaligned = !(data.as_ptr() as usize).is_multiple_of(dtype.size());
        let copy = unaligned.then(|| copy(std::iter::once(data), data.len()));
        let start = if unaligned { 0 } else { bytes.start };
        Ok(Weight { dtype, file: Some(file.clone()), copy, start, ..Weight::of_shape(name, expected) })
    }

    fn matrix(&self, name: &str, rows: usize, in_features: usize) -> Result<Weight> {
        self.tensor(name, &[rows, in_features])
    }

    /// A norm weight or bias, or a convolution's weights, checked to be finite.
    fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let weight = self.tensor(name, shape)?;
        if weight.is_shape() {
            return Ok(vec![0.0; weight.rows * weight.in_features]);
        }
        weight.check_finite()?;
        Ok(weight.elements().to_vec())
    }
}

/// File names of `model.safetensors.index.json`'s `weight_map`, each once.
fn shard_names(path: &Path) -> Result<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let names: BTreeSet<String> = read_json::<Index>(path)?.weight_map.into_values().collect();
    // a name is a file of this folder, never a path outside it
    match names.iter().find(|n| Path::new(n).components().count() != 1 || n.as_str() == "..") {
        None => Ok(names),
        Some(name) => Err(ModelError::Config {
            path: path.to_owned(),
            key: "weight_map".to_owned(),
            message: format!("expected file names, found {name:?}"),
        }),
    }
}

/// Max bytes. Some hundred describe a tensor, and what is parsed from them is held in memory.
const MAX_HEADER: u64 = 16 << 20;

fn map_file(path: PathBuf, tensors: &mut HashMap<String, Entry>) -> Result<()> {
    let file = files::open(&path).map_err(|source| ModelError::Io { path: path.clone(), source })?;
    // SAFETY: the map is only read. As for every program that maps its input, the file must not be truncated or rewritten while in
    // use; model files are written once, under a temporary name. If one is truncated all the same (SIGBUS), the commands report it.
    let map = unsafe { Mmap::map(&file) }.map_err(|source| ModelError::Io { path: path.clone(), source })?;
    let corrupt = |message: String| ModelError::Safetensors { path: path.clone(), message };
    if let Some(len) = map.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).filter(|len| *len > MAX_HEADER) {
        return Err(corrupt(format!("its header has {len} bytes, expected at most {MAX_HEADER}")));
    }
    let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| corrupt(e.to_string()))?;
    let data = size_of::<u64>() + header;
    let file = Arc::new(MappedFile { path: path.clone(), map });
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let (file, shape) = (file.clone(), info.shape.clone());
        tensors.insert(name, Entry { file, dtype: info.dtype, shape, bytes: data + start..data + end });
    }
    Ok(())
}
