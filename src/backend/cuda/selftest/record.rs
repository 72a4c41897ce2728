//! Verdicts on disk: a file per device, driver and set of kernels, and beside it, during a test, one that names the running kernel.

use super::super::context::Device;
use super::super::loader::KernelFiles;
use crate::cache;
use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

/// Whether a kernel is right, by its name, and which parts of models are tested.
pub type Verdicts = BTreeMap<String, bool>;

/// What the second file begins with.
const RUNNING: &str = "running ";

#[derive(Default)]
pub struct Record {
    /// `None` without a cache folder that only this user can write to.
    pub path: Option<PathBuf>,
    pub verdicts: Verdicts,
    /// Held while tests run: other processes wait for their verdicts.
    pub lock: Option<File>,
}

impl Record {
    pub fn open(device: &Device, files: &KernelFiles) -> Record {
        let mut hasher = DefaultHasher::new();
        (&device.info.name, device.info.capability, device.identity(), files.fingerprint()).hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), option_env!("UQAC_COMMIT")).hash(&mut hasher);
        let folder = cache::folder().and_then(|folder| cache::private(&folder, "selftest").ok());
        let path = folder.map(|folder| folder.join(format!("{:016x}", hasher.finish())));
        let mut record = Record { path, ..Record::default() };
        record.read();
        // of a process that is at work, or of one that has died in its test
        if record.running_file().is_some_and(|file| file.exists()) {
            record.lock();
        }
        record
    }

    fn read(&mut self) {
        let text = self.path.as_deref().and_then(cache::read_sealed);
        self.verdicts = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    }

    fn running_file(&self) -> Option<PathBuf> {
        self.path.as_ref().map(|path| path.with_extension("running"))
    }

    /// Waits for other processes' tests and reads their verdicts. A kernel that a process hung or died in has failed.
    pub fn lock(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.lock.is_none()) else { return };
        self.lock = File::create(path.with_extension("lock")).ok().filter(|file| file.lock().is_ok());
        self.read();
        // without locks, perhaps in another process that is alive
        let running = self.running_file().filter(|_| self.lock.is_some());
        let text = running.and_then(|file| cache::read(&file).ok()).and_then(|text| String::from_utf8(text).ok());
        if let Some(kernel) = text.as_deref().and_then(|text| text.strip_prefix(RUNNING)) {
            self.verdicts.insert(kernel.to_owned(), false);
            self.save();
        }
    }

    /// `None`: no verdict yet.
    pub fn passed(&self, name: &str) -> Option<bool> {
        self.verdicts.get(name).copied()
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

    /// Writes the verdicts; no kernel runs any more.
    pub fn save(&self) {
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec(&self.verdicts)) {
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
