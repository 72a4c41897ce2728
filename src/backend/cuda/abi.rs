//! The interface of host and kernels: structs in device memory, as `kernels/common.cuh`, `gemv.cu`, `head.cu` and
//! `sample.cuh` define them, and the parameters of every kernel, each declared here once, in the kernel's order.

use super::launch::{Argument, Int, Parameters};
use super::memory::DevicePtr;
use super::tensor_map::TensorMap;
use crate::backend::DType;
use crate::backend::entropy::Gamma;
use bytemuck::{Pod, Zeroable};
use std::ffi::c_void;

/// One row of a pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RowState {
    pub slot: i32,
    pub position: i32,
    pub token: i32,
    /// Numbers the sequence for the sampler.
    pub stream: i32,
}

/// γ as `softmax_state.cuh` has it: of the nearest positions, and 1 of all others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Reweighting {
    weights: [f32; Gamma::MAX_NEAREST + 1],
    logs: [f32; Gamma::MAX_NEAREST + 1],
    /// Bit 31 - i: γ_i is 0.
    hidden: u32,
}

impl Reweighting {
    /// The variable of the kernels.
    pub const NAME: &str = "GAMMA";
}

impl From<Gamma> for Reweighting {
    fn from(gamma: Gamma) -> Reweighting {
        let weights = std::array::from_fn(|i| gamma.values().get(i).copied().unwrap_or(1.0));
        let hidden = weights.iter().rev().fold(0, |bits, weight: &f32| bits >> 1 | u32::from(*weight == 0.0) << 31);
        Reweighting { weights, logs: weights.map(|weight| f64::from(weight).ln() as f32), hidden }
    }
}

/// Work of a block of `attn_prefill`: 64 lines of a run of consecutive rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct PrefillPart {
    /// The run's first row of the pass, and its rows.
    pub first: i32,
    pub rows: i32,
    /// The first line, of the run's rows times the query heads of a group.
    pub line: i32,
    pub padding: i32,
}

/// Attention targets of a head, in the order of [`HeadAttention`](crate::backend::HeadAttention)'s fields.
pub type HeadPlaces = [f32; 5];

/// Addresses of a sequence's sums of hidden states; null: not recorded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct LayersView {
    /// `[places, hidden_size]`
    pub sums: DevicePtr<f64>,
    /// The latest rows, which are in no sum: `[places, kept, hidden_size]`, row r at r % kept
    pub rows: DevicePtr<f32>,
    /// `[places, blocks of columns]`
    pub counts: DevicePtr<i32>,
}

/// Addresses of a sequence's trace; null: none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct TraceView {
    /// `[rows, K]` each, lowest entropy first
    pub heads: DevicePtr<i32>,
    pub entropies: DevicePtr<f32>,
    pub maxima: DevicePtr<f32>,
    pub sums: DevicePtr<f32>,
    /// `[rows, K, largest head_dim]`
    pub queries: DevicePtr<f32>,
    /// f16 `[rows, hidden_size]`, times `DeviceWeights::hidden_scale`
    pub hidden: DevicePtr<u16>,
    /// `[rows]`
    pub gaps: DevicePtr<f32>,
    /// `[rows, layers, heads]`; null: not recorded
    pub places: DevicePtr<HeadPlaces>,
    pub layers: LayersView,
}

/// Addresses of a sequence's cache and trace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct SequenceView {
    /// `[layers][kv_heads][capacity][head_dim]`, both, the largest layers first
    pub k: DevicePtr<Stored>,
    pub v: DevicePtr<Stored>,
    /// Positions, a multiple of 64.
    pub capacity: u32,
    pub first_traced_row: i32,
    pub trace: TraceView,
    /// Of its delta nets, and where copies of them go, by tokens.
    pub states: DevicePtr<f32>,
    pub snapshots: DevicePtr<DevicePtr<f32>>,
}

/// A layer's attention.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct LayerShape {
    /// Layers of its size before it in the cache.
    pub layer: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    /// 0: none
    pub window: i32,
}

/// The state of one head of one row: softmax maximum and sum, and m', Z', S' of the reweighted attention.
pub type HeadState = [f32; 5];

/// A chunk of logits: the maximum, the sum of e = exp(x - m), and the sum of e (x - m).
pub type LogitPart = [f32; 3];

/// The same chunk: the sums of x - m, exp((x - m) / 2) and exp((x - m) / 4).
pub type WidePart = [f32; 3];

/// A prediction in a wide trace, in the order of [`Distribution`](crate::backend::Distribution)'s fields.
pub type WideResult = [f32; 5];

/// Sampling of a row's next token.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Sampler {
    pub seed: u64,
    /// 0: greedy
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    /// Position of the first sampled token: the counter of the random numbers.
    pub first_position: i32,
    /// Only ids below this are sampled.
    pub choosable: i32,
    pub padding: i32,
}

/// Rows of f16 with power-of-two scales (`rounded.cuh`); null: none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RoundedRows {
    /// `[rows, width]`
    pub values: DevicePtr<u16>,
    /// `[rows, row_scales(width)]`, one for every [`SHARING`] numbers
    pub scales: DevicePtr<f32>,
}

/// Consecutive values of a rounded row that share a scale.
pub const SHARING: usize = 32;

/// Scales per rounded row of this width.
pub const fn row_scales(width: usize) -> usize {
    2 * width.div_ceil(2 * SHARING)
}

/// One matrix of a product's launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct MatrixJob {
    pub w: DevicePtr<Stored>,
    /// A power of two for each output; null: 1.
    pub scales: DevicePtr<f32>,
    /// Null: none.
    pub bias: DevicePtr<f32>,
    pub y: DevicePtr<f32>,
    pub outs: i32,
    pub padding: i32,
    /// Output of a gate in a wide product, in place of y.
    pub rounded: RoundedRows,
}

/// The matrices of an expert, and powers of two of their rows (null: 1).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ExpertView {
    pub gate: DevicePtr<Stored>,
    pub gate_scales: DevicePtr<f32>,
    pub up: DevicePtr<Stored>,
    pub up_scales: DevicePtr<f32>,
    pub down: DevicePtr<Stored>,
    pub down_scales: DevicePtr<f32>,
}

/// The choices of each expert, numbers row · top_k + i: `[experts, rows]`, and their counts `[experts]`. The default: not grouped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ChoiceGroups {
    pub choices: DevicePtr<i32>,
    pub counts: DevicePtr<i32>,
    pub rows: i32,
    pub padding: i32,
}

/// Activations of [`GateRows`].
pub const SILU: Int = Int(0);
pub const SIGMOID: Int = Int(2);

/// Up to three matrices over the same input; unused ones have no outputs.
pub type MatrixJobs = [MatrixJob; 3];

/// Outputs of `head_finish`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct HeadLog {
    pub tokens: DevicePtr<i32>,
    pub logprobs: DevicePtr<f32>,
    pub entropies: DevicePtr<f32>,
    pub counts: DevicePtr<i32>,
    pub top_ids: DevicePtr<i32>,
    pub top_logprobs: DevicePtr<f32>,
    pub wide: DevicePtr<WideResult>,
    /// Entries per slot; 0: one entry per row.
    pub ring: i32,
    pub padding: i32,
}

/// Rotation and destination of a layer's queries, keys and values (`rope.cuh`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RopeTarget {
    /// `[positions, head_dim / 2]`; null: nothing is rotated or cached.
    pub cos: DevicePtr<f32>,
    pub sin: DevicePtr<f32>,
    pub rows: DevicePtr<RowState>,
    pub sequences: DevicePtr<SequenceView>,
    pub layer: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub query_scale: f32,
    pub k_type: i32,
    pub v_type: i32,
}

/// A layer of gated delta nets, and the rows of a pass (`delta_net.cu`). Of three: queries, keys and values.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeltaNet {
    pub rows: DevicePtr<RowState>,
    pub sequences: DevicePtr<SequenceView>,
    /// `[rows, components]`
    pub raw: [DevicePtr<f32>; 3],
    /// `[taps, components]`
    pub conv: [DevicePtr<f32>; 3],
    /// `[rows, value_heads]`, both
    pub a: DevicePtr<f32>,
    pub b: DevicePtr<f32>,
    /// `[value_heads]`, both
    pub a_log: DevicePtr<f32>,
    pub dt_bias: DevicePtr<f32>,
    /// `[rows, heads, key_stride]`, of values `[rows, value_heads, value_dim]`
    pub mixed: [DevicePtr<f32>; 3],
    /// `[rows, value_heads, 2]`
    pub rates: DevicePtr<f32>,
    pub place: i32,
    pub key_heads: i32,
    pub value_heads: i32,
    pub key_dim: i32,
    pub value_dim: i32,
    pub taps: i32,
    pub activation: i32,
    pub padding: i32,
}

/// An element in its stored dtype, given by the kernel's name: f32, f16, or in the cache bf16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {}

/// A dtype's number in kernels (`CacheType` of `rope.cuh`, `Type` of `plain.cu`).
pub fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
    }
}

impl Argument for RoundedRows {}
impl Argument for MatrixJobs {}
impl Argument for RopeTarget {}
impl Argument for HeadLog {}
impl Argument for DeltaNet {}
impl Argument for ChoiceGroups {}

/// An RMS norm: three parameters of a kernel. Null weights: no norm.
#[derive(Clone, Copy, Default)]
pub struct Norm {
    pub weight: DevicePtr<f32>,
    /// Added to the weights.
    pub offset: f32,
    pub eps: f32,
}

impl Argument for Norm {
    const SIZES: &'static [usize] = &[size_of::<DevicePtr<f32>>(), size_of::<f32>(), size_of::<f32>()];

    fn add_to(&self, pointers: &mut Vec<*mut c_void>) {
        self.weight.add_to(pointers);
        self.offset.add_to(pointers);
        self.eps.add_to(pointers);
    }
}

/// Declares the parameters of kernels: the name, the threads of a block, and every parameter with its type. A launch with
/// one too many, too few or of another type does not compile.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident($block:literal) { $($parameter:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $parameter: $type,)*
        }

        impl Parameters for $name {
            const BLOCK: u32 = $block;

            fn sizes() -> Vec<usize> {
                [$(<$type as Argument>::SIZES),*].concat()
            }

            fn pointers(&self) -> Vec<*mut c_void> {
                let mut pointers = Vec::new();
                $(self.$parameter.add_to(&mut pointers);)*
                pointers
            }
        }
    )*};
}

kernels! {
    /// `embed.cu`: `embed_{w}`
    Embed(256) {
        embedding: DevicePtr<Stored>, scales: DevicePtr<f32>, rows: DevicePtr<RowState>, x: DevicePtr<f32>, width: Int,
        vocab: Int, scale: f32,
    }
    /// `gemv.cu`: `gemv_{w}_{r8,r16,r64,r64s}`
    Gemv(256) { x: DevicePtr<f32>, jobs: MatrixJobs, k: Int, rows: Int, accumulate: Int }
    /// `gemv.cu`: `gemv_qkv_{w}_{r8,r16,r64,r64s}`
    GemvQkv(256) {
        x: DevicePtr<f32>, norm: Norm, jobs: MatrixJobs, k: Int, rows: Int,
        to: RopeTarget,
    }
    /// `gemv.cu`: `gemv_gated_{w}_{r8,r16,r64,r64s}`
    GemvGated(256) {
        x: DevicePtr<f32>, norm: Norm, jobs: MatrixJobs, k: Int, rows: Int,
        activation: Int,
    }
    /// `experts.cu`: `choose_experts`
    ChooseExperts(32) {
        logits: DevicePtr<f32>, experts: Int, top_k: Int, normalize: Int, scales: DevicePtr<f32>, ids: DevicePtr<i32>,
        shares: DevicePtr<f32>,
    }
    /// `experts.cu`: `group_choices`
    GroupChoices(32) { ids: DevicePtr<i32>, rows: Int, top_k: Int, groups: ChoiceGroups }
    /// `experts.cu`: `expert_gated_{w}`
    ExpertGated(256) {
        x: DevicePtr<f32>, ids: DevicePtr<i32>, groups: ChoiceGroups, experts: DevicePtr<ExpertView>, k: Int, inner: Int,
        top_k: Int, activation: Int, h: DevicePtr<f32>,
    }
    /// `experts.cu`: `expert_down_{w}`
    ExpertDown(256) {
        h: DevicePtr<f32>, ids: DevicePtr<i32>, groups: ChoiceGroups, experts: DevicePtr<ExpertView>, inner: Int, outs: Int,
        products: DevicePtr<f32>,
    }
    /// `experts.cu`: `expert_sum`
    ExpertSum(256) {
        products: DevicePtr<f32>, shares: DevicePtr<f32>, outs: Int, top_k: Int, accumulate: Int, y: DevicePtr<f32>,
    }
    /// `gate.cu`: `gate_rows`
    GateRows(256) {
        gate: DevicePtr<f32>, gate_stride: Int, gate_step: Int, x: DevicePtr<f32>, x_stride: Int, width: Int,
        activation: Int, y: DevicePtr<f32>,
    }
    /// `delta_net.cu`: `delta_mix`
    DeltaMix(128) { net: DeltaNet }
    /// `delta_net.cu`: `delta_rule`
    DeltaRule(256) { net: DeltaNet, keeps: DevicePtr<DevicePtr<f32>>, interval: Int, out: DevicePtr<f32> }
    /// `gemv_wide.cu`: `split_rows`
    SplitRows(256) {
        x: DevicePtr<f32>, norm: Norm, terms: DevicePtr<u16>,
        factors: DevicePtr<f32>, width: Int,
    }
    /// `gemv_wide.cu`: `gemv_wide_m64` (mode: accumulate) and `gemv_wide_gated_m64` (mode: activation); twice the threads for m128
    GemvWide(128) {
        terms: DevicePtr<u16>, factors: DevicePtr<f32>, jobs: MatrixJobs, k: Int, rows: Int, mode: Int,
    }
    /// `gemm.cu`: `gemm_m{rows}` (mode: accumulate) and `gemm_gated_m{rows}` (mode: activation)
    Gemm(128) { x: RoundedRows, jobs: MatrixJobs, n: Int, k: Int, mode: Int }
    /// `gemm_hopper.cu`: `gemm_hopper` (mode: accumulate) and `gemm_gated_hopper` (mode: activation)
    GemmHopper(384) {
        x_map: TensorMap, w_maps: [TensorMap; 3], x_scales: DevicePtr<f32>, jobs: MatrixJobs, n: Int, k: Int, mode: Int,
    }
    /// `gemm.cu`: `round_rows`
    RoundRows(1024) { x: DevicePtr<f32>, width: Int, to: RoundedRows }
    /// `weights.cu`: `narrow_weights`
    NarrowWeights(256) { w: DevicePtr<Stored>, scales: DevicePtr<f32>, k: Int }
    /// `norm.cu`: `rms_norm`
    RmsNorm(256) {
        x: DevicePtr<f32>, norm: Norm, width: Int, y: DevicePtr<f32>,
        not_finite: DevicePtr<i32>,
    }
    /// `norm.cu`: `rms_norm_f16`
    RmsNormF16(256) { x: DevicePtr<f32>, norm: Norm, width: Int, to: RoundedRows }
    /// `norm.cu`: `add_rms_norm`
    AddRmsNorm(256) { x: DevicePtr<f32>, h: DevicePtr<f32>, norm: Norm, width: Int, factor: f32 }
    /// `rope.cu`: `rope_cache`
    RopeCache(128) {
        q: DevicePtr<f32>, k: DevicePtr<f32>, v: DevicePtr<f32>, v_norm: DevicePtr<f32>, q_norm: DevicePtr<f32>,
        k_norm: Norm, to: RopeTarget, heads: Int,
    }
    /// `layer_sums.cu`: `layer_sums`
    LayerSum(256) {
        x: DevicePtr<f32>, rows: DevicePtr<RowState>, n: Int, sequences: DevicePtr<SequenceView>, place: Int, kept: Int,
        width: Int,
    }
    /// `attn_decode.cu`: `attn_decode_k{k}_v{v}_d{head_dim}[_plain]`
    AttnDecode(128) {
        queries: DevicePtr<f32>, rows: DevicePtr<RowState>, sequences: DevicePtr<SequenceView>, layer: Int, heads: Int,
        kv_heads: Int, window: Int, softcap: f32, partial_out: DevicePtr<f32>, partial_states: DevicePtr<HeadState>,
        arrivals: DevicePtr<u32>, out: DevicePtr<f32>, states: DevicePtr<HeadState>,
    }
    /// `attn_prefill.cu`: `attn_prefill_k{k}_v{v}_d{head_dim}_t{terms}`
    AttnPrefill(128) {
        queries: DevicePtr<f32>, rows: DevicePtr<RowState>, parts: DevicePtr<PrefillPart>,
        sequences: DevicePtr<SequenceView>, layer: Int, heads: Int, kv_heads: Int, window: Int, softcap: f32,
        out: DevicePtr<f32>, states: DevicePtr<HeadState>, rounded: RoundedRows,
    }
    /// `attn_select.cu`: `attn_select`
    AttnSelect(256) {
        states: DevicePtr<HeadState>, queries: DevicePtr<f32>, hidden: DevicePtr<f32>, rows: DevicePtr<RowState>,
        sequences: DevicePtr<SequenceView>, shapes: DevicePtr<LayerShape>, first_layer: Int, layers: Int, heads: Int,
        head_dim: Int, hidden_size: Int, hidden_scale: f32, keep: Int, regularized: Int, begin: Int, finish: Int,
    }
    /// `attn_places.cu`: `attn_places_k{k}`
    AttnPlaces(128) {
        states: DevicePtr<HeadState>, queries: DevicePtr<f32>, rows: DevicePtr<RowState>,
        sequences: DevicePtr<SequenceView>, layer: Int, place: Int, layers: Int, heads: Int, kv_heads: Int,
        head_dim: Int, window: Int, softcap: f32, regularized: Int,
    }
    /// `attn_places.cu`: `attn_sum_k{k}`
    AttnSum(128) {
        states: DevicePtr<HeadState>, queries: DevicePtr<f32>, rows: DevicePtr<RowState>,
        sequences: DevicePtr<SequenceView>, layer: Int, heads: Int, kv_heads: Int, head_dim: Int, window: Int,
        softcap: f32, count: Int, out: DevicePtr<f32>,
    }
    /// `attn_rows.cu`: `attn_rows_k{k}_d{head_dim}`
    AttnRows(512) {
        sequences: DevicePtr<SequenceView>, slot: Int, asked: DevicePtr<i32>, shapes: DevicePtr<LayerShape>,
        softcap: f32, heads: Int, keep: Int, stride: Int, out: DevicePtr<f32>,
    }
    /// `head.cu`: `head_partial`
    HeadPartial(512) {
        logits: DevicePtr<f32>, vocab: Int, softcap: f32, partials: DevicePtr<LogitPart>, wide: DevicePtr<WidePart>,
        lists: DevicePtr<u64>,
    }
    /// `head.cu`: `head_mass`
    HeadMass(512) {
        logits: DevicePtr<f32>, vocab: Int, blocks: Int, partials: DevicePtr<LogitPart>, samplers: DevicePtr<Sampler>,
        masses: DevicePtr<u64>,
    }
    /// `head.cu`: `head_finish`
    HeadFinish(512) {
        logits: DevicePtr<f32>, vocab: Int, blocks: Int, partials: DevicePtr<LogitPart>, wide: DevicePtr<WidePart>,
        lists: DevicePtr<u64>, masses: DevicePtr<u64>, rows: DevicePtr<RowState>, samplers: DevicePtr<Sampler>,
        given: DevicePtr<i32>, next_rows: DevicePtr<RowState>, log: HeadLog, not_finite: DevicePtr<i32>,
    }
}
