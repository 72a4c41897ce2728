//! The states of a sequence's delta nets. A state cannot be rewound, so copies are kept to resume a sequence from an earlier
//! position. A copy costs only memory: a state is copied on its next write.

use super::cache::value_stride;
use crate::backend::STATE_INTERVAL;
use crate::model::config::DeltaNetSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of one layer.
#[derive(Clone, Default)]
pub struct LayerState {
    /// The last inputs to the convolutions of queries, keys and values, oldest first: `[conv_kernel_dim - 1, components]`
    pub inputs: [Vec<f32>; 3],
    /// `[num_value_heads, value_stride / LANES, key_head_dim, LANES]`
    pub memory: Vec<f32>,
}

impl LayerState {
    fn new(net: &DeltaNetSpec) -> LayerState {
        LayerState {
            inputs: net.widths().map(|width| vec![0.0; (net.conv_kernel_dim - 1) * width]),
            memory: vec![0.0; net.num_value_heads * net.key_head_dim * value_stride(net.value_head_dim)],
        }
    }
}

/// The states of all delta nets of one sequence.
#[derive(Clone)]
pub struct States {
    /// By the layer's index among delta nets.
    layers: Vec<Arc<LayerState>>,
    /// Tokens processed; `None` from the start of a pass until its last delta net.
    len: Option<usize>,
    /// Copies by token count; those of a failed pass have fewer layers.
    kept: BTreeMap<usize, Vec<Arc<LayerState>>>,
    /// Token counts at which copies are kept, in addition to every [`STATE_INTERVAL`].
    expected: Vec<usize>,
}

impl States {
    pub fn new(net: &DeltaNetSpec, layers: usize) -> States {
        let layers: Vec<_> = std::iter::repeat_n(Arc::new(LayerState::new(net)), layers).collect();
        States { kept: BTreeMap::from([(0, layers.clone())]), layers, len: Some(0), expected: Vec::new() }
    }

    /// Bytes of the states after one token.
    pub fn bytes_of_one(net: &DeltaNetSpec, layers: usize) -> usize {
        let LayerState { inputs, memory } = LayerState::new(net);
        4 * layers * (memory.len() + inputs.iter().map(Vec::len).sum::<usize>())
    }

    /// States held: those after the last token, and the copies.
    pub fn count(&self) -> usize {
        self.kept.len() // those before the first token share one layer's state
    }

    /// The largest token count up to `positions` for which the states are held.
    pub fn resumes_at(&self, positions: usize) -> usize {
        let whole = |(_, states): &(&usize, &Vec<_>)| states.len() == self.layers.len();
        let kept = self.kept.range(..=positions).rev().find(whole).map_or(0, |(tokens, _)| *tokens);
        self.len.filter(|len| *len <= positions).map_or(kept, |len| len.max(kept))
    }

    /// Returns to the states after `positions` tokens and drops later ones; false if they are not held.
    pub fn resume(&mut self, positions: usize) -> bool {
        if self.resumes_at(positions) != positions {
            return false;
        }
        if self.len != Some(positions) {
            self.layers.clone_from(&self.kept[&positions]);
        }
        self.kept.split_off(&(positions + 1));
        self.len = Some(positions);
        true
    }

    pub fn expect_fork(&mut self, positions: usize) {
        self.expected.push(positions);
    }

    /// Whether a copy is kept after `tokens` tokens.
    pub fn keeps(&self, tokens: usize) -> bool {
        tokens.is_multiple_of(STATE_INTERVAL) || self.expected.contains(&tokens)
    }

    /// The state of the layer at this index.
    pub fn layer(&self, index: usize) -> &LayerState {
        &self.layers[index]
    }

    /// Takes a state out for writing; the rest are then ahead of it or behind.
    pub fn take(&mut self, index: usize) -> Arc<LayerState> {
        self.len = None;
        std::mem::take(&mut self.layers[index])
    }

    /// Puts the state back, as it is after `tokens` tokens.
    pub fn put(&mut self, index: usize, state: Arc<LayerState>, tokens: usize, keep: bool) {
        if keep {
            self.kept.entry(tokens).or_default().push(state.clone());
        }
        self.layers[index] = state;
        self.len = Some(tokens).filter(|_| index + 1 == self.layers.len());
    }
}
