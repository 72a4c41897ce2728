// Parts shared by all kernels: the structs in device memory, 16-byte loads and stores of f32, f16 and bf16, reductions, and
// one function per PTX instruction. Builds with nvcc, NVRTC and, for tests, as C++17 for the host (CUDA_HOST_SHIM).
//
// For the host: compile with -fno-strict-aliasing (16-byte loads read floats as words, as everywhere in CUDA).
#pragma once
#ifndef CUDA_HOST_SHIM
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// ---- data in device memory ------------------------------------------------------------------------------------------

/// One row of a pass: `token` enters at `position` of the sequence in `slot`; `stream` numbers it for the sampler. One load.
struct alignas(16) RowState {
  int slot, position, token, stream;
};

/// Where a head attends: entropy of its reweighted attention in nats, and softmax weights of places (attn_places.cu).
struct HeadPlaces {
  float entropy, own, previous, first, prompt;
};

/// Sums of hidden states at the places that they pass, and the latest rows, which are in none (layer_sums.cu).
struct LayersView {
  double* sums;  // [places, hidden_size]; null: not recorded
  float* rows;   // [places, kept, hidden_size], row r at r % kept
  int* counts;   // [places, ceil(hidden_size / 256)] of rows that have come, for each block of columns
};

/// The trace of a sequence; row r = position - first_traced_row. K = heads kept per row.
struct TraceView {
  int* heads;        // [rows, K] l * H + h, entropy ascending, of equals the lower id first; -1: none
  float* entropies;  // [rows, K] nats
  float* maxima;     // [rows, K] m'
  float* sums;       // [rows, K] Z' (over f under the regularized rule)
  float* queries;    // [rows, K, head_dim] rotated and scaled, of the largest head_dim
  __half* hidden;    // [rows, hidden_size] after the final norm, times a power of two
  float* gaps;       // [rows] from the last kept entropy to the best one that was not
  HeadPlaces* places;  // [rows, layers, heads], of every head; null: not recorded
  LayersView layers;
};

/// A sequence's cache, [layers][kv_heads][capacity][head_dim] each, and its trace. Where layers differ in size, a kernel's
/// `layer` is how many of that layer's size have room before it.
struct SequenceView {
  void* k;
  void* v;
  unsigned capacity;     // positions, a multiple of 64
  int first_traced_row;  // rows before it are not recorded
  TraceView trace;
  float* states;      // of its delta nets, after the last row (delta_net.cu)
  float** snapshots;  // [positions / interval + 1] where copies of them go, by tokens / interval; null: nowhere
};

/// A layer's attention, by its place among those that have it: which one of its size in the cache, and its sizes.
struct LayerShape {
  int layer, kv_heads, head_dim;
  int window;  // positions that a row attends to, itself included; 0: all
};

/// The part of a block of attn_prefill.cu: lines `line` .. `line` + 64 (with a head_dim above 256, 32) of the run of `rows` rows that begins with row
/// `first`. Line i of a run is row i / group, head i % group of a group of query heads.
struct PrefillPart {
  int first, rows, line, padding;
};

/// The state of one head of one row: softmax maximum and sum, and m', Z', S' of the reweighted attention.
struct HeadState {
  float m, z, mw, zw, sw;
};

/// All dynamic shared memory; every kernel lays it out itself.
extern __shared__ __align__(16) unsigned char dyn_smem[];

/// Exports the dynamic shared memory of kernel `name`, in bytes, which the host reads when it loads the kernel: every
/// kernel has one.
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

/// Says of kernel `name` that it may start while those before it run, because it touches nothing of theirs before
/// `wait_for_earlier_grids` (programmatic dependent launch): the host reads it when it loads the kernel.
#ifdef CUDA_HOST_SHIM
#define STARTS_EARLY(name) CUDA_HOST_CONSTANT(name##_starts_early, 1)
#elif __CUDA_ARCH__ < 900
#define STARTS_EARLY(name)  // there is no such wait: the host sees nothing, and waits itself
#else
#define STARTS_EARLY(name)                     \
  extern "C" {                                 \
  __device__ unsigned name##_starts_early = 1; \
  }
#endif

/// A kernel's PRECOND about its grid, where it follows from its parameters; ANY_GRID where it does not. Checked where
/// kernels run on the host: blocks that are too many return at once, and would show nowhere.
#ifdef CUDA_HOST_SHIM
#define PRECOND_GRID(x, y) ::cuda_host::check_grid((unsigned)(x), (unsigned)(y))
#else
#define PRECOND_GRID(x, y)
#endif
constexpr unsigned ANY_GRID = 0;
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

/// A function of its own, for what a loop rarely does: its code and registers stay out of the loop.
#ifdef CUDA_HOST_SHIM
#define OUT_OF_LINE __attribute__((noinline))
#else
#define OUT_OF_LINE __noinline__
#endif

constexpr int MAX_KEEP = 32;  // K at most: heads that a trace keeps per row

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

/// A float32 key in the cache, as the tensor cores take it: x = high + low, two f16 numbers that hold 22 bits of x, or
/// 2^-25. The head_dim high parts of a position come first, then its low ones. Not finite beyond +-65504.
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

/// A power of two that brings `max_abs` >= 0 into 2^14 .. 2^15 (below, where it is less than 2^-112; nowhere, where it is not
/// finite), and what takes it back: below the end of f16 by a factor of two, and far above its subnormals.
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

/// Over groups of WIDTH neighbouring lanes (the warp by default). PRECOND: all 32 lanes take part.
template <class Op, int WIDTH = 32, class T>
__device__ __forceinline__ T warp_reduce(T x, Op op = Op()) {
#pragma unroll
  for (int lanes = WIDTH / 2; lanes > 0; lanes /= 2) x = op(x, __shfl_xor_sync(FULL_WARP, x, lanes));
  return x;
}

/// The number of the lane that n others come before, in the order of `before` and of equal ones by lane. PRECOND: the whole warp; n < 32.
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

/// Over the block; `scratch` holds one T a warp. WARPS: of the block, where they are known: then all are read at once.
/// PRECOND: blockDim.x is a multiple of 32 and the block is 1-D; all threads take part; no thread still reads `scratch`, and a barrier
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

// ---- PTX, one instruction a function --------------------------------------------------------------------------------

/// Starts a copy of 16 bytes from global to shared memory; zeros are written instead where `wanted` is false (`from` is
/// then not read). PRECOND: both aligned to 16 bytes.
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

/// Starts a copy of the first `bytes` of 8 bytes, zeros after them. PRECOND: as above, but aligned to 8 bytes.
__device__ __forceinline__ void cp_async8(void* to, const void* from, int bytes) {
#ifdef CUDA_HOST_SHIM
  cuda_host::cp_async(to, from, 8, bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
#endif
}

/// Ends the group of copies that this thread has started.
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

/// Lets the kernel behind this one start in what room there is, once every block has come here.
__device__ __forceinline__ void let_next_grid_start() {
#if !defined(CUDA_HOST_SHIM) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Waits until the kernels before this one have ended and what they wrote can be read. Every thread of a kernel that
/// STARTS_EARLY calls it (or see below), so that one that has ended has waited for all before it. What they write is not to be read
/// through `const __restrict__`, which promises that it does not change while this kernel runs.
__device__ __forceinline__ void wait_for_earlier_grids() {
#ifdef CUDA_HOST_SHIM
  cuda_host::running->wait_for_earlier_grids();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Instead, of a block with nothing to do, in a grid where another block waits: this one ends, and makes room, at once.
__device__ __forceinline__ void leave_the_wait_to_others() {
#ifdef CUDA_HOST_SHIM
  cuda_host::running->leave_the_wait_to_others();
#endif
}

/// Both, for a kernel with nothing to do before.
__device__ __forceinline__ void start_early() {
  let_next_grid_start();
  wait_for_earlier_grids();
}

/// Counts up `count`, and from `limit` back to 0; returns what it was. Whoever counts sees what those wrote who counted before,
/// and what their blocks wrote before a barrier. (Between two __threadfence it would wait for more: they order all with all.)
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

/// Keeps ptxas from moving instructions across. It orders nothing that another thread could see.
__device__ __forceinline__ void keep_order() {
#ifndef CUDA_HOST_SHIM
  asm volatile("bar.warp.sync 0xffffffff;");
#endif
}

/// A barrier of the warp between ldmatrix and other lanes' writes to shared memory. In a host run ldmatrix, which all lanes enter, is one
/// already.
__device__ __forceinline__ void sync_beside_ldmatrix() {
#ifndef CUDA_HOST_SHIM
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

/// Four 8x8 matrices of 16-bit elements from shared memory: lane 8j + i gives the address of row i of matrix j (16
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
