//! The weights of per-layer embeddings: the model's, which compute the layers' inputs, and each layer's, which add its own.

use super::{TensorIndex, Weight};
use crate::model::config::LayerInputSpec;
use crate::model::{ModelSpec, Result};

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
