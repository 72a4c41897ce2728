//! The power-on self-test: at the first use of a device every kernel that is about to be used answers small cases, which are
//! compared with plain sums in f64 on the CPU. One that fails is replaced by its like in `kernels/plain.cu`, with a warning;
//! where there is none, the model is not loaded. What was found is kept on disk for the device, its driver and the kernels.
//!
//! An error is given as a share of what was added up, Σ |terms|, and its bound is derived where the case is.

mod attended;
mod attention;
mod data;
mod early;
mod elementwise;
mod head;
mod products;
mod record;
mod selection;
mod wide_products;

use super::abi::type_number;
use super::context::{Device, DeviceInfo};
use super::error::{CudaError, PLEASE_REPORT};
use super::kernel_set::{
    GEMM_ROWS, HopperKernels, KernelSet, ManyKernels, MatmulKernels, NarrowKernels, Shape, TESTED_HEADS, TESTED_LAYERS,
    WideKernels,
};
use super::launch::{Int, Kernel, Parameters};
use super::loader::KernelFiles;
use crate::model::weights::DType;
use attention::Fixture;
use data::Outcome;
use record::Record;
use serde::Serialize;

/// Rows of the case of a plain product, which takes any number.
const PLAIN_ROWS: usize = 13;

const WEIGHTS: [DType; 2] = [DType::F32, DType::F16];

/// What one kernel answered.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    pub kernel: String,
    /// Numbers that were compared.
    pub numbers: usize,
    /// Of the worst of them: its error, relative to what was added up, and the bound.
    pub error: f64,
    pub bound: f64,
    /// Why there is no answer.
    pub fault: Option<String>,
}

impl Check {
    pub fn ok(&self) -> bool {
        self.fault.is_none() && self.error <= self.bound
    }

    fn describe(&self) -> String {
        match &self.fault {
            Some(fault) => fault.clone(),
            None => format!("error {:.1e}, bound {:.1e}", self.error, self.bound),
        }
    }
}

/// A run of tests on one device.
struct SelfTest<'a> {
    device: &'a Device,
    files: &'a KernelFiles,
    device_name: &'a str,
    record: Record,
    /// Goes on after a kernel without a replacement has failed.
    complete: bool,
    checks: Vec<Check>,
    warnings: Vec<String>,
}

/// Tests the kernels of a model that have not been tested on this device, and replaces those that fail. Returns the device, on
/// which kernels start early if they pass that test, and what a person should know.
///
/// # Errors
/// [`CudaError::SelfTest`] of a kernel that fails and has no replacement.
pub fn settle(
    device: Device,
    info: &DeviceInfo,
    files: &KernelFiles,
    kernels: &mut KernelSet,
    head_dim: usize,
    cache: (DType, DType),
    embedding: DType,
) -> Result<(Device, Vec<String>), CudaError> {
    let record = Record::open(&device, info, files);
    let mut test = SelfTest::new(&device, info, files, record, false);
    let tested = test.kernels(kernels, head_dim, cache, embedding);
    let early = tested.and_then(|()| test.early_starts(kernels));
    test.record.save();
    let (early, warnings) = (early?, test.warnings);
    Ok((early.unwrap_or(device), warnings))
}

/// Tests every kernel on a device, whatever was found before, the plain ones too.
///
/// # Errors
/// A device that cannot be opened, or kernels that cannot be loaded. A kernel that fails is no error.
pub fn check_all(ordinal: usize) -> Result<Vec<Check>, CudaError> {
    let device = Device::open(ordinal)?;
    let info = device.info()?;
    let files = KernelFiles::new(&device, &info)?;
    let mut test = SelfTest::new(&device, &info, &files, Record::empty(&device, &info, &files), true);
    let done = test.everything();
    test.record.save();
    match done {
        // the device takes no more work after a fault: the table ends with it
        Err(CudaError::SelfTest { .. }) | Ok(()) => Ok(test.checks),
        Err(error) => Err(error),
    }
}

impl<'a> SelfTest<'a> {
    fn new(
        device: &'a Device,
        info: &'a DeviceInfo,
        files: &'a KernelFiles,
        record: Record,
        complete: bool,
    ) -> SelfTest<'a> {
        let (checks, warnings) = (Vec::new(), Vec::new());
        SelfTest { device, files, device_name: &info.name, record, complete, checks, warnings }
    }

    fn everything(&mut self) -> Result<(), CudaError> {
        use DType::{Bf16, F16, F32};
        self.plain()?;
        for head_dim in [16, 32, 64, 96, 128, 256] {
            for cache in [(F32, F32), (F32, F16), (F16, F16), (Bf16, Bf16)] {
                let shape = Shape { head_dim, layers: TESTED_LAYERS, heads: TESTED_HEADS };
                let mut kernels = KernelSet::load(self.files, shape, &WEIGHTS, cache, F32)?;
                self.kernels(&mut kernels, head_dim, cache, F32)?;
                self.early_starts(&kernels)?;
            }
        }
        let (embed, device) = (self.files.get("embed", "embed_f16")?, self.device);
        self.required(&embed, |kernel| elementwise::embed(device, kernel, F16))
    }

    /// All kernels of a set, those first that others are tested with.
    fn kernels(
        &mut self,
        set: &mut KernelSet,
        head_dim: usize,
        cache: (DType, DType),
        embedding: DType,
    ) -> Result<(), CudaError> {
        let device = self.device;
        self.required(&set.narrow_weights, |kernel| elementwise::narrow_weights(device, kernel))?;
        for dtype in WEIGHTS {
            if let Some(matmul) = set.matmul.get_mut(&dtype) {
                self.products(matmul, dtype)?;
            }
        }
        self.required(&set.embed, |kernel| elementwise::embed(device, kernel, embedding))?;
        self.required(&set.rms_norm, |kernel| elementwise::rms_norm(device, kernel))?;
        self.required(&set.add_rms_norm, |kernel| elementwise::add_rms_norm(device, kernel))?;
        self.required(&set.gated_act, |kernel| elementwise::gated_act(device, kernel))?;
        let fixture = Fixture::new(device, head_dim, cache)?;
        self.required(&set.rope_cache, |kernel| fixture.rope_cache(kernel))?;
        self.attention(set, &fixture)?;
        self.required(&set.select, |kernel| selection::select(device, kernel, head_dim))?;
        self.required(&set.places, |kernel| fixture.places(kernel))?;
        self.required(&set.sum, |kernel| fixture.sum(kernel))?;
        self.required(&set.rows, |kernel| fixture.rows_of_attention(kernel))?;
        self.required(&set.layer_sums, |kernel| selection::layer_sums(device, kernel))?;
        self.required(&set.cosines, |kernel| selection::cosines(device, kernel))?;
        self.required(&set.head_partial, |kernel| head::partial(device, kernel))?;
        self.required(&set.head_mass, |kernel| head::mass(device, &set.head_partial, kernel))?;
        self.required(&set.head_finish, |kernel| head::finish(device, &set.head_partial, &set.head_mass, kernel))
    }

    /// The device with kernels that start early, if they can and do as they should.
    fn early_starts(&mut self, set: &KernelSet) -> Result<Option<Device>, CudaError> {
        let found =
            WEIGHTS.into_iter().rev().find_map(|dtype| Some((dtype, &set.matmul.get(&dtype)?.narrow.first()?.gemv)));
        let (Some((dtype, kernel)), Some(early)) = (found, self.device.with_early_starts()) else { return Ok(None) };
        let (device, name) = (self.device, early::name(kernel));
        if !kernel.starts_early() {
            return Ok(None);
        }
        if self.passes(&name, &|| early::chain(device, &early, kernel, dtype))? {
            return Ok(Some(early));
        }
        self.warnings.push(format!(
            "kernels that start before the one before them has ended answer wrongly on {} ({}) and run one after the other, \
             which is slower; {PLEASE_REPORT}",
            self.device_name,
            self.reason(&name)
        ));
        Ok(None)
    }

    fn products(&mut self, matmul: &mut MatmulKernels, dtype: DType) -> Result<(), CudaError> {
        let (device, bound) = (self.device, [Int(type_number(dtype))]);
        for NarrowKernels { variant, gemv, qkv, gated } in &mut matmul.narrow {
            let (rows, outs, gates) = (variant.rows - 3, variant.outs, variant.gates);
            self.replaceable(gemv, "plain_gemv", &bound, |k| products::gemv(device, k, dtype, rows, outs))?;
            self.replaceable(qkv, "plain_gemv_qkv", &bound, |k| products::gemv_qkv(device, k, dtype, rows, outs))?;
            self.replaceable(gated, "plain_gemv_gated", &bound, |kernel| {
                products::gemv_gated(device, kernel, dtype, rows, gates)
            })?;
        }
        self.many(matmul)?;
        let Some(wide) = &mut matmul.wide else { return Ok(()) };
        for (kernel, block) in wide.gemm.iter_mut().zip(GEMM_ROWS) {
            self.replaceable(kernel, "plain_gemm", &[], |kernel| wide_products::gemm(device, kernel, block))?;
        }
        for (kernel, block) in wide.gated.iter_mut().zip(GEMM_ROWS) {
            self.replaceable(kernel, "plain_gemm_gated", &[], |kernel| {
                wide_products::gemm_gated(device, kernel, block)
            })?;
        }
        self.hopper(wide)?;
        self.required(&wide.scale, |kernel| wide_products::scale(device, kernel))?;
        self.required(&wide.round, |kernel| elementwise::round_rows(device, kernel))?;
        self.required(&wide.rms_norm, |kernel| elementwise::rms_norm_f16(device, kernel))
    }

    /// Leaves `gemv_wide.cu` to `gemv.cu`, which takes fewer rows at once, if one of its kernels fails.
    fn many(&mut self, matmul: &mut MatmulKernels) -> Result<(), CudaError> {
        let (device, Some(ManyKernels { split, m64, m128 })) = (self.device, &matmul.many) else { return Ok(()) };
        let names = [m64.gemv.full_name(), m64.gated.full_name(), m128.gemv.full_name(), m128.gated.full_name()];
        let ok = [
            self.passes(&names[0], &|| products::gemv_wide(device, split, &m64.gemv))?,
            self.passes(&names[1], &|| products::gemv_wide_gated(device, split, &m64.gated))?,
            self.passes(&names[2], &|| products::gemv_wide(device, split, &m128.gemv))?,
            self.passes(&names[3], &|| products::gemv_wide_gated(device, split, &m128.gated))?,
        ];
        let Some(failed) = ok.iter().position(|ok| !ok).filter(|_| !self.complete) else { return Ok(()) };
        self.warnings.push(self.replaced(&names[failed], "those of gemv.cu, for fewer rows at once"));
        matmul.many = None;
        Ok(())
    }

    /// Leaves `gemm_hopper.cu` to `gemm.cu` if one of its two kernels fails: a row's bits are then the same in all passes.
    fn hopper(&mut self, wide: &mut WideKernels) -> Result<(), CudaError> {
        let (device, Some(HopperKernels { gemm, gated })) = (self.device, &wide.hopper) else { return Ok(()) };
        let names = [gemm.full_name(), gated.full_name()];
        let ok = [
            self.passes(&names[0], &|| wide_products::gemm_hopper(device, gemm))?,
            self.passes(&names[1], &|| wide_products::gemm_gated_hopper(device, gated))?,
        ];
        let Some(failed) = ok.iter().position(|ok| !ok).filter(|_| !self.complete) else { return Ok(()) };
        self.warnings.push(self.replaced(&names[failed], "those of gemm.cu, which are slower"));
        wide.hopper = None;
        Ok(())
    }

    fn attention(&mut self, set: &mut KernelSet, fixture: &Fixture) -> Result<(), CudaError> {
        let bound = fixture.plain_arguments();
        self.replaceable(&mut set.decode, "plain_attn_decode", &bound, |kernel| fixture.decode(kernel, true))?;
        if let Some(plain) = &mut set.decode_plain {
            self.replaceable(plain, "plain_attn_decode", &bound, |kernel| fixture.decode(kernel, false))?;
        }
        self.replaceable(&mut set.prefill, "plain_attn_prefill", &bound, |kernel| fixture.prefill(kernel))?;
        let Some(hopper) = &set.prefill_hopper else { return Ok(()) };
        let name = hopper.full_name();
        if !self.passes(&name, &|| fixture.prefill(hopper))? && !self.complete {
            self.warnings.push(self.replaced(&name, "that of attn_prefill.cu, which is slower"));
            set.prefill_hopper = None;
        }
        Ok(())
    }

    /// The plain kernels by themselves, with every type.
    fn plain(&mut self) -> Result<(), CudaError> {
        let (device, files) = (self.device, self.files);
        for dtype in WEIGHTS {
            let ints = [Int(type_number(dtype))];
            self.required(&files.plain("plain_gemv", &ints)?, |k| products::gemv(device, k, dtype, PLAIN_ROWS, 16))?;
            self.required(&files.plain("plain_gemv_qkv", &ints)?, |kernel| {
                products::gemv_qkv(device, kernel, dtype, PLAIN_ROWS, 16)
            })?;
            self.required(&files.plain("plain_gemv_gated", &ints)?, |kernel| {
                products::gemv_gated(device, kernel, dtype, PLAIN_ROWS, 16)
            })?;
        }
        self.required(&files.plain("plain_gemm", &[])?, |kernel| wide_products::gemm(device, kernel, GEMM_ROWS[1]))?;
        let gated = files.plain("plain_gemm_gated", &[])?;
        self.required(&gated, |kernel| wide_products::gemm_gated(device, kernel, GEMM_ROWS[1]))?;
        for cache in [DType::F32, DType::F16, DType::Bf16] {
            let fixture = Fixture::new(device, 96, (cache, cache))?;
            let ints = fixture.plain_arguments();
            self.required(&files.plain("plain_attn_decode", &ints)?, |kernel| fixture.decode(kernel, true))?;
            self.required(&files.plain("plain_attn_prefill", &ints)?, |kernel| fixture.prefill(kernel))?;
        }
        Ok(())
    }

    /// Whether a kernel answers as it should: as it was found before, or by its test.
    fn passes(&mut self, name: &str, test: &dyn Fn() -> Result<Outcome, CudaError>) -> Result<bool, CudaError> {
        if let Some(ok) = self.record.get(name) {
            return Ok(ok);
        }
        let (outcome, fault) = match test() {
            Ok(outcome) => (outcome, None),
            // known from now on, so that the next start does without it
            Err(CudaError::Driver { call, cause }) => (Outcome::default(), Some(format!("{call}: {cause}"))),
            Err(error) => return Err(error),
        };
        let Outcome { numbers, error, bound } = outcome;
        let check = Check { kernel: name.to_owned(), numbers, error, bound, fault };
        self.record.note(name, check.ok());
        let (ok, faulty, reason) = (check.ok(), check.fault.is_some(), check.describe());
        self.checks.push(check);
        if faulty {
            let reason =
                format!("{reason}, after which the device takes no more work; the next start leaves it out if it can");
            return Err(self.failure(name, reason));
        }
        Ok(ok)
    }

    fn failure(&self, kernel: &str, reason: String) -> CudaError {
        CudaError::SelfTest { kernel: kernel.to_owned(), device: self.device_name.to_owned(), reason }
    }

    /// Why a kernel is known to fail.
    fn reason(&self, kernel: &str) -> String {
        let check = self.checks.iter().find(|check| check.kernel == kernel);
        check.map_or_else(|| "as it did when it was tested".to_owned(), Check::describe)
    }

    /// Tests a kernel that nothing replaces.
    fn required<P: Parameters>(
        &mut self,
        kernel: &Kernel<P>,
        test: impl Fn(&Kernel<P>) -> Result<Outcome, CudaError>,
    ) -> Result<(), CudaError> {
        let name = kernel.full_name();
        if self.passes(&name, &|| test(kernel))? || self.complete {
            return Ok(());
        }
        Err(self.failure(&name, self.reason(&name)))
    }

    /// Tests a kernel and, if it fails, puts the plain one in its place, which has to pass the same test.
    fn replaceable<P: Parameters>(
        &mut self,
        kernel: &mut Kernel<P>,
        plain: &str,
        bound: &[Int],
        test: impl Fn(&Kernel<P>) -> Result<Outcome, CudaError>,
    ) -> Result<(), CudaError> {
        let name = kernel.full_name();
        if self.passes(&name, &|| test(kernel))? || self.complete {
            return Ok(());
        }
        let plain = self.files.plain(plain, bound)?;
        self.required(&plain, test)?;
        self.warnings.push(self.replaced(&name, "a slow one"));
        *kernel = plain;
        Ok(())
    }

    /// The warning about a kernel that fails.
    fn replaced(&self, name: &str, by: &str) -> String {
        format!(
            "the CUDA kernel {name} answers wrongly on {} ({}) and is replaced by {by}; {PLEASE_REPORT}",
            self.device_name,
            self.reason(name)
        )
    }
}
