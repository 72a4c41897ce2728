// A rival of gemv_bf16_r8: y[r, o] (+)= sum over k of x[r, k] w[o, k] (+ bias[o]) for 1..=8 rows and bf16 weights, with
// the same jobs, the same tail and the same arithmetic in float32 (activations as three bf16 terms, exact products, at
// most 32 elements of k summed inside the tensor core), in a third of the instructions per byte of weights.
//
// What differs from gemv.cu:
// - The weights are mma's B operand: the 16 bytes that a lane loads are two B fragments as they are, where an A operand
//   is put together from two rows in about 50 MOVs a step.
// - x is split once, by `lab_fragments_bf16`, not again in every block. Its terms are stored in the order in which lanes
//   hold them as A operands: one 16-byte load is an operand.
// - The terms of all rows are stacked in the 16 M rows of A: 5 rows are one mma, where gemv.cu issues three.
// - A step is 64 elements of k (two full 128-byte lines a pair of rows), the ring's slots are constants of an unrolled
//   loop, and only the last, partial step of k checks bounds.
// In the engine, the kernel that produces x would write the fragments in its epilogue; the lab times them apart.
//
// Bits: each term of each row has accumulators of its own, so a row's result depends neither on the other rows nor on
// which M rows its terms stand in. It differs from gemv.cu's, which adds the terms of 32 elements of k inside the core.
//
// Layout of the fragments. Term e = 3 row + term (term 0 is the leading one) stands in M row e / 2 % 8 + e % 2 * 8 of A
// tile e / 16, so lane 4g + t holds terms 2g and 2g + 1 of each tile. With pair = e / 2, there are
// lanes = 4 ceil(3 rows / 2) uint4 per 16 elements of k:
//   fragments[k / 16][4 pair + t] = {lower(0), upper(0), lower(2), upper(2)}, lower(i) = elements i, i + 1 of term 2 pair
// counted from 32 (k / 32) + 8t + 4 (k / 16 % 2), upper(i) = those of term 2 pair + 1. Zeros beyond k, up to a multiple
// of 64, and in terms that no row has.
//
//   lab_fragments_bf16 (x, fragments, k, rows)                             x [rows, k] f32
//   lab_gemv_bf16_{r5, r8} (fragments, jobs, k, rows, accumulate)           jobs as in gemv.cu
//
// PRECOND: 1 <= rows <= 5 (r5) or 8 (r8); k a multiple of 8; w aligned to 16 bytes; fragments has
//   ceil(k / 64) * 4 * lanes uint4.
// PRECOND: lab_fragments_bf16: block 256, grid x = ceil(ceil(k / 64) * 4 * lanes / 256); no shared memory.
// PRECOND: lab_gemv_bf16_*: block 256, grid x = sum over jobs of ceil(outs / 16); dynamic shared memory 65536 bytes.
#include "../gemv.cu"

namespace lab_gemv {

using gemv::TILE;
using gemv::WARPS;
constexpr int STEP = 64;              // elements of k that a warp takes at once: 16 a lane
constexpr int SPAN = WARPS * STEP;    // what the block takes at once
constexpr int MMAS = STEP / 16;       // groups of 16 elements of k in a step
constexpr int DEPTH = 4;              // slots of the ring
constexpr int LOADS = 4;              // 16-byte loads of weights a step: two rows, two lines' halves
constexpr int WARP_BYTES = DEPTH * LOADS * 32 * 16;

/// Lanes that hold terms, over all A tiles.
__device__ __forceinline__ int fragment_lanes(int rows) { return (3 * rows + 1) / 2 * 4; }

/// One term (0 leading .. 2) of two neighbours, as gemv.cu's split_three forms it.
__device__ __forceinline__ unsigned one_term(float low, float high, int term) {
  unsigned word = take_truncated_bf16(low, high);
  for (int i = 0; i < term; ++i) word = take_truncated_bf16(low, high);
  return word;
}

/// The activations of one step as A operands; tile by tile, group by group.
template <int A_TILES>
struct Operands {
  unsigned a[MMAS][A_TILES][4];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < MMAS * A_TILES * 4; ++i) a[i / (A_TILES * 4)][i / 4 % A_TILES][i % 4] = 0;
  }
  /// `from` is this lane's place in the step's first group. Lanes without terms keep their zeros.
  __device__ __forceinline__ void load(const uint4* __restrict__ from, int lanes) {
#pragma unroll
    for (int group = 0; group < MMAS; ++group) {
#pragma unroll
      for (int tile = 0; tile < A_TILES; ++tile) {
        if ((int)threadIdx.x % 32 + 32 * tile >= lanes) continue;
        const uint4 raw = from[group * lanes + 32 * tile];
        unsigned(&to)[4] = a[group][tile];
        to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w;
      }
    }
  }
};

template <int A_TILES>
using Sums = float[A_TILES][2][4];  // [A tile][8 outputs], as mma outputs them

/// sums += A B over a step. `weights`: rows g (0, 1) and g + 8 (2, 3), elements 8t..8t+7 of each 32.
template <int A_TILES>
__device__ __forceinline__ void multiply_step(Sums<A_TILES>& sums, const Operands<A_TILES>& x,
                                              const uint4 (&weights)[LOADS]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int tile = 0; tile < A_TILES; ++tile) {
#pragma unroll
      for (int outs = 0; outs < 2; ++outs) {
        const uint4& w = weights[2 * outs + half];
        const unsigned first[2] = {w.x, w.y}, second[2] = {w.z, w.w};
        float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_m16n8k16<__nv_bfloat16>(c, x.a[2 * half][tile], first);
        mma_m16n8k16<__nv_bfloat16>(c, x.a[2 * half + 1][tile], second);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][outs][i] += c[i];
      }
    }
  }
}

/// This warp's part of k.
template <int A_TILES>
__device__ __forceinline__ void multiply(Sums<A_TILES>& sums, const uint4* __restrict__ fragments,
                                         const __nv_bfloat16* const (&w)[2], int k, int lanes) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = warp * STEP, steps = max(0, k - begin) / SPAN + (max(0, k - begin) % SPAN >= STEP);
  const __nv_bfloat16* upper = w[0] + begin + lane % 4 * 8;
  const __nv_bfloat16* lower = w[1] + begin + lane % 4 * 8;
  const uint4* x = fragments + (size_t)(begin / 16) * lanes + lane;
  const size_t x_stride = (size_t)(SPAN / 16) * lanes;
  uint4* ring = reinterpret_cast<uint4*>(dyn_smem + warp * WARP_BYTES) + lane;  // a lane reads only what it copied

  const auto fetch = [&](int step, int slot) {
    if (step < steps) {
      uint4* to = ring + slot * LOADS * 32;
      cp_async16(to, upper + step * SPAN);
      cp_async16(to + 32, upper + step * SPAN + 32);
      cp_async16(to + 64, lower + step * SPAN);
      cp_async16(to + 96, lower + step * SPAN + 32);
    }
    cp_commit();
  };
#pragma unroll
  for (int step = 0; step < DEPTH - 1; ++step) fetch(step, step);
  Operands<A_TILES> in, next;
  next.clear();
  if (steps > 0) next.load(x, lanes);
#pragma unroll 1
  for (int first = 0; first < steps; first += DEPTH) {
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) {
      const int step = first + slot;
      if (step >= steps) break;
      in = next;
      x += x_stride;
      if (step + 1 < steps) next.load(x, lanes);
      cp_wait<DEPTH - 2>();
      uint4 weights[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) weights[i] = ring[(slot * LOADS + i) * 32];
      fetch(step + DEPTH - 1, (slot + DEPTH - 1) % DEPTH);  // into the slot that the step before has read
      multiply_step<A_TILES>(sums, in, weights);
    }
  }

  const int left = k - begin - steps * SPAN;  // of a last, partial step; one warp has one
  if (left > 0) {
    uint4 weights[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const __nv_bfloat16* from = (i < 2 ? upper : lower) + (size_t)steps * SPAN + i % 2 * 32;
      weights[i] = make_uint4(0, 0, 0, 0);
      if (i % 2 * 32 + lane % 4 * 8 < left) weights[i] = *reinterpret_cast<const uint4*>(from);
    }
    next.load(fragments + (size_t)(begin + steps * SPAN) / 16 * lanes + lane, lanes);
    multiply_step<A_TILES>(sums, next, weights);
  }
}

/// The warps' sums in shared memory, each in the place of its own ring: [16 A_TILES terms][PITCH]. A warp's lanes have
/// all read their last weights: the mma that takes them is an exchange between all lanes.
template <int A_TILES>
struct Merge {
  static constexpr int PITCH = TILE + 2, WARP = WARP_BYTES / 4;
  static_assert(A_TILES * 16 * PITCH <= WARP, "");
  float* y = reinterpret_cast<float*>(dyn_smem);

  /// PRECOND: all threads of the block; ends with the block's barrier.
  __device__ __forceinline__ void publish(const Sums<A_TILES>& sums) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < A_TILES * 8; ++i) {
      const int tile = i / 8, outs = i / 4 % 2, place = i % 4;
      const int term = 16 * tile + 2 * g + place / 2, out = 8 * outs + 2 * t + place % 2;
      y[warp * WARP + term * PITCH + out] = sums[tile][outs][place];
    }
    __syncthreads();
  }
  __device__ __forceinline__ float term(int e, int out) const {
    float sum = y[e * PITCH + out];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum += y[warp * WARP + e * PITCH + out];
    return sum;
  }
  __device__ __forceinline__ float product(int out, int row) const {
    return term(3 * row + 2, out) + term(3 * row + 1, out) + term(3 * row, out);
  }
};

template <int A_TILES>
__device__ __forceinline__ void product(const uint4* __restrict__ fragments, const GemvJobs& jobs, int k, int rows,
                                        int accumulate) {
  GemvJob job = jobs.job[0];
  int block = blockIdx.x;
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    const int before = (jobs.job[i - 1].outs + TILE - 1) / TILE;
    if (block < before) break;
    block -= before;
    job = jobs.job[i];
  }
  const int first = block * TILE;
  const __nv_bfloat16* w[2];
  gemv::tile_rows<__nv_bfloat16>(w, job.w, first, job.outs, k);
  Sums<A_TILES> sums = {};
  multiply<A_TILES>(sums, fragments, w, k, fragment_lanes(rows));
  Merge<A_TILES> merge;
  merge.publish(sums);
  for (int i = threadIdx.x; i < TILE * rows; i += WARPS * 32) {
    const int row = i / TILE, out = i % TILE;
    if (first + out >= job.outs) continue;
    float result = merge.product(out, row);
    if (job.bias) result += job.bias[first + out];
    float* y = job.y + (size_t)row * job.outs + first + out;
    *y = accumulate ? *y + result : result;
  }
}

}  // namespace lab_gemv

extern "C" __global__ void __launch_bounds__(256)
    lab_fragments_bf16(const float* __restrict__ x, uint4* __restrict__ fragments, int k, int rows) {
  const int lanes = lab_gemv::fragment_lanes(rows), groups = (k + 63) / 64 * 4;
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= groups * lanes) return;
  const int group = i / lanes, pair = i % lanes / 4, t = i % 4;
  const int at = group / 2 * 32 + t * 8 + group % 2 * 4;
  unsigned words[2][2];  // [term of the pair][elements]
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int row = (2 * pair + which) / 3, term = (2 * pair + which) % 3;
    float4 in = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (at < k && row < rows) in = *reinterpret_cast<const float4*>(x + (size_t)row * k + at);
    words[which][0] = lab_gemv::one_term(in.x, in.y, term);
    words[which][1] = lab_gemv::one_term(in.z, in.w, term);
  }
  fragments[i] = make_uint4(words[0][0], words[1][0], words[0][1], words[1][1]);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    lab_gemv_bf16_r5(const uint4* fragments, GemvJobs jobs, int k, int rows, int accumulate) {
  lab_gemv::product<1>(fragments, jobs, k, rows, accumulate);
}
extern "C" __global__ void __launch_bounds__(256, 2)
    lab_gemv_bf16_r8(const uint4* fragments, GemvJobs jobs, int k, int rows, int accumulate) {
  lab_gemv::product<2>(fragments, jobs, k, rows, accumulate);
}
