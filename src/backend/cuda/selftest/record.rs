//! What self-tests have found, on disk: a file for each device, driver and set of kernels, with a line for each kernel.

use super::super::context::{Device, DeviceInfo};
use super::super::loader::KernelFiles;
use crate::cache;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

const PASSED: &str = "passed";
const FAILED: &str = "failed";

pub struct Record {
    /// `None` where there is no folder that only this user can write to.
    path: Option<PathBuf>,
    found: BTreeMap<String, bool>,
    changed: bool,
}

impl Record {
    /// What is known of this device.
    pub fn open(device: &Device, info: &DeviceInfo, files: &KernelFiles) -> Record {
        let record = Record::empty(device, info, files);
        let text = record.path.as_deref().and_then(cache::read_sealed).unwrap_or_default();
        let line = |line: &str| line.split_once(' ').map(|(kernel, found)| (kernel.to_owned(), found == PASSED));
        let found = String::from_utf8_lossy(&text).lines().filter_map(line).collect();
        Record { found, ..record }
    }

    /// Nothing, for this device.
    pub fn empty(device: &Device, info: &DeviceInfo, files: &KernelFiles) -> Record {
        let mut hasher = DefaultHasher::new();
        (&info.name, info.capability, device.identity(), files.fingerprint()).hash(&mut hasher);
        (env!("CARGO_PKG_VERSION"), option_env!("UQAC_COMMIT")).hash(&mut hasher);
        let name = format!("{:016x}", hasher.finish());
        let folder = cache::folder().and_then(|folder| cache::private(&folder, "selftest").ok());
        Record { path: folder.map(|folder| folder.join(name)), found: BTreeMap::new(), changed: false }
    }

    /// Whether a kernel has passed; `None`: it was not tested.
    pub fn get(&self, kernel: &str) -> Option<bool> {
        self.found.get(kernel).copied()
    }

    pub fn note(&mut self, kernel: &str, passed: bool) {
        self.found.insert(kernel.to_owned(), passed);
        self.changed = true;
    }

    pub fn save(&self) {
        let Some(path) = self.path.as_deref().filter(|_| self.changed) else { return };
        let line = |(kernel, ok): (&String, &bool)| format!("{kernel} {}\n", if *ok { PASSED } else { FAILED });
        let text: String = self.found.iter().map(line).collect();
        // one that cannot be written costs a test at the next start, nothing else
        let _ = cache::write_sealed(path, text.as_bytes());
    }
}
