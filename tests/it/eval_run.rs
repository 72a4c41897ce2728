//! `uqac eval` from the user's view: a folder that fills, resumes after a kill, and refuses to mix runs.

use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use test_support::tiny;

/// A model folder, with a task next to it.
struct Setup {
    folder: tempfile::TempDir,
}

impl Setup {
    fn new(items: usize) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        tiny::write_model(&model);
        let template = json!({
            "bos_token": "<s>",
            "eos_token": "</s>",
            "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                              {% if add_generation_prompt %}assistant: {% endif %}",
        });
        std::fs::write(model.join("tokenizer_config.json"), template.to_string()).unwrap();
        let setup = Setup { folder };
        setup.write_task(items, "left");
        setup
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_task(&self, items: usize, word: &str) {
        let mut file = std::fs::File::create(self.path("sums.jsonl")).unwrap();
        for i in 0..items {
            let line = json!({ "question": format!("{i} pencils, how many {word}?"), "answer": i, "grader": "number" });
            writeln!(file, "{line}").unwrap();
        }
    }

    fn command(&self, output: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        let (model, task) = (self.path("model"), self.path("sums.jsonl"));
        // with a random model only the last number is an answer, and every response is cut off: the authors count it
        let fixed =
            ["eval", "--max-tokens", "24", "--threads", "1", "--device", "cpu", "--rule", "extraction=published"];
        command.env_remove("UQAC_MODEL").args(fixed).args(more);
        command.arg("--model").arg(model).arg("--tasks").arg(task).arg("--output").arg(output);
        command
    }

    fn eval(&self, output: &Path, more: &[&str]) -> Output {
        self.command(output, more).output().unwrap()
    }

    /// The output shown at the end of a run.
    fn ok(&self, output: &Path, more: &[&str]) -> String {
        let ran = self.eval(output, more);
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
        text(&ran.stdout)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The complete lines of a file.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Samples by item, without timings.
fn samples(folder: &Path) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("samples_") {
            all.extend(lines(&path));
        }
    }
    for sample in &mut all {
        sample["uq"].as_object_mut().unwrap().remove("seconds");
    }
    all.sort_by_key(|sample| sample["doc_id"].as_u64());
    all
}

const ALL: [&str; 2] = ["--methods", "self-consistency,verbalized,p-true,pmi,csl"];

#[test]
fn results_depend_neither_on_batches_nor_on_shards_nor_on_interruptions() {
    let setup = Setup::new(9);
    let whole = setup.path("whole");
    setup.ok(&whole, &ALL);
    let expected = samples(&whole);
    assert_eq!(expected.iter().map(|s| s["doc_id"].as_u64().unwrap()).collect::<Vec<_>>(), (0..9).collect::<Vec<_>>());
    for score in ["self_consistency", "pmi", "csl"] {
        assert!(expected.iter().any(|s| s["uq"]["scores"][score].is_number()), "the test needs items with {score}");
    }
    for scores in expected.iter().map(|sample| &sample["uq"]["scores"]).filter(|scores| scores["g4"].is_number()) {
        let [agreement, g4] = ["g4_agreement", "g4"].map(|key| scores[key].as_f64().unwrap());
        let share = agreement - 1.0 / (1.0 + (-g4).exp());
        let samples = share * expected[0]["resps"][1].as_array().unwrap().len() as f64;
        assert!((-1e-9..=9.0).contains(&samples) && (samples - samples.round()).abs() < 1e-9, "{scores}");
    }

    let batched = setup.path("batched");
    setup.ok(&batched, &[&ALL[..], &["--batch-size", "1"]].concat());
    assert_eq!(samples(&batched), expected);

    let sharded = setup.path("sharded");
    for shard in ["3/3", "1/3", "2/3"] {
        setup.ok(&sharded, &[&ALL[..], &["--shard", shard]].concat());
    }
    assert_eq!(samples(&sharded), expected);
    assert_eq!(
        std::fs::read_dir(&sharded)
            .unwrap()
            .filter(|e| { e.as_ref().unwrap().file_name().to_str().unwrap().contains("shard-") })
            .count(),
        3
    );
    let manifest = std::fs::read(whole.join("manifest.json")).unwrap();
    for (found, expected) in reports(&sharded, &manifest).iter().zip(reports(&whole, &manifest)) {
        assert_eq!(text(found), text(&expected));
    }

    let resumed = setup.path("resumed");
    setup.ok(&resumed, &[&ALL[..], &["--limit", "4"]].concat());
    let file = resumed.join("samples_sums.jsonl");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 10); // as if it had died in the middle of a line
    std::fs::write(&file, &bytes).unwrap();
    setup.ok(&resumed, &ALL);
    assert_eq!(samples(&resumed), expected);
    let again = setup.eval(&resumed, &ALL);
    assert!(text(&again.stderr).contains("9 were there already"), "{}", text(&again.stderr));
    assert_eq!(samples(&resumed), expected);
}

/// Copies a run's samples, with the given manifest and without timings.
fn timeless(run: &Path, manifest: &[u8], copy: &Path) {
    std::fs::create_dir(copy).unwrap();
    std::fs::write(copy.join("manifest.json"), manifest).unwrap();
    for entry in std::fs::read_dir(run).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("samples_") {
            continue;
        }
        let mut lines = String::new();
        for line in std::fs::read_to_string(&path).unwrap().split_inclusive('\n') {
            match serde_json::from_str::<Value>(line) {
                Ok(mut sample) => {
                    sample["uq"]["seconds"].as_object_mut().unwrap().values_mut().for_each(|s| *s = json!(1.0));
                    lines += &format!("{sample}\n");
                }
                Err(_) => lines += line,
            }
        }
        std::fs::write(copy.join(name), lines).unwrap();
    }
}

/// The reports of a run in every format, as bytes.
fn reports(run: &Path, manifest: &[u8]) -> Vec<Vec<u8>> {
    let place = tempfile::tempdir().unwrap();
    timeless(run, manifest, &place.path().join("run"));
    let report = |format: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        let ran = command.current_dir(place.path()).args(["report", "run", "--format", format]).output().unwrap();
        assert!(ran.status.success() && !ran.stdout.is_empty(), "{}", text(&ran.stderr));
        assert!(!text(&ran.stderr).contains("note:"), "{}", text(&ran.stderr));
        ran.stdout
    };
    ["table", "markdown", "csv", "latex", "json", "html"].map(report).into()
}

#[test]
fn a_kill_at_any_moment_loses_only_what_was_in_flight() {
    let setup = Setup::new(40);
    let expected = setup.path("expected");
    let shown = setup.ok(&expected, &[]);
    assert!(shown.lines().count() <= 10 && shown.contains("sums") && shown.contains("uqac report "), "{shown}");
    let killed = setup.path("killed");
    let file = killed.join("samples_sums.jsonl");
    let mut kept = 0;
    for wait in [5u64, 20, 60, 90] {
        let mut child = setup.command(&killed, &[]).stderr(Stdio::null()).spawn().unwrap();
        // killed at some point after its first new sample
        let begun = Instant::now();
        let count = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        while count() <= kept && begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        let whole = std::fs::read_to_string(&file).unwrap().matches('\n').count();
        assert!(whole >= kept, "{whole} lines, {kept} before");
        kept = whole;
    }
    setup.ok(&killed, &[]);
    assert_eq!(samples(&killed), samples(&expected));
}

/// The first Ctrl-C finishes what is in flight, the second does not wait for it.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_loses_nothing_and_two_do_not_wait() {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    let setup = Setup::new(60);
    let (expected, folder) = (setup.path("expected"), setup.path("run"));
    setup.ok(&expected, &[]);
    let file = folder.join("samples_sums.jsonl");
    let count = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    for interrupts in [1, 2] {
        let mut command = setup.command(&folder, &["--batch-size", "4"]);
        // tests running in the background of a script ignore Ctrl-C, and so would the child
        // SAFETY: `signal` may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            })
        };
        let before = count();
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while count() == before {
            assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(1));
        }
        let at_signal = count();
        for _ in 0..interrupts {
            assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        let says = text(&output.stderr);
        assert_eq!(output.status.signal(), Some(2), "{says}");
        assert!(says.contains("finishing the items in flight"), "{says}");
        if interrupts == 1 {
            assert!(count() > at_signal && says.contains("resumes the run"), "{} {at_signal}: {says}", count());
        }
    }
    setup.ok(&folder, &[]);
    assert_eq!(samples(&folder), samples(&expected));
}

#[test]
fn other_options_or_questions_are_refused_with_the_difference() {
    let setup = Setup::new(3);
    let folder = setup.path("run");
    setup.ok(&folder, &[]);
    let before = samples(&folder);
    let refused = |more: &[&str], parts: &[&str]| {
        let ran = setup.eval(&folder, more);
        let message = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "{message:?} does not say {part:?}"));
    };
    refused(&["--stop", "x"], &["options.stop: the earlier run has null, this one [\"x\"]"]);
    refused(&["--seed", "7"], &["options.seed: the earlier run has 0, this one 7", "new --output"]);
    refused(&["--rule", "threshold=above"], &["options.rules.threshold: the earlier run has null, this one \"above\""]);
    refused(&["--profile", "paper"], &["options.profile", "\"corrected\"", "\"paper\""]);
    refused(&["--k-cache", "bf16"], &["model.k_cache: the earlier run has \"f32\", this one \"bf16\""]);
    refused(&ALL, &["options.methods"]);
    refused(&["--set", "k=2"], &["options.parameters.k: the earlier run has null, this one 2"]);
    // each record says what is not as published
    let other = setup.path("other");
    setup.ok(&other, &["--set", "k=2", "threshold=above"]);
    for (folder, parameters, threshold) in
        [(&folder, Value::Null, Value::Null), (&other, json!({"k": 2}), json!("above"))]
    {
        for sample in samples(folder) {
            let uq = &sample["uq"];
            assert_eq!((&uq["parameters"], &uq["rules"]["threshold"]), (&parameters, &threshold));
        }
    }
    setup.write_task(3, "gone");
    refused(&[], &["another question", "samples_sums.jsonl"]);
    assert_eq!(samples(&folder), before);
    // options that do not affect results may change
    setup.write_task(3, "left");
    setup.ok(&folder, &["--batch-size", "2"]);
    assert_eq!(samples(&folder), before);
}

/// A response that an earlier version cut at a different length is not mixed with this version's.
#[test]
fn responses_that_end_elsewhere_are_refused() {
    let setup = Setup::new(2);
    let folder = setup.path("run");
    setup.ok(&folder, &[]);
    let file = folder.join("samples_sums.jsonl");
    let edited = std::fs::read_to_string(&file).unwrap().replace("\"max_gen_toks\":24", "\"max_gen_toks\":25");
    std::fs::write(&file, edited).unwrap();
    let ran = setup.eval(&folder, &[]);
    let message = text(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{message}");
    assert!(message.contains("{\"max_gen_toks\":25}") && message.contains("--max-tokens"), "{message}");
}

#[test]
fn sweeps_reuse_the_responses() {
    let setup = Setup::new(6);
    let folder = setup.path("run");
    let sweep = ["--sweep", "k=4,16", "theta=0.9", "chain=none", "k-cache=bf16", "response-end=answer,sequence"];
    setup.ok(&folder, &[]);
    let before = samples(&folder);
    setup.ok(&folder, &sweep);
    assert_eq!(samples(&folder), before, "a sweep adds, it changes nothing");
    let rows = lines(&folder.join("sweep_sums.jsonl"));
    let answered: Vec<&Value> = before.iter().filter(|s| s["uq"]["status"] == "ok").collect();
    assert_eq!(rows.len(), 7 * answered.len());
    for row in &rows {
        let sample = &before[row["doc_id"].as_u64().unwrap() as usize]["uq"];
        let chain: Vec<&Value> = sample["chain"].as_array().unwrap().iter().map(|link| &link["row"]).collect();
        match row["setting"].as_object().unwrap().iter().next().unwrap() {
            // the run's own parameters reproduce the run's own results
            (name, value) if name == "k" && value == 16 || value == "answer" => {
                assert_eq!(row["scores"]["p"], sample["scores"]["p"]);
                assert_eq!(row["chain"].as_array().unwrap().iter().collect::<Vec<_>>(), chain);
                assert_eq!(row["kept"], sample["kept"]);
            }
            (name, _) if name == "chain" => {
                let [first, end] = [0, 1].map(|i| sample["answer"]["tokens"][i].as_u64().unwrap());
                assert!(first < end);
                assert_eq!(row["chain"].as_array().unwrap().len() as u64, end - sample["n_instr"].as_u64().unwrap());
            }
            _ => {}
        }
    }
    // resuming repeats nothing
    setup.ok(&folder, &sweep);
    assert_eq!(lines(&folder.join("sweep_sums.jsonl")), rows);
}

/// Every answered response gets its controls, and a finished run can be given controls with an ensemble later.
#[test]
fn responses_have_controls() {
    let setup = Setup::new(6);
    let folder = setup.path("run");
    setup.ok(&folder, &["--draws", "2"]);
    let all = samples(&folder);
    let answered: Vec<&Value> = all.iter().filter(|s| s["uq"]["status"] == "ok").collect();
    assert!(!answered.is_empty(), "the test needs answers");
    for sample in &answered {
        let uq = &sample["uq"];
        let points = uq["sweep"].as_array().unwrap();
        let names: Vec<String> = points.iter().map(|p| p["setting"].to_string()).collect();
        assert_eq!(names.len(), 2 * 4 + 2, "{names:?}");
        assert_eq!((&points[0]["setting"]["chain"], &points[1]["setting"]["draw"]), (&json!("random"), &json!(1)));
        let chain = uq["chain"].as_array().unwrap().len();
        assert!(points[..2].iter().all(|p| p["chain"].as_array().unwrap().len() == chain), "as many tokens");
        assert!(points.iter().all(|p| p["scores"]["p_attn"].is_f64() && p["scores"].get("p").is_none()));
    }
    setup.ok(&folder, &["--draws", "2", "--sweep", "chain=random,none"]);
    let rows = lines(&folder.join("sweep_sums.jsonl"));
    assert_eq!(rows.len(), 3 * answered.len());
    // the same draw produces the same chain
    for row in rows.iter().filter(|row| row["setting"]["draw"] == 1) {
        let own = &all[row["doc_id"].as_u64().unwrap() as usize]["uq"]["sweep"][1];
        assert_eq!((&row["chain"], &row["scores"]["p_attn"]), (&own["chain"], &own["scores"]["p_attn"]));
        assert!(row["scores"]["p"].is_f64());
    }
    let none = setup.path("none");
    setup.ok(&none, &["--draws", "0"]);
    assert!(samples(&none).iter().all(|sample| sample["uq"].get("sweep").is_none()));
}

#[test]
fn an_item_that_fails_stays_alone() {
    let setup = Setup::new(2);
    let long = "pencils ".repeat(3000);
    let mut file = std::fs::OpenOptions::new().append(true).open(setup.path("sums.jsonl")).unwrap();
    writeln!(file, "{}", json!({ "question": long, "answer": "1", "grader": "number" })).unwrap();
    let folder = setup.path("run");
    let ran = setup.eval(&folder, &[]);
    assert_eq!(ran.status.code(), Some(1), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("1 error"), "{}", text(&ran.stderr));
    let all = samples(&folder);
    assert_eq!(all.len(), 3);
    let failed = &all[2]["uq"];
    assert_eq!(failed["status"], "error");
    assert!(failed["error"].as_str().unwrap().contains("max_position_embeddings"), "{failed}");
}
