// gemv_ring.cu for 2 to 16 rows: tiles of 32 outputs, of which each of two groups of eight warps multiplies 16. Activations are split as
// in gemv.cu, from the caches, for each tile again: for all rows at once they have no room.
//
//   gemv_f16_ring{8,16}         parameters as gemv_f16_r8, at most 8 or 16 rows
//   gemv_qkv_f16_ring{8,16}     as gemv_qkv_f16_r8
//   gemv_gated_f16_ring{8,16}   as gemv_gated_f16_r8
//
// PRECOND: k a multiple of 64; block 544; any grid of at most as many blocks as units; one block a multiprocessor.
// PRECOND: dynamic shared memory NAME_shared_bytes; otherwise as gemv.cu.
#include "gemv_ring.cuh"

#if HAS_BULK_COPIES
namespace gemv {
namespace ring_rows {

using namespace ring;

constexpr int GROUPS = 2, UNITS = GROUPS * TILE / UNIT;  // of a tile
constexpr int OUTS = UNITS * UNIT, STAGE = OUTS * PITCH;
constexpr int ADDERS = GROUPS * WARPS, THREADS = (ADDERS + 1) * 32;  // the last warp copies
constexpr int STAGES = 3 * 1024 / SLICE;

/// The block's shared memory, for 8 * BATCHES rows.
template <int BATCHES>
struct Shared {
  static constexpr int ROWS = 8 * BATCHES, PITCH = ROWS + 1;  // of sums: those that a warp reads together lie in different banks
  Mbarrier full[STAGES], empty[STAGES];
  Mbarrier summed, added;             // all warps have written a tile's sums; have added them up
  float squares[WARPS][ROWS];         // of the warps' lines
  float sums[WARPS][OUTS][PITCH];
};

/// A warp's sums of 16 outputs.
template <int BATCHES, bool NORM>
struct Part {
  float sums[BATCHES][4], squares[BATCHES];

  /// Adds this warp's part of a slice. `x[b]`: row g of batch b, `norm_weight`: both from this lane's first element of the slice's first line
  /// on; `left`: elements of k from the slice on. The first activations are loaded before the weights are waited for.
  __device__ __forceinline__ void add_slice(const Stages& stages, const Turn& turn, const float* const (&x)[BATCHES],
                                            const float* norm_weight, float norm_offset, int left) {
    constexpr int STEPS = LINE / STEP, COUNT = LINES / WARPS * STEPS * BATCHES;
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32 % WARPS, group = threadIdx.x / 32 / WARPS;
    const unsigned char* const from = stages.memory + turn.stage * STAGE + (group * TILE + lane % 16) * PITCH + lane / 16 * 16;
    const auto step_of = [](int i) { return i / BATCHES / STEPS * WARPS * STEPS + i / BATCHES % STEPS; };  // from the warp's first on
    float in[2][8], weight[2][NORM ? 8 : 1];
    const auto load = [&](int i) {
      if (i >= COUNT) return;
      const int at = step_of(i) * STEP, there = left - line * LINE - at;
      load_step(in[i % 2], x[i % BATCHES] + at, there);
      if constexpr (NORM)
        if (i % BATCHES == 0) load_step(weight[i / BATCHES % 2], norm_weight + at, there);
    };
    load(0), load(1);
    mbarrier_wait(stages.full + turn.stage, turn.parity);
    unsigned w[2][1][4];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const int b = i % BATCHES, step = step_of(i);
      if (line * LINE + step * STEP >= left) break;
      if (b == 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) ldmatrix_x4(w[half][0], from + (line * LINE + step * STEP) * 2 + half * 32);
      }
      float now[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) now[j] = in[i % 2][j];
      if constexpr (NORM) {
        squares[b] += sum_squares(now);
#pragma unroll
        for (int j = 0; j < 8; ++j) now[j] = __fmul_rn(now[j], weight[i / BATCHES % 2][j] + norm_offset);
      }
      load(i + 2);
      unsigned terms[2][4];
      split<__half>(now, terms);
      multiply_step<__half>(sums[b], w, terms);
    }
    __syncwarp();  // all lanes have read the stage
    if (lane == 0) mbarrier_arrive(stages.empty + turn.stage);
  }
};

/// PRECOND: the warps but the copying one, after what the kernels before this one wrote is there.
template <int BATCHES, bool NORM, class Rows>
__device__ __forceinline__ void multiply(Shared<BATCHES>& shared, const Stages& stages, const Rows& outs, const float* x,
                                         const float* norm_weight, float norm_offset, float eps, int k, int rows) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int line = warp % WARPS, group = warp / WARPS, first = line * LINE + 2 * t;
  const float *own[BATCHES], *own_weight = NORM ? norm_weight + first : nullptr;
#pragma unroll
  for (int b = 0; b < BATCHES; ++b) own[b] = x + (size_t)min(8 * b + g, rows - 1) * k + first;
  const Share share(outs.units());
  Turn turn;
  unsigned parity = 0;
  float factor = 1.0f;
#pragma unroll 1
  for (int unit = share.first; unit < share.end; unit += UNITS, parity ^= 1) {
    typename Rows::Place place = {};  // a warp adds up a row
    if (warp < rows && lane < min(UNITS, share.end - unit) * UNIT) place = outs.place(unit + lane / UNIT, lane % UNIT, warp);
    Part<BATCHES, NORM> part = {};
#pragma unroll 1
    for (int at = 0; at < k; at += SLICE, turn.next(STAGES)) {
      const float* from[BATCHES];
#pragma unroll
      for (int b = 0; b < BATCHES; ++b) from[b] = own[b] + at;
      part.add_slice(stages, turn, from, NORM ? own_weight + at : nullptr, norm_offset, k - at);
    }
    mbarrier_wait(&shared.added, parity ^ 1);
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared.sums[line][group * TILE + g + i / 2 * 8][8 * b + 2 * t + i % 2] = part.sums[b][i];
      const float square = warp_reduce<Sum, 4>(part.squares[b]);
      if (NORM && group == 0 && t == 0) shared.squares[line][8 * b + g] = square;
    }
    __syncwarp();  // the sums of all lanes are there
    if (lane == 0) mbarrier_arrive(&shared.summed);
    mbarrier_wait(&shared.summed, parity);
    if (warp < rows) {
      float sum = shared.sums[0][lane][warp], square = shared.squares[0][warp];
#pragma unroll
      for (int other = 1; other < WARPS; ++other) {
        sum += shared.sums[other][lane][warp];
        if (NORM) square += shared.squares[other][warp];
      }
      if (NORM) factor = norm_factor(square, k, eps);
      outs.put(place, sum, factor);
    }
    __syncwarp();  // all lanes have read the sums
    if (lane == 0) mbarrier_arrive(&shared.added);
  }
}

template <int BATCHES, bool NORM, class Rows>
__device__ __forceinline__ void product(const Rows& outs, const float* x, const float* norm_weight, float norm_offset, float eps,
                                        int k, int rows) {
  PRECOND_GRID(min((int)gridDim.x, outs.units()), 1);
  constexpr int BEFORE = ceil_div(sizeof(Shared<BATCHES>), 16) * 16;
  static_assert(BEFORE + STAGES * STAGE <= BYTES, "");
  Shared<BATCHES>& shared = *reinterpret_cast<Shared<BATCHES>*>(shared_memory());
  const Stages stages = {shared.full, shared.empty, shared_memory() + BEFORE, STAGES};
  if (threadIdx.x == ADDERS * 32) {
    for (int i = 0; i < STAGES; ++i) mbarrier_init(shared.full + i, 1), mbarrier_init(shared.empty + i, ADDERS);
    mbarrier_init(&shared.summed, ADDERS), mbarrier_init(&shared.added, ADDERS);
    mbarrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= ADDERS * 32) copy_slices<UNITS>(stages, outs, k);  // weights are nobody's output
  wait_for_earlier_grids();
  // now, so that the next kernel's beginning is behind the end of all before this one
  let_next_grid_start();
  if (threadIdx.x < ADDERS * 32) multiply<BATCHES, NORM>(shared, stages, outs, x, norm_weight, norm_offset, eps, k, rows);
}

}  // namespace ring_rows
}  // namespace gemv

#define GEMV_RING(ROWS)                                                                                              \
  SHARED_BYTES(gemv_f16_ring##ROWS, gemv::ring::BYTES)                                                               \
  SHARED_BYTES(gemv_qkv_f16_ring##ROWS, gemv::ring::BYTES)                                                           \
  SHARED_BYTES(gemv_gated_f16_ring##ROWS, gemv::ring::BYTES)                                                         \
  STARTS_EARLY(gemv_f16_ring##ROWS)                                                                                  \
  STARTS_EARLY(gemv_qkv_f16_ring##ROWS)                                                                              \
  STARTS_EARLY(gemv_gated_f16_ring##ROWS)                                                                            \
  extern "C" __global__ void __launch_bounds__(gemv::ring_rows::THREADS, 1)                                               \
      gemv_f16_ring##ROWS(const float* x, const __grid_constant__ MatrixJobs jobs, int k, int rows, int accumulate) { \
    gemv::ring_rows::product<ROWS / 8, false>(gemv::ring::Plain{jobs, accumulate != 0}, x, nullptr, 0.0f, 0.0f, k, rows); \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(gemv::ring_rows::THREADS, 1)                                               \
      gemv_qkv_f16_ring##ROWS(const float* x, const float* norm_weight, float norm_offset, float eps,                \
                              const __grid_constant__ MatrixJobs jobs, int k, int rows,                              \
                              const __grid_constant__ RopeTarget to) {                                               \
    gemv::ring_rows::product<ROWS / 8, true>(gemv::ring::Qkv{jobs, to}, x, norm_weight, norm_offset, eps, k, rows);       \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(gemv::ring_rows::THREADS, 1)                                               \
      gemv_gated_f16_ring##ROWS(const float* x, const float* norm_weight, float norm_offset, float eps,              \
                                const __grid_constant__ MatrixJobs jobs, int k, int rows, int activation) {          \
    gemv::ring_rows::product<ROWS / 8, true>(gemv::ring::Gated{jobs, activation}, x, norm_weight, norm_offset, eps, k, rows); \
  }
GEMV_RING(8)
GEMV_RING(16)
#undef GEMV_RING
#endif
