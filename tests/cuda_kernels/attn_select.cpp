// attn_select compared with a full sort: shapes, equal entropies, rows without attention, layer by layer and all at
// once.
#include "attn_support.h"

#include "attn_select.cu"

CUDA_HOST_EXPORT(attn_select)

struct Case {
  int layers, heads, head_dim, keep;
  std::vector<int> positions;  // -1: an unused row
  int first_traced = 0;
  bool regularized = false;
  int levels = 0;  // number of distinct entropies; 0: all distinct
  int hidden = 20;
  bool narrow = false;  // odd layers have half the head_dim
};

/// Trace buffers of one sequence with `length` rows.
struct Trace {
  Trace(const Case& c, int length)
      : heads((size_t)length * c.keep),
        entropies(heads.size()),
        maxima(heads.size()),
        sums(heads.size()),
        queries(heads.size() * c.head_dim),
        hidden((size_t)length * c.hidden),
        gaps(length) {}
  TraceView view() const {
    return {heads.get(), entropies.get(), maxima.get(), sums.get(), queries.get(), hidden.get(), gaps.get()};
  }
  Device<int> heads;
  Device<float> entropies, maxima, sums, queries;
  Device<__half> hidden;
  Device<float> gaps;
};

struct Run {
  explicit Run(const Case& c)
      : c(c),
        n(c.positions.size()),
        states((size_t)c.layers * n * c.heads),
        queries(states.size() * c.head_dim),
        hidden(n * c.hidden) {
    std::mt19937 random(c.layers * 1000 + c.heads);
    std::uniform_real_distribution<float> uniform;
    for (size_t i = 0; i < states.size(); ++i) {
      const int position = c.positions[i / c.heads % n];
      const float z = 1 + uniform(random), h = c.levels ? (float)(random() % c.levels) : 8 * uniform(random);
      states[i] = {uniform(random), z, 0, z, z * (std::log(z) - h)};
      if (c.regularized && random() % 4 == 0)
        states[i].m = 25 + 5 * uniform(random);  // nearly all on the first position
      if (c.levels) states[i].zw = 1, states[i].sw = -h;
      if (position < 2) states[i] = {0, 1, -INFINITY, 0, 0};
    }
    for (size_t i = 0; i < queries.size(); ++i) queries[i] = (float)i;
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = (float)i;
  }

  /// One sequence per row, with `step` layers offered at a time.
  std::vector<std::unique_ptr<Trace>> go(int step) const {
    std::vector<std::unique_ptr<Trace>> traces;
    std::vector<SequenceView> views;
    std::vector<RowState> rows;
    for (size_t i = 0; i < n; ++i) {
      traces.push_back(std::make_unique<Trace>(c, std::max(1, c.positions[i] - c.first_traced + 2)));
      SequenceView view = {};
      view.first_traced_row = c.first_traced;
      view.trace = traces.back()->view();
      views.push_back(view);
      rows.push_back({(int)i, c.positions[i], 0, 0});
    }
    const Device<SequenceView> sequences(views);
    const Device<RowState> row_states(rows);
    std::vector<LayerShape> all;
    for (int layer = 0; layer < c.layers; ++layer) all.push_back({0, 0, dim(layer), 0});
    const Device<LayerShape> shapes(all);
    for (int layer = 0; layer < c.layers; layer += step) {
      const int layers = std::min(step, c.layers - layer);
      const bool begin = layer == 0, finish = layer + layers == c.layers;
      // copies of only these layers, so that the sanitizer detects reads beyond them
      const size_t start = (size_t)layer * n * c.heads, count = (size_t)layers * n * c.heads;
      const Device<HeadState> s(std::vector<HeadState>(&states[start], &states[start] + count));
      const Device<float> q(
          std::vector<float>(&queries[start * c.head_dim], &queries[start * c.head_dim] + count * c.head_dim));
      launch("attn_select", dim3(n), dim3(256),
             64 + 4 * (3 * layers * c.heads + 8 * c.keep + 2 + (begin ? 0 : c.keep * c.head_dim)),
             (const HeadState*)s.get(), (const float*)q.get(), (const float*)(finish ? hidden.get() : nullptr),
             (const RowState*)row_states.get(), (const SequenceView*)sequences.get(),
             (const LayerShape*)shapes.get(), layer, layers, c.heads,
             c.head_dim, c.hidden, 0.5f, c.keep, (int)c.regularized, (int)begin, (int)finish);
    }
    return traces;
  }

  void compare(const std::vector<std::unique_ptr<Trace>>& traces, const std::string& what) const {
    for (size_t row = 0; row < n; ++row) {
      const Trace& t = *traces[row];
      const int r = c.positions[row] - c.first_traced, offered = c.layers * c.heads;
      if (c.positions[row] < 0 || r < 0) {
        for (size_t i = 0; i < t.heads.size(); ++i) check(t.heads[i] == -1, "untraced row written: " + what);
        check(std::isnan(to_f32(t.hidden[0])) && std::isnan(t.queries[0]) && std::isnan(t.gaps[0]),
              "untraced row written: " + what);
        continue;
      }
      std::vector<std::pair<float, int>> order;
      for (int id = 0; id < offered; ++id) order.push_back({(float)finish(state(row, id), c.regularized).entropy, id});
      std::sort(order.begin(), order.end());
      for (int i = 0; i < c.keep; ++i) {
        const size_t at = (size_t)r * c.keep + i;
        const int id = i < offered ? order[i].second : -1;
        bool ok = t.heads[at] == id;
        if (id >= 0) {
          const HeadState& s = state(row, id);
          const double f = finish(s, c.regularized).f;
          ok = ok && t.entropies[at] == order[i].first && t.maxima[at] == s.mw &&
               t.sums[at] == (f > 0 ? (float)(s.zw / f) : 0);
        } else {
          ok = ok && t.entropies[at] == INFINITY && t.maxima[at] == 0 && t.sums[at] == 0;
        }
        for (int d = 0; d < c.head_dim; ++d)
          ok = ok && t.queries[at * c.head_dim + d] == query(row, id, d);
        check(ok, "row " + std::to_string(row) + " entry " + std::to_string(i) + ": " + what);
      }
      const float refused = offered > c.keep ? order[c.keep].first : INFINITY;
      const float gap = refused - (offered >= c.keep ? order[c.keep - 1].first : INFINITY);
      check(t.gaps[r] == gap || (std::isnan(gap) && std::isnan(t.gaps[r])), "gap: " + what);
      for (int i = 0; i < c.hidden; ++i)
        check(to_f32(t.hidden[(size_t)r * c.hidden + i]) == to_f32(from_f32<__half>(hidden[row * c.hidden + i] / 2)),
              "hidden: " + what);
      // the surrounding rows are untouched
      for (size_t i = 0; i < t.heads.size(); ++i)
        if ((int)(i / c.keep) != r) check(t.heads[i] == -1 && std::isnan(t.sums[i]), "another row written: " + what);
    }
  }

  int dim(int layer) const { return c.narrow && layer % 2 ? c.head_dim / 2 : c.head_dim; }
  float query(size_t row, int id, int d) const {
    const int layer = id / c.heads;
    if (id < 0 || d >= dim(layer)) return 0;
    return queries[layer * n * c.heads * c.head_dim + (row * c.heads + id % c.heads) * dim(layer) + d];
  }
  size_t index(size_t row, int id) const { return ((size_t)(id / c.heads) * n + row) * c.heads + id % c.heads; }
  const HeadState& state(size_t row, int id) const { return states[index(row, id)]; }

  Case c;
  size_t n;
  std::vector<HeadState> states;
  Device<float> queries, hidden;
};

int main() {
  const Case cases[] = {
      {1, 1, 16, 1, {5}},
      {2, 3, 16, 16, {5, 0}},    // fewer heads than K
      {4, 4, 8, 16, {1, 2, 7}},  // exactly K
      {5, 7, 12, 16, {30, 3, -1, 9}, 4},
      {32, 32, 8, 16, {100, 101}},
      {3, 30, 8, 32, {12}, 0, true},
      {9, 20, 8, 5, {12, 1}, 0, true},
      {26, 8, 8, 16, {12, 13}, 0, false, 3},   // many ties
      {6, 9, 8, 16, {12, 13, 0}, 0, true, 1},  // all tied
      {80, 64, 4, 16, {4}, 0, false, 50},
      {6, 5, 16, 12, {30, 3, 9}, 0, false, 0, 20, true},
  };
  for (const Case& c : cases) {
    const Run run(c);
    for (int step : {c.layers, 1, 2, 3}) {
      for (int seed = 0; seed <= 3; ++seed) {
        ch_configure(1 + seed % 2, seed);
        run.compare(run.go(step), std::to_string(c.layers) + "x" + std::to_string(c.heads) + " keep " +
                                      std::to_string(c.keep) + " step " + std::to_string(step) + " schedule " +
                                      std::to_string(seed));
        if (c.layers * c.heads > 2000) break;
      }
    }
  }
  return report("attn_select");
}
