// The rate at which a device of compute capability 9.0 or newer reads memory by bulk copies: the floor of all memory-bound
// work. Plain loads do not reach it.
#include <cstdint>

constexpr int THREADS = 256;
constexpr int STAGES = 8;
constexpr int CHUNK = 16 << 10;  // bytes
constexpr int VECTORS = CHUNK / sizeof(uint4);

__device__ inline uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

__device__ inline void copy_chunk(uint4* to, const uint4* from, uint64_t* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(CHUNK) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(CHUNK), "r"(shared_address(full))
               : "memory");
}

__device__ inline void wait_for(uint64_t* full, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(full)), "r"(parity)
        : "memory");
}

// data: [chunks * VECTORS]; sum: one word, to which all words of data are added (mod 2^32), so that no copy can be skipped.
// One block per multiprocessor, THREADS threads, STAGES * CHUNK bytes of dynamic shared memory.
extern "C" __global__ void __launch_bounds__(THREADS) read_rate(const uint4* data, uint64_t chunks, uint32_t* sum) {
  extern __shared__ __align__(128) uint4 ring[];  // [STAGES][VECTORS]
  __shared__ uint64_t full[STAGES];
  const uint64_t first = chunks * blockIdx.x / gridDim.x, count = chunks * (blockIdx.x + 1) / gridDim.x - first;
  const uint4* const mine = data + first * VECTORS;
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : full) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (uint64_t i = 0; i < STAGES && i < count; ++i) copy_chunk(ring + i * VECTORS, mine + i * VECTORS, full + i);
  }
  __syncthreads();
  uint32_t total = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t stage = i % STAGES;
    wait_for(full + stage, i / STAGES & 1);
    for (int j = threadIdx.x; j < VECTORS; j += THREADS) {
      const uint4 v = ring[stage * VECTORS + j];
      total += v.x + v.y + v.z + v.w;
    }
    __syncthreads();  // all threads have read the stage
    if (threadIdx.x == 0 && i + STAGES < count)
      copy_chunk(ring + stage * VECTORS, mine + (i + STAGES) * VECTORS, full + stage);
  }
  atomicAdd(sum, total);
}
