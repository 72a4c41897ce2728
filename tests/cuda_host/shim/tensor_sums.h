// How a tensor core adds products to its accumulators: not as IEEE 754 does.
//
// NVIDIA does not document it; what follows is what others have measured.
//   Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021 (V100, T4, A100): products
//     are exact; the summands of a block, the accumulator among them, are shifted to the largest exponent, cut off, and
//     added as integers; only the result is normalized, and it is rounded toward zero. Subnormal numbers take part.
//   Li et al., "FTTN: Feature-Targeted Testing for Numerical Properties", CCGrid 2024, and Khattak and Mikaitis, "Accurate
//     models of NVIDIA tensor cores", arXiv 2512.07004, whose models agree bit for bit with A100 and H100 on 10^5 random
//     inputs a format: an A100 adds 8 products of 16 bits at a time and keeps one bit below the 24 of a float32, an H100
//     16 and two. The exponent of a product is the sum of its factors' (not one more where their product is 2 or above),
//     products that are zero have none, and the largest exponent is at least -132 (A100) or -133 (H100).
// Both were measured with wmma. Guesses here: that mma.sync.m16n8k16 adds elements 0..7 of k before 8..15 on an A100, and
// what becomes of infinities and NaNs: the row and column are summed as floats.
#pragma once
#include "types.h"

namespace cuda_host {
namespace mma {
enum Sums { NEAREST, AMPERE, HOPPER };  // NEAREST: one product after the other, as floats with one rounding each

struct Core {
  int products;  // of a block
  int extra;     // bits below those of a float32 that a shifted summand keeps
  int lowest;    // the largest exponent is at least this
};
constexpr Core CORES[] = {{16, 0, 0}, {8, 1, -132}, {16, 2, -133}};

typedef float Row8 __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

constexpr int64_t NO_EXPONENT = -4096, NOT_FINITE = 16384;  // of a zero; of what is not a number of finite size

// The exponent of a float with `mantissa` bits and `width` bits of exponent; subnormals have that of the smallest normal.
inline int64_t exponent_of(uint32_t bits, int mantissa, int width) {
  const int field = int(bits >> mantissa) & ((1 << width) - 1);
  if (field == (1 << width) - 1) return NOT_FINITE;
  if (field == 0 && !(bits & ((1u << mantissa) - 1))) return NO_EXPONENT;
  return (field > 1 ? field : 1) - (1 << (width - 1)) + 1;
}
inline int64_t exponent_of(float x) { return exponent_of(bits_as<uint32_t>(x), 23, 8); }
inline int64_t exponent_of(__half x) { return exponent_of(x.bits, 10, 5); }
inline int64_t exponent_of(__nv_bfloat16 x) { return exponent_of(x.bits, 7, 8); }

// To a float32, rounded toward zero.
inline float toward_zero(double x) {
  const float nearest = float(x);
  return fabs(double(nearest)) > fabs(x) ? nextafterf(nearest, 0.0f) : nearest;
}

// A row of one operand and a whole other one: factors and their exponents.
struct Left {
  double factor[16];
  int64_t exponent[16];
};
struct Right {
  Doubles factors[16];  // of 8 columns
  Longs exponents[16];
};

// sum[column] += left[k] right[k][column] over k, one row of an mma.
inline void add_row(float (&sum)[8], const Left& left, const Right& right, const Core& core) {
  const Longs zero = {};
  const Doubles nothing = {};
  for (int first = 0; first < 16; first += core.products) {
    Longs top;
    Doubles old;
    for (int i = 0; i < 8; ++i) top[i] = exponent_of(sum[i]), old[i] = double(sum[i]);
    top = top > int64_t(core.lowest) ? top : zero + int64_t(core.lowest);
    for (int k = first; k < first + core.products; ++k) {
      const Longs exponent = left.exponent[k] + right.exponents[k];
      top = exponent > top ? exponent : top;
    }
    const Longs finite = top < 2048;
    const Longs shift = finite ? 23 + core.extra - top : zero;  // what brings 2^top to 2^(23 + extra)
    const Doubles scale = (Doubles)((1023 + shift) << 52), unscale = (Doubles)((1023 - shift) << 52);
    Longs total = __builtin_convertvector(finite ? old * scale : nothing, Longs);  // the conversion cuts off
    for (int k = first; k < first + core.products; ++k)
      total += __builtin_convertvector(finite ? left.factor[k] * right.factors[k] * scale : nothing, Longs);
    const Doubles result = __builtin_convertvector(total, Doubles) * unscale;
    for (int i = 0; i < 8; ++i) {
      if (finite[i]) {
        sum[i] = toward_zero(result[i]);
        continue;
      }
      for (int k = first; k < first + core.products; ++k) sum[i] += float(left.factor[k]) * float(right.factors[k][i]);
    }
  }
}
}  // namespace mma
}  // namespace cuda_host
