// Launches the kernels: the functions of entropy_attention.h.
#define ENTROPY_ATTENTION_KERNELS
#include "entropy_attention.h"

#include <type_traits>

namespace entropy {

struct Workspace : Work {
  PrefillPart* parts;
  HeadState* partial_states;
  float* partial_out;
  unsigned* arrivals;
  LayerShape* shape;
  size_t bytes;
};

int lines(const EntropyAttention& a) { return a.head_dim > 256 ? 32 : 64; }
/// Blocks of attn_prefill for each sequence.
int parts(const EntropyAttention& a) { return a.rows == 1 ? 0 : ceil_div(a.rows * (a.heads / a.kv_heads), lines(a)); }

Workspace workspace(const EntropyAttention& a) {
  Workspace w = {};
  const size_t rows = (size_t)a.batch * a.rows, heads = rows * a.heads, kept = rows * a.keep, splits = a.rows == 1 ? heads * a.splits : 0;
  const auto take = [&](auto*& array, size_t count) {
    array = reinterpret_cast<std::decay_t<decltype(array)>>((size_t)a.workspace + w.bytes);
    w.bytes += (count * sizeof *array + 255) / 256 * 256;
  };
  take(w.rows, rows), take(w.sequences, a.batch), take(w.parts, a.batch * parts(a)), take(w.shape, 1), take(w.states, heads);
  take(w.partial_states, splits), take(w.partial_out, splits * a.head_dim), take(w.arrivals, heads), take(w.trace.entropies, kept);
  take(w.trace.maxima, kept), take(w.trace.sums, kept), take(w.trace.queries, kept * a.head_dim), take(w.trace.gaps, rows);
  return w;
}

/// A thread for each head of each row.
__global__ void prepare(EntropyAttention a, Workspace w, int lines, int parts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, rows = a.batch * a.rows;
  if (i < rows * a.heads) w.arrivals[i] = 0;
  if (i < rows) w.rows[i] = {i / a.rows, a.lengths[i / a.rows] - a.rows + i % a.rows, 0, 0};
  for (int part = i; part < a.batch * parts; part += rows) w.parts[part] = {part / parts * a.rows, a.rows, part % parts * lines, 0};
  if (i == 0) *w.shape = {0, a.kv_heads, a.head_dim, a.window};
  if (i >= a.batch) return;
  const size_t row = (size_t)i * a.rows, kept = row * a.keep;
  const long long at = i * a.sequence_stride * 2;
  w.sequences[i] = {(char*)a.k + at * (a.cache < ENTROPY_F32_KEYS ? 1 : 2), (char*)a.v + at * (a.cache < ENTROPY_F32 ? 1 : 2),
                    (unsigned)(a.head_stride / a.head_dim), a.lengths[i] - a.rows};
  w.sequences[i].trace = {a.ids + kept, w.trace.entropies + kept, w.trace.maxima + kept, w.trace.sums + kept,
                          w.trace.queries + kept * a.head_dim, nullptr, w.trace.gaps + row};
}

template <class... P>
const char* launch(void* stream, void (*kernel)(P...), dim3 grid, int threads, unsigned shared, std::common_type_t<P>... values) {
  void* parameters[] = {(void*)&values...};
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error == cudaSuccess) error = cudaLaunchKernel(kernel, grid, dim3(threads), parameters, shared, (cudaStream_t)stream);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class K, class Decode, class Prefill>
const char* run(const EntropyAttention& a, float* weights, int stride, void* stream, Decode* decode, unsigned decode_bytes, Prefill* prefill,
                unsigned prefill_bytes) {
  const Workspace w = workspace(a);
  const int rows = a.batch * a.rows, groups = a.kv_heads * ceil_div(a.heads / a.kv_heads, 8);
  if (const char* error = launch(stream, prepare, ceil_div(rows * a.heads, 128), 128, 0, a, w, lines(a), parts(a))) return error;
  if (weights) return launch(stream, weigh_heads<K>, dim3(rows * a.keep, ceil_div(stride, 16)), 128, 0, a, w, weights, stride);
  const char* error =
      a.rows == 1 ? launch(stream, decode, dim3(groups, a.splits, rows), 128, decode_bytes, a.queries, w.rows, w.sequences, 0, a.heads,
                           a.kv_heads, a.window, a.softcap, a.splits, w.partial_out, w.partial_states, w.arrivals, a.out, w.states)
                  : launch(stream, prefill, dim3(a.batch * parts(a), a.kv_heads), 128, prefill_bytes, a.queries, w.rows, w.parts,
                           w.sequences, 0, a.heads, a.kv_heads, a.window, a.softcap, a.out, w.states, RoundedRows{});
  if (!error) error = launch(stream, finish_heads<K>, ceil_div(rows * a.heads, 4), 128, 0, a, w);
  if (error || a.keep == 0) return error;
  const unsigned shared = attn_select_shared_bytes + a.heads * attn_select_per_head_shared_bytes +
                          (a.layer > 0 ? a.head_dim * attn_select_per_dim_shared_bytes : 0);
  return launch(stream, attn_select, rows, 256, shared, w.states, a.queries, nullptr, w.rows, w.sequences, w.shape - a.layer, a.layer, 1,
                a.heads, a.head_dim, 0, 0.f, a.keep, 0, a.layer == 0, 1);
}

#define ENTROPY_CASE(CACHE, TYPES, K, D)                                                                                   \
  if (a.cache == CACHE && a.head_dim == D)                                                                                 \
    return run<K>(a, weights, stride, stream, attn_decode_##TYPES##_d##D, attn_decode_##TYPES##_d##D##_shared_bytes,       \
                  attn_prefill_##TYPES##_d##D##_t2, attn_prefill_##TYPES##_d##D##_t2_shared_bytes);
#define ENTROPY_DIM(D)                                                                                                     \
  ENTROPY_CASE(ENTROPY_F16, kf16_vf16, __half, D) ENTROPY_CASE(ENTROPY_BF16, kbf16_vbf16, __nv_bfloat16, D)                \
  ENTROPY_CASE(ENTROPY_F32_KEYS, kf32_vf16, Halves, D) ENTROPY_CASE(ENTROPY_F32, kf32_vf32, Halves, D)

const char* dispatch(const EntropyAttention& a, float* weights, int stride, void* stream) {
  if (a.heads % a.kv_heads || a.sequence_stride % a.head_dim || a.head_stride % a.head_dim)
    return "heads: a multiple of kv_heads; strides: multiples of head_dim";
  if (a.splits < 1 || a.splits > attn_decode::MAX_SPLITS) return "splits: 1..=128";
  if (a.keep < 0 || a.keep > MAX_KEEP || (a.keep > 0 && !a.ids)) return "keep: 0..=32, with ids";
  ENTROPY_DIM(16) ENTROPY_DIM(32) ENTROPY_DIM(64) ENTROPY_DIM(96) ENTROPY_DIM(128) ENTROPY_DIM(256) ENTROPY_DIM(512)
  return "head_dim: 16, 32, 64, 96, 128, 256 or 512";
}

}  // namespace entropy

size_t entropy_attention_workspace(const EntropyAttention* a) { return entropy::workspace(*a).bytes; }
const char* entropy_attention(const EntropyAttention* a, void* stream) { return entropy::dispatch(*a, nullptr, 0, stream); }
const char* entropy_attention_weights(const EntropyAttention* a, float* weights, int stride, void* stream) {
  return entropy::dispatch(*a, weights, stride, stream);
}
