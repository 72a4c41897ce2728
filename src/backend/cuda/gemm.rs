//! Matrix products: `gemv.cu` for up to 16 rows; for more `gemm.cu`, whose input is split into 16-bit terms first, or
//! cuBLASLt where it was asked for and, if the faster of the two is wanted, is that.

use super::CudaBackend;
use super::abi::{GemmTerms, Gemv, GemvJob, GemvJobs, GemvNorm, RmsNormTerms, Split};
use super::cublaslt::{self, CublasLt, Gemm, WideProduct, shape};
use super::error::CudaError;
use super::kernel_set::{GEMM_ROWS, MAX_ROWS, MatmulKernels, NARROW_ROWS, TERMS, WideKernels};
use super::memory::{Buffer, DevicePtr};
use super::noise::Noise;
use super::weights::Matrix;
use crate::model::weights::DType;
use half::{bf16, f16};
use std::time::{Duration, Instant};

/// One matrix of a product: `y = w x (+ bias)`.
pub struct Job<'a> {
    pub w: &'a Matrix,
    pub bias: Option<&'a Buffer<f32>>,
    /// `[rows, out_features]`
    pub y: DevicePtr<f32>,
}

/// A norm on the way into a product.
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

    /// Products of one input `[rows, in_features]` (normed on the way) with matrices; y is added to with `accumulate`.
    pub(super) fn matmul(
        &self,
        x: DevicePtr<f32>,
        norm: Option<Norm>,
        jobs: &[Job],
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let mut rest = jobs;
        while let Some(first) = rest.first() {
            // matrices of one type go together
            let together = rest.iter().take_while(|job| job.w.dtype == first.w.dtype).count();
            let (jobs, later) = rest.split_at(together);
            let kernels = self.matmul_kernels(first.w)?;
            match &kernels.wide {
                Some(wide) if rows > NARROW_ROWS => {
                    match norm {
                        Some(norm) => self.norm_terms(wide, x, norm, first.w.in_features, rows)?,
                        None => self.split_terms(wide, x, rows * first.w.in_features)?,
                    }
                    jobs.iter().try_for_each(|job| self.gemm(wide, job, rows, accumulate))?;
                }
                _ => self.gemv(kernels, x, norm, jobs, rows, accumulate)?,
            }
            rest = later;
        }
        Ok(())
    }

    /// Up to three products, 16 rows at a time.
    pub(super) fn gemv(
        &self,
        kernels: &MatmulKernels,
        x: DevicePtr<f32>,
        norm: Option<Norm>,
        jobs: &[Job],
        rows: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let width = jobs.first().map_or(0, |job| job.w.in_features);
        let (k, accumulate) = (width.into(), accumulate.into());
        for first in (0..rows).step_by(NARROW_ROWS) {
            let count = NARROW_ROWS.min(rows - first);
            let variant = usize::from(count > 8);
            let mut table = GemvJobs::default();
            for (entry, job) in table.iter_mut().zip(jobs) {
                *entry = GemvJob {
                    w: job.w.ptr(),
                    bias: ptr_or_null(job.bias),
                    y: job.y.add(first * job.w.out_features),
                    outs: job.w.out_features as i32,
                    padding: 0,
                };
            }
            let (x, rows) = (x.add(first * width), count.into());
            let grid = [jobs.iter().map(|job| job.w.out_features.div_ceil([16, 32][variant])).sum(), 1, 1];
            match norm {
                None => {
                    let parameters = Gemv { x, jobs: table, k, rows, accumulate };
                    self.device.launch(&kernels.gemv[variant], grid, &parameters)?;
                }
                Some(Norm { weight, offset, eps }) => {
                    let (norm_weight, norm_offset) = (weight.ptr(), offset);
                    let parameters = GemvNorm { x, norm_weight, norm_offset, eps, jobs: table, k, rows, accumulate };
                    self.device.launch(&kernels.norm[variant], grid, &parameters)?;
                }
            }
        }
        Ok(())
    }

    /// terms ← norm(x), `[rows, width]`.
    pub(super) fn norm_terms(
        &self,
        wide: &WideKernels,
        x: DevicePtr<f32>,
        norm: Norm,
        width: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        let parameters = RmsNormTerms {
            x,
            weight: norm.weight.ptr(),
            offset: norm.offset,
            eps: norm.eps,
            width: width.into(),
            terms: self.scratch.terms.ptr(),
            term_count: TERMS.into(),
        };
        self.device.launch(&wide.rms_norm, [rows, 1, 1], &parameters)
    }

    /// terms ← x, `[count]`.
    fn split_terms(&self, wide: &WideKernels, x: DevicePtr<f32>, count: usize) -> Result<(), CudaError> {
        let terms = self.scratch.terms.ptr();
        let parameters = Split { x, terms, count: count.into(), term_count: TERMS.into() };
        self.device.launch(&wide.split, [count.div_ceil(1024), 1, 1], &parameters)
    }

    /// One product of the terms, by `gemm.cu` or by cuBLASLt where it has the matrix's shape. Products with a bias stay
    /// ours.
    pub(super) fn gemm(&self, wide: &WideKernels, job: &Job, rows: usize, accumulate: bool) -> Result<(), CudaError> {
        match &self.cublaslt {
            Some(library) if job.bias.is_none() && library.has(shape(job.w)) => {
                self.gemm_library(library, job, rows, accumulate)
            }
            _ => self.gemm_own(wide, job, rows, accumulate),
        }
    }

    fn gemm_library(&self, library: &CublasLt, job: &Job, rows: usize, accumulate: bool) -> Result<(), CudaError> {
        library.multiply(WideProduct { w: job.w, terms: self.scratch.terms.ptr(), y: job.y, rows, accumulate })
    }

    fn gemm_own(&self, wide: &WideKernels, job: &Job, rows: usize, accumulate: bool) -> Result<(), CudaError> {
        let variant = usize::from(rows > GEMM_ROWS[0]);
        let parameters = GemmTerms {
            x: self.scratch.terms.ptr(),
            w: job.w.ptr(),
            bias: ptr_or_null(job.bias),
            y: job.y,
            n: rows.into(),
            outs: job.w.out_features.into(),
            k: job.w.in_features.into(),
            accumulate: accumulate.into(),
        };
        let grid = [rows.div_ceil(GEMM_ROWS[variant]), job.w.out_features.div_ceil(64), 1];
        self.device.launch(&wide.gemm[variant], grid, &parameters)
    }
}

/// Products of each kind that are timed, and how often.
const TIMED: usize = 4;
const REPEATS: usize = 3;

/// Which multiplies in wide passes, decided when the model is loaded.
impl CudaBackend {
    /// Decides for every shape of the model's matrices; what was decided, for display (empty where nothing was asked for).
    pub(super) fn choose_gemm(&mut self, gemm: Gemm) -> Result<String, CudaError> {
        let library = match (gemm, CublasLt::load(&self.device)) {
            (Gemm::Own, _) => return Ok(String::new()),
            (Gemm::Auto, Err(CudaError::NoCublasLt)) => {
                return Ok("wide products by its own kernels: there is no libcublasLt".to_owned());
            }
            (_, library) => library?,
        };
        self.cublaslt = Some(library);
        let shapes = self.wide_shapes();
        for &(layer, matrix) in &shapes {
            self.choose_for(gemm, layer, matrix)?;
        }
        if shapes.is_empty() {
            return Ok("no wide products: the weights are f32".to_owned());
        }
        let taken = self.cublaslt.as_ref().map_or(0, CublasLt::shapes);
        let why = if gemm == Gemm::Auto { "faster" } else { "asked for" };
        let version = cublaslt::version().unwrap_or_default();
        Ok(format!("wide products by cuBLASLt {version} ({why}) for {taken} of {} shapes", shapes.len()))
    }

    /// The first matrix of each shape that wide passes multiply with: (layer, which of its seven).
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

    fn choose_for(&mut self, gemm: Gemm, layer: usize, index: usize) -> Result<(), CudaError> {
        let w = self.weights.layers[layer].matrices()[index];
        let y = self.device.allocate("products that are compared", MAX_ROWS * w.out_features)?;
        self.device.write(&self.scratch.terms, 0, &noise(TERMS * MAX_ROWS * w.in_features, w.dtype))?;
        let terms = self.scratch.terms.ptr();
        let Some(library) = &mut self.cublaslt else { return Ok(()) };
        if library.choose(w, terms, &y, MAX_ROWS)? && gemm == Gemm::Auto {
            let (own, library_s) = self.race(w, &y)?;
            if own <= library_s
                && let Some(library) = &mut self.cublaslt
            {
                library.forget(shape(self.weights.layers[layer].matrices()[index]));
            }
        }
        Ok(())
    }

    /// How long products of a full pass take: (`gemm.cu`, cuBLASLt), the best of [`REPEATS`], interleaved.
    fn race(&self, w: &Matrix, y: &Buffer<f32>) -> Result<(Duration, Duration), CudaError> {
        let (Some(wide), Some(library)) = (&self.matmul_kernels(w)?.wide, &self.cublaslt) else {
            return Ok((Duration::ZERO, Duration::MAX));
        };
        let job = Job { w, bias: None, y: y.ptr() };
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
            best.0 = best.0.min(time(&|| self.gemm_own(wide, &job, MAX_ROWS, false))?);
            best.1 = best.1.min(time(&|| self.gemm_library(library, &job, MAX_ROWS, false))?);
        }
        Ok(best)
    }
}

/// Numbers between -1 and 1 in 16 bits.
fn noise(count: usize, dtype: DType) -> Vec<u16> {
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    let number = || {
        let x = noise.next();
        if dtype == DType::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() }
    };
    std::iter::repeat_with(number).take(count).collect()
}
