//! The feed-forward network of a layer with experts: `experts.cu`.

use super::CudaBackend;
use super::abi::{ChooseExperts, ExpertDown, ExpertGated, ExpertView, Norm, RmsNorm};
use super::context::Device;
use super::error::CudaError;
use super::gemm::{Job, Product};
use super::kernel_set::MAX_ROWS;
use super::launch::{Int, Kernel};
use super::loader::KernelFiles;
use super::memory::{Buffer, DevicePtr};
use super::weights::{DeviceLayer, Matrix};
use crate::model::ModelSpec;
use crate::model::config::{Activation, ExpertSpec};
use crate::model::weights::{DType, Expert};

/// Outputs of a block of the products.
const OUTS: usize = 8;

pub struct ExpertKernels {
    pub choose: Kernel<ChooseExperts>,
    pub gated: Kernel<ExpertGated>,
    pub down: Kernel<ExpertDown>,
}

impl ExpertKernels {
    /// For experts of this type of weights.
    pub fn load(files: &KernelFiles, w: DType) -> Result<ExpertKernels, CudaError> {
        Ok(ExpertKernels {
            choose: files.get("experts", "choose_experts")?,
            gated: files.get("experts", &format!("expert_gated_{}", w.name()))?,
            down: files.get("experts", &format!("expert_down_{}", w.name()))?,
        })
    }
}

/// Buffers of a pass; N = [`MAX_ROWS`]. Empty without experts.
pub struct ExpertScratch {
    /// `[N, num_experts]`
    logits: Buffer<f32>,
    /// `[N, num_experts_per_tok]`, both
    ids: Buffer<i32>,
    shares: Buffer<f32>,
    /// act(gate) ⊙ up of every choice: `[N, num_experts_per_tok, moe_intermediate_size]`
    inner: Buffer<f32>,
}

impl ExpertScratch {
    pub fn new(device: &Device, spec: &ModelSpec) -> Result<ExpertScratch, CudaError> {
        let size = |size: fn(&ExpertSpec) -> usize| MAX_ROWS * spec.experts.as_ref().map_or(0, size);
        Ok(ExpertScratch {
            logits: device.scratch("experts' logits", size(|e| e.num_experts))?,
            ids: device.scratch("chosen experts", size(|e| e.num_experts_per_tok))?,
            shares: device.scratch("chosen experts", size(|e| e.num_experts_per_tok))?,
            inner: device.scratch("experts' gates", size(|e| e.num_experts_per_tok * e.moe_intermediate_size))?,
        })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.logits.bytes() + self.ids.bytes() + self.shares.bytes() + self.inner.bytes()
    }
}

/// The experts of a layer, for the kernels; none of a layer that has no choice.
pub fn views(device: &Device, layer: &DeviceLayer) -> Result<Buffer<ExpertView>, CudaError> {
    let view = |Expert { gate, up, down }: &Expert<Matrix>| ExpertView {
        gate: gate.ptr(),
        gate_scales: gate.scales(),
        up: up.ptr(),
        up_scales: up.scales(),
        down: down.ptr(),
        down_scales: down.scales(),
    };
    let experts = layer.experts.iter().filter(|_| layer.router.is_some());
    device.upload("experts", &experts.map(view).collect::<Vec<_>>())
}

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
        self.device.launch(&kernels.gated, [moe_inner.div_ceil(OUTS), n * top_k, 1], &parameters)?;
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
        self.device.launch(&kernels.down, [s.hidden_size.div_ceil(OUTS), n, 1], &parameters)
    }
}
