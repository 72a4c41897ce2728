//! Weights that no file holds: uniform random numbers, in ranges that keep activations finite.

use super::{Bytes, DType, TensorIndex, Weight};
use crate::model::{ModelError, ModelSpec, Weights};
use half::{bf16, f16};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// A generator of numbers (xorshift).
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: impl Hash) -> Noise {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        Noise(hasher.finish() | 1) // 0 would stay 0
    }

    /// Between -1 and 1.
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Between -half_width and half_width.
    pub fn floats(&mut self, count: usize, half_width: f32) -> Vec<f32> {
        (0..count).map(|_| half_width * self.next()).collect()
    }
}

impl DType {
    /// Numbers as this type stores them.
    pub fn encode(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            DType::F32 => bytemuck::cast_slice(numbers).to_vec(),
            DType::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_ne_bytes()).collect(),
            DType::Bf16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_ne_bytes()).collect(),
        }
    }
}

/// A tensor's type, by its name, and the one that its numbers are rounded to before.
type Types = dyn Fn(&str) -> [DType; 2];

/// A source of tensors of any name and shape.
pub(super) struct RandomTensors {
    types: Box<Types>,
    /// Added to norm weights by the model.
    norm_offset: f32,
}

impl RandomTensors {
    pub(super) fn weight(&self, name: &str, rows: usize, in_features: usize) -> Weight {
        let ([dtype, rounded], (center, half_width)) = ((self.types)(name), self.range(name, in_features));
        let mut noise = Noise::new(name);
        let number = |_| rounded.round(center + half_width * noise.next());
        let numbers: Vec<f32> = (0..rows * in_features).map(number).collect();
        let bytes = dtype.encode(&numbers);
        let bytes = Bytes::copy(std::iter::once(&bytes[..]), bytes.len());
        Weight { name: name.to_owned(), rows, in_features, dtype, bytes }
    }

    /// Centre and half width.
    fn range(&self, name: &str, in_features: usize) -> (f32, f32) {
        let ends = |suffix: &str| name.ends_with(suffix);
        match name {
            _ if ends("linear_attn.norm.weight") => (1.0, 0.1),
            _ if ends("norm.weight") => (1.0 - self.norm_offset, 0.1),
            _ if ends(".bias") || ends("conv1d.weight") => (0.0, 0.5),
            _ if ends("A_log") || ends("dt_bias") => (0.0, 1.0),
            // after a norm a product has the deviation `gain`: 3 in logits, as in a language model, and in scores of attention
            _ => {
                let gains = [("embed_tokens", 3.0), ("lm_head", 3.0), ("q_proj", 1.7), ("k_proj", 1.7)];
                let gain = gains.iter().find(|(part, _)| name.contains(part)).map_or(1.0, |(_, gain)| *gain);
                (0.0, gain * (3.0 / in_features as f32).sqrt())
            }
        }
    }
}

impl Weights {
    /// Random weights for a model, the same for the same names. `types` has each tensor's type, and the one that its numbers are
    /// rounded to before.
    ///
    /// # Errors
    /// Those of a model that contradicts itself.
    pub fn random(spec: &ModelSpec, types: impl Fn(&str) -> [DType; 2] + 'static) -> Result<Self, ModelError> {
        let random = RandomTensors { types: Box::new(types), norm_offset: spec.norm_weight_offset };
        let (path, tensors) = (PathBuf::new(), HashMap::new());
        Self::read(&TensorIndex { path, prefix: "model.", tensors, random: Some(random) }, spec)
    }
}
