// gemv.cu's products with f16 weights for up to 16 rows on compute capability 9.0, bit-identical: what would replace its r8 and r16
// there, and gemv_ring.cu's f16.
//
// As in gemv_ring.cu, a block per multiprocessor copies weights from its first output to its last without a pause, beginning while
// earlier kernels run. Against what held that design back with several rows:
//   - activations are split into terms once per product, by lab_split_rows, in the order in which mma takes them from registers: a lane
//     loads its part of a line of all rows by 16-byte loads, one line ahead, and a block loads them once per TILES tiles;
//   - k is the outer loop and tiles of 16 outputs the inner one: sums of all tiles stay in registers;
//   - weights arrive as 16 rows of 128 bytes whose chunks TMA has permuted, so that ldmatrix alone forms operands.
// Warp w multiplies the lines w, w + 8, .. and the warps' sums are added in order, as in gemv.cu.
//
//   lab_split_rows_{r}             (x, norm_weight, norm_offset, eps, fragments, factors, width, rows)
//   lab_gemv_rows_{r}_t{T}         (fragments, factors, maps, jobs, k, rows, accumulate)
//   lab_gemv_qkv_rows_{r}_t{T}     (fragments, factors, maps, jobs, k, rows, to)
//   lab_gemv_gated_rows_{r}_t{T}   (fragments, factors, maps, jobs, k, rows, activation)
//
//   r, T         r1, r8, r16: rows at most; tiles whose sums a warp holds: 2, 3 or, except for qkv, 7
//   x .. eps     as for split_rows (gemv_wide.cu); norm_weight null: no norm
//   fragments    [lines: ceil(k / 512) times 8][2 steps][batches of 8 rows][2 terms][32 lanes, r1: 4] uint4: lane 4g + t's terms of row g
//   factors      [rows] f32, of the norm
//   maps         of each job's weights: tiles of 64 columns and 16 rows, for qkv with `to.cos` and gated 8
//   jobs, to     as in gemv.cu; gated: gate and up have the same outs
//
// PRECOND: lab_split_rows_{r}: grid the most rows, block 256, dynamic shared memory NAME_shared_bytes.
// PRECOND: block 288; any grid with no more blocks than tiles (16 outputs of a job; gated: 8 gates and their ups); dynamic shared memory
//   NAME_shared_bytes; k a multiple of 8.
#include "../gemv.cuh"
#include "../hopper.cuh"

#if HAS_WGMMA
namespace gemv {
namespace rows {

constexpr int LINES = WARPS, LINE = LINE_BYTES / 2, OF_LINE = TILE * LINE_BYTES, STAGE = LINES * OF_LINE, HALF = TILE / 2;
constexpr int BYTES = 227 << 10, THREADS = (WARPS + 1) * 32, TERMS = 2;

struct WeightMaps {
  TensorMap of_job[3];
};

/// Parts of k of LINES lines, of which each warp has one; the last may be incomplete.
__host__ __device__ constexpr int slices_of(int k) { return ceil_div(k, LINES * LINE); }

/// Sizes for ROWS = 1, 8 or 16 rows.
template <int ROWS>
struct Rows {
  static constexpr int BATCHES = ceil_div(ROWS, 8), LANES = ROWS == 1 ? 4 : 32;  // one row is the same in all columns of mma's operand
  static constexpr int LOADS = LINE / STEP * BATCHES * TERMS;                    // of a lane, per line
};

/// The block's shared memory.
template <int ROWS, int TILES>
struct Shared {
  static constexpr int PITCH = ROWS + (ROWS > 1);
  using Sums = float[WARPS][TILE][PITCH];  // of a tile
  struct Fixed {
    Mbarrier full[16], empty[16], summed, added;  // a stage has arrived, has been read; all sums are there, have been read
    Sums sums[TILES];
  };
  static constexpr int STAGES = (BYTES - OPERAND_ALIGNMENT - (int)sizeof(Fixed)) / STAGE;
  static_assert(STAGES <= 16, "");
  int first = sizeof(Fixed);  // stage, aligned: an offset from shared_memory(), whose addresses take fewer registers than pointers

  __device__ __forceinline__ Shared() {
    first += (OPERAND_ALIGNMENT - shared_address(shared_memory() + first) % OPERAND_ALIGNMENT) % OPERAND_ALIGNMENT;
    if (threadIdx.x == WARPS * 32) {
      for (int i = 0; i < STAGES; ++i) mbarrier_init(fixed().full + i, 1), mbarrier_init(fixed().empty + i, WARPS);
      mbarrier_init(&fixed().summed, WARPS), mbarrier_init(&fixed().added, WARPS);
      mbarrier_init_done();
    }
    __syncthreads();
  }
  __device__ __forceinline__ Fixed& fixed() const { return *reinterpret_cast<Fixed*>(shared_memory()); }
};

/// The tiles of this block: `first` .. `end`.
struct Share {
  int first, end;
  __device__ __forceinline__ explicit Share(int tiles)
      : first((unsigned)tiles * blockIdx.x / gridDim.x), end((unsigned)tiles * (blockIdx.x + 1) / gridDim.x) {}
};

// ---- kinds of tiles -------------------------------------------------------------------------------------------------
//
// `tiles()`: their number; `copy`: starts the copy of a tile's line, from `column` on; `put`: stores the products of `row`. PRECOND of
// put: a whole warp, in which lane i has line i % 16 of a tile.

struct Plain {
  const WeightMaps& maps;
  const MatrixJobs& jobs;
  int rows;
  bool accumulate;

  __device__ __forceinline__ int tiles() const { return jobs.blocks(TILE); }
  __device__ __forceinline__ void copy(unsigned char* to, int tile, int column, Mbarrier* barrier) const {
    const int number = jobs.number(tile, TILE);
    copy_tile<false>(to, maps.of_job[number], column, tile * TILE, barrier, 1);
  }
  __device__ __forceinline__ void put(int tile, int row, float sum, float factor) const {
    const MatrixJob job = jobs.find(tile, TILE);
    const int out = tile * TILE + threadIdx.x % TILE;
    if (out >= job.outs || row >= rows) return;
    float* const y = job.y + (size_t)row * job.outs + out;
    const float result = finish<__half>(job, out, sum, factor);
    *y = accumulate ? *y + result : result;
  }
};

struct Qkv {
  const WeightMaps& maps;
  const MatrixJobs& jobs;
  int rows;
  const RopeTarget& to;

  __device__ __forceinline__ TileOuts outs(int number, int tile) const { return TileOuts(tile, number < 2 ? to.head_dim : 0); }
  __device__ __forceinline__ int tiles() const { return jobs.blocks(TILE); }
  __device__ __forceinline__ void copy(unsigned char* at, int tile, int column, Mbarrier* barrier) const {
    const int number = jobs.number(tile, TILE);
    const TileOuts of = outs(number, tile);
    copy_tile<false>(at, maps.of_job[number], column, of.first, barrier, 1);
    copy_tile<false>(at + OF_LINE / 2, maps.of_job[number], column, of.second, barrier, 1);
  }
  __device__ __forceinline__ void put(int tile, int row, float sum, float factor) const {
    const int number = jobs.number(tile, TILE), g = threadIdx.x % HALF;
    const bool second = threadIdx.x & HALF;
    const MatrixJob job = jobs.get(number);
    const TileOuts of = outs(number, tile);
    const int out = g + (second ? of.second : of.first);
    const float result = finish<__half>(job, min(out, job.outs - 1), sum, factor);
    const float partner = __shfl_xor_sync(FULL_WARP, result, HALF);
    if (second || row >= rows) return;
    const PairPlace place(to, job, number, row, of.first + g, of.second + g);
    if (place.there) place.put(to, {result, partner});
  }
};

struct Gated {
  const WeightMaps& maps;
  const MatrixJobs& jobs;
  int rows, activation;

  __device__ __forceinline__ int tiles() const { return ceil_div(jobs.job[0].outs, HALF); }
  __device__ __forceinline__ void copy(unsigned char* to, int tile, int column, Mbarrier* barrier) const {
    copy_tile<false>(to, maps.of_job[0], column, tile * HALF, barrier, 1);
    copy_tile<false>(to + OF_LINE / 2, maps.of_job[1], column, tile * HALF, barrier, 1);
  }
  __device__ __forceinline__ void put(int tile, int row, float sum, float factor) const {
    const bool of_up = threadIdx.x & HALF;
    const MatrixJob& gate = jobs.job[0];
    const int out = tile * HALF + threadIdx.x % HALF;
    const float result = finish<__half>(of_up ? jobs.job[1] : gate, min(out, gate.outs - 1), sum, factor);
    const float up = __shfl_xor_sync(FULL_WARP, result, HALF);
    if (!of_up && out < gate.outs && row < rows) gate.y[(size_t)row * gate.outs + out] = activate(result, activation) * up;
  }
};

// ---- products -------------------------------------------------------------------------------------------------------

/// Copies the block's weights: TILES tiles at a time, slice after slice of k. Lines beyond k are zeros. PRECOND: one warp.
template <int ROWS, int TILES, class Kind>
__device__ __forceinline__ void copy_weights(const Shared<ROWS, TILES>& shared, const Kind& kind, int k) {
  const Share share(kind.tiles());
  Turn turn;
#pragma unroll 1
  for (int first = share.first; first < share.end; first += TILES) {
#pragma unroll 1
    for (int at = 0; at < k; at += LINES * LINE) {
#pragma unroll 1
      for (int tile = first; tile < min(first + TILES, share.end); ++tile, turn.next(shared.STAGES)) {
        unsigned char* const stage = shared_memory() + shared.first + turn.stage * STAGE;
        Mbarrier* const full = shared.fixed().full + turn.stage;
        if (!elected()) continue;
        mbarrier_wait(shared.fixed().empty + turn.stage, turn.parity ^ 1);
        mbarrier_expect(full, STAGE);
#pragma unroll 1
        for (int line = 0; line < LINES; ++line) kind.copy(stage + line * OF_LINE, tile, at + line * LINE, full);
      }
    }
  }
}

/// A warp's sums of up to TILES tiles.
template <int ROWS, int TILES>
struct Warp {
  using Own = Rows<ROWS>;
  static constexpr int BATCHES = Own::BATCHES, LOADS = Own::LOADS, LANES = Own::LANES;
  float sums[TILES][BATCHES][4];

  /// Adds the warp's lines of `count` tiles. WHOLE: of TILES, without a branch between them. Lines beyond k add zeros, which change no bit:
  /// no sum is -0.
  template <bool WHOLE>
  __device__ __forceinline__ void add(const Shared<ROWS, TILES>& shared, Turn& turn, const uint4* fragments, int count, int k) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slices = slices_of(k);
    const int from = warp * OF_LINE + lane % 16 * LINE_BYTES + (lane / 16 ^ lane % 8) * 16;
    const uint4* x = fragments + warp * LOADS * LANES + lane % LANES;
    uint4 next[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) next[i] = x[i * LANES];
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) {
      uint4 own[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; ++i) own[i] = next[i];
      x += slice + 1 < slices ? LINES * LOADS * LANES : 0;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) next[i] = x[i * LANES];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        if (!WHOLE && tile >= count) break;
        mbarrier_wait(shared.fixed().full + turn.stage, turn.parity);
        const int stage = shared.first + turn.stage * STAGE;
        StepWeights<__half> w[LINE / STEP];
#pragma unroll
        for (int i = 0; i < 4; ++i) ldmatrix_x4(w[i / 2].halves[i % 2][0], shared_memory() + (stage + (from ^ i * 32)));
        sync_beside_ldmatrix();  // all lanes have read the stage
        if (lane == 0) mbarrier_arrive(shared.fixed().empty + turn.stage);
        turn.next(shared.STAGES);
#pragma unroll
        for (int i = 0; i < LINE / STEP * BATCHES; ++i) {
          const int step = i / BATCHES, batch = i % BATCHES;
          unsigned terms[TERMS][4];
#pragma unroll
          for (int term = 0; term < TERMS; ++term) {
            const uint4 four = own[i * TERMS + term];
            terms[term][0] = four.x, terms[term][1] = four.y, terms[term][2] = four.z, terms[term][3] = four.w;
          }
          multiply_step<__half>(sums[tile][batch], w[step], terms);
        }
      }
    }
  }

  /// Writes them to shared memory.
  __device__ __forceinline__ void publish(const Shared<ROWS, TILES>& shared, int count) const {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      if (tile >= count) break;
#pragma unroll
      for (int i = 0; i < BATCHES * 4; ++i) {
        const int row = i / 4 * 8 + 2 * t + i % 2;
        if (row < ROWS) shared.fixed().sums[tile][warp][g + i % 4 / 2 * HALF][row] = sums[tile][i / 4][i % 4];
      }
    }
  }
};

template <int ROWS, int TILES, class Kind>
__device__ __forceinline__ void product(const Kind& kind, const uint4* fragments, const float* factors, int k, int rows) {
  constexpr int AT_ONCE = ROWS == 1 ? 1 : 2;  // rows that a warp adds up at once
  PRECOND_GRID(min((int)gridDim.x, kind.tiles()), 1);
  const Shared<ROWS, TILES> shared;
  if (threadIdx.x >= WARPS * 32) copy_weights(shared, kind, k);  // weights are no kernel's output
  wait_for_earlier_grids();
  // only now, so that the next kernel starts after all those before this one have ended
  let_next_grid_start();
  if (threadIdx.x >= WARPS * 32) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Share share(kind.tiles());
  Turn turn;
  unsigned parity = 0;
#pragma unroll 1
  for (int first = share.first; first < share.end; first += TILES, parity ^= 1) {
    const int count = min(TILES, share.end - first);
    Warp<ROWS, TILES> own = {};
    if (count == TILES)
      own.template add<true>(shared, turn, fragments, count, k);
    else
      own.template add<false>(shared, turn, fragments, count, k);
    mbarrier_wait(&shared.fixed().added, parity ^ 1);
    own.publish(shared, count);
    __syncwarp();  // the sums of all lanes are written
    if (lane == 0) mbarrier_arrive(&shared.fixed().summed);
    mbarrier_wait(&shared.fixed().summed, parity);
#pragma unroll 1
    for (int i = warp; i < count * (ROWS / AT_ONCE); i += WARPS) {
      const int tile = i / (ROWS / AT_ONCE), row = i % (ROWS / AT_ONCE) * AT_ONCE + lane / TILE % AT_ONCE;
      const auto& sums = shared.fixed().sums[tile];
      float sum = sums[0][lane % TILE][row];
#pragma unroll
      for (int other = 1; other < WARPS; ++other) sum += sums[other][lane % TILE][row];
      kind.put(first + tile, ROWS == 1 && lane >= TILE ? rows : row, sum, row < rows ? factors[row] : 0.0f);
    }
    __syncwarp();  // all lanes have read the sums
    if (lane == 0) mbarrier_arrive(&shared.fixed().added);
  }
}

/// Splits row blockIdx.x; zeros beyond the last row.
template <int ROWS>
__device__ __forceinline__ void split_row(const float* x, const float* norm_weight, float norm_offset, float eps, uint4* fragments,
                                          float* factors, int width, int rows) {
  using Own = Rows<ROWS>;
  PRECOND_GRID(ROWS, 1);
  start_early();
  const int row = blockIdx.x, steps = slices_of(width) * LINES * (LINE / STEP), t = threadIdx.x % 4;
  float* const squares = reinterpret_cast<float*>(shared_memory());  // of each warp
  const auto put = [&](int step, const unsigned (&terms)[TERMS][4]) {
#pragma unroll
    for (int term = 0; term < TERMS; ++term)
      fragments[((step * Own::BATCHES + row / 8) * TERMS + term) * Own::LANES + row % 8 * 4 + t] =
          make_uint4(terms[term][0], terms[term][1], terms[term][2], terms[term][3]);
  };
  const auto store = [&](int first, const unsigned (&terms)[TERMS][4]) {
    if (first < width) put(first / STEP, terms);
  };
  for (int step = (row < rows ? ceil_div(width, STEP) : 0) + threadIdx.x / 4; step < steps; step += WARPS * 8) put(step, {});
  if (row >= rows) return;
  x += (size_t)row * width;
  if (!norm_weight) {
    split_steps<__half, false, 1>(x, nullptr, 0.0f, width, store);
    if (threadIdx.x == 0) factors[row] = 1.0f;
    return;
  }
  const float own = split_steps<__half, true, 1>(x, norm_weight, norm_offset, width, store);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = squares[0];
  for (int warp = 1; warp < WARPS; ++warp) sum += squares[warp];
  factors[row] = norm_factor(sum, width, eps);
}

}  // namespace rows
}  // namespace gemv

#define LAB_SPLIT_ROWS(ROWS)                                                                                                          \
  SHARED_BYTES(lab_split_rows_r##ROWS, 4 * gemv::WARPS)                                                                               \
  STARTS_EARLY(lab_split_rows_r##ROWS)                                                                                                \
  extern "C" __global__ void __launch_bounds__(256)                                                                                   \
      lab_split_rows_r##ROWS(const float* x, const float* norm_weight, float norm_offset, float eps, uint4* fragments,                \
                             float* factors, int width, int rows) {                                                                   \
    gemv::rows::split_row<ROWS>(x, norm_weight, norm_offset, eps, fragments, factors, width, rows);                                   \
  }
#define LAB_KERNEL(name, ROWS, TILES, LAST, KIND)                                                                                      \
  SHARED_BYTES(name, gemv::rows::BYTES)                                                                                               \
  STARTS_EARLY(name)                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(gemv::rows::THREADS, 1)                                                                \
      name(const uint4* fragments, const float* factors, const __grid_constant__ gemv::rows::WeightMaps maps,                         \
           const __grid_constant__ MatrixJobs jobs, int k, int rows, LAST last) {                                                     \
    gemv::rows::product<ROWS, TILES>(gemv::rows::KIND{maps, jobs, rows, last}, fragments, factors, k, rows);                          \
  }
#define LAB_GEMV_ROWS(ROWS, TILES)                                       \
  LAB_KERNEL(lab_gemv_rows_r##ROWS##_t##TILES, ROWS, TILES, bool, Plain) \
  LAB_KERNEL(lab_gemv_gated_rows_r##ROWS##_t##TILES, ROWS, TILES, int, Gated)
#define LAB_QKV_ROWS(ROWS, TILES) \
  LAB_KERNEL(lab_gemv_qkv_rows_r##ROWS##_t##TILES, ROWS, TILES, const __grid_constant__ RopeTarget, Qkv)
#define LAB_ROWS(ROWS)   \
  LAB_SPLIT_ROWS(ROWS)   \
  LAB_GEMV_ROWS(ROWS, 2) \
  LAB_GEMV_ROWS(ROWS, 3) \
  LAB_GEMV_ROWS(ROWS, 7) \
  LAB_QKV_ROWS(ROWS, 2)  \
  LAB_QKV_ROWS(ROWS, 3)
LAB_ROWS(1)
LAB_ROWS(8)
LAB_ROWS(16)
#undef LAB_ROWS
#undef LAB_QKV_ROWS
#undef LAB_GEMV_ROWS
#undef LAB_KERNEL
#undef LAB_SPLIT_ROWS
#endif
