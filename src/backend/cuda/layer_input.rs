//! Per-layer embeddings: each layer's input for a token, and how a layer adds it to the residual stream.

use super::CudaBackend;
use super::abi::{AddRmsNorm, Norm};
use super::error::Result;
use super::gemm::{Input, Job};
use super::pass::Gates;
use crate::model::weights::LayerInput;
use std::f32::consts::FRAC_1_SQRT_2;

impl CudaBackend {
    /// inputs ← (√d E\[token\] + norm(W x / √hidden_size)) / √2 for every layer and row, d values each; x is the token's embedding.
    pub(super) fn make_layer_inputs(&self) -> Result<()> {
        let (Some(w), Some(input)) = (&self.weights.layer_inputs, self.spec.layer_input) else { return Ok(()) };
        let (scratch, n, d) = (&self.scratch, self.pass.rows.len(), input.hidden_size);
        let (inputs, projected) = (scratch.inputs.ptr(), scratch.gate());
        self.look_up(&w.embedding, (d as f32).sqrt() * FRAC_1_SQRT_2, inputs)?;
        self.matmul(Input::F32(scratch.x.ptr()), Job { w: &w.projection, bias: None, y: projected }, false)?;
        let norm = Norm { weight: w.norm.ptr(), offset: 0.0, eps: self.spec.rms_norm_eps };
        let parameters = AddRmsNorm { x: inputs, h: projected, norm, width: d.into(), factor: 1.0 };
        self.device.launch(&self.kernels.add_rms_norm, [n * self.spec.layers.len(), 1, 1], &parameters)
    }

    /// x ← s (x + norm(W_p (act(W_g x) ⊙ e))), every row, with the layer's input e and factor s.
    pub(super) fn add_layer_input(&self, layer: usize) -> Result<()> {
        let w = &self.weights.layers[layer];
        let Some(LayerInput { gate, projection, norm }) = &w.input else { return Ok(()) };
        let (scratch, d) = (&self.scratch, gate.out_features);
        let y = scratch.gate();
        self.matmul(Input::F32(scratch.x.ptr()), Job { w: gate, bias: None, y }, false)?;
        let gates = Gates { first: y, stride: d, step: 1, activation: self.activation() };
        self.gate_rows(gates, scratch.inputs.ptr().add(layer * d), self.spec.layers.len() * d, d, y)?;
        self.add_residual(Input::F32(y), projection, None, Some(norm), w.scalar)
    }
}
