//! Gated delta nets: `delta_net.cu`.

use super::abi::{DeltaMix, DeltaNet, DeltaRule, Norm, RopeTarget};
use super::memory::{Buffer, DevicePtr, Floats};
use super::{CudaBackend, context::Device, error::Result, weights::Matrix};
use super::{gemm::Job, gemm::Product, kernel_set::DELTA_COLUMNS, kernel_set::DELTA_HEADS, kernel_set::DeltaKernels};
use crate::{backend::STATE_INTERVAL, model::ModelSpec, model::config::DeltaNetSpec, model::weights::DeltaNetWeights};
use std::{collections::BTreeMap, rc::Rc};

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

// The states of a sequence's delta nets on the device. A state cannot be rewound: copies are kept, as on the CPU, every
// [`STATE_INTERVAL`] tokens and where a fork is expected, and forks share them.

/// Elements that a key occupies in a state: its components, padded with zeros.
pub fn key_stride(net: &DeltaNetSpec) -> usize {
    net.key_head_dim.next_multiple_of(16)
}

/// Elements of all delta nets' states after one token, in the layout of `kernels/delta_net.cu`.
pub fn numbers(spec: &ModelSpec) -> usize {
    let layers = spec.layers.len() - spec.attention_layers().count();
    spec.delta_net.map_or(0, |net| {
        let inputs = (net.conv_kernel_dim - 1) * net.widths().iter().sum::<usize>();
        layers * (inputs.next_multiple_of(4) + net.widths()[2] * key_stride(&net))
    })
}

/// The states of all delta nets of one sequence.
pub struct States {
    device: Device,
    numbers: usize,
    /// After the last token that has entered.
    current: Buffer<f32>,
    /// Tokens that `current` has seen; `None` from the beginning of a pass until its end.
    len: Option<usize>,
    /// Copies by the number of tokens.
    kept: BTreeMap<usize, Rc<Buffer<f32>>>,
    /// Copies that the pass in flight or upcoming decode steps will write.
    coming: BTreeMap<usize, Rc<Buffer<f32>>>,
    /// Decode steps find `coming` here, by tokens / [`STATE_INTERVAL`].
    snapshots: Buffer<Floats>,
}

impl States {
    /// States of a sequence of at most `max` positions, before its first token.
    pub fn new(device: &Device, spec: &ModelSpec, max: usize) -> Result<States> {
        let numbers = numbers(spec);
        Ok(States {
            device: device.clone(),
            numbers,
            current: device.allocate("the states of delta nets", numbers)?,
            len: None,
            kept: BTreeMap::new(),
            coming: BTreeMap::new(),
            snapshots: device.upload("the places of states", &vec![DevicePtr::NULL; max / STATE_INTERVAL + 1])?,
        })
    }

    /// Addresses for kernels: the states, and the destinations of copies.
    pub fn view(&self) -> (Floats, DevicePtr<Floats>) {
        (self.current.ptr(), self.snapshots.ptr())
    }

    /// The largest number of tokens up to `positions` after which the states are held.
    pub fn resumes_at(&self, positions: usize) -> usize {
        let kept = self.kept.range(..=positions).next_back().map_or(0, |(tokens, _)| *tokens);
        self.len.filter(|len| *len <= positions).map_or(kept, |len| len.max(kept))
    }

    /// Rewinds to the states after `positions` tokens, which must be held, and drops later ones.
    pub fn resume(&mut self, positions: usize) -> Result<()> {
        if self.len != Some(positions) {
            match self.kept.get(&positions) {
                Some(kept) => self.device.copy((&self.current, 0), (kept, 0), self.numbers)?,
                None => self.device.fill(&self.current, 0)?,
            }
        }
        self.kept.split_off(&(positions + 1));
        self.coming.clear();
        self.len = None;
        Ok(())
    }

    /// Continues from another sequence's states after `positions` tokens, which must be held.
    pub fn copy(&mut self, from: &States, positions: usize) -> Result<()> {
        self.kept = from.kept.range(..=positions).map(|(tokens, kept)| (*tokens, kept.clone())).collect();
        if from.len == Some(positions) {
            self.device.copy((&self.current, 0), (&from.current, 0), self.numbers)?;
            self.len = Some(positions);
        }
        Ok(())
    }

    /// Where the pass in flight copies the states after `tokens` tokens.
    pub fn keep(&mut self, tokens: usize) -> Result<Floats> {
        if !self.coming.contains_key(&tokens) {
            let copy = self.device.allocate("a copy of the states of delta nets", self.numbers)?;
            self.coming.insert(tokens, Rc::new(copy));
        }
        Ok(self.coming[&tokens].ptr())
    }

    /// Makes room for the copies that decode steps write from `first` to `tokens` tokens.
    pub fn prepare(&mut self, first: usize, tokens: usize) -> Result<()> {
        for number in first.div_ceil(STATE_INTERVAL)..=tokens / STATE_INTERVAL {
            if !self.coming.contains_key(&(number * STATE_INTERVAL)) {
                let place = self.keep(number * STATE_INTERVAL)?;
                self.device.write(&self.snapshots, number, &[place])?;
            }
        }
        Ok(())
    }

    /// Records that the sequence's `tokens`-th row has entered.
    pub fn enter(&mut self, tokens: usize) {
        self.kept.extend(self.coming.remove_entry(&tokens));
        self.len = Some(tokens);
    }

    /// Size in bytes, including copies shared with forks.
    pub fn bytes(&self) -> usize {
        self.current.bytes() + self.snapshots.bytes() + self.kept.values().map(|kept| kept.bytes()).sum::<usize>()
    }
}
