// The products of a decode step by kernels/lab/gemv_rows.cu, beside gemv.cu's and gemv_ring.cu's: those of all layers and the head, each
// with its own weights, as one graph with early starts, in turns. Shapes: Llama-3.1-8B's, Llama-3.2-1B's; rows 1, 8, 16. Values: 64
// outputs of each product of the first layer against float64.
//
//   rows_lab [FATBINS] [--quick 1]
//
// Also the rate of their copies alone: tiles by TMA against rows by bulk copies; and, for one row, the ring with as many stages as a block
// can use, and with a prefetch of the next weights into L2 (kernels/lab/ring_ahead.cu). decide.py reads the lines `figure KEY VALUE UNIT`.
#include "lab.h"

#include "gemv.cu"
#include "lab/copies.cu"

#define EXPORT_GEMV(suffix) CUDA_HOST_EXPORT(gemv_f16_##suffix) CUDA_HOST_EXPORT(gemv_qkv_f16_##suffix) CUDA_HOST_EXPORT(gemv_gated_f16_##suffix)
EXPORT_GEMV(r8)
EXPORT_GEMV(r16)
EXPORT_GEMV(ring)
#define EXPORT_TILES(r, t) CUDA_HOST_EXPORT(lab_gemv_rows_##r##_##t) CUDA_HOST_EXPORT(lab_gemv_gated_rows_##r##_##t)
#define EXPORT_ROWS(r) CUDA_HOST_EXPORT(lab_split_rows_##r) EXPORT_TILES(r, t2) EXPORT_TILES(r, t3) EXPORT_TILES(r, t7)
CUDA_HOST_EXPORT(lab_copy_tiles)
CUDA_HOST_EXPORT(lab_copy_rows)
CUDA_HOST_EXPORT(lab_ring_ahead)
CUDA_HOST_EXPORT(lab_qkv_ring_ahead)
CUDA_HOST_EXPORT(lab_gated_ring_ahead)
EXPORT_ROWS(r1)
EXPORT_ROWS(r8)
EXPORT_ROWS(r16)

using namespace lab;
using gemv::rows::WeightMaps;

struct Shape {
  std::string name;
  int hidden, inner, keys, vocab, layers;
};

enum Which { Q_K_V, O, GATE_UP, DOWN, HEAD, PRODUCTS };
constexpr const char* NAMES[] = {"qkv", "o", "gated", "down", "head"};

/// A model's weights and activations.
struct Model {
  static constexpr int ROWS = 16;
  Shape s;
  size_t qkv, o, inner, layer, size;
  Memory<__half> w;
  Memory<float> x, attended, gated, q, k, v, logits, norm, factors;
  Memory<uint4> fragments;

  explicit Model(const Shape& s)
      : s(s), qkv((size_t)(s.hidden + 2 * s.keys) * s.hidden), o((size_t)s.hidden * s.hidden), inner((size_t)s.inner * s.hidden),
        layer(qkv + o + 3 * inner), size(s.layers * layer + (size_t)s.vocab * s.hidden), w(size), x(ROWS * s.hidden),
        attended(ROWS * s.hidden), gated((size_t)ROWS * s.inner), q(ROWS * s.hidden), k(ROWS * s.keys), v(ROWS * s.keys),
        logits((size_t)ROWS * s.vocab), norm(s.hidden), factors(ROWS),
        fragments((size_t)gemv::rows::slices_of(std::max(s.inner, s.hidden)) * 8 * 2 * 2 * 64) {
    std::vector<__half> weights(std::min<size_t>(size, 1 << 20));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = __float2half(0.02f * noise(i));
    w.fill(weights);
    reset();
  }
  /// The activations, as products before have changed them.
  void reset() const {
    for (const Memory<float>* of : {&x, &attended, &gated, &norm}) {
      std::vector<float> values(of->size);
      for (size_t i = 0; i < values.size(); ++i) values[i] = noise(i * 7 + 1);
      of->write(values.data(), values.size());
    }
  }
  int k_of(int which) const { return which == DOWN ? s.inner : s.hidden; }
  const float* input(int which) const { return which == O ? attended.at : which == DOWN ? gated.at : x.at; }
  const float* norm_of(int which) const { return which == Q_K_V || which == GATE_UP ? norm.at : nullptr; }
  MatrixJobs jobs(int which, int number) const {
    __half* const of = w.at + number * layer;
    MatrixJobs jobs = {};
    const auto add = [&](int i, const __half* from, float* y, int outs) { jobs.job[i] = {from, nullptr, nullptr, y, outs, {}}; };
    if (which == Q_K_V) add(0, of, q.at, s.hidden), add(1, of + o, k.at, s.keys), add(2, of + o + (size_t)s.keys * s.hidden, v.at, s.keys);
    if (which == O) add(0, of + qkv, x.at, s.hidden);
    if (which == GATE_UP) add(0, of + qkv + o, gated.at, s.inner), add(1, of + qkv + o + inner, nullptr, s.inner);
    if (which == DOWN) add(0, of + qkv + o + 2 * inner, x.at, s.hidden);
    if (which == HEAD) add(0, w.at + s.layers * layer, logits.at, s.vocab);
    return jobs;
  }
};

/// The launches of one product by the kernels in use: `suffix` r8, r16 or ring.
static std::vector<Launch> in_use(const Model& m, const std::string& suffix, int rows, int which, int number) {
  const bool ring = suffix == "ring";
  const int outs = ring ? 8 : suffix == "r8" ? 16 : 32, gates = ring ? 4 : 16;
  const MatrixJobs jobs = m.jobs(which, number);
  const int all = which == GATE_UP ? ceil_div(jobs.job[0].outs, gates) : jobs.blocks(outs);
  const dim3 grid(ring ? std::min(all, multiprocessors()) : all), block(ring ? 288 : 256);
  const int k = m.k_of(which);
  if (which == Q_K_V) return {launch("gemv_qkv_f16_" + suffix, grid, block, m.input(which), m.norm_of(which), 0.0f, 1e-5f, jobs, k, rows, RopeTarget{})};
  if (which == GATE_UP) return {launch("gemv_gated_f16_" + suffix, grid, block, m.input(which), m.norm_of(which), 0.0f, 1e-5f, jobs, k, rows, 0)};
  return {launch("gemv_f16_" + suffix, grid, block, m.input(which), jobs, k, rows, int(which == O || which == DOWN))};
}

/// The ring for one row, with `megabytes` of the next weights ahead and, `by_need`, no more stages than a block's weights fill. The weights
/// of a layer follow one another in the order of its products.
static std::vector<Launch> ahead(const Model& m, int which, int number, int megabytes, bool by_need) {
  Launch of = in_use(m, "ring", 1, which, number).front();
  const int k = m.k_of(which), most = 6;  // gemv::ring::MAX_STAGES
  const MatrixJobs jobs = m.jobs(which, number);
  const int units = which == GATE_UP ? ceil_div(jobs.job[0].outs, 4) : jobs.blocks(8), tiles = ceil_div(ceil_div(units, (int)of.grid.x), 2);
  const int stages = by_need ? std::min(most, tiles * ceil_div(k, gemv::ring::Slice<__half>::ELEMENTS)) : most;
  const size_t end = number * m.layer + std::vector<size_t>{m.qkv, m.qkv + m.o, m.layer - m.inner, m.layer, 0}[which];
  const size_t bytes = which == HEAD ? 0 : std::min<size_t>((size_t)megabytes << 20, 2 * (m.size - end));
  const Ahead next = {reinterpret_cast<const unsigned char*>(m.w.at + end), (unsigned)bytes, stages};
  of.kernel = which == Q_K_V ? "lab_qkv_ring_ahead" : which == GATE_UP ? "lab_gated_ring_ahead" : "lab_ring_ahead";
  of.arguments.push_back(std::make_shared<Ahead>(next));
  if (by_need) of.shared = std::min<unsigned>(of.shared, gemv::ring::bytes_of(k, stages));
  return {of};
}

/// By gemv_rows.cu: the split and the product. `fused`: without the split where the kernel before could do it elementwise (attention's merge,
/// the gate, the last norm); its values are then those of another product, its time is not.
static std::vector<Launch> by_rows(const Model& m, int most, int rows, int which, int number, bool fused) {
  const MatrixJobs jobs = m.jobs(which, number);
  const int tiles = which == GATE_UP ? ceil_div(jobs.job[0].outs, 8) : jobs.blocks(16);
  const dim3 grid(std::min(tiles, multiprocessors()));
  const int each = ceil_div(tiles, (int)grid.x), together = each <= 2 ? 2 : each <= 3 ? 3 : 7, k = m.k_of(which);
  const std::string r = "r" + std::to_string(most), suffix = "rows_" + r + "_t" + std::to_string(together);
  std::vector<Launch> launches = {launch("lab_split_rows_" + r, dim3(most), dim3(256), m.input(which), m.norm_of(which), 0.0f, 1e-5f, m.fragments.at,
                                         m.factors.at, k, rows)};
  if (fused && which != Q_K_V && which != GATE_UP) launches.clear();
  WeightMaps maps = {};
  for (int i = 0; i < 3 && jobs.job[i].outs > 0; ++i)
    check(ch_encode_tensor_map(&maps.of_job[i], jobs.job[i].w, k, jobs.job[i].outs, 2 * k, 64, which == GATE_UP ? 8 : 16), "a tensor map");
  const uint4* const fragments = m.fragments.at;
  const float* const factors = m.factors.at;
  if (which == GATE_UP)
    launches.push_back(launch("lab_gemv_gated_" + suffix, grid, dim3(288), fragments, factors, maps, jobs, k, rows, 0));
  else
    launches.push_back(launch("lab_gemv_" + suffix, grid, dim3(288), fragments, factors, maps, jobs, k, rows, which == O || which == DOWN));
  return launches;
}

template <class Of>
static std::vector<Launch> step(const Model& m, const Of& of) {
  std::vector<Launch> all;
  const auto add = [&](const std::vector<Launch>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (int layer = 0; layer < m.s.layers; ++layer)
    for (int which = 0; which < HEAD; ++which) add(of(which, layer));
  add(of(HEAD, 0));
  return all;
}

/// 64 outputs of the last row of each product of the first layer; returns all of that row's.
template <class Of>
static std::vector<float> check_values(const Model& m, const std::string& name, int rows, const Of& of) {
  std::vector<float> all;
  for (int which = 0; which < PRODUCTS; ++which) {
    m.reset();
    const int k = m.k_of(which);
    const MatrixJobs jobs = m.jobs(which, 0);
    const MatrixJob job = jobs.job[0];
    const auto offset = [&](const void* at) { return static_cast<const __half*>(at) - m.w.at; };
    const Memory<float>& to = which == Q_K_V ? m.q : which == GATE_UP ? m.gated : which == HEAD ? m.logits : m.x;
    const size_t row = rows - 1, stride = job.outs;
    const auto before = to.read(row * stride, stride), x = (which == O ? m.attended : which == DOWN ? m.gated : m.x).read(row * k, k);
    const auto norm = m.norm.read(0, m.s.hidden);
    once(of(which, 0));
    const auto got = to.read(row * stride, stride);
    all.insert(all.end(), got.begin(), got.end());
    double squares = 0;
    for (float one : x) squares += (double)one * one;
    const double factor = m.norm_of(which) ? 1 / std::sqrt(squares / k + 1e-5) : 1;
    for (int i = 0; i < 64; ++i) {
      const int out = (int)((long)i * (job.outs - 1) / 63);
      const auto dot = [&](const void* matrix, double& size) {
        const auto w = m.w.read(offset(matrix) + (size_t)out * k, k);
        double sum = 0;
        for (int j = 0; j < k; ++j) {
          const double term = (double)x[j] * (m.norm_of(which) ? norm[j] : 1.0) * __half2float(w[j]) * factor;
          sum += term, size += std::abs(term);
        }
        return sum;
      };
      double size = 0, want = dot(job.w, size);
      if (which == GATE_UP) {
        double up_size = 0;
        const double up = dot(jobs.job[1].w, up_size);
        size = (size + 1) * (up_size + 1), want = want / (1 + std::exp(-want)) * up;
      }
      if (which == O || which == DOWN) want += before[out], size += std::abs(before[out]);
      // as in dense_gemv.cpp: sums in float32, inputs to 2^-22, and what tensor cores cut off
      const double bound = (k / 256 + 120) * std::ldexp(1.0, -24) * size;
      check(std::abs(got[out] - want) <= bound, name + " " + NAMES[which] + " output " + std::to_string(out));
    }
  }
  return all;
}

/// The copies alone, of all weights of a layer but o's, layer after layer.
static void race_copies(const Model& m) {
  Memory<unsigned> sums(multiprocessors());
  std::vector<Launch> tiles, by_rows;
  for (int layer = 0; layer < m.s.layers; ++layer)
    for (int which : {Q_K_V, GATE_UP, DOWN}) {
      const MatrixJobs jobs = m.jobs(which, layer);
      const int k = m.k_of(which);
      WeightMaps maps = {};
      for (int i = 0; i < 3 && jobs.job[i].outs > 0; ++i)
        check(ch_encode_tensor_map(&maps.of_job[i], jobs.job[i].w, k, jobs.job[i].outs, 2 * k, 64, 16), "a tensor map");
      const dim3 grid(std::min(multiprocessors(), jobs.blocks(16)));
      tiles.push_back(launch("lab_copy_tiles", grid, dim3(288), maps, jobs, k, sums.at));
      by_rows.push_back(launch("lab_copy_rows", grid, dim3(288), jobs, k, sums.at));
    }
  Race race(false);
  race.add("tiles", tiles), race.add("rows", by_rows);
  const auto medians = race.run(7);
  const double bytes = 2.0 * m.s.layers * (m.qkv + 3 * m.inner);
  figure(m.s.name + ".copies.tiles", 1e-3 * bytes / medians[0], "GB/s"), figure(m.s.name + ".copies.rows", 1e-3 * bytes / medians[1], "GB/s");
  for (unsigned sum : sums.read(0, sums.size)) check(sum != 0, "copies: a block that has read nothing");
}

int main(int count, char** arguments) {
  const bool quick = option(count, arguments, "--quick", "0") == "1";
  std::vector<Shape> shapes = {{"8b", 4096, 14336, 1024, 128256, 32}, {"1b", 2048, 8192, 512, 128256, 16}};
  if (quick) shapes = {{"8b", 512, 1024, 128, 1000, 1}, {"1b", 256, 512, 64, 500, 1}};
  for (const Shape& shape : shapes) {
    const Model model(shape);
    for (int rows : {1, 8, 16}) {
      std::vector<std::string> names;
      Race all(true);
      std::vector<Race> each(PRODUCTS, Race(true));
      std::vector<float> in_use_gives;
      const auto enter = [&](const std::string& name, const auto& of) {
        const auto values = check_values(model, shape.name + " " + name, rows, of);
        if (names.empty()) in_use_gives = values;
        check(values == in_use_gives, shape.name + " " + name + ": bits of " + std::to_string(rows) + " rows");
        names.push_back(name), all.add(name, step(model, of));
        for (int which = 0; which < PRODUCTS; ++which) {
          std::vector<Launch> launches;
          for (int layer = 0; layer < (which == HEAD ? 2 : shape.layers); ++layer)
            for (const Launch& one : of(which, layer)) launches.push_back(one);
          each[which].add(name, launches);
        }
      };
      if (rows == 1) enter("ring", [&](int which, int layer) { return in_use(model, "ring", 1, which, layer); });
      if (rows > 1)
        enter(rows > 8 ? "r16" : "r8", [&](int which, int layer) { return in_use(model, rows > 8 ? "r16" : "r8", rows, which, layer); });
      if (rows == 1) {
        enter("need", [&](int which, int layer) { return ahead(model, which, layer, 0, true); });
        for (int mb : {8, 16, 24}) enter("ahead" + std::to_string(mb), [&, mb](int which, int layer) { return ahead(model, which, layer, mb, false); });
      }
      enter("rows", [&](int which, int layer) { return by_rows(model, rows, rows, which, layer, false); });
      names.push_back("fused"), all.add("fused", step(model, [&](int which, int layer) { return by_rows(model, rows, rows, which, layer, true); }));
      const auto medians = all.run(7);
      for (size_t i = 0; i < names.size(); ++i) {
        const std::string key = shape.name + "." + std::to_string(rows) + "." + names[i];
        figure(key, medians[i], "us");
        figure(key + ".rate", 2e-3 * model.size / medians[i], "GB/s");
      }
      for (int which = 0; which < PRODUCTS; ++which) {
        const auto of = each[which].run(5);
        for (size_t i = 0; i < of.size(); ++i)
          figure(shape.name + "." + std::to_string(rows) + "." + names[i] + "." + NAMES[which], of[i] / (which == HEAD ? 2 : shape.layers), "us");
      }
    }
    race_copies(model);
  }
  if (failed) return printf("rows_lab: FAILED\n"), 1;
  printf("rows_lab: every value as in float64\n");
}
