// 8-bit weights: blocks of sixteen along k, each with its own scale (src/backend/q8.rs), in lines of eight blocks.
#pragma once
#include "common.cuh"

/// Weight i is scales[i / 16] * (quants[i] - 128). A row of a matrix [outs, k] has ceil(k / 128) lines; beyond k are zeros.
struct Q8Line {
  static constexpr int BLOCK = 16, WEIGHTS = 128;
  unsigned char quants[WEIGHTS];
  __nv_bfloat16 scales[WEIGHTS / BLOCK];

  __device__ __forceinline__ static int of_row(int k) { return ceil_div(k, WEIGHTS); }
  __device__ __forceinline__ float weight(int i) const { return to_f32(scales[i / BLOCK]) * (float)(quants[i] - 128); }
};
static_assert(sizeof(Q8Line) == 144, "as the host has it");

/// The four values of a word of quants as two words of f16, exactly: 0x64xx is 1024 + xx.
__device__ __forceinline__ void widen_quants(unsigned quants, unsigned& low, unsigned& high) {
  const auto centered = [](unsigned word) {
    __half2 pair, middle = __floats2half2_rn(1024 + 128, 1024 + 128);
    memcpy(&pair, &word, 4);
    pair = __hsub2(pair, middle);
    memcpy(&word, &pair, 4);
    return word;
  };
  low = centered(__byte_perm(quants, 0x64646464u, 0x4140)), high = centered(__byte_perm(quants, 0x64646464u, 0x4342));
}
