//! Shared by the tests: the locations of the oracle's data and the real models, and how a test reports that it was
//! skipped.

pub mod cuda_host;
pub mod tiny;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The tests that were not run, or not in full, by reason.
static SKIPPED: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::new(BTreeMap::new());

/// Notes that the current test is skipped, or part of it. All are listed when the test program ends, below the runner's summary.
pub fn skipped(why: impl std::fmt::Display) {
    extern "C" fn list() {
        let mut list = String::from("not checked by these tests:\n");
        for (why, tests) in SKIPPED.lock().unwrap().iter() {
            list += &format!("  {why}: {}\n", tests.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
        }
        // nobody is left to be told of an error
        let _ = std::io::stderr().write_all(list.as_bytes());
    }
    eprintln!("SKIPPED: {why}");
    let mut skipped = SKIPPED.lock().unwrap();
    if skipped.is_empty() {
        // SAFETY: the function takes nothing and does not unwind; statics outlive it.
        unsafe { libc::atexit(list) };
    }
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    skipped.entry(why.to_string()).or_default().insert(test);
}

/// The oracle's data, in $UQAC_GOLDEN or next to the repository; `None` (with a printed note) if it is not there.
pub fn golden() -> Option<PathBuf> {
    shared("golden", "UQAC_GOLDEN")
}

/// Benchmarks in their publishers' formats, in $UQAC_DATA or next to the repository; `None` (with a printed note) if
/// they are not there.
pub fn benchmarks() -> Option<PathBuf> {
    shared("data", "UQAC_DATA")
}

/// Chat templates with Jinja2's results, in $UQAC_LEAN or next to the repository; `None` (with a printed note) if they
/// are not there.
pub fn templates() -> Option<PathBuf> {
    shared("lean", "UQAC_LEAN")
}

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn shared(folder: &str, variable: &str) -> Option<PathBuf> {
    let beside = || repository().join("../shared").join(folder);
    let path = std::env::var_os(variable).map_or_else(beside, PathBuf::from);
    if path.is_dir() {
        return Some(path);
    }
    skipped(format_args!("{} is not there", path.display()));
    None
}

/// A real model's folder, from $UQAC_MODELS or ~/.cache/uqac-models; `None` (with a printed note) if it is not there.
pub fn model(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("UQAC_MODELS")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/uqac-models")))?;
    let path = root.join(name);
    if path.join("model.safetensors").is_file() {
        return Some(path);
    }
    skipped(format_args!("no model in {}", path.display()));
    None
}

/// Whether to run the current test's long variant, as before a release: if $UQAC_LONG_TESTS is 1, or has a word that is part of
/// the test's name; else it is noted as skipped.
pub fn long_tests() -> bool {
    let which = std::env::var("UQAC_LONG_TESTS").unwrap_or_default();
    let test = std::thread::current();
    let named = |word: &str| test.name().is_some_and(|test| test.contains(word));
    let wanted = which == "1" || which.split_whitespace().any(named);
    if !wanted {
        skipped("long variants; set UQAC_LONG_TESTS=1");
    }
    wanted
}

pub fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The lines of a `.jsonl.gz` file.
pub fn read_lines(path: &Path) -> Vec<Value> {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

pub fn token_ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}
