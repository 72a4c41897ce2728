// The feed-forward network of a layer with experts: each row's choice of experts, and their products.
//
//   choose_experts      (logits, experts, top_k, normalize, scales, ids, shares)
//   group_choices       (ids, rows, top_k, groups)                            the choices of each expert
//   expert_gated_{w}    (x, ids, groups, experts, k, inner, top_k, activation, h)     h = act(gate x) * up x
//   expert_down_{w}     (h, ids, groups, experts, inner, outs, products)              products = down h
//   expert_sum          (products, shares, outs, top_k, accumulate, y)                y = sum over the chosen of share * product
//
//   logits    [rows, experts] f32, of the router
//   ids       [rows, top_k] int: the experts with the highest logits, ties by lower id; ascending; -1: none
//   shares    [rows, top_k] f32: their probabilities; normalize: divided by their sum; scales: times the
//             expert's scale, [experts] f32 or null
//   experts   [experts] ExpertView; {w} = f16, f32: the type of all their weights
//   x         [rows, k] f32, normed    h, products  [rows, top_k, inner or outs] f32    y  [rows, outs] f32
//   activation as in dense.cuh; accumulate: y is added to
//
// A warp computes one output of a choice, in float32: lane l multiplies 16 of every 32 * 16 bytes of weights, and the lanes'
// sums are added in a fixed order. If grouped, it multiplies a row of weights by up to eight rows at a time, each in the same order,
// so a row has the same bits in every pass.
//
// PRECOND: choose_experts: grid rows, block 32; top_k from 1 to 32 and at most experts. group_choices: grid experts, block 32.
// PRECOND: the products: block 256; grid (ceil(inner or outs / 8), rows * top_k, or experts if choices are grouped); k and inner
// multiples of 8; x, h and the matrices aligned to 16 bytes. expert_sum: block 256, grid (ceil(outs / 256), rows). No shared memory.
#include "dense.cuh"

/// The matrices of one expert: gate and up [inner, k], down [outs, inner]; their rows' powers of two, or null: 1.
struct ExpertView {
  const void* gate;
  const float* gate_scales;
  const void* up;
  const float* up_scales;
  const void* down;
  const float* down_scales;
};

/// The choices of each expert, numbered row * top_k + i, ascending; null: not grouped.
struct ChoiceGroups {
  int* choices;  // [experts, rows]
  int* counts;   // [experts]
  int rows;
  int padding;
};

namespace experts {

constexpr int WARPS = 8;
constexpr int TOGETHER = 8;  // choices of a group that are multiplied together

/// A logit and its expert; the order of choice is from the largest down.
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

/// Sums over i of w[i] x[n][i], returned in every lane.
template <class W, int N>
__device__ __forceinline__ void dots(const void* weights, size_t row, const float* scales, const float* const (&x)[N], int width,
                                     float (&sums)[N]) {
  const W* w = static_cast<const W*>(weights) + row * width;
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = 0.0f;
  for (int i = threadIdx.x % 32 * VEC<W>; i < width; i += 32 * VEC<W>) {
    float a[VEC<W>];
    load_vec(w + i, a);
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int part = 0; part < VEC<W>; part += 4) {
        float b[4];
        load_vec(x[n] + i + part, b);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n] = __fmaf_rn(a[part + j], b[j], sums[n]);
      }
  }
  const float scale = scales ? scales[row] : 1.0f;
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = warp_reduce<Sum>(sums[n]) * scale;
}

/// Runs `f(choices, count)` for all choices of the block, up to N at a time; those beyond count repeat the last.
template <int N, class F>
__device__ __forceinline__ void each(const ChoiceGroups& groups, F f) {
  const int count = groups.choices ? groups.counts[blockIdx.y] : 1;
  for (int first = 0; first < count; first += N) {
    int choices[N];
#pragma unroll
    for (int n = 0; n < N; ++n)
      choices[n] = groups.choices ? groups.choices[(size_t)blockIdx.y * groups.rows + min(first + n, count - 1)] : blockIdx.y;
    f(choices, count - first);
  }
}

template <class W, int N>
__device__ __forceinline__ void gated(const float* x, const ChoiceGroups& groups, const ExpertView& expert, int k, int inner,
                                      int top_k, int activation, float* h) {
  const int out = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  each<N>(groups, [&](const int(&choices)[N], int count) {
    const float* rows[N];
#pragma unroll
    for (int n = 0; n < N; ++n) rows[n] = x + (size_t)(choices[n] / top_k) * k;
    float gate[N], up[N];
    dots<W>(expert.gate, out, expert.gate_scales, rows, k, gate);
    dots<W>(expert.up, out, expert.up_scales, rows, k, up);
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (lane == n && n < count) h[(size_t)choices[n] * inner + out] = __fmul_rn(activate(gate[n], activation), up[n]);
  });
}

template <class W, int N>
__device__ __forceinline__ void down(const float* h, const ChoiceGroups& groups, const ExpertView& expert, int inner, int outs,
                                     float* products) {
  const int out = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  each<N>(groups, [&](const int(&choices)[N], int count) {
    const float* rows[N];
#pragma unroll
    for (int n = 0; n < N; ++n) rows[n] = h + (size_t)choices[n] * inner;
    float sums[N];
    dots<W>(expert.down, out, expert.down_scales, rows, inner, sums);
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (lane == n && n < count) products[(size_t)choices[n] * outs + out] = sums[n];
  });
}

/// The block's expert.
__device__ __forceinline__ int expert_of(const int* ids, const ChoiceGroups& groups) {
  return groups.choices ? blockIdx.y : max(ids[blockIdx.y], 0);
}

}  // namespace experts

SHARED_BYTES(choose_experts, 0)
extern "C" __global__ void __launch_bounds__(32)
    choose_experts(const float* logits, int experts, int top_k, int normalize, const float* scales, int* ids, float* shares) {
  const int lane = threadIdx.x;
  const float* row = logits + (size_t)blockIdx.x * experts;
  float max = 0.0f, value = -infinity();
  int id = experts;  // in the end, lane i's is the i-th choice; `last` starts ahead of everything
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
  // a non-finite row chooses nothing (-1), and the final norm reports it
  const bool chosen = id < experts;
  const size_t at = (size_t)blockIdx.x * top_k + (chosen ? before : lane);
  ids[at] = chosen ? id : -1;
  shares[at] = expf(value - max) / sum * (scales && chosen ? scales[id] : 1.0f);
}

SHARED_BYTES(group_choices, 0)
extern "C" __global__ void __launch_bounds__(32) group_choices(const int* ids, int rows, int top_k, ChoiceGroups groups) {
  const int expert = blockIdx.x, lane = threadIdx.x;
  int* choices = groups.choices + (size_t)expert * groups.rows;
  int count = 0;
  for (int first = 0; first < rows * top_k; first += 32) {
    const bool chosen = first + lane < rows * top_k && ids[first + lane] == expert;
    const unsigned lanes = __ballot_sync(FULL_WARP, chosen);
    if (chosen) choices[count + __popc(lanes & ((1u << lane) - 1))] = first + lane;
    count += __popc(lanes);
  }
  if (lane == 0) groups.counts[expert] = count;
}

SHARED_BYTES(expert_sum, 0)
extern "C" __global__ void __launch_bounds__(256)
    expert_sum(const float* products, const float* shares, int outs, int top_k, int accumulate, float* y) {
  PRECOND_GRID(ceil_div(outs, 256), ANY_GRID);
  const int out = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
  if (out >= outs) return;
  float sum = 0.0f;
  for (int choice = row * top_k; choice < (row + 1) * top_k; ++choice)
    sum = __fmaf_rn(shares[choice], products[(size_t)choice * outs + out], sum);
  float& to = y[(size_t)row * outs + out];
  to = accumulate ? to + sum : sum;
}

#define EXPERT_KERNELS(name, W)                                                                                          \
  SHARED_BYTES(expert_gated_##name, 0)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                                                      \
      expert_gated_##name(const float* x, const int* ids, ChoiceGroups groups, const ExpertView* experts, int k, int inner, \
                          int top_k, int activation, float* h) {                                                         \
    PRECOND_GRID(ceil_div(inner, experts::WARPS), ANY_GRID);                                                             \
    if ((int)(blockIdx.x * experts::WARPS + threadIdx.x / 32) >= inner) return;                                          \
    const ExpertView expert = experts[experts::expert_of(ids, groups)];                                                  \
    if (groups.choices)                                                                                                  \
      experts::gated<W, experts::TOGETHER>(x, groups, expert, k, inner, top_k, activation, h);                           \
    else                                                                                                                 \
      experts::gated<W, 1>(x, groups, expert, k, inner, top_k, activation, h);                                           \
  }                                                                                                                      \
  SHARED_BYTES(expert_down_##name, 0)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                                      \
      expert_down_##name(const float* h, const int* ids, ChoiceGroups groups, const ExpertView* experts, int inner, int outs, \
                         float* products) {                                                                              \
    PRECOND_GRID(ceil_div(outs, experts::WARPS), ANY_GRID);                                                              \
    if ((int)(blockIdx.x * experts::WARPS + threadIdx.x / 32) >= outs) return;                                           \
    const ExpertView expert = experts[experts::expert_of(ids, groups)];                                                  \
    if (groups.choices)                                                                                                  \
      experts::down<W, experts::TOGETHER>(h, groups, expert, inner, outs, products);                                     \
    else                                                                                                                 \
      experts::down<W, 1>(h, groups, expert, inner, outs, products);                                                     \
  }
EXPERT_KERNELS(f16, __half)
EXPERT_KERNELS(f32, float)
#undef EXPERT_KERNELS
