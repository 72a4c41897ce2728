//! Cases of `head.cu`: two rows of logits, a greedy one and one that is sampled.

use super::super::abi::{
    HeadFinish, HeadLog, HeadMass, HeadPartial, LogitPart, RowState, Sampler, WidePart, WideResult,
};
use super::super::error::CudaError;
use super::super::launch::Kernel;
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Bench, U, Want, exact, near, wide};
use crate::backend::sampling::{Choice, Sampling};

/// Logits per block, entries of its list, and alternatives of a log entry.
const CHUNK: usize = 4096;
const LIST: usize = 128;
const MAX_TOP: usize = 100;
const VOCAB: usize = 5000;
const BLOCKS: usize = VOCAB.div_ceil(CHUNK);
const ROWS: usize = 2;
const SAMPLINGS: [Sampling; ROWS] = [Sampling::GREEDY, Sampling { temperature: 0.8, top_p: 1.0, top_k: 0, seed: 77 }];
const STREAM: usize = 3;
const POSITION: usize = 20;

/// Sums of 4096 exponentials by 512 threads, and of terms up to 20.
const SUMS: f64 = 1024.0 * U;

/// A bound on a log-probability or entropy.
fn log(value: f64) -> Want {
    near(value, 1.0 + value.abs(), SUMS)
}

/// Σ f(x)
fn sum(x: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    x.iter().map(|x| f(*x)).sum()
}

fn max(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// Ids by descending value, of equals the lower one first.
fn order(x: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
    order
}

struct Case<'b> {
    bench: &'b Bench<'b>,
    values: Vec<f32>,
    logits: DevicePtr<f32>,
    partials: DevicePtr<LogitPart>,
    wide: DevicePtr<WidePart>,
    lists: DevicePtr<u64>,
    masses: DevicePtr<u64>,
    samplers: DevicePtr<Sampler>,
}

impl<'b> Case<'b> {
    fn new(bench: &'b Bench<'b>, partial: &Kernel<HeadPartial>) -> Result<Case<'b>, CudaError> {
        let values = Noise(51).floats(ROWS * VOCAB, 10.0);
        let sampler = |Sampling { temperature, top_p, seed, .. }| {
            let choosable = VOCAB as i32;
            Sampler { seed, temperature, top_p, first_position: 0, choosable, ..Sampler::default() }
        };
        let case = Case {
            bench,
            logits: bench.put(&values)?,
            values,
            partials: bench.room(ROWS * BLOCKS)?,
            wide: bench.room(ROWS * BLOCKS)?,
            lists: bench.room(ROWS * BLOCKS * LIST)?,
            masses: bench.room(ROWS * BLOCKS)?,
            samplers: bench.put(&SAMPLINGS.map(sampler))?,
        };
        let Case { logits, partials, wide, lists, .. } = case;
        let parameters = HeadPartial { logits, vocab: VOCAB.into(), softcap: 0.0, partials, wide, lists };
        bench.device.launch(partial, [BLOCKS, ROWS, 1], &parameters)?;
        Ok(case)
    }

    fn launch_mass(&self, kernel: &Kernel<HeadMass>) -> Result<(), CudaError> {
        let &Case { logits, partials, samplers, masses, .. } = self;
        let (vocab, blocks) = (VOCAB.into(), BLOCKS.into());
        let parameters = HeadMass { logits, vocab, blocks, partials, samplers, masses };
        self.bench.device.launch(kernel, [BLOCKS, ROWS, 1], &parameters)
    }

    fn row(&self, row: usize) -> Vec<f64> {
        wide(&self.values[row * VOCAB..][..VOCAB])
    }
}

/// The sums of every chunk, and its best logits in order.
pub fn partial(kernel: &Kernel<HeadPartial>, bench: &Bench) -> Result<(), CudaError> {
    let case = Case::new(bench, kernel)?;
    for at in 0..ROWS * BLOCKS {
        let (row, first) = (case.row(at / BLOCKS), at % BLOCKS * CHUNK);
        let x = &row[first..VOCAB.min(first + CHUNK)];
        let m = max(x);
        let near = |sum: f64| near(sum, sum.abs(), SUMS);
        let parts = [exact(m), near(sum(x, |x| (x - m).exp())), near(sum(x, |x| (x - m).exp() * (x - m)))];
        bench.compare("partials", case.partials.add(at).cast::<f32>(), parts)?;
        let wide = [sum(x, |x| x - m), sum(x, |x| ((x - m) / 2.0).exp()), sum(x, |x| ((x - m) / 4.0).exp())];
        bench.compare("wide partials", case.wide.add(at).cast::<f32>(), wide.map(near))?;
        // a key's lower half is the complement of the id
        let ids = bench.get(case.lists.add(at * LIST), LIST)?.into_iter().map(|key| !(key as u32));
        bench.check("list", ids, order(x)[..LIST].iter().map(|id| exact((first + id) as u32)));
    }
    Ok(())
}

/// The mass of every chunk of the sampled row.
pub fn mass(partial: &Kernel<HeadPartial>, kernel: &Kernel<HeadMass>, bench: &Bench) -> Result<(), CudaError> {
    let case = Case::new(bench, partial)?;
    case.launch_mass(kernel)?;
    let (row, temperature) = (case.row(1), f64::from(SAMPLINGS[1].temperature));
    let masses = bench.get(case.masses.add(BLOCKS), BLOCKS)?;
    let want = row.chunks(CHUNK).map(|x| {
        let mass = sum(x, |x| ((x - max(&row)) / temperature).exp());
        near(mass, mass, SUMS)
    });
    bench.check("masses", masses.into_iter().map(|mass| mass as f64 / 1024f64.powi(4)), want);
    Ok(())
}

/// Tokens, their log-probabilities, entropies and alternatives, and the next rows.
pub fn finish(
    partial: &Kernel<HeadPartial>,
    mass: &Kernel<HeadMass>,
    kernel: &Kernel<HeadFinish>,
    bench: &Bench,
) -> Result<(), CudaError> {
    let case = Case::new(bench, partial)?;
    case.launch_mass(mass)?;
    let row = |slot| RowState { slot, position: POSITION as i32, token: 9, stream: STREAM as i32 };
    let log_to = HeadLog {
        tokens: bench.room(ROWS)?,
        logprobs: bench.room(ROWS)?,
        entropies: bench.room(ROWS)?,
        counts: bench.room(ROWS)?,
        top_ids: bench.room(ROWS * MAX_TOP)?,
        top_logprobs: bench.room(ROWS * MAX_TOP)?,
        wide: bench.room::<WideResult>(ROWS)?,
        ring: 0,
        padding: 0,
    };
    let (next_rows, not_finite) = (bench.room::<RowState>(ROWS)?, bench.put(&[0i32])?);
    let parameters = HeadFinish {
        logits: case.logits,
        vocab: VOCAB.into(),
        blocks: BLOCKS.into(),
        partials: case.partials,
        wide: case.wide,
        lists: case.lists,
        masses: case.masses,
        rows: bench.put(&[row(0), row(1)])?,
        samplers: case.samplers,
        given: DevicePtr::NULL,
        next_rows,
        log: log_to,
        not_finite,
    };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    bench.compare("not_finite", not_finite, [exact(0)])?;
    for (r, sampling) in SAMPLINGS.into_iter().enumerate() {
        let (x, what) = (case.row(r), |what: &str| format!("{what} of row {r}"));
        let choice = Choice { sampling, stream: STREAM as u64, position: POSITION, vocabulary: VOCAB };
        let token = choice.token(&case.values[r * VOCAB..][..VOCAB]);
        bench.compare(&what("token"), log_to.tokens.add(r), [exact(token)])?;
        let next = [r as i32, POSITION as i32 + 1, token as i32, STREAM as i32];
        bench.compare(&what("next row"), next_rows.add(r).cast::<i32>(), next.map(exact))?;
        let (m, order) = (max(&x), order(&x));
        let z = sum(&x, |x| (x - m).exp());
        let lse = m + z.ln();
        let logprob = |id: &usize| x[*id] - lse;
        bench.compare(&what("logprob"), log_to.logprobs.add(r), [log(logprob(&(token as usize)))])?;
        let entropy = z.ln() - sum(&x, |x| (x - m).exp() * (x - m)) / z;
        bench.compare(&what("entropy"), log_to.entropies.add(r), [log(entropy)])?;
        let count = order.iter().take_while(|id| logprob(id) > 0.01f64.ln()).count().max(5);
        bench.compare(&what("count"), log_to.counts.add(r), [exact(count as i32)])?;
        let (ids, logprobs) = (log_to.top_ids.add(r * MAX_TOP), log_to.top_logprobs.add(r * MAX_TOP));
        bench.compare(&what("top ids"), ids, order[..count].iter().map(|id| exact(*id as i32)))?;
        bench.compare(&what("top logprobs"), logprobs, order[..count].iter().map(|id| log(logprob(id))))?;
        let best = order[..20].iter().map(logprob).sum::<f64>() / 20.0;
        let uniform = lse - sum(&x, |x| x) / VOCAB as f64 - (VOCAB as f64).ln();
        let wide = [log(best), near(uniform, 20.0, SUMS)];
        bench.compare(&what("wide"), log_to.wide.add(r).cast::<f32>(), wide)?;
    }
    Ok(())
}
