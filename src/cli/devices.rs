//! `uqac devices`: where models can run.

use super::error::CliError;
use super::print;
use crate::backend::cpu::simd::Isa;
use crate::backend::cuda;
use crate::report::term::sanitize::visible;
use crate::units;
use clap::Args;
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the devices that models can run on
#[derive(Args)]
pub struct DevicesArgs {
    /// A JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DevicesArgs) -> Result<ExitCode, CliError> {
    let devices = devices();
    let text = if args.json { format!("{devices}\n") } else { lines(&devices) };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The CPU, the CUDA devices (and why there are no more), and the reference.
fn devices() -> Value {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut list = vec![json!({"device": "cpu", "name": Isa::detect().name(), "threads": threads})];
    let mut cuda_error = None;
    match cuda::devices() {
        Ok(devices) => list.extend(devices.into_iter().map(|cuda::FoundDevice { info, kernels }| {
            json!({
                "device": format!("cuda:{}", info.ordinal),
                "name": info.name,
                "compute_capability": format!("{}.{}", info.capability.0, info.capability.1),
                "multiprocessors": info.multiprocessors,
                "free": info.free,
                "memory": info.total,
                "kernels": kernels.as_ref().ok(),
                "error": kernels.err().map(|error| error.to_string()),
            })
        })),
        Err(error) => cuda_error = Some(error.to_string()),
    }
    list.push(json!({"device": "reference", "name": "scalar", "threads": 1}));
    json!({"devices": list, "cuda_error": cuda_error, "cublaslt": cuda::cublaslt::version()})
}

fn lines(devices: &Value) -> String {
    let mut text = String::new();
    for device in devices["devices"].as_array().into_iter().flatten() {
        let word = |key: &str| device[key].as_str().unwrap_or_default();
        let bytes = |key: &str| units::bytes(device[key].as_u64().unwrap_or(0) as usize);
        let line = match device.get("threads") {
            _ if word("device") == "reference" => continue, // printed last
            Some(threads) => format!("cpu     {}, {threads} threads", word("name")),
            None => {
                let capability = word("compute_capability");
                let memory = format!("{} free of {}", bytes("free"), bytes("memory"));
                let state = device["kernels"]
                    .as_str()
                    .map_or_else(|| format!("cannot be used: {}", word("error")), str::to_owned);
                format!("{:<7} {}, compute capability {capability}, {memory}, {state}", word("device"), word("name"))
            }
        };
        text += &format!("{}\n", visible(&line));
    }
    if let (Some(version), None) = (devices["cublaslt"].as_str(), devices["cuda_error"].as_str()) {
        text += &format!("        cuBLASLt {version} is there: --gemm auto or cublaslt uses it for wide products\n");
    }
    if let Some(error) = devices["cuda_error"].as_str() {
        text += &format!("cuda    none: {}\n", visible(error));
    }
    text += "reference  scalar, one thread: slow, for checking; auto never takes it\n";
    text
}
