// A rival of gemv_f16_r8: y[r, o] (+)= scales[o] * sum over k of x[r, k] w[o, k] (+ bias[o]) for 1..=8 rows and f16
// weights, with the same jobs, the same tail and the same arithmetic in float32 (activations as two f16 terms, exact
// products, at most 32 elements of k summed inside the tensor core), in fewer instructions per byte of weights.
//
// What differs from gemv.cu:
// - x is split once, by `lab_fragments_f16`, not again in every block: that is half of gemv.cu's loop. Its terms are
//   stored in the order in which lanes hold them as mma's A operand: one 16-byte load is an operand.
// - Both terms of all rows are stacked in the 16 M rows of A: 8 rows are one mma, where gemv.cu issues two.
// - The weights are mma's B operand: the 16 bytes that a lane has copied are two B fragments as they are, and no lane
//   reads what another one has copied. (If each warp splits x, this does not pay: it has to be put into A's order.)
// - The ring's slots are constants of an unrolled loop.
// In the engine, the kernel that produces x would write the fragments in its epilogue; the lab times them apart.
//
// Bits: each term of each row has accumulators of its own, so a row's result depends neither on the other rows nor on
// which M rows its terms stand in. It differs from gemv.cu's, which adds the terms of 32 elements of k inside the core.
//
// Layout of the fragments: uint4 [ceil(k / 64)][chunks][4 groups of 16 elements][8 lanes], chunks = ceil(rows / 2).
// A chunk is both terms of two rows: row r belongs to chunk r / 2 and there to lanes 4 (r % 2) + t. Its term 0 stands in
// M row r, its term 1 in M row r + 8 of A. An element is
//   {even(0), odd(0), even(2), odd(2)}, even(i) = elements i, i + 1 of the row's term 0, odd(i) of its term 1,
// counted from the group's first for lane t: 64 step + 32 (group / 2) + 8t + 4 (group % 2). Zeros beyond k and for
// missing rows. A chunk's group is a line of 128 bytes, and a lane's four groups lie a constant apart.
//
//   lab_fragments_f16 (x, fragments, k, rows)                             x [rows, k] f32
//   lab_gemv_f16_r8   (fragments, jobs, k, rows, accumulate)              jobs as in gemv.cu
//
// PRECOND: 1 <= rows <= 8; k a multiple of 8; w aligned to 16 bytes, fragments to 128.
// PRECOND: lab_fragments_f16: block 256, grid x = ceil(ceil(k / 64) * chunks / 8); no shared memory.
// PRECOND: lab_gemv_f16_r8: block 256, grid x = sum over jobs of ceil(outs / 16); dynamic shared memory NAME_shared_bytes.
#include "../gemv.cu"

namespace lab_gemv {

using gemv::TILE;
using gemv::WARPS;
constexpr int STEP = 64;              // elements of k that a warp takes at a time: 16 per lane
constexpr int SPAN = WARPS * STEP;    // what the block takes at a time
constexpr int MMAS = STEP / 16;       // groups of 16 elements of k in a step
constexpr int DEPTH = 4;              // slots of the ring
constexpr int LOADS = 4;              // 16-byte loads of weights per step: two rows, two lines' halves
constexpr int WARP_BYTES = DEPTH * LOADS * 32 * 16;

/// Pairs of rows.
__host__ __device__ __forceinline__ int fragment_chunks(int rows) { return (rows + 1) / 2; }

/// The activations of one step as A operands.
struct Operands {
  unsigned a[MMAS][4];
  /// `from` is the lane's place in the step. A lane whose row does not exist reads some other lane's: the result is
  /// never used, so nothing has to be checked.
  __device__ __forceinline__ void load(const uint4* from) {
#pragma unroll
    for (int group = 0; group < MMAS; ++group) {
      const uint4 raw = __ldg(from + group * 8);
      unsigned(&to)[4] = a[group];
      to[0] = raw.x, to[1] = raw.y, to[2] = raw.z, to[3] = raw.w;
    }
  }
};

using Sums = float[2][4];  // [8 outputs], as mma outputs them

/// sums += A B over a step. `weights`: rows g (0, 1) and g + 8 (2, 3), elements 8t..8t+7 of each 32.
__device__ __forceinline__ void multiply_step(Sums& sums, const Operands& x, const uint4 (&weights)[LOADS]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int outs = 0; outs < 2; ++outs) {
      const uint4& w = weights[2 * outs + half];
      const unsigned first[2] = {w.x, w.y}, second[2] = {w.z, w.w};
      float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_m16n8k16<__half>(c, x.a[2 * half], first);
      mma_m16n8k16<__half>(c, x.a[2 * half + 1], second);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[outs][i] += c[i];
    }
  }
}

/// This warp's part of k.
__device__ __forceinline__ void multiply(Sums& sums, const uint4* __restrict__ fragments, const __half* const (&w)[2],
                                         int k, int chunks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = warp * STEP, steps = (k - begin + SPAN - STEP) / SPAN;  // whole ones; k - begin > STEP - SPAN
  const __half* upper = w[0] + begin + lane % 4 * 8;
  const __half* lower = w[1] + begin + lane % 4 * 8;
  uint4* ring = reinterpret_cast<uint4*>(dyn_smem + warp * WARP_BYTES) + lane;  // a lane reads only what it copied
  const uint4* x = fragments + ((size_t)warp * chunks + min(lane / 8, chunks - 1)) * 32 + lane % 8;
  const int x_stride = WARPS * chunks * 32;

  const auto fetch = [&](bool exists, int slot) {
    if (exists) {
      uint4* to = ring + slot * LOADS * 32;
      cp_async16(to, upper);
      cp_async16(to + 32, upper + 32);
      cp_async16(to + 64, lower);
      cp_async16(to + 96, lower + 32);
      upper += SPAN, lower += SPAN;
    }
    cp_commit();
  };
#pragma unroll
  for (int step = 0; step < DEPTH - 1; ++step) fetch(step < steps, step);
  Operands in[2];  // for this step and the next: the index is a constant of the unrolled loop
  if (begin < k) in[0].load(x);
#pragma unroll 1
  for (int left = steps; left > 0; left -= DEPTH) {
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) {
      if (left <= slot) break;
      const int ahead = left > slot + 1 || (steps * SPAN + begin < k) ? x_stride : 0;  // the last step reads its own again
      x += ahead;
      in[(slot + 1) % 2].load(x);
      cp_wait<DEPTH - 2>();
      uint4 weights[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) weights[i] = ring[(slot * LOADS + i) * 32];
      fetch(left > slot + DEPTH - 1, (slot + DEPTH - 1) % DEPTH);  // into the slot that the previous step has read
      multiply_step(sums, in[slot % 2], weights);
    }
  }

  const int left = k - begin - steps * SPAN;  // of a last, partial step; at most one warp has one
  if (left > 0) {
    const __half* const rows[2] = {w[0] + k - left, w[1] + k - left};
    uint4 weights[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = i % 2 * 32 + lane % 4 * 8;
      weights[i] = make_uint4(0, 0, 0, 0);
      if (at < left) weights[i] = *reinterpret_cast<const uint4*>(rows[i / 2] + at);
    }
    if (steps % 2 == 0) {
      multiply_step(sums, in[0], weights);
    } else {
      multiply_step(sums, in[1], weights);
    }
  }
}

/// The warps' sums in shared memory, each in place of its own ring: [16 M rows][PITCH]. A warp's lanes have all read
/// their last weights: the mma that takes them is an exchange between all lanes.
struct Merge {
  static constexpr int PITCH = TILE + 2, WARP = WARP_BYTES / 4;
  static_assert(16 * PITCH <= WARP, "");
  float* y = reinterpret_cast<float*>(dyn_smem);

  /// PRECOND: all threads of the block; ends with the block's barrier.
  __device__ __forceinline__ void publish(const Sums& sums) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int outs = i / 4, place = i % 4;
      y[warp * WARP + (g + place / 2 * 8) * PITCH + 8 * outs + 2 * t + place % 2] = sums[outs][place];
    }
    __syncthreads();
  }
  __device__ __forceinline__ float term(int m, int out) const {
    float sum = y[m * PITCH + out];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum += y[warp * WARP + m * PITCH + out];
    return sum;
  }
  __device__ __forceinline__ float product(int out, int row) const {
    return __fmaf_rn(term(row + 8, out), Split<__half>::NEXT, term(row, out)) * Split<__half>::RESTORE;
  }
};

__device__ __forceinline__ void product(const uint4* __restrict__ fragments, const MatrixJobs& jobs, int k, int rows,
                                        int accumulate) {
  int block = blockIdx.x;
  const MatrixJob job = jobs.find(block, TILE);
  const int first = block * TILE;
  const __half* w[2];
  gemv::tile_rows<__half>(w, job.w, gemv::TileOuts(first / TILE), job.outs, k);
  Sums sums = {};
  multiply(sums, fragments, w, k, fragment_chunks(rows));
  Merge merge;
  merge.publish(sums);
  for (int i = threadIdx.x; i < TILE * rows; i += WARPS * 32) {
    const int row = i / TILE, out = i % TILE;
    if (first + out >= job.outs) continue;
    float result = merge.product(out, row);
    if (job.scales) result *= job.scales[first + out];
    if (job.bias) result += job.bias[first + out];
    float* y = job.y + (size_t)row * job.outs + first + out;
    *y = accumulate ? *y + result : result;
  }
}

}  // namespace lab_gemv

SHARED_BYTES(lab_fragments_f16, 0)
extern "C" __global__ void __launch_bounds__(256)
    lab_fragments_f16(const float* __restrict__ x, uint4* __restrict__ fragments, int k, int rows) {
  const int chunks = lab_gemv::fragment_chunks(rows), i = blockIdx.x * 256 + threadIdx.x;
  if (i >= (k + 63) / 64 * chunks * 32) return;
  const int t = i % 4, group = i / 8 % 4, row = i / 32 % chunks * 2 + i / 4 % 2;
  const int at = i / 32 / chunks * 64 + group / 2 * 32 + t * 8 + group % 2 * 4;
  float4 in = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (at < k && row < rows) in = *reinterpret_cast<const float4*>(x + (size_t)row * k + at);
  constexpr float DOWN = 1.0f / Split<__half>::RESTORE;
  in = make_float4(in.x * DOWN, in.y * DOWN, in.z * DOWN, in.w * DOWN);
  unsigned words[2][2];  // [term][elements]
#pragma unroll
  for (int term = 0; term < 2; ++term) {
    words[term][0] = take_term<__half>(in.x, in.y);
    words[term][1] = take_term<__half>(in.z, in.w);
  }
  fragments[i] = make_uint4(words[0][0], words[1][0], words[0][1], words[1][1]);
}

SHARED_BYTES(lab_gemv_f16_r8, lab_gemv::WARPS * lab_gemv::WARP_BYTES)
extern "C" __global__ void __launch_bounds__(256, 2)
    lab_gemv_f16_r8(const uint4* fragments, MatrixJobs jobs, int k, int rows, int accumulate) {
  lab_gemv::product(fragments, jobs, k, rows, accumulate);
}
