//! Errors of the CUDA backend.

use crate::units::bytes;
use cudarc::driver::DriverError;

/// Advice for a device that computes incorrect results.
pub const PLEASE_REPORT: &str = "please report this with the output of uqac devices --check";

pub type Result<T, E = CudaError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("no CUDA driver: libcuda could not be loaded; install the NVIDIA driver, or use --device cpu")]
    NoDriver,
    #[error("no CUDA device {ordinal}: the driver has {count}")]
    NoDevice { ordinal: usize, count: usize },
    #[error("{device} has compute capability {major}.{minor}; the kernels need 8.0 or newer")]
    TooOld { device: String, major: i32, minor: i32 },
    #[error(
        "this binary has no compiled CUDA kernels, and they cannot be compiled now: {reason}; install the CUDA toolkit \
         (12.0 or newer: libnvrtc, and cuda_bf16.h in $CUDA_HOME/include), or build uqac where nvcc is found"
    )]
    NoKernels { reason: String },
    #[error("NVRTC cannot compile kernels/{file}.cu: {log}")]
    Compile { file: &'static str, log: String },
    #[error(
        "the CUDA kernels in {file} cannot be loaded: {cause}; is the driver older than the toolkit they come from?"
    )]
    Load { file: &'static str, cause: String },
    #[error("no CUDA kernel {name}: the variant for this model or these cache types is not built")]
    NoKernel { name: String },
    #[error("the CUDA kernel {name} does not take these arguments: {reason}")]
    Arguments { name: String, reason: String },
    #[error(
        "the CUDA kernel {kernel} fails its self-test on {device}: {reason}; {}, and use --device cpu",
        PLEASE_REPORT
    )]
    SelfTest { kernel: String, device: String, reason: String },
    #[error(
        "out of device memory: {what} takes {}, {} of {} are free",
        bytes(*.wanted), bytes(*.free), bytes(*.total)
    )]
    OutOfMemory { what: String, wanted: usize, free: usize, total: usize },
    #[error("{call}: {cause}")]
    Driver { call: String, cause: String },
    #[error("the CUDA backend cannot do this: {0}")]
    Unsupported(String),
}

/// The driver's name and text of an error.
pub fn describe(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| format!("error {}", error.0 as u32), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_name()), text(error.error_string()))
}

/// Adds the failed call to a driver error.
pub trait Context<T> {
    fn during(self, call: &str) -> Result<T>;
}

impl<T> Context<T> for Result<T, DriverError> {
    fn during(self, call: &str) -> Result<T> {
        self.map_err(|error| CudaError::Driver { call: call.to_owned(), cause: describe(error) })
    }
}
