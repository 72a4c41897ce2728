//! The gated delta net, reference version: it replaces attention in most layers of Qwen 3.5. A value head's memory is a matrix S
//! `[d_k, d_v]` that maps keys to values. Row T decays it, corrects its value for the row's key, and reads it with the row's
//! query:
//!
//! ```text
//! S ← α S      S ← S + k (β (v − Sᵀ k))ᵀ      out = Sᵀ q / √d_k      α = e^(−e^A_log · softplus(a + dt_bias))      β = sigmoid(b)
//! ```
//!
//! where q, k and v come from causal convolutions over the last rows, one per component, and q and k have length 1. Sums are f64,
//! S included.

use super::{Model, activate};
use crate::{model::config::Activation, model::weights::DeltaNetWeights};
use std::collections::HashMap;

/// By (layer, position), like the KV cache: all states can be recomputed from them.
pub(super) type Inputs = HashMap<(usize, usize), Input>;

/// A row's inputs to a delta net.
#[derive(Clone)]
pub(super) struct Input {
    /// To the three convolutions: `[3][components]`
    pub(super) qkv: [Vec<f32>; 3],
    /// α and β per value head.
    rates: Vec<(f64, f64)>,
}

/// The memory of one layer after `len` tokens: `[num_value_heads, d_k, d_v]`
#[derive(Clone, Default)]
pub(super) struct State {
    len: usize,
    memory: Vec<f64>,
}

impl Model {
    /// From a row's normed input `[hidden_size]`; `None` if the layer has attention.
    pub(super) fn delta_input(&self, layer: usize, h: &[f32]) -> Option<Input> {
        let w = &self.weights.layers[layer];
        let net = w.delta_net.as_ref()?;
        let (a, b) = (self.linear(&net.a, None, h), self.linear(&net.b, None, h));
        Some(Input {
            rates: (0..a.len()).map(|head| rates(net, head, a[head], b[head])).collect(),
            qkv: [Some(&w.q), w.k.as_ref(), w.v.as_ref()].map(|w| w.map_or_else(Vec::new, |w| self.linear(w, None, h))),
        })
    }

    /// The output of a row, `[num_value_heads, d_v]`. A state that does not end at the previous row is recomputed from the first.
    pub(super) fn recall(&self, layer: usize, inputs: &Inputs, row: usize, state: &mut State) -> Vec<f32> {
        if state.len != row {
            *state = State::default();
        }
        let answers = (state.len..=row).map(|row| self.delta_rule(layer, inputs, row, &mut state.memory)).last();
        state.len = row + 1;
        answers.unwrap_or_default()
    }

    fn delta_rule(&self, layer: usize, inputs: &Inputs, row: usize, memory: &mut Vec<f64>) -> Vec<f32> {
        let Some(net) = self.spec.delta_net else { return Vec::new() };
        let (d_k, d_v, heads) = (net.key_head_dim, net.value_head_dim, net.num_value_heads);
        let [q, k, v] = [0, 1, 2].map(|part| self.convolve(layer, inputs, row, part));
        let mut answers = Vec::with_capacity(v.len());
        memory.resize(heads * d_k * d_v, 0.0);
        for (h, s) in memory.chunks_exact_mut(d_k * d_v).enumerate() {
            let shared = h / (heads / net.num_key_heads) * d_k;
            let [q, k] = [&q, &k].map(|x| unit(&x[shared..shared + d_k]));
            let (alpha, beta) = inputs[&(layer, row)].rates[h];
            s.iter_mut().for_each(|s| *s *= alpha);
            for j in 0..d_v {
                let recalled: f64 = (0..d_k).map(|i| s[i * d_v + j] * k[i]).sum();
                let correction = beta * (f64::from(v[h * d_v + j]) - recalled);
                (0..d_k).for_each(|i| s[i * d_v + j] += k[i] * correction);
                let answer: f64 = (0..d_k).map(|i| s[i * d_v + j] * q[i]).sum();
                answers.push((answer / (d_k as f64).sqrt()) as f32);
            }
        }
        answers
    }

    /// act(Σ_t w_t x_{T−t}), for each component separately; before the first row x is 0.
    fn convolve(&self, layer: usize, inputs: &Inputs, row: usize, part: usize) -> Vec<f32> {
        let (Some(net), Some(w)) = (&self.spec.delta_net, &self.weights.layers[layer].delta_net) else {
            return Vec::new();
        };
        let width = net.widths()[part];
        let term = |tap: usize, i: usize| {
            let position = (row + 1 + tap).checked_sub(net.conv_kernel_dim)?;
            Some(f64::from(w.conv[part][tap * width + i]) * f64::from(inputs[&(layer, position)].qkv[part][i]))
        };
        let sum = |i: usize| (0..net.conv_kernel_dim).filter_map(|tap| term(tap, i)).sum();
        (0..width).map(|i| activate(self.spec.activation, sum(i)) as f32).collect()
    }

    /// A layer's gated head outputs: out · sigmoid(gate), in a delta net norm(out) · silu(gate), head by head.
    pub(super) fn gated(&self, layer: usize, out: &[f32], gate: &[f32]) -> Vec<f32> {
        let gate = gate.iter().map(|x| f64::from(*x));
        let Some(net) = &self.weights.layers[layer].delta_net else {
            return out.iter().zip(gate).map(|(x, gate)| (f64::from(*x) * sigmoid(gate)) as f32).collect();
        };
        let normed = out.chunks_exact(net.norm.len()).flat_map(|head| self.norm(head, &net.norm, 0.0));
        normed.zip(gate).map(|(x, gate)| (f64::from(x) * activate(Activation::Silu, gate)) as f32).collect()
    }
}

impl super::ReferenceBackend {
    /// The values of a row of the pass in flight, after their convolution.
    pub(crate) fn delta_values(&self, layer: usize, row: usize) -> Vec<f32> {
        let super::Row { sequence, position, .. } = self.pass[row].row;
        self.model.convolve(layer, &self.sequences[sequence.0].inputs, position, 2)
    }
}

/// α and β of a value head in a row, from the row's a and b.
pub(crate) fn rates(net: &DeltaNetWeights, head: usize, a: f32, b: f32) -> (f64, f64) {
    let time = f64::from(a) + f64::from(net.dt_bias[head]);
    let softplus = if time > 20.0 { time } else { time.exp().ln_1p() };
    ((-f64::from(net.a_log[head]).exp() * softplus).exp(), sigmoid(b.into()))
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x / |x|; the published ε keeps it finite.
fn unit(x: &[f32]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    x.iter().map(|x| f64::from(*x) / (squares + 1e-6).sqrt()).collect()
}
