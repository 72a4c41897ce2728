//! Rotary positions: the scalings of `rope_parameters` and the resulting frequencies.

use serde::Serialize;
use std::f64::consts::PI;

/// Scaling of rotary frequencies beyond the trained context: `rope_type`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    None,
    /// Every frequency divided by the factor.
    Linear {
        factor: f32,
    },
    /// Llama 3.1: long wavelengths divided by the factor, short ones kept, a ramp between.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_max_position_embeddings: f32,
    },
    /// YaRN (arXiv 2309.00071): a ramp over the pairs, from those that rotate `beta_fast` times in the trained context (kept) to
    /// those that rotate `beta_slow` times (divided by the factor); `truncate`: it begins and ends at whole pairs.
    Yarn {
        factor: f32,
        beta_fast: f32,
        beta_slow: f32,
        original_max_position_embeddings: f32,
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753): one divisor per pair, from the second list in texts longer than the trained context.
    LongRope {
        short_factor: Vec<f32>,
        long_factor: Vec<f32>,
        original_max_position_embeddings: usize,
    },
    /// The first `pairs` rotate as in fully rotated heads, divided by the factor; the rest do not rotate.
    Proportional {
        pairs: usize,
        factor: f32,
    },
}

/// One rotary table; layers refer to it by index.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeSpec {
    /// `rope_theta`
    pub theta: f32,
    pub scaling: RopeScaling,
    /// Factor on cosines and sines (`attention_factor`).
    pub attention_factor: f32,
    /// Components of a head that rotate, head_dim · `partial_rotary_factor`; 0 in a layer without positions.
    pub rotary_dim: usize,
}

/// The rotation of one table: at position p, pair i of a head rotates by p · frequency_i.
pub struct Rotation {
    /// `[head_dim / 2]`; 0: the pair does not rotate.
    pub frequencies: Vec<f32>,
    attention_factor: f64,
}

impl Rotation {
    /// (cosine, sine) of every pair. Rounded as Hugging Face does: the angle is an f32 product.
    pub fn at(&self, position: usize) -> impl Iterator<Item = (f64, f64)> {
        self.frequencies.iter().map(move |frequency| {
            let factor = if *frequency == 0.0 { 1.0 } else { self.attention_factor };
            let (sin, cos) = libm::sincos((position as f32 * frequency).into());
            (cos * factor, sin * factor)
        })
    }
}

impl RopeSpec {
    /// Without scaling.
    pub fn plain(theta: f32, rotary_dim: usize) -> RopeSpec {
        RopeSpec { theta, scaling: RopeScaling::None, attention_factor: 1.0, rotary_dim }
    }

    /// Frequencies as Hugging Face rounds them: they are f32 there. `long`: in [long](super::ModelSpec::is_long) sequences.
    pub fn rotation(&self, head_dim: usize, long: bool) -> Rotation {
        let mut frequencies: Vec<f32> = (0..self.rotary_dim / 2).map(|pair| self.frequency(pair, long)).collect();
        frequencies.resize(head_dim / 2, 0.0);
        Rotation { frequencies, attention_factor: self.attention_factor.into() }
    }

    fn frequency(&self, pair: usize, long: bool) -> f32 {
        let exponent = (2 * pair) as f32 / self.rotary_dim as f32;
        let period = libm::pow(self.theta.into(), exponent.into()) as f32;
        let frequency = 1.0 / period;
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: old,
            } => {
                let wavelength = 2.0 * std::f32::consts::PI / frequency;
                if wavelength < old / high_freq_factor {
                    frequency
                } else if wavelength > old / low_freq_factor {
                    frequency / factor
                } else {
                    let smooth = (old / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_position_embeddings: old, truncate } => {
                let dim = self.rotary_dim as f64;
                let pair_of = |turns: f32| {
                    dim * libm::log(f64::from(old) / (f64::from(turns) * 2.0 * PI))
                        / (2.0 * libm::log(self.theta.into()))
                };
                let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
                let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dim - 1.0));
                let high = if low == high { high + 0.001 } else { high };
                // 1 where a pair keeps its frequency, 0 where it is divided by the factor
                let kept = 1.0 - ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                1.0 / (factor * period) * (1.0 - kept) + frequency * kept
            }
            RopeScaling::LongRope { ref short_factor, ref long_factor, .. } => {
                1.0 / (if long { long_factor } else { short_factor }[pair] * period)
            }
            RopeScaling::Proportional { pairs, factor } if pair < pairs => frequency / factor,
            RopeScaling::Proportional { .. } => 0.0,
        }
    }
}

/// Order of a head's components in which those that rotate together are head_dim / 2 apart, as if all rotated: entry i is the index
/// of component i in the published order, in which the first `rotary_dim` rotate, in pairs `rotary_dim` / 2 apart.
pub fn head_order(head_dim: usize, rotary_dim: usize) -> Vec<usize> {
    let (turning, still) = (rotary_dim / 2, (head_dim - rotary_dim) / 2);
    let half = |h: usize| (h * turning..(h + 1) * turning).chain(rotary_dim + h * still..rotary_dim + (h + 1) * still);
    half(0).chain(half(1)).collect()
}
