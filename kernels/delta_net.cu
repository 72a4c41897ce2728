// Gated delta nets, which replace attention in some layers (Qwen 3.5): convolutions over the last rows, and the delta rule;
// for the formulas see src/backend/reference/delta_net.rs.
//
//   delta_mix   (net)                         net.mixed, net.rates
//   delta_rule  (net, keeps, interval, out)   out [rows, value_heads, value_dim]; advances the sequences' states
//
//   net       DeltaNet
//   keeps     [rows] where the states after a row are also copied, or null; if `keeps` itself is null, those after every `interval`
//             tokens go to the sequence's snapshots, if there is one for them
//
// A layer's state is [taps - 1, widths of q, k and v] inputs of the convolutions, oldest first, then each value head's memory,
// transposed: [value_dim, key_stride], zeros after key_dim. A sequence's rows are neighbours at consecutive positions; on entry, the
// state is that before the first. They are processed one after the other, and sums have a fixed order: a row has the same bits in every
// pass. Columns of a memory are independent: four lanes share one, in registers, 64 columns per block.
//
// PRECOND: delta_mix: grid (ceil((2 key_heads + value_heads) / 4), rows), block 128. delta_rule: grid (ceil(value_dim / 64),
//   value_heads, rows), block 256. No shared memory; key_dim at most 128; pointers aligned to 16 bytes.
#include "dense.cuh"

/// A layer, and the rows of a pass.
struct DeltaNet {
  const RowState* rows;
  const SequenceView* sequences;
  const float* raw[3];   // queries, keys and values: [rows, width], before their convolutions
  const float* conv[3];  // [taps, width], the last tap for the row itself
  const float* a;        // [rows, value_heads], both
  const float* b;
  const float* a_log;  // [value_heads], both
  const float* dt_bias;
  float* mixed[3];  // queries and keys [rows, key_heads, key_stride], of length 1; values [rows, value_heads, value_dim]
  float* rates;     // [rows, value_heads, 2]: alpha, beta
  int layer, key_heads, value_heads, key_dim, value_dim, taps, activation;
  int padding;

  __device__ __forceinline__ int key_stride() const { return (key_dim + 15) / 16 * 16; }
  __device__ __forceinline__ int width(int part) const { return part < 2 ? key_heads * key_dim : value_heads * value_dim; }
  __device__ __forceinline__ int widths() const { return 2 * width(0) + width(2); }
  /// Elements of a state before its memories, a multiple of 4; and in total.
  __device__ __forceinline__ int inputs() const { return ((taps - 1) * widths() + 3) / 4 * 4; }
  __device__ __forceinline__ size_t state() const { return inputs() + (size_t)width(2) * key_stride(); }
  /// Whether the row continues the one before it.
  __device__ __forceinline__ bool continues(int row) const { return row > 0 && rows[row - 1].slot == rows[row].slot; }
  /// Whether a row has a place in its sequence: false if a decode step is replayed after the sequence's end.
  __device__ __forceinline__ bool exists(int row) const {
    return (unsigned)rows[row].position < sequences[rows[row].slot].capacity;
  }
};

namespace delta {

constexpr int HEADS = 4;                     // per block of delta_mix: one per warp
constexpr int COLUMNS = 64, LANES = 4;       // per block of delta_rule; lanes that share a column
constexpr int FOURS = 128 / (4 * LANES);     // groups of four neighbouring elements of a column, per lane

/// Input i of a part, `back` rows before `row`, which is preceded by `before` rows of its sequence in this pass.
__device__ __forceinline__ float input(const DeltaNet& n, const float* state, int part, int row, int i, int back, int before) {
  if (back <= before) return n.raw[part][(size_t)(row - back) * n.width(part) + i];
  return state[(size_t)(n.taps - 1 - (back - before)) * n.widths() + part * n.width(0) + i];
}

__device__ __forceinline__ void mix_head(const DeltaNet& n, int row, int head) {
  const int lane = threadIdx.x % 32, part = head < n.key_heads ? 0 : head < 2 * n.key_heads ? 1 : 2;
  const int own = head - part * n.key_heads, dim = part < 2 ? n.key_dim : n.value_dim, stride = part < 2 ? n.key_stride() : dim;
  const float* state = n.sequences[n.rows[row].slot].states + n.layer * n.state();
  int before = 0;
  while (before < n.taps - 1 && n.continues(row - before)) ++before;
  float* to = n.mixed[part] + ((size_t)row * (part < 2 ? n.key_heads : n.value_heads) + own) * stride;
  float squares = 0.0f;
  for (int i = lane; i < dim; i += 32) {
    const int component = own * dim + i;
    float sum = 0.0f;
    for (int tap = 0; tap < n.taps; ++tap)
      sum = __fmaf_rn(n.conv[part][(size_t)tap * n.width(part) + component],
                      input(n, state, part, row, component, n.taps - 1 - tap, before), sum);
    const float x = activate(sum, n.activation);
    squares = __fmaf_rn(x, x, squares);
    to[i] = x;
  }
  if (part == 2) {
    const size_t at = (size_t)row * n.value_heads + own;
    const float time = n.a[at] + n.dt_bias[own], softplus = time > 20.0f ? time : log1pf(expf(time));
    if (lane == 0) n.rates[2 * at] = expf(-expf(n.a_log[own]) * softplus), n.rates[2 * at + 1] = 1.0f / (1.0f + expf(-n.b[at]));
    return;
  }
  // the published epsilon
  const float factor = (part == 0 ? 1.0f / sqrtf((float)dim) : 1.0f) / sqrtf(warp_reduce<Sum>(squares) + 1e-6f);
  for (int i = lane; i < stride; i += 32) to[i] = i < dim ? to[i] * factor : 0.0f;
}

/// A lane's part of a column: elements 16 j + 4 lane + 0 .. 3.
using Column = float[FOURS][4];

__device__ __forceinline__ void load(Column& x, const float* from, int stride) {
#pragma unroll
  for (int j = 0; j < FOURS; ++j) {
    x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
    if (16 * j < stride) load_vec<float>(from + 16 * j, x[j]);
  }
}
__device__ __forceinline__ void store(float* to, const Column& x, int stride) {
#pragma unroll
  for (int j = 0; j < FOURS; ++j)
    if (16 * j < stride) store_vec<float>(to + 16 * j, x[j]);
}
/// The dot product, in all lanes of the column.
__device__ __forceinline__ float dot(const Column& x, const Column& y) {
  float sums[4] = {};
#pragma unroll
  for (int j = 0; j < FOURS; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = __fmaf_rn(x[j][i], y[j][i], sums[i]);
  return warp_reduce<Sum, LANES>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// Writes the convolution inputs after row `row` to `to`, from those in `state`, which are from before `first`, the sequence's first row
/// in the pass. The last call writes to `state` itself, where a thread reads later inputs before it overwrites them.
__device__ __forceinline__ void keep_inputs(const DeltaNet& n, const float* state, float* to, int first, int row) {
  const int block = blockIdx.y * gridDim.x + blockIdx.x, step = gridDim.x * gridDim.y * blockDim.x;
  for (int i = block * blockDim.x + threadIdx.x; i < n.widths(); i += step) {
    const int part = i < n.width(0) ? 0 : i < 2 * n.width(0) ? 1 : 2;
    for (int age = n.taps - 2; age >= 0; --age)
      to[(size_t)(n.taps - 2 - age) * n.widths() + i] = input(n, state, part, row, i - part * n.width(0), age, row - first);
  }
}

__device__ __forceinline__ void run(const DeltaNet& n, float* const* keeps, int interval, float* out) {
  const int first = blockIdx.z, head = blockIdx.y, key_head = head / (n.value_heads / n.key_heads), stride = n.key_stride();
  if (n.continues(first) || !n.exists(first)) return;  // the blocks of the sequence's first row handle them all
  const int lane = threadIdx.x % LANES, column = blockIdx.x * COLUMNS + threadIdx.x / LANES;
  const bool there = column < n.value_dim;
  const SequenceView& sequence = n.sequences[n.rows[first].slot];
  float* state = sequence.states + n.layer * n.state();
  const size_t at = n.inputs() + ((size_t)head * n.value_dim + min(column, n.value_dim - 1)) * stride + 4 * lane;
  Column s;
  load(s, state + at, stride);
  int row = first;
  for (;; ++row) {
    const size_t number = (size_t)row * n.value_heads + head, key = ((size_t)row * n.key_heads + key_head) * stride + 4 * lane;
    const float alpha = n.rates[2 * number], beta = n.rates[2 * number + 1];
    const float v = n.mixed[2][number * n.value_dim + min(column, n.value_dim - 1)];
    Column x;
    load(x, n.mixed[1] + key, stride);
    const float correction = __fmul_rn(beta, v - __fmul_rn(alpha, dot(s, x)));
#pragma unroll
    for (int j = 0; j < FOURS; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = __fmaf_rn(x[j][i], correction, __fmul_rn(alpha, s[j][i]));
    load(x, n.mixed[0] + key, stride);
    const float answer = dot(s, x);
    if (there && lane == 0) out[number * n.value_dim + column] = answer;
    const int tokens = n.rows[row].position + 1;
    float* keep = keeps ? keeps[row] : tokens % interval == 0 ? sequence.snapshots[tokens / interval] : nullptr;
    if (keep) {
      keep += n.layer * n.state();
      if (there) store(keep + at, s, stride);
      keep_inputs(n, state, keep, first, row);
    }
    if (row + 1 == (int)gridDim.z || !n.continues(row + 1)) break;
  }
  if (there) store(state + at, s, stride);
  keep_inputs(n, state, state, first, row);
}

}  // namespace delta

SHARED_BYTES(delta_mix, 0)
extern "C" __global__ void __launch_bounds__(128) delta_mix(DeltaNet net) {
  const int heads = 2 * net.key_heads + net.value_heads, head = blockIdx.x * delta::HEADS + threadIdx.x / 32;
  PRECOND_GRID(ceil_div(heads, delta::HEADS), ANY_GRID);
  if (head < heads && net.exists(blockIdx.y)) delta::mix_head(net, blockIdx.y, head);
}

SHARED_BYTES(delta_rule, 0)
extern "C" __global__ void __launch_bounds__(256) delta_rule(DeltaNet net, float* const* keeps, int interval, float* out) {
  PRECOND_GRID(ceil_div(net.value_dim, delta::COLUMNS), net.value_heads);
  delta::run(net, keeps, interval, out);
}
