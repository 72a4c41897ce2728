//! Identifies a model's files without reading gigabytes.

use crate::{engine::Engine, files, files::FileError, units};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Blocks read from a weight file, evenly spaced, including the first and the last.
const BLOCKS: u64 = 64;

/// Bytes of a block.
const BLOCK: u64 = 64 << 10;

/// Placeholder hash for a file that the model does not have.
const ABSENT: &str = "absent";

/// Hashes of all model files that a result depends on (SHA-256, first 16 hexadecimal digits). `None` for those not
/// recorded by the older version that wrote the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub architecture: String,
    /// Of `config.json`.
    pub config: String,
    /// Of `generation_config.json`, which can specify further end tokens.
    pub generation_config: Option<String>,
    /// Of every weight file's name, length, and 64 blocks of 64 KiB.
    pub weights: String,
    /// Of `model.safetensors.index.json`.
    pub weights_index: Option<String>,
    /// Of `tokenizer.json`.
    pub tokenizer: String,
    /// Of `tokenizer_config.json`, which names special tokens; and of the older files of special and added tokens, where the
    /// tokenizer reads them.
    pub tokenizer_config: Option<String>,
    /// Of the chat template's text, from whichever file; `None` for a model without one.
    pub chat_template: Option<String>,
}

impl Fingerprint {
    /// Reads the files of a model folder.
    pub fn of(folder: &Path, engine: &Engine) -> Result<Self, FileError> {
        let whole = |name: &str| {
            let (path, mut hash) = (folder.join(name), Sha256::new());
            let read = files::open(&path).and_then(|mut file| add(&mut file, &mut hash));
            read.map(|()| digits(hash.finalize())).map_err(FileError::at(&path))
        };
        let optional = |name: &str| match whole(name) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(Some(ABSENT.to_owned())),
            other => other.map(Some),
        };
        let mut tokens = optional("tokenizer_config.json")?;
        for name in ["special_tokens_map.json", "added_tokens.json"] {
            let is_read = engine.tokenizer().config.added_tokens_decoder.is_none() && folder.join(name).exists();
            tokens = if is_read { tokens.zip(optional(name)?).map(|(one, two)| one + " " + &two) } else { tokens };
        }
        Ok(Fingerprint {
            architecture: engine.spec().architecture.clone(),
            config: whole("config.json")?,
            generation_config: optional("generation_config.json")?,
            weights: weights(folder)?,
            weights_index: optional("model.safetensors.index.json")?,
            tokenizer: whole("tokenizer.json")?,
            tokenizer_config: tokens,
            chat_template: engine.chat_template().map(|template| digits(Sha256::digest(template.source()))),
        })
    }
}

/// Hashes the rest of a source, one block at a time.
pub(super) fn add(source: &mut impl Read, hash: &mut Sha256) -> io::Result<()> {
    let mut block = Vec::new();
    while source.by_ref().take(BLOCK).read_to_end(&mut block)? > 0 {
        hash.update(&block);
        block.clear();
    }
    Ok(())
}

/// The first 16 hexadecimal digits of a hash.
pub(crate) fn digits(hash: impl AsRef<[u8]>) -> String {
    units::hex(&hash.as_ref()[..8])
}

fn weights(folder: &Path) -> Result<String, FileError> {
    let entries = files::entries(folder).map_err(FileError::at(folder))?;
    let mut hash = Sha256::new();
    for path in entries.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")) {
        sample(&path, &mut hash).map_err(FileError::at(&path))?;
    }
    Ok(digits(hash.finalize()))
}

/// Adds a file's name, length and blocks.
fn sample(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = files::open(path)?;
    let len = file.metadata()?.len();
    hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
    hash.update(len.to_le_bytes());
    let last = len.saturating_sub(BLOCK);
    let mut block = Vec::new();
    for index in 0..BLOCKS {
        file.seek(SeekFrom::Start(last / (BLOCKS - 1) * index + last % (BLOCKS - 1) * index / (BLOCKS - 1)))?;
        block.clear();
        file.by_ref().take(BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::DeviceChoice, engine::EngineOptions};
    use serde_json::json;
    use test_support::tiny;

    /// Every file that changes token ids or prompts, as a checkpoint has them.
    #[test]
    fn files_of_tokens_and_templates() {
        let folder = tempfile::tempdir().unwrap();
        tiny::write_model(folder.path());
        let print = || {
            let options = EngineOptions { threads: 1, device: DeviceChoice::Cpu, ..EngineOptions::default() };
            Fingerprint::of(folder.path(), &Engine::load(folder.path(), options).unwrap()).unwrap()
        };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let template = |text: &str| json!({"chat_template": text}).to_string();
        // from the source that counts least to the one that counts most
        std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap_or_default();
        write("tokenizer_config.json", "{}");
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        let mut seen = vec![print()];
        for (name, text) in [
            ("added_tokens.json", r#"{"<new>": 257}"#),
            ("special_tokens_map.json", r#"{"bos_token": "<s>"}"#),
            ("generation_config.json", r#"{"eos_token_id": 5}"#),
            ("chat_template.json", &template("{{ messages[0].content }}")),
            ("tokenizer_config.json", &template("{{ messages[0].content }} ")),
            ("chat_template.jinja", "{{ messages[0].content }}  "),
            ("additional_chat_templates/default.jinja", "{{ messages[0].content }}   "),
        ] {
            write(name, text);
            seen.push(print());
            assert!(!seen[..seen.len() - 1].contains(&seen[seen.len() - 1]), "{name}: {seen:?}");
        }
        // what is not read changes nothing
        write("tokenizer_config.json", r#"{"added_tokens_decoder": {}}"#);
        let before = print();
        write("added_tokens.json", "{}");
        assert_eq!(print(), before);
    }

    #[test]
    fn a_change_anywhere_that_is_read_shows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let mut bytes = vec![7u8; 5 << 20];
        let hash = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            weights(folder.path()).unwrap()
        };
        let first = hash(&bytes);
        assert_eq!(first, hash(&bytes));
        assert_eq!(first.len(), 16);
        for at in [0, 2 << 20, (5 << 20) - 1] {
            bytes[at] ^= 1; // blocks of 64 KiB at every 81 KB: these lie in one
            assert_ne!(first, hash(&bytes), "{at}");
            bytes[at] ^= 1;
        }
        bytes.push(7);
        assert_ne!(first, hash(&bytes));
        assert_eq!(hash(&[]).len(), 16);
    }
}
