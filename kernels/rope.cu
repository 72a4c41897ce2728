// Between the q, k, v products and attention: norm per head (Qwen3, Gemma-3), rotation, query scale, and k and v into
// the cache in its types.
//
//   rope_cache  (q, k, v, q_norm, k_norm, norm_offset, eps, cos, sin, rows, sequences, layer, heads, kv_heads,
//                head_dim, query_scale, k_type, v_type)
//
//   q            [rows, heads, head_dim] f32: normed, rotated and scaled in place
//   k, v         [rows, kv_heads, head_dim] f32, read only
//   q_norm, k_norm  [head_dim] f32 or null
//   cos, sin     [positions, head_dim / 2] f32: of float(position) * inverse_frequency rounded to f32, as Hugging Face
//                rounds; made by the host in f64 (no fast sine here: an angle at position 30000 needs all its bits)
//   rows         [rows] RowState; sequences [slots] SequenceView
//   k_type, v_type  0 f32 (of keys as Halves, see common.cuh), 1 f16, 2 bf16
//
// Element i of a head is rotated with element i + head_dim / 2. Nothing happens to a row whose position is beyond the
// cache's capacity: a decode step replayed after its sequence has ended must not hurt another's memory.
//
// PRECOND: grid (ceil((heads + 2 * kv_heads) / 4), rows), block 128, no shared memory; one warp a head.
// PRECOND: head_dim even, <= 256; cos and sin have as many rows as the largest capacity.
#include "dense.cuh"

namespace rope {

constexpr int HEADS = 4;  // a block: one each warp
constexpr int PAIRS = 4;  // a lane: head_dim / 2 / 32

/// As k_type and v_type; f32 keys are HALVES in the cache.
enum CacheType { F32 = 0, F16 = 1, BF16 = 2, HALVES = 3 };

/// Element i of the head that begins with element `at`.
__device__ __forceinline__ void store_cached(void* cache, size_t at, int i, int head_dim, float x, int type) {
  if (type == F32) {
    static_cast<float*>(cache)[at + i] = x;
  } else if (type == F16) {
    static_cast<__half*>(cache)[at + i] = from_f32<__half>(x);
  } else if (type == BF16) {
    static_cast<__nv_bfloat16*>(cache)[at + i] = from_f32<__nv_bfloat16>(x);
  } else {
    __half* high = static_cast<__half*>(cache) + 2 * at + i;
    split_halves(x, high[0], high[head_dim]);
  }
}

/// One head in a warp's registers: lane l has the pairs (i, i + head_dim / 2), i = l, l + 32, ...; 0 beyond.
struct Head {
  float first[PAIRS], second[PAIRS];
};

__device__ __forceinline__ Head load_head(const float* from, int head_dim) {
  const int half = head_dim / 2;
  Head head;
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    const int i = threadIdx.x % 32 + 32 * p;
    head.first[p] = i < half ? from[i] : 0.0f;
    head.second[p] = i < half ? from[i + half] : 0.0f;
  }
  return head;
}

__device__ __forceinline__ void norm_head(Head& head, const float* weight, float offset, float eps, int head_dim) {
  const int half = head_dim / 2;
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) squares += head.first[p] * head.first[p] + head.second[p] * head.second[p];
  const float factor = norm_factor(warp_reduce<Sum>(squares), head_dim, eps);
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    const int i = threadIdx.x % 32 + 32 * p;
    if (i >= half) continue;
    head.first[p] *= factor * (offset + weight[i]);
    head.second[p] *= factor * (offset + weight[i + half]);
  }
}

/// Rotates by the position's angles, then scales. `cos` and `sin` are the position's rows of the tables.
__device__ __forceinline__ void rotate_head(Head& head, const float* cos, const float* sin, int head_dim, float scale) {
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    const int i = threadIdx.x % 32 + 32 * p;
    if (i >= head_dim / 2) continue;
    const float a = head.first[p], b = head.second[p], c = cos[i], s = sin[i];
    head.first[p] = (a * c - b * s) * scale;
    head.second[p] = (b * c + a * s) * scale;
  }
}

__device__ __forceinline__ void store_head(const Head& head, void* to, size_t at, int head_dim, int type) {
  const int half = head_dim / 2;
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    const int i = threadIdx.x % 32 + 32 * p;
    if (i >= half) continue;
    store_cached(to, at, i, head_dim, head.first[p], type);
    store_cached(to, at, i + half, head_dim, head.second[p], type);
  }
}

}  // namespace rope

SHARED_BYTES(rope_cache, 0)
STARTS_EARLY(rope_cache)
extern "C" __global__ void __launch_bounds__(128)
    rope_cache(float* q, const float* k, const float* v, const float* q_norm, const float* k_norm, float norm_offset,
               float eps, const float* cos, const float* sin, const RowState* rows, const SequenceView* sequences,
               int layer, int heads, int kv_heads, int head_dim, float query_scale, int k_type, int v_type) {
  PRECOND_GRID(ceil_div(heads + 2 * kv_heads, rope::HEADS), ANY_GRID);
  start_early();
  const int index = blockIdx.x * rope::HEADS + threadIdx.x / 32, row = blockIdx.y;  // of q's heads, then k's, then v's
  if (index >= heads + 2 * kv_heads) return;
  const int position = rows[row].position;
  const SequenceView& sequence = sequences[rows[row].slot];
  if (position >= (int)sequence.capacity) return;
  const size_t angles = (size_t)position * (head_dim / 2);
  if (index < heads) {
    const size_t at = ((size_t)row * heads + index) * head_dim;
    rope::Head head = rope::load_head(q + at, head_dim);
    if (q_norm) rope::norm_head(head, q_norm, norm_offset, eps, head_dim);
    rope::rotate_head(head, cos + angles, sin + angles, head_dim, query_scale);
    rope::store_head(head, q, at, head_dim, rope::F32);
    return;
  }
  const bool is_k = index < heads + kv_heads;
  const int kv_head = index - heads - (is_k ? 0 : kv_heads);
  rope::Head head = rope::load_head((is_k ? k : v) + ((size_t)row * kv_heads + kv_head) * head_dim, head_dim);
  if (is_k) {
    if (k_norm) rope::norm_head(head, k_norm, norm_offset, eps, head_dim);
    rope::rotate_head(head, cos + angles, sin + angles, head_dim, 1.0f);
  }
  const size_t at = (((size_t)layer * kv_heads + kv_head) * sequence.capacity + position) * head_dim;
  const int key_type = k_type == rope::F32 ? rope::HALVES : k_type;
  rope::store_head(head, is_k ? sequence.k : sequence.v, at, head_dim, is_k ? key_type : v_type);
}
