// Times versions of gemv.cu and gemv_ring.cu on a device: the products of one step in the shape of Llama-3.1-8B, 32 layers and the head,
// each with its own weights, as one CUDA graph, with and without early starts; then each product alone. A version is machine code:
//
//   nvcc=$(tests/cuda_host/nvcc.sh)
//   $nvcc -cubin -gencode arch=compute_90a,code=sm_90a -std=c++17 -I kernels kernels/gemv_ring.cu -o ring.cubin
//   $nvcc -arch=sm_90a -std=c++17 -O2 benches/gpu/chain.cu -o chain -L"$(dirname "$nvcc")/../lib" -lcudart_static -ldl -lrt -lpthread
//   chain NAME ring.cubin ring 1 NAME gemv.cubin r8 1 ..     # name, machine code, suffix of the kernels, rows
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  printf("%s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

// Layouts as in dense.cuh and rope.cuh.
struct MatrixJob {
  const void* w;
  const float *scales, *bias;
  float* y;
  int outs;
  void* rounded[2];
};
struct MatrixJobs {
  MatrixJob job[3];
};
struct RopeTarget {
  const void *cos, *sin, *rows, *sequences;
  int layer, kv_heads, head_dim;
  float query_scale;
  int k_type, v_type;
};

constexpr int HIDDEN = 4096, INNER = 14336, KEYS = 1024, VOCAB = 128256, LAYERS = 32, MAX_ROWS = 16;
constexpr size_t QKV_SIZE = size_t(HIDDEN + 2 * KEYS) * HIDDEN, O_SIZE = size_t(HIDDEN) * HIDDEN, INNER_SIZE = size_t(INNER) * HIDDEN;
constexpr size_t LAYER_SIZE = QKV_SIZE + O_SIZE + 3 * INNER_SIZE, SIZE = LAYERS * LAYER_SIZE + size_t(VOCAB) * HIDDEN;
enum Which { QKV, O, GATED, DOWN, HEAD, PRODUCTS, ALL = -1 };
constexpr const char* NAMES[] = {"q, k, v", "o", "gate and up", "down", "head"};
constexpr size_t SIZES[] = {QKV_SIZE, O_SIZE, 2 * INNER_SIZE, INNER_SIZE, size_t(VOCAB) * HIDDEN};

__device__ float noise(unsigned x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  return (x & 0xffff) / 32767.5f - 1.0f;
}
__global__ void fill(__half* weights, size_t count) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    weights[i] = __float2half(0.02f * noise(unsigned(i) * 2654435761u + unsigned(i >> 32)));
}
__global__ void fill(float* x, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) x[i] = noise(i);
}

struct Device {
  cudaStream_t stream;
  int multiprocessors;
  __half* weights;
  float *x, *q, *k, *v, *inner, *logits, *norm;

  Device() {
    must(cudaStreamCreate(&stream), "a stream");
    must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "the multiprocessors");
    must(cudaMalloc(&weights, SIZE * 2), "the weights");
    fill<<<1024, 256, 0, stream>>>(weights, SIZE);
    for (auto [buffer, width] : {std::pair{&x, HIDDEN}, {&q, HIDDEN}, {&k, KEYS}, {&v, KEYS}, {&inner, INNER}, {&logits, VOCAB}, {&norm, HIDDEN}}) {
      must(cudaMalloc(buffer, size_t(width) * MAX_ROWS * 4), "activations");
      fill<<<64, 256, 0, stream>>>(*buffer, width * MAX_ROWS);
    }
    must(cudaStreamSynchronize(stream), "random numbers");
  }
};

struct Version {
  cudaKernel_t gemv, qkv, gated;
  int rows, threads, outs, gates, shared = 0;
  bool ring;

  Version(const char* file, const std::string& suffix, int rows) : rows(rows), ring(suffix == "ring") {
    threads = ring ? 288 : 256, outs = ring ? 8 : suffix == "r8" ? 16 : 32, gates = ring ? 4 : 16;
    cudaLibrary_t library;
    must(cudaLibraryLoadFromFile(&library, file, nullptr, nullptr, 0, nullptr, nullptr, 0), file);
    for (auto [kernel, part] : {std::pair{&gemv, ""}, {&qkv, "_qkv"}, {&gated, "_gated"}}) {
      const std::string name = std::string("gemv") + part + "_f16_" + suffix;
      void* exported;
      size_t size;
      unsigned bytes;
      must(cudaLibraryGetKernel(kernel, library, name.c_str()), name.c_str());
      must(cudaLibraryGetGlobal(&exported, &size, library, (name + "_shared_bytes").c_str()), name.c_str());
      must(cudaMemcpy(&bytes, exported, sizeof bytes, cudaMemcpyDefault), name.c_str());
      shared = std::max(shared, int(bytes));
      must(cudaFuncSetAttribute((const void*)*kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), name.c_str());
    }
  }

  void launch(const Device& device, cudaKernel_t kernel, int blocks, bool early, void** parameters) const {
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization, attribute[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(ring ? std::min(blocks, device.multiprocessors) : blocks), config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared, config.stream = device.stream, config.attrs = attribute, config.numAttrs = early;
    must(cudaLaunchKernelExC(&config, (const void*)kernel, parameters), "a launch");
  }

  void product(const Device& d, int which, int layer, bool early) const {
    const __half *qkv_w = d.weights + layer * LAYER_SIZE, *o_w = qkv_w + QKV_SIZE, *gate_w = o_w + O_SIZE;
    const auto blocks = [](int outs, int of_block) { return (outs + of_block - 1) / of_block; };
    int count = rows, k = which == DOWN ? INNER : HIDDEN, mode = which == O || which == DOWN;
    float offset = 0, eps = 1e-5f;
    const float *x = which == O ? d.q : which == DOWN ? d.inner : d.x, *norm = d.norm;
    MatrixJobs jobs = {};
    RopeTarget to = {};
    if (which == QKV) {
      jobs = {{{qkv_w, nullptr, nullptr, d.q, HIDDEN}, {qkv_w + O_SIZE, nullptr, nullptr, d.k, KEYS},
               {qkv_w + O_SIZE + size_t(KEYS) * HIDDEN, nullptr, nullptr, d.v, KEYS}}};
      void* parameters[] = {&x, &norm, &offset, &eps, &jobs, &k, &count, &to};
      return launch(d, qkv, blocks(HIDDEN, outs) + 2 * blocks(KEYS, outs), early, parameters);
    }
    if (which == GATED) {
      jobs = {{{gate_w, nullptr, nullptr, d.inner, INNER}, {gate_w + INNER_SIZE, nullptr, nullptr, nullptr, INNER}}};
      void* parameters[] = {&x, &norm, &offset, &eps, &jobs, &k, &count, &mode};
      return launch(d, gated, blocks(INNER, gates), early, parameters);
    }
    const __half* w = which == O ? o_w : which == DOWN ? gate_w + 2 * INNER_SIZE : d.weights + LAYERS * LAYER_SIZE;
    jobs = {{{w, nullptr, nullptr, which == HEAD ? d.logits : d.x, which == HEAD ? VOCAB : HIDDEN}}};
    void* parameters[] = {&x, &jobs, &k, &count, &mode};
    launch(d, gemv, blocks(jobs.job[0].outs, outs), early, parameters);
  }

  /// Microseconds of one product, or of all products of a step: the median of ten replays.
  double time(const Device& d, int which, bool early) const {
    constexpr int HEADS = 8;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeGlobal), "a capture");
    for (int layer = 0; layer < LAYERS; ++layer)
      for (int i = QKV; i < HEAD; ++i)
        if (which == ALL || which == i) product(d, i, layer, early);
    for (int i = 0; i < (which == ALL ? 1 : which == HEAD ? HEADS : 0); ++i) product(d, HEAD, 0, early);
    must(cudaStreamEndCapture(d.stream, &graph), "a capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin), "an event"), must(cudaEventCreate(&end), "an event");
    std::vector<float> times;
    for (int run = 0; run < 12; ++run) {
      float milliseconds;
      fill<<<64, 256, 0, d.stream>>>(d.x, HIDDEN * MAX_ROWS);
      must(cudaEventRecord(begin, d.stream), "an event"), must(cudaGraphLaunch(exec, d.stream), "a graph");
      must(cudaEventRecord(end, d.stream), "an event"), must(cudaEventSynchronize(end), "a graph");
      must(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
      if (run >= 2) times.push_back(1000 * milliseconds);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] / (which == ALL ? 1 : which == HEAD ? HEADS : LAYERS);
  }
};

int main(int count, char** arguments) {
  if (count < 5 || count % 4 != 1) return printf("chain NAME CUBIN SUFFIX ROWS ..\n"), 2;
  const Device device;
  for (int i = 1; i < count; i += 4) {
    const Version version(arguments[i + 1], arguments[i + 2], std::atoi(arguments[i + 3]));
    const double early = version.time(device, ALL, true), plain = version.time(device, ALL, false);
    printf("%-20s %2d rows: %6.1f us with early starts (%4.0f GB/s), %6.1f without", arguments[i], version.rows, early, SIZE * 2e-3 / early, plain);
    for (int which = QKV; which < PRODUCTS; ++which) {
      const double each = version.time(device, which, true);
      printf(" | %s %.1f (%.0f)", NAMES[which], each, SIZES[which] * 2e-3 / each);
    }
    printf("\n"), fflush(stdout);
  }
}
