//! Kernels that NVRTC compiles at first use: where its headers are searched, what is cached and, if the real library is
//! available (`tests/cuda_host/nvrtc.sh` fetches it; it needs no GPU), that it compiles every kernel file.

use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use test_support::{cuda_host, long_tests, tiny};

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    // experts, and delta nets in all layers except the last
    config["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
    config["full_attention_interval"] = json!(3);
    for (setting, n) in [
        ("num_experts", 4),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 16),
        ("shared_expert_intermediate_size", 16),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", 2),
        ("linear_key_head_dim", 8),
        ("linear_value_head_dim", 8),
        ("linear_conv_kernel_dim", 4),
    ] {
        config[setting] = json!(n);
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights(folder.path(), &config, |_, _| ());
    tiny::write_tokenizer(folder.path());
    folder
}

/// Runs `uqac inspect` on the host-run driver, with kernels compiled by the NVRTC that the loader finds in `libraries`;
/// compiled kernels go to `cache`.
fn inspect(model: &Path, libraries: &OsString, toolkit: &Path, cache: &Path, capability: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uqac"))
        .env_remove("CUDA_PATH")
        .env("CUDA_HOME", toolkit)
        .env("LD_LIBRARY_PATH", libraries)
        .env("UQAC_CACHE", cache)
        .env("UQAC_KERNELS", "nvrtc")
        .envs([("UQAC_HOST_CUDA_CAPABILITY", capability), ("UQAC_HOST_CUDA_TENSOR", "nearest")])
        .args(["inspect", "--device", "cuda", "--json"])
        .arg(model)
        .output()
        .unwrap()
}

/// The image of every kernel file, by file name, without its seal line.
fn compiled(cache: &Path) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(cache.join("kernels")).unwrap().map(|entry| entry.unwrap().path());
    let image = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let sealed = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), bytes[sealed + 1..].to_vec())
    };
    let mut all: Vec<_> = files.map(image).collect();
    all.sort();
    all
}

/// Number of `kernels/` files that a model needs on a device: all except the plain fallbacks for failing kernels, files
/// only for 9.0, and files for 9.0 and newer.
fn kernel_files(capability: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let needed = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "cu")
            && !path.ends_with("plain.cu")
            && (capability == "9.0" || !path.to_string_lossy().ends_with("_hopper.cu"))
            && (capability >= "9" || !path.ends_with("gemv_ring.cu"))
    };
    names.filter(needed).count()
}

fn contains(image: &[u8], text: &str) -> bool {
    image.windows(text.len()).any(|window| window == text.as_bytes())
}

fn succeeded(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn headers_are_found_in_the_toolkit() {
    let Some(libraries) = cuda_host::library_folder() else { return };
    let (model, toolkit, cache) = (model(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let include = toolkit.path().join("include");
    fs::create_dir_all(include.join("cccl/nv")).unwrap();
    fs::write(include.join("cuda_bf16.h"), "").unwrap();
    let run = |capability| inspect(model.path(), &libraries.into(), toolkit.path(), cache.path(), capability);
    let facts = succeeded(&run("9.0"));
    assert!(facts["run"]["device"].as_str().unwrap().contains("kernels by NVRTC 13.0"), "{facts}");
    let images = compiled(cache.path());
    assert_eq!(images.len(), kernel_files("9.0"));
    for (name, image) in &images {
        assert!(name.ends_with(".cubin") && image.starts_with(b"\x7fELF"), "{name}");
        for folder in [include.clone(), include.join("cccl")] {
            assert!(contains(image, &format!("// --include-path={}\n", folder.display())), "{name}");
        }
        assert!(contains(image, "// --gpu-architecture=sm_90a\n"), "{name}");
    }
    // cached: nothing is compiled twice, and another device has its own kernels
    let times = |cache: &Path| -> Vec<_> {
        let entries = fs::read_dir(cache.join("kernels")).unwrap().map(Result::unwrap);
        entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap())).collect()
    };
    let before = times(cache.path());
    succeeded(&run("9.0"));
    assert_eq!(times(cache.path()), before);
    succeeded(&run("8.6"));
    assert_eq!(compiled(cache.path()).len(), kernel_files("9.0") + kernel_files("8.6"));
    // a truncated or modified one is recompiled
    let (name, _) = &images[0];
    let path = cache.path().join("kernels").join(name);
    let whole = fs::read(&path).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for damaged in [&whole[..whole.len() / 2], &changed] {
        fs::write(&path, damaged).unwrap();
        succeeded(&run("9.0"));
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    // a device newer than NVRTC: PTX for the newest architecture that the device runs
    let newer = tempfile::tempdir().unwrap();
    succeeded(&inspect(model.path(), &libraries.into(), toolkit.path(), newer.path(), "9.9"));
    let images = compiled(newer.path());
    assert_eq!(images.len(), kernel_files("9.9"));
    for (name, image) in &images {
        assert!(name.ends_with(".ptx") && contains(image, "// --gpu-architecture=compute_90\n"), "{name}");
    }
}

/// The real library, and a folder with only the host-run driver: (library folders, toolkit).
fn real_nvrtc(alone: &Path) -> Option<(OsString, PathBuf)> {
    let folder = std::env::var_os("UQAC_NVCC_CACHE").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache/uqac-nvcc")))?;
    let toolkit = folder.join("nvidia/cu13");
    if !toolkit.join("lib/libnvrtc.so.13").is_file() || !toolkit.join("include/cuda_bf16.h").is_file() {
        test_support::skipped("no libnvrtc; tests/cuda_host/nvrtc.sh fetches it");
        return None;
    }
    fs::copy(cuda_host::library_folder()?.join("libcuda.so.1"), alone.join("libcuda.so.1")).unwrap();
    Some((std::env::join_paths([alone, &toolkit.join("lib")]).unwrap(), toolkit))
}

#[test]
fn the_real_nvrtc_compiles_every_kernel_file() {
    let alone = tempfile::tempdir().unwrap();
    let Some((libraries, toolkit)) = real_nvrtc(alone.path()) else { return };
    let model = model();
    let compile = |capability: &str| {
        let cache = tempfile::tempdir().unwrap();
        let facts = succeeded(&inspect(model.path(), &libraries, &toolkit, cache.path(), capability));
        assert!(facts["run"]["device"].as_str().unwrap().contains("kernels by NVRTC 13."), "{facts}");
        let images = compiled(cache.path());
        assert_eq!(images.len(), kernel_files(capability));
        images
    };
    // a cubin is an ELF file with the architecture in the second byte of its flags (CUDA 13)
    let machine_code = |capability: &str, architecture: u8| {
        for (name, image) in compile(capability) {
            assert!(image.starts_with(b"\x7fELF"), "{name}: no cubin");
            assert_eq!(image[49], architecture, "{name}: flags {:x?}", &image[48..52]);
            assert!(contains(&image, ".text."), "{name}: no code");
        }
    };
    // an architecture unknown to it: PTX, which takes a third of the time
    for (name, image) in compile("8.5") {
        assert!(contains(&image, ".target sm_80\n"), "{name}");
    }
    if long_tests() {
        machine_code("9.0", 90);
        machine_code("12.0", 120);
    }
}
