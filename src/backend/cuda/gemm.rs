//! Matrix products: `gemv.cu` in narrow passes; in wide ones `gemm_hopper.cu` on compute capability 9.0 and `gemm.cu`
//! on others, with inputs rounded to f16 ([`RoundedRows`]), or cuBLASLt where `--gemm` selects
//! it.

use super::CudaBackend;
use super::abi::{
    GatedAct, Gemm, GemmHopper, Gemv, GemvGated, GemvQkv, GemvWide, MatrixJob, MatrixJobs, RmsNormF16, RopeTarget,
    RoundRows, RoundedRows, ScaleProducts, SplitRows, row_scales,
};
use super::cublaslt::{self, CublasLt, shape};
use super::error::CudaError;
use super::kernel_set::{
    GEMM_ROWS, GemmDevice, HOPPER_BLOCK, MAX_ROWS, ManyKernels, MatmulKernels, WIDE_OUTS, WideKernels, hopper_grid,
};
use super::launch::Int;
use super::memory::{Buffer, DevicePtr};
use super::noise::Noise;
use super::tensor_map::TensorMap;
use super::weights::Matrix;
use crate::model::weights::DType;
use half::f16;
use std::time::{Duration, Instant};

/// One matrix of a product: `y = w x (+ bias)`.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub w: &'a Matrix,
    pub bias: Option<&'a Buffer<f32>>,
    /// `[rows, out_features]`
    pub y: DevicePtr<f32>,
}

impl Job<'_> {
    /// Up to three jobs in the kernels' layout, from row `first` of their outputs on.
    fn table(jobs: &[Job], first: usize) -> MatrixJobs {
        let mut table = MatrixJobs::default();
        for (entry, Job { w, bias, y }) in table.iter_mut().zip(jobs) {
            let (bias, y, outs) = (ptr_or_null(*bias), y.add(first * w.out_features), w.out_features as i32);
            *entry = MatrixJob { w: w.ptr(), scales: w.scales(), bias, y, outs, ..MatrixJob::default() };
        }
        table
    }
}

/// A product's input `[rows, in_features]`.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    F32(DevicePtr<f32>),
    /// Input of these kernels.
    Rounded(&'a WideKernels, RoundedRows),
}

impl GemmHopper {
    /// With the tensor maps of x `[n, k]` and of each job's matrix.
    pub fn new(x: RoundedRows, jobs: MatrixJobs, n: usize, k: usize, mode: Int) -> Result<GemmHopper, CudaError> {
        let mut w_maps = [TensorMap::NONE; 3];
        for (map, job) in w_maps.iter_mut().zip(jobs).filter(|(_, job)| job.outs > 0) {
            *map = TensorMap::new(job.w.cast(), job.outs as usize, k)?;
        }
        let x_map = TensorMap::new(x.values, n, k)?;
        Ok(GemmHopper { x_map, w_maps, x_scales: x.scales, jobs, n: n.into(), k: k.into(), mode })
    }
}

/// Number of blocks of `outs` outputs.
fn blocks(jobs: &[Job], outs: usize) -> usize {
    jobs.iter().map(|job| job.w.out_features.div_ceil(outs)).sum()
}

/// A norm fused into a product.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a Buffer<f32>,
    pub offset: f32,
    pub eps: f32,
}

/// Null where there is none.
pub fn ptr_or_null(buffer: Option<&Buffer<f32>>) -> DevicePtr<f32> {
    buffer.map_or(DevicePtr::NULL, Buffer::ptr)
}

impl CudaBackend {
    pub(super) fn norm<'a>(&self, weight: &'a Buffer<f32>) -> Norm<'a> {
        Norm { weight, offset: self.spec.norm_weight_offset, eps: self.spec.rms_norm_eps }
    }

    pub(super) fn matmul_kernels(&self, w: &Matrix) -> Result<&MatmulKernels, CudaError> {
        let missing = || CudaError::NoKernel { name: format!("gemv_{}_r8", w.dtype.name()) };
        self.kernels.matmul.get(&w.dtype).ok_or_else(missing)
    }

    /// The kernels of a wide pass; `None` in a narrow pass and for f32 weights.
    fn wide<'a>(&self, kernels: &'a MatmulKernels) -> Option<&'a WideKernels> {
        kernels.wide.as_ref().filter(|_| !self.pass.narrow())
    }

    /// The wide kernels for this matrix, unless cuBLASLt, which supports one scale per row only, takes it.
    pub(super) fn takes_rounded(
        &self,
        w: &Matrix,
        bias: Option<&Buffer<f32>>,
    ) -> Result<Option<&WideKernels>, CudaError> {
        Ok(self.wide(self.matmul_kernels(w)?).filter(|_| self.library_of(w, bias).is_none()))
    }

    /// The product of one matrix; `accumulate` adds to y.
    pub(super) fn matmul(&self, x: Input, job: Job, rows: usize, accumulate: bool) -> Result<(), CudaError> {
        let x = match x {
            Input::Rounded(wide, x) => return self.gemm(wide, x, &[job], rows, accumulate),
            Input::F32(x) => x,
        };
        let kernels = self.matmul_kernels(job.w)?;
        match self.wide(kernels) {
            Some(wide) => {
                let x = self.round(wide, x, job.w.in_features, rows)?;
                self.gemm(wide, x, &[job], rows, accumulate)
            }
            None => self.gemv(kernels, x, job, rows, accumulate),
        }
    }

    /// The product with one matrix in f32 arithmetic, in as few launches as the kernels allow.
    pub(super) fn gemv(
        &self,
        kernels: &MatmulKernels,
        x: DevicePtr<f32>,
        job: Job,
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let width = job.w.in_features;
        if let Some(many) = kernels.many(rows) {
            self.split(many, x, None, width, rows)?;
            return self.gemv_wide(many, &[job], rows, false, accumulate.into());
        }
        for (narrow, first, count) in kernels.parts(rows) {
            let parameters = Gemv {
                x: x.add(first * width),
                jobs: Job::table(&[job], first),
                k: width.into(),
                rows: count.into(),
                accumulate: accumulate.into(),
            };
            self.device.launch(&narrow.gemv, [blocks(&[job], narrow.variant.outs), 1, 1], &parameters)?;
        }
        Ok(())
    }

    /// The scratch's terms ← x `[rows, width]`, after a norm, if there is one.
    fn split(
        &self,
        kernels: &ManyKernels,
        x: DevicePtr<f32>,
        norm: Option<Norm>,
        width: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        let parameters = SplitRows {
            x,
            norm_weight: norm.map_or(DevicePtr::NULL, |norm| norm.weight.ptr()),
            norm_offset: norm.map_or(0.0, |norm| norm.offset),
            eps: norm.map_or(0.0, |norm| norm.eps),
            terms: self.scratch.rounded.ptr(),
            factors: self.scratch.rounded_scales.ptr(),
            width: width.into(),
        };
        self.device.launch(&kernels.split, [rows, 1, 1], &parameters)
    }

    /// Products of the scratch's terms; `gated`: the first job is the gate, the second one up. `mode`: see the kernels.
    fn gemv_wide(
        &self,
        kernels: &ManyKernels,
        jobs: &[Job],
        rows: usize,
        gated: bool,
        mode: Int,
    ) -> Result<(), CudaError> {
        let outs = jobs.iter().map(|job| job.w.out_features).sum();
        let variant = self.gemm_device().wide_variant(rows, outs);
        let parameters = GemvWide {
            terms: self.scratch.rounded.ptr(),
            factors: self.scratch.rounded_scales.ptr(),
            jobs: Job::table(jobs, 0),
            k: jobs.first().map_or(0, |job| job.w.in_features).into(),
            rows: rows.into(),
            mode,
        };
        let (kernels, blocks) = if gated {
            (&kernels.gated, blocks(&jobs[..1], WIDE_OUTS / 2))
        } else {
            (&kernels.gemv, blocks(jobs, WIDE_OUTS))
        };
        self.device.launch(&kernels[variant], [blocks, rows.div_ceil(GEMM_ROWS[variant]), 1], &parameters)
    }

    /// Whether [`Self::qkv`] also rotates and caches: one launch of `gemv.cu` computes all three.
    pub(super) fn rotates(&self, [q, k, v]: &[Job; 3], rows: usize) -> Result<bool, CudaError> {
        let one_type = q.w.dtype == k.w.dtype && k.w.dtype == v.w.dtype;
        let kernels = self.matmul_kernels(q.w)?;
        Ok(one_type && self.wide(kernels).is_none() && kernels.many(rows).is_none())
    }

    /// Queries, keys and values of norm(x), x `[rows, in_features]`. Destination: `to`, or with its default
    /// the jobs' y.
    pub(super) fn qkv(
        &self,
        x: DevicePtr<f32>,
        norm: Norm,
        jobs: &[Job; 3],
        rows: usize,
        to: RopeTarget,
    ) -> Result<(), CudaError> {
        for jobs in jobs.chunk_by(|a, b| a.w.dtype == b.w.dtype) {
            let (kernels, width) = (self.matmul_kernels(jobs[0].w)?, jobs[0].w.in_features);
            if let Some(wide) = self.wide(kernels) {
                let x = self.round_normed(wide, x, norm, width, rows)?;
                self.gemm(wide, x, jobs, rows, false)?;
                continue;
            }
            if let Some(many) = kernels.many(rows) {
                self.split(many, x, Some(norm), width, rows)?;
                self.gemv_wide(many, jobs, rows, false, Int(0))?;
                continue;
            }
            for (narrow, first, count) in kernels.parts(rows) {
                let parameters = GemvQkv {
                    x: x.add(first * width),
                    norm_weight: norm.weight.ptr(),
                    norm_offset: norm.offset,
                    eps: norm.eps,
                    jobs: Job::table(jobs, first),
                    k: width.into(),
                    rows: count.into(),
                    to: RopeTarget { rows: to.rows.add(first), ..to },
                };
                self.device.launch(&narrow.qkv, [blocks(jobs, narrow.variant.outs), 1, 1], &parameters)?;
            }
        }
        Ok(())
    }

    /// act(gate x) ⊙ up x of norm(x), x `[rows, in_features]`: y of `gate`, or rounded rows if the next product's
    /// kernels are given.
    pub(super) fn gated<'a>(
        &'a self,
        x: DevicePtr<f32>,
        norm: Norm,
        [gate, up]: [Job; 2],
        rows: usize,
        activation: Int,
        rounded: Option<&'a WideKernels>,
    ) -> Result<Input<'a>, CudaError> {
        let kernels = self.matmul_kernels(gate.w)?;
        let (width, outs) = (gate.w.in_features, gate.w.out_features);
        let Some(wide) = self.wide(kernels) else {
            self.gemv_gated(kernels, x, norm, [gate, up], rows, activation)?;
            return Ok(Input::F32(gate.y));
        };
        let x = self.round_normed(wide, x, norm, width, rows)?;
        if let (Some(library), Some(_)) = (self.library_of(gate.w, gate.bias), self.library_of(up.w, up.bias)) {
            let up = Job { y: library.products(), ..up }; // in place
            self.gemm_library(wide, library, x, &gate, rows, false)?;
            self.gemm_library(wide, library, x, &up, rows, false)?;
            let count = rows * outs;
            let parameters = GatedAct { gate: gate.y, up: up.y, y: gate.y, count: count.into(), activation };
            self.device.launch(&self.kernels.gated_act, [count.div_ceil(1024), 1, 1], &parameters)?;
            return Ok(Input::F32(gate.y));
        }
        let mut jobs = Job::table(&[gate, up], 0);
        let to = match rounded {
            Some(next) => {
                jobs[0].rounded = self.scratch.inner_rounded(outs);
                Input::Rounded(next, jobs[0].rounded)
            }
            None => Input::F32(gate.y),
        };
        if let Some(hopper) = &wide.hopper {
            let parameters = GemmHopper::new(x, jobs, rows, width, activation)?;
            self.device.launch(&hopper.gated, hopper_grid(rows, outs.div_ceil(HOPPER_BLOCK / 2)), &parameters)?;
            return Ok(to);
        }
        let variant = self.gemm_device().variant(rows, 2 * outs);
        let block = GEMM_ROWS[variant];
        let parameters = Gemm { x, jobs, n: rows.into(), k: width.into(), mode: activation };
        self.device.launch(&wide.gated[variant], [rows.div_ceil(block), (2 * outs).div_ceil(block), 1], &parameters)?;
        Ok(to)
    }

    /// The same in f32 arithmetic.
    fn gemv_gated(
        &self,
        kernels: &MatmulKernels,
        x: DevicePtr<f32>,
        norm: Norm,
        jobs: [Job; 2],
        rows: usize,
        activation: Int,
    ) -> Result<(), CudaError> {
        let width = jobs[0].w.in_features;
        if let Some(many) = kernels.many(rows) {
            self.split(many, x, Some(norm), width, rows)?;
            return self.gemv_wide(many, &jobs, rows, true, activation);
        }
        for (narrow, first, count) in kernels.parts(rows) {
            let parameters = GemvGated {
                x: x.add(first * width),
                norm_weight: norm.weight.ptr(),
                norm_offset: norm.offset,
                eps: norm.eps,
                jobs: Job::table(&jobs, first),
                k: width.into(),
                rows: count.into(),
                activation,
            };
            let grid = [jobs[0].w.out_features.div_ceil(narrow.variant.gates), 1, 1];
            self.device.launch(&narrow.gated, grid, &parameters)?;
        }
        Ok(())
    }

    /// norm(x), `[rows, width]`, rounded, in the scratch.
    fn round_normed(
        &self,
        wide: &WideKernels,
        x: DevicePtr<f32>,
        norm: Norm,
        width: usize,
        rows: usize,
    ) -> Result<RoundedRows, CudaError> {
        let to = self.scratch.rounded();
        let Norm { weight, offset, eps } = norm;
        let parameters = RmsNormF16 { x, weight: weight.ptr(), offset, eps, width: width.into(), to };
        self.device.launch(&wide.rms_norm, [rows, 1, 1], &parameters)?;
        Ok(to)
    }

    /// x, `[rows, width]`, rounded, in the scratch.
    fn round(
        &self,
        wide: &WideKernels,
        x: DevicePtr<f32>,
        width: usize,
        rows: usize,
    ) -> Result<RoundedRows, CudaError> {
        let to = self.scratch.rounded();
        self.device.launch(&wide.round, [rows, 1, 1], &RoundRows { x, width: width.into(), to })?;
        Ok(to)
    }

    /// cuBLASLt, if it was chosen for the matrix's shape and there is no bias.
    fn library_of(&self, w: &Matrix, bias: Option<&Buffer<f32>>) -> Option<&CublasLt> {
        self.cublaslt.as_ref().filter(|library| bias.is_none() && library.has(shape(w)))
    }

    /// Products of rounded rows with up to three matrices: some by cuBLASLt, one scale per row, the others by
    /// `gemm.cu` in one launch.
    fn gemm(
        &self,
        wide: &WideKernels,
        x: RoundedRows,
        jobs: &[Job],
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let mut ours = Vec::new();
        for job in jobs {
            match self.library_of(job.w, job.bias) {
                Some(library) => self.gemm_library(wide, library, x, job, rows, accumulate)?,
                None => ours.push(*job),
            }
        }
        if ours.is_empty() { Ok(()) } else { self.gemm_own(wide, x, &ours, rows, accumulate) }
    }

    fn gemm_library(
        &self,
        wide: &WideKernels,
        library: &CublasLt,
        x: RoundedRows,
        job: &Job,
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        library.multiply(job.w, x.values, rows)?;
        let (outs, count) = (job.w.out_features, rows * job.w.out_features);
        let parameters = ScaleProducts {
            products: library.products(),
            x_scales: x.scales,
            x_stride: row_scales(job.w.in_features).into(),
            scales: job.w.scales(),
            y: job.y,
            count: count.into(),
            outs: outs.into(),
            accumulate: accumulate.into(),
        };
        self.device.launch(&wide.scale, [count.div_ceil(1024), 1, 1], &parameters)
    }

    fn gemm_device(&self) -> GemmDevice {
        GemmDevice { multiprocessors: self.info.multiprocessors, capability: self.info.capability }
    }

    fn gemm_own(
        &self,
        wide: &WideKernels,
        x: RoundedRows,
        jobs: &[Job],
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let k = jobs.first().map_or(0, |job| job.w.in_features);
        let table = Job::table(jobs, 0);
        if let Some(hopper) = &wide.hopper {
            let parameters = GemmHopper::new(x, table, rows, k, accumulate.into())?;
            return self.device.launch(&hopper.gemm, hopper_grid(rows, blocks(jobs, HOPPER_BLOCK)), &parameters);
        }
        let variant = self.gemm_device().variant(rows, jobs.iter().map(|job| job.w.out_features).sum());
        let block = GEMM_ROWS[variant];
        let parameters = Gemm { x, jobs: table, n: rows.into(), k: k.into(), mode: accumulate.into() };
        self.device.launch(&wide.gemm[variant], [rows.div_ceil(block), blocks(jobs, block), 1], &parameters)
    }
}

/// Timed products per measurement, and measurements.
const TIMED: usize = 4;
const REPEATS: usize = 3;

/// The GEMM backend of wide passes, chosen at load time.
impl CudaBackend {
    /// Chooses for every shape of the model's matrices. Returns a note for display, empty for the default.
    pub(super) fn choose_gemm(&mut self, gemm: cublaslt::Gemm) -> Result<String, CudaError> {
        if gemm == cublaslt::Gemm::Own {
            return Ok(String::new());
        }
        let shapes = self.wide_shapes();
        let widest = shapes.iter().map(|&(layer, matrix)| self.matrix(layer, matrix).out_features).max().unwrap_or(0);
        let mut library = match CublasLt::load(&self.device, MAX_ROWS * widest) {
            Err(CudaError::NoCublasLt) if gemm == cublaslt::Gemm::Auto => {
                return Ok("wide products by its own kernels: there is no libcublasLt".to_owned());
            }
            library => library?,
        };
        for &(layer, matrix) in &shapes {
            self.choose_for(&mut library, gemm, self.matrix(layer, matrix))?;
        }
        let taken = library.shapes();
        self.cublaslt = Some(library);
        if shapes.is_empty() {
            return Ok("no wide products: the weights are f32".to_owned());
        }
        let why = if gemm == cublaslt::Gemm::Auto { "faster" } else { "asked for" };
        let version = cublaslt::version().unwrap_or_default();
        Ok(format!("wide products by cuBLASLt {version} ({why}) for {taken} of {} shapes", shapes.len()))
    }

    fn matrix(&self, layer: usize, index: usize) -> &Matrix {
        self.weights.layers[layer].matrices()[index]
    }

    /// The first matrix of each shape in wide passes: (layer, index in its seven).
    fn wide_shapes(&self) -> Vec<(usize, usize)> {
        let (mut seen, mut found) = (Vec::new(), Vec::new());
        for layer in 0..self.weights.layers.len() {
            for (index, w) in self.weights.layers[layer].matrices().into_iter().enumerate() {
                if w.dtype != DType::F32 && !seen.contains(&shape(w)) {
                    seen.push(shape(w));
                    found.push((layer, index));
                }
            }
        }
        found
    }

    fn choose_for(&self, library: &mut CublasLt, gemm: cublaslt::Gemm, w: &Matrix) -> Result<(), CudaError> {
        let numbers = Noise(0x9E37_79B9_7F4A_7C15).floats(MAX_ROWS * w.in_features, 1.0);
        let numbers: Vec<u16> = numbers.into_iter().map(|x| f16::from_f32(x).to_bits()).collect();
        self.device.write(&self.scratch.rounded, 0, &numbers)?;
        self.device.write(&self.scratch.rounded_scales, 0, &vec![1.0; MAX_ROWS * row_scales(w.in_features)])?;
        if library.choose(w, self.scratch.rounded.ptr(), MAX_ROWS)? && gemm == cublaslt::Gemm::Auto {
            let (own, library_s) = self.race(w, library)?;
            if own <= library_s {
                library.forget(shape(w));
            }
        }
        Ok(())
    }

    /// Time of a full pass's products by (our kernels, cuBLASLt): the best of [`REPEATS`], interleaved.
    fn race(&self, w: &Matrix, library: &CublasLt) -> Result<(Duration, Duration), CudaError> {
        let Some(wide) = &self.matmul_kernels(w)?.wide else { return Ok((Duration::ZERO, Duration::MAX)) };
        let y = self.device.allocate("products that are compared", MAX_ROWS * w.out_features)?;
        let (x, job) = (self.scratch.rounded(), Job { w, bias: None, y: y.ptr() });
        let time = |multiply: &dyn Fn() -> Result<(), CudaError>| -> Result<Duration, CudaError> {
            multiply()?; // what is done once
            self.device.synchronize()?;
            let start = Instant::now();
            (0..TIMED).try_for_each(|_| multiply())?;
            self.device.synchronize()?;
            Ok(start.elapsed())
        };
        let mut best = (Duration::MAX, Duration::MAX);
        for _ in 0..REPEATS {
            best.0 = best.0.min(time(&|| self.gemm_own(wide, x, std::slice::from_ref(&job), MAX_ROWS, false))?);
            best.1 = best.1.min(time(&|| self.gemm_library(wide, library, x, &job, MAX_ROWS, false))?);
        }
        Ok(best)
    }
}
