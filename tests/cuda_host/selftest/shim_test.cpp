// Tests of the shim itself: every deliberately incorrect kernel is reported, and every correct one produces its
// result under all schedules. Incorrect kernels run in a child process each, because a sanitizer's report ends the
// process.
#include <algorithm>

#include "shim.h"

#include "right.cu"
#include "wrong.cu"

CUDA_HOST_EXPORT(wrong_missing_barrier)
CUDA_HOST_EXPORT(wrong_missing_barrier_in_loop)
CUDA_HOST_EXPORT(wrong_missing_warp_barrier)
CUDA_HOST_EXPORT(wrong_divergent_barrier)
CUDA_HOST_EXPORT(wrong_barrier_some_skip)
CUDA_HOST_EXPORT(wrong_shuffle_in_branch)
CUDA_HOST_EXPORT(wrong_shuffle_outside_mask)
CUDA_HOST_EXPORT(wrong_early_exit)
CUDA_HOST_EXPORT(wrong_shared_overrun)
CUDA_HOST_EXPORT(wrong_static_shared_overrun)
CUDA_HOST_EXPORT(wrong_global_overrun)
CUDA_HOST_EXPORT(wrong_misaligned_vector)
CUDA_HOST_EXPORT(wrong_misaligned_copy)
CUDA_HOST_EXPORT(wrong_missing_wait)
CUDA_HOST_EXPORT(wrong_wait_keeps_one)
CUDA_HOST_EXPORT(wrong_wait_without_barrier)
CUDA_HOST_EXPORT(wrong_grid)
CUDA_HOST_EXPORT(wrong_uninitialised_shared)
CUDA_HOST_EXPORT(wrong_uninitialised_static_shared)
CUDA_HOST_EXPORT(wrong_never_waits)
CUDA_HOST_EXPORT(wrong_tile_without_wait)
CUDA_HOST_EXPORT(wrong_tile_read_before_wait)
CUDA_HOST_EXPORT(wrong_tile_of_no_map)
CUDA_HOST_EXPORT(wrong_mbarrier_not_made)
CUDA_HOST_EXPORT(wrong_mbarrier_waits_for_more)
CUDA_HOST_EXPORT(wrong_wgmma_without_fence)
CUDA_HOST_EXPORT(wrong_wgmma_by_two_warps)
CUDA_HOST_EXPORT(right_block_sum)
CUDA_HOST_EXPORT(right_pipeline)
CUDA_HOST_EXPORT(right_votes)
CUDA_HOST_EXPORT(right_last_block)
CUDA_HOST_EXPORT(right_mma_bf16)
CUDA_HOST_EXPORT(right_mma_f16)
CUDA_HOST_EXPORT(right_ldmatrix_trans)
CUDA_HOST_EXPORT(right_arguments)
CUDA_HOST_EXPORT(right_step)

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

static int passed = 0, failed = 0;
static void check(bool ok, const std::string& what) {
  ++(ok ? passed : failed);
  if (!ok) printf("FAIL %s\n", what.c_str());
}

template <class... A>
static int run(const char* name, dim3 grid, dim3 block, unsigned shared, A... arguments) {
  void* params[] = {&arguments...};
  const int sizes[] = {int(sizeof arguments)...};
  const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
  const int code = ch_launch_checked(ch_find(name), g, b, shared, params, sizes, sizeof...(A));
  if (code) printf("  %s\n", ch_last_error());
  return code;
}

// ---- wrong kernels ----
enum Outcome { SILENT, REPORTED, RESULT_VARIES, RESULT_NAN, DIED };

// The outcome of running the kernel under several schedules. Its 64 floats end at the allocation's end.
static Outcome outcome(const char* name) {
  std::vector<float> first;
  for (uint64_t seed = 0; seed <= 8; ++seed) {
    std::unique_ptr<float[], void (*)(void*)> o(static_cast<float*>(aligned_alloc(16, 256)), free);
    for (int i = 0; i < 64; ++i) o[i] = float(i) + 0.5f;
    ch_configure(1, seed);
    if (run(name, 1, 64, 256, o.get())) return REPORTED;
    std::vector<float> result(o.get(), o.get() + 64);
    for (float v : result)
      if (v != v) return RESULT_NAN;
    if (first.empty()) first = result;
    if (memcmp(first.data(), result.data(), 256)) return RESULT_VARIES;
  }
  return SILENT;
}

static Outcome outcome_in_child(const char* name) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (!freopen("/dev/null", "w", stderr)) _exit(SILENT);
    const Outcome shown = outcome(name);
    fflush(stdout);
    _exit(100 + shown);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const bool told = WIFEXITED(status) && WEXITSTATUS(status) >= 100;
  return told ? Outcome(WEXITSTATUS(status) - 100) : DIED;
}

static void test_wrong_kernels() {
  const bool sanitized = CUDA_HOST_ASAN;
  static const char* const words[] = {"silent", "reported", "result varies", "NaN in the result",
                                      "ended by a sanitizer"};
  const std::string by_sanitizer[] = {"wrong_shared_overrun", "wrong_static_shared_overrun", "wrong_global_overrun",
                                      "wrong_misaligned_vector"};
  for (const ch_kernel* kernel : cuda_host::kernels()) {
    const std::string name = kernel->name;
    if (name.rfind("wrong_", 0)) continue;
    const bool theirs = std::count(std::begin(by_sanitizer), std::end(by_sanitizer), name);
    if (!sanitized && theirs && name != "wrong_shared_overrun") continue;
    const Outcome shown = outcome_in_child(kernel->name);
    printf("%-36s %s\n", kernel->name, words[shown]);
    check(shown != SILENT && (shown == DIED) == (sanitized && theirs), name);
  }
}

// ---- right kernels ----
static void test_right_kernels() {
  float sums[3];
  check(run("right_block_sum", 3, 64, 0, &sums[0]) == 0, "block sum runs");
  for (int b = 0; b < 3; ++b) check(sums[b] == 2016.0f + 64.0f * float(b), "block sum");

  const int rounds = 5;
  alignas(16) float in[rounds * 64];
  float o[64];
  for (int i = 0; i < rounds * 64; ++i) in[i] = float(i % 17);
  check(run("right_pipeline", 3, 64, 512, (const float*)in, &o[0], rounds) == 0, "pipeline runs");
  for (int i = 0; i < 64; ++i) {
    float sum = 0.0f;
    for (int r = 0; r < rounds; ++r) sum += in[r * 64 + 63 - i];
    check(o[i] == sum, "pipeline");
  }

  int votes[40][8];
  check(run("right_votes", 3, 40, 0, &votes[0][0]) == 0, "votes run");
  for (int i = 0; i < 40; ++i) {
    const bool second = i >= 32;
    const int odd = second ? 0xAA : int(0xAAAAAAAA);
    const int expected[8] = {odd, second, !second, 14, 1, 0, second ? 284 : 496, second ? 39 : 31};
    check(!memcmp(votes[i], expected, sizeof expected), "votes of thread " + std::to_string(i));
  }

  int counter = 0, done[4] = {0, 0, 0, 0};
  check(run("right_last_block", 3, 64, 0, &counter, &done[0]) == 0 && done[3] == 6, "last block");

  struct {
    double scale;
    int shift;
  } pair{0.5, 3};
  float out[5];
  check(run("right_arguments", 1, 64, 0, &out[0], char(2), pair, (const float*)in, 5ull) == 0, "arguments run");
  for (int i = 0; i < 5; ++i) check(out[i] == float(i) * 0.5f + 5.0f, "arguments");
}

template <class T>
static void test_mma(const char* name) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  alignas(16) T a[16][16], bt[8][16];
  float c[16][8];
  for (auto& row : a)
    for (T& v : row) v = T(normal(random));
  for (auto& row : bt)
    for (T& v : row) v = T(normal(random));
  check(run(name, 1, 32, 1024, (const T*)a, (const T*)bt, &c[0][0]) == 0, "mma runs");
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      double sum = 0.0, size = 0.0;
      for (int k = 0; k < 16; ++k) {
        const double product = double(float(a[i][k])) * double(float(bt[j][k]));
        sum += product, size += fabs(product);
      }
      // at most two blocks of nine summands, each cut off below 2^-24 of the largest, and the result at 2^-23
      check(fabs(sum - double(c[i][j])) < ldexp(2 * (9 + 2), -24) * size, name);
    }
}

// ---- sums of tensor cores ----
// One block of products and the accumulator as integers, following the published description: a second, independent
// implementation.
static float block_sum(const std::vector<std::pair<float, float>>& factors, float c, int extra, int lowest, int least) {
  int top = lowest, c_exponent = 0;
  const auto exponent = [](float x, int least) { return std::max(ilogbf(x), least); };
  if (c != 0) top = std::max(top, c_exponent = exponent(c, -126));
  for (const auto& [a, b] : factors)
    if (a != 0 && b != 0) top = std::max(top, exponent(a, least) + exponent(b, least));
  const auto units = [&](double x) { return (__int128)trunc(ldexp(x, 23 + extra - top)); };
  __int128 total = units(c);
  for (const auto& [a, b] : factors) total += units(double(a) * double(b));
  const bool negative = total < 0;
  unsigned __int128 size = negative ? -total : total;
  int shift = 0;
  while (size >> 24) size >>= 1, ++shift;  // bits beyond 24 are dropped
  const double value = ldexp(double(uint64_t(size)), shift + top - 23 - extra);
  float result = float(value);
  if (double(result) > value) result = nextafterf(result, 0.0f);
  return negative ? -result : result;
}

template <class T>
static void test_tensor_sums(const char* name, int least) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponents(-8, 8), rare(0, 9);
  alignas(16) T a[16][16], bt[8][16];
  float c[16][8];
  const auto number = [&] { return T(rare(random) ? ldexpf(normal(random), exponents(random)) : 0.0f); };
  for (auto& row : a)
    for (T& v : row) v = number();
  for (auto& row : bt)
    for (T& v : row) v = number();
  for (int sums : {cuda_host::mma::AMPERE, cuda_host::mma::HOPPER}) {
    const cuda_host::mma::Core core = cuda_host::mma::CORES[sums];
    const int before = ch_tensor_sums(sums);
    check(run(name, 1, 32, 1024, (const T*)a, (const T*)bt, &c[0][0]) == 0, "mma runs");
    ch_tensor_sums(before);
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        float sum = 0.0f;
        for (int first = 0; first < 16; first += core.products) {
          std::vector<std::pair<float, float>> factors;
          for (int k = first; k < first + core.products; ++k) factors.push_back({float(a[i][k]), float(bt[j][k])});
          sum = block_sum(factors, sum, core.extra, core.lowest, least);
        }
        check(!memcmp(&sum, &c[i][j], 4), name + std::string(": sums as measured, ") + std::to_string(sums));
      }
  }
}

// Distinguishes the architectures: next to 1, products of 2^-24 and of 2^-25 survive the shift or not.
static void test_published_sums() {
  alignas(16) __half a[16][16] = {}, bt[8][16] = {};
  float c[16][8];
  const auto sums = [&](int mode, int count, float first, float other) {
    for (int k = 0; k < 16; ++k) a[0][k] = __half(k == 0 ? first : k <= count ? other : 0.0f);
    for (int k = 0; k < 16; ++k) bt[0][k] = __half(k == 0 ? 1.0f : ldexpf(1.0f, -12));
    const int before = ch_tensor_sums(mode);
    run("right_mma_f16", 1, 32, 1024, (const __half*)a, (const __half*)bt, &c[0][0]);
    ch_tensor_sums(before);
    return c[0][0];
  };
  using namespace cuda_host::mma;
  const float u = ldexpf(1.0f, -23), small = ldexpf(1.0f, -12), tiny = ldexpf(1.0f, -13), less = ldexpf(1.0f, -14);
  check(sums(NEAREST, 7, 1.0f, small) == 1.0f, "to nearest: 1 + 7 2^-24, ties to even each");
  check(sums(AMPERE, 7, 1.0f, small) == 1.0f + 3 * u, "A100: 1 + 7 2^-24 is 1 + 3.5 2^-23, cut off");
  check(sums(AMPERE, 7, 1.0f, tiny) == 1.0f, "A100: 2^-25 is cut off beside 1");
  check(sums(HOPPER, 15, 1.0f, tiny) == 1.0f + 3 * u, "H100: 1 + 15 2^-25 is 1 + 3.75 2^-23, cut off");
  check(sums(HOPPER, 15, 1.0f, less) == 1.0f, "H100: 2^-26 is cut off beside 1");
  check(sums(AMPERE, 15, 1.0f, small) == 1.0f + 7 * u, "A100: two blocks, 3.5 2^-23 and 4 2^-23, cut off one by one");
  check(sums(HOPPER, 15, 1.0f, small) == 1.0f + 7 * u, "H100: one block, 7.5 2^-23");
  check(sums(AMPERE, 7, -1.0f, -small) == -1.0f - 3 * u, "A100: toward zero, not down");
  check(std::isinf(sums(AMPERE, 7, INFINITY, small)) && std::isnan(sums(HOPPER, 7, NAN, small)), "not finite");
}

static void test_ldmatrix_trans() {
  alignas(16) unsigned short in[8][8];
  unsigned o[32];
  for (int i = 0; i < 64; ++i) in[i / 8][i % 8] = (unsigned short)(i * 37);
  check(run("right_ldmatrix_trans", 1, 32, 1024, (const unsigned short*)in, &o[0]) == 0, "ldmatrix runs");
  for (int lane = 0; lane < 32; ++lane) {
    const unsigned expected = in[lane % 4 * 2][lane / 4] | unsigned(in[lane % 4 * 2 + 1][lane / 4]) << 16;
    check(o[lane] == expected, "ldmatrix.trans");
  }
}

// ---- counters ----
static void test_counters() {
  alignas(64) float in[5 * 64];
  float o[64];
  for (int i = 0; i < 5 * 64; ++i) in[i] = 1.0f;
  const auto counted = [&](const float* from, int rounds) {
    ch_count_copies(true);
    run("right_pipeline", 3, 64, 512, from, &o[0], rounds);
    const ch_copies found = ch_copies_of("right_");
    ch_count_copies(false);
    return found;
  };
  const ch_copies whole = counted(in, 5), shifted = counted(in + 4, 1);
  check(whole.sectors == 40 && whole.requests == 120 && whole.wasted == 0, "three blocks read 5 * 256 bytes each");
  check(shifted.sectors == 9 && shifted.requests == 27 && shifted.wasted == 3 * 32, "half a sector at both ends");
  // rows of 32 bytes: a matrix's rows share four of the eight bank groups, two each
  alignas(16) __half a[16][16] = {}, bt[8][16] = {};
  float c[16][8];
  const uint64_t before = ch_bank_conflicts();
  run("right_mma_f16", 1, 32, 1024, (const __half*)a, (const __half*)bt, &c[0][0]);
  check(ch_bank_conflicts() - before == 6, "six matrices in two passes each");
}

static void test_refused_launches() {
  float o[64];
  printf("refused launches:\n");
  check(run("right_block_sum", 1, 1025, 0, &o[0]) == 1, "block of 1025");
  check(run("right_block_sum", 0, 64, 0, &o[0]) == 1, "empty grid");
  check(run("right_block_sum", 1, 64, 228 << 10, &o[0]) == 1, "too much shared memory");
  check(run("right_block_sum", 1, 64, 0, &o[0], 1) == 1, "one parameter too many");
  check(run("right_block_sum", 1, 64, 0, 1.0f) == 1, "a parameter of the wrong size");
  check(run("wrong_early_exit", 1, 64, 0, &o[0]) == 2, "a fault");
  check(run("right_block_sum", 1, 64, 0, &o[0]) == 0, "launch after a fault");
}

// ---- 16-bit floats ----
static void test_conversions() {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const __half h = __half::from_bits(uint16_t(bits));
    const __nv_bfloat16 b = __nv_bfloat16::from_bits(uint16_t(bits));
    const float f = h, g = b;
    if (f != f || g != g) continue;
    if (__half(f).bits != bits || __nv_bfloat16(g).bits != bits) return check(false, "16-bit round trip");
    const int exponent = int(bits >> 10 & 31), mantissa = int(bits & 1023);
    const double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent < 31 && double(f) != (bits >> 15 ? -size : size)) return check(false, "half to float");
    if (exponent == 31) continue;
    const float next = __half::from_bits(uint16_t(bits + 1));  // halfway between neighbours rounds to the even one
    const float middle = exponent == 30 && mantissa == 1023 ? (bits >> 15 ? -65520.0f : 65520.0f) : (f + next) / 2;
    if (__half(middle).bits != (bits & 1 ? bits + 1 : bits)) return check(false, "float to half, ties");
    const float above = nextafterf(middle, bits >> 15 ? -1e9f : 1e9f);
    if (__half(above).bits != bits + 1) return check(false, "float to half, above the tie");
  }
  check(true, "conversions");
}

int main() {
  test_wrong_kernels();
  for (uint64_t seed = 0; seed <= 12; ++seed) {
    ch_configure(1 + unsigned(seed % 3), seed);
    test_right_kernels();
    test_mma<__nv_bfloat16>("right_mma_bf16");
    test_mma<__half>("right_mma_f16");
    test_tensor_sums<__nv_bfloat16>("right_mma_bf16", -126);
    test_tensor_sums<__half>("right_mma_f16", -14);
    test_published_sums();
    test_ldmatrix_trans();
  }
  test_counters();
  test_refused_launches();
  test_conversions();
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
