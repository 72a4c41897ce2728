// Residual stream at the start of a pass: x[r] = embedding[token of row r] * scale.
//
//   embed_{bf16,f16,f32}  (embedding, rows, x, width, vocab, scale)
//
//   embedding  [vocab, width] of the type; rows [rows] RowState; x [rows, width] f32; scale 1, Gemma sqrt(hidden_size)
//   A token outside the vocabulary gives NaN, which the final norm reports: never an access out of bounds.
//
// PRECOND: grid (ceil(width / 2048), rows), block 256, no shared memory; width a multiple of 8.
// PRECOND: pointers aligned to 16 bytes.
#include "dense.cuh"

namespace embed {

template <class T>
__device__ __forceinline__ void gather(const T* __restrict__ embedding, const RowState* __restrict__ rows,
                                       float* __restrict__ x, int width, int vocab, float scale) {
  PRECOND_GRID(ceil_div(width, 2048), ANY_GRID);
  const int at = 8 * (blockIdx.x * 256 + threadIdx.x);
  if (at >= width) return;
  const int token = rows[blockIdx.y].token;
  float* to = x + (size_t)blockIdx.y * width + at;
#pragma unroll
  for (int part = 0; part < 8; part += VEC<T>) {
    float values[VEC<T>];
    if (token >= 0 && token < vocab) {
      load_vec(embedding + (size_t)token * width + at + part, values);
    } else {
#pragma unroll
      for (int i = 0; i < VEC<T>; ++i) values[i] = infinity() - infinity();
    }
#pragma unroll
    for (int i = 0; i < VEC<T>; i += 4) {
      const float four[4] = {values[i] * scale, values[i + 1] * scale, values[i + 2] * scale, values[i + 3] * scale};
      store_vec(to + part + i, four);
    }
  }
}

}  // namespace embed

#define EMBED_KERNEL(name, T)                                                                               \
  SHARED_BYTES(embed_##name, 0)                                                                             \
  extern "C" __global__ void __launch_bounds__(256)                                                         \
      embed_##name(const T* embedding, const RowState* rows, float* x, int width, int vocab, float scale) { \
    embed::gather(embedding, rows, x, width, vocab, scale);                                                 \
  }
EMBED_KERNEL(bf16, __nv_bfloat16)
EMBED_KERNEL(f16, __half)
EMBED_KERNEL(f32, float)
#undef EMBED_KERNEL
