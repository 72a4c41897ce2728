// Between the q, k, v products and attention: norm per head (Qwen3, Gemma-3), rotation, query scale, and storing k and v
// in the cache in its types. Without a norm per head, narrow products do this themselves (gemv.cu, gemv_qkv).
//
//   rope_cache  (q, k, v, v_norm, q_norm, k_norm, norm_offset, eps, to, heads, first_angles, query_growth, query_period)
//
//   q            [rows, heads, head_dim] f32: normed, rotated and scaled in place
//   k, v         [rows, kv_heads, head_dim] f32, read only; v may be k
//   v_norm, q_norm, k_norm  [head_dim] f32 or null
//   to           where k and v go, and the angles (rope.cuh)
//   first_angles [slots] the angles' rows of the sequences' first positions
//   query_growth, query_period  the query scale at position p is also multiplied by 1 + growth * ln(1 + p / period)
//
// Nothing happens to a row whose position is beyond the cache's capacity.
//
// PRECOND: grid (ceil((heads + 2 * kv_heads) / 4), rows), block 128, no shared memory; one warp per head.
#include "dense.cuh"
#include "rope.cuh"

namespace rope {

constexpr int HEADS = 4;  // per block: one per warp
constexpr int PAIRS = 8;  // per lane: head_dim / 2 / 32

/// One head in a warp's registers: lane l holds the pairs (i, i + head_dim / 2), i = l, l + 32, ...; 0 beyond.
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

/// Calls `put(i, x)` with each element of a head, rotated if there is a scale.
template <class Put>
__device__ __forceinline__ void put_head(const Head& head, const RopeTarget& to, const CachePlace& place,
                                         const float* scale, size_t first_angle, const Put& put) {
  const int half = to.head_dim / 2;
#pragma unroll
  for (int p = 0; p < PAIRS; ++p) {
    const int i = threadIdx.x % 32 + 32 * p;
    if (i >= half) continue;
    Rotated x = {head.first[p], head.second[p]};
    if (scale) x = rotate(x.first, x.second, to.cos[first_angle + i], to.sin[first_angle + i], *scale);
    put(i, x.first), put(i + half, x.second);
  }
}

}  // namespace rope

SHARED_BYTES(rope_cache, 0)
STARTS_EARLY(rope_cache)
extern "C" __global__ void __launch_bounds__(128)
    rope_cache(float* q, const float* k, const float* v, const float* v_norm, const float* q_norm, const float* k_norm,
               float norm_offset, float eps, RopeTarget to, int heads, const int* first_angles, float query_growth,
               int query_period) {
  PRECOND_GRID(ceil_div(heads + 2 * to.kv_heads, rope::HEADS), ANY_GRID);
  start_early();
  const int index = blockIdx.x * rope::HEADS + threadIdx.x / 32, row = blockIdx.y;  // over q's heads, then k's, then v's
  const int head_dim = to.head_dim, kv_head = index - heads - (index < heads + to.kv_heads ? 0 : to.kv_heads);
  if (index >= heads + 2 * to.kv_heads) return;
  const CachePlace place(to, row);
  if (!place.exists()) return;
  const size_t cached = ((size_t)row * to.kv_heads + kv_head) * head_dim;
  const size_t angle = place.angle(to, 0) + (size_t)first_angles[to.rows[row].slot] * (head_dim / 2);
  if (index < heads) {
    float* own = q + ((size_t)row * heads + index) * head_dim;
    rope::Head head = rope::load_head(own, head_dim);
    if (q_norm) rope::norm_head(head, q_norm, norm_offset, eps, head_dim);
    const float growth = query_growth == 0.0f ? 1.0f : 1.0f + query_growth * logf((float)(1 + place.position / query_period));
    const float scale = to.query_scale * growth;
    rope::put_head(head, to, place, &scale, angle, [&](int i, float x) { own[i] = x; });
  } else if (index < heads + to.kv_heads) {
    const float scale = 1.0f;
    rope::Head head = rope::load_head(k + cached, head_dim);
    if (k_norm) rope::norm_head(head, k_norm, norm_offset, eps, head_dim);
    rope::put_head(head, to, place, &scale, angle, [&](int i, float x) { place.store_key(to, kv_head, i, x); });
  } else {
    rope::Head head = rope::load_head(v + cached, head_dim);
    if (v_norm) rope::norm_head(head, v_norm, norm_offset, eps, head_dim);
    rope::put_head(head, to, place, nullptr, angle, [&](int i, float x) { place.store_value(to, kv_head, i, x); });
  }
}
