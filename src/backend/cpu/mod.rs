//! The CPU backend: runs everywhere and defines correctness.

pub mod attention;
pub mod cache;
mod delta_net;
mod input_rounding;
mod layer;
pub mod matmul;
pub mod norm;
mod pass;
mod predict;
pub mod simd;
pub mod threads;
pub mod trace;

use super::q8::{Q8Block, quantize};
use super::{
    Backend, BackendError, DType, HeadAttention, HeadRecord, Next, Pass, Predicted, Prediction, Result, STATE_INTERVAL,
    SequenceId, TraceOptions, ValueType, WeightFormat, entropy::Gamma,
};
use crate::model::config::{LayerSpec, Rotation};
use crate::model::{ModelSpec, Weights, weights::Weight};
use attention::{AttentionShape, RowHead};
use cache::KvCache;
use delta_net::States;
pub use input_rounding::InputRounding;
use matmul::{Matrix, Numbers, matmul};
use pass::PassState;
use simd::Isa;
use std::{collections::HashMap, ops::Range, sync::Arc};
use threads::{Disjoint, ThreadPool};
use trace::{Selection, Trace};

/// Rows of a pass: enough for matrix products at full speed, few enough to bound scratch memory.
const MAX_ROWS: usize = 512;

/// Rows whose logits are held at a time; more would gain nothing (NOTES).
const LOGIT_ROWS: usize = 16;

/// Options of the backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// 0: one per core.
    pub threads: usize,
    pub k_cache: DType,
    pub v_cache: ValueType,
    pub isa: Isa,
    pub input_rounding: InputRounding,
    pub weights: WeightFormat,
    pub gamma: Gamma,
}

/// The engine's operations on the CPU, in f32 over weights of any file type.
pub struct CpuBackend {
    spec: ModelSpec,
    weights: Arc<Weights>,
    packed: Packed,
    pool: ThreadPool,
    options: CpuOptions,
    /// By id; a closed one is empty, and its slot is free.
    sequences: Vec<Sequence>,
    pass: PassState,
    /// By rope table, of short and long sequences.
    rotations: [Vec<Rotation>; 2],
}

#[derive(Default)]
struct Sequence {
    open: bool,
    /// Whether it has the frequencies of long sequences.
    long: bool,
    cache: KvCache,
    /// In models with delta nets.
    states: Option<States>,
    trace: Option<Trace>,
}

impl CpuBackend {
    pub fn new(spec: ModelSpec, weights: Arc<Weights>, options: CpuOptions) -> CpuBackend {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if options.threads == 0 { cores } else { options.threads };
        let rotations = [false, true].map(|long| spec.rotations(long));
        let pool = ThreadPool::new(threads);
        CpuBackend {
            packed: Packed::new(&weights, options.weights, &pool),
            pool,
            spec,
            weights,
            options,
            sequences: Vec::new(),
            pass: PassState::default(),
            rotations,
        }
    }

    /// Bytes of the states of all delta nets after one token.
    fn bytes_of_states(&self) -> usize {
        let layers = self.spec.layers.len() - self.spec.attention_layers().count();
        self.spec.delta_net.map_or(0, |net| States::bytes_of_one(&net, layers))
    }

    /// Takes the maximum of `row` and α' of one traced head, position by position.
    fn accumulate(&self, cache: &KvCache, (id, selected): &(usize, RowHead), row: &mut [f32]) {
        let heads = self.spec.num_attention_heads;
        let shape = self.shape(self.spec.attention_layers().nth(id / heads).unwrap_or_default());
        let traced = RowHead { query: &selected.query[..shape.head_dim], ..*selected };
        attention::accumulate_row(self.options.isa, &shape, cache, id % heads, &traced, row);
    }

    fn shape(&self, layer: usize) -> AttentionShape {
        let LayerSpec { head_dim, num_key_value_heads, window, kv_layer, .. } = self.spec.layers[layer];
        AttentionShape {
            layer: kv_layer,
            heads: self.spec.num_attention_heads,
            kv_heads: num_key_value_heads,
            head_dim,
            window,
            softcap: self.spec.attn_logit_softcapping,
            gamma: self.options.gamma,
            one_term: self.pass.rounds && self.options.input_rounding == InputRounding::OneTermAttention,
        }
    }

    /// Cosines and sines of every row, for every rope table.
    fn rotary_tables(&mut self) {
        let turns = |table: usize| {
            let rows = self.pass.rows.iter().flat_map(|row| {
                self.rotations[usize::from(self.sequences[row.sequence.0].long)][table].at(row.position)
            });
            rows.map(|(c, s)| (c as f32, s as f32)).unzip()
        };
        (self.pass.cos, self.pass.sin) = (0..self.spec.rope.len()).map(turns).unzip();
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> String {
        let weights = if self.options.weights.is_file() { "" } else { ", q8 weights" };
        format!("cpu ({}, {} threads{weights})", self.options.isa.name(), self.pool.threads())
    }

    fn cache_types(&self) -> (DType, ValueType) {
        (self.options.k_cache, self.options.v_cache)
    }

    fn weight_bytes(&self, weight: &Weight) -> usize {
        self.packed.bytes_of(weight)
    }

    fn max_rows(&self) -> usize {
        MAX_ROWS
    }

    fn open_for(&mut self, tokens: usize, trace: Option<TraceOptions>) -> Result<SequenceId> {
        let s = &self.spec;
        let (k, v) = (self.options.k_cache, self.options.v_cache);
        let mut layers = vec![(0, 0); s.layers.len()];
        s.cached_layers().for_each(|(index, layer)| layers[index] = (layer.num_key_value_heads, layer.head_dim));
        let sequence = Sequence {
            open: true,
            long: s.is_long(tokens),
            cache: KvCache::new(layers.into_iter(), k, v),
            states: s.delta_net.as_ref().map(|net| States::new(net, s.layers.len() - s.attention_layers().count())),
            trace: trace.map(Trace::new),
        };
        let free = self.sequences.iter().position(|s| !s.open).unwrap_or(self.sequences.len());
        self.sequences.resize_with(self.sequences.len().max(free + 1), Sequence::default);
        self.sequences[free] = sequence;
        Ok(SequenceId(free))
    }

    fn fork(&mut self, sequence: SequenceId, positions: usize, trace: Option<TraceOptions>) -> Result<SequenceId> {
        let Sequence { cache, states, long, .. } = &self.sequences[sequence.0];
        let copy = (cache.prefix(positions), states.clone(), *long);
        let id = self.open(trace)?;
        let fork = &mut self.sequences[id.0];
        (fork.cache, fork.states, fork.long) = copy;
        if fork.states.as_mut().is_some_and(|states| !states.resume(positions)) {
            self.close(id);
            return Err(BackendError::NotHeld { position: positions });
        }
        Ok(id)
    }

    fn resumes_at(&self, sequence: SequenceId, positions: usize) -> usize {
        let states = self.sequences[sequence.0].states.as_ref();
        states.map_or(positions, |states| states.resumes_at(positions))
    }

    fn expect_fork(&mut self, sequence: SequenceId, positions: usize) {
        self.sequences[sequence.0].states.iter_mut().for_each(|states| states.expected.push(positions));
    }

    fn is_bit_equal_at_any_width(&self) -> bool {
        self.options.input_rounding == InputRounding::F32
    }

    fn mixes_sequences(&self) -> bool {
        true
    }

    fn truncate(&mut self, sequence: SequenceId, positions: usize) {
        let Sequence { cache, trace, .. } = &mut self.sequences[sequence.0];
        cache.truncate(positions);
        trace.iter_mut().for_each(|trace| trace.truncate(positions));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0] = Sequence::default();
    }

    fn begin(&mut self, pass: &Pass) -> Result<()> {
        self.check_tokens(pass.rows)?;
        self.begin_delta_nets(pass.rows, pass.record)?;
        let query_width = self.spec.widest(|layer| layer.head_dim);
        let selections = pass.rows.iter().map(|row| {
            let sequence = &mut self.sequences[row.sequence.0];
            sequence.cache.reserve(row.position + 1);
            let options = sequence.trace.as_ref()?.options;
            (pass.record && row.position >= options.first_row).then(|| Selection::new(options, query_width))
        });
        let selections = selections.collect();
        self.pass.begin(&self.spec, pass, selections);
        self.pass.rounds = self.options.input_rounding != InputRounding::F32 && pass.rows.len() > 16;
        self.rotary_tables();
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let bad = self.pass.finite.iter().position(|finite| !finite);
        bad.map_or(Ok(()), |index| Err(BackendError::not_finite(&self.weights, self.pass.rows[index].position)))
    }

    fn next_logits(&mut self, row: usize) -> Result<Vec<f32>> {
        self.predict(&[Prediction { row, next: Next::Given(None), detail: false }])?;
        Ok(self.pass.logits[..self.spec.vocab_size].to_vec())
    }

    fn predict_each(&mut self, requests: &[Prediction]) -> Result<Vec<Predicted>> {
        let (isa, width, vocab) = (self.options.isa, self.spec.hidden_size, self.spec.vocab_size);
        let mut results = Vec::with_capacity(requests.len());
        for requests in requests.chunks(LOGIT_ROWS) {
            let n = requests.len();
            let mut x = Vec::with_capacity(n * width);
            let indices = requests.iter().map(|request| self.pass.index(request.row)).collect::<Result<Vec<_>, _>>()?;
            indices.iter().for_each(|row| x.extend_from_slice(&self.pass.x[row * width..(row + 1) * width]));
            let mut logits = std::mem::take(&mut self.pass.logits);
            matmul(&self.pool, isa, &self.packed.matrix(&self.weights.head), &x, n, &mut logits, None);
            let rows = Disjoint::new(&mut logits);
            let (cap, divisor) = (self.spec.final_logit_softcapping, self.spec.logits_scaling);
            let of_row = |index: usize| self.sequences[self.pass.rows[index].sequence.0].trace.as_ref();
            let is_wide = |index| of_row(index).is_some_and(|trace| trace.options.parts.wide);
            let steps = self.pool.map(n, |i| {
                if !self.pass.finite[indices[i]] {
                    return None;
                }
                // SAFETY: one task per row.
                let row = unsafe { rows.slice(i * vocab..(i + 1) * vocab) };
                if divisor != 1.0 {
                    row.iter_mut().for_each(|x| *x /= divisor);
                }
                if let Some(cap) = cap {
                    norm::softcap(isa, row, cap);
                }
                predict::read_logits(isa, row, &requests[i], is_wide(indices[i]))
            });
            self.pass.logits = logits;
            let bad = |index: usize| BackendError::not_finite(&self.weights, self.pass.rows[index].position);
            results.extend(indices.iter().zip(steps).map(|(index, step)| step.ok_or_else(|| bad(*index))));
        }
        Ok(results)
    }

    #[cfg(test)]
    fn hidden(&self, row: usize) -> Result<Vec<f32>> {
        let (row, width) = (self.pass.index(row)?, self.spec.hidden_size);
        Ok(self.pass.x[row * width..(row + 1) * width].to_vec())
    }

    fn head_record(&self, sequence: SequenceId, row: usize) -> Result<Option<HeadRecord>> {
        Ok(self.sequences[sequence.0].trace.as_ref().and_then(|trace| trace.head_record(row)))
    }

    fn head_attention(&self, sequence: SequenceId, row: usize) -> Result<Option<Vec<HeadAttention>>> {
        Ok(self.sequences[sequence.0].trace.as_ref().and_then(|trace| trace.head_attention(row)))
    }

    fn layer_means(&self, sequence: SequenceId) -> Result<Option<Vec<Vec<f64>>>> {
        Ok(self.sequences[sequence.0].trace.as_ref().and_then(Trace::layer_means))
    }

    fn attention_rows(&mut self, sequence: SequenceId, rows: &[usize]) -> Result<Vec<Vec<f32>>> {
        let Sequence { cache, trace, .. } = &self.sequences[sequence.0];
        Ok(self.pool.map(rows.len(), |i| {
            let mut row = vec![0.0; rows[i] + 1];
            if let Some(trace) = trace {
                trace.selected(rows[i]).iter().for_each(|selected| self.accumulate(cache, selected, &mut row));
            }
            row
        }))
    }

    fn head_rows(&mut self, sequence: SequenceId, row: usize) -> Result<Vec<Vec<f32>>> {
        let Sequence { cache, trace: Some(trace), .. } = &self.sequences[sequence.0] else { return Ok(Vec::new()) };
        let selected = trace.selected(row);
        Ok(self.pool.map(selected.len(), |i| {
            let mut weights = vec![0.0; row + 1];
            self.accumulate(cache, &selected[i], &mut weights);
            weights
        }))
    }

    fn layer_attention(&mut self, layer: usize) -> Result<Vec<f32>> {
        let (pass, spec, shape) = (&self.pass, &self.spec, self.shape(layer));
        let row = &pass.rows[pass.index(0)?];
        let mut sum = vec![0.0; row.position + 1];
        let cache = &self.sequences[row.sequence.0].cache;
        let queries = pass.q.chunks_exact(shape.head_dim);
        for (head, (query, state)) in queries.zip(&pass.states).take(spec.num_attention_heads).enumerate() {
            let of = RowHead { query, max: state.softmax.max, sum: state.softmax.sum };
            attention::add_row(self.options.isa, &shape, cache, head, &of, &mut sum);
        }
        Ok(sum)
    }

    fn hidden_states(&self, sequence: SequenceId, positions: Range<usize>) -> Result<Vec<f32>> {
        let trace = self.sequences[sequence.0].trace.as_ref();
        let untraced = vec![0.0; self.spec.hidden_size];
        let state = |position| trace.and_then(|trace| trace.hidden(position)).unwrap_or(&untraced);
        Ok(positions.flat_map(state).copied().collect())
    }

    fn state_memory(&self, positions: usize) -> usize {
        // those after the last token, those at the start of the response, and one per interval
        self.bytes_of_states() * (2 + positions / STATE_INTERVAL)
    }

    fn working_memory(&self) -> usize {
        self.packed.bytes()
    }

    fn memory(&self, sequence: SequenceId) -> (usize, usize) {
        let Sequence { cache, states, trace, .. } = &self.sequences[sequence.0];
        // with those after the last token, without those before the first, which share one layer's state
        let states = states.as_ref().map_or(0, |states| states.kept.len() * self.bytes_of_states());
        (cache.bytes() + states, trace.as_ref().map_or(0, Trace::bytes))
    }
}

/// Matrices held in another format, by name; the rest are read from their files, as rows of the embedding always are.
#[derive(Default)]
pub struct Packed {
    q8: HashMap<String, Vec<Q8Block>>,
}

impl Packed {
    pub fn new(weights: &Weights, format: WeightFormat, pool: &ThreadPool) -> Packed {
        if format == WeightFormat::File {
            return Packed::default();
        }
        let products: Vec<&Weight> = weights.products().collect();
        let packed = pool.map(products.len(), |i| quantize(products[i].elements(), products[i].in_features));
        let named = products.iter().zip(packed).filter_map(|(weight, q8)| Some((weight.name.clone(), q8?)));
        Packed { q8: named.collect() }
    }

    /// The matrix of a product.
    pub fn matrix<'a>(&'a self, weight: &'a Weight) -> Matrix<'a> {
        let numbers = match self.q8.get(&weight.name) {
            Some(blocks) => Numbers::Q8(blocks),
            None => Numbers::File(weight.elements()),
        };
        Matrix { numbers, rows: weight.rows, k: weight.in_features }
    }

    /// Bytes of a matrix.
    pub fn bytes_of(&self, weight: &Weight) -> usize {
        self.q8.get(&weight.name).map_or(weight.byte_len(), |blocks| size_of_val(&blocks[..]))
    }

    /// Bytes held in addition to the files.
    pub fn bytes(&self) -> usize {
        self.q8.values().map(|blocks| size_of_val(&blocks[..])).sum()
    }
}
