// norm.cu, embed.cu, rope.cu and weights.cu compared with float64. u = 2^-24.
#include "dense_support.h"

#include "embed.cu"
#include "norm.cu"
#include "rope.cu"
#include "weights.cu"

CUDA_HOST_EXPORT(rms_norm)
CUDA_HOST_EXPORT(add_rms_norm)
CUDA_HOST_EXPORT(rms_norm_f16)
CUDA_HOST_EXPORT(embed_f16)
CUDA_HOST_EXPORT(embed_f32)
CUDA_HOST_EXPORT(rope_cache)
CUDA_HOST_EXPORT(narrow_weights)
CUDA_HOST_EXPORT(pack_q8_f32)
CUDA_HOST_EXPORT(pack_q8_f16)
CUDA_HOST_EXPORT(pack_q8_bf16)

constexpr double U = 1.0 / (1 << 24);

static std::vector<double> norm_f64(const float* x, int width, const float* weight, double offset, double eps) {
  double squares = 0;
  for (int i = 0; i < width; ++i) squares += (double)x[i] * x[i];
  const double factor = 1 / std::sqrt(squares / width + eps);
  std::vector<double> y(width);
  for (int i = 0; i < width; ++i) y[i] = x[i] * factor * (offset + weight[i]);
  return y;
}

/// Error of the factor: half of the sum's (chains of width / 1024 and 8 + 5 additions), plus mean, root and reciprocal;
/// then two products and offset + weight (whose error is relative to offset + |weight|, not to their sum).
static double norm_bound(double y, double x_factor, double offset, double weight, int width) {
  return ((width / 1024 + 16) / 2.0 + 6) * U * std::abs(y) + 2 * U * x_factor * (offset + std::abs(weight)) + 1e-12;
}

/// Compares a row rounded to f16 with the expected values, where `lost` is the error before rounding. The tolerance is
/// 2^-11 of a value, or 2^-39 of the row's maximum.
static void check_rounded(const __half* row, float scale, const std::vector<double>& want,
                          const std::vector<double>& lost, const char* what) {
  double max = 0;
  for (double x : want) max = std::max(max, std::abs(x));
  for (size_t i = 0; i < want.size(); ++i)
    check_error(std::abs(value(row[i]) * (double)scale - want[i]),
                (1 + 1e-3) * lost[i] + std::ldexp(std::abs(want[i]), -11) + std::ldexp(max, -39), what);
}

static void test_norm_f16(int width, int rows, float offset) {
  const auto in = normal((size_t)rows * width, width, 3), w = normal(width, 2);
  Device<float> x(in), weight(w);
  schedules(2, [&](int) {
    Device<__half> to((size_t)rows * width);
    Device<float> scales((size_t)rows * row_scales(width));
    launch("rms_norm_f16", rows, 256, 64, (const float*)x.get(), (const float*)weight.get(), offset, 1e-6f, width,
           RoundedRows{to.get(), scales.get()});
    for (int r = 0; r < rows; ++r) {
      const auto want = norm_f64(&in[(size_t)r * width], width, w.data(), offset, 1e-6f);
      std::vector<double> lost;
      for (int i = 0; i < width; ++i)
        lost.push_back(norm_bound(want[i], std::abs(want[i] / (offset + w[i])), offset, w[i], width));
      for (int i = 0; i < row_scales(width); ++i)
        check(scales[r * row_scales(width) + i] == scales[r * row_scales(width)], "rms_norm_f16: a row with several powers");
      check_rounded(to.get() + (size_t)r * width, scales[r * row_scales(width)], want, lost, "rms_norm_f16");
    }
  });
}

static void test_norm(int width, int rows, float offset, float scale) {
  const auto in = normal((size_t)rows * width, width, scale), w = normal(width, 2), residual = normal(in.size(), 8);
  const float eps = 1e-5f, factor = width % 3 ? 1.0f : 0.7f;
  schedules(6, [&](int seed) {
    Device<float> x(in), weight(w), y(in.size()), stream(residual);
    Device<int> flag(std::vector<int>{0});
    launch("rms_norm", rows, 256, 32, (const float*)x.get(), (const float*)weight.get(), offset, eps, width, y.get(),
           seed % 2 ? flag.get() : nullptr);
    launch("add_rms_norm", rows, 256, 32, stream.get(), (const float*)x.get(), (const float*)weight.get(), offset, eps,
           width, factor);
    check(flag[0] == 0, "rms_norm: flag without cause");
    for (int r = 0; r < rows; ++r) {
      const auto want = norm_f64(&in[(size_t)r * width], width, w.data(), offset, eps);
      for (int i = 0; i < width; ++i) {
        const size_t at = (size_t)r * width + i;
        const double bound = norm_bound(want[i], std::abs(want[i] / (offset + w[i])), offset, w[i], width);
        check_error(std::abs(y[at] - want[i]), bound, "rms_norm " + std::to_string(width));
        const double sum = factor * (want[i] + residual[at]);
        check_error(std::abs(stream[at] - sum), factor * bound + 2 * U * (std::abs(sum) + bound),
                    "add_rms_norm " + std::to_string(width));
      }
    }
    // in place produces the same bits
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
static void test_embed(int width, int rows, bool scaled) {
  const int vocab = 37;
  const auto table = convert<T>(normal((size_t)vocab * width, width));
  Device<T> embedding(table);
  std::vector<float> powers;
  for (int i = 0; i < vocab; ++i) powers.push_back(std::ldexp(1.0f, i % 11 - 5));
  Device<float> scales(powers);
  std::vector<RowState> states;
  for (int r = 0; r < rows; ++r) states.push_back({0, r, (r * 11 + 36) % vocab, 0});
  if (rows > 2) states[1].token = vocab, states[2].token = -1;
  Device<RowState> row_states(states);
  Device<float> x((size_t)rows * width);
  const float scale = 3.7f;
  launch(std::string("embed_") + type_name<T>(), dim3(ceil_div(width, 2048), rows), 256, 0, (const T*)embedding.get(),
         scaled ? (const float*)scales.get() : nullptr, (const RowState*)row_states.get(), x.get(), width, vocab, scale);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < width; ++i) {
      const float got = x[(size_t)r * width + i];
      const int token = states[r].token;
      const bool bad = token < 0 || token >= vocab;
      const float want =
          bad ? NAN : (float)value(table[(size_t)token * width + i]) * (scaled ? powers[token] : 1.0f) * scale;
      check(bad ? got != got : got == want, "embed");
    }
}

/// Exact if a weight is no more than 2^31 below the largest in its row; otherwise to 2^-39 of that.
static void test_narrow_weights(int outs, int k) {
  auto values = normal((size_t)outs * k, k);
  for (int o = 0; o < outs; ++o)
    for (int i = 0; i < k; ++i) values[(size_t)o * k + i] *= std::ldexp(1.0f, o % 2 ? -(i % 50) : 40 * (o % 5) - 80);
  std::fill(values.begin(), values.begin() + k, 0.0f);
  const auto before = convert<__nv_bfloat16>(values);
  schedules(2, [&](int) {
    Device<__nv_bfloat16> w(before);
    Device<float> scales(outs);
    launch("narrow_weights", outs, 256, 32, (void*)w.get(), scales.get(), k);
    for (int o = 0; o < outs; ++o) {
      double max = 0;
      for (int i = 0; i < k; ++i) max = std::max(max, std::abs(value(before[(size_t)o * k + i])));
      int exponent;
      check(std::frexp(scales[o], &exponent) == 0.5, "narrow_weights: no power of two");
      for (int i = 0; i < k; ++i) {
        __half narrowed;
        memcpy((void*)&narrowed, w.get() + (size_t)o * k + i, 2);
        const double want = value(before[(size_t)o * k + i]), got = value(narrowed) * (double)scales[o];
        if (std::abs(want) >= std::ldexp(max, -31))
          check(got == want, "narrow_weights: not exact");
        else
          check_error(std::abs(got - want), std::ldexp(max, -39), "narrow_weights");
      }
    }
  });
}

/// Each weight to the nearest multiple of the smallest scale that reaches the largest weight of its block; zeros beyond
/// k.
template <class T>
static void test_pack_q8(int outs, int k) {
  auto values = normal((size_t)outs * k, k, 0.05f);
  for (int i = 0; i < 16; ++i) values[i] = 0;
  for (int i = 16; i < 32; ++i) values[i] = std::ldexp(127.0f, -(i % 16));  // the first scale that fits is 1
  const auto before = convert<T>(values);
  Device<T> w(before);
  const int of_row = Q8Line::of_row(k);
  schedules(2, [&](int) {
    Device<Q8Line> lines((size_t)outs * of_row);
    launch(std::string("pack_q8_") + type_name<T>(), outs, 256, 0, (const T*)w.get(), lines.get(), k);
    for (int o = 0; o < outs; ++o)
      for (int first = 0; first < of_row * 128; first += 16) {
        const Q8Line& line = lines[(size_t)o * of_row + first / 128];
        double max = 0;
        for (int i = first; i < std::min(k, first + 16); ++i) max = std::max(max, std::abs(value(before[(size_t)o * k + i])));
        const double scale = value(line.scales[first % 128 / 16]), below = scale * (1 - 1.0 / 128);
        check(scale * 127 >= max && (max == 0 ? scale == 0 : below * 127 < max), "pack_q8: scale");
        for (int i = first; i < first + 16; ++i) {
          const double want = i < k ? value(before[(size_t)o * k + i]) : 0, got = scale * (line.quants[i % 128] - 128);
          check_error(std::abs(got - want), scale * (0.5 + 1e-4), "pack_q8");  // plus the rounding of the product with the inverse
          check(line.quants[i % 128] > 0, "pack_q8: beyond 127");
        }
      }
  });
}

/// Element i of keys [.., head_dim] in the cache.
template <class K>
static double key_value(const Device<K>& keys, size_t i, int) {
  return value(keys[i]);
}
static double key_value(const Device<Halves>& keys, size_t i, int head_dim) {
  const __half* parts = reinterpret_cast<const __half*>(&keys[0]) + 2 * (i - i % head_dim) + i % head_dim;
  return value(parts[0]) + value(parts[head_dim]);
}

struct RopeCase {
  int heads, kv_heads, head_dim, rows;
  bool norms;
  bool values_normed = false;
};

template <class K, class V>
static void test_rope(const RopeCase& c, int k_type, int v_type) {
  const int half = c.head_dim / 2, slots = 3, layers = 2, layer = 1, capacities[slots] = {64, 128, 64}, longest = 192;
  const int first_angles[] = {0, 0, 64}, period = 7;
  const float scale = 0.37f, eps = 1e-6f, offset = c.norms ? 1.0f : 0.0f, growth = c.norms ? 0.0f : 0.3f;
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
  const auto v_weight = normal(c.head_dim, 6);
  Device<float> v_norm(v_weight);
  std::vector<RowState> states;  // the last of several rows lies beyond its cache
  for (int r = 0; r < c.rows; ++r) states.push_back({r % slots, r / slots * 5 + r, 0, 0});
  if (c.rows > 1) states.back().position = capacities[states.back().slot];
  Device<RowState> rows(states);
  Device<int> starts(std::vector<int>(first_angles, first_angles + slots));
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
           (const float*)v.get(), c.values_normed ? (const float*)v_norm.get() : nullptr,
           c.norms ? (const float*)q_norm.get() : nullptr,
           c.norms ? (const float*)k_norm.get() : nullptr, offset, eps,
           RopeTarget{cos.get(), sin.get(), rows.get(), sequences.get(), layer, c.kv_heads, c.head_dim, scale, k_type,
                      v_type},
           c.heads, (const int*)starts.get(), growth, period);
    // rounding to the cache's type: half a unit of 22 (Halves), 11 or 8 bits
    const double k_unit = k_type == 0   ? 4 * U
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
        // the quantity that the norm's rounding is relative to: 1 + |w|, where their sum may be small
        const auto reach = [&](int i) {
          return c.norms ? std::abs(y[i] / (offset + weight[i])) * (offset + std::abs(weight[i])) : std::abs(y[i]);
        };
        size = scale * (reach(a) + reach(a + half));
        const size_t angle = (size_t)(position + first_angles[slot]) * half + a;
        const double co = cosines[angle], si = sines[angle];
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
          const double grown = scale * (1 + growth * std::log(1.0 + position / period));
          const double want = rotated(&q_in[head], q_weight, grown, i, size);
          check_error(std::abs(q[head + i] - want), 20 * U * size, "rope q");
        }
      if (position >= capacities[slot]) continue;
      for (int h = 0; h < c.kv_heads; ++h)
        for (int i = 0; i < c.head_dim; ++i) {
          const size_t head = ((size_t)r * c.kv_heads + h) * c.head_dim;
          const size_t at = (((size_t)layer * c.kv_heads + h) * capacities[slot] + position) * c.head_dim + i;
          double size;
          const double want = rotated(&k_in[head], k_weight, 1, i, size);
          check_error(std::abs(key_value(k_cache[slot], at, c.head_dim) - want),
                      20 * U * size + k_unit * std::abs(want) + 1e-7 * (k_type != 2), "rope k");
          double v_want = v_in[head + i], v_lost = 0;
          if (c.values_normed) {
            v_want = norm_f64(&v_in[head], c.head_dim, v_weight.data(), offset, eps)[i];
            v_lost = norm_bound(v_want, std::abs(v_want / (offset + v_weight[i])), offset, v_weight[i], c.head_dim);
          }
          check_error(std::abs(value(v_cache[slot][at]) - v_want), v_lost + v_unit * std::abs(v_want) + 1e-7, "rope v");
          ++written;
        }
    }
    // nothing else was written: the rest is still poisoned
    size_t k_poison = 0, v_poison = 0, all = 0;
    for (int s = 0; s < slots; ++s) {
      all += k_cache[s].size();
      for (size_t i = 0; i < k_cache[s].size(); ++i)
        k_poison += std::isnan(key_value(k_cache[s], i, c.head_dim)), v_poison += std::isnan(value(v_cache[s][i]));
    }
    check(k_poison == all - written && v_poison == all - written, "rope wrote where it should not");
  });
}

int main() {
  for (int width : {4, 64, 96, 576, 896, 1000, 4864})
    for (float offset : {0.0f, 1.0f}) test_norm(width, width == 96 ? 17 : 3, offset, width == 64 ? 1e-4f : 10);
  for (int width : {8, 96, 1000, 9000})
    for (float offset : {0.0f, 1.0f}) test_norm_f16(width, 3, offset);
  test_not_finite();
  for (int width : {8, 64, 576, 2304}) {
    test_embed<float>(width, 5, false);
    test_embed<__half>(width, 1, false);
    test_embed<__half>(width, 16, true);
    test_narrow_weights(9, width);
  }
  for (int width : {32, 64, 576, 2304, 5008}) {
    test_pack_q8<float>(3, width);
    test_pack_q8<__half>(2, width);
    test_pack_q8<__nv_bfloat16>(1, width);
  }
  for (const RopeCase& c : {RopeCase{4, 2, 16, 1, false}, RopeCase{14, 2, 64, 5, false}, RopeCase{3, 1, 96, 16, true},
                            RopeCase{5, 5, 128, 3, true}, RopeCase{4, 1, 256, 7, true}, RopeCase{7, 1, 80, 2, false},
                            RopeCase{4, 2, 512, 3, true, true}, RopeCase{5, 0, 64, 3, true}}) {
    test_rope<Halves, float>(c, 0, 0);
    test_rope<__half, __half>(c, 1, 1);
    test_rope<Halves, __nv_bfloat16>(c, 0, 2);
    test_rope<__nv_bfloat16, float>(c, 2, 0);
  }
  return report("norm, embed, rope, weights");
}
