// Causal attention of many rows over their KV caches, on tensor cores, with the softmax state of every row and head and,
// for traced rows, the reweighted-entropy state. Runs of consecutive rows of one sequence share their reads.
//
// attn_prefill_k<K>_v<V>_d<D>_t<TERMS>
//   K, V: f32 (Halves for keys, float for values), f16, bf16 cache types; D: head_dim
//   TERMS: f16 terms that an operand is split into, hi + lo. 2: float32-like; 1: fast, each operand rounded to f16
//   Instances: (K, V) of (f32, f32), (f32, f16), (f16, f16), (bf16, bf16), D of 16, 32, 64, 96, 128, 256, 512, with 2 terms;
//   with 1 term, the 16-bit pairs and D of 64 to 256.
//   queries    [n, heads, D] f32, rotated and scaled
//   rows       [n]; in runs of neighbours at consecutive positions of the sequence in one slot, whose cache already holds
//              the rows' own positions
//   parts      [parts]; what each block computes
//   sequences  [slots]
//   layer, heads, kv_heads
//   window     positions a row attends to, itself included; 0: all
//   softcap    s <- softcap tanh(s / softcap); 0: none
//   out        [n, heads, D] f32
//   rounded    if not null, receives the rows [n, heads * D], rounded, instead of out; D a multiple of 32
//   states     [n, heads]; the entropy states of rows before the sequence's first_traced_row stay empty
// PRECOND: grid (parts, kv_heads); block 128; pointers aligned to 16 bytes; dynamic shared memory NAME_shared_bytes, at
//   most 99 KB, except 130 KB with D of 512 and f32 keys. The parts of a run of r rows: lines 0, 64, ... (D of 512: 0, 32, ...) below
//   r * heads / kv_heads.
//   Keys and values beyond +-65504 make the results non-finite.
//
// The rows of all query heads of a key/value head are stacked: line i of a run is row i / group, head i % group. A line
// is multiplied with whole tiles at multiples of TILE and masked, so its bits do not depend on the other rows.
//
// Why f16 and not bf16 terms: hi + lo in f16 hold 22 bits instead of 16, and an f16 key or value is exactly one term:
// two products instead of three. lo * lo is omitted: 2^-22 of a product. A bf16 element is also one f16 term (exact
// down to 6e-5; below that, like the lo of an f32 element, within 3e-8). Queries and weights are first scaled into the
// range of f16.
//
// The tensor cores' accumulators truncate, so no chain there is longer than 32 dimensions (queries . keys) or the 32
// positions of a tile (weights . values): those sums are added in float32.
//
// Who does what (attn_prefill_hopper.cu too, except that four warps multiply their 64 lines together):
//   grid x        up to 64 lines of a run: the part parts[x]
//   grid y        a key/value head, with all its query heads
//   copies        a thread: 16 bytes of a position of the tile
//   scores        a warp: 16 lines, all positions of the tile (D of 512: two warps compute the same)
//   weights       a warp: its 16 lines; a lane: lines lane / 4 and lane / 4 + 8, a quarter of the positions, with its own part of
//                 Z, Z', S' until the end
//   output        a warp: its 16 lines, all dimensions (D of 512: half of them)
#include "attn_prefill.cuh"

namespace attn_prefill {

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

/// Stages TILE positions of a cache from `start` on, as f16 terms [PLANES, TILE, STRIDE]; zeros from `end` on. f16 and Halves are
/// copied asynchronously, other types are converted on the way. If a thread has the same dimensions of all its positions,
/// its addresses are a constant apart.
template <class T, int D, int TILE, int PLANES, int STRIDE>
__device__ __forceinline__ void stage(__half* tile, const T* cache, int start, int end) {
  constexpr bool COPIED = SAME<T, __half> || SAME<T, Halves>;
  constexpr int VECS = D / 8, AT_ONCE = THREADS / VECS, WIDTH = sizeof(T) / 2 * D;  // WIDTH: f16 values per position
  if constexpr (COPIED && THREADS % VECS == 0 && TILE % AT_ONCE == 0 && D <= 128) {
    const int line = threadIdx.x / VECS, dim = threadIdx.x % VECS * 8;
    const __half* from = reinterpret_cast<const __half*>(cache) + (size_t)(start + line) * WIDTH + dim;
    __half* to = tile + line * STRIDE + dim;
    const int left = end - start - line;
#pragma unroll
    for (int i = 0; i < TILE; i += AT_ONCE) {
#pragma unroll
      for (int plane = 0; plane < PLANES; ++plane)
        cp_async16(to + (plane * TILE + i) * STRIDE, from + i * WIDTH + plane * D, i < left);
    }
  } else {
    // addresses computed ahead: fewer where registers are scarce
    [[maybe_unused]] constexpr int AHEAD = D > 128 ? (SAME<T, float> ? 3 : 2) : 4;
#pragma unroll AHEAD
    for (int i = threadIdx.x; i < TILE * VECS; i += THREADS) {
      const int line = i / VECS, dim = i % VECS * 8;
      const bool on = start + line < end;
      __half* to = tile + line * STRIDE + dim;
      if constexpr (COPIED) {
        const __half* from = reinterpret_cast<const __half*>(cache) + (on ? (size_t)(start + line) * WIDTH + dim : 0);
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) cp_async16(to + plane * TILE * STRIDE, from + plane * D, on);
      } else {
        float x[8] = {};
        if (on) load8<T>(cache + (size_t)(start + line) * D + dim, x);
        store_split<PLANES>(x, to, TILE * STRIDE);
      }
    }
  }
}

/// Lane 8j + i's address for ldmatrix_x4, for four 8x8 matrices of a 16x16 block at `from`: with ROWS_FIRST, matrices
/// 0 and 1 are stacked vertically, otherwise side by side.
template <bool ROWS_FIRST, int STRIDE>
__device__ __forceinline__ const __half* matrix_row(const __half* from) {
  const int lane = threadIdx.x % 32, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
  const int row = lane % 8 + (ROWS_FIRST ? first : second), column = ROWS_FIRST ? second : first;
  return from + row * STRIDE + column;
}

/// A warp's scores of one tile.
template <class T>
__device__ __forceinline__ void multiply_queries(float (&s)[T::TILE / 8][4], const __half* queries,
                                                 const __half* keys) {
  constexpr int D = T::D, TERMS = T::TERMS, CHAIN = D < 32 ? D : 32;
  [[maybe_unused]] constexpr int UNROLL = D > 64 ? 1 : 2;
#pragma unroll
  for (int i = 0; i < T::TILE / 8; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.f;
#pragma unroll UNROLL
  for (int first = 0; first < D; first += CHAIN) {
    unsigned q[CHAIN / 16][TERMS][4];
#pragma unroll
    for (int i = 0; i < CHAIN / 16 * TERMS; ++i) {
      const int step = i / TERMS, term = i % TERMS;
      ldmatrix_x4(q[step][term], matrix_row<true, T::STRIDE>(queries + term * T::QUERY_PLANE + first + step * 16));
    }
#pragma unroll
    for (int i = 0; i < T::TILE / 8; i += 2) {
      float c[2][4] = {};
#pragma unroll
      for (int at = 0; at < CHAIN / 16 * T::K_PLANES; ++at) {
        const int step = at / T::K_PLANES, plane = at % T::K_PLANES;
        unsigned k[4];
        ldmatrix_x4(k, matrix_row<false, T::STRIDE>(keys + (plane * T::TILE + i * 8) * T::STRIDE + first + step * 16));
        const unsigned left[2] = {k[0], k[1]}, right[2] = {k[2], k[3]};
#pragma unroll
        for (int term = 0; term + plane < TERMS; ++term) {
          mma_m16n8k16<__half>(c[0], q[step][term], left);
          mma_m16n8k16<__half>(c[1], q[step][term], right);
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) s[i + j / 4][j % 4] += c[j / 4][j % 4];
    }
  }
}

/// Adds one tile's values to a warp's lines, for the warp's dimensions.
template <class T>
__device__ __forceinline__ void multiply_values(float (&out)[T::OWN / 8][4], const float (&factors)[2],
                                                const float (&p)[T::TILE / 8][4], const __half* values) {
  constexpr int TERMS = T::TERMS;
  unsigned weights[T::TILE / 16][TERMS][4];
  split_weights<TERMS, T::TILE>(p, weights);
#pragma unroll
  for (int dim = 0; dim < T::OWN; dim += 16) {
    float c[2][4] = {};
#pragma unroll
    for (int i = 0; i < T::TILE / 16; ++i) {
#pragma unroll
      for (int plane = 0; plane < T::V_PLANES; ++plane) {
        unsigned v[4];
        ldmatrix_x4_trans(v, matrix_row<true, T::STRIDE>(values + (plane * T::TILE + i * 16) * T::STRIDE + dim));
        const unsigned left[2] = {v[0], v[1]}, right[2] = {v[2], v[3]};
#pragma unroll
        for (int term = 0; term + plane < TERMS; ++term) {
          mma_m16n8k16<__half>(c[0], weights[i][term], left);
          mma_m16n8k16<__half>(c[1], weights[i][term], right);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& sum = out[dim / 8 + i / 4][i % 4];
      sum = fmaf(sum, factors[i % 4 / 2], c[i / 4][i % 4]);
    }
    keep_order();  // otherwise ptxas would compute more of the c at a time than registers allow
  }
}

template <class K, class V, int HEAD_DIM, int TERMS_>
struct Mma {
  using Key = K;
  using Value = V;
  static constexpr int D = HEAD_DIM, OWN = D / SHARERS<D>, TERMS = TERMS_;
  static constexpr int K_PLANES = sizeof(K) == 4 ? TERMS : 1, V_PLANES = sizeof(V) == 4 ? TERMS : 1;
  static constexpr int TILE = D > 128 ? 16 : 32, WEIGHED = TILE;
  static constexpr int STRIDE = D + 8;  // 16 bytes more than a line: eight lines' parts fall in different banks
  static constexpr int QUERY_PLANE = LINES<D> * STRIDE;
  static constexpr int BYTES = (TERMS * LINES<D> + TILE * (K_PLANES + V_PLANES)) * STRIDE * 2;

  __half* queries = reinterpret_cast<__half*>(dyn_smem);  // [TERMS, LINES, STRIDE]
  __half* keys = queries + TERMS * QUERY_PLANE;           // [K_PLANES, TILE, STRIDE]
  __half* values = keys + K_PLANES * TILE * STRIDE;       // [V_PLANES, TILE, STRIDE]

  __device__ __forceinline__ __half* query(int line, int dim) const { return queries + line * STRIDE + dim; }
  __device__ __forceinline__ void stage_keys(const K* k, int start, int end) const {
    stage<K, D, TILE, K_PLANES, STRIDE>(keys, k, start, end);
  }
  __device__ __forceinline__ void stage_values(const V* v, int start, int end) const {
    stage<V, D, TILE, V_PLANES, STRIDE>(values, v, start, end);
  }
  __device__ __forceinline__ void arrived() const {}
  __device__ __forceinline__ void multiply_queries(Scores<TILE> (&scores)[1]) const {
    attn_prefill::multiply_queries<Mma>(scores[0].s, query(first_own_line<D>(), 0), keys);
  }
  __device__ __forceinline__ void multiply_values(float (&out)[OWN / 8][4], const float (&factors)[1][2],
                                                  const Scores<TILE> (&p)[1]) const {
    attn_prefill::multiply_values<Mma>(out, factors[0], p[0].s, values + first_own_dim<D>());
  }
};

}  // namespace attn_prefill

#define ATTN_PREFILL(name, K, V, D, TERMS) \
  ATTN_PREFILL_KERNEL(name, (D > 64 || sizeof(V) == 4 ? 2 : 3), attn_prefill::Mma<K, V, D, TERMS>)
#define ATTN_PREFILL_EXACT(D)                                          \
  ATTN_PREFILL(attn_prefill_kf32_vf32_d##D##_t2, Halves, float, D, 2)  \
  ATTN_PREFILL(attn_prefill_kf32_vf16_d##D##_t2, Halves, __half, D, 2) \
  ATTN_PREFILL(attn_prefill_kf16_vf16_d##D##_t2, __half, __half, D, 2) \
  ATTN_PREFILL(attn_prefill_kbf16_vbf16_d##D##_t2, __nv_bfloat16, __nv_bfloat16, D, 2)
#define ATTN_PREFILL_FAST(D)                                           \
  ATTN_PREFILL(attn_prefill_kf16_vf16_d##D##_t1, __half, __half, D, 1) \
  ATTN_PREFILL(attn_prefill_kbf16_vbf16_d##D##_t1, __nv_bfloat16, __nv_bfloat16, D, 1)

ATTN_PREFILL_EXACT(16)
ATTN_PREFILL_EXACT(32)
ATTN_PREFILL_EXACT(64)
ATTN_PREFILL_EXACT(96)
ATTN_PREFILL_EXACT(128)
ATTN_PREFILL_EXACT(256)
ATTN_PREFILL_EXACT(512)
ATTN_PREFILL_FAST(64)
ATTN_PREFILL_FAST(96)
ATTN_PREFILL_FAST(128)
ATTN_PREFILL_FAST(256)
