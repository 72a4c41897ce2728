// Residual stream at the start of a pass: x[r] = embedding[token of row r] * scale.
//
//   embed_{f16,f32}  (embedding, scales, rows, x, width, vocab, scale)
//
//   embedding  [vocab, width] of the type; scales [vocab] its rows' powers of two, or null: 1
//   rows       [rows] RowState; x [rows, width] f32; scale 1, for Gemma sqrt(hidden_size)
//   A token outside the vocabulary produces NaN, which the final norm reports, never an out-of-bounds access.
//
// PRECOND: grid (ceil(width / 2048), rows), block 256, no shared memory; width a multiple of 8.
// PRECOND: pointers aligned to 16 bytes.
#include "dense.cuh"

namespace embed {

template <class T>
__device__ __forceinline__ void gather(const T* __restrict__ embedding, const float* __restrict__ scales,
                                       const RowState* __restrict__ rows, float* __restrict__ x, int width, int vocab,
                                       float scale) {
  PRECOND_GRID(ceil_div(width, 2048), ANY_GRID);
  const int at = 8 * (blockIdx.x * 256 + threadIdx.x);
  if (at >= width) return;
  const int token = rows[blockIdx.y].token;
  float* to = x + (size_t)blockIdx.y * width + at;
  const bool known = token >= 0 && token < vocab;
  const float row_scale = known && scales ? scales[token] : 1.0f;
#pragma unroll
  for (int part = 0; part < 8; part += VEC<T>) {
    float values[VEC<T>];
    if (known) {
      load_vec(embedding + (size_t)token * width + at + part, values);
    } else {
#pragma unroll
      for (int i = 0; i < VEC<T>; ++i) values[i] = infinity() - infinity();
    }
#pragma unroll
    for (int i = 0; i < VEC<T>; i += 4) {
      float four[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = values[i + j] * row_scale * scale;  // the first product is exact
      store_vec(to + part + i, four);
    }
  }
}

}  // namespace embed

#define EMBED_KERNEL(name, T)                                                                                   \
  SHARED_BYTES(embed_##name, 0)                                                                                 \
  extern "C" __global__ void __launch_bounds__(256) embed_##name(const T* embedding, const float* scales,       \
                                                                 const RowState* rows, float* x, int width,     \
                                                                 int vocab, float scale) {                      \
    embed::gather(embedding, scales, rows, x, width, vocab, scale);                                             \
  }
EMBED_KERNEL(f16, __half)
EMBED_KERNEL(f32, float)
#undef EMBED_KERNEL
