// gemm.cu against float64 sums.
//
// Bound, u = 2^-24: per slice of 32 elements of k at most 64 products in the tensor core, ceil(k / 32) additions of
// slices, three more for bias and residual; of the terms 2^-8 (bf16) or 2^-11 (f16) of |x| for one and its square for
// two, and in f16 2^-19 or 2^-30 for tiny values. All relative to sum |x w|.
#include "dense_support.h"

#include "gemm.cu"

#define EXPORT(name)                                                             \
  CUDA_HOST_EXPORT(gemm_##name##_t1_m64)                                         \
  CUDA_HOST_EXPORT(gemm_##name##_t2_m64) CUDA_HOST_EXPORT(gemm_##name##_t1_m128) \
      CUDA_HOST_EXPORT(gemm_##name##_t2_m128) CUDA_HOST_EXPORT(split_##name)
EXPORT(bf16)
EXPORT(f16)

constexpr double U = 1.0 / (1 << 24);

template <class T>
struct Product {
  int n, outs, k;
  std::vector<float> x, bias, before;
  std::vector<T> w;
  Product(int n, int outs, int k) : n(n), outs(outs), k(k) {
    x = normal((size_t)n * k, n + k);
    for (size_t i = 0; i < x.size(); i += 41) x[i] *= 200;
    w = convert<T>(normal((size_t)outs * k, outs + k, 0.05f));
    bias = normal(outs, 1);
    before = normal((size_t)n * outs, 2);
  }

  std::vector<float> run(int terms, int rows_a_block, bool with_bias, bool accumulate) const {
    Device<float> in(x), b(bias), y((size_t)n * outs);
    Device<T> weights(w);
    Device<unsigned short> split((size_t)terms * n * k);
    if (accumulate) std::copy(before.begin(), before.end(), y.get());
    launch(std::string("split_") + type_name<T>(), ceil_div(n * k, 1024), 256, 0, (const float*)in.get(), split.get(),
           n * k, terms);
    launch(std::string("gemm_") + type_name<T>() + "_t" + std::to_string(terms) + "_m" + std::to_string(rows_a_block),
           dim3(ceil_div(n, rows_a_block), ceil_div(outs, 64)), 256, 240 * (terms * rows_a_block + 64),
           (const unsigned short*)split.get(), (const unsigned short*)weights.get(),
           with_bias ? (const float*)b.get() : nullptr, y.get(), n, outs, k, (int)accumulate);
    return y.host();
  }

  void test(int terms, int rows_a_block, bool with_bias, bool accumulate) const {
    const auto y = run(terms, rows_a_block, with_bias, accumulate);
    const bool f16 = Split<T>::NEXT != 1.0f;
    const double unit = std::ldexp(1.0, f16 ? -11 : -8), tiny = f16 ? std::ldexp(1.0, terms == 1 ? -19 : -30) : 0;
    const double relative = (terms == 1 ? unit : unit * unit) + (64 + (k + 31) / 32 + 3) * U;
    for (int r = 0; r < n; ++r)
      for (int o = 0; o < outs; ++o) {
        double sum = 0, magnitude = 0, absolute = 0;
        for (int i = 0; i < k; ++i) {
          const double a = x[(size_t)r * k + i], b = value(w[(size_t)o * k + i]);
          sum += a * b, magnitude += std::abs(a * b), absolute += std::abs(b);
        }
        const double extra = (with_bias ? bias[o] : 0.0) + (accumulate ? before[(size_t)r * outs + o] : 0.0);
        check_error(std::abs(sum + extra - y[(size_t)r * outs + o]),
                    relative * (magnitude + std::abs(extra)) + tiny * absolute + 1e-10,
                    std::string("gemm ") + type_name<T>() + " n " + std::to_string(n) + " outs " +
                        std::to_string(outs) + " k " + std::to_string(k) + " terms " + std::to_string(terms) + " m" +
                        std::to_string(rows_a_block));
      }
  }
};

template <class T>
static void test_sizes() {
  int i = 0;
  for (int n : {1, 17, 64, 100, 128})
    for (int k : {8, 32, 64, 96, 200, 576}) {
      const Product<T> p(n, std::vector<int>{1, 7, 48, 64, 65, 130}[i % 6], k);
      schedules(k == 96 || k == 200 ? 3 : 0,
                [&](int seed) { p.test(2, n <= 64 ? 64 : 128, i % 2, (i + seed) / 2 % 2); });
      p.test(1, i % 2 ? 64 : 128, i % 3 == 0, i % 5 == 0);
      ++i;
    }
  Product<T>(256, 257, 136).test(2, 128, true, false);
  Product<T>(5, 48, 4864).test(2, 64, false, true);
  Product<T>(70, 33, 1000).test(2, 64, true, true);
}

/// The same bits in every chunk, at every place, with both block sizes.
template <class T>
static void test_batch_independence() {
  const Product<T> all(150, 40, 328);
  const auto y = all.run(2, 128, true, false);
  check(y == all.run(2, 64, true, false), "gemm: block sizes differ");
  for (int start : {0, 63, 140}) {
    Product<T> some = all;
    some.n = std::min(37, all.n - start);
    some.x.assign(all.x.begin() + (size_t)start * all.k, all.x.begin() + (size_t)(start + some.n) * all.k);
    const auto part = some.run(2, 64, true, false);
    check(std::equal(part.begin(), part.end(), y.begin() + (size_t)start * all.outs),
          "gemm: a row differs in another chunk");
  }
}

int main() {
  test_sizes<__nv_bfloat16>();
  test_sizes<__half>();
  test_batch_independence<__nv_bfloat16>();
  test_batch_independence<__half>();
  return report("gemm");
}
