// gemv_rows.cu has the bits of gemv.cu, which dense_gemv.cpp compares with float64 sums: for 1 to 16 rows, odd k, uneven outputs,
// several matrices, rotated and gated, on any grid, early and late. Prints a line per version, which run.py parses.
#include "dense_support.h"

#include "gemv.cu"
#include "gemv_rows.cu"

#define EXPORT_ROWS(r)                                                                                                      \
  CUDA_HOST_EXPORT(lab_split_rows_##r)                                                                                      \
  CUDA_HOST_EXPORT(lab_gemv_rows_##r##_t2) CUDA_HOST_EXPORT(lab_gemv_rows_##r##_t3) CUDA_HOST_EXPORT(lab_gemv_rows_##r##_t7) \
  CUDA_HOST_EXPORT(lab_gemv_qkv_rows_##r##_t2) CUDA_HOST_EXPORT(lab_gemv_qkv_rows_##r##_t3)                                 \
  CUDA_HOST_EXPORT(lab_gemv_gated_rows_##r##_t2)                                                                            \
  CUDA_HOST_EXPORT(lab_gemv_gated_rows_##r##_t3) CUDA_HOST_EXPORT(lab_gemv_gated_rows_##r##_t7)
EXPORT_ROWS(r1)
EXPORT_ROWS(r8)
EXPORT_ROWS(r16)
CUDA_HOST_EXPORT(gemv_f16_r16)
CUDA_HOST_EXPORT(gemv_qkv_f16_r16)
CUDA_HOST_EXPORT(gemv_gated_f16_r16)

using gemv::rows::WeightMaps;

/// A version: rows at most, and tiles together.
struct Version {
  int rows, tiles;
  std::string text() const { return "r" + std::to_string(rows) + "_t" + std::to_string(tiles); }
};

static unsigned shared_bytes(const std::string& kernel) {
  const unsigned* bytes = ch_find_constant((kernel + "_shared_bytes").c_str());
  check(bytes, "no shared_bytes of " + kernel);
  return bytes ? *bytes : 0;
}

/// A product's data: up to three matrices, and what a rotated one needs besides. Layer 1 of 2, 24 positions of two slots.
struct Case {
  static constexpr int POSITIONS = 24, LAYERS = 2;
  int k, rows;
  std::vector<int> outs;
  bool norm, bias;
  int kv_heads, head_dim;
  Device<float> x, norm_weight, cosines, sines;
  std::vector<Device<__half>> w;
  std::vector<Device<float>> biases, scales;
  Device<RowState> states;

  Case(int k, int rows, std::vector<int> outs, bool norm, bool bias, int head_dim = 0)
      : k(k), rows(rows), outs(outs), norm(norm), bias(bias), kv_heads(head_dim ? outs[1] / head_dim : 0), head_dim(head_dim),
        x(normal((size_t)rows * k, k + rows)), norm_weight(normal(k, 3)), cosines(normal(POSITIONS * head_dim / 2, 4)),
        sines(normal(POSITIONS * head_dim / 2, 5)), states(rows) {
    for (size_t i = 0; i < x.size(); i += 37) x[i] *= 300;  // some outliers, as in real activations
    for (size_t j = 0; j < outs.size(); ++j) {
      w.emplace_back(convert<__half>(normal((size_t)outs[j] * k, 7 + j, 0.05f)));
      biases.emplace_back(normal(outs[j], 77 + j)), scales.emplace_back((size_t)outs[j]);
      for (int i = 0; i < outs[j]; ++i) scales[j][i] = std::ldexp(1.0f, i % 9 - 4);
    }
    for (int r = 0; r < rows; ++r) states[r] = {r % 2, r == 3 ? -1 : (r * 5 + 1) % POSITIONS, 0, 0};
  }
};

enum Kind { PLAIN, QKV, GATED };

/// All that a run wrote.
using Written = std::vector<std::vector<float>>;

/// Runs gemv.cu, or a version of the lab with `blocks` blocks.
static Written run(Case& c, Kind kind, int mode, const Version* version, int blocks) {
  std::vector<Device<float>> y, caches;
  MatrixJobs jobs = {};
  int r16_blocks = 0, tiles = 0;
  for (size_t j = 0; j < c.outs.size(); ++j) {
    y.emplace_back(normal((size_t)c.rows * c.outs[j], 99 + j));
    jobs.job[j] = {c.w[j].get(), j == 2 ? nullptr : c.scales[j].get(), c.bias && j != 1 ? c.biases[j].get() : nullptr, y[j].get(), c.outs[j]};
    r16_blocks += ceil_div(c.outs[j], 32), tiles += ceil_div(c.outs[j], 16);
  }
  if (kind == GATED) r16_blocks = ceil_div(c.outs[0], 16), tiles = ceil_div(c.outs[0], 8);
  std::vector<SequenceView> views;
  const size_t cached = (size_t)Case::LAYERS * c.kv_heads * Case::POSITIONS * c.head_dim;
  for (int i = 0; i < 4; ++i) caches.emplace_back(std::vector<float>(cached, -1.0f));
  for (int i = 0; i < 2; ++i) views.push_back({caches[2 * i].get(), caches[2 * i + 1].get(), Case::POSITIONS, 0, {}});
  Device<SequenceView> sequences(views);
  RopeTarget to = {};
  if (c.head_dim)
    to = {c.cosines.get(), c.sines.get(), c.states.get(), sequences.get(), 1, c.kv_heads, c.head_dim, 0.37f, CACHE_F32, CACHE_F16};
  const float offset = 1.0f, eps = 1e-6f, *norm_weight = c.norm ? c.norm_weight.get() : nullptr;
  const std::string of[] = {"gemv", "gemv_qkv", "gemv_gated"};
  if (!version) {
    const Kind as = kind == PLAIN && c.norm ? QKV : kind;  // gemv.cu norms only for these; without `to`, qkv is plain
    const std::string name = of[as] + "_f16_r16";
    const auto all = [&](auto... last) {
      launch(name, r16_blocks, 256, shared_bytes(name), (const float*)c.x.get(), last...);
    };
    if (as == PLAIN) all(jobs, c.k, c.rows, mode);
    if (as == QKV) all(norm_weight, offset, eps, jobs, c.k, c.rows, to);
    if (as == GATED) all(norm_weight, offset, eps, jobs, c.k, c.rows, mode);
  } else {
    const std::string r = "r" + std::to_string(version->rows), split = "lab_split_rows_" + r;
    const std::string name = "lab_" + of[kind] + "_rows_" + version->text();
    const int lanes = version->rows == 1 ? 4 : ceil_div(version->rows, 8) * 32;
    Device<uint4> fragments((size_t)gemv::rows::slices_of(c.k) * 8 * 2 * 2 * lanes);
    Device<float> factors(c.rows);
    launch(split, version->rows, 256, shared_bytes(split), (const float*)c.x.get(), norm_weight, offset, eps, fragments.get(),
           factors.get(), c.k, c.rows);
    WeightMaps maps = {};
    for (size_t j = 0; j < c.outs.size(); ++j)
      check(ch_encode_tensor_map(&maps.of_job[j], c.w[j].get(), c.k, c.outs[j], 2 * c.k, 64, kind == PLAIN ? 16 : 8), "a tensor map");
    const auto all = [&](auto last) {
      launch(name, std::min(blocks, tiles), gemv::rows::THREADS, shared_bytes(name), (const uint4*)fragments.get(),
             (const float*)factors.get(), maps, jobs, c.k, c.rows, last);
    };
    if (kind == PLAIN) all(mode != 0);
    if (kind == QKV) all(to);
    if (kind == GATED) all(mode);
  }
  Written written;
  for (auto* of_all : {&y, &caches})
    for (auto& one : *of_all) written.push_back(one.host());
  return written;
}

static const Version VERSIONS[] = {{1, 2}, {1, 3}, {1, 7}, {8, 2}, {8, 3}, {8, 7}, {16, 2}, {16, 3}, {16, 7}};
static bool differs[std::size(VERSIONS)];

static void compare(Case c, Kind kind, int mode, std::initializer_list<int> blocks, int adversaries) {
  const Written want = run(c, kind, mode, nullptr, 0);
  for (size_t i = 0; i < std::size(VERSIONS); ++i) {
    if (c.rows > VERSIONS[i].rows || (kind == QKV && VERSIONS[i].tiles == 7)) continue;
    for (int n : blocks)
      schedules(adversaries, [&](int seed) {
        const Written got = run(c, kind, mode, &VERSIONS[i], n);
        bool equal = true;
        for (size_t j = 0; j < want.size(); ++j) equal &= !memcmp(got[j].data(), want[j].data(), want[j].size() * 4);
        differs[i] |= !equal;
        check(equal, VERSIONS[i].text() + " kind " + std::to_string(kind) + " k " + std::to_string(c.k) + " rows " +
                         std::to_string(c.rows) + " outs " + std::to_string(c.outs[0]) + " blocks " + std::to_string(n) + " seed " +
                         std::to_string(seed));
      });
  }
}

int main() {
  for (int k : {8, 64, 72, 504, 520, 1000, 1096})  // around a line and a slice
    for (int rows : {1, 3, 8, 11, 16})
      compare(Case(k, rows, {50}, false, k % 3), PLAIN, rows % 2, {1, 3}, k == 1000 && rows % 8 == 3 ? 2 : 0);
  compare(Case(4096 + 8, 16, {130}, true, true), PLAIN, 0, {1, 9}, 0);  // 9 tiles: 7 and 2, and more stages than there are
  compare(Case(576, 16, {33, 7, 64}, true, true), PLAIN, 0, {2, 132}, 1);
  compare(Case(96, 1, {257}, false, true), PLAIN, 1, {1, 5}, 2);
  for (int head_dim : {16, 64, 128})
    for (int rows : {1, 5, 16})
      compare(Case(520, rows, {3 * head_dim, head_dim, head_dim}, true, true, head_dim), QKV, 0, {1, 4}, head_dim == 64);
  for (int activation : {0, 1})
    for (int rows : {1, 7, 16}) compare(Case(896, rows, {61, 61}, true, activation), GATED, activation, {1, 3}, rows == 7);
  for (size_t i = 0; i < std::size(VERSIONS); ++i) {
    const std::string name = "lab_gemv_rows_" + VERSIONS[i].text();
    printf("lab %s bits_equal %d shared %u\n", name.c_str(), !differs[i], shared_bytes(name));
  }
  return report("lab: gemv_rows");
}
