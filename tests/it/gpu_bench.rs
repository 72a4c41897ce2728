//! `benches/gpu.sh` without a GPU: every figure on the host-run driver in shrunken shapes, its reports of failed steps,
//! and its totals over known values.

#[path = "../../benches/gpu/compare.rs"]
mod compare;
#[allow(dead_code, reason = "the library is loaded by the benchmark alone")]
#[path = "../../benches/gpu/cupti.rs"]
mod cupti;
#[allow(dead_code, reason = "a part is the benchmark's alone")]
#[path = "../../benches/gpu/report.rs"]
mod report;
#[path = "../../benches/gpu/timeline.rs"]
mod timeline;

use cupti::KernelRun;
use report::{Report, Row};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use test_support::{cuda_host, long_tests, read_json};

fn script() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gpu.sh"));
    command.env_remove("UQAC_TEST_DRIVER").env_remove("CUPTI");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The only file with this extension.
fn result(folder: &Path, ending: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// A libcupti that reports known times.
fn known_cupti(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu_bench/libcupti.cpp");
    let library = folder.join("libcupti.so");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| String::from("g++"));
    let flags = ["-std=c++17", "-Wall", "-shared", "-fPIC", "-o"];
    let built = Command::new(compiler).args(flags).arg(&library).arg(source).status().unwrap();
    assert!(built.success());
    library
}

/// Rows of the fully measured shape that have a floor, by name prefix.
const ROWS: [&str; 16] = [
    "decode, batch 1, plain",
    "decode, batch 1, with UQAC's trace",
    "UQAC on against off, batch 1, decode time",
    "UQAC on against off, batch 1, peak memory",
    "chain + similarity + ensemble, 3 variants, 20 tokens",
    "prefill, 40 tokens",
    "decode, batch 3, plain",
    "decode, batch 3, with UQAC's trace",
    "UQAC on against off, batch 3, decode time",
    "decode at 80 tokens, with UQAC's trace",
    "UQAC on against off at 80 tokens, decode time",
    "traced pass and chain, 64 tokens",
    "peak memory, 64 tokens",
    "response of 64 tokens, traced",
    "response of 64 tokens, peak memory",
    "launch gaps in a decode step (graph)",
];

#[test]
fn every_figure_is_taken_on_the_host_run_driver() {
    if !long_tests() {
        return;
    }
    let Some(driver) = cuda_host::library_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("results");
    let output = script()
        .args(["--quick", "--device", "cuda", "--stages", "figures,profile,long", "--shapes", "llama-3.1-8b"])
        .args(["--k-cache", "f32", "--v-cache", "f16", "--out"])
        .arg(&out)
        .env("LD_LIBRARY_PATH", driver)
        .env("CUPTI", known_cupti(folder.path()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let json = read_json(&result(&out, ".json"));
    let rows = json["rows"].as_array().unwrap();
    let find = |what: &str| {
        let row = rows.iter().find(|row| row["what"] == what && row["shape"] == "llama-3.1-8b");
        row.unwrap_or_else(|| panic!("no row {what}"))
    };
    let number = |value: &Value| value.as_f64().unwrap();
    for row in rows {
        for key in ["least", "median", "most"] {
            assert!(number(&row[key]).is_finite(), "{row}");
        }
        assert!(!row["unit"].as_str().unwrap().ends_with("/s") || number(&row["least"]) > 0.0, "{row}");
        // targets apply only to a run at full size on a GPU
        assert!(row["target"].is_null() || row["target"]["met"].is_null(), "{row}");
    }
    for what in ROWS {
        let row = find(what);
        // without torch there is no matrix rate, the floor of compute-bound work
        let arithmetic = what.starts_with("prefill") || what.starts_with("traced pass");
        assert!(arithmetic || number(&row["floor"]["value"]).is_finite(), "{row}");
    }
    let gaps = find("launch gaps in a decode step (graph)");
    assert_eq!(number(&gaps["facts"]["kernels"]), 3.0);
    assert!((number(&gaps["facts"]["% while recorded"]) - 5.0).abs() < 1e-9);
    assert_eq!(number(&find("kernel gemv_f16")["median"]), 0.6);
    assert_eq!(json["about"]["cache, llama-3.1-8b"], "K f32, V f16");
    assert_eq!(json["about"]["card"], "none that nvidia-smi lists");
    let table = std::fs::read_to_string(result(&out, ".md")).unwrap();
    for what in ROWS {
        assert!(table.contains(&format!("| {what}")), "{what} is not in {table}");
    }
    assert!(json["problems"].as_array().unwrap().is_empty(), "{}", json["problems"]);
}

/// A stand-in for `gpu` with this `run`.
fn stand_in(folder: &Path, run: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let binaries = folder.join("bin");
    std::fs::create_dir(&binaries).unwrap();
    let program = format!(
        "#!/bin/bash\ncase $1 in\n  run) {run} ;;\n  device) echo 'a stand-in, 1 multiprocessor' ;;\n  \
         report) mkdir -p \"${{3%/*}}\" && printf '%s\\n' \"$@\" > \"$3\" && : > \"$5\" ;;\nesac\n"
    );
    std::fs::write(binaries.join("gpu"), program).unwrap();
    std::fs::set_permissions(binaries.join("gpu"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(binaries.join("commit"), "none").unwrap();
    binaries
}

#[test]
fn steps_that_fail_or_take_too_long_are_reported_and_the_next_goes_on() {
    let tried = |run: &str, budget: &str| {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("results");
        let output = script()
            .args(["--device", "cpu", "--quick", "--stages", "contact,figures,long", "--budget", budget, "--binaries"])
            .arg(stand_in(folder.path(), run))
            .arg("--out")
            .arg(&out)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        std::fs::read_to_string(result(&out, ".json")).unwrap()
    };
    let failed = tried("echo some numbers; echo 'it broke' >&2; exit 3", "100");
    for step in ["agreement", "llama-3.1-8b", "other-shapes", "whole-response"] {
        assert!(failed.contains(&format!("step {step}=FAILED, exit code 3: it broke")), "{failed}");
    }
    let late = tried("echo begun; sleep 60", "7");
    assert!(late.contains("step agreement=FAILED, cut off after"), "{late}");
    assert!(late.contains("step llama-3.1-8b=skipped: no time left"), "{late}");
    assert!(late.contains("step kernel-tests=skipped: no GPU"), "{late}");
}

#[test]
fn nothing_runs_after_a_self_test_that_hangs() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (binaries, out) = (stand_in(folder.path(), "exit 0"), folder.path().join("results"));
    std::fs::write(binaries.join("uqac"), "#!/bin/bash\nsleep 60\n").unwrap();
    std::fs::set_permissions(binaries.join("uqac"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = ["--device", "cuda", "--quick", "--stages", "contact,figures", "--budget", "7", "--binaries"];
    let output = script().args(arguments).arg(binaries).arg("--out").arg(&out).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let record = std::fs::read_to_string(result(&out, ".json")).unwrap();
    assert!(record.contains("step self-test=FAILED, cut off after"), "{record}");
    assert!(record.contains("step all other steps=skipped: the self-test hangs"), "{record}");
    assert!(!record.contains("step agreement"), "{record}");
}

#[test]
fn unusable_options_and_machines_are_refused() {
    let refused = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let binaries = stand_in(folder.path(), "exit 0");
        // there is no nvidia-smi to find
        let output = script().args(arguments).arg("--binaries").arg(binaries).env("PATH", "/usr/bin:/bin").output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        said(&output)
    };
    assert!(refused(&["--stages", "contact,fast"]).contains("unknown stage fast"));
    assert!(refused(&["--budget", "soon"]).contains("expected seconds"));
    assert!(refused(&["--what"]).contains("unknown option --what"));
    let no_gpu = Command::new("/usr/bin/which").arg("nvidia-smi").output().is_ok_and(|found| !found.status.success());
    if no_gpu {
        assert!(refused(&["--device", "cuda"]).contains("nvidia-smi lists no GPU"));
    }
}

fn runs(times: &[(&str, u64, u64)]) -> Vec<KernelRun> {
    times.iter().map(|(name, start, end)| KernelRun { name: (*name).to_owned(), start: *start, end: *end }).collect()
}

#[test]
fn gaps_are_what_no_kernel_covers() {
    let overlapping = runs(&[("a", 0, 10), ("b", 5, 8), ("c", 7, 20), ("d", 30, 40)]);
    assert_eq!(timeline::busy(&overlapping), 30);
    let recorded = runs(&[
        ("embed_x", 0, 5),
        ("gemm", 5, 90),
        ("embed_x", 100, 110),
        ("gemv", 110, 190),
        ("embed_x", 200, 210),
        ("gemv", 215, 295),
        ("embed_x", 300, 310),
    ]);
    let steps = timeline::steps(&recorded, 2);
    assert_eq!(steps, [&recorded[2..4], &recorded[4..6]]);
    assert_eq!(timeline::steps(&recorded, 9).len(), 3);
    // 90 of 96 ns
    let rows = timeline::rows("s", &steps, 96e-9, true);
    assert!((rows[0].median - 6.25).abs() < 1e-9 && rows[0].met() == Some(false));
    assert_eq!((rows[1].what.as_str(), rows[1].median), ("kernel gemv", 0.08));
    // 100 ns before the last kernel's end
    assert_eq!(timeline::last_pass(&recorded, 100e-9), &recorded[5..]);
}

#[test]
fn comparisons_find_the_same_work() {
    let fact = |row: Row, peak: f64| row.fact("peak MB", peak);
    let mut rows = vec![
        Row::new("s", "decode, batch 16, with UQAC's trace", "tokens/s", &[2000.0, 3000.0]),
        fact(Row::new("s", "UQAC on against off, batch 16, peak memory", "%", &[0.1]), 21.0),
        Row::new("s", "traced pass and chain, 1024 tokens", "s", &[0.5]),
        Row::new("s", "peak memory, 1024 tokens", "MB", &[17.0]),
        fact(Row::new("s", "transformers, SDPA decode, batch 16", "tokens/s", &[500.0]), 40.0),
        fact(Row::new("s", "transformers, eager pass with attentions, 1024 tokens", "s", &[0.25]), 50.0),
        Row::new("another", "transformers, SDPA decode, batch 16", "tokens/s", &[500.0]),
        Row::new("s", "transformers, eager decode with attentions, batch 1", "tokens/s", &[20.0]),
        Row::new("s", "torch, compiled, CUDA graph, static cache, decode, batch 16", "tokens/s", &[2500.0]),
        Row::new("s", "torch, CUDA graph, static cache, decode, batch 1", "tokens/s", &[90.0]),
    ];
    let found = compare::comparisons(&rows, true);
    let told: Vec<_> = found.iter().map(|row| (row.median, row.met())).collect();
    assert_eq!(told, [(5.0, Some(true)), (0.5, Some(false)), (1.0, Some(false))]);
    let peaks = |row: &Row| (row.facts["our peak MB"], row.facts["their peak MB"]);
    assert_eq!((peaks(&found[0]), peaks(&found[1])), ((21.0, 40.0), (17.0, 50.0)));
    rows.extend(found);
    let table = Report { rows, ..Report::default() }.markdown();
    assert!(
        table.contains("Targets met: 1 of 3. Missed: s · traced pass and chain, 1024 tokens: times as fast"),
        "{table}"
    );
}
