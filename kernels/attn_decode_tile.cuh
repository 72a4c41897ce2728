// Decode attention over one tile of positions: queries . keys, softmax weights, weights . values.
//
// Keys and 16-bit values are multiplied on the tensor cores: of the 16 rows of mma's left operand, the first eight hold the
// heads' first 16-bit term and the other eight their second, so that one product has float32-like precision; bf16 takes
// three terms, hence two products. A float32 key (Halves) itself has two terms, with one product each. Float values, and
// head_dim 16, are multiplied in float32.
// A block has 128 threads and up to eight query heads of one key/value head.
#pragma once
#include "attn_terms.cuh"
#include "softmax_state.cuh"

namespace attn_decode {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int G = 8;          // query heads computed together
constexpr int OWN = G / WARPS;  // heads per warp whose queries it scales and whose states it keeps
constexpr int KEY_LANES = 8;  // lanes that compute one score together, without tensor cores

/// Number of terms of the float32 operand that multiplies a cache, and of products, two terms each, with each of the PLANES of
/// a cached element, which are of type `Type`.
template <class T>
struct Terms;
template <>
struct Terms<__half> {
  using Type = __half;
  static constexpr int COUNT = 2, PRODUCTS = 1, PLANES = 1;
};
template <>
struct Terms<Halves> {
  using Type = __half;
  static constexpr int COUNT = 2, PRODUCTS = 1, PLANES = 2;
};
template <>
struct Terms<__nv_bfloat16> {
  using Type = __nv_bfloat16;
  static constexpr int COUNT = 3, PRODUCTS = 2, PLANES = 1;
};
template <>
struct Terms<float> {
  static constexpr int COUNT = 0, PRODUCTS = 0;
};

constexpr int power_of_two_within(int limit, int least, int most) {
  int size = least;
  while (2 * size <= limit && 2 * size <= most) size *= 2;
  return size;
}

/// A block's walk over its share: TILE positions of K and V in each of two stages of shared memory.
template <class K_, class V_, int D_>
struct Tiling {
  using K = K_;
  using V = V_;
  static constexpr int D = D_;
  static constexpr bool WIDE = sizeof(K) == 4 || sizeof(V) == 4;
  static constexpr int TILE = power_of_two_within(4096 / D, WIDE ? 8 : D > 256 ? 16 : 32, 64);
  static constexpr bool TENSOR_K = D % 32 == 0;
  static constexpr bool TENSOR_V = sizeof(V) == 2 && D % 32 == 0 && TILE % 32 == 0;
  // 16 bytes more than a position: the lines of an 8x8 matrix fall in different banks
  static constexpr int K_STRIDE = D + VEC<K>, V_STRIDE = D + VEC<V>, Q_STRIDE = D + 8, SCORE_STRIDE = TILE + 8;
  // without tensor cores: a thread handles VEC<V> dimensions of one of GROUPS parts of a tile
  static constexpr int LANES = D / VEC<V>;
  static constexpr int GROUPS = power_of_two_within(THREADS / LANES, 1, TILE);
  static constexpr int K_BYTES = 2 * TILE * K_STRIDE * (int)sizeof(K), V_BYTES = 2 * TILE * V_STRIDE * (int)sizeof(V);
  static constexpr int MERGE_BYTES = TENSOR_V ? 0 : GROUPS * G * D * 4;
  static constexpr int TILE_BYTES = K_BYTES + V_BYTES > MERGE_BYTES ? K_BYTES + V_BYTES : MERGE_BYTES;
  static constexpr int Q_BYTES = TENSOR_K ? Terms<K>::PRODUCTS * 16 * Q_STRIDE * 2 : G * D * 4;
  static constexpr int BYTES = TILE_BYTES + Q_BYTES + 4 * G * (SCORE_STRIDE + 2);
};

/// A block's dynamic shared memory.
template <class T>
struct Shared {
  typename T::K* keys = reinterpret_cast<typename T::K*>(dyn_smem);                 // [2, TILE, K_STRIDE]
  typename T::V* values = reinterpret_cast<typename T::V*>(dyn_smem + T::K_BYTES);  // [2, TILE, V_STRIDE]
  float* merge = reinterpret_cast<float*>(dyn_smem);                                // [GROUPS, G, D], over the tiles
  unsigned char* queries = dyn_smem + T::TILE_BYTES;  // f32 [G, D], or 16-bit terms [PRODUCTS, 16, Q_STRIDE]
  float* scores = reinterpret_cast<float*>(queries + T::Q_BYTES);  // [G, SCORE_STRIDE]
  float* factors = scores + G * T::SCORE_STRIDE;                   // [G], for a tile
  float* inverses = factors + G;                                   // [G], of the queries' scales
};

/// Starts copying TILE positions from `start` on; those outside `wanted` become zeros. If a thread always copies the same
/// dimensions of a position, its addresses are a constant apart.
template <class T, int D, int TILE, int STRIDE>
__device__ __forceinline__ void fetch(T* tile, const T* cache, int start, const Span& wanted) {
  constexpr int VECS = D / VEC<T>, LINES = THREADS / VECS;
  if constexpr (THREADS % VECS == 0 && TILE % LINES == 0) {
    const int line = threadIdx.x / VECS, dim = threadIdx.x % VECS * VEC<T>;
    const int first = wanted.begin - start - line, end = wanted.end - start - line;
    const T* from = cache + (size_t)(start + line) * D + dim;
    T* to = tile + line * STRIDE + dim;
#pragma unroll
    for (int i = 0; i < TILE; i += LINES) cp_async16(to + i * STRIDE, from + i * D, i >= first && i < end);
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * VECS; i += THREADS) {
      const int line = i / VECS, dim = i % VECS * VEC<T>;
      const bool on = wanted.contains(start + line);
      cp_async16(tile + line * STRIDE + dim, cache + (on ? (size_t)(start + line) * D + dim : 0), on);
    }
  }
}

/// A score with the model's softcap applied.
__device__ OUT_OF_LINE float capped(float s, float softcap) { return __fmul_rn(softcap, tanhf(s / softcap)); }

// ---- queries . keys -------------------------------------------------------------------------------------------------

/// Stages the queries of `count` heads for score_tile; zeros for the rest. With tensor cores: each multiplied by a power of
/// two; term 2i of head g in line g of product i, term 2i + 1 in line g + 8.
template <class T>
__device__ __forceinline__ void stage_queries(const Shared<T>& shared, const float* queries, int count) {
  constexpr int D = T::D;
  if constexpr (T::TENSOR_K) {
    using K = typename Terms<typename T::K>::Type;
    constexpr int COUNT = Terms<K>::COUNT, LINES = 2 * Terms<K>::PRODUCTS, PARTS = ceil_div(D, 256);
    const int lane = threadIdx.x % 32;
    float x[OWN][PARTS][8] = {};
#pragma unroll
    for (int i = 0; i < OWN * PARTS; ++i) {  // all loads first, so that heads beyond `count` do not branch around a shuffle
      const int g = threadIdx.x / 32 + i / PARTS * WARPS, dim = i % PARTS * 256 + lane * 8;
      if (dim < D && g < count) load8<float>(queries + g * D + dim, x[i / PARTS][i % PARTS]);
    }
#pragma unroll
    for (int own = 0; own < OWN; ++own) {
      const int g = threadIdx.x / 32 + own * WARPS;
      float max_abs = 0.f;
#pragma unroll
      for (int i = 0; i < 8 * PARTS; ++i) max_abs = fmaxf(max_abs, fabsf(x[own][i / 8][i % 8]));
      const PowerOfTwo factor = scale_to_f16(warp_reduce<Max>(max_abs));
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        const int dim = part * 256 + lane * 8;
#pragma unroll
        for (int i = 0; i < 8; ++i) x[own][part][i] *= factor.scale;
        uint4 terms[COUNT];
        split8<K>(x[own][part], terms);
        K* to = reinterpret_cast<K*>(shared.queries) + g * T::Q_STRIDE + dim;
#pragma unroll
        for (int i = 0; i < LINES; ++i)
          if (dim < D)
            *reinterpret_cast<uint4*>(to + i * 8 * T::Q_STRIDE) =
                i < COUNT ? terms[i < COUNT ? i : 0] : make_uint4(0, 0, 0, 0);
      }
      if (lane == 0) shared.inverses[g] = factor.inverse;
    }
  } else {
    float* to = reinterpret_cast<float*>(shared.queries);
    for (int i = threadIdx.x; i < G * D; i += THREADS) to[i] = i < count * D ? queries[i] : 0.f;
  }
}

/// scores[g, t] = q[g] . k[t] for one tile, on tensor cores: a warp has a quarter of the positions, but at least eight.
/// Their accumulators truncate, so 32 dimensions at a time are summed there, and those sums in float32.
template <class T>
__device__ __forceinline__ void score_tile_tensor(const Shared<T>& shared, const typename T::K* tile, float softcap) {
  using K = typename Terms<typename T::K>::Type;
  constexpr int PRODUCTS = Terms<K>::PRODUCTS, PLANES = Terms<typename T::K>::PLANES;
  constexpr int PER = T::TILE < 8 * WARPS ? 1 : T::TILE / (8 * WARPS), STRIDE = PLANES * T::K_STRIDE;
  [[maybe_unused]] constexpr int UNROLL = T::D > 256 ? 2 : T::D / 32;  // more at a time would take more registers than there are
  const K* keys = reinterpret_cast<const K*>(tile);
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8 * PER;
  if (T::TILE < 8 * WARPS && first >= T::TILE) return;
  // this lane's ldmatrix addresses: 16x16 blocks of the queries, 8 positions x 32 dimensions of the keys
  const K* q_line = reinterpret_cast<const K*>(shared.queries) + lane % 16 * T::Q_STRIDE + lane / 16 * 8;
  const K* k_line = keys + (first + lane % 8) * STRIDE + lane / 8 * 8;
  float s[PER][4] = {};
#pragma unroll UNROLL
  for (int dim = 0; dim < T::D; dim += 32) {
    unsigned q[2][PRODUCTS][4];
#pragma unroll
    for (int i = 0; i < 2 * PRODUCTS; ++i)
      ldmatrix_x4(q[i / PRODUCTS][i % PRODUCTS], q_line + i % PRODUCTS * 16 * T::Q_STRIDE + dim + i / PRODUCTS * 16);
#pragma unroll
    for (int p = 0; p < PER; ++p) {
      float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int plane = 0; plane < PLANES; ++plane) {
        unsigned k[4];
        ldmatrix_x4(k, k_line + p * 8 * STRIDE + plane * T::D + dim);
        const unsigned left[2] = {k[0], k[1]}, right[2] = {k[2], k[3]};
#pragma unroll
        for (int product = 0; product < PRODUCTS; ++product) {
          mma_m16n8k16<K>(c, q[0][product], left);
          mma_m16n8k16<K>(c, q[1][product], right);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) s[p][i] += c[i];
    }
  }
  const int g = lane / 4;
  const float inverse = shared.inverses[g];
#pragma unroll
  for (int p = 0; p < PER; ++p) {
    float2 pair = make_float2((s[p][0] + s[p][2]) * inverse, (s[p][1] + s[p][3]) * inverse);
    if (softcap > 0.f) pair = make_float2(capped(pair.x, softcap), capped(pair.y, softcap));
    *reinterpret_cast<float2*>(shared.scores + g * T::SCORE_STRIDE + first + p * 8 + lane % 4 * 2) = pair;
  }
}

/// The same without tensor cores. Eight neighbouring lanes share a position and split its dimensions, so that they read
/// 128 consecutive bytes; the PER positions of a thread share each q. The eight partial sums are added in an exchange
/// that leaves every lane with one position's sums.
template <class T>
__device__ __forceinline__ void score_tile_plain(const Shared<T>& shared, const typename T::K* keys, float softcap) {
  using K = typename T::K;
  constexpr int PER = T::TILE / (THREADS / KEY_LANES), N = VEC<K>, D = T::D;
  const float* queries = reinterpret_cast<const float*>(shared.queries);
  const int warp = threadIdx.x / 32, position = warp * (T::TILE / WARPS) + threadIdx.x % 32 / KEY_LANES;
  const int j = threadIdx.x % KEY_LANES;
  float sums[G][PER];
#pragma unroll
  for (int i = 0; i < G * PER; ++i) sums[i / PER][i % PER] = 0.f;
#pragma unroll 1
  for (int v = j; v < D / N; v += KEY_LANES) {
    float k[PER][N];
#pragma unroll
    for (int p = 0; p < PER; ++p) load_key<K>(keys + (position + p * 4) * T::K_STRIDE, D, v * N, k[p]);
#pragma unroll
    for (int g = 0; g < G; ++g)
#pragma unroll
      for (int n = 0; n < N; n += 4) {
        float q[4];
        load_vec<float>(queries + g * D + v * N + n, q);
#pragma unroll
        for (int p = 0; p < PER; ++p)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[g][p] = fmaf(q[i], k[p][n + i], sums[g][p]);
      }
  }
  int mine = 0;  // the one of the PER positions that this lane ends up with
#pragma unroll
  for (int half = PER / 2, lanes = 1; lanes < KEY_LANES; half /= 2, lanes *= 2) {
    const bool upper = j & lanes;
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (half == 0) sums[g][0] += __shfl_xor_sync(FULL_WARP, sums[g][0], lanes);
#pragma unroll
      for (int p = 0; p < half; ++p) {
        const float keep = upper ? sums[g][p + half] : sums[g][p], give = upper ? sums[g][p] : sums[g][p + half];
        sums[g][p] = keep + __shfl_xor_sync(FULL_WARP, give, lanes);
      }
    }
    if (upper) mine += half;
  }
  if (j >= PER) return;
#pragma unroll
  for (int g = 0; g < G; ++g) shared.scores[g * T::SCORE_STRIDE + position + mine * 4] = softcap > 0.f ? capped(sums[g][0], softcap) : sums[g][0];
}

// ---- weights --------------------------------------------------------------------------------------------------------

/// A head's state, with each lane's own part of the sums, and the factor for earlier sums.
struct Weighed {
  HeadState state;
  float factor;
};

/// Adds one tile's scores to a head's state and replaces them with e^{s-m} (0 outside `wanted`). One warp. INSIDE: the whole
/// tile is wanted and has weight 1.
template <int TILE, bool ENTROPY, bool INSIDE>
__device__ __forceinline__ Weighed weigh_tile(HeadState state, float* scores, int start, const Span& wanted, int row) {
  constexpr int PER = (TILE + 31) / 32;
  const int first = start + threadIdx.x % 32;
  float s[PER], m = -infinity(), mw = state.mw;  // m: of the tile
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int t = first + 32 * i;
    s[i] = 0.f;
    if (t >= start + TILE || !(INSIDE || wanted.contains(t))) continue;
    s[i] = scores[t - start];
    m = fmaxf(m, s[i]);
    if (ENTROPY && !INSIDE && has_weight(row, t)) mw = fmaxf(mw, s[i]);
  }
  m = warp_reduce<Max>(m);
  if (ENTROPY) mw = INSIDE ? fmaxf(mw, m) : warp_reduce<Max>(mw);
  const float factor = raise<ENTROPY>(state, fmaxf(state.m, m), mw);
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    const int t = first + 32 * i;
    if (t >= start + TILE) break;
    scores[t - start] = INSIDE || wanted.contains(t) ? add_position<ENTROPY, INSIDE>(state, s[i], row, t) : 0.f;
  }
  return {state, factor};
}

/// For the first and last tile of a share, and those of the row's nearest positions, whose gamma may differ from 1.
template <int TILE, bool ENTROPY>
__device__ OUT_OF_LINE Weighed weigh_edge(HeadState state, float* scores, int start, Span wanted, int row) {
  return weigh_tile<TILE, ENTROPY, false>(state, scores, start, wanted, row);
}

// ---- weights . values -----------------------------------------------------------------------------------------------

/// A thread's part of the output: on tensor cores dimensions 8i ..= 8i + 7 of its warp's quarter, in the layout of
/// mma's c, multiplied by WEIGHT_SCALE; otherwise VEC<V> dimensions of all heads.
template <class T>
struct Output {
  static constexpr int PARTS = T::TENSOR_V ? T::D / (8 * WARPS) : G, SIZE = T::TENSOR_V ? 4 : VEC<typename T::V>;
  float sums[PARTS][SIZE];
};

/// sums = sums factor + weights . values for one tile, on tensor cores: 32 positions at a time, as for the scores.
template <class T>
__device__ __forceinline__ void accumulate_tile_tensor(Output<T>& out, const Shared<T>& shared,
                                                       const typename T::V* values) {
  using V = typename T::V;
  constexpr int COUNT = Terms<V>::COUNT, PRODUCTS = Terms<V>::PRODUCTS;
  const int lane = threadIdx.x % 32, g = lane / 4;
  float factor = shared.factors[g];
  const V* v_line = values + lane * T::V_STRIDE + threadIdx.x / 32 * (T::D / WARPS);
#pragma unroll
  for (int t = 0; t < T::TILE; t += 32, factor = 1.f) {
    unsigned p[2][PRODUCTS][4];  // positions t .. t + 16, t + 16 .. t + 32
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair =
          *reinterpret_cast<const float2*>(shared.scores + g * T::SCORE_STRIDE + t + i * 8 + lane % 4 * 2);
      unsigned terms[COUNT];
      split<V>(pair.x * WEIGHT_SCALE, pair.y * WEIGHT_SCALE, terms);
#pragma unroll
      for (int term = 0; term < 2 * PRODUCTS; ++term)
        p[i / 2][term / 2][i % 2 * 2 + term % 2] = term < COUNT ? terms[term < COUNT ? term : 0] : 0u;
    }
#pragma unroll
    for (int part = 0; part < Output<T>::PARTS; ++part) {
      unsigned v[4];
      ldmatrix_x4_trans(v, v_line + t * T::V_STRIDE + part * 8);
      const unsigned left[2] = {v[0], v[1]}, right[2] = {v[2], v[3]};
      float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product) {
        mma_m16n8k16<V>(c, p[0][product], left);
        mma_m16n8k16<V>(c, p[1][product], right);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) out.sums[part][i] = fmaf(out.sums[part][i], factor, c[i]);
    }
  }
}

/// The same without tensor cores, over this thread's positions and dimensions.
template <class T>
__device__ __forceinline__ void accumulate_tile_plain(Output<T>& out, const Shared<T>& shared,
                                                      const typename T::V* values) {
  using V = typename T::V;
  constexpr int N = VEC<V>, PER = T::TILE / T::GROUPS, STEP = PER < 4 ? PER : 4;
  const int group = threadIdx.x / T::LANES, dim = threadIdx.x % T::LANES * N;
  if (group >= T::GROUPS) return;
#pragma unroll
  for (int i = 0; i < G * N; ++i) out.sums[i / N][i % N] *= shared.factors[i / N];
#pragma unroll 1
  for (int t = group * PER; t < (group + 1) * PER; t += STEP) {
    float p[G][STEP];
#pragma unroll
    for (int i = 0; i < G * STEP; ++i) p[i / STEP][i % STEP] = shared.scores[i / STEP * T::SCORE_STRIDE + t + i % STEP];
#pragma unroll
    for (int i = 0; i < STEP; ++i) {
      float v[N];
      load_vec<V>(values + (t + i) * T::V_STRIDE + dim, v);
#pragma unroll
      for (int g = 0; g < G; ++g)
#pragma unroll
        for (int n = 0; n < N; ++n) out.sums[g][n] = fmaf(p[g][i], v[n], out.sums[g][n]);
    }
  }
}

/// Stores the split's output of `count` heads to `to` [heads, splits, D].
template <class T>
__device__ __forceinline__ void store_tensor(const Output<T>& out, int count, float* to, int splits) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  if (g >= count) return;
  to += (size_t)g * splits * T::D + threadIdx.x / 32 * (T::D / WARPS) + lane % 4 * 2;
#pragma unroll
  for (int part = 0; part < Output<T>::PARTS; ++part) {
    const float* sums = out.sums[part];
    *reinterpret_cast<float2*>(to + part * 8) =
        make_float2((sums[0] + sums[2]) / WEIGHT_SCALE, (sums[1] + sums[3]) / WEIGHT_SCALE);
  }
}

/// The same without tensor cores: adds up the groups' sums, in order.
template <class T>
__device__ __forceinline__ void store_plain(const Output<T>& out, const Shared<T>& shared, int count, float* to, int splits) {
  constexpr int N = Output<T>::SIZE, D = T::D;
  const int group = threadIdx.x / T::LANES, dim = threadIdx.x % T::LANES * N;
  __syncthreads();  // the tiles, which `merge` overlays, are no longer read
  if (group < T::GROUPS) {
#pragma unroll
    for (int i = 0; i < G * N; ++i) shared.merge[(group * G + i / N) * D + dim + i % N] = out.sums[i / N][i % N];
  }
  __syncthreads();  // all groups' sums are there
  for (int i = threadIdx.x; i < count * D; i += THREADS) {
    float total = shared.merge[i];
#pragma unroll
    for (int other = 1; other < T::GROUPS; ++other) total += shared.merge[other * G * D + i];
    to[(size_t)(i / D) * splits * D + i % D] = total;
  }
}

}  // namespace attn_decode
