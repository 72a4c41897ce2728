// Weights as the other kernels take them.
//
//   narrow_weights  (w, scales, k)     bf16 -> f16 with a power of two for each row, in place
//
//   w       [outs, k] bf16, which becomes f16: old = scales[row] * new, exactly down to 2^-31 of the row's largest number,
//           and to 2^-39 of that below (dense.cuh)
//   scales  [outs] f32
//
// PRECOND: grid outs, block 256, dynamic shared memory NAME_shared_bytes; k a multiple of 8; w aligned to 16 bytes.
#include "dense.cuh"

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
