//! Cases of `head.cu`: two rows of logits, one of them drawn from.

use super::super::abi::{
    HeadFinish, HeadLog, HeadMass, HeadPartial, LogitPart, RowState, Sampler, WidePart, WideResult,
};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::launch::Kernel;
use super::super::memory::{Buffer, DevicePtr};
use super::super::noise::Noise;
use super::data::{Outcome, U, unwritten, upload};
use crate::backend::sampling::{Choice, Sampling};

/// A block reads 4096 logits, and leaves its best 128; an entry has room for 100 alternatives.
const VOCAB: usize = 5000;
const CHUNK: usize = 4096;
const BLOCKS: usize = VOCAB.div_ceil(CHUNK);
const LIST: usize = 128;
const MAX_TOP: usize = 100;
const ROWS: usize = 2;
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_p: 1.0, top_k: 0, seed: 77 };
const STREAM: u64 = 3;
const POSITION: usize = 20;

/// Sums of 4096 exponentials by 512 threads, and of terms up to 20 in size.
const SUMS: f64 = 1024.0 * U;

/// The logits, and what the kernels write.
struct Case {
    values: Vec<f32>,
    logits: Buffer<f32>,
    partials: Buffer<LogitPart>,
    wide: Buffer<WidePart>,
    lists: Buffer<u64>,
    masses: Buffer<u64>,
    /// The first is greedy.
    samplers: Buffer<Sampler>,
}

impl Case {
    fn new(device: &Device) -> Result<Case, CudaError> {
        let values = Noise(51).floats(ROWS * VOCAB, 10.0);
        let Sampling { temperature, top_p, seed, .. } = SAMPLING;
        let draws =
            Sampler { seed, temperature, top_p, first_position: 0, choosable: VOCAB as i32, ..Sampler::default() };
        let samplers = [Sampler { temperature: 0.0, ..draws }, draws];
        Ok(Case {
            logits: upload(device, &values)?,
            values,
            partials: unwritten(device, ROWS * BLOCKS)?,
            wide: unwritten(device, ROWS * BLOCKS)?,
            lists: unwritten(device, ROWS * BLOCKS * LIST)?,
            masses: unwritten(device, ROWS * BLOCKS)?,
            samplers: upload(device, &samplers)?,
        })
    }

    fn partial(&self, device: &Device, kernel: &Kernel<HeadPartial>) -> Result<(), CudaError> {
        let (logits, partials, wide, lists) =
            (self.logits.ptr(), self.partials.ptr(), self.wide.ptr(), self.lists.ptr());
        let parameters = HeadPartial { logits, vocab: VOCAB.into(), softcap: 0.0, partials, wide, lists };
        device.launch(kernel, [BLOCKS, ROWS, 1], &parameters)
    }

    fn mass(&self, device: &Device, kernel: &Kernel<HeadMass>) -> Result<(), CudaError> {
        let parameters = HeadMass {
            logits: self.logits.ptr(),
            vocab: VOCAB.into(),
            blocks: BLOCKS.into(),
            partials: self.partials.ptr(),
            samplers: self.samplers.ptr(),
            masses: self.masses.ptr(),
        };
        device.launch(kernel, [BLOCKS, ROWS, 1], &parameters)
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * VOCAB..][..VOCAB]
    }

    fn max(&self, row: usize) -> f64 {
        self.row(row).iter().fold(f64::NEG_INFINITY, |max, x| max.max(f64::from(*x)))
    }
}

fn sum(x: &[f32], f: impl Fn(f64) -> f64) -> f64 {
    x.iter().map(|x| f(f64::from(*x))).sum()
}

/// The sums of every chunk, and its best logits in order.
pub fn partial(device: &Device, kernel: &Kernel<HeadPartial>) -> Result<Outcome, CudaError> {
    let case = Case::new(device)?;
    case.partial(device, kernel)?;
    let partials = device.read(&case.partials, 0, ROWS * BLOCKS)?;
    let wide = device.read(&case.wide, 0, ROWS * BLOCKS)?;
    let lists: Vec<u64> = device.read(&case.lists, 0, ROWS * BLOCKS * LIST)?;
    let mut outcome = Outcome::default();
    for row in 0..ROWS {
        for (block, x) in case.row(row).chunks(CHUNK).enumerate() {
            let at = row * BLOCKS + block;
            let m = x.iter().fold(f64::NEG_INFINITY, |max, x| max.max(f64::from(*x)));
            let ([max, z, s], [deviation, half, quarter]) = (partials[at], wide[at]);
            outcome.same(f64::from(max), m);
            for (got, want) in [
                (z, sum(x, |x| (x - m).exp())),
                (s, sum(x, |x| (x - m).exp() * (x - m))),
                (deviation, sum(x, |x| x - m)),
                (half, sum(x, |x| ((x - m) / 2.0).exp())),
                (quarter, sum(x, |x| ((x - m) / 4.0).exp())),
            ] {
                outcome.compare(got, want, want.abs(), SUMS);
            }
            let mut order: Vec<u32> = (0..x.len() as u32).collect();
            order.sort_by(|a, b| x[*b as usize].total_cmp(&x[*a as usize]).then(a.cmp(b)));
            // a key's lower half is the complement of the id, so that of equals the lower id comes first
            let ids: Vec<u32> = lists[at * LIST..][..LIST].iter().map(|key| !(*key as u32)).collect();
            let first = (block * CHUNK) as u32;
            outcome.same(ids, order[..LIST].iter().map(|id| first + id).collect());
        }
    }
    Ok(outcome)
}

/// The mass of every chunk of the row that is drawn from.
pub fn mass(device: &Device, partial: &Kernel<HeadPartial>, kernel: &Kernel<HeadMass>) -> Result<Outcome, CudaError> {
    let case = Case::new(device)?;
    case.partial(device, partial)?;
    case.mass(device, kernel)?;
    let masses: Vec<u64> = device.read(&case.masses, 0, ROWS * BLOCKS)?;
    let (row, mut outcome) = (1, Outcome::default());
    for (block, x) in case.row(row).chunks(CHUNK).enumerate() {
        let temperature = f64::from(SAMPLING.temperature);
        let want = sum(x, |x| ((x - case.max(row)) / temperature).exp());
        let got = masses[row * BLOCKS + block] as f64 / 1024f64.powi(4);
        outcome.compare(got as f32, want, want, SUMS);
    }
    Ok(outcome)
}

/// The greedy token and a drawn one, their log-probabilities, entropies and alternatives, and the next rows.
pub fn finish(
    device: &Device,
    partial: &Kernel<HeadPartial>,
    mass: &Kernel<HeadMass>,
    kernel: &Kernel<HeadFinish>,
) -> Result<Outcome, CudaError> {
    let case = Case::new(device)?;
    case.partial(device, partial)?;
    case.mass(device, mass)?;
    let row = |slot| RowState { slot, position: POSITION as i32, token: 9, stream: STREAM as i32 };
    let rows = upload(device, &[row(0), row(1)])?;
    let next = unwritten::<RowState>(device, ROWS)?;
    let (tokens, counts) = (unwritten::<i32>(device, ROWS)?, unwritten::<i32>(device, ROWS)?);
    let (logprobs, entropies) = (unwritten::<f32>(device, ROWS)?, unwritten::<f32>(device, ROWS)?);
    let (top_ids, top_logprobs) =
        (unwritten::<i32>(device, ROWS * MAX_TOP)?, unwritten::<f32>(device, ROWS * MAX_TOP)?);
    let (wide, flag) = (unwritten::<WideResult>(device, ROWS)?, upload(device, &[0i32])?);
    let parameters = HeadFinish {
        logits: case.logits.ptr(),
        vocab: VOCAB.into(),
        blocks: BLOCKS.into(),
        partials: case.partials.ptr(),
        wide: case.wide.ptr(),
        lists: case.lists.ptr(),
        masses: case.masses.ptr(),
        rows: rows.ptr(),
        samplers: case.samplers.ptr(),
        given: DevicePtr::NULL,
        next_rows: next.ptr(),
        log: HeadLog {
            tokens: tokens.ptr(),
            logprobs: logprobs.ptr(),
            entropies: entropies.ptr(),
            counts: counts.ptr(),
            top_ids: top_ids.ptr(),
            top_logprobs: top_logprobs.ptr(),
            wide: wide.ptr(),
            ring: 0,
            padding: 0,
        },
        not_finite: flag.ptr(),
    };
    device.launch(kernel, [ROWS, 1, 1], &parameters)?;
    let (tokens, counts) = (device.read(&tokens, 0, ROWS)?, device.read(&counts, 0, ROWS)?);
    let (logprobs, entropies) = (device.read(&logprobs, 0, ROWS)?, device.read(&entropies, 0, ROWS)?);
    let ids: Vec<i32> = device.read(&top_ids, 0, ROWS * MAX_TOP)?;
    let top: Vec<f32> = device.read(&top_logprobs, 0, ROWS * MAX_TOP)?;
    let (next, wide): (Vec<RowState>, Vec<WideResult>) = (device.read(&next, 0, ROWS)?, device.read(&wide, 0, ROWS)?);
    let mut outcome = Outcome::default();
    outcome.same(device.read(&flag, 0, 1)?, vec![0]);
    for r in 0..ROWS {
        let (x, m) = (case.row(r), case.max(r));
        let sampling = if r == 0 { Sampling::GREEDY } else { SAMPLING };
        let choice = Choice { sampling, stream: STREAM, position: POSITION, vocabulary: VOCAB };
        let token = choice.token(x);
        outcome.same(tokens[r], token as i32);
        outcome.same(next[r], RowState { token: tokens[r], position: POSITION as i32 + 1, ..row(r as i32) });
        let z = sum(x, |x| (x - m).exp());
        let lse = m + z.ln();
        let logprob = |id: usize| f64::from(x[id]) - lse;
        outcome.compare(logprobs[r], logprob(token as usize), 1.0 + logprob(token as usize).abs(), SUMS);
        let entropy = z.ln() - sum(x, |x| (x - m).exp() * (x - m)) / z;
        outcome.compare(entropies[r], entropy, 1.0 + entropy.abs(), SUMS);
        let mut order: Vec<usize> = (0..VOCAB).collect();
        order.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
        let count = order.iter().take_while(|id| logprob(**id) > 0.01f64.ln()).count().max(5);
        outcome.same(counts[r], count as i32);
        for (i, id) in order[..count].iter().enumerate() {
            outcome.same(ids[r * MAX_TOP + i], *id as i32);
            outcome.compare(top[r * MAX_TOP + i], logprob(*id), 1.0 + logprob(*id).abs(), SUMS);
        }
        let best = order[..20].iter().map(|id| logprob(*id)).sum::<f64>() / 20.0;
        let uniform = lse - sum(x, |x| x) / VOCAB as f64 - (VOCAB as f64).ln();
        outcome.compare(wide[r][0], best, 1.0 + best.abs(), SUMS);
        outcome.compare(wide[r][1], uniform, 20.0, SUMS);
    }
    Ok(outcome)
}
