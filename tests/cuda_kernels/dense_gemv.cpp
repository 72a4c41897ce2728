// gemv.cu and gemv_ring.cu compared with float64 sums; their rotation with rope.cu, which dense_elementwise.cpp tests.
//
// Bound. A float32 sum of n products has error <= (n - 1 + 1) u sum |x w|, u = 2^-24. Here a chain has at most
// 2 ceil(k / 512) <= k / 256 + 2 partial sums in a lane (one addition fewer: the first is to zero), 7 additions of the
// warps, and 32 products (terms included: 2 or 3 times that) inside the tensor core; 9 more u for norm factor, weight, bias
// and residual. Two f16 terms leave 2^-22 |x|, 4 u, or 2^-30 for tiny values. Of weights in 8 bits a lane has 8 ceil(k / 1024) <= k / 128 + 8
// partial sums, each of 16 products.
#include "dense_support.h"

#include "gemv.cu"
#include "gemv_ring.cu"
#include "rope.cu"

CUDA_HOST_EXPORT(rope_cache)

#define EXPORT(w, r) \
  CUDA_HOST_EXPORT(gemv_##w##_##r) CUDA_HOST_EXPORT(gemv_qkv_##w##_##r) CUDA_HOST_EXPORT(gemv_gated_##w##_##r)
EXPORT(f16, r8)
EXPORT(f16, r16)
EXPORT(f16, r64)
EXPORT(f16, r64s)
EXPORT(f16, ring)
EXPORT(q8, r8)
EXPORT(q8, r16)
EXPORT(q8, r64)
EXPORT(q8, r64s)
EXPORT(q8, ring)
EXPORT(f32, r8)
EXPORT(f32, r16)

template <>
const char* type_name<Q8Line>() {
  return "q8";
}

constexpr double U = 1.0 / (1 << 24);

struct Reference {
  double value, magnitude;  // the sum, and the sum of absolute values
};

template <class W>
static double tolerance(int k) {
  return ((sizeof(W) == sizeof(Q8Line) ? k / 128 + 8 : k / 256) + 8 + 96 + 9 + 4) * U;
}

/// Row `out` of a matrix, and its weight i.
template <class W>
static const W* row(const W* w, int out, int k) {
  return reinterpret_cast<const W*>(gemv::row_of<W>(w, out, k));
}
template <class W>
static double weight(const W* row, int i) {
  return value(row[i]);
}
template <>
double weight(const Q8Line* row, int i) {
  const Q8Line& line = row[i / 128];
  return value(line.scales[i % 128 / 16]) * (line.quants[i % 128] - 128);
}

/// x (normed or not) times one row of w.
template <class W>
static Reference dot(const float* x, const W* w, int k, const float* norm_weight, double offset, double eps) {
  double sum = 0, magnitude = 0, squares = 0;
  for (int i = 0; i < k; ++i) {
    const double a = x[i] * (norm_weight ? norm_weight[i] + offset : 1.0);
    sum += a * weight(w, i), magnitude += std::abs(a * weight(w, i)), squares += (double)x[i] * x[i];
  }
  const double factor = norm_weight ? 1 / std::sqrt(squares / k + eps) : 1;
  return {sum * factor, magnitude * factor};
}

/// Powers of two for the outputs of a matrix.
static std::vector<float> powers(int outs) {
  std::vector<float> result;
  for (int i = 0; i < outs; ++i) result.push_back(std::ldexp(1.0f, i % 9 - 4));
  return result;
}

/// Dynamic shared memory, as exported by the kernel's file.
static unsigned shared_bytes(const std::string& kernel) {
  const unsigned* bytes = ch_find_constant((kernel + "_shared_bytes").c_str());
  check(bytes, "no shared_bytes of " + kernel);
  return bytes ? *bytes : 0;
}

/// A variant: the number of rows it takes, and outputs per block, also for `gated`; for a ring, the number of blocks that share all of
/// them.
struct Variant {
  std::string name;
  int rows, outs, gated_outs, blocks = 0;
  unsigned grid(int all) const { return blocks ? std::min(all, blocks) : all; }
  unsigned threads() const { return blocks ? gemv::ring::THREADS : 256; }
};
static const Variant variants[] = {{"r8", 8, 16, 16}, {"r16", 16, 32, 16}, {"r64s", 64, 32, 16}, {"r64", 64, 64, 32}};
static const Variant& variant(int rows) { return variants[rows <= 8 ? 0 : rows <= 16 ? 1 : 3]; }

template <class W>
struct Case {
  int k, rows, seed;
  std::vector<float> x, norm_weight;
  Case(int k, int rows, int seed, float scale = 1.0f) : k(k), rows(rows), seed(seed) {
    x = normal((size_t)rows * k, seed, scale);
    for (int i = 0; i < k; i += 37) x[i] *= 300;  // some outliers, as in real activations
    norm_weight = normal(k, seed + 1);
  }
  std::vector<W> matrix(int outs, int which) const {
    return convert<W>(normal((size_t)outs * k, seed + 2 + which, 0.05f));
  }
};
template <>
std::vector<Q8Line> Case<Q8Line>::matrix(int outs, int which) const {
  std::mt19937 random(seed + 2 + which);
  std::vector<Q8Line> lines(outs * Q8Line::of_row(k), Q8Line{});
  for (size_t i = 0; i < lines.size() * 128; ++i) {
    Q8Line& line = lines[i / 128];
    if ((int)(i % (Q8Line::of_row(k) * 128)) >= k) continue;
    if (i % 16 == 0) line.scales[i % 128 / 16] = __float2bfloat16((1 + random() % 255) * 1e-5f);
    line.quants[i % 128] = 1 + random() % 255;
  }
  return lines;
}

/// Up to three matrices in one launch, with every combination of norm (which never accumulates), bias and accumulation.
template <class W>
static void test_plain(int k, int rows, std::vector<int> outs, bool norm, bool accumulate, int adversaries,
                       const Variant& v) {
  const Case<W> c(k, rows, k + rows);
  const float offset = norm ? 1.0f : 0.0f, eps = 1e-6f;
  const std::string name = std::string(norm ? "gemv_qkv_" : "gemv_") + type_name<W>() + "_" + v.name;
  const unsigned tile = v.outs;
  Device<float> x(c.x), norm_weight(c.norm_weight);
  schedules(adversaries, [&](int seed) {
    std::vector<Device<W>> w;
    std::vector<Device<float>> bias, scales, y;
    std::vector<std::vector<float>> before;
    MatrixJobs jobs = {};
    unsigned grid = 0;
    for (size_t j = 0; j < outs.size(); ++j) {
      w.emplace_back(c.matrix(outs[j], j));
      bias.emplace_back(normal(outs[j], 77 + j)), scales.emplace_back(powers(outs[j]));
      y.emplace_back((size_t)rows * outs[j]);
      if (accumulate) {
        const auto old = normal(y[j].size(), 99);
        std::copy(old.begin(), old.end(), y[j].get());
      }
      before.push_back(y[j].host());
      jobs.job[j] = {w[j].get(), j == 2 ? nullptr : scales[j].get(), j == 1 ? nullptr : bias[j].get(), y[j].get(),
                     outs[j]};
      grid += ceil_div(outs[j], tile);
    }
    const bool ran =
        norm ? launch(name, v.grid(grid), v.threads(), shared_bytes(name), (const float*)x.get(), (const float*)norm_weight.get(),
                      offset, eps, jobs, k, rows, RopeTarget{})
             : launch(name, v.grid(grid), v.threads(), shared_bytes(name), (const float*)x.get(), jobs, k, rows, (int)accumulate);
    if (!ran) return;
    for (size_t j = 0; j < outs.size(); ++j)
      for (int r = 0; r < rows; ++r)
        for (int o = 0; o < outs[j]; ++o) {
          Reference want = dot(&c.x[(size_t)r * k], row(w[j].get(), o, k), k,
                               norm ? c.norm_weight.data() : nullptr, offset, eps);
          if (j != 2) want.value *= scales[j][o], want.magnitude *= scales[j][o];
          const double extra = (j == 1 ? 0.0 : bias[j][o]) + (accumulate ? before[j][(size_t)r * outs[j] + o] : 0.0);
          const double bound = tolerance<W>(k) * (want.magnitude + std::abs(extra)) + 1e-10;
          const double error = std::abs(want.value + extra - y[j][(size_t)r * outs[j] + o]);
          check_error(error, bound,
                      name + " k " + std::to_string(k) + " rows " + std::to_string(rows) + " outs " +
                          std::to_string(outs[j]) + " seed " + std::to_string(seed));
        }
  });
}

template <class W>
static void test_plain(int k, int rows, std::vector<int> outs, bool norm, bool accumulate, int adversaries) {
  test_plain<W>(k, rows, outs, norm, accumulate, adversaries, variant(rows));
}

/// The kernel that rotates and caches compared with the same kernel without, followed by rope_cache: the same bits.
struct RopeShape {
  int heads, kv_heads, head_dim, k_type, v_type;
};
template <class W>
static void test_rotated(int k, int rows, const RopeShape& s, int adversaries, const Variant& v) {
  const Case<W> c(k, rows, k + rows);
  const int layers = 2, layer = 1, capacity = 64, slots = 2, half = s.head_dim / 2;
  const int outs[3] = {s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim};
  const std::string name = std::string("gemv_qkv_") + type_name<W>() + "_" + v.name;
  Device<float> x(c.x), norm_weight(c.norm_weight), cosines(normal((size_t)capacity * half, 51)),
      sines(normal((size_t)capacity * half, 52));
  std::vector<RowState> states;  // the last of several rows lies beyond its cache
  for (int r = 0; r < rows; ++r) states.push_back({r % slots, 3 + r / slots, 0, 0});
  if (rows > 1) states.back().position = capacity;
  Device<RowState> row_states(states);
  Device<int> first_angles(std::vector<int>(slots, 0));
  const size_t cached = (size_t)layers * s.kv_heads * capacity * s.head_dim;
  std::vector<Device<W>> w;
  std::vector<Device<float>> bias, scales;
  unsigned grid = 0;
  for (int j = 0; j < 3; ++j) {
    w.emplace_back(c.matrix(outs[j], j)), bias.emplace_back(normal(outs[j], 77 + j)), scales.emplace_back(powers(outs[j]));
    grid += ceil_div(outs[j], v.outs);
  }
  struct Got {
    std::vector<float> q;
    std::vector<unsigned> cache;  // keys and values of all slots, 4 bytes per element: more than some types need
  };
  const auto run = [&](bool fused) {
    std::vector<Device<float>> y, caches;
    for (int j = 0; j < 3; ++j) y.emplace_back(std::vector<float>((size_t)rows * outs[j], -1.0f));
    for (int i = 0; i < 2 * slots; ++i) caches.emplace_back(std::vector<float>(cached, -1.0f));
    std::vector<SequenceView> views;
    for (int i = 0; i < slots; ++i)
      views.push_back({caches[2 * i].get(), caches[2 * i + 1].get(), (unsigned)capacity, 0, {}});
    Device<SequenceView> sequences(views);
    MatrixJobs jobs = {};
    for (int j = 0; j < 3; ++j)
      jobs.job[j] = {w[j].get(), j == 2 ? nullptr : scales[j].get(), j == 1 ? nullptr : bias[j].get(),
                     fused && j > 0 ? nullptr : y[j].get(), outs[j]};
    const RopeTarget to = {cosines.get(), sines.get(),  row_states.get(), sequences.get(), layer,
                           s.kv_heads,    s.head_dim,   0.37f,            s.k_type,        s.v_type};
    launch(name, v.grid(grid), v.threads(), shared_bytes(name), (const float*)x.get(), (const float*)norm_weight.get(), 1.0f, 1e-6f,
           jobs, k, rows, fused ? to : RopeTarget{});
    if (!fused)
      launch("rope_cache", dim3(ceil_div(s.heads + 2 * s.kv_heads, 4), rows), 128, 0, y[0].get(),
             (const float*)y[1].get(), (const float*)y[2].get(), (const float*)nullptr, (const float*)nullptr,
             (const float*)nullptr, 0.0f, 0.0f, to, s.heads, (const int*)first_angles.get(), 0.0f, 1);
    Got got = {y[0].host(), {}};
    if (rows > 1) got.q.resize((size_t)(rows - 1) * outs[0]);  // for a row beyond its cache, one leaves sums, the other nothing
    for (auto& cache : caches) {
      const unsigned* words = reinterpret_cast<const unsigned*>(cache.get());
      got.cache.insert(got.cache.end(), words, words + cached);
    }
    return got;
  };
  const Got want = run(false);
  schedules(adversaries, [&](int seed) {
    const Got got = run(true);
    const std::string what = name + " rotated, head_dim " + std::to_string(s.head_dim) + " rows " +
                             std::to_string(rows) + " seed " + std::to_string(seed);
    check(!memcmp(got.q.data(), want.q.data(), want.q.size() * 4), what + ": queries");
    check(got.cache == want.cache, what + ": cache");
  });
}

template <class W>
static void test_gated(int k, int rows, int outs, int activation, bool bias, int adversaries, const Variant& v) {
  const Case<W> c(k, rows, k + rows);
  const float offset = 0, eps = 1e-5f;
  const std::string name = std::string("gemv_gated_") + type_name<W>() + "_" + v.name;
  Device<float> x(c.x), norm_weight(c.norm_weight), gate_bias(normal(outs, 5)), up_bias(normal(outs, 6));
  Device<W> gate(c.matrix(outs, 0)), up(c.matrix(outs, 1));
  Device<float> scales(powers(outs));
  const float *gate_scales = bias ? scales.get() : nullptr, *up_scales = bias ? nullptr : scales.get();
  schedules(adversaries, [&](int) {
    Device<float> y((size_t)rows * outs);
    MatrixJobs jobs = {};
    jobs.job[0] = {gate.get(), gate_scales, bias ? gate_bias.get() : nullptr, y.get(), outs};
    jobs.job[1] = {up.get(), up_scales, bias ? up_bias.get() : nullptr, nullptr, outs};
    if (!launch(name, v.grid(ceil_div(outs, v.gated_outs)), v.threads(), shared_bytes(name), (const float*)x.get(),
                (const float*)norm_weight.get(), offset, eps, jobs, k, rows, activation))
      return;
    for (int r = 0; r < rows; ++r)
      for (int o = 0; o < outs; ++o) {
        const auto part = [&](const Device<W>& w, const float* scale, const Device<float>& b) {
          auto sum = dot(&c.x[(size_t)r * k], row(&w[0], o, k), k, c.norm_weight.data(), offset, eps);
          if (scale) sum.value *= scale[o], sum.magnitude *= scale[o];
          if (bias) sum.value += b[o], sum.magnitude += std::abs(b[o]);
          return sum;
        };
        const Reference g = part(gate, gate_scales, gate_bias), u = part(up, up_scales, up_bias);
        const double want = activate_f64(g.value, activation) * u.value;
        // |act'| <= 1.13; expf and tanhf within 4 u of their argument's magnitude
        const double eg = tolerance<W>(k) * g.magnitude, eu = tolerance<W>(k) * u.magnitude;
        const double bound =
            1.2 * eg * (std::abs(u.value) + eu) + eu * std::abs(g.value) + 16 * U * std::abs(g.value * u.value) + 1e-10;
        const double error = std::abs(want - y[(size_t)r * outs + o]);
        check_error(error, bound, name + " k " + std::to_string(k));
      }
  });
}

/// A row's bits are the same alone and in every batch, in all variants, at every position.
template <class W>
static void test_batch_independence(int k, int outs, const std::vector<Variant>& some) {
  const Case<W> c(k, 16, 3);
  Device<W> w(c.matrix(outs, 0)), up(c.matrix(outs, 1));
  Device<float> norm_weight(c.norm_weight);
  std::vector<std::vector<float>> alone;
  const auto run = [&](const std::vector<int>& picked, const Variant& v) {
    std::vector<float> in;
    for (int r : picked) in.insert(in.end(), &c.x[(size_t)r * k], &c.x[(size_t)r * k] + k);
    const int rows = picked.size();
    Device<float> x(in), y((size_t)rows * outs), gated((size_t)rows * outs);
    MatrixJobs jobs = {};
    jobs.job[0] = {w.get(), nullptr, nullptr, y.get(), outs};
    const std::string which = std::string(type_name<W>()) + "_" + v.name;
    launch("gemv_qkv_" + which, v.grid(ceil_div(outs, v.outs)), v.threads(), shared_bytes("gemv_qkv_" + which),
           (const float*)x.get(), (const float*)norm_weight.get(), 0.0f, 1e-6f, jobs, k, rows, RopeTarget{});
    jobs.job[0].y = gated.get(), jobs.job[1] = {up.get(), nullptr, nullptr, nullptr, outs};
    launch("gemv_gated_" + which, v.grid(ceil_div(outs, v.gated_outs)), v.threads(), shared_bytes("gemv_gated_" + which),
           (const float*)x.get(), (const float*)norm_weight.get(), 0.0f, 1e-6f, jobs, k, rows, 0);
    std::vector<std::vector<float>> result;
    for (int i = 0; i < rows; ++i) {
      result.emplace_back(y.get() + (size_t)i * outs, y.get() + (size_t)(i + 1) * outs);
      result.back().insert(result.back().end(), gated.get() + (size_t)i * outs, gated.get() + (size_t)(i + 1) * outs);
    }
    return result;
  };
  for (int r = 0; r < 16; ++r) alone.push_back(run({r}, variants[0])[0]);
  for (const Variant& v : some)
    for (int rows : {1, 2, 3, 8, 9, 16, 17, 40, 64}) {
      if (rows > v.rows) continue;
      std::vector<int> picked;
      for (int i = 0; i < rows; ++i) picked.push_back((i * 5 + rows) % 16);
      const auto together = run(picked, v);
      for (int i = 0; i < rows; ++i)
        check(!memcmp(together[i].data(), alone[picked[i]].data(), alone[0].size() * 4),
              std::string(type_name<W>()) + " " + v.name + ": a row differs in a batch of " + std::to_string(rows));
    }
}

/// A non-finite row leaves the others unaffected.
static void test_not_finite() {
  const int k = 96, outs = 7, rows = 3;
  const Case<__half> c(k, rows, 1);
  auto in = c.x;
  in[k + 5] = INFINITY;
  Device<float> x(in), y((size_t)rows * outs);
  Device<__half> w(c.matrix(outs, 0));
  MatrixJobs jobs = {};
  jobs.job[0] = {w.get(), nullptr, nullptr, y.get(), outs};
  launch("gemv_f16_r8", 1, 256, shared_bytes("gemv_f16_r8"), (const float*)x.get(), jobs, k, rows, 0);
  for (int o = 0; o < outs; ++o)
    check(std::isfinite(y[o]) && !std::isfinite(y[outs + o]) && std::isfinite(y[2 * outs + o]),
          "not finite: rows mixed");
}

/// k that is no multiple of a line, at most one of what a line is loaded in.
template <class W>
constexpr int ODD = 1000;
template <>
constexpr int ODD<Q8Line> = 1008;

template <class W>
static void test_type() {
  constexpr int odd = ODD<W>;
  for (int k : {odd == 1000 ? 8 : 16, 64, 96, 576, 896, odd, 2432})
    for (int rows : {1, 3, 8, 11, 16})
      test_plain<W>(k, rows, {48}, k % 3 == 0, k % 3 != 0 && rows % 2, k == 576 && rows % 8 == 3 ? 6 : 0);
  for (int outs : {1, 7, 16, 257})
    for (int rows : {1, 2, 4, 5, 16}) test_plain<W>(96, rows, {outs}, rows % 2, outs == 7 && rows % 2 == 0, 0);
  test_plain<W>(odd, 3, {48, 16, 17}, true, false, 6);
  test_plain<W>(208, 13, {33, 7, 64}, true, false, 6);
  test_plain<W>(64, 1, {5, 9}, false, true, 3);
  for (const RopeShape& s : {RopeShape{3, 1, 16, 0, 0}, {4, 2, 32, 0, 1}, {2, 1, 64, 1, 1}, {1, 1, 96, 2, 2}, {2, 1, 128, 0, 1}})
    for (int rows : {1, 5, 16}) test_rotated<W>(208, rows, s, s.head_dim == 32 ? 3 : 0, variant(rows));
  for (int activation : {0, 1})
    for (int rows : {1, 7, 16}) test_gated<W>(896, rows, 48, activation, rows == 7, rows == 7 ? 6 : 0, variant(rows));
  test_gated<W>(64, 10, 33, 0, true, 0, variant(10));
  test_gated<W>(odd, 2, 7, 1, false, 0, variant(2));
}

/// Up to 64 rows.
template <class W>
static void test_many_rows(const Variant& v) {
  constexpr int odd = ODD<W>;
  test_plain<W>(odd, 17, {48, 16, 17}, true, false, 3, v);
  test_plain<W>(96, 64, {70}, false, true, 0, v);
  test_plain<W>(odd == 1000 ? 8 : 16, 37, {7}, true, false, 0, v);
  test_rotated<W>(208, 33, {3, 1, 96, 0, 1}, 0, v);
  test_rotated<W>(odd, 64, {5, 1, 32, 1, 1}, 1, v);
  test_gated<W>(odd, 33, 40, 0, true, 3, v);
  test_gated<W>(64, 64, 33, 1, false, 0, v);
}

/// One row, by `blocks` blocks.
template <class W>
static void test_ring(int blocks) {
  const Variant v = {"ring", 1, 8, 4, blocks};
  constexpr int line = gemv::Line<W>::ELEMENTS;
  for (int lines : {1, 9, 16, 17, 38})
    for (bool norm : {false, true})
      test_plain<W>(lines * line, 1, {48}, norm, !norm && lines != 9, lines == 17 ? 6 : 0, v);
  for (int outs : {1, 7, 16, 257}) test_plain<W>(128, 1, {outs}, outs % 2, outs == 16, outs == 16 ? 3 : 0, v);
  test_plain<W>(31 * line, 1, {33, 7, 64}, true, false, 6, v);
  test_plain<W>(line, 1, {800}, false, true, 3, v);  // more tiles of one slice than adders
  for (const RopeShape& s : {RopeShape{3, 1, 16, 0, 0}, {4, 2, 32, 0, 1}, {2, 1, 64, 1, 1}, {1, 1, 96, 2, 2}, {2, 1, 128, 0, 1}})
    test_rotated<W>(3 * line, 1, s, s.head_dim == 32 ? 3 : 0, v);
  for (int activation : {0, 1}) test_gated<W>(14 * line, 1, 48 - activation, activation, activation, 3, v);
  test_batch_independence<W>(50 * line, 40, {v});
}

/// All tests that apply to both 16-bit and 8-bit weights.
template <class W>
static void test_all() {
  const Variant one_block = {"ring", 1, 8, 4, 1};
  for (int blocks : {1, 3, 132}) test_ring<W>(blocks);
  test_plain<W>(14336, 1, {24}, false, true, 0, one_block);
  test_plain<W>(gemv::ring::Slice<W>::MAX_K, 1, {24}, true, false, 0, one_block);
  test_type<W>();
  test_many_rows<W>(variants[2]);
  test_many_rows<W>(variants[3]);
  test_batch_independence<W>(1104, 40, {std::begin(variants), std::end(variants)});
}

int main() {
  test_all<__half>();
  test_all<Q8Line>();
  test_type<float>();
  test_batch_independence<float>(1096, 40, {variants[0], variants[1]});
  test_not_finite();
  printf("largest k of the ring: f16 %d, q8 %d\n", gemv::ring::Slice<__half>::MAX_K, gemv::ring::Slice<Q8Line>::MAX_K);
  return report("gemv");
}
