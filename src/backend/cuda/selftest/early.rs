//! Whether kernels that start before those before them have ended wait for these: a captured chain of products, each of which
//! reads what the one before it writes, against the same chain one after the other.

use super::super::abi::{Gemv, MatrixJob, MatrixJobs};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::launch::{Int, Kernel};
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, Values, upload};
use crate::model::weights::DType;

/// Features of each product, and products: as many as a few layers have.
const WIDTH: usize = 256;
const LINKS: usize = 32;
const ROWS: usize = 4;
/// Runs of the chain: what is read too soon need not show each time.
const RUNS: usize = 8;

/// What the check is called in tables and on disk.
pub fn name(kernel: &Kernel<Gemv>) -> String {
    format!("early_starts({})", kernel.full_name())
}

struct Chain<'a> {
    kernel: &'a Kernel<Gemv>,
    w: Values,
    x: [Buffer<f32>; 2],
}

impl Chain<'_> {
    /// x += W x' and x' += W x, in turns.
    fn launch(&self, device: &Device) -> Result<(), CudaError> {
        for link in 0..LINKS {
            let [x, y] = [&self.x[link % 2], &self.x[(link + 1) % 2]].map(Buffer::ptr);
            let null = DevicePtr::NULL;
            let job =
                MatrixJob { w: self.w.ptr(), scales: null, bias: null, y, outs: WIDTH as i32, ..MatrixJob::default() };
            let jobs: MatrixJobs = [job, MatrixJob::default(), MatrixJob::default()];
            let parameters = Gemv { x, jobs, k: WIDTH.into(), rows: ROWS.into(), accumulate: Int(1) };
            device.launch(self.kernel, [WIDTH / 16, 1, 1], &parameters)?;
        }
        Ok(())
    }

    /// What `run` makes of the same beginning.
    fn outcome(
        &self,
        device: &Device,
        run: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<[Vec<f32>; 2], CudaError> {
        for (i, x) in self.x.iter().enumerate() {
            device.write(x, 0, &Noise(7 + i as u64).floats(ROWS * WIDTH, 1.0))?;
        }
        run()?;
        let [x, y] = &self.x;
        Ok([device.read(x, 0, ROWS * WIDTH)?, device.read(y, 0, ROWS * WIDTH)?])
    }
}

/// `one_by_one` and `early`: the same device, that waits for every kernel before the next one and that does not.
pub fn chain(one_by_one: &Device, early: &Device, kernel: &Kernel<Gemv>, dtype: DType) -> Result<Outcome, CudaError> {
    let zeros = vec![0.0; ROWS * WIDTH];
    let x = [upload(one_by_one, &zeros)?, upload(one_by_one, &zeros)?];
    // sums stay of the size of what they are added to
    let w = Values::new(one_by_one, &Noise(3).floats(WIDTH * WIDTH, 0.1), dtype)?;
    let chain = Chain { kernel, w, x };
    let want = chain.outcome(one_by_one, || chain.launch(one_by_one))?;
    let graph = early.capture("capturing the self-test's chain", || chain.launch(early))?;
    let mut outcome = Outcome::default();
    for _ in 0..RUNS {
        let got = chain.outcome(early, || early.replay(&graph))?;
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            outcome.same(got.to_bits(), want.to_bits());
        }
    }
    Ok(outcome)
}
