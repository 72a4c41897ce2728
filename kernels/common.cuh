// Shared by all kernels: the structs in device memory, 16-byte loads and stores of f32, f16 and bf16, reductions, and
// one function per PTX instruction. Builds with nvcc, NVRTC and, for tests, as C++17 for the host (CUDA_HOST_SHIM).
//
// For the host: compile with -fno-strict-aliasing (16-byte loads read floats as words, as everywhere in CUDA).
#pragma once
#ifndef CUDA_HOST_SHIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// ---- data in device memory ------------------------------------------------------------------------------------------

/// One row of a pass: `token` enters at `position` of the sequence in `slot`; `stream` is the sequence's number for the sampler. One load.
struct alignas(16) RowState {
  int slot, position, token, stream;
};

/// Where a head attends: entropy of its reweighted attention in nats, and softmax weights of places (attn_places.cu).
struct HeadPlaces {
  float entropy, own, previous, first, prompt;
};

/// Sums of hidden states at each point they pass through, and the latest rows, not yet in the sums (layer_sums.cu).
struct LayersView {
  double* sums;  // [points, hidden_size]; null: not recorded
  float* rows;   // [points, kept, hidden_size], row r at r % kept
  int* counts;   // [points, ceil(hidden_size / 256)] rows seen so far, for each block of columns
};

/// The trace of a sequence; row r = position - first_traced_row. K = heads kept per row.
struct TraceView {
  int* heads;        // [rows, K] l * H + h, entropy ascending, ties by lower id; -1: none
  float* entropies;  // [rows, K] nats
  float* maxima;     // [rows, K] m'
  float* sums;       // [rows, K] Z' (over f under the regularized rule)
  float* queries;    // [rows, K, head_dim] rotated and scaled; the largest head_dim
  __half* hidden;    // [rows, hidden_size] after the final norm, times a power of two
  float* gaps;       // [rows] from the last kept entropy to the best one not kept
  HeadPlaces* places;  // [rows, layers, heads], of every head; null: not recorded
  LayersView layers;
};

/// A sequence's cache, [layers][kv_heads][capacity][head_dim] each, and its trace. If layers differ in size, a kernel's
/// `layer` is the number of same-sized layers stored before it.
struct SequenceView {
  void* k;
  void* v;
  unsigned capacity;     // positions, a multiple of 64
  int first_traced_row;  // rows before it are not recorded
  TraceView trace;
  float* states;      // of its delta nets, after the last row (delta_net.cu)
  float** snapshots;  // [positions / interval + 1] destinations for copies of them, by tokens / interval; null: none
};

/// A layer's attention, indexed by its number among the layers with attention: its number among same-sized layers in the cache, its sizes.
struct LayerShape {
  int layer, kv_heads, head_dim;
  int window;  // positions that a row attends to, itself included; 0: all
};

/// The work of one block of attn_prefill.cu: lines `line` .. `line` + 64 (with a head_dim above 256, 32) of the run of `rows` rows that
/// starts at row `first`. Line i of a run is row i / group, head i % group of a group of query heads.
struct PrefillPart {
  int first, rows, line, padding;
};

/// The state of one head of one row: softmax maximum and sum, and m', Z', S' of the reweighted attention.
struct HeadState {
  float m, z, mw, zw, sw;
};

/// All dynamic shared memory; each kernel defines its own layout.
extern __shared__ __align__(16) unsigned char dyn_smem[];

/// Exports the dynamic shared memory of kernel `name`, in bytes, which the host reads when it loads the kernel. Required
/// for every kernel.
#ifdef CUDA_HOST_SHIM
#define SHARED_BYTES(name, bytes) CUDA_HOST_CONSTANT(name##_shared_bytes, bytes)
#else
#define SHARED_BYTES(name, bytes)                    \
  extern "C" {                                       \
  __device__ unsigned name##_shared_bytes = (bytes); \
  }
#endif

/// A variable of constant memory that the host may set in a loaded module, and its value until then.
#ifdef CUDA_HOST_SHIM
#define SETTABLE(type, name, ...)   \
  static type name = __VA_ARGS__;   \
  CUDA_HOST_VARIABLE(name)
#else
#define SETTABLE(type, name, ...)          \
  extern "C" {                             \
  __constant__ type name = __VA_ARGS__;    \
  }
#endif

/// Declares that kernel `name` may start while earlier kernels run, because it touches none of their data before
/// `wait_for_earlier_grids` (programmatic dependent launch). The host reads this when it loads the kernel.
#ifdef CUDA_HOST_SHIM
#define STARTS_EARLY(name) CUDA_HOST_CONSTANT(name##_starts_early, 1)
#elif __CUDA_ARCH__ < 900
#define STARTS_EARLY(name)  // this wait does not exist here: the host finds no symbol, and waits itself
#else
#define STARTS_EARLY(name)                     \
  extern "C" {                                 \
  __device__ unsigned name##_starts_early = 1; \
  }
#endif

/// A kernel's PRECOND on its grid, where that follows from its parameters; ANY_GRID where it does not. Checked when
/// kernels run on the host: surplus blocks return immediately and would go unnoticed.
#ifdef CUDA_HOST_SHIM
#define PRECOND_GRID(x, y) ::cuda_host::check_grid((unsigned)(x), (unsigned)(y))
#else
#define PRECOND_GRID(x, y)
#endif
constexpr unsigned ANY_GRID = 0;
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// Not inlined, for rare paths of a loop: their code and registers stay out of the loop.
#ifdef CUDA_HOST_SHIM
#define OUT_OF_LINE __attribute__((noinline))
#else
#define OUT_OF_LINE __noinline__
#endif

constexpr int MAX_KEEP = 32;  // max K: heads that a trace keeps per row

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ---- element types --------------------------------------------------------------------------------------------------

/// Elements of type T in 16 bytes.
template <class T>
constexpr int VEC = 16 / (int)sizeof(T);

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) {
  return __float2half(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}

/// The two f16 or bf16 elements of a 32-bit word (the lower half first), as float32; and back, rounded to nearest.
template <class T>
__device__ __forceinline__ float2 unpack2(unsigned word);
template <>
__device__ __forceinline__ float2 unpack2<__half>(unsigned word) {
  __half2 pair;
  memcpy(&pair, &word, 4);
  return __half22float2(pair);
}
template <>
__device__ __forceinline__ float2 unpack2<__nv_bfloat16>(unsigned word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
template <class T>
__device__ __forceinline__ unsigned pack2(float low, float high);
template <>
__device__ __forceinline__ unsigned pack2<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  unsigned word;
  memcpy(&word, &pair, 4);
  return word;
}
template <>
__device__ __forceinline__ unsigned pack2<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned word;
  memcpy(&word, &pair, 4);
  return word;
}

/// 16 bytes of elements as float32.
template <class T>
__device__ __forceinline__ void widen(const uint4& raw, float (&out)[VEC<T>]) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = unpack2<T>(words[i]);
      out[2 * i] = pair.x;
      out[2 * i + 1] = pair.y;
    }
  }
}

/// The reverse of `widen`, rounded to nearest.
template <class T>
__device__ __forceinline__ uint4 narrow(const float (&in)[VEC<T>]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(in[i]);
    } else {
      words[i] = pack2<T>(in[2 * i], in[2 * i + 1]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Loads or stores 16 bytes of elements. PRECOND: `p` is aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load_vec(const T* p, float (&out)[VEC<T>]) {
  widen<T>(*reinterpret_cast<const uint4*>(p), out);
}
template <class T>
__device__ __forceinline__ void store_vec(T* p, const float (&in)[VEC<T>]) {
  *reinterpret_cast<uint4*>(p) = narrow<T>(in);
}

/// A float32 key in the cache, in the form the tensor cores take: x = high + low, two f16 values that hold 22 bits of x, or
/// 2^-25. A position's head_dim high parts come first, then its low parts. Not finite beyond +-65504.
struct Halves {
  __half parts[2];
};

__device__ __forceinline__ void split_halves(float x, __half& high, __half& low) {
  high = from_f32<__half>(x);
  low = from_f32<__half>(x - to_f32(high));
}

/// Dimensions `dim` .. `dim` + VEC<K> of the key of one position. PRECOND: `key` is aligned to 16 bytes, `dim` a multiple
/// of VEC<K>.
template <class K>
__device__ __forceinline__ void load_key(const K* key, int head_dim, int dim, float (&out)[VEC<K>]) {
  if constexpr (sizeof(K) == sizeof(Halves)) {
    const __half* parts = reinterpret_cast<const __half*>(key) + dim;
    const uint2 high = *reinterpret_cast<const uint2*>(parts), low = *reinterpret_cast<const uint2*>(parts + head_dim);
    const float2 first = unpack2<__half>(high.x), second = unpack2<__half>(high.y);
    const float2 first_low = unpack2<__half>(low.x), second_low = unpack2<__half>(low.y);
    out[0] = first.x + first_low.x, out[1] = first.y + first_low.y;
    out[2] = second.x + second_low.x, out[3] = second.y + second_low.y;
  } else {
    load_vec<K>(key + dim, out);
  }
}

/// A power of two that scales `max_abs` >= 0 into 2^14 .. 2^15, a factor of two below f16's maximum and far above its subnormals
/// (lower if `max_abs` is less than 2^-112; nowhere if it is not finite); and the inverse of that power.
struct PowerOfTwo {
  float scale, inverse;
};
__device__ __forceinline__ PowerOfTwo scale_to_f16(float max_abs) {
  const unsigned exponent = max(__float_as_uint(max_abs) >> 23, 15u);  // both powers are normal numbers
  return {__uint_as_float((268u - exponent) << 23), __uint_as_float((exponent - 14u) << 23)};
}

// ---- reductions: fixed order, the same result in every thread -------------------------------------------------------

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

/// Over groups of WIDTH neighbouring lanes (the warp by default). PRECOND: all 32 lanes participate.
template <class Op, int WIDTH = 32, class T>
__device__ __forceinline__ T warp_reduce(T x, Op op = Op()) {
#pragma unroll
  for (int lanes = WIDTH / 2; lanes > 0; lanes /= 2) x = op(x, __shfl_xor_sync(FULL_WARP, x, lanes));
  return x;
}

/// The value with rank n in the warp, ordered by `before`, ties by lane. PRECOND: the whole warp; n < 32.
template <class T, class Before>
__device__ __forceinline__ T nth_of_warp(T x, int n, const Before& before) {
  const int lane = threadIdx.x % 32;
  int place = 0;
#pragma unroll 8
  for (int other = 0; other < 32; ++other) {
    const T theirs = __shfl_sync(FULL_WARP, x, other);
    place += before(theirs, x) || (theirs == x && other < lane);
  }
  return __shfl_sync(FULL_WARP, x, __ffs((int)__ballot_sync(FULL_WARP, place == n)) - 1);
}

/// Over the block; `scratch` holds one T per warp. WARPS: of the block, if known at compile time; then all are read at once.
/// PRECOND: blockDim.x is a multiple of 32 and the block is 1-D; all threads participate; no thread still reads `scratch`, and a barrier
/// follows before it is written again.
template <class Op, int WARPS = 0, class T>
__device__ __forceinline__ T block_reduce(T x, T* scratch, Op op = Op()) {
  const unsigned warps = WARPS > 0 ? WARPS : blockDim.x / 32;
  x = warp_reduce<Op>(x, op);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = scratch[0];
#pragma unroll
  for (unsigned warp = 1; warp < warps; ++warp) x = op(x, scratch[warp]);
  return x;
}

// ---- PTX, one instruction per function ------------------------------------------------------------------------------

/// Starts a copy of 16 bytes from global to shared memory; if `wanted` is false, zeros are written instead (and `from` is
/// not read). PRECOND: both aligned to 16 bytes.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool wanted = true) {
#ifdef CUDA_HOST_SHIM
  cuda_host::cp_async(to, from, 16, wanted ? 16 : 0);
#else
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
#endif
}

/// Starts a copy of the first `bytes` of 8 bytes, padded with zeros. PRECOND: as above, but aligned to 8 bytes.
__device__ __forceinline__ void cp_async8(void* to, const void* from, int bytes) {
#ifdef CUDA_HOST_SHIM
  cuda_host::cp_async(to, from, 8, bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
#endif
}

/// Closes the group of copies that this thread has started.
__device__ __forceinline__ void cp_commit() {
#ifdef CUDA_HOST_SHIM
  cuda_host::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Waits until at most KEEP of this thread's groups are in flight; other threads see the bytes after a barrier.
template <int KEEP>
__device__ __forceinline__ void cp_wait() {
#ifdef CUDA_HOST_SHIM
  cuda_host::cp_async_wait(KEEP);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
#endif
}

/// Lets the next kernel start on whatever resources are free, once every block has called this.
__device__ __forceinline__ void let_next_grid_start() {
#if !defined(CUDA_HOST_SHIM) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Waits until the kernels before this one have ended and their writes are visible. Every thread of a kernel that
/// STARTS_EARLY calls it (or see below), so that a kernel that has ended has waited for all earlier ones. Their results must not be
/// read through `const __restrict__`, which promises that data does not change while this kernel runs.
__device__ __forceinline__ void wait_for_earlier_grids() {
#ifdef CUDA_HOST_SHIM
  cuda_host::running->wait_for_earlier_grids();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The alternative for a block with no work, in a grid where another block waits: it ends and frees its resources at once.
__device__ __forceinline__ void leave_the_wait_to_others() {
#ifdef CUDA_HOST_SHIM
  cuda_host::running->leave_the_wait_to_others();
#endif
}

/// Both, for a kernel with nothing to do before the wait.
__device__ __forceinline__ void start_early() {
  let_next_grid_start();
  wait_for_earlier_grids();
}

/// Increments `count`, wrapping from `limit` to 0; returns the old value. The caller sees the writes of earlier callers, and
/// what their blocks wrote before a barrier. (A pair of __threadfence would wait for more: they order everything.)
__device__ __forceinline__ unsigned arrive(unsigned* count, unsigned limit) {
#ifdef CUDA_HOST_SHIM
  return atomicInc(count, limit);
#else
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(limit) : "memory");
  return before;
#endif
}

/// c[16x8] += a[16x16] b[16x8] on the tensor cores. Lane 4g + t holds, of `a`, rows g and g + 8 in a[0], a[1] (columns
/// 2t, 2t + 1) and a[2], a[3] (columns 2t + 8, 2t + 9); of `b`, column g, rows 2t, 2t + 1 in b[0] and 2t + 8, 2t + 9 in
/// b[1]; of `c`, columns 2t, 2t + 1 of row g in c[0], c[1] and of row g + 8 in c[2], c[3].
/// PRECOND: the whole warp.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef CUDA_HOST_SHIM
  ch_mma_m16n8k16_f16(c, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4],
                                                            const unsigned (&b)[2]) {
#ifdef CUDA_HOST_SHIM
  ch_mma_m16n8k16_bf16(c, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// Keeps ptxas from moving instructions across it. It orders nothing visible to other threads.
__device__ __forceinline__ void keep_order() {
#ifndef CUDA_HOST_SHIM
  asm volatile("bar.warp.sync 0xffffffff;");
#endif
}

/// A warp barrier between ldmatrix and other lanes' writes to shared memory. In a host run, ldmatrix itself is such a barrier, as all
/// lanes enter it.
__device__ __forceinline__ void sync_beside_ldmatrix() {
#ifndef CUDA_HOST_SHIM
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

/// Loads four 8x8 matrices of 16-bit elements from shared memory: lane 8j + i supplies the address of row i of matrix j (16
/// bytes, aligned to 16); lane 4g + t receives in out[j] the elements 2t, 2t + 1 of its row g. PRECOND: the whole warp.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&out)[4], const void* row) {
#ifdef CUDA_HOST_SHIM
  ch_ldmatrix_x4(out, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
#endif
}

/// As `ldmatrix_x4`, transposed: lane 4g + t receives in out[j] the elements g of rows 2t, 2t + 1.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&out)[4], const void* row) {
#ifdef CUDA_HOST_SHIM
  ch_ldmatrix_x4_trans(out, row);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
#endif
}
