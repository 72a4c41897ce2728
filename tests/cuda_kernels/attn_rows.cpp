// attn_rows compared with the definition of alpha* in float64.
#include "attn_support.h"

#include "attn_rows.cu"

#define EXPORT_DIMS(types)                   \
  CUDA_HOST_EXPORT(attn_rows_##types##_d16)  \
  CUDA_HOST_EXPORT(attn_rows_##types##_d32)  \
  CUDA_HOST_EXPORT(attn_rows_##types##_d64)  \
  CUDA_HOST_EXPORT(attn_rows_##types##_d96)  \
  CUDA_HOST_EXPORT(attn_rows_##types##_d128) \
  CUDA_HOST_EXPORT(attn_rows_##types##_d256) \
  CUDA_HOST_EXPORT(attn_rows_##types##_d512)
EXPORT_DIMS(kf32)
EXPORT_DIMS(kf16)
EXPORT_DIMS(kbf16)

struct Case {
  Type k;
  int head_dim, kv_heads, group, keep;
  std::vector<int> asked;
  int first_traced = 0, window = 0;  // the window of odd layers
  float softcap = 0, sink = 0;
  int last_dim = 0, last_kv_heads = 0;  // for the last layer, if it differs
};

static std::string describe(const Case& c) {
  std::string s = std::string("k") + type_name(c.k) + " d" + std::to_string(c.head_dim) + " group " +
                  std::to_string(c.group) + " keep " + std::to_string(c.keep) + " window " + std::to_string(c.window) +
                  " sink " + std::to_string(c.sink) + " rows";
  for (int row : c.asked) s += " " + std::to_string(row);
  return s;
}

/// A cache, and a trace in which every requested row keeps random heads.
struct Run {
  explicit Run(const Case& c)
      : c(c),
        last(*std::max_element(c.asked.begin(), c.asked.end())),
        shape{3, 0, c.kv_heads * c.group, c.kv_heads, c.head_dim, 0, c.softcap},
        cache(shape, c.k, F16, last + 1, 5, 1),
        other({1, 0, shape.heads, c.last_kv_heads ? c.last_kv_heads : 1, c.last_dim ? c.last_dim : 16, 0, c.softcap}, c.k, F16,
              last + 1, 6),
        heads((size_t)(last + 1) * c.keep),
        maxima(heads.size()),
        sums(heads.size()),
        queries(heads.size() * c.head_dim) {
    std::mt19937 random(last + c.head_dim);
    std::normal_distribution<float> normal;
    if (c.sink != 0)
      for (int layer = 0; layer < shape.layers; ++layer)
        for (int h = 0; h < c.kv_heads; ++h)
          for (int t = 0; t <= last; ++t) cache.k.set(cache.index(layer, h, t, 0), t == 0 ? c.sink / 2 : 0);
    for (int row : c.asked) {
      if (row < c.first_traced) continue;
      for (int i = 0; i < c.keep; ++i) {
        const size_t entry = (size_t)(row - c.first_traced) * c.keep + i;
        float* query = &queries[entry * c.head_dim];
        for (int d = 0; d < c.head_dim; ++d) query[d] = 2 * normal(random) / std::sqrt((float)c.head_dim);
        if (c.sink != 0) query[0] = 2;
        heads[entry] = i == c.keep - 1 && i > 0 ? -1 : (int)(random() % (shape.layers * shape.heads));
        if (heads[entry] < 0) continue;
        const Naive<double> exact = attention<double>(heads[entry], row, query);
        const bool any = std::isfinite(exact.entropy);
        maxima[entry] = any ? (float)exact.max_weighted : -INFINITY;
        sums[entry] = any ? (float)std::exp(exact.weighted_lse - maxima[entry]) : 0;
      }
    }
  }

  Shape layer_shape(int layer) const {
    Shape s = differs(layer) ? other.shape : shape;
    s.layer = differs(layer) ? 0 : layer;
    s.window = layer % 2 ? c.window : 0;
    return s;
  }
  bool differs(int layer) const { return c.last_dim && layer == shape.layers - 1; }
  /// The layer's place in the sequence's memory, where the other cache follows the first.
  LayerShape on_device(int layer) const {
    const Shape s = layer_shape(layer);
    const int before = shape.layers * c.kv_heads * c.head_dim;
    return {differs(layer) ? before / (s.kv_heads * s.head_dim) : layer, s.kv_heads, s.head_dim, s.window};
  }
  template <class F>
  Naive<F> attention(int id, int row, const float* query) const {
    const int layer = id / shape.heads;
    return Naive<F>(differs(layer) ? other : cache, layer_shape(layer), id % shape.heads, row, query);
  }

  std::vector<float> go(int stride) const {
    SequenceView view = cache.view(c.first_traced);
    view.v = nullptr;
    std::vector<unsigned char> both = copy(cache.k.bytes);
    for (unsigned char byte : copy(other.k.bytes)) both.push_back(byte);
    const Device<unsigned char> k(both);
    view.k = k.get();
    view.trace = {heads.get(), nullptr, maxima.get(), sums.get(), queries.get(), nullptr, nullptr};
    const Device<SequenceView> sequences(std::vector<SequenceView>{SequenceView(), view});
    const Device<int> asked(c.asked);
    const Device<LayerShape> shapes(std::vector<LayerShape>{on_device(0), on_device(1), on_device(2)});
    const Device<float> out(c.asked.size() * stride);
    launch(std::string("attn_rows_k") + type_name(c.k) + "_d" + std::to_string(c.head_dim),
           dim3((stride + 31) / 32, c.asked.size()), dim3(512), 128 * c.keep, (const SequenceView*)sequences.get(), 1,
           (const int*)asked.get(), (const LayerShape*)shapes.get(), c.softcap, shape.heads, c.keep, stride, out.get());
    return copy(out);
  }

  void compare(const std::vector<float>& got, int stride) const {
    Errors errors;
    for (size_t i = 0; i < c.asked.size(); ++i) {
      const int row = c.asked[i];
      std::vector<double> exact(stride, 0);
      std::vector<float> naive(stride, 0);
      for (int e = 0; row >= c.first_traced && e < c.keep; ++e) {
        const size_t entry = (size_t)(row - c.first_traced) * c.keep + e;
        if (heads[entry] < 0) continue;
        const Naive<double> a = attention<double>(heads[entry], row, &queries[entry * c.head_dim]);
        const Naive<float> b = attention<float>(heads[entry], row, &queries[entry * c.head_dim]);
        for (int t = 0; t <= row && std::isfinite(a.entropy); ++t) {
          exact[t] = std::max(exact[t], a.alpha[t]);
          naive[t] = std::max(naive[t], b.alpha[t]);
        }
      }
      for (int t = 0; t < stride; ++t) {
        const float x = got[i * stride + t];
        if (exact[t] == 0) check(x == 0, "weight where none is: " + describe(c));
        errors.add(x, naive[t], exact[t]);
      }
    }
    // scores of magnitude up to s propagate roundings of s / 2^24 into weights of at most 1
    check(errors.within(c.sink != 0 ? 4 : 8), "rows:" + errors.text() + ": " + describe(c));
  }

  Case c;
  int last;
  Shape shape;
  Cache cache, other;
  Device<int> heads;
  Device<float> maxima, sums, queries;
};

static void test(const Case& c, int adversaries) {
  const Run run(c);
  const int stride = run.last + 1 + run.last % 5;
  const std::vector<float> fair = run.go(stride);
  run.compare(fair, stride);
  for (int seed = 1; seed <= adversaries; ++seed) {
    ch_configure(1 + seed % 2, seed);
    check(run.go(stride) == fair, "schedule " + std::to_string(seed) + ": " + describe(c));
  }
  ch_configure(1, 0);
}

int main() {
  for (Type k : {F32, F16, BF16}) {
    for (int d : {16, 32, 64, 96, 128, 256, 512}) test({k, d, 2, 3, 5, {40, 0, 1, 70, 33}}, 1);
    test({k, 64, 2, 3, 9, {40, 70}, 0, 10, 0, 0, 32, 3}, 1);
    test({k, 512, 1, 4, 9, {40, 70}, 0, 0, 0, 0, 256, 2}, 1);
    test({k, 64, 2, 4, 16, {1000, 257, 127, 33, 31, 11, 3, 2, 1, 0}}, 2);
    test({k, 64, 1, 7, 32, {200, 9, 31}, 10, 20}, 2);
    test({k, 32, 1, 8, 17, {130, 131}, 0, 64, 10}, 1);
    test({k, 128, 4, 1, 16, {64, 300}, 64, 1}, 1);
    for (float sink : {30.f, 100.f, -100.f}) test({k, 64, 1, 4, 16, {100, 65}, 0, 0, 0, sink}, 1);
  }
  return report("attn_rows");
}
