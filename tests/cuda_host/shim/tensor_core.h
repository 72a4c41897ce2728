// Stand-ins for mma.sync.m16n8k16 and ldmatrix with the PTX ISA's fragment layouts, for a whole warp at a time. mma's
// summation is in tensor_sums.h.
#pragma once
#include "block.h"
#include "tensor_sums.h"

namespace cuda_host {
namespace mma {
struct Operands {
  const unsigned *a, *b;
  float* c;
};

template <class T>
inline T low(unsigned pair) {
  return T::from_bits(uint16_t(pair));
}
template <class T>
inline T high(unsigned pair) {
  return T::from_bits(uint16_t(pair >> 16));
}

struct Columns {
  Row8 rows[16];
  Right right;
};
template <class T>
inline Columns columns_of(const T (&b)[16][8], Sums sums) {
  Columns columns;
  for (int k = 0; k < 16; ++k) {
    for (int column = 0; column < 8; ++column) columns.rows[k][column] = float(b[k][column]);
    if (sums == NEAREST) continue;
    columns.right.factors[k] = __builtin_convertvector(columns.rows[k], Doubles);
    columns.right.exponents[k] = exponents_of(columns.rows[k], LEAST<T>);
  }
  return columns;
}
// sum[column] += left[k] b[k][column] over k.
inline Row8 add_products(Row8 sum, const Left& left, const Columns& b, Sums sums) {
  if (sums != NEAREST) return add_row(sum, left, b.right, CORES[sums]);
  for (int k = 0; k < 16; ++k) sum += float(left.factor[k]) * b.rows[k];
  return sum;
}

// C[16][8] += A[16][16] B[16][8]. In every fragment a lane holds the pair of columns (A, C) or rows (B) 2 (lane % 4)
// and the next, of row (A, C) or column (B) lane / 4; further registers hold the rows 8 below, then the columns 8
// further on.
template <class T>
inline void multiply(Thread* lanes, unsigned members) {
  if (members != ~0u) running->fail("mma by a part of a warp");
  T a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Operands& own = *static_cast<const Operands*>(lanes[lane].in);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      T* at = &a[group + r % 2 * 8][pair + r / 2 * 8];
      at[0] = low<T>(own.a[r]), at[1] = high<T>(own.a[r]);
    }
    for (int r = 0; r < 2; ++r) {
      b[pair + r * 8][group] = low<T>(own.b[r]);
      b[pair + r * 8 + 1][group] = high<T>(own.b[r]);
    }
  }
  const Columns columns = columns_of(b, Sums(running->tensor_sums));
  for (int row = 0; row < 16; ++row) {
    float* pairs[4];  // the positions of the four lanes in this row
    for (int p = 0; p < 4; ++p) pairs[p] = static_cast<const Operands*>(lanes[row % 8 * 4 + p].in)->c + row / 8 * 2;
    union {
      Row8 row8;
      float at[8];
    } sum;
    for (int column = 0; column < 8; ++column) sum.at[column] = pairs[column / 2][column % 2];
    sum.row8 = add_products(sum.row8, left_of(a[row], Sums(running->tensor_sums)), columns, Sums(running->tensor_sums));
    for (int column = 0; column < 8; ++column) pairs[column / 2][column % 2] = sum.at[column];
  }
}

template <class T>
inline void issue(Site site, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const Operands in{a, b, c};
  running->collective(~0u, site, &in, nullptr, multiply<T>);
}
}  // namespace mma

// ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16: lane 8 i + r supplies the address of row r of matrix i; afterwards
// a lane holds in register i the pair of columns 2 (lane % 4) and the next, of row lane / 4 (transposed: of column).
template <int N, bool TRANSPOSED>
inline void ldmatrix(Site site, unsigned (&registers)[N], const void* row) {
  static_assert(N == 1 || N == 2 || N == 4);
  if (running->current->linear % WARP < 8 * N && uintptr_t(row) % 16) running->fail("ldmatrix misaligned");
  running->collective(~0u, site, row, registers, [](Thread* lanes, unsigned members) {
    if (members != ~0u) running->fail("ldmatrix by a part of a warp");
    for (int matrix = 0; matrix < N; ++matrix) {
      uint64_t rows[8];
      for (int r = 0; r < 8; ++r) rows[r] = uint64_t(uintptr_t(lanes[matrix * 8 + r].in));
      count_conflicts(rows);
      uint16_t values[8][8];
      for (int r = 0; r < 8; ++r) memcpy(values[r], lanes[matrix * 8 + r].in, 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int major = lane / 4, minor = lane % 4 * 2;
        const uint16_t first = TRANSPOSED ? values[minor][major] : values[major][minor];
        const uint16_t second = TRANSPOSED ? values[minor + 1][major] : values[major][minor + 1];
        static_cast<unsigned*>(lanes[lane].out)[matrix] = unsigned(first) | unsigned(second) << 16;
      }
    }
  });
}
}  // namespace cuda_host

#define ch_mma_m16n8k16_bf16(c, a, b) ::cuda_host::mma::issue<__nv_bfloat16>(CUDA_HOST_SITE, c, a, b)
#define ch_mma_m16n8k16_f16(c, a, b) ::cuda_host::mma::issue<__half>(CUDA_HOST_SITE, c, a, b)
#define ch_ldmatrix_x1(registers, row) ::cuda_host::ldmatrix<1, false>(CUDA_HOST_SITE, registers, row)
#define ch_ldmatrix_x2(registers, row) ::cuda_host::ldmatrix<2, false>(CUDA_HOST_SITE, registers, row)
#define ch_ldmatrix_x4(registers, row) ::cuda_host::ldmatrix<4, false>(CUDA_HOST_SITE, registers, row)
#define ch_ldmatrix_x1_trans(registers, row) ::cuda_host::ldmatrix<1, true>(CUDA_HOST_SITE, registers, row)
#define ch_ldmatrix_x2_trans(registers, row) ::cuda_host::ldmatrix<2, true>(CUDA_HOST_SITE, registers, row)
#define ch_ldmatrix_x4_trans(registers, row) ::cuda_host::ldmatrix<4, true>(CUDA_HOST_SITE, registers, row)
