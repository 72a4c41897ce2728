// From logits to a step's output, without copying a vocabulary-sized array to the host: the next token (given, greedy or
// drawn), its log-probability, the entropy of the whole distribution and the most probable alternatives; the summary of the
// distribution that a wide trace keeps; and the next row, so that a decode step can be replayed.
//
//   head_partial  (logits, vocab, softcap, partials, wide, lists)
//   head_mass     (logits, vocab, blocks, partials, samplers, masses)                  if any row draws without top-k
//   head_finish   (logits, vocab, blocks, partials, wide, lists, masses, rows, samplers, given, next_rows, log,
//                  not_finite)
//
//   logits      [rows, vocab] f32; capped in place: x = softcap * tanh(x / softcap) where softcap > 0
//   partials    [rows, blocks] HeadPartial, lists [rows, blocks, 128] u64, masses [rows, blocks] u64: scratch,
//               blocks = ceil(vocab / 4096)
//   wide        [rows, blocks] WidePartial: scratch, or null: no row has a wide trace, and log.wide is not written
//   rows        [rows] RowState of the rows being predicted from
//   samplers    [rows] Sampler (sample.cuh)
//   given       [rows] int or null (all -1): >= 0: the next token; -1: it is chosen; -2: there is none
//   next_rows   [rows] RowState or null; may be `rows`: position + 1 and the token, slot and stream unchanged
//   log         HeadLog: a row's results go to entry slot * ring + position % ring, or, with ring 0, to entry row
//   not_finite  [1] int or null: set to 1 if an entropy is not finite (then some logit is NaN or infinite)
//
// Greedy is the max logit, ties by lowest id, never NaN. A draw matches the CPU backend's: same generator, same
// order of candidates, same cuts, from weights rounded to 2^-40 of the max. top_k is at most 128.
//
// PRECOND: head_partial and head_mass: grid (blocks, rows); head_finish: grid rows. Block 512, dynamic shared memory
//   NAME_shared_bytes, all three. vocab <= 2^20.
#include "sample.cuh"

/// Over 4096 logits: the maximum m, the sum of e = exp(x - m), and the sum of e (x - m).
struct HeadPartial {
  float m, z, s;
};

/// Over the same logits: sums of x - m, exp((x - m) / 2) and exp((x - m) / 4).
struct WidePartial {
  float deviation, half, quarter;
};

/// A wide trace's record of a prediction p over the vocabulary; like `Distribution` in src/backend/distribution.rs.
struct WideResult {
  float top_logprob;       // mean ln p of the best 20
  float uniform_kl;        // of the uniform distribution to p
  float log_affinity;      // ln sum sqrt(q / vocab), q the softmax at temperature 2
  float dominant;          // total probability of the dominant tokens
  float dominant_logprob;  // ln p of the lowest-probability one; infinite: none
};

/// Where results go; see above for the entries' order.
struct HeadLog {
  int* tokens;          // [entries] given or chosen; -1: none
  float* logprobs;      // [entries] of that token; NaN: none
  float* entropies;     // [entries] nats
  int* counts;          // [entries] alternatives
  int* top_ids;         // [entries, 100] best first
  float* top_logprobs;  // [entries, 100]
  WideResult* wide;     // [entries]
  int ring;
};

namespace head {

constexpr int THREADS = 512, WARPS = THREADS / 32, CHUNK = 4096, RUNS = CHUNK / TOP;
constexpr int EACH = CHUNK / THREADS;  // logits per thread
constexpr int MAX_TOP = 100;                           // fewer than 1 / 0.01 tokens can have p > 0.01
constexpr int MIN_TOP = 20;                           // alternatives reported in any case
constexpr double ALTERNATIVE = -4.605170185988091;  // ln 0.01
constexpr int TOP_LOGPROBS = 20;                    // of WideResult::top_logprob
constexpr double DOMINANT_DROP = 0.005, DOMINANT_SHARE = 0.3;  // the drop that ends the dominant tokens

/// Layout of shared memory: keys, then space for reductions; 128-byte parts.
struct Shared {
  unsigned long long* keys = reinterpret_cast<unsigned long long*>(dyn_smem);  // [CHUNK]; or the list, cumulative, and locate's scratch
  double* reduce = reinterpret_cast<double*>(dyn_smem + CHUNK * 8);            // [3][16]
  static constexpr int BYTES = CHUNK * 8 + 3 * 16 * 8;
  __device__ __forceinline__ unsigned long long* cumulative() const { return keys + TOP; }
  __device__ __forceinline__ LocateScratch& locate() const { return *reinterpret_cast<LocateScratch*>(keys + 2 * TOP); }
};

/// exp(x - m), but 0 for -infinity even if that is the maximum.
__device__ __forceinline__ float exp_below(float x, float m) { return x == -infinity() ? 0.0f : expf(x - m); }

/// Leaves the best TOP of the block's keys in `keys`, sorted; a thread's keys are top_key(x[j], id + j THREADS), for ids below
/// `vocab`. In each warp, TOP / WARPS threads have a key of at least the bound, so no key below it is among the best, and
/// usually only a few hundred are left to sort. PRECOND: all threads; `scratch` is free.
__device__ __forceinline__ void best_of(unsigned long long* keys, const float (&x)[EACH], int id, int vocab, unsigned* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto value = [&](int j) { return id + j * THREADS < vocab ? ordered(x[j]) : 0u; };  // 0: none, or NaN
  unsigned best = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) best = max(best, value(j));
  const auto above = [](unsigned a, unsigned b) { return a > b; };
  const unsigned bound = block_reduce<Min, WARPS>(nth_of_warp(best, TOP / WARPS - 1, above), scratch);
  const unsigned before = (1u << lane) - 1;
  unsigned kept[EACH];  // mask of the lanes that keep their j-th key
  int count = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    kept[j] = __ballot_sync(FULL_WARP, value(j) != 0 && value(j) >= bound);
    count += __popc(kept[j]);
  }
  if (lane == 0) scratch[WARPS + warp] = count;
  __syncthreads();
  int to = 0, all = 0;
#pragma unroll
  for (int i = 0; i < WARPS; ++i) {
    to += i < warp ? scratch[WARPS + i] : 0;
    all += scratch[WARPS + i];
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    if (kept[j] >> lane & 1) keys[to + __popc(kept[j] & before)] = top_key(x[j], id + j * THREADS);
    to += __popc(kept[j]);
  }
  const int runs = max(1, ceil_div(all, TOP));
  if (all + (int)threadIdx.x < runs * TOP) keys[all + threadIdx.x] = 0;
  __syncthreads();
  sort_runs(keys, runs);
  merge_runs(keys, runs);
}

/// The row's maximum, from all partials. PRECOND: all threads; `scratch` is free, and a barrier follows before it is
/// used again.
__device__ __forceinline__ float row_maximum(const HeadPartial* partials, int blocks, double* scratch) {
  float m = -infinity();
  for (int i = threadIdx.x; i < blocks; i += THREADS) m = fmaxf(m, partials[i].m);
  return block_reduce<Max, WARPS>(m, reinterpret_cast<float*>(scratch));
}

struct RowStats {
  float max;
  double lse, entropy;
};

/// PRECOND: all threads; `blocks` is at most THREADS; `scratch` is free, and a barrier follows before it is used again.
__device__ __forceinline__ RowStats row_stats(const HeadPartial* partials, int blocks, double* scratch) {
  static_assert((1 << 20) / CHUNK <= THREADS, "a partial a thread");
  const HeadPartial own = (int)threadIdx.x < blocks ? partials[threadIdx.x] : HeadPartial{-infinity(), 0.0f, 0.0f};
  const float m = block_reduce<Max, WARPS>(own.m, reinterpret_cast<float*>(scratch));
  double z = 0.0, s = 0.0;
  if (own.m > -infinity() || own.z != 0.0f) {
    const double shift = (double)own.m - (double)m, scale = exp(shift);
    z = scale * (double)own.z;
    s = scale * ((double)own.s + shift * (double)own.z);
  }
  z = block_reduce<Sum, WARPS>(z, scratch + 16);
  s = block_reduce<Sum, WARPS>(s, scratch + 32);
  const double log_z = log(z);
  return {m, (double)m + log_z, log_z - s / z};
}

/// Mean ln p of the best 20 of a sorted list of keys, and its dominant tokens: those up to the last position from which p
/// drops by more than both 0.005 and 0.3 p.
__device__ __forceinline__ WideResult list_stats(const unsigned long long* list, double lse) {
  const auto logprob = [&](int i) { return (double)key_value(list[i]) - lse; };
  WideResult result = {0.0f, 0.0f, 0.0f, 0.0f, infinity()};
  int best = 0;
  double sum = 0.0;
  while (best < TOP_LOGPROBS && list[best]) sum += logprob(best++);
  result.top_logprob = (float)(sum / best);
  sum = 0.0;
  for (int i = 0; i + 1 < TOP && list[i + 1]; ++i) {
    const double p = exp(logprob(i));
    if (p <= DOMINANT_DROP) break;
    sum += p;
    if (p - exp(logprob(i + 1)) <= fmax(DOMINANT_DROP, DOMINANT_SHARE * p)) continue;
    result.dominant = (float)sum;
    result.dominant_logprob = (float)logprob(i);
  }
  return result;
}

/// Writes a wide trace's record of a row. PRECOND: all threads; `scratch` is free; a barrier follows before the list or
/// `scratch` is written again.
__device__ __forceinline__ void write_wide(const HeadPartial* partials, const WidePartial* wide, int blocks, int vocab,
                                           const unsigned long long* list, const RowStats& stats, double* scratch,
                                           WideResult& out) {
  double deviation = 0.0, half = 0.0, quarter = 0.0;
  for (int i = threadIdx.x; i < blocks; i += THREADS) {
    const double shift = (double)partials[i].m - (double)stats.max;
    deviation += (double)wide[i].deviation + shift * min(CHUNK, vocab - i * CHUNK);
    half += exp(shift / 2) * (double)wide[i].half;
    quarter += exp(shift / 4) * (double)wide[i].quarter;
  }
  deviation = block_reduce<Sum, WARPS>(deviation, scratch);
  half = block_reduce<Sum, WARPS>(half, scratch + 16);
  quarter = block_reduce<Sum, WARPS>(quarter, scratch + 32);
  if (threadIdx.x != 0) return;
  WideResult result = list_stats(list, stats.lse);
  result.uniform_kl = (float)(stats.lse - (double)stats.max - deviation / vocab - log((double)vocab));
  result.log_affinity = (float)fmin(log(quarter) - (log(half) + log((double)vocab)) / 2, 0.0);
  out = result;
}

/// Starts copying lists.
__device__ __forceinline__ void fetch_lists(unsigned long long* keys, const unsigned long long* lists, int count) {
#pragma unroll 4
  for (int i = 2 * threadIdx.x; i < count * TOP; i += 2 * THREADS) cp_async16(keys + i, lists + i);
  cp_commit();
}

/// Merges all blocks' lists: the best TOP go to keys[0..TOP]. PRECOND: all threads, which are fetching the first RUNS lists; ends with a
/// barrier.
__device__ __forceinline__ void merge_lists(unsigned long long* keys, const unsigned long long* lists, int blocks) {
  for (int done = min(blocks, RUNS), runs = done;;) {
    cp_wait<0>();
    __syncthreads();  // the lists have arrived
    merge_runs(keys, runs);
    if (done == blocks) return;
    const int fresh = min(blocks - done, RUNS - 1);  // next to the result of earlier rounds
    fetch_lists(keys + TOP, lists + (size_t)done * TOP, fresh);
    done += fresh;
    runs = 1 + fresh;
  }
}

/// Writes a row's alternatives: those with p > 0.01, and at least MIN_TOP. PRECOND: all threads.
__device__ __forceinline__ void write_alternatives(const unsigned long long* list, double lse, const HeadLog& log,
                                                   size_t entry) {
  const int i = threadIdx.x;
  const unsigned long long key = i < MAX_TOP ? list[i] : 0ull;
  const double logprob = key ? (double)key_value(key) - lse : 0.0;
  const bool wanted = key && (i < MIN_TOP || logprob > ALTERNATIVE);
  const int count = __syncthreads_count(wanted);
  if (i == 0) log.counts[entry] = count;
  if (!wanted) return;
  log.top_ids[entry * MAX_TOP + i] = key_id(key);
  log.top_logprobs[entry * MAX_TOP + i] = (float)logprob;
}

}  // namespace head

SHARED_BYTES(head_partial, head::Shared::BYTES)
SHARED_BYTES(head_mass, head::Shared::BYTES)
SHARED_BYTES(head_finish, head::Shared::BYTES)
STARTS_EARLY(head_partial)
STARTS_EARLY(head_mass)

extern "C" __global__ void __launch_bounds__(512, 1)
    head_partial(float* logits, int vocab, float softcap, HeadPartial* partials, WidePartial* wide,
                 unsigned long long* lists) {
  PRECOND_GRID(ceil_div(vocab, head::CHUNK), ANY_GRID);
  start_early();
  const head::Shared shared;
  float* scratch = reinterpret_cast<float*>(shared.reduce);
  float* row = logits + (size_t)blockIdx.y * vocab;
  const int start = blockIdx.x * head::CHUNK;
  const int first = start + threadIdx.x;
  float x[head::EACH], m = -infinity();
#pragma unroll
  for (int j = 0; j < head::EACH; ++j) {
    const int id = first + j * head::THREADS;
    x[j] = id < vocab ? row[id] : -infinity();
  }
#pragma unroll
  for (int j = 0; j < head::EACH; ++j) {
    const int id = first + j * head::THREADS;
    if (softcap > 0.0f && id < vocab) row[id] = x[j] = softcap * tanhf(x[j] / softcap);
    m = fmaxf(m, x[j]);
  }
  m = block_reduce<Max, head::WARPS>(m, scratch);
  float z = 0.0f, s = 0.0f;
#pragma unroll
  for (int j = 0; j < head::EACH; ++j) {
    const float e = head::exp_below(x[j], m);
    z += e;
    s += e == 0.0f ? 0.0f : e * (x[j] - m);
  }
  z = block_reduce<Sum, head::WARPS>(z, scratch + 16);
  s = block_reduce<Sum, head::WARPS>(s, scratch + 32);
  const size_t part = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) partials[part] = {m, z, s};
  if (wide) {
    WidePartial sums = {0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < head::EACH; ++j) {
      if (first + j * head::THREADS >= vocab) continue;
      const float e = head::exp_below(0.25f * x[j], 0.25f * m);
      sums.deviation += x[j] == -infinity() ? x[j] : x[j] - m;
      sums.half += e * e;
      sums.quarter += e;
    }
    sums.deviation = block_reduce<Sum, head::WARPS>(sums.deviation, scratch + 48);
    sums.half = block_reduce<Sum, head::WARPS>(sums.half, scratch + 64);
    sums.quarter = block_reduce<Sum, head::WARPS>(sums.quarter, scratch + 80);
    if (threadIdx.x == 0) wide[part] = sums;
  }
  head::best_of(shared.keys, x, first, vocab, reinterpret_cast<unsigned*>(shared.reduce));
  if (threadIdx.x < TOP) lists[part * TOP + threadIdx.x] = shared.keys[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(512, 1)
    head_mass(const float* logits, int vocab, int blocks, const HeadPartial* partials, const Sampler* samplers,
              unsigned long long* masses) {
  PRECOND_GRID(ceil_div(vocab, head::CHUNK), ANY_GRID);
  start_early();
  const head::Shared shared;
  const Sampler sampler = samplers[blockIdx.y];
  if (sampler.temperature <= 0.0f || sampler.top_k > 0) return;
  const float m = head::row_maximum(partials + (size_t)blockIdx.y * blocks, blocks, shared.reduce);
  const float* row = logits + (size_t)blockIdx.y * vocab;
  const int end = min(choosable_ids(sampler, vocab), (int)(blockIdx.x + 1) * head::CHUNK);
  unsigned long long mass = 0;
  for (int id = blockIdx.x * head::CHUNK + threadIdx.x; id < end; id += head::THREADS)
    mass += token_mass(row[id], m, sampler.temperature);
  mass = block_reduce<Sum>(mass, reinterpret_cast<unsigned long long*>(shared.reduce + 16));
  if (threadIdx.x == 0) masses[(size_t)blockIdx.y * blocks + blockIdx.x] = mass;
}

extern "C" __global__ void __launch_bounds__(512, 1)
    head_finish(const float* logits, int vocab, int blocks, const HeadPartial* partials, const WidePartial* wide,
                const unsigned long long* lists, const unsigned long long* masses, const RowState* rows,
                const Sampler* samplers, const int* given, RowState* next_rows, HeadLog log, int* not_finite) {
  const head::Shared shared;
  const size_t first = (size_t)blockIdx.x * blocks;
  const float* row = logits + (size_t)blockIdx.x * vocab;
  const RowState state = rows[blockIdx.x];
  const Sampler sampler = samplers[blockIdx.x];
  head::fetch_lists(shared.keys, lists + first * TOP, min(blocks, head::RUNS));
  const head::RowStats stats = head::row_stats(partials + first, blocks, shared.reduce);
  head::merge_lists(shared.keys, lists + first * TOP, blocks);

  const size_t entry = log.ring > 0 ? (size_t)state.slot * log.ring + state.position % log.ring : blockIdx.x;
  if (wide)
    head::write_wide(partials + first, wide + first, blocks, vocab, shared.keys, stats, shared.reduce, log.wide[entry]);
  head::write_alternatives(shared.keys, stats.lse, log, entry);  // contains a barrier: all have read `rows`

  int token = given ? given[blockIdx.x] : -1;
  if (token == -1) {
    const int choosable = choosable_ids(sampler, vocab);
    if (choosable < vocab) keep_choosable(shared.keys, choosable);
    token = shared.keys[0] ? key_id(shared.keys[0]) : 0;
    if (sampler.temperature > 0.0f) {
      unsigned long long total = 0;
      if (sampler.top_k <= 0)
        for (int i = 0; i < blocks; ++i) total += masses[first + i];
      const unsigned long long bits = uniform_bits(sampler.seed, (unsigned long long)state.stream,
                                                   (unsigned long long)(state.position - sampler.counter_offset));
      token = draw_token(sampler, shared.keys, shared.cumulative(), shared.locate(), row, choosable, stats.max, total,
                         bits);
    }
  }
  if (threadIdx.x != 0) return;
  const bool known = token >= 0 && token < vocab;
  log.tokens[entry] = known ? token : -1;
  const bool best = key_id(shared.keys[0]) == token;  // then its logit need not be loaded
  const float logit = known ? best ? key_value(shared.keys[0]) : row[token] : 0.0f;
  log.logprobs[entry] = known ? (float)((double)logit - stats.lse) : infinity() - infinity();
  log.entropies[entry] = (float)stats.entropy;
  if (not_finite && !(fabs(stats.entropy) < (double)infinity())) *not_finite = 1;
  if (next_rows) next_rows[blockIdx.x] = {state.slot, state.position + 1, known ? token : 0, state.stream};
}
