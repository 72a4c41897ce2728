// How long blocks of a persistent grid wait for one another, idle and while every multiprocessor reads memory by bulk copies.
// A round: each block writes its share of x [4096], all wait, each of eight warps reads its eighth of x. Compared:
//   fence    block barrier, fence, one thread adds and polls, fence, block barrier (as in the lab of 26 November)
//   release  each writing warp adds with release; one warp polls with acquire, then a block barrier
//   words    x as words of 8 bytes, a float and the round's number (NCCL's LL): readers repeat until all numbers fit
// Times are per round, of `rounds` rounds, and include writing and reading x. Every value read is checked.
//
// `none` does not wait, and its values are wrong. decide.py reads the lines `figure KEY VALUE UNIT`. Not in the host run, whose blocks do
// not run together.
//
//   nvcc -arch=sm_90a -std=c++17 -O2 wait_lab.cu -o wait_lab && ./wait_lab          (stops within seconds)
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void must(cudaError_t e, int line) {
  if (e != cudaSuccess) printf("line %d: %s\n", line, cudaGetErrorString(e)), exit(1);
}
#define CK(...) must((__VA_ARGS__), __LINE__)

constexpr int WIDTH = 4096, WARPS = 8, THREADS = (WARPS + 1) * 32, STAGES = 6, STAGE = 32 << 10;
enum Way { FENCE, RELEASE, WORDS, NOTHING, WAYS };
constexpr const char* NAMES[] = {"fence", "release", "words", "none"};

struct Run {
  const unsigned char* weights;
  size_t bytes;  // of weights, read again and again; 0: idle
  float* x;      // [2][WIDTH]: by parity of the round
  uint2* words;  // [2][WIDTH]
  unsigned *count, *wrong, *done;
  int rounds, way;
};

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ bool passed(uint64_t* barrier, unsigned parity) {
  unsigned is;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(is) : "r"(address(barrier)), "r"(parity) : "memory");
  return is;
}
__device__ __forceinline__ void bar() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ float value(int i, int round) { return float((i * 7 + round * 13) & 1023); }
__device__ __forceinline__ unsigned seen(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__global__ void __launch_bounds__(THREADS, 1) rounds(const Run run) {
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ uint64_t full[STAGES];
  __shared__ volatile unsigned stop;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    stop = 0;
    for (uint64_t& one : full) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&one)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == WARPS) {  // keeps STAGES copies in flight until the others are done; then waits for what is pending
    if (lane != 0 || run.bytes == 0) return;
    const size_t slices = run.bytes / STAGE;
    const auto copy = [&](size_t i) {
      const unsigned to = address(stages + i % STAGES * STAGE), on = address(full + i % STAGES);
      const unsigned char* from = run.weights + (i * gridDim.x + blockIdx.x) % slices * STAGE;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(on), "r"(STAGE) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                   "l"(from), "r"(STAGE), "r"(on) : "memory");
    };
    size_t begun = 0, ended = 0;
    for (; begun < STAGES; ++begun) copy(begun);
    for (; ended < begun; ++ended) {
      while (!passed(full + ended % STAGES, ended / STAGES & 1)) {}
      if (!stop) copy(begun++);
    }
    atomicAdd(run.done, (unsigned)begun);
    return;
  }
  const int first = WIDTH * blockIdx.x / gridDim.x, end = WIDTH * (blockIdx.x + 1) / gridDim.x;
  unsigned wrong = 0;
  for (int round = 0; round < run.rounds; ++round) {
    float* const x = run.x + round % 2 * WIDTH;
    uint2* const words = run.words + round % 2 * WIDTH;
    bar();  // all of this block have read the round before
    if (warp < 4)  // each of four warps writes a quarter of the share
      for (int i = first + warp + 4 * lane; i < end; i += 128) {
        const float v = value(i, round);
        if (run.way == WORDS)
          asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(words + i), "r"(__float_as_uint(v)), "r"(round + 1u) : "memory");
        else
          __stcg(x + i, v);
      }
    if (run.way == FENCE) {
      bar();
      if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(run.count) : "memory");
        while (seen(run.count) < gridDim.x * (round + 1u)) {}
        __threadfence();
      }
      bar();
    } else if (run.way == RELEASE) {
      __syncwarp();
      if (warp < 4 && lane == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(run.count) : "memory");
      if (threadIdx.x == WARPS * 32 - 1)
        while (seen(run.count) < 4 * gridDim.x * (round + 1u)) {}
      bar();
    }
    constexpr int EACH = WIDTH / WARPS / 32;
    if (run.way == WORDS) {
      uint4 w[EACH / 2];  // two words of 8 bytes each; all are loaded together, again until every number fits
      bool all;
      do {
        all = true;
#pragma unroll
        for (int j = 0; j < EACH / 2; ++j)
          asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(w[j].x), "=r"(w[j].y), "=r"(w[j].z), "=r"(w[j].w)
                       : "l"(words + (warp * EACH + 2 * j) * 32 + 2 * lane) : "memory");
#pragma unroll
        for (int j = 0; j < EACH / 2; ++j) all = all && w[j].y == round + 1u && w[j].w == round + 1u;
      } while (!all);
#pragma unroll
      for (int j = 0; j < EACH / 2; ++j) {
        const int i = (warp * EACH + 2 * j) * 32 + 2 * lane;
        wrong += __uint_as_float(w[j].x) != value(i, round) || __uint_as_float(w[j].z) != value(i + 1, round);
      }
    } else {
      float v[EACH];
#pragma unroll
      for (int j = 0; j < EACH; ++j) v[j] = __ldcg(x + (warp * EACH + j) * 32 + lane);
#pragma unroll
      for (int j = 0; j < EACH; ++j) wrong += v[j] != value((warp * EACH + j) * 32 + lane, round);
    }
  }
  bar();
  if (threadIdx.x == 0) stop = 1;
  if (wrong) atomicAdd(run.wrong, wrong);
}

int main() {
  constexpr size_t BYTES = size_t(8) << 30;
  constexpr int ROUNDS = 2000;
  int sms;
  CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  Run run = {};
  unsigned char* weights;
  CK(cudaMalloc(&weights, BYTES)), CK(cudaMemset(weights, 1, BYTES));
  CK(cudaMalloc(&run.x, 2 * WIDTH * 4)), CK(cudaMalloc(&run.words, 2 * WIDTH * 8)), CK(cudaMalloc(&run.count, 12));
  run.weights = weights, run.wrong = run.count + 1, run.done = run.count + 2, run.rounds = ROUNDS;
  CK(cudaFuncSetAttribute(rounds, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * STAGE));
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a)), CK(cudaEventCreate(&b));
  float best[WAYS][2] = {};
  for (int repeat = 0; repeat < 3; ++repeat)  // in turns; the figures are the fastest of three
    for (int loaded = 0; loaded < 2; ++loaded)
      for (run.way = 0; run.way < WAYS; ++run.way) {
        run.bytes = loaded ? BYTES : 0;
        CK(cudaMemset(run.count, 0, 12)), CK(cudaMemset(run.words, 0, 2 * WIDTH * 8));
        void* parameters[] = {&run};
        CK(cudaEventRecord(a));
        CK(cudaLaunchCooperativeKernel((void*)rounds, dim3(sms), dim3(THREADS), parameters, STAGES * STAGE));
        CK(cudaEventRecord(b)), CK(cudaEventSynchronize(b));
        float ms;
        unsigned counts[3];
        CK(cudaEventElapsedTime(&ms, a, b)), CK(cudaMemcpy(counts, run.count, 12, cudaMemcpyDefault));
        const char* const load = loaded ? "loaded" : "idle";
        const double rate = double(counts[2]) * STAGE / ms / 1e6;
        if (counts[1] != 0 && run.way != NOTHING) return printf("FAIL %s, %s: %u wrong values\n", NAMES[run.way], load, counts[1]), 1;
        best[run.way][loaded] = repeat == 0 ? ms : std::min(best[run.way][loaded], ms);
        if (repeat == 2) printf("figure wait.%s.%s %.3f us\n", NAMES[run.way], load, 1e3 * best[run.way][loaded] / ROUNDS);
        if (repeat == 2 && loaded) printf("figure wait.%s.read %.0f GB/s\n", NAMES[run.way], rate);
        fflush(stdout);
      }
}
