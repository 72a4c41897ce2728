// layer_sums compared with the same sums in the same order, bit for bit.
#include "attn_support.h"

#include "layer_sums.cu"

CUDA_HOST_EXPORT(layer_sums)

constexpr int KEPT = 5, PLACES = 3, PLACE = 2, FIRST = 20;

/// A pass: positions of the sequence in slot 1, and of the one in slot 2.
struct Pass {
  std::vector<int> one, other;
};

/// A sequence by definition: all its rows.
struct Rows {
  std::vector<std::vector<float>> rows;
  size_t came = 0;
  void note(int position, const float* x, int width) {
    const int index = position - FIRST;
    if (position < 0 || index < 0 || index + KEPT < (int)came) return;
    rows.resize(std::max<size_t>(rows.size(), index + 1));
    rows[index].assign(x, x + width);
    came = std::max<size_t>(came, index + 1);
  }
};

static void test(int width, const std::vector<Pass>& passes, int seed) {
  const int blocks = (width + 255) / 256;
  std::mt19937 random(width);
  std::normal_distribution<float> normal;
  std::vector<Rows> expected(2);
  std::vector<SequenceView> views(4);
  std::vector<Device<double>> sums;
  std::vector<Device<float>> kept;
  std::vector<Device<int>> counts;
  for (int i = 0; i < 2; ++i) {
    sums.emplace_back((size_t)PLACES * width);
    kept.emplace_back((size_t)PLACES * KEPT * width);
    counts.emplace_back((size_t)PLACES * blocks);
    for (size_t j = 0; j < sums[i].size(); ++j) sums[i][j] = 0;
    for (size_t j = 0; j < counts[i].size(); ++j) counts[i][j] = 0;
    kept[i].poison();
    views[i + 1].first_traced_row = FIRST;
    views[i + 1].trace.layers = {sums[i].get(), kept[i].get(), counts[i].get()};
  }
  const Device<SequenceView> sequences(views);
  ch_configure(1 + seed % 2, seed);
  for (const Pass& pass : passes) {
    std::vector<RowState> rows;
    for (int position : pass.one) rows.push_back({1, position, 0, 0});
    rows.push_back({3, FIRST, 0, 0});  // of a sequence that is not recorded
    for (int position : pass.other) rows.push_back({2, position, 0, 0});
    const Device<float> x(rows.size() * width);
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random);
    for (size_t r = 0; r < rows.size(); ++r)
      if (rows[r].slot < 3) expected[rows[r].slot - 1].note(rows[r].position, &x[r * width], width);
    const Device<RowState> states(rows);
    launch("layer_sums", dim3(blocks, rows.size()), dim3(256), 0, (const float*)x.get(), (const RowState*)states.get(),
           (int)rows.size(), (const SequenceView*)sequences.get(), PLACE, KEPT, width);
  }
  ch_configure(1, 0);
  const std::string what = "width " + std::to_string(width) + ", schedule " + std::to_string(seed);
  for (int i = 0; i < 2; ++i) {
    const Rows& want = expected[i];
    const size_t summed = want.came > KEPT ? want.came - KEPT : 0;
    for (int c = 0; c < width; ++c) {
      double sum = 0;
      for (size_t r = 0; r < summed; ++r) sum += (double)want.rows[r][c];
      check(sums[i][(size_t)PLACE * width + c] == sum, "sum: " + what);
      check(sums[i][c] == 0 && std::isnan(kept[i][c]), "another point: " + what);
      for (size_t r = summed; r < want.came; ++r)
        check(kept[i][((size_t)PLACE * KEPT + r % KEPT) * width + c] == want.rows[r][c], "kept: " + what);
    }
    for (int b = 0; b < blocks; ++b) check(counts[i][PLACE * blocks + b] == (int)want.came, "count: " + what);
  }
}

static std::vector<int> range(int begin, int end) {
  std::vector<int> all;
  for (int i = begin; i < end; ++i) all.push_back(i);
  return all;
}

int main() {
  // a prompt, single steps, an end (-1), steps that ran ahead and are repeated, one that is no longer kept
  std::vector<Pass> passes = {{range(0, 28), range(19, 23)}, {{28}, {23}}, {{29}, {-1}}, {{30}, {}}, {{28}, {22}},
                              {{29}, {23, 24}}, {{24}, {}}, {range(30, 45), {25}}, {{}, range(26, 40)}};
  for (int seed = 0; seed <= 6; ++seed)
    for (int width : {7, 256, 300, 1000}) test(width, passes, seed);
  return report("layer_sums");
}
