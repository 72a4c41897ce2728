// attn_prefill.cu on compute capability 9.0, with wgmma, for the default cache types: one instruction for four warps reads its operands
// directly from shared memory, and runs while the warps add up the sums of the previous one.
//
// attn_prefill_hopper_kf32_vf16_d{64,128}_t2: parameters, grid and block as in attn_prefill.cu
//
// Tiles are 64 positions, as 128-byte lines of 64 dimensions, with their chunks permuted for wgmma; as a cache grows in place,
// copies use cp.async, not TMA. Chains and the order of sums are those of attn_prefill.cu: bit-identical if the tensor cores add
// in the same way in both kinds of instruction. Two chains are in flight, and two blocks share a multiprocessor, so that one multiplies
// while the other computes weights.
#include "attn_prefill.cuh"
#include "hopper.cuh"

#if HAS_WGMMA
namespace attn_prefill {

template <int HEAD_DIM>
struct Wgmma {
  using Key = Halves;
  using Value = __half;
  static constexpr int D = HEAD_DIM, TERMS = 2, K_PLANES = 2, TILE = 64, WEIGHED = 32;
  static constexpr int LINE = 64, PARTS = D / LINE;    // dimensions per line; parts per head
  static constexpr int PART = TILE * LINE;             // elements per part of a tile, and per part of the queries
  static constexpr int QUERY_PLANE = PARTS * PART;
  static constexpr int K_PLANE = PARTS * PART;
  static constexpr int CHAIN = 32;
  static constexpr int BYTES = OPERAND_ALIGNMENT + (TERMS * QUERY_PLANE + K_PLANES * K_PLANE + PARTS * PART) * 2;
  static_assert(LINES<D> == TILE, "queries and keys have tiles of one size");

  __half* queries;  // [TERMS, PARTS, LINES, LINE]
  __half* keys;     // [K_PLANES, PARTS, TILE, LINE]
  __half* values;   // [PARTS, TILE, LINE]

  __device__ __forceinline__ Wgmma() {
    queries = reinterpret_cast<__half*>(operand_memory());
    keys = queries + TERMS * QUERY_PLANE;
    values = keys + K_PLANES * K_PLANE;
  }

  /// Offset of eight elements of a line, from `dim` on: a line's chunks are permuted by its number.
  __device__ __forceinline__ static int place(int line, int dim) {
    return dim / LINE * PART + line * LINE + (dim % LINE / 8 ^ line % 8) * 8;
  }
  __device__ __forceinline__ __half* query(int line, int dim) const { return queries + place(line, dim); }

  /// Copies each position's PLANES to offsets K_PLANE apart.
  template <int PLANES>
  __device__ __forceinline__ static void stage(__half* tile, const __half* cache, int start, int end) {
    constexpr int VECS = D / 8, AT_ONCE = THREADS / VECS;
    static_assert(AT_ONCE % 8 == 0, "a thread's lines are permuted alike");
    const int line = threadIdx.x / VECS, dim = threadIdx.x % VECS * 8;
    const __half* from = cache + (size_t)(start + line) * PLANES * D + dim;
    __half* to = tile + place(line, dim);
    const int left = end - start - line;
#pragma unroll
    for (int i = 0; i < TILE; i += AT_ONCE)
#pragma unroll
      for (int plane = 0; plane < PLANES; ++plane)
        cp_async16(to + plane * K_PLANE + i * LINE, from + (i * PLANES + plane) * D, i < left);
  }
  __device__ __forceinline__ void stage_keys(const Halves* k, int start, int end) const {
    stage<K_PLANES>(keys, reinterpret_cast<const __half*>(k), start, end);
  }
  __device__ __forceinline__ void stage_values(const __half* v, int start, int end) const {
    stage<1>(values, v, start, end);
  }
  __device__ __forceinline__ void arrived() const { wgmma_fence_shared(); }

  __device__ __forceinline__ static Operand operand(const __half* lines) {
    return Operand::at(reinterpret_cast<const unsigned char*>(lines));
  }

  /// Starts a chain of 32 dimensions.
  __device__ __forceinline__ void start_scores(float (&c)[32], Operand q, Operand k, int chain) const {
    const unsigned first = (chain * CHAIN / LINE * PART + chain * CHAIN % LINE) / 8;  // in units of 16 bytes
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < CHAIN / 16; ++step)
#pragma unroll
      for (int plane = 0; plane < K_PLANES; ++plane)
#pragma unroll
        for (int term = 0; term + plane < TERMS; ++term)
          wgmma_m64n64k16(c, q.plus(term * QUERY_PLANE / 8 + first + 2 * step), k.plus(plane * K_PLANE / 8 + first + 2 * step),
                          step + plane + term > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_queries(Scores<WEIGHED> (&scores)[2]) const {
    constexpr int CHAINS = D / CHAIN;
    const Operand q = operand(queries), k = operand(keys);
    float c[2][32];
    start_scores(c[0], q, k, 0);
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
      float(&sums)[32] = c[chain % 2];
      if (chain + 1 < CHAINS) {
        start_scores(c[(chain + 1) % 2], q, k, chain + 1);
        wgmma_wait<1>(sums);
      } else {
        wgmma_wait<0>(sums);
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& s = scores[i / 16].s[i % 16 / 4][i % 4];
        s = chain == 0 ? sums[i] : s + sums[i];
      }
    }
  }

  /// Starts a chain of 32 positions, for 64 dimensions.
  __device__ __forceinline__ void start_values(float (&c)[32], const unsigned (&weights)[TILE / 16][TERMS][4], Operand v, int part,
                                               int chain) const {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < CHAIN / 16; ++i)
#pragma unroll
      for (int term = 0; term < TERMS; ++term) {
        const int step = chain * CHAIN / 16 + i;
        wgmma_m64n64k16_rows(c, weights[step][term], v.plus((part * PART + step * 16 * LINE) / 8), i + term > 0);
      }
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_values(float (&out)[D / 8][4], const float (&factors)[2][2],
                                                  const Scores<WEIGHED> (&p)[2]) const {
    constexpr int CHAINS = TILE / CHAIN, ALL = PARTS * CHAINS;
    unsigned weights[TILE / 16][TERMS][4];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) split_weights<TERMS, WEIGHED>(p[i].s, weights + i * (CHAIN / 16));
    const Operand v = operand(values);
    float c[2][32];
    start_values(c[0], weights, v, 0, 0);
#pragma unroll
    for (int at = 0; at < ALL; ++at) {
      float(&sums)[32] = c[at % 2];
      if (at + 1 < ALL) {
        start_values(c[(at + 1) % 2], weights, v, (at + 1) / CHAINS, (at + 1) % CHAINS);
        wgmma_wait<1>(sums);
      } else {
        wgmma_wait<0>(sums);
      }
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& sum = out[at / CHAINS * 8 + i / 4][i % 4];
        sum = fmaf(sum, factors[at % CHAINS][i % 4 / 2], sums[i]);
      }
    }
  }
};

}  // namespace attn_prefill

ATTN_PREFILL_KERNEL(attn_prefill_hopper_kf32_vf16_d64_t2, 3, attn_prefill::Wgmma<64>)
ATTN_PREFILL_KERNEL(attn_prefill_hopper_kf32_vf16_d128_t2, 2, attn_prefill::Wgmma<128>)
#endif  // HAS_WGMMA
