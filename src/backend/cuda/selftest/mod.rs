//! The self-test at first use. Before a device is first used, small random models run through the backend in lockstep with the
//! reference, and every operation's results are compared with f64 sums on the CPU: `model.rs` has the table of cases, `pair.rs` the
//! steps, `compare.rs` the comparison. If a kernel of the fast set fails, the plain set is tested and used, with a warning; if that
//! fails too, the model is not loaded. Verdicts are kept on disk.
//!
//! A step starts from the reference's values, so that a faulty kernel shows only in its own steps. The device is synchronized after
//! every launch, so that a fault or hang belongs to the kernel launched last.

mod ledger;
mod model;
mod pair;
mod record;

use super::error::{CudaError, PLEASE_REPORT, Result};
use super::kernel_set::{HOPPER, KernelSet, Set, Variants};
use super::{abi::MatrixType, context::Device, loader::KernelFiles};
use crate::{backend::BackendError, model::weights::DType};
use ledger::Ledger;
use model::CASES;
use pair::Pair;
use record::{Known, Record, Request};
use serde::Serialize;
use std::{cell::RefCell, rc::Rc};

pub use record::run_if_child;

/// The verdict on what one kind of model uses of a set of kernels.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The set and the kind of model.
    pub tested: String,
    /// The kernel that fails (or several, if they cannot be told apart), and why.
    pub kernel: Option<String>,
    pub reason: Option<String>,
}

/// A run of tests on one device.
struct SelfTest<'a> {
    device: &'a Device,
    files: &'a KernelFiles,
    ledger: Rc<Ledger>,
    /// Whether both sets are tested, whatever is known.
    is_complete: bool,
    /// For child processes; taken by the first untested model. `None` in a child.
    request: Option<Request>,
}

/// Name of the early-start test among the kernels.
const EARLY: &str = "early_starts";

/// Tests a model's kernels, if that has not been done on this device. Returns the device, with early starts if they pass their test,
/// the kernels to use, and warnings for the user.
///
/// # Errors
/// [`CudaError::SelfTest`]: a kernel of the plain set fails, too.
pub fn settle(device: Device, files: &KernelFiles, variants: &Variants) -> Result<(Device, KernelSet, Vec<String>)> {
    let fast = KernelSet::load(files, variants, Set::Fast)?;
    let early = device.with_early_starts().unwrap_or_else(|| device.clone());
    if cfg!(test) {
        return Ok((early, fast, Vec::new())); // the library's tests cover the same kernels
    }
    let request = Request { ordinal: device.info.ordinal, variants: Some(variants.clone()), ..Request::default() };
    let checks = SelfTest::new(&device, files, request).models(std::slice::from_ref(variants))?;
    let failure = |check: &Check| check.kernel.clone().zip(check.reason.clone());
    let name = &device.info.name;
    let Some((kernel, reason)) = checks.first().and_then(failure) else { return Ok((early, fast, Vec::new())) };
    if let Some((kernel, reason)) = checks.last().and_then(failure) {
        return Err(CudaError::SelfTest { kernel, device: name.clone(), reason });
    }
    let warning = format!(
        "the CUDA kernel {kernel} fails its self-test on {name} ({reason}); the plain kernels are used, which are slow; \
         {PLEASE_REPORT}"
    );
    Ok((device, KernelSet::load(files, variants, Set::Plain)?, vec![warning]))
}

/// Tests all kernels on a device, whatever their earlier verdicts.
///
/// # Errors
/// The device cannot be opened, or kernels cannot be loaded. A kernel that fails is no error.
pub fn check_all(ordinal: usize) -> Result<Vec<Check>> {
    run(Request { ordinal, ..Request::default() })
}

/// Runs the tests of a request.
fn run(request: Request) -> Result<Vec<Check>> {
    let device = Device::open(request.ordinal)?;
    let files = KernelFiles::new(&device)?;
    if request.kernels.is_some_and(|fingerprint| fingerprint != files.fingerprint()) {
        return Err(CudaError::Unsupported("self-test of another version's kernels".to_owned()));
    }
    let models = request.variants.clone().map_or_else(every_variant, |variants| vec![variants]);
    SelfTest::new(&device, &files, request).models(&models)
}

/// All variants that kernels are built for.
fn every_variant() -> Vec<Variants> {
    use DType::{Bf16, F16, F32};
    let caches = [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)];
    let types = [MatrixType::F16, MatrixType::F32, MatrixType::Q8];
    let variants = |head_dim, cache| {
        // what does not depend on attention once; without weight types only attention is tested
        let first = (head_dim, cache) == (HEAD_DIMS[0], caches[0]);
        Variants {
            head_dims: vec![head_dim],
            layers: 0,
            heads: 0,
            types: if first { types.to_vec() } else { Vec::new() },
            embedding: MatrixType::F32,
            cache,
            experts: first.then_some(MatrixType::F16),
            delta_net: first,
        }
    };
    HEAD_DIMS.into_iter().flat_map(|head_dim| caches.map(|cache| variants(head_dim, cache))).collect()
}

/// Head sizes that kernels are built for.
const HEAD_DIMS: [usize; 7] = [16, 32, 64, 96, 128, 256, 512];

impl<'a> SelfTest<'a> {
    fn new(device: &'a Device, files: &'a KernelFiles, request: Request) -> SelfTest<'a> {
        let (is_child, is_complete) = (request.kernels.is_some(), request.variants.is_none());
        // a child's parent holds the lock
        let record = RefCell::new(Record::open(device, files, !is_child));
        let device_name = device.info.name.clone();
        let ledger = Rc::new(Ledger { device_name, is_child, record, ..Ledger::default() });
        SelfTest { device, files, ledger, is_complete, request: Some(request).filter(|_| !is_child) }
    }

    /// Tests models with the fast set and, if a kernel of that fails or all kernels are tested, with the plain one: each a check.
    fn models(&mut self, models: &[Variants]) -> Result<Vec<Check>> {
        if self.is_complete && self.request.is_some() {
            self.ledger.record.borrow_mut().lock();
            self.ledger.record.borrow_mut().known = Known::default();
        }
        let mut checks = Vec::new();
        for variants in models {
            let fast = self.verdict(Set::Fast, variants)?;
            let passes = fast.kernel.is_none();
            checks.push(fast);
            if self.is_complete || !passes {
                checks.push(self.verdict(Set::Plain, variants)?);
            }
        }
        Ok(checks)
    }

    /// The verdict on a set of kernels for a model, which is tested if it has not been, in child processes if possible.
    fn verdict(&mut self, set: Set, variants: &Variants) -> Result<Check> {
        let (ledger, tested) = (self.ledger.clone(), self.name(set, variants));
        let known = || ledger.record.borrow().known.tested.get(&tested).cloned();
        if known().is_none()
            && let Some(request) = self.request.take()
        {
            ledger.record.borrow_mut().lock();
            if known().is_none() {
                self.test_in_children(request);
            }
        }
        if known().is_none() {
            let kernel = self.test(set, variants).map_or_else(|error| self.blame(error).map(Some), |()| Ok(None))?;
            ledger.record.borrow_mut().known.tested.insert(tested.clone(), kernel);
            ledger.record.borrow().save();
        }
        let kernel = known().flatten();
        let reason = kernel.as_ref().and_then(|kernel| ledger.record.borrow().known.failed.get(kernel).cloned());
        Ok(Check { tested, kernel, reason })
    }

    /// The name of a test: whatever determines the kernels.
    fn name(&self, set: Set, variants: &Variants) -> String {
        let Variants { head_dims, types, embedding, cache, experts, delta_net, .. } = variants;
        let early = set == Set::Fast && self.device.with_early_starts().is_some();
        let or_none = |part: String, there: bool| if there { part } else { String::new() };
        format!("{set:?}: head_dim {head_dims:?}, cache {cache:?}")
            + &or_none(format!(", weights {types:?}, embedding {embedding:?}"), !types.is_empty())
            + &or_none(format!(", experts {experts:?}"), experts.is_some())
            + &or_none(", delta nets".to_owned(), *delta_net)
            + &or_none(", early starts".to_owned(), early)
    }

    /// Handles an error in a test; returns the kernel that fails. A fault is that of the kernel launched last, if the driver reported
    /// it while that was running.
    fn blame(&self, error: CudaError) -> Result<String> {
        let running = self.ledger.running.take();
        let (kernel, reason, faulted) = match (error, running) {
            (CudaError::SelfTest { kernel, reason, .. }, _) => (kernel, reason, false),
            (CudaError::Driver { call, cause }, Some(kernel)) => (kernel, format!("{call}: {cause}"), true),
            (error, _) => {
                self.ledger.runs(None);
                return Err(error);
            }
        };
        self.ledger.record.borrow_mut().known.failed.entry(kernel.clone()).or_insert(reason.clone());
        self.ledger.record.borrow().save();
        if faulted && self.ledger.is_child {
            std::process::exit(1);
        }
        if faulted {
            let after = "after which the device takes no more work; the next start tries the plain kernels";
            return Err(self.ledger.failure(&kernel, &format!("{reason}, {after}")));
        }
        Ok(kernel)
    }

    /// Tests the kernels of a model; without weight types only those of attention.
    ///
    /// # Errors
    /// [`CudaError::SelfTest`]: the first that fails.
    fn test(&self, set: Set, variants: &Variants) -> Result<()> {
        let (ledger, watch) = (&self.ledger, self.ledger.clone());
        ledger.passed.take();
        let device = self.device.watched(Rc::new(move |kernel| watch.begins(kernel)));
        // some attention cases do not run with 8-bit weights
        let for_attention = variants.types.iter().all(|t| *t == MatrixType::Q8).then_some(&MatrixType::F16);
        let hopper = self.device.info.capability == HOPPER;
        for dtype in variants.types.iter().chain(for_attention) {
            for case in CASES.iter().filter(|case| case.is_of(*dtype)) {
                let own = variants.types.contains(dtype) && case.is_needed(variants);
                if case.attention || own && !case.is_repeated(set, hopper) {
                    ledger.begin(format!("{case}, {}", dtype.name()));
                    let pair = Pair::new(self, &device, case, set, (variants, *dtype));
                    pair.and_then(|mut pair| pair.run()).map_err(on_device)?;
                }
            }
        }
        // captured decode steps in which kernels start before their predecessors have ended
        if let Some(early) = self.device.with_early_starts().filter(|_| set == Set::Fast) {
            ledger.begin("captured steps".to_owned());
            ledger.begins(EARLY)?;
            let dtype = variants.types.first().copied().unwrap_or(MatrixType::F16);
            let pair = Pair::new(self, &early, &CASES[2], set, (variants, dtype));
            pair.and_then(|mut pair| pair.steps(EARLY)).map_err(on_device)?;
        }
        ledger.runs(None);
        Ok(())
    }
}

fn on_device(error: BackendError) -> CudaError {
    match error {
        BackendError::Cuda(error) => error,
        error => CudaError::Unsupported(error.to_string()),
    }
}
