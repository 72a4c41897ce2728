//! The kernels of a model, and their limits.

use super::launch::{Int, Kernel, Parameters};
use super::{abi::*, context::DeviceInfo, error::Result, launch::TensorMap, loader::KernelFiles};
use crate::{model::ModelSpec, model::config::LayerSpec, model::weights::DType};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Rows of a pass: enough blocks for every multiprocessor in the narrowest product (4096 outputs: 128 large blocks), few enough to limit
/// scratch memory (about 90 MB for the shape of Llama-3.1-8B).
pub const MAX_ROWS: usize = 512;

/// Max rows of a narrow pass: up to here, per-row attention and f32 products cost less than setting up a wide pass.
pub const NARROW_ROWS: usize = 16;

/// Max sequences of a decode step, which is a narrow pass.
pub const DECODE_ROWS: usize = 256;

/// Decode steps per batch. At most two batches are in flight.
pub const DECODE_STEPS: usize = 4;

/// Rows computed beyond a response's end, by the steps in flight.
pub const OVERRUN: usize = 2 * DECODE_STEPS;

/// Max K: heads per row of a trace (`MAX_KEEP` of `common.cuh`).
pub const MAX_HEADS: usize = 32;

/// Max splits of a row's positions, as in `attn_decode.cu`.
pub const MAX_SPLITS: usize = 128;

/// Query heads per block of `attn_decode`.
pub const DECODE_GROUP: usize = 8;

/// Splits of a row in `attn_decode`: enough that a step of one row fills every multiprocessor with the four blocks that fit (by shared
/// memory, with the usual cache types and a head_dim of 128), provided the row has that many chunks.
pub fn decode_splits(spec: &ModelSpec, multiprocessors: usize) -> usize {
    let group = spec.num_attention_heads / spec.num_key_value_heads;
    let blocks = spec.num_key_value_heads * group.div_ceil(DECODE_GROUP);
    (4 * multiprocessors).div_ceil(blocks).clamp(1, MAX_SPLITS)
}

/// Blocks of `attn_decode` that share a row's splits: one per split. To measure fewer, `UQAC_DECODE_BLOCKS` names how many of all
/// rows and groups of heads (`parts`) each multiprocessor gets; bits do not depend on it.
pub fn decode_blocks(splits: usize, parts: usize, multiprocessors: usize) -> usize {
    let wanted = std::env::var("UQAC_DECODE_BLOCKS").ok().and_then(|blocks| blocks.parse::<usize>().ok());
    wanted.map_or(splits, |blocks| (blocks * multiprocessors).div_ceil(parts).clamp(1, splits))
}

/// Positions per block of `attn_sum`.
pub const SUMMED: usize = 16;

/// How the rows of a layer's attention are divided between blocks of `attn_prefill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lines {
    /// A row's lines per key/value head: the query heads that share it.
    pub of_row: usize,
    /// Lines, row after row, per block.
    pub of_block: usize,
}

impl Lines {
    pub fn new(heads: usize, layer: &LayerSpec) -> Lines {
        let of_block = if layer.head_dim > 256 { 32 } else { 64 };
        Lines { of_row: heads / layer.num_key_value_heads, of_block }
    }

    /// The distinct ones of all layers with attention.
    pub fn of_layers(spec: &ModelSpec) -> Vec<Lines> {
        let of_layer = |layer: usize| Lines::new(spec.num_attention_heads, &spec.layers[layer]);
        let mut all: Vec<Lines> = spec.attention_layers().map(of_layer).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// f16 terms of queries and f32 keys in `attn_prefill.cu`: two hold nearly all of f32.
pub const ATTENTION_TERMS: usize = 2;

/// Rows per block of the two variants of `gemm.cu`; also rows of weights.
pub const GEMM_ROWS: [usize; 2] = [64, 128];

/// Rows per block of `gemm_hopper.cu`, and outputs (`WIDTH`); half as many gates in a gated product.
pub const HOPPER_ROWS: usize = 128;
pub const HOPPER_OUTS: usize = 128;

/// The only compute capability with `wgmma`.
pub const HOPPER: (i32, i32) = (9, 0);

/// Blocks of a cluster of `gemm_hopper.cu` (`CLUSTER_X`, `CLUSTER_Y`): of rows, of outputs.
const HOPPER_CLUSTER: [usize; 2] = [1, 2];

/// The grid of `gemm_hopper.cu` for `blocks` blocks of outputs: as many clusters as there is work for, but at most as many as run at
/// once, which then take turns.
pub fn hopper_grid(rows: usize, blocks: usize, multiprocessors: usize) -> [usize; 3] {
    let [of_rows, of_outputs] = HOPPER_CLUSTER;
    let clusters = rows.div_ceil(HOPPER_ROWS * of_rows) * blocks.div_ceil(of_outputs);
    [of_rows, of_outputs * clusters.min(multiprocessors / (of_rows * of_outputs)).max(1), 1]
}

/// Outputs per block of `gemv_wide.cu`; half as many gates in a gated product.
pub const WIDE_OUTS: usize = 128;

/// Outputs per block of the products of `experts.cu`, and max experts that it chooses per token.
pub const EXPERT_OUTS: usize = 8;
pub const MAX_CHOSEN: usize = 32;

/// Heads per block of `delta_mix`, columns per block of `delta_rule`, and its largest key_head_dim.
pub const DELTA_HEADS: usize = 4;
pub const DELTA_COLUMNS: usize = 64;
pub const MAX_KEY_DIM: usize = 128;

/// The choice between the variants of `gemm.cu`, and between those of `gemv_wide.cu`: in each, variants are bit-identical.
impl DeviceInfo {
    /// The faster variant for a product of `rows` rows and `outs` outputs: with large blocks one multiprocessor may get
    /// two blocks and another none.
    pub(super) fn gemm_variant(&self, rows: usize, outs: usize) -> usize {
        // small blocks read twice as much from the L2 cache
        let small = if self.fast_tensor_cores() { 2.2 } else { 1.1 };
        let blocks = |block: usize| rows.div_ceil(block) * outs.div_ceil(block);
        let [few, many] = GEMM_ROWS.map(|block| blocks(block).div_ceil(self.multiprocessors) * block * block);
        usize::from(few as f64 * small >= many as f64)
    }

    /// The same for `gemv_wide.cu`, whose variants have the same number of outputs per block.
    pub(super) fn gemv_wide_variant(&self, rows: usize, outs: usize) -> usize {
        let small = if self.fast_tensor_cores() { 4.0 / 3.0 } else { 1.0 };
        let [few, many] = GEMM_ROWS
            .map(|block| (rows.div_ceil(block) * outs.div_ceil(WIDE_OUTS)).div_ceil(self.multiprocessors) * block);
        usize::from(few as f64 * small >= many as f64)
    }

    /// Whether it is a data-centre GPU, whose products are limited by the L2 cache.
    fn fast_tensor_cores(&self) -> bool {
        matches!(self.capability, (8, 0) | (9..12, _))
    }
}

/// The sets of kernels: they differ in products, attention and early starts, and share all other kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Tensor cores, asynchronous copies, early starts: the best versions for the device.
    Fast,
    /// `plain.cu`, for a device on which one of the others fails its self-test.
    Plain,
}

/// The model properties that select its kernels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Variants {
    /// Those of the layers with attention, ascending.
    pub head_dims: Vec<usize>,
    pub layers: usize,
    /// Query heads per layer.
    pub heads: usize,
    /// Types of matrices on the device.
    pub types: Vec<MatrixType>,
    pub embedding: MatrixType,
    /// Types of cached keys and values.
    pub cache: (DType, DType),
    /// Type of the experts' weights, if there are experts.
    pub experts: Option<MatrixType>,
    /// Whether there are gated delta nets.
    pub delta_net: bool,
}

/// Every kernel used by one model's passes.
pub struct KernelSet {
    /// For weights that are bf16 in their file.
    pub narrow_weights: Kernel<NarrowWeights>,
    /// For 8-bit weights, by their type in the file ([`type_number`]).
    pub pack_q8: Option<[Kernel<PackQ8>; 3]>,
    pub embed: Kernel<Embed>,
    pub matmul: HashMap<MatrixType, MatmulKernels>,
    pub rms_norm: Kernel<RmsNorm>,
    pub add_rms_norm: Kernel<AddRmsNorm>,
    pub rope_cache: Kernel<RopeCache>,
    pub gate: Kernel<GateRows>,
    /// By head_dim.
    pub attention: BTreeMap<usize, AttentionKernels>,
    pub select: Kernel<AttnSelect>,
    pub places: Kernel<AttnPlaces>,
    pub sum: Kernel<AttnSum>,
    pub layer_sums: Kernel<LayerSum>,
    pub rows: Kernel<AttnRows>,
    pub head: HeadKernels,
    pub experts: Option<ExpertKernels>,
    pub delta_net: Option<DeltaKernels>,
}

/// Attention with one head_dim.
pub struct AttentionKernels {
    pub decode: Kernel<AttnDecode>,
    /// Without the entropy, if it is built.
    pub decode_plain: Option<Kernel<AttnDecode>>,
    pub prefill: Kernel<AttnPrefill>,
    /// The same from `attn_prefill_hopper.cu`, if the device supports it and the variant is built.
    pub prefill_hopper: Option<Kernel<AttnPrefill>>,
}

/// Declares the kernels of a file, in launch order: the parameters and the name of each. `{w}` is the type of the weights.
macro_rules! kernels_of_a_file {
    ($($(#[$doc:meta])* $name:ident($file:literal) { $($kernel:ident: $parameters:ty = $of:literal),* })*) => {$(
        $(#[$doc])*
        pub struct $name {
            $(pub $kernel: Kernel<$parameters>,)*
        }

        impl $name {
            fn load(files: &KernelFiles, w: &str) -> Result<$name> {
                Ok($name { $($kernel: files.get($file, &$of.replace("{w}", w))?,)* })
            }
        }
    )*};
}

kernels_of_a_file! {
    /// `head.cu`
    HeadKernels("head") { partial: HeadPartial = "head_partial", mass: HeadMass = "head_mass", finish: HeadFinish = "head_finish" }

    /// `experts.cu`
    ExpertKernels("experts") {
        choose: ChooseExperts = "choose_experts", group: GroupChoices = "group_choices",
        gated: ExpertGated = "expert_gated_{w}", down: ExpertDown = "expert_down_{w}", sum: ExpertSum = "expert_sum"
    }

    /// `delta_net.cu`
    DeltaKernels("delta_net") { mix: DeltaMix = "delta_mix", rule: DeltaRule = "delta_rule" }
}

/// Products with weights of one type.
pub struct MatmulKernels {
    /// For few rows, ascending.
    pub narrow: Vec<NarrowKernels>,
    /// `gemv_ring.cu`, bit-identical, if the device supports it.
    pub ring: Option<NarrowKernels>,
    /// For decode steps with more rows, bit-identical, if the device supports them.
    pub many: Option<ManyKernels>,
    /// For wide passes with f16 weights; other types, and the plain set, use `narrow`.
    pub wide: Option<WideKernels>,
}

/// A variant of the kernels of `gemv.cu`.
#[derive(Clone, Copy, Debug)]
pub struct NarrowVariant {
    /// Suffix of the kernels' names.
    pub name: &'static str,
    /// Max rows.
    pub rows: usize,
    /// Outputs per block; gates per block of `gated`.
    pub outs: usize,
    pub gates: usize,
    /// For `gemv_ring.cu`: `outs` and `gates` are distributed over at most one block per multiprocessor.
    pub ring: Option<RingLimits>,
}

/// Limits on the in-features of `gemv_ring.cu`.
#[derive(Clone, Copy, Debug)]
pub struct RingLimits {
    multiple_of: usize,
    /// The largest with which two stages fit (`MAX_K`).
    max: usize,
}

impl NarrowVariant {
    pub fn grid(&self, blocks: usize, multiprocessors: usize) -> [usize; 3] {
        [if self.ring.is_some() { blocks.min(multiprocessors.max(1)) } else { blocks }, 1, 1]
    }

    /// Whether it supports rows of `k` in-features.
    fn takes(&self, k: usize) -> bool {
        self.ring.is_none_or(|ring| k.is_multiple_of(ring.multiple_of) && k <= ring.max)
    }
}

/// The fastest for one row, on compute capability 9.0 and newer.
fn ring(dtype: MatrixType) -> Option<NarrowVariant> {
    let ring = match dtype {
        MatrixType::F16 => RingLimits { multiple_of: 64, max: 40_576 },
        MatrixType::Q8 => RingLimits { multiple_of: 128, max: 38_528 },
        MatrixType::F32 => return None,
    };
    Some(NarrowVariant { name: "ring", rows: 1, outs: 8, gates: 4, ring: Some(ring) })
}

/// In ascending order of rows; among equals, the first that fits the device's shared memory is used.
pub const NARROW_VARIANTS: [NarrowVariant; 4] = [
    NarrowVariant { name: "r8", rows: 8, outs: 16, gates: 16, ring: None },
    NarrowVariant { name: "r16", rows: 16, outs: 32, gates: 16, ring: None },
    NarrowVariant { name: "r64", rows: 64, outs: 64, gates: 32, ring: None },
    NarrowVariant { name: "r64s", rows: 64, outs: 32, gates: 16, ring: None },
];

/// `plain.cu`, whose warps share the work whatever the grid: all rows of a pass in one launch.
const PLAIN: NarrowVariant = NarrowVariant { name: "plain", rows: MAX_ROWS, outs: 16, gates: 16, ring: None };

/// Products of `gemv.cu`; all variants are bit-identical.
pub struct NarrowKernels {
    pub variant: NarrowVariant,
    pub gemv: Kernel<Gemv>,
    pub qkv: Kernel<GemvQkv>,
    pub gated: Kernel<GemvGated>,
}

/// `gemv_wide.cu`, with [`GEMM_ROWS`] rows per block; both variants are bit-identical.
pub struct ManyKernels {
    pub split: Kernel<SplitRows>,
    /// Linear and gated.
    pub gemv: [[Kernel<GemvWide>; 2]; 2],
}

/// Products of wide passes, with inputs in f16 with shared power-of-two scales.
pub struct WideKernels {
    /// Linear and gated, with [`GEMM_ROWS`] rows per block.
    pub gemm: [[Kernel<Gemm>; 2]; 2],
    /// `gemm_hopper.cu`, linear and gated: replaces both if the device supports it.
    pub hopper: Option<[Kernel<GemmHopper>; 2]>,
    /// Produces such inputs.
    pub round: Kernel<RoundRows>,
    pub rms_norm: Kernel<RmsNormF16>,
}

impl KernelSet {
    /// # Errors
    /// [`CudaError::NoKernel`] names a variant that is not built: a head_dim or a pair of cache types.
    pub fn load(files: &KernelFiles, variants: &Variants, set: Set) -> Result<KernelSet> {
        let Variants { head_dims, types, embedding, cache, experts, delta_net, .. } = variants;
        let attention = head_dims.iter().map(|dim| Ok((*dim, AttentionKernels::load(files, set, *dim, *cache)?)));
        let (attention, k) = (attention.collect::<Result<_>>()?, cache.0);
        let matmul = types.iter().map(|t| Ok((*t, MatmulKernels::load(files, set, *t)?)));
        Ok(KernelSet {
            narrow_weights: files.get("weights", "narrow_weights")?,
            pack_q8: types.contains(&MatrixType::Q8).then(|| load_packing(files)).transpose()?,
            embed: files.get("embed", &format!("embed_{}", embedding.name()))?,
            matmul: matmul.collect::<Result<_>>()?,
            rms_norm: files.get("norm", "rms_norm")?,
            add_rms_norm: files.get("norm", "add_rms_norm")?,
            rope_cache: files.get("rope", "rope_cache")?,
            gate: files.get("gate", "gate_rows")?,
            attention,
            select: load_select(files, variants)?,
            places: files.get("attn_places", &format!("attn_places_k{k}"))?,
            sum: files.get("attn_places", &format!("attn_sum_k{k}"))?,
            layer_sums: files.get("layer_sums", "layer_sums")?,
            rows: files.get("attn_rows", &format!("attn_rows_k{k}_d{}", widest(head_dims)))?,
            head: HeadKernels::load(files, "")?,
            experts: experts.map(|w| ExpertKernels::load(files, w.name())).transpose()?,
            delta_net: delta_net.then(|| DeltaKernels::load(files, "")).transpose()?,
        })
    }
}

impl AttentionKernels {
    fn load(files: &KernelFiles, set: Set, head_dim: usize, (k, v): (DType, DType)) -> Result<AttentionKernels> {
        if set == Set::Plain {
            let ints = [type_number(k), type_number(v), head_dim as i32].map(Int);
            let (decode, prefill) =
                (files.plain("plain_attn_decode", &ints)?, files.plain("plain_attn_prefill", &ints)?);
            return Ok(AttentionKernels { decode, decode_plain: None, prefill, prefill_hopper: None });
        }
        let variant = format!("k{k}_v{v}_d{head_dim}");
        let (decode, prefill) = (format!("attn_decode_{variant}"), format!("{variant}_t{ATTENTION_TERMS}"));
        Ok(AttentionKernels {
            decode: files.get("attn_decode", &decode)?,
            decode_plain: files.find("attn_decode", &format!("{decode}_plain"), &[])?,
            prefill: files.get("attn_prefill", &format!("attn_prefill_{prefill}"))?,
            prefill_hopper: load_hopper(files, "attn_prefill_hopper", &format!("attn_prefill_hopper_{prefill}"))?,
        })
    }
}

fn widest(head_dims: &[usize]) -> usize {
    head_dims.iter().copied().max().unwrap_or(0)
}

/// A kernel for [`HOPPER`]; `None` on other devices, without enough shared memory, or if it is not built.
fn load_hopper<P: Parameters>(files: &KernelFiles, file: &str, name: &str) -> Result<Option<Kernel<P>>> {
    let fits = files.device.info.capability == HOPPER && files.fits(file, name)?;
    fits.then(|| files.get(file, name)).transpose()
}

fn load_packing(files: &KernelFiles) -> Result<[Kernel<PackQ8>; 3]> {
    let [f32, f16, bf16] = [DType::F32, DType::F16, DType::Bf16].map(|t| files.get("weights", &format!("pack_q8_{t}")));
    Ok([f32?, f16?, bf16?])
}

/// Reserves shared memory for all layers at once (narrow pass), and for one layer with the queries kept so far (wide pass).
fn load_select(files: &KernelFiles, shape: &Variants) -> Result<Kernel<AttnSelect>> {
    let mut select: Kernel<AttnSelect> = files.get("attn_select", "attn_select")?;
    let (head, dim) = (select.shared_part("per_head")?, select.shared_part("per_dim")?);
    let narrow = head * shape.layers * shape.heads;
    let wide = head * shape.heads + dim * widest(&shape.head_dims);
    select.loaded.reserve_shared(narrow.max(wide))?;
    Ok(select)
}

impl MatmulKernels {
    fn load(files: &KernelFiles, set: Set, dtype: MatrixType) -> Result<MatmulKernels> {
        if set == Set::Plain {
            let narrow = vec![NarrowKernels::plain(files, dtype)?];
            return Ok(MatmulKernels { narrow, ring: None, many: None, wide: None });
        }
        let mut narrow: Vec<NarrowKernels> = Vec::new();
        for variant in NARROW_VARIANTS {
            if narrow.last().is_none_or(|kernels| kernels.variant.rows < variant.rows) {
                narrow.extend(NarrowKernels::load(files, dtype.name(), variant)?);
            }
        }
        let ring = ring(dtype).filter(|_| files.device.info.capability >= HOPPER);
        let ring = ring.map_or(Ok(None), |ring| NarrowKernels::load(files, dtype.name(), ring))?;
        if dtype != MatrixType::F16 {
            return Ok(MatmulKernels { narrow, ring, many: None, wide: None });
        }
        let gemm = |product: &str| of_sizes(|rows| files.get("gemm", &format!("gemm{product}_m{rows}")));
        let hopper = |name: &str| match TensorMap::supported() {
            true => load_hopper(files, "gemm_hopper", name),
            false => Ok(None),
        };
        let hopper = hopper("gemm_hopper")?.zip(hopper("gemm_gated_hopper")?);
        let wide = WideKernels {
            gemm: [gemm("")?, gemm("_gated")?],
            hopper: hopper.map(Into::into),
            round: files.get("gemm", "round_rows")?,
            rms_norm: files.get("norm", "rms_norm_f16")?,
        };
        Ok(MatmulKernels { narrow, ring, many: ManyKernels::load(files)?, wide: Some(wide) })
    }

    /// The kernels for more rows than [`Self::narrow`] handles in one launch.
    pub fn many(&self, rows: usize) -> Option<&ManyKernels> {
        let narrow = self.narrow.last().map_or(0, |kernels| kernels.variant.rows);
        self.many.as_ref().filter(|_| rows > narrow)
    }

    /// Launches for `rows` rows of `k` in-features: (kernels, first row, rows).
    pub fn parts(&self, rows: usize, k: usize) -> impl Iterator<Item = (&NarrowKernels, usize, usize)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            let left = rows - first;
            let fits = |kernels: &&NarrowKernels| left <= kernels.variant.rows && kernels.variant.takes(k);
            let kernels = self.ring.iter().chain(&self.narrow).find(fits).or(self.narrow.last());
            let kernels = kernels.filter(|_| left > 0)?;
            let part = (kernels, first, left.min(kernels.variant.rows));
            first += part.2;
            Some(part)
        })
    }
}

impl NarrowKernels {
    fn plain(files: &KernelFiles, dtype: MatrixType) -> Result<NarrowKernels> {
        let ints = [Int(dtype as i32)];
        Ok(NarrowKernels {
            variant: PLAIN,
            gemv: files.plain("plain_gemv", &ints)?,
            qkv: files.plain("plain_gemv_qkv", &ints)?,
            gated: files.plain("plain_gemv_gated", &ints)?,
        })
    }

    /// `None` if the variant is not built for weights of type `w` or does not fit the device's shared memory.
    fn load(files: &KernelFiles, w: &str, variant: NarrowVariant) -> Result<Option<NarrowKernels>> {
        let (file, threads) = if variant.ring.is_some() { ("gemv_ring", 288) } else { ("gemv", 256) };
        let name = |product: &str| format!("gemv{product}_{w}_{}", variant.name);
        if !files.fits(file, &name(""))? || !files.fits(file, &name("_gated"))? {
            return Ok(None);
        }
        Ok(Some(NarrowKernels {
            variant,
            gemv: files.get::<Gemv>(file, &name(""))?.with_block(threads),
            qkv: files.get::<GemvQkv>(file, &name("_qkv"))?.with_block(threads),
            gated: files.get::<GemvGated>(file, &name("_gated"))?.with_block(threads),
        }))
    }
}

impl ManyKernels {
    /// `None` if they do not fit the device's shared memory.
    fn load(files: &KernelFiles) -> Result<Option<ManyKernels>> {
        if !files.fits("gemv_wide", "gemv_wide_m128")? {
            return Ok(None);
        }
        let gemv = |product: &str| {
            of_sizes(|rows| {
                let kernel: Kernel<GemvWide> = files.get("gemv_wide", &format!("gemv_wide{product}_m{rows}"))?;
                Ok(kernel.with_block(2 * rows))
            })
        };
        let split = files.get("gemv_wide", "split_rows")?;
        Ok(Some(ManyKernels { split, gemv: [gemv("")?, gemv("_gated")?] }))
    }
}

/// A kernel for each of [`GEMM_ROWS`].
fn of_sizes<P>(load: impl Fn(usize) -> Result<Kernel<P>>) -> Result<[Kernel<P>; 2]> {
    Ok([load(GEMM_ROWS[0])?, load(GEMM_ROWS[1])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_for_few_rows_and_for_slow_tensor_cores() {
        let device = |name: &str, multiprocessors, capability| {
            let name = name.to_owned();
            DeviceInfo { ordinal: 0, name, capability, multiprocessors, free: 0, total: 0 }
        };
        let (h100, rtx4090) = (&device("H100", 132, (9, 0)), &device("RTX 4090", 128, (8, 9)));
        for (device, rows, outs, variant) in [
            (h100, 20, 4096, 0),
            (h100, 512, 4096, 1),
            (h100, 512, 2048, 1),
            (rtx4090, 20, 4096, 0),
            (rtx4090, 512, 4096, 1),
            (rtx4090, 512, 2048, 0),
        ] {
            assert_eq!(device.gemm_variant(rows, outs), variant, "{device:?}, {rows} rows, {outs} outputs");
        }
    }
}
