//! One pass on the device: the launches of its [`Operations`]. A narrow pass (a decode step, or up to 16 rows) multiplies with
//! `gemv.cu` and attends with `attn_decode.cu`; a wide one with `gemm.cu` and `attn_prefill.cu`. Rows may be of several
//! sequences. A captured decode step is the same operations, recorded by their stream.

use super::CudaBackend;
use super::abi::{
    AddRmsNorm, AttnDecode, AttnPlaces, AttnPrefill, AttnSelect, Embed, LayerSum, Norm, PrefillPart, RmsNorm,
    RopeCache, RopeTarget, RoundedRows, SHARING, type_number,
};
use super::cache::Sequences;
use super::context::Device;
use super::error::CudaError;
use super::gemm::{Input, Job, ptr_or_null};
use super::kernel_set::{DECODE_GROUP, NARROW_ROWS, PREFILL_LINES};
use super::launch::Int;
use super::layers;
use super::memory::{Buffer, DevicePtr};
use super::weights::{LAYERS_DIFFER, Matrix};
use crate::backend::entropy::EntropyRule;
use crate::backend::{BackendError, Operations, Row, TraceOptions};
use crate::model::ModelSpec;
use crate::model::config::{Activation, QkNorm};
use crate::model::weights::Expert;

/// The pass in flight, or the last one.
#[derive(Clone, Debug, Default)]
pub struct PassState {
    pub rows: Vec<Row>,
    /// What the traced rows record; `None` if no row is traced.
    pub trace: Option<TraceOptions>,
    /// Entries of `Scratch::parts`; 0 in a narrow pass.
    pub parts: usize,
    /// A decode step: narrow, whatever its rows. Its heads are selected later, in parallel with the logits.
    pub captured: bool,
}

impl PassState {
    /// A row of the pass, if there is one.
    pub fn row(&self, row: usize) -> Result<&Row, BackendError> {
        self.rows.get(row).ok_or(BackendError::RowNotWanted { row })
    }

    /// Whether each row attends by itself, and products are in f32 arithmetic.
    pub fn narrow(&self) -> bool {
        self.captured || self.rows.len() <= NARROW_ROWS
    }
}

/// Work of the blocks of `attn_prefill`: runs of consecutive positions of one sequence, [`PREFILL_LINES`] lines at a
/// time. `group`: query heads that share keys and values.
pub fn prefill_parts(rows: &[Row], group: usize) -> Vec<PrefillPart> {
    let (mut parts, mut first) = (Vec::new(), 0);
    let follows = |a: &Row, b: &Row| b.sequence == a.sequence && b.position == a.position + 1;
    for run in rows.chunk_by(follows) {
        let lines = (0..run.len() * group).step_by(PREFILL_LINES);
        let part = |line| PrefillPart { first: first as i32, rows: run.len() as i32, line: line as i32, padding: 0 };
        parts.extend(lines.map(part));
        first += run.len();
    }
    parts
}

/// The trace options shared by all traced rows; `wide` if one of them is.
pub fn shared_trace(sequences: &mut Sequences, rows: &[Row], record: bool) -> Result<Option<TraceOptions>, CudaError> {
    let mut shared: Option<TraceOptions> = None;
    for row in rows {
        let Some(options) = sequences.options(row.sequence) else { continue };
        if !record || row.position < options.first_row || !sequences.note_traced(row.sequence, row.position) {
            continue;
        }
        let other = shared.get_or_insert(options);
        other.wide |= options.wide;
        if (TraceOptions { first_row: options.first_row, wide: options.wide, ..*other }) != options {
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
        let s = &self.spec;
        let parameters = Embed {
            embedding: self.weights.embedding.ptr(),
            scales: self.weights.embedding.scales(),
            rows: self.scratch.rows.ptr(),
            x: self.scratch.x.ptr(),
            width: s.hidden_size.into(),
            vocab: s.vocab_size.into(),
            scale: s.embedding_scale.unwrap_or(1.0),
        };
        let grid = [s.hidden_size.div_ceil(2048), self.pass.rows.len(), 1];
        Ok(self.device.launch(&self.kernels.embed, grid, &parameters)?)
    }

    fn project_qkv(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        self.note_layer(layer, scratch.x.ptr())?;
        let q = self.layer_queries(layer);
        let (Some(k), Some(v)) = (&w.k, &w.v) else {
            return Err(CudaError::Unsupported(LAYERS_DIFFER.to_owned()).into());
        };
        let jobs = [
            Job { w: &w.q, bias: w.q_bias.as_ref(), y: q },
            Job { w: k, bias: w.k_bias.as_ref(), y: scratch.k() },
            Job { w: v, bias: w.v_bias.as_ref(), y: scratch.v() },
        ];
        let (x, norm, rows, to) =
            (scratch.x.ptr(), self.input_norm(w.input_norm.as_ref()), self.pass.rows.len(), self.rope_target(layer));
        if self.spec.qk_norm == QkNorm::None && self.rotates(&jobs, rows)? {
            return Ok(self.qkv(x, norm, &jobs, rows, to)?);
        }
        self.qkv(x, norm, &jobs, rows, RopeTarget::default())?;
        if self.spec.qk_norm == QkNorm::Whole {
            for (x, weight) in [(q, &w.q_norm), (scratch.k(), &w.k_norm)] {
                let Some(weight) = weight else { continue };
                let (width, norm) = ((weight.bytes() / size_of::<f32>()).into(), self.norm(weight));
                let parameters = RmsNorm { x, norm, width, y: x, not_finite: DevicePtr::NULL };
                self.device.launch(&self.kernels.rms_norm, [rows, 1, 1], &parameters)?;
            }
        }
        Ok(self.rotate_and_cache(layer, q, to)?)
    }

    /// In a wide pass the layer's heads enter the traced rows' selections here, the last layer's when the
    /// pass ends, with the hidden states.
    fn attend(&mut self, layer: usize) -> Result<(), BackendError> {
        if self.pass.narrow() {
            self.attend_decode(layer)?
        } else {
            self.attend_prefill(layer)?
        }
        if self.pass.trace.is_some_and(|trace| trace.head_attention) {
            self.note_places(layer)?;
        }
        if !self.pass.narrow() && layer + 1 < self.spec.layers.len() {
            self.select_heads(&self.device, layer, 1, DevicePtr::NULL)?;
        }
        Ok(())
    }

    fn project_output(&mut self, layer: usize) -> Result<(), BackendError> {
        let w = &self.weights.layers[layer];
        let norm = w.post_attention_norm.as_ref();
        Ok(self.add_residual(self.attended(layer)?, &w.o, w.o_bias.as_ref(), norm)?)
    }

    fn feed_forward(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        if let Some(router) = &w.router {
            return Ok(self.mix_experts(layer, router)?);
        }
        let Expert { gate, up, down } = &w.experts[0];
        let gate = Job { w: gate, bias: w.gate_bias.as_ref(), y: scratch.gate() };
        let up = Job { w: up, bias: w.up_bias.as_ref(), y: DevicePtr::NULL };
        let activation = (self.spec.activation == Activation::GeluTanh).into();
        let norm = self.input_norm(w.feed_forward_norm.as_ref());
        let rounded = self.wide(down)?;
        let gated = self.gated(scratch.x.ptr(), norm, [gate, up], self.pass.rows.len(), activation, rounded)?;
        let norm = w.post_feed_forward_norm.as_ref();
        Ok(self.add_residual(gated, down, w.down_bias.as_ref(), norm)?)
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
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Offset, in heads, of a layer's queries and states.
    pub(super) fn heads_before(&self, layer: usize) -> usize {
        if self.pass.narrow() { layer * self.pass.rows.len() * self.spec.num_attention_heads } else { 0 }
    }

    /// A layer's queries.
    pub(super) fn layer_queries(&self, layer: usize) -> DevicePtr<f32> {
        self.scratch.heads.q.ptr().add(self.heads_before(layer) * self.spec.head_dim)
    }

    pub(super) fn softcap(&self) -> f32 {
        self.spec.attn_logit_softcapping.unwrap_or(0.0)
    }

    pub(super) fn window(&self, layer: usize) -> Int {
        self.spec.layers[layer].window.unwrap_or(0).into()
    }

    /// A layer's place in the cache, and its rotation.
    fn rope_target(&self, layer: usize) -> RopeTarget {
        let (s, scratch) = (&self.spec, &self.scratch);
        let [cos, sin] = &self.angles[s.layers[layer].rope];
        RopeTarget {
            cos: cos.ptr(),
            sin: sin.ptr(),
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            layer: layer as i32,
            kv_heads: s.num_key_value_heads as i32,
            head_dim: s.head_dim as i32,
            query_scale: s.attention_scale,
            k_type: type_number(self.cache.0),
            v_type: type_number(self.cache.1),
        }
    }

    /// Norm per head, rotation and query scale; k and v to the cache.
    fn rotate_and_cache(&self, layer: usize, q: DevicePtr<f32>, to: RopeTarget) -> Result<(), CudaError> {
        let (s, w, scratch) = (&self.spec, &self.weights.layers[layer], &self.scratch);
        let of_heads = |norm: &'_ Option<Buffer<f32>>| ptr_or_null(norm.as_ref().filter(|_| s.qk_norm == QkNorm::Head));
        let parameters = RopeCache {
            q,
            k: scratch.k(),
            v: scratch.v(),
            q_norm: of_heads(&w.q_norm),
            k_norm: Norm { weight: of_heads(&w.k_norm), offset: s.norm_weight_offset, eps: s.rms_norm_eps },
            to,
            heads: s.num_attention_heads.into(),
        };
        let heads = s.num_attention_heads + 2 * s.num_key_value_heads;
        self.device.launch(&self.kernels.rope_cache, [heads.div_ceil(4), self.pass.rows.len(), 1], &parameters)
    }

    /// Attention's output, the input of `o`: rounded in a wide pass if kernel and product support that.
    fn attended(&self, layer: usize) -> Result<Input<'_>, CudaError> {
        let (s, w) = (&self.spec, &self.weights.layers[layer]);
        let rounds = !self.pass.narrow() && s.head_dim.is_multiple_of(SHARING);
        Ok(match self.wide(&w.o)? {
            Some(wide) if rounds => Input::Rounded(wide, self.scratch.inner_rounded(w.o.in_features)),
            _ => Input::F32(self.scratch.attended()),
        })
    }

    fn attend_prefill(&self, layer: usize) -> Result<(), CudaError> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let (out, rounded) = match self.attended(layer)? {
            Input::F32(out) => (out, RoundedRows::default()),
            Input::Rounded(_, rounded) => (DevicePtr::NULL, rounded),
        };
        let parameters = AttnPrefill {
            queries: scratch.heads.q.ptr(),
            rows: scratch.rows.ptr(),
            parts: scratch.parts.ptr(),
            sequences: self.sequences.views.ptr(),
            layer: layer.into(),
            heads: s.num_attention_heads.into(),
            kv_heads: s.num_key_value_heads.into(),
            window: self.window(layer),
            softcap: self.softcap(),
            out,
            states: scratch.heads.states.ptr(),
            rounded,
        };
        let kernel = self.kernels.prefill_hopper.as_ref().unwrap_or(&self.kernels.prefill);
        self.device.launch(kernel, [self.pass.parts, s.num_key_value_heads, 1], &parameters)
    }

    /// Attention of a narrow pass: each row by itself.
    fn attend_decode(&self, layer: usize) -> Result<(), CudaError> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let kernel = match (&self.kernels.decode_plain, self.pass.trace) {
            (Some(plain), None) => plain,
            _ => &self.kernels.decode,
        };
        let parameters = AttnDecode {
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            layer: layer.into(),
            heads: s.num_attention_heads.into(),
            kv_heads: s.num_key_value_heads.into(),
            window: self.window(layer),
            softcap: self.softcap(),
            partial_out: scratch.heads.partial_out.ptr(),
            partial_states: scratch.heads.partial_states.ptr(),
            arrivals: scratch.heads.arrivals.ptr(),
            out: scratch.attended(),
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
        };
        let groups = s.num_key_value_heads * s.group_size().div_ceil(DECODE_GROUP);
        self.device.launch(kernel, [self.splits, groups, self.pass.rows.len()], &parameters)
    }

    /// Records the hidden states x of the traced rows, before a layer or at the end, if their means are recorded.
    fn note_layer(&self, place: usize, x: DevicePtr<f32>) -> Result<(), CudaError> {
        if !self.pass.trace.is_some_and(|trace| trace.layer_means) {
            return Ok(());
        }
        let (n, width) = (self.pass.rows.len(), self.spec.hidden_size);
        let parameters = LayerSum {
            x,
            rows: self.scratch.rows.ptr(),
            n: n.into(),
            sequences: self.sequences.views.ptr(),
            place: place.into(),
            kept: layers::KEPT.into(),
            width: width.into(),
        };
        self.device.launch(&self.kernels.layer_sums, [width.div_ceil(layers::COLUMNS), n, 1], &parameters)
    }

    /// Records the attention targets of the layer's heads in the traced rows.
    fn note_places(&self, layer: usize) -> Result<(), CudaError> {
        let (s, scratch, heads) = (&self.spec, &self.scratch, self.spec.num_attention_heads);
        let parameters = AttnPlaces {
            states: scratch.heads.states.ptr().add(self.heads_before(layer)),
            queries: self.layer_queries(layer),
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            layer: layer.into(),
            layers: s.layers.len().into(),
            heads: heads.into(),
            kv_heads: s.num_key_value_heads.into(),
            head_dim: s.head_dim.into(),
            window: self.window(layer),
            softcap: self.softcap(),
            regularized: self.pass.trace.is_some_and(|trace| trace.rule == EntropyRule::Regularized).into(),
        };
        self.device.launch(&self.kernels.places, [heads, self.pass.rows.len(), 1], &parameters)
    }

    /// Ends the selections of the traced rows, on the stream of `device`: all layers after a narrow pass, the last after a
    /// wide one, and the hidden states.
    pub(super) fn finish_selection(&self, device: &Device) -> Result<(), CudaError> {
        let layers = self.spec.layers.len();
        let (first, count) = if self.pass.narrow() { (0, layers) } else { (layers - 1, 1) };
        self.select_heads(device, first, count, self.scratch.h.ptr())
    }

    /// Adds `layers` layers from `first` on to the selections of the traced rows. Hidden states, if not null,
    /// are recorded, too.
    fn select_heads(
        &self,
        device: &Device,
        first: usize,
        layers: usize,
        hidden: DevicePtr<f32>,
    ) -> Result<(), CudaError> {
        let Some(trace) = self.pass.trace else { return Ok(()) };
        let (s, scratch) = (&self.spec, &self.scratch);
        let parameters = AttnSelect {
            states: scratch.heads.states.ptr(),
            queries: scratch.heads.q.ptr(),
            hidden,
            rows: scratch.rows.ptr(),
            sequences: self.sequences.views.ptr(),
            first_layer: first.into(),
            layers: layers.into(),
            heads: s.num_attention_heads.into(),
            head_dim: s.head_dim.into(),
            hidden_size: s.hidden_size.into(),
            hidden_scale: self.weights.hidden_scale,
            keep: trace.heads.into(),
            regularized: (trace.rule == EntropyRule::Regularized).into(),
            begin: (first == 0).into(),
            finish: (first + layers == s.layers.len()).into(),
        };
        device.launch(&self.kernels.select, [self.pass.rows.len(), 1, 1], &parameters)
    }

    /// x += W · input (+ bias), after a norm, if there is one.
    fn add_residual(
        &self,
        input: Input,
        w: &Matrix,
        bias: Option<&Buffer<f32>>,
        norm: Option<&Buffer<f32>>,
    ) -> Result<(), CudaError> {
        let (s, scratch, n) = (&self.spec, &self.scratch, self.pass.rows.len());
        let Some(norm) = norm else {
            return self.matmul(input, Job { w, bias, y: scratch.x.ptr() }, n, true);
        };
        self.matmul(input, Job { w, bias, y: scratch.h.ptr() }, n, false)?;
        let parameters =
            AddRmsNorm { x: scratch.x.ptr(), h: scratch.h.ptr(), norm: self.norm(norm), width: s.hidden_size.into() };
        self.device.launch(&self.kernels.add_rms_norm, [n, 1, 1], &parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel_set::MAX_ROWS;
    use super::*;
    use crate::backend::SequenceId;

    /// Runs end where a sequence or the order of positions does; every line of every run is in one part.
    #[test]
    fn parts_cover_every_run() {
        let row = |sequence, position| Row { sequence: SequenceId(sequence), position, token: 0 };
        let mut rows: Vec<Row> = (7..40).map(|position| row(0, position)).collect();
        rows.extend([row(2, 40), row(2, 42), row(2, 43)]);
        let parts: Vec<[i32; 3]> = prefill_parts(&rows, 3).iter().map(|p| [p.first, p.rows, p.line]).collect();
        assert_eq!(parts, [[0, 33, 0], [0, 33, 64], [33, 1, 0], [34, 2, 0]]);
        // the maximum: every row is a run of its own
        let apart: Vec<Row> = (0..MAX_ROWS).map(|i| row(i, 0)).collect();
        for group in [1, 64, 65, 200] {
            assert_eq!(prefill_parts(&apart, group).len(), MAX_ROWS * group.div_ceil(PREFILL_LINES));
        }
    }
}
