// gemv_ring.cu with two ideas for small layers, where the time between two products counts; results keep their bits:
//   - a block that has asked for all its own weights asks L2 for its part of those that the next products read, so that memory does not
//     idle while this kernel ends and the next begins;
//   - as many stages as a block can use, in a launch with as much shared memory, so that the next kernel's block fits beside it.
//
//   lab_{,qkv_,gated_}ring_ahead  (parameters of gemv_{,qkv_,gated_}f16_ring, ahead)
//
// PRECOND: as gemv_ring.cu, except: dynamic shared memory gemv::ring::bytes_of(k, ahead.stages) or more.
#include "../gemv_ring.cu"

#if HAS_BULK_COPIES
/// What comes after a product. `from`: `bytes` bytes of weights, multiples of 16; `stages` 1 or more.
struct Ahead {
  const unsigned char* from;
  unsigned bytes;
  int stages;
};

namespace gemv {
namespace ring {

/// Shared memory of a block whose ring has `stages` stages.
__host__ __device__ constexpr int bytes_of(int k, int stages) {
  using Memory = Slice<__half>;
  return ceil_div((int)sizeof(Memory::Memory::Fixed) + k * 4, ALIGNMENT) * ALIGNMENT + stages * Memory::STAGE;
}

/// Asks L2 for this block's pieces. PRECOND: one warp.
__device__ __forceinline__ void fetch_ahead(const Ahead& ahead) {
  constexpr unsigned PIECE = 4096;
#pragma unroll 1
  for (unsigned at = blockIdx.x * PIECE; at < ahead.bytes; at += gridDim.x * PIECE) {
    const unsigned bytes = min(PIECE, ahead.bytes - at);
    if (!elected()) continue;
#ifdef CUDA_HOST_SHIM
    cuda_host::prefetch(ahead.from + at, bytes);
#else
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.from + at), "r"(bytes) : "memory");
#endif
  }
}

template <bool NORM, class Rows>
__device__ __forceinline__ void product_ahead(const Rows& rows, const float* x, const float* norm_weight, float norm_offset, float eps, int k,
                                              const Ahead& ahead) {
  PRECOND_GRID(min((int)gridDim.x, rows.units()), 1);
  typename Slice<__half>::Memory shared(k);
  shared.stages.count = min(shared.stages.count, ahead.stages);
  shared.begin();
  if (threadIdx.x >= WARPS * 32) copy_slices<__half>(shared.stages, rows, k), fetch_ahead(ahead);
  wait_for_earlier_grids();
  let_next_grid_start();
  if (threadIdx.x < WARPS * 32) multiply<__half, NORM>(shared, rows, x, norm_weight, norm_offset, eps, k);
}

}  // namespace ring
}  // namespace gemv

SHARED_BYTES(lab_ring_ahead, gemv::ring::BYTES)
SHARED_BYTES(lab_qkv_ring_ahead, gemv::ring::BYTES)
SHARED_BYTES(lab_gated_ring_ahead, gemv::ring::BYTES)
extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)
    lab_ring_ahead(const float* x, const __grid_constant__ MatrixJobs jobs, int k, int rows, int accumulate, const __grid_constant__ Ahead ahead) {
  gemv::ring::product_ahead<false>(gemv::ring::Plain{jobs, accumulate != 0}, x, nullptr, 0.0f, 0.0f, k, ahead);
}
extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)
    lab_qkv_ring_ahead(const float* x, const float* norm_weight, float norm_offset, float eps, const __grid_constant__ MatrixJobs jobs, int k,
                       int rows, const __grid_constant__ RopeTarget to, const __grid_constant__ Ahead ahead) {
  gemv::ring::product_ahead<true>(gemv::ring::Qkv{jobs, to}, x, norm_weight, norm_offset, eps, k, ahead);
}
extern "C" __global__ void __launch_bounds__(gemv::ring::THREADS, 1)
    lab_gated_ring_ahead(const float* x, const float* norm_weight, float norm_offset, float eps, const __grid_constant__ MatrixJobs jobs, int k,
                         int rows, int activation, const __grid_constant__ Ahead ahead) {
  gemv::ring::product_ahead<true>(gemv::ring::Gated{jobs, activation}, x, norm_weight, norm_offset, eps, k, ahead);
}
#endif
