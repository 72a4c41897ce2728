// A rival of gemv_bf16_r8: y[r, o] (+)= sum over k of x[r, k] w[o, k] (+ bias[o]) for 1..=8 rows and bf16 weights, with
// the same jobs, the same tail and the same arithmetic in float32 (activations as three bf16 terms, exact products, at
// most 32 elements of k summed inside the tensor core), in 0.4 (r5) to 0.6 (r8) of its instructions a byte of weights.
//
// What differs from gemv.cu:
// - x is split once, by `lab_fragments_bf16`, not again in every block: that is half of gemv.cu's loop. Its terms are
//   stored in the order in which lanes hold them as mma's A operand: one 16-byte load is an operand.
// - The terms of all rows are stacked in the 16 M rows of A: 5 rows are one mma, where gemv.cu issues three.
// - The weights are mma's B operand: the 16 bytes that a lane has copied are two B fragments as they are, and no lane
//   reads what another one has copied. (With x split by each warp this does not pay: A has 16 rows, so that of the
//   registers of an operand with 8 rows of x half are zeros, to be written again for each mma.)
// - The ring's slots are constants of an unrolled loop.
// In the engine, the kernel that produces x would write the fragments in its epilogue; the lab times them apart.
//
// Bits: each term of each row has accumulators of its own, so a row's result depends neither on the other rows nor on
// which M rows its terms stand in. It differs from gemv.cu's, which adds the terms of 32 elements of k inside the core.
//
// Layout of the fragments: uint4 [ceil(k / 64)][chunks][4 groups of 16 elements][8 lanes], chunks = ceil(3 rows / 4).
// A chunk is four terms: term e = 3 row + term (term 0 is the leading one) belongs to chunk e / 4 and there, with pair =
// e / 2 % 2, to lanes 4 pair + t. It stands in M row e / 2 % 8 + e % 2 * 8 of A tile e / 16. An element is
//   {even(0), odd(0), even(2), odd(2)}, even(i) = elements i, i + 1 of the pair's even term, odd(i) of its odd term,
// counted from the group's first for lane t: 64 step + 32 (group / 2) + 8t + 4 (group % 2). Zeros beyond k and in terms
// that no row has. A chunk's group is a line of 128 bytes, and a lane's four groups lie a constant apart.
//
//   lab_fragments_bf16 (x, fragments, k, rows)                             x [rows, k] f32
//   lab_gemv_bf16_{r5, r8} (fragments, jobs, k, rows, accumulate)           jobs as in gemv.cu
//
// PRECOND: 1 <= rows <= 5 (r5) or 8 (r8); k a multiple of 8; w aligned to 16 bytes, fragments to 128.
// PRECOND: lab_fragments_bf16: block 256, grid x = ceil(ceil(k / 64) * chunks / 8); no shared memory.
// PRECOND: lab_gemv_bf16_*: block 256, grid x = sum over jobs of ceil(outs / 16); dynamic shared memory NAME_shared_bytes.
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

/// Groups of four terms, of all rows.
__host__ __device__ __forceinline__ int fragment_chunks(int rows) { return (3 * rows + 3) / 4; }

/// One term (0 leading .. 2) of two neighbours, as gemv.cu's split_three forms it.
__device__ __forceinline__ unsigned one_term(float low, float high, int term) {
  unsigned word = take_truncated_bf16(low, high);
  for (int i = 0; i < term; ++i) word = take_truncated_bf16(low, high);
  return word;
}

/// The activations of one step as A operands.
template <int A_TILES>
struct Operands {
  unsigned a[MMAS][A_TILES][4];
  /// `from` is the lane's place in the step, for each tile. A lane whose terms no row has reads some other lane's: what
  /// comes of them is never looked at, and nothing has to be checked.
  __device__ __forceinline__ void load(const uint4* const (&from)[A_TILES]) {
#pragma unroll
    for (int group = 0; group < MMAS; ++group) {
#pragma unroll
      for (int tile = 0; tile < A_TILES; ++tile) {
        const uint4 raw = __ldg(from[tile] + group * 8);
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
                                         const __nv_bfloat16* const (&w)[2], int k, int chunks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = warp * STEP, steps = (k - begin + SPAN - STEP) / SPAN;  // whole ones; k - begin > STEP - SPAN
  const __nv_bfloat16* upper = w[0] + begin + lane % 4 * 8;
  const __nv_bfloat16* lower = w[1] + begin + lane % 4 * 8;
  uint4* ring = reinterpret_cast<uint4*>(dyn_smem + warp * WARP_BYTES) + lane;  // a lane reads only what it copied
  const uint4* x[A_TILES];
#pragma unroll
  for (int tile = 0; tile < A_TILES; ++tile) {
    const int chunk = min(4 * tile + lane / 8, chunks - 1);
    x[tile] = fragments + ((size_t)warp * chunks + chunk) * 32 + lane % 8;
  }
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
  Operands<A_TILES> in[2];  // of this step and of the next: the place is a constant of the unrolled loop
  if (begin < k) in[0].load(x);
#pragma unroll 1
  for (int left = steps; left > 0; left -= DEPTH) {
#pragma unroll
    for (int slot = 0; slot < DEPTH; ++slot) {
      if (left <= slot) break;
      const int ahead = left > slot + 1 || (steps * SPAN + begin < k) ? x_stride : 0;  // the last one reads its own again
#pragma unroll
      for (int tile = 0; tile < A_TILES; ++tile) x[tile] += ahead;
      in[(slot + 1) % 2].load(x);
      cp_wait<DEPTH - 2>();
      uint4 weights[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) weights[i] = ring[(slot * LOADS + i) * 32];
      fetch(left > slot + DEPTH - 1, (slot + DEPTH - 1) % DEPTH);  // into the slot that the step before has read
      multiply_step<A_TILES>(sums, in[slot % 2], weights);
    }
  }

  const int left = k - begin - steps * SPAN;  // of a last, partial step; one warp at most has one
  if (left > 0) {
    const __nv_bfloat16* const rows[2] = {w[0] + k - left, w[1] + k - left};
    uint4 weights[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = i % 2 * 32 + lane % 4 * 8;
      weights[i] = make_uint4(0, 0, 0, 0);
      if (at < left) weights[i] = *reinterpret_cast<const uint4*>(rows[i / 2] + at);
    }
    if (steps % 2 == 0) {
      multiply_step<A_TILES>(sums, in[0], weights);
    } else {
      multiply_step<A_TILES>(sums, in[1], weights);
    }
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
  multiply<A_TILES>(sums, fragments, w, k, fragment_chunks(rows));
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

SHARED_BYTES(lab_fragments_bf16, 0)
extern "C" __global__ void __launch_bounds__(256)
    lab_fragments_bf16(const float* __restrict__ x, uint4* __restrict__ fragments, int k, int rows) {
  const int chunks = lab_gemv::fragment_chunks(rows), i = blockIdx.x * 256 + threadIdx.x;
  if (i >= (k + 63) / 64 * chunks * 32) return;
  const int t = i % 4, group = i / 8 % 4, pair = i / 32 % chunks * 2 + i / 4 % 2;
  const int at = i / 32 / chunks * 64 + group / 2 * 32 + t * 8 + group % 2 * 4;
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

SHARED_BYTES(lab_gemv_bf16_r5, lab_gemv::WARPS * lab_gemv::WARP_BYTES)
SHARED_BYTES(lab_gemv_bf16_r8, lab_gemv::WARPS * lab_gemv::WARP_BYTES)
extern "C" __global__ void __launch_bounds__(256, 2)
    lab_gemv_bf16_r5(const uint4* fragments, GemvJobs jobs, int k, int rows, int accumulate) {
  lab_gemv::product<1>(fragments, jobs, k, rows, accumulate);
}
extern "C" __global__ void __launch_bounds__(256, 2)
    lab_gemv_bf16_r8(const uint4* fragments, GemvJobs jobs, int k, int rows, int accumulate) {
  lab_gemv::product<2>(fragments, jobs, k, rows, accumulate);
}
