//! The weights of a dense feed-forward network next to a layer's experts, as in Gemma 4's mixtures.

use super::{Expert, TensorIndex, Weight};
use crate::model::Result;

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
