// The products of q, k and v of many rows with rotation and caching in their epilogue (kernels/lab/gemm_rotated.cu), beside gemm_hopper
// and then rope_cache, in turns: 4,096 hidden, 32 heads, 8 key and value heads, 512 and 1,024 rows. Values: bit by bit.
//
//   rotation_lab [FATBINS] [--quick 1]
#include "lab.h"

#include "lab/gemm_rotated.cu"
#include "rope.cu"

CUDA_HOST_EXPORT(gemm_hopper)
CUDA_HOST_EXPORT(rope_cache)
CUDA_HOST_EXPORT(lab_gemm_rotated_d64)
CUDA_HOST_EXPORT(lab_gemm_rotated_d128)

using namespace lab;

/// One layer's products of n rows of two sequences, and where its keys and values go.
struct Layer {
  int n, k, heads, kv_heads, head_dim, capacity;
  Memory<__half> x, w;
  Memory<float> scales, bias, q, keys, values, cos, sin;
  Memory<unsigned char> cached;  // of both sequences: keys, then values
  Memory<SequenceView> sequences;
  Memory<RowState> rows;
  Memory<int> first_angles;
  MatrixJobs jobs = {};
  RopeTarget to = {};
  size_t of_sequence;

  Layer(int n, int k, int heads, int kv_heads, int head_dim, int k_type, int v_type)
      : n(n), k(k), heads(heads), kv_heads(kv_heads), head_dim(head_dim), capacity((n + 63) / 64 * 64), x((size_t)n * k),
        w((size_t)(heads + 2 * kv_heads) * head_dim * k), scales((size_t)n * row_scales(k)), bias((heads + 2 * kv_heads) * head_dim),
        q((size_t)n * heads * head_dim), keys((size_t)n * kv_heads * head_dim), values(keys.size), cos((size_t)2 * capacity * head_dim / 2),
        sin(cos.size), sequences(2), rows(n), first_angles(2), of_sequence((size_t)kv_heads * capacity * head_dim * 8) {
    cached = Memory<unsigned char>(2 * of_sequence);
    std::vector<__half> halves(1 << 20);
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = __float2half(noise(i));
    x.fill(halves), w.fill(halves);
    for (const Memory<float>* of : {&scales, &bias, &cos, &sin}) {
      std::vector<float> some(of->size);
      for (size_t i = 0; i < some.size(); ++i) some[i] = of == &scales ? std::ldexp(1.0f, int(i % 5) - 2) : noise(3 * i + 1);
      of->write(some.data(), some.size());
    }
    SequenceView views[2] = {};
    for (int i = 0; i < 2; ++i) views[i].k = cached.at + i * of_sequence, views[i].v = cached.at + i * of_sequence + of_sequence / 2, views[i].capacity = capacity;
    sequences.write(views, 2);
    std::vector<RowState> states(n);
    // two thirds of the rows are the first sequence's; the last row is beyond its cache, and nothing is stored for it
    for (int i = 0; i < n; ++i) states[i].slot = i >= n * 2 / 3, states[i].position = i == n - 1 ? capacity : i - (states[i].slot ? n * 2 / 3 : 0);
    rows.write(states.data(), n);
    const int first[2] = {0, capacity};
    first_angles.write(first, 2);
    const __half* from = w.at;
    float* const outputs[] = {q.at, keys.at, values.at};
    for (int i = 0; i < 3; ++i) {
      const int outs = (i == 0 ? heads : kv_heads) * head_dim;
      jobs.job[i] = {from, nullptr, i == 0 ? bias.at : nullptr, outputs[i], outs, {}};
      from += (size_t)outs * k;
    }
    to = {cos.at, sin.at, rows.at, sequences.at, 0, kv_heads, head_dim, 0.125f, k_type, v_type};
  }
  template <class... More>
  Launch product(const std::string& kernel, More... more) const {
    TensorMap x_map;
    TensorMaps w_maps = {};
    check(ch_encode_tensor_map(&x_map, x.at, k, n, 2 * k, 64, 64), "a tensor map");
    for (int i = 0; i < 3; ++i) check(ch_encode_tensor_map(&w_maps.of_job[i], jobs.job[i].w, k, jobs.job[i].outs, 2 * k, 64, 64), "a tensor map");
    const int clusters = std::min(ceil_div(n, 128) * ceil_div(jobs.blocks(128), 2), std::max(1, multiprocessors() / 2));
    return launch(kernel, dim3(1, 2 * clusters), dim3(hopper::THREADS), x_map, w_maps, (const float*)scales.at, jobs, n, k, more...);
  }
  std::vector<Launch> apart() const {
    const float* const none = nullptr;
    return {product("gemm_hopper", 0),
            launch("rope_cache", dim3(ceil_div(heads + 2 * kv_heads, 4), n), dim3(128), q.at, (const float*)keys.at, (const float*)values.at, none, none,
                   none, 0.0f, 0.0f, to, heads, (const int*)first_angles.at, 0.1f, 64)};
  }
  std::vector<Launch> together() const {
    return {product("lab_gemm_rotated_d" + std::to_string(head_dim), to, (const int*)first_angles.at, 0.1f, 64)};
  }
  /// Queries, but not those of the row that is not stored, and caches.
  std::pair<std::vector<float>, std::vector<unsigned char>> run(const std::vector<Launch>& launches) const {
    q.write(std::vector<float>(q.size).data(), q.size), cached.write(std::vector<unsigned char>(cached.size).data(), cached.size);
    once(launches);
    return {q.read(0, (size_t)(n - 1) * heads * head_dim), cached.read(0, cached.size)};
  }
};

int main(int count, char** arguments) {
  const bool quick = option(count, arguments, "--quick", "0") == "1";
  const auto check_bits = [](const Layer& layer, const std::string& name) {
    const auto apart = layer.run(layer.apart()), together = layer.run(layer.together());
    check(!memcmp(apart.first.data(), together.first.data(), apart.first.size() * 4), name + ": queries");
    check(apart.second == together.second, name + ": the cache");
    check(std::count(apart.second.begin(), apart.second.end(), 0) < (long)apart.second.size(), name + ": nothing was cached");
  };
  for (int head_dim : {64, 128})
    for (int type : {CACHE_F32, CACHE_F16, CACHE_BF16})
      check_bits(Layer(150, 72, 6, 2, head_dim, type, (type + 1) % 3), "d" + std::to_string(head_dim) + ", cache " + std::to_string(type));
  for (int rows : {512, 1024}) {
    if (quick && rows > 512) break;
    const Layer layer = quick ? Layer(128, 256, 4, 2, 128, CACHE_F16, CACHE_F16) : Layer(rows, 4096, 32, 8, 128, CACHE_F16, CACHE_F16);
    Race race(true);
    race.add("apart", layer.apart()), race.add("together", layer.together());
    const auto medians = race.run(15);
    figure("rotation." + std::to_string(rows) + ".apart", medians[0], "us"), figure("rotation." + std::to_string(rows) + ".together", medians[1], "us");
  }
  if (failed) return printf("rotation_lab: FAILED\n"), 1;
  printf("rotation_lab: every bit as gemm_hopper's and rope_cache's\n");
}
