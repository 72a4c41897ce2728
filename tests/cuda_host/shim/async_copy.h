// Stand-ins for cp.async. The destination becomes NaN at the copy and receives its bytes at the wait, the latest point at
// which the device may deliver them: a missing wait reads NaN, and a copy into memory that others still read corrupts it.
// A copy that starts before the preceding kernels have ended reads immediately, the earliest point at which the device may
// read.
#pragma once
#include "block.h"

namespace cuda_host {
// cp.async.{ca,cg}.shared.global: 4, 8 or 16 bytes, the last bytes - source_bytes of which are zeros.
inline void cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
  if (bytes != 4 && bytes != 8 && bytes != 16) running->fail("cp.async of a size other than 4, 8 or 16");
  if (source_bytes > bytes) running->fail("cp.async with more source bytes than bytes");
  if ((uintptr_t(shared) | uintptr_t(global)) & (bytes - 1)) running->fail("cp.async misaligned");
  memset(shared, 0xFF, bytes);
  Thread& thread = *running->current;
  if (counting.load(std::memory_order_relaxed)) {
    const unsigned order = thread.copies_made++;
    if (source_bytes)
      running->counted.push_back({thread.linear / WARP, order, uint64_t(uintptr_t(global)), source_bytes});
  }
  thread.copies.push_back({shared, global, bytes, source_bytes, thread.open_group, {}});
  if (running->gate && !thread.waited) {
    memcpy(thread.copies.back().early, global, source_bytes);
    thread.copies.back().from = nullptr;
  }
}
inline void cp_async16(void* shared, const void* global) { cp_async(shared, global, 16, 16); }
inline void cp_async_commit() { ++running->current->open_group; }

// cp.async.wait_group: for this thread, all but the newest `keep` committed groups have landed.
inline void cp_async_wait(unsigned keep) {
  Thread& thread = *running->current;
  size_t landed = 0;
  for (; landed < thread.copies.size(); ++landed) {
    const PendingCopy& copy = thread.copies[landed];
    if (copy.group + keep >= thread.open_group) break;
    memcpy(copy.to, copy.from ? copy.from : copy.early, copy.source_bytes);
    memset(static_cast<char*>(copy.to) + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
  }
  thread.copies_hidden |= landed > 0;
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + ptrdiff_t(landed));
}
// cp.async.wait_all also waits for uncommitted copies.
inline void cp_async_wait_all() {
  cp_async_commit();
  cp_async_wait(0);
}
}  // namespace cuda_host
