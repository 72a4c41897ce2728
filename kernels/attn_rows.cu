// Rows of aggregated attention, straight from the KV cache and the trace, for backtracking.
//
// attn_rows_k<K>_d<D>: alpha*_t = max over the K heads kept at row T of alpha'_t = w_t e^{s_t - m'} / Z', t = 0 ..= T.
//   K: f32, f16, bf16 (type of the K cache); D: the largest head_dim of the layers, 16, 32, 64, 96, 128, 256, 512
//   sequences, slot     the sequence, whose trace holds every row of `asked` from first_traced_row on
//   asked               [n] rows T, absolute; those before first_traced_row yield zeros
//   shapes              [layers with attention]
//   softcap             s <- softcap tanh(s / softcap); 0: none
//   keep                K of the trace, 1..=MAX_KEEP
//   out                 [n, stride] f32; positions after T become 0
// PRECOND: grid (ceil(stride / 32), n); block 512; dynamic shared memory NAME_shared_bytes; pointers aligned to
//   16 bytes.
//
// Who does what:
//   grid x        a tile of 32 positions
//   grid y        a row that was asked for
//   a warp        one of the kept heads after another, 16 apart: its weights into shared memory, eight lanes a position
//   a thread      of the first 32: the maximum over the heads at one position
#include "softmax_state.cuh"

namespace rows {

constexpr int TILE = 32, THREADS = 512, WARPS = THREADS / 32, KEY_LANES = 8;

/// alpha'_t of one head over a tile of positions, 0 outside `span`; one warp. Eight lanes share a position.
template <class K, int D>
__device__ __forceinline__ void head_weights(const K* keys, int head_dim, const float* query, float m, float z, float softcap,
                                             int start, const Span& span, int row, float* out) {
  constexpr int N = VEC<K>, PARTS = (D / N + KEY_LANES - 1) / KEY_LANES;
  const int lane = threadIdx.x % 32, j = lane % KEY_LANES;
  float q[PARTS][N];
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int v = j + part * KEY_LANES;
      q[part][n] = v < head_dim / N ? query[v * N + n] : 0.f;
    }
#pragma unroll 4
  for (int step = 0; step < TILE; step += 4) {
    const int t = start + step + lane / KEY_LANES;
    const bool on = span.contains(t);
    float s = 0.f;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      const int v = j + part * KEY_LANES;
      if (!on || v >= head_dim / N) continue;
      float k[N];
      load_key<K>(keys + (size_t)t * head_dim, head_dim, v * N, k);
#pragma unroll
      for (int n = 0; n < N; ++n) s = fmaf(q[part][n], k[n], s);
    }
    s = warp_reduce<Sum, KEY_LANES>(s);
    if (j != 0) continue;
    if (softcap > 0.f) s = softcap * tanhf(s / softcap);
    // only positions with weight 0 exceed m'
    out[t - start] = on && z > 0.f ? reweighting(row, t) * expf(fminf(s - m, 0.f)) / z : 0.f;
  }
}

template <class K, int D>
__device__ __forceinline__ void aggregate(const SequenceView& sequence, int row, const LayerShape* shapes, float softcap,
                                          int heads, int keep, int stride, float* out) {
  float* weights = reinterpret_cast<float*>(dyn_smem);  // [keep, TILE]
  const int start = blockIdx.x * TILE, lane = threadIdx.x % 32;
  const bool traced = row >= sequence.first_traced_row;
  for (int i = threadIdx.x / 32; i < keep; i += WARPS) {
    const size_t entry = (size_t)(row - sequence.first_traced_row) * keep + i;
    const int head = traced && start <= row ? sequence.trace.heads[entry] : -1;
    if (head < 0) {
      weights[i * TILE + lane] = 0.f;
      continue;
    }
    const LayerShape shape = shapes[head / heads];
    const int kv_head = head % heads / (heads / shape.kv_heads);
    const size_t plane = (size_t)shape.layer * shape.kv_heads + kv_head;
    const K* keys = static_cast<const K*>(sequence.k) + plane * sequence.capacity * shape.head_dim;
    head_weights<K, D>(keys, shape.head_dim, sequence.trace.queries + entry * D, sequence.trace.maxima[entry],
                       sequence.trace.sums[entry], softcap, start, attended(row, shape.window), row,
                       weights + i * TILE);
  }
  __syncthreads();  // all heads' weights are written
  const int t = start + threadIdx.x;
  if (threadIdx.x >= TILE || t >= stride) return;
  float best = 0.f;
  for (int i = 0; i < keep; ++i) best = fmaxf(best, weights[i * TILE + threadIdx.x]);
  out[t] = best;
}

}  // namespace rows

#define ATTN_ROWS(name, K, D)                                                                                  \
  SHARED_BYTES(name, 4 * MAX_KEEP * rows::TILE)                                                                \
  extern "C" __global__ void __launch_bounds__(512, 1)                                                         \
      name(const SequenceView* __restrict__ sequences, int slot, const int* __restrict__ asked,                \
           const LayerShape* __restrict__ shapes, float softcap, int heads, int keep, int stride,              \
           float* __restrict__ out) {                                                                          \
    PRECOND_GRID(ceil_div(stride, 32), ANY_GRID);                                                              \
    rows::aggregate<K, D>(sequences[slot], asked[blockIdx.y], shapes, softcap, heads, keep, stride,            \
                          out + (size_t)blockIdx.y * stride);                                                  \
  }
#define ATTN_ROWS_DIMS(types, K)              \
  ATTN_ROWS(attn_rows_##types##_d16, K, 16)   \
  ATTN_ROWS(attn_rows_##types##_d32, K, 32)   \
  ATTN_ROWS(attn_rows_##types##_d64, K, 64)   \
  ATTN_ROWS(attn_rows_##types##_d96, K, 96)   \
  ATTN_ROWS(attn_rows_##types##_d128, K, 128) \
  ATTN_ROWS(attn_rows_##types##_d256, K, 256) \
  ATTN_ROWS(attn_rows_##types##_d512, K, 512)

ATTN_ROWS_DIMS(kf32, Halves)
ATTN_ROWS_DIMS(kf16, __half)
ATTN_ROWS_DIMS(kbf16, __nv_bfloat16)
