//! `uqac bench` on a tiny model: every stage is present and its figures are consistent. Timings are not
//! tested.

use serde_json::Value;
use shapes::checkpoint;
use std::path::Path;
use std::process::{Command, Output};
use test_support::tiny;

#[allow(dead_code)] // the rest is the GPU benchmark's
#[path = "../../benches/shapes/mod.rs"]
mod shapes;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.arg("bench").args(arguments).env_remove("UQAC_MODEL").env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const STAGES: [&str; 12] = [
    "prefill",
    "decode",
    "decode, traced",
    "decode, wide trace",
    "decode, head trace",
    "decode, layer trace",
    "score",
    "chain",
    "similarity",
    "ensemble",
    "self-consistency",
    "verbalized",
];

#[test]
fn every_stage_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let model = folder.path().to_str().unwrap();
    let few = ["--device", "cpu", "--buffer", "16", "--rounds", "3", "--prompt-tokens", "24", "--gen-tokens", "9"];
    let more = ["--batch", "2", "--variants", "3", "--sweep", "16,40", "--json"];
    let output = bench(&[&["--model", model][..], &few, &more].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("round 3 of 3"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> = report["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names, STAGES);
    for stage in report["stages"].as_array().unwrap() {
        let seconds = &stage["seconds"];
        let [least, median, most] = ["least", "median", "most"].map(|key| seconds[key].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= most, "{stage}");
        if let Some(tokens) = stage["tokens"].as_f64() {
            let rate = stage["tokens_per_second"].as_f64().unwrap();
            assert!((rate * median / tokens - 1.0).abs() < 1e-9, "{stage}");
        }
        assert!(stage["peak_bytes"].as_u64().is_none_or(|bytes| bytes > 1 << 20), "{stage}");
    }
    let decode = &report["stages"][1];
    assert_eq!(decode["tokens"], 18, "two sequences of nine");
    // bytes of every matrix except the embedding, and some of the cache
    let step = decode["gb_per_second"].as_f64().unwrap() * 1e9 * decode["seconds"]["median"].as_f64().unwrap() / 9.0;
    assert!(step > report["weight_bytes_per_step"].as_f64().unwrap());
    let contexts: Vec<u64> =
        report["sweep"].as_array().unwrap().iter().map(|r| r["context"].as_u64().unwrap()).collect();
    assert_eq!(contexts, [16, 40]);
    assert!(report["sweep"][1]["score"]["seconds"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn random_weights_have_the_published_shape() {
    for shape in ["qwen2.5-7b", "qwen3-30b-a3b", "qwen3.5-0.8b", "gemma-4-e2b", "gemma-4-26b-a4b"] {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        checkpoint::write(&model, &shapes::find(&format!("{shape}/small")).unwrap(), 0).unwrap();
        let sizes = ["--rounds", "1", "--prompt-tokens", "8", "--gen-tokens", "6", "--variants", "1", "--samples", "1"];
        let model = ["--model", model.to_str().unwrap(), "--device", "cpu", "--buffer", "1"];
        let output = bench(&[&model[..], &sizes].concat());
        assert!(output.status.success(), "{shape}: {}", text(&output.stderr));
        let table = text(&output.stdout);
        assert!(STAGES.iter().all(|stage| table.contains(stage)), "{shape}: {table}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny::write_model(folder.path());
    let fails = |arguments: &[&str], says: &str| {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    };
    let model = |path: &Path| path.to_str().unwrap().to_owned();
    let model = model(folder.path());
    let with =
        |more: &[&'static str]| [&["--model", model.as_str(), "--buffer", "1", "--device", "cpu"], more].concat();
    fails(&with(&["--prompt-tokens", "5000"]), "the model's context");
    fails(&with(&["--gen-tokens", "1"]), "from 5 to ");
    fails(&with(&["--batch", "0"]), "from 1 to 1024");
    fails(&with(&["--sweep", "4q"]), "512 or 4k");
    fails(&with(&["--sweep", "9"]), "at least 16 tokens");
}

#[test]
fn every_published_config_is_read_and_shrinks() {
    for name in shapes::names() {
        let shape = shapes::find(name).unwrap();
        let small = shapes::find(&format!("{name}/small")).unwrap();
        assert_eq!(small.spec.head_dim, shape.spec.head_dim);
        assert!(small.byte_len() < 1 << 25 && shape.byte_len() > 1 << 30, "{name}");
    }
    let (e2b, eight) = (shapes::find("gemma-4-e2b/10").unwrap().spec, shapes::find("llama-3.1-8b/8").unwrap().spec);
    assert_eq!((e2b.layers.len(), e2b.layers[9].kv_layer, eight.layers.len()), (10, 4, 8));
    for unknown in ["gpt-5", "llama-3.1-8b/0", "llama-3.1-8b/33", "llama-3.1-8b/large"] {
        assert!(shapes::find(unknown).is_none(), "{unknown}");
    }
}
