// Shared by the kernels for attention of many rows (attn_prefill.cu, attn_prefill_hopper.cu): everything except the products and the
// shared memory that they read.
#pragma once
#include "attn_terms.cuh"
#include "rounded.cuh"
#include "softmax_state.cuh"

namespace attn_prefill {

constexpr int THREADS = 128, WARP_LINES = 16;

/// Warps that share the same lines, to fit in registers: each computes their scores, but sums its own part of the values' dimensions.
template <int D>
constexpr int SHARERS = D > 256 ? 2 : 1;
template <int D>
constexpr int LINES = THREADS / 32 / SHARERS<D> * WARP_LINES;  // per block

/// The warp's first line in the block, and its first dimension.
template <int D>
__device__ __forceinline__ int first_own_line() {
  return threadIdx.x / 32 / SHARERS<D> * WARP_LINES;
}
template <int D>
__device__ __forceinline__ int first_own_dim() {
  return threadIdx.x / 32 % SHARERS<D> * (D / SHARERS<D>);
}

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

/// Stores eight floats as f16 terms, 16 bytes in each of PLANES arrays that are `plane` elements apart.
template <int PLANES>
__device__ __forceinline__ void store_split(const float (&x)[8], __half* to, int plane) {
  uint4 terms[PLANES];
  split8<__half>(x, terms);
#pragma unroll
  for (int i = 0; i < PLANES; ++i) *reinterpret_cast<uint4*>(to + i * plane) = terms[i];
}

/// Stages the queries of a warp's lines (the block's from `own_line` on) as f16 terms where Core puts them, each line multiplied by a
/// power of two; zeros after the last line. `inverse`: undoes the factor for the lane's two lines.
template <class Core>
__device__ __forceinline__ void stage_queries(const Core& core, const Arguments& a, const PrefillPart& part, int group, int own_line,
                                              float (&inverse)[2]) {
  constexpr int D = Core::D, PARTS = ceil_div(D, 256);
  const int lane = threadIdx.x % 32, first_line = part.line + own_line;
#pragma unroll 4
  for (int line = 0; line < WARP_LINES; ++line) {
    const int row = (first_line + line) / group;
    const size_t head = (size_t)(part.first + row) * a.heads + blockIdx.y * group + (first_line + line) % group;
    float x[PARTS][8] = {}, max_abs = 0.f;
#pragma unroll
    for (int i = 0; i < 8 * PARTS; ++i) {
      const int dim = i / 8 * 256 + lane * 8;
      if (i % 8 == 0 && dim < D && row < part.rows) load8<float>(a.queries + head * D + dim, x[i / 8]);
      max_abs = fmaxf(max_abs, fabsf(x[i / 8][i % 8]));
    }
    const PowerOfTwo factor = scale_to_f16(warp_reduce<Max>(max_abs));
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
      const int dim = p * 256 + lane * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[p][i] *= factor.scale;
      if (dim < D && first_own_dim<D>() == 0)
        store_split<Core::TERMS>(x[p], core.query(own_line + line, dim), Core::QUERY_PLANE);
    }
    if (lane / 4 == line) inverse[0] = factor.inverse;
    if (lane / 4 + 8 == line) inverse[1] = factor.inverse;
  }
}

/// A lane's part of one line and one tile: the line's state, scores of TILE / 4 positions, which become e^{s-m} (0 where
/// the line does not attend), and the resulting factor for earlier sums.
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

/// Adds a tile to the state of a line. The four lanes that share it have the same maxima, and each its own part of the
/// sums. INSIDE: the line attends to the whole tile, with weight 1.
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

/// For a tile that the line attends to only in part, or with other weights.
template <int TILE>
__device__ OUT_OF_LINE Line<TILE> weigh_edge(Line<TILE> line, int start, Span span) {
  weigh<TILE, true, false>(line, start, span);
  return line;
}

/// A lane's scores of a tile: s[i] are positions 8i ..= 8i + 7, in the layout of mma_m16n8k16's c.
template <int TILE>
struct Scores {
  float s[TILE / 8][4];
};

/// Scores with the model's softcap applied.
template <int TILE>
__device__ OUT_OF_LINE Scores<TILE> capped(Scores<TILE> scores, float softcap) {
#pragma unroll
  for (int i = 0; i < TILE / 2; ++i) {
    float& s = scores.s[i / 4][i % 4];
    s = __fmul_rn(softcap, tanhf(s / softcap));
  }
  return scores;
}

/// A lane's lines of a warp: those numbered lane / 4 (index 0) and lane / 4 + 8 (index 1).
template <int D>
struct Lines {
  Span spans[2];
  HeadState states[2];
  float inverse[2];     // undoes the scale of the line's query
  float out[D / 8][4];  // sum e^{s-m} v WEIGHT_SCALE, in the layout of mma_m16n8k16's c
};

/// Adds a tile to the states of the lane's lines and replaces its scores with weights; `factors`: for earlier sums.
/// With `traced`, also updates the entropy states.
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
    // uniform across the warp, which exchanges maxima
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

/// Adds up the four lanes' sums of a line; writes the warp's OWN dimensions of the output, and the state.
template <int D, int HALF, int OWN>
__device__ __forceinline__ void finish_line(Lines<OWN>& lines, const Arguments& a, const PrefillPart& part, int group,
                                            int line) {
  HeadState state = lines.states[HALF];
  state.z = warp_reduce<Sum, 4>(state.z);
  state.zw = warp_reduce<Sum, 4>(state.zw);
  state.sw = warp_reduce<Sum, 4>(state.sw);
  const bool there = line / group < part.rows;
  const size_t row = part.first + line / group;
  const int head = blockIdx.y * group + line % group, lane = threadIdx.x % 4;
  if (there && lane == 0 && first_own_dim<D>() == 0) a.states[row * a.heads + head] = state;
  constexpr int TOGETHER = D < SHARING ? D / 8 : SHARING / 8;
#pragma unroll
  for (int first = 0; first < OWN / 8; first += TOGETHER) {
    float2 pairs[TOGETHER];
    float max = 0.f;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const float(&sums)[4] = lines.out[first + i];
      pairs[i] = make_float2(sums[2 * HALF] / (state.z * WEIGHT_SCALE), sums[2 * HALF + 1] / (state.z * WEIGHT_SCALE));
      max = fmaxf(max, max_abs(pairs[i]));
    }
    const int at = head * D + first_own_dim<D>() + first * 8 + lane * 2;
    if (D % SHARING == 0 && a.rounded.values) {
      max = warp_reduce<Max, 4>(max);
      if (there) store_rounded(a.rounded, row, a.heads * D, at, pairs, max);
    } else if (there) {
#pragma unroll
      for (int i = 0; i < TOGETHER; ++i) *reinterpret_cast<float2*>(a.out + row * a.heads * D + at + i * 8) = pairs[i];
    }
  }
}

/// Splits the weights of a part of a tile into f16 terms, in the layout of mma_m16n8k16's a: 16 positions each.
template <int TERMS, int TILE>
__device__ __forceinline__ void split_weights(const float (&p)[TILE / 8][4], unsigned (*weights)[TERMS][4]) {
#pragma unroll
  for (int i = 0; i < TILE / 4; ++i) {
    const float* pair = &p[i / 2][i % 2 * 2];
    unsigned terms[TERMS];
    split<__half>(pair[0] * WEIGHT_SCALE, pair[1] * WEIGHT_SCALE, terms);
#pragma unroll
    for (int term = 0; term < TERMS; ++term) weights[i / 4][term][i % 4] = terms[term];
  }
}

/// The block's work, with tensor cores and shared memory provided by Core:
///   Key, Value, D, TERMS           the cache's types; head_dim; f16 terms of a query
///   TILE, WEIGHED                  positions that are multiplied together; positions per part, which share one maximum
///   QUERY_PLANE, query(line, dim)  elements from one term to the next; where eight elements of the first one go
///   stage_keys, stage_values(cache, start, end)  start copies of TILE positions from `start` on, as f16 terms; zeros from `end` on
///   arrived()                      makes arrived copies visible to the products, before a barrier
///   multiply_queries(scores)       a warp's scores of one tile
///   multiply_values(out, factors, p)  out = out factors + p v WEIGHT_SCALE for each part of a tile: out[i] are dimensions 8i ..= 8i + 7, in
///                                  the layout of mma_m16n8k16's c, from the warp's first one on; a factor for each of the lane's two lines
template <class Core>
__device__ __forceinline__ void prefill(const Arguments& a, const PrefillPart& part) {
  PRECOND_GRID(ANY_GRID, a.kv_heads);
  start_early();
  constexpr int D = Core::D, OWN = D / SHARERS<D>, TILE = Core::TILE, WEIGHED = Core::WEIGHED, PARTS = TILE / WEIGHED;
  const Core core;

  const int group = a.heads / a.kv_heads, first_line = part.line;
  const RowState first = a.rows[part.first];
  const int first_row = first.position;
  const SequenceView sequence = a.sequences[first.slot];
  const int lowest = first_row + first_line / group;
  const int highest = first_row + min((first_line + LINES<D> - 1) / group, part.rows - 1);
  const int end = highest + 1;
  const bool traced = highest >= sequence.first_traced_row;
  const size_t head_cache = ((size_t)a.layer * a.kv_heads + blockIdx.y) * sequence.capacity * D;
  const typename Core::Key* k = static_cast<const typename Core::Key*>(sequence.k) + head_cache;
  const typename Core::Value* v = static_cast<const typename Core::Value*>(sequence.v) + head_cache;

  const int own_line = first_own_line<D>(), line = first_line + own_line + threadIdx.x % 32 / 4;
  Lines<OWN> lines;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = (line + half * 8) / group;
    lines.spans[half] = row < part.rows ? attended(first_row + row, a.window) : Span{0, 0};
    lines.states[half] = empty_state();
  }
#pragma unroll
  for (int i = 0; i < OWN / 8; ++i) lines.out[i][0] = lines.out[i][1] = lines.out[i][2] = lines.out[i][3] = 0.f;

  int start = attended(lowest, a.window).begin / TILE * TILE;
  core.stage_keys(k, start, end);
  cp_commit();
  core.stage_values(v, start, end);
  cp_commit();
  stage_queries(core, a, part, group, own_line, lines.inverse);
  // keys are fetched while values are in use, and vice versa
  for (; start < end; start += TILE) {
    Scores<WEIGHED> scores[PARTS];
    float factors[PARTS][2];
    cp_wait<1>();
    core.arrived();
    __syncthreads();  // this tile's keys are there (and the lines' queries)
    core.multiply_queries(scores);
    __syncthreads();  // the keys are no longer read
    if (start + TILE < end) core.stage_keys(k, start + TILE, end);
    cp_commit();
#pragma unroll
    for (int i = 0; i < PARTS; ++i) weigh_tile<WEIGHED, OWN>(lines, scores[i], factors[i], start + i * WEIGHED, a.softcap, traced);
    cp_wait<1>();
    core.arrived();
    __syncthreads();  // this tile's values are there
    core.multiply_values(lines.out, factors, scores);
    __syncthreads();  // the values are no longer read
    if (start + TILE < end) core.stage_values(v, start + TILE, end);
    cp_commit();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lines.spans[half].end - 1 < sequence.first_traced_row) clear_entropy(lines.states[half]);
  finish_line<D, 0>(lines, a, part, group, line);
  finish_line<D, 1>(lines, a, part, group, line + 8);
}

}  // namespace attn_prefill

/// The last argument is the core.
#define ATTN_PREFILL_KERNEL(name, BLOCKS, ...)                                                           \
  SHARED_BYTES(name, (__VA_ARGS__::BYTES))                                                               \
  STARTS_EARLY(name)                                                                                     \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                              \
      name(const float* queries, const RowState* rows, const PrefillPart* parts,                         \
           const SequenceView* sequences, int layer, int heads, int kv_heads, int window, float softcap, \
           float* out, HeadState* states, RoundedRows rounded) {                                         \
    attn_prefill::prefill<__VA_ARGS__>(                                                                  \
        {queries, rows, sequences, layer, heads, kv_heads, window, softcap, out, states, rounded},       \
        parts[blockIdx.x]);                                                                              \
  }
