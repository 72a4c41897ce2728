// softmax_state.cuh in a kernel of one's own, compared with the definition in float64: log-sum-exp and entropy of a row of scores.
#include "attn_support.h"

#include "softmax_state.cuh"

SHARED_BYTES(row_entropy, 0)
/// One warp: ln Z + m, and H of the reweighted attention, of row `row`, whose scores are s[0] ..= s[row].
extern "C" __global__ void row_entropy(const float* s, int row, double* lse, double* entropy) {
  HeadState state = empty_state();
  for (int start = 0; start <= row; start += 32) {
    const int t = start + threadIdx.x;
    const float own = t <= row ? s[t] : -infinity();
    const float m = warp_reduce<Max>(own), mw = warp_reduce<Max>(has_weight(row, t) ? own : -infinity());
    raise<true>(state, fmaxf(state.m, m), fmaxf(state.mw, mw));
    if (t <= row) add_position<true>(state, own, row, t);
  }
  state = {state.m, warp_reduce<Sum>(state.z), state.mw, warp_reduce<Sum>(state.zw), warp_reduce<Sum>(state.sw)};
  if (threadIdx.x == 0) *lse = state.m + log((double)state.z), *entropy = finish(state, false).entropy;
}
CUDA_HOST_EXPORT(row_entropy)

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int row : {2, 3, 11, 12, 30, 31, 32, 33, 63, 64, 300, 1000}) {
    const Device<float> scores(row + 1);
    for (int t = 0; t <= row; ++t) scores[t] = t == 0 ? 40 : 3 * normal(random);  // a sink
    const Device<double> lse(1), entropy(1);
    launch("row_entropy", dim3(1), dim3(32), 0, (const float*)scores.get(), row, lse.get(), entropy.get());
    double z = 0, weighted = 0, expected = 0;
    const auto weight = [&](int t) {
      const int near = row - t - 1;
      return t == 0 || t == row ? 0. : near < MAX_NEAREST ? (double)GAMMA.weights[near] : 1.;
    };
    for (int t = 0; t <= row; ++t) z += std::exp((double)scores[t] - 40), weighted += weight(t) * std::exp((double)scores[t]);
    for (int t = 0; t <= row; ++t) {
      const double share = weight(t) * std::exp((double)scores[t]) / weighted;
      if (share > 0) expected -= share * std::log(share);
    }
    // every weight is off by 2^-22 and by |s - m| 2^-23, and sums of n terms by n / 32 + 5 roundings; ln and S' / Z' are of size ln n + 20
    const double bound = (2 + 20 + row / 32 + 5) * std::ldexp(1., -23) * (std::log(row + 1.) + 20);
    check(std::abs(lse[0] - (40 + std::log(z))) <= bound, "log-sum-exp of row " + std::to_string(row));
    check(std::abs(entropy[0] - expected) <= bound, "entropy of row " + std::to_string(row));
  }
  return report("softmax_state");
}
