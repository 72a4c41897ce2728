// What kernels that round their results are compared with: the same results in float32.
#pragma once
#include "rounded.cuh"

#include <cmath>
#include <vector>

/// Whether rows hold the numbers of x [rows, width], every 32 under the power of two of their largest.
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
