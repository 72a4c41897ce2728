//! `uqac report` and the analysis behind it, on synthetic runs: known values, every format, damaged and partial
//! folders.

use crate::runs::{RunSpec, lines};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use uqac::internals::analysis::{Analysis, AnalysisOptions, Level, analyse, results_json};
use uqac::internals::metrics::Metric;
use uqac::internals::term::sanitize::text_width;
use uqac::internals::{Sample, SweepPoint};

const MODEL: &str = "org/Small-1B";

fn spec(items: usize) -> RunSpec {
    RunSpec::new(MODEL, &["gsm8k"], items)
}

fn quick() -> AnalysisOptions {
    AnalysisOptions { resamples: 50, ..AnalysisOptions::default() }
}

fn analysis(folders: &[&Path]) -> Analysis {
    let folders: Vec<PathBuf> = folders.iter().map(|folder| folder.to_path_buf()).collect();
    analyse(&folders, &quick()).unwrap()
}

fn uqac(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
    command.env_remove("NO_COLOR").env_remove("COLUMNS").arg("report").args(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = uqac(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_calibrated_method_is_calibrated_and_the_best() {
    let folder = tempfile::tempdir().unwrap();
    spec(2000).write(folder.path());
    let analysis = analysis(&[folder.path()]);
    let task = &analysis.runs[0].tasks[0];
    let p = task.method("p").unwrap();
    // 20 bins of about 100 items: the mean of |error| is √(2/π) · √(p(1-p)/100) ≤ 0.04
    assert!(p.answered.value(Metric::Ece).unwrap() < 0.05);
    assert!(p.answered.value(Metric::Auroc).unwrap() > 0.7);
    let [low, high] = p.answered.get(Metric::Auroc).unwrap().interval.unwrap();
    assert!(low < p.answered.value(Metric::Auroc).unwrap() && p.answered.value(Metric::Auroc).unwrap() < high);
    // the paired difference of a less informed method, and of p to itself
    let common = task.common.as_ref().unwrap();
    let of = |key: &str| common.methods.iter().find(|method| method.method == key).unwrap();
    let response = of("response_mean").difference[&Metric::Auroc].unwrap();
    assert!(response.value < 0.0 && response.interval.unwrap()[1] < 0.0, "{response:?}");
    assert_eq!(of("p").difference[&Metric::Auroc].unwrap().value, 0.0);
    // only probabilities are measured for calibration
    assert_eq!(task.method("trace_length").unwrap().answered.get(Metric::Ece), None);
    assert_eq!(task.method("predictive_entropy").unwrap().answered.get(Metric::Brier), None);
    let balanced = p.balanced.as_ref().unwrap();
    assert!(balanced.per_class <= 500 && balanced.get(Metric::Auroc).unwrap().sd < 0.05);
}

#[test]
fn a_method_without_a_single_score_has_a_row_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    spec(20).write(folder.path());
    let manifest = folder.path().join("manifest.json");
    let mut run: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    run["options"]["methods"] = json!(["uqac", "p-true"]);
    std::fs::write(&manifest, run.to_string()).unwrap();
    let output = uqac(&[folder.path().to_str().unwrap(), "--format", "markdown"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("| P(True)")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.starts_with("| P(True) | 0 | —"), "{row}");
    assert!(text.contains("P(True): 0 of 20 items have a score"), "{text}");
    let output = uqac(&[folder.path().to_str().unwrap(), "--methods", "p,response_mean"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("on gsm8k: methods") && !text.contains("items have a score"), "{text}");
}

#[test]
fn samples_are_scored_at_their_cost() {
    let folder = tempfile::tempdir().unwrap();
    spec(300).write(folder.path());
    let analysis = analysis(&[folder.path()]);
    let task = &analysis.runs[0].tasks[0];
    let of = |key: &str| task.method(key).unwrap_or_else(|| panic!("{key}"));
    // each sample is as long as the response
    for n in 1..=4 {
        for key in ["agreement", "g4_agreement"] {
            let found = of(&format!("{key}:{n}"));
            assert_eq!((found.passes, found.answered.items), (Some(1.0 + f64::from(n)), 287));
        }
    }
    assert_eq!((of("p").passes, of("g4_agreement").passes, of("verbalized").passes), (Some(1.0), Some(6.0), None));
    // that of all five is recorded, of one score
    assert_eq!(task.method("g4_agreement:5"), None);
    let auroc = |key: &str| of(key).answered.value(Metric::Auroc).unwrap();
    assert!(auroc("agreement:5") > auroc("agreement:1") && auroc("g4_agreement:1") > auroc("agreement:1"));
    let pictures = folder.path().join("pictures");
    let page = stdout(&[folder.path().to_str().unwrap(), "--format", "html", "--pictures", pictures.to_str().unwrap()]);
    let picture = std::fs::read_to_string(pictures.join("frontier.svg")).unwrap();
    for shown in
        ["<title>Agreement + G4 (1): AUROC 0.", ", by length 0.", ", at 2.00 passes</title>", "<title>Length: AUROC"]
    {
        assert!(picture.contains(shown) && page.contains(shown), "{shown}: {picture}");
    }
    // a line from left to right
    let place = |of: &str| picture.find(&format!("<title>Agreement + G4{of}: AUROC")).unwrap();
    assert!(place(" (1)") < place(" (2)") && place(" (4)") < place(""), "{picture}");
    // the page's items have recorded scores alone
    assert!(!page.contains("\"g4_agreement:1\""));
}

#[test]
fn nothing_is_dropped_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    spec(300).write(folder.path());
    let samples = spec(300).samples("gsm8k");
    let analysis = analysis(&[folder.path()]);
    let task = &analysis.runs[0].tasks[0];
    let s = &task.summary;
    // items 7, 57, ... have no answer; 11, 61, ... are cut off; 13 is an error
    assert_eq!((s.items, s.graded, s.no_answer, s.truncated, s.errors, s.answered), (300, 300, 12, 6, 1, 287));
    let right = samples.iter().filter(|sample| sample.metrics["acc"] == 1.0).count();
    assert_eq!((s.correct, s.accuracy), (right, Some(right as f64 / 300.0)));
    let differ =
        samples.iter().filter(|x| x.metrics.get("acc_reference").is_some_and(|a| *a != x.metrics["acc"])).count();
    assert_eq!(s.disagreements, differ);
    assert!(differ > 0);
    let p = task.method("p").unwrap();
    assert_eq!((p.answered.items, p.all.items, p.missing), (287, 300, 0));
    let said = samples.iter().filter(|x| x.uq.scores.get("verbalized").is_some_and(Option::is_some)).count();
    let verbalized = task.method("verbalized").unwrap();
    assert_eq!((verbalized.answered.items, verbalized.missing), (said, 287 - said));
    assert!(verbalized.missing > 0);
    // a missing value of one method does not shrink the others' comparison
    let common = task.common.as_ref().unwrap();
    let compared = |key: &str| common.methods.iter().find(|method| method.method == key).unwrap().measures.items;
    assert_eq!((common.items, compared("verbalized"), compared("answer_prob")), (287, said, 287));
    // unanswered items are incorrect and rank lowest, so ranking them too can only help
    assert!(p.all.value(Metric::Auroc) > p.answered.value(Metric::Auroc));
}

/// The same samples with controls: p_attn of `random` is the run's own on every draw, that of `random-digits` is
/// uninformative.
#[test]
fn controls_are_rows_with_paired_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let made = RunSpec { sweep: false, ..spec(400) };
    made.write(folder.path());
    let mut samples = made.samples("gsm8k");
    for sample in samples.iter_mut().filter(|sample| sample.uq.answer.is_some()) {
        let own = sample.uq.scores["p_attn"];
        let mut point = |chain: &str, draw: Option<u64>, p_attn| {
            let mut setting = BTreeMap::from([("chain".to_owned(), json!(chain))]);
            setting.extend(draw.map(|draw| ("draw".to_owned(), json!(draw))));
            let scores = BTreeMap::from([("p_attn".to_owned(), p_attn)]);
            sample.uq.sweep.push(SweepPoint { setting, chain: vec![], kept: vec![], scores });
        };
        (0..3).for_each(|draw| point("random", Some(draw), own));
        (0..3).for_each(|draw| point("random-digits", Some(draw), Some(0.5)));
        point("none", None, own.map(|p| p * 0.5));
    }
    std::fs::write(folder.path().join("samples_gsm8k.jsonl"), lines(&samples)).unwrap();
    let analysis = analysis(&[folder.path()]);
    let task = &analysis.runs[0].tasks[0];
    assert!(task.sweep.is_empty(), "controls are not other parameters");
    let found: Vec<(&str, usize, usize)> =
        task.controls.iter().map(|c| (c.chain.as_str(), c.draws, c.methods.len())).collect();
    assert_eq!(found, [("random", 3, 1), ("random-digits", 3, 1), ("none", 1, 1)]);
    let of = |i: usize| &task.controls[i].methods[0];
    let own = task.method("p_attn").unwrap();
    for i in 0..3 {
        assert_eq!((of(i).method.as_str(), of(i).items), ("p_attn", own.answered.items));
        assert_eq!(of(i).own[&Metric::Auroc], own.answered.get(Metric::Auroc));
    }
    let same = of(0).difference[&Metric::Auroc].unwrap();
    // the mean of three equal values, with a rounding error of 2^-53 each
    let is_zero = |x: f64| x.abs() < 1e-15;
    assert!(is_zero(same.value) && same.interval.unwrap().into_iter().all(is_zero), "{same:?}");
    assert_eq!(of(1).control[&Metric::Auroc].unwrap().value, 0.5);
    let better = of(1).difference[&Metric::Auroc].unwrap();
    assert!(better.interval.unwrap()[0] > 0.0, "{better:?}");
    // half of every probability ranks the same, but is calibrated differently
    assert_eq!(of(2).difference[&Metric::Auroc].unwrap().value, 0.0);
    assert!(of(2).difference[&Metric::Ece].unwrap().value != 0.0);
    let path = folder.path().to_str().unwrap();
    let shown = stdout(&[path]);
    assert!(shown.contains("the chain beside its controls") && shown.contains("random-digits"), "{shown}");
    let csv = stdout(&[path, "--format", "csv"]);
    assert!(csv.contains(",control_difference,chain=random-digits,p_attn,auroc,"), "{csv}");
}

/// The value of knowing an item's subtask: the subtask's accuracy as a score, if there are several.
#[test]
fn task_identity_is_a_baseline_of_pooled_subtasks() {
    let folder = tempfile::tempdir().unwrap();
    let tasks = ["bbh:easy", "bbh:hard", "gsm8k"];
    RunSpec::new(MODEL, &tasks, 120).write(folder.path());
    let samples = RunSpec::new(MODEL, &tasks, 120).samples("bbh:easy");
    let analysis = analysis(&[folder.path()]);
    let run = &analysis.runs[0];
    let of = |task: &str| run.tasks.iter().find(|found| found.task == task).unwrap();
    assert!(of("gsm8k").method("task_identity").is_none());
    let pooled = of("bbh").method("task_identity").unwrap();
    assert_eq!(pooled.answered.value(Metric::Ece), None, "it is fitted to what it would be measured on");
    let accuracy = samples.iter().map(|sample| sample.metrics["acc"]).sum::<f64>() / samples.len() as f64;
    let easy = of("bbh").items.iter().find(|item| item.task == "bbh:easy" && item.answered()).unwrap();
    assert!((easy.score("task_identity").unwrap() - accuracy).abs() < 1e-12);
    // with two tasks, at least as good as chance: items of the better one rank higher
    assert!(pooled.answered.value(Metric::Auroc).unwrap() >= 0.5);
    assert_eq!(of("bbh:easy").method("task_identity").unwrap().answered.value(Metric::Auroc), Some(0.5));
}

/// A majority's weight is judged by whether the majority is correct, even for responses without an answer of their own.
#[test]
fn the_majoritys_weight_is_judged_by_its_own_answer() {
    let folder = tempfile::tempdir().unwrap();
    spec(200).write(folder.path());
    let mut samples = spec(200).samples("gsm8k");
    for (i, sample) in samples.iter_mut().enumerate() {
        let right = i % 3 == 0;
        sample.metrics.insert("acc_majority".to_owned(), f64::from(u8::from(right)));
        let weight = if right { 0.9 } else { 0.2 };
        sample.uq.scores.insert("self_consistency_majority".to_owned(), Some(weight));
    }
    std::fs::write(folder.path().join("samples_gsm8k.jsonl"), lines(&samples)).unwrap();
    let analysis = analysis(&[folder.path()]);
    let majority = analysis.runs[0].tasks[0].method("self_consistency_majority").unwrap();
    assert_eq!((majority.answered.items, majority.answered.correct), (200, 67));
    assert_eq!(majority.answered.value(Metric::Auroc), Some(1.0));
}

/// Products of probabilities rank by their logarithms if samples have them: values that underflow to 0 still have an
/// order.
#[test]
fn what_underflows_ranks_by_its_logarithm() {
    let folder = tempfile::tempdir().unwrap();
    spec(200).write(folder.path());
    let mut samples = spec(200).samples("gsm8k");
    for sample in samples.iter_mut().filter(|sample| sample.uq.answer.is_some()) {
        let log = if sample.metrics["acc"] == 1.0 { -800.0 } else { -900.0 };
        sample.uq.scores.insert("response_prob".to_owned(), Some(f64::exp(log)));
        sample.uq.scores.insert("response_logprob".to_owned(), Some(log));
    }
    let file = folder.path().join("samples_gsm8k.jsonl");
    std::fs::write(&file, lines(&samples)).unwrap();
    let auroc = || {
        let found = analysis(&[folder.path()]).runs[0].tasks[0].method("response_prob").unwrap().answered.clone();
        (found.value(Metric::Auroc).unwrap(), found.value(Metric::Ece).unwrap())
    };
    let accuracy = {
        let answered: Vec<f64> = samples.iter().filter(|s| s.uq.answer.is_some()).map(|s| s.metrics["acc"]).collect();
        answered.iter().sum::<f64>() / answered.len() as f64
    };
    let (ranked, ece) = auroc();
    assert_eq!(ranked, 1.0);
    assert!((ece - accuracy).abs() < 1e-12, "a probability of 0 is still what is calibrated");
    // samples of earlier versions lack it
    for sample in &mut samples {
        sample.uq.scores.remove("response_logprob");
    }
    std::fs::write(&file, lines(&samples)).unwrap();
    assert_eq!(auroc().0, 0.5);
}

#[test]
fn shards_in_one_folder_or_several_are_one_run() {
    let (whole, one, a, b) = (
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    spec(101).write(whole.path());
    for (i, folder) in [(1, a.path()), (2, b.path())] {
        let shard = RunSpec { shard: Some((i, 2)), ..spec(101) };
        shard.write(folder);
        shard.write(one.path());
    }
    let expected = analysis(&[whole.path()]);
    let tasks = |analysis: &Analysis| serde_json::to_value(&analysis.runs[0].tasks).unwrap();
    for folders in [vec![one.path()], vec![a.path(), b.path()], vec![b.path(), a.path(), b.path()]] {
        let found = analysis(&folders);
        assert_eq!(found.runs.len(), 1);
        assert!(found.runs[0].notes.is_empty(), "{:?}", found.runs[0].notes);
        assert_eq!(tasks(&found), tasks(&expected));
    }
    assert_eq!(analysis(&[a.path()]).runs[0].notes, ["shards missing, of 2: 2"]);
    // another model is a separate run, and so is a complete run of the same model
    let other = tempfile::tempdir().unwrap();
    RunSpec { shard: Some((2, 2)), seed: 9, ..spec(101) }.write(other.path());
    assert_eq!(analysis(&[a.path(), other.path()]).runs.len(), 2);
    let twice = analysis(&[whole.path(), a.path()]);
    assert_eq!(twice.runs.len(), 2);
    assert_ne!(twice.runs[0].name, twice.runs[1].name);
}

#[test]
fn half_written_damaged_and_repeated_lines() {
    let folder = tempfile::tempdir().unwrap();
    spec(40).write(folder.path());
    let file = folder.path().join("samples_gsm8k.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut rows: Vec<&str> = text.lines().collect();
    let cut = &rows[39][..rows[39].len() / 2];
    rows.truncate(39);
    // a duplicate is reported if it differs
    let (same, other) = (rows[3], rows[4].replacen("\"p\":", "\"p\":0.5,\"was\":", 1));
    assert_ne!(rows[4], other);
    std::fs::write(&file, format!("{}\n\n{same}\n{other}\nnot json\n{cut}", rows.join("\n"))).unwrap();
    let run = &analysis(&[folder.path()]).runs[0];
    assert_eq!(run.tasks[0].summary.items, 39);
    let notes = run.notes.join("\n");
    assert!(
        notes.contains("line 44 is half-written")
            && notes.contains("line 43")
            && notes.contains("1 items are there twice"),
        "{notes}"
    );
    // only a half-written first line: a run that has just started
    std::fs::write(&file, cut).unwrap();
    let begun = analysis(&[folder.path()]);
    assert!(begun.runs[0].tasks.is_empty());
    assert!(stdout(&[folder.path().to_str().unwrap()]).contains("no samples yet"));
}

#[test]
fn folders_that_are_no_runs_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let error = |path: &str| {
        let output = uqac(&[path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error(&path).contains("no manifest.json"), "{}", error(&path));
    assert!(error("/no/such/folder").contains("no such folder"));
    spec(5).write(&folder.path().join("inner"));
    assert!(error(&path).contains("inner"));
    let inner = folder.path().join("inner");
    let manifest = inner.join("manifest.json");
    for (text, says) in [("[1]", "JSON object"), ("{", "JSON object"), ("{\"format\": 99}", "format 99")] {
        std::fs::write(&manifest, text).unwrap();
        assert!(error(inner.to_str().unwrap()).contains(says), "{}", error(inner.to_str().unwrap()));
    }
    std::fs::write(&manifest, "{}").unwrap();
    std::fs::write(inner.join("samples_gsm8k.jsonl"), "{\"doc_id\": 1}\n").unwrap();
    assert!(error(inner.to_str().unwrap()).contains("samples_gsm8k.jsonl"));
    let output = uqac(&[]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_unknown_method_is_refused_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    spec(20).write(folder.path());
    let output = uqac(&[folder.path().to_str().unwrap(), "--methods", "p,nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("nonsense") && error.contains("p_attn"), "{error}");
    let text = stdout(&[folder.path().to_str().unwrap(), "--methods", "p,p_attn", "--resamples", "0"]);
    assert!(text.contains("UQAC P") && !text.contains("Verbalized"));
}

/// One class only, one item, no item, non-finite scores: every format is written, with dashes.
#[test]
fn edge_cases_in_every_format() {
    let edit = |change: &dyn Fn(&mut Sample), n: usize| {
        let folder = tempfile::tempdir().unwrap();
        let spec = RunSpec { faults: false, ..spec(n) };
        spec.write(folder.path());
        let mut samples = spec.samples("gsm8k");
        samples.iter_mut().for_each(change);
        std::fs::write(folder.path().join("samples_gsm8k.jsonl"), lines(&samples)).unwrap();
        folder
    };
    let right = |sample: &mut Sample| {
        sample.metrics.insert("acc".to_owned(), 1.0);
    };
    let no_scores = |sample: &mut Sample| sample.uq.scores.values_mut().for_each(|score| *score = None);
    let unknown = |sample: &mut Sample| {
        sample.uq.scores.insert("my|method_é".to_owned(), Some(7.5));
    };
    let ungraded = |sample: &mut Sample| sample.metrics.clear();
    for folder in [
        edit(&right, 12),
        edit(&no_scores, 12),
        edit(&unknown, 12),
        edit(&ungraded, 12),
        edit(&|_| (), 1),
        edit(&|_| (), 0),
    ] {
        let path = folder.path().to_str().unwrap();
        for format in ["table", "markdown", "csv", "latex", "json"] {
            let text = stdout(&[path, "--format", format, "--resamples", "20"]);
            assert!(!text.contains("NaN") && !text.contains("inf "), "{format}: {text}");
        }
    }
    let one_class = edit(&right, 12);
    let found = analysis(&[one_class.path()]);
    let p = found.runs[0].tasks[0].method("p").unwrap();
    assert_eq!((p.answered.get(Metric::Auroc), p.balanced.as_ref()), (None, None));
    assert!(p.answered.get(Metric::Ece).is_some());
    assert!(stdout(&[one_class.path().to_str().unwrap()]).contains('—'));
    let other = edit(&unknown, 12);
    let found = analysis(&[other.path()]);
    let method = found.methods.last().unwrap();
    assert_eq!((method.key.as_str(), method.probability), ("my|method_é", false));
}

#[test]
fn subtasks_are_pooled_and_means_are_over_benchmarks() {
    let folder = tempfile::tempdir().unwrap();
    RunSpec::new(MODEL, &["bbh:navigate", "bbh:causal_judgement", "gsm8k"], 60).write(folder.path());
    let analysis = analysis(&[folder.path()]);
    let run = &analysis.runs[0];
    let names: Vec<(&str, Level)> = run.tasks.iter().map(|task| (task.task.as_str(), task.level)).collect();
    let subtask = |name| (name, Level::Subtask);
    let expected = [
        ("bbh", Level::Benchmark),
        subtask("bbh:causal_judgement"),
        subtask("bbh:navigate"),
        ("gsm8k", Level::Benchmark),
    ];
    assert_eq!(names, expected);
    assert_eq!(run.tasks[0].summary.items, 120);
    let mean = run.means.iter().find(|mean| mean.method == "p").unwrap();
    let value = |task: usize| run.tasks[task].method("p").unwrap().answered.value(Metric::Auroc).unwrap();
    assert!((mean.answered[&Metric::Auroc].unwrap() - (value(0) + value(3)) / 2.0).abs() < 1e-15);
}

#[test]
fn sweeps_come_from_the_samples_or_from_files_of_their_own() {
    let (inside, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    spec(80).write(inside.path());
    spec(80).write(beside.path());
    let mut samples = spec(80).samples("gsm8k");
    let mut rows = String::new();
    for sample in &mut samples {
        for point in sample.uq.sweep.drain(..) {
            let mut row = serde_json::to_value(point).unwrap();
            row["doc_id"] = sample.doc_id.into();
            rows += &format!("{row}\n");
        }
    }
    std::fs::write(beside.path().join("samples_gsm8k.jsonl"), lines(&samples)).unwrap();
    std::fs::write(beside.path().join("sweep_gsm8k.jsonl"), format!("{rows}{{\"doc_id\": 1, \"sett")).unwrap();
    let (inside, beside) = (analysis(&[inside.path()]), analysis(&[beside.path()]));
    let sweep = &inside.runs[0].tasks[0].sweep;
    assert_eq!(sweep, &beside.runs[0].tasks[0].sweep);
    assert!(beside.runs[0].notes.join(" ").contains("half-written"));
    let names: Vec<String> = sweep.iter().map(uqac::internals::analysis::SweepSetting::name).collect();
    assert_eq!(names, ["", "k=8", "k=32", "k-cache=f16", "theta=0.7"]);
    // the settings lose 0, 0.3, 0.2, 0.02 and 0.4 of the chain
    let overlap: Vec<f64> = sweep.iter().map(|setting| setting.chain_overlap.unwrap()).collect();
    let lost = [0.0, 0.3, 0.2, 0.02, 0.4];
    assert!(overlap.iter().zip(lost).all(|(found, lost)| (found - (1.0 - lost)).abs() < 0.05), "{overlap:?}");
    assert_eq!(sweep[0].methods[0].largest_change, Some(0.0));
    assert!(sweep[4].methods[0].mean_change > sweep[3].methods[0].mean_change);
}

#[test]
fn the_same_samples_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    spec(120).write(folder.path());
    let path = folder.path().to_str().unwrap();
    let json = stdout(&[path, "--format", "json"]);
    assert_eq!(json, stdout(&[path, "--format", "json"]));
    assert_ne!(json, stdout(&[path, "--format", "json", "--seed", "1"]));
    // results.json has the same content, wherever the folder lies
    let mut value: Value = serde_json::from_str(&json).unwrap();
    value["runs"][0]["folders"] = serde_json::json!([]);
    let analysis = analyse(&[folder.path().to_owned()], &AnalysisOptions::default()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&results_json(&analysis).to_string()).unwrap(), value);
}

#[test]
fn csv_and_json_hold_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    spec(150).write(folder.path());
    let path = folder.path().to_str().unwrap();
    let json: Value = serde_json::from_str(&stdout(&[path, "--format", "json"])).unwrap();
    let text = stdout(&[path, "--format", "csv"]);
    let rows: Vec<BTreeMap<String, String>> =
        csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect();
    let find = |view: &str, method: &str, metric: &str| {
        let of =
            |row: &&BTreeMap<String, String>| row["view"] == view && row["method"] == method && row["metric"] == metric;
        let found: Vec<_> = rows.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{view} {method} {metric}");
        found[0].clone()
    };
    // this JSON parser is exact only to the last place of a float; the written value is exact
    let same = |text: &str, value: &Value| match (text.parse::<f64>().ok(), value.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 2.0 * f64::EPSILON * a.abs(),
        (a, b) => a == b,
    };
    for method in json["runs"][0]["tasks"][0]["methods"].as_array().unwrap() {
        for view in ["answered", "all"] {
            for (metric, estimate) in method[view]["metrics"].as_object().unwrap() {
                let row = find(view, method["method"].as_str().unwrap(), metric);
                assert!(same(&row["value"], &estimate["value"]), "{row:?} {estimate}");
                assert!(same(&row["low"], &estimate["interval"][0]), "{row:?} {estimate}");
            }
        }
    }
    assert_eq!(find("summary", "", "no_answer")["value"], "6.0");
    assert_eq!(rows[0].len(), 12);
}

#[test]
fn tables_fit_the_width_and_mark_the_best() {
    let folder = tempfile::tempdir().unwrap();
    spec(150).write(folder.path());
    let path = folder.path().to_str().unwrap();
    for width in ["60", "80", "120"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        let output = command.env("COLUMNS", width).args(["report", path]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let too_wide: Vec<&str> = text.lines().filter(|line| text_width(line) > width.parse().unwrap()).collect();
        assert!(too_wide.is_empty(), "{too_wide:?}");
        for head in ["AUROC [95 %]", "PRR", "AUROC, balanced", "ECE, balanced", "AUROC, all", "No answer"] {
            assert!(text.contains(head), "{width}: {head}");
        }
        assert!(text.contains('*') && !text.contains('\x1b') && !text.lines().any(|line| line.ends_with(' ')));
    }
    let markdown = stdout(&[path, "--format", "markdown"]);
    let table: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert!(table.iter().any(|line| line.contains("| **")) && table.iter().any(|line| line.contains(":--")));
    let latex = stdout(&[path, "--format", "latex"]);
    assert_eq!(latex.matches("\\toprule").count(), latex.matches("\\end{tabular}").count());
    assert!(latex.contains("\\textbf{") && latex.contains("P\\_attn") && !latex.contains('±'));
}

/// A model's and a task's names are file names, which may come from anyone.
#[test]
fn names_from_outside_are_text_in_every_format() {
    const NAME: &str = "=1+1\u{1b}[2J\nINJECTED row\u{9b}31m\u{202e}";
    let folder = tempfile::tempdir().unwrap();
    RunSpec::new(NAME, &["gsm8k", "@SUM(A1)\u{7}"], 40).write(folder.path());
    let path = folder.path().to_str().unwrap();
    for format in ["table", "markdown", "csv", "latex", "json"] {
        let text = stdout(&[path, "--format", format, "--resamples", "0"]);
        let acted_upon = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(acted_upon), "{format}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("INJECTED")), "{format}: {text}");
    }
    let csv = stdout(&[path, "--format", "csv", "--resamples", "0"]);
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    for row in rows.records().map(Result::unwrap) {
        assert!(row[0].starts_with("'=1+1␛[2J INJECTED"), "{row:?}");
        let number = |cell: &str| cell.parse::<f64>().is_ok();
        assert!(row.iter().all(|cell| number(cell) || !cell.starts_with(['=', '+', '-', '@'])), "{row:?}");
    }
    let json: Value = serde_json::from_str(&stdout(&[path, "--format", "json", "--resamples", "0"])).unwrap();
    assert_eq!(json["runs"][0]["model"], NAME, "escaped, and the same");
}

#[test]
fn the_output_can_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    spec(30).write(folder.path());
    let (path, file) = (folder.path().to_str().unwrap(), folder.path().join("report.md"));
    assert_eq!(stdout(&[path, "--format", "markdown", "--output", file.to_str().unwrap()]), "");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), stdout(&[path, "--format", "markdown"]));
    let output = uqac(&[path, "--output", "/no/such/folder/report.md"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/no/such/folder/report.md"));
}

#[test]
fn several_tasks_have_a_table_of_methods_over_them() {
    let folder = tempfile::tempdir().unwrap();
    RunSpec::new(MODEL, &["gsm8k", "math"], 60).write(folder.path());
    let plain = stdout(&[folder.path().to_str().unwrap()]);
    assert!(plain.contains("methods over tasks") && plain.contains("gsm8k: AUROC") && plain.contains("math: ECE"));
}

#[test]
fn methods_that_rank_alike_share_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut samples = spec(40).samples("gsm8k");
    spec(40).write(folder.path());
    for sample in &mut samples {
        let p = sample.uq.scores.get("p").copied().flatten();
        sample.uq.scores.insert("tripled".to_owned(), p.map(|p| 3.0 * p - 7.0)); // no probability, but same order
        sample.uq.scores.insert("halved".to_owned(), p.map(|p| p / 2.0)); // with its own ECE
    }
    std::fs::write(folder.path().join("samples_gsm8k.jsonl"), lines(&samples)).unwrap();
    let analysis = analysis(&[folder.path()]);
    let rows = analysis.rows_of(&analysis.runs[0].tasks[0]);
    let shared: Vec<_> = rows.iter().find(|(method, _)| method.key == "p").unwrap().1.iter().map(|m| &m.key).collect();
    assert_eq!(shared, ["tripled"]);
    assert!(rows.iter().any(|(method, _)| method.key == "halved"));
    let tables = stdout(&[folder.path().to_str().unwrap(), "--resamples", "0"]);
    assert!(!tables.contains("\n  tripled ") && tables.contains("Same ranking as UQAC P: tripled."), "{tables}");
    assert!(tables.contains("31 right and 6 wrong answers are too few") && !tables.contains("post hoc"), "{tables}");
}

#[test]
fn what_takes_longer_than_a_second_says_so() {
    let folder = tempfile::tempdir().unwrap();
    spec(300).write(folder.path());
    let says = |resamples| uqac(&[folder.path().to_str().unwrap(), "--resamples", resamples]).stderr;
    assert_eq!(says("0"), b"");
    assert_eq!(String::from_utf8(says("5000")).unwrap(), "computing metrics and intervals ...\n");
}
