// Sums of hidden states, for traces that record their means (--trace layers): at every point a hidden state passes through, from the
// embedding to the final norm, the sum over a sequence's traced rows. The latest rows are kept apart, because captured
// decode steps run beyond the end of a response before the host notices it: the excess rows never enter the sum.
//
// layer_sums: adds the rows x of a pass at one point. A new row takes the slot of the row `kept` before it, which joins the sum; a
//   repeated row replaces itself, if it is still kept.
//   x           [n, width]
//   rows        [n]; those of a sequence are consecutive, without gaps from its first_traced_row on. Earlier rows, rows with a
//               negative position, and rows of a sequence without such a trace (sums null) record nothing
//   sequences   [slots]
//   point       in the `layers` of their traces, which hold `kept` rows per point
// PRECOND: grid (ceil(width / 256), n); block 256; no dynamic shared memory; width as when the trace began.
#include "common.cuh"

namespace layer_sum {

constexpr int THREADS = 256;

__device__ __forceinline__ void add(const float* x, const RowState* rows, int n, const SequenceView* sequences, int point,
                                    int kept, int width) {
  const int first = blockIdx.y, slot = rows[first].slot;
  if (first > 0 && rows[first - 1].slot == slot) return;  // the block of the sequence's first row handles them all
  const SequenceView& sequence = sequences[slot];
  const LayersView& layers = sequence.trace.layers;
  if (!layers.sums) return;
  const size_t column = (size_t)blockIdx.x * THREADS + threadIdx.x;
  int& counter = layers.counts[point * gridDim.x + blockIdx.x];
  int count = counter;
  __syncthreads();  // all have read it before it changes
  for (int r = first; r < n && rows[r].slot == slot; ++r) {
    const int index = rows[r].position - sequence.first_traced_row;
    if (rows[r].position < 0 || index < 0 || index + kept < count) continue;
    if (column < (size_t)width) {
      float& row = layers.rows[((size_t)point * kept + index % kept) * width + column];
      if (index >= count && index >= kept) layers.sums[(size_t)point * width + column] += (double)row;
      row = x[(size_t)r * width + column];
    }
    count = max(count, index + 1);
  }
  if (threadIdx.x == 0) counter = count;
}

}  // namespace layer_sum

SHARED_BYTES(layer_sums, 0)
extern "C" __global__ void __launch_bounds__(256)
    layer_sums(const float* x, const RowState* rows, int n, const SequenceView* sequences, int point, int kept, int width) {
  PRECOND_GRID(ceil_div(width, layer_sum::THREADS), n);
  layer_sum::add(x, rows, n, sequences, point, kept, width);
}
