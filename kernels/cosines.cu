// Cosines between traced final hidden states, for the similarity filter.
//
// cosines: out[i, j] = cos(hidden(positions[i]), hidden(answer[j])), in float64 until the end; 0 where one of
//   the two was not traced.
//   sequences, slot   the sequence; its trace holds `traced` rows from first_traced_row on
//   positions         [n] absolute        answer  [m] absolute        out  [n, m] f32
// PRECOND: grid (m, n); block 128; dynamic shared memory cosines_shared_bytes.
#include "common.cuh"

namespace cosine {

constexpr int WARPS = 4;

/// The three products that a cosine is made of.
struct Products {
  double xy, xx, yy;
};

__device__ __forceinline__ Products products(const __half* x, const __half* y, int size) {
  Products sums = {0.0, 0.0, 0.0};
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const double a = to_f32(x[i]), b = to_f32(y[i]);
    sums.xy = fma(a, b, sums.xy);
    sums.xx = fma(a, a, sums.xx);
    sums.yy = fma(b, b, sums.yy);
  }
  return sums;
}

}  // namespace cosine

SHARED_BYTES(cosines, 3 * cosine::WARPS * 8)

extern "C" __global__ void __launch_bounds__(128)
    cosines(const SequenceView* __restrict__ sequences, int slot, int traced, int hidden_size,
                      const int* __restrict__ positions, const int* __restrict__ answer, float* __restrict__ out) {
  const SequenceView& sequence = sequences[slot];
  const int a = positions[blockIdx.y] - sequence.first_traced_row, b = answer[blockIdx.x] - sequence.first_traced_row;
  float& to = out[(size_t)blockIdx.y * gridDim.x + blockIdx.x];
  if (a < 0 || b < 0 || a >= traced || b >= traced || !sequence.trace.hidden) {
    if (threadIdx.x == 0) to = 0.f;
    return;
  }
  const __half* hidden = sequence.trace.hidden;
  const cosine::Products own =
      cosine::products(hidden + (size_t)a * hidden_size, hidden + (size_t)b * hidden_size, hidden_size);
  double* scratch = reinterpret_cast<double*>(dyn_smem);  // [3, WARPS]
  const double xy = block_reduce<Sum>(own.xy, scratch), xx = block_reduce<Sum>(own.xx, scratch + cosine::WARPS),
               yy = block_reduce<Sum>(own.yy, scratch + 2 * cosine::WARPS);
  if (threadIdx.x == 0) to = (float)(xy / sqrt(xx * yy));
}
