// attn_decode against float64: lengths, groups, head sizes, cache types, windows, softcaps, splits,
// batches, sinks, schedules.
#include "attn_support.h"

#include "attn_decode.cu"

#define EXPORT_TYPES(name)                       \
  CUDA_HOST_EXPORT(attn_decode_kf32_vf32_##name) \
  CUDA_HOST_EXPORT(attn_decode_kf32_vf16_##name) \
  CUDA_HOST_EXPORT(attn_decode_kf16_vf16_##name) \
  CUDA_HOST_EXPORT(attn_decode_kbf16_vbf16_##name)
#define EXPORT_PLAIN(name)                               \
  CUDA_HOST_EXPORT(attn_decode_kf16_vf16_##name##_plain) \
  CUDA_HOST_EXPORT(attn_decode_kbf16_vbf16_##name##_plain)
EXPORT_TYPES(d16)
EXPORT_TYPES(d32)
EXPORT_TYPES(d64)
EXPORT_TYPES(d96)
EXPORT_TYPES(d128)
EXPORT_TYPES(d256)
EXPORT_TYPES(d512)
EXPORT_PLAIN(d64)
EXPORT_PLAIN(d96)
EXPORT_PLAIN(d128)
EXPORT_PLAIN(d256)
EXPORT_PLAIN(d512)

struct Case {
  Type k, v;
  int head_dim, kv_heads, group;
  std::vector<int> lengths;  // one row each; 0: an unused row
  int window = 0;
  float softcap = 0, sink = 0;
  int splits = 4, blocks = 0;  // per row and key/value head; 0: one per split
  bool plain = false;
  float spread = 1, query = 1;  // scales of keys and queries
};

static std::string describe(const Case& c) {
  std::string s = std::string("k") + type_name(c.k) + "_v" + type_name(c.v) + " d" + std::to_string(c.head_dim) + " " +
                  std::to_string(c.kv_heads) + "x" + std::to_string(c.group) + " window " + std::to_string(c.window) +
                  " softcap " + std::to_string(c.softcap) + " sink " + std::to_string(c.sink) + " splits " +
                  std::to_string(c.splits) + " blocks " + std::to_string(c.blocks) + (c.plain ? " plain" : "") + " lengths";
  for (int length : c.lengths) s += " " + std::to_string(length);
  return s;
}

/// As exported by the kernel's file.
static unsigned shared_bytes(const std::string& kernel) {
  const unsigned* bytes = ch_find_constant((kernel + "_shared_bytes").c_str());
  return bytes ? *bytes : 0;
}

struct Results {
  std::vector<float> out;
  std::vector<HeadState> states;
};

/// One run of the kernel over everything in `c`, with caches and queries determined by the row's length.
struct Run {
  explicit Run(const Case& c) : c(c), shape{2, 1, c.kv_heads * c.group, c.kv_heads, c.head_dim, c.window, c.softcap} {
    std::vector<RowState> states;
    for (size_t i = 0; i < c.lengths.size(); ++i) {
      const int length = c.lengths[i];
      caches.push_back(std::make_unique<Cache>(shape, c.k, c.v, std::max(length, 1), 100 + length, c.spread));
      views.push_back(caches.back()->view(0));
      // slots in reverse order, so that row and slot differ
      states.push_back({(int)(c.lengths.size() - 1 - i), length - 1, 0, 0});
      std::mt19937 random(7 + length);
      std::normal_distribution<float> normal;
      for (int d = 0; d < shape.heads * c.head_dim; ++d)
        queries.push_back(c.query * normal(random) / std::sqrt((float)c.head_dim));
      if (c.sink != 0) sink(i);
    }
    std::reverse(views.begin(), views.end());
    rows = states;
  }

  /// Sets every head's score of position 0 to about `sink`: a constant channel in queries and in that key.
  void sink(size_t row) {
    const size_t start = row * shape.heads * c.head_dim;
    for (int h = 0; h < shape.heads; ++h) queries[start + h * c.head_dim] = 2;
    for (int h = 0; h < shape.kv_heads; ++h) {
      Cache& cache = *caches[row];
      for (int t = 0; t < cache.length; ++t) cache.k.set(cache.index(1, h, t, 0), t == 0 ? c.sink / 2 : 0);
    }
  }

  /// `early`: started before the kernel that writes the queries and, into the cache of row 0, the positions of all rows.
  Results go(bool early = false) const {
    const int n = (int)c.lengths.size();
    const Device<float> q(queries), partial((size_t)n * shape.heads * c.splits * c.head_dim);
    const Device<HeadState> parts((size_t)n * shape.heads * c.splits), states((size_t)n * shape.heads);
    const Device<float> out((size_t)n * shape.heads * c.head_dim);
    const Device<RowState> row_states(rows);
    const Device<SequenceView> sequences(views);
    const std::string name = std::string("attn_decode_k") + type_name(c.k) + "_v" + type_name(c.v) + "_d" +
                             std::to_string(c.head_dim) + (c.plain ? "_plain" : "");
    const dim3 grid(c.kv_heads * ((c.group + 7) / 8), c.blocks ? c.blocks : c.splits, n);
    const Device<unsigned> arrivals(std::vector<unsigned>(grid.x * grid.z));
    const auto launch_it = [&](const auto& how) {
      how(name, grid, dim3(128), shared_bytes(name), (const float*)q.get(), (const RowState*)row_states.get(),
          (const SequenceView*)sequences.get(), shape.layer, shape.heads, shape.kv_heads, shape.window, shape.softcap, c.splits,
          partial.get(), parts.get(), arrivals.get(), out.get(), states.get());
    };
    if (early) {
      const auto bring = [&, k = copy(caches[0]->k.bytes), v = copy(caches[0]->v.bytes)] {
        std::copy(queries.begin(), queries.end(), q.get());
        std::copy(k.begin(), k.end(), caches[0]->k.bytes.get());
        std::copy(v.begin(), v.end(), caches[0]->v.bytes.get());
      };
      q.poison();
      for (Tensor* tensor : {&caches[0]->k, &caches[0]->v})
        for (const RowState& row : rows)
          for (int h = 0; h < c.kv_heads; ++h)
            for (int d = 0; d < c.head_dim; ++d) tensor->set(caches[0]->index(shape.layer, h, row.position, d), NAN);
      launch_it([&](const auto&... arguments) { launch_early(bring, arguments...); });
    } else {
      launch_it([](const auto&... arguments) { launch(arguments...); });
    }
    for (unsigned left : copy(arrivals)) check(left == 0, "arrivals are left: " + describe(c));
    return {copy(out), copy(states)};
  }

  Case c;
  Shape shape;
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<SequenceView> views;
  std::vector<RowState> rows;
  std::vector<float> queries;
};

/// Maximum loss of sums inside tensor cores through truncation, u = 2^-24. A block of 8 (A100) or 16 products loses at most 11 u of the
/// magnitudes of its summands, see test_long; 32 dimensions or positions are two products of up to two pairs of terms (bf16), two blocks
/// each: 88 u. So a score moves by at most e = 88 u sum |q k|, an output by (e^{2e} - 1 + 88 u) max |v|, an entropy by 2 e (1 + ln n).
struct Cut {
  double score = 0, out = 0, entropy = 0;
  void add(const Run& run, size_t row, int head) {
    const Case& c = run.c;
    const bool tensor_k = c.head_dim % 32 == 0, tensor_v = c.v != F32 && c.head_dim % 32 == 0;
    if (ch_tensor_sums(-1) == cuda_host::mma::NEAREST) return;
    const Cache& cache = *run.caches[row];
    const double share = 88 * std::ldexp(1.0, -24);
    double e = 0, value = 0;
    for (int t = 0; t < c.lengths[row]; ++t) {
      double size = 0;
      for (int d = 0; d < c.head_dim; ++d) {
        const size_t at = cache.index(1, head / c.group, t, d);
        size += std::fabs((double)run.queries[(row * run.shape.heads + head) * c.head_dim + d] * cache.k.at(at));
        value = std::max(value, (double)std::fabs(cache.v.at(at)));
      }
      if (tensor_k) e = std::max(e, share * size);
    }
    score = std::max(score, e);
    out = std::max(out, (std::expm1(2 * e) + (tensor_v ? share : 0)) * value);
    entropy = std::max(entropy, 2 * e * (1 + std::log(c.lengths[row])));
  }
};

static void compare(const Run& run, const Results& got) {
  const Case& c = run.c;
  Errors out, lse, weighted, entropy, max_weighted;
  Cut cut;
  double scale = 1;
  for (size_t row = 0; row < c.lengths.size(); ++row) {
    const int position = c.lengths[row] - 1;
    for (int h = 0; h < run.shape.heads; ++h) {
      const size_t head = row * run.shape.heads + h;
      const HeadState& state = got.states[head];
      if (position < 0) {
        for (int d = 0; d < c.head_dim; ++d) check(got.out[head * c.head_dim + d] == 0, "unused row: " + describe(c));
        check(state.z == 0 && state.zw == 0, "unused row's state: " + describe(c));
        continue;
      }
      const float* query = &run.queries[head * c.head_dim];
      cut.add(run, row, h);
      const Naive<double> exact(*run.caches[row], run.shape, h, position, query);
      const Naive<float> naive(*run.caches[row], run.shape, h, position, query);
      for (int d = 0; d < c.head_dim; ++d) out.add(got.out[head * c.head_dim + d], naive.out[d], exact.out[d]);
      lse.add(state.m + std::log((double)state.z), naive.lse, exact.lse);
      scale = std::max(scale, std::fabs(exact.lse));
      if (c.plain) {
        check(state.zw == 0 && state.mw == -INFINITY, "plain: " + describe(c));
        continue;
      }
      const Finished finished = finish(state, false);
      if (std::isinf(exact.entropy)) {
        check(std::isinf(finished.entropy) && finished.entropy > 0 && state.zw == 0, "no attention: " + describe(c));
        continue;
      }
      entropy.add(finished.entropy, naive.entropy, exact.entropy);
      weighted.add(state.mw + std::log((double)state.zw), naive.weighted_lse, exact.weighted_lse);
      max_weighted.add(state.mw, naive.max_weighted, exact.max_weighted);
      scale = std::max(scale, std::fabs(exact.weighted_lse));
    }
  }
  check(out.within(1, cut.out), "output:" + out.text() + ": " + describe(c));
  check(lse.within(scale, cut.score), "ln Z:" + lse.text() + ": " + describe(c));
  check(weighted.within(scale, cut.score), "ln Z':" + weighted.text() + ": " + describe(c));
  check(entropy.within(scale, cut.entropy), "entropy:" + entropy.text() + ": " + describe(c));
  check(max_weighted.within(scale, cut.score), "m':" + max_weighted.text() + ": " + describe(c));
}

static bool equal(const Results& a, const Results& b) {
  return !memcmp(a.out.data(), b.out.data(), a.out.size() * 4) &&
         !memcmp(a.states.data(), b.states.data(), a.states.size() * sizeof(HeadState));
}

/// Compared with float64 under a fair schedule, and bit-identical under adversaries.
static void test(const Case& c, int adversaries = 3) {
  const Run run(c);
  ch_configure(1, 0);
  const Results fair = run.go();
  compare(run, fair);
  for (int seed = 1; seed <= adversaries; ++seed) {
    ch_configure(1 + seed % 2, seed);
    check(equal(run.go(), fair), "schedule " + std::to_string(seed) + ": " + describe(c));
  }
  ch_configure(1, 0);
}

/// Sums that lose something in every step, always to the same side.
///
/// Bound: as in attn_prefill.cpp. On tensor cores a chain has two products of two terms each, two blocks each on an A100 (bf16 takes twice
/// as many): at most 11 u per block; one float32 addition per 32 positions; `splits` more for the merge, with its factors, and 12 u for
/// weights, terms, quotient and product with Z. Without tensor cores a thread's part of a tile is a separate chain, with fewer additions
/// than there are positions in a split.
static void test_long(Type k, Type v, int positions, int splits) {
  Case c = {k, v, 64, 1, 1, {positions}};
  c.splits = splits, c.query = 0;
  Run run(c);
  run.queries[0] = 1;
  fill_long(*run.caches[0]);
  const Results got = run.go();
  const double in_split = v != F32 ? 2 * 2 * 2 * 11 + positions / splits / 32 : positions / splits + 64;
  const double bound = (in_split + 2 * splits + 12) * std::ldexp(1.0, -24);
  const double error = error_of_long(*run.caches[0], got.out.data(), got.states[0]);
  check(error <= bound, "long: error " + std::to_string(error / bound) + " of its bound: " + describe(c));
}

/// A row's bits do not depend on the rest of its batch.
static void test_batch(Case c) {
  const Run together(c);
  const Results all = together.go();
  const int heads = together.shape.heads;
  for (size_t row = 0; row < c.lengths.size(); ++row) {
    Case alone = c;
    alone.lengths = {c.lengths[row]};
    const Results one = Run(alone).go();
    check(!memcmp(one.out.data(), &all.out[row * heads * c.head_dim], one.out.size() * 4) &&
              !memcmp(one.states.data(), &all.states[row * heads], one.states.size() * sizeof(HeadState)),
          "row " + std::to_string(row) + " depends on its batch: " + describe(c));
  }
}

/// Bits do not depend on how many blocks walk a row's splits.
static void test_blocks(Case c, std::initializer_list<int> blocks) {
  const Run run(c);
  const Results one_each = run.go();
  compare(run, one_each);
  for (int n : blocks) {
    Run other(c);
    other.c.blocks = n;
    for (int seed = 0; seed < 3; ++seed) {
      ch_configure(1 + seed % 2, seed);
      check(equal(other.go(), one_each), "schedule " + std::to_string(seed) + ": " + describe(other.c));
    }
    ch_configure(1, 0);
  }
}

/// A launch that starts before its queries are written, and before the positions that its rows add to one sequence's cache: its last block
/// has the last of these, in the first or in the second tile of its share.
static void test_early(Type k, Type v, int head_dim, int length, int splits, int blocks = 0) {
  Run run({k, v, head_dim, 1, 4, {length, length - 1, length - 2}});
  run.c.splits = splits, run.c.blocks = blocks;
  for (RowState& row : run.rows) row.slot = run.rows[0].slot;
  std::swap(run.rows[0], run.rows[2]);
  check(equal(run.go(true), run.go()), "early: " + describe(run.c));
}

int main(int argc, char** argv) {
  const bool quick = argc > 1 && !strcmp(argv[1], "quick");
  const std::vector<int> lengths = {1, 2, 3, 11, 31, 33, 127, 257, 1000};
  const Type pairs[][2] = {{F32, F32}, {F32, F16}, {F16, F16}, {BF16, BF16}};
  for (const auto& pair : pairs) {
    const Type k = pair[0], v = pair[1];
    for (int d : {16, 32, 64, 96, 128, 256, 512}) {
      for (int group : {1, 3, 4, 7, 8}) {
        if (quick && group != 3 && group != 8) continue;
        test({k, v, d, 1 + group % 2, group, {33, 1, 127, 2}}, quick);
      }
      test({k, v, d, 1, 2, {130, 11, 257}, 65, 20}, 1);
      if (k == v && k != F32 && d >= 64) test({k, v, d, 2, 5, {130, 0, 11, 300}, 0, 0, 0, 3, 0, true}, 1);
    }
    test({k, v, 64, 2, 4, lengths}, 2);
    test({k, v, 128, 1, 9, {70, 3}}, 1);  // more than one part per group
    test({k, v, 64, 1, 17, {70, 3}}, 1);
    for (int window : {1, 2, 5, 64, 100, 512}) test({k, v, 64, 1, 4, lengths, window}, 1);
    for (float cap : {5.f, 50.f}) test({k, v, 64, 1, 4, lengths, 0, cap, 0, 4, 0, false, 8}, 1);
    for (float sink : {30.f, 100.f, -100.f}) test({k, v, 128, 1, 4, lengths, 0, 0, sink}, 1);
    test({k, v, 64, 1, 4, {600, 300}, 0, 0, 0, 6, 0, false, 20}, 1);          // sharp attention
    test({k, v, 64, 1, 4, {600, 300}, 0, 0, 0, 6, 0, false, 300, .003f}, 1);  // large keys, small queries
    for (int splits = 1; splits <= 16; ++splits) test({k, v, 32, 1, 3, {1000, 65, 640, 0}, 0, 0, 0, splits}, 1);
    test({k, v, 16, 1, 1, {1000, 64}, 0, 0, 0, 128}, 1);
    for (int length : {4, 20, 62, 66, 130, 200}) test_early(k, v, 128, length, 1 + length / 64);
    for (int blocks : {1, 2}) test_early(k, v, 128, 66, 2, blocks), test_early(k, v, 128, 258, 5, blocks);
    // from a tile to several chunks per split; unused rows; windows
    test_blocks({k, v, 32, 1, 3, {1000, 65, 640, 0, 30}, 0, 0, 0, 16}, {1, 2, 3, 5, 8, 15});
    test_blocks({k, v, 128, 1, 9, {700, 129, 64}, 0, 0, 0, 7}, {1, 2, 3, 6});
    test_blocks({k, v, 256, 1, 2, {300, 70}, 130, 20, 0, 4}, {1, 3});
    if (k == v && k != F32) test_blocks({k, v, 64, 2, 5, {450, 10}, 0, 0, 0, 6, 0, true}, {1, 4});
    test_long(k, v, 16384, 1);
    test_long(k, v, 16384, 64);
    test_batch({k, v, 64, 2, 3, {1, 2, 3, 11, 31, 33, 127, 257, 300, 5, 64, 65, 128, 129, 192, 0}, 0, 0, 0, 5});
    test_batch({k, v, 128, 1, 8, {257, 31, 640}, 200, 30, 0, 3});
  }
  return report("attn_decode");
}
