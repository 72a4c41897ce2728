// Products of a few activation rows with a weight matrix: y[r, o] (+)= sum over k of x[r, k] w[o, k] (+ bias[o]), for
// 1..=16 rows. Bound by memory: every weight byte is read once, by asynchronous 16-byte copies that are several steps
// ahead of the arithmetic (24 to 48 KB in flight a block, two or more blocks a multiprocessor).
//
// The arithmetic runs on the tensor cores, because at 8 or 16 rows the scalar units of a big GPU are slower than its
// memory. It is still that of float32: activations are split into three 16-bit terms (exact for bf16 weights), products
// are exact, at most 32 elements of k are summed inside the tensor core, and those sums are added in float32.
//
// Who does what: a block of 8 warps has 16 outputs (32 in `r16`, and 16 gate and 16 up outputs in `gated`). The warps
// share out k in spans of 128; inside a span lane 4g + t has elements 8t..8t+7 of every 32, of the weights' rows g and
// g + 8 and of activation row g. mma does not care which element of k stands where as long as both operands agree, so
// those 8 neighbours are the lane's operands of two mma, without any exchange between lanes: the ring in shared memory
// that weights are copied to is each lane's own and needs no barrier. At the end the warps' sums are added in order.
// The order of all sums depends on k alone, and no product is left to the compiler to fuse with a sum: a row has the
// same bits in every batch, in both row variants and at every place.
//
// With NORM, the input is RMS-normed on the way: products take x (weight + offset), the sum of squares is gathered in
// the same pass, and the row's factor is applied to the result.
//
// Kernels, {w} = bf16, f16, f32 (w's type; f32 weights are split as well: correct, not fast), {r} = r8, r16 (rows):
//   gemv_{w}_{r}        (x, jobs, k, rows, accumulate)
//   gemv_norm_{w}_{r}   (x, norm_weight, norm_offset, eps, jobs, k, rows, accumulate)
//   gemv_gated_{w}_{r}  (x, norm_weight, norm_offset, eps, gate, up, gate_bias, up_bias, y, k, outs, rows, activation)
//
//   x            [rows, k] f32           norm_weight  [k] f32, eps as in the model, norm_offset 0 or 1
//   jobs         up to three matrices over the same x, in one launch (q, k, v); unused ones have outs = 0
//   job.w        [outs, k]               job.bias     [outs] f32 or null
//   job.y        [rows, outs] f32        accumulate   0: y is written; 1: y is added to (residual stream)
//   gate, up     [outs, k]               gated y      [rows, outs] = act(gate x + gate_bias) * (up x + up_bias)
//   activation   0 SiLU, 1 GELU (tanh)
//
// PRECOND: block 256. grid x = sum over jobs of ceil(outs / 16), in gemv_*_r16 and gemv_norm_*_r16 ceil(outs / 32);
//   gated: ceil(outs / 16).
// PRECOND: dynamic shared memory NAME_shared_bytes.
// PRECOND: 1 <= rows <= 8 (r8) or 16 (r16); k a multiple of 8; x, w, norm_weight aligned to 16 bytes; y is not x.
#include "dense.cuh"

namespace gemv {

constexpr int WARPS = 8;
constexpr int STEP = 32;   // elements of k that a warp takes at once: 8 a lane
constexpr int SPAN = 128;  // neighbouring elements of k that belong to one warp
constexpr int TILE = 16;   // outputs of one mma

/// How weights of type W come to the tensor cores: 16-byte loads for 8 elements, terms, element type.
template <class W>
struct Operand {
  static constexpr int LOADS = 1, TERMS = 1;
  using Type = W;
};
template <>
struct Operand<float> {
  static constexpr int LOADS = 2, TERMS = 3;
  using Type = __nv_bfloat16;
};

template <class W>
__device__ __forceinline__ void weight_terms(const uint4 (&raw)[Operand<W>::LOADS],
                                             unsigned (&terms)[Operand<W>::TERMS][4]) {
  if constexpr (sizeof(W) == 4) {
    float x[8] = {__uint_as_float(raw[0].x), __uint_as_float(raw[0].y), __uint_as_float(raw[0].z),
                  __uint_as_float(raw[0].w), __uint_as_float(raw[1].x), __uint_as_float(raw[1].y),
                  __uint_as_float(raw[1].z), __uint_as_float(raw[1].w)};
    split_three<__nv_bfloat16>(x, terms);
  } else {
    terms[0][0] = raw[0].x, terms[0][1] = raw[0].y, terms[0][2] = raw[0].z, terms[0][3] = raw[0].w;
  }
}

/// The sums that one warp forms: BATCHES of 8 rows times TILES of 16 outputs.
template <int BATCHES, int TILES>
struct Sums {
  float y[TILES][BATCHES][4];  // as mma leaves them
  float squares[BATCHES];      // of row g, over this lane's part of k
};

/// acc += the product of 16 outputs and 8 rows over 32 elements of k; `upper` is of output g, `lower` of g + 8.
template <class W>
__device__ __forceinline__ void multiply_step(float (&acc)[4], const unsigned (&upper)[Operand<W>::TERMS][4],
                                              const unsigned (&lower)[Operand<W>::TERMS][4],
                                              const unsigned (&x)[3][4]) {
  using T = typename Operand<W>::Type;
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int term = 2; term >= 0; --term) {
#pragma unroll
    for (int w = Operand<W>::TERMS - 1; w >= 0; --w) {
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const unsigned a[4] = {upper[w][half], lower[w][half], upper[w][half + 1], lower[w][half + 1]};
        const unsigned b[2] = {x[term][half], x[term][half + 1]};
        mma_m16n8k16<T>(c, a, b);
      }
    }
    if (term > 0 && Split<T>::NEXT != 1.0f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[i] *= Split<T>::NEXT;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] += c[i];
}

/// Shared memory of a warp: a ring of DEPTH steps of weights, then its sums.
template <class W, int TILES>
struct Ring {
  static constexpr int LOADS = Operand<W>::LOADS;
  static constexpr int DEPTH = (TILES == 1 ? 4 : 3) / LOADS;
  static constexpr int BYTES = (TILES == 1 ? 4 : 6) * 1024;
  static_assert(DEPTH * TILES * 2 * LOADS * 32 * 16 <= BYTES, "");

  const W* const (&w)[TILES][2];  // this lane's rows: of output g and of g + 8, for each tile
  int k;

  /// Elements k of a step: this lane's first one.
  __device__ __forceinline__ static int first(int step) {
    constexpr int STEPS = SPAN / STEP;
    return (step / STEPS * WARPS + threadIdx.x / 32) * SPAN + step % STEPS * STEP + threadIdx.x % 4 * 8;
  }
  __device__ __forceinline__ static bool exists(int step, int k) {  // the same in all lanes
    return first(step) - (int)threadIdx.x % 4 * 8 < k;
  }
  __device__ __forceinline__ static uint4* slot(int step, int tile, int row, int load) {
    uint4* ring = reinterpret_cast<uint4*>(dyn_smem + threadIdx.x / 32 * BYTES);
    return ring + (((step % DEPTH * TILES + tile) * 2 + row) * LOADS + load) * 32 + threadIdx.x % 32;
  }

  /// Starts the copies of a step, a group in any case. Zeros beyond k.
  __device__ __forceinline__ void fetch(int step) const {
    const int at = first(step);
    if (exists(step, k)) {
#pragma unroll
      for (int i = 0; i < TILES * 2 * LOADS; ++i) {
        const int tile = i / (2 * LOADS), row = i / LOADS % 2, load = i % LOADS;
        const W* from = w[tile][row];
        cp_async16(slot(step, tile, row, load), at < k ? from + at + load * 16 / (int)sizeof(W) : from, at < k);
      }
    }
    cp_commit();
  }

  /// The copied weights as terms. PRECOND: the step's group has arrived.
  __device__ __forceinline__ static void read(unsigned (&terms)[Operand<W>::TERMS][4], int step, int tile, int row) {
    uint4 raw[LOADS];
#pragma unroll
    for (int load = 0; load < LOADS; ++load) raw[load] = *slot(step, tile, row, load);
    weight_terms<W>(raw, terms);
  }
};

/// A lane's activations (and norm weights) of one step; zeros beyond k and beyond the last row.
template <int BATCHES, bool NORM>
struct Inputs {
  float x[BATCHES][8], weight[NORM ? 8 : 1];
  __device__ __forceinline__ void load(const float* __restrict__ from, const float* __restrict__ norm_weight, int at,
                                       int k, int rows) {
    if (NORM) {
#pragma unroll
      for (int i = 0; i < 8; ++i) weight[NORM ? i : 0] = 0.0f;
      if (at < k) load8(norm_weight + at, reinterpret_cast<float (&)[8]>(weight));
    }
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
      const int row = 8 * b + threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[b][i] = 0.0f;
      if (at < k && row < rows) load8(from + (size_t)row * k + at, x[b]);
    }
  }
};

/// This warp's part of k, for outputs w[tile][0] (row g) and w[tile][1] (row g + 8).
template <class W, int BATCHES, int TILES, bool NORM>
__device__ __forceinline__ void multiply(Sums<BATCHES, TILES>& sums, const float* __restrict__ x,
                                         const float* __restrict__ norm_weight, float norm_offset,
                                         const W* const (&w)[TILES][2], int k, int rows) {
  using Weights = Ring<W, TILES>;
  constexpr int TERMS = Operand<W>::TERMS;
  const Weights ring = {w, k};
#pragma unroll
  for (int b = 0; b < BATCHES; ++b) {
    sums.squares[b] = 0.0f;
#pragma unroll
    for (int i = 0; i < TILES * 4; ++i) sums.y[i / 4][b][i % 4] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < Weights::DEPTH; ++step) ring.fetch(step);
  Inputs<BATCHES, NORM> in, next;
  next.load(x, norm_weight, Weights::first(0), k, rows);
#pragma unroll 1
  for (int step = 0; Weights::exists(step, k); ++step) {
    in = next;
    next.load(x, norm_weight, Weights::first(step + 1), k, rows);
    cp_wait<Weights::DEPTH - 1>();
    unsigned upper[TILES][TERMS][4], lower[TILES][TERMS][4];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      Weights::read(upper[tile], step, tile, 0);
      Weights::read(lower[tile], step, tile, 1);
    }
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
      if (NORM) {
        sums.squares[b] += sum_squares(in.x[b]);
#pragma unroll
        for (int i = 0; i < 8; ++i) in.x[b][i] = __fmul_rn(in.x[b][i], in.weight[NORM ? i : 0] + norm_offset);
      }
      unsigned terms[3][4];
      split_three<typename Operand<W>::Type>(in.x[b], terms);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) multiply_step<W>(sums.y[tile][b], upper[tile], lower[tile], terms);
    }
    ring.fetch(step + Weights::DEPTH);  // into the slot whose weights have just been used
  }
}

/// The warps' sums in shared memory, each in the place of its own ring: [TILES * 16][ROWS + 1] (padded against bank
/// conflicts), then of the squares [ROWS].
template <class W, int BATCHES, int TILES>
struct Merge {
  static constexpr int ROWS = 8 * BATCHES, OUTS = TILE * TILES, PITCH = ROWS + 1;
  static constexpr int WARP = Ring<W, TILES>::BYTES / 4;
  static_assert(OUTS * PITCH + ROWS <= WARP, "");
  float* y = reinterpret_cast<float*>(dyn_smem);
  float* squares = y + OUTS * PITCH;

  /// PRECOND: all threads of the block; ends with the block's barrier.
  __device__ __forceinline__ void publish(const Sums<BATCHES, TILES>& sums) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < BATCHES; ++b) {
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int out = tile * TILE + g + i / 2 * 8, row = 8 * b + 2 * t + i % 2;
          y[warp * WARP + out * PITCH + row] = sums.y[tile][b][i];
        }
      }
      const float square = warp_reduce<Sum, 4>(sums.squares[b]);
      if (t == 0) squares[warp * WARP + 8 * b + g] = square;
    }
    __syncthreads();
  }
  __device__ __forceinline__ float product(int out, int row) const {
    float sum = y[out * PITCH + row];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum += y[warp * WARP + out * PITCH + row];
    return sum;
  }
  __device__ __forceinline__ float factor(int row, int k, float eps) const {
    float sum = squares[row];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) sum += squares[warp * WARP + row];
    return norm_factor(sum, k, eps);
  }
};

/// Rows g and g + 8 of a tile; beyond the last row, the last one, whose products are then not stored.
template <class W>
__device__ __forceinline__ void tile_rows(const W* (&rows)[2], const void* w, int first, int outs, int k) {
  const int g = threadIdx.x % 32 / 4;
  rows[0] = static_cast<const W*>(w) + (size_t)min(first + g, outs - 1) * k;
  rows[1] = static_cast<const W*>(w) + (size_t)min(first + g + 8, outs - 1) * k;
}

template <class W, int BATCHES, int TILES, bool NORM>
__device__ __forceinline__ void plain(const float* __restrict__ x, const float* __restrict__ norm_weight,
                                      float norm_offset, float eps, const GemvJobs& jobs, int k, int rows,
                                      int accumulate) {
  constexpr int OUTS = TILE * TILES;
  PRECOND_GRID(ceil_div(jobs.job[0].outs, OUTS) + ceil_div(jobs.job[1].outs, OUTS) + ceil_div(jobs.job[2].outs, OUTS), 1);
  GemvJob job = jobs.job[0];
  int block = blockIdx.x;
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    const int before = ceil_div(jobs.job[i - 1].outs, OUTS);
    if (block >= before) {  // blocks of job i - 1 end before this one
      block -= before;
      job = jobs.job[i];
    } else {
      break;
    }
  }
  const int first = block * OUTS;
  const W* w[TILES][2];
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) tile_rows<W>(w[tile], job.w, first + tile * TILE, job.outs, k);
  Sums<BATCHES, TILES> sums;
  multiply<W, BATCHES, TILES, NORM>(sums, x, norm_weight, norm_offset, w, k, rows);
  Merge<W, BATCHES, TILES> merge;
  merge.publish(sums);
  for (int i = threadIdx.x; i < OUTS * rows; i += WARPS * 32) {
    const int row = i / OUTS, out = i % OUTS;
    if (first + out >= job.outs) continue;
    float result = merge.product(out, row) * Split<typename Operand<W>::Type>::RESTORE;  // exact
    if (NORM) result = __fmul_rn(result, merge.factor(row, k, eps));
    if (job.bias) result += job.bias[first + out];
    float* y = job.y + (size_t)row * job.outs + first + out;
    *y = accumulate ? *y + result : result;
  }
}

template <class W, int BATCHES>
__device__ __forceinline__ void gated(const float* __restrict__ x, const float* __restrict__ norm_weight,
                                      float norm_offset, float eps, const void* gate, const void* up,
                                      const float* __restrict__ gate_bias, const float* __restrict__ up_bias,
                                      float* __restrict__ y, int k, int outs, int rows, int activation) {
  PRECOND_GRID(ceil_div(outs, TILE), 1);
  const int first = blockIdx.x * TILE;
  const W* w[2][2];
  tile_rows<W>(w[0], gate, first, outs, k);
  tile_rows<W>(w[1], up, first, outs, k);
  Sums<BATCHES, 2> sums;
  multiply<W, BATCHES, 2, true>(sums, x, norm_weight, norm_offset, w, k, rows);
  Merge<W, BATCHES, 2> merge;
  merge.publish(sums);
  for (int i = threadIdx.x; i < TILE * rows; i += WARPS * 32) {
    const int row = i / TILE, out = i % TILE;
    if (first + out >= outs) continue;
    const float factor = merge.factor(row, k, eps) * Split<typename Operand<W>::Type>::RESTORE;
    float g = __fmul_rn(merge.product(out, row), factor), u = __fmul_rn(merge.product(TILE + out, row), factor);
    if (gate_bias) g += gate_bias[first + out];
    if (up_bias) u += up_bias[first + out];
    y[(size_t)row * outs + first + out] = activate(g, activation) * u;
  }
}

}  // namespace gemv

#define GEMV_KERNELS(name, W, BLOCKS, rows_name, BATCHES)                                                       \
  SHARED_BYTES(gemv_##name##_##rows_name, (gemv::WARPS * gemv::Ring<W, BATCHES>::BYTES))                        \
  SHARED_BYTES(gemv_norm_##name##_##rows_name, (gemv::WARPS * gemv::Ring<W, BATCHES>::BYTES))                   \
  SHARED_BYTES(gemv_gated_##name##_##rows_name, (gemv::WARPS * gemv::Ring<W, 2>::BYTES))                        \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                     \
      gemv_##name##_##rows_name(const float* x, GemvJobs jobs, int k, int rows, int accumulate) {               \
    gemv::plain<W, BATCHES, BATCHES, false>(x, nullptr, 0.0f, 0.0f, jobs, k, rows, accumulate);                 \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                     \
      gemv_norm_##name##_##rows_name(const float* x, const float* norm_weight, float norm_offset, float eps,    \
                                     GemvJobs jobs, int k, int rows, int accumulate) {                          \
    gemv::plain<W, BATCHES, BATCHES, true>(x, norm_weight, norm_offset, eps, jobs, k, rows, accumulate);        \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) gemv_gated_##name##_##rows_name(                    \
      const float* x, const float* norm_weight, float norm_offset, float eps, const void* gate, const void* up, \
      const float* gate_bias, const float* up_bias, float* y, int k, int outs, int rows, int activation) {      \
    gemv::gated<W, BATCHES>(x, norm_weight, norm_offset, eps, gate, up, gate_bias, up_bias, y, k, outs, rows,   \
                            activation);                                                                        \
  }
GEMV_KERNELS(bf16, __nv_bfloat16, 2, r8, 1)
GEMV_KERNELS(bf16, __nv_bfloat16, 2, r16, 2)
GEMV_KERNELS(f16, __half, 2, r8, 1)
GEMV_KERNELS(f16, __half, 2, r16, 2)
GEMV_KERNELS(f32, float, 1, r8, 1)
GEMV_KERNELS(f32, float, 1, r16, 2)
#undef GEMV_KERNELS
