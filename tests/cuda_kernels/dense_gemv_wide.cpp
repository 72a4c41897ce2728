// gemv_wide.cu: bit-identical to gemv.cu, which dense_gemv.cpp compares with float64 sums.
#include "dense_support.h"

#include "gemv.cu"
#include "gemv_wide.cu"

CUDA_HOST_EXPORT(gemv_f16_r8)
CUDA_HOST_EXPORT(gemv_qkv_f16_r8)
CUDA_HOST_EXPORT(gemv_gated_f16_r8)
CUDA_HOST_EXPORT(split_rows)
CUDA_HOST_EXPORT(gemv_wide_m64)
CUDA_HOST_EXPORT(gemv_wide_m128)
CUDA_HOST_EXPORT(gemv_wide_gated_m64)
CUDA_HOST_EXPORT(gemv_wide_gated_m128)

/// Dynamic shared memory, as exported by the kernel's file.
static unsigned shared_bytes(const std::string& kernel) {
  const unsigned* bytes = ch_find_constant((kernel + "_shared_bytes").c_str());
  check(bytes, "no shared_bytes of " + kernel);
  return bytes ? *bytes : 0;
}

enum Kind { PLAIN, NORMED, GATED };

struct Shape {
  int k, rows;
  std::vector<int> outs;
  Kind kind;
  int mode;  // accumulate, or the activation
};

/// One product by gemv.cu, eight rows at a time, and by gemv_wide.cu with either block size, under several
/// schedules.
static void test(const Shape& s, int adversaries) {
  const float offset = 1.0f, eps = 1e-6f;
  auto values = normal((size_t)s.rows * s.k, s.k + s.rows);
  for (size_t i = 0; i < values.size(); i += 37) values[i] *= 300;  // some outliers, as in real activations
  if (s.rows > 2) values[s.k + 5] = INFINITY;                       // must leave the other rows unaffected
  Device<float> x(values), norm_weight(normal(s.k, 1));
  const int matrices = s.outs.size();
  std::vector<Device<__half>> w;
  std::vector<Device<float>> bias, scales;
  for (int j = 0; j < matrices; ++j) {
    std::vector<float> powers;
    for (int i = 0; i < s.outs[j]; ++i) powers.push_back(std::ldexp(1.0f, i % 9 - 4));
    w.emplace_back(convert<__half>(normal((size_t)s.outs[j] * s.k, 2 + j, 0.05f)));
    bias.emplace_back(normal(s.outs[j], 77 + j)), scales.emplace_back(powers);
  }
  const auto results = [&] {
    std::vector<Device<float>> y;
    for (int j = 0; j < matrices; ++j) y.emplace_back(normal((size_t)s.rows * s.outs[j], 99));
    return y;
  };
  const auto jobs_of = [&](std::vector<Device<float>>& y, int first_row) {
    MatrixJobs jobs = {};
    for (int j = 0; j < matrices; ++j)
      jobs.job[j] = {w[j].get(), j == 2 ? nullptr : scales[j].get(), j == 1 ? nullptr : bias[j].get(),
                     y[j].get() + (size_t)first_row * s.outs[j], s.outs[j]};
    return jobs;
  };
  const auto blocks = [&](int outs, int gates) {
    if (s.kind == GATED) return ceil_div(s.outs[0], gates);
    int sum = 0;
    for (int o : s.outs) sum += ceil_div(o, outs);
    return sum;
  };

  auto want = results();
  const std::string narrow = s.kind == PLAIN ? "gemv_f16_r8" : s.kind == NORMED ? "gemv_qkv_f16_r8" : "gemv_gated_f16_r8";
  for (int first = 0; first < s.rows; first += 8) {
    const int count = std::min(8, s.rows - first);
    const float* from = x.get() + (size_t)first * s.k;
    const MatrixJobs jobs = jobs_of(want, first);
    const unsigned grid = blocks(16, 16), shared = shared_bytes(narrow);
    if (s.kind == PLAIN)
      launch(narrow, grid, 256, shared, from, jobs, s.k, count, s.mode);
    else if (s.kind == NORMED)
      launch(narrow, grid, 256, shared, from, (const float*)norm_weight.get(), offset, eps, jobs, s.k, count, RopeTarget{});
    else
      launch(narrow, grid, 256, shared, from, (const float*)norm_weight.get(), offset, eps, jobs, s.k, count, s.mode);
  }
  for (int m : {64, 128})
    schedules(adversaries, [&](int seed) {
      Device<__half> terms((size_t)2 * s.rows * s.k);
      Device<float> factors(s.rows);
      const float* norm = s.kind == PLAIN ? nullptr : norm_weight.get();
      launch("split_rows", s.rows, 256, shared_bytes("split_rows"), (const float*)x.get(), norm, offset, eps, terms.get(),
             factors.get(), s.k);
      auto got = results();
      const std::string name = std::string(s.kind == GATED ? "gemv_wide_gated_m" : "gemv_wide_m") + std::to_string(m);
      launch(name, dim3(blocks(128, 64), ceil_div(s.rows, m)), 2 * m, shared_bytes(name), (const __half*)terms.get(),
             (const float*)factors.get(), jobs_of(got, 0), s.k, s.rows, s.kind == NORMED ? 0 : s.mode);
      for (int j = 0; j < (s.kind == GATED ? 1 : matrices); ++j)
        for (int row = 0; row < s.rows; ++row) {
          const size_t at = (size_t)row * s.outs[j];
          int different = 0;
          std::string first;
          for (int o = 0; o < s.outs[j]; ++o) {
            const float a = got[j][at + o], b = want[j][at + o];
            if (std::isnan(b) ? std::isnan(a) : !memcmp(&a, &b, 4)) continue;
            if (!different++) first = ", output " + std::to_string(o) + ": " + std::to_string(a) + ", not " + std::to_string(b);
          }
          check(!different, name + " k " + std::to_string(s.k) + " rows " + std::to_string(s.rows) + " row " + std::to_string(row) +
                                " matrix " + std::to_string(j) + " seed " + std::to_string(seed) + ": " + std::to_string(different) +
                                " differ" + first);
        }
    });
}

int main() {
  for (int k : {8, 64, 200, 576, 1096}) test({k, 70, {48, 16, 17}, NORMED, 0}, k == 200 ? 3 : 0);
  for (int k : {8, 96, 1000}) test({k, 65, {130}, PLAIN, k == 96}, k == 1000 ? 3 : 0);
  for (int activation : {0, 1}) test({activation ? 1096 : 328, 130, {70, 70}, GATED, activation}, activation ? 0 : 3);
  test({136, 1, {257}, PLAIN, 1}, 0);
  test({72, 256, {33}, NORMED, 0}, 0);
  test({72, 256, {129, 129}, GATED, 0}, 0);
  return report("gemv_wide");
}
