// The switches of mutate.py: the kernels it builds check at every barrier whether it is the one to omit, and tests end
// at the first failure. In the run on the unmodified kernels, the barriers that a test reaches are written to a file.
#pragma once
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace cuda_host {
struct Met {
  static constexpr int BARRIERS = 4096;
  const char* const file = getenv("UQAC_HOST_CUDA_MET");
  std::atomic<bool> barriers[BARRIERS] = {};
  ~Met() {
    FILE* const out = file ? fopen(file, "w") : nullptr;
    if (!out) return;
    for (int i = 0; i < BARRIERS; ++i)
      if (barriers[i]) fprintf(out, "%d\n", i);
    fclose(out);
  }
};

inline bool left_out(int barrier) {
  static const int chosen = [] {
    const char* number = getenv("UQAC_HOST_CUDA_LEAVE_OUT");
    return number ? atoi(number) : 0;
  }();
  static Met met;
  if (met.file && barrier < Met::BARRIERS) met.barriers[barrier].store(true, std::memory_order_relaxed);
  return barrier == chosen;
}
}  // namespace cuda_host

inline bool ch_first_failure_ends() {
  static const bool ends = getenv("UQAC_TEST_FIRST_FAILURE") != nullptr;
  return ends;
}
