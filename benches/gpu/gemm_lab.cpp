// What limits gemm_hopper.cu: its products with chains of 32, 64 and all elements of k (kernels/lab/gemm_ablation.cu), with copies and
// without, in turns, in the shapes of Llama-3.1-8B's layers and 512 rows. Values: 64 outputs against float64, c32 also bit by bit.
//
//   gemm_lab [FATBINS] [--quick 1]
#include "lab.h"

#include "lab/gemm_ablation.cu"

CUDA_HOST_EXPORT(gemm_hopper)
CUDA_HOST_EXPORT(lab_gemm_c32)
CUDA_HOST_EXPORT(lab_gemm_c64)
CUDA_HOST_EXPORT(lab_gemm_c0)
CUDA_HOST_EXPORT(lab_gemm_c32_cached)
CUDA_HOST_EXPORT(lab_gemm_c64_cached)
CUDA_HOST_EXPORT(lab_gemm_c0_cached)

using namespace lab;

/// One product of n rows; `copies` different matrices, so that none stays in L2.
struct Product {
  int n, k, outs, copies;
  Memory<__half> x, w;
  Memory<float> scales, y;

  Product(int n, int k, int outs, int copies)
      : n(n), k(k), outs(outs), copies(copies), x((size_t)n * k), w((size_t)copies * outs * k), scales((size_t)n * row_scales(k)),
        y((size_t)n * outs) {
    std::vector<__half> values(1 << 20);
    for (size_t i = 0; i < values.size(); ++i) values[i] = __float2half(noise(i));
    w.fill(values), x.fill(values);
    std::vector<float> powers(scales.size);
    for (size_t i = 0; i < powers.size(); ++i) powers[i] = std::ldexp(1.0f, int(i / row_scales(k) % 5) - 2);  // per row
    scales.write(powers.data(), powers.size());
  }
  std::vector<Launch> launches(const std::string& kernel, int count) const {
    std::vector<Launch> all;
    for (int i = 0; i < count; ++i) {
      TensorMap x_map;
      TensorMaps w_maps = {};
      const __half* const of = w.at + (size_t)(i % copies) * outs * k;
      check(ch_encode_tensor_map(&x_map, x.at, k, n, 2 * k, 64, 64), "a tensor map");
      check(ch_encode_tensor_map(&w_maps.of_job[0], of, k, outs, 2 * k, 64, 64), "a tensor map");
      MatrixJobs jobs = {};
      jobs.job[0] = {of, nullptr, nullptr, y.at, outs, {}};
      const int clusters = std::min(ceil_div(n, 128) * ceil_div(ceil_div(outs, 128), 2), std::max(1, multiprocessors() / 2));
      all.push_back(launch(kernel, dim3(1, 2 * clusters), dim3(hopper::THREADS), x_map, w_maps, (const float*)scales.at, jobs, n, k, 0));
    }
    return all;
  }
  std::vector<float> run(const std::string& kernel) const {
    once(launches(kernel, 1));
    return y.read(0, y.size);
  }
  void check_values(const std::string& kernel, int chain) const {
    const auto got = run(kernel);
    if (chain == 32) {
      const auto same = run("gemm_hopper");
      check(!memcmp(got.data(), same.data(), got.size() * 4), kernel + ": the bits of gemm_hopper");
    }
    for (int i = 0; i < 64; ++i) {
      const int row = (int)((long)i * 37 % n), out = (int)((long)i * (outs - 1) / 63);
      const auto a = x.read((size_t)row * k, k), b = w.read((size_t)out * k, k);
      double sum = 0, size = 0;
      for (int j = 0; j < k; ++j) sum += (double)__half2float(a[j]) * __half2float(b[j]), size += std::abs((double)__half2float(a[j]) * __half2float(b[j]));
      const double scale = std::ldexp(1.0, row % 5 - 2);
      // a block of 16 products loses at most 17 units of 2^-25 of its largest summand and 2^-23 of the sum: both within `size`
      const double blocks = chain ? chain / 16 : k / 16, bound = (blocks * 6.25 * std::ldexp(1.0, -23) + (chain ? k / chain : 1) * std::ldexp(1.0, -24)) * size * scale;
      check(std::abs(got[(size_t)row * outs + out] - sum * scale) <= bound, kernel + " row " + std::to_string(row) + " output " + std::to_string(out));
    }
  }
};

int main(int count, char** arguments) {
  const bool quick = option(count, arguments, "--quick", "0") == "1";
  struct Shape {
    const char* name;
    int k, outs;
  };
  std::vector<Shape> shapes = {{"up", 4096, 14336}, {"down", 14336, 4096}, {"o", 4096, 4096}};
  if (quick) shapes = {{"up", 448, 256}};
  const int n = quick ? 128 : 512, times = quick ? 1 : 8;
  for (const Shape& shape : shapes) {
    const Product product(n, shape.k, shape.outs, quick ? 1 : 4);
    for (int chain : {32, 64, 0}) product.check_values("lab_gemm_c" + std::to_string(chain), chain);
    Race race(true);
    std::vector<std::string> names;
    for (const char* cached : {"", "_cached"})
      for (const char* chain : {"c32", "c64", "c0"}) {
        names.push_back(std::string(chain) + cached);
        race.add(names.back(), product.launches("lab_gemm_" + names.back(), times));
      }
    const auto medians = race.run(7);
    for (size_t i = 0; i < names.size(); ++i)
      figure(std::string("gemm.") + shape.name + "." + names[i], 2e-6 * n * shape.k * shape.outs * times / medians[i], "TFLOP/s");
  }
  if (failed) return printf("gemm_lab: FAILED\n"), 1;
  printf("gemm_lab: every value as in float64\n");
}
