// Reference for kernels that round their results: the same results in float32.
#pragma once
#include "rounded.cuh"

#include <cmath>
#include <vector>

/// Whether the rows contain the values of x [rows, width], each group of 32 scaled by the power of two
/// of its largest.
inline bool rounded_from(const RoundedRows& rows, const std::vector<float>& x, int width) {
  bool same = true;
  for (size_t row = 0; row < x.size() / width; ++row)
    for (int first = 0; first < width; first += SHARING) {
      const float* from = &x[row * width + first];
      const int count = std::min(SHARING, width - first);
      float max = 0;
      for (int i = 0; i < count; ++i) max = std::max(max, std::abs(from[i]));
      const PowerOfTwo power = scale_to_f16(max);
      same &= rows.scales[row * row_scales(width) + first / SHARING] == power.inverse;
      for (int i = 0; i < count; ++i)
        same &= to_f32(rows.values[row * width + first + i]) == to_f32(from_f32<__half>(from[i] * power.scale));
    }
  return same;
}
