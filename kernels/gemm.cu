// Products of many activation rows with a weight matrix on the tensor cores: y[r, o] (+)= sum over k of x[r, k] w[o, k]
// (+ bias[o]), for prefill and ensembles.
//
// Activations come as one or two 16-bit terms (dense.cuh): two hold x to 2^-16 in bf16 and 2^-22 in f16, one is the
// fast option. rms_norm_* and gated_act_* (norm.cu) write terms themselves; split_* makes them of any f32.
//
// A block of 8 warps computes BM rows x 64 outputs, each warp 32 rows x 32 (BM = 128) or 16 (BM = 64) outputs. Slices
// of 32 elements of k come through three shared-memory stages by cp.async, two of them in flight. The tensor core's
// accumulators truncate, so no chain there is longer than a slice: slices are added up in float32. The order of sums
// depends on k alone: a row has the same bits in every chunk, at every place, with either BM.
//
//   gemm_{bf16,f16}_t{1,2}_m{64,128}  (x, w, bias, y, n, outs, k, accumulate)     t: terms, m: rows of a block
//   split_{bf16,f16}                  (x, terms, count, term_count)               terms of `count` floats
//
//   x           [t][n, k] terms of the weights' type        w     [outs, k] bf16 or f16
//   bias        [outs] f32 or null                          y     [n, outs] f32
//   accumulate  0: y is written; 1: y is added to (residual stream)
//   terms       [term_count][count]
//
// PRECOND: gemm: grid (ceil(n / m), ceil(outs / 64)), block 256; k a multiple of 8; x and w aligned to 16 bytes.
// PRECOND: gemm: dynamic shared memory NAME_shared_bytes (some more than 48 KiB, so that the limit must be raised).
// m64 is for n <= 64; rows of a block that are not there cost time, not correctness.
// PRECOND: split: grid ceil(count / 1024), block 256, no shared memory; count a multiple of 4.
#include "dense.cuh"

namespace gemm {

constexpr int BN = 64;  // outputs of a block
constexpr int BK = 32;  // elements of k in a stage
constexpr int STAGES = 3;
constexpr int PITCH = BK + 8;  // elements between rows in shared memory: 80 bytes, no bank conflicts in ldmatrix
constexpr int CHUNKS = BK / 8;  // 16-byte copies of a row

/// Sizes of a block with BM rows and TERMS terms, and where this warp's part is.
template <int BM, int TERMS>
struct Tile {
  static constexpr int WARPS_M = BM / 32, WARPS_N = 8 / WARPS_M;
  static constexpr int OUTS = BN / WARPS_N;  // of a warp
  static constexpr int N_TILES = OUTS / 8;
  static constexpr int STAGE = (TERMS * BM + BN) * PITCH;  // elements: terms of x, then w
  static constexpr int BYTES = STAGES * STAGE * 2;
};

/// Starts the copies of `rows` rows of one slice of k, from row `first` of [count, k]; zeros beyond `count` and k.
__device__ __forceinline__ void fetch_rows(unsigned short* to, const unsigned short* from, int rows, int first,
                                           int count, int slice, int k) {
  for (int i = threadIdx.x; i < rows * CHUNKS; i += 256) {
    const int row = i / CHUNKS, column = slice * BK + i % CHUNKS * 8;
    const bool wanted = first + row < count && column < k;
    cp_async16(to + row * PITCH + i % CHUNKS * 8, from + (wanted ? (size_t)(first + row) * k + column : 0), wanted);
  }
}

/// This warp's operands of one stage, and its products.
template <class T, int BM, int TERMS>
struct Warp {
  using Layout = Tile<BM, TERMS>;
  static constexpr int N_TILES = Layout::N_TILES;
  float sum[2][N_TILES][4];  // [16 rows each][8 outputs each], as mma leaves them

  __device__ __forceinline__ static int first_row() { return threadIdx.x / 32 % Layout::WARPS_M * 32; }
  __device__ __forceinline__ static int first_out() { return threadIdx.x / 32 / Layout::WARPS_M * Layout::OUTS; }

  __device__ __forceinline__ static void clear(float (&c)[2][N_TILES][4]) {
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) c[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] = 0.0f;
  }

  /// sum += the products over one slice of k.
  __device__ __forceinline__ void multiply(const unsigned short* stage) {
    const int lane = threadIdx.x % 32;
    const unsigned short* w = stage + TERMS * BM * PITCH;
    unsigned b[BK / 16][N_TILES][2];
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
#pragma unroll
      for (int tile = 0; tile < N_TILES; tile += 2) {  // lanes 0..15: outputs 0..7, k 0 and 8; 16..31: outputs 8..15
        const int out = first_out() + tile * 8 + lane / 16 * 8 + lane % 8;
        unsigned four[4];
        ldmatrix_x4(four, w + out * PITCH + step * 16 + lane / 8 % 2 * 8);
        b[step][tile][0] = four[0], b[step][tile][1] = four[1];
        b[step][tile + 1][0] = four[2], b[step][tile + 1][1] = four[3];
      }
    }
    float c[2][N_TILES][4];
    clear(c);
#pragma unroll
    for (int term = TERMS - 1; term >= 0; --term) {
      const unsigned short* x = stage + term * BM * PITCH;
#pragma unroll
      for (int step = 0; step < BK / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          unsigned a[4];
          ldmatrix_x4(a, x + (first_row() + half * 16 + lane % 16) * PITCH + step * 16 + lane / 16 * 8);
#pragma unroll
          for (int tile = 0; tile < N_TILES; ++tile) mma_m16n8k16<T>(c[half][tile], a, b[step][tile]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * N_TILES * 4; ++i)
        if (term > 0) c[i / (N_TILES * 4)][i / 4 % N_TILES][i % 4] *= Split<T>::NEXT;
    }
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) {
      const int half = i / (N_TILES * 4), tile = i / 4 % N_TILES;
      sum[half][tile][i % 4] += c[half][tile][i % 4];
    }
  }

  /// Lane 4g + t has of each tile rows g and g + 8, outputs 2t and 2t + 1.
  __device__ __forceinline__ void store(const float* bias, float* y, int block_row, int block_out, int n, int outs,
                                        int accumulate) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * N_TILES * 4; ++i) {
      const int half = i / (N_TILES * 4), tile = i / 4 % N_TILES, part = i % 4;
      const int row = block_row + first_row() + half * 16 + g + part / 2 * 8;
      const int out = block_out + first_out() + tile * 8 + 2 * t + part % 2;
      if (row >= n || out >= outs) continue;
      float result = sum[half][tile][part] * Split<T>::RESTORE;
      if (bias) result += bias[out];
      float* to = y + (size_t)row * outs + out;
      *to = accumulate ? *to + result : result;
    }
  }
};

template <class T, int BM, int TERMS>
__device__ __forceinline__ void product(const unsigned short* x, const unsigned short* w, const float* bias, float* y,
                                        int n, int outs, int k, int accumulate) {
  PRECOND_GRID(ceil_div(n, BM), ceil_div(outs, BN));
  constexpr int STAGE = Tile<BM, TERMS>::STAGE;
  unsigned short* stages = reinterpret_cast<unsigned short*>(dyn_smem);
  const int block_row = blockIdx.x * BM, block_out = blockIdx.y * BN, slices = (k + BK - 1) / BK;
  const auto fetch = [&](int slice) {
    if (slice < slices) {
      unsigned short* stage = stages + slice % STAGES * STAGE;
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
        fetch_rows(stage + term * BM * PITCH, x + (size_t)term * n * k, BM, block_row, n, slice, k);
      fetch_rows(stage + TERMS * BM * PITCH, w, BN, block_out, outs, slice, k);
    }
    cp_commit();  // an empty group at the end keeps the count
  };
  Warp<T, BM, TERMS> warp;
  warp.clear(warp.sum);
  for (int slice = 0; slice < STAGES - 1; ++slice) fetch(slice);
  for (int slice = 0; slice < slices; ++slice) {
    cp_wait<STAGES - 2>();
    __syncthreads();  // this slice is there for all, and all have done with the stage that is fetched into next
    fetch(slice + STAGES - 1);
    warp.multiply(stages + slice % STAGES * STAGE);
  }
  warp.store(bias, y, block_row, block_out, n, outs, accumulate);
}

}  // namespace gemm

#define GEMM_KERNEL(name, T, TERMS, BM)                                                                             \
  SHARED_BYTES(gemm_##name##_t##TERMS##_m##BM, (gemm::Tile<BM, TERMS>::BYTES))                                      \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                              \
      gemm_##name##_t##TERMS##_m##BM(const unsigned short* x, const unsigned short* w, const float* bias, float* y, \
                                     int n, int outs, int k, int accumulate) {                                      \
    gemm::product<T, BM, TERMS>(x, w, bias, y, n, outs, k, accumulate);                                             \
  }
#define GEMM_KERNELS(name, T)                                                                                       \
  GEMM_KERNEL(name, T, 1, 64)                                                                                       \
  GEMM_KERNEL(name, T, 2, 64)                                                                                       \
  GEMM_KERNEL(name, T, 1, 128)                                                                                      \
  GEMM_KERNEL(name, T, 2, 128)                                                                                      \
  SHARED_BYTES(split_##name, 0)                                                                                     \
  extern "C" __global__ void __launch_bounds__(256)                                                                 \
      split_##name(const float* x, unsigned short* terms, int count, int term_count) {                              \
    PRECOND_GRID(ceil_div(count, 1024), 1);                                                                         \
    const size_t at = 4 * ((size_t)blockIdx.x * 256 + threadIdx.x);                                                 \
    if (at < (size_t)count) store_terms<T>(terms, at, count, *reinterpret_cast<const float4*>(x + at), term_count); \
  }
GEMM_KERNELS(bf16, __nv_bfloat16)
GEMM_KERNELS(f16, __half)
#undef GEMM_KERNELS
#undef GEMM_KERNEL
