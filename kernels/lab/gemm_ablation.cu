// gemm_hopper.cu's product of one matrix with parts left out, to find what limits it:
//
//   lab_gemm_c{32,64,0}[_cached]   parameters as gemm_hopper's
//
//   c        products that the tensor cores add up before the sum is added to a float32 (promotion); 0: all, without promotion
//   _cached  only the first STAGES slices of a block are copied, and multiplied again and again: the results are wrong
//
// c32 has the bits of gemm_hopper. In c64 the powers of two of 64 elements of x are those of the first 32, in c0 of the first 32 of k.
#include "../gemm_hopper.cu"

#if HAS_WGMMA
namespace hopper {

template <int LENGTH, bool COPIED>
struct Ablation : Group {
  using Group::Group;

  /// Starts the products of a stage, `accumulate`: onto d.
  __device__ __forceinline__ void start_slice(float (&d)[64], int stage, bool accumulate) const {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
      const unsigned at = stage * (STAGE / 16) + step * 32 / 16;
      wgmma_m64n128k16(d, x.plus(at), w.plus(at), accumulate || step > 0);
    }
    wgmma_commit();
  }
  /// `slices`: multiplied so far by this block.
  __device__ __forceinline__ void arrived(const Ring& ring, const Turn& turn, int slices) const {
    if (COPIED || slices < STAGES) mbarrier_wait(ring.full + turn.stage, turn.parity);
  }
  __device__ __forceinline__ void multiply_lab(const Ring& ring, Turn& turn, int& slices, int k, RowScales scales) {
    if constexpr (LENGTH == CHAIN && COPIED) {
      multiply(ring, turn, k, scales);
      return;
    }
    clear();
    float first[64], second[64];
    int before = 0;  // the stage whose products are in flight
    if constexpr (LENGTH == 0) scales.advance();
#pragma unroll 1
    for (int at = 0; at < k; at += 2 * BK) {
      const auto slice = [&](float (&own)[64], float (&other)[64], int offset) {
        if (at + offset >= k) return;
        arrived(ring, turn, slices++);
        const bool begun = at + offset > 0;
        if constexpr (LENGTH == 0) {
          start_slice(sum, turn.stage, begun);
          if (begun) wgmma_wait<1>(sum);
        } else if constexpr (LENGTH == BK) {
          start_slice(own, turn.stage, false);
          if (begun) wgmma_wait<1>(other), add(other, scales, 0);
          scales.advance();
        } else {
          start(first, turn.stage, 0), start(second, turn.stage, 1);
          scales.advance();
          wgmma_wait<1>(first), add(first, scales, 0);
          wgmma_wait<0>(second), add(second, scales, 1);
        }
        if (COPIED && begun) release(before);
        before = turn.stage;
        turn.next(STAGES);
      };
      slice(first, second, 0), slice(second, first, BK);
    }
    if constexpr (LENGTH == 0) {
      wgmma_wait<0>(sum);
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[i] *= scales(i / 2 % 2, 0);
    } else if constexpr (LENGTH == BK) {
      if (ceil_div(k, BK) % 2) {
        wgmma_wait<0>(first), add(first, scales, 0);
      } else {
        wgmma_wait<0>(second), add(second, scales, 0);
      }
    }
    if (COPIED) release(before);
  }
};

template <int LENGTH, bool COPIED>
__device__ __forceinline__ void product_lab(const TensorMap& x_map, const TensorMaps& w_maps, const float* x_scales, const MatrixJobs& jobs,
                                            int n, int k, int mode) {
  const auto copy = [&](const Ring& ring, Turn& turn, Blocks<false>& block) {
    while (block.next()) {
      copy_slices<false>(ring, turn, x_map, block.row, w_maps, block.number, block.out, COPIED ? k : min(k, STAGES * BK));
      if (!COPIED) break;
    }
  };
  groups<false>(jobs, n, copy, [&](const Ring& ring, Turn& turn, Blocks<false>& block) {
    Ablation<LENGTH, COPIED> group(ring);
    int slices = 0;
    while (block.next()) {
      const int own = block.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
      group.multiply_lab(ring, turn, slices, k, RowScales(x_scales, own, n, k));
      group.template store<false>(jobs.job[block.number], jobs.job[1], own, block.out, n, mode);
    }
  });
}

}  // namespace hopper

#define LAB_GEMM(name, LENGTH, COPIED)                                                                                               \
  SHARED_BYTES(name, hopper::BYTES)                                                                                                  \
  STARTS_EARLY(name)                                                                                                                 \
  CLUSTERS(name, 1, 2)                                                                                                               \
  extern "C" __global__ void __launch_bounds__(hopper::THREADS, 1) IN_CLUSTERS(1, 2)                                                 \
      name(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMaps w_maps, const float* x_scales,                \
           const __grid_constant__ MatrixJobs jobs, int n, int k, int accumulate) {                                                  \
    hopper::product_lab<LENGTH, COPIED>(x_map, w_maps, x_scales, jobs, n, k, accumulate);                                            \
  }
LAB_GEMM(lab_gemm_c32, 32, true)
LAB_GEMM(lab_gemm_c64, 64, true)
LAB_GEMM(lab_gemm_c0, 0, true)
LAB_GEMM(lab_gemm_c32_cached, 32, false)
LAB_GEMM(lab_gemm_c64_cached, 64, false)
LAB_GEMM(lab_gemm_c0_cached, 0, false)
#undef LAB_GEMM
#endif
