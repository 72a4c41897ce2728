// Attention with its entropy, without the engine: attn_decode.cu, attn_prefill.cu and attn_select.cu behind three functions of C.
// One layer's causal attention of the last `rows` tokens of each sequence over its KV cache and, from the same pass, of every row and head:
//   lse                 ln sum_t e^{s_t}
//   entropy             H = -sum_t alpha_t ln alpha_t of the softmax weights alpha, in nats
//   reweighted_entropy  the same of w alpha, normalized: w is 0 for the first token and for the row's own, gamma for the nearest ones before
//                       it (softmax_state.cuh), else 1. Infinite if no token is left, as in the first two rows.
// and, of every row, the K heads of lowest entropy and their attention weights. No matrix of attention exists.
//
// What it takes: this header, and attn_decode.cu, attn_decode_tile.cuh, attn_places.cu, attn_prefill.cu, attn_prefill.cuh, attn_select.cu,
// attn_terms.cuh, common.cuh, rounded.cuh and softmax_state.cuh, which it includes; and the functions' code, which launches the kernels:
// examples/torch_entropy_attention/entropy_attention.cu, the one file to define ENTROPY_ATTENTION_KERNELS. C++17, compute capability 8.0 or
// newer. Nothing of torch.
//
// Each function returns null, or what is wrong. They only launch kernels on `stream`, a cudaStream_t, so a graph can capture them. The same
// input gives the same bits.
#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/// Types of keys and values; ENTROPY_F32_KEYS: of keys, and f16 values. An f32 key is stored as two f16 vectors, high [head_dim] and low
/// [head_dim], whose sum it is (22 bits; up to 65504), and counts as head_dim elements.
enum EntropyCache { ENTROPY_F16, ENTROPY_BF16, ENTROPY_F32_KEYS, ENTROPY_F32 };

/// Pointers are to device memory, aligned to 16 bytes. Results [batch, rows, heads], if not null, and:
///   head_dim         16, 32, 64, 96, 128, 256 or 512
///   window           positions that a row attends to, its own included; 0: all
///   splits           1..=128, of each sequence if `rows` is 1, to fill the device: 4 multiprocessors / (batch kv_heads). Last bits differ.
///   layer, keep      number of the layer in a selection, which goes on from layer 0 through the last; K <= 32, 0: no selection
///   gamma            1: the reweighted entropy selects heads, and their weights are reweighted; 0: entropy and weights of the softmax
///   softcap          s <- softcap tanh(s / softcap); 0: none
///   k, v             dimension d of position t is element sequence * sequence_stride + kv_head * head_stride + t * head_dim + d
///   *_stride         in elements, the same for k and v, multiples of head_dim
///   lengths          [batch] tokens in the cache: at least `rows`, the last of which are these; with `rows` of 1 also 0, an unused sequence
///   queries          [batch, rows, heads, head_dim], rotated, times the softmax scale
///   out              [batch, rows, heads, head_dim]
///   ids              [batch, rows, K] layer * heads + head, the best so far: lowest entropy first, ties by lower id; -1: none. Not written
///                    for unused sequences.
///   workspace        of the size below; stays as it is from layer 0 of a selection until its weights are computed
struct EntropyAttention {
  enum EntropyCache cache;
  int batch, rows, heads, kv_heads, head_dim, window, splits, layer, keep, gamma;
  float softcap;
  const void *k, *v;
  long long sequence_stride, head_stride;
  const int* lengths;
  const float* queries;
  float *out, *lse, *entropy, *reweighted_entropy;
  int* ids;
  void* workspace;
};

/// In bytes.
size_t entropy_attention_workspace(const struct EntropyAttention* a);

const char* entropy_attention(const struct EntropyAttention* a, void* stream);

/// After the last layer, once for each: attention weights [batch, rows, K, stride] of those selected heads that are this layer's, zeros
/// beyond a row's own position. Reads k and lengths again, but not the queries.
const char* entropy_attention_weights(const struct EntropyAttention* a, float* weights, int stride, void* stream);
#ifdef __cplusplus
}
#endif

#ifdef ENTROPY_ATTENTION_KERNELS
#include "common.cuh"
// The host asks the compiler for sizes, not a loaded module, and no kernel starts before earlier ones have ended.
#undef SHARED_BYTES
#undef STARTS_EARLY
#define SHARED_BYTES(name, bytes) constexpr unsigned name##_shared_bytes = (bytes);
#define STARTS_EARLY(name)
#include "attn_decode.cu"
#include "attn_places.cu"
#include "attn_prefill.cu"
#include "attn_select.cu"

namespace entropy {

/// What the kernels read and write beside the caller's arrays, in their terms.
struct Work {
  RowState* rows;
  SequenceView* sequences;
  HeadState* states;
  TraceView trace;  // of all rows

  template <class K>
  __device__ places::Head<K> head(const EntropyAttention& a, int row, int head) const {
    return {sequences[row / a.rows], states, a.queries, row, head, 0, a.heads, a.kv_heads, a.head_dim, a.softcap,
            attended(rows[row].position, a.window)};
  }
};

/// Reads off a head's results, one warp. With weights e = e^{s - m}, S = sum e ln e is that of the reweighted state, relative to m, plus what
/// the positions with w < 1 lack: (1 - w) e ln e - e w ln w.
template <class K>
__global__ void finish_heads(EntropyAttention a, Work work) {
  const int at = blockIdx.x * 4 + threadIdx.x / 32, place = threadIdx.x % 32 / 8;
  if (at >= a.batch * a.rows * a.heads) return;
  const places::Head<K> head = work.head<K>(a, at / a.heads, at % a.heads);
  HeadState state = work.states[at], whole = state;
  const int row = head.span.end - 1;
  float lacking = 0.f;
  for (int i = place; i < MAX_NEAREST + 2 + place; i += 4) {  // the first position, the row's own, the nearest; eight lanes each
    const int t = i == 0 ? 0 : row + 1 - i > 0 && i < MAX_NEAREST + 2 ? row + 1 - i : -1;
    const float e = head.weight(t), w = reweighting(row, t);
    if (e > 0.f) lacking += e * ((1.f - w) * logf(e) - (w > 0.f ? w * logf(w) : 0.f));
  }
  raise<true>(whole, state.m, state.m);
  whole.zw = state.z;
  whole.sw += warp_reduce<Sum>(threadIdx.x % 8 == 0 ? lacking : 0.f);
  if (threadIdx.x % 32 > 0) return;
  if (a.lse) a.lse[at] = state.m + logf(state.z);
  if (a.entropy) a.entropy[at] = (float)finish(whole, false).entropy;
  if (a.reweighted_entropy) a.reweighted_entropy[at] = (float)finish(state, false).entropy;
  if (!a.gamma) work.states[at] = whole;
}

/// The weights of a selected head at 16 positions, eight lanes each.
template <class K>
__global__ void weigh_heads(EntropyAttention a, Work work, float* weights, int stride) {
  const int entry = blockIdx.x, t = blockIdx.y * 16 + threadIdx.x / 8, id = a.ids[entry];
  if (id < 0 ? a.layer > 0 : id / a.heads != a.layer) return;
  places::Head<K> head = work.head<K>(a, entry / a.keep, max(id, 0) % a.heads);
  head.query = work.trace.queries + (size_t)entry * a.head_dim;
  head.max = work.trace.maxima[entry];
  const float e = head.weight(t), sum = work.trace.sums[entry], w = a.gamma ? reweighting(head.span.end - 1, t) : 1.f;
  if (threadIdx.x % 8 == 0 && t < stride) weights[(size_t)entry * stride + t] = id >= 0 && sum > 0.f && w > 0.f ? w * e / sum : 0.f;
}

}  // namespace entropy
#endif
