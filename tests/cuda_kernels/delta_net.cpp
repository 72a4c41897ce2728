// delta_net.cu compared with float64: convolutions, rates and the delta rule; runs of several sequences, the same bits in passes of
// other widths, and the saved states. u = 2^-24.
#include "dense_support.h"

#include "delta_net.cu"

CUDA_HOST_EXPORT(delta_mix)
CUDA_HOST_EXPORT(delta_rule)

constexpr double U = 1.0 / (1 << 24);
constexpr int PLACES = 2, PLACE = 1, INTERVAL = 8;

struct Case {
  int key_heads, value_heads, key_dim, value_dim, taps, activation;
  std::vector<int> lengths;  // tokens of each sequence
  int stride() const { return (key_dim + 15) / 16 * 16; }
  int width(int part) const { return part < 2 ? key_heads * key_dim : value_heads * value_dim; }
  int widths() const { return 2 * width(0) + width(2); }
  int inputs() const { return ((taps - 1) * widths() + 3) / 4 * 4; }
  int state() const { return inputs() + width(2) * stride(); }
};

static std::string describe(const Case& c) {
  std::string s = "delta_net";
  for (int n : {c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.taps, c.activation}) s += " " + std::to_string(n);
  return s;
}

/// Results for all tokens of a sequence, per token.
struct Left {
  std::vector<float> mixed[3], rates, out, state;
  std::map<int, std::vector<float>> kept;  // by number of tokens
};

/// The inputs of several sequences, and passes over them.
struct Run {
  explicit Run(const Case& c) : c(c) {
    const int heads = c.value_heads;
    for (int part = 0; part < 3; ++part) conv.emplace_back(normal((size_t)c.taps * c.width(part), 10 + part, 0.7f));
    a_log = normal(heads, 14), dt_bias = normal(heads, 15);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int part = 0; part < 3; ++part) raw[part].push_back(normal((size_t)c.lengths[s] * c.width(part), 20 + 5 * s + part));
      a.push_back(normal((size_t)c.lengths[s] * heads, 50 + s, 4)), b.push_back(normal((size_t)c.lengths[s] * heads, 60 + s, 2));
    }
  }

  /// Runs all tokens, `width` of each sequence per pass. With `by_interval` states are saved in snapshots, else after every third token.
  std::vector<Left> go(int width, bool by_interval) const {
    const size_t n = c.lengths.size();
    std::vector<Left> left(n);
    std::vector<Device<float>> states;
    std::vector<std::vector<Device<float>>> snapshots(n);
    std::vector<Device<float*>> tables;
    std::vector<SequenceView> views;
    for (size_t s = 0; s < n; ++s) {
      states.emplace_back(std::vector<float>((size_t)PLACES * c.state()));
      std::vector<float*> table;
      for (int i = 0; i <= c.lengths[s] / INTERVAL; ++i) {
        snapshots[s].emplace_back((size_t)PLACES * c.state());
        table.push_back(i == 2 ? nullptr : snapshots[s].back().get());  // one is not requested
      }
      tables.emplace_back(table);
      SequenceView view = {};
      view.capacity = c.lengths[s], view.states = states[s].get(), view.snapshots = tables[s].get();
      views.push_back(view);
    }
    Device<SequenceView> sequences(views);
    const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    for (int start = 0; start < longest; start += width) pass(start, width, by_interval, sequences, left);
    for (size_t s = 0; s < n; ++s) {
      const std::vector<float> all = states[s].host();
      check(std::all_of(all.begin(), all.begin() + c.state(), [](float x) { return x == 0; }), "another layer: " + describe(c));
      left[s].state.assign(all.begin() + c.state(), all.end());
      for (int i = 1; by_interval && i <= c.lengths[s] / INTERVAL; ++i)
        if (i != 2) left[s].kept[i * INTERVAL].assign(snapshots[s][i].get() + c.state(), snapshots[s][i].get() + 2 * c.state());
    }
    return left;
  }

  void pass(int start, int width, bool by_interval, Device<SequenceView>& sequences, std::vector<Left>& left) const {
    std::vector<RowState> rows;
    std::vector<float> in[3], in_a, in_b;
    for (size_t s = 0; s < c.lengths.size(); ++s)
      for (int t = start; t < std::min(start + width, c.lengths[s]); ++t) {
        rows.push_back({(int)s, t, 0, 0});
        const auto add = [&](std::vector<float>& to, const std::vector<float>& from, int width) {
          to.insert(to.end(), from.begin() + (size_t)t * width, from.begin() + (size_t)(t + 1) * width);
        };
        for (int part = 0; part < 3; ++part) add(in[part], raw[part][s], c.width(part));
        add(in_a, a[s], c.value_heads), add(in_b, b[s], c.value_heads);
      }
    rows.push_back({0, c.lengths[0], 0, 0});  // beyond its sequence's end: must have no effect
    if (rows.size() > 1 && rows[rows.size() - 2].slot == 0) rows.pop_back();
    const size_t n = rows.size();
    for (int part = 0; part < 3; ++part) in[part].resize(n * c.width(part));
    in_a.resize(n * c.value_heads), in_b.resize(n * c.value_heads);
    Device<float> q(in[0]), k(in[1]), v(in[2]), a(in_a), b(in_b), conv_q(conv[0]), conv_k(conv[1]), conv_v(conv[2]), log(a_log),
        dt(dt_bias), mixed_q(n * c.key_heads * c.stride()), mixed_k(n * c.key_heads * c.stride()), mixed_v(n * c.width(2)),
        rates(n * c.value_heads * 2), out(n * c.width(2));
    Device<RowState> row_states(rows);
    std::vector<Device<float>> copies;
    std::vector<float*> places;
    for (const RowState& row : rows) {
      copies.emplace_back((size_t)PLACES * c.state());
      places.push_back((row.position + 1) % 3 == 0 ? copies.back().get() : nullptr);
    }
    Device<float*> keeps(places);
    const DeltaNet net = {row_states.get(), sequences.get(), {q.get(), k.get(), v.get()}, {conv_q.get(), conv_k.get(), conv_v.get()},
                          a.get(), b.get(), log.get(), dt.get(), {mixed_q.get(), mixed_k.get(), mixed_v.get()}, rates.get(), PLACE,
                          c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.taps, c.activation, 0};
    launch("delta_mix", dim3(ceil_div(2 * c.key_heads + c.value_heads, 4), n), 128, 0, net);
    launch("delta_rule", dim3(ceil_div(c.value_dim, 64), c.value_heads, n), 256, 0, net,
           (float* const*)(by_interval ? nullptr : keeps.get()), INTERVAL, out.get());
    for (size_t r = 0; r < n; ++r) {
      const auto [slot, position, token, stream] = rows[r];
      if (position >= c.lengths[slot]) {
        check(std::isnan(out[r * c.width(2)]) && std::isnan(mixed_q[r * c.key_heads * c.stride()]), "beyond the end: " + describe(c));
        continue;
      }
      Left& to = left[slot];
      const auto add = [&](std::vector<float>& to, Device<float>& from, size_t width) {
        to.insert(to.end(), from.get() + r * width, from.get() + (r + 1) * width);
      };
      add(to.mixed[0], mixed_q, (size_t)c.key_heads * c.stride()), add(to.mixed[1], mixed_k, (size_t)c.key_heads * c.stride());
      add(to.mixed[2], mixed_v, c.width(2)), add(to.rates, rates, 2 * c.value_heads), add(to.out, out, c.width(2));
      if (!by_interval && places[r]) to.kept[position + 1].assign(places[r] + c.state(), places[r] + 2 * c.state());
    }
  }

  Case c;
  std::vector<std::vector<float>> conv, raw[3], a, b;
  std::vector<float> a_log, dt_bias;
};

/// Convolutions, their activation, the unit length of queries and keys, and the rates.
static void compare_mixed(const Run& run, size_t s, const Left& left) {
  const Case& c = run.c;
  for (int t = 0; t < c.lengths[s]; ++t) {
    for (int part = 0; part < 3; ++part) {
      const int dim = part < 2 ? c.key_dim : c.value_dim, stride = part < 2 ? c.stride() : dim, width = c.width(part);
      for (int h = 0; h < width / dim; ++h) {
        std::vector<double> x(dim), error(dim);
        double squares = 0, errors = 0;
        for (int i = 0; i < dim; ++i) {
          double sum = 0, size = 0;
          for (int tap = std::max(0, c.taps - 1 - t); tap < c.taps; ++tap) {
            const double term = (double)run.conv[part][(size_t)tap * width + h * dim + i] *
                                run.raw[part][s][(size_t)(t + 1 + tap - c.taps) * width + h * dim + i];
            sum += term, size += std::abs(term);
          }
          x[i] = activate_f64(sum, c.activation);
          // |act'| <= 1.13; the activation's own error is below 16 u
          error[i] = 1.2 * c.taps * U * size + 16 * U * std::abs(sum);
          squares += x[i] * x[i], errors += error[i] * error[i];
        }
        const float* got = &left.mixed[part][((size_t)t * (width / dim) + h) * stride];
        const double norm = std::sqrt(squares + 1e-6), scale = part == 0 ? 1 / std::sqrt((double)dim) : 1;
        for (int i = 0; i < dim; ++i) {
          if (part == 2) {
            check_error(std::abs(got[i] - x[i]), error[i] + 1e-30, "values: " + describe(c));
            continue;
          }
          // error of the length: from its components; half of a sum of dim / 32 + 5 additions; roots and quotients
          const double want = scale * x[i] / norm, length = std::sqrt(errors) / norm + ((dim / 32 + 6) / 2.0 + 6) * U;
          check_error(std::abs(got[i] - want), scale * error[i] / norm + std::abs(want) * length + 1e-30, "keys: " + describe(c));
        }
        for (int i = dim; i < stride; ++i) check(got[i] == 0, "no zero after a key: " + describe(c));
      }
    }
    for (int h = 0; h < c.value_heads; ++h) {
      const size_t at = (size_t)t * c.value_heads + h;
      const double time = (double)run.a[s][at] + run.dt_bias[h], decay = std::exp((double)run.a_log[h]);
      const double softplus = time > 20 ? time : std::log1p(std::exp(time)), alpha = std::exp(-decay * softplus);
      // the sum, expf and log1pf; then expf, a product and expf
      const double lost = U * (std::abs(time) + 4 * softplus + 3);
      check_error(std::abs(left.rates[2 * at] - alpha), alpha * (decay * lost + 6 * U * decay * softplus + 4 * U) + 1e-30, "alpha");
      check_error(std::abs(left.rates[2 * at + 1] - 1 / (1 + std::exp(-(double)run.b[s][at]))), 8 * U, "beta");
    }
  }
}

/// The delta rule applied to delta_mix's results. A step's error, for a column s, is at most 17 u (|s| + |v|): twelve roundings of
/// s . k, one each for alpha, the difference and beta, and two for the update. A step amplifies no error: alpha (1 - beta k k^T) is at most
/// 1 in magnitude. The output is one more product.
static void compare_rule(const Run& run, size_t s, const Left& left) {
  const Case& c = run.c;
  for (int h = 0; h < c.value_heads; ++h)
    for (int j = 0; j < c.value_dim; ++j) {
      const size_t key_head = h / (c.value_heads / c.key_heads), column = (size_t)h * c.value_dim + j;
      std::vector<double> memory(c.key_dim);
      double lost = 0, size = 0;
      const auto compare_state = [&](const std::vector<float>& state) {
        for (int i = 0; i < c.stride(); ++i) {
          const float got = state[c.inputs() + column * c.stride() + i];
          if (i >= c.key_dim) check(got == 0, "no zero after a memory: " + describe(c));
          else check_error(std::abs(got - memory[i]), lost + 1e-30, "memory: " + describe(c));
        }
      };
      for (int t = 0; t < c.lengths[s]; ++t) {
        const size_t key = ((size_t)t * c.key_heads + key_head) * c.stride(), at = (size_t)t * c.value_heads + h;
        const float *q = &left.mixed[0][key], *k = &left.mixed[1][key];
        const double alpha = left.rates[2 * at], beta = left.rates[2 * at + 1], v = left.mixed[2][(size_t)t * c.width(2) + column];
        double recalled = 0, answer = 0, length = 0, before = size;
        for (int i = 0; i < c.key_dim; ++i) recalled += alpha * memory[i] * k[i];
        size = 0;
        for (int i = 0; i < c.key_dim; ++i) {
          memory[i] = alpha * memory[i] + k[i] * beta * (v - recalled);
          answer += memory[i] * q[i], length += (double)q[i] * q[i], size += memory[i] * memory[i];
        }
        size = std::sqrt(size), length = std::sqrt(length), lost += 17 * 1.01 * U * (before + std::abs(v));
        check_error(std::abs(left.out[(size_t)t * c.width(2) + column] - answer), length * (lost + 12 * U * size) + 1e-30,
                    "answer: " + describe(c));
        if (left.kept.count(t + 1)) compare_state(left.kept.at(t + 1));
      }
      compare_state(left.state);
    }
}

/// The state contains the last inputs unchanged.
static void compare_inputs(const Run& run, size_t s, const std::vector<float>& state, int tokens) {
  const Case& c = run.c;
  for (int tap = 0; tap < c.taps - 1; ++tap)
    for (int part = 0, first = 0; part < 3; first += c.width(part++))
      for (int i = 0; i < c.width(part); ++i) {
        const int t = tokens - (c.taps - 1) + tap;
        const float want = t < 0 ? 0 : run.raw[part][s][(size_t)t * c.width(part) + i];
        check(state[(size_t)tap * c.widths() + first + i] == want, "inputs: " + describe(c));
      }
}

static bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * 4);
}

static void test(const Case& c) {
  const Run run(c);
  const std::vector<Left> whole = run.go(*std::max_element(c.lengths.begin(), c.lengths.end()), false);
  for (size_t s = 0; s < whole.size(); ++s) {
    compare_mixed(run, s, whole[s]);
    compare_rule(run, s, whole[s]);
    for (const auto& [tokens, state] : whole[s].kept) compare_inputs(run, s, state, tokens);
    compare_inputs(run, s, whole[s].state, c.lengths[s]);
    check((int)whole[s].kept.size() == c.lengths[s] / 3, "kept: " + describe(c));
  }
  schedules(2, [&](int seed) {
    for (int width : {1, 2, 5}) {
      const bool by_interval = (seed + width) % 2;
      const std::vector<Left> parts = run.go(width, by_interval);
      for (size_t s = 0; s < parts.size(); ++s) {
        const Left &a = parts[s], &b = whole[s];
        bool equal = same(a.rates, b.rates) && same(a.out, b.out);
        for (int part = 0; part < 3; ++part) equal = equal && same(a.mixed[part], b.mixed[part]);
        // the padding of a row's inputs to a multiple of four is unspecified
        equal = equal && same({a.state.begin() + c.inputs(), a.state.end()}, {b.state.begin() + c.inputs(), b.state.end()});
        for (const auto& [tokens, state] : a.kept)
          if (b.kept.count(tokens)) equal = equal && !memcmp(&state[c.inputs()], &b.kept.at(tokens)[c.inputs()], 4 * c.width(2) * c.stride());
        check(equal, "other bits in passes of " + std::to_string(width) + ": " + describe(c));
        for (const auto& [tokens, state] : a.kept) compare_inputs(run, s, state, tokens);
        if (by_interval) check((int)a.kept.size() == c.lengths[s] / INTERVAL - (c.lengths[s] >= 2 * INTERVAL), "snapshots: " + describe(c));
      }
    }
  });
}

int main() {
  test({2, 4, 16, 16, 4, 0, {20, 7}});
  test({1, 3, 12, 20, 4, 0, {3, 1, 11}});
  test({3, 3, 9, 8, 3, 1, {9}});
  test({1, 2, 128, 128, 4, 0, {34, 18}});
  test({1, 1, 100, 72, 1, 0, {6, 2}});
  test({2, 2, 1, 65, 2, 0, {5}});
  test({1, 1, 33, 4, 5, 1, {2, 26}});
  return report("delta_net");
}
