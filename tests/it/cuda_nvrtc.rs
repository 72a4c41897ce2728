//! Kernels that NVRTC compiles at first use: where its headers are looked for, what is kept, and, where the real library
//! is (`tests/cuda_host/nvrtc.sh` fetches it; it needs no GPU), that it takes every kernel file.

use crate::common::{cuda_host, tiny};
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights(folder.path(), &config, |_, _| ());
    tiny::write_tokenizer(folder.path());
    folder
}

/// `uqac inspect` on the host-run driver, its kernels by the NVRTC that the loader finds in `libraries`; compiled ones
/// go to `cache`.
fn inspect(model: &Path, libraries: &OsString, toolkit: &Path, cache: &Path, capability: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uqac"))
        .env_remove("CUDA_PATH")
        .env("CUDA_HOME", toolkit)
        .env("LD_LIBRARY_PATH", libraries)
        .env("UQAC_CACHE", cache)
        .env("UQAC_KERNELS", "nvrtc")
        .env("UQAC_HOST_CUDA_CAPABILITY", capability)
        .args(["inspect", "--device", "cuda", "--json"])
        .arg(model)
        .output()
        .unwrap()
}

/// The PTX of every kernel file, by file name.
fn compiled(cache: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(cache.join("kernels")).unwrap().map(|entry| entry.unwrap().path());
    let named = files.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path));
    let mut all: Vec<_> = named.map(|(name, path)| (name, fs::read_to_string(path).unwrap())).collect();
    all.sort();
    all
}

/// How many files there are in `kernels/`.
fn kernel_files() -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "cu")).count()
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
    let ptx = compiled(cache.path());
    assert_eq!(ptx.len(), kernel_files());
    for (name, text) in &ptx {
        for folder in [include.clone(), include.join("cccl")] {
            assert!(text.contains(&format!("// --include-path={}\n", folder.display())), "{name}: {text}");
        }
        assert!(text.contains("// --gpu-architecture=compute_90a\n"), "{name}: {text}");
    }
    // kept: nothing is compiled twice, and another device has its own
    let times = |cache: &Path| -> Vec<_> {
        let entries = fs::read_dir(cache.join("kernels")).unwrap().map(Result::unwrap);
        entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap())).collect()
    };
    let before = times(cache.path());
    succeeded(&run("9.0"));
    assert_eq!(times(cache.path()), before);
    succeeded(&run("8.6"));
    assert_eq!(compiled(cache.path()).len(), 2 * kernel_files());
    // one that was cut off or changed is compiled again
    let (name, text) = &ptx[0];
    for damaged in [text[..text.len() / 2].to_owned(), text.replace("compute_90a", "compute_90b")] {
        fs::write(cache.path().join("kernels").join(name), damaged).unwrap();
        succeeded(&run("9.0"));
        assert!(compiled(cache.path()).contains(&ptx[0]));
    }
}

/// The real library, and a folder with the host-run driver alone: (libraries' folders, toolkit).
fn real_nvrtc(alone: &Path) -> Option<(OsString, PathBuf)> {
    let folder = std::env::var_os("UQAC_NVCC_CACHE").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache/uqac-nvcc")))?;
    let toolkit = folder.join("nvidia/cu13");
    if !toolkit.join("lib/libnvrtc.so.13").is_file() || !toolkit.join("include/cuda_bf16.h").is_file() {
        eprintln!("SKIPPED: no libnvrtc; tests/cuda_host/nvrtc.sh fetches it");
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
    let compile = |capability: &str, target: &str| {
        let cache = tempfile::tempdir().unwrap();
        let facts = succeeded(&inspect(model.path(), &libraries, &toolkit, cache.path(), capability));
        assert!(facts["run"]["device"].as_str().unwrap().contains("kernels by NVRTC 13."), "{facts}");
        let ptx = compiled(cache.path());
        assert_eq!(ptx.len(), kernel_files());
        assert!(ptx.iter().all(|(_, text)| text.contains(&format!(".target {target}\n"))), "{target}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| compile("9.0", "sm_90a"));
        compile("8.0", "sm_80");
    });
}
