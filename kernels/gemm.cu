// Products of many activation rows with weight matrices on the tensor cores, for prefill and ensembles:
// y[r, o] (+)= x_scales[r] scales[o] * sum over k of x[r, k] w[o, k] (+ bias[o]).
//
// Activations are one f16 number each, with a power of two for each row (round_row in dense.cuh): rms_norm_f16 (norm.cu)
// writes them, round_rows makes them of any f32. What that costs: RESULTS.md, precision.
//
// A block of 8 warps computes BM rows x 64 outputs, each warp 32 rows x 32 (BM = 128) or 16 (BM = 64) outputs; with
// GATED 32 outputs of the gate and the same 32 of up, of which a lane has both, so that their sums never leave it. Slices
// of 64 elements of k, a line of 128 bytes a row, come through three shared-memory stages by cp.async, two of them in
// flight. The tensor core's accumulators truncate, so no chain there is longer than a slice: slices are added up in
// float32. The order of sums depends on k alone: a row has the same bits in every chunk, at every place, with either BM.
//
//   gemm_m{64,128}        (x, x_scales, jobs, n, k, accumulate)
//   gemm_gated_m{64,128}  (x, x_scales, jobs, n, k, activation)          y of job 0 = act(its sums) * sums of job 1
//   round_rows            (x, to, scales, width)                         to, scales <- x, row by row
//   scale_products        (products, x_scales, scales, y, count, outs, accumulate)  of a library that multiplies f16 alone
//
//   x           [n, k] f16; round_rows: [rows, width] f32      x_scales    [n] f32
//   jobs        matrices over the same x, f16 (MatrixJobs)     accumulate  0: y is written; 1: y is added to
//   activation  0 SiLU, 1 GELU (tanh)
//   to, scales  [rows, width] f16, [rows] f32                  products, y [rows, outs], count numbers of f32; y may be products
//
// PRECOND: gemm*: grid (ceil(n / m), sum over jobs of ceil(outs / 64), gated: ceil(outs / 32)), block 256; k a multiple
//   of 8; x and w aligned to 16 bytes; dynamic shared memory NAME_shared_bytes (more than 48 KiB, so that the limit must
//   be raised).
// m64 is for n <= 64; rows of a block that are not there cost time, not correctness.
// PRECOND: round_rows: grid rows, block 1024, dynamic shared memory NAME_shared_bytes; width a multiple of 4.
// PRECOND: scale_products: grid ceil(count / 1024), block 256, no shared memory; outs a multiple of 4; aligned to 16 bytes.
#include "dense.cuh"

namespace gemm {

constexpr int BN = 64;                 // rows of weights of a block: its outputs, or half of them the gate's
constexpr int BK = 64;                 // elements of k in a stage
constexpr int LINE = BK * 2;           // bytes of a row in a stage
constexpr int CHUNKS = LINE / 16;      // 16-byte copies of a row
constexpr int STAGES = 3;
constexpr int THREADS = 256, ROWS_AT_ONCE = THREADS / CHUNKS;  // rows that the block copies at once

/// Sizes of a block with BM rows.
template <int BM>
struct Tile {
  static constexpr int WARPS_M = BM / 32, WARPS_N = 8 / WARPS_M;
  static constexpr int OUTS = BN / WARPS_N;  // rows of weights of a warp
  static constexpr int N_TILES = OUTS / 8;
  static constexpr int X_COPIES = BM / ROWS_AT_ONCE, W_COPIES = BN / ROWS_AT_ONCE;  // of a thread
  static constexpr int STAGE = (BM + BN) * LINE, BYTES = STAGES * STAGE;            // rows of x, then of w
};

/// What a thread copies of each slice: one chunk of some rows. A row's chunks are permuted by its number, so that
/// ldmatrix meets no bank twice. Rows beyond the last are the last one again; their products are not stored.
template <int BM, bool GATED>
struct Copies {
  using Layout = Tile<BM>;
  const __half* x[Layout::X_COPIES];
  const __half* w[Layout::W_COPIES];
  unsigned char* to;
  int left;  // elements of k from this thread's chunk of the next slice on

  /// For rows from `row` of n on, and outputs from `out` on.
  __device__ __forceinline__ void begin(const __half* xs, const MatrixJob& job, const MatrixJob& up, int row, int n,
                                        int out, int k) {
    const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < Layout::X_COPIES; ++i)
      x[i] = xs + (size_t)min(row + own + i * ROWS_AT_ONCE, n - 1) * k + 8 * chunk;
#pragma unroll
    for (int i = 0; i < Layout::W_COPIES; ++i) {
      const int wanted = out + own + (GATED ? 0 : i * ROWS_AT_ONCE);
      w[i] = static_cast<const __half*>(GATED && i == 1 ? up.w : job.w) + (size_t)min(wanted, job.outs - 1) * k + 8 * chunk;
    }
    to = dyn_smem + own * LINE + (chunk ^ own % 8) * 16;
    left = k - 8 * chunk;
  }

  /// Starts the copies of the next slice into a stage; zeros beyond k. A group in any case, which keeps the count.
  __device__ __forceinline__ void fetch(int stage) {
    unsigned char* place = to + stage;
#pragma unroll
    for (int i = 0; i < Layout::X_COPIES; ++i) {
      cp_async16(place + i * ROWS_AT_ONCE * LINE, x[i], left > 0);
      x[i] += BK;
    }
#pragma unroll
    for (int i = 0; i < Layout::W_COPIES; ++i) {
      cp_async16(place + (BM + i * ROWS_AT_ONCE) * LINE, w[i], left > 0);
      w[i] += BK;
    }
    left -= BK;
    cp_commit();
  }
};

/// A warp's part of a block: 32 rows and OUTS rows of weights. With GATED, tiles are of the gate and of up in turns.
template <int BM, bool GATED>
struct Warp {
  using Layout = Tile<BM>;
  static constexpr int N_TILES = Layout::N_TILES;
  static constexpr int OUTS = GATED ? Layout::OUTS / 2 : Layout::OUTS;
  static constexpr int SECOND = GATED ? BN / 2 : 8, NEXT = GATED ? 8 : 16;  // rows to the other tile of a pair, to the next pair
  float sum[2][N_TILES][4];     // [16 rows each][8 outputs each], as mma leaves them
  const unsigned char* x[BK / 16];  // what ldmatrix takes of the first stage, for each 16 elements of k
  const unsigned char* w[BK / 16];

  __device__ __forceinline__ static int first_row() { return threadIdx.x / 32 % Layout::WARPS_M * 32; }
  __device__ __forceinline__ static int first_out() { return threadIdx.x / 32 / Layout::WARPS_M * OUTS; }

  __device__ __forceinline__ void begin() {
    const int lane = threadIdx.x % 32;
    // of x, lanes 0 .. 15: rows 0 .. 15, k 0 .. 7, lanes 16 .. 31: k 8 .. 15; of w, eight lanes each: outputs 0 .. 7 of a
    // tile and k 0 or 8, those of the other tile and k 0 or 8
    const unsigned char* row = dyn_smem + (first_row() + lane % 16) * LINE;
    const unsigned char* out = dyn_smem + (BM + first_out() + lane / 16 * SECOND + lane % 8) * LINE;
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
      x[step] = row + ((2 * step + lane / 16) ^ lane % 8) * 16;
      w[step] = out + ((2 * step + lane / 8 % 2) ^ lane % 8) * 16;
    }
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) sum[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] = 0.0f;
  }

  /// sum += the products over a slice of k, which lies in a stage.
  __device__ __forceinline__ void multiply(int stage) {
    float c[2][N_TILES][4];
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) c[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
      unsigned b[N_TILES][2];
#pragma unroll
      for (int tile = 0; tile < N_TILES; tile += 2) {
        unsigned four[4];
        ldmatrix_x4(four, w[step] + stage + tile / 2 * NEXT * LINE);
        b[tile][0] = four[0], b[tile][1] = four[1];
        b[tile + 1][0] = four[2], b[tile + 1][1] = four[3];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned a[4];
        ldmatrix_x4(a, x[step] + stage + half * 16 * LINE);
#pragma unroll
        for (int tile = 0; tile < N_TILES; ++tile) mma_m16n8k16<__half>(c[half][tile], a, b[tile]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i)
      sum[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] += c[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4];
  }

  /// A sum as the job wants it, but for what is there. The powers of two are exact.
  __device__ __forceinline__ static float finish(float sum, float x_scale, const MatrixJob& job, int out) {
    sum *= x_scale;
    if (job.scales) sum *= job.scales[out];
    return job.bias ? sum + job.bias[out] : sum;
  }

  /// Lane 4g + t has of each tile rows g and g + 8, outputs 2t and 2t + 1. `mode`: accumulate, or the activation.
  __device__ __forceinline__ void store(const MatrixJob& job, const MatrixJob& up, const float* x_scales, int block_row,
                                        int block_out, int n, int mode) {
    constexpr int TILES = GATED ? N_TILES / 2 : N_TILES;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * TILES * 4; ++i) {
      const int half = i / (TILES * 4), tile = i / 4 % TILES, part = i % 4;
      const int row = block_row + first_row() + half * 16 + g + part / 2 * 8;
      const int out = block_out + first_out() + tile * 8 + 2 * t + part % 2;
      if (row >= n || out >= job.outs) continue;
      float* to = job.y + (size_t)row * job.outs + out;
      if constexpr (GATED) {
        const float gate = finish(sum[half][2 * tile][part], x_scales[row], job, out);
        *to = activate(gate, mode) * finish(sum[half][2 * tile + 1][part], x_scales[row], up, out);
      } else {
        const float result = finish(sum[half][tile][part], x_scales[row], job, out);
        *to = mode ? *to + result : result;
      }
    }
  }
};

template <int BM, bool GATED>
__device__ __forceinline__ void product(const __half* x, const float* x_scales, const MatrixJobs& jobs, int n, int k,
                                        int mode) {
  constexpr int OUTS = GATED ? BN / 2 : BN, STAGE = Tile<BM>::STAGE, END = Tile<BM>::BYTES;
  PRECOND_GRID(ceil_div(n, BM), GATED ? ceil_div(jobs.job[0].outs, OUTS) : jobs.blocks(OUTS));
  start_early();
  int block = blockIdx.y;
  const MatrixJob job = GATED ? jobs.job[0] : jobs.find(block, OUTS);
  const int row = blockIdx.x * BM, out = block * OUTS;
  Copies<BM, GATED> copies;
  copies.begin(x, job, jobs.job[1], row, n, out, k);
  Warp<BM, GATED> warp;
  warp.begin();
  for (int stage = 0; stage < STAGES - 1; ++stage) copies.fetch(stage * STAGE);
  int read = 0, write = (STAGES - 1) * STAGE;
#pragma unroll 1
  for (int done = 0; done < k; done += BK) {
    cp_wait<STAGES - 2>();
    __syncthreads();  // this slice is there for all, and all have done with the stage that is fetched into next
    copies.fetch(write);
    warp.multiply(read);
    read = read + STAGE == END ? 0 : read + STAGE;
    write = write + STAGE == END ? 0 : write + STAGE;
  }
  warp.store(job, jobs.job[1], x_scales, row, out, n, mode);
}

}  // namespace gemm

#define GEMM_KERNELS(BM)                                                                                        \
  SHARED_BYTES(gemm_m##BM, gemm::Tile<BM>::BYTES)                                                               \
  SHARED_BYTES(gemm_gated_m##BM, gemm::Tile<BM>::BYTES)                                                         \
  STARTS_EARLY(gemm_m##BM)                                                                                      \
  STARTS_EARLY(gemm_gated_m##BM)                                                                                \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                          \
      gemm_m##BM(const __half* x, const float* x_scales, MatrixJobs jobs, int n, int k, int accumulate) {       \
    gemm::product<BM, false>(x, x_scales, jobs, n, k, accumulate);                                              \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                          \
      gemm_gated_m##BM(const __half* x, const float* x_scales, MatrixJobs jobs, int n, int k, int activation) { \
    gemm::product<BM, true>(x, x_scales, jobs, n, k, activation);                                               \
  }
GEMM_KERNELS(64)
GEMM_KERNELS(128)
#undef GEMM_KERNELS

SHARED_BYTES(round_rows, 1024 / 32 * 4)
STARTS_EARLY(round_rows)
extern "C" __global__ void __launch_bounds__(1024)
    round_rows(const float* x, __half* to, float* scales, int width) {
  start_early();
  const size_t first = (size_t)blockIdx.x * width;
  const float4* row = reinterpret_cast<const float4*>(x + first);
  round_row<1024>([&](int i) { return row[i]; }, width, to + first, scales + blockIdx.x,
                  reinterpret_cast<float*>(dyn_smem));
}

SHARED_BYTES(scale_products, 0)
extern "C" __global__ void __launch_bounds__(256)
    scale_products(const float* products, const float* x_scales, const float* scales, float* y, int count, int outs,
                   int accumulate) {
  PRECOND_GRID(ceil_div(count, 1024), 1);
  const size_t at = 4 * ((size_t)blockIdx.x * 256 + threadIdx.x);
  if (at >= (size_t)count) return;
  const int out = (int)(at % outs);
  const float row = x_scales[at / outs];
  float4* to = reinterpret_cast<float4*>(y + at);
  const float4 p = *reinterpret_cast<const float4*>(products + at);
  const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f), zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float4 s = scales ? *reinterpret_cast<const float4*>(scales + out) : one, old = accumulate ? *to : zero;
  *to = make_float4(old.x + p.x * row * s.x, old.y + p.y * row * s.y, old.z + p.z * row * s.z, old.w + p.w * row * s.w);
}
