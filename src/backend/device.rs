//! Options for the device and for weights in memory.

use crate::{model::weights::DType, names::named};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// `auto`, `cpu`, `cuda`, `cuda:N` or `reference`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// CUDA if there is a device that can run the model, else the CPU.
    Auto,
    #[default]
    Cpu,
    /// A CUDA device, by the driver's ordinal.
    Cuda(usize),
    /// The scalar forward pass of [`super::reference`]: slow, for checking. `Auto` never selects it.
    Reference,
}

impl FromStr for DeviceChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<DeviceChoice, Self::Err> {
        let choice = match text {
            "auto" => Some(DeviceChoice::Auto),
            "cpu" => Some(DeviceChoice::Cpu),
            "cuda" => Some(DeviceChoice::Cuda(0)),
            "reference" => Some(DeviceChoice::Reference),
            _ => text.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map(DeviceChoice::Cuda),
        };
        choice.ok_or("expected auto, cpu, cuda, cuda:N or reference")
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceChoice::Reference => f.write_str("reference"),
        }
    }
}

named! {
    /// Storage format of the weights of matrix products.
    #[derive(Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum WeightFormat {
        /// In their stored dtype.
        #[default]
        File = "file",
        /// 8 bits with one scale per sixteen weights: faster to read, but not quite the same model.
        Q8 = "q8",
    }

    /// A type of cached values. Keys have a [`DType`]: in 8 bits with such scales, Qwen 2.5 loses its chains (`benches/RESULTS.md`).
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ValueType {
        #[default]
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
        /// 8-bit integers, with one f32 scale per position and key/value head: max |x| / 127. The error is at most half of it.
        Q8 = "q8",
    }
}

impl WeightFormat {
    pub fn is_file(&self) -> bool {
        *self == WeightFormat::File
    }
}

impl ValueType {
    /// Bytes of one position of one head.
    pub fn bytes(self, head_dim: usize) -> usize {
        self.float().map_or(head_dim + size_of::<f32>(), |dtype| dtype.size() * head_dim)
    }

    /// Rounds the values of one position and head to what is read back from a cache.
    pub fn round(self, head: &mut [f32]) {
        match self.float() {
            Some(dtype) => head.iter_mut().for_each(|x| *x = dtype.round(*x)),
            None => {
                let (scale, inverse) = q8_scale(head);
                head.iter_mut().for_each(|x| *x = scale * (*x * inverse).round_ties_even());
            }
        }
    }

    /// `None` if elements have scales.
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

/// The scale of [`ValueType::Q8`] for the values of one position and head, and its inverse; both 0 if all values are.
pub fn q8_scale(head: &[f32]) -> (f32, f32) {
    let scale = head.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
    (scale, if scale > 0.0 { 1.0 / scale } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_can_be_written_and_nothing_else() {
        use DeviceChoice::{Auto, Cpu, Cuda, Reference};
        for choice in [Auto, Cpu, Cuda(0), Cuda(12), Reference] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        for text in ["", "CPU", "cuda:", "cuda:x", "cuda:-1", "gpu"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text:?}");
        }
        for format in [WeightFormat::File, WeightFormat::Q8] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("Q8".parse::<WeightFormat>().is_err());
    }
}
