//! The feed-forward network of a layer with experts: `experts.cu`.

use super::abi::{
    AddRmsNorm, ChoiceGroups, ChooseExperts, ExpertDown, ExpertGated, ExpertSum, GroupChoices, Norm, SIGMOID,
};
use super::error::{CudaError, Result};
use super::gemm::{Input, Job, Product, ptr_or_null};
use super::kernel_set::{EXPERT_OUTS, ExpertKernels, MAX_ROWS};
use super::memory::{Buffer, DevicePtr, Floats};
use super::{CudaBackend, pass::Gates, scratch::ExpertScratch, weights::Matrix};
use crate::model::config::ExpertSpec;
use crate::model::weights::{DenseBeside, Expert, LayerInput};
use std::f32::consts::FRAC_1_SQRT_2;

impl CudaBackend {
    /// x += Σ_e g_e expert_e(norm(x)), every row.
    pub(super) fn mix_experts(&self, layer: usize, router: &Matrix) -> Result<()> {
        let (x, h) = (self.scratch.x.ptr(), self.scratch.h.ptr());
        self.norm_rows(x, self.input_norm(self.weights.layers[layer].feed_forward_norm.as_ref()), h)?;
        self.choose_experts(router, h, None)?;
        self.mix(layer, h, x, true)?;
        self.add_shared_expert(layer, h)
    }

    /// x += sigmoid(gate h) · expert(h), every row, for the shared expert that all rows pass through.
    fn add_shared_expert(&self, layer: usize, h: Floats) -> Result<()> {
        let shared = &self.weights.layers[layer].shared_expert;
        let Some((Expert { gate, up, down }, gate_of_rows)) = shared else { return Ok(()) };
        let (scratch, n, inner) = (&self.scratch, self.pass.rows.len(), gate.out_features);
        let (logits, y) = (scratch.experts.logits.ptr(), scratch.gate());
        let job = |w, y| Job { w, bias: None, y };
        self.gemv(h, Norm::default(), &[job(gate_of_rows, logits)], n, Product::Linear { accumulate: false })?;
        let jobs = [job(gate, y), job(up, DevicePtr::NULL)];
        self.gated(h, self.input_norm(None), jobs, self.activation(), None)?;
        self.gate_rows(Gates { first: logits, stride: 1, step: 0, activation: SIGMOID }, y, inner, inner, y)?;
        self.matmul(Input::F32(y), job(down, scratch.x.ptr()), true)
    }

    /// x ← factor · (x + norm(norm(dense(norm(x))) + norm(Σ_e g_e s_e expert_e(norm(x))))), every row, each norm with its own weights.
    pub(super) fn mix_beside(
        &self,
        layer: usize,
        router: &Matrix,
        beside: &DenseBeside<Matrix, Buffer<f32>>,
        factor: f32,
    ) -> Result<()> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        let (x, sum) = (scratch.x.ptr(), scratch.h.ptr());
        let gated = self.gated_network(layer, &beside.network)?;
        self.matmul(gated, Job { w: &beside.network.down, bias: w.down_bias.as_ref(), y: sum }, false)?;
        self.norm_rows(sum, self.norm(&beside.post_norm), sum)?;
        // overwrites the gates, which are no longer needed
        let (normed, mixed) = (scratch.gate(), scratch.gate().add(MAX_ROWS * self.spec.hidden_size));
        self.norm_rows(x, self.norm(&beside.router_norm), normed)?;
        self.choose_experts(router, normed, Some(&beside.expert_scales))?;
        self.norm_rows(x, self.norm(&beside.expert_norm), normed)?;
        self.mix(layer, normed, mixed, false)?;
        self.add_normed(sum, mixed, &beside.post_expert_norm, 1.0)?;
        match &w.post_feed_forward_norm {
            Some(norm) => self.add_normed(x, sum, norm, factor),
            None => Err(CudaError::Unsupported("a dense network beside experts without a norm after them".to_owned())),
        }
    }

    fn norm_rows(&self, x: Floats, norm: Norm, y: Floats) -> Result<()> {
        self.rms_norm(x, norm, y, self.pass.rows.len(), self.spec.hidden_size)
    }

    fn experts(&self) -> Result<(&ExpertSpec, &ExpertKernels)> {
        let missing = || CudaError::NoKernel { name: "choose_experts".to_owned() };
        self.spec.experts.as_ref().zip(self.kernels.experts.as_ref()).ok_or_else(missing)
    }

    /// Chooses each row's experts from its normed input h, and their shares, times `scales` if given. The router's product uses f32
    /// arithmetic in passes of any width.
    fn choose_experts(&self, router: &Matrix, h: Floats, scales: Option<&Buffer<f32>>) -> Result<()> {
        let ((spec, kernels), n) = (self.experts()?, self.pass.rows.len());
        let ExpertScratch { logits, ids, shares, .. } = &self.scratch.experts;
        let job = Job { w: router, bias: None, y: logits.ptr() };
        self.gemv(h, Norm::default(), &[job], n, Product::Linear { accumulate: false })?;
        let parameters = ChooseExperts {
            logits: logits.ptr(),
            experts: spec.num_experts.into(),
            top_k: spec.num_experts_per_tok.into(),
            normalize: spec.norm_topk_prob.into(),
            scales: ptr_or_null(scales),
            ids: ids.ptr(),
            shares: shares.ptr(),
        };
        self.device.launch(&kernels.choose, [n, 1, 1], &parameters)
    }

    /// y = Σ_e g_e expert_e(h), or the sum of both with `accumulate`. Many choices are grouped by expert, with bit-identical results.
    fn mix(&self, layer: usize, h: Floats, y: Floats, accumulate: bool) -> Result<()> {
        let ((spec, kernels), n, hidden) = (self.experts()?, self.pass.rows.len(), self.spec.hidden_size);
        let ExpertScratch { ids, shares, choices, counts, inner, products, .. } = &self.scratch.experts;
        let (ids, inner, products) = (ids.ptr(), inner.ptr(), products.ptr());
        let (experts, moe_inner, top_k) =
            (self.weights.experts[layer].ptr(), spec.moe_intermediate_size, spec.num_experts_per_tok);
        let (groups, blocks) = if n * top_k <= spec.num_experts {
            (ChoiceGroups::default(), n * top_k)
        } else {
            let groups = ChoiceGroups { choices: choices.ptr(), counts: counts.ptr(), rows: n as i32, padding: 0 };
            let parameters = GroupChoices { ids, rows: n.into(), top_k: top_k.into(), groups };
            self.device.launch(&kernels.group, [spec.num_experts, 1, 1], &parameters)?;
            (groups, spec.num_experts)
        };
        let (k, wide, activation) = (hidden.into(), moe_inner.into(), self.activation());
        let parameters =
            ExpertGated { x: h, ids, groups, experts, k, inner: wide, top_k: top_k.into(), activation, h: inner };
        self.device.launch(&kernels.gated, [moe_inner.div_ceil(EXPERT_OUTS), blocks, 1], &parameters)?;
        let parameters = ExpertDown { h: inner, ids, groups, experts, inner: wide, outs: k, products };
        self.device.launch(&kernels.down, [hidden.div_ceil(EXPERT_OUTS), blocks, 1], &parameters)?;
        let (shares, top_k, accumulate) = (shares.ptr(), top_k.into(), accumulate.into());
        let parameters = ExpertSum { products, shares, outs: k, top_k, accumulate, y };
        self.device.launch(&kernels.sum, [hidden.div_ceil(256), n, 1], &parameters)
    }

    // Per-layer embeddings: each layer's input for a token, and how a layer adds it to the residual stream.

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
