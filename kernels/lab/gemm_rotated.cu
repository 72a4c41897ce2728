// gemm_hopper.cu's products of q, k and v with rope_cache's work where they are stored: a pair that is rotated together lies head_dim / 2
// outputs apart, so in the registers of one lane. Same bits as gemm_hopper and then rope_cache, without a launch, and without writing
// keys and values in float32 and reading them, and the queries, again.
//
//   lab_gemm_rotated_d{64,128}  (x_map, w_maps, x_scales, jobs, n, k, to, first_angles, query_growth, query_period)
//
// PRECOND: as gemm_hopper; jobs q, k, v with outs multiples of head_dim; the rest as rope_cache without norms per head.
#include "../gemm_hopper.cu"
#include "../rope.cuh"

#if HAS_WGMMA
namespace hopper {

/// Writes a lane's pairs: two neighbouring ones of rows `row` and row + 8 in each tile.
template <int HEAD_DIM>
__device__ __forceinline__ void store_rotated(const Group& group, const MatrixJob& job, int number, int row, int out, int n, const RopeTarget& to,
                                              const int* first_angles, float query_growth, int query_period) {
  constexpr int HALF = HEAD_DIM / 2, APART = HALF / 8;  // in tiles
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int own = row + 8 * r;
    const CachePlace place = own < n ? CachePlace(to, own) : CachePlace();
    if (own >= n || !place.exists()) continue;
    const size_t angles = place.angle(to, 0) + (size_t)first_angles[to.rows[own].slot] * HALF;
    const float growth = query_growth == 0.0f ? 1.0f : 1.0f + query_growth * logf((float)(1 + place.position / query_period));
    const float scale = number == 0 ? to.query_scale * growth : 1.0f;
#pragma unroll
    for (int tile = 0; tile < 16; ++tile) {
      const int at = out + tile * 8 + threadIdx.x % 4 * 2, i = at % HEAD_DIM, head = at / HEAD_DIM;
      if (tile / APART % 2 != 0 || at >= job.outs) continue;
      const float* const sums = group.sum + tile * 4 + 2 * r;
      const float2 first = Finish(job, at, true)(sums[0], sums[1]), second = Finish(job, at + HALF, true)(sums[APART * 4], sums[APART * 4 + 1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Rotated x = e == 0 ? Rotated{first.x, second.x} : Rotated{first.y, second.y};
        if (number == 2) {
          place.store_value(to, head, i + e, x.first), place.store_value(to, head, i + e + HALF, x.second);
          continue;
        }
        x = rotate(x.first, x.second, to.cos[angles + i + e], to.sin[angles + i + e], scale);
        float* const y = job.y + (size_t)own * job.outs + at + e;
        if (number == 0) y[0] = x.first, y[HALF] = x.second;
        if (number == 1) place.store_key(to, head, i + e, x.first), place.store_key(to, head, i + e + HALF, x.second);
      }
    }
  }
}

}  // namespace hopper

#define LAB_GEMM_ROTATED(HEAD_DIM)                                                                                                    \
  SHARED_BYTES(lab_gemm_rotated_d##HEAD_DIM, hopper::BYTES)                                                                           \
  STARTS_EARLY(lab_gemm_rotated_d##HEAD_DIM)                                                                                          \
  CLUSTERS(lab_gemm_rotated_d##HEAD_DIM, 1, 2)                                                                                        \
  extern "C" __global__ void __launch_bounds__(hopper::THREADS, 1) IN_CLUSTERS(1, 2) lab_gemm_rotated_d##HEAD_DIM(                    \
      const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMaps w_maps, const float* x_scales,                      \
      const __grid_constant__ MatrixJobs jobs, int n, int k, const __grid_constant__ RopeTarget to, const int* first_angles,          \
      float query_growth, int query_period) {                                                                                         \
    hopper::product<false>(x_map, w_maps, x_scales, jobs, n, k, [&](const auto& group, const auto& block, int row) {                  \
      hopper::store_rotated<HEAD_DIM>(group, jobs.job[block.number], block.number, row, block.out, n, to, first_angles, query_growth, \
                                      query_period);                                                                                  \
    });                                                                                                                               \
  }
LAB_GEMM_ROTATED(64)
LAB_GEMM_ROTATED(128)
#undef LAB_GEMM_ROTATED
#endif
