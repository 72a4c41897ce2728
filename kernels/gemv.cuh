// Shared by gemv.cu, gemv_ring.cu and gemv_wide.cu: bit-identical products of two 16-bit terms of the activations, and their destinations.
//
// The order of a sum: k is cut into lines of 128 bytes of weights. Each of eight warps takes every eighth line and adds
// up its steps of 32 elements one after the other (blocks of 16 for 8-bit weights); the warps' sums are added in order.
#pragma once
#include "dense.cuh"
#include "q8.cuh"
#include "rope.cuh"

namespace gemv {

constexpr int WARPS = 8;
constexpr int TILE = 16;         // outputs of one mma
constexpr int LINE_BYTES = 128;  // of a row of weights that a warp takes at a time
constexpr int STEP = 32;         // elements of k that it multiplies at a time: 8 per lane

/// Weights of type W on the tensor cores: their terms, those of the activations, and the element type.
template <class W>
struct Operand {
  static constexpr int TERMS = 1, X_TERMS = 2;
  using Type = W;
};
template <>
struct Operand<float> {
  static constexpr int TERMS = 3, X_TERMS = 3;
  using Type = __nv_bfloat16;
};
template <>
struct Operand<Q8Line> : Operand<__half> {};

/// A line of weights of type W: its elements of k, its bytes, its addressing units, and the number of neighbouring elements of
/// a step that a lane has (TOGETHER).
template <class W>
struct Line {
  using Unit = W;
  static constexpr int ELEMENTS = LINE_BYTES / (int)sizeof(W), BYTES = LINE_BYTES, UNITS = ELEMENTS, TOGETHER = 2;
  __device__ __forceinline__ static int row_units(int k) { return k; }
};
template <>
struct Line<Q8Line> {
  using Unit = unsigned char;
  static constexpr int ELEMENTS = Q8Line::WEIGHTS, BYTES = sizeof(Q8Line), UNITS = BYTES, TOGETHER = 4;  // a lane's word from ldmatrix
  __device__ __forceinline__ static int row_units(int k) { return Q8Line::of_row(k) * UNITS; }
};

/// Row `out` of a matrix with k columns.
template <class W>
__device__ __forceinline__ const typename Line<W>::Unit* row_of(const void* w, int out, int k) {
  return static_cast<const typename Line<W>::Unit*>(w) + (size_t)out * Line<W>::row_units(k);
}

/// Loads lane 4g + t's elements of a step, of a row of activations or of the norm weights: of every 4 N elements, the N from N t on;
/// N is `Line<W>::TOGETHER`. `from`: the lane's first. `left`: elements of k from the step on; zeros beyond.
template <class W>
__device__ __forceinline__ void load_step(float (&to)[8], const float* from, int left) {
  constexpr int N = Line<W>::TOGETHER;
#pragma unroll
  for (int i = 0; i < 8; i += N) {
    if constexpr (N == 2) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (4 * i < left) pair = *reinterpret_cast<const float2*>(from + 4 * i);
      to[i] = pair.x, to[i + 1] = pair.y;
    } else {
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (4 * i < left) four = *reinterpret_cast<const float4*>(from + 4 * i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }
}

/// A step of 16 rows of weights as mma A operands, of 16 elements of k each.
template <class W>
struct StepWeights {
  unsigned halves[2][Operand<W>::TERMS][4];
};
template <>
struct StepWeights<Q8Line> {
  unsigned halves[2][1][4];
  unsigned scales[2];  // of rows g and g + 8: for both halves, bf16

  StepWeights() = default;
  /// From the words that ldmatrix returns for two blocks.
  __device__ __forceinline__ StepWeights(const unsigned (&quants)[4], unsigned scales_g, unsigned scales_g8) : scales{scales_g, scales_g8} {
#pragma unroll
    for (int i = 0; i < 4; ++i) widen_quants(quants[i], halves[i / 2][0][i % 2], halves[i / 2][0][i % 2 + 2]);
  }
  __device__ __forceinline__ float scale(int half, int row) const {
    const float2 both = unpack2<__nv_bfloat16>(scales[row]);
    return half == 0 ? both.x : both.y;
  }
};

/// The product of 16 outputs and 8 rows over halves `first` .. `end` of a step.
template <class W>
__device__ __forceinline__ void multiply_halves(float (&c)[4], const StepWeights<W>& w, const unsigned (&x)[Operand<W>::X_TERMS][4],
                                                int first, int end) {
  using T = typename Operand<W>::Type;
#pragma unroll
  for (int term = Operand<W>::X_TERMS - 1; term >= 0; --term) {
#pragma unroll
    for (int i = Operand<W>::TERMS - 1; i >= 0; --i) {
#pragma unroll
      for (int half = first; half < end; ++half) {
        const unsigned b[2] = {x[term][2 * half], x[term][2 * half + 1]};
        mma_m16n8k16<T>(c, w.halves[half][i], b);
      }
    }
    if (term > 0 && Split<T>::NEXT != 1.0f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] *= Split<T>::NEXT;
    }
  }
}

/// acc += the product of 16 outputs and 8 rows over a step.
template <class W>
__device__ __forceinline__ void multiply_step(float (&acc)[4], const StepWeights<W>& w, const unsigned (&x)[Operand<W>::X_TERMS][4]) {
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  multiply_halves<W>(c, w, x, 0, 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] += c[i];
}
template <>
__device__ __forceinline__ void multiply_step<Q8Line>(float (&acc)[4], const StepWeights<Q8Line>& w, const unsigned (&x)[2][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    multiply_halves<Q8Line>(c, w, x, half, half + 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = __fmaf_rn(c[i], w.scale(half, i / 2), acc[i]);
  }
}

/// The outputs of a tile's lines g and g + 8: `first` + g and `second` + g.
struct TileOuts {
  int first, second;

  /// Sixteen in a row; with head_dim > 0, eight in a row of a head's first half and their partners in its second.
  __device__ __forceinline__ explicit TileOuts(int tile, int head_dim = 0) : first(tile * TILE), second(first + TILE / 2) {
    if (head_dim == 0) return;
    const int tiles = head_dim / TILE, head = tile / tiles;
    first = head * head_dim + (tile - head * tiles) * (TILE / 2);
    second = first + head_dim / 2;
  }
};

/// Turns a product's sum into its output: undoes the powers of two, which is exact; then applies the row's norm factor, or 1, and the
/// bias. The constructor loads what is needed from memory. -0 adds nothing.
struct FinishOne {
  float scale, bias;

  FinishOne() = default;
  __device__ __forceinline__ FinishOne(const MatrixJob& job, int out)
      : scale(job.scales ? job.scales[out] : 1.0f), bias(job.bias ? job.bias[out] : -0.0f) {}
  template <class W>
  __device__ __forceinline__ float of(float sum, float factor) const {
    return __fmul_rn(sum * Split<typename Operand<W>::Type>::RESTORE * scale, factor) + bias;
  }
};

template <class W>
__device__ __forceinline__ float finish(const MatrixJob& job, int out, float sum, float factor) {
  return FinishOne(job, out).template of<W>(sum, factor);
}

/// Where a pair of queries, keys or values goes, and the angle by which queries and keys are rotated. The constructor loads what is
/// needed from memory.
struct PairPlace {
  CachePlace place;
  int number, head, first, second;  // elements of the head
  bool there;
  float cos, sin;
  float* y;  // for queries, the head's

  PairPlace() = default;
  /// For outputs `first_out` and `second_out` of job `number`.
  __device__ __forceinline__ PairPlace(const RopeTarget& to, const MatrixJob& job, int job_number, int row, int first_out,
                                       int second_out)
      : place(to, row), number(job_number), head(first_out / to.head_dim), first(first_out - head * to.head_dim),
        second(second_out - head * to.head_dim), there(first_out < job.outs && place.exists()),
        y(job.y + (size_t)row * job.outs + head * to.head_dim) {
    if (there && number < 2) cos = to.cos[place.angle(to, first)], sin = to.sin[place.angle(to, first)];
  }

  /// PRECOND: `there`.
  __device__ __forceinline__ void put(const RopeTarget& to, const Rotated& sums) const {
    if (number == 2) {
      place.store_value(to, head, first, sums.first), place.store_value(to, head, second, sums.second);
      return;
    }
    const Rotated x = rotate(sums.first, sums.second, cos, sin, number == 0 ? to.query_scale : 1.0f);
    if (number == 1) {
      place.store_key(to, head, first, x.first), place.store_key(to, head, second, x.second);
    } else {
      y[first] = x.first, y[second] = x.second;
    }
  }
};

/// Splits a row into terms for weights of type W; with NORM, returns the sum of this warp's squares. Of every eight steps of the warp's
/// lines, lane 4g + t handles its elements of step g; `store(first, terms)` receives a step that starts at element `first`. AT_ONCE
/// times eight steps are loaded together.
template <class W, bool NORM, int AT_ONCE, class Store>
__device__ __forceinline__ float split_steps(const float* x, const float* norm_weight, float norm_offset, int width,
                                             const Store& store) {
  constexpr int LINE = Line<W>::ELEMENTS, STEPS = LINE / STEP, LINES = 8 / STEPS * WARPS;  // LINES: over all warps, with eight steps each
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, own = t * Line<W>::TOGETHER;
  float squares = 0.0f;
#pragma unroll 1
  for (int line = warp; line * LINE < width; line += AT_ONCE * LINES) {
    float in[AT_ONCE][8], weight[NORM ? AT_ONCE : 1][8];
    const auto first = [&](int i) { return (line + i * LINES + g / STEPS * WARPS) * LINE + g % STEPS * STEP; };
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      load_step<W>(in[i], x + first(i) + own, width - first(i));
      if constexpr (NORM) load_step<W>(weight[i], norm_weight + first(i) + own, width - first(i));
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if constexpr (NORM) {
        const float of_step = sum_squares(in[i]);
#pragma unroll
        for (int step = 0; step < 8; ++step) squares += __shfl_sync(FULL_WARP, of_step, 4 * step + t);
#pragma unroll
        for (int j = 0; j < 8; ++j) in[i][j] = __fmul_rn(in[i][j], weight[i][j] + norm_offset);
      }
      unsigned terms[Operand<W>::X_TERMS][4];
      split<typename Operand<W>::Type>(in[i], terms);
      store(first(i), terms);
    }
  }
  if constexpr (NORM) squares = warp_reduce<Sum, 4>(squares);
  return squares;
}

}  // namespace gemv
