//! The states of a sequence's delta nets on the device. A state cannot be rewound: copies are kept, as on the CPU, every
//! [`STATE_INTERVAL`] tokens and where a fork is expected, and forks share them.

use super::context::Device;
use super::error::Result;
use super::memory::{Buffer, DevicePtr};
use crate::backend::STATE_INTERVAL;
use crate::model::ModelSpec;
use crate::model::config::DeltaNetSpec;
use std::collections::BTreeMap;
use std::rc::Rc;

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
    snapshots: Buffer<DevicePtr<f32>>,
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
    pub fn view(&self) -> (DevicePtr<f32>, DevicePtr<DevicePtr<f32>>) {
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
    pub fn keep(&mut self, tokens: usize) -> Result<DevicePtr<f32>> {
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
