//! One program for all targets, so that it is built once; `UQAC_FUZZ` selects the target. `fuzz/run.sh` builds and
//! runs it.
//!
//! A target must return for any input: libFuzzer reports panics, hangs and excessive memory, and the address
//! sanitizer reports invalid reads and writes.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use uqac::internals::analysis::{AnalysisOptions, analyse};
use uqac::{correct, normal_form};
use uqac::Grader;
use uqac::internals::tasks::{TaskOptions, load};
use uqac::Item;
use uqac::{ChatTemplate, Message};
use uqac::Tokenizer;
use uqac::{ModelSpec, Weights};
use uqac::find_answer;
use uqac::AnswerRule;
use uqac::internals::html;

const TARGETS: [(&str, fn(&[u8])); 10] = [
    ("config", config),
    ("safetensors", safetensors),
    ("tokenizer", tokenizer),
    ("template", template),
    ("score_line", score_line),
    ("task_file", task_file),
    ("run_folder", run_folder),
    ("answer", answer),
    ("grader", grader),
    ("page", page),
];

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("UQAC_FUZZ").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => panic!("UQAC_FUZZ names no target; valid names: {}", TARGETS.map(|(name, _)| name).join(", ")),
    }
});

fuzz_target!(|data: &[u8]| TARGET(data));

/// The folder to which this process writes inputs that are read as files.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("uqac-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the files of the run");
    folder
});

/// Writes these files into the folder and returns it.
fn files(files: &[(&str, &[u8])]) -> &'static Path {
    for (name, data) in files {
        std::fs::write(FOLDER.join(name), data).expect("a file of the run");
    }
    &FOLDER
}

fn config(data: &[u8]) {
    let _ = ModelSpec::from_folder(files(&[("config.json", data)]));
}

const TINY: &[u8] = br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8, "vocab_size": 4,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1, "hidden_act": "silu",
    "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

fn safetensors(data: &[u8]) {
    let folder = files(&[("config.json", TINY), ("model.safetensors", data)]);
    if let Ok(spec) = ModelSpec::from_folder(folder)
        && let Ok(weights) = Weights::open(folder, &spec)
    {
        let _ = weights.check_finite();
    }
}

fn tokenizer(data: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_folder(files(&[("tokenizer.json", data)]))
        && let Ok(ids) = tokenizer.encode("Hello there,  12 é漢\n", true)
    {
        let text = tokenizer.decode_with_offsets(&ids);
        let mut stream = tokenizer.stream();
        let pieces: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
        assert!(text.is_err() || pieces.iter().all(Result::is_ok), "a stream decodes what a whole sequence does");
        let _ = tokenizer.decode(&ids);
    }
}

fn template(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    if let Ok(template) = ChatTemplate::new(source, Some("<s>"), Some("</s>")) {
        let messages = [Message::new("system", "Be brief."), Message::new("user", "Why 12 é?")];
        let _ = template.render(&messages, true);
    }
}

fn score_line(data: &[u8]) {
    let _ = Item::parse(data, 1);
}

fn task_file(data: &[u8]) {
    let path = files(&[("task.jsonl", data)]).join("task.jsonl");
    let _ = load(&path.to_string_lossy(), &TaskOptions::default());
}

fn options() -> AnalysisOptions {
    AnalysisOptions { resamples: 3, ..AnalysisOptions::default() }
}

/// The first line is the manifest, the rest are samples.
fn run_folder(data: &[u8]) {
    let at = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let folder = files(&[("manifest.json", &data[..at]), ("samples_gsm8k.jsonl", &data[at..])]);
    let _ = analyse(&[folder.to_owned()], &options());
}

/// Samples of a run, rendered as the report's page.
fn page(data: &[u8]) {
    let manifest = br#"{"format": 1, "model": "m", "profile": "corrected"}"#;
    let folder = files(&[("manifest.json", manifest), ("samples_gsm8k.jsonl", data)]);
    if let Ok(analysis) = analyse(&[folder.to_owned()], &options()) {
        let _ = html::render(&analysis);
    }
}

fn answer(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for rule in [AnswerRule::Number, AnswerRule::Boxed, AnswerRule::Auto] {
        if let Some(found) = find_answer(&text, rule) {
            assert!(text.get(found.bytes.clone()).is_some(), "the answer lies in the text");
        }
    }
}

/// An answer and the target, one line each.
fn grader(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (answer, target) = text.split_once('\n').unwrap_or((&text, "3"));
    for grader in [Grader::Number, Grader::Math, Grader::Choice, Grader::Exact] {
        let _ = correct(answer, target, grader);
        let _ = normal_form(answer, grader);
    }
}
