//! The self-test at first use. Before a device is first used, small random models run through the backend in lockstep with the
//! reference, and every operation's results are compared with f64 sums on the CPU: `model.rs` has the table of cases, `pair.rs` the
//! steps, `compare.rs` the comparison. A kernel that fails is replaced by its fallback in `kernels/plain.cu`, with a warning; without a
//! fallback the model is not loaded. Verdicts are kept on disk.
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
use super::fallback::Fallbacks;
use super::kernel_set::{KernelSet, Variants};
use super::loader::KernelFiles;
use crate::backend::BackendError;
use crate::model::weights::DType;
use child::Request;
use ledger::Ledger;
use model::{CASES, Case, Family};
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

/// Tests a model's kernels, if that has not been done on this device, and replaces those that fail. Returns the device, with early
/// starts if they pass their test, and warnings for the user.
///
/// # Errors
/// [`CudaError::SelfTest`]: a kernel without a fallback fails.
pub fn settle(
    device: Device,
    files: &KernelFiles,
    kernels: &mut KernelSet,
    variants: &Variants,
) -> Result<(Device, Vec<String>), CudaError> {
    if cfg!(test) {
        // the library's tests cover the same kernels
        return Ok((device.with_early_starts().unwrap_or(device), Vec::new()));
    }
    let request = Request { ordinal: device.info.ordinal, variants: Some(variants.clone()), ..Request::default() };
    let mut test = SelfTest::new(&device, files, request);
    test.models(std::slice::from_ref(variants))?;
    let warnings = test.replace_failed(kernels, variants)?;
    let early = device.with_early_starts().filter(|_| !test.ledger.failed(EARLY));
    Ok((early.unwrap_or(device), warnings))
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

    /// Tests the untested parts of the models, in child processes if possible: attention with their head_dims and cache types,
    /// and everything else with each weight type.
    fn models(&mut self, models: &[Variants]) -> Result<(), CudaError> {
        let (ledger, early) = (self.ledger.clone(), self.device.with_early_starts().is_some());
        let tested = |part: &String| ledger.record.borrow().known.tested.contains(part);
        for variants in models {
            let Variants { head_dims, types, embedding, cache, experts, delta_net, .. } = variants;
            let attention = format!("attention: {head_dims:?}, {cache:?}, early starts: {early}");
            let of_type = |t: &MatrixType| format!("{t:?}: {embedding:?}, {experts:?}, delta nets: {delta_net}");
            let parts: Vec<String> = types.iter().map(of_type).chain([attention]).collect();
            let is_tested = || parts.iter().all(tested);
            if (ledger.complete || !is_tested())
                && let Some(request) = self.request.take()
            {
                ledger.record.borrow_mut().lock();
                if ledger.complete {
                    ledger.record.borrow_mut().known = Known::default();
                }
                if !is_tested() {
                    self.test_in_children(request);
                }
            }
            if !is_tested() {
                let new: Vec<MatrixType> = types.iter().copied().filter(|t| !tested(&of_type(t))).collect();
                self.model(variants, &new).or_else(|error| self.blame(error))?;
                ledger.record.borrow_mut().known.tested.extend(parts);
                ledger.record.borrow().save(); // with their kernels' checks
            }
        }
        Ok(())
    }

    /// Handles an error in a test: a kernel's fault, if the driver reported it while one was running.
    fn blame(&self, error: CudaError) -> Result<(), CudaError> {
        let (CudaError::Driver { call, cause }, Some(kernel)) = (&error, self.ledger.running()) else {
            self.ledger.runs(None);
            return Err(error);
        };
        let fault = format!("{call}: {cause}");
        self.ledger.record.borrow_mut().add(Check { fault: Some(fault.clone()), ..Check::of(&kernel) });
        if self.ledger.is_child {
            std::process::exit(1);
        }
        let after = "after which the device takes no more work; the next start leaves the kernel out if it can";
        Err(self.ledger.failure(&kernel, format!("{fault}, {after}")))
    }

    /// Tests the kernels of a model with these weight types, or only those of attention if there are none. Each case is repeated until
    /// the remaining kernels are correct.
    fn model(&self, variants: &Variants, types: &[MatrixType]) -> Result<(), CudaError> {
        let (ledger, watch) = (&self.ledger, self.ledger.clone());
        let device = self.device.watched(Rc::new(move |kernel| watch.begins(kernel)));
        // a complete test also covers what is used if the Hopper kernels, or all but the plain ones, are missing
        let missing: &[Option<&str>] = if ledger.complete { &[None, Some("hopper"), Some("")] } else { &[None] };
        // some attention cases do not run with 8-bit weights
        let for_attention = types.iter().all(|t| *t == MatrixType::Q8).then_some(&MatrixType::F16);
        for missing in missing {
            let own = |case: &Case, dtype: MatrixType| {
                let packed = dtype != MatrixType::Q8 || !ledger.failed_any("pack_q8");
                let needed = case.family != Family::Qwen || variants.delta_net || variants.experts.is_some();
                // Hopper kernels have a single block size
                let hopper = missing.is_none()
                    && ["gemm_hopper", "gemm_gated_hopper"].iter().all(|kernel| ledger.passed(kernel));
                let other = types.contains(&dtype) && needed && !(hopper && case.is_of_blocks());
                packed && case.is_of(dtype) && (case.attention || other && *missing != Some(""))
            };
            let types_used = types.iter().chain(for_attention);
            for (dtype, case) in types_used.flat_map(|dtype| CASES.iter().map(move |case| (*dtype, case))) {
                while own(case, dtype) {
                    ledger.begin(format!("{case}, {}", dtype.name()));
                    let fails =
                        |kernel: &str| ledger.failed(kernel) || missing.is_some_and(|part| kernel.contains(part));
                    Pair::new(self, &device, case, (variants, dtype), &fails)?.run().map_err(on_device)?;
                    if ledger.conclude() {
                        break;
                    }
                }
            }
        }
        self.early_starts(variants)?;
        ledger.runs(None);
        Ok(())
    }

    /// Tests captured decode steps in which kernels start before their predecessors have ended.
    fn early_starts(&self, variants: &Variants) -> Result<(), CudaError> {
        let ledger = &self.ledger;
        // launches are not intercepted here, so there must be no kernel that faults
        let fault = ledger.complete && ledger.record.borrow().failed().next().is_some();
        let known = ledger.record.borrow().check(EARLY).is_some();
        let Some(early) = self.device.with_early_starts().filter(|_| !known && !fault) else { return Ok(()) };
        ledger.begin("captured steps".to_owned());
        ledger.begins(EARLY)?;
        let fails = |kernel: &str| ledger.failed(kernel);
        let mut pair = Pair::new(self, &early, &CASES[2], (variants, variants.types[0]), &fails)?;
        pair.steps(EARLY).map_err(on_device)?;
        ledger.conclude();
        Ok(())
    }

    /// Replaces the failed kernels of a set; returns warnings for the user.
    fn replace_failed(&self, kernels: &mut KernelSet, variants: &Variants) -> Result<Vec<String>, CudaError> {
        let fails = |kernel: &str| self.ledger.failed(kernel);
        let on = |name: &str| format!("self-test on {} ({})", self.device.info.name, self.ledger.reason(name));
        let warning = |(name, by): (String, &str)| {
            format!("the CUDA kernel {name} fails its {} and is replaced by {by}; {PLEASE_REPORT}", on(&name))
        };
        let replaced = Fallbacks::new(self.files, &fails).apply(kernels, variants.cache)?.into_iter().map(warning);
        let early = fails(EARLY).then(|| {
            let (what, then) = ("kernels that start before the previous one has ended", "which is slower");
            format!("{what} fail their {} and run one after the other, {then}; {PLEASE_REPORT}", on(EARLY))
        });
        Ok(replaced.chain(early).collect())
    }
}

fn on_device(error: BackendError) -> CudaError {
    match error {
        BackendError::Cuda(error) => error,
        error => CudaError::Unsupported(error.to_string()),
    }
}
