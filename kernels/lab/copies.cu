// The copies of gemv_rows.cu and of gemv_ring.cu without products: how fast memory delivers weights as tiles of 64 columns by 16 rows
// (TMA), and as rows of 2 KiB (bulk copies). Readers release each stage as it arrives.
//
//   lab_copy_tiles  (maps, jobs, k, sums)    lab_copy_rows  (jobs, k, sums)
//
//   sums  [blocks] what a block's readers have seen, so that something depends on the copies
//
// PRECOND: as for lab_gemv_rows_r16_t2 and gemv_f16_ring; k for lab_copy_rows a multiple of 64.
#include "gemv_rows.cu"
#include "ring_ahead.cu"

#if HAS_WGMMA
namespace gemv {

/// Waits for each of `count` stages and releases it; adds up its first words.
__device__ __forceinline__ void read_stages(Mbarrier* full, Mbarrier* empty, const unsigned char* first, int stage_bytes, int stages, int count,
                                            unsigned* sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned sum = 0;
  Turn turn;
#pragma unroll 1
  for (int i = 0; i < count; ++i, turn.next(stages)) {
    mbarrier_wait(full + turn.stage, turn.parity);
    sum += reinterpret_cast<const unsigned*>(first + turn.stage * stage_bytes)[threadIdx.x];
    __syncwarp();  // all lanes have read the stage
    if (lane == 0) mbarrier_arrive(empty + turn.stage);
  }
  sum = warp_reduce<Sum>(sum);
  if (lane == 0) atomicAdd(sums + blockIdx.x, sum + (warp == 0));
}

}  // namespace gemv

SHARED_BYTES(lab_copy_tiles, gemv::rows::BYTES)
extern "C" __global__ void __launch_bounds__(gemv::rows::THREADS, 1)
    lab_copy_tiles(const __grid_constant__ gemv::rows::WeightMaps maps, const __grid_constant__ MatrixJobs jobs, int k, unsigned* sums) {
  PRECOND_GRID(ANY_GRID, 1);
  const gemv::rows::Plain kind{maps, jobs, 0, false};
  const gemv::rows::Shared<16, 2> shared;
  if (threadIdx.x >= gemv::WARPS * 32) return gemv::rows::copy_weights(shared, kind, k);
  const gemv::rows::Share share(kind.tiles());
  gemv::read_stages(shared.fixed().full, shared.fixed().empty, shared_memory() + shared.first, gemv::rows::STAGE, shared.STAGES,
                    (share.end - share.first) * gemv::rows::slices_of(k), sums);
}

SHARED_BYTES(lab_copy_rows, gemv::ring::BYTES)
extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)
    lab_copy_rows(const __grid_constant__ MatrixJobs jobs, int k, unsigned* sums) {
  PRECOND_GRID(ANY_GRID, 1);
  using Slice = gemv::ring::Slice<__half>;
  const Slice::Memory shared(k);
  const gemv::ring::Plain rows{jobs, false};
  shared.begin();
  if (threadIdx.x >= gemv::WARPS * 32) return gemv::ring::copy_slices<__half>(shared.stages, rows, k);
  const gemv::ring::Share share(rows.units());
  gemv::read_stages(shared.stages.full, shared.stages.empty, shared.stages.memory, Slice::STAGE, shared.stages.count,
                    ceil_div(share.end - share.first, gemv::ring::UNITS) * ceil_div(k, Slice::ELEMENTS), sums);
}
#endif
