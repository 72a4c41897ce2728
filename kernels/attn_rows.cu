// Rows of aggregated attention, straight from the KV cache and the trace, and the best positions of such rows, for
// backtracking.
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
// attn_rows_top: the M largest weights of each row and their positions, largest first, ties by lower position;
//   with merged = 1, those of the sum of all rows (in float64, in row order).
//   weights, asked, n, stride   as above
//   first_position      positions before it are not eligible, nor those after the row (after every row, if merged)
//   ineligible          [stride] bytes, nonzero: not eligible; null: all are eligible
//   positions           [n or 1, M]; -1 where fewer are eligible      values  [n or 1, M] f64; 0 there
// PRECOND: grid (merged ? 1 : n); block 1024; dynamic shared memory attn_rows_top_shared_bytes; M >= 1.
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

/// A position and its weight, ranked by larger weight, ties by lower position.
struct Ranked {
  double weight;
  int position;
};
constexpr int NOWHERE = 0x7fffffff;

__device__ __forceinline__ bool before(const Ranked& a, const Ranked& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.position < b.position);
}

struct Candidates {
  const float* weights;  // [n, stride]
  const int* asked;      // [n]
  int n, stride, first_position;
  const unsigned char* ineligible;

  __device__ __forceinline__ double weight(int t) const {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += t <= asked[i] ? weights[(size_t)i * stride + t] : 0.f;
    return sum;
  }
  /// This thread's best position that ranks after `last`.
  __device__ __forceinline__ Ranked best_after(const Ranked& last, int end) const {
    Ranked best = {-1.0, NOWHERE};
    for (int t = max(first_position, 0) + threadIdx.x; t < end; t += blockDim.x) {
      if (ineligible && ineligible[t]) continue;
      const Ranked candidate = {weight(t), t};
      if (before(last, candidate) && before(candidate, best)) best = candidate;
    }
    return best;
  }
};

__device__ __forceinline__ Ranked warp_best(Ranked best) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Ranked other = {__shfl_xor_sync(FULL_WARP, best.weight, lanes),
                          __shfl_xor_sync(FULL_WARP, best.position, lanes)};
    if (before(other, best)) best = other;
  }
  return best;
}

__device__ __forceinline__ void top(const Candidates& candidates, int wanted, int* positions, double* values) {
  Ranked* scratch = reinterpret_cast<Ranked*>(dyn_smem);  // [2, 32]
  int end = 0;
  for (int i = 0; i < candidates.n; ++i) end = max(end, candidates.asked[i] + 1);
  end = min(end, candidates.stride);
  Ranked own = candidates.best_after({1e300, -1}, end);
  for (int i = 0; i < wanted; ++i) {
    // two alternating areas: the barrier separates a round's reads from the writes two rounds later
    Ranked* area = scratch + i % 2 * 32;
    const Ranked mine = warp_best(own);
    if (threadIdx.x % 32 == 0) area[threadIdx.x / 32] = mine;
    __syncthreads();
    const Ranked best = warp_best(area[threadIdx.x % 32]);
    if (threadIdx.x == 0) {
      positions[i] = best.position == NOWHERE ? -1 : best.position;
      values[i] = best.position == NOWHERE ? 0.0 : best.weight;
    }
    if (own.position == best.position && own.position != NOWHERE) own = candidates.best_after(best, end);
  }
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

SHARED_BYTES(attn_rows_top, 2 * 32 * sizeof(rows::Ranked))
extern "C" __global__ void __launch_bounds__(1024, 1)
    attn_rows_top(const float* __restrict__ weights, const int* __restrict__ asked, int n, int stride, int merged,
                  int first_position, const unsigned char* __restrict__ ineligible, int wanted,
                  int* __restrict__ positions, double* __restrict__ values) {
  const size_t row = blockIdx.x;
  const rows::Candidates candidates = {weights + row * stride, asked + row, merged ? n : 1, stride,
                                       first_position,         ineligible};
  rows::top(candidates, wanted, positions + row * wanted, values + row * wanted);
}
