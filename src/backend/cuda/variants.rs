//! Which kernels a model needs: their names, and what their launch depends on besides the rows.

use super::device::Kernel;
use super::error::CudaError;
use super::kernels::Kernels;
use crate::model::ModelSpec;
use crate::model::weights::DType;
use std::collections::HashMap;

/// Rows of a narrow pass: the most that `gemv.cu` takes.
pub const NARROW_ROWS: usize = 16;

/// Every kernel of the passes of one model.
pub struct Variants {
    pub embed: Kernel,
    pub products: HashMap<DType, Products>,
    pub rms_norm: Kernel,
    pub add_rms_norm: Kernel,
    pub gated: Kernel,
    pub rope: Kernel,
    pub decode: Decode,
    /// Without the entropy, where it is built.
    pub decode_plain: Option<Decode>,
    pub prefill: Prefill,
    pub select: Kernel,
    pub rows: Kernel,
    pub cosine: Kernel,
    pub head_partial: Kernel,
    pub head_mass: Kernel,
    pub head_finish: Kernel,
}

/// Products with weights of one type.
pub struct Products {
    /// `[up to 8 rows, up to 16]`
    pub plain: [Kernel; 2],
    pub norm: [Kernel; 2],
    pub gated: [Kernel; 2],
    /// For more rows; none for f32 weights, whose products are done 16 rows at a time.
    pub wide: Option<WideProducts>,
}

pub struct WideProducts {
    /// `[64 rows a block, 128]`
    pub gemm: [Kernel; 2],
    pub split: Kernel,
    pub rms_norm: Kernel,
    pub gated: Kernel,
}

/// 16-bit terms that activations are split into for `gemm.cu`: two hold what float32 does, nearly.
pub const TERMS: usize = 2;

/// Rows of a block of `gemm.cu`, and its shared memory in bytes.
pub const GEMM_BLOCKS: [(usize, usize); 2] = [(64, 240 * (TERMS * 64 + 64)), (128, 240 * (TERMS * 128 + 64))];

/// Dynamic shared memory of `gemv.cu` in bytes, `[up to 8 rows, up to 16]`.
pub const GEMV_SHARED: [usize; 2] = [32768, 49152];
pub const GATED_SHARED: [usize; 2] = [49152, 49152];

/// Dynamic shared memory of `head.cu` in bytes.
pub const HEAD_SHARED: usize = 33152;

/// `attn_decode.cu` with the merge of its splits.
pub struct Decode {
    pub attend: Kernel,
    pub combine: Kernel,
    /// Bytes.
    pub shared: usize,
}

/// `attn_prefill.cu`.
pub struct Prefill {
    pub attend: Kernel,
    /// Bytes.
    pub shared: usize,
}

impl Variants {
    pub fn load(
        kernels: &Kernels,
        spec: &ModelSpec,
        types: &[DType],
        cache: (DType, DType),
        embedding: DType,
    ) -> Result<Variants, CudaError> {
        let (k, head_dim) = (cache.0.name(), spec.head_dim);
        let products = types.iter().map(|t| Ok((*t, Products::load(kernels, *t)?)));
        Ok(Variants {
            embed: kernels.get("embed", &format!("embed_{}", embedding.name()), 0)?,
            products: products.collect::<Result<_, CudaError>>()?,
            rms_norm: kernels.get("norm", "rms_norm", 32)?,
            add_rms_norm: kernels.get("norm", "add_rms_norm", 32)?,
            gated: kernels.get("norm", "gated_act", 0)?,
            rope: kernels.get("rope", "rope_cache", 0)?,
            decode: Decode::load(kernels, spec, cache, "")?
                .ok_or_else(|| CudaError::NoKernel { name: decode_name(spec, cache, "") })?,
            decode_plain: Decode::load(kernels, spec, cache, "_plain")?,
            prefill: Prefill::load(kernels, spec, cache)?,
            select: kernels.get(
                "attn_select",
                "attn_select",
                select_shared(spec, spec.layers.len(), MOST_HEADS, true),
            )?,
            rows: kernels.get("attn_rows", &format!("attn_rows_k{k}_d{head_dim}"), 128 * MOST_HEADS)?,
            cosine: kernels.get("similarity", "cosine_similarity", 96)?,
            head_partial: kernels.get("head", "head_partial", HEAD_SHARED)?,
            head_mass: kernels.get("head", "head_mass", HEAD_SHARED)?,
            head_finish: kernels.get("head", "head_finish", HEAD_SHARED)?,
        })
    }
}

/// K at most: heads that a trace keeps per row.
pub const MOST_HEADS: usize = 32;

/// Dynamic shared memory of `attn_select` in bytes, for so many layers and K heads.
pub fn select_shared(spec: &ModelSpec, layers: usize, keep: usize, begin: bool) -> usize {
    let earlier = if begin { 0 } else { 4 * keep * spec.head_dim };
    128 + 4 * (layers * spec.num_attention_heads + 6 * keep + 1) + earlier
}

impl Products {
    fn load(kernels: &Kernels, dtype: DType) -> Result<Products, CudaError> {
        let w = dtype.name();
        let pair = |what: &str, shared: [usize; 2]| -> Result<[Kernel; 2], CudaError> {
            let kernel = |rows: &str, shared| kernels.get("gemv", &format!("gemv_{what}{w}_{rows}"), shared);
            Ok([kernel("r8", shared[0])?, kernel("r16", shared[1])?])
        };
        let wide = || -> Result<WideProducts, CudaError> {
            let gemm =
                |(rows, shared): (usize, usize)| kernels.get("gemm", &format!("gemm_{w}_t{TERMS}_m{rows}"), shared);
            Ok(WideProducts {
                gemm: [gemm(GEMM_BLOCKS[0])?, gemm(GEMM_BLOCKS[1])?],
                split: kernels.get("gemm", &format!("split_{w}"), 0)?,
                rms_norm: kernels.get("norm", &format!("rms_norm_{w}"), 32)?,
                gated: kernels.get("norm", &format!("gated_act_{w}"), 0)?,
            })
        };
        Ok(Products {
            plain: pair("", GEMV_SHARED)?,
            norm: pair("norm_", GEMV_SHARED)?,
            gated: pair("gated_", GATED_SHARED)?,
            wide: (dtype != DType::F32).then(wide).transpose()?,
        })
    }
}

fn decode_name(spec: &ModelSpec, (k, v): (DType, DType), suffix: &str) -> String {
    format!("attn_decode_k{}_v{}_d{}{suffix}", k.name(), v.name(), spec.head_dim)
}

impl Decode {
    fn load(
        kernels: &Kernels,
        spec: &ModelSpec,
        cache: (DType, DType),
        suffix: &str,
    ) -> Result<Option<Decode>, CudaError> {
        let shared = decode_shared(spec.head_dim, cache);
        let Some(attend) = kernels.find("attn_decode", &decode_name(spec, cache, suffix), shared)? else {
            return Ok(None);
        };
        let combine = kernels.get("attn_decode", &format!("attn_combine{suffix}"), 4 * (MOST_SPLITS + 1))?;
        Ok(Some(Decode { attend, combine, shared }))
    }
}

/// Parts that a row's positions are split into, at most.
pub const MOST_SPLITS: usize = 128;

/// Query heads that a block of `attn_decode` computes together.
pub const DECODE_GROUP: usize = 8;

/// Dynamic shared memory of `attn_decode` in bytes: the table of its header. 0: there is no such variant.
fn decode_shared(head_dim: usize, cache: (DType, DType)) -> usize {
    use DType::{Bf16, F16, F32};
    let by_head_dim = match cache {
        (F32, F32) => [23360, 40256, 74048, 55616, 73024, 75584],
        (F32, F16) => [35648, 32064, 57664, 43328, 56640, 59200],
        (F16, F16) => [35648, 24128, 41536, 31296, 40512, 77376],
        (Bf16, Bf16) => [35648, 25408, 43840, 34624, 44864, 85824],
        _ => [0; 6],
    };
    let column = [16, 32, 64, 96, 128, 256].iter().position(|d| *d == head_dim);
    column.map_or(0, |column| by_head_dim[column])
}

impl Prefill {
    fn load(kernels: &Kernels, spec: &ModelSpec, (k, v): (DType, DType)) -> Result<Prefill, CudaError> {
        let d = spec.head_dim;
        let planes = |t: DType| if t == DType::F32 { TERMS } else { 1 };
        let tile = if d > 128 { 16 } else { 32 };
        let shared = (TERMS * 64 + tile * (planes(k) + planes(v))) * (d + 8) * 2;
        let name = format!("attn_prefill_k{}_v{}_d{d}_t{TERMS}", k.name(), v.name());
        Ok(Prefill { attend: kernels.get("attn_prefill", &name, shared)?, shared })
    }
}
