//! Types of cached values.

use crate::model::weights::DType;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A type of cached values. Keys have a [`DType`]: in 8 bits with such scales, Qwen 2.5 loses its chains (`benches/RESULTS.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    F32,
    F16,
    Bf16,
    /// 8-bit integers, with an f32 scale for every position and key/value head: max |x| / 127. An element is off by at most half
    /// of it.
    Q8,
}

impl ValueType {
    const ALL: [ValueType; 4] = [ValueType::F32, ValueType::F16, ValueType::Bf16, ValueType::Q8];

    /// As on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::F32 => "f32",
            ValueType::F16 => "f16",
            ValueType::Bf16 => "bf16",
            ValueType::Q8 => "q8",
        }
    }

    /// Bytes of one position of one head.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            ValueType::F32 => 4 * head_dim,
            ValueType::F16 | ValueType::Bf16 => 2 * head_dim,
            ValueType::Q8 => head_dim + size_of::<f32>(),
        }
    }

    /// The numbers of one position and head as they are read back from a cache.
    pub fn round(self, head: &mut [f32]) {
        match self {
            ValueType::F32 => {}
            ValueType::F16 => head.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            ValueType::Bf16 => head.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            ValueType::Q8 => {
                let (scale, inverse) = q8_scale(head);
                head.iter_mut().for_each(|x| *x = scale * (*x * inverse).round_ties_even());
            }
        }
    }

    /// The type of the same name; `None` where elements have scales.
    pub fn float(self) -> Option<DType> {
        match self {
            ValueType::F32 => Some(DType::F32),
            ValueType::F16 => Some(DType::F16),
            ValueType::Bf16 => Some(DType::Bf16),
            ValueType::Q8 => None,
        }
    }
}

impl From<DType> for ValueType {
    fn from(dtype: DType) -> ValueType {
        match dtype {
            DType::F32 => ValueType::F32,
            DType::F16 => ValueType::F16,
            DType::Bf16 => ValueType::Bf16,
        }
    }
}

/// The scale of [`ValueType::Q8`] for the numbers of one position and head, and its inverse; zeros have neither.
pub fn q8_scale(head: &[f32]) -> (f32, f32) {
    let scale = head.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
    (scale, if scale > 0.0 { 1.0 / scale } else { 0.0 })
}

impl FromStr for ValueType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<ValueType, Self::Err> {
        ValueType::ALL.into_iter().find(|t| t.name() == name).ok_or("expected f32, f16, bf16 or q8")
    }
}
