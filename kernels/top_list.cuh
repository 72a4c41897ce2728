// The best 128 of many (value, id) pairs, in order, by sorting networks: the amount of work does not depend on the values, and
// there are no ties, because a pair is one 64-bit key.
#pragma once
#include "common.cuh"

constexpr int TOP = 128;  // entries of a list

/// Maps a float to an unsigned integer of the same order; NaN below everything, -0 as 0.
__device__ __forceinline__ unsigned ordered(float x) {
  if (x != x) return 0u;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/// Larger value first, ties by lower id. 0 is no entry; NaN makes none.
__device__ __forceinline__ unsigned long long top_key(float x, int id) {
  return x == x ? (unsigned long long)ordered(x) << 32 | (0xffffffffu - (unsigned)id) : 0ull;
}
__device__ __forceinline__ int key_id(unsigned long long key) { return (int)(0xffffffffu - (unsigned)key); }
__device__ __forceinline__ float key_value(unsigned long long key) { return from_ordered((unsigned)(key >> 32)); }

/// Compares keys `stride` apart in `runs` runs of TOP keys, `spacing` runs apart, and puts the larger one first, or
/// last if bit `size` of the index within the run is set. Up to a stride of 32, a warp's pairs are the same 64 keys.
__device__ __forceinline__ void compare_step(unsigned long long* keys, int runs, int spacing, int size, int stride) {
#pragma unroll 1
  for (int i = threadIdx.x; i < runs * (TOP / 2); i += blockDim.x) {
    const int pair = i % (TOP / 2), place = (pair & ~(stride - 1)) * 2 + (pair & (stride - 1));
    unsigned long long* first = keys + (size_t)(i / (TOP / 2)) * spacing * TOP + place;
    const unsigned long long a = first[0], b = first[stride];
    if (a < b ? (place & size) == 0 : (place & size) != 0) first[0] = b, first[stride] = a;
  }
}

/// Runs the steps with strides from `stride` <= 32 down. Ends with a block barrier.
__device__ __forceinline__ void compare_within_warps(unsigned long long* keys, int runs, int spacing, int size, int stride) {
#pragma unroll 1
  for (; stride > 0; stride /= 2) {
    compare_step(keys, runs, spacing, size, stride);
    __syncwarp();  // the next step's keys are this warp's
  }
  __syncthreads();
}

/// Sorts each of `runs` runs of TOP keys, largest first (bitonic). PRECOND: all threads; keys are visible to all.
__device__ __forceinline__ void sort_runs(unsigned long long* keys, int runs) {
#pragma unroll 1
  for (int size = 2; size <= TOP; size *= 2) {
    if (size == TOP) {
      compare_step(keys, runs, 1, 0, TOP / 2);
      __syncthreads();
    }
    compare_within_warps(keys, runs, 1, size % TOP, size == TOP ? TOP / 4 : size / 2);
  }
}

/// Leaves the best TOP keys of `runs` sorted runs in the first run, sorted. PRECOND: as sort_runs.
__device__ __forceinline__ void merge_runs(unsigned long long* keys, int runs) {
#pragma unroll 1
  for (int spacing = 1; spacing < runs; spacing *= 2) {
    const int merged = (runs + 2 * spacing - 1) / (2 * spacing);
    // the larger of a[i] and b[TOP - 1 - i] are the best TOP of both, falling, then rising; done together with their first comparison
#pragma unroll 1
    for (int i = threadIdx.x; i < merged * (TOP / 2); i += blockDim.x) {
      const int run = i / (TOP / 2) * 2 * spacing, other = run + spacing, place = i % (TOP / 2);
      if (other >= runs) continue;
      unsigned long long* mine = keys + run * TOP + place;
      const unsigned long long* theirs = keys + other * TOP + TOP / 2 - 1 - place;
      const unsigned long long a = max(mine[0], theirs[TOP / 2]), b = max(mine[TOP / 2], theirs[0]);
      mine[0] = max(a, b), mine[TOP / 2] = min(a, b);
    }
    __syncthreads();
    compare_within_warps(keys, merged, 2 * spacing, 0, TOP / 4);
  }
}
