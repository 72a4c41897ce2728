// experts.cu compared with float64. u = 2^-24.
#include "dense_support.h"

#include "experts.cu"

CUDA_HOST_EXPORT(choose_experts)
CUDA_HOST_EXPORT(expert_gated_f16)
CUDA_HOST_EXPORT(expert_gated_f32)
CUDA_HOST_EXPORT(expert_down_f16)
CUDA_HOST_EXPORT(expert_down_f32)
CUDA_HOST_EXPORT(group_choices)
CUDA_HOST_EXPORT(expert_sum)

constexpr double U = 1.0 / (1 << 24);

/// The choice by definition: the largest logits, ties going to the lower ids, in ascending id order; and their
/// shares.
static std::vector<std::pair<int, double>> choice(const float* logits, int experts, int top_k, bool normalize) {
  std::vector<int> order(experts);
  for (int i = 0; i < experts; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  double all = 0, chosen = 0;
  for (int i = 0; i < experts; ++i) all += std::exp((double)logits[order[i]] - logits[order[0]]);
  for (int i = 0; i < top_k; ++i) chosen += std::exp((double)logits[order[i]] - logits[order[0]]);
  order.resize(top_k);
  const float max = logits[order[0]];
  std::sort(order.begin(), order.end());
  std::vector<std::pair<int, double>> result;
  for (int id : order) result.push_back({id, std::exp((double)logits[id] - max) / (normalize ? chosen : all)});
  return result;
}

static void test_choice(int rows, int experts, int top_k, bool normalize, bool ties) {
  auto in = normal((size_t)rows * experts, experts + top_k, 4);
  if (ties)
    for (float& x : in) x = std::round(x);
  Device<float> logits(in);
  const auto factors = normal(experts, 7);
  schedules(2, [&](int) {
    Device<int> ids((size_t)rows * top_k);
    Device<float> shares((size_t)rows * top_k), scales(factors);
    launch("choose_experts", rows, 32, 0, (const float*)logits.get(), experts, top_k, (int)normalize,
           ties ? nullptr : (const float*)scales.get(), ids.get(), shares.get());
    for (int r = 0; r < rows; ++r) {
      const auto want = choice(&in[(size_t)r * experts], experts, top_k, normalize);
      for (int i = 0; i < top_k; ++i) {
        const int at = r * top_k + i;
        check(ids[at] == want[i].first, "choose_experts: another expert");
        // two exponentials, sums of experts / 32 + 5 and a division; an exponent of up to 32 has an error of 32 u
        const double share = want[i].second * (ties ? 1 : std::abs(factors[ids[at]]));
        check_error(std::abs(std::abs(shares[at]) - share), (experts / 32 + 5 + 9 + 64) * U * share + 1e-30,
                    "choose_experts: shares");
      }
    }
  });
}

static void test_not_finite() {
  auto in = normal(2 * 40, 3);
  for (int i = 0; i < 40; ++i) in[i] = NAN;
  Device<float> logits(in), shares(2 * 4);
  Device<int> ids(2 * 4);
  launch("choose_experts", 2, 32, 0, (const float*)logits.get(), 40, 4, 1, (const float*)nullptr, ids.get(), shares.get());
  for (int i = 0; i < 8; ++i) check(ids[i] >= -1 && ids[i] < 40, "choose_experts: an expert that does not exist");
  check(std::isfinite(shares[4]) && !std::isfinite(shares[0]), "choose_experts: a row that is not finite");
}

/// The choices of each expert by definition; -1: none.
struct Groups {
  Device<int> choices, counts;
  int rows;

  Groups(int experts, int rows) : choices((size_t)experts * rows), counts(experts), rows(rows) {}
  ChoiceGroups view() { return {choices.get(), counts.get(), rows, 0}; }

  void check_against(const std::vector<int>& ids) {
    std::vector<std::vector<int>> want(counts.size());
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= 0) want[ids[i]].push_back((int)i);
    for (size_t e = 0; e < want.size(); ++e) {
      check(counts[e] == (int)want[e].size(), "group_choices: counts");
      for (size_t i = 0; i < want[e].size(); ++i) check(choices[e * rows + i] == want[e][i], "group_choices: choices");
    }
  }
};

static void test_groups(int rows, int experts, int top_k) {
  std::vector<int> chosen;
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < top_k; ++i) chosen.push_back(r % 7 == 3 ? -1 : (r * r + i) % experts);
  Device<int> ids(chosen);
  schedules(2, [&](int) {
    Groups groups(experts, rows);
    launch("group_choices", experts, 32, 0, (const int*)ids.get(), rows, top_k, groups.view());
    groups.check_against(chosen);
  });
}

/// Matrices of experts on the device, and as they are with their scales.
template <class W>
struct Experts {
  std::vector<Device<W>> matrices;
  std::vector<Device<float>> scales;
  std::vector<std::vector<double>> values;
  std::vector<ExpertView> views;

  Experts(int count, int k, int inner, int outs, bool scaled) {
    for (int e = 0; e < count; ++e) {
      ExpertView view = {};
      const int sizes[3][2] = {{inner, k}, {inner, k}, {outs, inner}};
      const void** places[] = {&view.gate, &view.up, &view.down};
      const float** scale_places[] = {&view.gate_scales, &view.up_scales, &view.down_scales};
      for (int m = 0; m < 3; ++m) {
        const auto [rows, width] = sizes[m];
        const auto w = convert<W>(normal((size_t)rows * width, 10 * e + m, 0.2f));
        std::vector<float> powers;
        for (int r = 0; r < rows; ++r) powers.push_back(scaled ? std::ldexp(1.0f, r % 5 - 2) : 1.0f);
        std::vector<double> exact;
        for (size_t i = 0; i < w.size(); ++i) exact.push_back(value(w[i]) * powers[i / width]);
        matrices.emplace_back(w);
        scales.emplace_back(powers);
        values.push_back(exact);
        *places[m] = matrices.back().get();
        *scale_places[m] = scaled ? scales.back().get() : nullptr;
      }
      views.push_back(view);
    }
  }

  /// Output `out` of matrix m of an expert, and the sum of its terms' magnitudes.
  std::pair<double, double> dot(int expert, int m, int out, const float* x, int width) const {
    double sum = 0, size = 0;
    for (int i = 0; i < width; ++i) {
      const double term = values[3 * expert + m][(size_t)out * width + i] * x[i];
      sum += term, size += std::abs(term);
    }
    return {sum, size};
  }
};

static double silu(double x) { return x / (1 + std::exp(-x)); }
static double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

template <class W>
static void test_products(const char* type, int rows, int count, int top_k, int k, int inner, int outs, bool scaled) {
  const Experts<W> experts(count, k, inner, outs, scaled);
  const auto in = normal((size_t)rows * k, k), before = normal((size_t)rows * outs, 5);
  std::vector<int> chosen;
  std::vector<float> shares;
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < top_k; ++i) chosen.push_back((r + i) % count), shares.push_back(0.1f + 0.3f * i);
  Device<float> x(in), share(shares);
  Device<int> ids(chosen);
  Device<ExpertView> views(experts.views);
  schedules(2, [&](int seed) {
    const int activation = seed % 2, accumulate = seed < 2;
    Device<float> h((size_t)rows * top_k * inner), products((size_t)rows * top_k * outs), y(before);
    const auto run = [&](ChoiceGroups groups, const int* ids, int n, const float* x, const float* share, float* h, float* products,
                         float* y) {
      const int blocks = groups.choices ? count : n * top_k;
      launch(std::string("expert_gated_") + type, dim3(ceil_div(inner, 8), blocks), 256, 0, x, ids, groups,
             (const ExpertView*)views.get(), k, inner, top_k, activation, h);
      launch(std::string("expert_down_") + type, dim3(ceil_div(outs, 8), blocks), 256, 0, (const float*)h, ids, groups,
             (const ExpertView*)views.get(), inner, outs, products);
      launch("expert_sum", dim3(ceil_div(outs, 256), n), 256, 0, (const float*)products, share, outs, top_k, accumulate, y);
    };
    Groups groups(count, rows);
    launch("group_choices", count, 32, 0, (const int*)ids.get(), rows, top_k, groups.view());
    run(groups.view(), ids.get(), rows, x.get(), share.get(), h.get(), products.get(), y.get());
    // the lanes' chains, and five sums across lanes
    const double chain = (k / 32 + 16 + 5) * U, down_chain = (inner / 32 + 16 + 5 + top_k + 2) * U;
    for (int slot = 0; slot < rows * top_k; ++slot) {
      for (int out = 0; out < inner; ++out) {
        const float* row = &in[(size_t)(slot / top_k) * k];
        const auto [gate, gate_size] = experts.dot(chosen[slot], 0, out, row, k);
        const auto [up, up_size] = experts.dot(chosen[slot], 1, out, row, k);
        const double act = activation ? gelu(gate) : silu(gate), want = act * up;
        // |act'| <= 1.13; the activation's own error is below 16 u
        const double bound = 1.2 * chain * gate_size * (std::abs(up) + chain * up_size) + std::abs(act) * chain * up_size +
                             16 * U * std::abs(gate * up);
        check_error(std::abs(h[(size_t)slot * inner + out] - want), bound, std::string("expert_gated_") + type);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int out = 0; out < outs; ++out) {
        double want = accumulate ? before[(size_t)r * outs + out] : 0, size = std::abs(want);
        for (int slot = r * top_k; slot < (r + 1) * top_k; ++slot) {
          const auto [sum, terms] = experts.dot(chosen[slot], 2, out, h.get() + (size_t)slot * inner, inner);
          want += (double)shares[slot] * sum, size += shares[slot] * terms;
        }
        check_error(std::abs(y[(size_t)r * outs + out] - want), down_chain * size, std::string("expert_down_") + type);
      }
    }
    // a row alone produces the same bits
    const int last = rows - 1;
    Device<float> alone((size_t)top_k * inner), products_alone((size_t)top_k * outs);
    Device<float> y_alone(std::vector<float>(before.end() - outs, before.end()));
    run({}, ids.get() + last * top_k, 1, x.get() + (size_t)last * k, share.get() + last * top_k, alone.get(), products_alone.get(),
        y_alone.get());
    check(!memcmp(y_alone.get(), y.get() + (size_t)last * outs, outs * 4), "experts: a row alone has other bits");
  });
}

int main() {
  for (int experts : {1, 5, 32, 33, 128, 130})
    for (int top_k : {1, 2, 8})
      if (top_k <= experts)
        for (int flags = 0; flags < 4; ++flags) test_choice(3, experts, top_k, flags & 1, flags & 2);
  test_choice(2, 40, 32, true, true);
  test_not_finite();
  test_groups(1, 3, 2);
  test_groups(13, 5, 3);
  test_groups(70, 130, 8);
  test_products<__half>("f16", 3, 5, 2, 264, 40, 24, true);
  test_products<__half>("f16", 1, 2, 1, 8, 8, 8, false);
  test_products<__half>("f16", 2, 9, 8, 520, 136, 72, true);
  test_products<__half>("f16", 21, 3, 2, 72, 24, 264, true);
  test_products<float>("f32", 3, 4, 3, 136, 24, 16, false);
  return report("experts");
}
