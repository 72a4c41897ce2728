//! What must never happen to a user's files, and what hostile input must not do to the program: each test covers a
//! defect found by attack.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use test_support::tiny;

/// A folder with a model that has byte tokens and a chat template.
struct Setup {
    folder: TempDir,
}

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant: {% endif %}";

/// With a random model only the last number is an answer, and every response is cut off: the authors count it.
const ANY_NUMBER: [&str; 2] = ["--rule", "extraction=published"];

impl Setup {
    fn new() -> Setup {
        let setup = Setup { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(setup.path("model")).unwrap();
        tiny::write_model(&setup.path("model"));
        setup.configure_tokenizer(json!({}));
        setup
    }

    fn configure_tokenizer(&self, more: Value) {
        let mut config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(self.path("model/tokenizer_config.json"), config.to_string()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        command.current_dir(self.folder.path()).env("UQAC_MODEL", "model").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn uqac(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn score(&self, more: &[&str]) -> Output {
        self.uqac(&[&["score", "--threads", "1", "--device", "cpu"], more].concat())
    }

    /// Runs `eval` on its own sums into `run`.
    fn eval(&self, more: &[&str]) -> Output {
        let line = |i: usize| json!({"question": format!("{i} pencils?"), "answer": i, "grader": "number"});
        self.write("sums.jsonl", (0..4).map(|i| line(i).to_string() + "\n").collect::<String>());
        let fixed = ["eval", "--max-tokens", "24", "--threads", "1", "--device", "cpu", "--tasks", "sums.jsonl"];
        self.uqac(&[&fixed[..], &ANY_NUMBER, &["--output", "run"], more].concat())
    }
}

fn items(n: usize) -> String {
    let item = |i| json!({"id": i, "prompt": format!("Question {i}?"), "response": "The answer is 4."});
    (0..n).map(|i| item(i).to_string() + "\n").collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn fails(output: &Output, code: i32, says: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    says.iter().for_each(|part| assert!(message.contains(part), "{message:?} does not say {part:?}"));
    assert!(!message.contains("panicked"), "{message}");
}

#[track_caller]
fn succeeds(output: &Output) {
    fails(output, 0, &[]);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

// ---- output that feeds input ----

#[cfg(unix)]
#[test]
fn an_output_that_is_the_input_under_another_name_is_refused() {
    let setup = Setup::new();
    setup.write("a.jsonl", items(2));
    std::fs::hard_link(setup.path("a.jsonl"), setup.path("hard.jsonl")).unwrap();
    std::os::unix::fs::symlink("a.jsonl", setup.path("soft.jsonl")).unwrap();
    for output in ["hard.jsonl", "soft.jsonl", "./a.jsonl", "a.jsonl"] {
        fails(&setup.score(&["--input", "a.jsonl", "--output", output, "--overwrite"]), 2, &["same file"]);
    }
    // through the shell's redirections
    let redirected = |arguments: &[&str], input: &str, output: Option<&str>| {
        let mut command = setup.command(&[&["score", "--device", "cpu"], arguments].concat());
        command.stdin(std::fs::File::open(setup.path(input)).unwrap());
        if let Some(output) = output {
            command.stdout(std::fs::File::options().append(true).open(setup.path(output)).unwrap());
        }
        command.output().unwrap()
    };
    let onto = redirected(&["--input", "-", "--output", "a.jsonl", "--overwrite"], "a.jsonl", None);
    fails(&onto, 2, &["same file"]);
    fails(&redirected(&["--input", "a.jsonl", "--output", "-"], "a.jsonl", Some("hard.jsonl")), 2, &["same file"]);
    fails(&redirected(&["--input", "-", "--output", "-"], "a.jsonl", Some("a.jsonl")), 2, &["same file"]);
    assert_eq!(setup.read("a.jsonl"), items(2));
    // two files are distinct even with the same content
    setup.write("b.jsonl", items(2));
    succeeds(&setup.score(&["--input", "a.jsonl", "--output", "b.jsonl", "--overwrite"]));
}

// ---- the cache ----

fn ask_abacus(cache: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_clear().env("UQAC_CACHE", cache).args([
        "ask",
        "--json",
        "--device",
        "cpu",
        "--max-tokens",
        "8",
        "1 + 1?",
    ]);
    command.output().unwrap()
}

#[test]
fn a_template_planted_in_the_cache_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    succeeds(&ask_abacus(cache.path()));
    let models = cache.path().join("models");
    let model = std::fs::read_dir(&models).unwrap().next().unwrap().unwrap().path();
    let planted = [("chat_template.jinja", "{{ raise_exception('planted') }}"), ("model.safetensors.index.json", "{")];
    for (name, text) in planted {
        std::fs::write(model.join(name), text).unwrap();
        succeeds(&ask_abacus(cache.path()));
        assert!(!model.join(name).exists());
    }
    assert_eq!(std::fs::read_dir(&models).unwrap().count(), 1, "nothing is left over");
}

#[cfg(unix)]
#[test]
fn a_link_in_the_cache_is_not_written_through() {
    let (cache, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(elsewhere.path(), cache.path().join("models")).unwrap();
    fails(&ask_abacus(cache.path()), 2, &["models", "a link is not followed", "UQAC_CACHE"]);
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

// ---- score's manifest ----

#[test]
fn score_does_not_mix_models_options_or_inputs() {
    let setup = Setup::new();
    setup.write("in.jsonl", items(3));
    let score = |more: &[&str]| setup.score(&[&["--input", "in.jsonl", "--output", "out.jsonl"], more].concat());
    succeeds(&score(&["--limit", "2"]));
    let before = setup.read("out.jsonl");
    for (more, says) in [
        (&["--weights", "q8"][..], "model.weight_format: the earlier run has null, this one \"q8\""),
        (&["--k-cache", "bf16"], "model.k_cache: the earlier run has \"f32\", this one \"bf16\""),
        (&["--no-chat-template"], "options.chat_template"),
        (&["--explain"], "options.trace"),
    ] {
        fails(&score(&[&["--resume"], more].concat()), 2, &["out.jsonl", says]);
    }
    setup.configure_tokenizer(json!({"add_bos_token": true}));
    fails(&score(&["--resume"]), 2, &["model.tokenizer_config"]);
    setup.configure_tokenizer(json!({}));
    setup.write("in.jsonl", items(3).replace("Question 0", "Quest 0"));
    fails(&score(&["--resume"]), 2, &["options.input.hash"]);
    assert_eq!(setup.read("out.jsonl"), before);

    // an input that has grown still matches, repeatedly
    for n in [4, 5] {
        setup.write("in.jsonl", items(n));
        succeeds(&score(&["--resume"]));
        assert_eq!(setup.read("out.jsonl").lines().count(), n);
    }
    assert!(setup.read("out.jsonl").starts_with(&before));
    setup.write("in.jsonl", items(2));
    fails(&score(&["--resume"]), 2, &["options.input"]);
    // --overwrite starts over, and so does an empty output
    succeeds(&score(&["--overwrite", "--explain"]));
    succeeds(&score(&["--resume", "--explain"]));
    setup.write("out.jsonl", "");
    succeeds(&score(&["--resume"]));
    // an output of a version that wrote no manifest is accepted, with a note
    std::fs::remove_file(setup.path("out.jsonl.manifest.json")).unwrap();
    let resumed = score(&["--resume"]);
    fails(&resumed, 0, &["no manifest beside it"]);
    // a pipe has no manifest
    let piped = setup.score(&["--input", "in.jsonl", "--output", "-"]);
    assert_eq!(piped.stdout.iter().filter(|byte| **byte == b'\n').count(), 2);
    assert!(!setup.path("-.manifest.json").exists());
}

// ---- runs ----

#[test]
fn a_run_is_of_one_tokenizer_and_one_generation_config() {
    let setup = Setup::new();
    succeeds(&setup.eval(&[]));
    setup.configure_tokenizer(json!({"add_bos_token": true}));
    fails(&setup.eval(&[]), 2, &["model.tokenizer_config", "new --output"]);
    fails(&setup.eval(&["--sweep", "k=4"]), 2, &["model.tokenizer_config"]);
    setup.configure_tokenizer(json!({}));
    setup.write("model/generation_config.json", json!({"eos_token_id": [7]}).to_string());
    fails(&setup.eval(&[]), 2, &["model.generation_config: the earlier run has \"absent\", this one "]);
    std::fs::remove_file(setup.path("model/generation_config.json")).unwrap();
    // a folder of an older version, which did not record them, is continued
    let mut manifest: Value = serde_json::from_str(&setup.read("run/manifest.json")).unwrap();
    for hash in ["generation_config", "weights_index", "tokenizer_config"] {
        assert!(manifest["model"].as_object_mut().unwrap().remove(hash).is_some(), "{hash}");
    }
    setup.write("run/manifest.json", manifest.to_string());
    succeeds(&setup.eval(&[]));
}

#[test]
fn samples_that_were_changed_are_errors_and_no_panics() {
    let setup = Setup::new();
    succeeds(&setup.eval(&[]));
    let file = "run/samples_sums.jsonl";
    let before = setup.read(file);
    let samples: Vec<Value> = before.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let which = samples.iter().position(|sample| sample["uq"]["status"] == "ok").expect("the test needs an answer");
    let start = samples[which]["uq"]["n_instr"].as_u64().unwrap();
    let len = samples[which]["uq"]["tokens"]["ids"].as_array().unwrap().len() as u64;
    let with = |pointer: &str, value: Value| {
        let mut samples = samples.clone();
        *samples[which].pointer_mut(pointer).unwrap() = value;
        setup.write(file, samples.iter().map(|sample| sample.to_string() + "\n").collect::<String>());
    };
    for (pointer, value, says) in [
        ("/uq/answer/tokens", json!([0, 2]), "uq.answer.tokens: expected [start, end)"),
        ("/uq/answer/tokens", json!([start + 2, start + 1]), "uq.answer.tokens"),
        ("/uq/answer/tokens", json!([start, start + len + 1]), "uq.answer.tokens"),
        ("/uq/answer/tokens", json!([start, u64::MAX]), "uq.answer.tokens"),
        ("/uq/answer", Value::Null, "uq.answer: expected one"),
        ("/uq/tokens/ids", json!([1]), "uq.tokens.offsets: expected 1"),
        ("/uq/tokens/logprobs", json!([]), "uq.tokens.logprobs"),
        ("/uq/tokens/offsets/0", json!([0, 1_000_000]), "uq.tokens.offsets"),
        ("/uq/kept", json!([len]), "rows from -1"),
        ("/uq/kept", json!([-2]), "rows from -1"),
    ] {
        with(pointer, value);
        fails(&setup.eval(&["--sweep", "k=4"]), 2, &["samples_sums.jsonl", "line", says]);
        // a report omits the line and says why
        fails(&setup.uqac(&["report", "run", "--format", "csv"]), 0, &["left out", says]);
    }
    // a changed number of prompt tokens
    with("/uq/n_instr", json!(start - 1));
    let swept = setup.eval(&["--sweep", "k=4"]);
    assert_eq!(swept.status.code(), Some(2), "{}", stderr(&swept));
    with("/arguments/0/0", json!("another prompt"));
    fails(&setup.eval(&["--sweep", "k=4"]), 2, &["sums", "n_instr", "the prompt has 14 tokens"]);
    setup.write(file, before);
    succeeds(&setup.eval(&["--sweep", "k=4"]));
}

#[test]
fn a_report_replaces_no_file_unasked_and_no_samples_ever() {
    let setup = Setup::new();
    succeeds(&setup.eval(&[]));
    let samples = setup.read("run/samples_sums.jsonl");
    for more in [&[][..], &["--overwrite"]] {
        for file in ["run/samples_sums.jsonl", "run/manifest.json"] {
            let report = [&["report", "run", "--format", "csv", "--output", file], more].concat();
            fails(&setup.uqac(&report), 2, &[file, "of the run itself"]);
        }
    }
    assert_eq!(setup.read("run/samples_sums.jsonl"), samples);
    setup.write("notes.txt", "mine");
    let report = ["report", "run", "--output", "notes.txt"];
    fails(&setup.uqac(&report), 2, &["notes.txt", "--overwrite"]);
    assert_eq!(setup.read("notes.txt"), "mine");
    succeeds(&setup.uqac(&[&report[..], &["--overwrite"]].concat()));
    assert!(setup.read("notes.txt").contains("sums"));
    // a page's folder belongs to the page
    for _ in 0..2 {
        succeeds(&setup.uqac(&["report", "run", "--format", "html", "--output", "page"]));
    }
}

// ---- gzip ----

#[test]
fn an_output_that_is_called_gz_and_is_not_is_left_alone() {
    let setup = Setup::new();
    setup.write("in.jsonl", items(2));
    for text in ["mine", "m", "a longer text that is no gzip", "{\"id\":1}\n"] {
        setup.write("out.jsonl.gz", text);
        fails(&setup.score(&["--input", "in.jsonl", "--output", "out.jsonl.gz", "--resume"]), 2, &["not gzip"]);
        assert_eq!(setup.read("out.jsonl.gz"), text);
    }
}

#[test]
fn whole_lines_before_a_cut_are_scored() {
    let setup = Setup::new();
    // random digits do not compress well, so that the cut falls within the last line
    let noise: String = (0u64..400).map(|i| format!("{:x}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
    let last = json!({"id": 9, "prompt": noise, "response": "4"}).to_string() + "\n";
    let packed = gzip((items(3) + &last).as_bytes());
    setup.write("in.jsonl.gz", &packed[..packed.len() - 200]);
    let output = setup.score(&["--input", "in.jsonl.gz", "--output", "out.jsonl"]);
    fails(&output, 2, &["3 items in", "in.jsonl.gz: cannot read line 4"]);
    assert_eq!(setup.read("out.jsonl").lines().count(), 3);
}

/// Runs with memory and CPU time limits.
#[cfg(target_os = "linux")]
#[track_caller]
fn within_limits(setup: &Setup, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.current_dir(setup.folder.path()).env("UQAC_MODEL", "model");
    // KiB of address space, with every thread's reserve; seconds, for unoptimized builds
    let script = format!("ulimit -v {}; ulimit -t 30; exec \"$@\"", 1500 << 10);
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_uqac")]).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.code().is_some(), "killed: {}", stderr(&output));
    output
}

#[cfg(target_os = "linux")]
#[test]
fn bombs_are_errors_of_their_items() {
    let setup = Setup::new();
    let many = |element: &str, bytes: usize| element.repeat(bytes / element.len());
    let good = json!({"id": "good", "prompt": "Why?", "response": "The answer is 4."}).to_string();
    let lines = [
        format!(r#"{{"id": "ids", "n_instr": 1, "input_ids": [{}1]}}"#, many("1,", 3 << 20)),
        format!(r#"{{"id": "nested", "n_instr": 1, "input_ids": [[{}1]]}}"#, many("1,", 3 << 20)),
        format!(r#"{{"id": "messages", "response": "y", "messages": [{}{{}}]}}"#, many("{},", 3 << 20)),
        format!(
            r#"{{"id": "roles", "response": "y", "messages": [{0}{0}"", ""]}}"#,
            many(r#"{"role":"u","content":""},"#, 2 << 20)
        ),
        format!(r#"{{"id": "text", "prompt": "{}", "response": "y"}}"#, many("word ", 3 << 20)),
        format!(r#"{{"id": "response", "prompt": "y", "response": "{}"}}"#, many("word ", 3 << 20)),
        format!(r#"{{"id": "line", "other": "{}"}}"#, many(" ", 20 << 20)),
        good.clone(),
    ];
    setup.write("in.jsonl.gz", gzip((lines.join("\n") + "\n").as_bytes()));
    let arguments = ["score", "--threads", "1", "--device", "cpu", "--input", "in.jsonl.gz", "--output", "out.jsonl"];
    fails(&within_limits(&setup, &arguments), 1, &["1 ok"]);
    let text = setup.read("out.jsonl");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), lines.len());
    for (record, says) in records.iter().zip([
        "max_position_embeddings",
        "input_ids[0]",
        "messages[0]",
        "messages[",
        "it cannot fit into the model's context",
        "it cannot fit into the model's context",
        "longer than",
    ]) {
        assert!(record["error"].as_str().unwrap().contains(says), "{record}");
    }
    assert_eq!(records.last().unwrap()["status"], "ok");
}

#[cfg(target_os = "linux")]
#[test]
fn a_tasks_file_that_unpacks_without_end_is_refused() {
    let setup = Setup::new();
    let question = json!({"question": "?", "answer": 1, "grader": "number"}).to_string() + "\n";
    let bombs = [
        ("blank lines", "\n".repeat(300 << 20), "larger than"),
        ("a long line", " ".repeat(5 << 20), "lines of at most 4 MiB"),
        ("many lists", format!("{{\"question\": [{}1]}}\n", "[],".repeat(1 << 20)), "\"question\": expected a text"),
        ("many questions", question.repeat((1 << 20) + 1), "at most 1048576 questions"),
    ];
    for (name, text, says) in bombs {
        setup.write("bomb.jsonl.gz", gzip(text.as_bytes()));
        let arguments = ["eval", "--threads", "1", "--device", "cpu", "--tasks", "bomb.jsonl.gz", "--output", "run"];
        let output = within_limits(&setup, &arguments);
        assert!(stderr(&output).contains(says), "{name}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
    let (file, pipe) = (setup.path("pipe.jsonl"), "pipe.jsonl");
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    fails(&setup.uqac(&["eval", "--tasks", pipe, "--output", "run"]), 2, &["regular file"]);
}

// ---- files ----

#[cfg(target_os = "linux")]
#[test]
fn sizes_in_a_config_are_not_believed_and_pipes_are_not_waited_for() {
    let inspect = |setup: &Setup| within_limits(setup, &["inspect", "model", "--threads", "1", "--device", "cpu"]);
    let setup = Setup::new();
    let config: Value = serde_json::from_str(&setup.read("model/config.json")).unwrap();
    for key in
        ["num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "vocab_size"]
    {
        let mut config = config.clone();
        config[key] = json!(u32::MAX - 1);
        setup.write("model/config.json", config.to_string());
        fails(&inspect(&setup), 2, &["model"]);
    }
    setup.write("model/config.json", " ".repeat(20 << 20));
    fails(&inspect(&setup), 2, &["config.json", "larger than"]);
    setup.write("model/config.json", config.to_string());
    // a header that claims to be 90 MB long, in a file that is large enough
    let weights = std::fs::read(setup.path("model/model.safetensors")).unwrap();
    setup.write("model/model.safetensors", [&(90u64 << 20).to_le_bytes()[..], &vec![b' '; 90 << 20]].concat());
    fails(&inspect(&setup), 2, &["model.safetensors", "header"]);
    setup.write("model/model.safetensors", &weights);
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        let path = setup.path("model").join(name);
        let kept = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let output = inspect(&setup);
        assert!(matches!(output.status.code(), Some(0 | 2)), "{}", stderr(&output));
        std::fs::remove_file(&path).unwrap();
        if let Some(bytes) = kept {
            std::fs::write(&path, bytes).unwrap();
        }
    }
    succeeds(&inspect(&setup));
}

/// A run whose weights file is truncated while in use.
#[cfg(target_os = "linux")]
#[test]
fn weights_that_are_truncated_while_in_use_are_told() {
    let setup = Setup::new();
    let arguments = ["score", "--threads", "1", "--device", "cpu", "--input", "-", "--output", "-"];
    let mut child = setup.command(&arguments).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(items(1).as_bytes()).unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"ok\""), "{first}");
    std::fs::File::options().write(true).open(setup.path("model/model.safetensors")).unwrap().set_len(0).unwrap();
    input.write_all(items(2).as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    fails(&output, 2, &["model", "truncated", "download"]);
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let setup = Setup::new();
    let arguments = ["score", "--threads", "1", "--device", "cpu", "--input", "-", "--output", "out.jsonl"];
    let mut command = setup.command(&arguments);
    // tests running in the background of a script ignore Ctrl-C, and so would the child
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut command, || {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(items(1).as_bytes()).unwrap();
    let begun = Instant::now();
    while std::fs::read(setup.path("out.jsonl")).unwrap_or_default().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{message}");
    assert!(message.contains("--resume"), "{message}");
}

// ---- options ----

#[test]
fn options_have_ranges() {
    let setup = Setup::new();
    for (arguments, says) in [
        (&["ask", "--threads", "100000", "x"][..], "from 0 to 1024"),
        (&["eval", "--shard", "1/18446744073709551615"], "at most 100000"),
        (&["eval", "--shard", "0/2"], "I from 1 to N"),
        (&["eval", "--batch-size", "0"], "from 1 to 1024"),
        (&["eval", "--samples", "100000000"], "from 1 to 1000"),
        (&["report", "run", "--resamples", "100000000"], "from 0 to 100000"),
        (&["bench", "--rounds", "1000000000"], "from 1 to 10000"),
    ] {
        fails(&setup.uqac(arguments), 2, &[says]);
    }
    let sweep = format!("kept={}", (0..2000).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
    fails(&setup.eval(&["--sweep", &sweep]), 2, &["more than 1000 settings"]);
    // a stack size too small for a thread is not taken from the environment
    let mut command = setup.command(&["inspect", "model", "--device", "cpu", "--threads", "2"]);
    let output = command.env("RUST_MIN_STACK", "1").stdin(Stdio::null()).output().unwrap();
    succeeds(&output);
}

// ---- what is said ----

#[test]
fn quiet_verbose_and_colour_are_chosen() {
    let setup = Setup::new();
    setup.write("in.jsonl", items(1) + "nonsense\n");
    let score = |more: &[&str]| setup.score(&[&["-i", "in.jsonl", "-o", "out.jsonl", "--overwrite"], more].concat());
    fails(&score(&[]), 1, &["2 items in", "1 ok, 0 without an answer, 1 error\n"]);
    assert_eq!(stderr(&score(&["--quiet"])), "");
    fails(&score(&["-v"]), 1, &["LlamaForCausalLM", "on cpu", "K cache f32"]);
    // --quiet suppresses notes, not errors
    fails(&setup.uqac(&["-q", "score", "-i", "absent", "-o", "out.jsonl"]), 2, &["absent"]);
    let coloured = |arguments: &[&str]| {
        let output = setup.uqac(&[arguments, &["inspect", "model", "--device", "cpu"]].concat());
        succeeds(&output);
        output.stdout.contains(&0x1b)
    };
    assert!(coloured(&["--color", "always"]) && coloured(&["--color=always"]));
    assert!(!coloured(&["--color", "never"]) && !coloured(&[]));
    succeeds(&setup.uqac(&["report", "--help"]));
}

#[test]
fn explanations_are_whole_and_unknown_methods_are_refused() {
    let setup = Setup::new();
    let mut ask = setup.command(&["ask", "--model", "abacus", "--device", "cpu", "What is 17 + 25?"]);
    let output = ask.env("UQAC_CACHE", setup.path("cache")).stdin(Stdio::null()).output().unwrap();
    succeeds(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let scores = text.split("higher is more confident").nth(1).expect("the test needs an answer");
    assert!(!scores.contains('…'), "{scores}");
    succeeds(&setup.eval(&[]));
    fails(&setup.uqac(&["report", "run", "--against", "nonsense"]), 2, &["nonsense", "valid names: ", "response_mean"]);
}
