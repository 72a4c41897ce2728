// The kernels' own tests on a GPU. `g++ -include on_device.h tests/cuda_kernels/NAME.cpp` builds a program that
// computes its references on the CPU as before, but launches the kernels from the fatbins in the folder passed as its
// argument, through the installed driver. The tests' device memory is page-locked host memory, which a GPU reads and
// writes in place: slow, but sufficient for tests.
#pragma once
#include "shim/main.cpp"  // here, because ch_launch is another one below

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace on_device {
using Status = int;

[[noreturn]] inline void give_up(const std::string& why) {
  printf("FAIL %s\n", why.c_str());
  exit(1);
}

inline void* symbol(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) give_up(std::string("no CUDA driver: ") + dlerror());
  return found;
}

/// Calls the driver function of this name.
template <class... A>
Status call(const char* name, A... arguments) {
  return reinterpret_cast<Status (*)(A...)>(symbol(name))(arguments...);
}

inline std::string error_name(Status status) {
  const char* name = nullptr;
  call("cuGetErrorName", status, &name);
  return name ? name : "error " + std::to_string(status);
}

inline void must(Status status, const std::string& what) {
  if (status) give_up(what + ": " + error_name(status));
}

/// The folder with the fatbins: the program's argument.
inline std::string fatbins() {
  FILE* const file = fopen("/proc/self/cmdline", "r");
  std::string words(4096, '\0');
  words.resize(file ? fread(words.data(), 1, words.size(), file) : 0);
  if (file) fclose(file);
  const std::string folder = words.substr(std::min(words.size(), words.find('\0') + 1)).c_str();
  if (folder.empty()) give_up("expected the folder of the fatbins as the argument");
  return folder;
}

/// The device's modules, loaded on first use.
inline const std::vector<void*>& modules() {
  static const std::vector<void*> loaded = [] {
    int device = 0;
    void* context = nullptr;
    must(call("cuInit", 0u), "cuInit");
    must(call("cuDeviceGet", &device, 0), "cuDeviceGet");
    must(call("cuDevicePrimaryCtxRetain", &context, device), "cuDevicePrimaryCtxRetain");
    must(call("cuCtxSetCurrent", context), "cuCtxSetCurrent");
    std::vector<void*> all;
    for (const auto& entry : std::filesystem::directory_iterator(fatbins())) {
      if (entry.path().extension() != ".fatbin") continue;
      must(call("cuModuleLoad", &all.emplace_back(), entry.path().c_str()), entry.path());
    }
    if (all.empty()) give_up("no fatbins in " + fatbins());
    return all;
  }();
  return loaded;
}

/// The kernel of this name.
inline void* function(const std::string& name) {
  static std::map<std::string, void*> known;
  void*& found = known[name];
  for (void* module : modules())
    if (!found && call("cuModuleGetFunction", &found, module, name.c_str())) found = nullptr;
  if (!found) give_up("no kernel " + name + " in the fatbins");
  return found;
}

inline std::string last_error;

/// Replaces ch_launch: launches and waits.
inline int launch(const ch_kernel* kernel, const unsigned* grid, const unsigned* block, unsigned shared, void** params) {
  constexpr int most_shared_bytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  void* const f = function(kernel->name);
  Status status = shared > 48 << 10 ? call("cuFuncSetAttribute", f, most_shared_bytes, int(shared)) : 0;
  if (!status) {
    void* const none = nullptr;
    status = call("cuLaunchKernel", f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, none, params,
                  static_cast<void**>(none));
  }
  if (!status) status = call("cuCtxSynchronize");
  last_error = status ? error_name(status) : "";
  return status != 0;
}

inline const char* error() { return last_error.c_str(); }

/// Replaces ch_begin_early and ch_finish: launches after the work that the test does between them.
struct Early {
  const ch_kernel* kernel;
  const unsigned *grid, *block;
  unsigned shared;
  void** params;
};
inline ch_early* begin_early(const ch_kernel* kernel, const unsigned* grid, const unsigned* block, unsigned shared, void** params) {
  return reinterpret_cast<ch_early*>(new Early{kernel, grid, block, shared, params});
}
inline int finish_early(ch_early* begun) {
  const std::unique_ptr<Early> early(reinterpret_cast<Early*>(begun));
  return launch(early->kernel, early->grid, early->block, early->shared, early->params);
}

/// Replaces ch_has_clusters: true for compute capability 9.0 only, not for older or newer ones.
inline bool has_clusters() {
  constexpr int major = 75, minor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  modules();
  int capability[2] = {};
  must(call("cuDeviceGetAttribute", &capability[0], major, 0), "the compute capability");
  must(call("cuDeviceGetAttribute", &capability[1], minor, 0), "the compute capability");
  return capability[0] == 9 && capability[1] == 0;
}

/// Replaces ch_encode_tensor_map.
inline bool encode_tensor_map(void* map, const void* matrix, uint64_t width, uint64_t rows, uint64_t stride, unsigned tile_width,
                              unsigned tile_rows) {
  constexpr int f16 = 6, rows_of_128_bytes = 3, promote_to_128_bytes = 2;  // of CUtensorMap's enums
  alignas(64) unsigned char made[128];
  const uint64_t sizes[2] = {width, rows}, strides[1] = {stride};
  const unsigned tile[2] = {tile_width, tile_rows}, steps[2] = {1, 1};
  const Status status = call("cuTensorMapEncodeTiled", static_cast<void*>(made), f16, 2u, const_cast<void*>(matrix),
                             static_cast<const uint64_t*>(sizes), static_cast<const uint64_t*>(strides),
                             static_cast<const unsigned*>(tile), static_cast<const unsigned*>(steps), 0, rows_of_128_bytes,
                             promote_to_128_bytes, 0);
  memcpy(map, made, sizeof made);
  return status == 0;
}

/// Replaces posix_memalign: whole pages that the device can use at the same address.
inline int allocate(void** memory, size_t, size_t bytes) {
  modules();
  constexpr unsigned portable_and_mapped = 3;
  return call("cuMemHostAlloc", memory, bytes, portable_and_mapped);
}
inline void release(void* memory) { call("cuMemFreeHost", memory); }
}  // namespace on_device

#define ch_launch on_device::launch
#define ch_begin_early on_device::begin_early
#define ch_finish on_device::finish_early
#define ch_last_error on_device::error
#define ch_has_clusters on_device::has_clusters
#define ch_encode_tensor_map on_device::encode_tensor_map
#define ON_DEVICE 1
#define posix_memalign on_device::allocate
#define free on_device::release
