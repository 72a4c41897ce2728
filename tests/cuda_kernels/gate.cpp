// gate.cu compared with float64. u = 2^-24.
#include "dense_support.h"

#include "gate.cu"

CUDA_HOST_EXPORT(gate_rows)

constexpr double U = 1.0 / (1 << 24);

static double act(double x, int activation) { return activation == 2 ? 1 / (1 + std::exp(-x)) : activate_f64(x, activation); }

/// `broad`: one gate for a whole row. `place`: location of y: separate memory (0), in place of x (1) or of the gates (2).
static void test(int rows, int width, int activation, bool broad, int place) {
  const int gate_stride = broad ? 3 : place == 2 ? width : width + 5, x_stride = place == 1 ? width : width + 9;
  const auto gates = normal((size_t)rows * gate_stride, width, 4), in = normal((size_t)rows * x_stride, 2, 3);
  schedules(1, [&](int) {
    Device<float> gate(gates), x(in), own((size_t)rows * width);
    float* y = place == 0 ? own.get() : place == 1 ? x.get() : gate.get();
    launch("gate_rows", dim3(ceil_div(width, 256), rows), 256, 0, (const float*)gate.get(), gate_stride, (int)!broad,
           (const float*)x.get(), x_stride, width, activation, y);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < width; ++i) {
        const double g = gates[(size_t)r * gate_stride + (broad ? 0 : i)], factor = in[(size_t)r * x_stride + i];
        // activations are within 16 u of |x|, or of 1 (expf, and a quotient); then a product
        const double bound = 17 * U * (activation == 2 ? 1 : std::abs(g)) * std::abs(factor) + 1e-30;
        check_error(std::abs(y[(size_t)r * width + i] - act(g, activation) * factor), bound, "gate_rows");
      }
  });
}

int main() {
  for (int activation : {0, 1, 2})
    for (int width : {1, 8, 255, 256, 300, 1024})
      for (int place : {0, 1, 2}) {
        test(3, width, activation, false, place);
        if (place < 2) test(2, width, activation, true, place);
      }
  return report("gate");
}
