//! A self-test in progress: the kernels launched so far, and those whose results were right.

use super::super::error::{CudaError, Result};
use super::record::Record;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Kernels whose results are read separately: a step's output says nothing about them.
const APART: [&str; 4] = ["attn_select", "attn_places", "attn_sum", "layer_sums"];

#[derive(Default)]
pub struct Ledger {
    pub device_name: String,
    pub is_child: bool,
    pub record: RefCell<Record>,
    /// Name of the current case.
    pub case: RefCell<String>,
    /// Kernels whose results were right.
    pub passed: RefCell<BTreeSet<String>>,
    /// Kernels launched in the pass.
    pub pass: RefCell<BTreeSet<String>>,
    /// Kernels launched in its current step.
    pub step: RefCell<BTreeSet<String>>,
    /// Models built so far.
    pub tries: Cell<u64>,
    /// The kernel launched last, which is blamed for a fault.
    pub running: RefCell<Option<String>>,
}

impl Ledger {
    /// Records a launch. See [`Watch`](super::super::context::Watch).
    ///
    /// # Errors
    /// The kernel is known to fail.
    pub fn begins(&self, kernel: &str) -> Result<()> {
        for set in [&self.pass, &self.step] {
            set.borrow_mut().insert(kernel.to_owned());
        }
        if let Some(reason) = self.record.borrow().known.failed.get(kernel) {
            return Err(self.failure(kernel, reason));
        }
        self.runs(Some(kernel));
        Ok(())
    }

    /// Records the running kernel; `None`: no kernel is blamed for errors from here on.
    pub fn runs(&self, kernel: Option<&str>) {
        self.record.borrow().note_running(kernel);
        self.running.replace(kernel.map(str::to_owned));
    }

    /// Begins a case.
    pub fn begin(&self, case: String) {
        self.runs(None);
        self.case.replace(case);
        self.pass.take();
        self.step.take();
    }

    /// Ends a step, whose results were right.
    pub fn end_step(&self) {
        let kernels = self.judged(&[]);
        self.passed.borrow_mut().extend(kernels);
        self.step.take();
    }

    /// The kernels that produced the values under comparison: those of the pass whose names start with one of `names`, or
    /// without names those of the step.
    pub fn judged(&self, names: &[&str]) -> Vec<String> {
        let begins = |kernel: &String, names: &[&str]| names.iter().any(|name| kernel.starts_with(name));
        match names {
            [] => self.step.borrow().iter().filter(|kernel| !begins(kernel, &APART)).cloned().collect(),
            names => self.pass.borrow().iter().filter(|kernel| begins(kernel, names)).cloned().collect(),
        }
    }

    pub fn failure(&self, kernel: &str, reason: &str) -> CudaError {
        let (kernel, device, reason) = (kernel.to_owned(), self.device_name.clone(), reason.to_owned());
        CudaError::SelfTest { kernel, device, reason }
    }
}
