//! The verdicts of self-tests on disk: a file per device, driver and set of kernels.

use super::super::context::{Device, DeviceInfo};
use super::super::loader::KernelFiles;
use crate::cache;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The test has begun. Left behind by a process that hung or died in it, and then a failure.
    Running,
    Passed,
    Failed,
}

/// Verdicts by kernel.
pub type Verdicts = BTreeMap<String, Verdict>;

#[derive(Default)]
pub struct Record {
    /// `None` without a cache folder that only this user can write to.
    path: Option<PathBuf>,
    pub verdicts: Verdicts,
    /// Held while tests run: other processes wait for their verdicts.
    lock: Option<File>,
}

impl Record {
    pub fn open(device: &Device, info: &DeviceInfo, files: &KernelFiles) -> Record {
        let mut hasher = DefaultHasher::new();
        (&info.name, info.capability, device.identity(), files.fingerprint()).hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), option_env!("UQAC_COMMIT")).hash(&mut hasher);
        let folder = cache::folder().and_then(|folder| cache::private(&folder, "selftest").ok());
        let path = folder.map(|folder| folder.join(format!("{:016x}", hasher.finish())));
        let mut record = Record { path, ..Record::default() };
        record.read();
        // of a process that is at work, or of one that has died in its test
        if record.verdicts.values().any(|verdict| *verdict == Verdict::Running) {
            record.lock();
        }
        record
    }

    fn read(&mut self) {
        let text = self.path.as_deref().and_then(cache::read_sealed);
        self.verdicts = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    }

    /// Waits for other processes' tests and reads their verdicts.
    pub fn lock(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.lock.is_none()) else { return };
        self.lock = File::create(path.with_extension("lock")).ok().filter(|file| file.lock().is_ok());
        self.read();
        if self.lock.is_none() {
            // without locks, perhaps in another process that is alive
            self.verdicts.retain(|_, verdict| *verdict != Verdict::Running);
        }
    }

    /// `None`: not tested. A test that did not end has failed.
    pub fn passed(&self, kernel: &str) -> Option<bool> {
        self.verdicts.get(kernel).map(|verdict| *verdict == Verdict::Passed)
    }

    pub fn note(&mut self, kernel: &str, verdict: Option<Verdict>) {
        match verdict {
            Some(verdict) => self.verdicts.insert(kernel.to_owned(), verdict),
            None => self.verdicts.remove(kernel),
        };
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec(&self.verdicts)) {
            // a record that cannot be written only costs a test at the next start
            let _ = cache::write_sealed(path, &text);
        }
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
