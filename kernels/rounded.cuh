// float32 as one f16 value, with a power of two for every 32 neighbours of a row: what tensor cores multiply in wide products. As the
// tensor cores sum 32 elements at a time, the power multiplies those sums.
//
// The largest of the values that share a power is scaled into 2^14 .. 2^15 (scale_to_f16): a value is then accurate to 2^-11 of itself or
// 2^-39 of the largest, and one with 8 bits (bf16) exact down to 2^-31 of the largest.
#pragma once
#include "common.cuh"

/// Neighbours that share a power of two.
constexpr int SHARING = 32;

/// Number of powers of two stored for a row of this width: even, so that they can be read in pairs.
__host__ __device__ constexpr int row_scales(int width) { return 2 * ceil_div(width, 2 * SHARING); }

/// x[r, i] = values[r, i] * scales[r, i / SHARING]; scales beyond a row's last element are not read.
struct RoundedRows {
  __half* values;  // [rows, width]
  float* scales;   // [rows, row_scales(width)]
};

/// The largest absolute value; NaN is ignored here, and stays NaN when rounded.
__device__ __forceinline__ float max_abs(float2 x) { return fmaxf(fabsf(x.x), fabsf(x.y)); }
__device__ __forceinline__ float max_abs(float4 x) { return fmaxf(max_abs(make_float2(x.x, x.y)), max_abs(make_float2(x.z, x.w))); }

/// Rounds a lane's TILES pairs of a row of this width, 8 apart: elements `at`, `at` + 1, and so on; four neighbouring lanes together hold
/// 8 TILES elements. `max`: over all that share the power. PRECOND: `at` and the width are even, 8 TILES at most SHARING.
template <int TILES>
__device__ __forceinline__ void store_rounded(const RoundedRows& to, size_t row, int width, int at, const float2 (&x)[TILES],
                                              float max) {
  const PowerOfTwo power = scale_to_f16(max);
  __half* values = to.values + row * width + at;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
    if (at + 8 * tile < width)
      *reinterpret_cast<unsigned*>(values + 8 * tile) = pack2<__half>(x[tile].x * power.scale, x[tile].y * power.scale);
  if (at < width && at % SHARING == 0) to.scales[row * row_scales(width) + at / SHARING] = power.inverse;
}

/// Four-element vectors of a row that a thread of round_row keeps in registers.
constexpr int KEPT = 4;

/// Rounds row blockIdx.x, whose elements 4i .. 4i + 3 are `four(i, j)`, with one power for the whole row: also for users that multiply
/// whole rows. A thread calls `four` once for the vectors it keeps, with j below KEPT, and twice for the rest, with j = KEPT.
/// PRECOND: all THREADS threads of the block; `scratch` holds a float per warp, for block_reduce; width a multiple of 4.
template <int THREADS, class Four>
__device__ __forceinline__ void round_row(const Four& four, int width, const RoundedRows& to, float* scratch) {
  float4 kept[KEPT];
  float max = 0.0f;
  const int end = width / 4;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = threadIdx.x + j * THREADS;
    kept[j] = i < end ? four(i, j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    max = fmaxf(max, max_abs(kept[j]));
  }
  for (int i = threadIdx.x + KEPT * THREADS; i < end; i += THREADS) max = fmaxf(max, max_abs(four(i, KEPT)));
  const PowerOfTwo power = scale_to_f16(block_reduce<Max>(max, scratch));
  __half* values = to.values + (size_t)blockIdx.x * width;
  const auto store = [&](int i, float4 x) {
    *reinterpret_cast<uint2*>(values + 4 * i) = make_uint2(pack2<__half>(x.x * power.scale, x.y * power.scale),
                                                           pack2<__half>(x.z * power.scale, x.w * power.scale));
  };
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = threadIdx.x + j * THREADS;
    if (i < end) store(i, kept[j]);
  }
  for (int i = threadIdx.x + KEPT * THREADS; i < end; i += THREADS) store(i, four(i, KEPT));
  for (int i = threadIdx.x; i < row_scales(width); i += THREADS)
    to.scales[(size_t)blockIdx.x * row_scales(width) + i] = power.inverse;
}
