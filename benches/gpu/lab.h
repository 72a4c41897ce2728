// What the labs (rows_lab.cpp, gemm_lab.cpp) share: device memory, lists of launches, and their time as a CUDA graph. As the kernels'
// tests, a lab is built twice: with on_device.h it runs on a GPU; without it in the host run, which checks values and measures nothing.
#pragma once
#include "shim.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace lab {

inline bool failed = false;
inline void check(bool ok, const std::string& what) {
  if (ok) return;
  failed = true;
  printf("FAIL %s\n", what.c_str());
}

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Memory of the device, zeros at first; never freed, as a lab is a short program.
template <class T>
struct Memory {
  T* at = nullptr;
  size_t size = 0;

  Memory() = default;
  explicit Memory(size_t count) : size(count) {
#ifdef ON_DEVICE
    on_device::modules();
    on_device::must(on_device::call("cuMemAlloc_v2", &at, count * sizeof(T)), "memory of the device");
    on_device::must(on_device::call("cuMemsetD8_v2", at, (unsigned char)0, count * sizeof(T)), "zeros");
#else
    void* p = nullptr;
    if (posix_memalign(&p, 1024, std::max<size_t>(count * sizeof(T), 1))) abort();
    at = static_cast<T*>(memset(p, 0, count * sizeof(T)));
#endif
  }
  void write(const T* from, size_t count, size_t first = 0) const {
#ifdef ON_DEVICE
    on_device::must(on_device::call("cuMemcpyHtoD_v2", at + first, from, count * sizeof(T)), "a copy");
#else
    memcpy(at + first, from, count * sizeof(T));
#endif
  }
  std::vector<T> read(size_t first, size_t count) const {
    std::vector<T> values(count);
#ifdef ON_DEVICE
    on_device::must(on_device::call("cuMemcpyDtoH_v2", values.data(), at + first, count * sizeof(T)), "a copy");
#else
    memcpy(values.data(), at + first, count * sizeof(T));
#endif
    return values;
  }
  /// Repeats `pattern` through all of it.
  void fill(const std::vector<T>& pattern) const {
    write(pattern.data(), std::min(size, pattern.size()));
#ifdef ON_DEVICE
    for (size_t done = pattern.size(); done < size; done *= 2)
      on_device::must(on_device::call("cuMemcpyDtoD_v2", at + done, at, std::min(done, size - done) * sizeof(T)), "a copy");
#else
    for (size_t done = pattern.size(); done < size; done *= 2) memcpy(at + done, at, std::min(done, size - done) * sizeof(T));
#endif
  }
};

/// Uniform numbers in -1 .. 1.
inline float noise(unsigned x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  return (x & 0xffff) / 32767.5f - 1.0f;
}

// ---- launches -------------------------------------------------------------------------------------------------------

struct Launch {
  std::string kernel;
  dim3 grid, block;
  unsigned shared;
  std::vector<std::shared_ptr<void>> arguments;
};

template <class... A>
Launch launch(const std::string& kernel, dim3 grid, dim3 block, A... arguments) {
  const unsigned* shared = ch_find_constant((kernel + "_shared_bytes").c_str());
  const auto* found = ch_find(kernel.c_str());
  if (!shared || !found || ch_nparams(found) != (int)sizeof...(A)) {
    printf("FAIL no such launch: %s\n", kernel.c_str());
    exit(1);
  }
  return {kernel, grid, block, *shared, {std::static_pointer_cast<void>(std::make_shared<A>(arguments))...}};
}

#ifdef ON_DEVICE
/// CUlaunchConfig and CUlaunchAttribute of the driver.
struct LaunchAttribute {
  int id, padding;
  union {
    int on;
    char all[64];
  };
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
#endif

/// Runs launches one after the other. `early`: each may start before the one before has ended.
inline void enqueue(const std::vector<Launch>& launches, void* stream, bool early) {
  for (const Launch& one : launches) {
    std::vector<void*> parameters;
    for (const auto& argument : one.arguments) parameters.push_back(argument.get());
    const unsigned g[] = {one.grid.x, one.grid.y, one.grid.z}, b[] = {one.block.x, one.block.y, one.block.z};
#ifdef ON_DEVICE
    constexpr int programmatic_stream_serialization = 6, most_shared_bytes = 8;  // of the driver's enums
    void* const function = on_device::function(one.kernel);
    if (one.shared > 48 << 10) on_device::must(on_device::call("cuFuncSetAttribute", function, most_shared_bytes, int(one.shared)), one.kernel);
    LaunchAttribute attribute = {programmatic_stream_serialization, 0, {1}};
    const LaunchConfig config = {{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, one.shared, stream, &attribute, early};
    on_device::must(on_device::call("cuLaunchKernelEx", &config, function, parameters.data(), static_cast<void**>(nullptr)), one.kernel);
#else
    (void)stream, (void)early;
    check(ch_launch(ch_find(one.kernel.c_str()), g, b, one.shared, parameters.data()) == 0, one.kernel + ": " + ch_last_error());
#endif
  }
}

/// Runs launches and waits for them.
inline void once(const std::vector<Launch>& launches) {
  enqueue(launches, nullptr, false);
#ifdef ON_DEVICE
  on_device::must(on_device::call("cuCtxSynchronize"), launches.front().kernel);
#endif
}

/// Lists of launches, timed in turns as graphs.
class Race {
  struct Entry {
    std::string name;
    std::vector<Launch> launches;
    void* graph = nullptr;
    std::vector<double> times;
  };
  std::vector<Entry> entries;
  bool early;

 public:
  explicit Race(bool early) : early(early) {}
  void add(const std::string& name, const std::vector<Launch>& launches) { entries.push_back({name, launches}); }

  /// Runs them all `rounds` times in turns; returns each one's median in microseconds, in the order of `add`. In a host run, the time of
  /// one run there, which means nothing.
  std::vector<double> run(int rounds) {
#ifdef ON_DEVICE
    using on_device::call, on_device::must;
    void *stream = nullptr, *begin = nullptr, *end = nullptr;
    on_device::modules();
    must(call("cuStreamCreate", &stream, 1u), "a stream");
    must(call("cuEventCreate", &begin, 0u), "an event"), must(call("cuEventCreate", &end, 0u), "an event");
    for (Entry& entry : entries) {
      void* graph = nullptr;
      must(call("cuStreamBeginCapture_v2", stream, 0), "a capture");
      enqueue(entry.launches, stream, early);
      must(call("cuStreamEndCapture", stream, &graph), "a capture");
      must(call("cuGraphInstantiateWithFlags", &entry.graph, graph, 0ull), "a graph");
    }
    for (int round = -2; round < rounds; ++round)  // the first two warm up
      for (Entry& entry : entries) {
        float milliseconds = 0;
        must(call("cuEventRecord", begin, stream), "an event"), must(call("cuGraphLaunch", entry.graph, stream), entry.name);
        must(call("cuEventRecord", end, stream), "an event"), must(call("cuEventSynchronize", end), entry.name);
        must(call("cuEventElapsedTime", &milliseconds, begin, end), entry.name);
        if (round >= 0) entry.times.push_back(1e3 * milliseconds);
      }
#else
    (void)rounds, (void)early;
    for (Entry& entry : entries) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue(entry.launches, nullptr, false);
      entry.times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
#endif
    std::vector<double> medians;
    for (Entry& entry : entries) {
      std::sort(entry.times.begin(), entry.times.end());
      medians.push_back(entry.times[entry.times.size() / 2]);
    }
    return medians;
  }
};

inline int multiprocessors() {
#ifdef ON_DEVICE
  int count = 0;
  constexpr int multiprocessor_count = 16;
  on_device::modules();
  on_device::must(on_device::call("cuDeviceGetAttribute", &count, multiprocessor_count, 0), "the multiprocessors");
  return count;
#else
  return 3;
#endif
}

/// The argument after NAME, or `otherwise`.
inline std::string option(int count, char** arguments, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < count; ++i)
    if (!strcmp(arguments[i], name)) return arguments[i + 1];
  return otherwise;
}

/// A figure for benches/gpu/decide.py: `figure KEY VALUE UNIT`.
inline void figure(const std::string& key, double value, const char* unit) {
  printf("figure %s %.6g %s\n", key.c_str(), value, unit), fflush(stdout);
}

}  // namespace lab
