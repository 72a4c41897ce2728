// What the dense kernels share: activations, and the splitting of float32 into 16-bit terms for the tensor cores.
#pragma once
#include "common.cuh"

/// One matrix of a launch of gemv.cu or gemm.cu: y[r, o] (+)= scales[o] * sum over k of x[r, k] w[o, k] (+ bias[o]).
struct MatrixJob {
  const void* w;        // [outs, k]
  const float* scales;  // [outs] powers of two; null: 1
  const float* bias;    // [outs] or null
  float* y;             // [rows, outs]
  int outs;             // 0: there is no such job
};
/// Up to three matrices of one launch, their blocks of outputs one after the other.
struct MatrixJobs {
  MatrixJob job[3];

  /// The number of the job that output block `block` is of; `block` is then counted from the job's first.
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

/// The gate's activation; the values are the kernels' `activation` parameter.
enum Activation { SILU = 0, GELU_TANH = 1 };

// Where kernels must agree bit for bit (gemv's for 8 and for 16 rows), no product is left to the compiler to fuse with a
// sum or not: __fmul_rn is never fused, __fmaf_rn always is.
__device__ __forceinline__ float activate(float x, int activation) {
  if (activation == SILU) return x / (1.0f + expf(-x));
  const float cubic = __fmul_rn(__fmul_rn(0.044715f, x), __fmul_rn(x, x));
  return __fmul_rn(__fmul_rn(0.5f, x), 1.0f + tanhf(__fmul_rn(0.7978845608f, x + cubic)));
}

/// What makes results of the sums of two neighbouring outputs. The powers of two are exact; -0 adds nothing.
struct Finish {
  float2 scale = make_float2(1.0f, 1.0f), bias = make_float2(-0.0f, -0.0f);

  Finish() = default;
  __device__ __forceinline__ Finish(const MatrixJob& job, int out, bool there) {
    // no branch, so that the loads of many are in flight together
    if (there & (job.scales != nullptr)) scale = *reinterpret_cast<const float2*>(job.scales + out);
    if (there & (job.bias != nullptr)) bias = *reinterpret_cast<const float2*>(job.bias + out);
  }
  __device__ __forceinline__ float2 operator()(float x, float y, float x_scale) const {
    return make_float2(x * x_scale * scale.x + bias.x, y * x_scale * scale.y + bias.y);
  }
};

/// Writes TILES tiles of 16 rows x 8 outputs of a wide product, beside each other, as far as there are such rows and outputs. A lane
/// has two neighbouring outputs of two rows, `row` and row + 8, in each tile, from `out` on: `sums(tile, i)` are output i % 2 of
/// row i / 2; with GATED they are of the gate, and `up_sums` of up. `mode`: accumulate, or the activation. What some tiles
/// need from memory is asked for together: a load for each number, one after the other, would take longer than the product.
template <bool GATED, int TILES, class Sums, class UpSums>
__device__ __forceinline__ void store_products(MatrixJob job, MatrixJob up, const float* x_scales, int row,
                                               int out, int n, int mode, const Sums& sums, const UpSums& up_sums) {
  constexpr int TOGETHER = TILES < 4 ? TILES : 4;
  float x_scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) x_scale[r] = row + 8 * r < n ? x_scales[row + 8 * r] : 0.0f;
#pragma unroll
  for (int first = 0; first < TILES; first += TOGETHER) {
    Finish finish[TOGETHER], finish_up[TOGETHER];
    float2 before[TOGETHER][2];
    const auto place = [&](int tile, int r) {
      return reinterpret_cast<float2*>(job.y + (size_t)(row + 8 * r) * job.outs + out + (first + tile) * 8);
    };
    const auto there = [&](int tile, int r) { return (out + (first + tile) * 8 < job.outs) & (row + 8 * r < n); };
#pragma unroll
    for (int tile = 0; tile < TOGETHER; ++tile) {
      finish[tile] = Finish(job, out + (first + tile) * 8, there(tile, 0));
      if (GATED) finish_up[tile] = Finish(up, out + (first + tile) * 8, there(tile, 0));
#pragma unroll
      for (int r = 0; r < 2; ++r)
        before[tile][r] = !GATED & (mode != 0) & there(tile, r) ? *place(tile, r) : make_float2(-0.0f, -0.0f);
    }
#pragma unroll
    for (int i = 0; i < 2 * TOGETHER; ++i) {
      const int tile = i / 2, r = i % 2;
      float2 result = finish[tile](sums(first + tile, 2 * r), sums(first + tile, 2 * r + 1), x_scale[r]);
      if constexpr (GATED) {
        const float2 factor = finish_up[tile](up_sums(first + tile, 2 * r), up_sums(first + tile, 2 * r + 1), x_scale[r]);
        result = make_float2(activate(result.x, mode) * factor.x, activate(result.y, mode) * factor.y);
      } else {
        result = make_float2(before[tile][r].x + result.x, before[tile][r].y + result.y);
      }
      if (there(tile, r)) *place(tile, r) = result;
    }
  }
}

/// 1 / sqrt(mean square + eps), the factor of RMS norm.
__device__ __forceinline__ float norm_factor(float sum_of_squares, int width, float eps) {
  return 1.0f / sqrtf(sum_of_squares / (float)width + eps);
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
// term to the first with a multiplication by NEXT between (exact: powers of two).
//
// bf16 has float32's range: NEXT = RESTORE = 1.
// f16 has a narrow one. Each rest is scaled up by 2^11 before it is rounded, which keeps it out of the subnormals, and
// x itself is scaled down by 2^6 first, so that |x| up to 4e6 does not overflow; beyond, the result is not finite.

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

/// Writes one term of two values, rounded to nearest, as a word, and leaves in `low` and `high` what the next terms have to
/// give. PRECOND: the values have been multiplied by 1 / RESTORE.
template <class T>
__device__ __forceinline__ unsigned take_term(float& low, float& high) {
  const unsigned word = pack2<T>(low, high);
  const float2 taken = unpack2<T>(word);
  low = (low - taken.x) * (1.0f / Split<T>::NEXT);
  high = (high - taken.y) * (1.0f / Split<T>::NEXT);
  return word;
}

/// As take_term<__nv_bfloat16>, truncating: cheaper, and three terms give x exactly.
__device__ __forceinline__ unsigned take_truncated_bf16(float& low, float& high) {
  const unsigned word = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);  // the upper halves
  low -= __uint_as_float(__float_as_uint(low) & 0xffff0000u);
  high -= __uint_as_float(__float_as_uint(high) & 0xffff0000u);
  return word;
}

/// Terms of eight floats: three in bf16 are exact, two in f16 hold x to 2^-22 of its size (or an absolute 2^-30).
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

// ---- float32 as one f16 number and a power of two for each row -------------------------------------------------------

// A row's largest number is brought into 2^14 .. 2^15 (scale_to_f16): then a number is held to 2^-11 of itself or 2^-39 of
// the largest, and one of 8 bits (bf16) exactly down to 2^-31 of that.

/// The largest absolute value of four; NaN counts as nothing, and stays NaN when it is rounded.
__device__ __forceinline__ float max_abs(float4 x) {
  return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

/// Rounds a row of which `four(i)` gives elements 4i .. 4i + 3: x = *scale * to. Up to 32 elements a thread are
/// asked for once, and kept; the rest twice.
/// PRECOND: all THREADS threads of the block; `scratch` holds a float a warp, as block_reduce wants it; width a multiple of 4.
template <int THREADS, class Four>
__device__ __forceinline__ void round_row(const Four& four, int width, __half* to, float* scale, float* scratch) {
  constexpr int KEPT = 8;
  float4 kept[KEPT];
  float max = 0.0f;
  const int end = width / 4;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = threadIdx.x + j * THREADS;
    kept[j] = i < end ? four(i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    max = fmaxf(max, max_abs(kept[j]));
  }
  for (int i = threadIdx.x + KEPT * THREADS; i < end; i += THREADS) max = fmaxf(max, max_abs(four(i)));
  const PowerOfTwo power = scale_to_f16(block_reduce<Max>(max, scratch));
  const auto store = [&](int i, float4 x) {
    *reinterpret_cast<uint2*>(to + 4 * i) = make_uint2(pack2<__half>(x.x * power.scale, x.y * power.scale),
                                                       pack2<__half>(x.z * power.scale, x.w * power.scale));
  };
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = threadIdx.x + j * THREADS;
    if (i < end) store(i, kept[j]);
  }
  for (int i = threadIdx.x + KEPT * THREADS; i < end; i += THREADS) store(i, four(i));
  if (threadIdx.x == 0) *scale = power.inverse;
}
