//! Wide products by cuBLASLt, here by `tests/cuda_host/cublaslt`: the same results, chosen and reported as asked, and
//! never with bits that depend on the pass.

use crate::common::{cuda_host, tiny};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use uqac::backend::cuda::{CudaBackend, CudaError, CudaOptions, Gemm};
use uqac::backend::forward::extend;
use uqac::backend::{Backend, BackendError, DType, Next, Prediction, Step};
use uqac::model::{ModelSpec, Weights};

/// Two layers with matrices of four shapes: q and o, k and v, gate and up, down.
fn model(f16: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    for (name, size) in [
        ("num_hidden_layers", 2),
        ("hidden_size", 32),
        ("intermediate_size", 48),
        ("num_attention_heads", 2),
        ("num_key_value_heads", 1),
    ] {
        config[name] = json!(size);
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let dtype = if f16 { Dtype::F16 } else { Dtype::BF16 };
    tiny::write_weights_as(folder.path(), &config, dtype, |_, _| ());
    tiny::write_tokenizer(folder.path());
    folder
}
const SHAPES: usize = 4;

fn backend(folder: &Path, gemm: Gemm) -> Result<CudaBackend, CudaError> {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Weights::open(folder, &spec).unwrap();
    let cache = Some(DType::F32);
    CudaBackend::new(
        spec,
        weights.into(),
        &CudaOptions { ordinal: 0, k_cache: cache, v_cache: cache, gemm },
        &mut |_, _| (),
    )
}

/// Scores tokens in passes of so many rows: what every row tells, and the last hidden state.
fn score(backend: &mut CudaBackend, len: usize, width: usize) -> (Vec<Step>, Vec<f32>) {
    let mut noise = tiny::noise(4);
    let tokens: Vec<u32> = (0..len).map(|_| (125.0 + 124.0 * noise()) as u32).collect();
    let id = backend.open(None).unwrap();
    let mut steps = Vec::new();
    let mut hidden = Vec::new();
    for (index, part) in tokens.chunks(width).enumerate() {
        extend::<BackendError>(
            backend,
            id,
            index * width,
            part,
            false,
            |_| true,
            |backend, positions| {
                let given = |p: usize| Next::Given(tokens.get(p + 1).copied());
                let requests: Vec<_> = positions
                    .clone()
                    .enumerate()
                    .map(|(row, p)| Prediction { row, next: given(p), detail: true })
                    .collect();
                steps.extend(backend.predict(&requests)?.into_iter().map(|(step, _)| step));
                hidden = backend.hidden(positions.len() - 1)?;
                Ok(())
            },
        )
        .unwrap();
    }
    backend.close(id);
    (steps, hidden)
}

#[test]
fn products_are_those_of_the_own_kernels() {
    if !cuda_host::alone("cuda_cublaslt::products_are_those_of_the_own_kernels") {
        return;
    }
    for f16 in [false, true] {
        let folder = model(f16);
        let mut own = backend(folder.path(), Gemm::Own).unwrap();
        let mut library = backend(folder.path(), Gemm::CublasLt).unwrap();
        let says = format!("wide products by cuBLASLt 13.1 (asked for) for {SHAPES} of {SHAPES} shapes");
        assert!(library.device().contains(&says), "{}", library.device());
        assert!(!own.device().contains("cuBLASLt"), "{}", own.device());
        let launched = cuda_host::calls("ch_enqueue");
        let (steps, hidden) = score(&mut library, 70, 70);
        // seven matrices in two layers
        assert_eq!(cuda_host::calls("ch_enqueue") - launched, 7 * 2);
        let (own_steps, own_hidden) = score(&mut own, 70, 70);
        // The same products, added in another order: f32 sums over 48 numbers at most, fourteen products deep, of hidden
        // states and logits of a size of about 10. That may tip an input of the next product from one f16 number to the next: as much as
        // if all inputs of one product were, 2^-10 of the result.
        let bound = (48.0 * f64::from(f32::EPSILON) * 14.0 + 1.0 / 1024.0) * 10.0;
        for (found, expected) in hidden.iter().zip(&own_hidden) {
            assert!(f64::from((found - expected).abs()) <= bound, "{found} not {expected}, bound {bound}");
        }
        for (found, expected) in steps.iter().zip(&own_steps) {
            let (found, expected) = (found.logprob.unwrap_or(0.0), expected.logprob.unwrap_or(0.0));
            assert!((found - expected).abs() <= bound, "{found} not {expected}, bound {bound}");
        }
        // the width of a pass does not change a bit
        for width in [17 + 6, 17 + 35] {
            assert_eq!(score(&mut library, 69, width), score(&mut library, 69, 69), "{width} rows a pass");
        }
    }
}

/// Runs `uqac` with the host-run libraries, or with those in another folder.
fn uqac(libraries: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env("UQAC_CACHE", cache.path()).env("LD_LIBRARY_PATH", libraries);
    command.envs(environment.iter().copied()).args(arguments).output().unwrap()
}

/// What `uqac inspect --gemm` says of the device.
fn device(libraries: &Path, environment: &[(&str, &str)], model: &Path, gemm: &str) -> Result<String, String> {
    let path = model.to_str().unwrap();
    let output = uqac(libraries, environment, &["inspect", path, "--device", "cuda", "--gemm", gemm, "--json"]);
    if !output.status.success() {
        assert_eq!(output.status.code(), Some(2));
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    Ok(facts["run"]["device"].as_str().unwrap().to_owned())
}

#[test]
fn what_is_faster_is_taken_and_reported() {
    let Some(libraries) = cuda_host::library_folder() else { return };
    let folder = model(false);
    let says = |environment: &[(&str, &str)], gemm: &str| device(libraries, environment, folder.path(), gemm).unwrap();
    // the host-run kernels are far slower than a plain loop, and that than a pause
    assert!(says(&[], "auto").contains("cuBLASLt 13.1 (faster) for 4 of 4 shapes"));
    assert!(says(&[("UQAC_HOST_CUBLASLT_SLOW", "1")], "auto").contains("cuBLASLt 13.1 (faster) for 0 of 4 shapes"));
    assert!(!says(&[], "own").contains("cuBLASLt"));
    // no algorithm whose bits do not depend on the pass: never taken
    let unsteady = [("UQAC_HOST_CUBLASLT_UNSTEADY", "1")];
    assert!(says(&unsteady, "cublaslt").contains("cuBLASLt 13.1 (asked for) for 0 of 4 shapes"));
    let devices = uqac(libraries, &[], &["devices"]);
    assert!(String::from_utf8_lossy(&devices.stdout).contains("cuBLASLt 13.1"));
}

#[test]
fn a_machine_without_it_says_so() {
    let Some(libraries) = cuda_host::library_folder() else { return };
    let (folder, without) = (model(false), tempfile::tempdir().unwrap());
    for library in ["libcuda.so.1", "libnvrtc.so"] {
        fs::copy(libraries.join(library), without.path().join(library)).unwrap();
    }
    if device(without.path(), &[], folder.path(), "cublaslt").is_ok() {
        eprintln!("SKIPPED: this machine has a libcublasLt of its own");
        return;
    }
    let refused = device(without.path(), &[], folder.path(), "cublaslt").unwrap_err();
    assert!(refused.contains("libcublasLt could not be loaded") && refused.contains("--gemm own"), "{refused}");
    let fallen_back = device(without.path(), &[], folder.path(), "auto").unwrap();
    assert!(fallen_back.contains("own kernels: there is no libcublasLt"), "{fallen_back}");
    let wrong = device(libraries, &[], folder.path(), "fast").unwrap_err();
    assert!(wrong.contains("own, auto or cublaslt"), "{wrong}");
}
