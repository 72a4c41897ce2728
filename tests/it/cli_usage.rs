//! The command line without a model: help, usage errors, and their messages for people and scripts.

use std::path::Path;
use std::process::{Command, Output};

/// Runs `uqac` in an environment where it finds no model.
fn uqac(arguments: &[&str]) -> Output {
    let nowhere = "/no/such/folder";
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_clear().env("HF_HUB_CACHE", nowhere).args(arguments);
    command.output().unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], says: &[&str]) {
    let output = uqac(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(output.stdout.is_empty());
    for part in says {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

#[test]
fn help_names_commands_options_and_exit_codes() {
    let output = uqac(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["ask", "score", "inspect", "Exit codes", "UQAC_MODEL", "NO_COLOR"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (command, options) in [
        ("ask", &["--model", "--profile", "--max-tokens", "--temperature", "--top-p", "--top-k", "--seed"][..]),
        ("ask", &["--system", "--no-chat-template", "--json", "--k-cache", "--v-cache", "--threads", "--device"]),
        ("score", &["--model", "--profile", "--device", "--input", "--output", "--explain", "--trace", "--limit"]),
        ("score", &["--overwrite", "--resume", "--k-cache", "--v-cache", "--threads"]),
        ("inspect", &["--context", "--json"]),
        ("eval", &["--tasks", "bbh:SUBTASK", "--methods", "Majority vote over sampled answers", "--sweep"]),
    ] {
        let output = uqac(&[command, "--help"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(options.iter().all(|option| text.contains(option)), "{command}: {text}");
    }
    let version = |flag| String::from_utf8(uqac(&[flag]).stdout).unwrap();
    assert_eq!(version("-V"), format!("uqac {}\n", env!("CARGO_PKG_VERSION")));
    let long = version("--version");
    assert!(long.starts_with(&version("-V")) && long.contains("\ncommit: "), "{long}");
}

#[test]
fn no_model_and_missing_models_say_how_to_get_one() {
    // ask has a built-in model, but no folder here to unpack it into
    fails(&["ask", "1+1?"], &["abacus", "UQAC_CACHE", "--model"]);
    fails(&["ask", "--model", "org/name", "1+1?"], &["org/name", "hf download org/name"]);
    fails(&["inspect", "org/name"], &["hf download org/name"]);
    fails(&["inspect", "SmolLM2-135M"], &["begins with its owner", "hf download OWNER/SmolLM2-135M"]);
    fails(&["inspect", "/no/such/model"], &["no such folder: /no/such/model"]);
    fails(&["score", "--input", "x", "--output", "y"], &["--model", "UQAC_MODEL", "hf download"]);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    fails(&[], &["Usage"]);
    fails(&["nonsense"], &["nonsense"]);
    fails(&["aks", "1+1?"], &["unrecognized subcommand 'aks'", "'ask'"]);
    fails(&["ask", "--set", "k=64", "--", "1+1?"], &["a number of heads from 1 to 32, found \"64\""]);
    fails(&["ask", "--set", "k=8", "1+1?"], &["a question comes before --set"]);
    fails(&["ask", "--ensemble", "maybe", "1+1?"], &["expected on or off"]);
    fails(&["ask"], &["QUESTION"]);
    fails(&["ask", "--profile", "mine", "1+1?"], &["mine", "reference", "paper", "corrected"]);
    fails(&["ask", "--temperature", "-1", "1+1?"], &["temperature"]);
    fails(&["ask", "--temperature=NaN", "1+1?"], &["≥ 0"]);
    fails(&["ask", "--top-p", "0", "1+1?"], &["above 0 and at most 1"]);
    fails(&["ask", "--max-tokens", "0", "1+1?"], &["max-tokens"]);
    fails(&["ask", "--k-cache", "int8", "1+1?"], &["int8", "f32", "f16", "bf16"]);
    fails(&["ask", "--device", "tpu", "1+1?"], &["tpu", "auto", "cpu"]);
    fails(&["ask", "--no-chat-template", "--system", "x", "1+1?"], &["cannot be used with"]);
    fails(&["ask", " \n"], &["the question is empty"]);
    fails(&["score", "--model", "m", "--output", "y"], &["--input"]);
    fails(&["score", "--model", "m", "--input", "x", "--output", "y", "--resume", "--overwrite"], &["cannot be used"]);
    fails(&["inspect", "m", "--context", "0"], &["context"]);
    fails(&["eval"], &["--tasks <TASK,..>", "--output <FOLDER>"]);
    fails(&["eval", "--output", "x"], &["--tasks <TASK,..>"]);
    fails(&["eval", "--temperature", "0"], &["above 0"]);
    fails(&["ask", "--trace", "deep", "1+1?"], &["wide, heads, layers"]);
    let tasks = "valid names: gsm8k, math, bbh, bbh:SUBTASK, abacus, ";
    fails(&["eval", "--output", "x", "--tasks", "mmlu"], &["unknown task \"mmlu\"", tasks, "FILE.jsonl"]);
    fails(&["eval", "--methods", "x"], &["uqac, self-consistency, verbalized"]);
    fails(&["eval", "--batch-size", "0"], &["from 1 to 1024"]);
    fails(&["ask", "--samples", "-1", "1+1?"], &["'-1' for '--samples <N>'", "a whole number from 0 to 128"]);
    fails(&["ask", "--seed", "x", "1+1?"], &["a whole number from 0 to 18446744073709551615"]);
    fails(&["eval", "-n", "-1"], &["a whole number from 0"]);
    fails(&["serve", "--port", "99999"], &["a whole number from 0 to 65535"]);
    fails(&["calibrate", "run", "--target-risk", "-1"], &["above 0 and below 1"]);
    for option in ["--samples", "--temperature"] {
        let unused = ["eval", "--tasks", "abacus", "--output", "x", "--methods", "verbalized", option, "5"];
        fails(&unused, &["--methods self-consistency"]);
    }
    fails(&["--color", "pink", "devices"], &["pink", "auto, always, never"]);
}

#[test]
fn files_are_looked_at_before_a_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // enough of a model to be found, but not enough to be loaded
    std::fs::create_dir(path("model")).unwrap();
    std::fs::write(path("model/config.json"), "{}").unwrap();
    std::fs::write(path("in.jsonl"), "{\"id\": 1}\n").unwrap();
    std::fs::write(path("out.jsonl"), "{\"id\":1,\"profile\":\"paper\",\"status\":\"ok\"}\n").unwrap();
    let score = |input: &str, output: &str, more: &[&str], says: &[&str]| {
        let (model, input, output) = (path("model"), path(input), path(output));
        fails(&[&["score", "--model", &model, "--input", &input, "--output", &output], more].concat(), says);
    };
    score("absent.jsonl", "new.jsonl", &[], &["absent.jsonl"]);
    score("model", "new.jsonl", &[], &["model", "directory"]);
    score("in.jsonl", "out.jsonl", &[], &["out.jsonl", "--resume", "--overwrite"]);
    score("in.jsonl", "out.jsonl", &["--resume"], &["expected corrected, found paper"]);
    score("in.jsonl", "in.jsonl", &["--overwrite"], &["same file"]);
    score("in.jsonl", "in.jsonl", &["--resume"], &["same file"]);
    score("in.jsonl", "out.jsonl", &["--overwrite"], &["config.json"]);
    let kept = std::fs::read_to_string(path("out.jsonl")).unwrap();
    assert!(kept.contains("paper"), "a model that cannot be loaded overwrites nothing");
    assert!(!Path::new(&path("new.jsonl")).exists());
    let output = uqac(&["score", "--model", &path("model"), "--input", &path("in.jsonl"), "--output", "-", "--resume"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("only a regular file can be resumed"));
}

const COMMANDS: [&str; 9] = ["ask", "score", "serve", "eval", "calibrate", "inspect", "devices", "bench", "report"];

#[test]
fn every_help_has_an_example_and_shows_what_is_required() {
    for command in COMMANDS {
        let short = String::from_utf8(uqac(&[command, "-h"]).stdout).unwrap();
        assert!(short.lines().count() <= 40, "one screen: {short}");
        for flag in ["-h", "--help"] {
            let text = String::from_utf8(uqac(&[command, flag]).stdout).unwrap();
            assert!(text.contains("Example") && text.contains(&format!("  uqac {command} ")), "{text}");
            assert!(text.contains("--quiet") && text.contains("--verbose") && text.contains("--color"), "{text}");
        }
    }
    for (command, usage) in [
        ("eval", "Usage: uqac eval [OPTIONS] --tasks <TASK,..> --output <FOLDER>\n"),
        ("score", "Usage: uqac score [OPTIONS] --input <FILE> --output <FILE>\n"),
        ("ask", "Usage: uqac ask [OPTIONS] <QUESTION>\n"),
    ] {
        let text = String::from_utf8(uqac(&[command, "--help"]).stdout).unwrap();
        assert!(text.contains(usage), "{text}");
    }
    for (command, own) in [("ask", "--seed"), ("score", "--input"), ("eval", "--sweep"), ("bench", "--rounds")] {
        let text = String::from_utf8(uqac(&[command, "--help"]).stdout).unwrap();
        assert!(text.find(own) < text.find("\nModel and device:"), "its own options are not among the model's: {text}");
    }
    let text = String::from_utf8(uqac(&["eval", "--help"]).stdout).unwrap();
    for heading in ["\nModel and device:", "\nMethod:", "\nMessages:", "\nOptions:"] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
}
