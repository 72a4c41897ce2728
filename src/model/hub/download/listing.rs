//! What a model consists of at the hub, and which of it the engine needs.

use super::DownloadError;
use super::client::Client;
use serde::Deserialize;

/// A model at one commit.
#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    /// The files that the engine needs, the small ones first.
    pub files: Vec<RemoteFile>,
}

/// A file at the hub.
#[derive(Debug)]
pub struct RemoteFile {
    pub name: String,
    pub size: u64,
    pub checksum: Checksum,
}

/// What identifies a file's contents; its digits are the file's name among the cache's blobs.
#[derive(Clone, Debug, PartialEq)]
pub enum Checksum {
    /// Of a large file: SHA-256.
    Sha256(String),
    /// Of a small one: SHA-1 as git has it, over a header and the contents.
    GitBlob(String),
}

impl Checksum {
    pub fn digits(&self) -> &str {
        match self {
            Checksum::Sha256(digits) | Checksum::GitBlob(digits) => digits,
        }
    }
}

/// The hub's answer, as far as it is read here.
#[derive(Deserialize)]
struct Model {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Asks the hub for the files of a model, and leaves out those that the engine does not read.
pub fn needed(client: &Client) -> Result<Listing, DownloadError> {
    let (url, text) = client.listing()?;
    let answer = |why: String| DownloadError::Answer { url: url.clone(), why };
    let model: Model = serde_json::from_str(&text).map_err(|error| answer(error.to_string()))?;
    if !is_hex(&model.sha, 40) {
        return Err(answer(format!("sha: expected a commit, found {:?}", model.sha)));
    }
    let names: Vec<String> = model.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    let sharded = has(INDEX);
    let lacks = |missing| DownloadError::Lacks { name: client.name(), missing, files: names.clone() };
    if !has("config.json") {
        return Err(lacks("config.json"));
    }
    if !sharded && !has(SINGLE) {
        return Err(lacks("weights as safetensors"));
    }
    let needed = model.siblings.into_iter().filter(|sibling| is_needed(&sibling.rfilename, sharded));
    let mut files = needed.map(|sibling| remote_file(sibling).map_err(&answer)).collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(|file| file.size);
    Ok(Listing { commit: model.sha, files })
}

/// Names are the server's: what is matched here is also what is written below the cache.
fn is_needed(name: &str, sharded: bool) -> bool {
    let shard = |name: &str| {
        let numbers = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
        numbers.is_some_and(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    match name {
        "config.json" | "generation_config.json" | "tokenizer.json" | "tokenizer_config.json" => true,
        "chat_template.jinja" | "uqac-calibration.json" => true,
        INDEX => true,
        SINGLE => !sharded,
        _ => sharded && shard(name),
    }
}

fn remote_file(sibling: Sibling) -> Result<RemoteFile, String> {
    let Sibling { rfilename: name, size, blob_id, lfs } = sibling;
    let (size, checksum) = match (lfs, size, blob_id) {
        (Some(lfs), ..) => (lfs.size, Checksum::Sha256(lfs.sha256)),
        (None, Some(size), Some(id)) => (size, Checksum::GitBlob(id)),
        _ => return Err(format!("{name}: its size or its checksum is missing")),
    };
    let len = if matches!(checksum, Checksum::Sha256(_)) { 64 } else { 40 };
    match is_hex(checksum.digits(), len) {
        true => Ok(RemoteFile { name, size, checksum }),
        false => Err(format!("{name}: expected a checksum of {len} digits, found {:?}", checksum.digits())),
    }
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::is_needed;

    #[test]
    fn what_the_engine_reads_is_needed_and_nothing_else() {
        for name in ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"] {
            assert!(is_needed(name, false), "{name}");
        }
        assert!(is_needed("model-00001-of-00002.safetensors", true));
        assert!(!is_needed("model.safetensors", true), "the index names the shards, and the engine reads these");
        for name in ["pytorch_model.bin", "onnx/model.onnx", "../config.json", "model-/../x.safetensors", "README.md"] {
            assert!(!is_needed(name, false) && !is_needed(name, true), "{name}");
        }
    }
}
