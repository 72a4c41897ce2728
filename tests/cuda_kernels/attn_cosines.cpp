// cosines against float64.
#include "attn_support.h"

#include "cosines.cu"

CUDA_HOST_EXPORT(cosines)

static void test(int hidden_size, int traced, int first, const std::vector<int>& positions,
                 const std::vector<int>& answer, int seed) {
  std::mt19937 random(hidden_size);
  std::normal_distribution<float> normal;
  const Device<__half> hidden((size_t)traced * hidden_size);
  const Device<float> out(positions.size() * answer.size());
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = from_f32<__half>(10 * normal(random));
  SequenceView view = {};
  view.first_traced_row = first;
  view.trace.hidden = hidden.get();
  const Device<SequenceView> sequences(std::vector<SequenceView>{SequenceView(), SequenceView(), view});
  const Device<int> p(positions), a(answer);
  ch_configure(1 + seed % 2, seed);
  launch("cosines", dim3(answer.size(), positions.size()), dim3(128), 96,
         (const SequenceView*)sequences.get(), 2, traced, hidden_size, (const int*)p.get(), (const int*)a.get(),
         out.get());
  ch_configure(1, 0);
  for (size_t i = 0; i < positions.size(); ++i)
    for (size_t j = 0; j < answer.size(); ++j) {
      const int x = positions[i] - first, y = answer[j] - first;
      double xy = 0, xx = 0, yy = 0, cosine = 0;
      if (x >= 0 && y >= 0 && x < traced && y < traced) {
        for (int d = 0; d < hidden_size; ++d) {
          const double u = to_f32(hidden[(size_t)x * hidden_size + d]), v = to_f32(hidden[(size_t)y * hidden_size + d]);
          xy += u * v, xx += u * u, yy += v * v;
        }
        cosine = xy / std::sqrt(xx * yy);
      }
      // float64 sums, then one rounding to float32
      check(std::fabs(out[i * answer.size() + j] - cosine) <= 6.0e-8, "cosine, size " + std::to_string(hidden_size));
    }
}

int main() {
  for (int seed = 0; seed <= 6; ++seed) {
    test(7, 5, 0, {0, 1, 4, 5, 2}, {3, 4}, seed);
    test(64, 10, 20, {19, 20, 29, 30, 0}, {25, 20, 40}, seed);
    test(1000, 4, 3, {3, 4}, {6}, seed);
    test(129, 2, 0, {0}, {0, 1}, seed);
  }
  return report("attn_cosines");
}
