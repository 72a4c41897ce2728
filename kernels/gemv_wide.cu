// gemv.cu's products for up to 256 rows, bit-identical. Beyond 64 rows, tensor cores and L2 traffic are the limits: a block has
// M = 64 or 128 rows and 128 outputs, each warp 16 of the rows. A warp does one after the other what gemv.cu's eight
// warps do in parallel, and adds up their sums in the same way. Rows arrive as the two f16 terms that gemv.cu splits
// them into, written by split_rows, with a norm if there is one: repeated in each block, that would take longer than the products.
//
// A line of k, of 128 outputs and of both terms of the rows, is copied to shared memory while the previous one is multiplied; mma
// operands are read by ldmatrix. At the end, sums pass through shared memory, so that a thread has one output of all rows.
//
//   split_rows       (x, norm_weight, norm_offset, eps, terms, factors, width)
//   gemv_wide_m{64,128}        (terms, factors, jobs, k, rows, accumulate)
//   gemv_wide_gated_m{64,128}  (terms, factors, jobs, k, rows, activation)
//
//   x            [rows, width] f32
//   norm_weight  [width] f32 or null: no norm
//   terms        [2, rows, k] f16: of x, or of x (norm_weight + norm_offset)
//   factors      [rows] f32, of the norm; 1 without a norm
//   jobs         as in gemv.cu, f16
//
// PRECOND: split_rows: grid rows, block 256, dynamic shared memory split_rows_shared_bytes.
// PRECOND: gemv_wide*: block 2 m; grid (sum over jobs of ceil(outs / 128), gated ceil(outs / 64), ceil(rows / m)); dynamic
//   shared memory NAME_shared_bytes (more than 48 KiB, so that the limit must be raised).
// PRECOND: k a multiple of 8; pointers aligned to 16 bytes; y is not x.
#include "gemv.cuh"

namespace wide {

using namespace gemv;

constexpr int OUTS = 128;                        // per block
constexpr int BATCHES = 2, TILES = OUTS / TILE;  // per warp: batches of 8 rows, tiles of 16 outputs
constexpr int TERMS = Operand<__half>::X_TERMS;
constexpr int LINE = LINE_BYTES / 2;  // elements of k
constexpr int CHUNKS = LINE_BYTES / 16;
constexpr int PITCH = OUTS + 4;  // floats between rows of sums: a warp's writes fall in different banks

/// Sizes of a block of M rows.
template <int M>
struct Block {
  static constexpr int THREADS = M / (8 * BATCHES) * 32, AT_ONCE = THREADS / CHUNKS;  // AT_ONCE: lines copied together
  static constexpr int W_BYTES = OUTS * LINE_BYTES, X_BYTES = M * LINE_BYTES, STAGE = W_BYTES + TERMS * X_BYTES;
  static constexpr int BYTES = 2 * STAGE;
  static_assert(M * PITCH * 4 <= BYTES, "sums take the lines' place");
};

// ---- rows as terms --------------------------------------------------------------------------------------------------

/// Writes a row's terms; returns the sum of this warp's squares.
template <bool NORM>
__device__ __forceinline__ float split_row(const float* x, const float* norm_weight, float norm_offset, __half* high, __half* low,
                                           int width) {
  return split_steps<__half, NORM, 1>(x, norm_weight, norm_offset, width, [&](int first, const unsigned (&terms)[TERMS][4]) {
    const int own = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + 8 * i >= width) break;
      *reinterpret_cast<unsigned*>(high + own + 8 * i) = terms[0][i];
      *reinterpret_cast<unsigned*>(low + own + 8 * i) = terms[1][i];
    }
  });
}

// ---- products -------------------------------------------------------------------------------------------------------

/// A thread's share of the copy of each line: one chunk of 16 bytes of some outputs, and of some rows' terms; zeros beyond k, the
/// last output and the last row.
template <int M, bool GATED>
struct Copies {
  static constexpr int AT_ONCE = Block<M>::AT_ONCE, COPIES = OUTS / AT_ONCE;
  static constexpr int OF_GATE = GATED ? COPIES / 2 : COPIES;  // the rest are up's
  const __half *w, *up, *x;  // of the next line; x: the first term
  size_t k, second_term;     // elements from one output or row to the next, and between the terms
  int outs, rows;            // remaining from this thread's first on
  int to;                    // in a stage
  int left;                  // elements of k from this thread's chunk of the next line on

  /// For outputs from `first_out` on, also of up, and rows from `first_row` of n on.
  __device__ __forceinline__ Copies(const MatrixJob& job, const void* second, int first_out, const __half* terms,
                                    int first_row, int n, int width) {
    const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    k = width, second_term = (size_t)n * width;
    left = width - 8 * chunk;
    const size_t first = (first_out + own) * k + 8 * chunk;
    w = static_cast<const __half*>(job.w) + first, up = static_cast<const __half*>(second) + first;
    x = terms + (first_row + own) * k + 8 * chunk;
    outs = job.outs - first_out - own, rows = n - first_row - own;
    to = own * LINE_BYTES + (chunk ^ own % 8) * 16;  // permuted by the line's number, so that ldmatrix has no bank conflicts
  }

  /// Starts the copies of the next line into a stage.
  __device__ __forceinline__ void fetch_weights(int stage) const {
    unsigned char* place = dyn_smem + stage + to;
    const bool on = left > 0;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const int out = i % OF_GATE * AT_ONCE;
      cp_async16(place + i * AT_ONCE * LINE_BYTES, (i < OF_GATE ? w : up) + out * k, on && out < outs);
    }
  }
  __device__ __forceinline__ void fetch_rows(int stage) const {
    unsigned char* place = dyn_smem + stage + Block<M>::W_BYTES + to;
    const bool on = left > 0;
#pragma unroll
    for (int i = 0; i < M; i += AT_ONCE) {
      cp_async16(place + i * LINE_BYTES, x + i * k, on && i < rows);
      cp_async16(place + Block<M>::X_BYTES + i * LINE_BYTES, x + second_term + i * k, on && i < rows);
    }
    cp_commit();
  }
  /// Advances to the line that is `lines` after the next one.
  __device__ __forceinline__ void skip(int lines) {
    const int elements = lines * LINE;
    w += elements, up += elements, x += elements, left -= elements;
  }
};

/// A warp's sums of 16 rows and all outputs.
struct Sums {
  float y[TILES][BATCHES][4];  // as mma leaves them

  __device__ __forceinline__ float& at(int i) { return y[i / (BATCHES * 4)][i / 4 % BATCHES][i % 4]; }

  /// Adds a line from a stage.
  template <int M>
  __device__ __forceinline__ void add_line(int stage) {
    constexpr int W_BYTES = Block<M>::W_BYTES, X_BYTES = Block<M>::X_BYTES;
    const int lane = threadIdx.x % 32;
    // of a row's term, lanes 8j .. address the j-th eight elements of a step
    const int x_from =
        stage + W_BYTES + (threadIdx.x / 32 * 8 * BATCHES + lane % 8) * LINE_BYTES + (lane / 8 ^ lane % 8) * 16;
    const int w_from = stage + lane % 16 * LINE_BYTES + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
    for (int step = 0; step < LINE / STEP; ++step) {
      unsigned x[BATCHES][TERMS][4];
#pragma unroll
      for (int i = 0; i < BATCHES * TERMS; ++i) {
        const int b = i / TERMS, term = i % TERMS;
        ldmatrix_x4(x[b][term], dyn_smem + (x_from ^ step * 64) + term * X_BYTES + b * 8 * LINE_BYTES);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        StepWeights<__half> w;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ldmatrix_x4(w.halves[half][0], dyn_smem + (w_from ^ (2 * step + half) * 32) + tile * TILE * LINE_BYTES);
#pragma unroll
        for (int b = 0; b < BATCHES; ++b) multiply_step<__half>(y[tile][b], w, x[b]);
      }
    }
  }
};

/// Multiplies all lines of k, in the order of gemv.cu's sums; with `job` and, with GATED, the second job's weights. The sums go to
/// shared memory, [M][PITCH]; ends with a block barrier.
template <int M, bool GATED>
__device__ __forceinline__ const float* multiply(const __half* terms, const MatrixJob& job, const void* second,
                                                 int first_out, int k, int rows) {
  constexpr int COUNT = TILES * BATCHES * 4, STAGE = Block<M>::STAGE;
  const int lines = ceil_div(k, LINE);
  Copies<M, GATED> copies(job, second, first_out, terms, blockIdx.y * M, rows, k);
  copies.fetch_weights(0);
  wait_for_earlier_grids();  // weights are no kernel's output
  copies.fetch_rows(0);
  Sums total;
  int stage = 0;
#pragma unroll 1
  for (int warp = 0; warp < WARPS; ++warp) {  // of gemv.cu
    Sums part = {};
#pragma unroll 1
    for (int line = warp; line < lines; line += WARPS) {
      const int after = line + WARPS < lines ? line + WARPS : warp + 1, other = STAGE - stage;
      cp_wait<0>();
      __syncthreads();  // this line is visible to all, and all are done with the stage that is filled next
      copies.skip(after - line);
      // line WARPS follows line 0, but is also computed as the successor of the last line: that copy would overwrite the sums
      if (after < lines && (after != WARPS || line == 0)) copies.fetch_weights(other), copies.fetch_rows(other);
      part.add_line<M>(stage);
      stage = other;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) total.at(i) = warp == 0 ? part.at(i) : total.at(i) + part.at(i);
  }
  float* sums = reinterpret_cast<float*>(dyn_smem);
  const int g = threadIdx.x % 32 / 4, first_row = threadIdx.x / 32 * 8 * BATCHES + threadIdx.x % 4 * 2;
  __syncthreads();  // the lines are no longer read
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int out = i / (4 * BATCHES) * TILE + g + i % 4 / 2 * 8, row = first_row + i / 4 % BATCHES * 8 + i % 2;
    sums[row * PITCH + out] = total.at(i);
  }
  __syncthreads();  // the sums are visible to all
  return sums;
}

/// A thread writes one output of every PARTS-th row.
template <int M>
__device__ __forceinline__ void plain(const __half* terms, const float* factors, const MatrixJobs& jobs, int k,
                                      int rows, int accumulate) {
  constexpr int PARTS = Block<M>::THREADS / OUTS, TOGETHER = 16;  // TOGETHER: rows whose y is loaded together
  PRECOND_GRID(jobs.blocks(OUTS), ceil_div(rows, M));
  let_next_grid_start();
  int block = blockIdx.x;
  const MatrixJob job = jobs.find(block, OUTS);
  const float* sums = multiply<M, false>(terms, job, nullptr, block * OUTS, k, rows) + threadIdx.x % OUTS;
  const int out = block * OUTS + threadIdx.x % OUTS, first_row = blockIdx.y * M, count = min(M, rows - first_row);
  if (out >= job.outs) return;
  float* y = job.y + (size_t)first_row * job.outs + out;
#pragma unroll 1
  for (int first = threadIdx.x / OUTS; first < count; first += PARTS * TOGETHER) {
    float before[TOGETHER], factor[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int row = first + i * PARTS;
      factor[i] = row < count ? factors[first_row + row] : 0.0f;
      before[i] = accumulate && row < count ? y[(size_t)row * job.outs] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      const int row = first + i * PARTS;
      if (row >= count) break;
      const float result = finish<__half>(job, out, sums[row * PITCH], factor[i]);
      y[(size_t)row * job.outs] = accumulate ? before[i] + result : result;
    }
  }
}

/// Half of the tiles are the gate's, the other half up's.
template <int M>
__device__ __forceinline__ void gated(const __half* terms, const float* factors, const MatrixJobs& jobs, int k,
                                      int rows, int activation) {
  constexpr int GATES = OUTS / 2;
  const MatrixJob &gate = jobs.job[0], &up = jobs.job[1];
  PRECOND_GRID(ceil_div(gate.outs, GATES), ceil_div(rows, M));
  let_next_grid_start();
  const float* all_sums = multiply<M, true>(terms, gate, up.w, blockIdx.x * GATES, k, rows);
  const int slot = threadIdx.x % GATES, out = blockIdx.x * GATES + slot;
  const int first_row = blockIdx.y * M, count = min(M, rows - first_row);
  if (out >= gate.outs) return;
  for (int row = threadIdx.x / GATES; row < count; row += Block<M>::THREADS / GATES) {
    const float factor = factors[first_row + row], *sums = all_sums + row * PITCH + slot;
    const float g = finish<__half>(gate, out, sums[0], factor), u = finish<__half>(up, out, sums[GATES], factor);
    gate.y[(size_t)(first_row + row) * gate.outs + out] = activate(g, activation) * u;
  }
}

}  // namespace wide

SHARED_BYTES(split_rows, 4 * gemv::WARPS)
STARTS_EARLY(split_rows)
extern "C" __global__ void __launch_bounds__(256)
    split_rows(const float* x, const float* norm_weight, float norm_offset, float eps, __half* terms, float* factors,
               int width) {
  start_early();
  float* squares = reinterpret_cast<float*>(dyn_smem);  // of each warp
  const size_t first = (size_t)blockIdx.x * width;
  __half *high = terms + first, *low = high + (size_t)gridDim.x * width;
  if (!norm_weight) {
    wide::split_row<false>(x + first, nullptr, 0.0f, high, low, width);
    if (threadIdx.x == 0) factors[blockIdx.x] = 1.0f;
    return;
  }
  const float own = wide::split_row<true>(x + first, norm_weight, norm_offset, high, low, width);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = squares[0];
  for (int warp = 1; warp < gemv::WARPS; ++warp) sum += squares[warp];
  factors[blockIdx.x] = norm_factor(sum, width, eps);
}

#define GEMV_WIDE(M, BLOCKS)                                                                                      \
  SHARED_BYTES(gemv_wide_m##M, wide::Block<M>::BYTES)                                                             \
  SHARED_BYTES(gemv_wide_gated_m##M, wide::Block<M>::BYTES)                                                       \
  STARTS_EARLY(gemv_wide_m##M)                                                                                    \
  STARTS_EARLY(gemv_wide_gated_m##M)                                                                              \
  extern "C" __global__ void __launch_bounds__(2 * M, BLOCKS)                                                     \
      gemv_wide_m##M(const __half* terms, const float* factors, MatrixJobs jobs, int k, int rows, int accumulate) { \
    wide::plain<M>(terms, factors, jobs, k, rows, accumulate);                                                    \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(2 * M, BLOCKS)                                                     \
      gemv_wide_gated_m##M(const __half* terms, const float* factors, MatrixJobs jobs, int k, int rows,           \
                           int activation) {                                                                      \
    wide::gated<M>(terms, factors, jobs, k, rows, activation);                                                    \
  }
GEMV_WIDE(64, 2)
GEMV_WIDE(128, 1)
#undef GEMV_WIDE
