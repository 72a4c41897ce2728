// Memory traffic of kernels: sectors of 32 bytes read from device memory by cp.async, and bank conflicts of ldmatrix in
// shared memory. Loads and stores through plain pointers are not counted.
//
// A device serves the lanes of a warp's instruction together: each sector that they touch is one request, and bytes in it
// that no lane asked for are wasted. Here lanes run one after the other, so the n-th copies of a warp's lanes are treated
// as one instruction: correct if all lanes make the same number of copies, as in the kernels whose copies have a `wanted`
// flag.
#pragma once
#include <atomic>
#include <cstdint>

namespace cuda_host {
// One lane's cp.async that reads anything.
struct CountedCopy {
  unsigned warp, order;
  uint64_t address;
  unsigned bytes;
};

// Whether copies are counted, which costs time and memory.
extern std::atomic<bool> counting;
// Passes of ldmatrix beyond one per matrix.
extern std::atomic<uint64_t> bank_conflicts;

// Eight rows of 16 bytes are read in one pass if they lie in different banks: each covers four of the 32 banks of 4 bytes.
inline void count_conflicts(const uint64_t (&rows)[8]) {
  unsigned most = 1;
  for (int i = 0; i < 8; ++i) {
    unsigned same = 1;
    for (int j = 0; j < i; ++j) {
      bool counted = false;  // a row named by several lanes is read once
      for (int before = 0; before < j; ++before) counted |= rows[before] == rows[j];
      same += !counted && rows[j] != rows[i] && rows[j] / 16 % 8 == rows[i] / 16 % 8;
    }
    most = same > most ? same : most;
  }
  if (most > 1) bank_conflicts.fetch_add(most - 1, std::memory_order_relaxed);
}
}  // namespace cuda_host

extern "C" {
// Resets the counters; from now on cp.async is counted, or not.
void ch_count_copies(bool on);
struct ch_copies {
  uint64_t sectors;   // sectors read
  uint64_t requests;  // sector requests by warps; equals `sectors` if each sector is read once
  uint64_t wasted;    // bytes of the requested sectors that no lane asked for
};
// For the kernels whose names start with `kernel`.
ch_copies ch_copies_of(const char* kernel);
uint64_t ch_bank_conflicts(void);
}
