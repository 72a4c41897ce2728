//! The program on the host-run CUDA driver: device selection, error messages.

use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use test_support::{cuda_host, tiny};

/// A small bf16 model with a head_dim that the kernels support.
fn model() -> tempfile::TempDir {
    tiny::model_with(&[("head_dim", json!(16))], Dtype::BF16)
}

/// Runs `uqac` with the host-run driver or, without a folder, with no driver at all.
fn uqac(libraries: Option<&Path>, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    static CACHE: OnceLock<PathBuf> = OnceLock::new(); // of this run: one self-test for all
    let cache = CACHE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_command");
        let _ = std::fs::remove_dir_all(&folder);
        folder
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command
        .env("UQAC_CACHE", cache)
        .env("UQAC_HOST_CUDA_TENSOR", "nearest")
        .env_remove("CUDA_HOME")
        .env_remove("LD_LIBRARY_PATH");
    if let Some(folder) = libraries {
        command.env("LD_LIBRARY_PATH", folder);
    }
    command.envs(environment.iter().copied()).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_command_line_takes_a_device() {
    let Some(libraries) = cuda_host::library_folder() else { return };
    let folder = model();
    let path = folder.path().to_str().unwrap();
    let ask = |device: &str| {
        let options = ["--max-tokens", "20", "--k-cache", "f32", "--v-cache", "f16", "--json", "--no-chat-template"];
        let output =
            uqac(Some(libraries), &[], &[&["ask", "x=", "--model", path, "--device", device], &options[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(ask("cuda")["response"], ask("cpu")["response"]);
    let devices = uqac(Some(libraries), &[], &["devices"]);
    let listed = text(&devices.stdout);
    for part in ["cpu ", "cuda:0", "compute capability 9.0", "8.00 GiB", "kernels"] {
        assert!(listed.contains(part), "{listed}");
    }
    let inspected = uqac(Some(libraries), &[], &["inspect", path, "--json"]);
    let facts: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert!(facts["run"]["device"].as_str().unwrap().starts_with("cuda:0"), "{facts}");
    assert_eq!((&facts["run"]["k_cache"], &facts["run"]["v_cache"]), (&json!("f32"), &json!("f16")));
}

#[test]
fn devices_that_cannot_be_used_are_explained() {
    if std::env::var_os("UQAC_TEST_DRIVER").is_some() {
        test_support::skipped("for the machine that the program was built on");
        return;
    }
    let folder = model();
    let path = folder.path().to_str().unwrap();
    let says = |libraries, environment: &[(&str, &str)], device: &str, parts: &[&str]| {
        let output = uqac(libraries, environment, &["inspect", path, "--device", device]);
        let message = text(&output.stderr);
        let code = if device == "auto" { 0 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{message:?} does not say {part:?}"));
        assert!(!message.contains("panicked"), "{message}");
    };
    says(None, &[], "gpu", &["auto, cpu, cuda, cuda:N or reference"]);
    if !Path::new("/dev/nvidiactl").exists() {
        says(None, &[], "cuda", &["install the NVIDIA driver", "--device cpu"]);
        says(None, &[], "auto", &[]);
    }
    let Some(libraries) = cuda_host::library_folder() else { return };
    says(Some(libraries), &[], "cuda:1", &["no CUDA device 1", "the driver has 1"]);
    let old = [("UQAC_HOST_CUDA_CAPABILITY", "7.5")];
    says(Some(libraries), &old, "cuda", &["compute capability 7.5", "8.0"]);
    says(Some(libraries), &old, "auto", &["running on the CPU", "compute capability 7.5"]);
    for memory in ["64K", "512K", "1M"] {
        says(
            Some(libraries),
            &[("UQAC_HOST_CUDA_MEMORY", memory)],
            "cuda",
            &["out of device memory", "takes", "are free"],
        );
    }
    let without_nvrtc = tempfile::tempdir().unwrap();
    std::fs::copy(libraries.join("libcuda.so.1"), without_nvrtc.path().join("libcuda.so.1")).unwrap();
    let output = uqac(Some(without_nvrtc.path()), &[], &["devices"]);
    let listed = text(&output.stdout);
    // if the crate was built with nvcc, NVRTC is not needed
    assert!(listed.contains("install the CUDA toolkit") || listed.contains("kernels built in"), "{listed}");
}
