// Shared by the dense kernels: activations, and the splitting of float32 into 16-bit terms for the tensor cores.
#pragma once
#include "rounded.cuh"

/// One matrix of a launch of gemv.cu or gemm.cu: y[r, o] (+)= scales[o] * sum over k of x[r, k] w[o, k] (+ bias[o]).
struct MatrixJob {
  const void* w;        // [outs, k]
  const float* scales;  // [outs] powers of two; null: 1
  const float* bias;    // [outs] or null
  float* y;             // [rows, outs]
  int outs;             // 0: no such job
  RoundedRows rounded;  // for a gate in gemm.cu: destination of its products with up instead of y, if not null
};
/// Up to three matrices of one launch, their output blocks one after the other.
struct MatrixJobs {
  MatrixJob job[3];

  /// The number of the job that output block `block` belongs to; rebases `block` to the job's first.
  __device__ __forceinline__ int number(int& block, int outs_a_block) const {
    int number = 0;
#pragma unroll
    for (int i = 1; i < 3; ++i) {
      const int before = ceil_div(job[i - 1].outs, outs_a_block);
      if (number == i - 1 && block >= before && job[i].outs > 0) {
        block -= before;
        number = i;
      }
    }
    return number;
  }
  /// A job, in registers.
  __device__ __forceinline__ MatrixJob get(int number) const { return number == 0 ? job[0] : number == 1 ? job[1] : job[2]; }
  __device__ __forceinline__ MatrixJob find(int& block, int outs_a_block) const { return get(number(block, outs_a_block)); }
  __host__ __device__ constexpr int blocks(int outs_a_block) const {
    return ceil_div(job[0].outs, outs_a_block) + ceil_div(job[1].outs, outs_a_block) +
           ceil_div(job[2].outs, outs_a_block);
  }
};

/// The gate's activation; the values are those of the kernels' `activation` parameter.
enum Activation { SILU = 0, GELU_TANH = 1 };

// Where kernels must be bit-identical (gemv's for 8 and for 16 rows), fusing a product with a sum is not left to the
// compiler: __fmul_rn is never fused, __fmaf_rn always is.
__device__ __forceinline__ float activate(float x, int activation) {
  if (activation == SILU) return x / (1.0f + expf(-x));
  const float cubic = __fmul_rn(__fmul_rn(0.044715f, x), __fmul_rn(x, x));
  return __fmul_rn(__fmul_rn(0.5f, x), 1.0f + tanhf(__fmul_rn(0.7978845608f, x + cubic)));
}

/// Turns the sums of two neighbouring outputs into results. The powers of two are exact; -0 adds nothing.
struct Finish {
  float2 scale = make_float2(1.0f, 1.0f), bias = make_float2(-0.0f, -0.0f);

  Finish() = default;
  __device__ __forceinline__ Finish(const MatrixJob& job, int out, bool there) {
    // no branch, so that many loads are in flight together
    if (there & (job.scales != nullptr)) scale = *reinterpret_cast<const float2*>(job.scales + out);
    if (there & (job.bias != nullptr)) bias = *reinterpret_cast<const float2*>(job.bias + out);
  }
  __device__ __forceinline__ float2 operator()(float x, float y) const {
    return make_float2(x * scale.x + bias.x, y * scale.y + bias.y);
  }
};

/// Writes TILES neighbouring tiles of 16 rows x 8 outputs of a wide product, skipping rows and outputs that do not exist. A lane
/// has two neighbouring outputs of two rows, `row` and row + 8, in each tile, from `out` on: `sums(tile, i)` is output i % 2 of
/// row i / 2; with GATED, of the gate, and `up_sums` of up. `mode`: accumulate, or the activation. The loads of several
/// tiles are issued together: one load per value, one after the other, would take longer than the product.
/// `of_all(max)`: the maxima of both rows' outputs, including those in other warps that share a power of two.
template <bool GATED, int TILES, class Sums, class UpSums, class OfAll>
__device__ __forceinline__ void store_products(const MatrixJob& job, const MatrixJob& up, int row, int out, int n, int mode,
                                               const Sums& sums, const UpSums& up_sums, const OfAll& of_all) {
  constexpr int TOGETHER = TILES < 4 ? TILES : 4;
#pragma unroll
  for (int first = 0; first < TILES; first += TOGETHER) {
    const int at = out + first * 8;
    Finish finish[TOGETHER], finish_up[TOGETHER];
    float2 before[TOGETHER][2], results[2][TOGETHER];
    const auto place = [&](int tile, int r) {
      return reinterpret_cast<float2*>(job.y + (size_t)(row + 8 * r) * job.outs + at + tile * 8);
    };
    const auto there = [&](int tile, int r) { return (at + tile * 8 < job.outs) & (row + 8 * r < n); };
#pragma unroll
    for (int tile = 0; tile < TOGETHER; ++tile) {
      finish[tile] = Finish(job, at + tile * 8, there(tile, 0));
      if (GATED) finish_up[tile] = Finish(up, at + tile * 8, there(tile, 0));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        before[tile][r] = !GATED & (mode != 0) & there(tile, r) ? *place(tile, r) : make_float2(-0.0f, -0.0f);
    }
#pragma unroll
    for (int i = 0; i < 2 * TOGETHER; ++i) {
      const int tile = i / 2, r = i % 2;
      float2& result = results[r][tile];
      result = finish[tile](sums(first + tile, 2 * r), sums(first + tile, 2 * r + 1));
      if constexpr (GATED) {
        const float2 factor = finish_up[tile](up_sums(first + tile, 2 * r), up_sums(first + tile, 2 * r + 1));
        result = make_float2(activate(result.x, mode) * factor.x, activate(result.y, mode) * factor.y);
      } else {
        result = make_float2(before[tile][r].x + result.x, before[tile][r].y + result.y);
      }
    }
    if (GATED && job.rounded.values) {
      float2 max = make_float2(0.0f, 0.0f);  // per row
#pragma unroll
      for (int tile = 0; tile < TOGETHER; ++tile)
        max = make_float2(fmaxf(max.x, max_abs(results[0][tile])), fmaxf(max.y, max_abs(results[1][tile])));
      max = of_all(make_float2(warp_reduce<Max, 4>(max.x), warp_reduce<Max, 4>(max.y)));
      if (row < n) store_rounded(job.rounded, row, job.outs, at, results[0], max.x);
      if (row + 8 < n) store_rounded(job.rounded, row + 8, job.outs, at, results[1], max.y);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * TOGETHER; ++i)
        if (there(i / 2, i % 2)) *place(i / 2, i % 2) = results[i % 2][i / 2];
    }
  }
}

/// 1 / sqrt(mean square + eps), the factor of RMS norm; 1 (no norm) if eps is negative.
__device__ __forceinline__ float norm_factor(float sum_of_squares, int width, float eps) {
  return eps < 0.0f ? 1.0f : 1.0f / sqrtf(sum_of_squares / (float)width + eps);
}

/// Sum of eight squares, pairwise.
__device__ __forceinline__ float sum_squares(const float (&x)[8]) {
  float pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __fmaf_rn(x[2 * i], x[2 * i], __fmul_rn(x[2 * i + 1], x[2 * i + 1]));
  return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
}

// ---- float32 as a sum of 16-bit terms -------------------------------------------------------------------------------
//
// x = RESTORE * (term[0] + NEXT * (term[1] + NEXT * (term[2] + ...))), so a product over terms is summed from the last
// term to the first, multiplying by NEXT in between (exact: powers of two).
//
// bf16 has float32's range: NEXT = RESTORE = 1.
// f16 has a narrow one. Each remainder is scaled up by 2^11 before it is rounded, which keeps it out of the subnormals, and
// x itself is first scaled down by 2^6, so that |x| up to 4e6 does not overflow; beyond that, the result is not finite.

template <class T>
struct Split;
template <>
struct Split<__nv_bfloat16> {
  static constexpr float NEXT = 1.0f, RESTORE = 1.0f;
};
template <>
struct Split<__half> {
  static constexpr float NEXT = 1.0f / 2048.0f, RESTORE = 64.0f;
};

/// Returns one term of two values, rounded to nearest, as a word, and leaves the remainder for the next terms in `low` and
/// `high`. PRECOND: the values have been multiplied by 1 / RESTORE.
template <class T>
__device__ __forceinline__ unsigned take_term(float& low, float& high) {
  const unsigned word = pack2<T>(low, high);
  const float2 taken = unpack2<T>(word);
  low = (low - taken.x) * (1.0f / Split<T>::NEXT);
  high = (high - taken.y) * (1.0f / Split<T>::NEXT);
  return word;
}

/// As take_term<__nv_bfloat16>, but truncating: cheaper, and three terms represent x exactly.
__device__ __forceinline__ unsigned take_truncated_bf16(float& low, float& high) {
  const unsigned word = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);  // the upper halves
  low -= __uint_as_float(__float_as_uint(low) & 0xffff0000u);
  high -= __uint_as_float(__float_as_uint(high) & 0xffff0000u);
  return word;
}

/// Terms of eight floats: three in bf16 are exact, two in f16 hold x to a relative 2^-22 (or an absolute 2^-30).
template <class T, int TERMS>
__device__ __forceinline__ void split(const float (&x)[8], unsigned (&terms)[TERMS][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low = x[2 * i] * (1.0f / Split<T>::RESTORE), high = x[2 * i + 1] * (1.0f / Split<T>::RESTORE);
#pragma unroll
    for (int term = 0; term < TERMS; ++term) {
      if constexpr (Split<T>::NEXT == 1.0f) {
        terms[term][i] = take_truncated_bf16(low, high);
      } else {
        terms[term][i] = take_term<T>(low, high);
      }
    }
  }
}
