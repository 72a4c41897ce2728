// Selects the heads a row keeps: the K with the lowest reweighted entropy across all layers, ties by lower id l * H + h,
// and gathers their trace record on the device.
//
// attn_select: one block per row. The layers first_layer .. first_layer + layers are offered to the selection in the
//   row's trace; after a decode step all in one launch (begin = finish = 1), in a prefill chunk layer by layer, so that only
//   one layer's queries exist at a time (begin at the first, finish at the last). Layers come in ascending order.
//   states      [layers, rows, heads] of these layers
//   queries     [layers] parts of rows * heads * head_dim f32, rotated and scaled, of these layers: each [rows, heads, its head_dim]
//   hidden      [rows, hidden_size] f32 after the final norm, recorded times hidden_scale; null: not recorded
//   rows        [rows]; rows with a negative position, or before their sequence's first_traced_row, or of a sequence
//               without a trace (heads null), record nothing
//   sequences   [slots]
//   shapes      [layers with attention]
//   head_dim    the largest
//   keep        K, 1..=MAX_KEEP: entries of a trace row
//   regularized 1: the entropy rule of the authors' code (softmax_state.cuh)
//   begin       1: the trace row is empty so far
//   finish      1: nothing more is offered; gaps becomes the gap (until then it holds the lowest entropy not kept)
//   If fewer than K heads have been offered, the remaining heads are -1, their entropies infinite, the rest 0.
// PRECOND: all pointers aligned to 16 bytes; hidden_size and each head_dim a multiple of 4.
// PRECOND: grid (rows); block 256; dynamic shared memory attn_select_shared_bytes
//   + layers * heads * attn_select_per_head_shared_bytes and, if begin is 0, + head_dim *
//   attn_select_per_dim_shared_bytes.
//
// Who does what:
//   grid x        a row
//   a thread      the entropies of every 256th head; of the keys up to a bound, the rank of one; four numbers of a query
//   a warp        the bound's share: its lowest keys
//   thread 0      the gap
#include "softmax_state.cuh"

namespace head_selection {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int TOGETHER = 4;  // loads in flight per thread
constexpr unsigned TAKEN = 0xffffffffu;  // above every entropy

/// Maps floats to integers of the same order. No negative zeros, no NaN.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// Out of line, because its float64 logarithms take much code.
__device__ OUT_OF_LINE Finished finished(HeadState state, bool regularized) { return finish(state, regularized); }

__device__ __forceinline__ unsigned entropy_key(const Finished& finished) {
  const float entropy = (float)finished.entropy + 0.f;
  return ordered(entropy < infinity() ? entropy : infinity());
}

/// The entries of a trace row, of its K heads.
struct Row {
  int* heads;        // [K]
  float* entropies;  // [K]
  float* maxima;     // [K]
  float* sums;       // [K]
  float* queries;    // [K, head_dim]
};

/// The lowest of this thread's keys, which are THREADS apart, with its index in the low bits.
__device__ __forceinline__ unsigned long long lowest(const unsigned* keys, int count) {
  unsigned long long best = ~0ull;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const unsigned long long key = (unsigned long long)keys[i] << 32 | (unsigned)i;
    best = key < best ? key : best;
  }
  return best;
}

/// Writes the indices of the `wanted` lowest keys to `winners`, lowest first, ties by lower index; -1 if there
/// are fewer. A key's rank is the number of keys below it, counted only among those up to a bound: in each warp, enough threads have a
/// key within it. PRECOND: all threads; each has written its own keys; `few` has room for them all; ends with a barrier.
__device__ __forceinline__ void pick(const unsigned* keys, int count, int wanted, int* winners, unsigned long long* few,
                                     unsigned long long* scratch, int& found) {
  const unsigned long long own = lowest(keys, count);
  const auto below_it = [](unsigned long long a, unsigned long long b) { return a < b; };
  if (threadIdx.x == 0) found = 0;
  const unsigned long long bound = block_reduce<Max, WARPS>(nth_of_warp(own, ceil_div(wanted, WARPS) - 1, below_it), scratch);
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const unsigned long long key = (unsigned long long)keys[i] << 32 | (unsigned)i;
    if (key <= bound && keys[i] != TAKEN) few[atomicAdd(&found, 1)] = key;  // in any order: ranks do not depend on it
  }
  __syncthreads();
  const int all = found;
  for (int i = threadIdx.x; i < max(all, wanted); i += THREADS) {
    int below = i;
    const unsigned long long key = i < all ? few[i] : ~0ull;
    if (i < all) {
      below = 0;
#pragma unroll 4
      for (int j = 0; j < all; ++j) below += few[j] < key;
    }
    if (below < wanted) winners[below] = i < all ? (int)(unsigned)key : -1;
  }
  __syncthreads();  // the winners are written
}

struct Arguments {
  const HeadState* states;
  const float* queries;
  const float* hidden;
  const LayerShape* shapes;
  int first_layer, layers, heads, head_dim, hidden_size, keep;
  bool regularized, begin, finish;
};

/// Sets entry `slot` of the row to candidate `winner`: one of the `kept` earlier entries or a head of these layers.
__device__ __forceinline__ void record(const Arguments& a, const Row& to, const Row& earlier, int kept, int slot,
                                       int winner) {
  if (winner < 0) {
    to.heads[slot] = -1;
    to.entropies[slot] = infinity();
    to.maxima[slot] = to.sums[slot] = 0.f;
  } else if (winner < kept) {
    to.heads[slot] = earlier.heads[winner];
    to.entropies[slot] = earlier.entropies[winner];
    to.maxima[slot] = earlier.maxima[winner];
    to.sums[slot] = earlier.sums[winner];
  } else {
    const int candidate = winner - kept, layer = candidate / a.heads;
    const HeadState state = a.states[((size_t)layer * gridDim.x + blockIdx.x) * a.heads + candidate % a.heads];
    to.heads[slot] = a.first_layer * a.heads + candidate;
    const Finished of_state = finished(state, a.regularized);
    to.entropies[slot] = from_ordered(entropy_key(of_state));
    to.maxima[slot] = state.mw;
    to.sums[slot] = of_state.f > 0.0 ? (float)(state.zw / of_state.f) : 0.f;
  }
}

/// Address of elements i .. i + 4 of candidate `winner`'s query; null beyond its end, and if there is no candidate.
__device__ __forceinline__ const float4* query_of(const Arguments& a, const Row& earlier, int kept, int winner, int i) {
  if (winner < 0) return nullptr;
  if (winner < kept) return reinterpret_cast<const float4*>(earlier.queries + winner * a.head_dim + i);
  const int candidate = winner - kept, layer = candidate / a.heads, head = blockIdx.x * a.heads + candidate % a.heads;
  const int head_dim = a.shapes[a.first_layer + layer].head_dim;
  const float* queries = a.queries + (size_t)layer * gridDim.x * a.heads * a.head_dim + (size_t)head * head_dim;
  return i < head_dim ? reinterpret_cast<const float4*>(queries + i) : nullptr;
}

__device__ __forceinline__ void select(const Arguments& a, const Row& to, float& gap) {
  const int kept = a.begin ? 0 : a.keep, offered = a.layers * a.heads;
  unsigned long long* scratch = reinterpret_cast<unsigned long long*>(dyn_smem);  // [WARPS]
  Row earlier;                                                                    // [K] each, unless `begin`
  earlier.queries = reinterpret_cast<float*>(scratch + WARPS);                    // [kept, head_dim]
  unsigned long long* few = reinterpret_cast<unsigned long long*>(earlier.queries + kept * a.head_dim);  // as keys
  unsigned* keys = reinterpret_cast<unsigned*>(few + a.keep + offered);           // [kept + offered], room for K more
  int* winners = reinterpret_cast<int*>(keys + a.keep + offered);                 // [K + 1]
  int& found = winners[a.keep + 1];
  earlier.heads = winners + a.keep + 2;
  earlier.entropies = reinterpret_cast<float*>(earlier.heads + a.keep);
  earlier.maxima = earlier.entropies + a.keep;
  earlier.sums = earlier.maxima + a.keep;

  for (int i = threadIdx.x; i < kept; i += THREADS) {
    earlier.heads[i] = to.heads[i];
    earlier.entropies[i] = to.entropies[i];
    earlier.maxima[i] = to.maxima[i];
    earlier.sums[i] = to.sums[i];
  }
  for (int i = threadIdx.x; i < kept * a.head_dim; i += THREADS) earlier.queries[i] = to.queries[i];
#pragma unroll 1
  for (int start = threadIdx.x; start < kept + offered; start += TOGETHER * THREADS) {
    HeadState states[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      const int candidate = start + j * THREADS - kept;
      const size_t head = ((size_t)(candidate / a.heads) * gridDim.x + blockIdx.x) * a.heads + candidate % a.heads;
      if (candidate >= 0 && candidate < offered) states[j] = a.states[head];
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      const int i = start + j * THREADS;
      if (i < kept) keys[i] = to.heads[i] < 0 ? TAKEN : ordered(to.entropies[i]);
      if (i >= kept && i < kept + offered) keys[i] = entropy_key(finished(states[j], a.regularized));
    }
  }
  pick(keys, kept + offered, a.keep + 1, winners, few, scratch, found);
  if ((int)threadIdx.x < a.keep) record(a, to, earlier, kept, threadIdx.x, winners[threadIdx.x]);
  const int of_query = a.head_dim / 4;
#pragma unroll 1
  for (int start = threadIdx.x; start < a.keep * of_query; start += TOGETHER * THREADS) {
    float4 x[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      const int i = start + j * THREADS, slot = i / of_query;
      const float4* from = slot < a.keep ? query_of(a, earlier, kept, winners[slot], i % of_query * 4) : nullptr;
      x[j] = from ? *from : make_float4(0.f, 0.f, 0.f, 0.f);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j)
      if (start + j * THREADS < a.keep * of_query) reinterpret_cast<float4*>(to.queries)[start + j * THREADS] = x[j];
  }
  __syncthreads();  // the last entropy is written
  if (threadIdx.x == 0) {
    const int next = winners[a.keep];
    float refused = next < 0 ? infinity() : from_ordered(keys[next]);
    if (!a.begin) refused = fminf(refused, gap);
    gap = a.finish ? refused - to.entropies[a.keep - 1] : refused;
  }
}

}  // namespace head_selection

// scratch; two forms of K keys, winners, the count of `few`, and four values for each of K earlier entries; the keys of each head;
// the earlier queries
SHARED_BYTES(attn_select, head_selection::WARPS * 8 + MAX_KEEP * 12 + 4 * (MAX_KEEP + 2) + 4 * 4 * MAX_KEEP)
SHARED_BYTES(attn_select_per_head, 12)
SHARED_BYTES(attn_select_per_dim, 4 * MAX_KEEP)
extern "C" __global__ void __launch_bounds__(256, 1)
    attn_select(const HeadState* __restrict__ states, const float* __restrict__ queries,
                const float* __restrict__ hidden, const RowState* __restrict__ rows,
                const SequenceView* __restrict__ sequences, const LayerShape* __restrict__ shapes, int first_layer,
                int layers, int heads, int head_dim, int hidden_size, float hidden_scale, int keep, int regularized, int begin, int finish) {
  const RowState row = rows[blockIdx.x];
  if (row.position < 0) return;
  const SequenceView& sequence = sequences[row.slot];
  const TraceView& trace = sequence.trace;
  if (row.position < sequence.first_traced_row || !trace.heads) return;
  const size_t r = row.position - sequence.first_traced_row;
  const head_selection::Row to = {trace.heads + r * keep, trace.entropies + r * keep, trace.maxima + r * keep,
                                  trace.sums + r * keep, trace.queries + r * keep * head_dim};
  head_selection::select({states, queries, hidden, shapes, first_layer, layers, heads, head_dim, hidden_size, keep,
                          regularized != 0, begin != 0, finish != 0},
                         to, trace.gaps[r]);
  if (!hidden) return;
  const float4* from = reinterpret_cast<const float4*>(hidden + (size_t)blockIdx.x * hidden_size);
  uint2* record = reinterpret_cast<uint2*>(trace.hidden + r * hidden_size);
#pragma unroll 4
  for (int i = threadIdx.x; i < hidden_size / 4; i += head_selection::THREADS) {
    const float4 x = from[i];
    record[i] = make_uint2(pack2<__half>(x.x * hidden_scale, x.y * hidden_scale),
                           pack2<__half>(x.z * hidden_scale, x.w * hidden_scale));
  }
}
