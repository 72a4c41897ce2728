//! Matrix products: `gemv.cu` for up to 16 rows, `gemm.cu` for more, whose input is split into 16-bit terms first.

use super::CudaBackend;
use super::device::{Argument, Buffer};
use super::error::CudaError;
use super::layout::{GemvJob, GemvJobs};
use super::variants::{GEMM_BLOCKS, GEMV_SHARED, NARROW_ROWS, Products, TERMS, WideProducts};
use super::weights::Matrix;

/// One matrix of a product: `y = w x (+ bias)`.
pub struct Job<'a> {
    pub w: &'a Matrix,
    pub bias: Option<&'a Buffer>,
    /// Address, `[rows, outs]`.
    pub y: u64,
}

/// A norm on the way into a product.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    pub weight: &'a Buffer,
    pub offset: f32,
    pub eps: f32,
}

/// Null where there is none.
pub fn address(buffer: Option<&Buffer>) -> u64 {
    buffer.map_or(0, Buffer::address)
}

impl CudaBackend {
    pub(super) fn norm<'a>(&self, weight: &'a Buffer) -> Norm<'a> {
        Norm { weight, offset: self.spec.norm_weight_offset, eps: self.spec.rms_norm_eps }
    }

    pub(super) fn products_of(&self, w: &Matrix) -> Result<&Products, CudaError> {
        let missing = || CudaError::NoKernel { name: format!("gemv_{}_r8", w.dtype.name()) };
        self.variants.products.get(&w.dtype).ok_or_else(missing)
    }

    /// Products of one input `[rows, width]` (normed on the way) with matrices; y is added to with `accumulate`.
    pub(super) fn products(&self, x: u64, norm: Option<Norm>, jobs: &[Job], accumulate: bool) -> Result<(), CudaError> {
        let mut rest = jobs;
        while let Some(first) = rest.first() {
            // matrices of one type go together
            let together = rest.iter().take_while(|job| job.w.dtype == first.w.dtype).count();
            let (jobs, later) = rest.split_at(together);
            let kernels = self.products_of(first.w)?;
            match (&kernels.wide, self.pass.narrow()) {
                (Some(wide), false) => {
                    match norm {
                        Some(norm) => self.norm_terms(wide, x, norm, first.w.width)?,
                        None => self.split_terms(wide, x, first.w.width)?,
                    }
                    jobs.iter().try_for_each(|job| self.gemm(wide, job, accumulate))?;
                }
                _ => self.gemv(kernels, x, norm, jobs, self.pass.rows.len(), accumulate)?,
            }
            rest = later;
        }
        Ok(())
    }

    /// Up to three products of `n` rows, 16 at a time.
    fn gemv(
        &self,
        kernels: &Products,
        x: u64,
        norm: Option<Norm>,
        jobs: &[Job],
        n: usize,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let width = jobs.first().map_or(0, |job| job.w.width);
        for first in (0..n).step_by(NARROW_ROWS) {
            let rows = NARROW_ROWS.min(n - first);
            let variant = usize::from(rows > 8);
            let mut table = GemvJobs::default();
            for (entry, job) in table.iter_mut().zip(jobs) {
                *entry = GemvJob {
                    w: job.w.data.address(),
                    bias: address(job.bias),
                    y: job.y + 4 * (first * job.w.rows) as u64,
                    outs: job.w.rows as i32,
                    padding: 0,
                };
            }
            let x: Argument = (x + 4 * (first * width) as u64).into();
            let grid = [jobs.iter().map(|job| job.w.rows.div_ceil([16, 32][variant])).sum(), 1, 1];
            let tail = [width.into(), rows.into(), accumulate.into()];
            let (kernel, head) = match norm {
                None => (&kernels.plain[variant], vec![x, table.into()]),
                Some(Norm { weight, offset, eps }) => {
                    (&kernels.norm[variant], vec![x, weight.into(), offset.into(), eps.into(), table.into()])
                }
            };
            self.device.launch(kernel, grid, 256, GEMV_SHARED[variant], &[head, tail.to_vec()].concat())?;
        }
        Ok(())
    }

    pub(super) fn norm_terms(&self, wide: &WideProducts, x: u64, norm: Norm, width: usize) -> Result<(), CudaError> {
        let arguments = [
            x.into(),
            norm.weight.into(),
            norm.offset.into(),
            norm.eps.into(),
            width.into(),
            (&self.scratch.terms).into(),
            TERMS.into(),
        ];
        self.device.launch(&wide.rms_norm, [self.pass.rows.len(), 1, 1], 256, 32, &arguments)
    }

    fn split_terms(&self, wide: &WideProducts, x: u64, width: usize) -> Result<(), CudaError> {
        let count = self.pass.rows.len() * width;
        let arguments = [x.into(), (&self.scratch.terms).into(), count.into(), TERMS.into()];
        self.device.launch(&wide.split, [count.div_ceil(1024), 1, 1], 256, 0, &arguments)
    }

    /// One product of the terms, by whoever multiplies matrices of this shape.
    pub(super) fn gemm(&self, wide: &WideProducts, job: &Job, accumulate: bool) -> Result<(), CudaError> {
        self.gemm_library(job, accumulate).unwrap_or_else(|| self.gemm_own(wide, job, accumulate))
    }

    pub(super) fn gemm_own(&self, wide: &WideProducts, job: &Job, accumulate: bool) -> Result<(), CudaError> {
        let n = self.pass.rows.len();
        let variant = usize::from(n > GEMM_BLOCKS[0].0);
        let (block, shared) = GEMM_BLOCKS[variant];
        let arguments = [
            (&self.scratch.terms).into(),
            (&job.w.data).into(),
            address(job.bias).into(),
            job.y.into(),
            n.into(),
            job.w.rows.into(),
            job.w.width.into(),
            accumulate.into(),
        ];
        self.device.launch(
            &wide.gemm[variant],
            [n.div_ceil(block), job.w.rows.div_ceil(64), 1],
            256,
            shared,
            &arguments,
        )
    }

    /// logits `[n, vocab_size]` of `n` rows (at most 16) of hidden states at `hidden`.
    pub(super) fn logits(&self, hidden: u64, n: usize) -> Result<(), CudaError> {
        let w = self.weights.head();
        let job = Job { w, bias: None, y: self.head.logits.address() };
        self.gemv(self.products_of(w)?, hidden, None, &[job], n, false)
    }
}
