//! Types of cached keys and values.

use crate::model::weights::DType;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A type of cached keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    F32,
    F16,
    Bf16,
    /// 8-bit integers, with an f32 scale for every position and key/value head: max |x| / 127. An element is off by at most half
    /// of it.
    Q8,
}

impl CacheType {
    const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Q8];

    /// As on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Bf16 => "bf16",
            CacheType::Q8 => "q8",
        }
    }

    /// Bytes of one position of one head.
    pub fn bytes(self, head_dim: usize) -> usize {
        match self {
            CacheType::F32 => 4 * head_dim,
            CacheType::F16 | CacheType::Bf16 => 2 * head_dim,
            CacheType::Q8 => head_dim + size_of::<f32>(),
        }
    }

    /// The numbers of one position and head as they are read back from a cache.
    pub fn round(self, head: &mut [f32]) {
        match self {
            CacheType::F32 => {}
            CacheType::F16 => head.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            CacheType::Bf16 => head.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            CacheType::Q8 => {
                let (scale, inverse) = q8_scale(head);
                head.iter_mut().for_each(|x| *x = scale * (*x * inverse).round_ties_even());
            }
        }
    }

    /// The type of the same name; `None` where elements have scales.
    pub fn float(self) -> Option<DType> {
        match self {
            CacheType::F32 => Some(DType::F32),
            CacheType::F16 => Some(DType::F16),
            CacheType::Bf16 => Some(DType::Bf16),
            CacheType::Q8 => None,
        }
    }
}

impl From<DType> for CacheType {
    fn from(dtype: DType) -> CacheType {
        match dtype {
            DType::F32 => CacheType::F32,
            DType::F16 => CacheType::F16,
            DType::Bf16 => CacheType::Bf16,
        }
    }
}

/// The scale of [`CacheType::Q8`] for the numbers of one position and head, and its inverse; zeros have neither.
pub fn q8_scale(head: &[f32]) -> (f32, f32) {
    let scale = head.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
    (scale, if scale > 0.0 { 1.0 / scale } else { 0.0 })
}

impl FromStr for CacheType {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<CacheType, Self::Err> {
        CacheType::ALL.into_iter().find(|t| t.name() == name).ok_or("expected f32, f16, bf16 or q8")
    }
}
