//! From hidden states to what the method needs of a prediction: the logits stay on the device, and their token, its
//! log-probability, the entropy and the alternatives come back.

use super::CudaBackend;
use super::device::{Argument, Buffer, Device};
use super::error::CudaError;
use super::layout::{HeadLog, RowState, Sampler};
use super::variants::{HEAD_SHARED, NARROW_ROWS};
use crate::backend::sampling::{Choice, Sampling};
use crate::backend::{BackendError, Next, Prediction, Row, Step, TokenLogprob};
use crate::model::ModelSpec;

/// Logits that one block reads.
const CHUNK: usize = 4096;

/// Alternatives of an entry.
const MOST: usize = 100;

/// Entries of the sorted lists that `head_partial` leaves behind; also the most that top-k can be.
const LIST: usize = 128;

/// `given`: the token is chosen here; there is none.
const CHOOSE: i32 = -1;
const NONE: i32 = -2;

/// Buffers of the head, for [`NARROW_ROWS`] rows.
pub struct Head {
    /// `[16, vocab_size]`
    pub logits: Buffer,
    partials: Buffer,
    lists: Buffer,
    masses: Buffer,
    /// What the predictions of a pass are of: `[16]` each
    rows: Buffer,
    samplers: Buffer,
    given: Buffer,
    /// `[16, hidden_size]`, for rows that are not neighbours
    gathered: Buffer,
    log: Log,
    blocks: usize,
}

impl Head {
    pub fn new(device: &Device, spec: &ModelSpec) -> Result<Head, CudaError> {
        let blocks = spec.vocab_size.div_ceil(CHUNK);
        let of = |what: &str, row: usize| device.allocate(&format!("scratch memory ({what})"), NARROW_ROWS * row);
        Ok(Head {
            logits: of("logits", 4 * spec.vocab_size)?,
            partials: of("head", 12 * blocks)?,
            lists: of("head", 8 * LIST * blocks)?,
            masses: of("head", 8 * blocks)?,
            rows: of("rows", size_of::<RowState>())?,
            samplers: of("samplers", size_of::<Sampler>())?,
            given: of("tokens", 4)?,
            gathered: of("hidden states", 4 * spec.hidden_size)?,
            log: Log::new(device, NARROW_ROWS, 0)?,
            blocks,
        })
    }
}

impl Head {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let Head { logits, partials, lists, masses, gathered, .. } = self;
        [logits, partials, lists, masses, gathered].iter().map(|buffer| buffer.bytes()).sum()
    }
}

/// Results of predictions on the device: `[entries]` of each field of [`HeadLog`], one behind the other.
pub struct Log {
    pub data: Buffer,
    entries: usize,
    ring: usize,
}

impl Log {
    /// With `ring` entries a slot, or, with 0, an entry a row.
    pub fn new(device: &Device, entries: usize, ring: usize) -> Result<Log, CudaError> {
        let data = device.allocate("results", entries * (16 + 8 * MOST))?;
        Ok(Log { data, entries, ring })
    }

    pub fn bytes(&self) -> usize {
        self.entries * (16 + 8 * MOST)
    }

    pub fn view(&self) -> HeadLog {
        let at = |words: usize| self.data.address() + (4 * words * self.entries) as u64;
        HeadLog {
            tokens: at(0),
            logprobs: at(1),
            entropies: at(2),
            counts: at(3),
            top_ids: at(4),
            top_logprobs: at(4 + MOST),
            ring: self.ring as i32,
            padding: 0,
        }
    }

    /// An entry of a copy of the log's bytes; `None` if its logits were not finite.
    pub fn entry(&self, bytes: &[u8], entry: usize, detail: bool) -> Option<(Step, Option<u32>)> {
        let word = |index: usize| <[u8; 4]>::try_from(bytes.get(4 * index..4 * index + 4)?).ok();
        let int = |section: usize, at: usize| word(section * self.entries + at).map_or(0, i32::from_ne_bytes);
        let float = |section: usize, at: usize| word(section * self.entries + at).map_or(f32::NAN, f32::from_ne_bytes);
        let entropy = float(2, entry);
        let token = u32::try_from(int(0, entry)).ok();
        if !entropy.is_finite() {
            return None;
        }
        let logprob = token.map(|_| f64::from(float(1, entry)));
        let count = if detail { usize::try_from(int(3, entry)).unwrap_or(0).min(MOST) } else { 0 };
        let top = (entry * MOST..entry * MOST + count)
            .map(|at| TokenLogprob { token: int(4, at) as u32, logprob: f64::from(float(4 + MOST, at)) })
            .collect();
        Some((Step { logprob, entropy: if detail { f64::from(entropy) } else { 0.0 }, top }, token))
    }
}

/// The row as the kernels take it.
pub fn row_state(row: &Row, stream: u64) -> RowState {
    let Row { sequence, position, token } = *row;
    RowState { slot: sequence.0 as i32, position: position as i32, token: token as i32, stream: stream as i32 }
}

/// The sampler of a choice after a row at `row_position`.
pub fn sampler(choice: &Choice, row_position: usize) -> Result<Sampler, CudaError> {
    let Choice { sampling: Sampling { temperature, top_p, top_k, seed }, position, vocabulary, .. } = *choice;
    let top_k = if top_k >= vocabulary { 0 } else { top_k };
    if temperature > 0.0 && top_k > LIST {
        return Err(CudaError::Unsupported(format!("top-k of {top_k}: expected at most {LIST}, or 0 for all")));
    }
    let first_position = (row_position as i64 - position as i64) as i32;
    let (top_k, choosable) = (top_k as i32, vocabulary as i32);
    Ok(Sampler { seed, temperature, top_p, top_k, first_position, choosable, padding: 0 })
}

/// Whether a draw needs the mass of the whole vocabulary.
pub fn needs_mass(sampler: &Sampler) -> bool {
    sampler.temperature > 0.0 && sampler.top_k == 0
}

/// Where the head finds its rows and leaves its results.
pub struct HeadRun<'a> {
    pub n: usize,
    pub rows: &'a Buffer,
    pub samplers: &'a Buffer,
    /// Null: all are chosen.
    pub given: u64,
    /// Where the next step's rows go; null: nowhere.
    pub next_rows: u64,
    pub mass: bool,
    pub log: HeadLog,
}

impl CudaBackend {
    /// The launches from the logits of `run.n` rows on.
    pub(super) fn read_logits(&self, run: &HeadRun) -> Result<(), CudaError> {
        let (s, head) = (&self.spec, &self.head);
        let (blocks, vocab): (Argument, Argument) = (head.blocks.into(), s.vocab_size.into());
        let grid = [head.blocks, run.n, 1];
        let softcap = s.final_logit_softcapping.unwrap_or(0.0).into();
        let arguments = [(&head.logits).into(), vocab, softcap, (&head.partials).into(), (&head.lists).into()];
        self.device.launch(&self.variants.head_partial, grid, 512, HEAD_SHARED, &arguments)?;
        if run.mass {
            let (samplers, masses) = (run.samplers.into(), (&head.masses).into());
            let arguments = [(&head.logits).into(), vocab, blocks, (&head.partials).into(), samplers, masses];
            self.device.launch(&self.variants.head_mass, grid, 512, HEAD_SHARED, &arguments)?;
        }
        let arguments = [
            (&head.logits).into(),
            vocab,
            blocks,
            (&head.partials).into(),
            (&head.lists).into(),
            (&head.masses).into(),
            run.rows.into(),
            run.samplers.into(),
            run.given.into(),
            run.next_rows.into(),
            run.log.into(),
            (&self.scratch.not_finite).into(),
        ];
        self.device.launch(&self.variants.head_finish, [run.n, 1, 1], 512, HEAD_SHARED, &arguments)
    }

    /// Predictions of at most 16 rows of the pass that has ended.
    pub(super) fn predict_some(&mut self, requests: &[Prediction]) -> Result<Vec<(Step, Option<u32>)>, BackendError> {
        let mass = self.write_requests(requests)?;
        let hidden = self.gather(requests)?;
        let head = &self.head;
        let run = HeadRun {
            n: requests.len(),
            rows: &head.rows,
            samplers: &head.samplers,
            given: head.given.address(),
            next_rows: 0,
            mass,
            log: head.log.view(),
        };
        self.logits(hidden, requests.len())?;
        self.read_logits(&run)?;
        let bytes: Vec<u8> = self.device.read(&head.log.data, 0, head.log.bytes())?;
        let flag: Vec<i32> = self.device.read(&self.scratch.not_finite, 0, 1)?;
        if flag != [0] {
            let position = self.first_bad_row()?;
            return Err(self.not_finite(position));
        }
        let entry = |(index, request): (usize, &Prediction)| {
            let position = self.pass.rows[request.row].position;
            self.head.log.entry(&bytes, index, request.detail).ok_or_else(|| self.not_finite(position))
        };
        requests.iter().enumerate().map(entry).collect()
    }

    /// Writes what is asked; whether a draw needs the mass of the whole vocabulary.
    fn write_requests(&self, requests: &[Prediction]) -> Result<bool, BackendError> {
        let (mut rows, mut samplers, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            let row = &self.pass.rows[request.row];
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

    /// The address of the requests' hidden states, one behind the other.
    fn gather(&self, requests: &[Prediction]) -> Result<u64, CudaError> {
        let width = self.spec.hidden_size;
        let first = requests.first().map_or(0, |r| r.row);
        if requests.iter().enumerate().all(|(i, r)| r.row == first + i) {
            return Ok(self.scratch.h.floats(first * width));
        }
        for (i, request) in requests.iter().enumerate() {
            let (to, from) = ((&self.head.gathered, 4 * i * width), (&self.scratch.h, 4 * request.row * width));
            self.device.copy(to, from, 4 * width)?;
        }
        Ok(self.head.gathered.address())
    }

    /// The position of the pass's first row whose hidden state is not finite; clears the flag.
    fn first_bad_row(&self) -> Result<usize, CudaError> {
        self.device.fill(&self.scratch.not_finite, 0)?;
        let (n, width) = (self.pass.rows.len(), self.spec.hidden_size);
        let hidden: Vec<f32> = self.device.read(&self.scratch.h, 0, n * width)?;
        let bad = hidden.chunks_exact(width).position(|row| row.iter().any(|x| !x.is_finite()));
        // none here: it was in an earlier chunk
        Ok(self.pass.rows.get(bad.unwrap_or(0)).map_or(0, |row| row.position))
    }

    /// The error for a hidden state that is not finite: names the tensor if a weight is to blame.
    pub(super) fn not_finite(&self, position: usize) -> BackendError {
        BackendError::not_finite(&self.host_weights, position)
    }
}
