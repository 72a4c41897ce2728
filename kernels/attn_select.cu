// Which heads a row keeps: the K of lowest reweighted entropy among all layers, of equals the lower id l * H + h, and
// their trace record, gathered on the device.
//
// attn_select: one block a row. The layers first_layer .. first_layer + layers are offered to the selection in the
//   row's trace; after a decode step all at once (begin = finish = 1), in a prefill chunk layer by layer, so that the
//   queries of one layer exist at a time (begin at the first, finish at the last). Layers come in ascending order.
//   states      [layers, rows, heads] of these layers
//   queries     [layers] parts of rows * heads * head_dim f32, rotated and scaled, of these layers: of each [rows, heads, its head_dim]
//   hidden      [rows, hidden_size] f32 after the final norm, times hidden_scale to the trace; 0 (null): not
//   rows        [rows]; rows with a negative position, or before their sequence's first_traced_row, or of a sequence
//               without a trace (heads null), leave nothing
//   sequences   [slots]
//   shapes      [layers with attention]
//   head_dim    the largest
//   keep        K, 1..=MAX_KEEP: entries of a trace row
//   regularized 1: the entropy rule of the authors' code (softmax_state.cuh)
//   begin       1: the trace row is empty so far
//   finish      1: nothing more is offered; gaps becomes the gap (until then it holds the lowest entropy not kept)
//   Where fewer than K heads have been offered, the remaining heads are -1, their entropies infinite, the rest 0.
// PRECOND: grid (rows); block 256; dynamic shared memory attn_select_shared_bytes
//   + layers * heads * attn_select_per_head_shared_bytes and, if begin is 0, + head_dim *
//   attn_select_per_dim_shared_bytes.
#include "softmax_state.cuh"

namespace head_selection {

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr unsigned TAKEN = 0xffffffffu;  // above every entropy

/// Maps floats to integers of the same order. No negative zeros, no NaN.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ unsigned entropy_key(const HeadState& state, bool regularized) {
  const float entropy = (float)finish(state, regularized).entropy + 0.f;
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

/// The lowest of this thread's keys, each THREADS apart, with its index below it.
__device__ __forceinline__ unsigned long long lowest(const unsigned* keys, int count) {
  unsigned long long best = ~0ull;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const unsigned long long key = (unsigned long long)keys[i] << 32 | (unsigned)i;
    best = key < best ? key : best;
  }
  return best;
}

/// Writes the indices of the `wanted` lowest keys to `winners`, lowest first, of equals the lower index; -1 where there
/// are fewer. Takes them out of `keys`, of which each thread reads and writes only its own.
__device__ __forceinline__ void pick(unsigned* keys, int count, int wanted, int* winners, float* last,
                                     unsigned long long* scratch) {
  unsigned long long own = lowest(keys, count);
  for (int i = 0; i < wanted; ++i) {
    // two scratch areas in turn: the barrier inside separates a round's reads from the writes two rounds later
    const unsigned long long best = block_reduce<Min>(own, scratch + i % 2 * WARPS);
    const unsigned key = (unsigned)(best >> 32);
    const int index = (int)(unsigned)best;
    if (threadIdx.x == 0) {
      winners[i] = key == TAKEN ? -1 : index;
      *last = key == TAKEN ? infinity() : from_ordered(key);
    }
    if (own == best && key != TAKEN) {
      keys[index] = TAKEN;
      own = lowest(keys, count);
    }
  }
}

struct Arguments {
  const HeadState* states;
  const float* queries;
  const float* hidden;
  const LayerShape* shapes;
  int first_layer, layers, heads, head_dim, hidden_size, keep;
  bool regularized, begin, finish;
};

/// Entry `slot` of the row becomes candidate `winner`: one of the `kept` earlier entries or a head of these layers.
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
    to.entropies[slot] = from_ordered(entropy_key(state, a.regularized));
    to.maxima[slot] = state.mw;
    const double f = finish(state, a.regularized).f;
    to.sums[slot] = f > 0.0 ? (float)(state.zw / f) : 0.f;
  }
}

/// Element i of the query of candidate `winner`; 0 after its end, and where there is none.
__device__ __forceinline__ float query_of(const Arguments& a, const Row& earlier, int kept, int winner, int i) {
  if (winner < 0) return 0.f;
  if (winner < kept) return earlier.queries[winner * a.head_dim + i];
  const int candidate = winner - kept, layer = candidate / a.heads, head = blockIdx.x * a.heads + candidate % a.heads;
  const int head_dim = a.shapes[a.first_layer + layer].head_dim;
  return i < head_dim ? a.queries[(size_t)layer * gridDim.x * a.heads * a.head_dim + (size_t)head * head_dim + i] : 0.f;
}

__device__ __forceinline__ void select(const Arguments& a, const Row& to, float& gap) {
  const int kept = a.begin ? 0 : a.keep, offered = a.layers * a.heads;
  unsigned long long* scratch = reinterpret_cast<unsigned long long*>(dyn_smem);  // [2, WARPS]
  unsigned* keys = reinterpret_cast<unsigned*>(scratch + 2 * WARPS);              // [kept + offered], room for K more
  int* winners = reinterpret_cast<int*>(keys + a.keep + offered);                 // [K + 1]
  Row earlier;                                                                    // [K] each
  earlier.heads = winners + a.keep + 1;
  earlier.entropies = reinterpret_cast<float*>(earlier.heads + a.keep);
  earlier.maxima = earlier.entropies + a.keep;
  earlier.sums = earlier.maxima + a.keep;
  earlier.queries = earlier.sums + a.keep;

  for (int i = threadIdx.x; i < kept; i += THREADS) {
    earlier.heads[i] = to.heads[i];
    earlier.entropies[i] = to.entropies[i];
    earlier.maxima[i] = to.maxima[i];
    earlier.sums[i] = to.sums[i];
  }
  for (int i = threadIdx.x; i < kept * a.head_dim; i += THREADS) earlier.queries[i] = to.queries[i];
  for (int i = threadIdx.x; i < kept + offered; i += THREADS) {
    if (i < kept) {
      keys[i] = to.heads[i] < 0 ? TAKEN : ordered(to.entropies[i]);
    } else {
      const int candidate = i - kept;
      const size_t head = ((size_t)(candidate / a.heads) * gridDim.x + blockIdx.x) * a.heads + candidate % a.heads;
      keys[i] = entropy_key(a.states[head], a.regularized);
    }
  }
  float refused = infinity();  // the last word is thread 0's
  pick(keys, kept + offered, a.keep + 1, winners, &refused, scratch);
  // the winners and the earlier entries are there: the round after the K-th winner has a barrier
  if ((int)threadIdx.x < a.keep) record(a, to, earlier, kept, threadIdx.x, winners[threadIdx.x]);
  for (int i = threadIdx.x; i < a.keep * a.head_dim; i += THREADS)
    to.queries[i] = query_of(a, earlier, kept, winners[i / a.head_dim], i % a.head_dim);
  __syncthreads();  // the last entropy is there
  if (threadIdx.x == 0) {
    if (!a.begin) refused = fminf(refused, gap);
    gap = a.finish ? refused - to.entropies[a.keep - 1] : refused;
  }
}

}  // namespace head_selection

// the two scratch areas; keys, winners and four numbers of K earlier entries; a key of each head; the earlier queries
SHARED_BYTES(attn_select, 2 * head_selection::WARPS * 8 + 4 * (6 * MAX_KEEP + 1))
SHARED_BYTES(attn_select_per_head, 4)
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
  for (int i = threadIdx.x; i < hidden_size; i += head_selection::THREADS)
    trace.hidden[r * hidden_size + i] = from_f32<__half>(hidden[(size_t)blockIdx.x * hidden_size + i] * hidden_scale);
}
