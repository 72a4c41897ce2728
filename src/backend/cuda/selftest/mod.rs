//! The self-test at first use. Before a device is first used, every kernel of the model computes small cases, which are compared
//! with f64 sums on the CPU. A kernel that fails is replaced by its fallback in `kernels/plain.cu`, with a warning; without a
//! fallback the model is not loaded. Verdicts are kept on disk.
//!
//! Errors and bounds are relative to Σ |terms|.

mod attention;
mod child;
mod data;
mod delta_net;
mod head;
mod products;
mod record;
mod rows;

use super::abi::type_number;
use super::context::{Device, DeviceInfo};
use super::error::{CudaError, PLEASE_REPORT};
use super::kernel_set::{GEMM_ROWS, KernelSet, MatmulKernels, NarrowKernels, TESTED_HEADS, TESTED_LAYERS, Variants};
use super::launch::{Int, Kernel, Parameters};
use super::loader::KernelFiles;
use crate::model::weights::DType;
use attention::Attention;
use child::{Message, Request};
use data::{Bench, Tested};
use record::{Record, Verdict};
use serde::{Deserialize, Deserializer, Serialize};

pub use child::run_if_child;

const WEIGHTS: [DType; 2] = [DType::F32, DType::F16];

/// Verdict on one kernel. `error` and `bound` are those of the number whose error is the largest share of its bound.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Check {
    pub kernel: String,
    /// Compared numbers.
    pub numbers: usize,
    #[serde(deserialize_with = "number")]
    pub error: f64,
    pub bound: f64,
    /// The number itself.
    pub worst: Option<Worst>,
    /// A fault or a hang, after which there are no numbers.
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

    /// The reason for a failure.
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
    /// For child processes; taken by the first kernel without a verdict. `None` in a child.
    request: Option<Request>,
    is_child: bool,
    /// Whether all kernels are tested, and failures only noted.
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
    let request = Request { ordinal: info.ordinal, variants: Some(variants.clone()), ..Request::default() };
    let mut test = SelfTest::new(&device, info, files, request);
    test.kernels(kernels, variants)?;
    let (early, warnings) = (test.early_starts(kernels)?, test.warnings);
    Ok((early.unwrap_or(device), warnings))
}

/// Tests all kernels on a device, whatever their earlier verdicts.
///
/// # Errors
/// The device cannot be opened, or kernels cannot be loaded. A kernel that fails is no error.
pub fn check_all(ordinal: usize) -> Result<Vec<Check>, CudaError> {
    run(Request { ordinal, ..Request::default() })
}

/// Runs the tests of a request.
fn run(request: Request) -> Result<Vec<Check>, CudaError> {
    let device = Device::open(request.ordinal)?;
    let info = device.info()?;
    let files = KernelFiles::new(&device, &info)?;
    if request.kernels.is_some_and(|fingerprint| fingerprint != files.fingerprint()) {
        return Err(CudaError::Unsupported("self-test of another version's kernels".to_owned()));
    }
    let variants = request.variants.clone();
    let mut test = SelfTest::new(&device, &info, &files, request);
    let tested = match &variants {
        None => test.everything(),
        Some(variants) => {
            let mut kernels = KernelSet::load(&files, variants)?;
            test.kernels(&mut kernels, variants).and_then(|()| test.early_starts(&kernels).map(|_| ()))
        }
    };
    match tested {
        // after a fault in this process the device takes no more work: the table ends with it
        Err(CudaError::SelfTest { .. }) | Ok(()) => Ok(test.checks),
        Err(error) => Err(error),
    }
}

impl<'a> SelfTest<'a> {
    fn new(device: &'a Device, info: &'a DeviceInfo, files: &'a KernelFiles, request: Request) -> SelfTest<'a> {
        let (is_child, complete) = (request.kernels.is_some(), request.variants.is_none());
        // without a file: the parent keeps the verdicts
        let mut record = if is_child { Record::default() } else { Record::open(device, info, files) };
        if is_child || complete {
            record.verdicts = request.known.clone();
        }
        let (request, device_name) = (Some(request).filter(|_| !is_child), &info.name);
        let (checks, warnings) = (Vec::new(), Vec::new());
        SelfTest { device, files, device_name, record, request, is_child, complete, checks, warnings }
    }

    fn everything(&mut self) -> Tested {
        use DType::{Bf16, F16, F32};
        for head_dim in [16, 32, 64, 96, 128, 256, 512] {
            for cache in [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)] {
                let (layers, heads, types) = (TESTED_LAYERS, TESTED_HEADS, WEIGHTS.to_vec());
                let head_dims = vec![head_dim];
                let variants = Variants {
                    head_dims,
                    layers,
                    heads,
                    types,
                    cache,
                    embedding: F32,
                    experts: Some(F16),
                    delta_net: true,
                };
                let mut kernels = KernelSet::load(self.files, &variants)?;
                self.kernels(&mut kernels, &variants)?;
                self.early_starts(&kernels)?;
            }
        }
        self.required(&self.files.get("embed", "embed_f16")?, |k, bench| rows::embed(k, bench, F16))
    }

    /// The table of cases: the kernels of a set, their test, and their fallback.
    fn kernels(&mut self, set: &mut KernelSet, variants: &Variants) -> Tested {
        self.required(&set.narrow_weights, rows::narrow_weights)?;
        for dtype in WEIGHTS {
            if let Some(matmul) = set.matmul.get_mut(&dtype) {
                self.products(matmul, dtype)?;
            }
        }
        self.required(&set.embed, |k, bench| rows::embed(k, bench, variants.embedding))?;
        self.required(&set.rms_norm, rows::rms_norm)?;
        self.required(&set.add_rms_norm, rows::add_rms_norm)?;
        let attention = |head_dim| Attention { head_dim, cache: variants.cache };
        for (head_dim, set) in &mut set.attention {
            let attention = attention(*head_dim);
            let ints = [type_number(variants.cache.0), type_number(variants.cache.1), *head_dim as i32].map(Int);
            self.replaceable(&mut set.decode, "plain_attn_decode", &ints, |k, b| attention.decode(k, b, true))?;
            if let Some(kernel) = &mut set.decode_plain {
                self.replaceable(kernel, "plain_attn_decode", &ints, |k, b| attention.decode(k, b, false))?;
            }
            self.replaceable(&mut set.prefill, "plain_attn_prefill", &ints, |k, b| attention.prefill(k, b))?;
            if let Some(kernel) = &set.prefill_hopper {
                let test = |bench: &Bench| attention.prefill(kernel, bench);
                if !self.group(&[(kernel.full_name(), test)], "that of attn_prefill.cu, which is slower")? {
                    set.prefill_hopper = None;
                }
            }
        }
        let widest = variants.head_dims.iter().copied().max().unwrap_or(0);
        let attention = attention(widest);
        self.required(&set.rope_cache, |k, bench| attention.rope_cache(k, bench))?;
        self.required(&set.select, |k, bench| rows::select(k, bench, widest))?;
        self.required(&set.places, |k, bench| attention.places(k, bench))?;
        self.required(&set.sum, |k, bench| attention.sum(k, bench))?;
        self.required(&set.rows, |k, bench| attention.rows_of_attention(k, bench))?;
        self.required(&set.layer_sums, rows::layer_sums)?;
        self.required(&set.gate, delta_net::gate_rows)?;
        if let Some(kernels) = &set.delta_net {
            self.required(&kernels.mix, delta_net::mix)?;
            self.required(&kernels.rule, delta_net::rule)?;
        }
        self.required(&set.head.partial, |_, bench| head::partial(&set.head, bench))?;
        self.required(&set.head.mass, |_, bench| head::mass(&set.head, bench))?;
        self.required(&set.head.finish, |_, bench| head::finish(&set.head, bench))?;
        let (Some(kernels), Some(w)) = (&set.experts, variants.experts) else { return Ok(()) };
        self.required(&kernels.choose, products::choose_experts)?;
        self.required(&kernels.group, products::group_choices)?;
        self.required(&kernels.gated, |k, bench| products::expert_gated(k, bench, w))?;
        self.required(&kernels.down, |k, bench| products::expert_down(k, bench, w))?;
        self.required(&kernels.sum, products::expert_sum)
    }

    fn products(&mut self, matmul: &mut MatmulKernels, dtype: DType) -> Tested {
        let ints = [Int(type_number(dtype))];
        for NarrowKernels { variant, gemv, qkv, gated } in &mut matmul.narrow {
            self.replaceable(gemv, "plain_gemv", &ints, |k, b| products::gemv(k, b, dtype, *variant))?;
            self.replaceable(qkv, "plain_gemv_qkv", &ints, |k, b| products::gemv_qkv(k, b, dtype, *variant))?;
            self.replaceable(gated, "plain_gemv_gated", &ints, |k, b| products::gemv_gated(k, b, dtype, *variant))?;
        }
        if let Some(NarrowKernels { variant, gemv, qkv, gated }) = &matmul.ring {
            let tests: [&dyn Fn(&Bench) -> Tested; 3] = [
                &|b| products::gemv(gemv, b, dtype, *variant),
                &|b| products::gemv_qkv(qkv, b, dtype, *variant),
                &|b| products::gemv_gated(gated, b, dtype, *variant),
            ];
            let names = [gemv.full_name(), qkv.full_name(), gated.full_name()];
            let tests: Vec<_> = names.into_iter().zip(tests).collect();
            if !self.group(&tests, "those of gemv.cu, which are slower")? {
                matmul.ring = None;
            }
        }
        if let Some(many) = &matmul.many {
            let mut tests = Vec::new();
            for (size, gated) in [(0, false), (0, true), (1, false), (1, true)] {
                let (split, kernel, rows) = (&many.split, &many.gemv[usize::from(gated)][size], GEMM_ROWS[size]);
                let test = move |bench: &Bench| products::gemv_wide(split, kernel, bench, rows, gated);
                tests.push((kernel.full_name(), test));
            }
            if !self.group(&tests, "those of gemv.cu, for fewer rows at once")? {
                matmul.many = None;
            }
        }
        let Some(wide) = &mut matmul.wide else { return Ok(()) };
        for (kernels, (plain, gated)) in wide.gemm.iter_mut().zip([("plain_gemm", false), ("plain_gemm_gated", true)]) {
            for (kernel, block) in kernels.iter_mut().zip(GEMM_ROWS) {
                self.replaceable(kernel, plain, &[], |k, bench| products::gemm(k, bench, block, gated))?;
            }
        }
        if let Some([linear, gated]) = &wide.hopper {
            let tests = [(linear, false), (gated, true)].map(|(kernel, gated)| {
                (kernel.full_name(), move |bench: &Bench| products::gemm_hopper(kernel, bench, gated))
            });
            // both or neither: a row's bits are the same in all passes
            if !self.group(&tests, "those of gemm.cu, which are slower")? {
                wide.hopper = None;
            }
        }
        self.required(&wide.round, rows::round_rows)?;
        self.required(&wide.rms_norm, rows::rms_norm_f16)
    }

    /// The device with early starts, if it has them and they pass their test.
    fn early_starts(&mut self, set: &KernelSet) -> Result<Option<Device>, CudaError> {
        let found = WEIGHTS.into_iter().rev().find_map(|t| Some((t, &set.matmul.get(&t)?.narrow.first()?.gemv)));
        let (Some((dtype, kernel)), Some(early)) = (found, self.device.with_early_starts()) else { return Ok(None) };
        if !kernel.starts_early {
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
    fn passes(&mut self, name: &str, test: &dyn Fn(&Bench) -> Tested) -> Result<bool, CudaError> {
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
        let mut check = bench.check.into_inner();
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
            Some(_) if self.is_child => std::process::exit(1),
            Some(fault) => {
                let after = "after which the device takes no more work; the next start leaves the kernel out if it can";
                Err(self.failure(name, format!("{fault}, {after}")))
            }
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
    fn required<P: Parameters>(&mut self, kernel: &Kernel<P>, test: impl Fn(&Kernel<P>, &Bench) -> Tested) -> Tested {
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
        test: impl Fn(&Kernel<P>, &Bench) -> Tested,
    ) -> Tested {
        let name = kernel.full_name();
        if self.passes(&name, &|bench| test(kernel, bench))? && !self.complete {
            return Ok(());
        }
        let missing = || CudaError::NoKernel { name: plain.to_owned() };
        let plain = self.files.bound("plain", plain, ints)?.ok_or_else(missing)?;
        self.required(&plain, test)?;
        if !self.complete {
            self.warn_replaced(&name, "a slow one");
            *kernel = plain;
        }
        Ok(())
    }

    /// Tests kernels that are used together or not at all. False: not at all.
    fn group(&mut self, tests: &[(String, impl Fn(&Bench) -> Tested)], replacement: &str) -> Result<bool, CudaError> {
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
