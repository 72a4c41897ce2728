// What mutate.py switches: the kernels it builds ask at every barrier whether it is the one to leave out, and tests end
// at the first failure.
#pragma once
#include <cstdlib>

namespace cuda_host {
inline bool left_out(int barrier) {
  static const int chosen = [] {
    const char* number = getenv("UQAC_HOST_CUDA_LEAVE_OUT");
    return number ? atoi(number) : 0;
  }();
  return barrier == chosen;
}
}  // namespace cuda_host

inline bool ch_first_failure_ends() {
  static const bool ends = getenv("UQAC_TEST_FIRST_FAILURE") != nullptr;
  return ends;
}
