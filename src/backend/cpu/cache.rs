//! The KV cache of one sequence: chunks of [`CHUNK`] positions, added as the sequence grows. A copy of a prefix shares its chunks;
//! a write to a shared chunk copies it first.

use crate::{backend::DType, backend::ValueType, backend::cpu::simd::LANES, backend::device::q8_scale};
use half::{bf16, f16};
use std::sync::Arc;

/// Positions per chunk. A row's attention is one state per chunk, merged in order, so that the bits do not depend on how rows and
/// chunks are distributed over threads.
pub const CHUNK: usize = 128;

/// One chunk's keys or values, in one of the cache types.
#[derive(Debug, Clone)]
pub enum Block {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    /// For values only; scaled per head and position.
    Q8(Vec<i8>),
}

/// Runs `$body` with `$data` bound to the block's vector, whatever its type.
macro_rules! with_block {
    ($block:expr, $data:ident => $body:expr) => {
        match $block {
            $crate::backend::cpu::cache::Block::F32($data) => $body,
            $crate::backend::cpu::cache::Block::F16($data) => $body,
            $crate::backend::cpu::cache::Block::Bf16($data) => $body,
            $crate::backend::cpu::cache::Block::Q8($data) => $body,
        }
    };
}
pub(crate) use with_block;

impl Block {
    fn new(value_type: ValueType, len: usize) -> Block {
        match value_type {
            ValueType::F32 => Block::F32(vec![0.0; len]),
            ValueType::F16 => Block::F16(vec![f16::ZERO; len]),
            ValueType::Bf16 => Block::Bf16(vec![bf16::ZERO; len]),
            ValueType::Q8 => Block::Q8(vec![0; len]),
        }
    }

    /// Writes `values` to elements `start`, `start + stride`, …
    fn scatter(&mut self, start: usize, stride: usize, values: &[f32]) {
        fn write<E>(data: &mut [E], stride: usize, values: &[f32], narrow: impl Fn(f32) -> E) {
            data.iter_mut().step_by(stride).zip(values).for_each(|(slot, x)| *slot = narrow(*x));
        }
        match self {
            Block::F32(data) => write(&mut data[start..], stride, values, |x| x),
            Block::F16(data) => write(&mut data[start..], stride, values, f16::from_f32),
            Block::Bf16(data) => write(&mut data[start..], stride, values, bf16::from_f32),
            // already divided by their scale
            Block::Q8(data) => write(&mut data[start..], stride, values, |x| x.round_ties_even() as i8),
        }
    }
}

/// Keys and values of [`CHUNK`] positions of one layer.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// `[kv_heads, CHUNK / LANES, head_dim, LANES]`: transposed, so that scores of sixteen positions are computed together, from
    /// contiguous memory (rows of CHUNK elements would map to an eighth of the L1 cache's sets).
    pub keys: Block,
    /// `[kv_heads, CHUNK, value_stride]`
    pub values: Block,
    /// For [`ValueType::Q8`] `[kv_heads, CHUNK]`, else empty.
    scales: Vec<f32>,
}

impl Chunk {
    /// Writes a head's value at one position; `place`: kv_head · CHUNK + the position in the chunk.
    fn write_value(&mut self, place: usize, stride: usize, value: &[f32]) {
        let Some(slot) = self.scales.get_mut(place) else { return self.values.scatter(place * stride, 1, value) };
        let (scale, inverse) = q8_scale(value);
        *slot = scale;
        let scaled: Vec<f32> = value.iter().map(|x| x * inverse).collect();
        self.values.scatter(place * stride, 1, &scaled);
    }

    /// Scales of the values at a head's positions; `None`: 1.
    pub fn value_scales(&self, kv_head: usize) -> Option<&[f32]> {
        self.scales.get(kv_head * CHUNK..(kv_head + 1) * CHUNK)
    }
}

/// Keys and values of one sequence, all layers.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    k_type: DType,
    v_type: ValueType,
}

#[derive(Debug, Clone)]
struct LayerCache {
    /// 0 in a layer without its own keys and values.
    kv_heads: usize,
    head_dim: usize,
    chunks: Vec<Arc<Chunk>>,
}

/// head_dim rounded up to whole vectors.
pub fn value_stride(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}

impl KvCache {
    /// `layers`: (key/value heads, head_dim) of each; a layer that caches nothing has no heads.
    pub fn new(layers: impl Iterator<Item = (usize, usize)>, k_type: DType, v_type: ValueType) -> KvCache {
        let layer = |(kv_heads, head_dim)| LayerCache { kv_heads, head_dim, chunks: Vec::new() };
        KvCache { layers: layers.map(layer).collect(), k_type, v_type }
    }

    /// A copy with (at least) positions `0..len`, whose chunks are shared until they are written to.
    pub fn prefix(&self, len: usize) -> KvCache {
        let chunks = len.div_ceil(CHUNK);
        let layer = |l: &LayerCache| LayerCache { chunks: l.chunks[..chunks.min(l.chunks.len())].to_vec(), ..*l };
        KvCache { layers: self.layers.iter().map(layer).collect(), ..*self }
    }

    /// Drops the chunks that hold no position before `len`.
    pub fn truncate(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.chunks.truncate(len.div_ceil(CHUNK)));
    }

    /// Bytes held, including those shared with copies.
    pub fn bytes(&self) -> usize {
        let position = |l: &LayerCache| self.k_type.size() * l.head_dim + self.v_type.bytes(value_stride(l.head_dim));
        self.layers.iter().map(|layer| layer.chunks.len() * CHUNK * layer.kv_heads * position(layer)).sum()
    }

    /// Makes room for positions `0..len`.
    pub fn reserve(&mut self, len: usize) {
        for layer in self.layers.iter_mut().filter(|layer| layer.kv_heads > 0) {
            let numbers = layer.kv_heads * CHUNK;
            while layer.chunks.len() * CHUNK < len {
                let scales = if self.v_type == ValueType::Q8 { numbers } else { 0 };
                let keys = Block::new(self.k_type.into(), numbers * layer.head_dim);
                let values = Block::new(self.v_type, numbers * value_stride(layer.head_dim));
                layer.chunks.push(Arc::new(Chunk { keys, values, scales: vec![0.0; scales] }));
            }
        }
    }

    /// The chunk of positions `index * CHUNK ..` of a layer.
    pub fn chunk(&self, layer: usize, index: usize) -> &Chunk {
        &self.layers[layer].chunks[index]
    }

    /// Writes one position's key and value (`[kv_heads, head_dim]` each, the key rotated) to a layer.
    pub fn write(&mut self, layer: usize, position: usize, key: &[f32], value: &[f32]) {
        let LayerCache { kv_heads, head_dim, chunks } = &mut self.layers[layer];
        let (head_dim, stride) = (*head_dim, value_stride(*head_dim));
        let chunk = Arc::make_mut(&mut chunks[position / CHUNK]);
        let offset = position % CHUNK;
        for head in 0..*kv_heads {
            let part = head * head_dim..(head + 1) * head_dim;
            let place = head * CHUNK + offset;
            let vector = (place - offset % LANES) * head_dim;
            chunk.keys.scatter(vector + offset % LANES, LANES, &key[part.clone()]);
            chunk.write_value(place, stride, &value[part]);
        }
    }
}
