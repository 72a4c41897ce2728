//! `report.html`: nothing in a response becomes markup, and the page's script reads exactly what was recorded.

use crate::runs::RunSpec;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use uqac::internals::Sample;
use uqac::internals::analysis::{AnalysisOptions, Method, analyse};
use uqac::internals::finding::{Finding, Verdict, findings};
use uqac::internals::html::{Items, Page};
use uqac::internals::metrics::Metric;
use uqac::internals::pictures::{Gallery, galleries};
use uqac::internals::svg::{Curve, Picture, risk_coverage};
use uqac::internals::tables::{Cell, Section, Table};

const HOSTILE: &str =
    "</script><!--<script>alert(1)</script> <img src=x onerror=alert(2)> &amp; \"'` \u{0}\u{202e}\u{2028}\\ud800";

/// Prompt length of every sample here.
const N_INSTR: usize = 40;

/// A sample whose tokens are the given pieces of its response; the last piece is the answer.
fn sample(doc_id: usize, pieces: &[&str], acc: f64, status: &str) -> Sample {
    let mut offsets = vec![];
    let mut at = 0;
    for piece in pieces {
        offsets.push([at, at + piece.len()]);
        at += piece.len();
    }
    let n = pieces.len();
    let last = n as i64 - 1;
    let links: Vec<Value> = (0..last)
        .map(|token| json!({"row": token - 1, "score": 0.25 * (token + 1) as f64, "similarity": 0.3, "from": last - 1}))
        .chain([json!({"row": last - 1, "score": 0.0, "similarity": 1.0, "from": null})])
        .collect();
    let answer = (status == "ok").then(|| json!({"text": pieces[n - 1], "tokens": [N_INSTR + n - 1, N_INSTR + n]}));
    let sample = json!({
        "doc_id": doc_id,
        "task": "gsm8k",
        "doc": {"question": format!("How many? {HOSTILE}")},
        "target": "29",
        "arguments": [["prompt", {}]],
        "resps": [[pieces.concat()]],
        "filtered_resps": [(status == "ok").then(|| pieces[n - 1])],
        "metrics": {"acc": acc},
        "uq": {
            "status": status,
            "profile": "corrected",
            "finish": if status == "ok" { "stop" } else { "length" },
            "n_instr": N_INSTR,
            "tokens": {"ids": vec![7; n], "offsets": offsets, "logprobs": vec![-0.5; n]},
            "answer": answer,
            "chain": if status == "ok" { links } else { vec![] },
            "kept": [0],
            "ensemble": [
                {"position": null, "token": null, "log_answer": -0.5, "log_chain": -0.5},
                {"position": N_INSTR + 1, "token": 9, "log_answer": -2.0, "log_chain": -1.0, "text": HOSTILE},
            ],
            "scores": {"p": 0.4177, "min_token_prob": null},
            "seconds": {},
        },
    });
    serde_json::from_value(sample).expect("a sample")
}

fn samples() -> Vec<Sample> {
    vec![
        sample(0, &["So", " 2", HOSTILE, "29"], 1.0, "ok"),
        sample(1, &["So", " it", " is", " 7"], 0.0, "ok"),
        sample(2, &["I", " do", " not", " know"], 0.0, "no_answer"),
    ]
}

fn methods() -> Vec<Method> {
    ["p", "min_token_prob"].map(|key| Method::of(key, &BTreeSet::new(), std::iter::empty())).to_vec()
}

fn page(samples: &[Sample]) -> Page {
    page_within(samples, usize::MAX)
}

/// A page with at most `limit` bytes of items.
fn page_within(samples: &[Sample], limit: usize) -> Page {
    let mut items = Items::new(HOSTILE, "gsm8k", limit);
    samples.iter().for_each(|sample| items.add(sample, &methods()));
    let curve = Curve { method: HOSTILE.to_owned(), points: vec![(0.5, 0.1), (1.0, 0.4)], aurc: 0.2 };
    let table = Table {
        title: HOSTILE.to_owned(),
        columns: vec!["method".into(), "AUROC".into()],
        sections: vec![Section {
            label: Some(HOSTILE.to_owned()),
            rows: vec![vec![
                Cell { text: HOSTILE.to_owned(), best: false },
                Cell { text: "0.5".to_owned(), best: true },
            ]],
        }],
        notes: vec![HOSTILE.to_owned()],
    };
    let pictures = vec![risk_coverage("curves", HOSTILE, &[curve])];
    Page {
        title: HOSTILE.to_owned(),
        findings: vec![Finding {
            model: HOSTILE.to_owned(),
            facts: vec![("Command", HOSTILE.to_owned())],
            verdicts: vec![Verdict {
                task: HOSTILE.to_owned(),
                accuracy: HOSTILE.to_owned(),
                best: Some((HOSTILE.to_owned(), HOSTILE.to_owned())),
                methods: 2,
                sentences: vec![HOSTILE.to_owned()],
            }],
        }],
        runs: vec![items],
        tables: vec![table],
        galleries: vec![Gallery { heading: HOSTILE.to_owned(), folded: true, pictures }],
        methods: methods(),
    }
}

/// The JSON of a script element.
fn embedded(html: &str, id: &str) -> Value {
    let open = format!("<script type=\"application/json\" id=\"{id}\">");
    let start = html.find(&open).expect("the element") + open.len();
    serde_json::from_str(&html[start..start + html[start..].find("</script>").unwrap()]).expect("JSON")
}

#[test]
fn nothing_from_outside_becomes_markup() {
    let samples = samples();
    let html = page(&samples).render();
    let scripts = html.matches("<script").count();
    assert_eq!((scripts, html.matches("</script>").count()), (3, 3), "ours: two of data, one of code");
    assert!(!html.contains("<img") && !html.contains("<!--"));
    assert!(!html.contains(['\0', '\u{202e}', '\u{2028}']));
}

#[test]
fn the_page_loads_nothing() {
    let samples = samples();
    let html = page(&samples).render();
    assert!(html.contains("default-src 'none'"));
    let namespace = "http://www.w3.org/2000/svg";
    assert!(!html.replace(namespace, "").contains("http://") && !html.contains("https://"));
    for loader in ["src=\"", "@import", "url(h", "fetch(", "XMLHttpRequest", "import("] {
        assert!(!html.contains(loader), "{loader}");
    }
    assert!(!html.contains("innerHTML"), "text from outside is only ever set as text");
}

/// The content of the page's only element of this name without attributes.
fn element<'a>(html: &'a str, name: &str) -> &'a str {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    assert_eq!(html.matches(&open).count(), 1, "one {name}");
    let rest = &html[html.find(&open).unwrap() + open.len()..];
    &rest[..rest.find(&close).unwrap()]
}

/// Injected markup cannot run a script: the policy allows only the page's own script and style, by their hashes.
#[test]
fn the_policy_knows_style_and_script_by_their_hashes() {
    use sha2::Digest;
    let html = page(&samples()).render();
    let policy = html.split("Content-Security-Policy\" content=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(!policy.contains("unsafe"), "{policy}");
    assert!(!html.contains(" style=") && !html.contains(" onclick="), "which the policy would not let through");
    for (directive, name) in [("style-src", "style"), ("script-src", "script")] {
        let hash = policy.split(&format!("{directive} 'sha256-")).nth(1).unwrap().split('\'').next().unwrap();
        let bits: String = hash.trim_end_matches('=').chars().map(|c| format!("{:06b}", digit(c))).collect();
        let expected: String =
            sha2::Sha256::digest(element(&html, name)).iter().map(|byte| format!("{byte:08b}")).collect();
        assert!(bits.starts_with(&expected) && bits.len() < expected.len() + 6, "{name}");
    }
}

/// The value of a base64 digit.
fn digit(c: char) -> u32 {
    let from = |first: char| u32::from(c) - u32::from(first);
    match c {
        'A'..='Z' => from('A'),
        'a'..='z' => 26 + from('a'),
        '0'..='9' => 52 + from('0'),
        '+' => 62,
        _ => 63,
    }
}

#[test]
fn the_script_gets_what_was_recorded() {
    let samples = samples();
    let html = page(&samples).render();
    let items = &embedded(&html, "items-data")[0];
    let item = &items[0];
    assert_eq!(item["outcome"], "correct");
    assert_eq!(item["tokens"][3], "29");
    assert_eq!(item["span"], json!([3, 4]));
    assert_eq!(item["p"][0], json!(0.60653), "exp(-0.5) to five digits");
    assert_eq!(item["chain"][1], json!([1, 0.5, 0.3, 3]), "token 1, reached from the answer's row");
    assert_eq!(item["chain"][3], json!([3, 0.0, 1.0, null]));
    assert_eq!(item["kept"], json!([1]));
    assert_eq!(item["scores"], json!([0.4177, null]));
    assert_eq!(item["ensemble"][0], json!([null, "", 0.36788]), "exp(-1)");
    assert_eq!((&item["ensemble"][1][0], &item["ensemble"][1][2]), (&json!(1), &json!(0.049787)), "exp(-3)");
    let text: String = item["tokens"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(text.contains("</script>") && text.contains("\\ud800"), "readable, character for character: {text}");
    let outcomes: Vec<&Value> = items.as_array().unwrap().iter().map(|item| &item["outcome"]).collect();
    assert_eq!(outcomes, ["correct", "incorrect", "no_answer"]);
    assert_eq!((&items[0]["truncated"], &items[2]["truncated"]), (&Value::Null, &json!(true)));
    let p = json!(["p", "UQAC P", "probability of the answer, summed over the ensemble"]);
    let least = json!(["min_token_prob", "Least token p", "minimum token probability"]);
    assert_eq!(embedded(&html, "head")["methods"], json!([p, least]));
}

#[test]
fn tables_are_tables() {
    let html = page(&samples()).render();
    let row = "<td class=\"number\"><b>0.5*</b></td></tr>";
    assert!(html.contains("↑</th>") && html.contains(row));
}

#[test]
fn broken_records_make_a_page() {
    let mut broken = samples();
    broken[0].uq.tokens.offsets = vec![[5, 2], [usize::MAX, 3], [1, usize::MAX]];
    broken[1].uq.chain.iter_mut().for_each(|link| {
        (link.row, link.score, link.from) = (i64::MAX, f64::NAN, Some(i64::MIN));
    });
    broken[1].uq.kept = vec![i64::MIN, i64::MAX];
    broken[2].resps.clear();
    broken[2].filtered_resps.clear();
    broken[2].arguments.clear();
    broken[2].doc = Value::Null;
    broken[2].uq.prompt_len = usize::MAX;
    let html = page(&broken).render();
    assert_eq!(embedded(&html, "items-data")[0].as_array().unwrap().len(), 3);
}

#[test]
fn a_page_that_would_be_too_large_says_what_is_missing() {
    let samples: Vec<Sample> = (0..50).map(|i| sample(i, &["So", " it", " is", " 7"], 0.0, "ok")).collect();
    let (whole, part) = (page(&samples).render(), page_within(&samples, 20_000).render());
    assert!(!whole.contains("id=\"left-out\""));
    let kept = embedded(&part, "items-data")[0].as_array().unwrap().len();
    assert!(kept > 0 && kept < 50, "{kept}");
    assert!(part.contains(&format!("{} items are not here", 50 - kept)));
    assert!(part.len() < whole.len());
}

#[test]
fn an_item_that_is_there_twice_counts_once_as_it_was_last() {
    let (first, last) = (sample(0, &["So", " 7"], 0.0, "ok"), sample(0, &["So", " 8"], 1.0, "ok"));
    let items = embedded(&page(&[first, last]).render(), "items-data");
    assert_eq!(items[0].as_array().unwrap().len(), 1);
    assert_eq!((&items[0][0]["outcome"], &items[0][0]["tokens"][1]), (&json!("correct"), &json!(" 8")));
}

#[test]
fn no_items_and_no_runs_make_a_page() {
    let nothing = Page {
        title: String::new(),
        findings: vec![],
        runs: vec![],
        tables: vec![],
        galleries: vec![],
        methods: vec![],
    };
    assert_eq!(embedded(&nothing.render(), "items-data"), json!([]));
    assert_eq!(embedded(&page(&[]).render(), "items-data"), json!([[]]));
}

#[test]
fn the_same_samples_give_the_same_bytes() {
    let samples = samples();
    assert_eq!(page(&samples).render(), page(&samples).render());
}

/// Two runs of a model whose name tries to be a path and markup, one of them in two shards; and another model's.
fn run_folders(folder: &Path) -> Vec<PathBuf> {
    let first = RunSpec::new("org/<b>one</b>", &["gsm8k", "bbh:navigate", "bbh:web_of_lies"], 60);
    let shard = |i| RunSpec { shard: Some((i, 2)), ..first.clone() };
    let again = RunSpec { seed: 2, ..first.clone() };
    let specs = [shard(1), shard(2), again, RunSpec::new("two", &["gsm8k"], 30)];
    let write = |(i, spec): (usize, &RunSpec)| {
        let run = folder.join(format!("run{i}"));
        spec.write(&run);
        run
    };
    specs.iter().enumerate().map(write).collect()
}

#[test]
fn every_benchmark_of_every_run_has_its_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let options = AnalysisOptions { resamples: 0, ..AnalysisOptions::default() };
    let analysis = analyse(&run_folders(folder.path()), &options).unwrap();
    let pictures: Vec<Picture> = galleries(&analysis).into_iter().flat_map(|gallery| gallery.pictures).collect();
    for curves in pictures.iter().filter(|picture| picture.name.ends_with("risk-coverage")) {
        let lines = curves.standalone().matches("stroke-width=\"2\"").count();
        assert!((3..=10).contains(&lines), "at most five, each once in the legend: {lines}");
    }
    let names: Vec<String> = pictures.into_iter().map(|picture| picture.name).collect();
    assert!(names[0].ends_with("methods"), "{names:?}");
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    let plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    assert!(names.iter().all(plain), "{names:?}");
    // Two benchmarks for each of the first two runs, one for the third.
    for (kind, count) in [
        ("risk-coverage", 5),
        ("methods", 5),
        ("lengths", 5),
        ("reliability-p", 5),
        ("ece-accuracy", 1),
        ("ece-auroc", 1),
        ("reliability-balanced", 5),
    ] {
        assert_eq!(names.iter().filter(|name| name.ends_with(kind)).count(), count, "{kind}: {names:?}");
    }
}

/// The synthetic methods know less than `p`, and the length next to nothing (see `crate::runs`).
#[test]
fn the_page_leads_with_its_finding() {
    let folder = tempfile::tempdir().unwrap();
    RunSpec::new("two", &["gsm8k"], 600).write(folder.path());
    let options = AnalysisOptions { resamples: 100, ..AnalysisOptions::default() };
    let analysis = analyse(&[folder.path().to_owned()], &options).unwrap();
    let finding = findings(&analysis).remove(0);
    let verdict = &finding.verdicts[0];
    let task = &analysis.runs[0].tasks[0];
    let (best, auroc) = verdict.best.as_ref().unwrap();
    let value: f64 = auroc.split(' ').next().unwrap().parse().unwrap();
    let of = |name: &str| analysis.methods.iter().find(|method| method.name == name).unwrap();
    let highest = task.methods.iter().filter(|m| 10 * m.answered.items >= 9 * task.summary.answered);
    let highest = highest.filter_map(|m| m.answered.value(Metric::Auroc)).fold(0.0, f64::max);
    assert!((task.method(&of(best).key).unwrap().answered.value(Metric::Auroc).unwrap() - highest).abs() < 0.02);
    assert!((value - highest).abs() < 0.02, "{verdict:?}");
    assert!(verdict.sentences.iter().any(|s| s.starts_with("Against Length, a control") && s.ends_with("better.")));
    assert!(finding.facts.contains(&("uqac", "0.1.0".to_owned())) && finding.facts.contains(&("Seed", "1".to_owned())));
    let html = uqac::internals::html::render(&analysis).unwrap();
    let place = |what: &str| html.find(what).unwrap_or_else(|| panic!("{what}"));
    assert!(place(&format!("<b>{best}</b> tells right answers")) < place("<section id=\"pictures\">"));
    assert!(html.contains(&format!("(best of {}, post hoc)", verdict.methods)));
    assert!(place("<section id=\"pictures\">") < place("<section id=\"tables\">"));
    for term in ["row", "α*", "φ", "γ", "AUROC", "ECE", "coverage"] {
        assert!(html.contains(&format!("<dt>{term}</dt><dd>")), "{term}");
    }
    // without a pointer
    let g4 = "<dt>G4 <code>g4</code></dt><dd>mean −ln of NLL and entropy; what to rank by</dd>";
    assert!(html.contains(g4) && html.contains("<dt>Accuracy</dt><dd>share of right answers"), "{html}");
    // every column explains itself
    assert_eq!(html.matches("<th scope=\"col\"").count(), html.matches(" title=\"").count());
    assert!(!html.contains("[-0."), "minus signs, not hyphens");
}

#[test]
fn the_command_writes_page_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let runs = run_folders(folder.path());
    let report = |name: &str| {
        let place = folder.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        command.arg("report").args(&runs).args(["--format", "html", "--resamples", "10", "--output"]).arg(&place);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut files: Vec<PathBuf> =
            place.join("pictures").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let svgs: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        (std::fs::read_to_string(place.join("report.html")).unwrap(), svgs)
    };
    let (page, svgs) = report("first");
    let items = embedded(&page, "items-data");
    let counts: Vec<usize> = items.as_array().unwrap().iter().map(|run| run.as_array().unwrap().len()).collect();
    assert_eq!(counts, [120, 60, 120, 60, 30], "subtasks together, shards together");
    assert!(!page.contains("<b>one</b>"));
    assert!(svgs.len() > 20);
    svgs.iter().for_each(|svg| assert!(roxmltree::Document::parse(svg).is_ok()));
    assert_eq!(report("second"), (page, svgs), "the same bytes again");
}

#[test]
fn a_page_can_be_one_file_and_tables_can_come_with_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    RunSpec::new("two", &["gsm8k"], 30).write(&run);
    let report = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uqac"));
        command.current_dir(folder.path()).args(["report", "run", "--resamples", "0"]).args(arguments).output().unwrap()
    };
    assert!(report(&["--format", "html", "--output", "page.html"]).status.success());
    assert!(folder.path().join("page.html").is_file());
    assert!(report(&["--format", "markdown", "--pictures", "drawn"]).status.success());
    assert!(folder.path().join("drawn/risk-coverage.svg").is_file());
    let output = report(&["--format", "html", "--output", "page.html/below"]);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && says.contains("page.html"), "a file is no folder: {says}");
}

/// Runs if node is installed: the script is JavaScript.
#[test]
fn the_script_can_be_parsed() {
    let html = page(&samples()).render();
    let script = element(&html, "script");
    let file = tempfile::Builder::new().suffix(".js").tempfile().unwrap();
    std::fs::write(file.path(), script).unwrap();
    let Ok(node) = Command::new("node").arg("--check").arg(file.path()).output() else {
        test_support::skipped("node is not installed");
        return;
    };
    assert!(node.status.success(), "{}", String::from_utf8_lossy(&node.stderr));
}

/// Runs if node is installed: eight alternatives are shown and the rest folded, and scores form a table.
#[test]
fn alternatives_are_folded_and_scores_are_a_table() {
    const STUB: &str = r#"
        const HEAD = { methods: [["p", "P", "of"], ["q", "Q", "of"]], runs: [{ model: "m", task: "t" }] }, number = String;
        const make = (tag, name, ...children) => ({ tag, children, append: (...more) => children.push(...more), setAttribute() {} });"#;
    const ASK: &str = r#"
        const ensemble = Array.from({ length: 11 }, (_, i) => [0, "b", 11 - i]);
        const item = { run: 0, id: 1, tokens: ["a"], ensemble, scores: [0.5, undefined] };
        const count = (element) => (element.tag === "tr") + (element.children ?? []).reduce((sum, child) => sum + count(child), 0);
        const [shown, folded] = drawAlternatives(item).children;
        console.log(count(shown), folded.tag, folded.children[0].children[0], count(folded), count(drawScores(item)));"#;
    let script = [STUB, include_str!("../../src/report/html/view.js"), ASK].concat();
    let Ok(node) = Command::new("node").arg("--eval").arg(script).output() else {
        test_support::skipped("node is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&node.stdout);
    assert_eq!(said, "9 details 3 more 4 2\n", "rows with their heads: {}", String::from_utf8_lossy(&node.stderr));
}

/// Leaves a page in `target/tmp` for inspection.
#[test]
fn a_page_is_a_file() {
    let samples = samples();
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    std::fs::write(file, page(&samples).render()).unwrap();
}
