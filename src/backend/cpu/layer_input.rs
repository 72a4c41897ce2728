//! Per-layer embeddings: every layer's input for a token, and how a layer adds its own to the residual stream.

use super::CpuBackend;
use super::input_rounding::round_inputs;
use super::layer::{activate, each_row};
use super::matmul::matmul;
use super::norm;
use crate::model::weights::{LayerInput, LayerWeights};
use std::f32::consts::FRAC_1_SQRT_2;

impl CpuBackend {
    /// inputs ← (√d E\[token\] + norm(W x / √hidden_size)) / √2 for every layer and row, d values each; x is the token's embedding.
    pub(super) fn make_layer_inputs(&mut self) {
        let (Some(w), Some(input)) = (&self.weights.layer_inputs, self.spec.layer_input) else { return };
        let (spec, isa, terms) = (&self.spec, self.options.isa, self.terms());
        let (width, pass) = (w.embedding.in_features, &mut self.pass);
        pass.h.copy_from_slice(&pass.x);
        round_inputs(&mut pass.h, spec.hidden_size, w.projection.elements(), terms);
        let projection = self.packed.matrix(&w.projection);
        matmul(&self.pool, isa, &projection, &pass.h, pass.rows.len(), &mut pass.inputs, None);
        let (divisor, scale) = ((spec.hidden_size as f32).sqrt(), (input.hidden_size as f32).sqrt());
        let (rows, embedding) = (&pass.rows, w.embedding.elements());
        each_row(&self.pool, &mut pass.inputs, width, &|row, inputs| {
            let mut embedded = (rows[row].token as usize * width..).map(|i| embedding.get(i) * scale);
            for part in inputs.chunks_exact_mut(input.hidden_size) {
                part.iter_mut().for_each(|x| *x /= divisor);
                norm::rms_norm(isa, part, &w.norm, spec.family.norm_weight_offset, spec.rms_norm_eps);
                part.iter_mut().zip(&mut embedded).for_each(|(x, e)| *x = (*x + e) * FRAC_1_SQRT_2);
            }
        });
    }

    /// x ← s (x + norm(W_p (act(W_g x) ⊙ e))), every row, with the layer's input e and factor s.
    pub(super) fn add_layer_input(&mut self, l: &LayerWeights, layer: usize) {
        let (isa, n, hidden) = (self.options.isa, self.pass.rows.len(), self.spec.hidden_size);
        if let Some(LayerInput { gate, projection, norm }) = &l.input {
            let (terms, d) = (self.terms(), gate.rows);
            let pass = &mut self.pass;
            pass.h.copy_from_slice(&pass.x);
            round_inputs(&mut pass.h, hidden, gate.elements(), terms);
            matmul(&self.pool, isa, &self.packed.matrix(gate), &pass.h, n, &mut pass.gate, None);
            pass.up.clear();
            let inputs = pass.inputs.chunks_exact(self.spec.layers.len() * d);
            inputs.for_each(|row| pass.up.extend_from_slice(&row[layer * d..(layer + 1) * d]));
            activate(&self.pool, isa, self.spec.activation, &mut pass.gate, &pass.up, d);
            round_inputs(&mut pass.gate, d, projection.elements(), terms);
            matmul(&self.pool, isa, &self.packed.matrix(projection), &pass.gate, n, &mut pass.h, None);
            self.add_residual(Some(norm));
        }
        if l.scalar != 1.0 {
            self.pass.x.iter_mut().for_each(|x| *x *= l.scalar);
        }
    }
}
