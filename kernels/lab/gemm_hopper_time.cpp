// Times variants of gemm_hopper.cu (gemm_hopper.sh builds them) at the shapes of Llama-3.1-8B on a device, beside each other:
//
//   gemm_hopper_time FOLDER     of cubins wWIDTH_sSCHEDULE_cXY.cubin
//
// Of each, with a cluster for every piece of work and with as many as fit at once, which take turns: how many fit; for passes of
// 512 and 1024 rows microseconds and TFLOP/s of each product, with weights that the second cache does not hold, and of a layer's
// four products for a quarter of a second; and a sum of the results' bits, which must be the same for all. Needs the driver alone.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

using Address = uint64_t;

template <class... A>
void cu(const char* name, A... arguments) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = library ? dlsym(library, name) : nullptr;
  const int status = found ? reinterpret_cast<int (*)(A...)>(found)(arguments...) : -1;
  if (status == 0) return;
  printf("%s: error %d\n", name, status);
  exit(1);
}

Address allocate(size_t bytes) {
  Address address = 0;
  cu("cuMemAlloc_v2", &address, bytes);
  cu("cuMemsetD8_v2", address, (unsigned char)0, bytes);
  return address;
}

// As dense.cuh and hopper.cuh have them.
struct Rounded {
  Address values = 0, scales = 0;
};
struct Job {
  Address w = 0, scales = 0, bias = 0, y = 0;
  int outs = 0;
  Rounded rounded;
};
struct Jobs {
  Job job[3];
};
struct alignas(64) TensorMap {
  unsigned char bytes[128] = {};
};
struct TensorMaps {
  TensorMap of_job[3];
};

TensorMap tensor_map(Address matrix, uint64_t rows, uint64_t width) {
  TensorMap map;
  const uint64_t sizes[2] = {width, rows}, strides[1] = {2 * width};
  const unsigned tile[2] = {64, 64}, steps[2] = {1, 1};
  cu("cuTensorMapEncodeTiled", (void*)&map, 6, 2u, (void*)matrix, &sizes[0], &strides[0], &tile[0], &steps[0], 0, 3, 2, 0);
  return map;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int row_scales(int width) { return 2 * ceil_div(width, 64); }

struct Shape {
  const char* name;
  std::vector<int> outs;
  int k;
  bool gated;
  double flops(int n) const {
    double sum = 0;
    for (int each : outs) sum += 2.0 * n * k * each;
    return sum;
  }
  size_t weights() const {
    size_t sum = 0;
    for (int each : outs) sum += (size_t)each * k;
    return sum;
  }
};

const std::vector<Shape> SHAPES = {{"qkv", {4096, 1024, 1024}, 4096, false},
                                   {"o", {4096}, 4096, false},
                                   {"gated", {14336, 14336}, 4096, true},
                                   {"down", {4096}, 14336, false}};
constexpr int MOST_ROWS = 1024, WIDEST = 14336;
constexpr size_t POOL = size_t(512) << 20;  // bytes of weights

struct Memory {
  Address pool = allocate(POOL), x = allocate((size_t)MOST_ROWS * WIDEST * 2), y = allocate((size_t)MOST_ROWS * WIDEST * 4);
  Address scales = allocate((size_t)MOST_ROWS * row_scales(WIDEST) * 4);
  Rounded rounded{allocate((size_t)MOST_ROWS * WIDEST * 2), allocate((size_t)MOST_ROWS * row_scales(WIDEST) * 4)};
  Memory() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<_Float16> some(4 << 20);
    for (auto& each : some) each = (_Float16)(0.02f * normal(random));
    for (size_t at = 0; at < POOL; at += some.size() * 2) cu("cuMemcpyHtoD_v2", pool + at, (const void*)some.data(), some.size() * 2);
    for (auto& each : some) each = (_Float16)(6000.0f * normal(random));
    for (size_t at = 0, all = (size_t)MOST_ROWS * WIDEST * 2; at < all; at += some.size() * 2)
      cu("cuMemcpyHtoD_v2", x + at, (const void*)some.data(), std::min(some.size() * 2, all - at));
    std::vector<float> powers((size_t)MOST_ROWS * row_scales(WIDEST));
    for (size_t i = 0; i < powers.size(); ++i) powers[i] = 1.0f / (1 << (11 + i % 3));
    cu("cuMemcpyHtoD_v2", scales, (const void*)powers.data(), powers.size() * 4);
  }
};

struct Variant {
  std::string name;
  int width, schedule, x, y;
  void* kernels[2] = {};  // linear, gated
  int shared = 0, clusters = 0;

  explicit Variant(const std::filesystem::path& file) : name(file.stem()) {
    if (sscanf(name.c_str(), "w%d_s%d_c%1d%1d", &width, &schedule, &x, &y) != 4) exit(1);
    void* module = nullptr;
    cu("cuModuleLoad", &module, file.c_str());
    const char* names[2] = {"gemm_hopper", "gemm_gated_hopper"};
    Address constant = 0;
    size_t bytes = 0;
    cu("cuModuleGetGlobal_v2", &constant, &bytes, module, "gemm_hopper_shared_bytes");
    cu("cuMemcpyDtoH_v2", (void*)&shared, constant, sizeof shared);
    for (int i = 0; i < 2; ++i) {
      cu("cuModuleGetFunction", &kernels[i], module, names[i]);
      cu("cuFuncSetAttribute", kernels[i], 8, shared);
    }
    struct Attribute {
      int id = 4;  // cluster dimension
      int pad = 0;
      unsigned value[16] = {};
    } attribute;
    attribute.value[0] = x, attribute.value[1] = y, attribute.value[2] = 1;
    struct Config {
      unsigned grid[3], block[3] = {384, 1, 1}, shared;
      void* stream = nullptr;
      Attribute* attributes;
      unsigned count = 1;
    } config;
    config.grid[0] = x * 132, config.grid[1] = y * 132, config.grid[2] = 1;
    config.shared = shared, config.attributes = &attribute;
    cu("cuOccupancyMaxActiveClusters", &clusters, kernels[0], (const void*)&config);
  }
};

/// A product with weights from some place of the pool on.
struct Launch {
  TensorMap x_map;
  TensorMaps w_maps;
  Address scales;
  Jobs jobs;
  int n, k, mode = 0;
  bool gated;
  int blocks[2] = {};  // of outputs, 128 or 256 wide

  Launch(const Memory& memory, const Shape& shape, int n, int copy) : n(n), k(shape.k), gated(shape.gated) {
    x_map = tensor_map(memory.x, n, k), scales = memory.scales;
    Address w = memory.pool + copy % std::max<size_t>(1, POOL / 2 / shape.weights()) * shape.weights() * 2, y = memory.y;
    for (size_t i = 0; i < shape.outs.size(); ++i) {
      const int outs = shape.outs[i];
      w_maps.of_job[i] = tensor_map(w, outs, k);
      jobs.job[i].w = w, jobs.job[i].y = y, jobs.job[i].outs = outs;
      w += (size_t)outs * k * 2, y += gated ? 0 : (size_t)n * outs * 4;
      for (int wide = 0; wide < 2; ++wide)
        if (!gated || i == 0) blocks[wide] += ceil_div(outs, gated ? 64 << wide : 128 << wide);
    }
    if (gated) jobs.job[0].rounded = memory.rounded;
  }
  void run(const Variant& variant, bool in_turns) {
    void* params[] = {&x_map, &w_maps, &scales, &jobs, &n, &k, &mode};
    int clusters = ceil_div(n, 128 * variant.x) * ceil_div(blocks[variant.width == 256], variant.y);
    if (in_turns) clusters = std::min(clusters, variant.clusters);
    cu("cuLaunchKernel", variant.kernels[gated], unsigned(variant.x), unsigned(variant.y * clusters), 1u, 384u, 1u, 1u, unsigned(variant.shared), (void*)nullptr, &params[0],
       (void**)nullptr);
  }
};

/// Microseconds of `count` calls.
template <class Body>
double microseconds(int count, const Body& body) {
  void *begin = nullptr, *end = nullptr;
  cu("cuEventCreate", &begin, 0u), cu("cuEventCreate", &end, 0u);
  cu("cuEventRecord", begin, (void*)nullptr);
  for (int i = 0; i < count; ++i) body(i);
  cu("cuEventRecord", end, (void*)nullptr);
  cu("cuEventSynchronize", end);
  float milliseconds = 0;
  cu("cuEventElapsedTime", &milliseconds, begin, end);
  return 1000.0 * milliseconds;
}

uint64_t bits(Address from, size_t bytes) {
  std::vector<uint32_t> words(bytes / 4);
  cu("cuMemcpyDtoH_v2", (void*)words.data(), from, bytes);
  uint64_t sum = 0;
  for (uint32_t word : words) sum = sum * 1099511628211u + word;
  return sum;
}

int main(int count, char** arguments) {
  if (count != 2) return printf("gemm_hopper_time FOLDER\n"), 1;
  int device = 0;
  void* context = nullptr;
  cu("cuInit", 0u), cu("cuDeviceGet", &device, 0);
  cu("cuDevicePrimaryCtxRetain", &context, device), cu("cuCtxSetCurrent", context);
  char name[100] = {};
  cu("cuDeviceGetName", &name[0], 100, device);
  printf("%s; microseconds (TFLOP/s)\n", name);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1]))
    if (entry.path().extension() == ".cubin") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Variant> variants(files.begin(), files.end());
  Memory memory;
  for (int n : {512, 1024}) {
    std::vector<std::vector<Launch>> launches;  // of each shape, one a place in the pool
    for (const Shape& shape : SHAPES) {
      launches.emplace_back();
      for (int copy = 0; copy < 8; ++copy) launches.back().emplace_back(memory, shape, n, copy);
    }
    for (size_t number = 0; number < 2 * variants.size(); ++number) {
      const Variant& variant = variants[number / 2];
      const bool in_turns = number % 2;
      printf("%-12s %4d rows, %s%3d clusters", variant.name.c_str(), n, in_turns ? "in turns " : "at once, ", variant.clusters);
      uint64_t all_bits = 0;
      double layer_flops = 0;
      for (size_t i = 0; i < SHAPES.size(); ++i) {
        const Shape& shape = SHAPES[i];
        for (int warm = 0; warm < 4; ++warm) launches[i][warm % 2].run(variant, in_turns);
        launches[i][0].run(variant, in_turns);
        cu("cuCtxSynchronize");
        all_bits = all_bits * 31 + (shape.gated ? bits(memory.rounded.values, (size_t)n * WIDEST * 2) + bits(memory.rounded.scales, (size_t)n * row_scales(WIDEST) * 4)
                                                : bits(memory.y, (size_t)n * 4096 * 4));
        const double each = microseconds(24, [&](int at) { launches[i][at % 8].run(variant, in_turns); }) / 24;
        printf(" | %s %6.1f (%3.0f)", shape.name, each, shape.flops(n) / each * 1e-6);
        layer_flops += shape.flops(n);
      }
      const auto layer = [&](int at) {
        for (auto& of_shape : launches) of_shape[at % 8].run(variant, in_turns);
      };
      const double once = microseconds(10, layer) / 10;
      const int times = std::max(10, int(250000 / once));
      const double each = microseconds(times, layer) / times;
      printf(" | layer %6.1f (%3.0f) | bits %016llx\n", each, layer_flops / each * 1e-6, (unsigned long long)all_bits);
      fflush(stdout);
    }
  }
}
