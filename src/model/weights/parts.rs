//! The weights that only some families have: of gated delta nets, of a dense network next to experts, of per-layer embeddings.

use super::{Expert, LayerWeights, TensorIndex, Weight};
use crate::{model::ModelSpec, model::Result, model::config::DeltaNetSpec, model::config::LayerInputSpec};

/// Weights of a gated delta net besides queries, keys, values, gate and output.
#[derive(Clone, Debug)]
pub struct DeltaNetWeights<M = Weight, V = Vec<f32>> {
    /// `[num_value_heads, hidden_size]`, both: how much of the state is kept, and how much of it is replaced.
    pub a: M,
    pub b: M,
    /// `[num_value_heads]`, both
    pub a_log: V,
    pub dt_bias: V,
    /// For queries, keys and values, `[conv_kernel_dim, components]`: the last row is the token's own.
    pub conv: [V; 3],
    /// `[value_head_dim]`: the norm of each head's output; it has no offset.
    pub norm: V,
}

/// The part of [`LayerWeights`] that replaces attention: q, k, v, o, the gate, and the rest of a delta net.
pub(super) type Mixer = (Weight, Option<Weight>, Option<Weight>, Weight, Option<Weight>, Option<DeltaNetWeights>);

/// From the layer whose tensor names start with `name`.
pub(super) fn delta_net(index: &TensorIndex, name: &str, net: &DeltaNetSpec, hidden: usize) -> Result<Mixer> {
    let matrix = |part: &str, rows, width| index.matrix(&format!("{name}.{part}.weight"), rows, width);
    let vector = |part: &str, len| index.vector(&format!("{name}.{part}"), &[len]);
    let ([q, k, v], heads, kernel) = (net.widths(), net.num_value_heads, net.conv_kernel_dim);
    let qkv = matrix("in_proj_qkv", q + k + v, hidden)?;
    let conv = index.vector(&format!("{name}.conv1d.weight"), &[q + k + v, 1, kernel])?;
    let mut first = 0;
    let parts = [("q", q), ("k", k), ("v", v)].map(|(part, width)| {
        let rows = first..first + width;
        first += width;
        let taps = (0..kernel).flat_map(|tap| rows.clone().map(move |row| row * kernel + tap));
        (taps.map(|i| conv[i]).collect(), qkv.part(format!("{name}.in_proj_{part}.weight"), rows))
    });
    let [(conv_q, q), (conv_k, k), (conv_v, values)] = parts;
    let o = matrix("out_proj", hidden, v)?;
    let delta_net = DeltaNetWeights {
        a: matrix("in_proj_a", heads, hidden)?,
        b: matrix("in_proj_b", heads, hidden)?,
        a_log: vector("A_log", heads)?,
        dt_bias: vector("dt_bias", heads)?,
        conv: [conv_q, conv_k, conv_v],
        norm: vector("norm.weight", net.value_head_dim)?,
    };
    Ok((q, Some(k), Some(values), o, Some(matrix("in_proj_z", v, hidden)?), Some(delta_net)))
}

impl LayerWeights {
    /// The matrices kept in their file's type: a router, a shared expert's gate, and those of a delta net's rates.
    pub fn small(&self) -> impl Iterator<Item = &Weight> {
        let gate = self.shared_expert.iter().map(|(_, gate)| gate);
        self.router.iter().chain(gate).chain(self.delta_net.iter().flat_map(|net| [&net.a, &net.b]))
    }
}

// The weights of a dense feed-forward network next to a layer's experts, as in Gemma 4's mixtures.

/// A layer's feed-forward block is then norm(dense(h)) + norm(Σ_e g_e s_e expert_e(norm(x))), where h is the normed x that
/// other layers' networks receive, and the router receives its own norm of x.
#[derive(Clone, Debug)]
pub struct DenseBeside<M = Weight, V = Vec<f32>> {
    pub network: Expert<M>,
    /// `[hidden_size]`, for its output.
    pub post_norm: V,
    /// `[hidden_size]`, for the router's input: the published scale / √hidden_size.
    pub router_norm: V,
    /// `[hidden_size]`, for the experts' input and for their sum.
    pub expert_norm: V,
    pub post_expert_norm: V,
    /// s: `[num_experts]`
    pub expert_scales: V,
}

impl DenseBeside {
    /// From the layer whose tensor names start with `name`; `offset` is what a norm adds to its weights.
    pub(super) fn read(
        index: &TensorIndex,
        name: &str,
        network: Expert,
        (hidden, num_experts, offset): (usize, usize, f32),
    ) -> Result<Self> {
        let vector = |part: &str, width: usize| index.vector(&format!("{name}{part}"), &[width]);
        let scale = vector("router.scale", hidden)?;
        Ok(DenseBeside {
            network,
            post_norm: vector("post_feedforward_layernorm_1.weight", hidden)?,
            router_norm: scale.into_iter().map(|scale| scale / (hidden as f32).sqrt() - offset).collect(),
            expert_norm: vector("pre_feedforward_layernorm_2.weight", hidden)?,
            post_expert_norm: vector("post_feedforward_layernorm_2.weight", hidden)?,
            expert_scales: vector("router.per_expert_scale", num_experts)?,
        })
    }
}

// The weights of per-layer embeddings: the model's, which compute the layers' inputs, and each layer's, which add its own.

/// Weights of the layers' inputs (per-layer embeddings). Rows of layer l begin at l · `hidden_size_per_layer_input`, here d.
#[derive(Clone, Debug)]
pub struct LayerInputs<M = Weight, V = Vec<f32>> {
    /// `[vocab_size_per_layer_input, layers · d]`
    pub embedding: M,
    /// `[layers · d, hidden_size]`, applied to the token's embedding.
    pub projection: M,
    /// `[d]`, for each layer's part of the projection.
    pub norm: V,
}

/// A layer's weights that add its input e to the residual stream x: norm (projection (act(gate x) ⊙ e)).
#[derive(Clone, Debug)]
pub struct LayerInput<M = Weight, V = Vec<f32>> {
    /// `[d, hidden_size]`
    pub gate: M,
    /// The transposed shape.
    pub projection: M,
    /// `[hidden_size]`
    pub norm: V,
}

impl LayerInputs {
    pub(super) fn read(index: &TensorIndex, spec: &ModelSpec, input: LayerInputSpec) -> Result<Self> {
        let LayerInputSpec { hidden_size, vocab_size } = input;
        let (width, name) = (spec.layers.len() * hidden_size, |name: &str| index.text(name));
        Ok(LayerInputs {
            embedding: index.matrix(&name("embed_tokens_per_layer.weight"), vocab_size, width)?,
            projection: index.matrix(&name("per_layer_model_projection.weight"), width, spec.hidden_size)?,
            norm: index.vector(&name("per_layer_projection_norm.weight"), &[hidden_size])?,
        })
    }
}

impl LayerInput {
    /// From the layer whose tensor names start with `name`.
    pub(super) fn read(index: &TensorIndex, name: &str, hidden: usize, input: LayerInputSpec) -> Result<Self> {
        let matrix = |part: &str, rows, width| index.matrix(&format!("{name}{part}.weight"), rows, width);
        Ok(LayerInput {
            gate: matrix("per_layer_input_gate", input.hidden_size, hidden)?,
            projection: matrix("per_layer_projection", hidden, input.hidden_size)?,
            norm: index.vector(&format!("{name}post_per_layer_input_norm.weight"), &[hidden])?,
        })
    }
}
