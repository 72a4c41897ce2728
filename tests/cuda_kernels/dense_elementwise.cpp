// norm.cu, embed.cu and rope.cu against float64. u = 2^-24.
#include "dense_support.h"

#include "embed.cu"
#include "norm.cu"
#include "rope.cu"

CUDA_HOST_EXPORT(rms_norm)
CUDA_HOST_EXPORT(add_rms_norm)
CUDA_HOST_EXPORT(gated_act)
CUDA_HOST_EXPORT(rms_norm_bf16)
CUDA_HOST_EXPORT(rms_norm_f16)
CUDA_HOST_EXPORT(gated_act_bf16)
CUDA_HOST_EXPORT(gated_act_f16)
CUDA_HOST_EXPORT(embed_bf16)
CUDA_HOST_EXPORT(embed_f16)
CUDA_HOST_EXPORT(embed_f32)
CUDA_HOST_EXPORT(rope_cache)

constexpr double U = 1.0 / (1 << 24);

static std::vector<double> norm_f64(const float* x, int width, const float* weight, double offset, double eps) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += (double)x[i] * x[i];
  const double factor = 1 / std::sqrt(squares / width + eps);
  std::vector<double> y(width);
  for (int i = 0; i < width; ++i) y[i] = x[i] * factor * (offset + weight[i]);
  return y;
}

/// Error of the factor: half of the sum's (chains of width / 1024 and 8 + 5 additions), mean, root and reciprocal; then
/// two products and offset + weight (whose error is relative to offset + |weight|, not to their sum).
static double norm_bound(double y, double x_factor, double offset, double weight, int width) {
  return ((width / 1024 + 16) / 2.0 + 6) * U * std::abs(y) + 2 * U * x_factor * (offset + std::abs(weight)) + 1e-12;
}

/// Of a value held in terms.
template <class T>
static double restore(const Device<unsigned short>& terms, size_t at, size_t distance, int count) {
  double sum = 0, scale = Split<T>::RESTORE;
  for (int term = 0; term < count; ++term, scale *= Split<T>::NEXT) {
    T element;
    memcpy((void*)&element, &terms[term * distance + at], 2);
    sum += scale * value(element);
  }
  return sum;
}

/// Relative and absolute error of a value held in a number of terms.
template <class T>
static double term_error(double x, int count) {
  const bool f16 = Split<T>::NEXT != 1.0f;
  const double relative = f16 ? std::ldexp(1.0, count == 1 ? -11 : -22) : std::ldexp(1.0, count == 1 ? -8 : -16);
  return relative * std::abs(x) * 1.01 + (f16 ? std::ldexp(1.0, count == 1 ? -19 : -30) : 1e-38);
}

template <class T>
static void test_norm_terms(int width, int rows, float offset, int count) {
  const auto in = normal((size_t)rows * width, width, 3), w = normal(width, 2);
  Device<float> x(in), weight(w);
  Device<unsigned short> terms((size_t)count * rows * width);
  const std::string name = std::string("rms_norm_") + type_name<T>();
  schedules(2, [&](int) {
    launch(name, rows, 256, 32, (const float*)x.get(), (const float*)weight.get(), offset, 1e-6f, width, terms.get(),
           count);
    for (int r = 0; r < rows; ++r) {
      const auto want = norm_f64(&in[(size_t)r * width], width, w.data(), offset, 1e-6f);
      for (int i = 0; i < width; ++i) {
        const double got = restore<T>(terms, (size_t)r * width + i, (size_t)rows * width, count);
        const double plain = norm_bound(want[i], std::abs(want[i] / (offset + w[i])), offset, w[i], width);
        check_error(std::abs(got - want[i]), plain + term_error<T>(want[i], count), name);
      }
    }
  });
}

static void test_norm(int width, int rows, float offset, float scale) {
  const auto in = normal((size_t)rows * width, width, scale), w = normal(width, 2), residual = normal(in.size(), 8);
  const float eps = 1e-5f;
  schedules(6, [&](int seed) {
    Device<float> x(in), weight(w), y(in.size()), stream(residual);
    Device<int> flag(std::vector<int>{0});
    launch("rms_norm", rows, 256, 32, (const float*)x.get(), (const float*)weight.get(), offset, eps, width, y.get(),
           seed % 2 ? flag.get() : nullptr);
    launch("add_rms_norm", rows, 256, 32, stream.get(), (const float*)x.get(), (const float*)weight.get(), offset, eps,
           width);
    check(flag[0] == 0, "rms_norm: flag without cause");
    for (int r = 0; r < rows; ++r) {
      const auto want = norm_f64(&in[(size_t)r * width], width, w.data(), offset, eps);
      for (int i = 0; i < width; ++i) {
        const size_t at = (size_t)r * width + i;
        const double bound = norm_bound(want[i], std::abs(want[i] / (offset + w[i])), offset, w[i], width);
        check_error(std::abs(y[at] - want[i]), bound, "rms_norm " + std::to_string(width));
        const double sum = want[i] + residual[at];
        check_error(std::abs(stream[at] - sum), bound + U * (std::abs(sum) + bound),
                    "add_rms_norm " + std::to_string(width));
      }
    }
    // in place gives the same bits
    launch("rms_norm", rows, 256, 32, (const float*)x.get(), (const float*)weight.get(), offset, eps, width, x.get(),
           (int*)nullptr);
    check(!memcmp(x.get(), y.get(), in.size() * 4), "rms_norm in place differs");
  });
}

static void test_not_finite() {
  for (float bad : {INFINITY, (float)NAN, 1e30f}) {
    auto in = normal(3 * 64, 1);
    in[64 + 7] = bad;
    Device<float> x(in), weight(normal(64, 2)), y(in.size());
    Device<int> flag(std::vector<int>{0});
    launch("rms_norm", 3, 256, 32, (const float*)x.get(), (const float*)weight.get(), 0.0f, 1e-6f, 64, y.get(),
           flag.get());
    check(flag[0] == 1, "rms_norm: no flag");
    check(std::isfinite(y[0]) && std::isfinite(y[130]), "rms_norm: a bad row spoils others");
  }
}

template <class T>
static void test_gated_terms(const std::vector<float>& gate, const std::vector<float>& up, int activation, int count) {
  Device<float> g(gate), u(up);
  const int n = gate.size();
  Device<unsigned short> terms((size_t)count * n);
  launch(std::string("gated_act_") + type_name<T>(), ceil_div(n, 1024), 256, 0, (const float*)g.get(),
         (const float*)u.get(), terms.get(), n, activation, count);
  for (int i = 0; i < n; ++i) {
    const double want = activate_f64(gate[i], activation) * up[i];
    check_error(std::abs(restore<T>(terms, i, n, count) - want),
                16 * U * std::abs(gate[i] * (double)up[i]) + term_error<T>(want, count) + 1e-12, "gated_act terms");
  }
}

static void test_gated(int n) {
  const auto gate = normal(n, n, 4), up = normal(n, n + 1, 4);
  for (int activation : {0, 1}) {
    Device<float> g(gate), u(up);
    launch("gated_act", ceil_div(n, 1024), 256, 0, (const float*)g.get(), (const float*)u.get(), g.get(), n,
           activation);
    for (int i = 0; i < n; ++i)
      check_error(std::abs(g[i] - activate_f64(gate[i], activation) * up[i]),
                  16 * U * std::abs(gate[i] * (double)up[i]) + 1e-12, "gated_act");
    for (int count : {1, 2}) {
      test_gated_terms<__nv_bfloat16>(gate, up, activation, count);
      test_gated_terms<__half>(gate, up, activation, count);
    }
  }
}

template <class T>
static void test_embed(int width, int rows) {
  const int vocab = 37;
  const auto table = convert<T>(normal((size_t)vocab * width, width));
  Device<T> embedding(table);
  std::vector<RowState> states;
  for (int r = 0; r < rows; ++r) states.push_back({0, r, (r * 11 + 36) % vocab, 0});
  if (rows > 2) states[1].token = vocab, states[2].token = -1;
  Device<RowState> row_states(states);
  Device<float> x((size_t)rows * width);
  const float scale = 3.7f;
  launch(std::string("embed_") + type_name<T>(), dim3(ceil_div(width, 2048), rows), 256, 0, (const T*)embedding.get(),
         (const RowState*)row_states.get(), x.get(), width, vocab, scale);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < width; ++i) {
      const float got = x[(size_t)r * width + i];
      const bool bad = states[r].token < 0 || states[r].token >= vocab;
      const float want = bad ? NAN : (float)value(table[(size_t)states[r].token * width + i]) * scale;
      check(bad ? got != got : got == want, "embed");
    }
}

struct RopeCase {
  int heads, kv_heads, head_dim, rows;
  bool norms;
};

template <class K, class V>
static void test_rope(const RopeCase& c, int k_type, int v_type) {
  const int half = c.head_dim / 2, slots = 3, layers = 2, layer = 1, capacities[slots] = {64, 128, 64}, longest = 128;
  const float scale = 0.37f, eps = 1e-6f, offset = c.norms ? 1.0f : 0.0f;
  std::vector<float> cosines((size_t)longest * half), sines(cosines.size());
  for (int p = 0; p < longest; ++p)
    for (int i = 0; i < half; ++i) {
      const float angle = (float)p * (1.0f / (float)std::pow(1e4, 2.0 * i / c.head_dim));
      cosines[(size_t)p * half + i] = std::cos((double)angle), sines[(size_t)p * half + i] = std::sin((double)angle);
    }
  const auto q_in = normal((size_t)c.rows * c.heads * c.head_dim, 1),
             k_in = normal((size_t)c.rows * c.kv_heads * c.head_dim, 2, 20), v_in = normal(k_in.size(), 3),
             q_weight = normal(c.head_dim, 4), k_weight = normal(c.head_dim, 5);
  Device<float> cos(cosines), sin(sines), k(k_in), v(v_in), q_norm(q_weight), k_norm(k_weight);
  std::vector<RowState> states;  // the last of several rows lies beyond its cache
  for (int r = 0; r < c.rows; ++r) states.push_back({r % slots, r / slots * 5 + r, 0, 0});
  if (c.rows > 1) states.back().position = capacities[states.back().slot];
  Device<RowState> rows(states);
  schedules(1, [&](int) {
    Device<float> q(q_in);
    std::vector<Device<K>> k_cache;
    std::vector<Device<V>> v_cache;
    std::vector<SequenceView> views;
    for (int s = 0; s < slots; ++s) {
      const size_t size = (size_t)layers * c.kv_heads * capacities[s] * c.head_dim;
      k_cache.emplace_back(size), v_cache.emplace_back(size);
      views.push_back({k_cache[s].get(), v_cache[s].get(), (unsigned)capacities[s], 0, {}});
    }
    Device<SequenceView> sequences(views);
    launch("rope_cache", dim3(ceil_div(c.heads + 2 * c.kv_heads, 4), c.rows), 128, 0, q.get(), (const float*)k.get(),
           (const float*)v.get(), c.norms ? (const float*)q_norm.get() : nullptr,
           c.norms ? (const float*)k_norm.get() : nullptr, offset, eps, (const float*)cos.get(),
           (const float*)sin.get(), (const RowState*)rows.get(), (const SequenceView*)sequences.get(), layer, c.heads,
           c.kv_heads, c.head_dim, scale, k_type, v_type);
    // rounding to the cache's type: half a unit of 24, 11 or 8 bits
    const double k_unit = k_type == 0   ? U
                          : k_type == 1 ? 1.0 / (1 << 11)
                                        : 1.0 / (1 << 8),
                 v_unit = v_type == 0   ? 0
                          : v_type == 1 ? 1.0 / (1 << 11)
                                        : 1.0 / (1 << 8);
    size_t written = 0;
    for (int r = 0; r < c.rows; ++r) {
      const int position = states[r].position, slot = states[r].slot;
      const auto rotated = [&](const float* x, const std::vector<float>& weight, double scale, int i, double& size) {
        std::vector<double> y(x, x + c.head_dim);
        size = 0;
        if (c.norms) y = norm_f64(x, c.head_dim, weight.data(), offset, eps);
        const int a = i % half;
        // what the norm's rounding is relative to: 1 + |w|, where their sum may be small
        const auto reach = [&](int i) {
          return c.norms ? std::abs(y[i] / (offset + weight[i])) * (offset + std::abs(weight[i])) : std::abs(y[i]);
        };
        size = scale * (reach(a) + reach(a + half));
        const double co = cosines[(size_t)position * half + a], si = sines[(size_t)position * half + a];
        return scale * (i < half ? y[a] * co - y[a + half] * si : y[a + half] * co + y[a] * si);
      };
      for (int h = 0; h < c.heads; ++h)
        for (int i = 0; i < c.head_dim; ++i) {
          const size_t head = ((size_t)r * c.heads + h) * c.head_dim;
          if (position >= capacities[slot]) {
            check(q[head + i] == q_in[head + i], "rope: q beyond the cache was touched");
            continue;
          }
          double size;
          const double want = rotated(&q_in[head], q_weight, scale, i, size);
          check_error(std::abs(q[head + i] - want), 20 * U * size, "rope q");
        }
      if (position >= capacities[slot]) continue;
      for (int h = 0; h < c.kv_heads; ++h)
        for (int i = 0; i < c.head_dim; ++i) {
          const size_t head = ((size_t)r * c.kv_heads + h) * c.head_dim;
          const size_t at = (((size_t)layer * c.kv_heads + h) * capacities[slot] + position) * c.head_dim + i;
          double size;
          const double want = rotated(&k_in[head], k_weight, 1, i, size);
          check_error(std::abs(value(k_cache[slot][at]) - want),
                      20 * U * size + k_unit * std::abs(want) + 1e-7 * (k_type == 1), "rope k");
          check_error(std::abs(value(v_cache[slot][at]) - v_in[head + i]), v_unit * std::abs(v_in[head + i]) + 1e-7,
                      "rope v");
          ++written;
        }
    }
    // nothing else was written: the rest is still poison
    size_t k_poison = 0, v_poison = 0, all = 0;
    for (int s = 0; s < slots; ++s) {
      all += k_cache[s].size();
      for (size_t i = 0; i < k_cache[s].size(); ++i)
        k_poison += std::isnan(value(k_cache[s][i])), v_poison += std::isnan(value(v_cache[s][i]));
    }
    check(k_poison == all - written && v_poison == all - written, "rope wrote where it should not");
  });
}

int main() {
  for (int width : {4, 64, 96, 576, 896, 1000, 4864})
    for (float offset : {0.0f, 1.0f}) test_norm(width, width == 96 ? 17 : 3, offset, width == 64 ? 1e-4f : 10);
  for (int width : {8, 96, 1000})
    for (int count : {1, 2}) {
      test_norm_terms<__nv_bfloat16>(width, 3, 0, count);
      test_norm_terms<__half>(width, 3, 1, count);
    }
  test_not_finite();
  for (int n : {4, 1000, 1024, 5000}) test_gated(n);
  for (int width : {8, 64, 576, 2304}) {
    test_embed<float>(width, 5);
    test_embed<__half>(width, 1);
    test_embed<__nv_bfloat16>(width, 16);
  }
  for (const RopeCase& c : {RopeCase{4, 2, 16, 1, false}, RopeCase{14, 2, 64, 5, false}, RopeCase{3, 1, 96, 16, true},
                            RopeCase{5, 5, 128, 3, true}, RopeCase{4, 1, 256, 7, true}, RopeCase{7, 1, 80, 2, false}}) {
    test_rope<float, float>(c, 0, 0);
    test_rope<__half, __half>(c, 1, 1);
    test_rope<float, __nv_bfloat16>(c, 0, 2);
    test_rope<__nv_bfloat16, float>(c, 2, 0);
  }
  return report("norm, embed, rope");
}
