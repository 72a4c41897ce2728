//! Responses with thoughts: cut off, and closed at a budget.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The built-in model with a chat template that opens a thought, in which it then solves the problem.
struct Setup {
    folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let (abacus, model) = (test_support::repository().join("models/abacus"), folder.path().join("model"));
        std::fs::create_dir(&model).unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(abacus.join(name), model.join(name)).unwrap();
        }
        let mut config = test_support::read_json(&abacus.join("tokenizer_config.json"));
        let template = config["chat_template"].as_str().unwrap();
        config["chat_template"] = json!(format!("{template}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"));
        std::fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
        Setup { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, command: &str, more: &[&str]) -> (String, String) {
        let mut uqac = Command::new(env!("CARGO_BIN_EXE_uqac"));
        uqac.env_remove("UQAC_MODEL").args([command, "--device", "cpu", "-m"]).arg(self.path("model")).args(more);
        let ran = uqac.output().unwrap();
        let [out, err] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(ran.status.code(), Some(0), "{err}");
        (out, err)
    }

    /// The samples of a run of the built-in questions, without timings, and what was shown at its end.
    fn eval(&self, name: &str, more: &[&str]) -> (Vec<Value>, String) {
        let folder = self.path(name);
        let fixed = ["-t", "abacus", "--draws", "0", "-o", folder.to_str().unwrap()];
        let (out, err) = self.run("eval", &[&fixed[..], more].concat());
        (samples(&folder), out + &err)
    }
}

fn samples(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("samples_abacus.jsonl")).unwrap();
    let mut all: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    all.iter_mut().for_each(|sample| drop(sample["uq"].as_object_mut().unwrap().remove("seconds")));
    all.sort_by_key(|sample| sample["doc_id"].as_u64());
    all
}

/// At a limit of 40 tokens some thoughts are cut off, and the others end without a reply; with a budget all have an answer.
#[test]
fn thoughts_are_cut_off_or_closed() {
    let setup = Setup::new();
    let (cut, shown) = setup.eval("cut", &["-n", "8", "--max-tokens", "40"]);
    let in_thought = cut.iter().filter(|sample| sample["uq"]["cut_off"] == "thought").count();
    assert!(0 < in_thought && in_thought < 8, "the limit should cut some: {in_thought}");
    assert!(cut.iter().all(|sample| sample["uq"]["status"] == "no_answer" && sample["metrics"]["acc"] == 0.0));
    assert!(shown.contains("Of the completed [95 %]"), "{shown}");
    assert!(
        shown.contains(&format!("{in_thought} cut off at the limit ({in_thought} in a thought, 0 in the")),
        "{shown}"
    );
    let results = test_support::read_json(&setup.path("cut/results.json"));
    let summary = &results["runs"][0]["tasks"][0]["summary"];
    assert_eq!((&summary["truncated_in_thought"], &summary["accuracy_completed"]), (&json!(in_thought), &json!(0.0)));

    let budget = ["--thinking-budget", "12", "--max-tokens", "110"];
    let (closed, _) = setup.eval("closed", &[&budget[..], &["-n", "5"]].concat());
    let mut answered = 0;
    for sample in &closed {
        let uq = &sample["uq"];
        let (start, [from, to]) =
            (uq["n_instr"].as_u64().unwrap(), [0, 1].map(|i| uq["forced"][0][i].as_u64().unwrap()));
        assert_eq!(from, start + 12, "the budget");
        let text = sample["resps"][0][0].as_str().unwrap();
        let end = uq["tokens"]["offsets"][(to - start) as usize - 1][1].as_u64().unwrap() as usize;
        assert!(text[..end].ends_with("now I give my final answer.\n</think>"), "{text}");
        if let Some(answer) = uq["answer"]["tokens"].as_array() {
            answered += 1;
            assert!(answer[0].as_u64().unwrap() >= to, "{uq}");
            let chosen = (start..answer[1].as_u64().unwrap()).filter(|at| !(from..to).contains(at));
            let logprob: f64 = chosen.map(|at| uq["tokens"]["logprobs"][(at - start) as usize].as_f64().unwrap()).sum();
            let score = uq["scores"]["response_logprob"].as_f64().unwrap();
            assert!((logprob - score).abs() <= 1e-9 * score.abs(), "{logprob} {score}");
            let kept = uq["kept"].as_array().unwrap().iter().map(|row| start + 1 + row.as_u64().unwrap_or(0));
            assert!(kept.into_iter().all(|at| !(from..to).contains(&at)), "{uq}");
        }
    }
    assert!(answered > 0, "the test needs answers");

    // the same bits in any batch, without guesses, and resumed
    let one = [&budget[..], &["--batch-size", "1", "--speculate", "off"]].concat();
    setup.eval("resumed", &[&one[..], &["-n", "2"]].concat());
    let (resumed, _) =
        setup.eval("resumed", &[&budget[..], &["-n", "5", "--batch-size", "4", "--speculate", "6"]].concat());
    assert_eq!(resumed, closed);
}

#[test]
fn a_budget_holds_wherever_the_thought_begins() {
    let setup = Setup::new();
    let ask = |more: &[&str]| -> Value {
        let question = "Tom has 3 boxes with 12 pencils each. He gives away 7. How many are left?";
        serde_json::from_str(&setup.run("ask", &[&["--json", question], more].concat()).0).unwrap()
    };
    for budget in ["0", "1", "20"] {
        let record = ask(&["--thinking-budget", budget]);
        let (start, forced) = (record["n_instr"].as_u64().unwrap(), record["forced"][0][0].as_u64().unwrap());
        assert_eq!(forced - start, budget.parse::<u64>().unwrap());
    }
    let unlimited = ask(&[]);
    assert_eq!((&unlimited["forced"], &unlimited["status"]), (&Value::Null, &json!("no_answer")));
    // a limit that ends among the tokens that close the thought
    let short = ask(&["--thinking-budget", "5", "--max-tokens", "9"]);
    assert_eq!((&short["response_tokens"], &short["finish_reason"]), (&json!(9), &json!("length")));
    assert_eq!((&short["cut_off"], &short["status"]), (&json!("thought"), &json!("no_answer")));
    let mut refused = Command::new(env!("CARGO_BIN_EXE_uqac"));
    let refused =
        refused.args(["ask", "-m", "abacus", "--thinking", "none", "--thinking-budget", "5", "1+1?"]).output();
    assert!(String::from_utf8(refused.unwrap().stderr).unwrap().contains("--thinking none"));
}
