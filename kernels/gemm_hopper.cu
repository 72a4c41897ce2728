// The products of gemm.cu for many rows on compute capability 9.0, whose tensor cores reach their peak only with wgmma and outrun
// L2: y[r, o] (+)= scales[o] * sum over k of x_scales[r, k / 32] x[r, k] w[o, k] (+ bias[o]).
//
// A block computes 128 rows x 128 outputs, as gemm_m128 does; two blocks with the same rows are a cluster. Each reads half of the
// rows and its own weights from L2, and the copy engine (TMA) delivers the rows to both: three quarters of gemm_m128's
// reads. Clusters of four would read half, but a cluster lies within one GPC, and on an H200 only 30 of them fit at once: the 128 blocks of
// 4096 outputs would take two rounds. As many clusters as run at once take turns at the blocks: the copies for the next block start while
// the current one is being written.
//
// Slices of 64 elements of k pass through STAGES stages: one thread starts a stage's copies as soon as all readers are done with it, and
// two groups of four warps multiply, 64 rows each. As in gemm.cu, no chain on the tensor cores is longer than 32 elements; both chains of a
// slice are in flight, and the sums of one, times the rows' powers of two, are added up while the other runs. The order of sums is
// gemm.cu's: bit-identical if the tensor cores add in the same way in both kinds of instruction. Whether they do is not published, so a
// model's wide passes all use one or the other.
//
//   gemm_hopper        (x_map, w_maps, x_scales, jobs, n, k, accumulate)
//   gemm_gated_hopper  (x_map, w_maps, x_scales, jobs, n, k, activation)  y of job 0 = act(its sums) * sums of job 1; or rounded
//
//   x_map       x [n, k] f16, in tiles of 64 rows and 64 elements      w_maps  the same for each job's matrix
//   others      as in gemm.cu; a job's `w` is not used
//
// PRECOND: grid (1, 2 c) for c clusters, which take turns; at most ceil(n / 128) ceil(b / 2) have work, where b is the sum over jobs of
//   ceil(outs / 128), gated: ceil(outs / 64). Block 384; k a multiple of 8, outs of 2; x, w, y, scales and biases aligned to 16
//   bytes; dynamic shared memory NAME_shared_bytes.
#include "dense.cuh"
#include "hopper.cuh"

/// Tensor maps of a launch's matrices.
struct TensorMaps {
  TensorMap of_job[3];
};

#if HAS_WGMMA
namespace hopper {

// Blocks of a cluster, 1 or 2 in either direction: neighbours in x have the same outputs, in y the same rows.
constexpr unsigned CLUSTER_X = 1, CLUSTER_Y = 2;
constexpr int M = 128;                  // rows per block, and outputs, or gates and ups
constexpr int BK = 64;                  // elements of k in a stage
constexpr int CHAIN = 32;               // elements of k that a tensor core adds up
constexpr int TILE = 64 * BK * 2;       // bytes per copy: 64 rows of x or of w
constexpr int X = 0, W = 2 * TILE;      // their offsets in a stage
constexpr int STAGE = 4 * TILE, STAGES = 6;
constexpr int GROUP = 128, GROUPS = 2;  // threads that multiply together; one extra group starts the copies
constexpr int THREADS = (GROUPS + 1) * GROUP;
constexpr int REGISTERS = 232, REGISTERS_TO_COPY = 40;  // per thread; launched with 168, a third of a multiprocessor's per group
constexpr int SHARED_BY = CLUSTER_X + CLUSTER_Y - 1;  // blocks that a block copies to, and that copy to it
constexpr int BYTES = OPERAND_ALIGNMENT + STAGES * (STAGE + 2 * (int)sizeof(Mbarrier));

/// The stages and their barriers: `full` ends a phase when a slice is there, `empty` when all have read it.
struct Ring {
  unsigned char* stages;
  Mbarrier *full, *empty;

  __device__ __forceinline__ Ring() {
    stages = operand_memory();
    full = reinterpret_cast<Mbarrier*>(stages + STAGES * STAGE);
    empty = full + STAGES;
  }
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < STAGES; ++stage) {
        mbarrier_init(full + stage, 1);
        mbarrier_init(empty + stage, SHARED_BY * GROUPS);
      }
      mbarrier_init_done();
    }
    cluster_sync();
  }
};

/// This block's place in its cluster.
struct Place {
  unsigned x = blockIdx.x, y = blockIdx.y % CLUSTER_Y;
  __device__ __forceinline__ static unsigned rank(unsigned x, unsigned y) { return x + CLUSTER_X * y; }
  __device__ __forceinline__ unsigned same_rows() const { return 1u << rank(x, 0) | 1u << rank(x, CLUSTER_Y - 1); }
  __device__ __forceinline__ unsigned same_outputs() const { return 1u << rank(0, y) | 1u << rank(CLUSTER_X - 1, y); }
  /// The i-th block that copies to this one, which this one also copies to; i below SHARED_BY.
  __device__ __forceinline__ unsigned neighbour(unsigned i) const {
    return i < CLUSTER_X ? rank((x + i) % CLUSTER_X, y) : rank(x, y ^ 1);
  }
};

/// Starts the copies of all slices: half of the block's rows to the blocks with the same rows, and half of its weights to those with
/// the same outputs, whose other block copies the rest; everything if there is no other. Weights: of job `number` from output
/// `out` on, or with GATED the gate's and up's in alternation.
template <bool GATED>
__device__ __forceinline__ void copy_slices(const Ring& ring, Turn& turn, const TensorMap& x, int row, const TensorMaps& w, int number,
                                            int out, int k) {
  const Place place;
  for (int at = 0; at < k; at += BK, turn.next(STAGES)) {
    Mbarrier* const full = ring.full + turn.stage;
    unsigned char* const stage = ring.stages + turn.stage * STAGE;
    mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
    mbarrier_expect(full, STAGE);
#pragma unroll
    for (unsigned tile = place.y; tile < 2; tile += CLUSTER_Y)
      copy_tile<(CLUSTER_Y > 1)>(stage + X + tile * TILE, x, at, row + 64 * tile, full, place.same_rows());
#pragma unroll
    for (unsigned tile = place.x; tile < 2; tile += CLUSTER_X)
      copy_tile<(CLUSTER_X > 1)>(stage + W + tile * TILE, w.of_job[GATED ? tile : number], at, out + (GATED ? 0 : 64 * tile),
                                 full, place.same_outputs());
  }
}

/// The powers of two of a lane's two rows, 8 apart, for the two chains of a slice: prefetched while the previous slice is multiplied,
/// because they come from L2. A missing row uses those of the last one.
class RowScales {
  static constexpr int OF_SLICE = BK / SHARING;
  const float *first, *second;
  int left;  // elements of k from the next slice on
  float2 rows[2], next[2];

 public:
  __device__ __forceinline__ RowScales(const float* scales, int row, int n, int k)
      : first(scales + (size_t)min(row, n - 1) * row_scales(k)),
        second(scales + (size_t)min(row + 8, n - 1) * row_scales(k)),
        left(k) {
    fetch();
  }
  __device__ __forceinline__ void fetch() {
    if (left > 0) next[0] = *reinterpret_cast<const float2*>(first), next[1] = *reinterpret_cast<const float2*>(second);
    first += OF_SLICE, second += OF_SLICE, left -= BK;
  }
  /// Advances to the next slice.
  __device__ __forceinline__ void advance() {
    rows[0] = next[0], rows[1] = next[1];
    if (left + BK <= CHAIN) rows[0].y = rows[1].y = 0.0f;  // not written
    fetch();
  }
  /// For row `row` and chain `chain` of the slice.
  __device__ __forceinline__ float operator()(int row, int chain) const { return chain == 0 ? rows[row].x : rows[row].y; }
};

/// 64 rows x 128 outputs of four warps.
struct Group {
  float sum[64];               // as wgmma leaves them
  const Operand x, w;          // of the first stage
  const RemoteBarriers empty;  // of the block that this thread notifies of an empty stage; the first SHARED_BY threads do so

  // a shuffle, so that the compiler treats the number as warp-uniform and computes with it only once
  __device__ __forceinline__ explicit Group(const Ring& ring)
      : x(Operand::at(ring.stages + X + __shfl_sync(0xffffffffu, threadIdx.x / GROUP, 0) * TILE)),
        w(Operand::at(ring.stages + W)),
        empty(ring.empty, Place().neighbour(threadIdx.x % GROUP)) {}

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& own : sum) own = 0.0f;
  }
  /// Starts a chain over CHAIN elements of a stage.
  __device__ __forceinline__ void start(float (&d)[64], int stage, int half) const {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < CHAIN / 16; ++step) {
      const unsigned at = stage * (STAGE / 16) + (half * CHAIN * 2 + step * 32) / 16;
      wgmma_m64n128k16(d, x.plus(at), w.plus(at), step > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void add(const float (&d)[64], const RowScales& scales, int chain) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] = fmaf(d[i], scales(i / 2 % 2, chain), sum[i]);
  }
  /// Releases a stage to the blocks that copy to it.
  __device__ __forceinline__ void release(int stage) const {
    if (threadIdx.x % GROUP < SHARED_BY) mbarrier_arrive(empty, stage);
  }

  /// Multiplies all slices, with both chains of one in flight.
  __device__ __forceinline__ void multiply(const Ring& ring, Turn& turn, int k, RowScales scales) {
    clear();
    float first[64], second[64];
#pragma unroll 1
    for (int at = 0; at < k; at += BK, turn.next(STAGES)) {
      mbarrier_wait(ring.full + turn.stage, turn.parity);
      start(first, turn.stage, 0);
      start(second, turn.stage, 1);
      scales.advance();
      wgmma_wait<1>(first);
      add(first, scales, 0);
      wgmma_wait<0>(second);
      release(turn.stage);
      add(second, scales, 1);
    }
  }

  template <bool GATED>
  __device__ __forceinline__ void store(const MatrixJob& job, const MatrixJob& up, int row, int out, int n, int mode) const {
    constexpr int TILES = GATED ? 8 : 16;
    store_products<GATED, TILES>(
        job, up, row, out + threadIdx.x % 4 * 2, n, mode, [&](int tile, int i) { return sum[tile * 4 + i]; },
        [&](int tile, int i) { return sum[(tile + TILES) * 4 + i]; }, [](float2 max) { return max; });
  }
};

/// The blocks that a cluster computes one after the other, with a stride of the number of clusters.
template <bool GATED>
class Blocks {
  static constexpr int OUTS = GATED ? M / 2 : M;
  const MatrixJobs& jobs;
  int of_rows, end, at = blockIdx.y / CLUSTER_Y;  // in clusters: along the rows, in total, and this one's

 public:
  int row, number, out;  // of the block: its first row, its job, and its first output in that job

  __device__ __forceinline__ Blocks(const MatrixJobs& jobs, int n)
      : jobs(jobs),
        of_rows(ceil_div(n, CLUSTER_X * M)),
        end(of_rows * ceil_div(GATED ? ceil_div(jobs.job[0].outs, OUTS) : jobs.blocks(OUTS), CLUSTER_Y)) {}
  /// Advances to the next block, if there is one.
  __device__ __forceinline__ bool next() {
    if (at >= end) return false;
    row = (at % of_rows * CLUSTER_X + blockIdx.x) * M;
    int block = at / of_rows * CLUSTER_Y + blockIdx.y % CLUSTER_Y;
    number = GATED ? 0 : jobs.number(block, OUTS);
    out = block * OUTS;
    at += gridDim.y / CLUSTER_Y;
    return true;
  }
};

/// What a block's groups do: `copy(ring, turn, blocks)` by one thread, `multiply(ring, turn, blocks)` by the others.
template <bool GATED, class Copy, class Multiply>
__device__ __forceinline__ void groups(const MatrixJobs& jobs, int n, const Copy& copy, const Multiply& multiply) {
  PRECOND_GRID(CLUSTER_X, ANY_GRID);
  const Ring ring;
  ring.begin();
  start_early();
  Blocks<GATED> blocks(jobs, n);
  Turn turn;
  if (threadIdx.x >= GROUPS * GROUP) {
    keep_registers<REGISTERS_TO_COPY>();
    if (threadIdx.x == GROUPS * GROUP) copy(ring, turn, blocks);
  } else {
    take_registers<REGISTERS>();
    multiply(ring, turn, blocks);
  }
  cluster_sync();  // others may still copy to this block and arrive at its barriers
}

/// `store(group, block, row)`: writes the products of a block, a lane's from `row` on.
template <bool GATED, class Store>
__device__ __forceinline__ void product(const TensorMap& x_map, const TensorMaps& w_maps, const float* x_scales, const MatrixJobs& jobs, int n,
                                        int k, const Store& store) {
  const auto copy = [&](const Ring& ring, Turn& turn, Blocks<GATED>& block) {
    while (block.next()) copy_slices<GATED>(ring, turn, x_map, block.row, w_maps, block.number, block.out, k);
  };
  groups<GATED>(jobs, n, copy, [&](const Ring& ring, Turn& turn, Blocks<GATED>& block) {
    Group group(ring);
    while (block.next()) {
      const int own = block.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      group.multiply(ring, turn, k, RowScales(x_scales, own, n, k));
      store(group, block, own);
    }
  });
}

}  // namespace hopper

#define GEMM_HOPPER_KERNEL(name, GATED, mode)                                                                              \
  SHARED_BYTES(name, hopper::BYTES)                                                                                        \
  STARTS_EARLY(name)                                                                                                       \
  CLUSTERS(name, 1, 2)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(hopper::THREADS, 1) IN_CLUSTERS(1, 2)                                       \
      name(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMaps w_maps, const float* x_scales,      \
           const __grid_constant__ MatrixJobs jobs, int n, int k, int mode) {                                              \
    hopper::product<GATED>(x_map, w_maps, x_scales, jobs, n, k, [&](const auto& group, const auto& block, int row) {       \
      group.template store<GATED>(jobs.job[block.number], jobs.job[1], row, block.out, n, mode);                           \
    });                                                                                                                    \
  }
GEMM_HOPPER_KERNEL(gemm_hopper, false, accumulate)
GEMM_HOPPER_KERNEL(gemm_gated_hopper, true, activation)
#undef GEMM_HOPPER_KERNEL
#endif  // HAS_WGMMA
