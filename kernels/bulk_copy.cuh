// Features of compute capability 9.0 and newer: barriers in shared memory that count bytes, and bulk copies that arrive at them.
// Each function here is one instruction, except mbarrier_wait.
#pragma once
#include "common.cuh"

/// Whether the code is being compiled for them.
#if defined(CUDA_HOST_SHIM) || __CUDA_ARCH__ >= 900
#define HAS_BULK_COPIES 1
#else
#define HAS_BULK_COPIES 0
#endif

#if HAS_BULK_COPIES

/// Dynamic shared memory of this block. PRECOND: nothing else uses dyn_smem.
__device__ __forceinline__ unsigned char* shared_memory() {
#ifdef CUDA_HOST_SHIM
  return cuda_host::running->shared_memory();
#else
  return dyn_smem;
#endif
}

__device__ __forceinline__ unsigned shared_address(const void* p) {
#ifdef CUDA_HOST_SHIM
  return (unsigned)(static_cast<const unsigned char*>(p) - cuda_host::running->shared_memory());
#else
  return (unsigned)__cvta_generic_to_shared(p);
#endif
}

// ---- barriers that count arrivals and bytes --------------------------------------------------------------------------

/// A phase ends when the barrier's number of arrivals and all announced bytes are complete; then the next begins.
using Mbarrier = unsigned long long;

__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, unsigned arrivals) {
#ifdef CUDA_HOST_SHIM
  cuda_host::mbarrier_init(barrier, arrivals);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

/// Makes barriers initialised by this thread visible to copies, and to other blocks of a cluster, once a barrier of all has followed.
__device__ __forceinline__ void mbarrier_init_done() {
#ifndef CUDA_HOST_SHIM
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// Arrives and announces `bytes` for this phase.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* barrier, unsigned bytes) {
#ifdef CUDA_HOST_SHIM
  cuda_host::mbarrier_expect(barrier, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

/// Arrives; this thread's earlier reads and writes are complete for waiters.
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
#ifdef CUDA_HOST_SHIM
  cuda_host::mbarrier_arrive(barrier, cuda_host::running->current->block_rank);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

/// Waits until the phase of this parity has ended (the one before the first has parity 1). Waiting twenty seconds is a defect: it ends in
/// a fault, which the self-test can tell from a result, instead of a hang.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
#ifdef CUDA_HOST_SHIM
  cuda_host::mbarrier_wait(CUDA_HOST_SITE, barrier, parity);
#else
  constexpr unsigned TRIES = 2000, NANOSECONDS = 10'000'000;  // per try, at most
#pragma unroll 1
  for (unsigned tries = 0; tries < TRIES; ++tries) {
    unsigned ended;
    asm volatile(
        "{\n.reg .pred ended;\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2, %3;\n"
        "selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity), "r"(NANOSECONDS)
        : "memory");
    if (ended) return;
  }
  __trap();
#endif
}

/// A position in a ring of stages, each with a barrier: `parity` is that of the stage's phase in this round.
struct Turn {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

/// True in one lane, always the same. The compiler knows that it is a single lane, and passes its addresses to copies without a loop over
/// lanes. PRECOND: the whole warp.
__device__ __forceinline__ bool elected() {
#ifdef CUDA_HOST_SHIM
  return threadIdx.x % 32 == 0;
#else
  unsigned is;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is;
#endif
}

/// Starts the copy of `bytes` bytes, which `barrier` counts. They are read once, so L2 evicts them first. PRECOND: both addresses and
/// `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(unsigned char* to, const void* from, unsigned bytes, Mbarrier* barrier) {
#ifdef CUDA_HOST_SHIM
  cuda_host::copy_bulk(to, from, bytes, barrier);
#else
  unsigned long long evict_first;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_first)
      : "memory");
#endif
}

#endif  // HAS_BULK_COPIES
