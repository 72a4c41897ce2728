// Products of many activation rows with weight matrices on the tensor cores, for prefill and ensembles:
// y[r, o] (+)= scales[o] * sum over k of x_scales[r, k / 32] x[r, k] w[o, k] (+ bias[o]).
//
// Activations are one f16 value each, with powers of two (rounded.cuh): rms_norm_f16 (norm.cu), attn_prefill.cu and
// gemm_gated write them, round_rows makes them from any f32. For the cost, see RESULTS.md, precision.
//
// A block of 4 warps computes M rows x M outputs, M = 64 or 128, each warp a quarter: as many rows as outputs, which minimises the
// traffic of L2, shared memory and registers per multiplication. With GATED, half of the
// outputs are the gate's and the other half the same ones of up; a lane has both, so that their sums never leave it. Slices of
// 64 elements of k, a line of 128 bytes per row, pass through shared memory by cp.async, the next ones while one is
// multiplied. The tensor core's accumulators truncate, so no chain there is longer than 32 elements: its sum is then scaled by its power
// of two and added to float32 sums, which also leaves room for 64 x 64 of them in a warp's registers. The order of sums depends on k only:
// a row has the same bits in every chunk, at every position, with either M.
//
//   gemm_m{64,128}        (x, jobs, n, k, accumulate)
//   gemm_gated_m{64,128}  (x, jobs, n, k, activation)                    y of job 0 = act(its sums) * sums of job 1; or rounded
//   round_rows            (x, width, to)                                 to <- x, one power of two per row
//
//   x           [n, k], rounded; round_rows: [rows, width] f32     jobs        matrices over the same x, f16 (MatrixJobs)
//   accumulate  0: y is written; 1: y is added to                  activation  0 SiLU, 1 GELU (tanh)
//   to          [rows, width]
//
// PRECOND: gemm*: grid (ceil(n / m), sum over jobs of ceil(outs / m), gated: ceil(2 outs / m)), block 128; k a multiple
//   of 8, outs of 2; x, w, y, scales and biases aligned to 16 bytes; dynamic shared memory NAME_shared_bytes (more than
//   48 KiB, so that the limit must be raised).
// m64 is for few rows; a block's missing rows cost time, not correctness.
// PRECOND: round_rows: grid rows, block 1024, dynamic shared memory NAME_shared_bytes; width a multiple of 4.
#include "dense.cuh"

namespace gemm {

constexpr int BK = 64;                 // elements of k in a stage
constexpr int LINE = BK * 2;           // bytes per row in a stage
constexpr int CHUNKS = LINE / 16;      // 16-byte copies per row
constexpr int CHAIN = 32;              // elements of k that a tensor core adds up
constexpr int THREADS = 128, ROWS_AT_ONCE = THREADS / CHUNKS;  // rows that the block copies together

/// Sizes of a block of M rows and M rows of weights; its warps are arranged two by two.
template <int M>
struct Tile {
  static constexpr int PART = M / 2;                      // rows, and rows of weights, per warp
  static constexpr int M_TILES = PART / 16, N_TILES = PART / 8;
  static constexpr int COPIES = M / ROWS_AT_ONCE;         // per thread, of x and of w each
  static constexpr int SCALES = 2 * M * LINE;             // offset of a stage's powers of two, two per row: after the rows of x and of w
  static constexpr int STAGE = SCALES + M * 8;
  static constexpr int STAGES = M == 64 ? 4 : 2, BYTES = STAGES * STAGE;  // few rows are memory-bound, many compute-bound
  static constexpr int SHARED = BYTES + (PART / 2 < SHARING ? M * 8 : 0);  // maxima, if two warps' gates share a power
};

/// A thread's share of the copy of each slice: one chunk of some rows. A row's chunks are permuted by its number, so that
/// ldmatrix has no bank conflicts. Rows beyond the last are zeros.
template <int M, bool GATED>
struct Copies {
  static constexpr int COPIES = Tile<M>::COPIES, OF_GATE = GATED ? COPIES / 2 : COPIES;
  const __half *x, *w, *up;  // this thread's chunk of its first rows; of w: of the gate, and of up
  const float* scales;       // of row threadIdx.x of the block
  bool scaled;               // whether that row exists
  int rows, outs;            // remaining from the first rows on
  size_t stride;             // elements to its next row
  unsigned char* to;
  int left;                  // elements of k from the next slice on

  /// For rows from `row` of n on, and outputs from `out` on.
  __device__ __forceinline__ void begin(const RoundedRows& xs, const MatrixJob& job, const MatrixJob& second, int row, int n,
                                        int out, int k) {
    const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const size_t first = (size_t)(out + own) * k + 8 * chunk;
    x = xs.values + (size_t)(row + own) * k + 8 * chunk;
    scales = xs.scales + (size_t)(row + threadIdx.x) * row_scales(k);
    scaled = threadIdx.x < M && (int)threadIdx.x < n - row;
    w = static_cast<const __half*>(job.w) + first;
    up = static_cast<const __half*>(second.w) + first;
    rows = n - row - own, outs = job.outs - out - own;
    stride = (size_t)ROWS_AT_ONCE * k;
    to = dyn_smem + own * LINE + (chunk ^ own % 8) * 16;
    left = k;
  }

  /// Starts the copies of the next slice into a stage; zeros beyond k. Always commits a group, to keep the count.
  __device__ __forceinline__ void fetch(int stage) {
    unsigned char* place = to + stage;
    const bool on = left > (int)(threadIdx.x % CHUNKS * 8);
#pragma unroll
    for (int i = 0; i < COPIES; ++i)
      cp_async16(place + i * ROWS_AT_ONCE * LINE, x + i * stride, on && i * ROWS_AT_ONCE < rows);
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const int row = i % OF_GATE;
      const __half* from = (i < OF_GATE ? w : up) + row * stride;
      cp_async16(place + (M + i * ROWS_AT_ONCE) * LINE, from, on && row * ROWS_AT_ONCE < outs);
    }
    if (threadIdx.x < M)
      cp_async8(dyn_smem + stage + Tile<M>::SCALES + threadIdx.x * 8, scales, !scaled || left <= 0 ? 0 : left <= CHAIN ? 4 : 8);
    x += BK, w += BK, up += BK, scales += BK / SHARING, left -= BK;
    cp_commit();
  }
};

/// A warp's part of a block. With GATED, tiles alternate between the gate and up.
template <int M, bool GATED>
struct Warp {
  using Layout = Tile<M>;
  static constexpr int M_TILES = Layout::M_TILES, N_TILES = Layout::N_TILES, STEPS = CHAIN / 16;
  static constexpr int OUTS = GATED ? Layout::PART / 2 : Layout::PART;
  static constexpr int SECOND = GATED ? M / 2 : 8, NEXT = GATED ? 8 : 16;  // rows to the other tile of a pair, and to the next pair
  float sum[M_TILES][N_TILES][4];  // [16 rows each][8 outputs each], as mma leaves them
  unsigned x, w;                   // ldmatrix offsets from dyn_smem, for the first stage and the first 16 elements of k

  __device__ __forceinline__ static int first_row() { return threadIdx.x / 32 % 2 * Layout::PART; }
  __device__ __forceinline__ static int first_out() { return threadIdx.x / 64 * OUTS; }

  __device__ __forceinline__ void begin() {
    const int lane = threadIdx.x % 32;
    // of x, lanes 0 .. 15: rows 0 .. 15, k 0 .. 7, lanes 16 .. 31: k 8 .. 15; of w, eight lanes each: outputs 0 .. 7 of one
    // tile with k 0 or 8, then of the other tile with k 0 or 8
    x = (first_row() + lane % 16) * LINE + (lane / 16 ^ lane % 8) * 16;
    w = (M + first_out() + lane / 16 * SECOND + lane % 8) * LINE + (lane / 8 % 2 ^ lane % 8) * 16;
#pragma unroll
    for (int i = 0; i < M_TILES * N_TILES * 4; ++i) sum[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] = 0.0f;
  }

  /// sum += the products over the slice of k in a stage, times the rows' powers of two. Consecutive groups of 16 elements of k are
  /// two chunks apart, both before and after the permutation.
  __device__ __forceinline__ void multiply(int stage) {
#pragma unroll 1
    for (int first = 0; first < BK; first += CHAIN) {
      unsigned a[M_TILES][STEPS][4];
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int m = 0; m < M_TILES; ++m)
          ldmatrix_x4(a[m][step], dyn_smem + ((x + stage) ^ (first / 8 + 2 * step) * 16) + m * 16 * LINE);
      float scale[M_TILES][2];
      const unsigned char* scales = dyn_smem + stage + Layout::SCALES + (first_row() + threadIdx.x % 32 / 4) * 8 + first / CHAIN * 4;
#pragma unroll
      for (int i = 0; i < 2 * M_TILES; ++i) scale[i / 2][i % 2] = *reinterpret_cast<const float*>(scales + i * 64);
#pragma unroll
      for (int pair = 0; pair < N_TILES; pair += 2) {
        unsigned b[STEPS][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
          ldmatrix_x4(b[step], dyn_smem + ((w + stage) ^ (first / 8 + 2 * step) * 16) + pair / 2 * NEXT * LINE);
#pragma unroll
        for (int i = 0; i < 2 * M_TILES; ++i) {
          const int m = i / 2, tile = i % 2;
          float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
          for (int step = 0; step < STEPS; ++step) {
            const unsigned of_tile[2] = {b[step][2 * tile], b[step][2 * tile + 1]};
            mma_m16n8k16<__half>(c, a[m][step], of_tile);
          }
#pragma unroll
          for (int part = 0; part < 4; ++part) {
            float& to = sum[m][pair + tile][part];
            to = fmaf(c[part], scale[m][part / 2], to);
          }
        }
      }
    }
  }

  /// Lane 4g + t has rows g and g + 8, outputs 2t and 2t + 1 of each tile. `mode`: accumulate, or the activation.
  __device__ __forceinline__ void store(const MatrixJob& job, const MatrixJob& up, int block_row, int block_out, int n,
                                        int mode) {
    constexpr int TILES = GATED ? N_TILES / 2 : N_TILES;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float2* maxima = reinterpret_cast<float2*>(dyn_smem + Layout::BYTES);  // [2 halves of the outputs, rows / 2]
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
      // if a warp has half of the values that share a power of two, the other half is in the other warp with the same rows
      const auto of_all = [&](float2 max) {
        if constexpr (OUTS < SHARING) {
          float2* const of_rows = maxima + (first_row() / 16 + m) * 8 + g;
          if (t == 0) of_rows[threadIdx.x / 64 * (M / 2)] = max;
          __syncthreads();
          const float2 other = of_rows[(1 - threadIdx.x / 64) * (M / 2)];
          max = make_float2(fmaxf(max.x, other.x), fmaxf(max.y, other.y));
        }
        return max;
      };
      store_products<GATED, TILES>(
          job, up, block_row + first_row() + m * 16 + g, block_out + first_out() + 2 * t, n, mode,
          [&](int tile, int i) { return sum[m][GATED ? 2 * tile : tile][i]; },
          [&](int tile, int i) { return sum[m][2 * tile + 1][i]; }, of_all);
    }
  }
};

template <int M, bool GATED>
__device__ __forceinline__ void product(const RoundedRows& x, const MatrixJobs& jobs, int n, int k, int mode) {
  constexpr int OUTS = GATED ? M / 2 : M, STAGE = Tile<M>::STAGE, STAGES = Tile<M>::STAGES, END = Tile<M>::BYTES;
  PRECOND_GRID(ceil_div(n, M), GATED ? ceil_div(jobs.job[0].outs, OUTS) : jobs.blocks(OUTS));
  start_early();
  const int row = blockIdx.x * M;
  Copies<M, GATED> copies;
  {
    int block = blockIdx.y;
    const MatrixJob job = GATED ? jobs.job[0] : jobs.find(block, OUTS);
    copies.begin(x, job, jobs.job[1], row, n, block * OUTS, k);
  }
  Warp<M, GATED> warp;
  warp.begin();
  for (int stage = 0; stage < STAGES - 1; ++stage) copies.fetch(stage * STAGE);
  int read = 0;
#pragma unroll 1
  for (int done = 0; done < k; done += BK) {
    cp_wait<STAGES - 2>();
    __syncthreads();  // this slice is visible to all, and all are done with the stage that is filled next
    copies.fetch(read == 0 ? END - STAGE : read - STAGE);
    warp.multiply(read);
    read = read + STAGE == END ? 0 : read + STAGE;
  }
  int block = blockIdx.y;
  const MatrixJob job = GATED ? jobs.job[0] : jobs.find(block, OUTS);
  const int out = block * OUTS;
  warp.store(job, jobs.job[1], row, out, n, mode);
}

}  // namespace gemm

#define GEMM_KERNELS(M, BLOCKS)                                                            \
  SHARED_BYTES(gemm_m##M, gemm::Tile<M>::BYTES)                                            \
  SHARED_BYTES(gemm_gated_m##M, gemm::Tile<M>::SHARED)                                     \
  STARTS_EARLY(gemm_m##M)                                                                  \
  STARTS_EARLY(gemm_gated_m##M)                                                            \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                \
      gemm_m##M(RoundedRows x, MatrixJobs jobs, int n, int k, int accumulate) {            \
    gemm::product<M, false>(x, jobs, n, k, accumulate);                                    \
  }                                                                                        \
  extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                \
      gemm_gated_m##M(RoundedRows x, MatrixJobs jobs, int n, int k, int activation) {      \
    gemm::product<M, true>(x, jobs, n, k, activation);                                     \
  }
GEMM_KERNELS(64, 4)
GEMM_KERNELS(128, 2)
#undef GEMM_KERNELS

SHARED_BYTES(round_rows, 1024 / 32 * 4)
STARTS_EARLY(round_rows)
extern "C" __global__ void __launch_bounds__(1024)
    round_rows(const float* x, int width, RoundedRows to) {
  start_early();
  const float4* row = reinterpret_cast<const float4*>(x + (size_t)blockIdx.x * width);
  round_row<1024>([&](int i, int) { return row[i]; }, width, to, reinterpret_cast<float*>(dyn_smem));
}
