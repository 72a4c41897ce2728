// Shared by the tests of the attention kernels: device buffers, launches by name, caches with random contents, and
// attention in float64 and, naively, in float32. A test includes this, then its .cu files.
#pragma once
#include "shim.h"

#include "softmax_state.cuh"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

inline int checks = 0, failures = 0;

inline bool check(bool ok, const std::string& what) {
  ++checks;
  if (!ok && ++failures <= 20) printf("FAIL %s\n", what.c_str());
  if (!ok && ch_first_failure_ends()) exit(1);
  return ok;
}

inline int report(const char* name) {
  check(ch_bank_conflicts() == 0, std::to_string(ch_bank_conflicts()) + " bank conflicts of ldmatrix");
  printf("%s: %d checks, %d failed\n", name, checks, failures);
  return failures != 0;
}

/// Device memory: aligned to 256 bytes, exactly as long as requested, filled with NaN (as float) or -1 (as int).
template <class T>
class Device {
 public:
  explicit Device(size_t size) : size_(size) {
    void* p = nullptr;
    if (posix_memalign(&p, 256, std::max<size_t>(size * sizeof(T), 1))) abort();
    data_.reset(static_cast<T*>(p));
    poison();
  }
  Device(const std::vector<T>& from) : Device(from.size()) { std::copy(from.begin(), from.end(), get()); }
  void poison() const { memset((void*)data_.get(), 0xff, size_ * sizeof(T)); }
  T* get() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { free((void*)p); }
  };
  size_t size_;
  std::unique_ptr<T, Free> data_;
};

template <class T>
bool same_bits(const Device<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && !memcmp(a.get(), b.data(), b.size() * sizeof(T));
}
template <class T>
std::vector<T> copy(const Device<T>& a) {
  return std::vector<T>(a.get(), a.get() + a.size());
}

/// A checked kernel launch: `how` is called with the kernel, its grid, block and parameters.
template <class How, class... A>
bool launch_as(const How& how, const std::string& name, dim3 grid, dim3 block, A... arguments) {
  const auto* kernel = ch_find(name.c_str());
  if (!kernel) return check(false, "no kernel " + name);
  if (ch_nparams(kernel) != (int)sizeof...(A)) return check(false, name + ": wrong number of arguments");
  void* params[] = {(void*)&arguments...};
  const int sizes[] = {(int)sizeof(arguments)...};
  for (int i = 0; i < (int)sizeof...(A); ++i)
    if (ch_param_size(kernel, i) != sizes[i])
      return check(false, name + ": wrong type of argument " + std::to_string(i));
  const unsigned g[] = {grid.x, grid.y, grid.z}, b[] = {block.x, block.y, block.z};
  const int code = how(kernel, g, b, params);
  return check(code == 0, name + ": " + (code ? ch_last_error() : ""));
}

template <class... A>
bool launch(const std::string& name, dim3 grid, dim3 block, unsigned shared, A... arguments) {
  const auto how = [&](auto* kernel, auto* g, auto* b, void** params) { return ch_launch(kernel, g, b, shared, params); };
  return launch_as(how, name, grid, block, arguments...);
}

/// Launches a kernel that starts early: `before` runs while its first and last blocks wait for the preceding kernels.
template <class Before, class... A>
bool launch_early(const Before& before, const std::string& name, dim3 grid, dim3 block, unsigned shared, A... arguments) {
  const auto how = [&](auto* kernel, auto* g, auto* b, void** params) {
    ch_early* const begun = ch_begin_early(kernel, g, b, shared, params);
    before();
    return ch_finish(begun);
  };
  return launch_as(how, name, grid, block, arguments...);
}

/// Elements of a cache type as bytes.
enum Type { F32, F16, BF16 };
inline const char* type_name(Type type) { return type == F32 ? "f32" : type == F16 ? "f16" : "bf16"; }
inline size_t type_size(Type type) { return type == F32 ? 4 : 2; }

/// A tensor in a cache type; unwritten elements are NaN. With `halves`, f32 elements are Halves, this many per position.
class Tensor {
 public:
  Tensor(Type type, size_t size, size_t halves = 0)
      : type(type), halves(type == F32 ? halves : 0), bytes(size * type_size(type)) {}
  void set(size_t i, float x) {
    if (halves) return split_halves(x, half(i, 0), half(i, 1));
    if (type == F32) reinterpret_cast<float*>(bytes.get())[i] = x;
    if (type == F16) reinterpret_cast<__half*>(bytes.get())[i] = from_f32<__half>(x);
    if (type == BF16) reinterpret_cast<__nv_bfloat16*>(bytes.get())[i] = from_f32<__nv_bfloat16>(x);
  }
  float at(size_t i) const {
    if (halves) return to_f32(half(i, 0)) + to_f32(half(i, 1));
    if (type == F32) return reinterpret_cast<float*>(bytes.get())[i];
    if (type == F16) return to_f32(reinterpret_cast<__half*>(bytes.get())[i]);
    return to_f32(reinterpret_cast<__nv_bfloat16*>(bytes.get())[i]);
  }
  Type type;
  size_t halves;
  Device<unsigned char> bytes;

 private:
  __half& half(size_t i, int part) const {
    return reinterpret_cast<__half*>(bytes.get())[(2 * (i / halves) + part) * halves + i % halves];
  }
};

struct Shape {
  int layers, layer, heads, kv_heads, head_dim, window;
  float softcap;
  int group() const { return heads / kv_heads; }
};

/// The cache of one sequence with `length` random positions, followed by NaN.
struct Cache {
  Cache(const Shape& shape, Type k_type, Type v_type, int length, unsigned seed, float spread = 1.f)
      : shape(shape),
        capacity((length + 63) / 64 * 64 + 64),
        length(length),
        k(k_type, (size_t)shape.layers * shape.kv_heads * capacity * shape.head_dim, shape.head_dim),
        v(v_type, (size_t)shape.layers * shape.kv_heads * capacity * shape.head_dim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int layer = 0; layer < shape.layers; ++layer)
      for (int head = 0; head < shape.kv_heads; ++head)
        for (int t = 0; t < length; ++t)
          for (int d = 0; d < shape.head_dim; ++d) {
            k.set(index(layer, head, t, d), spread * normal(random));
            v.set(index(layer, head, t, d), normal(random));
          }
  }
  size_t index(int layer, int head, int t, int d) const {
    return (((size_t)layer * shape.kv_heads + head) * capacity + t) * shape.head_dim + d;
  }
  SequenceView view(int first_traced_row) const {
    SequenceView view = {};
    view.k = k.bytes.get();
    view.v = v.bytes.get();
    view.capacity = capacity;
    view.first_traced_row = first_traced_row;
    return view;
  }
  Shape shape;
  unsigned capacity;
  int length;
  Tensor k, v;
};

inline double weight_of(int row, int t) {
  static const float gamma[] = {0.16644488f, 0.20938152f, 0.32959151f, 0.46061748f, 0.59304059f,
                                0.67549127f, 0.73914525f, 0.81274293f, 0.87378443f, 0.93925344f};
  if (t == 0 || t >= row) return 0;
  return row - t <= 10 ? gamma[row - t - 1] : 1;
}

/// Attention of one row and head in precision F, by definition: every sum in order, every alpha' computed separately.
template <class F>
struct Naive {
  std::vector<F> out, alpha;                               // [head_dim], [position + 1]: alpha'
  F lse = 0, weighted_lse = 0, max_weighted, entropy = 0;  // ln Z + m, ln Z' + m', m', H

  Naive(const Cache& cache, const Shape& shape, int head, int position, const float* query) {
    const int kv = head / shape.group(), d = shape.head_dim;
    const int first = shape.window > 0 ? std::max(0, position + 1 - shape.window) : 0;
    std::vector<F> s(position + 1);
    F m = -INFINITY;
    max_weighted = -INFINITY;
    for (int t = first; t <= position; ++t) {
      F x = 0;
      for (int i = 0; i < d; ++i) x += (F)query[i] * (F)cache.k.at(cache.index(shape.layer, kv, t, i));
      if (shape.softcap > 0) x = (F)shape.softcap * std::tanh(x / (F)shape.softcap);
      s[t] = x;
      m = std::max(m, x);
      if (weight_of(position, t) > 0) max_weighted = std::max(max_weighted, x);
    }
    F z = 0, zw = 0;
    out.assign(d, 0);
    alpha.assign(position + 1, 0);
    for (int t = first; t <= position; ++t) {
      const F e = std::exp(s[t] - m), w = (F)weight_of(position, t);
      z += e;
      for (int i = 0; i < d; ++i) out[i] += e * (F)cache.v.at(cache.index(shape.layer, kv, t, i));
      if (w > 0) zw += alpha[t] = w * std::exp(s[t] - max_weighted);
    }
    for (F& x : out) x /= z;
    lse = m + std::log(z);
    if (!(zw > 0)) {
      entropy = INFINITY;
      return;
    }
    weighted_lse = max_weighted + std::log(zw);
    for (F& x : alpha) {
      x /= zw;
      if (x > 0) entropy -= x * std::log(x);
    }
  }
};

/// Fills a long context of one head such that nothing cancels: positive values, and equal weights that require more than
/// one 16-bit term, except for position 0, which has the maximum. The query must have a one in dimension 0.
inline void fill_long(Cache& cache) {
  const Shape& shape = cache.shape;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> between(0.5f, 1.0f);
  for (int t = 0; t < cache.length; ++t)
    for (int d = 0; d < shape.head_dim; ++d) {
      cache.k.set(cache.index(shape.layer, 0, t, d), d == 0 && t > 0 ? -0.3f : 0.0f);
      cache.v.set(cache.index(shape.layer, 0, t, d), between(random));
    }
}

/// The relative error of the sums of weights times values over such a cache: computed from out Z, which excludes Z's own
/// error.
inline double error_of_long(const Cache& cache, const float* out, const HeadState& state) {
  const Shape& shape = cache.shape;
  double worst = 0;
  for (int d = 0; d < shape.head_dim; ++d) {
    double sum = 0;
    for (int t = 0; t < cache.length; ++t)
      sum += std::exp((double)cache.k.at(cache.index(shape.layer, 0, t, 0))) *
             cache.v.at(cache.index(shape.layer, 0, t, d));
    const double error = std::fabs((double)out[d] * state.z / sum - 1);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

/// Maximum errors of the kernel and of the naive float32 version relative to float64.
struct Errors {
  double kernel = 0, naive = 0;
  void add(double got, double naive_value, double exact) {
    const double e = std::fabs(got - exact);
    kernel = std::isnan(e) ? INFINITY : std::max(kernel, e);
    naive = std::max(naive, std::fabs(naive_value - exact));
  }
  /// The rule: at most twice the naive error, plus a few roundings of a value of size `scale`, plus `derived`, an
  /// additional bound derived by the caller.
  bool within(double scale, double derived = 0) const { return kernel <= 2 * naive + 4 * scale / (1 << 24) + derived; }
  std::string text() const {
    return " error " + std::to_string(kernel * 1e7) + "e-7, naive " + std::to_string(naive * 1e7) + "e-7";
  }
};
