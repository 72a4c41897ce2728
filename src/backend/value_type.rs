//! Types of cached values.

use crate::model::weights::DType;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A type of cached values. Keys have a [`DType`]: in 8 bits with such scales, Qwen 2.5 loses its chains (`benches/RESULTS.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum ValueType {
    Float(DType),
    /// 8-bit integers, with one f32 scale per position and key/value head: max |x| / 127. The error is at most half of it.
    Q8,
}

impl ValueType {
    pub const F32: ValueType = ValueType::Float(DType::F32);
    pub const F16: ValueType = ValueType::Float(DType::F16);
    pub const BF16: ValueType = ValueType::Float(DType::Bf16);

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        self.float().map_or("q8", DType::name)
    }

    /// Bytes of one position of one head.
    pub fn bytes(self, head_dim: usize) -> usize {
        self.float().map_or(head_dim + size_of::<f32>(), |dtype| dtype.size() * head_dim)
    }

    /// Rounds the values of one position and head to what is read back from a cache.
    pub fn round(self, head: &mut [f32]) {
        match self {
            ValueType::Float(dtype) => head.iter_mut().for_each(|x| *x = dtype.round(*x)),
            ValueType::Q8 => {
                let (scale, inverse) = q8_scale(head);
                head.iter_mut().for_each(|x| *x = scale * (*x * inverse).round_ties_even());
            }
        }
    }

    /// `None` if elements have scales.
    pub fn float(self) -> Option<DType> {
        match self {
            ValueType::Float(dtype) => Some(dtype),
            ValueType::Q8 => None,
        }
    }
}

/// The scale of [`ValueType::Q8`] for the values of one position and head, and its inverse; both 0 if all values are.
pub fn q8_scale(head: &[f32]) -> (f32, f32) {
    let scale = head.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
    (scale, if scale > 0.0 { 1.0 / scale } else { 0.0 })
}

impl Default for ValueType {
    fn default() -> ValueType {
        ValueType::F32
    }
}

impl From<DType> for ValueType {
    fn from(dtype: DType) -> ValueType {
        ValueType::Float(dtype)
    }
}

impl From<ValueType> for &'static str {
    fn from(value_type: ValueType) -> &'static str {
        value_type.name()
    }
}

impl FromStr for ValueType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<ValueType, Self::Err> {
        match name {
            "q8" => Ok(ValueType::Q8),
            _ => name.parse().map(ValueType::Float).map_err(|_| "expected f32, f16, bf16 or q8"),
        }
    }
}

impl TryFrom<String> for ValueType {
    type Error = &'static str;

    fn try_from(name: String) -> Result<ValueType, Self::Error> {
        name.parse()
    }
}
