//! On-disk results: one file per device, driver and set of kernels, and next to it, during a test, one that names the running
//! kernel. Child processes report through these files, which also show the kernel in which a process died.

use super::{super::context::Device, super::kernel_set::Variants, super::loader::KernelFiles, SelfTest};
use crate::cache;
use serde::{Deserialize, Serialize};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::{collections::BTreeMap, fs::File, path::PathBuf};
use std::{hash::DefaultHasher, hash::Hash, hash::Hasher, time::Duration, time::Instant};

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

// Self-tests in a child process: a kernel that faults or hangs takes the child with it, and the next child continues without
// that kernel. If no `uqac` executable is found (Python, other programs), or no folder for the record, tests run in the caller's
// process.

/// The request, in the child's environment.
const VARIABLE: &str = "UQAC_SELF_TEST";

/// Time limit in seconds from one launch to the next, in place of [`LIMIT`].
const LIMIT_VARIABLE: &str = "UQAC_SELF_TEST_SECONDS";
const LIMIT: Duration = Duration::from_secs(60);

/// Time limit while no kernel is running: opening the device, compiling kernels.
const BETWEEN: Duration = Duration::from_secs(600);

/// Polling interval.
const INTERVAL: Duration = Duration::from_millis(10);

/// The work of a child.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Request {
    pub ordinal: usize,
    /// The kernels of one model; `None`: all.
    pub variants: Option<Variants>,
    /// Fingerprint of the parent's kernels, which must match the child's; `None` in the parent.
    pub kernels: Option<u64>,
}

/// Runs the tests if this process is such a child; success if all of them ran.
pub fn run_if_child() -> Option<ExitCode> {
    let request = serde_json::from_str(&std::env::var(VARIABLE).ok()?).ok()?;
    Some(if super::run(request).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// This executable if it is `uqac`, else the `uqac` on the path; `None` in a child.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok().filter(|own| own.file_stem().is_some_and(|stem| stem == "uqac"));
    std::env::var_os(VARIABLE).is_none().then(|| own.unwrap_or_else(|| PathBuf::from("uqac")))
}

impl SelfTest<'_> {
    /// Tests the kernels of `request` in child processes, as far as possible; the verdicts are in the record.
    pub fn test_in_children(&self, mut request: Request) {
        let record = &self.ledger.record;
        let Some(program) = program().filter(|_| record.borrow().path.is_some()) else { return };
        request.kernels = Some(self.files.fingerprint());
        let Ok(request) = serde_json::to_string(&request) else { return };
        loop {
            record.borrow().save();
            let failed = record.borrow().known.failed.len();
            let mut command = Command::new(&program);
            // harmless if this is another version of the program
            command.args(["devices", "--json"]).env(VARIABLE, &request).stdin(Stdio::null()).stdout(Stdio::null());
            let Ok(mut child) = command.spawn() else { return };
            let ended = self.watch(&mut child);
            let done = ended.as_ref().is_ok_and(ExitStatus::success);
            let reason = ended.map_or_else(|hangs| hangs, |status| format!("its process ended: {status}"));
            record.borrow_mut().take_over(&reason);
            if done || record.borrow().known.failed.len() == failed {
                return; // without a new fault, another child would end the same way
            }
        }
    }

    /// Waits for a child to exit; an error if it hangs.
    fn watch(&self, child: &mut Child) -> Result<ExitStatus, String> {
        let seconds = std::env::var(LIMIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let limit = seconds.map_or(LIMIT, Duration::from_secs);
        let mut idle = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            let running = self.ledger.record.borrow().running_time();
            if running.is_some() {
                idle = Instant::now();
            }
            if running.is_some_and(|time| time > limit) || idle.elapsed() > BETWEEN {
                // it may have exited on its own
                let _ = child.kill().and_then(|()| child.wait());
                return Err(format!("it hangs: no result within {} s", limit.as_secs()));
            }
            std::thread::sleep(INTERVAL);
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
