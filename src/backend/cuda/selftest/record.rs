//! On-disk results: one file per device, driver and set of kernels, and next to it, during a test, one that names the running
//! kernel. Child processes report through these files, which also show the kernel in which a process died.

use super::super::context::Device;
use super::super::loader::KernelFiles;
use crate::cache;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

/// Prefix of the second file's content.
const RUNNING: &str = "running ";

#[derive(Default)]
pub struct Record {
    /// `None` without a cache folder that only this user can write to.
    pub path: Option<PathBuf>,
    pub known: Known,
    /// Held while tests run: other processes wait for their verdicts.
    pub lock: Option<File>,
}

#[derive(Default, Serialize, Deserialize)]
pub struct Known {
    /// Kernels that fail, with the reason.
    pub failed: BTreeMap<String, String>,
    /// What has been tested, with the kernel that fails in it.
    pub tested: BTreeMap<String, Option<String>>,
}

impl Record {
    /// `waits`: whether to wait for tests running in other processes.
    pub fn open(device: &Device, files: &KernelFiles, waits: bool) -> Record {
        let mut hasher = DefaultHasher::new();
        (&device.info.name, device.info.capability, device.identity(), files.fingerprint()).hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), env!("UQAC_COMMIT")).hash(&mut hasher);
        let folder = cache::folder().and_then(|folder| cache::private(&folder, "selftest").ok());
        let path = folder.map(|folder| folder.join(format!("{:016x}", hasher.finish())));
        let mut record = Record { path, ..Record::default() };
        record.read();
        // left by a process that is still testing, or by one that died in its test
        if waits && record.running_file().is_some_and(|file| file.exists()) {
            record.lock();
        }
        record
    }

    fn read(&mut self) {
        let text = self.path.as_deref().and_then(cache::read_sealed);
        self.known = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    }

    /// Reads the record left by a dead process; the kernel it was running is marked failed, with this reason.
    pub fn take_over(&mut self, reason: &str) {
        self.read();
        let text = self.running_file().and_then(|file| cache::read(&file).ok());
        let text = text.and_then(|text| String::from_utf8(text).ok());
        if let Some(kernel) = text.as_deref().and_then(|text| text.strip_prefix(RUNNING)) {
            self.known.failed.entry(kernel.to_owned()).or_insert(reason.to_owned());
        }
        self.save();
    }

    fn running_file(&self) -> Option<PathBuf> {
        self.path.as_ref().map(|path| path.with_extension("running"))
    }

    /// Waits for other processes' tests and reads their verdicts. A kernel in which a process hung or died has failed.
    pub fn lock(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.lock.is_none()) else { return };
        self.lock = File::create(path.with_extension("lock")).ok().filter(|file| file.lock().is_ok());
        match self.lock {
            Some(_) => self.take_over("an earlier process ended in its test"),
            None => self.read(), // the running kernel may belong to a live process
        }
    }

    /// How long the current kernel has been running.
    pub fn running_time(&self) -> Option<Duration> {
        self.running_file()?.metadata().ok()?.modified().ok()?.elapsed().ok()
    }

    /// Records the running kernel, or that none is running. Called at every launch, so it does not wait for the disk.
    pub fn note_running(&self, kernel: Option<&str>) {
        let Some(file) = self.running_file() else { return };
        // a record that cannot be written only costs a test at the next start
        let _ = match kernel {
            Some(kernel) => std::fs::write(file, format!("{RUNNING}{kernel}")),
            None => std::fs::remove_file(file),
        };
    }

    /// Writes the results; no kernel is running any more.
    pub fn save(&self) {
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec(&self.known)) {
            // as above
            let _ = cache::write_sealed(path, &text);
        }
        self.note_running(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_record_that_is_locked_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let (ended, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let mut record = Record { path: Some(path), ..Record::default() };
            record.lock();
            record.lock();
            ended.send(record.lock.is_some()).unwrap();
        });
        assert!(wait.recv_timeout(Duration::from_secs(60)).unwrap());
    }
}
