//! Special tokens and their flags in every place where they may be, compared with the ids that transformers gives
//! (`tests/peers/special_tokens.py`).

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use uqac::model::tokenizer::{Tokenizer, TokenizerError};

#[derive(Deserialize)]
struct Case {
    files: BTreeMap<String, Value>,
    /// Of `tokenizer.json`, as the next.
    added_tokens: Value,
    normalizer: Value,
    /// Ids of each text; `None` if transformers rejects the folder.
    expected: Option<Vec<Vec<u32>>>,
}

#[test]
fn special_tokens_are_read_as_by_transformers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(root.join("tests/data/special_tokens.jsonl.gz")).unwrap();
    let mut lines = BufReader::new(GzDecoder::new(file)).lines();
    let texts: Vec<String> = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let whole = std::fs::read_to_string(root.join("models/abacus/tokenizer.json")).unwrap();
    let mut whole: Value = serde_json::from_str(&whole).unwrap();
    let (mut same, mut refused, mut different) = (0, Vec::new(), Vec::new());
    for line in lines {
        let case: Case = serde_json::from_str(&line.unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        (whole["added_tokens"], whole["normalizer"]) = (case.added_tokens.clone(), case.normalizer.clone());
        std::fs::write(folder.path().join("tokenizer.json"), whole.to_string()).unwrap();
        for (name, value) in &case.files {
            std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        match (Tokenizer::from_folder(folder.path()), case.expected) {
            (_, None) => (),
            // a token listed with an id that it does not get
            (Err(TokenizerError::AddedTokenId { token, .. }), Some(_)) => refused.push(token),
            (Err(error), Some(_)) => different.push(error.to_string()),
            (Ok(tokenizer), Some(expected)) => {
                let found = |text: &String| tokenizer.encode(text, false).unwrap();
                let wrong = texts.iter().zip(&expected).find(|(text, ids)| found(text) != **ids);
                same += u32::from(wrong.is_none());
                different.extend(wrong.map(|(text, ids)| {
                    let files = json!([case.files, case.added_tokens, case.normalizer]);
                    format!("{text:?}: expected {ids:?}, found {:?}\n{files}", found(text))
                }));
            }
        }
    }
    let some = different.iter().take(5).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(different.is_empty(), "{} of {same} differ, such as\n{some}", different.len());
    assert!(same >= 450, "{same} folders are read, {} refused: {refused:?}", refused.len());
}
