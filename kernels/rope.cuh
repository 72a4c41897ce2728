// Rotary position embedding and the KV cache, for kernels that hold a row's queries, keys and values: rope.cu, gemv*.cu
// and plain.cu. A query's or key's element i is rotated with element i + head_dim / 2.
#pragma once
#include "common.cuh"

/// Where a layer's queries, keys and values go, and how they are rotated on the way. The host computes angles in f64, for
/// float(position) * inverse_frequency rounded to f32, as Hugging Face rounds (no fast sine here: an angle at position
/// 30000 needs all its bits).
struct RopeTarget {
  const float* cos;  // [positions, head_dim / 2], as many positions as the largest capacity; null: nothing is rotated or cached
  const float* sin;
  const RowState* rows;           // [rows]
  const SequenceView* sequences;  // [slots]
  int layer, kv_heads, head_dim;  // head_dim even, <= 512; kv_heads 0: queries only
  float query_scale;
  int k_type, v_type;  // CacheType
};

/// For keys, F32 means Halves.
enum CacheType { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_BF16 = 2 };

struct Rotated {
  float first, second;
};

/// Rotates a pair by its angle, then scales it. No product is fused with a sum, so all kernels produce the same bits.
__device__ __forceinline__ Rotated rotate(float first, float second, float cos, float sin, float scale) {
  return {__fmul_rn(__fmul_rn(first, cos) - __fmul_rn(second, sin), scale),
          __fmul_rn(__fmul_rn(second, cos) + __fmul_rn(first, sin), scale)};
}

/// One row's place in its cache.
struct CachePlace {
  const SequenceView* sequence;
  int position;

  CachePlace() = default;
  __device__ __forceinline__ CachePlace(const RopeTarget& to, int row)
      : sequence(to.sequences + to.rows[row].slot), position(to.rows[row].position) {}

  /// False if a decode step is replayed after its sequence has ended: it must not write to another sequence's memory.
  __device__ __forceinline__ bool exists() const { return (unsigned)position < sequence->capacity; }

  __device__ __forceinline__ size_t angle(const RopeTarget& to, int i) const {
    return (size_t)position * (to.head_dim / 2) + i;
  }

  /// The first element of the head.
  __device__ __forceinline__ size_t head(const RopeTarget& to, int kv_head) const {
    return (((size_t)to.layer * to.kv_heads + kv_head) * sequence->capacity + position) * to.head_dim;
  }

  /// Element i of a key.
  __device__ __forceinline__ void store_key(const RopeTarget& to, int kv_head, int i, float x) const {
    const size_t at = head(to, kv_head);
    if (to.k_type != CACHE_F32) return store(sequence->k, at + i, x, to.k_type);
    __half* high = static_cast<__half*>(sequence->k) + 2 * at + i;
    split_halves(x, high[0], high[to.head_dim]);
  }

  /// Element i of a value.
  __device__ __forceinline__ void store_value(const RopeTarget& to, int kv_head, int i, float x) const {
    store(sequence->v, head(to, kv_head) + i, x, to.v_type);
  }

 private:
  __device__ __forceinline__ static void store(void* cache, size_t at, float x, int type) {
    if (type == CACHE_F32)
      static_cast<float*>(cache)[at] = x;
    else if (type == CACHE_F16)
      static_cast<__half*>(cache)[at] = from_f32<__half>(x);
    else
      static_cast<__nv_bfloat16*>(cache)[at] = from_f32<__nv_bfloat16>(x);
  }
};
