//! What is known on disk: a file per device, driver and set of kernels, and beside it, during a test, one that names the running
//! kernel. By these a child process reports, and what a process has died in is known.

use super::super::context::Device;
use super::super::loader::KernelFiles;
use super::Check;
use crate::cache;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

/// What the second file begins with.
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
    /// Of every kernel that was tested, in the order of the tests.
    pub checks: Vec<Check>,
    /// Parts of models that are tested.
    pub tested: BTreeSet<String>,
}

impl Record {
    /// `waits`: for the tests of other processes, if there are any.
    pub fn open(device: &Device, files: &KernelFiles, waits: bool) -> Record {
        let mut hasher = DefaultHasher::new();
        (&device.info.name, device.info.capability, device.identity(), files.fingerprint()).hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), env!("UQAC_COMMIT")).hash(&mut hasher);
        let folder = cache::folder().and_then(|folder| cache::private(&folder, "selftest").ok());
        let path = folder.map(|folder| folder.join(format!("{:016x}", hasher.finish())));
        let mut record = Record { path, ..Record::default() };
        record.read();
        // of a process that is at work, or of one that has died in its test
        if waits && record.running_file().is_some_and(|file| file.exists()) {
            record.lock();
        }
        record
    }

    fn read(&mut self) {
        let text = self.path.as_deref().and_then(cache::read_sealed);
        self.known = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    }

    /// Reads what a process has left that is gone: the kernel that was running has failed, for this reason.
    pub fn take_over(&mut self, reason: &str) {
        self.read();
        let text = self.running_file().and_then(|file| cache::read(&file).ok());
        let text = text.and_then(|text| String::from_utf8(text).ok());
        if let Some(kernel) = text.as_deref().and_then(|text| text.strip_prefix(RUNNING)) {
            self.add(Check { fault: Some(reason.to_owned()), ..Check::of(kernel) });
        }
        self.save();
    }

    fn running_file(&self) -> Option<PathBuf> {
        self.path.as_ref().map(|path| path.with_extension("running"))
    }

    /// Waits for other processes' tests and reads their verdicts. A kernel that a process hung or died in has failed.
    pub fn lock(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.lock.is_none()) else { return };
        self.lock = File::create(path.with_extension("lock")).ok().filter(|file| file.lock().is_ok());
        match self.lock {
            Some(_) => self.take_over("an earlier process ended in its test"),
            None => self.read(), // what runs may run in a process that is alive
        }
    }

    /// Adds a comparison, to the others of its kernel if there are any. A failure is saved.
    pub fn add(&mut self, check: Check) {
        let failed = !check.ok();
        match self.known.checks.iter_mut().find(|other| other.kernel == check.kernel) {
            Some(other) => other.add(&check),
            None => self.known.checks.push(check),
        }
        if failed {
            self.save();
        }
    }

    /// The check of a kernel that was tested.
    pub fn check(&self, kernel: &str) -> Option<&Check> {
        self.known.checks.iter().find(|check| check.kernel == kernel)
    }

    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.known.checks.iter().filter(|check| !check.ok())
    }

    /// For how long the kernel runs that runs now.
    pub fn running_time(&self) -> Option<Duration> {
        self.running_file()?.metadata().ok()?.modified().ok()?.elapsed().ok()
    }

    /// Notes the kernel that runs now, or that none does. It happens at every launch: the disk is not waited for.
    pub fn note_running(&self, kernel: Option<&str>) {
        let Some(file) = self.running_file() else { return };
        // a record that cannot be written only costs a test at the next start
        let _ = match kernel {
            Some(kernel) => std::fs::write(file, format!("{RUNNING}{kernel}")),
            None => std::fs::remove_file(file),
        };
    }

    /// Writes what is known; no kernel runs any more.
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
