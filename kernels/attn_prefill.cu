// Causal attention of many rows over their KV caches, on tensor cores, with the softmax state of every row and head and,
// for traced rows, the reweighted-entropy state. Runs of consecutive rows of one sequence share what they read.
//
// attn_prefill_k<K>_v<V>_d<D>_t<TERMS>
//   K, V: f32 (of keys Halves, of values float), f16, bf16 cache types; D: head_dim
//   TERMS: f16 terms that an operand is split into, hi + lo. 2: float32-like; 1: fast, each operand rounded to f16
//   Instances: (K, V) of (f32, f32), (f32, f16), (f16, f16), (bf16, bf16), D of 16, 32, 64, 96, 128, 256, with 2 terms;
//   with 1 term the 16-bit pairs and D >= 64.
//   queries    [n, heads, D] f32, rotated and scaled
//   rows       [n]; in runs: neighbours that are consecutive positions of the sequence in one slot, whose cache holds the
//              rows' own positions already
//   parts      [parts]; what each block computes
//   sequences  [slots]
//   layer, heads, kv_heads
//   window     positions a row attends to, itself included; 0: all
//   softcap    s <- softcap tanh(s / softcap); 0: none
//   out        [n, heads, D] f32
//   rounded    where the rows [n, heads * D] go instead of out, rounded, if not null; D a multiple of 32
//   states     [n, heads]; the entropy states of rows before the sequence's first_traced_row stay empty
// PRECOND: grid (parts, kv_heads); block 128; pointers aligned to 16 bytes; dynamic shared memory NAME_shared_bytes, at
//   most 99 KB. The parts of a run of r rows: lines 0, 64, ... below r * heads / kv_heads.
//   Keys and values beyond +-65504 give results that are not finite.
//
// The rows of all query heads of a key/value head are stacked: line i of a run is row i / group, head i % group. A line
// is multiplied with whole tiles at multiples of TILE and masked, so its bits do not depend on the other rows.
//
// Why f16 and not bf16 terms: hi + lo of f16 are 22 bits instead of 16, and an f16 key or value is one term exactly:
// two products instead of three. lo * lo is left out: 2^-22 of a product. A bf16 element is one f16 term, too (exact
// down to 6e-5; below, as the lo of an f32 element, within 3e-8). Queries and weights are scaled into the range of f16
// first.
//
// The tensor cores' accumulators truncate, so no chain there is longer than 32 dimensions (queries . keys) or the 32
// positions of a tile (weights . values): those sums are added in float32.
#include "attn_terms.cuh"
#include "rounded.cuh"
#include "softmax_state.cuh"

namespace attn_prefill {

constexpr int THREADS = 128, LINES = 64, WARP_LINES = 16;

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

template <class K, class V, int D, int TERMS>
struct Tiling {
  static constexpr int K_PLANES = sizeof(K) == 4 ? TERMS : 1, V_PLANES = sizeof(V) == 4 ? TERMS : 1;
  static constexpr int TILE = D > 128 ? 16 : 32;
  static constexpr int STRIDE = D + 8;  // 16 bytes more than a line: eight lines' parts lie in different banks
  static constexpr int BYTES = (TERMS * LINES + TILE * (K_PLANES + V_PLANES)) * STRIDE * 2;
};

struct Arguments {
  const float* queries;
  const RowState* rows;
  const SequenceView* sequences;
  int layer, heads, kv_heads, window;
  float softcap;
  float* out;
  HeadState* states;
  RoundedRows rounded;
};

/// Eight floats as f16 terms, 16 bytes in each of PLANES arrays that are `plane` elements apart.
template <int PLANES>
__device__ __forceinline__ void store_split(const float (&x)[8], __half* to, int plane) {
  uint4 terms[PLANES];
  split8<__half>(x, terms);
#pragma unroll
  for (int i = 0; i < PLANES; ++i) *reinterpret_cast<uint4*>(to + i * plane) = terms[i];
}

/// TILE positions of a cache from `start` on, as f16 terms [PLANES, TILE, STRIDE]; zeros from `end` on. f16 and Halves are
/// copied asynchronously, the others are converted on the way. Where a thread has the same dimensions of all its positions,
/// addresses are a constant apart.
template <class T, int D, int TILE, int PLANES, int STRIDE>
__device__ __forceinline__ void stage(__half* tile, const T* cache, int start, int end) {
  constexpr bool COPIED = SAME<T, __half> || SAME<T, Halves>;
  constexpr int VECS = D / 8, AT_ONCE = THREADS / VECS, WIDTH = sizeof(T) / 2 * D;  // WIDTH: f16 numbers of a position
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
    // addresses ahead: fewer where registers are short
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

/// The queries of a warp's lines as f16 terms [TERMS, LINES, STRIDE], each line multiplied by a power of two; zeros
/// after the last line. `inverse`: what takes the factor back for the lane's two lines.
template <int D, int TERMS, int STRIDE>
__device__ __forceinline__ void stage_queries(__half* to, const Arguments& a, const PrefillPart& part, int group,
                                              int first_line, float (&inverse)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int line = 0; line < WARP_LINES; ++line) {
    const int row = (first_line + line) / group;
    const size_t head = (size_t)(part.first + row) * a.heads + blockIdx.y * group + (first_line + line) % group;
    float x[8] = {}, max_abs = 0.f;
    if (lane < D / 8 && row < part.rows) load8<float>(a.queries + head * D + lane * 8, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) max_abs = fmaxf(max_abs, fabsf(x[i]));
    const PowerOfTwo factor = scale_to_f16(warp_reduce<Max>(max_abs));
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= factor.scale;
    if (lane < D / 8) store_split<TERMS>(x, to + line * STRIDE + lane * 8, LINES * STRIDE);
    if (lane / 4 == line) inverse[0] = factor.inverse;
    if (lane / 4 + 8 == line) inverse[1] = factor.inverse;
  }
}

/// Where lane 8j + i points ldmatrix_x4 at, for four 8x8 matrices of a 16x16 block at `from`: with ROWS_FIRST matrices
/// 0, 1 lie below each other, else beside each other.
template <bool ROWS_FIRST, int STRIDE>
__device__ __forceinline__ const __half* matrix_row(const __half* from) {
  const int lane = threadIdx.x % 32, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
  const int row = lane % 8 + (ROWS_FIRST ? first : second), column = ROWS_FIRST ? second : first;
  return from + row * STRIDE + column;
}

/// A warp's scores of one tile: s[i] are positions 8i ..= 8i + 7, in the layout of mma_m16n8k16's c.
template <class T, int D, int TERMS>
__device__ __forceinline__ void multiply_queries(float (&s)[T::TILE / 8][4], const __half* queries,
                                                 const __half* keys) {
  constexpr int CHAIN = D < 32 ? D : 32;
  [[maybe_unused]] constexpr int UNROLL = D > 64 ? 1 : 2;
#pragma unroll
  for (int i = 0; i < T::TILE / 8; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.f;
#pragma unroll UNROLL
  for (int first = 0; first < D; first += CHAIN) {
    unsigned q[CHAIN / 16][TERMS][4];
#pragma unroll
    for (int i = 0; i < CHAIN / 16 * TERMS; ++i) {
      const int step = i / TERMS, term = i % TERMS;
      ldmatrix_x4(q[step][term], matrix_row<true, T::STRIDE>(queries + term * LINES * T::STRIDE + first + step * 16));
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

/// out = out factors + p v WEIGHT_SCALE for one tile: out[i] are dimensions 8i ..= 8i + 7, in the layout of
/// mma_m16n8k16's c, as is p; a factor for each of the lane's two lines.
template <class T, int D, int TERMS>
__device__ __forceinline__ void multiply_values(float (&out)[D / 8][4], const float (&factors)[2],
                                                const float (&p)[T::TILE / 8][4], const __half* values) {
  unsigned weights[T::TILE / 16][TERMS][4];
#pragma unroll
  for (int i = 0; i < T::TILE / 4; ++i) {
    const float* pair = &p[i / 2][i % 2 * 2];
    unsigned terms[TERMS];
    split<__half>(pair[0] * WEIGHT_SCALE, pair[1] * WEIGHT_SCALE, terms);
#pragma unroll
    for (int term = 0; term < TERMS; ++term) weights[i / 4][term][i % 4] = terms[term];
  }
#pragma unroll
  for (int dim = 0; dim < D; dim += 16) {
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
    keep_order();  // ptxas would compute more of the c at a time than there are registers for
  }
}

/// What a lane has of one line and one tile: the line's state, scores of TILE / 4 positions, which become e^{s-m} (0 where
/// the line does not attend to), and then the factor for what was summed up before.
template <int TILE>
struct Line {
  HeadState state;
  float scores[TILE / 4];
  float factor;

  /// The position of score i of a tile that begins at `start`.
  __device__ __forceinline__ static int position(int start, int i) {
    return start + threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
  }
};

/// Adds a tile to the state of a line. The maxima are the same in the four lanes that have it; each has its own part of the
/// sums. INSIDE: the line attends to all of the tile, with weight 1.
template <int TILE, bool ENTROPY, bool INSIDE>
__device__ __forceinline__ void weigh(Line<TILE>& line, int start, const Span& span) {
  using Own = Line<TILE>;
  const int row = span.end - 1;
  float m = -infinity(), mw = line.state.mw;  // m: of the tile
#pragma unroll
  for (int i = 0; i < TILE / 4; ++i) {
    const int t = Own::position(start, i);
    if (!INSIDE && !span.contains(t)) continue;
    m = fmaxf(m, line.scores[i]);
    if (ENTROPY && !INSIDE && has_weight(row, t)) mw = fmaxf(mw, line.scores[i]);
  }
  m = warp_reduce<Max, 4>(m);
  if (ENTROPY) mw = INSIDE ? fmaxf(mw, m) : warp_reduce<Max, 4>(mw);
  line.factor = raise<ENTROPY>(line.state, fmaxf(line.state.m, m), mw);
#pragma unroll
  for (int i = 0; i < TILE / 4; ++i) {
    const int t = Own::position(start, i);
    float& score = line.scores[i];
    score = INSIDE || span.contains(t) ? add_position<ENTROPY, INSIDE>(line.state, score, row, t) : 0.f;
  }
}

/// Of a tile that the line attends to in part, or where it has other weights.
template <int TILE>
__device__ OUT_OF_LINE Line<TILE> weigh_edge(Line<TILE> line, int start, Span span) {
  weigh<TILE, true, false>(line, start, span);
  return line;
}

/// A lane's scores of a tile, in the layout of mma_m16n8k16's c.
template <int TILE>
struct Scores {
  float s[TILE / 8][4];
};

/// Scores under the model's cap.
template <int TILE>
__device__ OUT_OF_LINE Scores<TILE> capped(Scores<TILE> scores, float softcap) {
#pragma unroll
  for (int i = 0; i < TILE / 2; ++i) {
    float& s = scores.s[i / 4][i % 4];
    s = __fmul_rn(softcap, tanhf(s / softcap));
  }
  return scores;
}

/// What a lane holds of a warp's lines: those numbered lane / 4 (index 0) and lane / 4 + 8 (index 1).
template <int D>
struct Lines {
  Span spans[2];
  HeadState states[2];
  float inverse[2];     // takes the scale of the line's query back
  float out[D / 8][4];  // sum e^{s-m} v WEIGHT_SCALE, in the layout of mma_m16n8k16's c
};

/// Adds a tile to the states of the lane's lines and replaces its scores by weights; `factors` of what was summed up
/// before. With `traced` also to those of the entropy.
template <int TILE, int D>
__device__ __forceinline__ void weigh_tile(Lines<D>& lines, Scores<TILE>& scores, float (&factors)[2], int start,
                                           float softcap, bool traced) {
#pragma unroll
  for (int i = 0; i < TILE / 2; ++i) scores.s[i / 4][i % 4] *= lines.inverse[i % 4 / 2];
  if (softcap > 0.f) scores = capped<TILE>(scores, softcap);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Span& span = lines.spans[half];
    Line<TILE> line;
    line.state = lines.states[half];
#pragma unroll
    for (int i = 0; i < TILE / 4; ++i) line.scores[i] = scores.s[i / 2][2 * half + i % 2];
    // the same for the whole warp, which exchanges maxima
    const bool inside = __all_sync(FULL_WARP, start >= span.begin && unweighted(span.end - 1, start, start + TILE));
    if (!inside)
      line = weigh_edge<TILE>(line, start, span);
    else if (traced)
      weigh<TILE, true, true>(line, start, span);
    else
      weigh<TILE, false, true>(line, start, span);
    lines.states[half] = line.state;
    factors[half] = line.factor;
#pragma unroll
    for (int i = 0; i < TILE / 4; ++i) scores.s[i / 2][2 * half + i % 2] = line.scores[i];
  }
}

/// Adds up the four lanes' sums of a line; writes its output and its state.
template <int D, int HALF>
__device__ __forceinline__ void finish_line(Lines<D>& lines, const Arguments& a, const PrefillPart& part, int group,
                                            int line) {
  HeadState state = lines.states[HALF];
  state.z = warp_reduce<Sum, 4>(state.z);
  state.zw = warp_reduce<Sum, 4>(state.zw);
  state.sw = warp_reduce<Sum, 4>(state.sw);
  const bool there = line / group < part.rows;
  const size_t row = part.first + line / group;
  const int head = blockIdx.y * group + line % group, lane = threadIdx.x % 4;
  if (there && lane == 0) a.states[row * a.heads + head] = state;
  constexpr int TOGETHER = D < SHARING ? D / 8 : SHARING / 8;
#pragma unroll
  for (int first = 0; first < D / 8; first += TOGETHER) {
    float2 pairs[TOGETHER];
    float max = 0.f;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const float(&sums)[4] = lines.out[first + i];
      pairs[i] = make_float2(sums[2 * HALF] / (state.z * WEIGHT_SCALE), sums[2 * HALF + 1] / (state.z * WEIGHT_SCALE));
      max = fmaxf(max, max_abs(pairs[i]));
    }
    const int at = head * D + first * 8 + lane * 2;
    if (D % SHARING == 0 && a.rounded.values) {
      max = warp_reduce<Max, 4>(max);
      if (there) store_rounded(a.rounded, row, a.heads * D, at, pairs, max);
    } else if (there) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) *reinterpret_cast<float2*>(a.out + row * a.heads * D + at + i * 8) = pairs[i];
    }
  }
}

template <class K, class V, int D, int TERMS>
__device__ __forceinline__ void prefill(const Arguments& a, const PrefillPart& part) {
  using T = Tiling<K, V, D, TERMS>;
  PRECOND_GRID(ANY_GRID, a.kv_heads);
  start_early();
  constexpr int TILE = T::TILE, STRIDE = T::STRIDE;
  __half* queries = reinterpret_cast<__half*>(dyn_smem);  // [TERMS, LINES, STRIDE]
  __half* keys = queries + TERMS * LINES * STRIDE;        // [K_PLANES, TILE, STRIDE]
  __half* values = keys + T::K_PLANES * TILE * STRIDE;    // [V_PLANES, TILE, STRIDE]

  const int group = a.heads / a.kv_heads, first_line = part.line;
  const RowState first = a.rows[part.first];
  const int first_row = first.position;
  const SequenceView sequence = a.sequences[first.slot];
  const int lowest = first_row + first_line / group;
  const int highest = first_row + min((first_line + LINES - 1) / group, part.rows - 1);
  const int end = highest + 1;
  const bool traced = highest >= sequence.first_traced_row;
  const size_t head_cache = ((size_t)a.layer * a.kv_heads + blockIdx.y) * sequence.capacity * D;
  const K* k = static_cast<const K*>(sequence.k) + head_cache;
  const V* v = static_cast<const V*>(sequence.v) + head_cache;

  const int own_line = threadIdx.x / 32 * WARP_LINES, line = first_line + own_line + threadIdx.x % 32 / 4;
  Lines<D> lines;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (line + half * 8) / group;
    lines.spans[half] = row < part.rows ? attended(first_row + row, a.window) : Span{0, 0};
    lines.states[half] = empty_state();
  }
#pragma unroll
  for (int i = 0; i < D / 8; ++i) lines.out[i][0] = lines.out[i][1] = lines.out[i][2] = lines.out[i][3] = 0.f;

  int start = attended(lowest, a.window).begin / TILE * TILE;
  stage<K, D, TILE, T::K_PLANES, STRIDE>(keys, k, start, end);
  cp_commit();
  stage<V, D, TILE, T::V_PLANES, STRIDE>(values, v, start, end);
  cp_commit();
  stage_queries<D, TERMS, STRIDE>(queries + own_line * STRIDE, a, part, group, first_line + own_line, lines.inverse);
  // keys are fetched while values are in use, and the other way round
  for (; start < end; start += TILE) {
    Scores<TILE> scores;
    float factors[2];
    cp_wait<1>();
    __syncthreads();  // this tile's keys are there (and the warp's queries)
    multiply_queries<T, D, TERMS>(scores.s, queries + own_line * STRIDE, keys);
    __syncthreads();  // the keys are no longer read
    if (start + TILE < end) stage<K, D, TILE, T::K_PLANES, STRIDE>(keys, k, start + TILE, end);
    cp_commit();
    weigh_tile<TILE, D>(lines, scores, factors, start, a.softcap, traced);
    cp_wait<1>();
    __syncthreads();  // this tile's values are there
    multiply_values<T, D, TERMS>(lines.out, factors, scores.s, values);
    __syncthreads();  // the values are no longer read
    if (start + TILE < end) stage<V, D, TILE, T::V_PLANES, STRIDE>(values, v, start + TILE, end);
    cp_commit();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lines.spans[half].end - 1 < sequence.first_traced_row) clear_entropy(lines.states[half]);
  finish_line<D, 0>(lines, a, part, group, line);
  finish_line<D, 1>(lines, a, part, group, line + 8);
}

}  // namespace attn_prefill

#define ATTN_PREFILL(name, K, V, D, TERMS)                                                               \
  SHARED_BYTES(name, (attn_prefill::Tiling<K, V, D, TERMS>::BYTES))                                      \
  STARTS_EARLY(name)                                                                                     \
  extern "C" __global__ void __launch_bounds__(128, D > 64 || sizeof(V) == 4 ? 2 : 3)                    \
      name(const float* queries, const RowState* rows, const PrefillPart* parts,                         \
           const SequenceView* sequences, int layer, int heads, int kv_heads, int window, float softcap, \
           float* out, HeadState* states, RoundedRows rounded) {                                         \
    attn_prefill::prefill<K, V, D, TERMS>(                                                               \
        {queries, rows, sequences, layer, heads, kv_heads, window, softcap, out, states, rounded},       \
        parts[blockIdx.x]);                                                                              \
  }
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
ATTN_PREFILL_FAST(64)
ATTN_PREFILL_FAST(96)
ATTN_PREFILL_FAST(128)
ATTN_PREFILL_FAST(256)
