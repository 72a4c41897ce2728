// head.cu compared with the CPU backend's rules in float64.
//
// Bounds. exp has 2 u, its argument u |x - m|; sums of up to 8 in a lane, 5 + 15 additions of lanes and warps: z within
// (2 + |x - m| + 28) u, where terms with large |x - m| carry little weight: e^-d d <= 0.37, so 32 u. lse then has an error
// of 32 u (plus rounding of the result), the entropy one of 2 * 32 u times (1 + entropy). Softcapping adds 4 u * cap. Sums
// of exp((x - m) / 4) and their squares have the same error as z, since e^-d/4 d/4 <= 0.37 too, and so do their logarithms;
// a sum of x - m has an error of 28 u relative to itself, so its mean over the vocabulary has one of 28 u of the mean
// distance from the maximum.
#include "dense_support.h"

#include "head.cu"

CUDA_HOST_EXPORT(head_partial)
CUDA_HOST_EXPORT(head_mass)
CUDA_HOST_EXPORT(head_finish)

constexpr double U = 1.0 / (1 << 24);
constexpr unsigned SHARED = 33152;

struct Result {
  int token, count;
  double logprob, entropy;
  WideResult wide;
  std::vector<int> ids;
  std::vector<double> logprobs;
};

struct Pass {
  int vocab;
  std::vector<std::vector<float>> logits;  // one row each
  float softcap = 0;
  std::vector<RowState> rows;
  std::vector<Sampler> samplers;
  std::vector<int> given;
  int ring = 0, slots = 1;
  bool wide = true;
};

static const Sampler GREEDY = {0, 0.0f, 1.0f, 0, 0};

/// Runs the three kernels. `next` and `flag` receive the next rows and the not-finite flag.
static std::vector<Result> run(const Pass& p, std::vector<RowState>* next = nullptr, int* flag = nullptr) {
  const int rows = p.logits.size(), blocks = ceil_div(p.vocab, 4096);
  Device<float> logits((size_t)rows * p.vocab);
  for (int r = 0; r < rows; ++r) std::copy(p.logits[r].begin(), p.logits[r].end(), &logits[(size_t)r * p.vocab]);
  Device<HeadPartial> partials((size_t)rows * blocks);
  Device<unsigned long long> lists((size_t)rows * blocks * TOP), masses((size_t)rows * blocks);
  Device<RowState> states(p.rows);
  Device<Sampler> samplers(p.samplers);
  Device<int> given(p.given.empty() ? std::vector<int>{-1} : p.given), bad(std::vector<int>{0});
  const size_t entries = p.ring ? p.slots * p.ring : rows;
  Device<int> tokens(entries), counts(entries), ids(entries * 100);
  Device<float> logprobs(entries), entropies(entries), top_logprobs(entries * 100);
  Device<WidePartial> wide_partials((size_t)rows * blocks);
  Device<WideResult> wide(entries);
  WidePartial* wide_scratch = p.wide ? wide_partials.get() : nullptr;
  const HeadLog log = {tokens.get(), logprobs.get(),     entropies.get(),             counts.get(),
                       ids.get(),    top_logprobs.get(), p.wide ? wide.get() : nullptr, p.ring};
  launch("head_partial", dim3(blocks, rows), 512, SHARED, logits.get(), p.vocab, p.softcap, partials.get(), wide_scratch,
         lists.get());
  launch("head_mass", dim3(blocks, rows), 512, SHARED, (const float*)logits.get(), p.vocab, blocks,
         (const HeadPartial*)partials.get(), (const Sampler*)samplers.get(), masses.get());
  launch("head_finish", rows, 512, SHARED, (const float*)logits.get(), p.vocab, blocks,
         (const HeadPartial*)partials.get(), (const WidePartial*)wide_scratch, (const unsigned long long*)lists.get(),
         (const unsigned long long*)masses.get(), (const RowState*)states.get(), (const Sampler*)samplers.get(),
         p.given.empty() ? nullptr : (const int*)given.get(), next ? states.get() : nullptr, log,
         flag ? bad.get() : nullptr);
  if (next) *next = states.host();
  if (flag) *flag = bad[0];
  std::vector<Result> results;
  for (int r = 0; r < rows; ++r) {
    const size_t e = p.ring ? (size_t)p.rows[r].slot * p.ring + p.rows[r].position % p.ring : r;
    Result x = {tokens[e], counts[e], logprobs[e], entropies[e], p.wide ? wide[e] : WideResult{}, {}, {}};
    check(x.count >= 0 && x.count <= 100, "head: count");
    for (int i = 0; i < std::min(std::max(x.count, 0), 100); ++i)
      x.ids.push_back(ids[e * 100 + i]), x.logprobs.push_back(top_logprobs[e * 100 + i]);
    results.push_back(x);
  }
  return results;
}

/// The softcapped logits in f32, as in the kernel.
static std::vector<float> capped(const std::vector<float>& logits, float cap) {
  auto x = logits;
  if (cap > 0)
    for (float& v : x) v = cap * tanhf(v / cap);
  return x;
}

/// Checks the statistics of a wide trace, given logits in descending order.
static void check_wide(const std::vector<float>& x, double lse, const WideResult& got, const std::string& what) {
  const double v = x.size(), max = x[0];
  double deviation = 0, half = 0, quarter = 0, best = 0, mass = 0, dominant = 0, last = INFINITY;
  for (float f : x) deviation += f - max, half += std::exp((f - max) / 2), quarter += std::exp((f - max) / 4);
  const size_t n = std::min<size_t>(20, x.size());
  for (size_t i = 0; i < n; ++i) best += (x[i] - lse) / n;
  const double kl = -std::log(v) - (max - lse + deviation / v);
  const double affinity = std::log(quarter) - (std::log(half) + std::log(v)) / 2;
  check_error(std::abs(got.top_logprob - best), 32 * U + U * std::abs(best), what + " top 20");
  if (std::isinf(kl))
    check(got.uniform_kl == kl, what + " KL");
  else
    check_error(std::abs(got.uniform_kl - kl), 32 * U + 28 * U * std::abs(deviation / v) + U * std::abs(kl), what + " KL");
  check_error(std::abs(got.log_affinity - affinity), 64 * U + U * std::abs(affinity), what + " affinity");
  bool close = false;  // p has an error of 33 u: such a drop may fall on either side
  for (size_t i = 0; i + 1 < x.size() && i + 1 < TOP; ++i) {
    const double p = std::exp(x[i] - lse), next = std::exp(x[i + 1] - lse), least = std::max(0.005, 0.3 * p);
    close |= std::abs(p - 0.005) < 100 * U || std::abs(p - next - least) < 100 * U;
    if (p <= 0.005) break;
    mass += p;
    if (p - next > least) dominant = mass, last = x[i] - lse;
  }
  if (close) return;
  check_error(std::abs(got.dominant - dominant), 64 * U, what + " dominant tokens");
  check(last == INFINITY ? got.dominant_logprob == INFINITY
                         : std::abs(got.dominant_logprob - last) <= 32 * U + U * std::abs(last),
        what + " last dominant token");
}

static void check_row(const std::vector<float>& raw, float cap, const Result& got, int token, const std::string& what) {
  const auto x = capped(raw, cap);
  double max = -INFINITY, z = 0, entropy = 0;
  for (float v : x)
    if (v > max) max = v;
  for (float v : x) z += std::exp(v - max);
  const double lse = max + std::log(z);
  for (float v : x)
    if (v != -INFINITY) entropy -= std::exp(v - lse) * (v - lse);
  check_error(std::abs(got.entropy - entropy), 64 * U * (1 + entropy), what + " entropy");
  if (token >= 0) {
    check(got.token == token, what + " token " + std::to_string(got.token) + ", not " + std::to_string(token));
    const double logprob = x[token] - lse;
    check_error(std::abs(got.logprob - logprob), 32 * U + U * std::abs(logprob), what + " logprob");
  }
  std::vector<int> order(x.size());
  for (size_t i = 0; i < x.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  std::vector<float> falling;
  for (int i : order) falling.push_back(x[i]);
  check_wide(falling, lse, got.wide, what);
  size_t count = 0;
  while (count < x.size() && count < 100 && (count < head::MIN_TOP || x[order[count]] - lse > std::log(0.01))) ++count;
  // a token whose p equals 0.01 within rounding may fall on either side
  const bool close = count < x.size() && std::abs(x[order[count]] - lse - std::log(0.01)) < 1e-5;
  check((int)count == got.count || close,
        what + " count " + std::to_string(got.count) + ", not " + std::to_string(count));
  for (size_t i = 0; i < std::min<size_t>(count, got.ids.size()); ++i) {
    check(got.ids[i] == order[i], what + " alternative " + std::to_string(i));
    const double logprob = x[order[i]] - lse;
    check_error(std::abs(got.logprobs[i] - logprob), 32 * U + U * std::abs(logprob), what + " alternative's logprob");
  }
}

static int argmax(const std::vector<float>& x) {
  int best = -1;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] == x[i] && (best < 0 || x[i] > x[best])) best = i;
  return std::max(best, 0);
}

static void test_greedy(int vocab, int rows, float scale, float cap, int adversaries) {
  Pass p = {vocab, {}, cap, {}, {}, {}};
  for (int r = 0; r < rows; ++r) {
    p.logits.push_back(normal(vocab, vocab + r, scale));
    p.rows.push_back({r, 10 + r, 0, r});
    p.samplers.push_back(GREEDY);
  }
  schedules(adversaries, [&](int) {
    std::vector<RowState> next;
    int flag;
    const auto results = run(p, &next, &flag);
    check(flag == 0, "head: flag without cause");
    for (int r = 0; r < rows; ++r) {
      const int token = argmax(capped(p.logits[r], cap));
      check_row(p.logits[r], cap, results[r], token, "vocab " + std::to_string(vocab));
      check(next[r].token == token && next[r].position == 11 + r && next[r].slot == r && next[r].stream == r,
            "head: next row");
    }
  });
}

/// Ties, infinities and NaN; peaked and flat rows; a given token and none; a ring.
static void test_special() {
  const int vocab = 5000;
  Pass p = {vocab, {}, 0, {}, {}, {}};
  p.logits.push_back(std::vector<float>(vocab, 0.25f));  // all equal
  auto ties = normal(vocab, 1);
  for (int i : {4999, 4096, 77, 78}) ties[i] = 9.0f;
  p.logits.push_back(ties);
  auto masked = normal(vocab, 2);
  for (int i = 0; i < 4500; ++i) masked[i] = -INFINITY;
  p.logits.push_back(masked);
  auto peaked = normal(vocab, 3);
  peaked[1234] = 60;
  p.logits.push_back(peaked);
  auto zeros = std::vector<float>(vocab, -1.0f);
  zeros[10] = -0.0f, zeros[11] = 0.0f;  // equal: the lower id wins
  p.logits.push_back(zeros);
  auto many = normal(vocab, 4);
  for (int i = 0; i < 95; ++i) many[i * 50] = 12 + 0.001f * i;  // 95 tokens with p > 0.01
  p.logits.push_back(many);
  const int rows = p.logits.size();
  p.ring = 4, p.slots = 3;
  for (int r = 0; r < rows; ++r) p.rows.push_back({r % 3, 13 + r / 3, 0, 0}), p.samplers.push_back(GREEDY);
  for (bool with_given : {false, true}) {
    p.given = with_given ? std::vector<int>{4999, 0, 3, 1234, -2, -1} : std::vector<int>{};
    std::vector<RowState> next;
    const auto results = run(p, &next);
    for (int r = 0; r < rows; ++r) {
      int token = with_given && p.given[r] != -1 ? p.given[r] : argmax(p.logits[r]);
      if (r == 2 && with_given) {  // a masked token: p = 0
        check(results[r].token == 3 && results[r].logprob == -INFINITY, "head: logprob of a masked token");
        token = -1;
      }
      check_row(p.logits[r], 0, results[r], token < 0 ? -1 : token, "special " + std::to_string(r));
      if (token == -2)
        check(results[r].token == -1 && results[r].logprob != results[r].logprob && next[r].token == 0,
              "head: no token");
    }
  }
  // NaN: never chosen, flagged, and only in its row
  Pass q = {300,
            {normal(300, 1), normal(300, 2), normal(300, 3)},
            0,
            {{0, 0, 0, 0}, {0, 1, 0, 0}, {0, 2, 0, 0}},
            {GREEDY, GREEDY, GREEDY},
            {}};
  q.logits[1][0] = NAN, q.logits[1][5] = 50;
  int flag;
  auto results = run(q, nullptr, &flag);
  check(flag == 1 && results[1].token == 5 && results[1].entropy != results[1].entropy, "head: NaN");
  check_row(q.logits[0], 0, results[0], argmax(q.logits[0]), "beside NaN");
  check_row(q.logits[2], 0, results[2], argmax(q.logits[2]), "beside NaN");
  q.logits[1].assign(300, NAN);
  results = run(q, nullptr, &flag);
  check(flag == 1 && results[1].token == 0 && results[1].count == 0, "head: only NaN");
  q.logits[1].assign(300, INFINITY);
  run(q, nullptr, &flag);
  check(flag == 1, "head: infinity");
}

static double uniform_f64(uint64_t seed, uint64_t stream, uint64_t position) {
  const auto mix = [](uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  };
  return (double)(mix(mix(mix(seed) ^ stream) ^ position) >> 11) / 9007199254740992.0;
}

/// The CPU backend's draw, and its distance from the chosen token's boundaries, as a share of the total mass.
static int draw_f64(const std::vector<float>& x, const Sampler& s, double uniform, double& margin) {
  struct Candidate {
    int token;
    double weight;
  };
  float max = -INFINITY;
  for (float v : x) max = std::max(max, v == v ? v : max);
  std::vector<Candidate> all;
  for (size_t i = 0; i < x.size(); ++i) {
    const double w = std::exp((double)(x[i] - max) / s.temperature);
    if (w > 0) all.push_back({(int)i, w});
  }
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.weight > b.weight; });
  if (s.top_k > 0 && s.top_k < (int)all.size()) all.resize(s.top_k);
  double total = 0;
  margin = 1;
  for (auto& c : all) total += c.weight;
  if (s.top_p < 1) {
    double sum = 0;
    size_t keep = 0;
    while (keep < all.size() && (sum += all[keep].weight) < s.top_p * total) ++keep;
    margin = std::abs(sum - s.top_p * total) / total;
    all.resize(std::min(keep + 1, all.size()));
    total = 0;
    for (auto& c : all) total += c.weight;
  }
  double sum = 0;
  for (auto& c : all) {
    margin = std::min(margin, std::abs(sum - uniform * total) / total);
    if ((sum += c.weight) > uniform * total) {
      margin = std::min(margin, (sum - uniform * total) / total);
      return c.token;
    }
  }
  return all.back().token;
}

static void test_draws(int vocab, float scale, Sampler sampler, int draws, int adversaries) {
  int beyond = 0;
  for (int start = 0; start < draws; start += 8) {
    Pass p = {vocab, {}, 0, {}, {}, {}};
    auto logits = normal(vocab, vocab + start, scale);
    for (int i = 0; i + 7 < vocab; i += 7) logits[i] = logits[i + 3];  // ties
    for (int r = 0; r < 8; ++r) {
      p.logits.push_back(logits);
      p.rows.push_back({0, 100 + start + r, 0, r % 3});
      p.samplers.push_back(sampler);
      p.samplers.back().seed += r % 2;
      if (r == 7) p.samplers.back() = GREEDY;  // the rows of one pass sample in different ways
    }
    schedules(adversaries, [&](int) {
      const auto results = run(p);
      for (int r = 0; r < 8; ++r) {
        const Sampler& s = p.samplers[r];
        double margin = 1;
        const double u = uniform_f64(s.seed, p.rows[r].stream, p.rows[r].position - s.counter_offset);
        const int token = r == 7 ? argmax(logits) : draw_f64(logits, s, u, margin);
        if (margin < 1e-5) continue;  // weights are rounded: too close to tell
        check_row(logits, 0, results[r], token, "draw from " + std::to_string(vocab));
        beyond += std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[token]; }) >= TOP;
      }
    });
  }
  if (scale < 0.5f && sampler.top_k == 0 && vocab > 500) check(beyond > draws / 4, "no draw went beyond the list");
}

/// Ids from `choosable` on are listed as alternatives, the most probable here, but never chosen: neither greedily nor by a
/// draw.
static void test_choosable(int vocab, int choosable, Sampler sampler) {
  auto logits = normal(vocab, vocab, 1);
  for (int i = choosable; i < vocab; i += 3) logits[i] += 3;
  const std::vector<float> open(logits.begin(), logits.begin() + choosable);
  Pass p = {vocab, {}, 0, {}, {}, {}};
  for (int r = 0; r < 6; ++r) {
    p.logits.push_back(logits);
    p.rows.push_back({0, r, 0, r});
    p.samplers.push_back(r == 5 ? GREEDY : sampler);
    p.samplers.back().choosable = choosable;
  }
  schedules(3, [&](int) {
    const auto results = run(p);
    for (int r = 0; r < 6; ++r) {
      double margin = 1;
      const double u = uniform_f64(sampler.seed, p.rows[r].stream, p.rows[r].position);
      const int token = r == 5 ? argmax(open) : draw_f64(open, sampler, u, margin);
      if (margin < 1e-5) continue;
      check_row(logits, 0, results[r], token, "choosable " + std::to_string(choosable));
    }
  });
}

/// Draws follow the softmax: five standard deviations of a binomial.
static void test_frequencies() {
  const int vocab = 300, passes = 60, rows = 16;
  const auto logits = normal(vocab, 9, 2);
  std::vector<int> counts(vocab);
  for (int pass = 0; pass < passes; ++pass) {
    Pass p = {vocab, {}, 0, {}, {}, {}};
    for (int r = 0; r < rows; ++r) {
      p.logits.push_back(logits);
      p.rows.push_back({0, pass, 0, r});
      p.samplers.push_back({7, 1.0f, 1.0f, 0, 0});
    }
    for (const auto& result : run(p)) ++counts[std::min(std::max(result.token, 0), vocab - 1)];
  }
  double z = 0;
  for (float x : logits) z += std::exp(x);
  const int n = passes * rows;
  for (int i = 0; i < vocab; ++i) {
    const double p = std::exp(logits[i]) / z;
    check(std::abs(counts[i] - n * p) <= 5 * std::sqrt(n * p * (1 - p)) + 1, "frequency of token " + std::to_string(i));
  }
}

/// A row's bits do not depend on the pass.
static void test_independence() {
  const int vocab = 9000;
  Pass p = {vocab, {}, 30.0f, {}, {}, {}};
  for (int r = 0; r < 5; ++r) {
    p.logits.push_back(normal(vocab, r, 3));
    p.rows.push_back({0, r, 0, r});
    p.samplers.push_back({1, 0.8f, 0.9f, 0, 0});
  }
  const auto together = run(p);
  for (int r = 0; r < 5; ++r) {
    Pass q = {vocab, {p.logits[r]}, 30.0f, {p.rows[r]}, {p.samplers[r]}, {}};
    const auto alone = run(q)[0];
    check(!memcmp(&alone.wide, &together[r].wide, sizeof alone.wide), "head: a row's wide trace differs in a batch");
    q.wide = false;
    const auto narrow = run(q)[0];
    check(narrow.token == alone.token && narrow.logprob == alone.logprob && narrow.entropy == alone.entropy &&
              narrow.logprobs == alone.logprobs,
          "head: a wide trace changes the rest");
    check(alone.token == together[r].token && alone.logprob == together[r].logprob &&
              alone.entropy == together[r].entropy && alone.logprobs == together[r].logprobs,
          "head: a row differs in a batch");
  }
}

int main() {
  for (int vocab : {1, 3, 5, 64, 256, 1000, 4095, 4097, 33000})
    test_greedy(vocab, 3, 3, vocab % 2 ? 30.0f : 0.0f, vocab < 5000 ? 3 : 0);
  test_greedy(140001, 1, 2, 0, 0);  // more blocks than the number of lists merged in one step
  test_greedy(270000, 1, 4, 30, 0);
  test_special();
  for (int vocab : {7, 900, 4097}) {
    test_draws(vocab, 2, {1, 0.7f, 1.0f, 0, 40}, 16, vocab == 4097 ? 3 : 0);
    test_draws(vocab, 0.3f, {2, 1.0f, 1.0f, 0, 0}, 32, vocab == 900 ? 3 : 0);  // flat: most draws beyond the list
    test_draws(vocab, 0.3f, {3, 1.3f, 0.9f, 0, 0}, 16, vocab == 900 ? 3 : 0);
    test_draws(vocab, 2, {4, 1.0f, 0.5f, 0, 0}, 16, 0);
    test_draws(vocab, 2, {5, 1.0f, 1.0f, 20, 0}, 16, 0);
    test_draws(vocab, 1, {6, 2.0f, 0.8f, 128, 0}, 16, 0);
    test_draws(vocab, 2, {7, 0.01f, 1.0f, 0, 0}, 16, 0);
    test_draws(vocab, 2, {8, 1.0f, 0.0f, 0, 0}, 16, 0);
  }
  for (const auto& [vocab, choosable] : {std::pair{300, 200}, {5000, 4990}, {40, 1}}) {
    test_choosable(vocab, choosable, {9, 1.0f, 1.0f, 0, 0});
    test_choosable(vocab, choosable, {10, 0.8f, 0.9f, 10, 0});
  }
  test_frequencies();
  test_independence();
  return report("head");
}
