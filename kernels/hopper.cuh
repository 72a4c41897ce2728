// Features of compute capability 9.0 only: blocks in clusters, copies of whole tiles to several blocks at once (TMA), and products
// that read both operands from shared memory (wgmma). Each function here is one instruction.
#pragma once
#include "bulk_copy.cuh"

/// Whether the code is being compiled for them: it then runs on 9.0 only.
#if defined(CUDA_HOST_SHIM) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

/// An f16 matrix [rows, width] and the tile size of its copies, as encoded by cuTensorMapEncodeTiled; opaque.
#ifdef CUDA_HOST_SHIM
struct TensorMap {
#else
struct alignas(64) TensorMap {
#endif
  unsigned long long words[16];
};

#if HAS_WGMMA

/// Declares that kernel `name` runs in clusters of X x Y blocks, which divide the grid evenly.
#ifdef CUDA_HOST_SHIM
#define CLUSTERS(name, X, Y) CUDA_HOST_CONSTANT(name##_cluster, (X) | (Y) << 8)
#define IN_CLUSTERS(X, Y)
#else
#define CLUSTERS(name, X, Y)
#define IN_CLUSTERS(X, Y) __cluster_dims__(X, Y, 1)
#endif

/// Of a wgmma operand, and of a copied tile.
constexpr int OPERAND_ALIGNMENT = 1024;

/// This block's dynamic shared memory from the first aligned address on. PRECOND: as above; OPERAND_ALIGNMENT bytes more than are used.
__device__ __forceinline__ unsigned char* operand_memory() {
  unsigned char* const all = shared_memory();
  return all + (OPERAND_ALIGNMENT - shared_address(all) % OPERAND_ALIGNMENT) % OPERAND_ALIGNMENT;
}

/// A barrier of all threads of a cluster, and nothing more: it does not make their earlier writes visible.
__device__ __forceinline__ void cluster_sync() {
#ifdef CUDA_HOST_SHIM
  cuda_host::running->cluster_barrier(CUDA_HOST_SITE);
#else
  // not .aligned: a lane of a warp may arrive later than the others
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
#endif
}

// ---- copies to several blocks ------------------------------------------------------------------------------------------

/// Barriers of a block of the cluster, at the same offset as this block's.
struct RemoteBarriers {
#ifdef CUDA_HOST_SHIM
  Mbarrier* barriers;
  unsigned rank;
  RemoteBarriers(Mbarrier* same, unsigned of_rank) : barriers(same), rank(of_rank) {}
#else
  unsigned address;
  __device__ __forceinline__ RemoteBarriers(Mbarrier* same, unsigned rank) {
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(same)), "r"(rank));
  }
#endif
};

/// Arrives at one of them. Memory is ordered by the waits on copies and products: a release to the whole cluster would be
/// a device-wide fence in every iteration of a loop.
__device__ __forceinline__ void mbarrier_arrive(const RemoteBarriers& remote, int i) {
#ifdef CUDA_HOST_SHIM
  cuda_host::mbarrier_arrive(remote.barriers + i, remote.rank);
#else
  const unsigned address = remote.address + i * sizeof(Mbarrier);
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
#endif
}

/// Starts the copy of a tile, from `column` and `row` of its matrix on, to the same offset `to` in every block of the cluster
/// whose bit is set in `blocks`; their barriers at the offset of `barrier` count its bytes. Elements outside the matrix are zeros.
/// MULTICAST: whether `blocks` contains more than this block.
template <bool MULTICAST>
__device__ __forceinline__ void copy_tile(unsigned char* to, const TensorMap& map, int column, int row, Mbarrier* barrier,
                                          unsigned blocks) {
#ifdef CUDA_HOST_SHIM
  cuda_host::copy_tile(to, &map, column, row, barrier, blocks);
#else
  const unsigned at = shared_address(to), counts = shared_address(barrier);
  if constexpr (MULTICAST)
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(at),
        "l"(&map), "r"(column), "r"(row), "r"(counts), "h"((unsigned short)blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(at),
        "l"(&map), "r"(column), "r"(row), "r"(counts)
        : "memory");
#endif
}

// ---- products of four warps ------------------------------------------------------------------------------------------

/// Rows of 128 bytes in shared memory, as written by copy_tile: their eight 16-byte chunks are permuted by the row's number.
/// PRECOND: the first row is aligned to 1024 bytes.
struct Operand {
  unsigned low;  // of the descriptor; the high word is the same for all

  __device__ __forceinline__ static Operand at(const unsigned char* rows) {
    return {shared_address(rows) >> 4 | 1u << 16};
  }
  /// The operand `sixteens` times 16 bytes further on: a multiple of 1024 bytes, and less than 128 within a row.
  __device__ __forceinline__ Operand plus(unsigned sixteens) const { return {low + sixteens}; }
  /// Operand of wgmma.
  __device__ __forceinline__ unsigned long long descriptor() const {
    constexpr unsigned long long EIGHT_ROWS = 1024 >> 4, PERMUTED_128 = 1;
    return EIGHT_ROWS << 32 | PERMUTED_128 << 62 | low;
  }
};

/// Raises or lowers the registers per thread to REGISTERS from here on. PRECOND: the four warps of a group; a multiple of 8; some
/// warps only take what others have given up, of the registers that the kernel was launched with.
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
#ifndef CUDA_HOST_SHIM
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}
template <int REGISTERS>
__device__ __forceinline__ void keep_registers() {
#ifndef CUDA_HOST_SHIM
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}

/// Before the first product of a group: earlier accesses to its registers are complete.
__device__ __forceinline__ void wgmma_fence() {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_fence();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/// Closes the group of products started so far.
__device__ __forceinline__ void wgmma_commit() {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_commit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

#define FLOATS_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLOATS_32(d) FLOATS_8(d, 0), FLOATS_8(d, 8), FLOATS_8(d, 16), FLOATS_8(d, 24)
#define FLOATS_64(d)                                                                                            \
  FLOATS_8(d, 0), FLOATS_8(d, 8), FLOATS_8(d, 16), FLOATS_8(d, 24), FLOATS_8(d, 32), FLOATS_8(d, 40), FLOATS_8(d, 48), \
      FLOATS_8(d, 56)

/// Waits until at most KEEP groups are in flight. `d`: sums of the finished ones, which must not be read earlier.
template <int KEEP>
__device__ __forceinline__ void wgmma_wait(float (&d)[64]) {
#ifdef CUDA_HOST_SHIM
  (void)d;
  cuda_host::wgmma_wait(CUDA_HOST_SITE, KEEP);
#else
  asm volatile("wgmma.wait_group.sync.aligned %64;" : FLOATS_64(d) : "n"(KEEP) : "memory");
#endif
}

template <int KEEP>
__device__ __forceinline__ void wgmma_wait(float (&d)[32]) {
#ifdef CUDA_HOST_SHIM
  (void)d;
  cuda_host::wgmma_wait(CUDA_HOST_SITE, KEEP);
#else
  asm volatile("wgmma.wait_group.sync.aligned %32;" : FLOATS_32(d) : "n"(KEEP) : "memory");
#endif
}

/// Starts d[64 x 128] = or += a[64 x 16] b[128 x 16]^T, of f16. In lane 4g + t of warp w, d[4j ..] holds columns 8j + 2t and the next
/// of row 16w + g, then of row 16w + g + 8. PRECOND: four whole warps, the first one's number a multiple of four.
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], Operand a, Operand b, bool accumulate) {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_m64n128k16(d, a.descriptor(), b.descriptor(), accumulate);
#else
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulate, 1, 1, 0, 0;\n}"
      : FLOATS_64(d)
      : "l"(a.descriptor()), "l"(b.descriptor()), "r"((int)accumulate));
#endif
}

#define WGMMA_32 \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/// The same for d[64 x 64].
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], Operand a, Operand b, bool accumulate) {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_m64n64k16(d, a.descriptor(), b.descriptor(), accumulate);
#else
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n" WGMMA_32 "%32, %33, accumulate, 1, 1, 0, 0;\n}"
               : FLOATS_32(d)
               : "l"(a.descriptor()), "l"(b.descriptor()), "r"((int)accumulate));
#endif
}

/// Starts d[64 x 64] = or += a[64 x 16] b[16 x 64], of f16: a in registers, in mma_m16n8k16's layout for the 16 rows of each warp; b a row
/// of 64 elements for each of the 16.
__device__ __forceinline__ void wgmma_m64n64k16_rows(float (&d)[32], const unsigned (&a)[4], Operand b, bool accumulate) {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_m64n64k16_rows(d, a, b.descriptor(), accumulate);
#else
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %37, 0;\n" WGMMA_32
               "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 1;\n}"
               : FLOATS_32(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()), "r"((int)accumulate));
#endif
}

/// Makes this thread's writes to shared memory, and copies that it has waited for, visible to products; other threads' after a barrier.
__device__ __forceinline__ void wgmma_fence_shared() {
#ifdef CUDA_HOST_SHIM
  cuda_host::wgmma_fence_shared();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#undef WGMMA_32
#undef FLOATS_64
#undef FLOATS_32
#undef FLOATS_8
#endif  // HAS_WGMMA
