//! Who multiplies in wide passes: `gemm.cu`, or cuBLASLt where it was asked for and, if it is to be the faster one, is.

use super::CudaBackend;
use super::cublaslt::{self, CublasLt, Gemm, WideProduct, shape};
use super::device::Buffer;
use super::error::CudaError;
use super::pass::{MAX_ROWS, PassState};
use super::products::Job;
use super::variants::TERMS;
use super::weights::Matrix;
use crate::backend::{Row, SequenceId};
use crate::model::weights::DType;
use half::{bf16, f16};
use std::time::{Duration, Instant};

/// Who multiplies.
pub struct Multiplier {
    pub library: Option<CublasLt>,
    /// For display; empty where nothing was asked for.
    pub says: String,
}

/// Products of each kind that are timed, and how often.
const TIMED: usize = 4;
const TURNS: usize = 3;

impl CudaBackend {
    /// Decides for every shape of the model's matrices.
    pub(super) fn choose_multiplier(&mut self, gemm: Gemm) -> Result<(), CudaError> {
        let library = match (gemm, CublasLt::load(&self.device)) {
            (Gemm::Own, _) => return Ok(()),
            (Gemm::Auto, Err(CudaError::NoCublasLt)) => {
                self.multiplier.says = "wide products by its own kernels: there is no libcublasLt".to_owned();
                return Ok(());
            }
            (_, library) => library?,
        };
        self.multiplier.library = Some(library);
        // as in a full pass
        let row = Row { sequence: SequenceId(0), position: 0, token: 0 };
        self.pass = PassState { rows: vec![row; MAX_ROWS], trace: None, consecutive: false };
        let shapes = self.wide_shapes();
        for &(layer, matrix) in &shapes {
            self.choose_for(gemm, layer, matrix)?;
        }
        self.pass = PassState::default();
        if shapes.is_empty() {
            self.multiplier.says = "no wide products: the weights are f32".to_owned();
            return Ok(());
        }
        let (version, taken) = (cublaslt::version().unwrap_or_default(), self.library_shapes());
        let why = if gemm == Gemm::Auto { "faster" } else { "asked for" };
        self.multiplier.says =
            format!("wide products by cuBLASLt {version} ({why}) for {taken} of {} shapes", shapes.len());
        Ok(())
    }

    fn library_shapes(&self) -> usize {
        self.multiplier.library.as_ref().map_or(0, CublasLt::shapes)
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
        let y = self.device.allocate("products that are compared", 4 * MAX_ROWS * w.rows)?;
        self.device.write(&self.scratch.terms, 0, &noise(TERMS * MAX_ROWS * w.width, w.dtype))?;
        let terms = self.scratch.terms.address();
        let Some(library) = &mut self.multiplier.library else { return Ok(()) };
        if library.choose(w, terms, &y, MAX_ROWS)? && gemm == Gemm::Auto {
            let (own, library_s) = self.race(w, &y)?;
            if own <= library_s
                && let Some(library) = &mut self.multiplier.library
            {
                library.forget(shape(self.weights.layers[layer].matrices()[index]));
            }
        }
        Ok(())
    }

    /// How long products of a full pass take: (`gemm.cu`, cuBLASLt), the best of some turns.
    fn race(&self, w: &Matrix, y: &Buffer) -> Result<(Duration, Duration), CudaError> {
        let Some(wide) = &self.products_of(w)?.wide else { return Ok((Duration::ZERO, Duration::MAX)) };
        let job = Job { w, bias: None, y: y.address() };
        let time = |multiply: &dyn Fn() -> Result<(), CudaError>| -> Result<Duration, CudaError> {
            multiply()?; // what is done once
            self.device.synchronize()?;
            let start = Instant::now();
            (0..TIMED).try_for_each(|_| multiply())?;
            self.device.synchronize()?;
            Ok(start.elapsed())
        };
        let mut best = (Duration::MAX, Duration::MAX);
        for _ in 0..TURNS {
            best.0 = best.0.min(time(&|| self.gemm_own(wide, &job, false))?);
            best.1 = best.1.min(time(&|| self.gemm_library(&job, false).unwrap_or(Ok(())))?);
        }
        Ok(best)
    }

    /// A product by cuBLASLt, if that is who multiplies matrices of this shape. Those with a bias stay ours.
    pub(super) fn gemm_library(&self, job: &Job, accumulate: bool) -> Option<Result<(), CudaError>> {
        let library = self.multiplier.library.as_ref().filter(|l| job.bias.is_none() && l.has(shape(job.w)))?;
        let (terms, rows) = (self.scratch.terms.address(), self.pass.rows.len());
        Some(library.multiply(WideProduct { w: job.w, terms, y: job.y, rows, accumulate }))
    }
}

/// Numbers between -1 and 1 in 16 bits, the same every time.
fn noise(count: usize, dtype: DType) -> Vec<u16> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let x = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        if dtype == DType::F16 { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() }
    };
    std::iter::repeat_with(number).take(count).collect()
}
