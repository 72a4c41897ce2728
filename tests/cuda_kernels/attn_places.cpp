// attn_places and attn_sum compared with the softmax in float64, from states rounded from it.
#include "attn_support.h"

#include "attn_places.cu"

CUDA_HOST_EXPORT(attn_places_kf32)
CUDA_HOST_EXPORT(attn_places_kf16)
CUDA_HOST_EXPORT(attn_places_kbf16)
CUDA_HOST_EXPORT(attn_sum_kf32)
CUDA_HOST_EXPORT(attn_sum_kf16)
CUDA_HOST_EXPORT(attn_sum_kbf16)

struct Case {
  Type k;
  int head_dim, kv_heads, group, first_traced;
  std::vector<int> positions;
  int window = 0;
  float softcap = 0;
};

static std::string describe(const Case& c) {
  return std::string("k") + type_name(c.k) + " d" + std::to_string(c.head_dim) + " group " + std::to_string(c.group) +
         " window " + std::to_string(c.window) + " softcap " + std::to_string(c.softcap) + " prompt " +
         std::to_string(c.first_traced + 1);
}

/// The softmax weights of one head of a row, in precision F, by definition.
template <class F>
static std::vector<F> exact_weights(const Cache& cache, const Shape& s, int head, int row, const float* query, F& max,
                                    F& z) {
  const int kv = head / s.group(), first = s.window > 0 ? std::max(0, row + 1 - s.window) : 0;
  std::vector<F> e(row + 1, 0);
  max = -INFINITY;
  for (int t = first; t <= row; ++t) {
    F x = 0;
    for (int i = 0; i < s.head_dim; ++i) x += (F)query[i] * (F)cache.k.at(cache.index(s.layer, kv, t, i));
    e[t] = s.softcap > 0 ? (F)s.softcap * std::tanh(x / (F)s.softcap) : x;
    max = std::max(max, e[t]);
  }
  z = 0;
  for (int t = first; t <= row; ++t) z += e[t] = std::exp(e[t] - max);
  for (F& x : e) x /= z;
  return e;
}

/// The weights of the row's own position, the one before, the first, and the prompt.
template <class F>
static std::vector<F> exact_places(const std::vector<F>& alpha, int prompt) {
  const int row = (int)alpha.size() - 1;
  F of_prompt = 0;
  for (int t = 0; t < std::min(prompt, row + 1); ++t) of_prompt += alpha[t];
  return {alpha[row], row > 0 ? alpha[row - 1] : 0, alpha[0], of_prompt};
}

static void test(const Case& c, int adversaries) {
  const int last = *std::max_element(c.positions.begin(), c.positions.end()), n = c.positions.size();
  const Shape shape{3, 1, c.kv_heads * c.group, c.kv_heads, c.head_dim, c.window, c.softcap};
  const Cache cache(shape, c.k, F16, last + 1, 5);
  std::mt19937 random(last + c.head_dim);
  std::normal_distribution<float> normal;
  const Device<float> queries((size_t)n * shape.heads * c.head_dim);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = 2 * normal(random) / std::sqrt((float)c.head_dim);
  const Device<HeadState> states((size_t)n * shape.heads);
  std::vector<RowState> row_states;
  std::vector<std::vector<double>> expected;
  std::vector<std::vector<float>> naive;
  std::vector<double> sum(c.positions[0] + 1);  // over the heads of the first row
  std::vector<float> naive_sum(sum.size());
  for (int r = 0; r < n; ++r) {
    const int row = c.positions[r];
    row_states.push_back({1, row, 0, 0});
    for (int h = 0; h < shape.heads; ++h) {
      const float* query = &queries[((size_t)r * shape.heads + h) * c.head_dim];
      double max, z;
      float max32, z32;
      const auto alpha = exact_weights<double>(cache, shape, h, row, query, max, z);
      const auto alpha32 = exact_weights<float>(cache, shape, h, row, query, max32, z32);
      expected.push_back(exact_places(alpha, c.first_traced + 1));
      naive.push_back(exact_places(alpha32, c.first_traced + 1));
      for (int t = 0; r == 0 && t <= row; ++t) sum[t] += alpha[t], naive_sum[t] += alpha32[t];
      const float m = (float)max;
      states[(size_t)r * shape.heads + h] = {m, (float)(z * std::exp(max - m)), 0, 1, -(float)h};  // entropy h
    }
  }
  row_states.push_back({1, -1, 0, 0});  // a row that has ended
  row_states.push_back({2, last, 0, 0});  // of a sequence that is not recorded
  const Device<RowState> rows(row_states);
  Device<HeadPlaces> places((size_t)(last + 1 - c.first_traced) * shape.layers * shape.heads);
  SequenceView view = cache.view(c.first_traced), plain = view;
  view.v = nullptr;
  view.trace.places = places.get();
  const Device<SequenceView> sequences(std::vector<SequenceView>{SequenceView(), view, plain});
  std::vector<HeadPlaces> fair;
  const int count = (int)sum.size();
  Device<float> summed(count);
  std::vector<float> fair_sum;
  for (int seed = 0; seed <= adversaries; ++seed) {
    ch_configure(1 + seed % 2, seed);
    places.poison();
    launch(std::string("attn_places_k") + type_name(c.k), dim3(shape.heads, n + 2), dim3(128),
           16, (const HeadState*)states.get(), (const float*)queries.get(), (const RowState*)rows.get(),
           (const SequenceView*)sequences.get(), 1, shape.heads, c.kv_heads, c.window, c.softcap, c.head_dim, 2,
           shape.layers, 0);
    summed.poison();
    launch(std::string("attn_sum_k") + type_name(c.k), dim3((count + 15) / 16), dim3(128), 0,
           (const HeadState*)states.get(), (const float*)queries.get(), (const RowState*)rows.get(),
           (const SequenceView*)sequences.get(), 1, shape.heads, c.kv_heads, c.window, c.softcap, c.head_dim, count,
           summed.get());
    if (seed == 0) fair = copy(places), fair_sum = copy(summed);
    check(same_bits(places, fair) && same_bits(summed, fair_sum),
          "schedule " + std::to_string(seed) + ": " + describe(c));
  }
  ch_configure(1, 0);
  Errors errors;
  size_t written = 0;
  for (int r = 0; r < n; ++r)
    for (int h = 0; h < shape.heads && c.positions[r] >= c.first_traced; ++h, ++written) {
      const HeadPlaces& p = fair[((size_t)(c.positions[r] - c.first_traced) * shape.layers + 2) * shape.heads + h];
      const size_t i = (size_t)r * shape.heads + h;
      check(p.entropy == (float)h, "entropy: " + describe(c));
      const float got[] = {p.own, p.previous, p.first, p.prompt};
      for (int j = 0; j < 4; ++j) errors.add(got[j], naive[i][j], expected[i][j]);
    }
  // scores of magnitude up to 8 propagate roundings of 8 / 2^24 into weights of at most 1
  check(errors.within(8), "places:" + errors.text() + ": " + describe(c));
  Errors of_sum;
  for (int t = 0; t < count; ++t) of_sum.add(fair_sum[t], naive_sum[t], sum[t]);
  check(of_sum.within(8.f * shape.heads), "sum:" + of_sum.text() + ": " + describe(c));
  size_t untouched = 0;
  for (const HeadPlaces& p : fair) untouched += std::isnan(p.own);
  check(untouched + written == fair.size(), "what is written: " + describe(c));
}

int main() {
  for (Type k : {F32, F16, BF16}) {
    for (int d : {16, 32, 64, 80, 96, 128, 256, 512}) test({k, d, 2, 3, 20, {40, 20, 19, 70, 33}}, 1);
    test({k, 64, 2, 1, 0, {0, 1, 2, 17}}, 2);
    test({k, 64, 1, 7, 300, {300, 301, 320}}, 4);
    test({k, 32, 1, 8, 100, {130, 110, 165, 163}, 64, 10}, 2);
  }
  return report("attn_places");
}
