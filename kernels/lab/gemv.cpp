// Checks the rivals of gemv.cu against float64 sums and against the kernel in use: same inputs, same jobs. Prints one line
// per version, which run.py parses:
//
//   lab VERSION max_error_of_bound MAX max_error ERR in_use ERR bits_equal 0|1 shared BYTES
//
// MAX is the largest error as a share of the derived bound; ERR are the largest errors as a share of the sum of |x w|, of
// this version and of the one in use on the same inputs.
//
// Bound: that of tests/cuda_kernels/dense_gemv.cpp. A chain has at most k / 256 additions of partial sums in a lane (per
// term: 2 per step of 512), 8 over the warps, 1 over the terms, 32 products inside the tensor core, and 2 for bias and
// residual; the terms leave 2^-22 of x, 4 u.
#include "dense_support.h"

#include "gemv_fragments.cu"

CUDA_HOST_EXPORT(gemv_f16_r8)
CUDA_HOST_EXPORT(lab_fragments_f16)
CUDA_HOST_EXPORT(lab_gemv_f16_r8)

using Weight = __half;
constexpr double U = 1.0 / (1 << 24);

static double tolerance(int k) { return (k / 256 + 1 + 8 + 1 + 32 + 2 + 4) * U; }

/// Up to three matrices over the same x.
struct Case {
  int k, rows;
  std::vector<int> outs;
  bool accumulate;
  std::vector<float> x;
  std::vector<Device<Weight>> w;
  std::vector<std::vector<float>> bias, before;  // bias[1] is not used: a job without one

  Case(int k, int rows, std::vector<int> outs, bool accumulate)
      : k(k), rows(rows), outs(outs), accumulate(accumulate), x(normal((size_t)rows * k, k + rows)) {
    for (size_t i = 0; i < x.size(); i += 37) x[i] *= 300;  // a few large ones, as in real activations
    for (size_t job = 0; job < outs.size(); ++job) {
      w.emplace_back(convert<Weight>(normal((size_t)outs[job] * k, 7 + job, 0.05f)));
      bias.push_back(normal(outs[job], 77 + job));
      before.push_back(normal((size_t)rows * outs[job], 99 + job));
    }
  }
  std::string text() const {
    std::string s = "k " + std::to_string(k) + " rows " + std::to_string(rows) + " outs";
    for (int n : outs) s += " " + std::to_string(n);
    return s;
  }
};

/// Dynamic shared memory, as the version's file exports it.
static unsigned shared_bytes(const std::string& version) {
  const unsigned* bytes = ch_find_constant((version + "_shared_bytes").c_str());
  check(bytes, "no shared_bytes of " + version);
  return bytes ? *bytes : 0;
}

using Outputs = std::vector<std::vector<float>>;

/// Runs a version on a case. A version that takes fragments receives x in that form.
static Outputs run(const std::string& version, Case& c) {
  const bool fragments = version != "gemv_f16_r8";
  Device<float> x(c.x);
  std::vector<Device<float>> y, bias;
  MatrixJobs jobs = {};
  unsigned grid = 0;
  for (size_t job = 0; job < c.outs.size(); ++job) {
    y.emplace_back(c.before[job]);
    bias.emplace_back(c.bias[job]);
    jobs.job[job] = {c.w[job].get(), nullptr, job == 1 ? nullptr : bias[job].get(), y[job].get(), c.outs[job]};
    grid += ceil_div(c.outs[job], 16);
  }
  if (fragments) {
    const unsigned lines = ceil_div(c.k, 64) * lab_gemv::fragment_chunks(c.rows) * 4;
    Device<uint4> terms(lines * 8);
    launch("lab_fragments_f16", ceil_div(lines, 32), 256, 0, (const float*)x.get(), terms.get(), c.k, c.rows);
    launch(version, grid, 256, shared_bytes(version), (const uint4*)terms.get(), jobs, c.k, c.rows, (int)c.accumulate);
  } else {
    launch(version, grid, 256, shared_bytes(version), (const float*)x.get(), jobs, c.k, c.rows, (int)c.accumulate);
  }
  Outputs result;
  for (const auto& values : y) result.push_back(values.host());
  return result;
}

/// A version's results over all cases.
struct Shown {
  double of_bound = 0, error = 0, in_use = 0;
  bool bits_equal = true;
};

static void compare(const std::string& version, Case& c, const Outputs& got, const Outputs& in_use, Shown& shown) {
  for (size_t job = 0; job < c.outs.size(); ++job) {
    for (int r = 0; r < c.rows; ++r) {
      for (int o = 0; o < c.outs[job]; ++o) {
        double sum = 0, magnitude = 0;
        for (int i = 0; i < c.k; ++i) {
          const double term = (double)c.x[(size_t)r * c.k + i] * value(c.w[job][(size_t)o * c.k + i]);
          sum += term, magnitude += std::abs(term);
        }
        const size_t at = (size_t)r * c.outs[job] + o;
        for (const double extra : {job == 1 ? 0.0 : c.bias[job][o], c.accumulate ? c.before[job][at] : 0.0})
          sum += extra, magnitude += std::abs(extra);
        const double error = std::abs(got[job][at] - sum);
        check_error(error, tolerance(c.k) * magnitude, version + ": " + c.text());
        shown.of_bound = std::max(shown.of_bound, error / (tolerance(c.k) * magnitude));
        shown.error = std::max(shown.error, error / magnitude);
        shown.in_use = std::max(shown.in_use, std::abs(in_use[job][at] - sum) / magnitude);
        shown.bits_equal &= !memcmp(&got[job][at], &in_use[job][at], 4);
      }
    }
  }
}

/// Checks every shape that fits, under fair and adversarial schedules.
static void check_version(const std::string& version, int max_rows) {
  Shown shown;
  const auto on = [&](int k, int rows, std::vector<int> outs, bool accumulate, int adversaries) {
    Case c(k, rows, outs, accumulate);
    const Outputs in_use = run("gemv_f16_r8", c);
    schedules(adversaries, [&](int) { compare(version, c, run(version, c), in_use, shown); });
  };
  for (int k : {8, 56, 64, 72, 504, 512, 520, 576, 896, 1000, 2432})  // around one step, one span, and real widths
    for (int rows = 1; rows <= max_rows; rows += k % 3 + 1) on(k, rows, {16}, rows % 2, k == 1000 && rows == 1 ? 6 : 0);
  for (int outs : {1, 7, 15, 17, 50}) on(200, max_rows, {outs}, false, 0);
  on(1096, max_rows, {48, 16, 17}, false, 6);
  on(1096, 2, {5, 16, 33}, true, 2);
  printf("lab %s max_error_of_bound %.4f max_error %.3e in_use %.3e bits_equal %d shared %u\n", version.c_str(),
         shown.of_bound, shown.error, shown.in_use, shown.bits_equal, shared_bytes(version));
}

/// A row has the same bits alone, in every batch and at every position.
static void check_batches() {
  const int k = 1096, outs = 24;
  Case all(k, 8, {outs}, false);
  const auto alone_and_in = [&](std::vector<int> picked, const std::string& version) {
    Case c(k, picked.size(), {outs}, false);
    for (size_t i = 0; i < picked.size(); ++i)
      std::copy_n(&all.x[(size_t)picked[i] * k], k, &c.x[i * k]);
    return run(version, c)[0];
  };
  std::vector<std::vector<float>> alone;
  for (int row = 0; row < 8; ++row) alone.push_back(alone_and_in({row}, "lab_gemv_f16_r8"));
  for (const std::vector<int>& picked : std::vector<std::vector<int>>{{3}, {7, 1}, {4, 0, 6, 2, 5}, {5, 2, 7, 0, 1, 6},
                                                                      {6, 5, 4, 3, 2, 1, 0, 7}}) {
    const auto together = alone_and_in(picked, "lab_gemv_f16_r8");
    for (size_t i = 0; i < picked.size(); ++i)
      check(!memcmp(&together[i * outs], alone[picked[i]].data(), outs * 4), "lab_gemv_f16_r8: a row's bits");
  }
}

/// A non-finite row does not affect the others.
static void check_not_finite() {
  Case c(96, 3, {7}, false);
  c.x[96 + 5] = INFINITY;
  const auto y = run("lab_gemv_f16_r8", c)[0];
  for (int o = 0; o < 7; ++o)
    check(std::isfinite(y[o]) && !std::isfinite(y[7 + o]) && std::isfinite(y[14 + o]), "not finite: rows mixed");
}

int main() {
  check_version("gemv_f16_r8", 8);
  check_version("lab_gemv_f16_r8", 8);
  check_batches();
  check_not_finite();
  return report("lab: gemv");
}
