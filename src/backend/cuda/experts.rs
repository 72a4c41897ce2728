//! The feed-forward network of a layer with experts: `experts.cu`.

use super::CudaBackend;
use super::abi::{ChooseExperts, ExpertDown, ExpertGated, Norm, RmsNorm};
use super::error::CudaError;
use super::gemm::{Job, Product};
use super::kernel_set::EXPERT_OUTS;
use super::launch::Int;
use super::memory::DevicePtr;
use super::scratch::ExpertScratch;
use super::weights::Matrix;
use crate::model::config::Activation;

impl CudaBackend {
    /// x += Σ_e g_e expert_e(norm(x)), every row; the router is multiplied in f32 arithmetic in passes of any width.
    pub(super) fn mix_experts(&self, layer: usize, router: &Matrix) -> Result<(), CudaError> {
        let (w, s, scratch, n) = (&self.weights.layers[layer], &self.spec, &self.scratch, self.pass.rows.len());
        let (Some(spec), Some(kernels)) = (&s.experts, &self.kernels.experts) else {
            return Err(CudaError::NoKernel { name: "choose_experts".to_owned() });
        };
        let (x, h) = (scratch.x.ptr(), scratch.h.ptr());
        let (width, norm) = (Int::from(s.hidden_size), self.input_norm(w.feed_forward_norm.as_ref()));
        let parameters = RmsNorm { x, norm, width, y: h, not_finite: DevicePtr::NULL };
        self.device.launch(&self.kernels.rms_norm, [n, 1, 1], &parameters)?;

        let ExpertScratch { logits, ids, shares, inner } = &scratch.experts;
        let (logits, ids, shares, inner) = (logits.ptr(), ids.ptr(), shares.ptr(), inner.ptr());
        let job = Job { w: router, bias: None, y: logits };
        self.gemv(h, Norm::default(), &[job], n, Product::Linear { accumulate: false })?;
        let (count, top_k) = (spec.num_experts.into(), spec.num_experts_per_tok);
        let normalize = spec.norm_topk_prob.into();
        let parameters = ChooseExperts { logits, experts: count, top_k: top_k.into(), normalize, ids, shares };
        self.device.launch(&kernels.choose, [n, 1, 1], &parameters)?;

        let (experts, moe_inner) = (self.weights.experts[layer].ptr(), spec.moe_intermediate_size);
        let activation = (s.activation == Activation::GeluTanh).into();
        let parameters = ExpertGated {
            x: h,
            ids,
            experts,
            k: width,
            inner: moe_inner.into(),
            top_k: top_k.into(),
            activation,
            h: inner,
        };
        self.device.launch(&kernels.gated, [moe_inner.div_ceil(EXPERT_OUTS), n * top_k, 1], &parameters)?;
        let parameters = ExpertDown {
            h: inner,
            ids,
            shares,
            experts,
            inner: moe_inner.into(),
            outs: width,
            top_k: top_k.into(),
            y: x,
        };
        self.device.launch(&kernels.down, [s.hidden_size.div_ceil(EXPERT_OUTS), n, 1], &parameters)
    }
}
