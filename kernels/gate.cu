// Gates: rows multiplied elementwise by an activation of their gates.
//
//   gate_rows  (gate, gate_stride, gate_step, x, x_stride, width, activation, y)     y[r, i] = act(gate of r, i) * x[r, i]
//
//   gate   f32, for element i of row r at r * gate_stride + i * gate_step (0: one gate for the whole row)
//   x      [rows, x_stride] f32, of which the first `width` elements of each row are used
//   y      [rows, width] f32; may be x, or a gate of y's own shape
//   activation as in dense.cuh, or 2: sigmoid
//
// PRECOND: grid (ceil(width / 256), rows), block 256, no shared memory.
#include "dense.cuh"

SHARED_BYTES(gate_rows, 0)
STARTS_EARLY(gate_rows)
extern "C" __global__ void __launch_bounds__(256)
    gate_rows(const float* gate, int gate_stride, int gate_step, const float* x, int x_stride, int width, int activation,
              float* y) {
  PRECOND_GRID(ceil_div(width, 256), ANY_GRID);
  start_early();
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= width) return;
  const size_t row = blockIdx.y;
  const float g = gate[row * gate_stride + (size_t)i * gate_step];
  y[row * width + i] = (activation == 2 ? 1.0f / (1.0f + expf(-g)) : activate(g, activation)) * x[row * x_stride + i];
}
