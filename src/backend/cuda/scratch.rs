//! Scratch memory: for passes, allocated with the model and again for decode steps of more than 16 rows; and for reading back
//! a traced response.

use super::abi::{HeadState, PrefillPart, RoundedRows, RowState, row_scales};
use super::{context::Device, delta_net::key_stride, error::Result};
use super::{kernel_set::Lines, kernel_set::MAX_ROWS, kernel_set::NARROW_ROWS, memory::Buffer, memory::Floats};
use crate::{model::ModelSpec, model::config::DeltaNetSpec, model::config::ExpertSpec};

/// Buffers of a pass; widths in [`ModelSpec`]'s terms, N = [`MAX_ROWS`].
pub struct Scratch {
    /// `[N]`
    pub rows: Buffer<RowState>,
    /// Work of the attention blocks of a wide pass.
    pub parts: Buffer<PrefillPart>,
    /// Residual stream: `[N, hidden_size]`
    pub x: Buffer<f32>,
    /// A block's output before its norm, and after the pass the normed hidden state: `[N, hidden_size]`
    pub h: Buffer<f32>,
    pub heads: HeadScratch,
    /// Shared by buffers that live inside one transformer block: see [`Scratch::attended`] and its siblings.
    pub inner: Buffer<f32>,
    q_width: usize,
    kv_width: usize,
    /// A product's input: N [`RoundedRows`] of the largest width; or, in a decode step, up to N/2 rows of two f16 terms each,
    /// and norm factors
    pub rounded: Buffer<u16>,
    pub rounded_scales: Buffer<f32>,
    /// Per-layer inputs, if the model has them: `[N, layers, hidden_size_per_layer_input]`
    pub inputs: Buffer<f32>,
    /// As wide as the input of o, which it multiplies: `[N, width]`; empty without gates
    pub output_gate: Buffer<f32>,
    pub delta: DeltaScratch,
    pub experts: ExpertScratch,
    /// Not 0: a value was not finite.
    pub not_finite: Buffer<i32>,
}

impl Scratch {
    pub fn new(device: &Device, spec: &ModelSpec, splits: usize) -> Result<Scratch> {
        let q_width = spec.num_attention_heads * spec.widest(|layer| layer.head_dim);
        let kv_width = spec.widest(|layer| layer.num_key_value_heads * layer.head_dim);
        let shared = spec.experts.and_then(|experts| experts.shared_expert_intermediate_size).unwrap_or(0);
        let gates = spec.widest(|layer| layer.intermediate_size).max(shared);
        let values = spec.delta_net.map_or(0, |net| net.widths()[2]);
        let widest = spec.hidden_size.max(q_width).max(gates).max(values);
        let inputs = spec.layer_input.map_or(0, |input| spec.layers.len() * input.hidden_size);
        let inner = gates.max(q_width + 2 * kv_width).max(inputs).max(2 * spec.hidden_size).max(values);
        let output_gate = if spec.family.output_gate { q_width.max(values) } else { 0 };
        let parts: usize = Lines::of_layers(spec).iter().map(|lines| lines.of_row.div_ceil(lines.of_block)).sum();
        let floats = |what: &str, rows: usize, width: usize| device.scratch::<f32>(what, rows * width);
        let not_finite = device.scratch("flag", 1)?;
        device.fill(&not_finite, 0)?;
        Ok(Scratch {
            rows: device.scratch("rows", MAX_ROWS)?,
            parts: device.scratch("parts of rows", MAX_ROWS * parts)?,
            x: floats("residual stream", MAX_ROWS, spec.hidden_size)?,
            h: floats("hidden states", MAX_ROWS, spec.hidden_size)?,
            heads: HeadScratch::new(device, spec, splits, NARROW_ROWS)?,
            inner: floats("attention and gate", MAX_ROWS, inner)?,
            q_width,
            kv_width,
            rounded: device.scratch("rounded inputs", MAX_ROWS * widest)?,
            rounded_scales: device.scratch("rounded inputs", MAX_ROWS * row_scales(widest))?,
            inputs: floats("inputs of the layers", MAX_ROWS, inputs)?,
            output_gate: floats("output gates", MAX_ROWS, output_gate)?,
            delta: DeltaScratch::new(device, spec)?,
            experts: ExpertScratch::new(device, spec)?,
            not_finite,
        })
    }

    /// `[N, intermediate_size]`: overlays the three below, which feed-forward no longer needs; has room for 2 `[N, hidden_size]`.
    pub fn gate(&self) -> Floats {
        self.inner.ptr()
    }

    /// `[N, heads, head_dim]`
    pub fn attended(&self) -> Floats {
        self.inner.ptr()
    }

    /// Gate or attention output of this width, rounded, overlaying its f32 values.
    pub fn inner_rounded(&self, width: usize) -> RoundedRows {
        RoundedRows { values: self.inner.ptr().cast(), scales: self.inner.ptr().add(MAX_ROWS * width / 2) }
    }

    /// A product's input.
    pub fn rounded(&self) -> RoundedRows {
        RoundedRows { values: self.rounded.ptr(), scales: self.rounded_scales.ptr() }
    }

    /// `[N, kv_heads, head_dim]`
    pub fn k(&self) -> Floats {
        self.attended().add(MAX_ROWS * self.q_width)
    }

    pub fn v(&self) -> Floats {
        self.k().add(MAX_ROWS * self.kv_width)
    }
}

/// Buffers of a mixture of experts, empty if there is none; N = [`MAX_ROWS`].
pub struct ExpertScratch {
    /// `[N, num_experts]`
    pub logits: Buffer<f32>,
    /// `[N, num_experts_per_tok]`, both
    pub ids: Buffer<i32>,
    pub shares: Buffer<f32>,
    /// Choices of each expert: `[num_experts, N]`, and `[num_experts]`
    pub choices: Buffer<i32>,
    pub counts: Buffer<i32>,
    /// act(gate) ⊙ up for every choice: `[N, num_experts_per_tok, moe_intermediate_size]`
    pub inner: Buffer<f32>,
    /// The expert's output for every choice: `[N, num_experts_per_tok, hidden_size]`
    pub products: Buffer<f32>,
}

impl ExpertScratch {
    pub fn new(device: &Device, spec: &ModelSpec) -> Result<ExpertScratch> {
        let size = |size: fn(&ExpertSpec) -> usize| MAX_ROWS * spec.experts.as_ref().map_or(0, size);
        let experts = spec.experts.as_ref().map_or(0, |experts| experts.num_experts);
        Ok(ExpertScratch {
            logits: device.scratch("experts' logits", size(|e| e.num_experts))?,
            ids: device.scratch("chosen experts", size(|e| e.num_experts_per_tok))?,
            shares: device.scratch("chosen experts", size(|e| e.num_experts_per_tok))?,
            choices: device.scratch("experts' choices", size(|e| e.num_experts))?,
            counts: device.scratch("experts' choices", experts)?,
            inner: device.scratch("experts' gates", size(|e| e.num_experts_per_tok * e.moe_intermediate_size))?,
            products: device.scratch("experts' outputs", size(|e| e.num_experts_per_tok) * spec.hidden_size)?,
        })
    }
}

/// Buffers of gated delta nets, empty if there are none; N = [`MAX_ROWS`].
pub struct DeltaScratch {
    /// Queries, keys and values before and after their convolutions: `[N, components]` each
    raw: Buffer<f32>,
    pub mixed: Buffer<f32>,
    /// `[N, num_value_heads]`, both
    pub a: Buffer<f32>,
    pub b: Buffer<f32>,
    /// `[N, num_value_heads, 2]`
    pub rates: Buffer<f32>,
    /// Destinations for copies of the states after a row: `[N]`
    pub keeps: Buffer<Floats>,
}

impl DeltaScratch {
    pub fn new(device: &Device, spec: &ModelSpec) -> Result<DeltaScratch> {
        let size = |size: fn(&DeltaNetSpec) -> usize| MAX_ROWS * spec.delta_net.as_ref().map_or(0, size);
        let (floats, heads) = (|width| device.scratch("delta nets", width), size(|net| net.num_value_heads));
        Ok(DeltaScratch {
            raw: floats(size(|net| net.widths().iter().sum()))?,
            mixed: floats(size(|net| 2 * net.num_key_heads * key_stride(net) + net.widths()[2]))?,
            a: floats(heads)?,
            b: floats(heads)?,
            rates: floats(2 * heads)?,
            keeps: device.scratch("places of states", size(|_| 1))?,
        })
    }

    /// Queries, keys and values before their convolutions.
    pub fn raw(&self, net: &DeltaNetSpec) -> [Floats; 3] {
        let key = MAX_ROWS * net.widths()[0];
        [0, key, 2 * key].map(|before| self.raw.ptr().add(before))
    }

    /// The same after their convolutions.
    pub fn mixed(&self, net: &DeltaNetSpec) -> [Floats; 3] {
        let key = MAX_ROWS * net.num_key_heads * key_stride(net);
        [0, key, 2 * key].map(|before| self.mixed.ptr().add(before))
    }

    /// Offset of the values in `mixed`.
    pub fn values(&self, spec: &ModelSpec) -> usize {
        spec.delta_net.map_or(0, |net| 2 * MAX_ROWS * net.num_key_heads * key_stride(&net))
    }
}

/// Per-head buffers of attention, for wide passes and for narrow passes of up to `rows` rows.
pub struct HeadScratch {
    /// Rows of a narrow pass: [`NARROW_ROWS`], or those of a decode step.
    pub rows: usize,
    /// Queries `[rows, heads, head_dim]` of a layer; in a narrow pass of all layers, each with room for the widest, because the trace
    /// reads them at the end.
    pub q: Buffer<f32>,
    /// As `q`, without the last axis.
    pub states: Buffer<HeadState>,
    /// `[rows, heads, splits, head_dim]` and `[rows, heads, splits]`
    pub partial_out: Buffer<f32>,
    pub partial_states: Buffer<HeadState>,
    /// Finished splits per row and head group; zeros between launches.
    pub arrivals: Buffer<u32>,
}

impl HeadScratch {
    pub fn new(device: &Device, spec: &ModelSpec, splits: usize, rows: usize) -> Result<HeadScratch> {
        let (heads, layers) = (spec.num_attention_heads, spec.attention_layers().count());
        let (q_width, traced_rows) = (heads * spec.widest(|layer| layer.head_dim), MAX_ROWS.max(layers * rows));
        let arrivals = device.scratch("splits that are done", rows * heads)?;
        device.fill(&arrivals, 0)?;
        Ok(HeadScratch {
            rows,
            q: device.scratch("queries", traced_rows * q_width)?,
            states: device.scratch("head states", traced_rows * heads)?,
            partial_out: device.scratch("split attention", rows * splits * q_width)?,
            partial_states: device.scratch("split states", rows * heads * splits)?,
            arrivals,
        })
    }
}

/// Name in errors; not counted, as the size depends on the request.
pub const QUERIES: &str = "scratch memory (queries)";

/// Rows of α* per launch.
pub const QUERY_ROWS: usize = 64;

/// Buffers for reading back traces, reused.
pub struct Queries {
    /// Positions.
    pub rows: Buffer<i32>,
    pub out: Buffer<f32>,
}

impl Queries {
    pub fn new(device: &Device) -> Result<Queries> {
        Ok(Queries { rows: device.allocate(QUERIES, QUERY_ROWS)?, out: device.allocate(QUERIES, 0)? })
    }
}
