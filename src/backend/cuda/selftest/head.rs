//! Tests of `head.cu`: two rows of logits, one greedy and one sampled.

use super::super::abi::RowState;
use super::super::error::CudaError;
use super::super::kernel_set::HeadKernels;
use super::super::lm_head::{self, CHUNK, HeadRun, LIST, LmHead};
use super::super::memory::DevicePtr;
use super::data::{Bench, Noise, Tested, U, Want, exact, near, wide};
use crate::backend::reference::log_sum_exp;
use crate::backend::sampling::{Choice, Sampling};
use crate::backend::{Distribution, MIN_TOP, TokenLogprob};

const VOCAB: usize = 5000;
const BLOCKS: usize = VOCAB.div_ceil(CHUNK);
const ROWS: usize = 2;
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

/// Tokens by descending logit, of equals the lower one first, with their log-probabilities.
fn ranked(x: &[f64]) -> Vec<TokenLogprob> {
    let z = log_sum_exp(x);
    let mut ranked: Vec<_> = (0..).zip(x).map(|(token, x)| TokenLogprob { token, logprob: x - z }).collect();
    ranked.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    ranked
}

/// Logits, and the outputs of the kernels before the one under test.
struct Case {
    values: Vec<f32>,
    head: LmHead,
    choices: [Choice; ROWS],
    next_rows: DevicePtr<RowState>,
    not_finite: DevicePtr<i32>,
}

impl Case {
    fn new(bench: &Bench, kernels: &HeadKernels, mass: bool) -> Result<Case, CudaError> {
        let (device, values) = (bench.device, Noise(51).floats(ROWS * VOCAB, 10.0));
        let drawn = Sampling { temperature: 0.8, top_p: 1.0, top_k: 0, seed: 77 };
        let choice = |sampling| Choice { sampling, stream: STREAM as u64, position: POSITION, vocabulary: VOCAB };
        let choices = [choice(Sampling::GREEDY), choice(drawn)];
        let head = LmHead::new(device, VOCAB, 0.0, 0, ROWS)?;
        device.fill(&head.partials, 0xff)?;
        device.fill(&head.wide, 0xff)?;
        device.fill(&head.lists, 0xff)?;
        device.fill(&head.masses, 0xff)?;
        device.fill(&head.log.data, 0xff)?;
        device.write(&head.logits, 0, &values)?;
        let samplers = [lm_head::sampler(&choices[0], POSITION)?, lm_head::sampler(&choices[1], POSITION)?];
        device.write(&head.samplers, 0, &samplers)?;
        let row = |slot| RowState { slot, position: POSITION as i32, token: 9, stream: STREAM as i32 };
        device.write(&head.rows, 0, &[row(0), row(1)])?;
        let (next_rows, not_finite) = (bench.room(ROWS)?, bench.put(&[0i32])?);
        let case = Case { values, head, choices, next_rows, not_finite };
        case.head.reduce(device, kernels, &case.run(mass))?;
        Ok(case)
    }

    fn run(&self, mass: bool) -> HeadRun<'_> {
        HeadRun {
            n: ROWS,
            rows: &self.head.rows,
            samplers: &self.head.samplers,
            given: DevicePtr::NULL,
            next_rows: self.next_rows,
            mass,
            wide: true,
            log: self.head.log.view(),
            not_finite: self.not_finite,
        }
    }

    fn row(&self, row: usize) -> Vec<f64> {
        wide(&self.values[row * VOCAB..][..VOCAB])
    }
}

/// The sums of every chunk, and its best logits in order.
pub fn partial(kernels: &HeadKernels, bench: &Bench) -> Tested {
    let case = Case::new(bench, kernels, false)?;
    for at in 0..ROWS * BLOCKS {
        let (row, first) = (case.row(at / BLOCKS), at % BLOCKS * CHUNK);
        let x = &row[first..VOCAB.min(first + CHUNK)];
        let order = ranked(x);
        let m = x[order[0].token as usize];
        let near = |sum: f64| near(sum, sum.abs(), SUMS);
        let parts = [exact(m), near(sum(x, |x| (x - m).exp())), near(sum(x, |x| (x - m).exp() * (x - m)))];
        bench.check("partials", bench.device.read(&case.head.partials, at, 1)?.concat(), parts);
        let wide = [sum(x, |x| x - m), sum(x, |x| ((x - m) / 2.0).exp()), sum(x, |x| ((x - m) / 4.0).exp())];
        bench.check("wide partials", bench.device.read(&case.head.wide, at, 1)?.concat(), wide.map(near));
        // a key's lower half is the complement of the id
        let ids = bench.device.read(&case.head.lists, at * LIST, LIST)?.into_iter().map(|key| !(key as u32));
        bench.check("list", ids, order[..LIST].iter().map(|best| exact(first as u32 + best.token)));
    }
    Ok(())
}

/// The mass of every chunk of the sampled row.
pub fn mass(kernels: &HeadKernels, bench: &Bench) -> Tested {
    let case = Case::new(bench, kernels, true)?;
    let (row, temperature) = (case.row(1), f64::from(case.choices[1].sampling.temperature));
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mass = |x| sum(x, |x| ((x - max) / temperature).exp());
    let want = row.chunks(CHUNK).map(|x| near(mass(x), mass(x), SUMS));
    let masses = bench.device.read(&case.head.masses, BLOCKS, BLOCKS)?;
    bench.check("masses", masses.into_iter().map(|mass| mass as f64 / 1024f64.powi(4)), want);
    Ok(())
}

/// Tokens, their log-probabilities, entropies and alternatives, and the next rows.
pub fn finish(kernels: &HeadKernels, bench: &Bench) -> Tested {
    let case = Case::new(bench, kernels, true)?;
    case.head.finish(bench.device, kernels, &case.run(true))?;
    bench.compare("not_finite", case.not_finite, [exact(0)])?;
    let words = bench.device.read(&case.head.log.data, 0, case.head.log.bytes() / 4)?;
    for (r, choice) in case.choices.iter().enumerate() {
        let (x, what) = (case.row(r), |what: &str| format!("{what} of row {r}"));
        let (step, found) = case.head.log.entry(bytemuck::cast_slice(&words), r, true, true).unwrap_or_default();
        let token = choice.token(&case.values[r * VOCAB..][..VOCAB]);
        bench.check(&what("token"), found, [exact(token)]);
        let next = [r as i32, POSITION as i32 + 1, token as i32, STREAM as i32];
        bench.compare(&what("next row"), case.next_rows.add(r).cast::<i32>(), next.map(exact))?;
        let (z, order) = (log_sum_exp(&x), ranked(&x));
        bench.check(&what("logprob"), step.logprob, [log(x[token as usize] - z)]);
        bench.check(&what("entropy"), [step.entropy], [log(sum(&x, |x| (x - z).exp() * (z - x)))]);
        let likely = order.iter().take_while(|best| best.logprob > 0.01f64.ln()).count();
        let best = &order[..likely.max(MIN_TOP)];
        bench.check(&what("count"), [step.top.len() as u32], [exact(best.len() as u32)]);
        bench.check(&what("top ids"), step.top.iter().map(|top| top.token), best.iter().map(|best| exact(best.token)));
        let logprobs = step.top.iter().map(|top| top.logprob);
        bench.check(&what("top logprobs"), logprobs, best.iter().map(|best| log(best.logprob)));
        let of = Distribution::by_definition(&x, &order);
        let wide = step.distribution.map_or([f64::NAN; 2], |found| [found.top_logprob, found.uniform_kl]);
        bench.check(&what("wide"), wide, [log(of.top_logprob), near(of.uniform_kl, 20.0, SUMS)]);
    }
    Ok(())
}
