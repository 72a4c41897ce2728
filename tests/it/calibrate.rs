//! `uqac calibrate` on synthetic runs, and how `ask` uses the file.

use crate::runs::RunSpec;
use crate::serve::Server;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use uqac::internals::Fingerprint;
use uqac::internals::analysis::calibrate::calibrate;
use uqac::internals::calibration::{Calibration, Drawn, FILE, bounded};
use uqac::internals::metrics::risk::RiskControl;
use uqac::{Origin, Profile, Reading};

/// Writes a run of a model with these hashes.
fn write_run(folder: &Path, items: usize, model: &Fingerprint) {
    let spec = RunSpec { sweep: false, ..RunSpec::new("abacus", &["sums"], items) };
    spec.write(folder);
    let mut manifest = spec.manifest();
    manifest["model"] = serde_json::to_value(model).unwrap();
    manifest["model"]["name"] = json!("abacus");
    std::fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
}

fn some_model() -> Fingerprint {
    Fingerprint {
        architecture: "LlamaForCausalLM".into(),
        config: "a".into(),
        generation_config: None,
        weights_index: None,
        tokenizer_config: None,
        weights: "b".into(),
        tokenizer: "c".into(),
        chat_template: None,
    }
}

fn uqac(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env("UQAC_CACHE", cache).env_remove("UQAC_MODEL").env("COLUMNS", "120").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `p` is the true chance of a correct answer, of which the other scores carry less information: `p` is chosen, and the
/// map leaves it unchanged.
#[test]
fn the_best_score_is_chosen_and_calibrated_on_what_it_has_not_seen() {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), 2000, &some_model());
    let runs = [folder.path().to_path_buf()];
    let found = calibrate(&runs, None, None, 0).unwrap();
    assert_eq!((found.score.as_str(), &found.tasks[..], &found.model), ("p", &["sums".to_owned()][..], &some_model()));
    assert_eq!(found.held_out.chosen.values().sum::<usize>(), 5);
    // 20 bins of about 100 items: the mean of |error| is √(2/π) · √(p(1-p)/100) ≤ 0.04
    assert!(found.held_out.ece < 0.05, "{:?}", found.held_out);
    assert!(found.held_out.brier < found.held_out.brier_of_base_rate - 0.01, "{:?}", found.held_out);
    for p in [0.2, 0.5, 0.9] {
        // a chance estimated from 2,000 items: four standard deviations of a share among the 400 nearest is 0.1
        let calibrated = found.confidence(|key| (key == "p").then_some(p)).unwrap();
        assert!((calibrated.value - p).abs() < 0.1, "{p}: {calibrated:?}");
    }
    assert_eq!(found.confidence(|_| None), None);
    assert_eq!(found.certified, None);
    // beyond the seen range it reports so, and claims no more than for the nearest answer
    let at = |p: f64| found.confidence(|key| (key == "p").then_some(p)).unwrap();
    let inside = at(0.5);
    assert!(!inside.out_of_range && !inside.certified);
    assert_eq!(inside.calibration, Origin { tasks: vec!["sums".into()], n: found.items, ece: found.held_out.ece });
    for (beyond, end) in [(0.0, found.range[0]), (1.0, found.range[1])] {
        let outside = at(beyond);
        assert!(outside.out_of_range);
        assert_eq!(outside.value, bounded(found.map.at(end), found.items));
    }
    assert_eq!(calibrate(&runs, None, None, 0).unwrap(), found, "the same input, the same file");
    // a score on another scale also becomes a probability
    let length = calibrate(&runs, Some("trace_length"), None, 0).unwrap();
    assert_eq!((length.score.as_str(), length.held_out.ece < 0.05), ("trace_length", true), "{:?}", length.held_out);
    assert_eq!(serde_json::from_str::<Calibration>(&serde_json::to_string(&found).unwrap()).unwrap(), found);
}

#[test]
fn runs_that_do_not_belong_together_and_too_few_answers_are_refused() {
    let [one, other, few] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    write_run(one.path(), 200, &some_model());
    write_run(other.path(), 200, &Fingerprint { weights: "d".into(), ..some_model() });
    write_run(few.path(), 30, &some_model());
    let message = |folders: &[&Path], score: Option<&str>| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.to_path_buf()).collect();
        calibrate(&folders, score, None, 0).unwrap_err().to_string()
    };
    assert!(message(&[one.path(), other.path()], None).contains("different models"));
    assert!(message(&[few.path()], None).contains("expected at least 50"));
    let unknown = message(&[one.path()], Some("nonsense"));
    assert!(
        unknown.contains("no score \"nonsense\"") && unknown.contains("auto, ") && unknown.contains("min_token_prob")
    );
    assert!(message(&[one.path()], Some("self_consistency")).contains("no score"), "the run drew none");
    let plain = tempfile::tempdir().unwrap();
    RunSpec::new("m", &["sums"], 200).write(plain.path());
    assert!(message(&[plain.path()], None).contains("hashes of the model"));
}

/// `p` is the true chance of a correct answer, so a threshold's true risk is known.
#[test]
fn a_certified_threshold_holds_its_risk_and_abstains_below_it() {
    let folder = tempfile::tempdir().unwrap();
    write_run(folder.path(), 1000, &some_model());
    let runs = [folder.path().to_path_buf()];
    let risk = RiskControl { target: 0.2, confidence: 0.95 };
    let found = calibrate(&runs, Some("p"), Some(risk), 0).unwrap();
    let certified = found.certified.clone().unwrap();
    assert!((0.05..0.95).contains(&certified.coverage) && certified.bound <= 0.2, "{certified:?}");
    // each of three scores gets a third of the failure probability, hence a higher threshold
    let among = calibrate(&runs, None, Some(risk), 0).unwrap();
    assert_eq!(among.score, "p");
    assert!(among.certified.clone().unwrap().above >= certified.above, "{among:?}");
    let at = |p: f64| found.confidence(|key| (key == "p").then_some(p)).unwrap();
    // 1 - p is an answer's risk, so at the threshold it is above the mean risk beyond it
    let given = |p: &f64| at(*p).certified;
    let lowest = (1..1000).map(|i| f64::from(i) / 1000.0).find(given).unwrap();
    assert!((0.5..0.9).contains(&lowest) && given(&0.95) && !given(&(lowest - 0.01)), "{lowest}");
    assert!(at(1.0).out_of_range && !at(1.0).certified, "what was not seen is not covered");
    let none = RiskControl { target: 0.001, ..risk };
    // what cannot be certified leaves a calibration, and says what can be
    let without = calibrate(&runs, None, Some(none), 0).unwrap();
    let lowest = without.uncertified.as_ref().unwrap().lowest_risk;
    assert!(without.certified.is_none() && (0.001..0.2).contains(&lowest), "{lowest}");
    let reachable = RiskControl { target: lowest + 1e-6, ..risk };
    assert!(calibrate(&runs, None, Some(reachable), 0).unwrap().certified.is_some());
}

/// The calibration in the cache certifies nothing.
fn serve_withholds(cache: &Path) {
    let server = Server::of("abacus", &["--abstain"], &[("UQAC_CACHE", cache.to_str().unwrap())]);
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &body)
    };
    let answer: Value = serde_json::from_str(&ask(json!({"logprobs": true})).body).unwrap();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["logprobs"]), (&json!(""), &Value::Null), "{choice}");
    assert!(choice["message"]["refusal"].as_str().unwrap().contains("is withheld: its score"), "{choice}");
    assert_eq!(
        (&choice["uqac"]["answer"], &choice["uqac"]["withheld"]["answer"]["text"]),
        (&Value::Null, &json!("42"))
    );
    assert!(choice["uqac"]["withheld"]["response"].as_str().unwrap().contains("42"));
    let stream = ask(json!({"stream": true})).body;
    assert!(stream.contains("\"refusal\":\"The answer is withheld") && !stream.contains("\"content\":\"T"), "{stream}");
    assert_eq!((server.metric("uqac_abstained_total"), server.metric("uqac_first_token_seconds_count")), (2.0, 2.0));
    let role = ask(json!({"messages": [{"role": "usr", "content": "x"}]}));
    assert!(role.status == 400 && role.body.contains("\"param\":\"messages[0].role\""), "{}", role.body);
    let refused = ask(json!({"uqac": false}));
    assert!(refused.status == 400 && refused.body.contains("--abstain"), "{}", refused.body);
}

/// A score of samples is calibrated from a run that drew them, and the calibration is used where as many are drawn.
#[test]
fn a_calibration_of_samples_applies_to_samples_drawn_the_same_way() {
    let (cache, run, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let draws = |folder: &Path, samples: usize| {
        write_run(folder, 300, &abacus());
        let file = folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let options = json!({"methods": ["uqac", "self-consistency"], "samples": samples, "temperature": 0.5});
        manifest["options"].as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        std::fs::write(file, manifest.to_string()).unwrap();
    };
    let calibrated = |folders: &[&Path]| {
        let folders: Vec<_> = folders.iter().map(|folder| folder.to_path_buf()).collect();
        calibrate(&folders, Some("g4_agreement"), None, 0).map_err(|error| error.to_string())
    };
    draws(run.path(), 2);
    draws(other.path(), 5);
    assert!(calibrated(&[run.path(), other.path()]).unwrap_err().contains("different samples"));
    draws(other.path(), 129);
    assert!(
        calibrated(&[other.path()])
            .unwrap_err()
            .contains("129 samples at temperature 0.5; ask and serve draw at most 128")
    );
    assert_eq!(calibrated(&[run.path()]).unwrap().samples, Some(Drawn { samples: 2, temperature: 0.5 }));
    let arguments = ["calibrate", run.path().to_str().unwrap(), "--score", "g4_agreement", "--replace"];
    let fitted = uqac(cache.path(), &arguments);
    assert!(text(&fitted.stdout).contains("sigmoid of g4_agreement, fitted on"), "{}", text(&fitted.stderr));
    assert!(text(&fitted.stdout).contains("2 samples at temperature 0.5"), "{}", text(&fitted.stdout));

    let server = Server::of("abacus", &[], &[("UQAC_CACHE", cache.path().to_str().unwrap())]);
    for (samples, applies) in [("0", false), ("1", false), ("2", true)] {
        let question = ["ask", "--model", "abacus", "--device", "cpu", "--json", "What is 17 + 25?"];
        let output = uqac(cache.path(), &[&question[..], &["--samples", samples]].concat());
        let asked: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((asked["confidence"].is_f64(), asked["from"] == "g4_agreement"), (applies, applies), "{asked}");
        assert_eq!(text(&output.stderr).contains("(--samples 2)"), !applies, "{}", text(&output.stderr));
        let answer = server.post(
            "/v1/chat/completions",
            &json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "seed": 0,
                "uqac": {"samples": samples.parse::<usize>().unwrap()}}),
        );
        let served = &answer.json()["choices"][0]["uqac"];
        assert_eq!((&served["confidence"], &served["samples"]), (&asked["confidence"], &asked["samples"]));
    }
}

/// The built-in model's hashes.
fn abacus() -> Fingerprint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus");
    let engine = uqac::Engine::load(&folder, uqac::EngineOptions::default()).unwrap();
    Fingerprint::of(&folder, &engine).unwrap()
}

/// From a run to the headline of `ask`: the file is found by the model's hashes, in the cache folder.
#[test]
fn ask_shows_the_calibrated_confidence() {
    let (cache, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (model, folder) = (abacus(), Path::new(env!("CARGO_MANIFEST_DIR")).join("models/abacus"));
    write_run(run.path(), 300, &model);
    // the calibration next to the model was fitted on 2,000 answers
    let few = uqac(cache.path(), &["calibrate", run.path().to_str().unwrap(), "--score", "answer_prob"]);
    assert_eq!(few.status.code(), Some(0), "{}", text(&few.stderr));
    assert!(text(&few.stderr).contains("it is not used: the one beside the model has more answers (2000 of"));
    let asked = uqac(cache.path(), &["ask", "--model", "abacus", "--device", "cpu", "What is 17 + 25?"]);
    assert!(text(&asked.stdout).contains("answers of abacus-fresh"), "{}", text(&asked.stdout));
    let arguments = ["calibrate", run.path().to_str().unwrap(), "--score", "answer_prob", "--replace"];
    let fitted = uqac(cache.path(), &arguments);
    let shown = text(&fitted.stdout);
    assert_eq!(fitted.status.code(), Some(0), "{}", text(&fitted.stderr));
    assert!(shown.contains("answer_prob), fitted on") && shown.contains("held out    ECE"), "{shown}");

    let ask = |more: &[&str]| {
        let output =
            uqac(cache.path(), &[&["ask", "--model", "abacus", "--device", "cpu", "What is 17 + 25?"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let reported = ask(&[]);
    assert!(reported.contains("confidence  0.") && reported.contains("answers of sums (ECE"), "{reported}");
    let json: Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    let (value, p) = (json["confidence"].as_f64().unwrap(), json["scores"]["answer_prob"].as_f64().unwrap());
    let file = std::fs::read_dir(cache.path().join("calibrations")).unwrap().next().unwrap().unwrap().path();
    let calibration: Calibration = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let log = json["scores"]["answer_logprob"].as_f64();
    let expected = calibration.confidence(|key| if key == "answer_prob" { Some(p) } else { log }).unwrap();
    assert_eq!(value, expected.value);
    assert!((1.0 / 302.0..=301.0 / 302.0).contains(&value), "{value}");
    // a smaller one does not replace it without --replace
    let smaller = tempfile::tempdir().unwrap();
    write_run(smaller.path(), 200, &model);
    let refused = uqac(cache.path(), &["calibrate", smaller.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
    assert!(text(&refused.stderr).contains("more than these") && text(&refused.stderr).contains("--replace"));
    let origin = json!({"tasks": ["sums"], "n": calibration.items, "ece": calibration.held_out.ece});
    assert_eq!((&json["from"], &json["calibration"]), (&json!("answer_prob"), &origin));
    assert!(json.get("abstained").is_none());
    // it does not apply to another reading of the method
    let corrected = Reading::from(Profile::Corrected);
    assert_eq!(calibration.reading, corrected);
    let json: Value = serde_json::from_str(&ask(&["--json", "--profile", "paper"])).unwrap();
    assert!(json["confidence"].is_null() && json.get("from").is_none() && json.get("calibration").is_none());
    let uncalibrated = ask(&["--profile", "paper"]);
    assert!(uncalibrated.contains("ranking scores, not probabilities; grade 50 answers and run `uqac calibrate`"));
    assert!(!uncalibrated.contains(['█', '%']), "{uncalibrated}");
    // abstaining requires a certified threshold, and has its own exit code
    let abstain = |more: &[&str]| {
        let question = ["ask", "--model", "abacus", "--device", "cpu", "--abstain", "--json", "What is 17 + 25?"];
        let output = uqac(cache.path(), &[&question, more].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert!(abstain(&[]).2.contains("no certified threshold"), "{:?}", abstain(&[]));
    assert!(abstain(&["--profile", "paper"]).2.contains("the model has no calibration"));
    // lists each with its file, and removes only the user's own
    let listed = uqac(cache.path(), &["calibrate", "--show", "abacus"]);
    let (shown, named) = (text(&listed.stdout), text(&listed.stderr));
    assert_eq!(listed.status.code(), Some(0), "{named}");
    assert!(shown.contains("answers (") && shown.contains("of sums") && shown.contains("of abacus-fresh"), "{shown}");
    assert!(named.contains(file.to_str().unwrap()) && named.matches("not used").count() == 1, "{named}");
    assert_eq!(uqac(cache.path(), &["calibrate", "--remove", "abacus"]).status.code(), Some(0));
    assert!(!file.exists() && ask(&[]).contains("answers of abacus-fresh"));
    let certify =
        ["calibrate", run.path().to_str().unwrap(), "--target-risk", "0.3", "--score", "answer_prob", "--replace"];
    let certified = uqac(cache.path(), &certify);
    assert!(text(&certified.stdout).contains("certified   risk at most 0.3"), "{}", text(&certified.stderr));
    for wrong in ["0", "1", "x", "NaN"] {
        let refused = uqac(cache.path(), &["calibrate", run.path().to_str().unwrap(), "--target-risk", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
    let mut written: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for (above, code) in [(-1e9, Some(0)), (1e9, Some(3))] {
        written["certified"]["above"] = json!(above);
        written["range"] = json!([-1e9, 1e9]);
        std::fs::write(&file, written.to_string()).unwrap();
        let (found, json, error) = abstain(&[]);
        assert_eq!(found, code, "{error}");
        let json: Value = serde_json::from_str(&json).unwrap();
        let withheld = above > 0.0;
        assert_eq!((&json["abstained"], json["answer"].is_null()), (&json!(withheld), withheld));
        let given = if withheld { &json["withheld"] } else { &json };
        assert_eq!(given["answer"]["text"], "42", "{json}");
        assert!(given["response"].as_str().unwrap().contains("42") && (json["response"] == "") == withheld, "{json}");
    }
    // in text, the reason is there instead
    let question = ["ask", "--model", "abacus", "--device", "cpu", "--abstain", "What is 17 + 25?"];
    let shown = text(&uqac(cache.path(), &question).stdout);
    assert!(shown.contains("is withheld: its score is not above") && !shown.contains("42"), "{shown}");
    let (code, json, _) = abstain(&["--max-tokens", "1"]);
    assert!(code == Some(3) && json.contains("\"abstained\":true"), "without an answer there is none to give: {json}");
    let input = cache.path().join("in.jsonl");
    std::fs::write(&input, r#"{"id": 1, "prompt": "What is 17 + 25?", "response": "It is \\boxed{42}."}"#).unwrap();
    let score = ["score", "-m", "abacus", "--device", "cpu", "--abstain", "-i", input.to_str().unwrap(), "-o", "-"];
    let json: Value = serde_json::from_slice(&uqac(cache.path(), &score).stdout).unwrap();
    assert!(json["answer"].is_null() && json["withheld"]["answer"]["text"] == "42", "{json}");
    serve_withholds(cache.path());
    // a damaged file is an error that names the file
    std::fs::write(&file, "{\"format\": 2}").unwrap();
    let broken = uqac(cache.path(), &["ask", "--model", "abacus", "What is 17 + 25?"]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(text(&broken.stderr).contains("not a calibration"), "{}", text(&broken.stderr));
    assert!(!folder.join(FILE).exists() || Calibration::find(&folder, &model, &corrected).unwrap().is_some());
}
