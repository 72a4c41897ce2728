//! The self-test at first use. Before a device is first used, small random models run through the backend in lockstep with the
//! reference, and every operation's results are compared with f64 sums on the CPU: `model.rs` has the table of cases, `pair.rs` the
//! steps, `compare.rs` the comparison. If a kernel of the fast set fails, the plain set is tested and used, with a warning; if that
//! fails too, the model is not loaded. Verdicts are kept on disk.
//!
//! A step starts from the reference's values, so that a faulty kernel shows only in its own steps. The device is synchronized after
//! every launch, so that a fault or hang belongs to the kernel launched last.

mod cache;
mod child;
mod compare;
mod ledger;
mod model;
mod pair;
mod record;

use super::abi::MatrixType;
use super::context::Device;
use super::error::{CudaError, PLEASE_REPORT};
use super::kernel_set::{HOPPER, KernelSet, Set, Variants};
use super::loader::KernelFiles;
use crate::backend::BackendError;
use crate::model::weights::DType;
use child::Request;
use ledger::Ledger;
use model::{CASES, Case};
use pair::Pair;
use record::{Known, Record};
use serde::{Deserialize, Deserializer, Serialize};
use std::cell::RefCell;
use std::rc::Rc;

pub use child::run_if_child;

/// Verdict on one kernel. `error` and `bound` are those of the value whose error is the largest share of its bound, relative to
/// the largest value of its row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Check {
    pub kernel: String,
    /// Values compared.
    pub numbers: usize,
    #[serde(deserialize_with = "number")]
    pub error: f64,
    pub bound: f64,
    /// The value itself.
    pub worst: Option<Worst>,
    /// A fault or hang, after which there are no values; or why there are none.
    pub fault: Option<String>,
}

/// A compared value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worst {
    pub case: String,
    pub index: usize,
    #[serde(deserialize_with = "number")]
    pub expected: f64,
    #[serde(deserialize_with = "number")]
    pub found: f64,
}

/// JSON stores NaN and infinity as null.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Check {
    /// Before the first comparison.
    fn of(kernel: &str) -> Check {
        Check { kernel: kernel.to_owned(), ..Check::default() }
    }

    pub fn ok(&self) -> bool {
        self.fault.is_none() && self.error <= self.bound
    }

    /// The reason for a failure.
    pub fn describe(&self) -> String {
        let worst = self.worst.as_ref().map_or(String::new(), |Worst { case, index, expected, found }| {
            format!("{case}[{index}]: expected {expected:.7e}, found {found:.7e}, ")
        });
        let wrong = || format!("{worst}error {:.1e}, bound {:.1e}", self.error, self.bound);
        self.fault.clone().unwrap_or_else(wrong)
    }

    /// Whether a value with this error is worse than the worst so far.
    fn is_worse(&self, error: f64, bound: f64) -> bool {
        let worse = error.is_nan() || error * self.bound > self.error * bound;
        self.worst.is_none() || worse && !self.error.is_nan()
    }

    /// Adds another comparison of the same kernel.
    fn add(&mut self, other: &Check) {
        if self.is_worse(other.error, other.bound) {
            (self.error, self.bound, self.worst) = (other.error, other.bound, other.worst.clone());
        }
        self.numbers += other.numbers;
        self.fault = self.fault.take().or_else(|| other.fault.clone());
    }
}

/// A run of tests on one device.
struct SelfTest<'a> {
    device: &'a Device,
    files: &'a KernelFiles,
    ledger: Rc<Ledger>,
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
pub fn settle(
    device: Device,
    files: &KernelFiles,
    variants: &Variants,
) -> Result<(Device, KernelSet, Vec<String>), CudaError> {
    let fast = KernelSet::load(files, variants, Set::Fast)?;
    let early = device.with_early_starts().unwrap_or_else(|| device.clone());
    if cfg!(test) {
        return Ok((early, fast, Vec::new())); // the library's tests cover the same kernels
    }
    let request = Request { ordinal: device.info.ordinal, variants: Some(variants.clone()), ..Request::default() };
    let mut test = SelfTest::new(&device, files, request);
    test.models(std::slice::from_ref(variants))?;
    let [slow, refused] = [Set::Fast, Set::Plain].map(|set| test.failure(set, variants));
    let Some(why) = slow else { return Ok((early, fast, Vec::new())) };
    if let Some(Check { kernel, .. }) = &refused {
        return Err(test.ledger.failure(kernel, test.ledger.reason(kernel)));
    }
    let (kernel, name, reason) = (&why.kernel, &device.info.name, why.describe());
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
pub fn check_all(ordinal: usize) -> Result<Vec<Check>, CudaError> {
    let mut checks = run(Request { ordinal, ..Request::default() })?;
    checks.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    Ok(checks)
}

/// Runs the tests of a request.
fn run(request: Request) -> Result<Vec<Check>, CudaError> {
    let device = Device::open(request.ordinal)?;
    let files = KernelFiles::new(&device)?;
    if request.kernels.is_some_and(|fingerprint| fingerprint != files.fingerprint()) {
        return Err(CudaError::Unsupported("self-test of another version's kernels".to_owned()));
    }
    let models = request.variants.clone().map_or_else(every_variant, |variants| vec![variants]);
    let mut test = SelfTest::new(&device, &files, request);
    match test.models(&models) {
        // after a fault in this process the device accepts no more work: the table ends there
        Err(CudaError::SelfTest { .. }) | Ok(()) => {
            Ok(std::mem::take(&mut test.ledger.record.borrow_mut().known.checks))
        }
        Err(error) => Err(error),
    }
}

/// All variants that kernels are built for.
fn every_variant() -> Vec<Variants> {
    use DType::{Bf16, F16, F32};
    let caches = [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)];
    let types = [MatrixType::F16, MatrixType::F32, MatrixType::Q8];
    let variants = |head_dim, cache| Variants {
        head_dims: vec![head_dim],
        layers: 0,
        heads: 0,
        types: types.to_vec(),
        embedding: MatrixType::F32,
        cache,
        experts: Some(MatrixType::F16),
        delta_net: true,
    };
    let of_size = |head_dim| caches.map(|cache| variants(head_dim, cache));
    [16, 32, 64, 96, 128, 256, 512].into_iter().flat_map(of_size).collect()
}

impl<'a> SelfTest<'a> {
    fn new(device: &'a Device, files: &'a KernelFiles, request: Request) -> SelfTest<'a> {
        let (is_child, complete) = (request.kernels.is_some(), request.variants.is_none());
        // a child's parent holds the lock
        let record = RefCell::new(Record::open(device, files, !is_child));
        let device_name = device.info.name.clone();
        let ledger = Rc::new(Ledger { device_name, is_child, complete, record, ..Ledger::default() });
        SelfTest { device, files, ledger, request: Some(request).filter(|_| !is_child) }
    }

    /// Tests the untested parts of the models, in child processes if possible: each model with the fast set and, if that fails or all
    /// kernels are tested, with the plain one.
    fn models(&mut self, models: &[Variants]) -> Result<(), CudaError> {
        let ledger = self.ledger.clone();
        for (set, variants) in [Set::Fast, Set::Plain].into_iter().flat_map(|set| models.iter().map(move |v| (set, v)))
        {
            if set == Set::Plain && !ledger.complete && self.failure(Set::Fast, variants).is_none() {
                continue;
            }
            let parts = self.parts(set, variants);
            let is_tested = |part: &str| ledger.record.borrow().known.tested.contains_key(part);
            let done = || parts.iter().all(|(_, part)| is_tested(part));
            if (ledger.complete || !done())
                && let Some(request) = self.request.take()
            {
                ledger.record.borrow_mut().lock();
                if ledger.complete {
                    ledger.record.borrow_mut().known = Known::default();
                }
                if !done() {
                    self.test_in_children(request);
                }
            }
            if !done() {
                let new: Vec<_> = parts.into_iter().filter(|(_, part)| !is_tested(part)).collect();
                let types: Vec<MatrixType> = new.iter().filter_map(|(dtype, _)| *dtype).collect();
                self.model(set, variants, &types).or_else(|error| self.blame(error))?;
                let (kernels, mut record) = (ledger.launched.take(), ledger.record.borrow_mut());
                record.known.tested.extend(new.into_iter().map(|(_, part)| (part, kernels.clone())));
                record.save(); // with their kernels' checks
            }
        }
        Ok(())
    }

    /// The names of the parts of a model that are tested separately: everything with weights of one type, and attention.
    fn parts(&self, set: Set, variants: &Variants) -> Vec<(Option<MatrixType>, String)> {
        let Variants { head_dims, types, embedding, cache, experts, delta_net, .. } = variants;
        let early = set == Set::Fast && self.device.with_early_starts().is_some();
        let attention = format!("{set:?}, attention: {head_dims:?}, {cache:?}, early starts: {early}");
        let of_type =
            |t: &MatrixType| (Some(*t), format!("{set:?}, {t:?}: {embedding:?}, {experts:?}, delta nets: {delta_net}"));
        types.iter().map(of_type).chain([(None, attention)]).collect()
    }

    /// The first kernel that fails in the tested parts of a model.
    fn failure(&self, set: Set, variants: &Variants) -> Option<Check> {
        let record = self.ledger.record.borrow();
        let parts = self.parts(set, variants);
        let kernels: Vec<&String> =
            parts.iter().filter_map(|(_, part)| record.known.tested.get(part)).flatten().collect();
        record.failed().find(|check| kernels.contains(&&check.kernel)).cloned()
    }

    /// Handles an error in a test: a kernel's fault, if the driver reported it while one was running. A kernel known to fail ends a test.
    fn blame(&self, error: CudaError) -> Result<(), CudaError> {
        if let CudaError::SelfTest { .. } = error {
            return Ok(());
        }
        let (CudaError::Driver { call, cause }, Some(kernel)) = (&error, self.ledger.running()) else {
            self.ledger.runs(None);
            return Err(error);
        };
        let fault = format!("{call}: {cause}");
        self.ledger.record.borrow_mut().add(Check { fault: Some(fault.clone()), ..Check::of(&kernel) });
        if self.ledger.is_child {
            std::process::exit(1);
        }
        let after =
            "after which the device takes no more work; the next start uses the plain kernels if they are right";
        Err(self.ledger.failure(&kernel, format!("{fault}, {after}")))
    }

    /// Tests the kernels of a model with these weight types, or only those of attention if there are none.
    fn model(&self, set: Set, variants: &Variants, types: &[MatrixType]) -> Result<(), CudaError> {
        let (ledger, watch) = (&self.ledger, self.ledger.clone());
        let device = self.device.watched(Rc::new(move |kernel| watch.begins(kernel)));
        // some attention cases do not run with 8-bit weights
        let for_attention = types.iter().all(|t| *t == MatrixType::Q8).then_some(&MatrixType::F16);
        let one_block_size = set == Set::Plain || self.device.info.capability == HOPPER;
        let own = |case: &Case, dtype: MatrixType| {
            let other = types.contains(&dtype) && case.is_needed(variants) && !(one_block_size && case.is_of_blocks());
            case.is_of(dtype) && (case.attention || other)
        };
        for (dtype, case) in types.iter().chain(for_attention).flat_map(|dtype| CASES.iter().map(|case| (*dtype, case)))
        {
            if own(case, dtype) {
                ledger.begin(format!("{case}, {}", dtype.name()));
                let run = Pair::new(self, &device, case, set, (variants, dtype)).and_then(|mut pair| pair.run());
                ledger.conclude();
                run.map_err(on_device)?;
            }
        }
        if set == Set::Fast {
            self.early_starts(variants)?;
        }
        ledger.runs(None);
        Ok(())
    }

    /// Tests captured decode steps in which kernels start before their predecessors have ended, if all kernels are right by themselves.
    fn early_starts(&self, variants: &Variants) -> Result<(), CudaError> {
        let ledger = &self.ledger;
        let Some(early) = self.device.with_early_starts() else { return Ok(()) };
        let launched = ledger.launched.borrow().clone();
        let passed = ledger.record.borrow().check(EARLY).is_some_and(Check::ok);
        if passed || ledger.record.borrow().failed().any(|check| launched.contains(&check.kernel)) {
            return Ok(());
        }
        ledger.begin("captured steps".to_owned());
        ledger.begins(EARLY)?;
        let run = Pair::new(self, &early, &CASES[2], Set::Fast, (variants, variants.types[0]));
        run.and_then(|mut pair| pair.steps(EARLY)).map_err(on_device)?;
        ledger.conclude();
        Ok(())
    }
}

fn on_device(error: BackendError) -> CudaError {
    match error {
        BackendError::Cuda(error) => error,
        error => CudaError::Unsupported(error.to_string()),
    }
}
