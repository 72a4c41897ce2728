//! Tests of `head.cu`: two rows of logits, one greedy and one sampled.

use super::super::abi::{HeadFinish, HeadMass, HeadPartial, LogitPart, RowState, Sampler, WidePart};
use super::super::error::CudaError;
use super::super::launch::Kernel;
use super::super::lm_head::{self, CHUNK, LIST, Log};
use super::super::memory::DevicePtr;
use super::super::noise::Noise;
use super::data::{Bench, Tested, U, Want, exact, near, wide};
use crate::backend::reference::log_sum_exp;
use crate::backend::sampling::{Choice, Sampling};
use crate::backend::{Distribution, TokenLogprob};

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

/// The logits, and the outputs of the kernels before the one under test.
struct Head<'b> {
    bench: &'b Bench<'b>,
    values: Vec<f32>,
    logits: DevicePtr<f32>,
    partials: DevicePtr<LogitPart>,
    wide: DevicePtr<WidePart>,
    lists: DevicePtr<u64>,
    masses: DevicePtr<u64>,
    choices: [Choice; ROWS],
    samplers: DevicePtr<Sampler>,
}

impl<'b> Head<'b> {
    fn new(bench: &'b Bench<'b>, partial: &Kernel<HeadPartial>) -> Result<Head<'b>, CudaError> {
        let values = Noise(51).floats(ROWS * VOCAB, 10.0);
        let drawn = Sampling { temperature: 0.8, top_p: 1.0, top_k: 0, seed: 77 };
        let choice = |sampling| Choice { sampling, stream: STREAM as u64, position: POSITION, vocabulary: VOCAB };
        let choices = [choice(Sampling::GREEDY), choice(drawn)];
        let samplers = [lm_head::sampler(&choices[0], POSITION)?, lm_head::sampler(&choices[1], POSITION)?];
        let head = Head {
            bench,
            logits: bench.put(&values)?,
            values,
            partials: bench.room(ROWS * BLOCKS)?,
            wide: bench.room(ROWS * BLOCKS)?,
            lists: bench.room(ROWS * BLOCKS * LIST)?,
            masses: bench.room(ROWS * BLOCKS)?,
            choices,
            samplers: bench.put(&samplers)?,
        };
        let Head { logits, partials, wide, lists, .. } = head;
        let parameters = HeadPartial { logits, vocab: VOCAB.into(), softcap: 0.0, partials, wide, lists };
        bench.device.launch(partial, [BLOCKS, ROWS, 1], &parameters)?;
        Ok(head)
    }

    fn launch_mass(&self, kernel: &Kernel<HeadMass>) -> Tested {
        let &Head { logits, partials, samplers, masses, .. } = self;
        let (vocab, blocks) = (VOCAB.into(), BLOCKS.into());
        let parameters = HeadMass { logits, vocab, blocks, partials, samplers, masses };
        self.bench.device.launch(kernel, [BLOCKS, ROWS, 1], &parameters)
    }

    fn row(&self, row: usize) -> Vec<f64> {
        wide(&self.values[row * VOCAB..][..VOCAB])
    }
}

/// The sums of every chunk, and its best logits in order.
pub fn partial(kernel: &Kernel<HeadPartial>, bench: &Bench) -> Tested {
    let head = Head::new(bench, kernel)?;
    for at in 0..ROWS * BLOCKS {
        let (row, first) = (head.row(at / BLOCKS), at % BLOCKS * CHUNK);
        let x = &row[first..VOCAB.min(first + CHUNK)];
        let order = ranked(x);
        let m = x[order[0].token as usize];
        let near = |sum: f64| near(sum, sum.abs(), SUMS);
        let parts = [exact(m), near(sum(x, |x| (x - m).exp())), near(sum(x, |x| (x - m).exp() * (x - m)))];
        bench.compare("partials", head.partials.add(at).cast::<f32>(), parts)?;
        let wide = [sum(x, |x| x - m), sum(x, |x| ((x - m) / 2.0).exp()), sum(x, |x| ((x - m) / 4.0).exp())];
        bench.compare("wide partials", head.wide.add(at).cast::<f32>(), wide.map(near))?;
        // a key's lower half is the complement of the id
        let ids = bench.get(head.lists.add(at * LIST), LIST)?.into_iter().map(|key| !(key as u32));
        bench.check("list", ids, order[..LIST].iter().map(|best| exact(first as u32 + best.token)));
    }
    Ok(())
}

/// The mass of every chunk of the sampled row.
pub fn mass(partial: &Kernel<HeadPartial>, kernel: &Kernel<HeadMass>, bench: &Bench) -> Tested {
    let head = Head::new(bench, partial)?;
    head.launch_mass(kernel)?;
    let (row, temperature) = (head.row(1), f64::from(head.choices[1].sampling.temperature));
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let masses = bench.get(head.masses.add(BLOCKS), BLOCKS)?;
    let mass = |x| sum(x, |x| ((x - max) / temperature).exp());
    let want = row.chunks(CHUNK).map(|x| near(mass(x), mass(x), SUMS));
    bench.check("masses", masses.into_iter().map(|mass| mass as f64 / 1024f64.powi(4)), want);
    Ok(())
}

/// Tokens, their log-probabilities, entropies and alternatives, and the next rows.
pub fn finish(
    partial: &Kernel<HeadPartial>,
    mass: &Kernel<HeadMass>,
    kernel: &Kernel<HeadFinish>,
    bench: &Bench,
) -> Tested {
    let head = Head::new(bench, partial)?;
    head.launch_mass(mass)?;
    let row = |slot| RowState { slot, position: POSITION as i32, token: 9, stream: STREAM as i32 };
    let log_to = Log::new(bench.device, ROWS, 0)?;
    bench.device.fill(&log_to.data, 0xff)?;
    let (next_rows, not_finite) = (bench.room::<RowState>(ROWS)?, bench.put(&[0i32])?);
    let parameters = HeadFinish {
        logits: head.logits,
        vocab: VOCAB.into(),
        blocks: BLOCKS.into(),
        partials: head.partials,
        wide: head.wide,
        lists: head.lists,
        masses: head.masses,
        rows: bench.put(&[row(0), row(1)])?,
        samplers: head.samplers,
        given: DevicePtr::NULL,
        next_rows,
        log: log_to.view(),
        not_finite,
    };
    bench.device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    bench.compare("not_finite", not_finite, [exact(0)])?;
    let words = bench.device.read(&log_to.data, 0, log_to.bytes() / 4)?;
    for (r, choice) in head.choices.iter().enumerate() {
        let (x, what) = (head.row(r), |what: &str| format!("{what} of row {r}"));
        let (step, found) = log_to.entry(bytemuck::cast_slice(&words), r, true, true).unwrap_or_default();
        let token = choice.token(&head.values[r * VOCAB..][..VOCAB]);
        bench.check(&what("token"), found, [exact(token)]);
        let next = [r as i32, POSITION as i32 + 1, token as i32, STREAM as i32];
        bench.compare(&what("next row"), next_rows.add(r).cast::<i32>(), next.map(exact))?;
        let (z, order) = (log_sum_exp(&x), ranked(&x));
        bench.check(&what("logprob"), step.logprob, [log(x[token as usize] - z)]);
        bench.check(&what("entropy"), [step.entropy], [log(sum(&x, |x| (x - z).exp() * (z - x)))]);
        let likely = order.iter().take_while(|best| best.logprob > 0.01f64.ln()).count();
        let best = &order[..likely.max(5)];
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
