//! The cache's side of a download: `blobs/<checksum>`, and links to them in `snapshots/<commit>`, as Hugging Face's own
//! library lays them out.

use super::DownloadError;
use super::client::{Client, network};
use super::listing::{Checksum, Listing, RemoteFile};
use crate::{cache, units};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Attempts in a row that bring nothing; one that does is followed by as many again.
const ATTEMPTS: u32 = 3;

/// Before the second of them; twice as long before the next.
const PAUSE: Duration = Duration::from_millis(500);

/// A model's folder in the cache.
pub struct Store {
    folder: PathBuf,
    locks: PathBuf,
}

impl Store {
    pub fn new(cache: &Path, repository: &str) -> Store {
        let name = super::super::folder_name(repository);
        Store { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.folder.join("blobs").join(file.checksum.digits())
    }

    /// Has a file's contents in their place, whole and with the right checksum. `watch` is called with the bytes that are here.
    pub fn fetch(
        &self,
        client: &Client,
        commit: &str,
        file: &RemoteFile,
        watch: &mut dyn FnMut(u64),
    ) -> Result<(), DownloadError> {
        let blob = self.blob(file);
        let _lock = self.lock(file)?;
        if fs::metadata(&blob).is_ok_and(|found| found.is_file() && found.len() == file.size) {
            watch(file.size);
            return Ok(());
        }
        let partial = Partial::open(blob.with_extension("incomplete"))?;
        partial.complete(client, commit, file, watch)?;
        partial.check(file)?;
        partial.file.sync_all().and_then(|()| fs::rename(&partial.path, &blob)).map_err(at(&partial.path))
    }

    /// Only one process writes a file; the lock is the one that Hugging Face's library takes.
    fn lock(&self, file: &RemoteFile) -> Result<File, DownloadError> {
        let path = self.locks.join(format!("{}.lock", file.checksum.digits()));
        let lock = open(&path)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(DownloadError::Busy(self.blob(file))),
            Err(TryLockError::Error(source)) => Err(DownloadError::File { path, source }),
        }
    }

    /// Makes the snapshot of files that are all here, then the revision that leads to it.
    pub fn publish(&self, listing: &Listing, revision: &str) -> Result<PathBuf, DownloadError> {
        let snapshot = self.folder.join("snapshots").join(&listing.commit);
        fs::create_dir_all(&snapshot).map_err(at(&snapshot))?;
        for file in &listing.files {
            let path = snapshot.join(&file.name);
            link(&self.blob(file), file.checksum.digits(), &path).map_err(at(&path))?;
        }
        if revision != listing.commit {
            let path = self.folder.join("refs").join(revision);
            cache::write(&path, listing.commit.as_bytes()).map_err(at(&path))?;
        }
        Ok(snapshot)
    }
}

/// The cache may be moved as a whole: links are relative.
#[cfg(unix)]
fn link(_blob: &Path, digits: &str, path: &Path) -> io::Result<()> {
    let target = Path::new("../../blobs").join(digits);
    if path.read_link().is_ok_and(|found| found == target) {
        return Ok(());
    }
    let _ = fs::remove_file(path); // a link to another version; where it cannot be removed, the next line says why
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn link(blob: &Path, _digits: &str, path: &Path) -> io::Result<()> {
    let _ = fs::remove_file(path); // a link to another version; where it cannot be removed, the next line says why
    fs::hard_link(blob, path)
}

/// A file on its way.
struct Partial {
    path: PathBuf,
    file: File,
}

impl Partial {
    fn open(path: PathBuf) -> Result<Partial, DownloadError> {
        Ok(Partial { file: open(&path)?, path })
    }

    fn len(&self) -> Result<u64, DownloadError> {
        self.file.metadata().map(|metadata| metadata.len()).map_err(at(&self.path))
    }

    fn clear(&self) -> Result<(), DownloadError> {
        self.file.set_len(0).map_err(at(&self.path))
    }

    /// Asks for what is missing until nothing is.
    fn complete(
        &self,
        client: &Client,
        commit: &str,
        file: &RemoteFile,
        watch: &mut dyn FnMut(u64),
    ) -> Result<(), DownloadError> {
        if self.len()? > file.size {
            self.clear()?;
        }
        let (mut most, mut idle) = (self.len()?, 0);
        while most < file.size {
            let result = self.append(client, commit, file, watch);
            let len = self.len()?;
            idle = if len > most { 0 } else { idle + 1 };
            most = most.max(len);
            match result {
                Err(DownloadError::Network { .. } | DownloadError::Status { .. }) if idle < ATTEMPTS => (),
                Ok(url) if idle >= ATTEMPTS => {
                    return Err(network(&url, &format!("ended after {len} of {} bytes", file.size)));
                }
                result => drop(result?),
            }
            if idle > 0 {
                sleep(PAUSE * (1 << (idle - 1)));
            }
        }
        Ok(())
    }

    /// One request for the rest; the address, where the answer has come to its end.
    fn append(
        &self,
        client: &Client,
        commit: &str,
        file: &RemoteFile,
        watch: &mut dyn FnMut(u64),
    ) -> Result<String, DownloadError> {
        let mut len = self.len()?;
        watch(len);
        let (url, response) = client.file(commit, &file.name, len)?;
        if response.status() == 200 && len > 0 {
            self.clear()?; // this server has no parts of files
            len = 0;
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => return Ok(url),
                Ok(read) => read,
                Err(error) => return Err(network(&url, &error)),
            };
            len += read as u64;
            if len > file.size {
                self.clear()?;
                return Err(DownloadError::TooLong { file: file.name.clone(), expected: file.size });
            }
            (&self.file).write_all(&buffer[..read]).map_err(at(&self.path))?;
            watch(len);
        }
    }

    /// Compares the checksum of what is on the disk, and removes what is wrong.
    fn check(&self, file: &RemoteFile) -> Result<(), DownloadError> {
        let found = match &file.checksum {
            Checksum::Sha256(_) => digest(Sha256::new(), &self.path),
            Checksum::GitBlob(_) => digest(Sha1::new().chain_update(format!("blob {}\0", file.size)), &self.path),
        };
        let (found, expected) = (found.map_err(at(&self.path))?, file.checksum.digits());
        if found == expected {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(at(&self.path))?;
        Err(DownloadError::Checksum { file: file.name.clone(), expected: expected.to_owned(), found })
    }
}

/// Opens a file to be written at its end; where there is none, makes it and its folder.
fn open(path: &Path) -> Result<File, DownloadError> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| OpenOptions::new().create(true).append(true).open(path)).map_err(at(path))
}

/// The digits of a digest, which may have begun, over a file.
fn digest<D: Digest>(mut digest: D, path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(units::hex(&digest.finalize())),
            read => digest.update(&buffer[..read]),
        }
    }
}

/// An input or output error of a file.
fn at(path: &Path) -> impl FnOnce(io::Error) -> DownloadError {
    let path = path.to_owned();
    |source| DownloadError::File { path, source }
}
