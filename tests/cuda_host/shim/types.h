// CUDA's keywords, vector types and 16-bit floats for a host compiler.
#pragma once
#include <math.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

// ---- keywords ----
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __shared__ thread_local  // a block runs on one OS thread; at block scope thread_local implies static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifdef __clang__
#define CUDA_HOST_CONSTINIT [[clang::require_constant_initialization]]
#else
#define CUDA_HOST_CONSTINIT __constinit  // no call of a TLS initialiser on each access
#endif

// ---- vector types, aligned as on the device, so that a misaligned vector access is undefined here too ----
#define CUDA_HOST_VECTOR2(name, type, bytes)    \
  struct alignas(bytes) name {                  \
    type x, y;                                  \
  };                                            \
  static inline name make_##name(type x, type y) { return {x, y}; }
#define CUDA_HOST_VECTOR3(name, type)           \
  struct name {                                 \
    type x, y, z;                               \
  };                                            \
  static inline name make_##name(type x, type y, type z) { return {x, y, z}; }
#define CUDA_HOST_VECTOR4(name, type, bytes)    \
  struct alignas(bytes) name {                  \
    type x, y, z, w;                            \
  };                                            \
  static inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

CUDA_HOST_VECTOR2(char2, signed char, 2)
CUDA_HOST_VECTOR2(uchar2, unsigned char, 2)
CUDA_HOST_VECTOR2(short2, short, 4)
CUDA_HOST_VECTOR2(ushort2, unsigned short, 4)
CUDA_HOST_VECTOR2(int2, int, 8)
CUDA_HOST_VECTOR2(uint2, unsigned, 8)
CUDA_HOST_VECTOR2(float2, float, 8)
CUDA_HOST_VECTOR2(longlong2, long long, 16)
CUDA_HOST_VECTOR2(ulonglong2, unsigned long long, 16)
CUDA_HOST_VECTOR2(double2, double, 16)
CUDA_HOST_VECTOR3(int3, int)
CUDA_HOST_VECTOR3(uint3, unsigned)
CUDA_HOST_VECTOR3(float3, float)
CUDA_HOST_VECTOR4(char4, signed char, 4)
CUDA_HOST_VECTOR4(uchar4, unsigned char, 4)
CUDA_HOST_VECTOR4(short4, short, 8)
CUDA_HOST_VECTOR4(ushort4, unsigned short, 8)
CUDA_HOST_VECTOR4(int4, int, 16)
CUDA_HOST_VECTOR4(uint4, unsigned, 16)
CUDA_HOST_VECTOR4(float4, float, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- bit casts ----
namespace cuda_host {
template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = uint32_t(half >> 15) << 31, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * ldexpf(float(mantissa), -24);  // zero and subnormals
  const uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return bits_as<float>(sign | wide << 23 | mantissa << 13);
#endif
}

inline uint16_t float_to_half(float value) {  // to nearest, ties to even
  if (value != value) return 0x7FFF;
#if defined(__F16C__)
  return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  const uint16_t sign = uint16_t(bits_as<uint32_t>(value) >> 31 << 15);
  const float size = fabsf(value);
  if (size >= 65520.0f) return sign | 0x7C00;
  if (size == 0.0f) return sign;  // frexpf's exponent of 0 is meaningless
  int exponent;
  frexpf(size, &exponent);                                // size = [0.5, 1) 2^exponent
  const int ulp = (exponent < -13 ? -13 : exponent) - 11;  // of the result; subnormals share the smallest
  const int units = int(nearbyintf(ldexpf(size, -ulp)));   // 0..2048; a carry runs into the exponent, as it should
  return uint16_t(sign | (((ulp + 24) << 10) + units));    // the implicit bit adds the one that ulp + 24 lacks
#endif
}

inline uint16_t float_to_bfloat16(float value) {
  if (value != value) return 0x7FFF;
  const uint32_t bits = bits_as<uint32_t>(value);
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float bfloat16_to_float(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }
}  // namespace cuda_host

static inline float __uint_as_float(unsigned x) { return cuda_host::bits_as<float>(x); }
static inline unsigned __float_as_uint(float x) { return cuda_host::bits_as<unsigned>(x); }
static inline float __int_as_float(int x) { return cuda_host::bits_as<float>(x); }
static inline int __float_as_int(float x) { return cuda_host::bits_as<int>(x); }
static inline double __longlong_as_double(long long x) { return cuda_host::bits_as<double>(x); }
static inline long long __double_as_longlong(double x) { return cuda_host::bits_as<long long>(x); }

// ---- f16 and bf16: storage and conversions; arithmetic goes through float ----
#define CUDA_HOST_FLOAT16(name, pair, to_float, from_float)             \
  struct name {                                                         \
    uint16_t bits;                                                      \
    name() = default;                                                   \
    name(float value) : bits(cuda_host::from_float(value)) {}           \
    operator float() const { return cuda_host::to_float(bits); }        \
    static name from_bits(uint16_t b) {                                 \
      name made;                                                        \
      made.bits = b;                                                    \
      return made;                                                      \
    }                                                                   \
  };                                                                    \
  struct alignas(4) pair {                                              \
    name x, y;                                                          \
  };

CUDA_HOST_FLOAT16(__half, __half2, half_to_float, float_to_half)
CUDA_HOST_FLOAT16(__nv_bfloat16, __nv_bfloat162, bfloat16_to_float, float_to_bfloat16)
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __half2float(__half h) { return h; }
static inline __half __float2half(float f) { return __half(f); }
static inline __half __float2half_rn(float f) { return __half(f); }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline __half __ushort_as_half(unsigned short u) { return __half::from_bits(u); }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
static inline float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
static inline __half2 __hsub2(__half2 a, __half2 b) { return {__half(float(a.x) - float(b.x)), __half(float(a.y) - float(b.y))}; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline float __low2float(__half2 v) { return v.x; }
static inline float __high2float(__half2 v) { return v.y; }

static inline float __bfloat162float(__nv_bfloat16 b) { return b; }
static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return __nv_bfloat16::from_bits(u); }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline float __low2float(__nv_bfloat162 v) { return v.x; }
static inline float __high2float(__nv_bfloat162 v) { return v.y; }
