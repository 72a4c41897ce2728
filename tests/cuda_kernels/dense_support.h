// Shared by the tests of the dense kernels: buffers with guards, launches, random data, 16-bit floats. A test file
// includes this, then its .cu files, and is built with the host shim and kernels/ on the include path.
#pragma once
#include "shim.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

inline int failures = 0, checks = 0;
inline double worst = 0;  // the largest error, as a share of its bound

inline void check(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  ++failures;
  if (failures <= 30) printf("FAIL %s\n", what.c_str());
  if (ch_first_failure_ends()) exit(1);
}

/// An error against its bound; NaN fails.
inline void check_error(double error, double bound, const std::string& what) {
  if (error == error) worst = std::max(worst, error / bound);
  check(error <= bound, what + ": error " + std::to_string(error / bound) + " of the bound");
}

inline int report(const char* name) {
  check(ch_bank_conflicts() == 0, std::to_string(ch_bank_conflicts()) + " bank conflicts of ldmatrix");
  printf("%s: %d checks, %d failed, largest error %.3f of its bound\n", name, checks, failures, worst);
  return failures != 0;
}

/// Memory as the device would allocate it: aligned to 256 bytes, exactly as long as requested (so that the address
/// sanitizer detects accesses to the first byte beyond), filled with NaN.
template <class T>
class Device {
 public:
  explicit Device(size_t size) : size_(size), data_(allocate(size)) {}
  Device(const std::vector<T>& from) : Device(from.size()) { std::copy(from.begin(), from.end(), get()); }
  T* get() { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::vector<T> host() const { return std::vector<T>(data_.get(), data_.get() + size_); }

 private:
  struct Free {
    void operator()(T* p) const { free(p); }
  };
  static T* allocate(size_t size) {
    void* p = nullptr;
    if (posix_memalign(&p, 256, std::max<size_t>(size * sizeof(T), 1))) abort();
    memset(p, 0xff, size * sizeof(T));
    return static_cast<T*>(p);
  }
  size_t size_;
  std::unique_ptr<T, Free> data_;
};

template <class... A>
inline bool launch(const std::string& kernel, dim3 grid, dim3 block, unsigned shared, A... arguments) {
  const auto* found = ch_find(kernel.c_str());
  if (!found) {
    check(false, "no kernel " + kernel);
    return false;
  }
  void* params[] = {(void*)&arguments...};
  const int sizes[] = {int(sizeof arguments)...};
  bool fits = ch_nparams(found) == (int)sizeof...(A);
  for (int i = 0; fits && i < (int)sizeof...(A); ++i) fits = ch_param_size(found, i) == sizes[i];
  check(fits, kernel + ": wrong arguments");
  const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
  const int code = fits ? ch_launch(found, g, b, shared, params) : 1;
  check(code == 0, kernel + ": " + (code ? ch_last_error() : ""));
  return code == 0;
}

/// Runs `body` under a fair schedule and under adversaries.
inline void schedules(int adversaries, const std::function<void(int)>& body) {
  for (int seed = 0; seed <= adversaries; ++seed) {
    ch_configure(seed % 2 + 1, seed);
    body(seed);
  }
  ch_configure(1, 0);
}

/// Standard normal numbers times `scale`.
inline std::vector<float> normal(size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> result(n);
  for (float& x : result) x = scale * distribution(generator);
  return result;
}

template <class T>
inline T to_type(float x);
template <>
inline float to_type<float>(float x) {
  return x;
}
template <>
inline __half to_type<__half>(float x) {
  return __float2half(x);
}
template <>
inline __nv_bfloat16 to_type<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
inline double value(float x) { return x; }
inline double value(__half x) { return __half2float(x); }
inline double value(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
inline std::vector<T> convert(const std::vector<float>& from) {
  std::vector<T> result;
  for (float x : from) result.push_back(to_type<T>(x));
  return result;
}

template <class T>
inline const char* type_name();
template <>
inline const char* type_name<float>() {
  return "f32";
}
template <>
inline const char* type_name<__half>() {
  return "f16";
}
template <>
inline const char* type_name<__nv_bfloat16>() {
  return "bf16";
}

inline double activate_f64(double x, int activation) {
  if (activation == 0) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
