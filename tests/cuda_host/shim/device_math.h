// Device intrinsics with a plain meaning on the host. No float atomics: the kernels are deterministic.
#pragma once
#include <atomic>

#include "types.h"

// ---- floating point; the fast forms are the accurate ones here ----
// Macros, because glibc reserves some of these names.
#define __expf(x) (::expf(x))
#define __exp2f(x) (::exp2f(x))
#define __logf(x) (::logf(x))
#define __log2f(x) (::log2f(x))
#define __sinf(x) (::sinf(x))
#define __cosf(x) (::cosf(x))
#define __tanhf(x) (::tanhf(x))
#define __powf(x, y) (::powf(x, y))
#define __sincosf(x, s, c) (::sincosf(x, s, c))
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
static inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
namespace cuda_host {
/// 2^x with the maximum error of `ex2.approx.ftz` (2^-22), to one side: one unit in the last place below the nearest
/// float.
inline float ex2_approx_ftz(float x) {
  const float y = exp2f(x);
  if (x == 0.0f || !(y < INFINITY)) return x == 0.0f ? 1.0f : y;
  return y < 1.17549435e-38f ? 0.0f : nextafterf(y, 0.0f);
}
}  // namespace cuda_host
static inline int __float2int_rn(float a) { return int(nearbyintf(a)); }
static inline int __float2int_rz(float a) { return int(a); }
static inline int __float2int_rd(float a) { return int(floorf(a)); }
static inline float __int2float_rn(int a) { return float(a); }
static inline float __uint2float_rn(unsigned a) { return float(a); }

// Never contracted into a fused multiply-add, which is the purpose of these functions.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
__attribute__((noinline)) static float cuda_host_multiply(float a, float b) { return a * b; }
__attribute__((noinline)) static float cuda_host_add(float a, float b) { return a + b; }
#pragma GCC pop_options
static inline float __fmul_rn(float a, float b) { return cuda_host_multiply(a, b); }
static inline float __fadd_rn(float a, float b) { return cuda_host_add(a, b); }
static inline float __fsub_rn(float a, float b) { return cuda_host_add(a, -b); }

// ---- integers ----
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
static inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= unsigned(bytes >> ((selector >> 4 * i & 7) * 8) & 255) << 8 * i;
  return result;
}

// As on the device, comparing signed with unsigned compares as unsigned.
#define CUDA_HOST_MIN_MAX(type, left, right)                                                  \
  static inline type min(left a, right b) { return (type)b < (type)a ? (type)b : (type)a; }   \
  static inline type max(left a, right b) { return (type)a < (type)b ? (type)b : (type)a; }
CUDA_HOST_MIN_MAX(int, int, int)
CUDA_HOST_MIN_MAX(unsigned, unsigned, unsigned)
CUDA_HOST_MIN_MAX(unsigned, int, unsigned)
CUDA_HOST_MIN_MAX(unsigned, unsigned, int)
CUDA_HOST_MIN_MAX(long, long, long)
CUDA_HOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
CUDA_HOST_MIN_MAX(long long, long long, long long)
CUDA_HOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
CUDA_HOST_MIN_MAX(float, float, float)
CUDA_HOST_MIN_MAX(double, double, double)

// ---- memory ----
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldca(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcg(T* p, T v) { *p = v; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
static inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) {}

namespace cuda_host {
template <class T, class Change>
inline T atomic_change(T* p, Change change) {
  static_assert(T(1) / T(2) == T(0), "no float atomics: their order would show in the result");
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, change(old), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T> struct Same { using type = T; };  // keeps a second argument out of deduction
template <class T> using same = typename Same<T>::type;
}  // namespace cuda_host
template <class T> static inline T atomicAdd(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return T(old + v); });
}
template <class T> static inline T atomicSub(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return T(old - v); });
}
template <class T> static inline T atomicInc(T* p, cuda_host::same<T> max) {
  return cuda_host::atomic_change(p, [=](T old) { return old >= max ? T(0) : T(old + 1); });
}
template <class T> static inline T atomicMax(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return old < v ? v : old; });
}
template <class T> static inline T atomicMin(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return v < old ? v : old; });
}
template <class T> static inline T atomicAnd(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return T(old & v); });
}
template <class T> static inline T atomicOr(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return T(old | v); });
}
template <class T> static inline T atomicXor(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return T(old ^ v); });
}
template <class T> static inline T atomicExch(T* p, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T) { return v; });
}
template <class T> static inline T atomicCAS(T* p, cuda_host::same<T> expected, cuda_host::same<T> v) {
  return cuda_host::atomic_change(p, [=](T old) { return old == expected ? v : old; });
}
static inline unsigned atomicInc(unsigned* p, unsigned limit) {  // the "last block done" counter
  return cuda_host::atomic_change(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
