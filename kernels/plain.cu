// Products and attention of the plain set, for a device on which a kernel of the fast set (tensor cores, asynchronous copies, early
// starts) fails its self-test: one warp per result, float32, no shared memory. Slow, but short enough to read in one sitting.
//
// Each takes the parameters of the kernel it stands in for, followed, as ints, by what that kernel's name encodes: element types
// (0 f32, 1 f16, 2 bf16; for weights 3 q8) and head_dim. It is launched like that kernel; whatever the grid, its warps share the work.
// Rows of wide passes are not rounded.
//
//   plain_gemv         (x, jobs, k, rows, accumulate, w_type)                                       gemv.cu
//   plain_gemv_qkv     (x, norm_weight, norm_offset, eps, jobs, k, rows, to, w_type)
//   plain_gemv_gated   (x, norm_weight, norm_offset, eps, jobs, k, rows, activation, w_type)
//   plain_attn_decode  (queries, rows, sequences, layer, heads, kv_heads, window, softcap, splits, partial_out,
//                       partial_states, arrivals, out, states, k_type, v_type, head_dim)                            attn_decode.cu
//   plain_attn_prefill (queries, rows, parts, sequences, layer, heads, kv_heads, window, softcap, out, states, rounded,
//                       k_type, v_type, head_dim)                                                   attn_prefill.cu
//
// plain_attn_decode has no splits.
// PRECOND: block a multiple of 32; head_dim <= 512; plain_attn_decode: grid z the rows; plain_attn_prefill: grid (parts,
//   kv_heads).
#include "dense.cuh"
#include "q8.cuh"
#include "rope.cuh"
#include "softmax_state.cuh"

namespace plain {

enum Type { F32 = CACHE_F32, F16 = CACHE_F16, BF16 = CACHE_BF16, Q8 };

__device__ __forceinline__ float element(const void* from, size_t i, int type) {
  if (type == F32) return static_cast<const float*>(from)[i];
  if (type == F16) return to_f32(static_cast<const __half*>(from)[i]);
  return to_f32(static_cast<const __nv_bfloat16*>(from)[i]);
}

/// Dimension `dim` of a key.
__device__ __forceinline__ float key_element(const void* keys, size_t position, int head_dim, int dim, int type) {
  if (type != F32) return element(keys, position * head_dim + dim, type);
  return element(keys, 2 * position * head_dim + dim, F16) + element(keys, (2 * position + 1) * head_dim + dim, F16);
}

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

/// This warp's number in the launch, and the number of warps.
__device__ __forceinline__ size_t first_warp() {
  const size_t block = blockIdx.x + (size_t)gridDim.x * (blockIdx.y + (size_t)gridDim.y * blockIdx.z);
  return block * (blockDim.x / 32) + threadIdx.x / 32;
}
__device__ __forceinline__ size_t warps() {
  return (size_t)gridDim.x * gridDim.y * gridDim.z * (blockDim.x / 32);
}

/// A product's input: rows [rows, k] of f32, and the norm applied to them, if any.
struct Input {
  const float* x;
  const float* norm_weight;
  float norm_offset, eps;
  int k, w_type;

  __device__ __forceinline__ float weight(const void* w, int out, int i) const {
    if (w_type != Q8) return element(w, (size_t)out * k + i, w_type);
    return (static_cast<const Q8Line*>(w) + (size_t)out * Q8Line::of_row(k))[i / Q8Line::WEIGHTS].weight(i % Q8Line::WEIGHTS);
  }

  /// The product of a row with row `out` of a job's matrix, and its bias. PRECOND: the whole warp.
  __device__ __forceinline__ float operator()(int row, const MatrixJob& job, int out) const {
    const float* own = x + (size_t)row * k;
    float sum = 0.0f, squares = 0.0f;
    for (int i = lane(); i < k; i += 32) {
      squares = fmaf(own[i], own[i], squares);
      const float input = norm_weight ? own[i] * (norm_weight[i] + norm_offset) : own[i];
      sum = fmaf(input, weight(job.w, out, i), sum);
    }
    sum = warp_reduce<Sum>(sum) * (job.scales ? job.scales[out] : 1.0f);
    if (norm_weight) sum *= norm_factor(warp_reduce<Sum>(squares), k, eps);
    return sum + (job.bias ? job.bias[out] : 0.0f);
  }
};

__device__ __forceinline__ void multiply(const Input& product, const MatrixJobs& jobs, int rows, int accumulate) {
  for (int j = 0; j < 3; ++j) {
    const MatrixJob& job = jobs.job[j];
    for (size_t i = first_warp(); i < (size_t)job.outs * rows; i += warps()) {
      const float result = product((int)(i / job.outs), job, (int)(i % job.outs));
      if (lane() == 0) job.y[i] = accumulate ? job.y[i] + result : result;
    }
  }
}

/// Queries, keys and values, in pairs.
__device__ __forceinline__ void rotate_and_cache(const Input& product, const MatrixJobs& jobs, int rows,
                                                 const RopeTarget& to) {
  const int half = to.head_dim / 2;
  for (int j = 0; j < 3; ++j) {
    const MatrixJob& job = jobs.job[j];
    const int pairs = job.outs / 2;
    for (size_t i = first_warp(); i < (size_t)pairs * rows; i += warps()) {
      const int row = (int)(i / pairs), head = (int)(i % pairs) / half, dim = (int)(i % pairs) % half;
      const int out = head * to.head_dim + dim;
      Rotated x = {product(row, job, out), product(row, job, out + half)};
      const CachePlace place(to, row);
      if (lane() != 0 || !place.exists()) continue;
      const size_t angle = place.angle(to, dim);
      if (j < 2) x = rotate(x.first, x.second, to.cos[angle], to.sin[angle], j == 0 ? to.query_scale : 1.0f);
      const auto put = [&](int dim, float x) {
        if (j == 0) job.y[(size_t)row * job.outs + head * to.head_dim + dim] = x;
        if (j == 1) place.store_key(to, head, dim, x);
        if (j == 2) place.store_value(to, head, dim, x);
      };
      put(dim, x.first), put(dim + half, x.second);
    }
  }
}

__device__ __forceinline__ void gate(const Input& product, const MatrixJobs& jobs, int rows, int activation) {
  const MatrixJob &gate = jobs.job[0], &up = jobs.job[1];
  for (size_t i = first_warp(); i < (size_t)gate.outs * rows; i += warps()) {
    const int row = (int)(i / gate.outs), out = (int)(i % gate.outs);
    const float g = product(row, gate, out), u = product(row, up, out);
    if (lane() == 0) gate.y[i] = activate(g, activation) * u;
  }
}

/// A row and head of the attention kernels.
struct Attention {
  const float* queries;  // [rows, heads, head_dim]
  const SequenceView* sequences;
  int layer, heads, kv_heads, window;
  float softcap;
  int k_type, v_type, head_dim;

  static constexpr int PER = 16;  // max dimensions per lane: head_dim / 32

  /// Attends with one head of one row over its cache: a lane has dimensions lane, lane + 32, ... of the sum of e^{s-m} v.
  /// PRECOND: the whole warp.
  __device__ __forceinline__ HeadState attend(const RowState& row, size_t head, float (&out)[PER]) const {
    const SequenceView& sequence = sequences[row.slot];
    const float* query = queries + head * head_dim;
    const size_t plane = (size_t)layer * kv_heads + head % heads / (heads / kv_heads);
    const bool traced = row.position >= sequence.first_traced_row;
    const Span span = attended(row.position, window);
    HeadState state = empty_state();
    for (int i = 0; i < PER; ++i) out[i] = 0.0f;
    for (int t = span.begin; t < span.end; ++t) {
      const size_t position = plane * sequence.capacity + t, at = position * head_dim;
      float s = 0.0f;
      for (int d = lane(); d < head_dim; d += 32)
        s = fmaf(query[d], key_element(sequence.k, position, head_dim, d, k_type), s);
      s = warp_reduce<Sum>(s);
      if (softcap > 0.0f) s = softcap * tanhf(s / softcap);
      const bool weighs = traced && has_weight(row.position, t);
      const float factor = raise<true>(state, fmaxf(state.m, s), weighs ? fmaxf(state.mw, s) : state.mw);
      const float e = traced ? add_position<true>(state, s, row.position, t)
                             : add_position<false>(state, s, row.position, t);
      for (int i = 0; i < PER; ++i) {
        const int d = lane() + 32 * i;
        if (d < head_dim) out[i] = fmaf(e, element(sequence.v, at + d, v_type), out[i] * factor);
      }
    }
    return state;
  }

  /// Writes the result of `attend`; zeros for an unused row.
  __device__ __forceinline__ void store(size_t head, const HeadState& state, const float (&out)[PER], float* to,
                                        HeadState* states) const {
    if (lane() == 0) states[head] = state;
    for (int i = 0; i < PER && 32 * i < head_dim; ++i) {
      const int d = lane() + 32 * i;
      if (d < head_dim) to[head * head_dim + d] = state.z > 0.0f ? out[i] / state.z : 0.0f;
    }
  }
};

}  // namespace plain

SHARED_BYTES(plain_gemv, 0)
extern "C" __global__ void __launch_bounds__(256)
    plain_gemv(const float* x, MatrixJobs jobs, int k, int rows, int accumulate, int w_type) {
  plain::multiply(plain::Input{x, nullptr, 0.0f, 0.0f, k, w_type}, jobs, rows, accumulate);
}

SHARED_BYTES(plain_gemv_qkv, 0)
extern "C" __global__ void __launch_bounds__(256)
    plain_gemv_qkv(const float* x, const float* norm_weight, float norm_offset, float eps, MatrixJobs jobs, int k,
                   int rows, RopeTarget to, int w_type) {
  const plain::Input product = {x, norm_weight, norm_offset, eps, k, w_type};
  if (to.cos)
    plain::rotate_and_cache(product, jobs, rows, to);
  else
    plain::multiply(product, jobs, rows, 0);
}

SHARED_BYTES(plain_gemv_gated, 0)
extern "C" __global__ void __launch_bounds__(256)
    plain_gemv_gated(const float* x, const float* norm_weight, float norm_offset, float eps, MatrixJobs jobs, int k,
                     int rows, int activation, int w_type) {
  plain::gate(plain::Input{x, norm_weight, norm_offset, eps, k, w_type}, jobs, rows, activation);
}

SHARED_BYTES(plain_attn_decode, 0)
extern "C" __global__ void __launch_bounds__(128)
    plain_attn_decode(const float* queries, const RowState* rows, const SequenceView* sequences, int layer, int heads,
                      int kv_heads, int window, float softcap, int, float*, HeadState*, unsigned*, float* to,
                      HeadState* states, int k_type, int v_type, int head_dim) {
  const plain::Attention attention = {queries, sequences, layer,  heads,  kv_heads,
                                      window,  softcap,   k_type, v_type, head_dim};
  for (size_t head = plain::first_warp(); head < (size_t)gridDim.z * heads; head += plain::warps()) {
    const RowState row = rows[head / heads];
    float out[plain::Attention::PER] = {};
    const HeadState state = row.position < 0 ? empty_state() : attention.attend(row, head, out);
    attention.store(head, state, out, to, states);
  }
}

SHARED_BYTES(plain_attn_prefill, 0)
extern "C" __global__ void __launch_bounds__(128)
    plain_attn_prefill(const float* queries, const RowState* rows, const PrefillPart* parts,
                       const SequenceView* sequences, int layer, int heads, int kv_heads, int window, float softcap,
                       float* to, HeadState* states, RoundedRows, int k_type, int v_type, int head_dim) {
  const plain::Attention attention = {queries, sequences, layer,  heads,  kv_heads,
                                      window,  softcap,   k_type, v_type, head_dim};
  const PrefillPart part = parts[blockIdx.x];
  const int group = heads / kv_heads, end = min(part.line + (head_dim > 256 ? 32 : 64), part.rows * group);
  for (int line = part.line + threadIdx.x / 32; line < end; line += blockDim.x / 32) {
    const int row = part.first + line / group;
    const size_t head = (size_t)row * heads + blockIdx.y * group + line % group;
    float out[plain::Attention::PER];
    const HeadState state = attention.attend(rows[row], head, out);
    attention.store(head, state, out, to, states);
  }
}
