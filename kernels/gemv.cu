// Products of a few activation rows with a weight matrix: y[r, o] (+)= scales[o] * sum over k of x[r, k] w[o, k]
// (+ bias[o]), for 1..=64 rows. Memory-bound: every weight byte is read once, by asynchronous copies that run one to
// two lines (128 bytes of an output's weights) ahead of the arithmetic: 32 to 128 KB in flight per block. The first two
// lines are prefetched before the preceding kernels have ended.
//
// The arithmetic runs on the tensor cores, because from 8 rows on the scalar units of a large GPU are slower than its
// memory. It is still float32-like: activations are split into two f16 terms (to 2^-22), products are exact, at
// most 32 elements of k are summed inside the tensor core, and those sums are added in float32.
//
// Division of work: a block of 8 warps has the number of outputs given in the table below. The warps take the lines of k in
// turns. A line of weights is copied to the warp's own part of shared memory, and ldmatrix loads it into registers as an mma
// operand. Of the activations, lane 4g + t has elements 2t, 2t + 1 of every 8 of row g, which it splits into its own part of
// the other operand. At the end, the warps' sums are added in order.
// The order of all sums depends on k only, and no product is left for the compiler to fuse with a sum: a row has the
// same bits in every batch, in all row variants and at every position.
//
// With NORM (gemv_qkv and gemv_gated), the input is RMS-normed on the way: products take x (weight + offset), the sum of
// squares is gathered in the same pass, and the row's factor is applied to the result.
//
// gemv_qkv rotates queries and keys, and puts keys and values into the cache (rope.cuh), unless a norm comes between
// (`to.cos` is null then): the 16 outputs of a tile are eight pairs that are rotated together.
//
// Kernels, {w} = f16, q8 (8 bits, q8.cuh), f32 (split as well, into bf16: correct, not fast), {r}:
//
//            rows at most   outputs per block    gated: as many gates, and ups
//   r8                  8                   16                                 16
//   r16                16                   32                                 16
//   r64     not f32    64                   64                                 32
//   r64s    not f32    64                   32                                 16    with half the shared memory of r64
//
//   gemv_{w}_{r}        (x, jobs, k, rows, accumulate)
//   gemv_qkv_{w}_{r}    (x, norm_weight, norm_offset, eps, jobs, k, rows, to)
//   gemv_gated_{w}_{r}  (x, norm_weight, norm_offset, eps, jobs, k, rows, activation)
//
//   x            [rows, k] f32           norm_weight  [k] f32, eps as in the model, norm_offset 0 or 1
//   jobs         up to three matrices over the same x, in one launch (q, k, v); unused ones have outs = 0
//   job.w        [outs, k]; q8: lines     job.bias     [outs] f32 or null
//   job.scales   [outs] f32 or null: 1   accumulate   0: y is written; 1: y is added to (residual stream)
//   job.y        [rows, outs] f32; for gated, job 0's = act(sums of job 0, the gate) * sums of job 1; for qkv, only job 0's,
//                the queries, if keys and values are cached
//   to           RopeTarget (rope.cuh)
//   activation   0 SiLU, 1 GELU (tanh)
//
// PRECOND: block 256. grid x = sum over jobs of ceil(outs / outputs per block); gated: ceil(outs / gates).
// PRECOND: dynamic shared memory NAME_shared_bytes.
// PRECOND: rows from 1 to the variant's maximum; k a multiple of 8, for q8 of 16; x, w, norm_weight aligned to 16 bytes; y is not x.
// PRECOND: qkv with `to.cos`: head_dim a multiple of 16, outs of head_dim.
#include "gemv.cuh"

namespace gemv {

/// The sums that one warp forms: BATCHES of 8 rows times TILES of 16 outputs.
template <int BATCHES, int TILES>
struct Sums {
  float y[TILES][BATCHES][4];  // as mma leaves them
  float squares[BATCHES];      // row g's, over this lane's part of k
};

/// A warp's weights in shared memory: two lines of each of its outputs, the one in use and the next. Scales of 8-bit weights follow.
template <class W, int TILES>
struct Ring {
  using Unit = typename Line<W>::Unit;
  static constexpr int LINE = Line<W>::ELEMENTS;
  static constexpr int PLACE = TILES * TILE * Line<W>::BYTES, BYTES = 2 * PLACE;
  static constexpr int EIGHT = 8 * LINE_BYTES;  // from output g to output g + 8
  static constexpr int CHUNK = 16 / (int)sizeof(Unit), OF_CHUNK = LINE / 8;  // a chunk's units, and its elements
  static constexpr int SCALES = Line<W>::BYTES - LINE_BYTES;                 // bytes per line, for 8-bit weights

  // A lane copies chunks t and t + 4 of outputs g and g + 8 of each tile.
  const Unit* w[TILES][2];  // chunk t of the next line, of these outputs
  // For the line in use and the first tile, in bytes from the start of shared memory: where the lane's chunk t of
  // output g goes, and where it reads from in the first two chunks. Its other chunks are `chunk_away` apart.
  int to, from;
  int scales;  // where the scales of output g are
  int turn;    // distance from this line's place to the other one

  /// From chunk c < 2^n of an output to chunk c + `chunks`, a multiple of 2^n: chunks are permuted by their output's number, so
  /// that ldmatrix has no bank conflicts.
  __device__ __forceinline__ static int chunk_away(int at, int chunks) { return at ^ chunks * 16; }

  /// For the outputs whose weights are `rows`; `line` is the warp's first, `place` its shared memory.
  __device__ __forceinline__ void begin(const Unit* const (&rows)[TILES][2], int line, int place) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = line * Line<W>::UNITS + t * CHUNK;
    const auto chunk = [&](int out, int c) { return place + out * LINE_BYTES + (c ^ out % 8) * 16; };
    to = chunk(g, t);
    from = Operand<W>::TERMS == 1 ? chunk(lane % 16, lane / 16) : chunk(g, t / 2) + t % 2 * 8;
    scales = place + TILES * TILE * LINE_BYTES + g * SCALES;
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) w[i / 2][i % 2] = rows[i / 2][i % 2] + first;
    turn = PLACE;
  }

  /// Starts the copies of the next line (always committing a group) into the place of the one in use, and switches to the
  /// other place. `left`: elements of k from that line on; zeros beyond. A line that does not exist is not copied, because the
  /// sums take its place.
  __device__ __forceinline__ void fetch(int left) {
    if (left > 0) {
      const int t = threadIdx.x % 4;
      left -= t * OF_CHUNK;
#pragma unroll
      for (int i = 0; i < TILES * 4; ++i) {
        const int half = i % 2;
        cp_async16(dyn_smem + chunk_away(to, 4 * half) + i / 2 * EIGHT, w[i / 4][i / 2 % 2] + half * 4 * CHUNK,
                   half * 4 * OF_CHUNK < left);
      }
      if constexpr (SCALES > 0) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          const Unit* const chunk = t == 0 ? w[tile][0] : w[tile][1];  // lanes 0 and 1 of each four: outputs g and g + 8
          if (t < 2) cp_async16(dyn_smem + scales + (2 * tile + t) * 8 * SCALES, chunk + LINE_BYTES - t * CHUNK);
        }
      }
    }
    cp_commit();
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) w[i / 2][i % 2] += WARPS * Line<W>::UNITS;
    to += turn;
    from += turn;
    scales += turn;
    turn = -turn;
  }

  /// The lane's part of the i-th pair of chunks of the line in use, `eights` times eight outputs further on.
  __device__ __forceinline__ const unsigned char* at(int i, int eights) const {
    return dyn_smem + chunk_away(from, 2 * i) + eights * EIGHT;
  }

  /// Reads a step of a tile. PRECOND: the line has arrived and is visible to all lanes.
  __device__ __forceinline__ void read(StepWeights<W>& to, int step, int tile) const {
    if constexpr (SCALES > 0) {
      unsigned quants[4];
      ldmatrix_x4(quants, at(step, 2 * tile));
      const unsigned char* const own = dyn_smem + scales + (2 * tile * 8 * SCALES + 4 * step);
      const auto word = [&](int row) { return *reinterpret_cast<const unsigned*>(own + row * 8 * SCALES); };
      to = StepWeights<W>(quants, word(0), word(1));
    } else if constexpr (Operand<W>::TERMS == 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) ldmatrix_x4(to.halves[half][0], at(2 * step + half, 2 * tile));
    } else {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float x[8];
        unsigned terms[Operand<W>::TERMS][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = *reinterpret_cast<const float2*>(at(i, 2 * tile + row));
          x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
        }
        split<__nv_bfloat16>(x, terms);
#pragma unroll
        for (int i = 0; i < 12; ++i) to.halves[i % 4 / 2][i / 4][i % 2 * 2 + row] = terms[i / 4][i % 4];
      }
    }
  }
};

/// Bytes of shared memory per warp and per block: rings, which the warps' sums overwrite at the end.
template <class W, int BATCHES, int TILES>
struct Room {
  static constexpr int RING = Ring<W, TILES>::BYTES, SUMS = 4 * (TILES * TILE * (8 * BATCHES + 1) + 8 * BATCHES);
  static constexpr int WARP = RING < SUMS ? SUMS : RING, BLOCK = WARPS * WARP;
  static_assert(WARP % LINE_BYTES == 0, "");
};

/// A warp's part of a product.
template <class W, int BATCHES, int TILES, bool NORM>
struct Part {
  using T = typename Operand<W>::Type;
  using Weights = Ring<W, TILES>;
  static constexpr int LINE = Weights::LINE, STEPS = LINE / STEP, ROUND = WARPS * LINE;
  static constexpr int AHEAD = BATCHES < 2 ? 1 : 2, UNROLL = BATCHES * STEPS > 4 ? 1 : STEPS;

  Sums<BATCHES, TILES> sums;
  Weights ring;
  const float* x[BATCHES];  // the line in use in row g of each batch, from this lane's first element on
  const float* norm_end;    // end of the norm weights: counting back from it takes fewer registers than a moving address
  float norm_offset;

  /// Adds a step of 8 rows.
  __device__ __forceinline__ void add_rows(int b, float (&in)[8], const float (&weight)[NORM ? 8 : 1],
                                           const StepWeights<W> (&w)[TILES]) {
    if constexpr (NORM) {
      sums.squares[b] += sum_squares(in);
#pragma unroll
      for (int i = 0; i < 8; ++i) in[i] = __fmul_rn(in[i], weight[i] + norm_offset);
    }
    unsigned terms[Operand<W>::X_TERMS][4];
    split<T>(in, terms);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) multiply_step<W>(sums.y[tile][b], w[tile], terms);
  }

  /// Adds a line. `left`: elements of k from it on. Activations are prefetched AHEAD batches before they are multiplied, the
  /// first of them before waiting for the weights.
  template <bool WHOLE>
  __device__ __forceinline__ void add_line(int left) {
    const int count = WHOLE ? LINE : left;
    const float* norm_weight = NORM ? norm_end - left + threadIdx.x % 4 * Line<W>::TOGETHER : nullptr;
    float in[AHEAD][8], weight[NORM ? 8 : 1];
    const auto load = [&](int i) {
      const int first = i / BATCHES * STEP;
      if (i < STEPS * BATCHES) load_step<W>(in[i % AHEAD], x[i % BATCHES] + first, count - first);
    };
    if constexpr (NORM) load_step<W>(weight, norm_weight, count);
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) load(i);
    cp_wait<1>();
    __syncwarp();  // the weights are visible to all lanes
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; ++step) {
      StepWeights<W> w[TILES];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) ring.read(w[tile], step, tile);
#pragma unroll
      for (int b = 0; b < BATCHES; ++b) {
        const int i = step * BATCHES + b;
        add_rows(b, in[i % AHEAD], weight, w);
        load(i + AHEAD);
        if (BATCHES > 2) keep_order();  // more at a time would take more registers than there are
      }
      const int next = (step + 1) * STEP;
      if constexpr (NORM)
        if (step + 1 < STEPS) load_step<W>(weight, norm_weight + next, count - next);
    }
  }

  /// Adds all lines of the warp. `left`: elements of k from the first one on.
  __device__ __forceinline__ void add_lines(int left) {
    ring.fetch(left);
    ring.fetch(left - ROUND);
    wait_for_earlier_grids();  // weights are no kernel's output
#pragma unroll 1
    for (; left >= LINE; left -= ROUND) {
      add_line<true>(left);
      sync_beside_ldmatrix();  // all lanes have read the line
      ring.fetch(left - 2 * ROUND);
#pragma unroll
      for (int b = 0; b < BATCHES; ++b) x[b] += ROUND;
    }
    if (left > 0) add_line<false>(left);
  }
};

/// Multiplies this warp's part of k, for outputs w[tile][0] (row g) and w[tile][1] (row g + 8). In place of rows beyond the
/// last one, it multiplies the last one again; those products are not stored.
template <class W, int BATCHES, int TILES, bool NORM>
__device__ __forceinline__ void multiply(Sums<BATCHES, TILES>& sums, const float* x,
                                         const float* __restrict__ norm_weight, float norm_offset,
                                         const typename Line<W>::Unit* const (&w)[TILES][2], int k, int rows) {
  using Own = Part<W, BATCHES, TILES, NORM>;
  const int line = threadIdx.x / 32 * Own::LINE, g = threadIdx.x % 32 / 4,
            first = line + threadIdx.x % 4 * Line<W>::TOGETHER;
  Own part = {};
  part.ring.begin(w, threadIdx.x / 32, threadIdx.x / 32 * Room<W, BATCHES, TILES>::WARP);
#pragma unroll
  for (int b = 0; b < BATCHES; ++b) part.x[b] = x + (size_t)min(8 * b + g, rows - 1) * k + first;
  part.norm_end = NORM ? norm_weight + k : nullptr;
  part.norm_offset = norm_offset;
  part.add_lines(k - line);
  sums = part.sums;
}

/// The warps' sums in shared memory, each in place of its own ring: [TILES * 16][ROWS + 1] (padded against bank
/// conflicts), followed by the sums of squares [ROWS].
template <class W, int BATCHES, int TILES>
struct Merge {
  static constexpr int ROWS = 8 * BATCHES, OUTS = TILE * TILES, PITCH = ROWS + 1;
  static constexpr int WARP = Room<W, BATCHES, TILES>::WARP / 4;
  float* y = reinterpret_cast<float*>(dyn_smem);
  float* squares = y + OUTS * PITCH;

  /// PRECOND: all threads of the block; ends with a block barrier.
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

/// The rows of weights that a lane copies for a tile; beyond the last row, the last one again, whose products are not stored.
template <class W>
__device__ __forceinline__ void tile_rows(const typename Line<W>::Unit* (&rows)[2], const void* w, const TileOuts& tile, int outs, int k) {
  const int g = threadIdx.x % 32 / 4;
  rows[0] = row_of<W>(w, min(tile.first + g, outs - 1), k);
  rows[1] = row_of<W>(w, min(tile.second + g, outs - 1), k);
}

template <class W, int BATCHES, int TILES>
__device__ __forceinline__ void plain(const float* x, const MatrixJobs& jobs, int k, int rows, int accumulate) {
  constexpr int OUTS = TILE * TILES;
  PRECOND_GRID(jobs.blocks(OUTS), 1);
  let_next_grid_start();
  Sums<BATCHES, TILES> sums;
  {
    int block = blockIdx.x;
    const MatrixJob job = jobs.find(block, OUTS);
    const typename Line<W>::Unit* w[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES; ++i) tile_rows<W>(w[i], job.w, TileOuts(block * TILES + i), job.outs, k);
    multiply<W, BATCHES, TILES, false>(sums, x, nullptr, 0.0f, w, k, rows);
  }
  Merge<W, BATCHES, TILES> merge;
  merge.publish(sums);
  int again = blockIdx.x;  // held across the products, the job would take registers that they need
  const MatrixJob job = jobs.find(again, OUTS);
  const int first = again * OUTS;
  for (int i = threadIdx.x; i < OUTS * rows; i += WARPS * 32) {
    const int row = i / OUTS, out = i % OUTS;
    if (first + out >= job.outs) continue;
    const float result = finish<W>(job, first + out, merge.product(out, row), 1.0f);
    float* y = job.y + (size_t)row * job.outs + first + out;
    *y = accumulate ? *y + result : result;
  }
}

/// Jobs: queries, keys, values.
template <class W, int BATCHES, int TILES>
__device__ __forceinline__ void qkv(const float* x, const float* __restrict__ norm_weight, float norm_offset, float eps,
                                    const MatrixJobs& jobs, int k, int rows, const RopeTarget& to) {
  constexpr int OUTS = TILE * TILES;
  PRECOND_GRID(jobs.blocks(OUTS), 1);
  let_next_grid_start();
  const auto paired = [&](int number) { return to.cos && number < 2 ? to.head_dim : 0; };
  Sums<BATCHES, TILES> sums;
  {
    int block = blockIdx.x;
    const int number = jobs.number(block, OUTS);
    const MatrixJob job = jobs.get(number);
    const typename Line<W>::Unit* w[TILES][2];
#pragma unroll
    for (int i = 0; i < TILES; ++i)
      tile_rows<W>(w[i], job.w, TileOuts(block * TILES + i, paired(number)), job.outs, k);
    multiply<W, BATCHES, TILES, true>(sums, x, norm_weight, norm_offset, w, k, rows);
  }
  Merge<W, BATCHES, TILES> merge;
  merge.publish(sums);
  int block = blockIdx.x;
  const int number = jobs.number(block, OUTS);
  const MatrixJob job = jobs.get(number);
  for (int i = threadIdx.x; i < OUTS / 2 * rows; i += WARPS * 32) {
    const int row = i / (OUTS / 2), tile = i % (OUTS / 2) / (TILE / 2), g = i % (TILE / 2);
    const TileOuts outs(block * TILES + tile, paired(number));
    const int first = outs.first + g, second = outs.second + g;
    const float factor = merge.factor(row, k, eps);
    const auto sum = [&](int line, int out) {
      return finish<W>(job, out, merge.product(tile * TILE + line, row), factor);
    };
    if (to.cos) {
      const PairPlace place(to, job, number, row, first, second);
      if (place.there) place.put(to, {sum(g, first), sum(g + TILE / 2, second)});
      continue;
    }
    float* y = job.y + (size_t)row * job.outs;
    if (first < job.outs) y[first] = sum(g, first);
    if (second < job.outs) y[second] = sum(g + TILE / 2, second);
  }
}

/// Half of the tiles are the gate's, the other half up's.
template <class W, int BATCHES, int TILES>
__device__ __forceinline__ void gated(const float* x, const float* __restrict__ norm_weight, float norm_offset,
                                      float eps, const MatrixJobs& jobs, int k, int rows, int activation) {
  constexpr int HALF = TILES / 2, OUTS = TILE * HALF;
  const MatrixJob &gate = jobs.job[0], &up = jobs.job[1];
  PRECOND_GRID(ceil_div(gate.outs, OUTS), 1);
  let_next_grid_start();
  const int first = blockIdx.x * OUTS;
  const typename Line<W>::Unit* w[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES; ++i)
    tile_rows<W>(w[i], (i < HALF ? gate : up).w, TileOuts(blockIdx.x * HALF + i % HALF), gate.outs, k);
  Sums<BATCHES, TILES> sums;
  multiply<W, BATCHES, TILES, true>(sums, x, norm_weight, norm_offset, w, k, rows);
  Merge<W, BATCHES, TILES> merge;
  merge.publish(sums);
  for (int i = threadIdx.x; i < OUTS * rows; i += WARPS * 32) {
    const int row = i / OUTS, out = first + i % OUTS;
    if (out >= gate.outs) continue;
    const float factor = merge.factor(row, k, eps), g = finish<W>(gate, out, merge.product(i % OUTS, row), factor),
                u = finish<W>(up, out, merge.product(OUTS + i % OUTS, row), factor);
    gate.y[(size_t)row * gate.outs + out] = activate(g, activation) * u;
  }
}

}  // namespace gemv

// BLOCKS: per multiprocessor, of gemv and gemv_qkv; GATED_BLOCKS: of gemv_gated.
#define GEMV_KERNELS(name, W, BLOCKS, GATED_BLOCKS, rows_name, BATCHES, TILES, GATED_TILES)                   \
  SHARED_BYTES(gemv_##name##_##rows_name, (gemv::Room<W, BATCHES, TILES>::BLOCK))                             \
  SHARED_BYTES(gemv_qkv_##name##_##rows_name, (gemv::Room<W, BATCHES, TILES>::BLOCK))                         \
  SHARED_BYTES(gemv_gated_##name##_##rows_name, (gemv::Room<W, BATCHES, GATED_TILES>::BLOCK))                 \
  STARTS_EARLY(gemv_##name##_##rows_name)                                                                     \
  STARTS_EARLY(gemv_qkv_##name##_##rows_name)                                                                 \
  STARTS_EARLY(gemv_gated_##name##_##rows_name)                                                               \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
      gemv_##name##_##rows_name(const float* x, MatrixJobs jobs, int k, int rows, int accumulate) {           \
    gemv::plain<W, BATCHES, TILES>(x, jobs, k, rows, accumulate);                                             \
  }                                                                                                           \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                   \
      gemv_qkv_##name##_##rows_name(const float* x, const float* norm_weight, float norm_offset, float eps,   \
                                    MatrixJobs jobs, int k, int rows, RopeTarget to) {                        \
    gemv::qkv<W, BATCHES, TILES>(x, norm_weight, norm_offset, eps, jobs, k, rows, to);                        \
  }                                                                                                           \
  extern "C" __global__ void __launch_bounds__(256, GATED_BLOCKS)                                             \
      gemv_gated_##name##_##rows_name(const float* x, const float* norm_weight, float norm_offset, float eps, \
                                      MatrixJobs jobs, int k, int rows, int activation) {                     \
    gemv::gated<W, BATCHES, GATED_TILES>(x, norm_weight, norm_offset, eps, jobs, k, rows, activation);        \
  }
GEMV_KERNELS(f16, __half, 3, 2, r8, 1, 1, 2)
GEMV_KERNELS(f16, __half, 2, 2, r16, 2, 2, 2)
GEMV_KERNELS(f16, __half, 1, 1, r64, 8, 4, 4)
GEMV_KERNELS(f16, __half, 1, 1, r64s, 8, 2, 2)
GEMV_KERNELS(q8, Q8Line, 2, 2, r8, 1, 1, 2)
GEMV_KERNELS(q8, Q8Line, 2, 2, r16, 2, 2, 2)
GEMV_KERNELS(q8, Q8Line, 1, 1, r64, 8, 4, 4)
GEMV_KERNELS(q8, Q8Line, 1, 1, r64s, 8, 2, 2)
GEMV_KERNELS(f32, float, 1, 1, r8, 1, 1, 2)
GEMV_KERNELS(f32, float, 1, 1, r16, 2, 2, 2)
#undef GEMV_KERNELS
