// Float32 operands of tensor-core products as sums of 16-bit terms, and how the attention kernels bring them into the
// range where f16 terms are most precise: multiplied by powers of two, which is exact and undone in the sums.
#pragma once
#include "common.cuh"

/// Softmax weights e^{s-m} <= 1 are multiplied by this before they are split into terms.
constexpr float WEIGHT_SCALE = 16384.f;

/// x ~ terms[0] + terms[1] + ..., two values at a time: 22 bits in two f16 terms, all 24 in three bf16 terms.
/// Not finite beyond the type's range, so that an overflow shows.
template <class T, int TERMS>
__device__ __forceinline__ void split(float a, float b, unsigned (&terms)[TERMS]) {
#pragma unroll
  for (int i = 0; i < TERMS; ++i) {
    terms[i] = pack2<T>(a, b);
    const float2 rounded = unpack2<T>(terms[i]);
    a -= rounded.x;
    b -= rounded.y;
  }
}

/// Eight values as terms, 16 bytes each.
template <class T, int TERMS>
__device__ __forceinline__ void split8(const float (&x)[8], uint4 (&terms)[TERMS]) {
  unsigned words[4][TERMS];
#pragma unroll
  for (int i = 0; i < 4; ++i) split<T>(x[2 * i], x[2 * i + 1], words[i]);
#pragma unroll
  for (int i = 0; i < TERMS; ++i) terms[i] = make_uint4(words[0][i], words[1][i], words[2][i], words[3][i]);
}

/// Eight consecutive elements as floats. PRECOND: aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load8(const T* from, float (&x)[8]) {
  if constexpr (sizeof(T) == 4) {
    float low[4], high[4];
    load_vec<T>(from, low);
    load_vec<T>(from + 4, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = low[i];
      x[i + 4] = high[i];
    }
  } else {
    load_vec<T>(from, x);
  }
}
