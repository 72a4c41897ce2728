//! Options for the device and for weights in memory.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

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
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            "reference" => Ok(DeviceChoice::Reference),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
                ordinal
                    .map(DeviceChoice::Cuda)
                    .ok_or_else(|| "expected auto, cpu, cuda, cuda:N or reference".to_owned())
            }
        }
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

/// Storage format of the weights of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightFormat {
    /// In their stored dtype.
    #[default]
    File,
    /// 8 bits with one scale per sixteen weights: faster to read, but not quite the same model.
    Q8,
}

impl WeightFormat {
    pub fn is_file(&self) -> bool {
        *self == WeightFormat::File
    }

    pub fn name(self) -> &'static str {
        match self {
            WeightFormat::File => "file",
            WeightFormat::Q8 => "q8",
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<WeightFormat, String> {
        let all = [WeightFormat::File, WeightFormat::Q8];
        all.into_iter().find(|format| format.name() == text).ok_or_else(|| "expected file or q8".to_owned())
    }
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
