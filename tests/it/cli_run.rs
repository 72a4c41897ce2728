//! The commands on a small random model: their output, bad items, interruptions, closed pipes.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use test_support::tiny;

/// A folder containing a model in `model`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    tiny::write_model(&folder.path().join("model"));
    folder
}

/// `uqac` in this folder, with its model and two threads.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.current_dir(folder).env("UQAC_MODEL", "./model").env_remove("NO_COLOR").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(mut child: Child, input: &str) -> Output {
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn uqac(folder: &Path, arguments: &[&str]) -> Output {
    finish(command(folder, arguments).spawn().unwrap(), "")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn records(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Tokens of the small model's byte-level tokenizer: one per byte.
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

const RESPONSE: &str = "Two and two make four, so the answer is 4.";

/// Items in both forms, with and without answers.
fn good_items(n: usize) -> String {
    let item = |i: usize| match i % 3 {
        0 => json!({"id": i, "prompt": format!("Question {i}?"), "response": RESPONSE}),
        1 => json!({"id": format!("s{i}"), "input_ids": bytes(&format!("Q{i}\n{RESPONSE}")), "n_instr": 3}),
        _ => json!({"id": i, "input_ids": bytes("What is it? No idea at all"), "n_instr": 11, "answer_span": [15, 19]}),
    };
    (0..n).map(|i| item(i).to_string() + "\n").collect()
}

const SCORE: [&str; 6] = ["score", "--no-chat-template", "--input", "in.jsonl", "--output", "out.jsonl"];

fn score(folder: &Path, more: &[&str]) -> Output {
    uqac(folder, &[&SCORE, more].concat())
}

/// Existing responses are graded: by a grader, by a user-defined pattern, and in a sample of lm-evaluation-harness.
#[test]
fn score_grades_where_the_target_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        r#"{"prompt": "1+1?", "response": "The answer is 2.", "target": "2", "grader": "number"}"#,
        r#"{"prompt": "1+1?", "response": "Result: 3 apples, not 2", "target": 3, "grader": "number", "answer_regex": "Result: (\\d+)"}"#,
        r#"{"prompt": "Capital?", "response": "that would be Paris, I think", "target": "Paris", "grader": "contains"}"#,
        r#"{"prompt": "1+1?", "response": "The answer is 3.", "target": "2", "grader": "number"}"#,
        r#"{"prompt": "1+1?", "response": "The answer is 3."}"#,
        r#"{"arguments": [["1+1?", {}]], "resps": [["The answer is 2."]], "target": "2", "grader": "number"}"#,
    ];
    std::fs::write(folder.path().join("in.jsonl"), lines.join("\n")).unwrap();
    let output = uqac(folder.path(), &["score", "-m", "abacus", "--input", "in.jsonl", "--output", "out.jsonl"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<(Value, Value)> = records(&std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap())
        .into_iter()
        .map(|record| (record["answer"]["text"].clone(), record["correct"].clone()))
        .collect();
    let answers = [json!("2"), json!("3"), json!("Paris"), json!("3"), json!("3"), json!("2")];
    let correct = [json!(true), json!(true), json!(true), json!(false), json!(null), json!(true)];
    assert_eq!(found, answers.into_iter().zip(correct).collect::<Vec<_>>());
}

#[test]
fn score_writes_a_record_for_each_item_in_order() {
    let folder = folder();
    std::fs::write(folder.path().join("in.jsonl"), good_items(4)).unwrap();
    let output = score(folder.path(), &["--explain"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
    assert!(text(&output.stderr).contains("4 items in"), "{}", text(&output.stderr));
    let records = records(&std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    let ids: Vec<&Value> = records.iter().map(|r| &r["id"]).collect();
    assert_eq!(ids, [&json!(0), &json!("s1"), &json!(2), &json!(3)]);
    for record in &records {
        assert_eq!(record["status"], "ok", "{record}");
        let (p, p_sim) = (record["scores"]["p"].as_f64().unwrap(), record["scores"]["p_sim"].as_f64().unwrap());
        assert!(0.0 <= p_sim && p_sim <= p && p <= 1.0, "{p_sim} {p}");
        let rows = |key: &str| record[key].as_array().unwrap().iter().map(|r| r["row"].clone()).collect::<Vec<_>>();
        assert_eq!(rows("trace"), rows("chain"));
        let row = &record["trace"][0];
        assert_eq!(row["heads"].as_array().unwrap().len(), 16);
        let entropies = test_support::numbers(&row["entropies"]);
        assert!(entropies.is_sorted() && row["gap"].as_f64().unwrap() >= 0.0);
    }
    assert_eq!(records[1]["answer"], json!({"text": "4", "tokens": [3 + RESPONSE.len() - 2, 3 + RESPONSE.len() - 1]}));
    assert_eq!(records[2]["answer"], json!({"text": "idea", "tokens": [15, 19]}));
    assert_eq!(records[0]["n_instr"], "Question 0?".len());
}

#[test]
fn a_rule_can_be_set_alone_and_the_record_says_so() {
    let folder = folder();
    std::fs::write(folder.path().join("in.jsonl"), good_items(1)).unwrap();
    let run = |more: &[&str]| {
        let output = score(folder.path(), &[more, &["--overwrite"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        records(&std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap()).remove(0)
    };
    // a rule that the profile already contains is no difference
    let plain = run(&["--rule", "threshold=at-least"]);
    assert_eq!((plain.get("rules"), &plain["profile"]), (None, &json!("corrected")));
    let rules = ["--rule", "threshold=above", "--rule", "response-end=sequence"];
    let changed = run(&rules);
    assert_eq!(changed["rules"], json!({"response-end": "sequence", "threshold": "above"}));
    assert_ne!(changed["scores"]["trace_length"], plain["scores"]["trace_length"]);
    // changed rules require a different output
    let resumed = score(folder.path(), &["--resume"]);
    assert_eq!(resumed.status.code(), Some(2));
    let message = text(&resumed.stderr);
    assert!(message.contains("found corrected response-end=sequence threshold=above"), "{message}");
    assert_eq!(score(folder.path(), &[&rules[..], &["--resume"]].concat()).status.code(), Some(0));

    for (rule, says) in
        [("heads=1", "valid names: k, theta"), ("threshold=no", "at-least or above"), ("x", "NAME=VALUE")]
    {
        let wrong = score(folder.path(), &["--overwrite", "--rule", rule]);
        assert_eq!(wrong.status.code(), Some(2));
        assert!(text(&wrong.stderr).contains(says), "{}", text(&wrong.stderr));
    }
    let help = uqac(folder.path(), &["score", "--help"]);
    assert!(text(&help.stdout).contains("stop-words=answer-aware|list"), "{}", text(&help.stdout));
}

#[test]
fn bad_items_get_a_status_and_the_others_go_on() {
    let folder = folder();
    let lines = [
        r#"{"id": "cut", "input_ids": [1, 2"#,
        r#"{"id": "range", "input_ids": [65, 66, 99999], "n_instr": 1}"#,
        r#"{"id": "n", "input_ids": [65, 66, 67], "n_instr": 3}"#,
        r#"{"id": "none", "prompt": "Why?", "response": "Nobody knows why"}"#,
        r#"{"id": "messages", "messages": [{"role": "user", "content": "x"}], "response": "4"}"#,
        "",
        r#"{"prompt": "2+2?", "response": "It is 4"}"#,
    ];
    let long = json!({"id": "long", "input_ids": vec![65; 3000], "n_instr": 1}).to_string();
    let mut input = (lines.join("\n") + "\n" + &long + "\n").into_bytes();
    input.extend(b"{\"id\": \"utf8\", \"prompt\": \"\xff\", \"response\": \"4\"}");
    std::fs::write(folder.path().join("in.jsonl"), input).unwrap();
    let output = score(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("1 ok, 1 without an answer, 6 errors"), "{}", text(&output.stderr));
    let records = records(&std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    let found: Vec<(Value, &str)> = records.iter().map(|r| (r["id"].clone(), r["status"].as_str().unwrap())).collect();
    let expected = [
        (json!("cut"), "error"),
        (json!("range"), "error"),
        (json!("n"), "error"),
        (json!("none"), "no_answer"),
        (json!("messages"), "error"),
        (json!(6), "ok"),
        (json!("long"), "error"),
        (json!("utf8"), "error"),
    ];
    assert_eq!(found, expected);
    for (i, says) in [(0, "line 1: not valid JSON"), (1, "99999"), (2, "n_instr"), (4, "messages"), (6, "3000")] {
        assert!(records[i]["error"].as_str().unwrap().contains(says), "{}", records[i]);
    }
    // without an answer, only the scores that need none are present
    let scores = &records[3]["scores"];
    assert!(scores["response_prob"].is_number() && scores["min_token_prob"].is_number(), "{scores}");
    assert!(scores["p"].is_null() && scores["answer_prob"].is_null() && records[3]["answer"].is_null(), "{scores}");
    // a later run with nothing to do still reports that there were errors
    assert_eq!(score(folder.path(), &["--resume"]).status.code(), Some(1));
}

#[test]
fn a_model_without_a_template_says_so() {
    let folder = folder();
    std::fs::remove_file(folder.path().join("model/tokenizer_config.json")).unwrap();
    let output = uqac(folder.path(), &["ask", "1+1?"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--no-chat-template"), "{}", text(&output.stderr));
}

#[test]
fn text_goes_through_the_template_and_ends_as_it_does() {
    let folder = folder();
    let item = |id: &str, prompt: Value| {
        let mut item = json!({"id": id, "response": RESPONSE});
        item.as_object_mut().unwrap().extend(prompt.as_object().unwrap().clone());
        item.to_string() + "\n"
    };
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}]);
    let rendered = "user: 2+2?\nassistant: ";
    let ids = json!({"id": "ids", "input_ids": bytes(&format!("{rendered}{RESPONSE}\n")), "n_instr": rendered.len()});
    let input = item("prompt", json!({"prompt": "2+2?"})) + &item("messages", json!({"messages": messages}));
    std::fs::write(folder.path().join("in.jsonl"), input + &ids.to_string()).unwrap();
    let output = uqac(folder.path(), &["score", "--input", "in.jsonl", "--output", "-", "--profile", "reference"]);
    let mut records = records(text(&output.stdout));
    assert_eq!(records[1]["n_instr"], "system: s\n".len() + rendered.len());
    records[2]["id"] = json!("prompt");
    assert_eq!(records[0], records[2], "prompt and response as text and as tokens are one sequence");
}

#[test]
fn a_killed_run_resumes_to_the_same_file() {
    let folder = folder();
    let out = folder.path().join("out.jsonl");
    std::fs::write(folder.path().join("in.jsonl"), good_items(12)).unwrap();
    assert_eq!(score(folder.path(), &[]).status.code(), Some(0));
    let whole = std::fs::read_to_string(&out).unwrap();
    for lines in [1, 5] {
        // killed once this many lines are in the file; a run faster than this loop ends on its own
        let mut child = command(folder.path(), &[&SCORE[..], &["--overwrite"]].concat()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if std::fs::read_to_string(&out).unwrap().lines().count() == lines {
                let _ = child.kill();
            }
        }
        let cut = std::fs::read_to_string(&out).unwrap();
        assert!(whole.starts_with(&cut), "what is there is as it would have been");
        assert_eq!(score(folder.path(), &["--resume"]).status.code(), Some(0));
        assert_eq!(std::fs::read_to_string(&out).unwrap(), whole);
    }
    assert_eq!(score(folder.path(), &[]).status.code(), Some(2), "neither --resume nor --overwrite");
}

#[test]
fn limits_gzip_and_pipes() {
    let folder = folder();
    std::fs::write(folder.path().join("in.jsonl"), good_items(5)).unwrap();
    let plain = ["score", "--no-chat-template", "--input", "in.jsonl", "--output", "-"];
    let whole = text(&uqac(folder.path(), &plain).stdout).to_owned();
    assert_eq!(whole.lines().count(), 5);
    let limited = uqac(folder.path(), &[&plain[..], &["--limit", "2"]].concat());
    assert_eq!(text(&limited.stdout).lines().count(), 2);
    let piped = ["score", "--no-chat-template", "--input", "-", "--output", "-", "--threads", "1"];
    let piped = finish(command(folder.path(), &piped).spawn().unwrap(), &good_items(5));
    assert_eq!(text(&piped.stdout), whole);
    let gzip = ["score", "--no-chat-template", "--input", "in.jsonl", "--output", "out.jsonl.gz"];
    uqac(folder.path(), &[&gzip[..], &["--limit", "2"]].concat());
    assert_eq!(uqac(folder.path(), &[&gzip[..], &["--resume"]].concat()).status.code(), Some(0));
    assert_eq!(test_support::read_lines(&folder.path().join("out.jsonl.gz")), records(&whole));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_exit_code_2() {
    let folder = folder();
    std::fs::write(folder.path().join("in.jsonl"), good_items(2)).unwrap();
    let full = ["score", "--no-chat-template", "--input", "in.jsonl", "--output", "/dev/full"];
    let output = uqac(folder.path(), &full);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/dev/full: No space left"), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = folder();
    std::fs::write(folder.path().join("in.jsonl"), good_items(30)).unwrap();
    for arguments in [
        &["score", "--no-chat-template", "--input", "in.jsonl", "--output", "-"][..],
        &["ask", "--no-chat-template", "--max-tokens", "1500", "Tell me: "],
        &["inspect", "model"],
    ] {
        let mut child = command(folder.path(), arguments).spawn().unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("panicked"));
    }
}

#[test]
fn ask_reports() {
    let folder = folder();
    let ask = ["ask", "--no-chat-template", "--max-tokens", "60", "--temperature", "1", "--seed", "3", "Count: 1 2 3"];
    let output = uqac(folder.path(), &ask);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains("confidence"), "{shown:?}");
    assert!(shown.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()), "no colours, no raw controls: {shown:?}");
    assert_eq!(text(&uqac(folder.path(), &ask).stdout), shown, "a seed repeats");
    let ask = |more: &[&str]| uqac(folder.path(), &[&["ask", "-m", "abacus", "What is 17 + 25?"], more].concat());
    let (short, long) = (ask(&[]), ask(&["--scores"]));
    let (short, long) = (text(&short.stdout), text(&long.stdout));
    assert!(short.starts_with("answer      42\n") && short.contains("--scores"), "{short}");
    assert_eq!(short.matches("boxed").count(), 1, "the response is shown once: {short}");
    assert!(!short.contains("reached from") && long.contains("reached from") && long.contains("predictive_entropy"));
}

#[test]
fn ask_json_is_one_object_on_standard_output() {
    let folder = folder();
    let ask = ["ask", "--no-chat-template", "--json", "--max-tokens", "60", "--temperature", "1", "--seed", "3", "-"];
    let mut child = command(folder.path(), &ask).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Count: 1 2 3\n").unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert_eq!(reader.read_line(&mut String::new()).unwrap(), 0);
    assert!(child.wait().unwrap().success());
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["question"], "Count: 1 2 3");
    assert_eq!(answer["n_instr"], "Count: 1 2 3".len());
    let keys: Vec<&str> = answer.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys[..5], ["id", "profile", "status", "cut_off", "n_instr"], "60 tokens are too few");
    assert_eq!(
        keys[keys.len() - 5..],
        ["question", "response", "finish_reason", "response_tokens", "tokens_per_second"]
    );
}

#[test]
fn inspect_shows_the_model_as_tables_and_as_json() {
    let folder = folder();
    let output = uqac(folder.path(), &["inspect", "model", "--json", "--context", "100", "--v-cache", "f16"]);
    let facts: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(facts["model"]["architecture"], "LlamaForCausalLM");
    assert_eq!(facts["model"]["num_key_value_heads"], 2);
    assert_eq!(facts["model"]["layers"]["count"], 3);
    assert_eq!(facts["model"]["layers"]["num_key_value_heads"], json!([2]));
    // 3 layers of 2 heads of 8 values, four-byte keys and two-byte values
    assert_eq!(facts["memory"]["kv_cache"], 100 * 3 * 2 * 8 * (4 + 2));
    assert_eq!(facts["memory"]["tokens"], 100);
    let output = uqac(folder.path(), &["inspect", "model", "--json", "--context", "100", "--v-cache", "q8"]);
    let facts: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    // one-byte values, and a four-byte scale per head
    assert_eq!(facts["memory"]["kv_cache"], 100 * 3 * 2 * (8 * 4 + 8 + 4));
    // every tensor's numbers, vectors included
    let file = std::fs::read(folder.path().join("model/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let shapes = header.as_object().unwrap().values().filter_map(|tensor| tensor["shape"].as_array());
    let numbers: u64 = shapes.map(|shape| shape.iter().map(|n| n.as_u64().unwrap()).product::<u64>()).sum();
    assert_eq!(facts["weights"]["parameters"], numbers);
    let tables = uqac(folder.path(), &["inspect", "model"]);
    let tables = text(&tables.stdout);
    for part in ["LlamaForCausalLM", "kv cache", "chat template", "KiB", "2048"] {
        assert!(tables.contains(part), "{part}: {tables}");
    }
    std::fs::remove_file(folder.path().join("model/tokenizer.json")).unwrap();
    let output = uqac(folder.path(), &["inspect", "model", "--json"]);
    assert!(text(&output.stderr).contains("note: the folder has no tokenizer.json"), "{}", text(&output.stderr));
    let without: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!((&without["weights"], &without["tokenizer"]), (&facts["weights"], &Value::Null));
}
