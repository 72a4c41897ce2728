//! The self-test at first use, with deliberately broken kernels: in the host-run driver those in `UQAC_HOST_CUDA_BREAK` do
//! nothing, those in `UQAC_HOST_CUDA_FAULT` fault, and those in `UQAC_HOST_CUDA_HANG` never end.

use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use test_support::{cuda_host, long_tests, tiny};

/// `uqac` on the host-run driver with its own cache; `None` if the driver cannot be built.
fn uqac(cache: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Option<Output> {
    let libraries = cuda_host::library_folder()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_remove("UQAC_MODEL").env("LD_LIBRARY_PATH", libraries).env("UQAC_CACHE", cache);
    command.env("UQAC_SELF_TEST_SECONDS", SECONDS.to_string()).env("UQAC_HOST_CUDA_TENSOR", "nearest");
    command.envs(environment.iter().copied());
    Some(command.args(arguments).output().unwrap())
}

/// Time limit of a launch: the longest takes a fraction of a second here.
const SECONDS: u32 = 20;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A small bf16 model with a head_dim that the kernels support.
fn model() -> tempfile::TempDir {
    tiny::model_with(&[("head_dim", json!(16))], Dtype::BF16)
}

/// Loads a small model on a device, without generating anything.
fn load(cache: &Path, environment: &[(&str, &str)], device: &str) -> Option<Output> {
    uqac(cache, environment, &["inspect", "--json", "--device", device, model().path().to_str().unwrap()])
}

/// Asks the built-in model.
fn ask(cache: &Path, environment: &[(&str, &str)]) -> Option<String> {
    let output = uqac(cache, environment, &["ask", "--device", "cuda", "--json", "What is 17 + 25?"])?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["answer"]["text"], "42");
    Some(text(&output.stderr))
}

/// Variables of the environment.
type Settings = &'static [(&'static str, &'static str)];

/// (broken kernels as the driver's settings, the kernel that is named, why), with the plain set in their place.
const REPLACED: [(Settings, &str, &str); 5] = [
    (&[("UQAC_HOST_CUDA_BREAK", "attn_decode_kf32_vf16_d16")], "attn_decode_kf32_vf16_d16", "]: expected "),
    (&[("UQAC_HOST_CUDA_FAULT", "gemv_gated_f16_r8")], "gemv_gated_f16_r8", "LAUNCH_FAILED"),
    (&[("UQAC_HOST_CUDA_HANG", "gemv_f16_r16")], "gemv_f16_r16", "no result within 20 s"),
    // a block may have less shared memory than the largest variant needs, which is then neither tested nor used
    (
        &[("UQAC_HOST_CUDA_SHARED", "99K"), ("UQAC_HOST_CUDA_BREAK", "gemv_f16_r64,gemv_f16_r64s")],
        "gemv_f16_r64s",
        "]: expected ",
    ),
    // kernels may start before the preceding ones have ended, and here their wait does nothing
    (&[("UQAC_HOST_CUDA_EARLY", "broken")], "early_starts", "log-probabilities"),
];

#[test]
fn a_broken_kernel_is_named_and_the_plain_set_used() {
    for (environment, kernel, why) in REPLACED {
        let cache = tempfile::tempdir().unwrap();
        let Some(loaded) = load(cache.path(), environment, "cuda") else { return };
        let said = text(&loaded.stderr);
        assert!(loaded.status.success(), "{said}");
        let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning")).collect();
        let [warning] = warnings[..] else { panic!("{kernel}: {said}") };
        let names = format!("the CUDA kernel {kernel} fails its self-test");
        for part in [&names, why, "the plain kernels are used", "please report this"] {
            assert!(warning.contains(part), "{kernel}: {warning:?} does not say {part:?}");
        }
        // cached, with its reason
        let again = text(&load(cache.path(), &[environment[0]], "cuda").unwrap().stderr);
        assert!(again.contains(warning), "{again}");
    }
}

#[test]
fn answers_stay_right_with_the_plain_set() {
    let cache = tempfile::tempdir().unwrap();
    let broken = [("UQAC_HOST_CUDA_BREAK", "gemv_gated_f16_r8"), ("UQAC_HOST_CUDA_TRACE", "1")];
    let Some(said) = ask(cache.path(), &broken[..1]) else { return };
    assert!(said.contains("gemv_gated_f16_r8 fails its self-test"), "{said}");
    let said = ask(cache.path(), &broken[1..]).unwrap();
    let launched = |kernel: &str| said.lines().any(|line| line.starts_with(kernel));
    for kernel in ["plain_gemv ", "plain_gemv_qkv ", "plain_gemv_gated ", "plain_attn_decode "] {
        assert!(launched(kernel), "{kernel}");
    }
    for kernel in ["gem", "attn_decode", "attn_prefill"] {
        assert!(!launched(kernel), "{kernel}");
    }
    assert!(!said.contains("begun early"));
}

/// A passed kernel is not tested again; a process that starts during another's self-test waits for its verdicts.
#[test]
fn verdicts_are_kept_and_waited_for() {
    let cache = tempfile::tempdir().unwrap();
    let begun = || {
        let files = std::fs::read_dir(cache.path().join("selftest")).into_iter().flatten().flatten();
        files.map(|file| text(&std::fs::read(file.path()).unwrap_or_default())).any(|record| record.contains("running"))
    };
    let loaded = std::thread::scope(|scope| {
        let first = scope.spawn(|| load(cache.path(), &[], "cuda"));
        while !first.is_finished() && !begun() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let broken = [("UQAC_HOST_CUDA_BREAK", "gemv_f16_r8,rope_cache")];
        [first.join().unwrap(), load(cache.path(), &[], "cuda"), load(cache.path(), &broken, "cuda")]
    });
    for output in loaded.into_iter().flatten() {
        let said = text(&output.stderr);
        assert!(output.status.success() && !said.contains("self-test"), "{said}");
    }
}

#[test]
fn a_kernel_that_the_plain_set_needs_stops_the_model() {
    let broken: [(&[(&str, &str)], &str); 2] = [
        (&[("UQAC_HOST_CUDA_BREAK", "rope_cache")], "rope_cache"),
        (&[("UQAC_HOST_CUDA_FAULT", "gemv_f16_r8"), ("UQAC_HOST_CUDA_BREAK", "plain_gemv")], "plain_gemv(1)"),
    ];
    for (environment, kernel) in broken {
        let cache = tempfile::tempdir().unwrap();
        let Some(refused) = load(cache.path(), environment, "cuda") else { return };
        let said = text(&refused.stderr);
        assert!(!refused.status.success());
        assert!(said.contains(&format!("the CUDA kernel {kernel} fails its self-test")), "{said}");
        assert!(said.contains("uqac devices --check") && said.contains("--device cpu"), "{said}");
        let elsewhere = load(cache.path(), environment, "auto").unwrap();
        let said = text(&elsewhere.stderr);
        assert!(elsewhere.status.success() && said.contains("running on the CPU: the CUDA kernel"), "{said}");
    }
}

/// The kernels that a device of this compute capability uses in wide passes, whether any starts early, and the scores.
fn wide_products(capability: &str, environment: &[(&str, &str)]) -> Option<(Vec<&'static str>, bool, Value)> {
    let (cache, model) = (tempfile::tempdir().unwrap(), model());
    let device = [("UQAC_HOST_CUDA_CAPABILITY", capability), ("UQAC_HOST_CUDA_TENSOR", "hopper")];
    let path = model.path().to_str().unwrap();
    let prompt = "What is 17 + 25 + 31 + 12 + 44?"; // exceeds a narrow pass
    let arguments = ["ask", "--device", "cuda", "--model", path, "--no-chat-template", "--max-tokens", "4", "--json"];
    let arguments = [&arguments[..], &[prompt]].concat();
    uqac(cache.path(), &[&device[..], environment].concat(), &arguments)?; // the self-test launches all of them
    let traced = [&device[..], environment, &[("UQAC_HOST_CUDA_TRACE", "1")]].concat();
    let output = uqac(cache.path(), &traced, &arguments)?;
    let said = text(&output.stderr);
    let used = ["gemm_m", "gemm_gated_m", "gemm_hopper", "gemm_gated_hopper"];
    let used = used.into_iter().filter(|name| said.lines().any(|line| line.starts_with(name))).collect();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    Some((used, said.contains("begun early"), json!([found["response"], found["scores"]])))
}

/// Compute capability 9.0 has its own product kernels, which leave the others' bits unchanged if the tensor cores add
/// alike; kernels start early unless `UQAC_EARLY_STARTS` is 0.
#[test]
fn wide_products_are_those_of_the_device() {
    let Some((used, early, hopper)) = wide_products("9.0", &[]) else { return };
    assert_eq!((used, early), (vec!["gemm_hopper", "gemm_gated_hopper"], true));
    assert!(hopper[1].as_object().is_some_and(|scores| !scores.is_empty()), "{hopper}");
    let (used, early, other) = wide_products("8.0", &[("UQAC_EARLY_STARTS", "0")]).unwrap();
    assert_eq!((used, early), (vec!["gemm_m", "gemm_gated_m"], false));
    assert_eq!(other, hopper);
}

/// The check continues in other processes after a fault and a hang, and finds exactly the broken kernels. It tests every
/// kernel of both sets, which takes minutes here: `.ci/run` calls for it.
#[test]
fn the_check_of_a_device_finds_every_broken_kernel_and_no_other() {
    if !long_tests() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let broken = ["attn_prefill_kf16_vf16_d64_t2", "attn_decode_kf32_vf32_d32", "attn_decode_kbf16_vbf16_d128"];
    let kinds = ["UQAC_HOST_CUDA_BREAK", "UQAC_HOST_CUDA_FAULT", "UQAC_HOST_CUDA_HANG"];
    let environment: [_; 3] = std::array::from_fn(|i| (kinds[i], broken[i]));
    let Some(output) = uqac(cache.path(), &environment, &["devices", "--check", "--json"]) else { return };
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success() && found["ok"] == false, "{found}");
    let tests = found["checked"][0]["tests"].as_array().unwrap();
    let of = |set: &str| tests.iter().filter(|test| test["tested"].as_str().unwrap().starts_with(set)).count();
    assert_eq!((of("Fast"), of("Plain")), (28, 28), "{found}");
    let mut failed: Vec<&str> = tests.iter().filter_map(|test| test["kernel"].as_str()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["attn_decode_kbf16_vbf16_d128", "attn_decode_kf32_vf32_d32", "attn_prefill_kf16_vf16_d64_t2"]);
}
