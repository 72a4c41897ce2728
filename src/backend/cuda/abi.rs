//! The interface between host and kernels: structs in device memory, as `kernels/common.cuh`, `gemv.cu`, `head.cu` and
//! `sample.cuh` define them, and the parameters of every kernel, each declared here once, in the kernel's order.

use super::{launch::Argument, launch::Int, launch::Parameters, launch::TensorMap, memory::DevicePtr, memory::Floats};
use crate::{backend::DType, backend::entropy::Gamma, backend::q8, model::weights::Weight};
use bytemuck::{Pod, Zeroable};
use half::bf16;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;

/// Declares structs in device memory, some of them also passed to kernels by value: public fields in C's layout, without
/// padding.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }
    )*};
}

structs! {
    /// 128 8-bit weights (`q8.cuh`): blocks of sixteen, each value plus 128, and the blocks' scales in bf16.
    Q8Line { quants: [[u8; q8::BLOCK]; 8], scales: [u16; 8] }

    /// One row of a pass.
    RowState {
        slot: i32, position: i32, token: i32,
        /// The sequence's number for the sampler.
        stream: i32,
    }

    /// Work of a block of `attn_prefill`: 64 lines (32 with a head_dim above 256) of a run of consecutive rows.
    PrefillPart {
        /// The run's first row in the pass, and its number of rows.
        first: i32, rows: i32,
        /// The first line, out of the run's rows times the query heads of a group.
        line: i32,
        padding: i32,
    }

    /// Addresses of a sequence's sums of hidden states; null: not recorded.
    LayersView {
        /// `[points, hidden_size]`
        sums: DevicePtr<f64>,
        /// The latest rows, not yet in the sums: `[points, kept, hidden_size]`, row r at r % kept
        rows: Floats,
        /// `[points, blocks of columns]`
        counts: DevicePtr<i32>,
    }

    /// Addresses of a sequence's trace; null: none.
    TraceView {
        /// In this order, for the kept heads, lowest entropy first: ids `[rows, K]` (i32), entropies, maxima m and sums Z'
        /// `[rows, K]` each (f32), and queries `[rows, K, largest head_dim]` (f32); hidden states `[rows, hidden_size]` times
        /// `DeviceWeights::hidden_scale` (f16); gaps `[rows]` (f32); `HeadAttention` `[rows, layers, heads]`, null: not recorded.
        arrays: [DevicePtr<u8>; TRACE_ARRAYS],
        layers: LayersView,
    }

    /// Addresses of a sequence's cache and trace.
    SequenceView {
        /// `[layers][kv_heads][capacity][head_dim]`, both, the largest layers first
        k: DevicePtr<Stored>, v: DevicePtr<Stored>,
        /// Positions, a multiple of 64.
        capacity: u32,
        first_traced_row: i32, trace: TraceView,
        /// States of its delta nets, and destinations of their copies, by number of tokens.
        states: Floats, snapshots: DevicePtr<Floats>,
    }

    /// A layer's attention.
    LayerShape {
        /// Number of same-sized layers before it in the cache.
        layer: i32,
        kv_heads: i32, head_dim: i32,
        /// 0: none
        window: i32,
    }

    /// Sampling of a row's next token.
    Sampler {
        seed: u64,
        /// 0: greedy
        temperature: f32,
        top_p: f32, top_k: i32,
        /// Position of the first sampled token: the counter of the random numbers.
        counter_offset: i32,
        /// Only ids below this are sampled.
        choosable: i32,
        padding: i32,
    }

    /// Rows of f16 with power-of-two scales (`rounded.cuh`); null: none.
    RoundedRows {
        /// `[rows, width]`
        values: DevicePtr<u16>,
        /// `[rows, row_scales(width)]`, one for every [`SHARING`] values
        scales: Floats,
    }

    /// One matrix of a product's launch.
    MatrixJob {
        w: DevicePtr<Stored>,
        /// A power of two for each output; null: 1.
        scales: Floats,
        /// Null: none.
        bias: Floats,
        y: Floats, outs: i32, padding: i32,
        /// Output of a gate in a wide product, in place of y.
        rounded: RoundedRows,
    }

    /// The matrices of an expert, and their rows' power-of-two scales (null: 1).
    ExpertView {
        gate: DevicePtr<Stored>, gate_scales: Floats, up: DevicePtr<Stored>, up_scales: Floats,
        down: DevicePtr<Stored>, down_scales: Floats,
    }

    /// The choices of each expert, numbered row · top_k + i: `[experts, rows]`, and their counts `[experts]`. The default: not grouped.
    ChoiceGroups { choices: DevicePtr<i32>, counts: DevicePtr<i32>, rows: i32, padding: i32 }

    /// Outputs of `head_finish`.
    HeadLog {
        tokens: DevicePtr<i32>, logprobs: Floats, entropies: Floats, counts: DevicePtr<i32>,
        top_ids: DevicePtr<i32>, top_logprobs: Floats, wide: DevicePtr<WideResult>,
        /// Entries per slot; 0: one entry per row.
        ring: i32,
        padding: i32,
    }

    /// Rotation and destination of a layer's queries, keys and values (`rope.cuh`).
    RopeTarget {
        /// `[positions, head_dim / 2]`; null: nothing is rotated or cached.
        cos: Floats, sin: Floats,
        rows: DevicePtr<RowState>, sequences: DevicePtr<SequenceView>, layer: i32, kv_heads: i32, head_dim: i32,
        query_scale: f32, k_type: i32, v_type: i32,
    }

    /// A layer of gated delta nets, and the rows of a pass (`delta_net.cu`). Arrays of three: queries, keys and values.
    DeltaNet {
        rows: DevicePtr<RowState>, sequences: DevicePtr<SequenceView>,
        /// `[rows, components]`
        raw: [Floats; 3],
        /// `[taps, components]`
        conv: [Floats; 3],
        /// `[rows, value_heads]`, both
        a: Floats, b: Floats,
        /// `[value_heads]`, both
        a_log: Floats, dt_bias: Floats,
        /// `[rows, heads, key_stride]`, for values `[rows, value_heads, value_dim]`
        mixed: [Floats; 3],
        /// `[rows, value_heads, 2]`
        rates: Floats,
        /// Its number among the delta nets.
        layer: i32, key_heads: i32, value_heads: i32, key_dim: i32, value_dim: i32, taps: i32, activation: i32,
        padding: i32,
    }
}

/// γ in the layout of `softmax_state.cuh`: for the nearest positions, and 1 for all others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Reweighting {
    weights: [f32; Gamma::MAX_NEAREST + 1],
    logs: [f32; Gamma::MAX_NEAREST + 1],
    /// Bit 31 - i: γ_i is 0.
    hidden: u32,
}

impl Reweighting {
    /// The kernels' variable.
    pub const NAME: &str = "GAMMA";
}

impl From<Gamma> for Reweighting {
    fn from(gamma: Gamma) -> Reweighting {
        let weights = std::array::from_fn(|i| gamma.values().get(i).copied().unwrap_or(1.0));
        let hidden = weights.iter().rev().fold(0, |bits, weight: &f32| bits >> 1 | u32::from(*weight == 0.0) << 31);
        Reweighting { weights, logs: weights.map(|weight| libm::log(weight.into()) as f32), hidden }
    }
}

/// Arrays of a trace.
pub const TRACE_ARRAYS: usize = 8;

/// The state of one head of one row: softmax maximum and sum, and m', Z', S' of the reweighted attention.
pub type HeadState = [f32; 5];

/// A chunk of logits: the maximum, the sum of e = exp(x - m), and the sum of e (x - m).
pub type LogitPart = [f32; 3];

/// For the same chunk: the sums of x - m, exp((x - m) / 2) and exp((x - m) / 4).
pub type WidePart = [f32; 3];

/// A prediction in a wide trace, in the order of [`Distribution`](crate::backend::Distribution)'s fields.
pub type WideResult = [f32; 5];

/// Consecutive values of a rounded row that share a scale.
pub const SHARING: usize = 32;

/// Scales per rounded row of this width.
pub const fn row_scales(width: usize) -> usize {
    2 * width.div_ceil(2 * SHARING)
}

/// Activations of [`GateRows`].
pub const SILU: Int = Int(0);
pub const SIGMOID: Int = Int(2);

/// Up to three matrices over the same input; unused ones have no outputs.
pub type MatrixJobs = [MatrixJob; 3];

/// An element in its stored dtype, given by the kernel's name: f32, f16, or in the cache bf16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {}

impl Q8Line {
    /// Lines of a row of `k` weights.
    pub fn of_row(k: usize) -> usize {
        k.div_ceil(8 * q8::BLOCK)
    }

    /// Its weights.
    pub fn numbers(&self) -> impl Iterator<Item = f32> {
        let number = |(quants, scale): (&[u8; q8::BLOCK], &u16)| {
            quants.map(|quant| bf16::from_bits(*scale).to_f32() * (f32::from(quant) - 128.0))
        };
        self.quants.iter().zip(&self.scales).flat_map(number)
    }
}

/// Type of a matrix on the device, by its number in `plain.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MatrixType {
    F32 = 0,
    F16 = 1,
    /// [`Q8Line`]s, row after row.
    Q8 = 3,
}

impl MatrixType {
    /// Its name in kernel names.
    pub fn name(self) -> &'static str {
        match self {
            MatrixType::F32 => "f32",
            MatrixType::F16 => "f16",
            MatrixType::Q8 => "q8",
        }
    }

    /// Bytes of a matrix.
    pub fn bytes(self, weight: &Weight) -> usize {
        match self {
            MatrixType::Q8 => weight.rows * Q8Line::of_row(weight.in_features) * size_of::<Q8Line>(),
            _ => weight.byte_len(),
        }
    }
}

impl From<DType> for MatrixType {
    fn from(stored: DType) -> MatrixType {
        match stored {
            DType::F32 => MatrixType::F32,
            DType::F16 | DType::Bf16 => MatrixType::F16,
        }
    }
}

/// A dtype's number in kernels (`CacheType` of `rope.cuh`, `Type` of `plain.cu`).
pub fn type_number(dtype: DType) -> i32 {
    dtype as i32
}

/// Declares the parameters of kernels: the name, the threads per block, and every parameter with its type. A launch with
/// one too many, too few or of another type does not compile. Without a block: parameters shared by several kernels.
macro_rules! parameters {
    ($($(#[$meta:meta])* $name:ident $(($block:literal))? {
        $($(#[$about:meta])* $parameter:ident: $type:ty),* $(,)?
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $($(#[$about])* pub $parameter: $type,)*
        }

        impl Argument for $name {
            fn sizes() -> Vec<usize> {
                [$(<$type>::sizes()),*].concat()
            }

            fn add_to(&self, pointers: &mut Vec<*mut c_void>) {
                $(self.$parameter.add_to(pointers);)*
            }
        }

        $(impl Parameters for $name {
            const BLOCK: u32 = $block;
        })?
    )*};
}

parameters! {
    /// An RMS norm. Null weights: no norm.
    #[derive(Default)]
    Norm {
        weight: Floats,
        /// Added to the weights.
        offset: f32,
        eps: f32,
    }
    /// A layer's attention.
    LayerHeads { sequences: DevicePtr<SequenceView>, layer: Int, heads: Int, kv_heads: Int, window: Int, softcap: f32 }
    /// `embed.cu`: `embed_{w}`
    Embed(256) {
        embedding: DevicePtr<Stored>, scales: Floats, rows: DevicePtr<RowState>, x: Floats, width: Int, vocab: Int,
        scale: f32,
    }
    /// `gemv.cu`: `gemv_{w}_{r8,r16,r64,r64s}`; `gemv_ring.cu`: `gemv_{w}_ring`
    Gemv(256) { x: Floats, jobs: MatrixJobs, k: Int, rows: Int, accumulate: Int }
    /// `gemv.cu`: `gemv_qkv_{w}_{r8,r16,r64,r64s}`; `gemv_ring.cu`: `gemv_qkv_{w}_ring`
    GemvQkv(256) { x: Floats, norm: Norm, jobs: MatrixJobs, k: Int, rows: Int, to: RopeTarget }
    /// `gemv.cu`: `gemv_gated_{w}_{r8,r16,r64,r64s}`; `gemv_ring.cu`: `gemv_gated_{w}_ring`
    GemvGated(256) { x: Floats, norm: Norm, jobs: MatrixJobs, k: Int, rows: Int, activation: Int }
    /// `experts.cu`: `choose_experts`
    ChooseExperts(32) {
        logits: Floats, experts: Int, top_k: Int, normalize: Int, scales: Floats, ids: DevicePtr<i32>, shares: Floats,
    }
    /// `experts.cu`: `group_choices`
    GroupChoices(32) { ids: DevicePtr<i32>, rows: Int, top_k: Int, groups: ChoiceGroups }
    /// `experts.cu`: `expert_gated_{w}`
    ExpertGated(256) {
        x: Floats, ids: DevicePtr<i32>, groups: ChoiceGroups, experts: DevicePtr<ExpertView>, k: Int, inner: Int,
        top_k: Int, activation: Int, h: Floats,
    }
    /// `experts.cu`: `expert_down_{w}`
    ExpertDown(256) {
        h: Floats, ids: DevicePtr<i32>, groups: ChoiceGroups, experts: DevicePtr<ExpertView>, inner: Int, outs: Int,
        products: Floats,
    }
    /// `experts.cu`: `expert_sum`
    ExpertSum(256) { products: Floats, shares: Floats, outs: Int, top_k: Int, accumulate: Int, y: Floats }
    /// `gate.cu`: `gate_rows`
    GateRows(256) {
        gate: Floats, gate_stride: Int, gate_step: Int, x: Floats, x_stride: Int, width: Int, activation: Int,
        y: Floats,
    }
    /// `delta_net.cu`: `delta_mix`
    DeltaMix(128) { net: DeltaNet }
    /// `delta_net.cu`: `delta_rule`
    DeltaRule(256) { net: DeltaNet, keeps: DevicePtr<Floats>, interval: Int, out: Floats }
    /// `gemv_wide.cu`: `split_rows`
    SplitRows(256) { x: Floats, norm: Norm, terms: DevicePtr<u16>, factors: Floats, width: Int }
    /// `gemv_wide.cu`: `gemv_wide_m64` (mode: accumulate) and `gemv_wide_gated_m64` (mode: activation); twice the threads for m128
    GemvWide(128) { terms: DevicePtr<u16>, factors: Floats, jobs: MatrixJobs, k: Int, rows: Int, mode: Int }
    /// `gemm.cu`: `gemm_m{rows}` (mode: accumulate) and `gemm_gated_m{rows}` (mode: activation)
    Gemm(128) { x: RoundedRows, jobs: MatrixJobs, n: Int, k: Int, mode: Int }
    /// `gemm_hopper.cu`: `gemm_hopper` (mode: accumulate) and `gemm_gated_hopper` (mode: activation)
    GemmHopper(384) {
        x_map: TensorMap, w_maps: [TensorMap; 3], x_scales: Floats, jobs: MatrixJobs, n: Int, k: Int, mode: Int,
    }
    /// `gemm.cu`: `round_rows`
    RoundRows(1024) { x: Floats, width: Int, to: RoundedRows }
    /// `weights.cu`: `narrow_weights`
    NarrowWeights(256) { w: DevicePtr<Stored>, scales: Floats, k: Int }
    /// `weights.cu`: `pack_q8_{w}`
    PackQ8(256) { w: DevicePtr<Stored>, lines: DevicePtr<Q8Line>, k: Int }
    /// `norm.cu`: `rms_norm`
    RmsNorm(256) { x: Floats, norm: Norm, width: Int, y: Floats, not_finite: DevicePtr<i32> }
    /// `norm.cu`: `rms_norm_f16`
    RmsNormF16(256) { x: Floats, norm: Norm, width: Int, to: RoundedRows }
    /// `norm.cu`: `add_rms_norm`
    AddRmsNorm(256) { x: Floats, h: Floats, norm: Norm, width: Int, factor: f32 }
    /// `rope.cu`: `rope_cache`
    RopeCache(128) {
        q: Floats, k: Floats, v: Floats, v_norm: Floats, q_norm: Floats, k_norm: Norm, to: RopeTarget, heads: Int,
        first_angles: DevicePtr<i32>, query_growth: f32, query_period: Int,
    }
    /// `layer_sums.cu`: `layer_sums`
    LayerSum(256) {
        x: Floats, rows: DevicePtr<RowState>, n: Int, sequences: DevicePtr<SequenceView>, point: Int, kept: Int,
        width: Int,
    }
    /// `attn_decode.cu`: `attn_decode_k{k}_v{v}_d{head_dim}[_plain]`
    AttnDecode(128) {
        queries: Floats, rows: DevicePtr<RowState>, of: LayerHeads, splits: Int, partial_out: Floats,
        partial_states: DevicePtr<HeadState>, arrivals: DevicePtr<u32>, out: Floats, states: DevicePtr<HeadState>,
    }
    /// `attn_prefill.cu`: `attn_prefill_k{k}_v{v}_d{head_dim}_t{terms}`
    AttnPrefill(128) {
        queries: Floats, rows: DevicePtr<RowState>, parts: DevicePtr<PrefillPart>, of: LayerHeads, out: Floats,
        states: DevicePtr<HeadState>, rounded: RoundedRows,
    }
    /// `attn_select.cu`: `attn_select`
    AttnSelect(256) {
        states: DevicePtr<HeadState>, queries: Floats, hidden: Floats, rows: DevicePtr<RowState>,
        sequences: DevicePtr<SequenceView>, shapes: DevicePtr<LayerShape>, first_layer: Int, layers: Int, heads: Int,
        head_dim: Int, hidden_size: Int, hidden_scale: f32, keep: Int, regularized: Int, begin: Int, finish: Int,
    }
    /// `attn_places.cu`: `attn_places_k{k}`
    AttnPlaces(128) {
        states: DevicePtr<HeadState>, queries: Floats, rows: DevicePtr<RowState>, of: LayerHeads, head_dim: Int,
        trace_layer: Int, layers: Int, regularized: Int,
    }
    /// `attn_places.cu`: `attn_sum_k{k}`
    AttnSum(128) {
        states: DevicePtr<HeadState>, queries: Floats, rows: DevicePtr<RowState>, of: LayerHeads, head_dim: Int,
        count: Int, out: Floats,
    }
    /// `attn_rows.cu`: `attn_rows_k{k}_d{head_dim}`
    AttnRows(512) {
        sequences: DevicePtr<SequenceView>, slot: Int, asked: DevicePtr<i32>, shapes: DevicePtr<LayerShape>,
        softcap: f32, heads: Int, keep: Int, stride: Int, out: Floats,
    }
    /// `head.cu`: `head_partial`
    HeadPartial(512) {
        logits: Floats, vocab: Int, softcap: f32, partials: DevicePtr<LogitPart>, wide: DevicePtr<WidePart>,
        lists: DevicePtr<u64>,
    }
    /// `head.cu`: `head_mass`
    HeadMass(512) {
        logits: Floats, vocab: Int, blocks: Int, partials: DevicePtr<LogitPart>, samplers: DevicePtr<Sampler>,
        masses: DevicePtr<u64>,
    }
    /// `head.cu`: `head_finish`. Null: no given tokens, no next rows, no wide trace.
    #[derive(Default)]
    HeadFinish(512) {
        logits: Floats, vocab: Int, blocks: Int, partials: DevicePtr<LogitPart>, wide: DevicePtr<WidePart>,
        lists: DevicePtr<u64>, masses: DevicePtr<u64>, rows: DevicePtr<RowState>, samplers: DevicePtr<Sampler>,
        given: DevicePtr<i32>, next_rows: DevicePtr<RowState>, log: HeadLog, not_finite: DevicePtr<i32>,
    }
}
