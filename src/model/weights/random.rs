//! Weights that are in no file: uniform random values, in ranges that keep activations finite.

use super::{DType, Source, TensorIndex, Weight, matrix::copy};
use crate::model::{ModelSpec, Result, Weights};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A random number generator (xorshift).
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

/// Rounds a tensor's values, given its name and the length of its rows; returns the type that holds them.
type Rounding = dyn Fn(&str, usize, &mut [f32]) -> DType;

/// A source of tensors of any name and shape.
pub(super) struct RandomTensors {
    rounding: Box<Rounding>,
    /// Added to norm weights by the model.
    norm_offset: f32,
}

impl RandomTensors {
    pub(super) fn weight(&self, name: &str, shape: &[usize]) -> Weight {
        let weight = Weight::of_shape(name, shape);
        let (center, half_width) = range(name, shape, self.norm_offset);
        let mut noise = Noise::new(name);
        let number = |_| center + half_width * noise.next();
        let mut numbers: Vec<f32> = (0..weight.rows * weight.in_features).map(number).collect();
        let dtype = (self.rounding)(name, weight.in_features, &mut numbers);
        let mut bytes = Vec::new();
        dtype.encode(&numbers, &mut bytes);
        let copy = Some(copy(std::iter::once(&bytes[..]), bytes.len()));
        Weight { dtype, copy, ..weight }
    }
}

/// Center and half width of a tensor's random values; `norm_offset` is what the model adds to norm weights. A product of normed
/// inputs has the standard deviation `gain`.
pub fn range(name: &str, shape: &[usize], norm_offset: f32) -> (f32, f32) {
    let part = name.trim_end_matches(".weight").rsplit('.').next().unwrap_or_default();
    // a uniform variable's standard deviation is its half width / √3
    let product = |gain: f32| (0.0, gain * (3.0 / shape.last().map_or(1.0, |width| *width as f32)).sqrt());
    match part {
        // logits with standard deviation 3: the most probable token is likely, as in a language model, but not certain
        "embed_tokens" | "lm_head" => product(3.0),
        // attention scores with standard deviation 3: heads of low and of high entropy
        "q_proj" | "k_proj" if shape.len() == 2 => product(1.7),
        "bias" | "conv1d" => (0.0, 0.5),
        "A_log" | "dt_bias" => (0.0, 1.0),
        _ if shape.len() > 1 => product(1.0),
        // the norm of a delta net's output, scales, and norms without an offset
        _ if name.contains("linear_attn") || part.contains("scal") => (1.0, 0.1),
        _ => (1.0 - norm_offset, 0.1),
    }
}

impl Weights {
    /// Random weights for a model, the same for the same names. `rounding` receives each tensor's name, the length of its rows and
    /// its values, and returns its type.
    ///
    /// # Errors
    /// Those of an inconsistent model.
    pub fn random(spec: &ModelSpec, rounding: impl Fn(&str, usize, &mut [f32]) -> DType + 'static) -> Result<Self> {
        let random = RandomTensors { rounding: Box::new(rounding), norm_offset: spec.family.norm_weight_offset };
        Self::read(&TensorIndex::new(Source::Random(random)), spec)
    }
}
