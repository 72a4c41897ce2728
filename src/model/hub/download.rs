//! From the hub into the cache that [`locate_model`](super::locate_model) reads, where the crate was built with its feature
//! `download`: TLS is what costs time to build.
//!
//! One request lists the files with their sizes and checksums, and fixes the commit. Each file that the engine needs is then
//! written beside its place, from where an earlier attempt stopped, and renamed when its checksum is right. The snapshot, by
//! which the model is found, is made last: of an incomplete download nothing can be loaded.
//!
//! By hand, over `ureq`: `hf-hub` compares no checksum, and before the caller can, the file has its place in the snapshot. 0.5
//! appends whatever a server answers to a request for the rest; 1.0 begins an interrupted file again, and is 284 crates.

#[cfg(feature = "download")]
mod client;
#[cfg(feature = "download")]
mod listing;
#[cfg(feature = "download")]
mod store;

use super::LocateError;
use std::io;
use std::path::PathBuf;

/// Why a model was not downloaded. What has arrived stays, and the same command goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(
        "this build of uqac cannot download; install one that can: cargo install --path . --features download\n\
         or get the model with Hugging Face's own program, which fills the same cache: hf download {name}"
    )]
    NotBuilt { name: String },
    #[error(transparent)]
    Name(#[from] LocateError),
    #[error(
        "{endpoint} has no model {name}, or it is private; check the name, and for a private model set HF_TOKEN \
         (or run: hf auth login)"
    )]
    NoModel { name: String, endpoint: String },
    #[error("{name} has no revision \"{revision}\" at {endpoint}: expected a branch, a tag or a commit")]
    NoRevision { name: String, revision: String, endpoint: String },
    #[error(
        "{name} is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN to a token of that account \
         (or run: hf auth login)"
    )]
    Gated { name: String, endpoint: String },
    #[error("{endpoint} does not accept the token: check HF_TOKEN, or the one that hf auth login has stored")]
    Token { endpoint: String },
    #[error("{url}: the server answered {status}; try again later, the download goes on from where it is")]
    Status { url: String, status: u16 },
    #[error("{url}: {why}; run the same command again, it goes on from where it is")]
    Network { url: String, why: String },
    #[error("{url}: not what the hub answers: {why}; is HF_ENDPOINT a Hugging Face hub?")]
    Answer { url: String, why: String },
    #[error("{name} has no {missing}; its files are: {}", files.join(", "))]
    Lacks { name: String, missing: &'static str, files: Vec<String> },
    #[error("{file}: expected {expected} bytes, found more; what was downloaded of it is removed")]
    TooLong { file: String, expected: u64 },
    #[error(
        "{file}: wrong checksum: expected {expected}, found {found}; what was downloaded of it is removed, try again"
    )]
    Checksum { file: String, expected: String, found: String },
    #[error("{}: another process is downloading this file", .0.display())]
    Busy(PathBuf),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// How far a download is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The file that is being downloaded.
    pub file: &'a str,
    /// Bytes on this machine, of all files.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// Downloads the files of `org/name` or `org/name@revision` that the engine needs, and returns the model's folder.
///
/// The hub is `$HF_ENDPOINT`, else <https://huggingface.co>; the token `$HF_TOKEN`, else the one that `hf auth login` has
/// stored. Files that the cache has are not downloaded again.
///
/// # Errors
/// What to do about it; always [`DownloadError::NotBuilt`] without the feature `download`.
pub fn download(name: &str, watch: &mut dyn FnMut(Progress)) -> Result<PathBuf, DownloadError> {
    fetch(name, watch)
}

#[cfg(not(feature = "download"))]
fn fetch(name: &str, _watch: &mut dyn FnMut(Progress)) -> Result<PathBuf, DownloadError> {
    Err(DownloadError::NotBuilt { name: name.to_owned() })
}

#[cfg(feature = "download")]
fn fetch(name: &str, watch: &mut dyn FnMut(Progress)) -> Result<PathBuf, DownloadError> {
    let environment = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    let (repository, revision) = super::repository_and_revision(name)?;
    let cache = super::hub_cache(environment).ok_or_else(|| LocateError::NoCache { name: name.to_owned() })?;
    let client = client::Client::new(repository, revision, environment);
    let listing = listing::needed(&client)?;
    let store = store::Store::new(&cache, repository);
    let total = listing.files.iter().map(|file| file.size).sum();
    let mut before = 0;
    for file in &listing.files {
        store.fetch(&client, &listing.commit, file, &mut |here| {
            watch(Progress { file: &file.name, done: before + here, total });
        })?;
        before += file.size;
    }
    store.publish(&listing, revision)
}
