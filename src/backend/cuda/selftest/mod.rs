//! The power-on self-test. Before a device is first used, every kernel of the model computes small cases, which are compared
//! with f64 sums on the CPU. A kernel that fails is replaced by its fallback in `kernels/plain.cu`, with a warning; without a
//! fallback the model is not loaded. Verdicts are kept on disk.
//!
//! Errors and bounds are relative to Σ |terms|.

mod attention;
mod child;
mod data;
mod head;
mod products;
mod record;
mod rows;
mod trace;

use super::abi::type_number;
use super::context::{Device, DeviceInfo};
use super::error::{CudaError, PLEASE_REPORT};
use super::kernel_set::{GEMM_ROWS, KernelSet, MatmulKernels, NarrowKernels, TESTED_HEADS, TESTED_LAYERS, Variants};
use super::launch::{Int, Kernel, Parameters};
use super::loader::KernelFiles;
use crate::model::weights::DType;
use attention::Attention;
pub use child::run_if_child;
use child::{Message, Request};
use data::Bench;
use record::{Record, Verdict};
use serde::{Deserialize, Deserializer, Serialize};

const WEIGHTS: [DType; 2] = [DType::F32, DType::F16];

/// Verdict on one kernel. `error` and `bound` are those of the number whose error is the largest share of its bound.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Check {
    pub kernel: String,
    /// Numbers that were compared.
    pub numbers: usize,
    #[serde(deserialize_with = "number")]
    pub error: f64,
    pub bound: f64,
    /// The number itself.
    pub worst: Option<Worst>,
    /// Why there are no numbers: a fault or a hang.
    pub fault: Option<String>,
}

/// A compared number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Worst {
    pub case: String,
    pub index: usize,
    #[serde(deserialize_with = "number")]
    pub expected: f64,
    #[serde(deserialize_with = "number")]
    pub found: f64,
}

/// JSON has null for NaN and infinity.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Check {
    pub fn ok(&self) -> bool {
        self.fault.is_none() && self.error <= self.bound
    }

    /// Why the kernel fails.
    pub fn describe(&self) -> String {
        let worst = self.worst.as_ref().map_or(String::new(), |Worst { case, index, expected, found }| {
            format!("{case}[{index}]: expected {expected:.7e}, found {found:.7e}, ")
        });
        let wrong = || format!("{worst}error {:.1e}, bound {:.1e}", self.error, self.bound);
        self.fault.clone().unwrap_or_else(wrong)
    }
}

/// A run of tests on one device.
struct SelfTest<'a> {
    device: &'a Device,
    files: &'a KernelFiles,
    device_name: &'a str,
    record: Record,
    /// For child processes; taken by the first kernel without a verdict.
    request: Option<Request>,
    /// Whether this is such a process.
    is_child: bool,
    /// Whether failures only end up in the table.
    complete: bool,
    checks: Vec<Check>,
    warnings: Vec<String>,
}

/// Tests a model's kernels that have no verdict on this device yet and replaces those that fail. Returns the device, with
/// early starts if they pass their test, and warnings for the user.
///
/// # Errors
/// [`CudaError::SelfTest`]: a kernel without a fallback fails.
pub fn settle(
    device: Device,
    info: &DeviceInfo,
    files: &KernelFiles,
    kernels: &mut KernelSet,
    variants: &Variants,
) -> Result<(Device, Vec<String>), CudaError> {
    let mut test = SelfTest::new(&device, info, files);
    test.record = Record::open(&device, info, files);
    test.request.as_mut().iter_mut().for_each(|request| request.variants = Some(variants.clone()));
    test.kernels(kernels, variants)?;
    let (early, warnings) = (test.early_starts(kernels)?, test.warnings);
    Ok((early.unwrap_or(device), warnings))
}

/// Tests all kernels on a device, whatever their earlier verdicts.
///
/// # Errors
/// The device cannot be opened, or kernels cannot be loaded. A kernel that fails is no error.
pub fn check_all(ordinal: usize) -> Result<Vec<Check>, CudaError> {
    let device = Device::open(ordinal)?;
    let info = device.info()?;
    let files = KernelFiles::new(&device, &info)?;
    let mut test = SelfTest::new(&device, &info, &files);
    (test.complete, test.record) = (true, Record::open(&device, &info, &files));
    test.record.verdicts.clear();
    match test.everything() {
        // after a fault in this process the device takes no more work: the table ends with it
        Err(CudaError::SelfTest { .. }) | Ok(()) => Ok(test.checks),
        Err(error) => Err(error),
    }
}

/// Runs the tests of a request in this process, reporting on standard output.
fn answer(request: Request) -> Result<(), CudaError> {
    let device = Device::open(request.ordinal)?;
    let info = device.info()?;
    let files = KernelFiles::new(&device, &info)?;
    let mut test = SelfTest::new(&device, &info, &files);
    (test.request, test.is_child, test.record.verdicts) = (None, true, request.known);
    test.complete = request.variants.is_none();
    Message::Started(files.fingerprint()).send();
    let tested = match &request.variants {
        None => test.everything(),
        Some(variants) => {
            let mut kernels = KernelSet::load(&files, variants)?;
            test.kernels(&mut kernels, variants).and_then(|()| test.early_starts(&kernels).map(|_| ()))
        }
    };
    match tested {
        Err(CudaError::SelfTest { .. }) if test.checks.last().is_some_and(|check| check.fault.is_some()) => {
            std::process::exit(1)
        }
        Err(CudaError::SelfTest { .. }) => Ok(()),
        tested => tested,
    }
}

impl<'a> SelfTest<'a> {
    fn new(device: &'a Device, info: &'a DeviceInfo, files: &'a KernelFiles) -> SelfTest<'a> {
        let request = Request { ordinal: info.ordinal, variants: None, known: Default::default() };
        SelfTest {
            device,
            files,
            device_name: &info.name,
            record: Record::default(),
            request: Some(request),
            is_child: false,
            complete: false,
            checks: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn everything(&mut self) -> Result<(), CudaError> {
        use DType::{Bf16, F16, F32};
        for head_dim in [16, 32, 64, 96, 128, 256] {
            for cache in [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)] {
                let (layers, heads, types) = (TESTED_LAYERS, TESTED_HEADS, WEIGHTS.to_vec());
                let variants = Variants { head_dim, layers, heads, types, cache, embedding: F32 };
                let mut kernels = KernelSet::load(self.files, &variants)?;
                self.kernels(&mut kernels, &variants)?;
                self.early_starts(&kernels)?;
            }
        }
        self.required(&self.files.get("embed", "embed_f16")?, |k, bench| rows::embed(k, bench, F16))
    }

    /// The table of cases: the kernels of a set, their test, and their fallback.
    fn kernels(&mut self, set: &mut KernelSet, variants: &Variants) -> Result<(), CudaError> {
        self.required(&set.narrow_weights, rows::narrow_weights)?;
        for dtype in WEIGHTS {
            if let Some(matmul) = set.matmul.get_mut(&dtype) {
                self.products(matmul, dtype)?;
            }
        }
        self.required(&set.embed, |k, bench| rows::embed(k, bench, variants.embedding))?;
        self.required(&set.rms_norm, rows::rms_norm)?;
        self.required(&set.add_rms_norm, rows::add_rms_norm)?;
        self.required(&set.gated_act, rows::gated_act)?;
        let attention = Attention { head_dim: variants.head_dim, cache: variants.cache };
        let ints = attention.plain_arguments();
        self.required(&set.rope_cache, |k, bench| attention.rope_cache(k, bench))?;
        self.replaceable(&mut set.decode, "plain_attn_decode", &ints, |k, b| attention.decode(k, b, true))?;
        if let Some(kernel) = &mut set.decode_plain {
            self.replaceable(kernel, "plain_attn_decode", &ints, |k, b| attention.decode(k, b, false))?;
        }
        self.replaceable(&mut set.prefill, "plain_attn_prefill", &ints, |k, b| attention.prefill(k, b))?;
        if let Some(kernel) = &set.prefill_hopper {
            let tests: &[Test] = &[(kernel.full_name(), &|b| attention.prefill(kernel, b))];
            if !self.group(tests, "that of attn_prefill.cu, which is slower")? {
                set.prefill_hopper = None;
            }
        }
        self.required(&set.select, |k, bench| trace::select(k, bench, variants.head_dim))?;
        self.required(&set.places, |k, bench| attention.places(k, bench))?;
        self.required(&set.sum, |k, bench| attention.sum(k, bench))?;
        self.required(&set.rows, |k, bench| attention.rows_of_attention(k, bench))?;
        self.required(&set.layer_sums, trace::layer_sums)?;
        self.required(&set.cosines, trace::cosines)?;
        self.required(&set.head_partial, head::partial)?;
        self.required(&set.head_mass, |k, bench| head::mass(&set.head_partial, k, bench))?;
        self.required(&set.head_finish, |k, bench| head::finish(&set.head_partial, &set.head_mass, k, bench))
    }

    fn products(&mut self, matmul: &mut MatmulKernels, dtype: DType) -> Result<(), CudaError> {
        let ints = [Int(type_number(dtype))];
        for NarrowKernels { variant, gemv, qkv, gated } in &mut matmul.narrow {
            let (rows, outs, gates) = (variant.rows - 3, variant.outs, variant.gates);
            self.replaceable(gemv, "plain_gemv", &ints, |k, b| products::gemv(k, b, dtype, rows, outs))?;
            self.replaceable(qkv, "plain_gemv_qkv", &ints, |k, b| products::gemv_qkv(k, b, dtype, rows, outs))?;
            self.replaceable(gated, "plain_gemv_gated", &ints, |k, b| products::gemv_gated(k, b, dtype, rows, gates))?;
        }
        if let Some(many) = &matmul.many {
            let ([gemv64, gemv128], [gated64, gated128]) = (&many.gemv, &many.gated);
            let [few, block] = GEMM_ROWS;
            let tests: &[Test] = &[
                (gemv64.full_name(), &|b| products::gemv_wide(&many.split, gemv64, b, few, false)),
                (gated64.full_name(), &|b| products::gemv_wide(&many.split, gated64, b, few, true)),
                (gemv128.full_name(), &|b| products::gemv_wide(&many.split, gemv128, b, block, false)),
                (gated128.full_name(), &|b| products::gemv_wide(&many.split, gated128, b, block, true)),
            ];
            if !self.group(tests, "those of gemv.cu, for fewer rows at once")? {
                matmul.many = None;
            }
        }
        let Some(wide) = &mut matmul.wide else { return Ok(()) };
        for (kernel, block) in wide.gemm.iter_mut().zip(GEMM_ROWS) {
            self.replaceable(kernel, "plain_gemm", &[], |k, bench| products::gemm(k, bench, block))?;
        }
        for (kernel, block) in wide.gated.iter_mut().zip(GEMM_ROWS) {
            self.replaceable(kernel, "plain_gemm_gated", &[], |k, bench| products::gemm_gated(k, bench, block))?;
        }
        if let Some(hopper) = &wide.hopper {
            let tests: &[Test] = &[
                (hopper.gemm.full_name(), &|bench| products::gemm_hopper(&hopper.gemm, bench, false)),
                (hopper.gated.full_name(), &|bench| products::gemm_hopper(&hopper.gated, bench, true)),
            ];
            // both or neither: a row's bits are the same in all passes
            if !self.group(tests, "those of gemm.cu, which are slower")? {
                wide.hopper = None;
            }
        }
        self.required(&wide.scale, products::scale)?;
        self.required(&wide.round, rows::round_rows)?;
        self.required(&wide.rms_norm, rows::rms_norm_f16)
    }

    /// The device with early starts, if it has them and they pass their test.
    fn early_starts(&mut self, set: &KernelSet) -> Result<Option<Device>, CudaError> {
        let found = WEIGHTS.into_iter().rev().find_map(|t| Some((t, &set.matmul.get(&t)?.narrow.first()?.gemv)));
        let (Some((dtype, kernel)), Some(early)) = (found, self.device.with_early_starts()) else { return Ok(None) };
        if !kernel.starts_early() {
            return Ok(None);
        }
        let name = format!("early_starts({})", kernel.full_name());
        if self.passes(&name, &|bench| products::chain(kernel, bench, &early, dtype))? {
            return Ok(Some(early));
        }
        self.warnings.push(format!(
            "kernels that start before the previous one has ended fail their self-test on {} ({}) and run one after the \
             other, which is slower; {PLEASE_REPORT}",
            self.device_name,
            self.reason(&name)
        ));
        Ok(None)
    }

    /// Whether a kernel passes its test: by an earlier verdict, or by the test.
    fn passes(&mut self, name: &str, test: &dyn Fn(&Bench) -> Result<(), CudaError>) -> Result<bool, CudaError> {
        if self.record.passed(name).is_none()
            && let Some(request) = self.request.take()
        {
            self.record.lock();
            if self.complete {
                self.record.verdicts.clear();
            }
            self.test_in_children(request);
        }
        if let Some(passed) = self.record.passed(name) {
            return Ok(passed);
        }
        if self.is_child {
            Message::Running(name.to_owned()).send();
        }
        self.record.note(name, Some(Verdict::Running));
        let bench = Bench::new(self.device, name);
        let tested = test(&bench);
        let mut check = bench.finish();
        match tested {
            Ok(()) => {}
            Err(CudaError::Driver { call, cause }) => check.fault = Some(format!("{call}: {cause}")),
            Err(error) => {
                self.record.note(name, None);
                return Err(error);
            }
        }
        let (ok, fault) = (check.ok(), check.fault.clone());
        self.end(check);
        match fault {
            None => Ok(ok),
            Some(fault) => Err(self.failure(
                name,
                format!(
                    "{fault}, after which the device takes no more work; the next start leaves the kernel out if it can"
                ),
            )),
        }
    }

    /// Notes the verdict.
    fn end(&mut self, check: Check) {
        let verdict = if check.ok() { Verdict::Passed } else { Verdict::Failed };
        self.record.note(&check.kernel, Some(verdict));
        self.checks.push(check.clone());
        if self.is_child {
            Message::Checked(check).send();
        }
    }

    fn failure(&self, kernel: &str, reason: String) -> CudaError {
        CudaError::SelfTest { kernel: kernel.to_owned(), device: self.device_name.to_owned(), reason }
    }

    fn reason(&self, kernel: &str) -> String {
        let check = self.checks.iter().find(|check| check.kernel == kernel);
        check.map_or_else(|| "as in its earlier test".to_owned(), Check::describe)
    }

    /// Tests a kernel without a fallback.
    fn required<P: Parameters>(
        &mut self,
        kernel: &Kernel<P>,
        test: impl Fn(&Kernel<P>, &Bench) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let name = kernel.full_name();
        if self.passes(&name, &|bench| test(kernel, bench))? || self.complete {
            return Ok(());
        }
        Err(self.failure(&name, self.reason(&name)))
    }

    /// Tests a kernel; if it fails, puts the plain one in its place, which must pass the same test.
    fn replaceable<P: Parameters>(
        &mut self,
        kernel: &mut Kernel<P>,
        plain: &str,
        ints: &[Int],
        test: impl Fn(&Kernel<P>, &Bench) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let name = kernel.full_name();
        if self.passes(&name, &|bench| test(kernel, bench))? && !self.complete {
            return Ok(());
        }
        let plain = self.files.plain(plain, ints)?;
        self.required(&plain, test)?;
        if self.complete {
            return Ok(());
        }
        self.warn_replaced(&name, "a slow one");
        *kernel = plain;
        Ok(())
    }

    /// Tests kernels that are used together or not at all. False: not at all.
    fn group(&mut self, tests: &[Test], replacement: &str) -> Result<bool, CudaError> {
        let mut failed = None;
        for (name, test) in tests {
            if !self.passes(name, test)? {
                failed = failed.or(Some(name));
            }
        }
        let Some(name) = failed.filter(|_| !self.complete) else { return Ok(true) };
        self.warn_replaced(name, replacement);
        Ok(false)
    }

    fn warn_replaced(&mut self, name: &str, replacement: &str) {
        self.warnings.push(format!(
            "the CUDA kernel {name} fails its self-test on {} ({}) and is replaced by {replacement}; {PLEASE_REPORT}",
            self.device_name,
            self.reason(name)
        ));
    }
}

/// A kernel's name and its test.
type Test<'t> = (String, &'t dyn Fn(&Bench) -> Result<(), CudaError>);
