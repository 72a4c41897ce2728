//! The weights of a gated delta net.

use super::{LayerWeights, TensorIndex, Weight};
use crate::model::Result;
use crate::model::config::DeltaNetSpec;

/// Weights of a gated delta net besides queries, keys, values, gate and output.
#[derive(Clone, Debug)]
pub struct DeltaNetWeights<M = Weight, V = Vec<f32>> {
    /// `[num_value_heads, hidden_size]`, both: how much of the state is kept, and how much of it is replaced.
    pub a: M,
    pub b: M,
    /// `[num_value_heads]`, both
    pub a_log: V,
    pub dt_bias: V,
    /// For queries, keys and values, `[conv_kernel_dim, components]`: the last row is the token's own.
    pub conv: [V; 3],
    /// `[value_head_dim]`: the norm of each head's output; it has no offset.
    pub norm: V,
}

/// The part of [`LayerWeights`] that replaces attention: q, k, v, o, the gate, and the rest of a delta net.
pub(super) type Mixer = (Weight, Option<Weight>, Option<Weight>, Weight, Option<Weight>, Option<DeltaNetWeights>);

/// From the layer whose tensor names start with `name`.
pub(super) fn read(index: &TensorIndex, name: &str, net: &DeltaNetSpec, hidden: usize) -> Result<Mixer> {
    let matrix = |part: &str, rows, width| index.matrix(&format!("{name}.{part}.weight"), rows, width);
    let vector = |part: &str, len| index.vector(&format!("{name}.{part}"), &[len]);
    let ([q, k, v], heads, kernel) = (net.widths(), net.num_value_heads, net.conv_kernel_dim);
    let qkv = matrix("in_proj_qkv", q + k + v, hidden)?;
    let conv = index.vector(&format!("{name}.conv1d.weight"), &[q + k + v, 1, kernel])?;
    let mut first = 0;
    let parts = [("q", q), ("k", k), ("v", v)].map(|(part, width)| {
        let rows = first..first + width;
        first += width;
        let taps = (0..kernel).flat_map(|tap| rows.clone().map(move |row| row * kernel + tap));
        (taps.map(|i| conv[i]).collect(), qkv.part(format!("{name}.in_proj_{part}.weight"), rows))
    });
    let [(conv_q, q), (conv_k, k), (conv_v, values)] = parts;
    let o = matrix("out_proj", hidden, v)?;
    let delta_net = DeltaNetWeights {
        a: matrix("in_proj_a", heads, hidden)?,
        b: matrix("in_proj_b", heads, hidden)?,
        a_log: vector("A_log", heads)?,
        dt_bias: vector("dt_bias", heads)?,
        conv: [conv_q, conv_k, conv_v],
        norm: vector("norm.weight", net.value_head_dim)?,
    };
    Ok((q, Some(k), Some(values), o, Some(matrix("in_proj_z", v, hidden)?), Some(delta_net)))
}

impl LayerWeights {
    /// The matrices kept in their file's type: a router, a shared expert's gate, and those of a delta net's rates.
    pub fn small(&self) -> impl Iterator<Item = &Weight> {
        let gate = self.shared_expert.iter().map(|(_, gate)| gate);
        self.router.iter().chain(gate).chain(self.delta_net.iter().flat_map(|net| [&net.a, &net.b]))
    }
}
