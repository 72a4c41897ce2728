// gemv.cu for one row on compute capability 9.0 and newer, bit-identical: one block per multiprocessor keeps copies in flight from its
// first output to its last, whereas each of gemv.cu's blocks begins and ends with none in flight.
//
// A ninth warp copies the weights of 16 outputs, a slice of 16 lines at a time, into a ring of stages; the first stages while earlier
// kernels are still running. Each of the other eight multiplies the lines of a slice that are its own in gemv.cu. Beforehand, they have
// split their lines' activations, once for all outputs. The warps take turns adding up an output's sums, so that none waits for the others.
//
// Outputs are distributed as evenly as possible, in units of eight rows of weights that belong together: eight outputs; four gates and
// their ups; four pairs that are rotated together.
//
//   gemv_{w}_ring         parameters as gemv_{w}_r8, w = f16, q8
//   gemv_qkv_{w}_ring     as gemv_qkv_{w}_r8
//   gemv_gated_{w}_ring   as gemv_gated_{w}_r8
//
// PRECOND: rows 1; k a multiple of a line (64, for q8 128), at most Slice::MAX_K; block 288; any grid with no more blocks than units; one
//   block per multiprocessor.
// PRECOND: dynamic shared memory NAME_shared_bytes; otherwise as gemv.cu.
#include "bulk_copy.cuh"
#include "gemv.cuh"

#if HAS_BULK_COPIES
namespace gemv {
namespace ring {

constexpr int UNIT = 8;                // rows of weights
constexpr int LINES = 16;              // per slice
constexpr int BYTES = 227 << 10;       // the most shared memory that a block can have
constexpr int UNITS = TILE / UNIT;         // per mma tile
constexpr int ALIGNMENT = 128;             // of stages
constexpr int MAX_STAGES = 6;
constexpr int THREADS = (WARPS + 1) * 32;  // the last warp copies
static_assert(MAX_STAGES < WARPS, "a warp's sums are read before the others are eight tiles ahead");

/// The stages, [rows of weights][Slice::PITCH] each. `full` ends a phase when a stage's bytes have arrived, `empty` when all warps have
/// read it.
struct Stages {
  Mbarrier *full, *empty;
  unsigned char* memory;
  int count;
};

/// The block's shared memory, with stages of STAGE bytes.
template <int STAGE>
struct Shared {
  struct Fixed {
    Mbarrier full[MAX_STAGES], empty[MAX_STAGES];  // a stage's bytes have arrived; all warps have read it
    Mbarrier summed[WARPS];                        // all warps have written the sums that this warp adds up
    float squares[WARPS];                          // of the warps' lines
    float sums[WARPS][WARPS][TILE];                // by adding warp, then by producing warp
  };
  Fixed* fixed;
  uint4* terms;  // [k / STEP][X_TERMS][4]: for each step and term, the words of lane t
  Stages stages;

  __device__ __forceinline__ explicit Shared(int k) {
    unsigned char* const all = shared_memory();
    const int before = ceil_div((int)sizeof(Fixed) + k * 4, ALIGNMENT) * ALIGNMENT;
    fixed = reinterpret_cast<Fixed*>(all), terms = reinterpret_cast<uint4*>(all + sizeof(Fixed));
    stages = {fixed->full, fixed->empty, all + before, min(MAX_STAGES, (BYTES - before) / STAGE)};
  }
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == WARPS * 32) {
      for (int i = 0; i < MAX_STAGES; ++i) mbarrier_init(fixed->full + i, 1), mbarrier_init(fixed->empty + i, WARPS);
      for (int i = 0; i < WARPS; ++i) mbarrier_init(fixed->summed + i, WARPS);
      mbarrier_init_done();
    }
    __syncthreads();
  }
};

/// Sizes of a slice of weights of type W.
template <class W>
struct Slice {
  static constexpr int LINE = Line<W>::ELEMENTS, ELEMENTS = LINES * LINE;
  static constexpr int PITCH = LINES * Line<W>::BYTES;  // row pitch in bytes: copies to anything but whole lines are a tenth slower
  static constexpr int STAGE = TILE * PITCH;
  using Memory = Shared<STAGE>;
  static_assert(sizeof(typename Memory::Fixed) % 16 == 0, "");
  /// The largest k that leaves room for two stages.
  static constexpr int MAX_K = (BYTES - (int)sizeof(typename Memory::Fixed) - ALIGNMENT - 2 * STAGE) / 4 / LINE * LINE;
};

/// The units of this block: `first` .. `end`.
struct Share {
  int first, end;
  __device__ __forceinline__ explicit Share(int units)
      : first((unsigned)units * blockIdx.x / gridDim.x), end((unsigned)units * (blockIdx.x + 1) / gridDim.x) {}
};

// ---- the rows of units ----------------------------------------------------------------------------------------------
//
// `units()`: their number; `run(unit, half)`: the first or second four rows of weights; `place(unit, r)`: what is loaded ahead for the
// product of row r; `put(place, sum, factor)`: stores the product, unless `place` is empty (`{}`). PRECOND of put: a
// whole warp, in which lane i has row i % UNIT of a unit.

constexpr int RUN = UNIT / 2;

/// Consecutive rows of weights, from output `first` on; beyond the matrix, the last one again.
struct Run {
  const void* w;
  int first, last;
  __device__ __forceinline__ Run(const MatrixJob& job, int out) : w(job.w), first(out), last(job.outs - 1) {}
};

struct Plain {
  const MatrixJobs& jobs;
  bool accumulate;
  struct Place {
    float* y;  // null: no such output
    float before;
    FinishOne finish;
  };

  __device__ __forceinline__ int units() const { return jobs.blocks(UNIT); }
  __device__ __forceinline__ Run run(int unit, int half) const {
    const MatrixJob job = jobs.find(unit, UNIT);
    return Run(job, unit * UNIT + half * RUN);
  }
  __device__ __forceinline__ Place place(int unit, int r) const {
    const MatrixJob job = jobs.find(unit, UNIT);
    const int out = unit * UNIT + r;
    float* const y = out < job.outs ? job.y + out : nullptr;
    return {y, accumulate && y ? *y : -0.0f, FinishOne(job, min(out, job.outs - 1))};
  }
  __device__ __forceinline__ void put(const Place& place, float sum, float factor) const {
    if (place.y) *place.y = place.before + place.finish.of<__half>(sum, factor);
  }
};

struct Qkv {
  const MatrixJobs& jobs;
  const RopeTarget& to;
  struct Place {
    FinishOne finish;
    PairPlace pair;
    float* y;  // of an output that is not rotated
  };

  /// The output of row r.
  __device__ __forceinline__ int out(int number, int unit, int r) const {
    if (!to.cos || number == 2) return unit * UNIT + r;
    const int half = to.head_dim / 2, of_head = to.head_dim / UNIT, head = unit / of_head;
    return head * to.head_dim + (unit - head * of_head) * (RUN) + r % (RUN) + r / (RUN) * half;
  }
  __device__ __forceinline__ int units() const { return jobs.blocks(UNIT); }
  __device__ __forceinline__ Run run(int unit, int half) const {
    const int number = jobs.number(unit, UNIT);
    return Run(jobs.get(number), out(number, unit, half * RUN));
  }
  __device__ __forceinline__ Place place(int unit, int r) const {
    const int number = jobs.number(unit, UNIT), own = out(number, unit, r);
    const MatrixJob job = jobs.get(number);
    const FinishOne finish(job, min(own, job.outs - 1));
    if (!to.cos) return {finish, {}, own < job.outs ? job.y + own : nullptr};
    return {finish, PairPlace(to, job, number, 0, own, out(number, unit, r % (RUN) + RUN)), nullptr};
  }
  __device__ __forceinline__ void put(const Place& place, float sum, float factor) const {
    const float result = place.finish.of<__half>(sum, factor);
    const float partner = __shfl_xor_sync(FULL_WARP, result, RUN);
    if (place.y) *place.y = result;
    if (threadIdx.x % UNIT < RUN && place.pair.there) place.pair.put(to, {result, partner});
  }
};

struct Gated {
  const MatrixJobs& jobs;
  int activation;
  struct Place {
    float* y;
    FinishOne finish;
  };

  __device__ __forceinline__ int units() const { return ceil_div(jobs.job[0].outs, RUN); }
  __device__ __forceinline__ Run run(int unit, int half) const { return Run(half == 0 ? jobs.job[0] : jobs.job[1], unit * RUN); }
  __device__ __forceinline__ Place place(int unit, int r) const {
    const int out = unit * RUN + r % RUN, outs = jobs.job[0].outs;
    return {out < outs ? jobs.job[0].y + out : nullptr, FinishOne(r < RUN ? jobs.job[0] : jobs.job[1], min(out, outs - 1))};
  }
  __device__ __forceinline__ void put(const Place& place, float sum, float factor) const {
    const float result = place.finish.of<__half>(sum, factor), up = __shfl_xor_sync(FULL_WARP, result, RUN);
    if (threadIdx.x % UNIT < RUN && place.y) *place.y = activate(result, activation) * up;
  }
};

/// Copies all slices of the block's tiles. PRECOND: one warp.
template <class W, class Rows>
__device__ __forceinline__ void copy_slices(const Stages& stages, const Rows& rows, int k) {
  constexpr int PITCH = Slice<W>::PITCH, SLICE = LINES * Line<W>::UNITS;
  const int row_units = Line<W>::row_units(k);
  const Share share(rows.units());
  Turn turn;
#pragma unroll 1
  for (int unit = share.first; unit < share.end; unit += UNITS) {
    const int runs = 2 * min(UNITS, share.end - unit);
    const typename Line<W>::Unit* from[2 * UNITS][RUN];
#pragma unroll
    for (int i = 0; i < 2 * UNITS; ++i) {
      const Run run = rows.run(min(unit + i / 2, share.end - 1), i % 2);
#pragma unroll
      for (int r = 0; r < RUN; ++r) from[i][r] = row_of<W>(run.w, min(run.first + r, run.last), k);
    }
#pragma unroll 1
    for (int at = 0; at < row_units; at += SLICE, turn.next(stages.count)) {
      const int bytes = min(row_units - at, SLICE) * (int)sizeof(typename Line<W>::Unit);
      Mbarrier* const full = stages.full + turn.stage;
      unsigned char* const to = stages.memory + turn.stage * Slice<W>::STAGE;
      if (elected()) {
        mbarrier_wait(stages.empty + turn.stage, turn.parity ^ 1);
        mbarrier_expect(full, bytes * runs * RUN);
#pragma unroll
        for (int i = 0; i < 2 * UNITS; ++i) {
          if (i >= runs) break;
#pragma unroll
          for (int r = 0; r < RUN; ++r) copy_bulk(to + (i * RUN + r) * PITCH, from[i][r] + at, bytes, full);
        }
      }
    }
  }
}

// ---- products -------------------------------------------------------------------------------------------------------

/// Swaps two words without a branch.
__device__ __forceinline__ void swap_if(bool on, unsigned& a, unsigned& b) {
  const unsigned first = on ? b : a, second = on ? a : b;
  a = first, b = second;
}

/// Reads a line of 16 rows of weights, two chunks of 16 bytes at a time. All rows begin in the same bank, so row r's chunks are read in
/// the order c ^ r % 8, and restored to their own order by three exchanges. PRECOND: the whole warp.
__device__ __forceinline__ void read_line(unsigned (&w)[4][4], const unsigned char* line, int pitch) {
  const int lane = threadIdx.x % 32;
  const unsigned char* const row = line + lane % 16 * pitch;
  const int chunk = lane / 16 ^ lane % 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) ldmatrix_x4(w[i], row + (chunk ^ i * 2) * 16);
#pragma unroll
  for (int rows = 0; rows < 2; ++rows) {  // 0 .. 7, 8 .. 15
    const auto word = [&](int chunk) -> unsigned& { return w[chunk / 2][chunk % 2 * 2 + rows]; };
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (!(i & bit)) swap_if(lane / 4 & bit, word(i), word(i | bit));
  }
}

/// The lane's scales of a line, one word per step; empty for weights without scales.
template <class W>
struct LineScales {
  __device__ __forceinline__ explicit LineScales(const unsigned char*) {}
  __device__ __forceinline__ StepWeights<W> weights(const unsigned (&line)[4][4], int step) const {
    StepWeights<W> to;
#pragma unroll
    for (int i = 0; i < 8; ++i) to.halves[i / 4][0][i % 4] = line[2 * step + i / 4][i % 4];
    return to;
  }
};
template <>
struct LineScales<Q8Line> {
  uint4 rows[2];  // g, g + 8
  __device__ __forceinline__ explicit LineScales(const unsigned char* line) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      rows[i] = *reinterpret_cast<const uint4*>(line + (threadIdx.x % 32 / 4 + 8 * i) * Slice<Q8Line>::PITCH + LINE_BYTES);
  }
  __device__ __forceinline__ StepWeights<Q8Line> weights(const unsigned (&line)[4][4], int step) const {
    const auto word = [&](const uint4& of) { return step == 0 ? of.x : step == 1 ? of.y : step == 2 ? of.z : of.w; };
    return StepWeights<Q8Line>(line[step], word(rows[0]), word(rows[1]));
  }
};

/// Multiplies this warp's part of a slice with the activations. `left`: elements of k from the slice on.
template <class W>
__device__ __forceinline__ void add_slice(float (&sums)[4], const unsigned char* stage, const uint4* terms, int left) {
  constexpr int LINE = Slice<W>::LINE;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < LINES; i += WARPS) {
    const int number = i + warp;
    if (number * LINE >= left) break;
    const unsigned char* const line = stage + number * Line<W>::BYTES;
    unsigned words[4][4];
    read_line(words, line, Slice<W>::PITCH);
    const LineScales<W> scales(line);
#pragma unroll
    for (int step = 0; step < LINE / STEP; ++step) {
      unsigned x[2][4];
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        const uint4 of_lane = terms[((number * (LINE / STEP) + step) * 2 + term) * 4 + threadIdx.x % 4];
        x[term][0] = of_lane.x, x[term][1] = of_lane.y, x[term][2] = of_lane.z, x[term][3] = of_lane.w;
      }
      multiply_step<W>(sums, scales.weights(words, step), x);
    }
  }
}

/// PRECOND: all warps except the copying one, once the results of earlier kernels are visible.
template <class W, bool NORM, class Rows>
__device__ __forceinline__ void multiply(const typename Slice<W>::Memory& shared, const Rows& rows, const float* x,
                                         const float* norm_weight, float norm_offset, float eps, int k) {
  constexpr int SLICE = Slice<W>::ELEMENTS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const auto store = [&](int first, const unsigned (&terms)[2][4]) {
    if (first >= k) return;
#pragma unroll
    for (int term = 0; term < 2; ++term)
      shared.terms[(first / STEP * 2 + term) * 4 + t] = make_uint4(terms[term][0], terms[term][1], terms[term][2], terms[term][3]);
  };
  const float squares = split_steps<W, NORM, NORM ? 2 : 4>(x, norm_weight, norm_offset, k, store);
  auto& fixed = *shared.fixed;
  if (NORM && lane == 0) fixed.squares[warp] = squares;
  sync_beside_ldmatrix();  // the terms of this warp's lines are written
  const Share share(rows.units());
  Turn turn;
  int tile = 0;
#pragma unroll 1
  for (int unit = share.first; unit < share.end; unit += UNITS, ++tile) {
    const int turns = tile / WARPS, adder = tile % WARPS;
    typename Rows::Place place = {};
    if (adder == warp && lane < min(UNITS, share.end - unit) * UNIT) place = rows.place(unit + lane / UNIT, lane % UNIT);
    float sums[4] = {};
#pragma unroll 1
    for (int at = 0; at < k; at += SLICE, turn.next(shared.stages.count)) {
      mbarrier_wait(fixed.full + turn.stage, turn.parity);
      add_slice<W>(sums, shared.stages.memory + turn.stage * Slice<W>::STAGE, shared.terms + at / STEP * 8, k - at);
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) mbarrier_arrive(fixed.empty + turn.stage);
    }
    if (t == 0) fixed.sums[adder][warp][g] = sums[0], fixed.sums[adder][warp][g + UNIT] = sums[2];
    __syncwarp();  // the sums of all lanes are written
    if (lane == 0) mbarrier_arrive(fixed.summed + adder);
    if (adder != warp) continue;
    mbarrier_wait(fixed.summed + adder, turns & 1);
    float sum = fixed.sums[adder][0][lane % TILE], square = fixed.squares[0];
#pragma unroll
    for (int other = 1; other < WARPS; ++other) {
      sum += fixed.sums[adder][other][lane % TILE];
      if (NORM) square += fixed.squares[other];
    }
    rows.put(place, sum, NORM ? norm_factor(square, k, eps) : 1.0f);
  }
}

template <class W, bool NORM, class Rows>
__device__ __forceinline__ void product(const Rows& rows, const float* x, const float* norm_weight, float norm_offset, float eps,
                                        int k) {
  PRECOND_GRID(min((int)gridDim.x, rows.units()), 1);
  const typename Slice<W>::Memory shared(k);
  shared.begin();
  if (threadIdx.x >= WARPS * 32) copy_slices<W>(shared.stages, rows, k);  // weights are no kernel's output
  wait_for_earlier_grids();
  // only now, so that the next kernel starts after all those before this one have ended
  let_next_grid_start();
  if (threadIdx.x < WARPS * 32) multiply<W, NORM>(shared, rows, x, norm_weight, norm_offset, eps, k);
}

}  // namespace ring
}  // namespace gemv

#define RING_KERNELS(name, W)                                                                                                          \
  SHARED_BYTES(gemv_##name##_ring, gemv::ring::BYTES)                                                                                  \
  SHARED_BYTES(gemv_qkv_##name##_ring, gemv::ring::BYTES)                                                                              \
  SHARED_BYTES(gemv_gated_##name##_ring, gemv::ring::BYTES)                                                                            \
  STARTS_EARLY(gemv_##name##_ring)                                                                                                     \
  STARTS_EARLY(gemv_qkv_##name##_ring)                                                                                                 \
  STARTS_EARLY(gemv_gated_##name##_ring)                                                                                               \
  extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)                                                                 \
      gemv_##name##_ring(const float* x, const __grid_constant__ MatrixJobs jobs, int k, int rows, int accumulate) {                   \
    gemv::ring::product<W, false>(gemv::ring::Plain{jobs, accumulate != 0}, x, nullptr, 0.0f, 0.0f, k);                                \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)                                                                 \
      gemv_qkv_##name##_ring(const float* x, const float* norm_weight, float norm_offset, float eps,                                   \
                             const __grid_constant__ MatrixJobs jobs, int k, int rows, const __grid_constant__ RopeTarget to) {        \
    gemv::ring::product<W, true>(gemv::ring::Qkv{jobs, to}, x, norm_weight, norm_offset, eps, k);                                      \
  }                                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)                                                                 \
      gemv_gated_##name##_ring(const float* x, const float* norm_weight, float norm_offset, float eps,                                 \
                               const __grid_constant__ MatrixJobs jobs, int k, int rows, int activation) {                             \
    gemv::ring::product<W, true>(gemv::ring::Gated{jobs, activation}, x, norm_weight, norm_offset, eps, k);                            \
  }
RING_KERNELS(f16, __half)
RING_KERNELS(q8, Q8Line)
#undef RING_KERNELS
#endif
