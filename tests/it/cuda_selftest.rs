//! The power-on self-test with deliberately broken kernels: in the host-run driver those in `UQAC_HOST_CUDA_BREAK` do
//! nothing, those in `UQAC_HOST_CUDA_FAULT` fault, and those in `UQAC_HOST_CUDA_HANG` never end.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use test_support::cuda_host;

/// `uqac` on the host-run driver with its own cache; `None` if the driver cannot be built.
fn uqac(cache: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Option<Output> {
    let libraries = cuda_host::library_folder()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_remove("UQAC_MODEL").env("LD_LIBRARY_PATH", libraries).env("UQAC_CACHE", cache);
    command.envs(environment.iter().copied());
    Some(command.args(arguments).output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asks the built-in model, on a device.
fn ask(cache: &Path, environment: &[(&str, &str)], device: &str) -> Option<Output> {
    uqac(cache, environment, &["ask", "--device", device, "--json", "What is 17 + 25?"])
}

fn answer(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["answer"]["text"].as_str().unwrap_or_default().to_owned()
}

/// That model's kernels with a plain replacement.
const REPLACEABLE: &str = "gemv_f16_r8,gemv_f16_r16,gemv_f16_r64,gemv_qkv_f16_r8,gemv_qkv_f16_r16,gemv_qkv_f16_r64,gemv_wide_m64,\
    gemv_gated_f16_r8,gemv_gated_f16_r16,gemv_gated_f16_r64,gemm_m64,gemm_m128,gemm_gated_m64,gemm_gated_m128,gemm_gated_hopper,attn_prefill_hopper_kf32_vf16_d64_t2,attn_decode_kf32_vf16_d64,attn_decode_kf32_vf16_d64_plain,\
    attn_prefill_kf32_vf16_d64_t2";

#[test]
fn broken_kernels_are_replaced_and_the_answer_stays_right() {
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(right) = ask(whole.path(), &[], "cuda") else { return };
    assert!(!text(&right.stderr).contains("warning"), "{}", text(&right.stderr));
    let environment = [("UQAC_HOST_CUDA_BREAK", REPLACEABLE)];
    let replaced = ask(broken.path(), &environment, "cuda").unwrap();
    let said = text(&replaced.stderr);
    for kernel in REPLACEABLE.split(',') {
        assert!(said.contains(&format!("warning: the CUDA kernel {kernel} fails its self-test")), "{kernel}: {said}");
    }
    assert!(said.contains("please report this"), "{said}");
    // case, index, expected and found values
    assert!(said.contains(" of layer ") && said.contains("]: expected ") && said.contains(", found "), "{said}");
    assert_eq!((answer(&replaced), answer(&right)), ("42".to_owned(), "42".to_owned()));
    // cached: failed kernels are replaced without a test, and passed ones are not tested again
    let again = ask(broken.path(), &[], "cuda").unwrap();
    assert!(text(&again.stderr).contains("gemv_f16_r8 fails its self-test"), "{}", text(&again.stderr));
    assert_eq!(answer(&again), "42");
    let late = uqac(whole.path(), &environment, &["inspect", "--device", "cuda", "abacus"]).unwrap();
    assert!(late.status.success() && !text(&late.stderr).contains("warning"), "{}", text(&late.stderr));
}

/// A process that starts during another's self-test waits for its verdicts.
#[test]
fn a_start_waits_for_the_tests_of_another() {
    let cache = tempfile::tempdir().unwrap();
    let begun = || {
        let files = std::fs::read_dir(cache.path().join("selftest")).into_iter().flatten().flatten();
        files.map(|file| text(&std::fs::read(file.path()).unwrap_or_default())).any(|record| record.contains("running"))
    };
    let answers = std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(cache.path(), &[], "cuda"));
        while !first.is_finished() && !begun() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        [ask(cache.path(), &[], "cuda"), first.join().unwrap()]
    });
    for output in answers.into_iter().flatten() {
        assert_eq!(answer(&output), "42");
        assert!(!text(&output.stderr).contains("self-test"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_kernel_without_a_replacement_stops_the_model() {
    let cache = tempfile::tempdir().unwrap();
    for kernel in ["rope_cache", "head_finish"] {
        let environment = [("UQAC_HOST_CUDA_BREAK", kernel)];
        let folder = cache.path().join(kernel);
        let Some(refused) = ask(&folder, &environment, "cuda") else { return };
        let said = text(&refused.stderr);
        assert!(!refused.status.success());
        assert!(said.contains(&format!("the CUDA kernel {kernel} fails its self-test")), "{said}");
        assert!(said.contains("uqac devices --check") && said.contains("--device cpu"), "{said}");
        let elsewhere = ask(&folder, &environment, "auto").unwrap();
        assert!(elsewhere.status.success());
        assert!(
            text(&elsewhere.stderr).contains("note: running on the CPU: the CUDA kernel"),
            "{}",
            text(&elsewhere.stderr)
        );
    }
}

/// A fault or a hang takes down a child process: the tests continue without the kernel, and so does the model.
#[test]
fn kernels_that_fault_or_hang_are_named_and_replaced() {
    let cache = tempfile::tempdir().unwrap();
    let environment = [
        ("UQAC_HOST_CUDA_FAULT", "gemv_gated_f16_r8"),
        ("UQAC_HOST_CUDA_HANG", "gemv_f16_r16,attn_decode_kf32_vf16_d64"),
        ("UQAC_SELF_TEST_SECONDS", "15"),
    ];
    let Some(first) = ask(cache.path(), &environment, "cuda") else { return };
    let said = text(&first.stderr);
    let warnings =
        |said: &str| said.lines().filter(|line| line.contains("its self-test")).map(str::to_owned).collect::<Vec<_>>();
    let warned = |kernel: &str, why: &str| said.lines().any(|line| line.contains(kernel) && line.contains(why));
    assert!(warned("the CUDA kernel gemv_gated_f16_r8 fails its self-test", "LAUNCH_FAILED"), "{said}");
    assert!(warned("the CUDA kernel gemv_f16_r16 fails its self-test", "no result within 15 s"), "{said}");
    assert!(warned("the CUDA kernel attn_decode_kf32_vf16_d64 fails its self-test", "no result within 15 s"), "{said}");
    assert_eq!(warnings(&said).len(), 3, "{said}");
    assert_eq!(answer(&first), "42");
    let second = ask(cache.path(), &environment, "cuda").unwrap();
    assert_eq!(warnings(&text(&second.stderr)), warnings(&said), "kept with their reasons");
    assert_eq!(answer(&second), "42");
}

/// The kernels used for wide passes on a device of this compute capability, and the answer.
fn wide_products(cache: &Path, capability: &str, broken: &str) -> Option<(Vec<&'static str>, Value)> {
    let environment = [
        ("UQAC_HOST_CUDA_CAPABILITY", capability),
        ("UQAC_HOST_CUDA_BREAK", broken),
        ("UQAC_HOST_CUDA_TENSOR", "hopper"),
        ("UQAC_HOST_CUDA_TRACE", "1"),
    ];
    let arguments = ["ask", "--device", "cuda", "--json", "What is 17 + 25 + 31 + 12 + 44?"]; // exceeds a narrow pass
    uqac(cache, &environment[..3], &arguments)?; // the self-test launches all of them
    let output = uqac(cache, &environment, &arguments)?;
    let said = text(&output.stderr);
    let used = ["gemm_m", "gemm_gated_m", "gemm_hopper", "gemm_gated_hopper"];
    let used = used.into_iter().filter(|name| said.lines().any(|line| line.starts_with(name))).collect();
    Some((used, serde_json::from_slice(&output.stdout).unwrap()))
}

/// Compute capability 9.0 has its own product kernels, which leave the others' bits unchanged if the tensor cores add
/// alike.
#[test]
fn wide_products_are_those_of_the_device() {
    let folders: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let Some((used, hopper)) = wide_products(folders[0].path(), "9.0", "") else { return };
    assert_eq!(used, ["gemm_hopper", "gemm_gated_hopper"]);
    let scores = |said: &Value| (said["answer"].clone(), said["scores"].clone());
    assert_eq!(hopper["answer"]["text"], "129");
    assert!(hopper["scores"].as_object().is_some_and(|scores| !scores.is_empty()), "{hopper}");
    for (folder, capability, broken) in [(&folders[1], "8.0", ""), (&folders[2], "9.0", "gemm_hopper")] {
        let (used, other) = wide_products(folder.path(), capability, broken).unwrap();
        assert_eq!(used, ["gemm_m", "gemm_gated_m"], "{capability} {broken}");
        assert_eq!(scores(&other), scores(&hopper), "{capability} {broken}");
    }
}

/// A device without enough shared memory for a kernel gets the one that needs less.
#[test]
fn kernels_fit_the_shared_memory() {
    let cache = tempfile::tempdir().unwrap();
    let environment = [("UQAC_HOST_CUDA_SHARED", "99K"), ("UQAC_HOST_CUDA_BREAK", "gemv_f16_r64,gemv_f16_r64s")];
    let Some(found) = ask(cache.path(), &environment, "cuda") else { return };
    let said = text(&found.stderr);
    assert!(said.contains("gemv_f16_r64s fails its self-test") && !said.contains("gemv_f16_r64 fails"), "{said}");
    assert_eq!(answer(&found), "42");
}

/// The driver lets kernels start before the preceding ones have ended, and here their wait does nothing.
#[test]
fn early_starts_that_do_not_wait_are_found_and_left_out() {
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let early = |output: &Output| text(&output.stderr).contains("begun early");
    let trace = ("UQAC_HOST_CUDA_TRACE", "1");
    let Some(right) = ask(whole.path(), &[trace], "cuda") else { return };
    assert!(early(&right), "no kernel started early");
    let found = ask(broken.path(), &[("UQAC_HOST_CUDA_EARLY", "broken")], "cuda").unwrap();
    let said = text(&found.stderr);
    assert!(said.contains("kernels that start before the previous one has ended fail their self-test"), "{said}");
    assert_eq!((answer(&found), answer(&right)), ("42".to_owned(), "42".to_owned()));
    // cached, like a kernel's verdict
    let again = ask(broken.path(), &[], "cuda").unwrap();
    assert!(text(&again.stderr).contains("run one after the other"), "{}", text(&again.stderr));
    let one_by_one = ask(whole.path(), &[trace, ("UQAC_EARLY_STARTS", "0")], "cuda").unwrap();
    assert!(!early(&one_by_one));
    assert_eq!(answer(&one_by_one), "42");
}

/// The check continues in other processes after a fault and a hang, and finds exactly the broken kernels.
#[test]
fn the_check_of_a_device_finds_every_broken_kernel_and_no_other() {
    let cache = tempfile::tempdir().unwrap();
    let environment = [
        ("UQAC_HOST_CUDA_BREAK", "layer_sums,attn_prefill_kf16_vf16_d64_t2"),
        ("UQAC_HOST_CUDA_FAULT", "rms_norm"),
        ("UQAC_HOST_CUDA_HANG", "head_mass"),
        ("UQAC_SELF_TEST_SECONDS", "15"),
    ];
    let Some(output) = uqac(cache.path(), &environment, &["devices", "--check", "--json"]) else { return };
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success() && found["ok"] == false, "{found}");
    let kernels = found["checked"][0]["kernels"].as_array().unwrap();
    let names = |of: fn(&Value) -> bool| -> Vec<&str> {
        kernels.iter().filter(|k| of(k)).filter_map(|k| k["kernel"].as_str()).collect()
    };
    // the test of head_finish uses the masses of head_mass
    assert_eq!(names(|k| k["fault"].is_string()), ["head_finish", "head_mass", "rms_norm"], "{found}");
    let wrong = names(|k| k["ok"] == false && k["fault"].is_null());
    assert_eq!(wrong, ["attn_prefill_kf16_vf16_d64_t2", "layer_sums"], "{found}");
    // kernels that depend on the results of an excluded one are not tested, the rest are
    let tested = |name: &str| kernels.iter().any(|k| k["kernel"] == name && k["ok"] == true);
    assert!(!tested("delta_rule") && tested("delta_mix") && tested("rms_norm_f16"), "{found}");
    assert!(kernels.len() > 90, "{} kernels", kernels.len());
    let worst = &kernels.iter().find(|k| k["kernel"] == "layer_sums").unwrap()["worst"];
    assert!(worst["case"].is_string() && worst["index"].is_u64() && worst["expected"].is_f64(), "{worst}");
    // even the loosest bound would not hide a lost 16-bit term
    let wide = |kernel: &&Value| kernel["bound"].as_f64().is_none_or(|bound| bound > 1.0 / 512.0);
    assert_eq!(kernels.iter().filter(wide).count(), 0, "{found}");
}
