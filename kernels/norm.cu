// RMS norm over rows of f32. A variant for prefill writes the f16 rows that gemm.cu takes.
//
//   rms_norm        (x, weight, offset, eps, width, y, not_finite)       y = norm(x)
//   rms_norm_f16    (x, weight, offset, eps, width, to)                  to = norm(x), one power of two per row
//   add_rms_norm    (x, h, weight, offset, eps, width, factor)           x = factor (x + norm(h)), the post norms of Gemma
//
// norm(x) = x / sqrt(mean square of x + eps) * (offset + weight)
//
//   x, h, y      [rows, width] f32; y may be x
//   weight       [width] f32; offset 0 or 1
//   not_finite   [1] int or null: set to 1 if any row has a mean square that is not finite
//   to           [rows, width], rounded (rounded.cuh)
//
// PRECOND: the norms: grid rows, block 256, dynamic shared memory NAME_shared_bytes; width a multiple of 4.
// PRECOND: all pointers but not_finite aligned to 16 bytes; width below 2^31.
#include "dense.cuh"

namespace rms {

constexpr int THREADS = 256;

__device__ __forceinline__ float sum_squares(float4 v) { return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w); }

/// 1 / rms of a row, from each thread's partial sum of squares. PRECOND: all threads; no other use of shared memory.
__device__ __forceinline__ float row_factor(float squares, int width, float eps, int* not_finite) {
  squares = block_reduce<Sum, THREADS / 32>(squares, reinterpret_cast<float*>(dyn_smem));
  // not finite: neither below infinity nor NaN
  if (not_finite && threadIdx.x == 0 && !(squares < infinity())) *not_finite = 1;
  return norm_factor(squares, width, eps);
}
__device__ __forceinline__ float row_factor(const float4* x, int width, float eps) {
  float squares = 0.0f;
  for (int i = threadIdx.x; i < width / 4; i += THREADS) squares += sum_squares(x[i]);
  return row_factor(squares, width, eps, nullptr);
}

__device__ __forceinline__ float4 normed(float4 x, float factor, float4 weight, float offset) {
  return make_float4(x.x * factor * (offset + weight.x), x.y * factor * (offset + weight.y),
                     x.z * factor * (offset + weight.z), x.w * factor * (offset + weight.w));
}

}  // namespace rms

SHARED_BYTES(rms_norm, rms::THREADS / 32 * 4)
SHARED_BYTES(add_rms_norm, rms::THREADS / 32 * 4)
SHARED_BYTES(rms_norm_f16, rms::THREADS / 32 * 4 * 2)
STARTS_EARLY(rms_norm)
STARTS_EARLY(add_rms_norm)
STARTS_EARLY(rms_norm_f16)

extern "C" __global__ void __launch_bounds__(256)
    rms_norm(const float* x, const float* weight, float offset, float eps, int width, float* y, int* not_finite) {
  let_next_grid_start();
  const float4* from = reinterpret_cast<const float4*>(x + (size_t)blockIdx.x * width);
  const float4* w = reinterpret_cast<const float4*>(weight);
  float4* to = reinterpret_cast<float4*>(y + (size_t)blockIdx.x * width);
  // A block has one short row: a thread issues its first AHEAD loads together, those of the weights, which no kernel writes,
  // before the wait.
  constexpr int AHEAD = 4;
  const int count = width / 4;
  float4 weights[AHEAD], parts[AHEAD];
#pragma unroll
  for (int j = 0; j < AHEAD; ++j) {
    const int i = threadIdx.x + j * rms::THREADS;
    weights[j] = parts[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i < count) weights[j] = w[i];
  }
  wait_for_earlier_grids();
#pragma unroll
  for (int j = 0; j < AHEAD; ++j) {
    const int i = threadIdx.x + j * rms::THREADS;
    if (i < count) parts[j] = from[i];
  }
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < AHEAD; ++j) squares += rms::sum_squares(parts[j]);
  const int rest = threadIdx.x + AHEAD * rms::THREADS;
  for (int i = rest; i < count; i += rms::THREADS) squares += rms::sum_squares(from[i]);
  const float factor = rms::row_factor(squares, width, eps, not_finite);
#pragma unroll
  for (int j = 0; j < AHEAD; ++j) {
    const int i = threadIdx.x + j * rms::THREADS;
    if (i < count) to[i] = rms::normed(parts[j], factor, weights[j], offset);
  }
  for (int i = rest; i < count; i += rms::THREADS) to[i] = rms::normed(from[i], factor, w[i], offset);
}

extern "C" __global__ void __launch_bounds__(256)
    add_rms_norm(float* x, const float* h, const float* weight, float offset, float eps, int width, float factor) {
  start_early();
  const float4* from = reinterpret_cast<const float4*>(h + (size_t)blockIdx.x * width);
  const float4* w = reinterpret_cast<const float4*>(weight);
  float4* to = reinterpret_cast<float4*>(x + (size_t)blockIdx.x * width);
  const float own = rms::row_factor(from, width, eps);
  for (int i = threadIdx.x; i < width / 4; i += rms::THREADS) {
    const float4 add = rms::normed(from[i], own, w[i], offset), old = to[i];
    to[i] = make_float4(factor * (old.x + add.x), factor * (old.y + add.y), factor * (old.z + add.z), factor * (old.w + add.w));
  }
}

// four blocks, so that 512 rows are resident at once on 132 multiprocessors
extern "C" __global__ void __launch_bounds__(256, 4)
    rms_norm_f16(const float* x, const float* weight, float offset, float eps, int width, RoundedRows to) {
  start_early();
  const float4* row = reinterpret_cast<const float4*>(x + (size_t)blockIdx.x * width);
  const float4* w = reinterpret_cast<const float4*>(weight);
  float4 x_kept[KEPT];
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < KEPT; ++j) {
    const int i = threadIdx.x + j * rms::THREADS;
    x_kept[j] = i < width / 4 ? row[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    squares += rms::sum_squares(x_kept[j]);
  }
  for (int i = threadIdx.x + KEPT * rms::THREADS; i < width / 4; i += rms::THREADS) squares += rms::sum_squares(row[i]);
  const float factor = rms::row_factor(squares, width, eps, nullptr);
  float* scratch = reinterpret_cast<float*>(dyn_smem) + rms::THREADS / 32;
  const auto four = [&](int i, int j) { return rms::normed(j < KEPT ? x_kept[j] : row[i], factor, w[i], offset); };
  round_row<rms::THREADS>(four, width, to, scratch);
}
