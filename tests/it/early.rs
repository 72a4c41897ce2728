//! Responses that end because of low confidence.

use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output};
use uqac::{
    Conversation, Engine, EngineOptions, FinishReason, GenerateOptions, Generation, Measure, Named, Progress,
    RunningConfidence, encode_prompt,
};

fn engine() -> Engine {
    Engine::load(&uqac::locate_model("abacus").unwrap(), EngineOptions::default()).unwrap()
}

fn prompts(engine: &Engine) -> Vec<Vec<u32>> {
    let questions = [
        "Tom has 3 boxes with 12 pencils each. He gives away 7 pencils. How many pencils are left?",
        "A baker makes 14 loaves a day. How many loaves does she make in 9 days?",
        "Ann has 45 apples and eats 6. Then she buys 3 bags with 8 apples each. How many apples does she have?",
    ];
    let encode = |question: &&str| encode_prompt(engine, &Conversation::Prompt((*question).to_owned()), true).unwrap();
    questions.iter().map(encode).collect()
}

fn generate(engine: &mut Engine, prompts: &[Vec<u32>], running: RunningConfidence) -> Vec<Generation> {
    let options = GenerateOptions { max_tokens: 200, running: Some(running), ..GenerateOptions::default() };
    engine.generate(prompts, &options, |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_response_ends_with_the_token_after_which_it_is_unsure() {
    let mut engine = engine();
    let prompts = prompts(&engine);
    for &(measure, ..) in Measure::VALUES {
        let running = RunningConfidence { measure, window: 4, stop_below: None };
        let mut seen: Vec<Vec<Option<f64>>> = vec![Vec::new(); prompts.len()];
        let options = GenerateOptions { max_tokens: 200, running: Some(running), ..GenerateOptions::default() };
        let see = |progress: Progress| {
            seen[progress.stream as usize].push(progress.confidence);
            ControlFlow::Continue(())
        };
        let whole = engine.generate(&prompts, &options, see).unwrap();
        // the second lowest point of the response with the most; others may or may not stop
        let lows = |g: &Generation| running.lows(&g.steps[..g.tokens.len() - g.prompt_len]);
        let most = (0..whole.len()).max_by_key(|i| lows(&whole[*i]).len()).unwrap();
        let lows = lows(&whole[most]);
        let [.., (_, threshold), (end, _)] = lows[..] else { panic!("the test needs two lows: {lows:?}") };
        let stopping = RunningConfidence { stop_below: Some(threshold), ..running };
        let together = generate(&mut engine, &prompts, stopping);
        let mut stopped = 0;
        for (i, ((whole, ended), seen)) in whole.iter().zip(&together).zip(&seen).enumerate() {
            assert_eq!(&generate(&mut engine, &prompts[i..=i], stopping)[0], ended, "the same in any batch");
            let n = whole.tokens.len() - whole.prompt_len;
            assert_eq!(seen.len(), n);
            assert!(seen[..3].iter().all(Option::is_none) && seen[3..].iter().all(Option::is_some));
            let lowest = seen.iter().position(|found| found.is_some_and(|found| found < threshold)).map(|at| at + 1);
            let kept = lowest.filter(|tokens| *tokens < n).unwrap_or(n);
            assert_eq!(ended.tokens, whole.tokens[..whole.prompt_len + kept]);
            let finish = if kept < n { FinishReason::Unsure } else { whole.finish };
            assert_eq!(ended.finish, finish, "{measure:?} {i}");
            stopped += usize::from(kept < n);
        }
        assert!(stopped >= 1 && together[most].tokens.len() - together[most].prompt_len == end, "{measure:?}");
    }
}

fn uqac(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.current_dir(folder).env_remove("UQAC_MODEL").args(arguments).output().unwrap()
}

fn samples(folder: &Path, run: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(run).join("samples_abacus.jsonl")).unwrap();
    let mut samples: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    samples.sort_by_key(|sample| sample["doc_id"].as_u64());
    samples
}

/// The curve of a run with complete responses predicts what a run with the threshold does.
#[test]
fn the_report_foretells_what_a_threshold_does() {
    let folder = tempfile::tempdir().unwrap();
    let eval = ["eval", "--tasks", "abacus", "--limit", "40", "--draws", "0"];
    let whole = uqac(folder.path(), &[&eval[..], &["--trace", "wide", "--output", "whole"]].concat());
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let shown = uqac(folder.path(), &["report", "whole", "--resamples", "0"]).stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("stopping early (group)"), "{shown}");
    let results: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("whole/results.json")).unwrap()).unwrap();
    let curve = &results["runs"][0]["tasks"][0]["early"][0];
    let point = &curve["points"][4];
    let threshold = point["threshold"].as_f64().unwrap().to_string();
    let early = uqac(folder.path(), &[&eval[..], &["--stop-below", &threshold, "--output", "early"]].concat());
    assert!(early.status.success(), "{}", String::from_utf8_lossy(&early.stderr));
    let (whole, early) = (samples(folder.path(), "whole"), samples(folder.path(), "early"));
    let tokens = |samples: &[Value]| -> usize {
        samples.iter().map(|sample| sample["uq"]["tokens"]["ids"].as_array().unwrap().len()).sum()
    };
    let stopped = early.iter().filter(|sample| sample["uq"]["finish"] == "unsure").count();
    assert_eq!((stopped as u64, stopped > 0), (point["stopped"].as_u64().unwrap(), true));
    let saved = 1.0 - tokens(&early) as f64 / tokens(&whole) as f64;
    assert!((saved - point["tokens_saved"].as_f64().unwrap()).abs() < 1e-9, "{saved} {point}");
    // an answer given before the end still counts
    let right = |samples: &[Value]| samples.iter().filter(|sample| sample["metrics"]["acc"] == 1.0).count();
    let foretold = (point["accuracy"].as_f64().unwrap() * 40.0).round() as usize;
    assert!((foretold..=right(&whole)).contains(&right(&early)), "{point}");
}

#[test]
fn ask_says_that_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let question = "Tom has 3 boxes with 12 pencils each. He gives away 7 pencils. How many pencils are left?";
    let output = uqac(folder.path(), &["ask", "--stop-below", "1000", "--window", "5", question]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("after 5 tokens") && said.contains("--stop-below"), "{said}");
    let json = uqac(folder.path(), &["ask", "--json", "--stop-below", "1000", "--window", "5", question]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["finish_reason"], &json["response_tokens"]), (&"unsure".into(), &5.into()));
    for wrong in [&["--running", "entropy"][..], &["--stop-below", "x"], &["--stop-below", "1", "--window", "0"]] {
        assert_eq!(uqac(folder.path(), &[&["ask"], wrong, &[question]].concat()).status.code(), Some(2), "{wrong:?}");
    }
}
