//! Compares a device's values with the reference's, and finds the kernel to blame where they differ.

use super::ledger::{Finding, Ledger};
use super::{Check, Worst};
use crate::model::weights::DType;
use std::collections::BTreeMap;

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

impl Ledger {
    /// The comparison used by all cases; returns whether it holds. `kernels`: the names that [`Ledger::judged`] takes.
    pub fn compare(&self, kernels: &[&str], what: &str, found: Rows, want: Rows, bound: Bound) -> bool {
        let step = Some(self.steps.get()).filter(|_| kernels.is_empty());
        let (kernels, mut found) = (self.judged(kernels), found.into_iter().flatten());
        let mut check = Check { bound: bound.share, ..Check::default() };
        for row in want {
            let largest = row.iter().fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
            for expected in row {
                let found = found.next().unwrap_or(f64::NAN);
                let distance = if found == expected { 0.0 } else { (found - expected).abs() };
                let beyond = distance - bound.rounding * expected.abs();
                let error = if beyond <= 0.0 { 0.0 } else { beyond / largest };
                if check.is_worse(error, bound.share) {
                    let case = format!("{what}, {}", self.case.borrow());
                    (check.error, check.worst) = (error, Some(Worst { case, index: check.numbers, expected, found }));
                }
                check.numbers += 1;
            }
        }
        let holds = check.ok();
        let mut findings = self.findings.borrow_mut();
        match findings.iter_mut().rev().find(|other| step.is_some() && other.step == step) {
            // a step is correct if all of its results are
            Some(other) => {
                other.check.add(&check);
                other.kernels = kernels; // including those launched since
            }
            None if check.numbers > 0 && !kernels.is_empty() => findings.push(Finding { step, kernels, check }),
            None => {}
        }
        holds
    }

    /// Ends a case. Kernels of comparisons that hold pass; for the rest, records as failed the kernel (or kernels, if they cannot be told
    /// apart) that explains most of them. Suspects are kernels that have not passed, unless all have.
    pub fn conclude(&self) {
        let findings = self.findings.take().into_iter();
        let (right, wrong): (Vec<Finding>, Vec<Finding>) = findings.partition(|finding| finding.check.ok());
        let mut record = self.record.borrow_mut();
        for Finding { kernels, check, .. } in right {
            kernels.into_iter().for_each(|kernel| record.add(Check { kernel, ..check.clone() }));
        }
        let mut suspects: BTreeMap<&String, Vec<&Check>> = BTreeMap::new();
        for Finding { kernels, check, .. } in &wrong {
            let new: Vec<&String> = kernels.iter().filter(|kernel| record.check(kernel).is_none()).collect();
            let blamed = if new.is_empty() { kernels.iter().collect() } else { new };
            blamed.into_iter().for_each(|kernel| suspects.entry(kernel).or_default().push(check));
        }
        let most = suspects.values().map(Vec::len).max().unwrap_or(0);
        for (kernel, checks) in suspects.into_iter().filter(|(_, checks)| checks.len() == most) {
            checks.into_iter().for_each(|check| record.add(Check { kernel: kernel.clone(), ..check.clone() }));
        }
    }
}
