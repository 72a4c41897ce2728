// Attention of single tokens over their KV caches, split over the positions (flash decoding), with the softmax and the
// reweighted-entropy state of every head. The last block of a row's heads to finish merges the splits.
//
// attn_decode_k<K>_v<V>_d<D>[_plain]: each block computes the splits y, y + grid y, .. of one row and key/value head
//   K, V: f32 (Halves for keys, float for values), f16, bf16 cache types; D: head_dim. _plain: without the entropy.
//   Instances: (K, V) of (f32, f32), (f32, f16), (f16, f16), (bf16, bf16); D of 16, 32 (small test models), 64, 96,
//   128, 256, 512; _plain for all but (f32, f32) and D >= 64.
//   queries         [rows, heads, D] f32, rotated and scaled
//   rows            [rows]; a negative position marks an unused row: it is skipped, its output is 0
//   sequences       [slots]; the cache holds every position up to each row's own
//   layer, heads, kv_heads
//   window          positions a row attends to, itself included; 0: all
//   softcap         s <- softcap tanh(s / softcap); 0: none
//   splits          in 1..=MAX_SPLITS
//   partial_out     [rows, heads, splits, D] f32: sum e^{s-m} v
//   partial_states  [rows, heads, splits]
//   arrivals        [rows, grid x], zeros before and after: finished blocks
//   out             [rows, heads, D] f32
//   states          [rows, heads]
//   Entropy states stay empty for rows before their sequence's first_traced_row.
// PRECOND: grid (kv_heads * ceil(heads / kv_heads / 8), 1 ..= splits, rows); block 128; all pointers aligned to 16 bytes; dynamic
//   shared memory NAME_shared_bytes; capacities up to 2^30.
// PRECOND: since the start of the current graph, or the end of the last copy before this launch, nothing has written `rows`,
//   `sequences`, or any part of the caches except these rows' positions; a sequence's rows are at neighbouring positions.
//
// A split's share depends only on the row's own position and the number of splits: whole chunks of 64 positions,
// floor(split * chunks / splits) .. floor((split + 1) * chunks / splits). Splits are merged in order, whichever finishes last.
// With a number of splits that is fixed per model, a row's bits depend neither on the other rows nor on the grid, and the launch
// does not depend on positions (one CUDA graph). Splits without a share come last in the grid: a short row leaves most blocks
// without work, and the working ones should not have to wait for them. With fewer blocks than splits, the tiles of a block's next split
// are on their way while it computes the last of the one before.
//
// At a few hundred tokens this kernel is a chain of latencies. Data that the preceding kernels do not write is therefore read
// before they have ended, two tiles are in flight from the start, and the merge issues all its loads together.
//
// Up to eight query heads of a group are computed together, so that each cached byte is read once for them (larger groups
// in parts), on tensor cores except for float values and the smallest heads (attn_decode_tile.cuh).
//
// Who does what:
//   grid x        a key/value head; its query heads eight at a time
//   grid y        splits of the positions, one after another; the last block of a row's heads to finish merges them, a warp a head
//   grid z        a row
//   copies        a thread: 16 bytes of a position of the tile
//   scores        a warp: a quarter of the tile's positions, all eight heads (a mma is 8 positions x 16 query lines)
//   weights       a warp: two of the heads; a lane: every 32nd position, with its own part of Z, Z', S' until the end
//   output        a warp: a quarter of the dimensions, all eight heads
#include "attn_decode_tile.cuh"

namespace attn_decode {

constexpr int MAX_SPLITS = 128;
constexpr int CHUNK = 64;  // positions; shares are whole chunks, and tiles divide a chunk evenly

struct Arguments {
  const float* queries;
  const RowState* rows;
  const SequenceView* sequences;
  int layer, heads, kv_heads, window;
  float softcap;
  int splits;
  float* partial_out;
  HeadState* partial_states;
  unsigned* arrivals;
  float* out;
  HeadState* states;
};

/// The query heads of a block: `count` heads from `first` on, counted over all rows.
struct Heads {
  size_t first;
  int kv_head, count;

  __device__ __forceinline__ explicit Heads(const Arguments& a) {
    const int group = a.heads / a.kv_heads, parts = ceil_div(group, G), part = blockIdx.x % parts;
    kv_head = blockIdx.x / parts;
    count = min(G, group - part * G);
    first = (size_t)blockIdx.z * a.heads + kv_head * group + part * G;
  }
};

/// Number of splits with a share of the row: the first ones.
__device__ __forceinline__ int active_splits(const Span& span, int splits) {
  return min((span.end - 1) / CHUNK - span.begin / CHUNK + 1, splits);
}

/// The positions of split `split` of `active` ones; never empty.
__device__ __forceinline__ Span share_of(const Span& span, int split, int active) {
  const int first = span.begin / CHUNK;
  const unsigned chunks = (span.end - 1) / CHUNK - first + 1;  // up to 2^24, times MAX_SPLITS: 32 bits are enough
  const int begin = (first + (int)(split * chunks / active)) * CHUNK;
  const int end = (first + (int)((split + 1) * chunks / active)) * CHUNK;
  return {max(begin, span.begin), min(end, span.end)};
}

/// The fields of a sequence that a block needs, in registers: loaded together.
struct Sequence {
  const void *k, *v;
  unsigned capacity;
  int first_traced_row;

  __device__ __forceinline__ explicit Sequence(const SequenceView& view)
      : k(view.k), v(view.v), capacity(view.capacity), first_traced_row(view.first_traced_row) {}
};

// ---- the walk -------------------------------------------------------------------------------------------------------

/// The splits of a block: `split`, `split` + grid y, .. below `end`, of the row's `active` ones.
struct Splits {
  Span span;
  int split, end, active;

  /// Empty from `end` on.
  __device__ __forceinline__ Span share(int number) const { return number < end ? share_of(span, number, active) : Span{0, 0}; }
};

/// Afterwards earlier grids have been waited for.
template <class T, bool ENTROPY>
__device__ __forceinline__ void walk(const Arguments& a, const Heads& heads, const RowState& row,
                                     const Sequence& sequence, const Splits& splits) {
  using K = typename T::K;
  using V = typename T::V;
  constexpr int D = T::D, TILE = T::TILE;
  const Shared<T> shared;
  const int warp = threadIdx.x / 32, count = heads.count;
  const size_t head_cache = ((size_t)a.layer * a.kv_heads + heads.kv_head) * sequence.capacity * D;
  const K* k = static_cast<const K*>(sequence.k) + head_cache;
  const V* v = static_cast<const V*>(sequence.v) + head_cache;
  const auto fetch_tile = [&](int stage, int start, const Span& share) {
    if (start >= share.end) return;
    fetch<K, D, TILE, T::K_STRIDE>(shared.keys + stage * TILE * T::K_STRIDE, k, start, share);
    fetch<V, D, TILE, T::V_STRIDE>(shared.values + stage * TILE * T::V_STRIDE, v, start, share);
  };
  const auto first_tile = [&](const Span& share) { return share.begin / TILE * TILE; };

  int split = splits.split;
  Span share = splits.share(split), next_share = splits.share(split + gridDim.y);
  int start = first_tile(share);
  // The preceding kernel writes at most the last gridDim.z positions (if all rows belong to this sequence).
  const int old_end = row.position + 1 - (int)gridDim.z;
#pragma unroll 1
  for (int stage = 0; stage < 2; ++stage) {
    const bool own = stage == 0 || start + TILE < share.end;
    const Span of = own ? share : next_share;
    const int at = own ? start + stage * TILE : first_tile(of);
    if (min(at + TILE, of.end) > old_end) wait_for_earlier_grids();
    fetch_tile(stage, at, of);
    cp_commit();
  }
  wait_for_earlier_grids();
  HeadState states[OWN];
  stage_queries<T>(shared, a.queries + heads.first * D, count);
  if (threadIdx.x < G) shared.factors[threadIdx.x] = 1.f;  // unchanged for heads beyond `count`
  const bool traced = ENTROPY && row.position >= sequence.first_traced_row;
  cp_wait<1>();  // for the first tile, possibly leaving the second in flight
  bool first = true;
  int stage = 0;
#pragma unroll 1
  for (;;) {
    Output<T> out = {};
#pragma unroll
    for (int i = 0; i < OWN; ++i) states[i] = empty_state();
#pragma unroll 1
    for (; start < share.end; start += TILE, stage ^= 1, first = false) {
      const K* keys = shared.keys + stage * TILE * T::K_STRIDE;
      const V* values = shared.values + stage * TILE * T::V_STRIDE;
      if (!first) cp_wait<0>();
      __syncthreads();  // this tile is there, and no thread still reads the other stage, the scores or the factors
      if (!first) {
        const bool own = start + TILE < share.end;
        const Span of = own ? share : next_share;
        fetch_tile(stage ^ 1, own ? start + TILE : first_tile(of), of);
        cp_commit();
      }
      if constexpr (T::TENSOR_K)
        score_tile_tensor<T>(shared, keys, a.softcap);
      else
        score_tile_plain<T>(shared, keys, a.softcap);
      __syncthreads();  // the scores of all positions are there
      const bool inside = start >= share.begin && start + TILE <= share.end &&
                          (!ENTROPY || unweighted(row.position, start, start + TILE));
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
        const int g = warp + i * WARPS;
        if (g >= count) break;
        float* own = shared.scores + g * T::SCORE_STRIDE;
        const Weighed weighed = inside
                                    ? weigh_tile<TILE, ENTROPY, true>(states[i], own, start, share, row.position)
                                    : weigh_edge<TILE, ENTROPY>(states[i], own, start, share, row.position);
        states[i] = weighed.state;
        if (threadIdx.x % 32 == 0) shared.factors[g] = weighed.factor;
      }
      __syncthreads();  // the weights and factors of all heads are there
      if constexpr (T::TENSOR_V)
        accumulate_tile_tensor<T>(out, shared, values);
      else
        accumulate_tile_plain<T>(out, shared, values);
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const int g = warp + i * WARPS;
      if (g >= count) break;
      HeadState& state = states[i];
      state.z = warp_reduce<Sum>(state.z);
      if (ENTROPY) {
        state.zw = warp_reduce<Sum>(state.zw);
        state.sw = warp_reduce<Sum>(state.sw);
      }
      if (!traced) clear_entropy(state);
      if (threadIdx.x % 32 == 0) a.partial_states[(heads.first + g) * a.splits + split] = state;
    }
    float* to = a.partial_out + (heads.first * a.splits + split) * D;
    if constexpr (T::TENSOR_V)
      store_tensor<T>(out, count, to, a.splits);
    else
      store_plain<T>(out, shared, count, to, a.splits);
    split += gridDim.y;
    if (split >= splits.end) break;
    share = next_share, start = first_tile(share);
    next_share = splits.share(split + gridDim.y);
  }
}

// ---- the merge of the splits ----------------------------------------------------------------------------------------

/// Whether this block is the last of `blocks` to arrive; it then sees what the others wrote before arriving. PRECOND: all
/// threads; `arrivals` is 0 before the first arrival, and again after the last.
__device__ __forceinline__ bool last_to_arrive(unsigned* arrivals, int blocks) {
  __syncthreads();  // all threads have written
  bool last = blocks == 1;
  if (threadIdx.x == 0 && !last) last = arrive(arrivals, blocks - 1) == blocks - 1u;
  return __syncthreads_or(last);
}

/// One warp merges the splits' states: returns the total, and writes the splits' factors to `factors`, where a lane reads only its own.
template <bool ENTROPY>
__device__ __forceinline__ HeadState combine_states(const HeadState* parts, int active, float* factors) {
  const int lane = threadIdx.x % 32;
  float m = -infinity(), mw = -infinity();
#pragma unroll 1
  for (int i = lane; i < active; i += 32) {
    m = fmaxf(m, parts[i].m);
    if (ENTROPY) mw = fmaxf(mw, parts[i].mw);
  }
  m = warp_reduce<Max>(m);
  if (ENTROPY) mw = warp_reduce<Max>(mw);
  HeadState total = {m, 0.f, mw, 0.f, 0.f};
#pragma unroll 1
  for (int i = lane; i < active; i += 32) {
    HeadState part = parts[i];
    factors[i] = raise<ENTROPY>(part, m, mw);
    add_sums(total, part);
  }
  total.z = warp_reduce<Sum>(total.z);
  if (ENTROPY) {
    total.zw = warp_reduce<Sum>(total.zw);
    total.sw = warp_reduce<Sum>(total.sw);
  }
  return total;
}

/// Merges the first `active` splits of the block's heads, one warp per head. Out of line, to save registers in `walk`.
template <int D, bool ENTROPY>
__device__ OUT_OF_LINE void merge(Arguments a, Heads heads, int active) {
  constexpr int TOGETHER = 16;  // loads in flight per lane
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* factors = reinterpret_cast<float*>(dyn_smem) + warp * MAX_SPLITS;  // a lane's own: splits lane, lane + 32, ...
#pragma unroll 1
  for (int g = warp; g < heads.count; g += WARPS) {
    const size_t head = heads.first + g, part = head * a.splits;
    float sum[4], z = 0.f;
#pragma unroll 1
    for (int first = 0; first < D; first += 128) {
      const int dim = first + 4 * lane;
      const float* from = a.partial_out + part * D + dim;
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[n] = 0.f;
#pragma unroll 1
      for (int split = 0; split < active; split += TOGETHER) {
        float x[TOGETHER][4] = {};
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
          if (dim < D && split + i < active) load_vec<float>(from + (size_t)(split + i) * D, x[i]);
        if (first + split == 0) {  // the first outputs load while the states are merged
          const HeadState total = combine_states<ENTROPY>(a.partial_states + part, active, factors);
          if (lane == 0) a.states[head] = total;
          z = total.z;
        }
        const int mine = split / 32 * 32 + lane;
        const float own = mine < active ? factors[mine] : 0.f;
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
          const float factor = __shfl_sync(FULL_WARP, own, split % 32 + i);
#pragma unroll
          for (int n = 0; n < 4; ++n) sum[n] = fmaf(factor, x[i][n], sum[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[n] /= z;
      if (dim < D) store_vec<float>(a.out + head * D + dim, sum);
    }
  }
}

template <int D>
__device__ __forceinline__ void clear(const Arguments& a, const Heads& heads) {
  for (int i = threadIdx.x; i < heads.count * D; i += THREADS) a.out[heads.first * D + i] = 0.f;
  if ((int)threadIdx.x < heads.count) a.states[heads.first + threadIdx.x] = empty_state();
}

template <class K, class V, int D, bool ENTROPY>
__device__ __forceinline__ void decode(const Arguments& a) {
  using T = Tiling<K, V, D>;
  static_assert(T::BYTES >= WARPS * MAX_SPLITS * 4, "room for the factors of `merge`");
  PRECOND_GRID(a.kv_heads * ceil_div(a.heads / a.kv_heads, G), ANY_GRID);
  let_next_grid_start();
  const RowState row = a.rows[blockIdx.z];
  const Heads heads(a);
  if (row.position < 0) {
    wait_for_earlier_grids();
    if (blockIdx.y == 0) clear<D>(a, heads);
    return;
  }
  const Sequence sequence(a.sequences[row.slot]);
  const Span span = attended(row.position, a.window);
  const int active = active_splits(span, a.splits), blocks = min(active, (int)gridDim.y);
  if ((int)blockIdx.y >= blocks) {
    leave_the_wait_to_others();  // split 0 has a share
    return;
  }
  // without tensor cores, a split's output is added up where the next one's tiles would arrive
#pragma unroll 1
  for (int split = blockIdx.y; split < active; split += gridDim.y) {
    walk<T, ENTROPY>(a, heads, row, sequence, {span, split, T::TENSOR_V ? active : split + 1, active});
    if (T::TENSOR_V) break;
    __syncthreads();  // the outputs have been read
  }
  if (last_to_arrive(a.arrivals + blockIdx.z * gridDim.x + blockIdx.x, blocks)) merge<D, ENTROPY>(a, heads, active);
}

}  // namespace attn_decode

#define ATTN_DECODE(name, K, V, D, ENTROPY)                                                                      \
  SHARED_BYTES(name, (attn_decode::Tiling<K, V, D>::BYTES))                                                      \
  STARTS_EARLY(name)                                                                                             \
  extern "C" __global__ void __launch_bounds__(128, 2)                                                           \
      name(const float* queries, const RowState* rows, const SequenceView* sequences, int layer, int heads,      \
           int kv_heads, int window, float softcap, int splits, float* partial_out, HeadState* partial_states,   \
           unsigned* arrivals, float* out, HeadState* states) {                                                  \
    attn_decode::decode<K, V, D, ENTROPY>({queries, rows, sequences, layer, heads, kv_heads, window, softcap,    \
                                           splits, partial_out, partial_states, arrivals, out, states});         \
  }
#define ATTN_DECODE_TYPES(D)                                       \
  ATTN_DECODE(attn_decode_kf32_vf32_d##D, Halves, float, D, true)  \
  ATTN_DECODE(attn_decode_kf32_vf16_d##D, Halves, __half, D, true) \
  ATTN_DECODE(attn_decode_kf16_vf16_d##D, __half, __half, D, true) \
  ATTN_DECODE(attn_decode_kbf16_vbf16_d##D, __nv_bfloat16, __nv_bfloat16, D, true)
#define ATTN_DECODE_PLAIN(D)                                                \
  ATTN_DECODE(attn_decode_kf32_vf16_d##D##_plain, Halves, __half, D, false) \
  ATTN_DECODE(attn_decode_kf16_vf16_d##D##_plain, __half, __half, D, false) \
  ATTN_DECODE(attn_decode_kbf16_vbf16_d##D##_plain, __nv_bfloat16, __nv_bfloat16, D, false)

ATTN_DECODE_TYPES(16)
ATTN_DECODE_TYPES(32)
ATTN_DECODE_TYPES(64)
ATTN_DECODE_TYPES(96)
ATTN_DECODE_TYPES(128)
ATTN_DECODE_TYPES(256)
ATTN_DECODE_TYPES(512)
ATTN_DECODE_PLAIN(64)
ATTN_DECODE_PLAIN(96)
ATTN_DECODE_PLAIN(128)
ATTN_DECODE_PLAIN(256)
ATTN_DECODE_PLAIN(512)
