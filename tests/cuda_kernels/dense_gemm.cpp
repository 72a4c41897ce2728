// gemm.cu and gemm_hopper.cu compared with float64 sums. Both produce the same bits if mma and wgmma add alike, as the shim's do;
// on a device the outcome is only printed.
//
// Bound, u = 2^-24: per chain of 32 elements of k at most 32 products in the tensor core, ceil(k / 32) additions of chains, three
// more for bias and residual; powers of two are exact. All relative to sum |x w|. Rounding costs 2^-11 of |x|, or 2^-39 of the
// largest value that shares the power of two, below which f16 is subnormal.
#include "dense_support.h"

#include "rounded.h"

#include "gemm.cu"
#include "gemm_hopper.cu"

CUDA_HOST_EXPORT(gemm_m64)
CUDA_HOST_EXPORT(gemm_m128)
CUDA_HOST_EXPORT(gemm_gated_m64)
CUDA_HOST_EXPORT(gemm_gated_m128)
CUDA_HOST_EXPORT(gemm_hopper)
CUDA_HOST_EXPORT(gemm_gated_hopper)
CUDA_HOST_EXPORT(round_rows)

constexpr double U = 1.0 / (1 << 24);

/// Whether y is the activation of `gate` times `up`: bit-exact in the host run. On a device expf is within 2 ulp, of 2 U at most,
/// and the host's within 1, and three results after it are rounded on both sides: (3 * 2 + 3 * 2) U of y. tanhf is within 2 ulp on
/// both sides, which 1 + tanhf may have nearly cancelled: half of 4 * 2 U of gate * up, and three rounded results.
inline bool is_gated(float y, float gate, float up, int activation) {
  const float want = activate(gate, activation) * up;
#ifdef ON_DEVICE
  const double of_y = activation == SILU ? 12 : 6, of_product = activation == SILU ? 0 : 4;
  return std::abs((double)y - want) <= U * (of_y * std::abs(want) + of_product * std::abs((double)gate * up)) + 1e-38;
#else
  return y == want;
#endif
}

/// Rounded rows; unwritten elements are NaN.
struct Rounded {
  int width;
  Device<__half> values;
  Device<float> scales;
  Rounded(int rows, int width)
      : width(width), values((size_t)rows * width), scales(std::vector<float>((size_t)rows * row_scales(width), NAN)) {}
  /// As produced by round_rows.
  Rounded(const std::vector<float>& x, int rows, int width) : Rounded(rows, width) {
    Device<float> in(x);
    launch("round_rows", rows, 1024, 128, (const float*)in.get(), width, view());
  }
  RoundedRows view() { return {values.get(), scales.get()}; }
  double scale(int row, int i) const { return scales[(size_t)row * row_scales(width) + i / 32]; }
  double at(int row, int i) const { return value(values[(size_t)row * width + i]) * scale(row, i); }
};

/// Up to three matrices over the same rows; the first has powers of two, the second a bias.
struct Product {
  int n, k;
  std::vector<int> outs;
  std::vector<float> x;
  std::vector<std::vector<__half>> w;
  std::vector<std::vector<float>> scales, bias, before;
  Product(int n, std::vector<int> outs, int k) : n(n), k(k), outs(outs) {
    x = normal((size_t)n * k, n + k);
    for (size_t i = 0; i < x.size(); i += 41) x[i] *= 200;
    for (size_t j = 0; j < outs.size(); ++j) {
      w.push_back(convert<__half>(normal((size_t)outs[j] * k, outs[j] + k, 0.05f)));
      bias.push_back(normal(outs[j], 1));
      before.push_back(normal((size_t)n * outs[j], 2));
      scales.emplace_back();
      for (int o = 0; o < outs[j]; ++o) scales[j].push_back(std::ldexp(1.0f, o % 9 - 4));
    }
  }

  /// The matrices on the device, and the outputs of a launch.
  struct Launch {
    std::vector<Device<__half>> w;
    std::vector<Device<float>> scales, bias, y;
    MatrixJobs jobs = {};
    Launch(const Product& p, bool accumulate) {
      for (size_t j = 0; j < p.outs.size(); ++j) {
        w.emplace_back(p.w[j]), scales.emplace_back(p.scales[j]), bias.emplace_back(p.bias[j]);
        y.emplace_back((size_t)p.n * p.outs[j]);
        jobs.job[j] = {w[j].get(), j == 0 ? scales[j].get() : nullptr, j == 1 ? bias[j].get() : nullptr, y[j].get(),
                       p.outs[j]};
        if (accumulate) std::copy(p.before[j].begin(), p.before[j].end(), y[j].get());
      }
    }
    std::vector<std::vector<float>> results() const {
      std::vector<std::vector<float>> all;
      for (const auto& each : y) all.push_back(each.host());
      return all;
    }
    void run(Rounded& rows, const std::string& kernel, int rows_a_block, int blocks, int n, int k, int mode) {
      launch(kernel + "_m" + std::to_string(rows_a_block), dim3(ceil_div(n, rows_a_block), blocks), 128, 4 * 16896 + (rows_a_block == 64 && kernel == "gemm_gated" ? 512 : 0), rows.view(), jobs, n, k, mode);
    }
  };

  std::vector<std::vector<float>> run(Rounded rows, int rows_a_block, bool accumulate) const {
    Launch launch(*this, accumulate);
    launch.run(rows, "gemm", rows_a_block, launch.jobs.blocks(rows_a_block), n, k, accumulate);
    return launch.results();
  }

  std::vector<std::vector<float>> run_hopper(Rounded rows, bool gated, int mode, Rounded* to = nullptr) const {
    Launch launch(*this, !gated && mode);
    if (to) launch.jobs.job[0].rounded = to->view();
    TensorMap x_map;
    TensorMaps w_maps = {};
    check(ch_encode_tensor_map(&x_map, rows.values.get(), k, n, 2 * k, 64, 64), "a tensor map of x");
    for (size_t j = 0; j < outs.size(); ++j)
      check(ch_encode_tensor_map(&w_maps.of_job[j], launch.w[j].get(), k, outs[j], 2 * k, 64, 64), "a tensor map of w");
    const int blocks = gated ? ceil_div(outs[0], hopper::M / 2) : launch.jobs.blocks(hopper::M);
    // fewer clusters than needed for the work, or equally many
    const int clusters = ceil_div(n, 128 * hopper::CLUSTER_X) * ceil_div(blocks, hopper::CLUSTER_Y);
    ::launch(gated ? "gemm_gated_hopper" : "gemm_hopper",
             dim3(hopper::CLUSTER_X, hopper::CLUSTER_Y * std::min(clusters, 1 + (n + k / 8) % 3)), hopper::THREADS, hopper::BYTES, x_map,
             w_maps, (const float*)rows.scales.get(), launch.jobs, n, k, mode);
    return launch.results();
  }

  /// Rows with a power of two for every 32 values, with nothing written beyond them.
  Rounded rounded() const {
    Rounded rows(x, n, k);
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < row_scales(k); ++i) {
        float& scale = rows.scales.get()[(size_t)r * row_scales(k) + i];
        scale = i * 32 < k ? std::ldexp(scale, (7 * r + 5 * i) % 9 - 4) : NAN;
      }
    return rows;
  }

  void test_hopper(bool accumulate) const {
    const auto y = run_hopper(rounded(), false, accumulate);
    compare(y, accumulate, "hopper");
    const bool same = y == run(rounded(), 128, accumulate);
#ifdef ON_DEVICE
    printf("gemm_hopper, n %d, k %d: the bits of gemm_m128: %s\n", n, k, same ? "yes" : "no");
#else
    check(same, "gemm_hopper differs from gemm_m128: n " + std::to_string(n) + " k " + std::to_string(k));
#endif
  }

  void test_gated_hopper(int activation) const {
    const auto y = run_hopper(rounded(), true, activation)[0];
    const auto sums = run_hopper(rounded(), false, false);
    for (size_t i = 0; i < y.size(); ++i)
      check(is_gated(y[i], sums[0][i], sums[1][i], activation), "gemm_gated_hopper differs from two products");
    Rounded to(n, outs[0]);
    run_hopper(rounded(), true, activation, &to);
    check(rounded_from(to.view(), y, outs[0]), "gemm_gated_hopper, rounded");
  }

  /// Job 0 is the gate, job 1 up: the same bits as from their products.
  void test_gated(int rows_a_block, int activation) const {
    Rounded rows = rounded(), to(n, outs[0]);
    Launch launch(*this, false);
    const int blocks = ceil_div(2 * outs[0], rows_a_block);
    launch.run(rows, "gemm_gated", rows_a_block, blocks, n, k, activation);
    const auto sums = run(rounded(), rows_a_block, false);
    for (size_t i = 0; i < sums[0].size(); ++i)
      check(is_gated(launch.y[0][i], sums[0][i], sums[1][i], activation), "gemm_gated differs from two products");
    launch.jobs.job[0].rounded = to.view();
    launch.run(rows, "gemm_gated", rows_a_block, blocks, n, k, activation);
    check(rounded_from(to.view(), launch.y[0].host(), outs[0]), "gemm_gated, rounded");
  }

  void test(int rows_a_block, bool accumulate) const {
    compare(run(rounded(), rows_a_block, accumulate), accumulate, "m" + std::to_string(rows_a_block));
  }

  /// Compares with float64 sums.
  void compare(const std::vector<std::vector<float>>& y, bool accumulate, const std::string& kernel) const {
    const Rounded rows = rounded();
    const double relative = (32 + (k + 31) / 32 + 3) * U;
    for (size_t j = 0; j < outs.size(); ++j)
      for (int r = 0; r < n; ++r)
        for (int o = 0; o < outs[j]; ++o) {
          const double scale = j == 0 ? scales[j][o] : 1.0;
          double sum = 0, magnitude = 0;
          for (int i = 0; i < k; ++i) {
            const double product = scale * rows.at(r, i) * value(w[j][(size_t)o * k + i]);
            sum += product, magnitude += std::abs(product);
          }
          const size_t at = (size_t)r * outs[j] + o;
          const double extra = (j == 1 ? bias[j][o] : 0.0) + (accumulate ? before[j][at] : 0.0);
          check_error(std::abs(sum + extra - y[j][at]), relative * (magnitude + std::abs(extra)) + 1e-10,
                      "gemm n " + std::to_string(n) + " outs " + std::to_string(outs[j]) + " k " + std::to_string(k) + " " + kernel);
        }
  }
};

static void test_sizes() {
  int i = 0;
  for (int n : {1, 17, 64, 100, 128})
    for (int k : {8, 32, 64, 96, 200, 576}) {
      const Product p(n, {std::vector<int>{2, 6, 48, 64, 66, 130}[i % 6]}, k);
      schedules(k == 96 || k == 200 ? 3 : 0, [&](int seed) { p.test(n <= 64 ? 64 : 128, (i + seed) / 2 % 2); });
      ++i;
    }
  Product(256, {258, 40}, 136).test(128, false);
  Product(5, {48, 2, 64}, 4864).test(64, true);
  Product(70, {34, 130, 66}, 1000).test(64, true);
  for (int activation : {0, 1})
    for (int outs : {2, 32, 40, 72}) {
      const Product p(activation ? 40 : 150, {outs, outs}, outs == 72 ? 328 : 96);
      schedules(outs == 40 ? 3 : 0, [&](int) { p.test_gated(activation ? 64 : 128, activation); });
    }
}

/// The same bits in every chunk, at every position, with both block sizes, alone and next to other matrices.
static void test_batch_independence() {
  const Product all(150, {40, 72}, 328);
  const auto y = all.run(Rounded(all.x, all.n, all.k), 128, false);
  check(y == all.run(Rounded(all.x, all.n, all.k), 64, false), "gemm: block sizes differ");
  for (int start : {0, 63, 140}) {
    Product some = all;
    some.outs.pop_back();
    some.n = std::min(37, all.n - start);
    some.x.assign(all.x.begin() + (size_t)start * all.k, all.x.begin() + (size_t)(start + some.n) * all.k);
    const auto part = some.run(Rounded(some.x, some.n, some.k), 64, false)[0];
    check(std::equal(part.begin(), part.end(), y[0].begin() + (size_t)start * all.outs[0]),
          "gemm: a row differs in another chunk");
  }
}

static void test_hopper() {
  if (!ch_has_clusters()) return void(printf("SKIPPED: gemm_hopper: the device has no wgmma\n"));
  // more slices than stages, a partial slice, blocks of a cluster without rows and without outputs
  Product(130, {200}, 8 * 64).test_hopper(false);
  Product(300, {130, 6, 66}, 72).test_hopper(true);
  Product(20, {40}, 8).test_hopper(false);
  schedules(3, [&](int seed) { Product(140, {140}, 13 * 64 + 8 * (seed % 5)).test_hopper(seed % 2); });
  for (int activation : {0, 1})
    schedules(activation ? 0 : 3, [&](int) { Product(150, {activation ? 72 : 130, activation ? 72 : 130}, 328).test_gated_hopper(activation); });
}

static void test_round_rows() {
  for (int width : {4, 96, 4864, 33000})
    for (float size : {1.0f, 1e-30f, 1e-37f, 1e30f}) {
      auto x = normal(3 * (size_t)width, width, size);
      std::fill(x.begin(), x.begin() + width, 0.0f);                       // a row of zeros
      for (int i = 0; i < width; i += 3) x[width + i] *= std::ldexp(1.0f, -(i % 40));
      schedules(2, [&](int) {
        const Rounded rounded(x, 3, width);
        for (int r = 0; r < 3; ++r) {
          double max = 0;
          for (int i = 0; i < width; ++i) max = std::max(max, (double)std::abs(x[(size_t)r * width + i]));
          int exponent;
          check(std::frexp(rounded.scale(r, 0), &exponent) == 0.5, "round_rows: no power of two");
          if (max >= std::ldexp(1.0, -112))
            check(max / rounded.scale(r, 0) >= 16384 && max / rounded.scale(r, 0) < 32768, "round_rows: scale");
          for (int i = 0; i < width; ++i) {
            const float from = x[(size_t)r * width + i];
            check(rounded.scale(r, i) == rounded.scale(r, 0), "round_rows: a row with several powers");
            check_error(std::abs(rounded.at(r, i) - from),
                        std::ldexp(std::abs((double)from), -11) + std::ldexp(std::max(max, 1e-34), -39), "round_rows");
          }
        }
      });
    }
  // non-finite values stay so, and leave other rows unaffected
  for (float bad : {INFINITY, -INFINITY, (float)NAN}) {
    auto x = normal(2 * 64, 1);
    x[7] = bad;
    const Rounded rounded(x, 2, 64);
    check(!std::isfinite(rounded.at(0, 7)), "round_rows: finite");
    for (int i = 64; i < 128; ++i) check(std::isfinite(value(rounded.values[i])), "round_rows: a bad row spoils others");
  }
}

int main() {
  test_sizes();
  test_batch_independence();
  test_hopper();
  test_round_rows();
  return report("gemm");
}
