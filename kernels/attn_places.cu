// Where heads attend: the softmax weights of a few places, from the KV cache and the states left by the attention
// kernels. For traces that record it; the attention kernels themselves are the same either way.
//
// attn_places_k<K>: for every head of a layer, its reweighted entropy and the weights alpha_t = e^{s_t - m} / Z of the row's
//   own position, of the one before it, of the first, and of the whole prompt, into places[trace_layer * heads + h] of the
//   row's trace. Eight lanes share a position; the prompt's weights are summed in an order that depends only on its length.
//   K: f32, f16, bf16 (type of the K cache)
//   states      [rows, heads] of this layer         queries   [rows, heads, head_dim] f32, rotated and scaled, of this layer
//   rows        [rows]; rows before their sequence's first_traced_row, or of a sequence that does not record places
//               (null), output nothing. The prompt is all positions up to first_traced_row.
//   sequences   [slots]
//   trace_layer the layer's number among the `layers` of the trace
//   head_dim    a multiple of 8
//   window      positions that a row attends to, itself included; 0: all
//   softcap     s <- softcap tanh(s / softcap); 0: none
//   regularized 1: the entropy rule of the authors' code (softmax_state.cuh)
// PRECOND: grid (heads, rows); block 128; dynamic shared memory NAME_shared_bytes; pointers aligned to 16 bytes.
//
// attn_sum_k<K>: for the first row of a pass, the summed weights of a layer's heads: out[t] = sum over h of alpha_t, in
//   head order.
//   count       positions: the row's own is the last         out  [count] f32      the rest as above
// PRECOND: grid (ceil(count / 16)); block 128; no dynamic shared memory; pointers aligned to 16 bytes.
//
// Who does what:
//   attn_places   grid x a head, grid y a row; eight lanes a position of the prompt, every 16th; thread 0 writes
//   attn_sum      grid x 16 positions; eight lanes a position, one head after another
#include "softmax_state.cuh"

namespace places {

constexpr int THREADS = 128, LANES = 8, GROUPS = THREADS / LANES;

/// Inputs of the scores of one head of one row.
template <class K>
struct Head {
  const K* keys;       // [positions, head_dim]
  const float* query;  // [head_dim]
  int head_dim;
  float softcap, max;
  Span span;

  /// Head `h` of row `at` of a pass.
  __device__ __forceinline__ Head(const SequenceView& sequence, const HeadState* states, const float* queries, int at, int h,
                                  int layer, int heads, int kv_heads, int dim, float cap, const Span& attended)
      : keys(static_cast<const K*>(sequence.k) +
             ((size_t)layer * kv_heads + h / (heads / kv_heads)) * sequence.capacity * dim),
        query(queries + ((size_t)at * heads + h) * dim),
        head_dim(dim),
        softcap(cap),
        max(states[(size_t)at * heads + h].m),
        span(attended) {}

  /// e^{s_t - m}, 0 outside `span`; the same in the eight lanes that pass `t`. PRECOND: the whole warp.
  __device__ __forceinline__ float weight(int t) const {
    const bool on = span.contains(t);
    float s = 0.f;
    for (int i = threadIdx.x % LANES * VEC<K>; on && i < head_dim; i += LANES * VEC<K>) {
      float k[VEC<K>];
      load_key<K>(keys + (size_t)t * head_dim, head_dim, i, k);
#pragma unroll
      for (int n = 0; n < VEC<K>; ++n) s = fmaf(query[i + n], k[n], s);
    }
    s = warp_reduce<Sum, LANES>(s);
    if (softcap > 0.f) s = softcap * tanhf(s / softcap);
    return on ? expf(s - max) : 0.f;
  }
};

template <class K>
__device__ __forceinline__ void write(const HeadState* states, const float* queries, const RowState* rows,
                                      const SequenceView* sequences, int layer, int trace_layer, int layers, int heads,
                                      int kv_heads, int head_dim, int window, float softcap, bool regularized) {
  float* sums = reinterpret_cast<float*>(dyn_smem);  // [warps]
  start_early();
  const RowState row = rows[blockIdx.y];
  if (row.position < 0) return;
  const SequenceView& sequence = sequences[row.slot];
  const int index = row.position - sequence.first_traced_row;
  if (index < 0 || !sequence.trace.places) return;
  const int h = blockIdx.x, group = threadIdx.x / LANES;
  const HeadState state = states[(size_t)blockIdx.y * heads + h];
  const Span span = attended(row.position, window);
  const Head<K> head(sequence, states, queries, blockIdx.y, h, layer, heads, kv_heads, head_dim, softcap, span);
  const int end = min(sequence.first_traced_row, row.position) + 1;
  float prompt = 0.f;
  for (int start = span.begin; start < end; start += GROUPS) {
    const int t = start + group;
    prompt += head.weight(t < end ? t : -1);
  }
  prompt = block_reduce<Sum>(threadIdx.x % LANES == 0 ? prompt : 0.f, sums);
  const float own = head.weight(row.position), previous = head.weight(row.position - 1), first = head.weight(0);
  if (threadIdx.x != 0) return;
  HeadPlaces& to = sequence.trace.places[((size_t)index * layers + trace_layer) * heads + h];
  to = {(float)finish(state, regularized).entropy, own / state.z, previous / state.z, first / state.z,
        prompt / state.z};
}

template <class K>
__device__ __forceinline__ void sum(const HeadState* states, const float* queries, const RowState* rows,
                                    const SequenceView* sequences, int layer, int heads, int kv_heads, int head_dim,
                                    int window, float softcap, int count, float* out) {
  const SequenceView& sequence = sequences[rows[0].slot];
  const Span span = attended(rows[0].position, window);
  const int t = blockIdx.x * GROUPS + threadIdx.x / LANES;
  float sum = 0.f;
  for (int h = 0; h < heads; ++h) {
    const Head<K> head(sequence, states, queries, 0, h, layer, heads, kv_heads, head_dim, softcap, span);
    sum += head.weight(t) / states[h].z;
  }
  if (threadIdx.x % LANES == 0 && t < count) out[t] = sum;
}

}  // namespace places

#define ATTN_PLACES(name, K)                                                                                           \
  SHARED_BYTES(name, 4 * places::THREADS / 32)                                                                         \
  STARTS_EARLY(name)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(128)                                                                    \
      name(const HeadState* states, const float* queries, const RowState* rows, const SequenceView* sequences,         \
           int layer, int heads, int kv_heads, int window, float softcap, int head_dim, int trace_layer, int layers,   \
           int regularized) {                                                                                          \
    PRECOND_GRID(heads, ANY_GRID);                                                                                     \
    places::write<K>(states, queries, rows, sequences, layer, trace_layer, layers, heads, kv_heads, head_dim,          \
                     window, softcap, regularized != 0);                                                               \
  }
ATTN_PLACES(attn_places_kf32, Halves)
ATTN_PLACES(attn_places_kf16, __half)
ATTN_PLACES(attn_places_kbf16, __nv_bfloat16)
#undef ATTN_PLACES

#define ATTN_SUM(name, K)                                                                                              \
  SHARED_BYTES(name, 0)                                                                                                \
  extern "C" __global__ void __launch_bounds__(128)                                                                    \
      name(const HeadState* states, const float* queries, const RowState* rows, const SequenceView* sequences,         \
           int layer, int heads, int kv_heads, int window, float softcap, int head_dim, int count, float* out) {       \
    PRECOND_GRID(ceil_div(count, places::GROUPS), 1);                                                                  \
    places::sum<K>(states, queries, rows, sequences, layer, heads, kv_heads, head_dim, window, softcap, count, out);   \
  }
ATTN_SUM(attn_sum_kf32, Halves)
ATTN_SUM(attn_sum_kf16, __half)
ATTN_SUM(attn_sum_kbf16, __nv_bfloat16)
#undef ATTN_SUM
