//! One pass on the device: the launches behind the operations of [`Backend`](crate::backend::Backend). A narrow pass (a
//! decode step: up to 16 rows) multiplies with `gemv.cu`; a wide one with `gemm.cu` and, if its rows follow each other
//! in one sequence, attends with `attn_prefill.cu`.

use super::CudaBackend;
use super::cache::Sequences;
use super::device::{Argument, Buffer, Device};
use super::error::CudaError;
use super::layout::{HEAD_STATE_BYTES, RowState};
use super::products::{Job, Norm, address};
use super::variants::{DECODE_GROUP, GATED_SHARED, NARROW_ROWS, TERMS, WideProducts, select_shared};
use super::weights::Matrix;
use crate::backend::{BackendError, Operations, Row, TraceOptions};
use crate::model::ModelSpec;
use crate::model::config::Activation;

/// Rows of a pass: enough for matrix products at full speed, few enough to bound scratch memory.
pub const MAX_ROWS: usize = 256;

/// Bytes of the struct that rows are described by.
const ROW_BYTES: usize = size_of::<RowState>();

/// What a pass works on; widths in [`ModelSpec`]'s terms, N = [`MAX_ROWS`].
pub struct Scratch {
    /// `[N]`
    pub rows: Buffer,
    /// Residual stream: `[N, hidden_size]`
    pub x: Buffer,
    /// A block's output before its norm, and after the pass the normed hidden state: `[N, hidden_size]`
    pub h: Buffer,
    /// Queries: narrow `[layers, rows, heads, head_dim]` (the trace takes them at the end), wide `[rows, heads, head_dim]`
    pub q: Buffer,
    /// `[N, kv_heads, head_dim]`
    pub k: Buffer,
    pub v: Buffer,
    /// `[N, heads, head_dim]`
    pub attended: Buffer,
    /// As `q`, without the last axis.
    pub states: Buffer,
    /// `[16, heads, splits, head_dim]` and `[16, heads, splits]`
    pub partial_out: Buffer,
    pub partial_states: Buffer,
    /// `[N, intermediate_size]`
    pub gate: Buffer,
    pub up: Buffer,
    /// 16-bit terms of a product's input: `[TERMS][N, the widest input]`
    pub terms: Buffer,
    /// Not 0: something was not finite.
    pub not_finite: Buffer,
}

/// The pass that is under way, or the last one.
#[derive(Clone, Debug, Default)]
pub struct PassState {
    pub rows: Vec<Row>,
    /// What the traced rows leave behind; `None` if no row is traced.
    pub trace: Option<TraceOptions>,
    /// The rows follow each other in one sequence.
    pub consecutive: bool,
}

impl PassState {
    /// Up to 16 rows.
    pub fn narrow(&self) -> bool {
        self.rows.len() <= NARROW_ROWS
    }
}

impl Scratch {
    pub fn new(device: &Device, spec: &ModelSpec, splits: usize) -> Result<Scratch, CudaError> {
        let (heads, layers) = (spec.num_attention_heads, spec.layers.len());
        let (q_width, kv_width) = (heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim);
        let widest = spec.hidden_size.max(q_width).max(spec.intermediate_size);
        let traced_rows = MAX_ROWS.max(layers * NARROW_ROWS);
        let bytes = |what: &str, bytes: usize| device.allocate(&format!("scratch memory ({what})"), bytes);
        let floats = |what: &str, rows: usize, width: usize| bytes(what, 4 * rows * width);
        let not_finite = bytes("flag", 4)?;
        device.fill(&not_finite, 0)?;
        Ok(Scratch {
            rows: bytes("rows", MAX_ROWS * ROW_BYTES)?,
            x: floats("residual stream", MAX_ROWS, spec.hidden_size)?,
            h: floats("hidden states", MAX_ROWS, spec.hidden_size)?,
            q: floats("queries", traced_rows, q_width)?,
            k: floats("keys", MAX_ROWS, kv_width)?,
            v: floats("values", MAX_ROWS, kv_width)?,
            attended: floats("attention", MAX_ROWS, q_width)?,
            states: bytes("head states", traced_rows * heads * HEAD_STATE_BYTES)?,
            partial_out: floats("split attention", NARROW_ROWS * splits, q_width)?,
            partial_states: bytes("split states", NARROW_ROWS * heads * splits * HEAD_STATE_BYTES)?,
            gate: floats("gate", MAX_ROWS, spec.intermediate_size)?,
            up: floats("up", MAX_ROWS, spec.intermediate_size)?,
            terms: bytes("terms", 2 * TERMS * MAX_ROWS * widest)?,
            not_finite,
        })
    }
}

impl Scratch {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let Scratch { rows, x, h, q, k, v, attended, states, partial_out, partial_states, gate, up, terms, .. } = self;
        let all = [rows, x, h, q, k, v, attended, states, partial_out, partial_states, gate, up, terms];
        all.iter().map(|buffer| buffer.bytes()).sum()
    }
}

/// Whether rows are consecutive positions of one sequence.
pub fn consecutive(rows: &[Row]) -> bool {
    rows.windows(2).all(|pair| pair[1].sequence == pair[0].sequence && pair[1].position == pair[0].position + 1)
}

/// The trace options that all traced rows share.
pub fn shared_trace(sequences: &mut Sequences, rows: &[Row], record: bool) -> Result<Option<TraceOptions>, CudaError> {
    let mut shared: Option<TraceOptions> = None;
    for row in rows {
        let Some(options) = sequences.options(row.sequence) else { continue };
        if !record || row.position < options.first_row || !sequences.note_traced(row.sequence, row.position) {
            continue;
        }
        let other = shared.get_or_insert(options);
        if (other.heads, other.rule) != (options.heads, options.rule) {
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
        let (s, n) = (&self.spec, self.pass.rows.len());
        let arguments = [
            (&self.weights.embedding.data).into(),
            (&self.scratch.rows).into(),
            (&self.scratch.x).into(),
            s.hidden_size.into(),
            s.vocab_size.into(),
            s.embedding_scale.unwrap_or(1.0).into(),
        ];
        Ok(self.device.launch(&self.variants.embed, [s.hidden_size.div_ceil(2048), n, 1], 256, 0, &arguments)?)
    }

    /// norm(x) → q, k, v, normed per head, rotated; k and v to the cache.
    fn project_qkv(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, scratch) = (&self.weights.layers[layer], &self.scratch);
        let q = scratch.q.floats(self.layer_part(layer).0);
        let jobs = [
            Job { w: &w.q, bias: w.q_bias.as_ref(), y: q },
            Job { w: &w.k, bias: w.k_bias.as_ref(), y: scratch.k.address() },
            Job { w: &w.v, bias: w.v_bias.as_ref(), y: scratch.v.address() },
        ];
        self.products(scratch.x.address(), Some(self.norm(&w.input_norm)), &jobs, false)?;
        Ok(self.rope(layer, q)?)
    }

    /// Attention over the cache; in a wide pass the layer's heads are offered to the traced rows' selections. The last
    /// layer's are when the pass ends, with the hidden states.
    fn attend(&mut self, layer: usize) -> Result<(), BackendError> {
        let n = self.pass.rows.len();
        if !self.pass.narrow() && self.pass.consecutive {
            self.attend_prefill(layer)?;
        } else {
            for first in (0..n).step_by(NARROW_ROWS) {
                self.attend_decode(layer, first, NARROW_ROWS.min(n - first))?;
            }
        }
        if !self.pass.narrow() && layer + 1 < self.spec.layers.len() {
            self.select(layer, 1, 0)?;
        }
        Ok(())
    }

    /// x += (norm of) W_o · attention.
    fn project_output(&mut self, layer: usize) -> Result<(), BackendError> {
        let w = &self.weights.layers[layer];
        let (attended, bias) = (self.scratch.attended.address(), w.o_bias.as_ref());
        Ok(self.add_residual(attended, &w.o, bias, w.post_attention_norm.as_ref())?)
    }

    /// x += (norm of) W_down · (act(W_gate · norm(x)) ⊙ W_up · norm(x)).
    fn feed_forward(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, scratch, n) = (&self.weights.layers[layer], &self.scratch, self.pass.rows.len());
        let wide = self.products_of(&w.gate)?.wide.as_ref().filter(|_| !self.pass.narrow());
        let down = self.products_of(&w.down)?.wide.as_ref();
        let norm = self.norm(&w.feed_forward_norm);
        match wide {
            None => self.gated_narrow(layer, norm)?,
            Some(wide) => {
                let jobs = [
                    Job { w: &w.gate, bias: w.gate_bias.as_ref(), y: scratch.gate.address() },
                    Job { w: &w.up, bias: w.up_bias.as_ref(), y: scratch.up.address() },
                ];
                self.norm_terms(wide, scratch.x.address(), norm, w.gate.width)?;
                jobs.iter().try_for_each(|job| self.gemm(wide, job, false))?;
                if let (Some(down), true, None) = (down, w.down.dtype == w.gate.dtype, &w.post_feed_forward_norm) {
                    self.gated_terms(wide, n * w.gate.rows)?;
                    let job = Job { w: &w.down, bias: w.down_bias.as_ref(), y: scratch.x.address() };
                    return Ok(self.gemm(down, &job, true)?);
                }
                self.gated_floats(n * w.gate.rows)?;
            }
        }
        let norm = w.post_feed_forward_norm.as_ref();
        Ok(self.add_residual(scratch.gate.address(), &w.down, w.down_bias.as_ref(), norm)?)
    }

    /// The final norm, and what the traced rows leave behind.
    fn final_norm(&mut self) -> Result<(), BackendError> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let arguments = [
            (&scratch.x).into(),
            (&self.weights.final_norm).into(),
            s.norm_weight_offset.into(),
            s.rms_norm_eps.into(),
            s.hidden_size.into(),
            (&scratch.h).into(),
            (&scratch.not_finite).into(),
        ];
        self.device.launch(&self.variants.rms_norm, [self.pass.rows.len(), 1, 1], 256, 32, &arguments)?;
        let (layers, hidden) = (s.layers.len(), scratch.h.address());
        let (first, count) = if self.pass.narrow() { (0, layers) } else { (layers - 1, 1) };
        Ok(self.select(first, count, hidden)?)
    }
}

impl CudaBackend {
    /// Rows of the pass and bytes ahead of a layer's part of the queries and states: (query floats, state bytes).
    fn layer_part(&self, layer: usize) -> (usize, usize) {
        let heads = self.pass.rows.len() * self.spec.num_attention_heads;
        let before = if self.pass.narrow() { layer * heads } else { 0 };
        (before * self.spec.head_dim, before * HEAD_STATE_BYTES)
    }

    fn rope(&self, layer: usize, q: u64) -> Result<(), CudaError> {
        let (s, w, scratch) = (&self.spec, &self.weights.layers[layer], &self.scratch);
        let table = &self.angles[s.layers[layer].rope];
        let arguments = [
            q.into(),
            (&scratch.k).into(),
            (&scratch.v).into(),
            address(w.q_norm.as_ref()).into(),
            address(w.k_norm.as_ref()).into(),
            s.norm_weight_offset.into(),
            s.rms_norm_eps.into(),
            (&table.cos).into(),
            (&table.sin).into(),
            (&scratch.rows).into(),
            self.sequences.views().into(),
            layer.into(),
            s.num_attention_heads.into(),
            s.num_key_value_heads.into(),
            s.head_dim.into(),
            s.attention_scale.into(),
            (self.cache.0 as usize).into(),
            (self.cache.1 as usize).into(),
        ];
        let heads = s.num_attention_heads + 2 * s.num_key_value_heads;
        self.device.launch(&self.variants.rope, [heads.div_ceil(4), self.pass.rows.len(), 1], 128, 0, &arguments)
    }

    fn attend_prefill(&self, layer: usize) -> Result<(), CudaError> {
        let (s, scratch, n) = (&self.spec, &self.scratch, self.pass.rows.len());
        let arguments = [
            (&scratch.q).into(),
            (&scratch.rows).into(),
            self.sequences.views().into(),
            n.into(),
            layer.into(),
            s.num_attention_heads.into(),
            s.num_key_value_heads.into(),
            s.layers[layer].window.unwrap_or(0).into(),
            s.attn_logit_softcapping.unwrap_or(0.0).into(),
            (&scratch.attended).into(),
            (&scratch.states).into(),
        ];
        let grid = [(n * s.group_size()).div_ceil(64), s.num_key_value_heads, 1];
        let prefill = &self.variants.prefill;
        self.device.launch(&prefill.attend, grid, 128, prefill.shared, &arguments)
    }

    /// Rows `first .. first + n` of the pass, at most 16, each by itself.
    fn attend_decode(&self, layer: usize, first: usize, n: usize) -> Result<(), CudaError> {
        let (s, scratch, splits) = (&self.spec, &self.scratch, self.splits);
        let (heads, window) = (s.num_attention_heads, s.layers[layer].window.unwrap_or(0));
        let (queries, states) = self.layer_part(layer);
        let rows: Argument = (scratch.rows.address() + (first * ROW_BYTES) as u64).into();
        let states = scratch.states.address() + (states + first * heads * HEAD_STATE_BYTES) as u64;
        let decode = match (&self.variants.decode_plain, self.pass.trace) {
            (Some(plain), None) => plain,
            _ => &self.variants.decode,
        };
        let arguments = [
            scratch.q.floats(queries + first * heads * s.head_dim).into(),
            rows,
            self.sequences.views().into(),
            layer.into(),
            heads.into(),
            s.num_key_value_heads.into(),
            window.into(),
            s.attn_logit_softcapping.unwrap_or(0.0).into(),
            (&scratch.partial_out).into(),
            (&scratch.partial_states).into(),
        ];
        let grid = [splits, s.num_key_value_heads * s.group_size().div_ceil(DECODE_GROUP), n];
        self.device.launch(&decode.attend, grid, 128, decode.shared, &arguments)?;
        let arguments = [
            (&scratch.partial_out).into(),
            (&scratch.partial_states).into(),
            rows,
            s.head_dim.into(),
            splits.into(),
            window.into(),
            scratch.attended.floats(first * heads * s.head_dim).into(),
            states.into(),
        ];
        self.device.launch(&decode.combine, [heads, n, 1], 128, 4 * (splits + 1), &arguments)
    }

    /// Offers `layers` layers from `layer` on to the selections of the traced rows; with an address of hidden states,
    /// these are recorded too.
    fn select(&self, layer: usize, layers: usize, hidden: u64) -> Result<(), CudaError> {
        let Some(trace) = self.pass.trace else { return Ok(()) };
        let (s, scratch) = (&self.spec, &self.scratch);
        let (begin, finish) = (layer == 0, layer + layers == s.layers.len());
        let arguments = [
            (&scratch.states).into(),
            (&scratch.q).into(),
            hidden.into(),
            (&scratch.rows).into(),
            self.sequences.views().into(),
            layer.into(),
            layers.into(),
            s.num_attention_heads.into(),
            s.head_dim.into(),
            s.hidden_size.into(),
            trace.heads.into(),
            (trace.rule == crate::backend::entropy::EntropyRule::Regularized).into(),
            begin.into(),
            finish.into(),
        ];
        let shared = select_shared(s, layers, trace.heads, begin);
        self.device.launch(&self.variants.select, [self.pass.rows.len(), 1, 1], 256, shared, &arguments)
    }

    /// x += W · input (+ bias), normed first where there is a norm.
    fn add_residual(
        &self,
        input: u64,
        w: &Matrix,
        bias: Option<&Buffer>,
        norm: Option<&Buffer>,
    ) -> Result<(), CudaError> {
        let (s, scratch) = (&self.spec, &self.scratch);
        let Some(norm) = norm else {
            return self.products(input, None, &[Job { w, bias, y: scratch.x.address() }], true);
        };
        self.products(input, None, &[Job { w, bias, y: scratch.h.address() }], false)?;
        let arguments = [
            (&scratch.x).into(),
            (&scratch.h).into(),
            norm.into(),
            s.norm_weight_offset.into(),
            s.rms_norm_eps.into(),
            s.hidden_size.into(),
        ];
        self.device.launch(&self.variants.add_rms_norm, [self.pass.rows.len(), 1, 1], 256, 32, &arguments)
    }

    fn activation(&self) -> Argument {
        usize::from(self.spec.activation == Activation::GeluTanh).into()
    }

    /// gate ← act(gate x) ⊙ up x, 16 rows at a time.
    fn gated_narrow(&self, layer: usize, norm: Norm) -> Result<(), CudaError> {
        let (w, scratch, n) = (&self.weights.layers[layer], &self.scratch, self.pass.rows.len());
        let kernels = &self.products_of(&w.gate)?.gated;
        let (width, outs) = (w.gate.width, w.gate.rows);
        for first in (0..n).step_by(NARROW_ROWS) {
            let rows = NARROW_ROWS.min(n - first);
            let variant = usize::from(rows > 8);
            let arguments = [
                scratch.x.floats(first * width).into(),
                norm.weight.into(),
                norm.offset.into(),
                norm.eps.into(),
                (&w.gate.data).into(),
                (&w.up.data).into(),
                address(w.gate_bias.as_ref()).into(),
                address(w.up_bias.as_ref()).into(),
                scratch.gate.floats(first * outs).into(),
                width.into(),
                outs.into(),
                rows.into(),
                self.activation(),
            ];
            self.device.launch(&kernels[variant], [outs.div_ceil(16), 1, 1], 256, GATED_SHARED[variant], &arguments)?;
        }
        Ok(())
    }

    fn gated_terms(&self, wide: &WideProducts, count: usize) -> Result<(), CudaError> {
        let scratch = &self.scratch;
        let arguments = [
            (&scratch.gate).into(),
            (&scratch.up).into(),
            (&scratch.terms).into(),
            count.into(),
            self.activation(),
            TERMS.into(),
        ];
        self.device.launch(&wide.gated, [count.div_ceil(1024), 1, 1], 256, 0, &arguments)
    }

    fn gated_floats(&self, count: usize) -> Result<(), CudaError> {
        let scratch = &self.scratch;
        let arguments =
            [(&scratch.gate).into(), (&scratch.up).into(), (&scratch.gate).into(), count.into(), self.activation()];
        self.device.launch(&self.variants.gated, [count.div_ceil(1024), 1, 1], 256, 0, &arguments)
    }
}
