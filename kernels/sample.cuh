// Drawing a token from a row of logits: the candidates are the tokens by descending logit (ties by lower id),
// cut by top-k and top-p, and the draw is a point in their cumulative weight exp((x - max) / temperature).
//
// Weights are integers (2^40 times the weight), so that sums do not depend on the order of additions and every
// candidate, however far down, can be found by a radix descent over the logits. The first 128 candidates are available as
// a sorted list, where nearly every draw ends.
#pragma once
#include "top_list.cuh"

/// Sampling options of a row's next token.
struct Sampler {
  unsigned long long seed;
  float temperature;   // 0: greedy
  float top_p;         // 1: all
  int top_k;           // 0: all; otherwise at most 128
  int counter_offset;  // the draw's counter is the row's position - counter_offset
  int choosable;       // only ids below are chosen (embeddings are often padded); 0: all
};

__device__ __forceinline__ int choosable_ids(const Sampler& sampler, int vocab) {
  return sampler.choosable > 0 ? min(sampler.choosable, vocab) : vocab;
}

/// Removes ids >= `choosable` from a list of TOP keys. PRECOND: all threads, at least TOP of them; the list is
/// visible to all; ends with a barrier.
__device__ __forceinline__ void keep_choosable(unsigned long long* list, int choosable) {
  const auto wanted = [&](int i) { return list[i] && key_id(list[i]) < choosable; };
  const int i = threadIdx.x;
  const unsigned long long key = i < TOP && wanted(i) ? list[i] : 0ull;
  int place = 0;
  if (key)
    for (int j = 0; j < i; ++j) place += wanted(j);
  const int count = __syncthreads_count(key != 0ull);
  if (key) list[place] = key;
  if (i >= count && i < TOP) list[i] = 0ull;
  __syncthreads();
}

/// The 53 bits of a number in [0, 1): three counters, chained through the finalizer of SplitMix64.
__device__ __forceinline__ unsigned long long mix64(unsigned long long x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
__device__ __forceinline__ unsigned long long uniform_bits(unsigned long long seed, unsigned long long stream,
                                                           unsigned long long position) {
  return mix64(mix64(mix64(seed) ^ stream) ^ position) >> 11;
}

/// 2^40 exp((x - max) / temperature); 0 for NaN.
__device__ __forceinline__ unsigned long long token_mass(float x, float max, float temperature) {
  const float weight = expf((x - max) / temperature);
  return weight > 0.0f ? (unsigned long long)(weight * 1099511627776.0f) : 0ull;
}

/// A candidate, the mass of all before it, and its own.
struct Found {
  int token;
  unsigned long long before, mass;
};

/// Shared memory of `locate`.
struct LocateScratch {
  static constexpr int BINS = 2048;
  unsigned long long bins[BINS];
  unsigned long long before;
  int bin;
};

/// Warp 0: finds the highest bin such that `before` plus all bins from the top down to it exceed `target`.
__device__ __forceinline__ void find_bin(LocateScratch& s, int bins, unsigned long long before,
                                         unsigned long long target) {
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x, each = bins / 32, top = bins - 1 - lane * each;  // this lane: top, top - 1, ...
  unsigned long long sum = 0;
  for (int i = 0; i < each; ++i) sum += s.bins[top - i];
  unsigned long long through = sum;  // of this lane and those before
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long other = __shfl_up_sync(FULL_WARP, through, distance);
    if (lane >= distance) through += other;
  }
  const unsigned beyond = __ballot_sync(FULL_WARP, before + through > target);
  if (beyond == 0 || lane != __ffs((int)beyond) - 1) return;
  before += through - sum;
  int bin = top;
  while (before + s.bins[bin] <= target) before += s.bins[bin--];
  s.bin = bin;
  s.before = before;
}

/// The first candidate of the whole vocabulary with more than `target` of mass up to and including it. Three scans of
/// the row find its logit, digit by digit, a fourth its id. Rare, so it is one block's work.
/// PRECOND: all threads; `target` is below the total mass; the scratch is unused.
__device__ __forceinline__ Found locate(LocateScratch& s, const float* logits, int vocab, float max, float temperature,
                                        unsigned long long target) {
  unsigned long long before = 0;
  unsigned prefix = 0;
  for (int shift = 21, bits = 11; shift >= 0;) {
    const int bins = 1 << bits;
    for (int i = threadIdx.x; i < bins; i += blockDim.x) s.bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
      const unsigned key = ordered(logits[i]);
      if (shift + bits < 32 && key >> (shift + bits) != prefix) continue;
      const unsigned long long mass = token_mass(logits[i], max, temperature);
      if (mass) atomicAdd(&s.bins[key >> shift & (bins - 1)], mass);
    }
    __syncthreads();
    find_bin(s, bins, before, target);
    __syncthreads();
    before = s.before;
    prefix = prefix << bits | (unsigned)s.bin;
    if (shift == 0) break;
    bits = shift > 11 ? 11 : shift;
    shift -= bits;
  }
  const unsigned long long mass = token_mass(from_ordered(prefix), max, temperature);
  for (int start = 0; start < vocab; start += blockDim.x) {  // equal logits by id
    const int i = start + threadIdx.x;
    const int here = __syncthreads_count(i < vocab && ordered(logits[i]) == prefix);
    if (before + here * mass <= target) {
      before += here * mass;
      continue;
    }
    int token = start;
    for (;; ++token) {
      if (ordered(logits[token]) != prefix) continue;
      if (before + mass > target) break;
      before += mass;
    }
    return {token, before, mass};
  }
  return {0, before, mass};  // unreachable: the target is below the total
}

/// Warp 0: cumulative mass of a list's first `count` entries; later ones repeat the last.
__device__ __forceinline__ void accumulate_list(unsigned long long* cumulative, const unsigned long long* list,
                                                int count, float max, float temperature) {
  if (threadIdx.x >= 32) return;
  constexpr int EACH = TOP / 32;
  unsigned long long mass[EACH], sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int place = threadIdx.x * EACH + i;
    if (place < count && list[place]) sum += token_mass(key_value(list[place]), max, temperature);
    mass[i] = sum;
  }
  unsigned long long through = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const unsigned long long other = __shfl_up_sync(FULL_WARP, through, distance);
    if ((int)threadIdx.x >= distance) through += other;
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) cumulative[threadIdx.x * EACH + i] = through - sum + mass[i];
}

/// Number of list entries whose cumulative mass does not exceed `target`. PRECOND: all threads, at least TOP of them.
__device__ __forceinline__ int places_up_to(const unsigned long long* cumulative, unsigned long long target) {
  return __syncthreads_count(threadIdx.x < TOP && cumulative[threadIdx.x < TOP ? threadIdx.x : 0] <= target);
}

/// The token drawn. `list`: the best TOP keys; `total`: mass of the whole vocabulary (used without top-k only).
/// PRECOND: all threads, at least TOP of them; temperature > 0; the scratch and `cumulative` [TOP] are free.
__device__ __forceinline__ int draw_token(const Sampler& sampler, const unsigned long long* list,
                                          unsigned long long* cumulative, LocateScratch& scratch, const float* logits,
                                          int vocab, float max, unsigned long long total, unsigned long long bits) {
  const bool whole = sampler.top_k <= 0;  // candidates beyond the list count too
  accumulate_list(cumulative, list, whole ? TOP : min(sampler.top_k, TOP), max, sampler.temperature);
  __syncthreads();
  const unsigned long long in_list = cumulative[TOP - 1];
  unsigned long long kept = whole ? total : in_list;
  if (kept == 0) return list[0] ? key_id(list[0]) : 0;
  if (sampler.top_p < 1.0f) {  // up to the first candidate at which the sum reaches top_p of the total
    const double wanted = ceil((double)fmaxf(sampler.top_p, 0.0f) * (double)kept);
    const unsigned long long reach = wanted < 1.0 ? 0ull : (unsigned long long)wanted - 1;
    const int place = places_up_to(cumulative, reach);
    if (place < TOP) {
      kept = cumulative[place];
    } else if (whole && reach < kept) {
      const Found last = locate(scratch, logits, vocab, max, sampler.temperature, reach);
      kept = last.before + last.mass;
    }
  }
  const unsigned long long target = __umul64hi(bits << 11, kept);  // floor(kept * bits / 2^53)
  const int place = places_up_to(cumulative, target);
  if (place < TOP) return key_id(list[place]);
  return locate(scratch, logits, vocab, max, sampler.temperature, target).token;
}
