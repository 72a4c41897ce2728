// Parts shared by gemv.cu and gemv_wide.cu: products of two 16-bit terms of the activations, in the same bits, and where they go.
//
// The order of a sum: k is cut into lines of 128 bytes of weights. Of those, each of eight warps takes every eighth, and adds
// up its steps of 32 elements one after the other; the warps' sums are added in order.
#pragma once
#include "dense.cuh"
#include "rope.cuh"

namespace gemv {

constexpr int WARPS = 8;
constexpr int TILE = 16;         // outputs of one mma
constexpr int LINE_BYTES = 128;  // of a row of weights that a warp takes at once
constexpr int STEP = 32;         // elements of k that it multiplies at once: 8 a lane

/// Weights of type W on the tensor cores: their terms, those of the activations, and the element type.
template <class W>
struct Operand {
  static constexpr int TERMS = 1, X_TERMS = 2;
  using Type = W;
};
template <>
struct Operand<float> {
  static constexpr int TERMS = 3, X_TERMS = 3;
  using Type = __nv_bfloat16;
};

/// A lane's elements 2t, 2t + 1 of every 8 of a step, of a row of activations or of the norm weights. `left`: elements of k
/// from the step on; zeros beyond.
__device__ __forceinline__ void load_step(float (&to)[8], const float* from, int left) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 pair = make_float2(0.0f, 0.0f);
    if (8 * i < left) pair = *reinterpret_cast<const float2*>(from + 8 * i);
    to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
  }
}

/// acc += the product of 16 outputs and 8 rows over a step.
template <class W>
__device__ __forceinline__ void multiply_step(float (&acc)[4], const unsigned (&w)[2][Operand<W>::TERMS][4],
                                              const unsigned (&x)[Operand<W>::X_TERMS][4]) {
  using T = typename Operand<W>::Type;
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int term = Operand<W>::X_TERMS - 1; term >= 0; --term) {
#pragma unroll
    for (int i = Operand<W>::TERMS - 1; i >= 0; --i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned b[2] = {x[term][2 * half], x[term][2 * half + 1]};
        mma_m16n8k16<T>(c, w[half][i], b);
      }
    }
    if (term > 0 && Split<T>::NEXT != 1.0f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] *= Split<T>::NEXT;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] += c[i];
}

/// Where a tile's lines g and g + 8 are: at outputs `first` + g and `second` + g.
struct TileOuts {
  int first, second;

  /// Sixteen in a row; with head_dim > 0, eight in a row of a head's first half and their partners in its second.
  __device__ __forceinline__ explicit TileOuts(int tile, int head_dim = 0) : first(tile * TILE), second(first + TILE / 2) {
    if (head_dim == 0) return;
    const int tiles = head_dim / TILE, head = tile / tiles;
    first = head * head_dim + (tile - head * tiles) * (TILE / 2);
    second = first + head_dim / 2;
  }
};

/// The output of a product's sum: powers of two are taken back, which is exact; then the row's factor of a norm, or 1, and the bias.
template <class W>
__device__ __forceinline__ float finish(const MatrixJob& job, int out, float sum, float factor) {
  sum *= Split<typename Operand<W>::Type>::RESTORE;
  if (job.scales) sum *= job.scales[out];
  sum = __fmul_rn(sum, factor);
  return job.bias ? sum + job.bias[out] : sum;
}

/// Puts the pair of queries, keys or values that begins with output `out` where it goes. `pair()` is it; what is needed from
/// memory is prefetched before.
template <class Pair>
__device__ __forceinline__ void put_pair(const RopeTarget& to, const MatrixJob& job, int number, int row, int out,
                                         const Pair& pair) {
  const CachePlace place(to, row);
  if (!place.exists()) return;
  const int head = out / to.head_dim, i = out - head * to.head_dim, partner = to.head_dim / 2;
  if (number == 2) {
    const Rotated x = pair();
    place.store_value(to, head, i, x.first), place.store_value(to, head, i + TILE / 2, x.second);
    return;
  }
  const float cos = to.cos[place.angle(to, i)], sin = to.sin[place.angle(to, i)];
  const Rotated sums = pair(), x = rotate(sums.first, sums.second, cos, sin, number == 0 ? to.query_scale : 1.0f);
  if (number == 1) {
    place.store_key(to, head, i, x.first), place.store_key(to, head, i + partner, x.second);
  } else {
    float* y = job.y + (size_t)row * job.outs + out;
    y[0] = x.first, y[partner] = x.second;
  }
}

}  // namespace gemv
