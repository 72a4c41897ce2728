//! A self-test in progress: the kernels launched so far, and the findings on each.

use super::super::error::CudaError;
use super::Check;
use super::record::Record;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Kernels whose results are read separately: a step's output says nothing about them.
const APART: [&str; 4] = ["attn_select", "attn_places", "attn_sum", "layer_sums"];

/// One comparison, or all comparisons of a step, and the kernels they judge.
pub struct Finding {
    pub step: Option<usize>,
    pub kernels: Vec<String>,
    pub check: Check,
}

#[derive(Default)]
pub struct Ledger {
    pub device_name: String,
    pub is_child: bool,
    /// Whether all kernels are tested: one that fails is skipped from then on, and the test continues without it.
    pub complete: bool,
    pub record: RefCell<Record>,
    /// Name of the current case, and its comparisons.
    pub case: RefCell<String>,
    pub findings: RefCell<Vec<Finding>>,
    /// Kernels launched since the last part of a model was tested.
    pub launched: RefCell<BTreeSet<String>>,
    /// Kernels launched in the pass.
    pub pass: RefCell<BTreeSet<String>>,
    /// Kernels launched in its current step.
    pub step: RefCell<BTreeSet<String>>,
    /// Steps that have ended.
    pub steps: Cell<usize>,
    /// Models built so far.
    pub tries: Cell<u64>,
    /// The kernel launched last, which is blamed for a fault.
    pub running: RefCell<Option<String>>,
}

impl Ledger {
    /// Records a launch; returns whether to go ahead with it. See [`Watch`](super::super::context::Watch).
    pub fn begins(&self, kernel: &str) -> Result<bool, CudaError> {
        for kernels in [&self.launched, &self.pass, &self.step] {
            kernels.borrow_mut().insert(kernel.to_owned());
        }
        if self.failed(kernel) {
            return if self.complete { Ok(false) } else { Err(self.failure(kernel, self.reason(kernel))) };
        }
        self.runs(Some(kernel));
        Ok(true)
    }

    /// Records the running kernel; `None`: no kernel is blamed for errors from here on.
    pub fn runs(&self, kernel: Option<&str>) {
        self.record.borrow().note_running(kernel);
        self.running.replace(kernel.map(str::to_owned));
    }

    pub fn running(&self) -> Option<String> {
        self.running.borrow().clone()
    }

    pub fn failed(&self, kernel: &str) -> bool {
        self.record.borrow().check(kernel).is_some_and(|check| !check.ok())
    }

    /// Begins a case.
    pub fn begin(&self, case: String) {
        self.runs(None);
        self.case.replace(case);
        self.pass.take();
        self.end_step();
    }

    /// Ends a step, whose launches have been judged.
    pub fn end_step(&self) {
        self.steps.set(self.steps.get() + 1);
        self.step.take();
    }

    /// The kernels that produced the values under comparison: those of the pass whose names start with one of `names`, or
    /// without names those of the step. Empty if one of them has failed: the comparison is then meaningless.
    pub fn judged(&self, names: &[&str]) -> Vec<String> {
        let begins = |kernel: &String, names: &[&str]| names.iter().any(|name| kernel.starts_with(name));
        let (step, pass) = (self.step.borrow(), self.pass.borrow());
        let kernels: Vec<String> = match names {
            [] => step.iter().filter(|kernel| !begins(kernel, &APART)).cloned().collect(),
            names => pass.iter().filter(|kernel| begins(kernel, names)).cloned().collect(),
        };
        if kernels.iter().any(|kernel| self.failed(kernel)) { Vec::new() } else { kernels }
    }

    pub fn failure(&self, kernel: &str, reason: String) -> CudaError {
        CudaError::SelfTest { kernel: kernel.to_owned(), device: self.device_name.clone(), reason }
    }

    /// Why a kernel failed.
    pub fn reason(&self, kernel: &str) -> String {
        self.record.borrow().check(kernel).map_or_else(String::new, Check::describe)
    }
}
