// Products of many activation rows with weight matrices on the tensor cores, for prefill and ensembles:
// y[r, o] (+)= x_scales[r] scales[o] * sum over k of x[r, k] w[o, k] (+ bias[o]).
//
// Activations are one f16 number each, with a power of two for each row (round_row in dense.cuh): rms_norm_f16 and
// gated_act_f16 (norm.cu) write them, round_rows makes them of any f32. What that costs: RESULTS.md, precision.
//
// A block of 8 warps computes BM rows x 64 outputs, each warp 32 rows x 32 (BM = 128) or 16 (BM = 64) outputs. Slices
// of 64 elements of k, a line of 128 bytes a row, come through three shared-memory stages by cp.async, two of them in
// flight. The tensor core's accumulators truncate, so no chain there is longer than a slice: slices are added up in
// float32. The order of sums depends on k alone: a row has the same bits in every chunk, at every place, with either BM.
//
//   gemm_m{64,128}  (x, x_scales, jobs, n, k, accumulate)
//   round_rows      (x, to, scales, width)                               to, scales <- x, row by row
//   scale_products  (products, x_scales, scales, y, count, outs, accumulate)    of a library that multiplies f16 alone
//
//   x           [n, k] f16; round_rows: [rows, width] f32      x_scales    [n] f32
//   jobs        matrices over the same x, f16 (MatrixJobs)     accumulate  0: y is written; 1: y is added to
//   to, scales  [rows, width] f16, [rows] f32                  products, y [rows, outs], count numbers of f32
//
// PRECOND: gemm: grid (ceil(n / m), sum over jobs of ceil(outs / 64)), block 256; k a multiple of 8; x and w aligned to
//   16 bytes; dynamic shared memory NAME_shared_bytes (more than 48 KiB, so that the limit must be raised).
// m64 is for n <= 64; rows of a block that are not there cost time, not correctness.
// PRECOND: round_rows: grid rows, block 256, dynamic shared memory NAME_shared_bytes; width a multiple of 4.
// PRECOND: scale_products: grid ceil(count / 1024), block 256, no shared memory; outs a multiple of 4; aligned to 16 bytes.
#include "dense.cuh"

namespace gemm {

constexpr int BN = 64;                 // outputs of a block
constexpr int BK = 64;                 // elements of k in a stage
constexpr int LINE = BK * 2;           // bytes of a row in a stage
constexpr int CHUNKS = LINE / 16;      // 16-byte copies of a row
constexpr int STAGES = 3;
constexpr int THREADS = 256, ROWS_AT_ONCE = THREADS / CHUNKS;  // rows that the block copies at once

/// Sizes of a block with BM rows.
template <int BM>
struct Tile {
  static constexpr int WARPS_M = BM / 32, WARPS_N = 8 / WARPS_M;
  static constexpr int OUTS = BN / WARPS_N;  // of a warp
  static constexpr int N_TILES = OUTS / 8;
  static constexpr int X_COPIES = BM / ROWS_AT_ONCE, W_COPIES = BN / ROWS_AT_ONCE;  // of a thread
  static constexpr int STAGE = (BM + BN) * LINE, BYTES = STAGES * STAGE;            // rows of x, then of w
};

/// What a thread copies of each slice: one chunk of some rows. A row's chunks are permuted by its number, so that
/// ldmatrix meets no bank twice. Rows beyond the last are the last one again; their products are not stored.
template <int BM>
struct Copies {
  using Layout = Tile<BM>;
  const __half* x[Layout::X_COPIES];
  const __half* w[Layout::W_COPIES];
  unsigned char* to;
  int left;  // elements of k from this thread's chunk of the next slice on

  __device__ __forceinline__ void begin(const __half* xs, const __half* ws, int row, int rows, int out, int outs,
                                        int k) {
    const int own = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < Layout::X_COPIES; ++i)
      x[i] = xs + (size_t)min(row + own + i * ROWS_AT_ONCE, rows - 1) * k + 8 * chunk;
#pragma unroll
    for (int i = 0; i < Layout::W_COPIES; ++i)
      w[i] = ws + (size_t)min(out + own + i * ROWS_AT_ONCE, outs - 1) * k + 8 * chunk;
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

/// A warp's part of a block: 32 rows and OUTS outputs.
template <int BM>
struct Warp {
  using Layout = Tile<BM>;
  static constexpr int N_TILES = Layout::N_TILES;
  float sum[2][N_TILES][4];     // [16 rows each][8 outputs each], as mma leaves them
  const unsigned char* x[BK / 16];  // what ldmatrix takes of the first stage, for each 16 elements of k
  const unsigned char* w[BK / 16];

  __device__ __forceinline__ static int first_row() { return threadIdx.x / 32 % Layout::WARPS_M * 32; }
  __device__ __forceinline__ static int first_out() { return threadIdx.x / 32 / Layout::WARPS_M * Layout::OUTS; }

  __device__ __forceinline__ void begin() {
    const int lane = threadIdx.x % 32;
    // of x, lanes 0 .. 15: rows 0 .. 15, k 0 .. 7, lanes 16 .. 31: k 8 .. 15; of w, eight lanes each: outputs 0 .. 7 and
    // k 0 or 8, outputs 8 .. 15 and k 0 or 8
    const unsigned char* row = dyn_smem + (first_row() + lane % 16) * LINE;
    const unsigned char* out = dyn_smem + (BM + first_out() + lane / 16 * 8 + lane % 8) * LINE;
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
        ldmatrix_x4(four, w[step] + stage + tile * 8 * LINE);
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

  /// Lane 4g + t has of each tile rows g and g + 8, outputs 2t and 2t + 1.
  __device__ __forceinline__ void store(const MatrixJob& job, const float* x_scales, int block_row, int block_out, int n,
                                        int accumulate) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) {
      const int half = i / (N_TILES * 4), tile = i / 4 % N_TILES, part = i % 4;
      const int row = block_row + first_row() + half * 16 + g + part / 2 * 8;
      const int out = block_out + first_out() + tile * 8 + 2 * t + part % 2;
      if (row >= n || out >= job.outs) continue;
      float result = sum[half][tile][part] * x_scales[row];  // exact, as the next
      if (job.scales) result *= job.scales[out];
      if (job.bias) result += job.bias[out];
      float* to = job.y + (size_t)row * job.outs + out;
      *to = accumulate ? *to + result : result;
    }
  }
};

template <int BM>
__device__ __forceinline__ void product(const __half* x, const float* x_scales, const MatrixJobs& jobs, int n, int k,
                                        int accumulate) {
  PRECOND_GRID(ceil_div(n, BM), jobs.blocks(BN));
  constexpr int STAGE = Tile<BM>::STAGE, END = Tile<BM>::BYTES;
  int block = blockIdx.y;
  const MatrixJob job = jobs.find(block, BN);
  const int row = blockIdx.x * BM, out = block * BN;
  Copies<BM> copies;
  copies.begin(x, static_cast<const __half*>(job.w), row, n, out, job.outs, k);
  Warp<BM> warp;
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
  warp.store(job, x_scales, row, out, n, accumulate);
}

}  // namespace gemm

#define GEMM_KERNEL(BM)                                                                                               \
  SHARED_BYTES(gemm_m##BM, gemm::Tile<BM>::BYTES)                                                                     \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                \
      gemm_m##BM(const __half* x, const float* x_scales, MatrixJobs jobs, int n, int k, int accumulate) { \
    gemm::product<BM>(x, x_scales, jobs, n, k, accumulate);                                                           \
  }
GEMM_KERNEL(64)
GEMM_KERNEL(128)
#undef GEMM_KERNEL

SHARED_BYTES(round_rows, 256 / 32 * 4)
extern "C" __global__ void __launch_bounds__(256)
    round_rows(const float* x, __half* to, float* scales, int width) {
  const size_t first = (size_t)blockIdx.x * width;
  const float4* row = reinterpret_cast<const float4*>(x + first);
  round_row([&](int i) { return row[i]; }, width, to + first, scales + blockIdx.x, reinterpret_cast<float*>(dyn_smem));
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
