// The streaming state of one attention row and head: softmax, and the entropy of the reweighted attention. Both are
// defined only here. With scores s over positions t:
//   m = max s,            Z  = sum e^{s-m}
//   m' = max s over w > 0, Z' = sum w e^{s-m'},  S' = sum w e^{s-m'} (s - m' + ln w)
// m' is a separate maximum: a strong first-token sink would underflow the rest.
//
// For a kernel of your own: make room for the new maxima (raise), add positions (add_position), add up the parts (add_sums, or field by
// field), read off the entropy (finish). tests/cuda_kernels/softmax_state.cpp does it in ten lines.
#pragma once
#include "common.cuh"

/// gamma of the reweighting, nearest position first: w_{T-1-i} = gamma_i, 1 from C on; and its natural logarithm. The last entry
/// holds for all positions further away.
constexpr int MAX_NEAREST = 18;
struct Gamma {
  float weights[MAX_NEAREST + 1], logs[MAX_NEAREST + 1];
  unsigned hidden;  // bit 31 - i: gamma_i is 0
};
SETTABLE(Gamma, GAMMA,
         {{0.16644488f, 0.20938152f, 0.32959151f, 0.46061748f, 0.59304059f, 0.67549127f, 0.73914525f, 0.81274293f, 0.87378443f,
           0.93925344f, 1.f, 1.f, 1.f, 1.f, 1.f, 1.f, 1.f, 1.f, 1.f},
          {-1.79309106f, -1.56359723f, -1.10990123f, -0.775187336f, -0.522492441f, -0.39231504f, -0.302260789f, -0.207340396f,
           -0.13492159f, -0.062669922f}})

/// Positions begin .. end.
struct Span {
  int begin, end;
  __device__ __forceinline__ bool contains(int t) const { return t >= begin && t < end; }
};

/// Positions that row `row` attends to; `window`: at most this many, the row's own included; 0: all.
__device__ __forceinline__ Span attended(int row, int window) {
  return {window > 0 && row + 1 > window ? row + 1 - window : 0, row + 1};
}

/// The index of position t in GAMMA.
__device__ __forceinline__ int nearness(int row, int t) { return min(row - t - 1, MAX_NEAREST); }

/// w_t of row T: 0 for the first position and for the row's own, gamma for the nearest before it, 1 elsewhere.
__device__ __forceinline__ float reweighting(int row, int t) { return t > 0 && t < row ? GAMMA.weights[nearness(row, t)] : 0.f; }

/// w_t > 0, in fewer registers than computing the weight.
__device__ __forceinline__ bool has_weight(int row, int t) {
  return t > 0 && t < row && (int)(GAMMA.hidden << nearness(row, t)) >= 0;
}

/// Clears the entropy part of the state of an untraced row.
__device__ __forceinline__ void clear_entropy(HeadState& state) {
  state.mw = -infinity();
  state.zw = state.sw = 0.f;
}

__device__ __forceinline__ HeadState empty_state() { return {-infinity(), 0.f, -infinity(), 0.f, 0.f}; }

/// e^x for x <= 0 in two instructions, where expf takes eight: to 2^-22 of itself, plus |x| 2^-23 from rounding the product; 0 below
/// 2^-126, and 1 for 0. Relative to the largest weight, which scales sums of weights, it is as accurate as expf.
__device__ __forceinline__ float weight_of(float x) {
  const float log2 = __fmul_rn(x, 1.44269504f);
#ifdef CUDA_HOST_SHIM
  return cuda_host::ex2_approx_ftz(log2);
#else
  float weight;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(log2));
  return weight;
#endif
}

// Kernels have several loops over these functions, including one for tiles that need less work: no product is left for the compiler
// to fuse with a sum in one of them but not in another.

/// Rescales a state to maxima no smaller than its own: Z by e^{-d}, and, d being the increase of m',
/// S' <- e^{-d} (S' - d Z'), Z' <- e^{-d} Z'. Returns the factor of Z (0 for an empty state).
template <bool ENTROPY>
__device__ __forceinline__ float raise(HeadState& state, float m, float mw) {
  const float factor = state.m == -infinity() ? 0.f : weight_of(state.m - m);
  state.m = m;
  state.z = __fmul_rn(state.z, factor);
  if (ENTROPY && mw > state.mw) {
    if (state.mw > -infinity()) {
      const float d = mw - state.mw, e = weight_of(-d);
      state.sw = __fmul_rn(e, __fmaf_rn(-d, state.zw, state.sw));
      state.zw = __fmul_rn(state.zw, e);
    }
    state.mw = mw;
  }
  return factor;
}

/// Whether all positions begin .. end have weight 1 in row `row`, whatever gamma is.
__device__ __forceinline__ bool unweighted(int row, int begin, int end) { return begin > 0 && row - end >= MAX_NEAREST; }

/// Adds position t of row `row` with score `s` to a state whose maxima cover it; returns e^{s-m}. UNWEIGHTED: w_t is known
/// to be 1.
template <bool ENTROPY, bool UNWEIGHTED = false>
__device__ __forceinline__ float add_position(HeadState& state, float s, int row, int t) {
  const float e = weight_of(s - state.m);
  state.z += e;
  if (ENTROPY) {
    const float below = s - state.mw;
    if (UNWEIGHTED) {
      const float ew = state.mw == state.m ? e : weight_of(below);
      state.zw += ew;
      state.sw = __fmaf_rn(ew, below, state.sw);
    } else if (has_weight(row, t)) {
      const int place = nearness(row, t);
      const float ew = __fmul_rn(GAMMA.weights[place], weight_of(below));
      state.zw += ew;
      state.sw = __fmaf_rn(ew, below + GAMMA.logs[place], state.sw);
    }
  }
  return e;
}

/// Adds the sums of a state with the same maxima.
__device__ __forceinline__ void add_sums(HeadState& state, const HeadState& other) {
  state.z += other.z;
  state.zw += other.zw;
  state.sw += other.sw;
}

/// The result of a state: the sum f <= 1 of the normalized weights, and their entropy in nats.
struct Finished {
  double f, entropy;
};

/// Exact: f = 1, H = ln Z' - S'/Z'; a row with Z' = 0 (T < 2) has no attention and an infinite entropy, so that it
/// never wins a selection. Regularized (as the authors' code): the weights are divided by sigma + 1e-12, sigma = sum w
/// alpha, hence are alpha' f, f = sigma / (sigma + 1e-12), H = f (H_exact - ln f), and a row without attention has
/// entropy 0.
__device__ __forceinline__ Finished finish(const HeadState& state, bool regularized) {
  if (!(state.zw > 0.f)) return {0.0, regularized ? 0.0 : (double)infinity()};
  const double z = state.zw, entropy = log(z) - state.sw / z;
  if (!regularized) return {1.0, entropy};
  const double sigma = exp(log(z) + state.mw - state.m - log((double)state.z));
  const double f = sigma / (sigma + 1e-12);
  if (f == 0.0) return {0.0, 0.0};
  return {f, f * (entropy - log(f))};
}
