// Parts of gemv_ring.cu: a ring of stages that one warp of a block fills with weights, from its first output to
// its last, and what outputs are.
//
// Outputs are dealt out in units of eight rows of weights that belong together, as evenly as possible: eight outputs; four gates and their
// ups; four pairs that are rotated together.
#pragma once
#include "bulk_copy.cuh"
#include "gemv.cuh"

#if HAS_BULK_COPIES
namespace gemv {
namespace ring {

constexpr int UNIT = 8;                // rows of weights
constexpr int LINE = LINE_BYTES / 2;   // elements of k
constexpr int SLICE = 1024, LINES = SLICE / LINE;
constexpr int PITCH = SLICE * 2;       // bytes from a row of a stage to the next: copies to other than whole lines are slower by a tenth
constexpr int BYTES = 227 << 10;       // all shared memory that a block can have

/// The stages, [rows of weights][PITCH] each. `full` ends a phase when a stage's bytes have come, `empty` when all warps have read it.
struct Stages {
  Mbarrier *full, *empty;
  unsigned char* memory;
  int count;
};

/// A place in the ring.
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// The units of this block: `first` .. `end`.
struct Share {
  int first, end;
  __device__ __forceinline__ explicit Share(int units)
      : first((unsigned)units * blockIdx.x / gridDim.x), end((unsigned)units * (blockIdx.x + 1) / gridDim.x) {}
};

// ---- what the rows of units are -------------------------------------------------------------------------------------
//
// `units()`: their number; `run(unit, half)`: the first or second four rows of weights; `place(unit, r, row)`: what is loaded for the product
// of row r with an activation row before it is known; `put(place, sum, factor)`: stores it, unless `place` is none (`{}`). PRECOND of put: a
// whole warp, of which lane i has row i % UNIT of a unit.

constexpr int RUN = UNIT / 2;

/// Rows of weights that follow each other, from output `first` on; beyond the matrix, the last one again.
struct Run {
  const __half* w;
  int first, last;
  __device__ __forceinline__ Run(const MatrixJob& job, int out) : w(static_cast<const __half*>(job.w)), first(out), last(job.outs - 1) {}
  __device__ __forceinline__ const __half* row(int r, int k) const { return w + (size_t)min(first + r, last) * k; }
};

struct Plain {
  const MatrixJobs& jobs;
  bool accumulate;
  struct Place {
    float* y;  // null: there is no such output
    float before;
    FinishOne finish;
  };

  __device__ __forceinline__ int units() const { return jobs.blocks(UNIT); }
  __device__ __forceinline__ Run run(int unit, int half) const {
    const MatrixJob job = jobs.find(unit, UNIT);
    return Run(job, unit * UNIT + half * RUN);
  }
  __device__ __forceinline__ Place place(int unit, int r, int row) const {
    const MatrixJob job = jobs.find(unit, UNIT);
    const int out = unit * UNIT + r;
    float* const y = out < job.outs ? job.y + (size_t)row * job.outs + out : nullptr;
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
    float* y;  // of one that is not rotated
  };

  /// The output of row r.
  __device__ __forceinline__ int out(int number, int unit, int r) const {
    if (!to.cos || number == 2) return unit * UNIT + r;
    const int half = to.head_dim / 2, of_head = to.head_dim / UNIT, head = unit / of_head;
    return head * to.head_dim + (unit - head * of_head) * (UNIT / 2) + r % (UNIT / 2) + r / (UNIT / 2) * half;
  }
  __device__ __forceinline__ int units() const { return jobs.blocks(UNIT); }
  __device__ __forceinline__ Run run(int unit, int half) const {
    const int number = jobs.number(unit, UNIT);
    return Run(jobs.get(number), out(number, unit, half * RUN));
  }
  __device__ __forceinline__ Place place(int unit, int r, int row) const {
    const int number = jobs.number(unit, UNIT), own = out(number, unit, r);
    const MatrixJob job = jobs.get(number);
    const FinishOne finish(job, min(own, job.outs - 1));
    if (!to.cos) return {finish, {}, own < job.outs ? job.y + (size_t)row * job.outs + own : nullptr};
    return {finish, PairPlace(to, job, number, row, own, out(number, unit, r % (UNIT / 2) + UNIT / 2)), nullptr};
  }
  __device__ __forceinline__ void put(const Place& place, float sum, float factor) const {
    const float result = place.finish.of<__half>(sum, factor);
    const float partner = __shfl_xor_sync(FULL_WARP, result, UNIT / 2);
    if (place.y) *place.y = result;
    if (threadIdx.x % UNIT < UNIT / 2 && place.pair.there) place.pair.put(to, {result, partner});
  }
};

struct Gated {
  const MatrixJobs& jobs;
  int activation;
  struct Place {
    float* y;
    FinishOne finish;
  };
  static constexpr int GATES = UNIT / 2;

  __device__ __forceinline__ int units() const { return ceil_div(jobs.job[0].outs, GATES); }
  __device__ __forceinline__ Run run(int unit, int half) const { return Run(half == 0 ? jobs.job[0] : jobs.job[1], unit * GATES); }
  __device__ __forceinline__ Place place(int unit, int r, int row) const {
    const int out = unit * GATES + r % GATES, outs = jobs.job[0].outs;
    return {out < outs ? jobs.job[0].y + (size_t)row * outs + out : nullptr, FinishOne(r < GATES ? jobs.job[0] : jobs.job[1], min(out, outs - 1))};
  }
  __device__ __forceinline__ void put(const Place& place, float sum, float factor) const {
    const float result = place.finish.of<__half>(sum, factor), up = __shfl_xor_sync(FULL_WARP, result, GATES);
    if (threadIdx.x % UNIT < GATES && place.y) *place.y = activate(result, activation) * up;
  }
};

/// The copies of all slices of the block's tiles of UNITS units. PRECOND: one warp.
template <int UNITS, class Rows>
__device__ __forceinline__ void copy_slices(const Stages& stages, const Rows& rows, int k) {
  const Share share(rows.units());
  Turn turn;
#pragma unroll 1
  for (int unit = share.first; unit < share.end; unit += UNITS) {
    const int runs = 2 * min(UNITS, share.end - unit);
    const __half* from[2 * UNITS][RUN];
#pragma unroll
    for (int i = 0; i < 2 * UNITS; ++i) {
      const Run run = rows.run(min(unit + i / 2, share.end - 1), i % 2);
#pragma unroll
      for (int r = 0; r < RUN; ++r) from[i][r] = run.row(r, k);
    }
#pragma unroll 1
    for (int at = 0; at < k; at += SLICE, turn.next(stages.count)) {
      const int bytes = min(k - at, SLICE) * 2;
      Mbarrier* const full = stages.full + turn.stage;
      unsigned char* const to = stages.memory + turn.stage * (UNITS * UNIT * PITCH);
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

}  // namespace ring
}  // namespace gemv
#endif
