//! From hidden states to predictions: the logits stay on the device; the token, its
//! log-probability, the entropy and the top alternatives are copied back.

use super::memory::{Buffer, DevicePtr, Floats};
use super::{CudaBackend, abi::*, context::Device, error::CudaError, error::Result, gemm::Job, gemm::Product};
use crate::backend::{BackendError, Distribution, Next, Predicted, Prediction, Row, Step, TokenLogprob};
use crate::{backend::sampling::Choice, backend::sampling::Sampling, model::ModelSpec};

/// Logits per block.
pub const CHUNK: usize = 4096;

/// Max alternatives per entry.
const MAX_TOP: usize = 100;

/// Words of an entry.
const WORDS: usize = 4 + 2 * MAX_TOP + size_of::<WideResult>() / 4;

/// Entries of the sorted lists that `head_partial` outputs, and the max of top-k.
pub const LIST: usize = 128;

/// Values of `given`: sample the token; no token.
const CHOOSE: i32 = -1;
const NONE: i32 = -2;

/// Buffers of the LM head, for the rows of a narrow pass.
pub struct LmHead {
    /// `[rows, vocab]`
    pub logits: Buffer<f32>,
    /// Per chunk of logits: `[rows, chunks]`, lists `[rows, chunks, LIST]`
    pub partials: Buffer<LogitPart>,
    wide: Buffer<WidePart>,
    lists: Buffer<u64>,
    masses: Buffer<u64>,
    /// Inputs of a pass's predictions, `samplers` also of decode steps: `[rows]` each
    rows: Buffer<RowState>,
    pub samplers: Buffer<Sampler>,
    given: Buffer<i32>,
    /// `[rows, hidden_size]`, for rows that are not contiguous
    gathered: Buffer<f32>,
    log: Log,
}

impl LmHead {
    pub fn new(device: &Device, spec: &ModelSpec, rows: usize) -> Result<LmHead> {
        let chunks = rows * spec.vocab_size.div_ceil(CHUNK);
        Ok(LmHead {
            logits: device.scratch("logits", rows * spec.vocab_size)?,
            partials: device.scratch("head", chunks)?,
            wide: device.scratch("head", chunks)?,
            lists: device.scratch("head", chunks * LIST)?,
            masses: device.scratch("head", chunks)?,
            rows: device.scratch("rows", rows)?,
            samplers: device.scratch("samplers", rows)?,
            given: device.scratch("tokens", rows)?,
            gathered: device.scratch("hidden states", rows * spec.hidden_size)?,
            log: Log::new(device, rows, 0)?,
        })
    }
}

/// Results of predictions on the device: `[entries]` of each field of [`HeadLog`], one after the other, in words.
pub struct Log {
    pub words: Buffer<u32>,
    entries: usize,
    ring: usize,
}

impl Log {
    /// `ring` entries per slot; 0: one entry per row.
    pub fn new(device: &Device, entries: usize, ring: usize) -> Result<Log> {
        Ok(Log { words: device.scratch("results", entries * WORDS)?, entries, ring })
    }

    /// A copy of all words, once all earlier work is done.
    pub fn read(&self, device: &Device) -> Result<Vec<u32>> {
        device.read(&self.words, 0, self.entries * WORDS)
    }

    pub fn view(&self) -> HeadLog {
        let at = |words: usize| self.words.ptr().add(words * self.entries);
        HeadLog {
            tokens: at(0).cast(),
            logprobs: at(1).cast(),
            entropies: at(2).cast(),
            counts: at(3).cast(),
            top_ids: at(4).cast(),
            top_logprobs: at(4 + MAX_TOP).cast(),
            wide: at(4 + 2 * MAX_TOP).cast(),
            ring: self.ring as i32,
            padding: 0,
        }
    }

    /// An entry in a copy of the log's words; `None` if its logits were not finite. `wide`: whether the launch had
    /// a wide trace.
    pub fn entry(&self, words: &[u32], entry: usize, detail: bool, wide: bool) -> Option<(Step, Option<u32>)> {
        let int = |section: usize, at: usize| words[section * self.entries + at] as i32;
        let float = |section: usize, at: usize| f32::from_bits(words[section * self.entries + at]);
        let entropy = float(2, entry);
        let token = u32::try_from(int(0, entry)).ok();
        if !entropy.is_finite() {
            return None;
        }
        let logprob = token.map(|_| f64::from(float(1, entry)));
        let count = if detail { usize::try_from(int(3, entry)).unwrap_or(0).min(MAX_TOP) } else { 0 };
        let top = (entry * MAX_TOP..entry * MAX_TOP + count)
            .map(|at| TokenLogprob { token: int(4, at) as u32, logprob: f64::from(float(4 + MAX_TOP, at)) })
            .collect();
        let distribution = (detail && wide).then(|| {
            let number = |field: usize| f64::from(float(4 + 2 * MAX_TOP, entry * size_of::<WideResult>() / 4 + field));
            let [top_logprob, uniform_kl, log_affinity, dominant, dominant_logprob] = std::array::from_fn(number);
            Distribution { top_logprob, uniform_kl, log_affinity, dominant, dominant_logprob }
        });
        let entropy = if detail { f64::from(entropy) } else { 0.0 };
        Some((Step { logprob, entropy, top, distribution, ..Step::default() }, token))
    }
}

/// The row in the kernels' layout.
pub fn row_state(row: &Row, stream: u64) -> RowState {
    let Row { sequence, position, token } = *row;
    RowState { slot: sequence.0 as i32, position: position as i32, token: token as i32, stream: stream as i32 }
}

/// The sampler for the token after the row at `row_position`.
pub fn sampler(choice: &Choice, row_position: usize) -> Result<Sampler> {
    let Choice { sampling: Sampling { temperature, top_p, top_k, seed, .. }, position, vocabulary, .. } = *choice;
    let top_k = if top_k >= vocabulary { 0 } else { top_k };
    if temperature > 0.0 && top_k > LIST {
        return Err(CudaError::Unsupported(format!("top-k of {top_k}: expected at most {LIST}, or 0 for all")));
    }
    let counter_offset = (row_position as i64 - position as i64) as i32;
    let (top_k, choosable) = (top_k as i32, vocabulary as i32);
    Ok(Sampler { seed, temperature, top_p, top_k, counter_offset, choosable, padding: 0 })
}

/// Whether sampling needs the mass of the whole vocabulary.
pub fn needs_mass(sampler: &Sampler) -> bool {
    sampler.temperature > 0.0 && sampler.top_k == 0
}

impl CudaBackend {
    /// logits `[rows, vocab_size]` of a narrow pass's hidden states.
    pub(super) fn logits(&self, hidden: Floats, rows: usize) -> Result<()> {
        let job = Job { w: self.weights.head(), bias: None, y: self.head.logits.ptr() };
        self.gemv(hidden, Norm::default(), &[job], rows, Product::Logits)
    }

    /// Parameters of a run of the head, except its inputs and outputs. `wide`: whether the log's `wide` is written.
    pub(super) fn head_run(&self, wide: bool) -> HeadFinish {
        let (head, vocab) = (&self.head, self.spec.vocab_size);
        HeadFinish {
            logits: head.logits.ptr(),
            vocab: vocab.into(),
            blocks: vocab.div_ceil(CHUNK).into(),
            partials: head.partials.ptr(),
            wide: if wide { head.wide.ptr() } else { DevicePtr::NULL },
            lists: head.lists.ptr(),
            masses: head.masses.ptr(),
            not_finite: self.scratch.not_finite.ptr(),
            ..HeadFinish::default()
        }
    }

    /// Partial results of `rows` rows, one per chunk of their logits; a launch of [`HeadFinish`] combines them. `mass`:
    /// sampling needs that of the whole vocabulary.
    pub(super) fn reduce(&self, run: &HeadFinish, rows: usize, mass: bool) -> Result<()> {
        let HeadFinish { logits, vocab, blocks, partials, wide, lists, masses, samplers, .. } = *run;
        let (kernels, grid) = (&self.kernels.head, [self.spec.vocab_size.div_ceil(CHUNK), rows, 1]);
        let softcap = self.spec.final_logit_softcapping.unwrap_or(0.0);
        self.device.launch(&kernels.partial, grid, &HeadPartial { logits, vocab, softcap, partials, wide, lists })?;
        if mass {
            let parameters = HeadMass { logits, vocab, blocks, partials, samplers, masses };
            self.device.launch(&kernels.mass, grid, &parameters)?;
        }
        Ok(())
    }

    /// Predictions of at most 16 rows of the finished pass.
    pub(super) fn predict_some(&mut self, requests: &[Prediction]) -> Result<Vec<Predicted>, BackendError> {
        let mass = self.write_requests(requests)?;
        let (head, n, hidden) = (&self.head, requests.len(), self.gather(requests)?);
        let row = |request: &Prediction| self.pass.rows[request.row];
        let is_wide = |request: &Prediction| request.detail && self.sequences.is_wide(row(request).sequence);
        let run = HeadFinish {
            rows: head.rows.ptr(),
            samplers: head.samplers.ptr(),
            given: head.given.ptr(),
            log: head.log.view(),
            ..self.head_run(requests.iter().any(is_wide))
        };
        self.logits(hidden, n)?;
        self.reduce(&run, n, mass)?;
        self.device.launch(&self.kernels.head.finish, [n, 1, 1], &run)?;
        let words = head.log.read(&self.device)?;
        let entry = |(index, request): (usize, &Prediction)| {
            head.log.entry(&words, index, request.detail, is_wide(request)).ok_or(row(request).position)
        };
        let entries: Vec<_> = requests.iter().enumerate().map(entry).collect();
        let flag: Vec<i32> = self.device.read(&self.scratch.not_finite, 0, 1)?;
        let alone = self.pass.rows.windows(2).all(|pair| pair[0].sequence == pair[1].sequence);
        if flag != [0] {
            let position = self.first_bad_row()?;
            if alone {
                return Err(self.not_finite(position));
            }
        }
        Ok(entries.into_iter().map(|entry| entry.map_err(|position| self.not_finite(position))).collect())
    }

    /// Writes the requests; returns whether sampling needs the mass of the whole vocabulary.
    fn write_requests(&self, requests: &[Prediction]) -> Result<bool, BackendError> {
        let (mut rows, mut samplers, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            let row = self.pass.row(request.row)?;
            let (stream, sampler, token) = match request.next {
                Next::Given(token) => (0, Sampler::default(), token.map_or(NONE, |t| t as i32)),
                Next::Choose(choice) => (choice.stream, sampler(&choice, row.position)?, CHOOSE),
            };
            rows.push(row_state(row, stream));
            samplers.push(sampler);
            given.push(token);
        }
        self.device.write(&self.head.rows, 0, &rows)?;
        self.device.write(&self.head.samplers, 0, &samplers)?;
        self.device.write(&self.head.given, 0, &given)?;
        Ok(samplers.iter().any(needs_mass))
    }

    /// The requests' hidden states, contiguous.
    fn gather(&self, requests: &[Prediction]) -> Result<Floats> {
        let width = self.spec.hidden_size;
        let first = requests.first().map_or(0, |r| r.row);
        if requests.iter().enumerate().all(|(i, r)| r.row == first + i) {
            return Ok(self.scratch.h.ptr().add(first * width));
        }
        for (i, request) in requests.iter().enumerate() {
            let (to, from) = ((&self.head.gathered, i * width), (&self.scratch.h, request.row * width));
            self.device.copy(to, from, width)?;
        }
        Ok(self.head.gathered.ptr())
    }

    /// The position of the pass's first row whose hidden state is not finite; clears the flag.
    fn first_bad_row(&self) -> Result<usize> {
        self.device.fill(&self.scratch.not_finite, 0)?;
        let (n, width) = (self.pass.rows.len(), self.spec.hidden_size);
        let hidden: Vec<f32> = self.device.read(&self.scratch.h, 0, n * width)?;
        let bad = hidden.chunks_exact(width).position(|row| row.iter().any(|x| !x.is_finite()));
        // none here: the flag is from an earlier pass
        Ok(self.pass.rows.get(bad.unwrap_or(0)).map_or(0, |row| row.position))
    }

    /// The error for a hidden state that is not finite: names the tensor if a weight is not finite.
    pub(super) fn not_finite(&self, position: usize) -> BackendError {
        BackendError::not_finite(&self.host_weights, position)
    }
}
