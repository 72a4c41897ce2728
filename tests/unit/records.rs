//! Output records and their file: the format, interruptions at any byte, and files that are not ours.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::Path;
use uqac::io::jsonl::append::{AppendError, Appender, Existing, Output};
use uqac::io::record::{Done, OutputError, Record, RowTrace, top_entries};
use uqac::uq::{Link, Member, Outcome, Profile, Reading, Scores};

fn scores(p: f64) -> Scores {
    Scores::from_fn(|score| match score.key {
        "answer_prob" => 0.1 + 0.2,
        "answer_mean" => f64::NAN,
        "response_prob" => 5e-324,
        "response_mean" => 1.0 / 3.0,
        "p_attn" => f64::NEG_INFINITY,
        "attn_mean" => 0.5,
        "p_sim" => 1.0,
        "sim_mean" => 1e-7,
        "p" => p,
        "predictive_entropy" => -12.25,
        "ln_predictive_entropy" => 0.25,
        "answer_entropy" => -0.5,
        "ln_answer_entropy" => 0.75,
        "trace_length" => -120.0,
        "min_token_prob" => 0.01,
        "lowest_window" => f64::INFINITY,
        _ => 0.0,
    })
}

fn record(id: impl Into<Value>) -> Record {
    let chain = vec![
        Link { row: -1, score: 0.7, similarity: 0.25, from: Some(4) },
        Link { row: 4, score: 0.0, similarity: 1.0, from: None },
    ];
    let ensemble = vec![
        Member { position: None, token: None, log_answer: -0.1, log_chain: f64::NEG_INFINITY },
        Member { position: Some(12), token: Some(7), log_answer: -0.1, log_chain: -2.5 },
    ];
    let outcome = Outcome { answer: 15..16, chain, kept: vec![-1], ensemble, scores: scores(0.87) };
    Record::ok(id.into(), Profile::Corrected, 10, "\"4\"\n\u{1b}[31m\u{2028}é".into(), outcome)
}

fn examine(path: &Path, existing: Existing) -> Result<(Output, Done), OutputError> {
    Done::examine(path, existing, Profile::Corrected)
}

fn open(path: &Path, existing: Existing) -> Result<(Appender, Done), OutputError> {
    let (output, done) = examine(path, existing)?;
    Ok((output.open()?, done))
}

fn write(path: &Path, existing: Existing, records: &[Record]) -> Done {
    let (mut output, done) = open(path, existing).unwrap();
    for record in records {
        output.append(record).unwrap();
    }
    done
}

/// The records in a file, which must consist of complete lines.
fn read(path: &Path) -> Vec<Value> {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().unwrap() == "gz" {
        let packed = std::mem::take(&mut bytes);
        flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    }
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_format_of_a_scored_item() {
    let text = serde_json::to_string(&record("a")).unwrap();
    assert!(!text.contains('\n') && !text.contains('\u{1b}'), "{text}");
    let value: Value = serde_json::from_str(&text).unwrap();
    let fields = ["id", "profile", "status", "n_instr", "answer", "chain", "kept", "scores", "confidence", "ensemble"];
    assert_eq!(keys(&value), fields);
    assert!(value["confidence"].is_null(), "there is no calibration");
    assert_eq!(value["profile"], "corrected");
    assert_eq!(value["status"], "ok");
    assert_eq!(value["answer"], json!({"text": "\"4\"\n\u{1b}[31m\u{2028}é", "tokens": [15, 16]}));
    assert_eq!(value["chain"][0], json!({"row": -1, "score": 0.7, "similarity": 0.25, "from": 4}));
    assert_eq!(value["chain"][1]["from"], Value::Null);
    assert_eq!(value["ensemble"][1], json!({"position": 12, "token": 7, "log_answer": -0.1, "log_chain": -2.5}));
    assert_eq!(keys(&value["chain"][0]), ["row", "score", "similarity", "from"]);
    assert_eq!(keys(&value["answer"]), ["text", "tokens"]);
    // more may be added
    let published = "answer_prob answer_mean response_prob response_mean p_attn attn_mean p_sim sim_mean p \
                     predictive_entropy ln_predictive_entropy answer_entropy ln_answer_entropy trace_length \
                     min_token_prob lowest_window";
    let mut scores = keys(&value["scores"]);
    scores.retain(|key| published.split(' ').any(|known| known == *key));
    assert_eq!(scores.join(" "), published);
}

#[test]
fn numbers_read_back_as_the_same_floats_and_others_are_null() {
    let value = serde_json::to_value(record("a")).unwrap();
    let text = serde_json::to_string(&record("a")).unwrap();
    let read: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["scores"]["answer_prob"].as_f64(), Some(0.1 + 0.2));
    assert_eq!(read["scores"]["response_prob"].as_f64(), Some(5e-324));
    for name in ["answer_mean", "p_attn", "lowest_window"] {
        assert_eq!(read["scores"][name], Value::Null, "{name}");
    }
    assert_eq!(read["ensemble"][0]["log_chain"], Value::Null);
    assert_eq!(read, value);
}

#[test]
fn the_format_of_other_items() {
    let none = serde_json::to_string(&Record::no_answer(json!(3), Profile::Paper, 9)).unwrap();
    assert_eq!(
        none,
        r#"{"id":3,"profile":"paper","status":"no_answer","n_instr":9,"answer":null,"chain":[],"kept":[],"scores":null,"confidence":null,"ensemble":[]}"#
    );
    let error = serde_json::to_string(&Record::error(json!("x"), Profile::Reference, None, "why")).unwrap();
    assert_eq!(
        error,
        r#"{"id":"x","profile":"reference","status":"error","error":"why","n_instr":null,"answer":null,"chain":[],"kept":[],"scores":null,"confidence":null,"ensemble":[]}"#
    );
}

#[test]
fn the_format_of_a_trace() {
    let mut weights = vec![0.0f32; 12];
    (weights[3], weights[7], weights[9], weights[11]) = (0.5, 0.9, 0.5, f32::NAN);
    let top = top_entries(&weights);
    assert_eq!(top.len(), 8);
    assert_eq!(top[..4], [(7, 0.9), (3, 0.5), (9, 0.5), (0, 0.0)]);
    assert_eq!(top_entries(&[0.1]), [(0, 0.1)]);
    let row = RowTrace { row: 2, heads: vec![5, 1], entropies: vec![0.1, 0.2], gap: None, top: vec![(7, 0.9)] };
    let record = Record { trace: Some(vec![row]), ..record("a") };
    let text = serde_json::to_string(&record).unwrap();
    let tail = r#""trace":[{"row":2,"heads":[5,1],"entropies":[0.1,0.2],"gap":null,"top":[[7,0.9]]}]}"#;
    assert!(text.ends_with(tail), "{text}");
}

#[test]
fn plain_and_gzip_files_hold_the_same_records() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["out.jsonl", "out.jsonl.gz"] {
        let path = folder.path().join(name);
        write(&path, Existing::Refuse, &[record("a"), record(2)]);
        let again = examine(&path, Existing::Refuse).unwrap_err();
        assert!(again.to_string().contains("--resume or --overwrite"), "{again}");
        let done = write(&path, Existing::Resume, &[record("b")]);
        assert_eq!((done.records, done.errors), (2, 0));
        let ids: Vec<Value> = read(&path).into_iter().map(|r| r["id"].clone()).collect();
        assert_eq!(ids, [json!("a"), json!(2), json!("b")]);
        write(&path, Existing::Overwrite, &[record("c")]);
        assert_eq!(read(&path), [serde_json::to_value(record("c")).unwrap()]);
    }
}

#[test]
fn ids_are_counted_and_keep_their_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let no_answer = Record::no_answer(json!("1"), Profile::Corrected, 3);
    let error = Record::error(json!(1), Profile::Corrected, None, "x");
    write(&path, Existing::Refuse, &[record(1), no_answer, error]);
    let mut done = write(&path, Existing::Resume, &[]);
    assert_eq!((done.records, done.errors), (3, 1));
    assert!(done.take(&json!(1)) && done.take(&json!("1")) && done.take(&json!(1)));
    assert!(!done.take(&json!(1)) && !done.take(&json!("1")) && !done.take(&json!(1.0)));
}

/// Tests that a run over all of `ids` completes the output of an earlier run stopped after `cut` bytes.
fn interrupted(path: &Path, ids: &[u64], cut: usize) {
    let full: Vec<Record> = ids.iter().map(|&id| record(id)).collect();
    write(path, Existing::Overwrite, &full);
    let whole = fs::read(path).unwrap();
    fs::write(path, &whole[..cut.min(whole.len())]).unwrap();
    let (mut output, mut done) = open(path, Existing::Resume).unwrap();
    for record in full.iter().filter(|record| !done.take(&record.id)) {
        output.append(record).unwrap();
    }
    drop(output);
    assert_eq!(fs::read(path).unwrap(), whole, "cut at {cut}");
}

#[test]
fn a_run_cut_at_any_byte_of_its_last_line_resumes_to_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["out.jsonl", "out.jsonl.gz"] {
        let path = folder.path().join(name);
        write(&path, Existing::Refuse, &[record(1)]);
        let start = fs::metadata(&path).unwrap().len() as usize;
        write(&path, Existing::Resume, &[record(2)]);
        let end = fs::metadata(&path).unwrap().len() as usize;
        for cut in start..=end {
            interrupted(&path, &[1, 2], cut);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_run_cut_anywhere_loses_and_repeats_nothing(
        ids in prop::collection::vec(0u64..4, 1..6), cut in 0usize..6000, gzip in any::<bool>()
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if gzip { "out.jsonl.gz" } else { "out.jsonl" });
        interrupted(&path, &ids, cut);
    }
}

#[test]
fn another_profile_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    write(&path, Existing::Refuse, &[record(1)]);
    let error = Done::examine(&path, Existing::Resume, Profile::Reference).unwrap_err();
    let OutputError::OtherProfile { line: 1, found, .. } = &error else { panic!("{error}") };
    assert_eq!(**found, Reading::from(Profile::Corrected));
    let message = error.to_string();
    assert!(message.contains("out.jsonl: line 1: profile: expected reference, found corrected"), "{message}");
}

#[test]
fn files_that_are_not_ours_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut damaged = {
        let path = folder.path().join("good.jsonl.gz");
        write(&path, Existing::Refuse, &[record(1), record(2)]);
        fs::read(path).unwrap()
    };
    let middle = damaged.len() / 4;
    damaged[middle] ^= 0x55;
    // a truncated member with many lines: dropping it would drop finished lines
    let packed = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        for id in 0..3 {
            serde_json::to_writer(&mut encoder, &record(id)).unwrap();
            std::io::Write::write_all(&mut encoder, b"\n").unwrap();
        }
        encoder.finish().unwrap()
    };
    let cut = packed[..packed.len() - 20].to_vec();
    for (name, content) in [
        ("notes.txt", b"a line without an end".to_vec()),
        ("notes2.txt", b"a line\n{\"id\":".to_vec()),
        ("other.jsonl", b"{\"id\":1}\n".to_vec()),
        ("plain.jsonl.gz", b"{\"id\":1,\"profile\":\"corrected\",\"status\":\"ok\"}\n".to_vec()),
        ("damaged.jsonl.gz", damaged),
        ("cut.jsonl.gz", cut),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, &content).unwrap();
        let error = examine(&path, Existing::Resume).unwrap_err();
        assert!(error.to_string().contains("left alone"), "{name}: {error}");
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_file_is_not_shared_or_changed_between_examine_and_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let (mut first, _) = open(&path, Existing::Refuse).unwrap();
    let (second, _) = examine(&path, Existing::Refuse).unwrap();
    let error = second.open().err().unwrap();
    assert!(matches!(error, AppendError::Busy(_)), "{error}");
    let (third, _) = examine(&path, Existing::Overwrite).unwrap();
    first.append(&record(1)).unwrap();
    drop(first);
    assert!(matches!(third.open().err().unwrap(), AppendError::Busy(_)));
    assert_eq!(read(&path).len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    let full = Path::new("/dev/full");
    let error = examine(full, Existing::Resume).unwrap_err();
    assert!(matches!(error, OutputError::Append(AppendError::NotResumable(_))), "{error}");
    let (mut output, _) = open(full, Existing::Refuse).unwrap();
    let error = output.append(&record(1)).unwrap_err().to_string();
    assert!(error.starts_with("/dev/full: ") && error.contains("No space"), "{error}");
}

#[test]
fn a_folder_that_does_not_exist_is_an_error_that_names_the_file() {
    let path = Path::new("/no/such/folder/out.jsonl");
    let error = open(path, Existing::Refuse).err().unwrap();
    assert!(error.to_string().starts_with("/no/such/folder/out.jsonl: "), "{error}");
}
