//! A self-test in progress: the kernels launched so far, and those whose results were right.

use super::{super::error::CudaError, super::error::Result, record::Record};
use crate::model::weights::DType;
use std::{cell::Cell, cell::RefCell, collections::BTreeSet};

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

    /// The comparison used by all cases. `kernels`: the names that [`Ledger::judged`] takes.
    ///
    /// # Errors
    /// A value is out of bounds; names the kernel (or kernels, if they cannot be told apart) to blame: those that have not been right
    /// before, unless all have.
    pub fn compare(&self, kernels: &[&str], what: &str, found: Rows, want: Rows, bound: Bound) -> Result<()> {
        let (judged, of_step) = (self.judged(kernels), kernels.is_empty());
        let mut found = found.into_iter().flatten();
        for (index, row) in want.into_iter().enumerate() {
            let largest = row.iter().fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
            for (column, expected) in row.into_iter().enumerate() {
                let found = found.next().unwrap_or(f64::NAN);
                let beyond = (found - expected).abs() - bound.rounding * expected.abs();
                let holds = found == expected || beyond <= bound.share * largest; // NaN does not
                if !holds {
                    let passed = self.passed.borrow();
                    let new: Vec<String> = judged.iter().filter(|kernel| !passed.contains(*kernel)).cloned().collect();
                    let blamed = if new.is_empty() { judged } else { new };
                    let (case, share) = (self.case.borrow(), bound.share);
                    let reason = format!(
                        "{what}, {case}[{index}][{column}]: expected {expected:.7e}, found {found:.7e}, error {:.1e}, \
                         bound {share:.1e}",
                        beyond / largest
                    );
                    return Err(self.failure(&blamed.join(" or "), &reason));
                }
            }
        }
        if !of_step {
            self.passed.borrow_mut().extend(judged);
        }
        Ok(())
    }
}

// Compares a device's values with the reference's, and finds the kernel to blame where they differ.

/// Values under comparison: rows of any length, each with its own maximum.
pub type Rows = Vec<Vec<f64>>;

pub fn lists<R: AsRef<[f32]>>(rows: &[R]) -> Rows {
    rows.iter().map(|row| row.as_ref().iter().map(|x| f64::from(*x)).collect()).collect()
}

pub fn rows(numbers: &[f32], width: usize) -> Rows {
    lists(&numbers.chunks(width).collect::<Vec<_>>())
}

/// An error bound: a share of the row's largest value, plus a share of the value itself for the rounding of its stored type.
#[derive(Clone, Copy)]
pub struct Bound {
    pub share: f64,
    pub rounding: f64,
}

impl Bound {
    pub const EXACT: Bound = Bound { share: f64::EPSILON, rounding: 0.0 };

    /// Arithmetic like that of f32: sums of up to a thousand terms are off by a few units of 2^-24, and six standard deviations of
    /// that are 2^-19. Rounding one operand to 16 bits, a lost term, costs a share of about 2^-12.
    pub const LIKE_F32: Bound = Bound { share: 1.0 / 65536.0, rounding: 0.0 };

    /// Attention weights and what is derived from them: a weight's relative error is the absolute error of its score, and scores are up to
    /// √head_dim, 22.6 for a head_dim of 512. Six standard deviations of the difference of two are √2 · 22.6 · 2^-19 = 2^-14. A lost term
    /// costs scores with a standard deviation of 3 about 2^-10.
    pub const OF_WEIGHTS: Bound = Bound { share: 1.0 / 4096.0, rounding: 0.0 };

    /// Products of inputs rounded to f16: every term is off by up to 2^-11 of itself, with either sign.
    pub const ROUNDED: Bound = Bound { share: 1.0 / 1024.0, rounding: 0.0 };

    /// The bound for the same values stored in this type: adds the distance between neighbouring representable values.
    pub fn stored(self, dtype: DType) -> Bound {
        let rounding = [(DType::F16, 1.0 / 1024.0), (DType::Bf16, 1.0 / 128.0)];
        let rounding = rounding.into_iter().find(|(of, _)| *of == dtype).map_or(0.0, |(_, rounding)| rounding);
        Bound { rounding, ..self }
    }
}
