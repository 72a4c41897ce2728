//! A small model on the device and in the reference, in lockstep: every operation starts from the reference's values on both
//! sides, and its results are compared.

use super::super::abi::{HeadState, LogitPart, MatrixType};
use super::super::kernel_set::{KernelSet, NARROW_ROWS, Set, Variants};
use super::super::{CudaBackend, context::Device, error::Result, gemm::Input, lm_head::CHUNK, memory::Buffer};
use super::SelfTest;
use super::ledger::{Bound, Ledger, Rows, lists, rows};
use super::model::{Case, Family};
use crate::backend::reference::{PassRow, ReferenceBackend};
use crate::backend::{
    Backend, BackendError, DecodeRow, Next, Pass, Prediction, Row, SequenceId, TraceOptions, TraceParts,
};
use crate::{backend::entropy::EntropyRule, backend::entropy::Gamma, model::config::LayerSpec};
use crate::{backend::sampling::Choice, backend::sampling::Sampling, model::weights::DType, model::weights::Noise};
use std::ops::ControlFlow;

/// K: less than the number of heads of any model here.
const KEPT: usize = 2;

/// Rows before the first traced one: the first two of a sequence attend to nothing.
const UNTRACED: usize = 3;

/// Entropies that differ by less may appear in either order.
const NEAR: f32 = 1e-3;

/// Two settings: for the number of splits in `attn_decode`, so few that one split has several chunks; and for the choice between
/// product variants, such that all are chosen.
const MULTIPROCESSORS: [usize; 2] = [1, 8];

/// Captured steps in the early-start test: as many as run ahead.
const STEPS: usize = 4;

/// A kernel that consumes the per-head results of attention, and the attention kernels.
const fn of_heads(kernel: &str) -> [&str; 4] {
    [kernel, "attn_decode", "attn_prefill", "plain_attn"]
}

/// One case. Sequences have the same id on both sides.
pub struct Pair<'a> {
    ledger: &'a Ledger,
    device: CudaBackend,
    reference: ReferenceBackend,
    case: &'a Case,
    /// Error bound of products.
    bound: Bound,
    /// Rows of the pass.
    rows: Vec<Row>,
    noise: Noise,
}

impl<'a> Pair<'a> {
    /// A model with random weights of type `dtype`; compares the weights converted on the device.
    pub fn new(
        test: &'a SelfTest,
        device: &Device,
        case: &'a Case,
        set: Set,
        (variants, dtype): (&Variants, MatrixType),
    ) -> Result<Pair<'a>, BackendError> {
        let mut variants = Variants { types: vec![dtype], ..variants.clone() };
        let (ledger, spec, cache) = (&*test.ledger, case.family.spec(&variants)?, variants.cache);
        // a kernel loaded twice is the same one, with the last load's shared memory: enough for the model waiting to be used
        variants.layers = variants.layers.max(spec.attention_layers().count());
        variants.heads = variants.heads.max(spec.num_attention_heads);
        let [weights, wide] = case.family.weights(&spec, &variants, dtype)?;
        let kernels = KernelSet::load(test.files, &variants, set)?;
        let types = (cache.0, cache.1.into());
        let reference = ReferenceBackend::new(spec.clone(), wide.clone(), types, Gamma::PUBLISHED);
        let mut device = device.clone();
        device.info.multiprocessors = MULTIPROCESSORS[0];
        let mut device = CudaBackend::with(spec, weights.clone(), device, kernels, cache, &mut |_, _| ())?;
        device.device.info.multiprocessors = MULTIPROCESSORS[1];
        for (layer, right) in device.weights.layers.iter().zip(&wide.layers).filter(|_| dtype != MatrixType::F32) {
            let keys = layer.k.as_ref().zip(right.k.as_ref());
            let others = [(&layer.q, &right.q), (&layer.o, &right.o)].into_iter().filter(|_| dtype == MatrixType::Q8);
            for (found, want) in keys.into_iter().chain(others) {
                let [found, want] = [found.read(&device.device)?, want.elements().to_vec()];
                let [found, want] = [found, want].map(|numbers| rows(&numbers, device.spec.hidden_size));
                ledger.compare(&["narrow_weights", "pack_q8"], "weights", found, want, Bound::EXACT)?;
            }
        }
        let rounds = set == Set::Fast && dtype == MatrixType::F16 && !case.decode && case.rows > NARROW_ROWS;
        let bound = if rounds { Bound::ROUNDED } else { Bound::LIKE_F32 };
        // different values each time: leftovers in memory must not pass
        let noise = Noise::new(ledger.tries.replace(ledger.tries.get() + 1));
        Ok(Pair { ledger, device, reference, case, bound, rows: Vec::new(), noise })
    }

    /// Runs the case. With a delta net, a second pass starts from a fork inside the first one, from a copy of its states.
    pub fn run(&mut self) -> Result<(), BackendError> {
        let rule = if self.case.family == Family::Gemma { EntropyRule::Regularized } else { EntropyRule::Exact };
        let first = self.case.context();
        let parts = TraceParts { heads: KEPT, entropy: rule, wide: true, head_attention: true, layer_means: true };
        let options = self.case.traced.then_some(TraceOptions { first_row: first + UNTRACED, parts });
        let ids = [0, 1, 2].map(SequenceId);
        self.both(|backend| backend.open(None))?; // keeps the others out of the first slot
        self.both(|backend| backend.open(options))?;
        self.device.expect_fork(ids[1], UNTRACED);
        self.pass(ids[1], first)?;
        if self.device.spec.delta_net.is_some() {
            self.both(|backend| backend.fork(ids[1], UNTRACED, options))?;
            self.pass(ids[2], UNTRACED)?;
        }
        Ok(())
    }

    /// Runs captured decode steps and attributes their log-probabilities to the kernels with this name.
    pub fn steps(&mut self, name: &str) -> Result<(), BackendError> {
        let vocabulary = self.device.spec.vocab_size;
        let [found, want] = self.both(|backend| {
            let row = Row { sequence: backend.open(None)?, position: 0, token: 1 };
            let row = DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: true };
            let mut found = Rows::new();
            finite(backend.decode(&[row], vocabulary, &mut |_, step, _| {
                found.push(step.top.iter().map(|top| top.logprob).collect());
                if found.len() < STEPS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }))?;
            Ok(found)
        })?;
        // keys and values may round the other way
        Ok(self.ledger.compare(&[name], "log-probabilities", found, want, Bound::ROUNDED)?)
    }

    /// One pass, operation by operation.
    fn pass(&mut self, sequence: SequenceId, first: usize) -> Result<(), BackendError> {
        let vocabulary = self.device.spec.vocab_size as f32;
        let mut token = || ((self.noise.next() + 1.0) / 2.0 * vocabulary) as u32;
        self.rows =
            (first..first + self.case.rows).map(|position| Row { sequence, position, token: token() }).collect();
        self.fill_context()?;
        if self.case.decode {
            self.device.room_for(self.case.rows)?;
        }
        let (rows, traced) = (self.rows.clone(), self.case.traced);
        self.both(|backend| backend.begin(&Pass::all(&rows, traced)))?;
        self.device.pass.captured = self.case.decode;
        self.both(|backend| backend.embed())?;
        self.compare_residual("embeddings", Bound::LIKE_F32)?;
        for layer in 0..self.device.spec.layers.len() {
            self.both(|backend| backend.project_qkv(layer))?;
            self.compare_projected(layer)?;
            self.ledger.end_step();
            self.both(|backend| backend.attend(layer))?;
            self.compare_attended(layer)?;
            self.both(|backend| backend.project_output(layer))?;
            self.compare_residual(&format!("output of layer {layer}"), self.bound)?;
            self.both(|backend| backend.feed_forward(layer))?;
            self.compare_residual(&format!("feed-forward of layer {layer}"), self.bound)?;
        }
        self.both(|backend| backend.final_norm())?;
        if self.case.decode {
            self.device.finish_selection(&self.device.device)?;
        }
        if self.case.traced {
            self.compare_trace()?;
        }
        let hidden = self.of_rows(|row| &row.x);
        self.compare_and_set("hidden states", (&self.device.scratch.h, 0), hidden, Bound::LIKE_F32)?;
        self.ledger.end_step();
        if self.case.family == Family::Gemma && self.case.rows <= NARROW_ROWS {
            self.compare_predictions()?;
        }
        Ok(())
    }

    /// Runs the same operation on both sides; returns `[found, expected]`.
    fn both<T>(&mut self, run: impl Fn(&mut dyn Backend) -> Result<T, BackendError>) -> Result<[T; 2], BackendError> {
        Ok([run(&mut self.device)?, run(&mut self.reference)?])
    }

    /// Values of every row in the reference, concatenated.
    fn of_rows<'r>(&'r self, numbers: impl Fn(&'r PassRow) -> &'r [f32]) -> Vec<f32> {
        self.reference.pass.iter().flat_map(numbers).copied().collect()
    }

    /// Compares the values of every row in a buffer, from an offset on, and replaces them with the reference's.
    fn compare_and_set(
        &self,
        what: &str,
        (buffer, first): (&Buffer<f32>, usize),
        want: Vec<f32>,
        bound: Bound,
    ) -> Result<()> {
        let (device, width) = (&self.device.device, want.len() / self.case.rows);
        let found: Vec<f32> = device.read(buffer, first, want.len())?;
        self.ledger.compare(&[], what, rows(&found, width), rows(&want, width), bound)?;
        device.write(buffer, first, &want)
    }

    fn compare_residual(&self, what: &str, bound: Bound) -> Result<()> {
        self.compare_and_set(what, (&self.device.scratch.x, 0), self.of_rows(|row| &row.x), bound)?;
        self.ledger.end_step();
        Ok(())
    }

    /// Compares gates, keys, values and queries; for a delta net, its values after their convolution.
    fn compare_projected(&mut self, layer: usize) -> Result<()> {
        let gates = self.of_rows(|row| &row.gate);
        if !gates.is_empty() {
            let place = (&self.device.scratch.output_gate, 0);
            self.compare_and_set(&format!("gates of layer {layer}"), place, gates, self.bound)?;
        }
        if self.device.spec.layers[layer].delta_net {
            let want = (0..self.case.rows).flat_map(|row| self.reference.delta_values(layer, row)).collect();
            let delta = &self.device.scratch.delta;
            let place = (&delta.mixed, delta.values(&self.device.spec));
            return self.compare_and_set(&format!("values of layer {layer}"), place, want, self.bound);
        }
        let (rows, found) = (self.rows.clone(), read_cache(&self.device, layer, &self.rows)?);
        let sequence = &self.reference.sequences[rows[0].sequence.0];
        let cached = [&sequence.keys, &sequence.values];
        let own: Numbers = cached.map(|of| rows.iter().map(|row| of[&(layer, row.position)].clone()).collect());
        let types = [self.device.cache.0, self.device.cache.1];
        for part in [0, 1] {
            let what = format!("{} of layer {layer}", ["keys", "values"][part]);
            let bound = self.bound.stored(types[part]);
            self.ledger.compare(&[], &what, lists(&found[part]), lists(&own[part]), bound)?;
        }
        self.hold(layer, &rows, found);
        let (what, mut want) = (format!("queries of layer {layer}"), self.of_rows(|row| &row.queries));
        want.iter_mut().for_each(|q| *q *= self.device.spec.attention_scale); // the reference scales the scores instead
        let before = self.device.heads_before(layer) * self.device.widest_head();
        self.compare_and_set(&what, (&self.device.scratch.heads.q, before), want, self.bound)
    }

    /// Compares the heads' output, unless it is rounded; reweighted-attention entropies of traced rows; and the first row's weights.
    fn compare_attended(&mut self, layer: usize) -> Result<(), BackendError> {
        let (device, heads) = (&self.device, self.device.spec.num_attention_heads);
        if device.spec.layers[layer].delta_net {
            return Ok(()); // the reference applies its norm afterwards
        }
        let (states, count) = (&device.scratch.heads.states, self.case.rows * heads);
        let states: Vec<HeadState> = device.device.read(states, device.heads_before(layer), count)?;
        let entropy = |[_, _, _, z, s]: &HeadState| f64::from(*z).ln() - f64::from(s / z);
        let traced = self.reference.pass.iter().zip(states.chunks(heads)).filter(|(row, _)| !row.heads.is_empty());
        let last = |row: &PassRow| row.heads[row.heads.len() - heads..].iter().map(|head| head.0.into()).collect();
        let numbers = |(row, states): (_, &[HeadState])| (states.iter().map(entropy).collect(), last(row));
        let (found, want) = traced.map(numbers).unzip();
        self.ledger.compare(&[], &format!("entropies of layer {layer}"), found, want, Bound::OF_WEIGHTS)?;
        if let Input::F32(_) = self.device.attended(layer)? {
            let (what, want) = (format!("attention of layer {layer}"), self.of_rows(|row| &row.attended));
            self.compare_and_set(&what, (&self.device.scratch.inner, 0), want, Bound::OF_WEIGHTS)?;
            self.ledger.end_step();
        }
        let [found, want] = self.both(|backend| Ok(lists(&[backend.layer_attention(layer)?])))?;
        let (kernels, what) = (of_heads("attn_sum"), format!("weights of layer {layer}"));
        Ok(self.ledger.compare(&kernels, &what, found, want, Bound::OF_WEIGHTS)?)
    }

    /// Compares what is read back from the trace of the pass.
    fn compare_trace(&mut self) -> Result<(), BackendError> {
        let (id, mut clear) = (self.rows[0].sequence, Vec::new());
        let first_traced = self.case.context() + UNTRACED;
        let traced: Vec<usize> = self.rows.iter().map(|row| row.position).filter(|at| *at >= first_traced).collect();
        for position in &traced {
            let record = self.reference.head_record(id, *position)?.unwrap_or_default();
            let mut apart = record.entropies.windows(2).map(|pair| pair[1] - pair[0]).chain([record.gap]);
            // rounding cannot change which heads are kept
            clear.extend(apart.all(|gap| gap > NEAR).then_some(*position));
        }
        let read = |backend: &mut dyn Backend| {
            let (mut entropies, mut places) = (Vec::new(), Vec::new());
            for position in &traced {
                let record = backend.head_record(id, *position)?.unwrap_or_default();
                entropies.push([record.entropies, vec![record.gap]].concat());
                let heads = backend.head_attention(id, *position)?.unwrap_or_default();
                places.extend(heads.iter().map(|head| [head.own, head.previous, head.first, head.prompt]));
                places.extend(heads.iter().map(|head| [head.entropy; 4]));
            }
            let hidden = backend.hidden_states(id, traced[0]..traced[0] + traced.len())?;
            let hidden = rows(&hidden, backend.spec().hidden_size);
            // the last means are those of hidden states, the device's own
            let means = backend.layer_means(id)?.unwrap_or_default().into_iter().take(backend.spec().layers.len());
            let alpha = lists(&backend.attention_rows(id, &clear[clear.len().saturating_sub(4)..])?);
            Ok([hidden, lists(&entropies), alpha, lists(&places), means.collect()])
        };
        let [found, want] = self.both(read)?;
        let whose: [(&[&str], &str, Bound); 5] = [
            (&["attn_select", "rms_norm"], "recorded hidden states", Bound::LIKE_F32.stored(DType::F16)),
            (&of_heads("attn_select"), "kept entropies", Bound::OF_WEIGHTS),
            (&["attn_select", "attn_rows"], "α*", Bound::OF_WEIGHTS),
            (&of_heads("attn_places"), "weights on places", Bound::OF_WEIGHTS),
            (&["layer_sums"], "means of the residual stream", Bound::LIKE_F32),
        ];
        for (((kernels, what, bound), found), want) in whose.into_iter().zip(found).zip(want) {
            self.ledger.compare(kernels, what, found, want, bound)?;
        }
        Ok(())
    }

    /// Compares predictions without and with the sampler's sums over the whole vocabulary.
    fn compare_predictions(&mut self) -> Result<(), BackendError> {
        let (vocabulary, position) = (self.device.spec.vocab_size, self.rows[0].position + 1);
        let choose = |sampling| Next::Choose(Choice { sampling, stream: 3, position, vocabulary });
        let drawn = |top_k, seed| choose(Sampling { temperature: 0.8, top_k, seed, ..Sampling::GREEDY });
        let without = [Next::Given(Some(7)), choose(Sampling::GREEDY), drawn(5, 77)];
        for next in [without, [0, 1, 2].map(|seed| drawn(0, seed))] {
            let request = |(row, next)| Prediction { row, next, detail: true };
            let requests: Vec<Prediction> = next.into_iter().enumerate().map(request).collect();
            let read = |backend: &mut dyn Backend| {
                let (mut ids, mut numbers) = (Rows::new(), Rows::new());
                for (step, token) in finite(backend.predict(&requests))? {
                    let (top, token) = (step.top.iter(), f64::from(token.unwrap_or_default()));
                    ids.push([token].into_iter().chain(top.clone().map(|top| f64::from(top.token))).collect());
                    let wide = step.distribution.map(|of| [of.top_logprob, of.uniform_kl, of.log_affinity]);
                    let own = [step.logprob.unwrap_or(f64::NAN), step.entropy].into_iter();
                    numbers.push(own.chain(wide.into_iter().flatten()).chain(top.map(|top| top.logprob)).collect());
                }
                Ok((ids, numbers))
            };
            let [(ids, numbers), (right_ids, right)] = self.both(read)?;
            self.compare_parts(requests.len())?;
            self.ledger.compare(&["gemv", "plain_gemv", "head"], "tokens", ids, right_ids, Bound::EXACT)?;
            self.ledger.compare(&[], "log-probabilities", numbers, right, Bound::LIKE_F32)?;
            self.ledger.end_step();
        }
        Ok(())
    }

    /// Compares the sums over each chunk of the device's own logits.
    fn compare_parts(&self, count: usize) -> Result<()> {
        let (device, head, spec) = (&self.device.device, &self.device.head, &self.device.spec);
        let logits: Vec<f32> = device.read(&head.logits, 0, count * spec.vocab_size)?;
        let part = |chunk: &[f32]| {
            let x = || chunk.iter().map(|x| f64::from(*x));
            let max = x().fold(f64::NEG_INFINITY, f64::max);
            vec![max, x().map(|x| (x - max).exp()).sum(), x().map(|x| (x - max).exp() * (x - max)).sum()]
        };
        let want: Rows = logits.chunks(spec.vocab_size).flat_map(|row| row.chunks(CHUNK)).map(part).collect();
        let parts: Vec<LogitPart> = device.read(&head.partials, 0, want.len())?;
        self.ledger.compare(&["head_partial"], "sums of logits", lists(&parts), want, Bound::LIKE_F32)
    }

    /// Fills the positions before the first row with random keys and values.
    fn fill_context(&mut self) -> Result<()> {
        let first = self.rows[0];
        self.device.reserve_positions(first.sequence, first.position + self.case.rows)?;
        let context: Vec<Row> = (0..self.case.context()).map(|position| Row { position, ..first }).collect();
        let layers: Vec<usize> = self.device.spec.attention_layers().filter(|_| !context.is_empty()).collect();
        for layer in layers {
            let LayerSpec { head_dim, num_key_value_heads: heads, .. } = self.device.spec.layers[layer];
            let numbers = [(); 2].map(|()| context.iter().map(|_| self.noise.floats(heads * head_dim, 1.7)).collect());
            write_cache(&self.device, layer, &context, &numbers)?;
            self.hold(layer, &context, read_cache(&self.device, layer, &context)?);
        }
        Ok(())
    }

    /// Makes the reference continue with the keys and values that the device holds.
    fn hold(&mut self, layer: usize, rows: &[Row], held: Numbers) {
        let sequence = &mut self.reference.sequences[rows[0].sequence.0];
        for (numbers, of) in held.into_iter().zip([&mut sequence.keys, &mut sequence.values]) {
            of.extend(rows.iter().map(|row| (layer, row.position)).zip(numbers));
        }
    }
}

/// The default in place of results that are not finite.
fn finite<T: Default>(found: Result<T, BackendError>) -> Result<T, BackendError> {
    match found {
        Err(BackendError::NotFinite { .. } | BackendError::Rows(_)) => Ok(T::default()),
        found => found,
    }
}

// Keys and values in the device's cache, as f32.

/// Keys and values of consecutive rows, `[rows][heads · head_dim]` each.
type Numbers = [Vec<Vec<f32>>; 2];

/// The keys (part 0) or values of one head.
struct Plane<'a> {
    part: usize,
    head: usize,
    buffer: &'a Buffer<u8>,
    /// Byte offset of the first row.
    start: usize,
    /// Each value is the sum of `terms` elements of this type (two: `Halves` in `kernels/common.cuh`).
    stored: DType,
    terms: usize,
}

/// All heads of a layer, from `row` on; and head_dim.
fn planes<'a>(backend: &'a CudaBackend, layer: usize, row: &Row) -> (Vec<Plane<'a>>, usize) {
    let (shape, capacity) = (backend.sequences.layer_shape(layer), backend.sequences.capacity(row.sequence));
    let (heads, head_dim) = (shape.kv_heads as usize, shape.head_dim as usize);
    let plane = |head: usize, part: usize, buffer| {
        let dtype = [backend.cache.0, backend.cache.1][part];
        let (stored, terms) = if part == 0 && dtype == DType::F32 { (DType::F16, 2) } else { (dtype, 1) };
        let before = (shape.layer as usize * heads + head) * capacity + row.position;
        Plane { part, head, buffer, start: before * head_dim * dtype.size(), stored, terms }
    };
    let buffers = backend.sequences.cached(row.sequence).into_iter().flatten().enumerate();
    let planes = buffers.flat_map(|(part, buffer)| (0..heads).map(move |head| plane(head, part, buffer)));
    (planes.collect(), head_dim)
}

/// Reads the keys and values that the device holds.
fn read_cache(backend: &CudaBackend, layer: usize, rows: &[Row]) -> Result<Numbers> {
    let (device, (planes, d)) = (&backend.device, planes(backend, layer, &rows[0]));
    let mut held = [(); 2].map(|()| vec![Vec::new(); rows.len()]);
    for Plane { part, buffer, start, stored, terms, .. } in planes {
        let count = rows.len() * terms * d;
        let numbers = device.read_numbers(buffer, start, count, stored)?;
        for (row, numbers) in held[part].iter_mut().zip(numbers.chunks(terms * d)) {
            row.extend((0..d).map(|i| numbers[i..].iter().step_by(d).sum::<f32>()));
        }
    }
    Ok(held)
}

/// Writes keys and values, keys rounded to one term.
fn write_cache(backend: &CudaBackend, layer: usize, rows: &[Row], numbers: &Numbers) -> Result<()> {
    let ((planes, d), mut bytes) = (planes(backend, layer, &rows[0]), Vec::new());
    for Plane { part, head, buffer, start, stored, terms } in planes {
        let terms = |row: &Vec<f32>| [&row[head * d..][..d], &vec![0.0; (terms - 1) * d]].concat();
        let terms: Vec<f32> = numbers[part].iter().flat_map(terms).collect();
        stored.encode(&terms, &mut bytes);
        backend.device.write(buffer, start, &bytes)?;
    }
    Ok(())
}
