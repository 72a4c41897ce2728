// Conversion of weights to the forms that the other kernels take.
//
//   narrow_weights    (w, scales, k)   bf16 -> f16 with a power of two for each row, in place
//   pack_q8_{type}    (w, lines, k)    f32, f16 or bf16 -> 8 bits (q8.cuh), as src/backend/q8.rs rounds them, to the bit
//
//   w       [outs, k] bf16, which becomes f16: old = scales[row] * new, exact down to 2^-31 of the row's largest value,
//           and to 2^-39 of that below (rounded.cuh)
//   scales  [outs] f32
//   lines   [outs, ceil(k / 128)]
//
// PRECOND: grid outs, block 256, dynamic shared memory NAME_shared_bytes; k a multiple of 8, for q8 of 16; w, lines aligned to 16 bytes.
#include "dense.cuh"
#include "q8.cuh"

SHARED_BYTES(narrow_weights, 256 / 32 * 4)
extern "C" __global__ void __launch_bounds__(256) narrow_weights(void* w, float* scales, int k) {
  uint4* row = static_cast<uint4*>(w) + (size_t)blockIdx.x * (k / 8);
  float max = 0.0f;
  for (int i = threadIdx.x; i < k / 8; i += 256) {
    float x[8];
    widen<__nv_bfloat16>(row[i], x);
    max = fmaxf(max, fmaxf(max_abs(make_float4(x[0], x[1], x[2], x[3])), max_abs(make_float4(x[4], x[5], x[6], x[7]))));
  }
  const PowerOfTwo power = scale_to_f16(block_reduce<Max>(max, reinterpret_cast<float*>(dyn_smem)));
  for (int i = threadIdx.x; i < k / 8; i += 256) {
    float x[8];
    widen<__nv_bfloat16>(row[i], x);
#pragma unroll
    for (float& element : x) element *= power.scale;
    row[i] = narrow<__half>(x);
  }
  if (threadIdx.x == 0) scales[blockIdx.x] = power.inverse;
}

/// A thread rounds a block of sixteen.
template <class T>
__device__ __forceinline__ void pack_q8(const T* w, Q8Line* lines, int k) {
  constexpr int BLOCK = Q8Line::BLOCK, BLOCKS = Q8Line::WEIGHTS / BLOCK;
  const int of_row = Q8Line::of_row(k);
  w += (size_t)blockIdx.x * k, lines += (size_t)blockIdx.x * of_row;
  for (int block = threadIdx.x; block < of_row * BLOCKS; block += 256) {
    float x[BLOCK] = {};
    if (block * BLOCK < k) {
#pragma unroll
      for (int i = 0; i < BLOCK; ++i) x[i] = to_f32(w[block * BLOCK + i]);
    }
    float max = 0.0f;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) max = fmaxf(max, fabsf(x[i]));
    __nv_bfloat16 scale = from_f32<__nv_bfloat16>(__fdiv_rn(max, 127.0f));
    // round up: scales are not negative
    if (__fmul_rn(to_f32(scale), 127.0f) < max) scale = __ushort_as_bfloat16(__bfloat16_as_ushort(scale) + 1);
    const float inverse = max > 0.0f ? __fdiv_rn(1.0f, to_f32(scale)) : 0.0f;
    unsigned words[BLOCK / 4] = {};
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) words[i / 4] |= (unsigned)(((int)rintf(__fmul_rn(x[i], inverse)) + 128) & 255) << i % 4 * 8;
    Q8Line& line = lines[block / BLOCKS];
    reinterpret_cast<uint4*>(line.quants)[block % BLOCKS] = make_uint4(words[0], words[1], words[2], words[3]);
    line.scales[block % BLOCKS] = scale;
  }
}

#define PACK_KERNEL(name, T)                                                                                         \
  SHARED_BYTES(pack_q8_##name, 0)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256) pack_q8_##name(const T* w, Q8Line* lines, int k) { pack_q8(w, lines, k); }
PACK_KERNEL(f32, float)
PACK_KERNEL(f16, __half)
PACK_KERNEL(bf16, __nv_bfloat16)
#undef PACK_KERNEL
