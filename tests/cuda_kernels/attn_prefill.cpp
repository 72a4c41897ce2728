// attn_prefill compared with float64: chunks, runs of several sequences, groups, head sizes, cache types, windows, softcaps,
// sinks, schedules, one term, long contexts.
#include "attn_support.h"

#include "rounded.h"

#include "attn_prefill.cu"
#include "attn_prefill_hopper.cu"

CUDA_HOST_EXPORT(attn_prefill_hopper_kf32_vf16_d64_t2)
CUDA_HOST_EXPORT(attn_prefill_hopper_kf32_vf16_d128_t2)

#define EXPORT_EXACT(D)                              \
  CUDA_HOST_EXPORT(attn_prefill_kf32_vf32_d##D##_t2) \
  CUDA_HOST_EXPORT(attn_prefill_kf32_vf16_d##D##_t2) \
  CUDA_HOST_EXPORT(attn_prefill_kf16_vf16_d##D##_t2) \
  CUDA_HOST_EXPORT(attn_prefill_kbf16_vbf16_d##D##_t2)
#define EXPORT_FAST(D)                               \
  CUDA_HOST_EXPORT(attn_prefill_kf16_vf16_d##D##_t1) \
  CUDA_HOST_EXPORT(attn_prefill_kbf16_vbf16_d##D##_t1)
EXPORT_EXACT(16)
EXPORT_EXACT(32)
EXPORT_EXACT(64)
EXPORT_EXACT(96)
EXPORT_EXACT(128)
EXPORT_EXACT(256)
EXPORT_EXACT(512)
EXPORT_FAST(64)
EXPORT_FAST(96)
EXPORT_FAST(128)
EXPORT_FAST(256)

struct Case {
  Type k, v;
  int head_dim, kv_heads, group, first, n;  // rows at positions first .. first + n
  int first_traced = 0, window = 0;
  float softcap = 0, sink = 0;
  int terms = 2;
  float spread = 1, query = 1;  // scales of keys and queries
  int compare_every = 1;        // every how many rows are compared with float64
  bool hopper = false;
};

static std::string describe(const Case& c) {
  return std::string("k") + type_name(c.k) + "_v" + type_name(c.v) + " d" + std::to_string(c.head_dim) + " " +
         std::to_string(c.kv_heads) + "x" + std::to_string(c.group) + " rows " + std::to_string(c.first) + "+" +
         std::to_string(c.n) + " window " + std::to_string(c.window) + " softcap " + std::to_string(c.softcap) +
         " sink " + std::to_string(c.sink) + " terms " + std::to_string(c.terms) + (c.hopper ? " hopper" : "");
}

static std::string kernel_name(const Case& c) {
  return std::string("attn_prefill") + (c.hopper ? "_hopper" : "") + "_k" + type_name(c.k) + "_v" + type_name(c.v) + "_d" +
         std::to_string(c.head_dim) + "_t" + std::to_string(c.terms);
}

/// Lines per block.
static int block_lines(int head_dim) { return head_dim > 256 ? 32 : 64; }

static unsigned shared_bytes(const Case& c) {
  if (c.hopper) return 1024 + (2 + 2 + 1) * 64 * c.head_dim * 2;
  const int tile = c.head_dim > 128 ? 16 : 32;
  const int planes = (c.k == F32 ? c.terms : 1) + (c.v == F32 ? c.terms : 1);
  return (c.terms * block_lines(c.head_dim) + tile * planes) * (c.head_dim + 8) * 2;
}

struct Results {
  std::vector<float> out;
  std::vector<HeadState> states;
};

static bool equal(const Results& a, const Results& b) {
  return a.out.size() == b.out.size() && !memcmp(a.out.data(), b.out.data(), a.out.size() * 4) &&
         !memcmp(a.states.data(), b.states.data(), a.states.size() * sizeof(HeadState));
}

/// Adds a run of `rows` rows of a case, starting at row `first`.
static void add_parts(std::vector<PrefillPart>& parts, int first, int rows, const Case& c) {
  for (int line = 0; line < rows * c.group; line += block_lines(c.head_dim)) parts.push_back({first, rows, line, 0});
}

struct Run {
  explicit Run(const Case& c)
      : c(c),
        shape{2, 1, c.kv_heads * c.group, c.kv_heads, c.head_dim, c.window, c.softcap},
        cache(shape, c.k, c.v, c.first + c.n, 3, c.spread) {
    // a query depends only on its position, so that it is the same in other chunks
    for (int row = 0; row < c.n; ++row) {
      std::mt19937 random(50 + c.first + row);
      std::normal_distribution<float> normal;
      for (int i = 0; i < shape.heads * c.head_dim; ++i)
        queries.push_back(c.query * normal(random) / std::sqrt((float)c.head_dim));
      if (c.sink != 0)
        for (int h = 0; h < shape.heads; ++h) queries[((size_t)row * shape.heads + h) * c.head_dim] = 2;
    }
    if (c.sink == 0) return;
    for (int h = 0; h < shape.kv_heads; ++h)
      for (int t = 0; t < cache.length; ++t) cache.k.set(cache.index(1, h, t, 0), t == 0 ? c.sink / 2 : 0);
  }

  /// Runs rows from .. to of the chunk as a separate chunk; with `rounded` these are written instead of the results' `out`.
  Results go(int from, int to, RoundedRows rounded = {}) const {
    const int n = to - from;
    const size_t width = (size_t)shape.heads * c.head_dim;
    const Device<float> q(std::vector<float>(&queries[0] + from * width, &queries[0] + to * width)), out(n * width);
    const Device<HeadState> states((size_t)n * shape.heads);
    std::vector<RowState> list;
    for (int i = from; i < to; ++i) list.push_back({1, c.first + i, 0, 0});
    const Device<RowState> rows(list);
    std::vector<PrefillPart> runs;
    add_parts(runs, 0, n, c);
    const Device<PrefillPart> parts(runs);
    const Device<SequenceView> sequences(std::vector<SequenceView>{SequenceView(), cache.view(c.first_traced)});
    launch(kernel_name(c), dim3(runs.size(), c.kv_heads), dim3(128), shared_bytes(c), (const float*)q.get(),
           (const RowState*)rows.get(), (const PrefillPart*)parts.get(), (const SequenceView*)sequences.get(),
           shape.layer, shape.heads, shape.kv_heads, shape.window, shape.softcap, out.get(), states.get(), rounded);
    return {copy(out), copy(states)};
  }
  Results go() const { return go(0, c.n); }

  Case c;
  Shape shape;
  Cache cache;
  std::vector<float> queries;
};

/// Maximum effect of splitting into f16 terms. A score moves by at most e = r sum |q k|, an output by (e^{2e} - 1 + r) max
/// |v|, an entropy by 2 e (1 + ln n). With one term r = 2^-11: queries and weights p are rounded to 11 bits. With two, they
/// are rounded to 22 bits, r = 2^-22 or less; for an f32 key or value, itself rounded to 22 bits, and with lo lo omitted,
/// r = 3 * 2^-22. Below 2^-14 f16 is subnormal: 2^-24 |k| more per term left.
struct Bound {
  double score = 0, value = 0, relative;
  Bound(const Run& run, int head, int position, const float* query) {
    const Case& c = run.c;
    relative = c.terms == 1 ? 1. / 2048 : (c.k == F32 || c.v == F32 ? 3 : 1) * std::ldexp(1.0, -22);
    const int kv = head / run.shape.group();
    for (int t = 0; t <= position; ++t) {
      double sum = 0;
      for (int d = 0; d < run.shape.head_dim; ++d) {
        const double k = std::fabs(run.cache.k.at(run.cache.index(1, kv, t, d)));
        sum += k * (std::fabs(query[d]) * relative + std::ldexp(1.0, -24));
        value = std::max(value, (double)std::fabs(run.cache.v.at(run.cache.index(1, kv, t, d))));
      }
      score = std::max(score, sum);
    }
  }
  double output() const { return (std::expm1(2 * score) + relative) * value; }
  double entropy(int position) const { return 2 * score * (1 + std::log(position + 1)); }
};

static void compare(const Run& run, const Results& got) {
  const Case& c = run.c;
  Errors out, lse, weighted, entropy;
  double scale = 1, value = 0, split_out = 0, split_lse = 0, split_entropy = 0;
  for (int row = 0; row < c.n; ++row) {
    if (row % c.compare_every && row != c.n - 1) continue;
    for (int h = 0; h < run.shape.heads; ++h) {
      const size_t head = (size_t)row * run.shape.heads + h;
      const HeadState& state = got.states[head];
      const float* query = &run.queries[head * c.head_dim];
      const int position = c.first + row;
      const Naive<double> exact(run.cache, run.shape, h, position, query);
      const double l = state.m + std::log((double)state.z), wl = state.mw + std::log((double)state.zw);
      const double H = finish(state, false).entropy;
      const bool traced = position >= c.first_traced, any = std::isfinite(exact.entropy);
      if (!traced || !any) check(state.zw == 0 && state.mw == -INFINITY && state.sw == 0, "no entropy: " + describe(c));
      const Bound bound(run, h, position, query);
      if (c.terms == 1) {
        const double e = bound.score + 1e-5;
        for (int d = 0; d < c.head_dim; ++d)
          check(std::fabs(got.out[head * c.head_dim + d] - exact.out[d]) <= bound.output() + 1e-5,
                "output: " + describe(c));
        check(std::fabs(l - exact.lse) <= e, "ln Z: " + describe(c));
        if (traced && any)
          check(std::fabs(H - exact.entropy) <= bound.entropy(position) + 1e-5, "entropy: " + describe(c));
        continue;
      }
      value = std::max(value, bound.value);
      split_out = std::max(split_out, bound.output());
      split_lse = std::max(split_lse, bound.score);
      split_entropy = std::max(split_entropy, bound.entropy(position));
      const Naive<float> naive(run.cache, run.shape, h, position, query);
      for (int d = 0; d < c.head_dim; ++d) out.add(got.out[head * c.head_dim + d], naive.out[d], exact.out[d]);
      lse.add(l, naive.lse, exact.lse);
      scale = std::max(scale, std::fabs(exact.lse));
      if (!traced || !any) continue;
      entropy.add(H, naive.entropy, exact.entropy);
      weighted.add(wl, naive.weighted_lse, exact.weighted_lse);
      scale = std::max(scale, std::fabs(exact.weighted_lse));
    }
  }
  check(out.within(value, split_out), "output:" + out.text() + ": " + describe(c));
  check(lse.within(scale, split_lse), "ln Z:" + lse.text() + ": " + describe(c));
  check(weighted.within(scale, split_lse), "ln Z':" + weighted.text() + ": " + describe(c));
  check(entropy.within(scale, split_entropy), "entropy:" + entropy.text() + ": " + describe(c));
}

static void test(const Case& c, int adversaries = 1) {
  const Run run(c);
  ch_configure(1, 0);
  const Results fair = run.go();
  compare(run, fair);
  if (c.hopper) {
    Case other = c;
    other.hopper = false;
    const Results mma = Run(other).go();
    bool same = true;  // except for the sign of a zero
    for (size_t i = 0; i < mma.out.size(); ++i) same &= fair.out[i] == mma.out[i];
    same &= !memcmp(fair.states.data(), mma.states.data(), mma.states.size() * sizeof(HeadState));
#ifdef ON_DEVICE
    printf("%s: the bits of attn_prefill: %s\n", describe(c).c_str(), same ? "yes" : "no");
#else
    check(same, "the bits of attn_prefill: " + describe(c));
#endif
  }
  for (int seed = 1; seed <= adversaries; ++seed) {
    ch_configure(1 + seed % 2, seed);
    check(equal(run.go(), fair), "schedule " + std::to_string(seed) + ": " + describe(c));
  }
  ch_configure(1, 0);
}

/// A row's bits are the same in chunks of other sizes.
static void test_chunks(const Case& c, int size) {
  const Run run(c);
  const Results all = run.go();
  for (int from = 0; from < c.n; from += size) {
    const int to = std::min(c.n, from + size);
    const Results part = run.go(from, to);
    const size_t heads = run.shape.heads, width = heads * c.head_dim;
    const Results same = {{&all.out[0] + from * width, &all.out[0] + to * width},
                          {&all.states[0] + from * heads, &all.states[0] + to * heads}};
    check(equal(part, same), "chunks of " + std::to_string(size) + ": " + describe(c));
  }
}

/// Rows written in rounded form equal the others, rounded.
static void test_rounded(const Case& c) {
  const Run run(c);
  const Results all = run.go();
  const int width = run.shape.heads * c.head_dim;
  const Device<__half> values(all.out.size());
  const Device<float> scales((size_t)c.n * row_scales(width));
  const RoundedRows rounded = {values.get(), scales.get()};
  const Results others = run.go(0, c.n, rounded);
  check(rounded_from(rounded, all.out, width), "rounded: " + describe(c));
  check(!memcmp(others.states.data(), all.states.data(), all.states.size() * sizeof(HeadState)), "states, rounded: " + describe(c));
}

/// A row's bits are the same next to runs of other sequences, and if its sequence has two runs.
static void test_runs(const Case& first, const Case& second) {
  const Run runs[] = {Run(first), Run(second)};
  const Results alone[] = {runs[0].go(), runs[1].go()};
  const size_t heads = runs[0].shape.heads, width = heads * first.head_dim;
  // which sequence, and which of its rows: the second one's form two runs, one of them a single row
  const int list[][3] = {{1, 0, 1}, {0, 0, first.n}, {1, 1, second.n}};
  std::vector<float> q;
  std::vector<RowState> rows;
  std::vector<PrefillPart> parts;
  for (const auto& [which, from, to] : list) {
    add_parts(parts, (int)rows.size(), to - from, first);
    for (int i = from; i < to; ++i) rows.push_back({which, runs[which].c.first + i, 0, 0});
    q.insert(q.end(), &runs[which].queries[0] + from * width, &runs[which].queries[0] + to * width);
  }
  const Device<float> queries(q), out(q.size());
  const Device<HeadState> states(rows.size() * heads);
  const Device<RowState> row_states(rows);
  const Device<PrefillPart> device_parts(parts);
  const Device<SequenceView> sequences(
      std::vector<SequenceView>{runs[0].cache.view(first.first_traced), runs[1].cache.view(second.first_traced)});
  const Shape& shape = runs[0].shape;
  launch(kernel_name(first), dim3(parts.size(), first.kv_heads), dim3(128), shared_bytes(first), (const float*)queries.get(),
         (const RowState*)row_states.get(), (const PrefillPart*)device_parts.get(),
         (const SequenceView*)sequences.get(), shape.layer, shape.heads, shape.kv_heads, shape.window, shape.softcap,
         out.get(), states.get(), RoundedRows{});
  size_t at = 0;
  for (const auto& [which, from, to] : list)
    for (int i = from; i < to; ++i, ++at)
      check(!memcmp(&out[at * width], &alone[which].out[i * width], width * 4) &&
                !memcmp(&states[at * heads], &alone[which].states[i * heads], heads * sizeof(HeadState)),
            "row " + std::to_string(i) + " beside another sequence: " + describe(runs[which].c));
}

/// Sums that lose something in every step, always to the same side.
///
/// Bound: u = 2^-24, sums of positive numbers, so everything is relative to the result. Inside a tensor core a tile's chain
/// has TILE / 16 products of up to 3 pairs of terms, two blocks each on an A100; a block loses at most 2^-24 of its largest
/// summand in each of nine, and 2^-23 at its end: 11 u. Then one float32 addition per tile: at most u of the total. Weights,
/// terms, quotient and product with Z: 12 u. If tiles were not summed in float32, all blocks would form one chain.
static void test_long(Type k, Type v, int positions, bool hopper = false) {
  Case c = {k, v, 64, 1, 1, positions - 1, 1};
  c.hopper = hopper;
  c.query = 0;
  Run run(c);
  run.queries[0] = 1;
  fill_long(run.cache);
  const Results got = run.go();
  const double bound = (32 / 16 * 3 * 2 * 11 + positions / 32 + 12) * std::ldexp(1.0, -24);
  const double error = error_of_long(run.cache, got.out.data(), got.states[0]);
  check(error <= bound, "long: error " + std::to_string(error / bound) + " of its bound: " + describe(c));
}

/// The kernels for compute capability 9.0: tiles of 64 positions, several parts of heads, everything the others are tested
/// for.
static void test_hopper(bool quick) {
  if (!ch_has_clusters()) return void(printf("SKIPPED: attn_prefill_hopper: the device has no wgmma\n"));
  const auto hopper = [](Case c) {
    c.k = F32, c.v = F16, c.hopper = true;
    return c;
  };
  const auto of = [](int d, int group, int first, int n) {
    Case c = {F32, F16, d, 1, group, first, n};
    return c;
  };
  for (int d : {64, 128}) {
    Case heads = of(d, 3, 40, 31);
    heads.kv_heads = 2;
    test(hopper(heads));
    test_rounded(hopper(of(d, 3, 40, 31)));
    if (quick) continue;
    for (int n : {1, 2, 31, 127}) {
      Case c = of(d, 4, 0, n);
      c.first_traced = n / 2, c.compare_every = n > 100 ? 20 : 1;
      test(hopper(c));
    }
    for (int group : {1, 7, 8}) test(hopper(of(d, group, 63, 33)));
    Case far = of(d, 4, 744, 256);
    far.first_traced = 800, far.compare_every = 50;
    test(hopper(far), 0);
    for (int window : {1, 5, 64, 100}) {
      Case c = of(d, 3, 130, 40);
      c.window = window, c.compare_every = 5;
      test(hopper(c));
    }
    Case c = of(d, 2, 100, 40);
    c.softcap = 5, c.spread = 8, c.compare_every = 5;
    test(hopper(c));
    for (float sink : {30.f, -100.f}) {
      Case c = of(d, 2, 60, 40);
      c.sink = sink, c.compare_every = 5;
      test(hopper(c));
    }
    for (int seed = 2; seed <= 4; ++seed) test(hopper(of(d, 2, 100, 70)), seed);
    test_chunks(hopper({F32, F16, d, 1, 3, 50, 70, 80}), 33);
    test_chunks(hopper({F32, F16, d, 1, 4, 0, 40, 21, 9}), 1);
    test_runs(hopper({F32, F16, d, 1, 3, 50, 30, 60}), hopper({F32, F16, d, 1, 3, 5, 40, 0}));
  }
  if (!quick) test_long(F32, F16, 16384, true);
}

int main(int argc, char** argv) {
  const bool quick = argc > 1 && !strcmp(argv[1], "quick");
  test_hopper(quick);
  const Type pairs[][2] = {{F32, F32}, {F32, F16}, {F16, F16}, {BF16, BF16}};
  for (const auto& pair : pairs) {
    const Type k = pair[0], v = pair[1];
    for (int d : {16, 32, 64, 96, 128, 256, 512}) {
      test({k, v, d, 2, 3, 40, 31});
      if (k != F32 && d >= 64 && d <= 256) test({k, v, d, 1, 4, 40, 31, 50, 0, 0, 0, 1});
      if (d >= 32) test_rounded({k, v, d, 1, 3, 40, 31});
    }
    if (quick) continue;
    for (int n : {1, 2, 3, 11, 31, 33, 127}) test({k, v, 32, 1, 4, 0, n, n / 2});
    for (int group : {1, 3, 4, 7, 8}) test({k, v, 64, 1, group, 31, 33, 40, 0, 0, 0, 2, 1, 1, 3});
    test({k, v, 64, 1, 4, 744, 256, 800, 0, 0, 0, 2, 1, 1, 50}, 0);
    test({k, v, 128, 1, 4, 0, 256, 0, 0, 0, 0, 2, 1, 1, 37}, 0);
    test({k, v, 64, 1, 2, 999, 1});
    test({k, v, 64, 1, 2, 256, 1});
    for (int window : {1, 2, 5, 64, 100}) test({k, v, 64, 1, 3, 130, 40, 0, window, 0, 0, 2, 1, 1, 5});
    for (float cap : {5.f, 50.f}) test({k, v, 64, 1, 2, 100, 40, 0, 0, cap, 0, 2, 8, 1, 5});
    for (float sink : {30.f, 100.f, -100.f}) test({k, v, 64, 1, 2, 60, 40, 0, 0, 0, sink, 2, 1, 1, 5});
    test({k, v, 64, 1, 4, 300, 40, 0, 0, 0, 0, 2, 20, 1, 5});       // sharp attention
    test({k, v, 64, 1, 4, 300, 40, 0, 0, 0, 0, 2, 300, .003f, 5});  // large keys, small queries
    for (int d : {64, 512}) test_chunks({k, v, d, 1, 3, 50, 70, 80}, 33);
    test_chunks({k, v, 64, 1, 4, 0, 40, 21, 9}, 1);
    test_runs({k, v, 64, 1, 3, 50, 30, 60}, {k, v, 64, 1, 3, 5, 40, 0});
    test_long(k, v, 16384);
    for (int seed = 2; seed <= 6; ++seed) test({k, v, 32, 1, 2, 100, 70, 0}, seed);
  }
  return report("attn_prefill");
}
