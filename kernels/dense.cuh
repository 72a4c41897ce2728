// What the dense kernels share: activations, and the splitting of float32 into 16-bit terms for the tensor cores.
#pragma once
#include "common.cuh"

/// One matrix of a launch of gemv.cu: y[r, o] (+)= sum over k of x[r, k] w[o, k] (+ bias[o]).
struct GemvJob {
  const void* w;      // [outs, k]
  const float* bias;  // [outs] or null
  float* y;           // [rows, outs]
  int outs;           // 0: there is no such job
};
struct GemvJobs {
  GemvJob job[3];
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

/// Eight neighbouring floats. PRECOND: `p` is aligned to 16 bytes.
__device__ __forceinline__ void load8(const float* p, float (&out)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
  out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
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

/// Writes one term of two values as a word, and leaves in `low` and `high` what the next terms have to give. Rounded to
/// nearest: two bf16 terms hold x to 2^-16 of its size, two f16 terms to 2^-22 (or an absolute 2^-30).
/// PRECOND: the values have been multiplied by 1 / RESTORE.
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

/// Three terms of eight floats: exact in bf16, to 2^-33 of |x| (or an absolute 2^-41) in f16.
template <class T>
__device__ __forceinline__ void split_three(float (&x)[8], unsigned (&terms)[3][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low = x[2 * i] * (1.0f / Split<T>::RESTORE), high = x[2 * i + 1] * (1.0f / Split<T>::RESTORE);
#pragma unroll
    for (int term = 0; term < 3; ++term) {
      if constexpr (Split<T>::NEXT == 1.0f) {
        terms[term][i] = take_truncated_bf16(low, high);
      } else {
        terms[term][i] = take_term<T>(low, high);
      }
    }
  }
}

/// Writes the terms of four neighbours; a term's elements lie `distance` before the next one's.
template <class T>
__device__ __forceinline__ void store_terms(unsigned short* terms, size_t at, size_t distance, float4 x,
                                            int term_count) {
  constexpr float DOWN = 1.0f / Split<T>::RESTORE;
  x = make_float4(x.x * DOWN, x.y * DOWN, x.z * DOWN, x.w * DOWN);
  for (int term = 0; term < term_count; ++term) {
    const unsigned first = take_term<T>(x.x, x.y), second = take_term<T>(x.z, x.w);
    *reinterpret_cast<uint2*>(terms + term * distance + at) = make_uint2(first, second);
  }
}
