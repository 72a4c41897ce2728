//! One pass on the device: the launches of its [`Operations`]. A narrow pass (a decode step, or up to 16 rows) multiplies with
//! `gemv.cu` and attends with `attn_decode.cu`; a wide one with `gemm.cu` and `attn_prefill.cu`. Rows may belong to several
//! sequences. A captured decode step consists of the same operations, recorded by their stream.

use super::kernel_set::{AttentionKernels, DECODE_GROUP, Lines, NARROW_ROWS, decode_blocks};
use super::memory::{Buffer, DevicePtr, Floats};
use super::{CudaBackend, abi::*, cache::Sequences, context::Device, launch::Int, layers, weights::Matrix};
use super::{error::CudaError, error::Result, gemm::Input, gemm::Job, gemm::ptr_or_null};
use crate::backend::{BackendError, Operations, Row, TraceParts};
use crate::model::config::{Activation, QkNorm};
use crate::{backend::entropy::EntropyRule, model::ModelSpec, model::weights::Expert};
use std::ops::Range;

/// The pass in flight, or the last one.
#[derive(Clone, Debug, Default)]
pub struct PassState {
    pub rows: Vec<Row>,
    /// Trace options of the traced rows; `None` if no row is traced.
    pub trace: Option<TraceParts>,
    /// Entries of `Scratch::parts` for the layers with these lines; none in a narrow pass.
    pub parts: Vec<(Lines, Range<usize>)>,
    /// A decode step: narrow, whatever its number of rows. Its heads are selected later, in parallel with the logits.
    pub captured: bool,
}

impl PassState {
    /// A row of the pass, if there is one.
    pub fn row(&self, row: usize) -> Result<&Row, BackendError> {
        self.rows.get(row).ok_or(BackendError::RowNotWanted { row })
    }

    /// Whether each row attends separately and products use f32 arithmetic.
    pub fn narrow(&self) -> bool {
        self.captured || self.rows.len() <= NARROW_ROWS
    }
}

/// Gates of a pass's rows, in device memory.
pub struct Gates {
    pub first: Floats,
    /// Elements from row to row.
    pub stride: usize,
    /// Elements from one gate of a row to the next.
    pub step: usize,
    pub activation: Int,
}

/// Work of the blocks of `attn_prefill`: runs of consecutive positions of one sequence, split into blocks of lines.
pub fn prefill_parts(rows: &[Row], Lines { of_row, of_block }: Lines) -> Vec<PrefillPart> {
    let (mut parts, mut first) = (Vec::new(), 0);
    for run in rows.chunk_by(Row::precedes) {
        let lines = (0..run.len() * of_row).step_by(of_block);
        let part = |line| PrefillPart { first: first as i32, rows: run.len() as i32, line: line as i32, padding: 0 };
        parts.extend(lines.map(part));
        first += run.len();
    }
    parts
}

/// The parts of the trace shared by all traced rows; `wide` if one of them is.
pub fn shared_trace(sequences: &mut Sequences, rows: &[Row], record: bool) -> Result<Option<TraceParts>> {
    let mut shared: Option<TraceParts> = None;
    for row in rows {
        let Some(options) = sequences.options(row.sequence) else { continue };
        if !record || row.position < options.first_row || !sequences.note_traced(row.sequence, row.position) {
            continue;
        }
        let other = shared.get_or_insert(options.parts);
        other.wide |= options.parts.wide;
        if (TraceParts { wide: options.parts.wide, ..*other }) != options.parts {
            return Err(CudaError::Unsupported("sequences with different trace options in one pass".to_owned()));
        }
    }
    Ok(shared)
}

impl Operations for CudaBackend {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn embed(&mut self) -> Result<(), BackendError> {
        let scale = self.spec.embedding_scale.unwrap_or(1.0);
        self.look_up(&self.weights.embedding, scale, self.scratch.x.ptr())?;
        Ok(self.make_layer_inputs()?)
    }

    fn project_qkv(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        self.note_layer(layer, scratch.x.ptr())?;
        if self.project_delta_net(layer)? {
            return Ok(());
        }
        let q = self.layer_queries(layer);
        let k = w.k.as_ref().map(|k| Job { w: k, bias: w.k_bias.as_ref(), y: scratch.k() });
        let v = w.v.as_ref().map(|v| Job { w: v, bias: w.v_bias.as_ref(), y: scratch.v() });
        let (gate, y) = (w.output_gate.as_ref(), scratch.output_gate.ptr());
        let gate = gate.map(|gate| Job { w: gate, bias: w.output_gate_bias.as_ref(), y });
        let q_job = Job { w: &w.q, bias: w.q_bias.as_ref(), y: q };
        let jobs: Vec<Job> = [q_job].into_iter().chain(k).chain(v).chain(gate).collect();
        let (x, norm, to) = (scratch.x.ptr(), self.input_norm(w.input_norm.as_ref()), self.rope_target(layer));
        let s = &self.spec;
        let normed = s.family.qk_norm != QkNorm::None || s.family.value_norm;
        let by_length = s.query_growth > 0.0 || s.short_context().is_some();
        if !normed && !by_length && self.rotates(&jobs)? {
            return Ok(self.qkv(x, norm, &jobs, to)?);
        }
        self.qkv(x, norm, &jobs, RopeTarget::default())?;
        if self.spec.family.qk_norm == QkNorm::Whole {
            for (x, weight) in [(q, &w.q_norm), (scratch.k(), &w.k_norm)] {
                let Some(weight) = weight else { continue };
                self.rms_norm(x, self.norm(weight), x, self.pass.rows.len(), weight.bytes() / size_of::<f32>())?;
            }
        }
        Ok(self.rotate_and_cache(layer, q, to)?)
    }

    /// In a wide pass, the layer's heads enter the traced rows' selections here; the last layer's enter when the
    /// pass ends, with the hidden states.
    fn attend(&mut self, layer: usize) -> Result<(), BackendError> {
        if self.attend_delta_net(layer)? {
            return Ok(());
        }
        if self.pass.narrow() {
            self.attend_decode(layer)?
        } else {
            self.attend_prefill(layer)?
        }
        if self.pass.trace.is_some_and(|trace| trace.head_attention) {
            self.note_places(layer)?;
        }
        let index = self.spec.index_in_kind(layer);
        if !self.pass.narrow() && index + 1 < self.spec.attention_layers().count() {
            self.select_heads(&self.device, index..index + 1, DevicePtr::NULL)?;
        }
        Ok(())
    }

    fn project_output(&mut self, layer: usize) -> Result<(), BackendError> {
        self.gate_heads(layer)?;
        let w = &self.weights.layers[layer];
        let norm = w.post_attention_norm.as_ref();
        Ok(self.add_residual(self.attended(layer)?, &w.o, w.o_bias.as_ref(), norm, 1.0)?)
    }

    fn feed_forward(&mut self, layer: usize) -> Result<(), BackendError> {
        let w = &self.weights.layers[layer];
        let (norm, factor) = (w.post_feed_forward_norm.as_ref(), if w.input.is_some() { 1.0 } else { w.scalar });
        match (&w.router, &w.dense_beside) {
            (None, _) => {
                let gated = self.gated_network(layer, &w.experts[0])?;
                self.add_residual(gated, &w.experts[0].down, w.down_bias.as_ref(), norm, factor)?;
            }
            (Some(router), None) => self.mix_experts(layer, router)?,
            (Some(router), Some(beside)) => self.mix_beside(layer, router, beside, factor)?,
        }
        Ok(self.add_layer_input(layer)?)
    }

    fn final_norm(&mut self) -> Result<(), BackendError> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let parameters = RmsNorm {
            x: scratch.x.ptr(),
            norm: self.norm(&self.weights.final_norm),
            width: s.hidden_size.into(),
            y: scratch.h.ptr(),
            not_finite: scratch.not_finite.ptr(),
        };
        self.device.launch(&self.kernels.rms_norm, [self.pass.rows.len(), 1, 1], &parameters)?;
        self.note_layer(s.layers.len(), scratch.h.ptr())?;
        if !self.pass.captured {
            self.finish_selection(&self.device)?;
            for Row { sequence, position, .. } in &self.pass.rows {
                self.sequences.states(*sequence).into_iter().for_each(|states| states.enter(position + 1));
            }
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Offset, in heads, of a layer's queries and states.
    pub(super) fn heads_before(&self, layer: usize) -> usize {
        let before = if self.pass.narrow() { self.spec.index_in_kind(layer) * self.pass.rows.len() } else { 0 };
        before * self.spec.num_attention_heads
    }

    /// A layer's queries.
    pub(super) fn layer_queries(&self, layer: usize) -> Floats {
        self.scratch.heads.q.ptr().add(self.heads_before(layer) * self.widest_head())
    }

    /// The largest head_dim.
    pub(super) fn widest_head(&self) -> usize {
        self.spec.widest(|layer| layer.head_dim)
    }

    /// The gate's activation, in the kernels' encoding.
    pub(super) fn activation(&self) -> Int {
        (self.spec.activation == Activation::GeluTanh).into()
    }

    pub(super) fn softcap(&self) -> f32 {
        self.spec.attn_logit_softcapping.unwrap_or(0.0)
    }

    fn attention_kernels(&self, layer: usize) -> Result<&AttentionKernels> {
        let head_dim = self.spec.layers[layer].head_dim;
        let missing = || CudaError::NoKernel { name: format!("attn_decode with a head_dim of {head_dim}") };
        self.kernels.attention.get(&head_dim).ok_or_else(missing)
    }

    /// x = E\[token\] · scale, every row.
    pub(super) fn look_up(&self, embedding: &Matrix, scale: f32, x: Floats) -> Result<()> {
        let parameters = Embed {
            embedding: embedding.ptr(),
            scales: embedding.scales(),
            rows: self.scratch.rows.ptr(),
            x,
            width: embedding.in_features.into(),
            vocab: embedding.out_features.into(),
            scale,
        };
        let grid = [embedding.in_features.div_ceil(2048), self.pass.rows.len(), 1];
        self.device.launch(&self.kernels.embed, grid, &parameters)
    }

    /// act(gate x) ⊙ up x of norm(x), the input of the network's `down`.
    pub(super) fn gated_network(&self, layer: usize, network: &'_ Expert<Matrix>) -> Result<Input<'_>> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        let gate = Job { w: &network.gate, bias: w.gate_bias.as_ref(), y: scratch.gate() };
        let up = Job { w: &network.up, bias: w.up_bias.as_ref(), y: DevicePtr::NULL };
        let (norm, rounded) = (self.input_norm(w.feed_forward_norm.as_ref()), self.wide(&network.down)?);
        self.gated(scratch.x.ptr(), norm, [gate, up], self.activation(), rounded)
    }

    /// A layer's attention, in the kernels' layout.
    pub(super) fn layer_heads(&self, layer: usize) -> LayerHeads {
        let shape = self.sequences.layer_shape(layer);
        LayerHeads {
            sequences: self.sequences.views.ptr(),
            layer: Int(shape.layer),
            heads: self.spec.num_attention_heads.into(),
            kv_heads: Int(shape.kv_heads),
            window: Int(shape.window),
            softcap: self.softcap(),
        }
    }

    /// A layer's place in the cache, and its rotation; if it has no keys and values of its own, the rotation of its queries only.
    fn rope_target(&self, layer: usize) -> RopeTarget {
        let (s, scratch, shape) = (&self.spec, &self.scratch, self.sequences.layer_shape(layer));
        let [cos, sin] = &self.angles[s.layers[layer].rope];
        RopeTarget {
            cos: cos.ptr(),
            sin: sin.ptr(),
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            layer: shape.layer,
            kv_heads: if self.weights.layers[layer].k.is_some() { shape.kv_heads } else { 0 },
            head_dim: shape.head_dim,
            query_scale: s.attention_scale,
            k_type: type_number(self.cache.0),
            v_type: type_number(self.cache.1),
        }
    }

    /// Norm per head, rotation and query scale; k and v to the cache.
    fn rotate_and_cache(&self, layer: usize, q: Floats, to: RopeTarget) -> Result<()> {
        let (s, w, scratch) = (&self.spec, &self.weights.layers[layer], &self.scratch);
        let of_heads =
            |norm: &'_ Option<Buffer<f32>>| ptr_or_null(norm.as_ref().filter(|_| s.family.qk_norm == QkNorm::Head));
        let parameters = RopeCache {
            q,
            k: scratch.k(),
            v: if w.v.is_some() { scratch.v() } else { scratch.k() },
            v_norm: ptr_or_null(w.v_norm.as_ref()),
            q_norm: of_heads(&w.q_norm),
            k_norm: Norm { weight: of_heads(&w.k_norm), offset: s.family.norm_weight_offset, eps: s.rms_norm_eps },
            to,
            heads: s.num_attention_heads.into(),
            first_angles: self.sequences.first_angles.ptr(),
            query_growth: s.query_growth,
            query_period: s.query_period.into(),
        };
        let heads = s.num_attention_heads + 2 * to.kv_heads as usize;
        self.device.launch(&self.kernels.rope_cache, [heads.div_ceil(4), self.pass.rows.len(), 1], &parameters)
    }

    /// Attention's output, the input of `o`: rounded in a wide pass if the kernel and the product support it.
    pub(super) fn attended(&self, layer: usize) -> Result<Input<'_>> {
        let (s, w) = (&self.spec, &self.weights.layers[layer]);
        let rounds = !self.pass.narrow() && s.layers[layer].head_dim.is_multiple_of(SHARING) && w.output_gate.is_none();
        Ok(match self.wide(&w.o)? {
            Some(wide) if rounds => Input::Rounded(wide, self.scratch.inner_rounded(w.o.in_features)),
            _ => Input::F32(self.scratch.attended()),
        })
    }

    /// attended ← attended ⊙ sigmoid(gate), or in a delta net attended ⊙ silu(gate), if there is a gate.
    fn gate_heads(&self, layer: usize) -> Result<()> {
        let (w, attended) = (&self.weights.layers[layer], self.scratch.attended());
        if w.output_gate.is_none() {
            return Ok(());
        }
        let (gate, width) = (self.scratch.output_gate.ptr(), w.o.in_features);
        let activation = if w.delta_net.is_some() { SILU } else { SIGMOID };
        let gates = Gates { first: gate, stride: width, step: 1, activation };
        self.gate_rows(gates, attended, width, width, attended)
    }

    /// y = act(gate) ⊙ x, every row of `width`; a row of x is `x_stride` elements after the one before.
    pub(super) fn gate_rows(&self, gates: Gates, x: Floats, x_stride: usize, width: usize, y: Floats) -> Result<()> {
        let parameters = GateRows {
            gate: gates.first,
            gate_stride: gates.stride.into(),
            gate_step: gates.step.into(),
            x,
            x_stride: x_stride.into(),
            width: width.into(),
            activation: gates.activation,
            y,
        };
        self.device.launch(&self.kernels.gate, [width.div_ceil(256), self.pass.rows.len(), 1], &parameters)
    }

    fn attend_prefill(&self, layer: usize) -> Result<()> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let lines = Lines::new(s.num_attention_heads, &s.layers[layer]);
        let parts = self.pass.parts.iter().find(|(of, _)| *of == lines).map_or(0..0, |(_, parts)| parts.clone());
        let (out, rounded) = match self.attended(layer)? {
            Input::F32(out) => (out, RoundedRows::default()),
            Input::Rounded(_, rounded) => (DevicePtr::NULL, rounded),
        };
        let parameters = AttnPrefill {
            queries: scratch.heads.q.ptr(),
            rows: scratch.rows.ptr(),
            parts: scratch.parts.ptr().add(parts.start),
            of: self.layer_heads(layer),
            out,
            states: scratch.heads.states.ptr(),
            rounded,
        };
        let kernels = self.attention_kernels(layer)?;
        let kernel = kernels.prefill_hopper.as_ref().unwrap_or(&kernels.prefill);
        self.device.launch(kernel, [parts.len(), s.layers[layer].num_key_value_heads, 1], &parameters)
    }

    /// Attention of a narrow pass: each row separately.
    fn attend_decode(&self, layer: usize) -> Result<()> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let kernels = self.attention_kernels(layer)?;
        let plain = kernels.decode_plain.as_ref().filter(|_| self.pass.trace.is_none());
        let parameters = AttnDecode {
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            of: self.layer_heads(layer),
            splits: self.splits.into(),
            partial_out: scratch.heads.partial_out.ptr(),
            partial_states: scratch.heads.partial_states.ptr(),
            arrivals: scratch.heads.arrivals.ptr(),
            out: scratch.attended(),
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
        };
        let (kv_heads, rows) = (s.layers[layer].num_key_value_heads, self.pass.rows.len());
        let groups = kv_heads * (s.num_attention_heads / kv_heads).div_ceil(DECODE_GROUP);
        let blocks = decode_blocks(self.splits, groups * rows, self.device.info.multiprocessors);
        self.device.launch(plain.unwrap_or(&kernels.decode), [groups, blocks, rows], &parameters)
    }

    /// Records the hidden states x of the traced rows, before a layer or at the end, if their means are recorded.
    fn note_layer(&self, point: usize, x: Floats) -> Result<()> {
        if !self.pass.trace.is_some_and(|trace| trace.layer_means) {
            return Ok(());
        }
        let (n, width) = (self.pass.rows.len(), self.spec.hidden_size);
        let parameters = LayerSum {
            x,
            rows: self.scratch.rows.ptr(),
            n: n.into(),
            sequences: self.sequences.views.ptr(),
            point: point.into(),
            kept: layers::KEPT.into(),
            width: width.into(),
        };
        self.device.launch(&self.kernels.layer_sums, [width.div_ceil(layers::COLUMNS), n, 1], &parameters)
    }

    /// Records the attention targets of the layer's heads in the traced rows.
    fn note_places(&self, layer: usize) -> Result<()> {
        let (scratch, heads) = (&self.scratch, self.spec.num_attention_heads);
        let parameters = AttnPlaces {
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            of: self.layer_heads(layer),
            head_dim: self.spec.layers[layer].head_dim.into(),
            trace_layer: self.spec.index_in_kind(layer).into(),
            layers: self.spec.attention_layers().count().into(),
            regularized: self.pass.trace.is_some_and(|trace| trace.entropy == EntropyRule::Regularized).into(),
        };
        self.device.launch(&self.kernels.places, [heads, self.pass.rows.len(), 1], &parameters)
    }

    /// Ends the selections of the traced rows, on the stream of `device`: all layers with attention after a narrow pass, the last
    /// after a wide one, and the hidden states.
    pub(super) fn finish_selection(&self, device: &Device) -> Result<()> {
        let layers = self.spec.attention_layers().count();
        let first = if self.pass.narrow() { 0 } else { layers - 1 };
        self.select_heads(device, first..layers, self.scratch.h.ptr())
    }

    /// Adds these of the layers with attention to the selections of the traced rows. Hidden states, if not
    /// null, are recorded too.
    fn select_heads(&self, device: &Device, layers: Range<usize>, hidden: Floats) -> Result<()> {
        let Some(trace) = self.pass.trace else { return Ok(()) };
        let (s, scratch) = (&self.spec, &self.scratch);
        let parameters = AttnSelect {
            states: scratch.heads.states.ptr(),
            queries: scratch.heads.q.ptr(),
            hidden,
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            shapes: self.shapes.ptr(),
            first_layer: layers.start.into(),
            layers: layers.len().into(),
            heads: s.num_attention_heads.into(),
            head_dim: self.widest_head().into(),
            hidden_size: s.hidden_size.into(),
            hidden_scale: self.weights.hidden_scale,
            keep: trace.heads.into(),
            regularized: (trace.entropy == EntropyRule::Regularized).into(),
            begin: (layers.start == 0).into(),
            finish: (layers.end == s.attention_layers().count()).into(),
        };
        device.launch(&self.kernels.select, [self.pass.rows.len(), 1, 1], &parameters)
    }

    /// x += W · input (+ bias); or, if there is a norm, x ← factor · (x + norm(W · input)).
    pub(super) fn add_residual(
        &self,
        input: Input,
        w: &Matrix,
        bias: Option<&Buffer<f32>>,
        norm: Option<&Buffer<f32>>,
        factor: f32,
    ) -> Result<()> {
        let (x, h) = (self.scratch.x.ptr(), self.scratch.h.ptr());
        let Some(norm) = norm else { return self.matmul(input, Job { w, bias, y: x }, true) };
        self.matmul(input, Job { w, bias, y: h }, false)?;
        self.add_normed(x, h, norm, factor)
    }

    /// x ← factor · (x + norm(h)), every row.
    pub(super) fn add_normed(&self, x: Floats, h: Floats, norm: &Buffer<f32>, factor: f32) -> Result<()> {
        let parameters = AddRmsNorm { x, h, norm: self.norm(norm), width: self.spec.hidden_size.into(), factor };
        self.device.launch(&self.kernels.add_rms_norm, [self.pass.rows.len(), 1, 1], &parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel_set::MAX_ROWS;
    use super::*;
    use crate::backend::SequenceId;

    /// A run ends where the sequence changes or positions stop being consecutive; every line of every run is in exactly one part.
    #[test]
    fn parts_cover_every_run() {
        let row = |sequence, position| Row { sequence: SequenceId(sequence), position, token: 0 };
        let mut rows: Vec<Row> = (7..40).map(|position| row(0, position)).collect();
        rows.extend([row(2, 40), row(2, 42), row(2, 43)]);
        let lines = |of_row, of_block| Lines { of_row, of_block };
        let parts: Vec<[i32; 3]> =
            prefill_parts(&rows, lines(3, 64)).iter().map(|p| [p.first, p.rows, p.line]).collect();
        assert_eq!(parts, [[0, 33, 0], [0, 33, 64], [33, 1, 0], [34, 2, 0]]);
        // the maximum: every row is its own run
        let apart: Vec<Row> = (0..MAX_ROWS).map(|i| row(i, 0)).collect();
        for group in [1, 64, 65, 200] {
            assert_eq!(prefill_parts(&apart, lines(group, 32)).len(), MAX_ROWS * group.div_ceil(32));
        }
    }
}
