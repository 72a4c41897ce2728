//! Matrix products: `gemv.cu` in narrow passes, `gemv_ring.cu` for one row on compute capability 9.0 and newer, and `gemv_wide.cu`
//! in large decode steps; in wide passes `gemm_hopper.cu` on compute capability 9.0 and `gemm.cu` on others, with inputs rounded to
//! f16 ([`RoundedRows`]).

use super::kernel_set::{GEMM_ROWS, HOPPER_OUTS, MatmulKernels, NarrowVariant, WIDE_OUTS, WideKernels, hopper_grid};
use super::{CudaBackend, abi::*, launch::Int, launch::TensorMap, weights::Matrix};
use super::{error::CudaError, error::Result, memory::Buffer, memory::DevicePtr, memory::Floats};

/// One matrix of a product: `y = w x (+ bias)`.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub w: &'a Matrix,
    pub bias: Option<&'a Buffer<f32>>,
    /// `[rows, out_features]`
    pub y: Floats,
}

impl Job<'_> {
    /// Up to three jobs in the kernels' layout, with outputs starting at row `first`.
    fn table(jobs: &[Job], first: usize) -> MatrixJobs {
        let mut table = MatrixJobs::default();
        for (entry, Job { w, bias, y }) in table.iter_mut().zip(jobs) {
            let (bias, y, outs) = (ptr_or_null(*bias), y.add(first * w.out_features), w.out_features as i32);
            *entry = MatrixJob { w: w.ptr(), scales: w.scales(), bias, y, outs, ..MatrixJob::default() };
        }
        table
    }
}

/// The kernels of a wide pass, and their input.
type WideInput<'a> = (&'a WideKernels, RoundedRows);

/// A product's input `[rows, in_features]`.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    F32(Floats),
    /// Rounded, for these kernels.
    Rounded(&'a WideKernels, RoundedRows),
}

/// What a launch computes from its matrices and their input x.
#[derive(Clone, Copy)]
pub enum Product {
    /// y = w x, or y += w x with `accumulate`.
    Linear { accumulate: bool },
    /// y = w x, leaving a multiprocessor to the head selection that runs at the same time.
    Logits,
    /// Queries, keys and values, rotated and cached; with the default target, the jobs' y.
    Qkv(RopeTarget),
    /// act(gate x) ⊙ up x
    Gated { activation: Int },
}

impl Product {
    /// Whether it is gated (the first job is the gate, the second up), and the `mode` of the many-row kernels.
    fn mode(self) -> (bool, Int) {
        match self {
            Product::Linear { accumulate } => (false, accumulate.into()),
            Product::Qkv(_) | Product::Logits => (false, Int(0)),
            Product::Gated { activation } => (true, activation),
        }
    }
}

impl GemmHopper {
    /// Parameters with the tensor maps of x `[n, k]` and of each job's matrix.
    pub fn new(x: RoundedRows, jobs: MatrixJobs, n: usize, k: usize, mode: Int) -> Result<GemmHopper> {
        let mut w_maps = [TensorMap::NONE; 3];
        for (map, job) in w_maps.iter_mut().zip(jobs).filter(|(_, job)| job.outs > 0) {
            *map = TensorMap::new(job.w.cast(), job.outs as usize, k)?;
        }
        let x_map = TensorMap::new(x.values, n, k)?;
        Ok(GemmHopper { x_map, w_maps, x_scales: x.scales, jobs, n: n.into(), k: k.into(), mode })
    }
}

/// Number of blocks of `outs` outputs; if `gated`, half of the outputs are the gate's and half are up's.
pub fn blocks(jobs: &MatrixJobs, outs: usize, gated: bool) -> usize {
    let of = |job: &MatrixJob, outs| (job.outs as usize).div_ceil(outs);
    if gated { of(&jobs[0], outs / 2) } else { jobs.iter().map(|job| of(job, outs)).sum() }
}

fn all_outs(jobs: &MatrixJobs) -> usize {
    jobs.iter().map(|job| job.outs as usize).sum()
}

/// The buffer's address; null if there is none.
pub fn ptr_or_null(buffer: Option<&Buffer<f32>>) -> Floats {
    buffer.map_or(DevicePtr::NULL, Buffer::ptr)
}

impl CudaBackend {
    pub(super) fn norm(&self, weight: &Buffer<f32>) -> Norm {
        Norm { weight: weight.ptr(), offset: self.spec.family.norm_weight_offset, eps: self.spec.rms_norm_eps }
    }

    /// The norm of a block's input, or an identity norm.
    pub(super) fn input_norm(&self, weight: Option<&Buffer<f32>>) -> Norm {
        let none = Norm { weight: self.weights.ones.ptr(), offset: 0.0, eps: -1.0 };
        weight.map_or(none, |weight| self.norm(weight))
    }

    /// y = norm(x), for `rows` rows of `width` values.
    pub(super) fn rms_norm(&self, x: Floats, norm: Norm, y: Floats, rows: usize, width: usize) -> Result<()> {
        let parameters = RmsNorm { x, norm, width: width.into(), y, not_finite: DevicePtr::NULL };
        self.device.launch(&self.kernels.rms_norm, [rows, 1, 1], &parameters)
    }

    pub(super) fn matmul_kernels(&self, w: &Matrix) -> Result<&MatmulKernels> {
        let missing = || CudaError::NoKernel { name: format!("gemv_{}_r8", w.dtype.name()) };
        self.kernels.matmul.get(&w.dtype).ok_or_else(missing)
    }

    /// The kernels of a wide pass; `None` in a narrow pass and for f32 weights.
    pub(super) fn wide(&self, w: &Matrix) -> Result<Option<&WideKernels>> {
        Ok(self.matmul_kernels(w)?.wide.as_ref().filter(|_| !self.pass.narrow()))
    }

    /// The product of one matrix and every row; `accumulate` adds to y.
    pub(super) fn matmul(&self, x: Input, job: Job, accumulate: bool) -> Result<()> {
        let (rows, k, product) = (self.pass.rows.len(), job.w.in_features, Product::Linear { accumulate });
        let (wide, x) = match (x, self.wide(job.w)?) {
            (Input::Rounded(wide, x), _) => (wide, x),
            (Input::F32(x), Some(wide)) => {
                let to = self.scratch.rounded();
                self.device.launch(&wide.round, [rows, 1, 1], &RoundRows { x, width: k.into(), to })?;
                (wide, to)
            }
            (Input::F32(x), None) => {
                return self.gemv(x, Norm::default(), &[job], rows, product);
            }
        };
        self.gemm(wide, x, Job::table(&[job], 0), k, product)
    }

    /// Whether [`Self::qkv`] also rotates and caches: one launch of `gemv.cu` computes all three.
    pub(super) fn rotates(&self, jobs: &[Job]) -> Result<bool> {
        let [q, k, v] = jobs else { return Ok(false) };
        let one_type = q.w.dtype == k.w.dtype && k.w.dtype == v.w.dtype;
        Ok(one_type && self.wide(q.w)?.is_none() && self.matmul_kernels(q.w)?.many(self.pass.rows.len()).is_none())
    }

    /// Queries, keys and values, or some of them, of norm(x), every row. They go to `to`, or if that is the default, to each y.
    pub(super) fn qkv(&self, x: Floats, norm: Norm, jobs: &[Job], to: RopeTarget) -> Result<()> {
        let most = MatrixJobs::default().len();
        for jobs in jobs.chunk_by(|a, b| a.w.dtype == b.w.dtype).flat_map(|jobs| jobs.chunks(most)) {
            match self.normed_input(x, norm, jobs[0].w)? {
                None => self.gemv(x, norm, jobs, self.pass.rows.len(), Product::Qkv(to))?,
                Some((wide, x)) => self.gemm(wide, x, Job::table(jobs, 0), jobs[0].w.in_features, Product::Qkv(to))?,
            }
        }
        Ok(())
    }

    /// In a wide pass, the kernels for w, with norm(x) as their input; `None` in the cases of [`Self::wide`].
    fn normed_input(&self, x: Floats, norm: Norm, w: &Matrix) -> Result<Option<WideInput<'_>>> {
        let Some(wide) = self.wide(w)? else { return Ok(None) };
        let to = self.scratch.rounded();
        let parameters = RmsNormF16 { x, norm, width: w.in_features.into(), to };
        self.device.launch(&wide.rms_norm, [self.pass.rows.len(), 1, 1], &parameters)?;
        Ok(Some((wide, to)))
    }

    /// act(gate x) ⊙ up x of norm(x), every row: into y of `gate`, or as rounded rows if the next product's kernels are given.
    pub(super) fn gated<'a>(
        &'a self,
        x: Floats,
        norm: Norm,
        jobs: [Job; 2],
        activation: Int,
        next: Option<&'a WideKernels>,
    ) -> Result<Input<'a>> {
        let (Job { w, y, .. }, mut table, product) = (jobs[0], Job::table(&jobs, 0), Product::Gated { activation });
        let Some((wide, normed)) = self.normed_input(x, norm, w)? else {
            self.gemv(x, norm, &jobs, self.pass.rows.len(), product)?;
            return Ok(Input::F32(y));
        };
        let to = next.map_or(Input::F32(y), |next| {
            table[0].rounded = self.scratch.inner_rounded(w.out_features);
            Input::Rounded(next, table[0].rounded)
        });
        self.gemm(wide, normed, table, w.in_features, product)?;
        Ok(to)
    }

    /// Products of x `[rows, in_features]` in f32 arithmetic, after `norm` unless that is the default, in as few launches as the
    /// kernels allow.
    pub(super) fn gemv(&self, x: Floats, norm: Norm, jobs: &[Job], rows: usize, product: Product) -> Result<()> {
        let (kernels, width) = (self.matmul_kernels(jobs[0].w)?, jobs[0].w.in_features);
        if let Some(many) = kernels.many(rows) {
            let (terms, factors) = (self.scratch.rounded.ptr(), self.scratch.rounded_scales.ptr());
            let parameters = SplitRows { x, norm, terms, factors, width: width.into() };
            self.device.launch(&many.split, [rows, 1, 1], &parameters)?;
            let (gated, mode) = product.mode();
            let jobs = Job::table(jobs, 0);
            let variant = self.device.info.gemv_wide_variant(rows, all_outs(&jobs));
            let grid = [blocks(&jobs, WIDE_OUTS, gated), rows.div_ceil(GEMM_ROWS[variant]), 1];
            let parameters = GemvWide { terms, factors, jobs, k: width.into(), rows: rows.into(), mode };
            return self.device.launch(&many.gemv[usize::from(gated)][variant], grid, &parameters);
        }
        for (narrow, first, count) in kernels.parts(rows, width) {
            let (x, jobs, k, rows) = (x.add(first * width), Job::table(jobs, first), width.into(), count.into());
            let NarrowVariant { outs, gates, .. } = narrow.variant;
            let beside = usize::from(matches!(product, Product::Logits));
            let grid = |blocks| narrow.variant.grid(blocks, self.device.info.multiprocessors - beside);
            match product {
                Product::Linear { .. } | Product::Logits => {
                    let accumulate = matches!(product, Product::Linear { accumulate: true }).into();
                    let parameters = Gemv { x, jobs, k, rows, accumulate };
                    self.device.launch(&narrow.gemv, grid(blocks(&jobs, outs, false)), &parameters)?;
                }
                Product::Qkv(to) => {
                    let to = RopeTarget { rows: to.rows.add(first), ..to };
                    let parameters = GemvQkv { x, norm, jobs, k, rows, to };
                    self.device.launch(&narrow.qkv, grid(blocks(&jobs, outs, false)), &parameters)?;
                }
                Product::Gated { activation } => {
                    let parameters = GemvGated { x, norm, jobs, k, rows, activation };
                    self.device.launch(&narrow.gated, grid(blocks(&jobs, 2 * gates, true)), &parameters)?;
                }
            }
        }
        Ok(())
    }

    /// A product of rounded rows of k values in one launch. Queries, keys and values are not rotated.
    fn gemm(&self, wide: &WideKernels, x: RoundedRows, jobs: MatrixJobs, k: usize, product: Product) -> Result<()> {
        let ((gated, mode), rows) = (product.mode(), self.pass.rows.len());
        if let Some(hopper) = &wide.hopper {
            let grid = hopper_grid(rows, blocks(&jobs, HOPPER_OUTS, gated), self.device.info.multiprocessors);
            return self.device.launch(&hopper[usize::from(gated)], grid, &GemmHopper::new(x, jobs, rows, k, mode)?);
        }
        let variant = self.device.info.gemm_variant(rows, all_outs(&jobs));
        let grid = [rows.div_ceil(GEMM_ROWS[variant]), blocks(&jobs, GEMM_ROWS[variant], gated), 1];
        let parameters = Gemm { x, jobs, n: rows.into(), k: k.into(), mode };
        self.device.launch(&wide.gemm[usize::from(gated)][variant], grid, &parameters)
    }
}
