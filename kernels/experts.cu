// The feed-forward network of a layer with experts: which of them each row goes through, and their products.
//
//   choose_experts      (logits, experts, top_k, normalize, scales, ids, shares)
//   expert_gated_{w}    (x, ids, experts, k, inner, top_k, activation, h)    h = act(gate x) * up x, of each chosen expert
//   expert_down_{w}     (h, ids, shares, experts, inner, outs, top_k, accumulate, y)   y = sum over the chosen of share * down h
//
//   logits    [rows, experts] f32, of the router
//   ids       [rows, top_k] int: the experts of the highest logits, of equals the lower ids; ascending
//   shares    [rows, top_k] f32: their probabilities; normalize: divided by their sum; scales: times that of the
//             expert, [experts] f32 or null
//   experts   [experts] ExpertView; {w} = f16, f32: the type of all their weights
//   x         [rows, k] f32, normed          h  [rows, top_k, inner] f32          y  [rows, outs] f32
//   activation as in dense.cuh; accumulate: y is added to
//
// A warp computes one output of one row, in float32: lane l multiplies 16 bytes of weights of every 32 * 16, and the lanes'
// sums are added in a fixed order. So a row has the same bits in every pass. An expert that several rows of a pass have
// chosen is read for each of them, from the L2 cache but for the first.
//
// PRECOND: choose_experts: grid rows, block 32; top_k from 1 to 32 and at most experts.
// PRECOND: the products: block 256; grid (ceil(inner / 8), rows * top_k) and (ceil(outs / 8), rows); k and inner multiples
// of 8; x, h and the matrices aligned to 16 bytes; no shared memory.
#include "dense.cuh"

/// The matrices of one expert: gate and up [inner, k], down [outs, inner]; powers of two of their rows, or null: 1.
struct ExpertView {
  const void* gate;
  const float* gate_scales;
  const void* up;
  const float* up_scales;
  const void* down;
  const float* down_scales;
};

namespace experts {

constexpr int WARPS = 8;

/// A logit and whose it is; the first in the order of choice is the largest.
struct Logit {
  float value;
  int id;
};
struct First {
  __device__ __forceinline__ Logit operator()(Logit a, Logit b) const {
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
  }
};
__device__ __forceinline__ Logit first_of_warp(Logit x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Logit other = {__shfl_xor_sync(FULL_WARP, x.value, lanes), __shfl_xor_sync(FULL_WARP, x.id, lanes)};
    x = First()(x, other);
  }
  return x;
}

/// Sum over i of w[i] x[i], in every lane.
template <class W>
__device__ __forceinline__ float dot(const void* weights, size_t row, const float* x, int width) {
  const W* w = static_cast<const W*>(weights) + row * width;
  float sum = 0.0f;
  for (int i = threadIdx.x % 32 * VEC<W>; i < width; i += 32 * VEC<W>) {
    float a[VEC<W>];
    load_vec(w + i, a);
#pragma unroll
    for (int part = 0; part < VEC<W>; part += 4) {
      float b[4];
      load_vec(x + i + part, b);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum = __fmaf_rn(a[part + j], b[j], sum);
    }
  }
  return warp_reduce<Sum>(sum);
}

__device__ __forceinline__ float scale_of(const float* scales, int row) { return scales ? scales[row] : 1.0f; }

template <class W>
__device__ __forceinline__ void gated(const float* x, const int* ids, const ExpertView* experts, int k, int inner, int top_k,
                                      int activation, float* h) {
  PRECOND_GRID(ceil_div(inner, WARPS), ANY_GRID);
  const int out = blockIdx.x * WARPS + threadIdx.x / 32, slot = blockIdx.y;
  if (out >= inner) return;
  const ExpertView expert = experts[ids[slot]];
  const float* row = x + (size_t)(slot / top_k) * k;
  const float gate = dot<W>(expert.gate, out, row, k) * scale_of(expert.gate_scales, out);
  const float up = dot<W>(expert.up, out, row, k) * scale_of(expert.up_scales, out);
  if (threadIdx.x % 32 == 0) h[(size_t)slot * inner + out] = __fmul_rn(activate(gate, activation), up);
}

template <class W>
__device__ __forceinline__ void down(const float* h, const int* ids, const float* shares, const ExpertView* experts, int inner,
                                     int outs, int top_k, int accumulate, float* y) {
  PRECOND_GRID(ceil_div(outs, WARPS), ANY_GRID);
  const int out = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y;
  if (out >= outs) return;
  float sum = 0.0f;
  for (int slot = row * top_k; slot < (row + 1) * top_k; ++slot) {
    const ExpertView expert = experts[ids[slot]];
    const float product = dot<W>(expert.down, out, h + (size_t)slot * inner, inner) * scale_of(expert.down_scales, out);
    sum = __fmaf_rn(shares[slot], product, sum);
  }
  float& to = y[(size_t)row * outs + out];
  if (threadIdx.x % 32 == 0) to = accumulate ? to + sum : sum;
}

}  // namespace experts

SHARED_BYTES(choose_experts, 0)
extern "C" __global__ void __launch_bounds__(32)
    choose_experts(const float* logits, int experts, int top_k, int normalize, const float* scales, int* ids, float* shares) {
  const int lane = threadIdx.x;
  const float* row = logits + (size_t)blockIdx.x * experts;
  float max = 0.0f, value = -infinity();
  int id = experts;  // the last choice, and at the end of lane i the i-th: everything comes after a larger value
  experts::Logit last = {infinity(), -1};
  for (int i = 0; i < top_k; ++i) {
    experts::Logit best = {-infinity(), experts};
    for (int at = lane; at < experts; at += 32) {
      const experts::Logit next = {row[at], at};
      const bool after = next.value < last.value || (next.value == last.value && next.id > last.id);
      if (after) best = experts::First()(best, next);
    }
    last = experts::first_of_warp(best);
    if (i == 0) max = last.value;
    if (lane == i) value = last.value, id = last.id;
  }
  float sum = 0.0f;
  if (normalize) {
    sum = lane < top_k ? expf(value - max) : 0.0f;
  } else {
    for (int at = lane; at < experts; at += 32) sum += expf(row[at] - max);
  }
  sum = warp_reduce<Sum>(sum);
  int before = 0;  // choices with a lower id
  for (int i = 0; i < top_k; ++i) before += __shfl_sync(FULL_WARP, id, i) < id;
  if (lane >= top_k) return;
  // a row that is not finite chooses nothing: any expert gives what the final norm reports
  const bool chosen = id < experts;
  const size_t at = (size_t)blockIdx.x * top_k + (chosen ? before : lane);
  ids[at] = chosen ? id : 0;
  shares[at] = expf(value - max) / sum * (scales && chosen ? scales[id] : 1.0f);
}

#define EXPERT_KERNELS(name, W)                                                                                         \
  SHARED_BYTES(expert_gated_##name, 0)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256)                                                                     \
      expert_gated_##name(const float* x, const int* ids, const ExpertView* experts, int k, int inner, int top_k,       \
                          int activation, float* h) {                                                                   \
    experts::gated<W>(x, ids, experts, k, inner, top_k, activation, h);                                                 \
  }                                                                                                                     \
  SHARED_BYTES(expert_down_##name, 0)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                                                     \
      expert_down_##name(const float* h, const int* ids, const float* shares, const ExpertView* experts, int inner,     \
                         int outs, int top_k, int accumulate, float* y) {                                               \
    experts::down<W>(h, ids, shares, experts, inner, outs, top_k, accumulate, y);                                       \
  }
EXPERT_KERNELS(f16, __half)
EXPERT_KERNELS(f32, float)
#undef EXPERT_KERNELS
