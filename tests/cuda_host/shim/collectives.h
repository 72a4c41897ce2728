// Warp collectives: the last lane of the mask to arrive computes the result for all of them.
#pragma once
#include "block.h"

namespace cuda_host {
inline unsigned whole_warp(unsigned mask = ~0u) { return mask; }
enum class Shuffle { INDEX, XOR, DOWN, UP };
enum class Reduce { ADD, MIN, MAX, AND, OR, XOR };

// The lane that `lane` reads from, or `lane` itself if that lies outside its segment of `width`
// lanes.
template <Shuffle kind>
inline int shuffle_source(int lane, int argument, int width) {
  const int first = lane & ~(width - 1), end = first + width;
  if (kind == Shuffle::INDEX) return first + (argument & (width - 1));
  if (kind == Shuffle::XOR) return (lane ^ argument) < end ? lane ^ argument : lane;
  if (kind == Shuffle::DOWN) return lane + argument < end ? lane + argument : lane;
  return lane - argument >= first ? lane - argument : lane;
}

template <Shuffle kind, class T>
inline T shuffle(unsigned mask, Site site, T value, int argument, int width = 32) {
  struct Operand {
    T value;
    int argument, width;
  } in{value, argument, width};
  if (width < 1 || width > 32 || (width & (width - 1))) running->fail("shuffle width is not a power of two up to 32");
  T out = value;
  running->collective(mask, site, &in, &out, [](Thread* lanes, unsigned members) {
    for (unsigned left = members; left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      const Operand& own = *static_cast<const Operand*>(lanes[lane].in);
      const int source = shuffle_source<kind>(lane, own.argument, own.width);
      if (!(members >> source & 1)) running->fail("shuffle reads a lane that is not in its mask");
      *static_cast<T*>(lanes[lane].out) = static_cast<const Operand*>(lanes[source].in)->value;
    }
  });
  return out;
}

template <Reduce kind, class T>
inline T combine(T a, T b) {
  if constexpr (kind == Reduce::ADD) return T(a + b);
  if constexpr (kind == Reduce::MIN) return b < a ? b : a;
  if constexpr (kind == Reduce::MAX) return a < b ? b : a;
  if constexpr (kind == Reduce::AND) return T(a & b);
  if constexpr (kind == Reduce::OR) return T(a | b);
  if constexpr (kind == Reduce::XOR) return T(a ^ b);
}

template <Reduce kind, class T>
inline T reduce(unsigned mask, Site site, T value) {
  T out{};
  running->collective(mask, site, &value, &out, [](Thread* lanes, unsigned members) {
    T total = *static_cast<const T*>(lanes[__builtin_ctz(members)].in);
    for (unsigned left = members & (members - 1); left; left &= left - 1)
      total = combine<kind>(total, *static_cast<const T*>(lanes[__builtin_ctz(left)].in));
    for (unsigned left = members; left; left &= left - 1) *static_cast<T*>(lanes[__builtin_ctz(left)].out) = total;
  });
  return out;
}

inline unsigned ballot(unsigned mask, Site site, bool predicate) {
  const unsigned lane = running->current->linear % WARP;
  return reduce<Reduce::OR>(mask, site, predicate ? 1u << lane : 0u);
}
inline bool all_of(unsigned mask, Site site, bool predicate) {
  return reduce<Reduce::MIN>(mask, site, int(predicate)) != 0;
}
inline void sync_warp(unsigned mask, Site site) {
  running->collective(mask, site, nullptr, nullptr, [](Thread*, unsigned) {});
}
}  // namespace cuda_host

#define CUDA_HOST_SHUFFLE(kind, mask, ...) \
  ::cuda_host::shuffle<::cuda_host::Shuffle::kind>(mask, CUDA_HOST_SITE, __VA_ARGS__)
#define CUDA_HOST_REDUCE(kind, mask, value) \
  ::cuda_host::reduce<::cuda_host::Reduce::kind>(mask, CUDA_HOST_SITE, value)
#define __syncwarp(...) ::cuda_host::sync_warp(::cuda_host::whole_warp(__VA_ARGS__), CUDA_HOST_SITE)
#define __shfl_sync(mask, value, ...) CUDA_HOST_SHUFFLE(INDEX, mask, value, __VA_ARGS__)
#define __shfl_xor_sync(mask, value, ...) CUDA_HOST_SHUFFLE(XOR, mask, value, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) CUDA_HOST_SHUFFLE(DOWN, mask, value, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) CUDA_HOST_SHUFFLE(UP, mask, value, __VA_ARGS__)
#define __ballot_sync(mask, predicate) ::cuda_host::ballot(mask, CUDA_HOST_SITE, predicate)
#define __any_sync(mask, predicate) int(::cuda_host::ballot(mask, CUDA_HOST_SITE, predicate) != 0)
#define __all_sync(mask, predicate) int(::cuda_host::all_of(mask, CUDA_HOST_SITE, predicate))
#define __reduce_add_sync(mask, value) CUDA_HOST_REDUCE(ADD, mask, value)
#define __reduce_min_sync(mask, value) CUDA_HOST_REDUCE(MIN, mask, value)
#define __reduce_max_sync(mask, value) CUDA_HOST_REDUCE(MAX, mask, value)
#define __reduce_and_sync(mask, value) CUDA_HOST_REDUCE(AND, mask, value)
#define __reduce_or_sync(mask, value) CUDA_HOST_REDUCE(OR, mask, value)
#define __reduce_xor_sync(mask, value) CUDA_HOST_REDUCE(XOR, mask, value)
