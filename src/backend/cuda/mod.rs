//! The CUDA backend: the kernels of `kernels/` behind the driver API, loaded at run time. It builds and starts without
//! CUDA installed.
//!
//! Narrow passes (a decode step, or up to 16 rows) and wider ones round differently: the former as f32 arithmetic does; the inputs
//! of the latter's products are f16 with powers of two shared along a row. In both, a row's result does not depend on the other rows.

mod abi;
mod cache;
mod context;
mod decode;
mod delta_net;
pub mod error;
mod experts;
mod gemm;
mod kernel_set;
mod launch;
mod layers;
mod lm_head;
mod loader;
mod memory;
mod pass;
mod scratch;
mod selftest;
mod weights;

use super::{
    Backend, BackendError, DType, DecodeRow, ExpectedMemory, HeadAttention, HeadRecord, Next, OnStep, Pass, Predicted,
    Prediction, Result, Row, SequenceId, Step, TraceOptions, ValueType, WeightFormat, entropy::Gamma,
};
use crate::{model::ModelSpec, model::Weights, model::config::Rotation, model::weights::Weight};
use abi::{AttnRows, AttnSum, LayerShape, Reweighting};
use cache::{Sequences, TraceArray};
use context::Device;
pub use context::DeviceInfo;
use decode::Decoder;
pub use error::CudaError;
use half::f16;
use kernel_set::{DECODE_ROWS, KernelSet, Lines, MAX_HEADS, MAX_ROWS, NARROW_ROWS, SUMMED, Variants, decode_splits};
use lm_head::{LmHead, row_state};
use loader::KernelFiles;
use memory::Buffer;
use pass::{PassState, prefill_parts, shared_trace};
use scratch::{QUERIES, QUERY_ROWS, Queries, Scratch};
pub use selftest::{Check, check_all, run_if_child};
use std::{collections::BTreeSet, collections::VecDeque, ops::Range, sync::Arc};
use weights::{DeviceWeights, MatrixTypes};

/// Growth step of rotary tables, in positions.
const ANGLE_STEP: usize = 4096;

/// Options of the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaOptions {
    /// The driver's number of the device.
    pub ordinal: usize,
    /// Types of keys and values; `None`: [`DEFAULT_CACHE`]'s.
    pub k_cache: Option<DType>,
    pub v_cache: Option<DType>,
    pub weights: WeightFormat,
    pub gamma: Gamma,
}

/// Default types of keys and values. Keys are the sensitive operand: in 16 bits, some chains change. An f32 key is the
/// sum of two f16 values (`Halves` in `kernels/common.cuh`): 22 bits, which the tensor cores take without conversion.
const DEFAULT_CACHE: (DType, DType) = (DType::F32, DType::F16);

/// The engine's operations on a CUDA device.
pub struct CudaBackend {
    spec: ModelSpec,
    host_weights: Arc<Weights>,
    device: Device,
    origin: String,
    kernels: KernelSet,
    weights: DeviceWeights,
    /// Types of keys and values.
    cache: (DType, DType),
    sequences: Sequences,
    scratch: Scratch,
    /// Warnings for the user.
    warnings: Vec<String>,
    head: LmHead,
    decoder: Decoder,
    queries: Queries,
    /// Cosines and sines of each rope table, `[rows, head_dim / 2]`: of every position; if long sequences have their own, of the
    /// `ModelSpec::short_context` positions of short ones, then of all positions of long ones.
    angles: Vec<[Buffer<f32>; 2]>,
    /// Number of rows in `angles`.
    angle_rows: usize,
    /// One per layer with attention.
    shapes: Buffer<LayerShape>,
    /// Splits of a row's positions in a decode step; constant, so that a row's bits do not change.
    splits: usize,
    pass: PassState,
}

/// A CUDA device, and the origin of its kernels or the reason it cannot be used.
pub struct FoundDevice {
    pub info: DeviceInfo,
    pub kernels: Result<String, CudaError>,
}

/// The CUDA devices.
pub fn devices() -> Result<Vec<FoundDevice>, CudaError> {
    let describe = |ordinal| {
        let device = Device::open(ordinal)?;
        let kernels = KernelFiles::new(&device).map(|files| files.origin());
        Ok(FoundDevice { info: device.info, kernels })
    };
    (0..context::count()?).map(describe).collect()
}

impl CudaBackend {
    /// Loads the kernels and copies the weights; `progress` receives the bytes copied so far and the bytes of all
    /// matrices.
    pub fn new(
        spec: ModelSpec,
        weights: Arc<Weights>,
        options: &CudaOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CudaBackend, CudaError> {
        weights::check_shape(&spec, &weights, options.weights)?;
        let device = Device::open(options.ordinal)?;
        let files = KernelFiles::new(&device)?;
        let cache = (options.k_cache.unwrap_or(DEFAULT_CACHE.0), options.v_cache.unwrap_or(DEFAULT_CACHE.1));
        let head_dims: BTreeSet<usize> = spec.attention_layers().map(|layer| spec.layers[layer].head_dim).collect();
        let variants = Variants {
            head_dims: head_dims.into_iter().collect(),
            layers: spec.attention_layers().count(),
            heads: spec.num_attention_heads,
            types: MatrixTypes::new(&weights, options.weights).all(&weights),
            embedding: weights.embedding.dtype.into(),
            cache,
            experts: weights::expert_type(&weights),
            delta_net: spec.delta_net.is_some(),
        };
        let (device, kernels, warnings) = selftest::settle(device, &files, &variants)?;
        files.set(Reweighting::NAME, Reweighting::from(options.gamma))?;
        let mut backend = CudaBackend::with(spec, weights, device, kernels, cache, progress)?;
        (backend.origin, backend.warnings) = (files.origin(), warnings);
        Ok(backend)
    }

    /// A backend with kernels that have been loaded and tested.
    fn with(
        spec: ModelSpec,
        weights: Arc<Weights>,
        device: Device,
        kernels: KernelSet,
        cache: (DType, DType),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CudaBackend, CudaError> {
        let device_weights = DeviceWeights::upload(&device, &weights, &spec, &kernels, progress)?;
        let splits = decode_splits(&spec, device.info.multiprocessors);
        let sequences = Sequences::new(&device, &spec, cache)?;
        let shapes: Vec<_> = spec.attention_layers().map(|layer| sequences.layer_shape(layer)).collect();
        let mut backend = CudaBackend {
            scratch: Scratch::new(&device, &spec, splits)?,
            warnings: Vec::new(),
            head: LmHead::new(&device, &spec, NARROW_ROWS)?,
            decoder: Decoder::new(&device, sequences.slots)?,
            queries: Queries::new(&device)?,
            angles: Vec::new(),
            angle_rows: 0,
            shapes: device.upload("shapes of layers", &shapes)?,
            origin: String::new(),
            host_weights: weights,
            weights: device_weights,
            cache,
            pass: PassState::default(),
            spec,
            device,
            kernels,
            sequences,
            splits,
        };
        let max = backend.long_angles() + backend.sequences.max_positions;
        let table = |pairs: usize| backend.device.growing("rotary tables", max * pairs);
        let rotations = backend.spec.rotations(false);
        let angles = rotations.iter().map(|r| Ok([table(r.frequencies.len())?, table(r.frequencies.len())?]));
        backend.angles = angles.collect::<Result<_, CudaError>>()?;
        backend.reserve_angles(1)?;
        Ok(backend)
    }

    /// The row of a long sequence's first position in the rotary tables.
    fn long_angles(&self) -> usize {
        self.spec.short_context().unwrap_or(0)
    }

    /// Number of rows in rotary tables that cover row `len - 1`.
    fn angles_for(&self, len: usize) -> usize {
        len.next_multiple_of(ANGLE_STEP).min(self.long_angles() + self.sequences.max_positions).max(len)
    }

    /// Extends the rotary tables to cover row `len - 1`.
    fn reserve_angles(&mut self, len: usize) -> Result<(), CudaError> {
        let (first, rows, long) = (self.angle_rows, self.angles_for(len), self.long_angles());
        if len <= first {
            return Ok(());
        }
        let rotations = self.spec.rotations(false).into_iter().zip(self.spec.rotations(true));
        for ((of_short, of_long), table) in rotations.zip(&mut self.angles) {
            let row = of_short.frequencies.len();
            let angles = |row: usize| row.checked_sub(long).map_or_else(|| of_short.at(row), |at| of_long.at(at));
            let turns = (first..rows).flat_map(angles);
            let (cos, sin): (Vec<f32>, Vec<f32>) = turns.map(|(cos, sin)| (cos as f32, sin as f32)).unzip();
            for (buffer, values) in table.iter_mut().zip([cos, sin]) {
                let old = buffer.ptr();
                self.device.grow(buffer, "rotary tables", rows * row)?;
                self.device.write(buffer, first * row, &values)?;
                if buffer.ptr() != old {
                    self.decoder.forget();
                }
            }
        }
        self.angle_rows = rows;
        Ok(())
    }

    /// Makes room for positions `0..len` of a sequence.
    fn reserve_positions(&mut self, id: SequenceId, len: usize) -> Result<(), CudaError> {
        let slots = self.sequences.slots;
        self.sequences.reserve(id, len)?;
        if self.sequences.slots != slots {
            self.decoder.forget();
        }
        self.reserve_angles(self.sequences.first_angle(id) + self.sequences.capacity(id))
    }
}

impl Backend for CudaBackend {
    fn device(&self) -> String {
        let DeviceInfo { ordinal, name, total, .. } = &self.device.info;
        let weights = if self.kernels.pack_q8.is_some() { ", q8 weights" } else { "" };
        format!("cuda:{ordinal} ({name}, {}, {}{weights})", crate::units::bytes(*total), self.origin)
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn cache_types(&self) -> (DType, ValueType) {
        (self.cache.0, self.cache.1.into())
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        self.weights.types.bytes(weight)
    }

    fn max_rows(&self) -> usize {
        MAX_ROWS
    }

    fn decode_rows(&self) -> usize {
        NARROW_ROWS
    }

    fn open_for(&mut self, tokens: usize, trace: Option<TraceOptions>) -> Result<SequenceId> {
        let first_angle = if self.spec.is_long(tokens) { self.long_angles() } else { 0 };
        Ok(self.sequences.open(trace, first_angle)?)
    }

    fn reserve(&mut self, sequence: SequenceId, positions: usize) -> Result<()> {
        Ok(self.sequences.hint(sequence, positions)?)
    }

    fn fork(&mut self, sequence: SequenceId, positions: usize, trace: Option<TraceOptions>) -> Result<SequenceId> {
        if self.sequences.resumes_at(sequence, positions) != positions {
            return Err(BackendError::NotHeld { position: positions });
        }
        let id = self.sequences.open(trace, self.sequences.first_angle(sequence))?;
        // with room for the next pass, up to the source's capacity
        let room = self.sequences.capacity(sequence).min(positions + MAX_ROWS).max(positions);
        let copied = self
            .reserve_positions(id, room)
            .and_then(|()| self.sequences.copy_prefix(sequence, id, positions))
            .inspect_err(|_| self.sequences.close(id));
        copied.map(|()| id).map_err(BackendError::from)
    }

    fn resumes_at(&self, sequence: SequenceId, positions: usize) -> usize {
        self.sequences.resumes_at(sequence, positions)
    }

    fn expect_fork(&mut self, sequence: SequenceId, positions: usize) {
        self.sequences.expect_fork(sequence, positions);
    }

    fn mixes_sequences(&self) -> bool {
        true
    }

    fn truncate(&mut self, sequence: SequenceId, positions: usize) {
        self.sequences.truncate(sequence, positions);
    }

    fn close(&mut self, sequence: SequenceId) {
        let _ = self.device.fill(&self.scratch.not_finite, 0); // another sequence may get the id
        self.sequences.close(sequence);
    }

    fn begin(&mut self, pass: &Pass) -> Result<()> {
        let Pass { rows, record, .. } = *pass;
        self.check_tokens(rows)?;
        self.sequences.check_states(rows)?;
        for row in rows {
            self.reserve_positions(row.sequence, row.position + 1)?;
        }
        // from pass to pass the flag of a row that is not finite is kept for one sequence
        let first = |rows: &[Row]| rows.first().map(|row| row.sequence);
        if self.pass.captured || first(&self.pass.rows) != first(rows) {
            self.device.fill(&self.scratch.not_finite, 0)?;
        }
        let trace = shared_trace(&mut self.sequences, rows, record)?;
        if let Some(keep) = trace.map(|t| t.heads).filter(|keep| !(1..=MAX_HEADS).contains(keep)) {
            return Err(CudaError::Unsupported(format!("{keep} heads a row: expected 1 to {MAX_HEADS}")).into());
        }
        let keeps = self.sequences.begin_states(rows, record)?;
        self.device.write(&self.scratch.delta.keeps, 0, &keeps)?;
        let states: Vec<_> = rows.iter().map(|row| row_state(row, 0)).collect();
        self.device.write(&self.scratch.rows, 0, &states)?;
        self.pass = PassState { rows: rows.to_vec(), trace, ..PassState::default() };
        if !self.pass.narrow() {
            let mut parts = Vec::new();
            for lines in Lines::of_layers(&self.spec) {
                let first = parts.len();
                parts.extend(prefill_parts(rows, lines));
                self.pass.parts.push((lines, first..parts.len()));
            }
            self.device.write(&self.scratch.parts, 0, &parts)?;
        }
        Ok(())
    }

    fn next_logits(&mut self, row: usize) -> Result<Vec<f32>> {
        self.predict(&[Prediction { row, next: Next::Given(None), detail: false }])?;
        Ok(self.device.read(&self.head.logits, 0, self.spec.vocab_size)?)
    }

    fn predict_each(&mut self, requests: &[Prediction]) -> Result<Vec<Predicted>> {
        let mut results = Vec::with_capacity(requests.len());
        for some in requests.chunks(NARROW_ROWS) {
            results.extend(self.predict_some(some)?);
        }
        Ok(results)
    }

    fn step(&mut self, rows: &[DecodeRow], vocabulary: usize) -> Result<Vec<(Step, u32)>> {
        let shape = self.begin_group(rows, vocabulary)?;
        self.replay(shape, 1)?;
        rows.iter().for_each(|row| self.entered(&row.row));
        let words = self.decoder.log.read(&self.device)?;
        rows.iter().map(|row| self.result(&words, row)).collect()
    }

    fn decode(&mut self, rows: &[DecodeRow], vocabulary: usize, on_step: &mut OnStep) -> Result<()> {
        let room = self.room_for(rows.len().min(DECODE_ROWS))?;
        let mut waiting: VecDeque<(usize, DecodeRow)> = rows.iter().copied().enumerate().collect();
        let mut active = Vec::new();
        loop {
            active.extend(waiting.drain(..waiting.len().min(room - active.len())));
            if active.is_empty() {
                return Ok(());
            }
            // a sequence may be closed after an error: no step that writes to it is left in flight
            let rest = self.decode_group(active, vocabulary, on_step);
            active = rest.inspect_err(|_| drop(self.device.synchronize()))?;
        }
    }

    #[cfg(test)]
    fn hidden(&self, row: usize) -> Result<Vec<f32>> {
        self.pass.row(row)?;
        let width = self.spec.hidden_size;
        Ok(self.device.read(&self.scratch.h, row * width, width)?)
    }

    fn head_record(&self, id: SequenceId, row: usize) -> Result<Option<HeadRecord>> {
        let (Some(index), Some(options)) = (self.sequences.trace_index(id, row), self.sequences.options(id)) else {
            return Ok(None);
        };
        let heads: Vec<i32> = self.sequences.read_trace(id, TraceArray::Heads, index, options.parts.heads)?;
        let mut entropies: Vec<f32> =
            self.sequences.read_trace(id, TraceArray::Entropies, index, options.parts.heads)?;
        let gap: Vec<f32> = self.sequences.read_trace(id, TraceArray::Gaps, index, 1)?;
        // a model with fewer heads than K keeps them all
        let heads: Vec<u32> = heads.into_iter().map_while(|head| u32::try_from(head).ok()).collect();
        entropies.truncate(heads.len());
        let gap = gap.first().filter(|_| heads.len() < self.spec.total_heads()).copied().unwrap_or(f32::INFINITY);
        Ok(Some(HeadRecord { heads, entropies, gap }))
    }

    fn head_attention(&self, id: SequenceId, row: usize) -> Result<Option<Vec<HeadAttention>>> {
        let recorded = self.sequences.options(id).is_some_and(|options| options.parts.head_attention);
        let Some(index) = self.sequences.trace_index(id, row).filter(|_| recorded) else { return Ok(None) };
        Ok(Some(self.sequences.read_trace(id, TraceArray::Places, index, self.spec.total_heads())?))
    }

    fn layer_means(&self, sequence: SequenceId) -> Result<Option<Vec<Vec<f64>>>> {
        Ok(self.sequences.layer_means(sequence)?)
    }

    fn attention_rows(&mut self, id: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
        let mut result: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row + 1]).collect();
        let Some(options) = self.sequences.options(id) else { return Ok(result) };
        let traced: Vec<usize> =
            (0..rows.len()).filter(|i| self.sequences.trace_index(id, rows[*i]).is_some()).collect();
        for some in traced.chunks(QUERY_ROWS) {
            let asked: Vec<i32> = some.iter().map(|i| rows[*i] as i32).collect();
            let stride = some.iter().map(|i| rows[*i] + 1).max().unwrap_or(0);
            self.device.grow(&mut self.queries.out, QUERIES, (some.len() * stride).next_power_of_two())?;
            let Queries { rows: on_device, out } = &self.queries;
            self.device.write(on_device, 0, &asked)?;
            let parameters = AttnRows {
                sequences: self.sequences.views.ptr(),
                slot: id.0.into(),
                asked: on_device.ptr(),
                shapes: self.shapes.ptr(),
                softcap: self.softcap(),
                heads: self.spec.num_attention_heads.into(),
                keep: options.parts.heads.into(),
                stride: stride.into(),
                out: out.ptr(),
            };
            self.device.launch(&self.kernels.rows, [stride.div_ceil(32), some.len(), 1], &parameters)?;
            let found = self.device.read(out, 0, some.len() * stride)?;
            for (i, row) in some.iter().zip(found.chunks(stride)) {
                let len = result[*i].len();
                result[*i].copy_from_slice(&row[..len]);
            }
        }
        Ok(result)
    }

    /// For the pass's first row.
    fn layer_attention(&mut self, layer: usize) -> Result<Vec<f32>> {
        let count = self.pass.rows.first().map_or(0, |row| row.position + 1);
        self.device.grow(&mut self.queries.out, QUERIES, count.next_power_of_two())?;
        let (scratch, out) = (&self.scratch, &self.queries.out);
        let parameters = AttnSum {
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            of: self.layer_heads(layer),
            head_dim: self.spec.layers[layer].head_dim.into(),
            count: count.into(),
            out: out.ptr(),
        };
        self.device.launch(&self.kernels.sum, [count.div_ceil(SUMMED), 1, 1], &parameters)?;
        Ok(self.device.read(out, 0, count)?)
    }

    fn hidden_states(&self, id: SequenceId, positions: Range<usize>) -> Result<Vec<f32>> {
        let (width, mut states) = (self.spec.hidden_size, Vec::with_capacity(positions.len() * self.spec.hidden_size));
        let is_traced = |position: &usize| self.sequences.trace_index(id, *position).is_some();
        let traced = positions.clone().filter(is_traced).count();
        if let Some((first, index)) = positions.clone().find_map(|p| Some((p, self.sequences.trace_index(id, p)?))) {
            states.resize((first - positions.start) * width, 0.0);
            let halves: Vec<f16> = self.sequences.read_trace(id, TraceArray::Hidden, index, traced * width)?;
            states.extend(halves.into_iter().map(|x| x.to_f32() / self.weights.hidden_scale));
        }
        states.resize(positions.len() * width, 0.0);
        Ok(states)
    }

    fn expected_memory(&self, positions: usize, trace: TraceOptions) -> ExpectedMemory {
        let reached = self.angles_for(self.long_angles() + self.sequences.capacity_for(positions));
        let step = self.device.granularity.unwrap_or(1);
        let table = |r: &Rotation| 2 * (4 * reached * r.frequencies.len()).next_multiple_of(step);
        let tables: usize = self.spec.rotations(false).iter().map(table).sum();
        let working = self.device.scratch_bytes.get() + tables;
        ExpectedMemory { working, ..self.sequences.expected_bytes(positions, trace) }
    }

    fn memory(&self, sequence: SequenceId) -> (usize, usize) {
        self.sequences.bytes(sequence)
    }
}
