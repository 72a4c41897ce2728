// How a tensor core adds products to its accumulators, which differs from IEEE 754.
//
// NVIDIA does not document it; the following was measured by others.
//   Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 2021 (V100, T4, A100): products
//     are exact; the summands of a block, the accumulator among them, are shifted to the largest exponent, cut off, and
//     added as integers; only the result is normalized, and it is rounded toward zero. Subnormal numbers take part.
//   Li et al., "FTTN: Feature-Targeted Testing for Numerical Properties", CCGrid 2024, and Khattak and Mikaitis, "Accurate
//     models of NVIDIA tensor cores", arXiv 2512.07004, whose models agree bit for bit with A100 and H100 on 10^5 random
//     inputs a format: an A100 adds 8 products of 16 bits at a time and keeps one bit below the 24 of a float32, an H100
//     16 and two. The exponent of a product is the sum of its factors' (not one more where their product is 2 or above),
//     products that are zero have none, and the largest exponent is at least -132 (A100) or -133 (H100).
// Both measured with wmma. Guesses here: that mma.sync.m16n8k16 adds elements 0..7 of k before 8..15 on an A100, and the
// treatment of infinities and NaNs: their blocks are summed as floats.
#pragma once
#include "types.h"

namespace cuda_host {
namespace mma {
enum Sums { NEAREST, AMPERE, HOPPER };  // NEAREST: one product after the other, as floats with one rounding each

struct Core {
  int products;  // per block
  int extra;     // bits below those of a float32 that a shifted summand keeps
  int lowest;    // the largest exponent is at least this
};
constexpr Core CORES[] = {{16, 0, 0}, {8, 1, -132}, {16, 2, -133}};

// For 8 columns. Vectors, because tests spend much of their time here.
typedef float Row8 __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

constexpr int NO_EXPONENT = -4096, NOT_FINITE = 16384;  // of a zero; of a non-finite value

// The minimum exponent of a type's normal numbers, which its subnormals share.
template <class T>
constexpr int LEAST = -126;
template <>
constexpr int LEAST<__half> = -14;

inline Ints exponents_of(const Row8& x, int least) {
  const Ints none = {}, bits = (Ints)x & 0x7FFFFFFF, field = bits >> 23;
  const Ints exponent = field - 127 > least ? field - 127 : none + least;
  return field == 255 ? none + NOT_FINITE : bits == 0 ? none + NO_EXPONENT : exponent;
}

inline bool any(const Ints& mask) {
  int64_t words[4];
  memcpy(words, &mask, sizeof words);
  return words[0] | words[1] | words[2] | words[3];
}

// Truncated to integers; for numbers below 2^51 in magnitude. (AVX2 has no conversion to 64-bit integers.)
inline Doubles whole(const Doubles& x) {
  constexpr double SHIFT = 0x1.8p52;
  const Doubles none = {}, nearest = (x + SHIFT) - SHIFT, one = x < 0.0 ? none - 1.0 : none + 1.0;
  const Longs beyond = (Longs)nearest & INT64_MAX, size = (Longs)x & INT64_MAX;
  return beyond > size ? nearest - one : nearest;
}

// To float32, rounded toward zero.
inline Row8 toward_zero(const Doubles& x) {
  const Doubles size = (Doubles)((Longs)x & INT64_MAX), cut = (Doubles)((Longs)x & ~((int64_t(1) << 29) - 1));
  Row8 rounded = __builtin_convertvector(cut, Row8);  // exact, but for subnormals
  if (any(__builtin_convertvector((size < 0x1p-126) & (size > 0.0), Ints)))
    for (int i = 0; i < 8; ++i)
      if (fabs(double(rounded[i])) > size[i]) rounded[i] = nextafterf(rounded[i], 0.0f);
  return rounded;
}

// A row of one operand, and all of the other: factors and, unless sums are rounded to nearest, their exponents.
struct Left {
  double factor[16];
  int exponent[16];
};
struct Right {
  Doubles factors[16];
  Ints exponents[16];
};

template <class T>
inline Left left_of(const T (&row)[16], Sums sums) {
  Left left;
  for (int half = 0; half < 16; half += 8) {
    Row8 values;
    for (int k = 0; k < 8; ++k) left.factor[half + k] = values[k] = float(row[half + k]);
    if (sums == NEAREST) continue;
    const Ints exponents = exponents_of(values, LEAST<T>);
    memcpy(left.exponent + half, &exponents, sizeof exponents);
  }
  return left;
}

// sum[column] += left[k] right[k][column] over k, one row of an mma.
inline Row8 add_row(Row8 sum, const Left& left, const Right& right, const Core& core) {
  const Ints none = {};
  for (int first = 0; first < 16; first += core.products) {
    const int end = first + core.products;
    Ints top = exponents_of(sum, LEAST<float>);
    top = top > core.lowest ? top : none + core.lowest;
    for (int k = first; k < end; ++k) {
      const Ints exponents = left.exponent[k] + right.exponents[k];
      top = exponents > top ? exponents : top;
    }
    const Ints other = top >= 2048;  // columns with a non-finite value
    const Longs shift = __builtin_convertvector(23 + core.extra - top, Longs);  // brings 2^top to 2^(23 + extra)
    const Doubles scale = (Doubles)((1023 + shift) << 52), unscale = (Doubles)((1023 - shift) << 52);
    // integers below 2^32, whose sums are exact
    Doubles total = whole(__builtin_convertvector(sum, Doubles) * scale);
    for (int k = first; k < end; ++k) total += whole(left.factor[k] * right.factors[k] * scale);
    const Row8 added = toward_zero(total * unscale);
    if (any(other))
      for (int k = first; k < end; ++k)
        sum += float(left.factor[k]) * __builtin_convertvector(right.factors[k], Row8);
    sum = other ? sum : added;
  }
  return sum;
}
}  // namespace mma
}  // namespace cuda_host
