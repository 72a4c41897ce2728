//! Gated delta nets: `delta_net.cu`.

use super::CudaBackend;
use super::abi::{DeltaMix, DeltaNet, DeltaRule, Norm, RopeTarget};
use super::error::Result;
use super::gemm::{Job, Product};
use super::kernel_set::{DELTA_COLUMNS, DELTA_HEADS, DeltaKernels};
use super::memory::{Buffer, DevicePtr};
use super::weights::Matrix;
use crate::backend::STATE_INTERVAL;
use crate::model::config::DeltaNetSpec;
use crate::model::weights::DeltaNetWeights;

/// A layer's sizes, weights and kernels.
type Net<'a> = (DeltaNetSpec, &'a DeltaNetWeights<Matrix, Buffer<f32>>, &'a DeltaKernels);

impl CudaBackend {
    /// The delta net of a layer, if it has one.
    fn delta_net(&self, layer: usize) -> Option<Net<'_>> {
        let w = self.weights.layers[layer].delta_net.as_ref()?;
        Some((self.spec.delta_net?, w, self.kernels.delta_net.as_ref()?))
    }

    /// Computes gate, rates, and queries, keys and values after their convolutions, from norm(x). False: the layer has attention.
    pub(super) fn project_delta_net(&self, layer: usize) -> Result<bool> {
        let Some((net, w, kernels)) = self.delta_net(layer) else { return Ok(false) };
        let (l, delta, n) = (&self.weights.layers[layer], &self.scratch.delta, self.pass.rows.len());
        let (x, norm) = (self.scratch.x.ptr(), self.input_norm(l.input_norm.as_ref()));
        let raw = delta.raw(&net);
        let job = |(w, y)| Job { w, bias: None, y };
        let gate = l.output_gate.as_ref().map(|gate| (gate, self.scratch.output_gate.ptr()));
        let products = [Some((&l.q, raw[0])), l.k.as_ref().zip(Some(raw[1])), l.v.as_ref().zip(Some(raw[2])), gate];
        let jobs: Vec<Job> = products.into_iter().flatten().map(job).collect();
        self.qkv(x, norm, &jobs, RopeTarget::default())?;
        // few outputs: f32 arithmetic in passes of any width
        for rate in [(&w.a, delta.a.ptr()), (&w.b, delta.b.ptr())] {
            self.gemv(x, norm, &[job(rate)], n, Product::Qkv(RopeTarget::default()))?;
        }
        let heads = 2 * net.num_key_heads + net.num_value_heads;
        let parameters = DeltaMix { net: self.delta_layer(layer, &net, w) };
        self.device.launch(&kernels.mix, [heads.div_ceil(DELTA_HEADS), n, 1], &parameters)?;
        Ok(true)
    }

    /// Runs the delta rule over the rows of every sequence, and the norm of each head's output. False: the layer has attention.
    pub(super) fn attend_delta_net(&self, layer: usize) -> Result<bool> {
        let Some((net, w, kernels)) = self.delta_net(layer) else { return Ok(false) };
        let (n, heads, dim, out) =
            (self.pass.rows.len(), net.num_value_heads, net.value_head_dim, self.scratch.attended());
        let keeps = if self.pass.captured { DevicePtr::NULL } else { self.scratch.delta.keeps.ptr() };
        let parameters =
            DeltaRule { net: self.delta_layer(layer, &net, w), keeps, interval: STATE_INTERVAL.into(), out };
        self.device.launch(&kernels.rule, [dim.div_ceil(DELTA_COLUMNS), heads, n], &parameters)?;
        let norm = Norm { weight: w.norm.ptr(), offset: 0.0, eps: self.spec.rms_norm_eps };
        self.rms_norm(out, norm, out, n * heads, dim)?;
        Ok(true)
    }

    fn delta_layer(&self, layer: usize, net: &DeltaNetSpec, w: &DeltaNetWeights<Matrix, Buffer<f32>>) -> DeltaNet {
        let (scratch, delta) = (&self.scratch, &self.scratch.delta);
        DeltaNet {
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            raw: delta.raw(net),
            conv: w.conv.each_ref().map(Buffer::ptr),
            a: delta.a.ptr(),
            b: delta.b.ptr(),
            a_log: w.a_log.ptr(),
            dt_bias: w.dt_bias.ptr(),
            mixed: delta.mixed(net),
            rates: delta.rates.ptr(),
            layer: self.spec.index_in_kind(layer) as i32,
            key_heads: net.num_key_heads as i32,
            value_heads: net.num_value_heads as i32,
            key_dim: net.key_head_dim as i32,
            value_dim: net.value_head_dim as i32,
            taps: net.conv_kernel_dim as i32,
            activation: self.activation().0,
            padding: 0,
        }
    }
}
