// Tests of the host-run driver through its C interface, with the self-test's kernels linked in.
// Argument: the libcuda.so.1 to load.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "shim/fibers.h"  // CUDA_HOST_ASAN

static int passed = 0, failed = 0;
static void check(bool ok, const std::string& what) {
  ++(ok ? passed : failed);
  if (!ok) printf("FAIL %s\n", what.c_str());
}

static void* library;
// Calls a driver function by name; all of them return a CUresult.
template <class... A>
static int cu(const char* name, A... arguments) {
  void* function = dlsym(library, name);
  if (!function) return -1;
  return reinterpret_cast<int (*)(A...)>(function)(arguments...);
}
typedef uint64_t Address;
typedef void* Handle;

static Handle module, stream;
static Handle function(const char* name) {
  Handle made = nullptr;
  check(cu("cuModuleGetFunction", &made, module, name) == 0, std::string("function ") + name);
  return made;
}
static Address device_memory(size_t bytes) {
  Address made = 0;
  check(cu("cuMemAlloc_v2", &made, bytes) == 0, "allocation");
  return made;
}
template <class... A>
static int launch(Handle kernel, unsigned grid, unsigned block, unsigned shared, Handle on, A... arguments) {
  void* params[] = {&arguments...};
  return cu("cuLaunchKernel", kernel, grid, 1u, 1u, block, 1u, 1u, shared, on, (void**)params, (void**)nullptr);
}
static std::vector<float> read(Address from, size_t count) {  // waits for everything
  std::vector<float> values(count);
  check(cu("cuCtxSynchronize") == 0, "synchronize");
  check(cu("cuMemcpyDtoH_v2", (void*)values.data(), from, count * 4) == 0, "copy to the host");
  return values;
}

static void start() {
  int version, count, major, min_priority;
  char name[64];
  check(cu("cuDeviceGetCount", &count) == 3, "before cuInit");
  check(cu("cuInit", 0u) == 0 && cu("cuDriverGetVersion", &version) == 0 && version == 13000, "init");
  check(cu("cuDeviceGetCount", &count) == 0 && count == 1, "one device");
  check(cu("cuDeviceGet", &count, 1) == 101, "no second device");
  check(cu("cuDeviceGetName", name, 64, 0) == 0 && strlen(name) > 0, "its name");
  check(cu("cuDeviceGetAttribute", &major, 75, 0) == 0 && major == 9, "compute capability");
  Address memory;
  check(cu("cuMemAlloc_v2", &memory, size_t(4)) == 201, "without a context");
  Handle context;
  check(cu("cuDevicePrimaryCtxRetain", &context, 0) == 0 && cu("cuCtxSetCurrent", context) == 0, "context");
  check(cu("cuCtxGetStreamPriorityRange", &min_priority, &count) == 0, "priorities");
  check(dlsym(library, "cuMemAllocManaged") == nullptr, "what is not in use does not exist");

  const unsigned char fatbin[16] = {0x50, 0xED, 0x55, 0xBA}, other[16] = {1, 2, 3};
  check(cu("cuModuleLoadData", &module, (const void*)other) == 200, "not an image");
  check(cu("cuModuleLoadData", &module, (const void*)fatbin) == 0, "fatbin");
  Handle text, found;
  const char* const ptx = ".version 8.0\n.target sm_80\n.visible .entry right_votes(";
  check(cu("cuModuleLoadData", &text, (const void*)ptx) == 0, "PTX");
  check(cu("cuModuleGetFunction", &found, text, "right_votes") == 0, "a function in the PTX");
  check(cu("cuModuleGetFunction", &found, text, "right_block_sum") == 500, "a function that is not in the PTX");
  check(cu("cuModuleGetFunction", &found, module, "none") == 500, "no such kernel");
  check(cu("cuModuleUnload", text) == 0, "unload");
  check(cu("cuStreamCreate", &stream, 1u) == 0, "stream");
  const char* error;
  check(cu("cuGetErrorName", 2, &error) == 0 && !strcmp(error, "CUDA_ERROR_OUT_OF_MEMORY"), "error name");
}

/// Each module has its own copy.
static void variables() {
  const unsigned char fatbin[16] = {0x50, 0xED, 0x55, 0xBA};
  Handle modules[2], kernels[2];
  Address variable, results = device_memory(8);
  size_t bytes;
  const float value = 5.0f;
  for (int i = 0; i < 2; ++i) {
    check(cu("cuModuleLoadData", &modules[i], (const void*)fatbin) == 0, "module with a variable");
    check(cu("cuModuleGetFunction", &kernels[i], modules[i], "right_variable") == 0, "its kernel");
  }
  check(cu("cuModuleGetGlobal_v2", &variable, &bytes, modules[1], "VARIABLE") == 0 && bytes == 4, "its variable");
  check(cu("cuMemcpyHtoD_v2", variable, (const void*)&value, size_t(4)) == 0, "setting it");
  for (size_t i = 0; i < 2; ++i) check(launch(kernels[i], 1, 64, 0, stream, results + 4 * i) == 0, "its launch");
  check(read(results, 2) == std::vector<float>{3.0f, 5.0f}, "its values");
  for (const Handle made : modules) cu("cuModuleUnload", made);
  cu("cuMemFree_v2", results);
}

static void memory() {
  size_t free_before, free_after, total;
  cu("cuMemGetInfo_v2", &free_before, &total);
  check(total == 64 << 20 && free_before == total, "memory info");
  Address a = device_memory(60 << 20), b;
  check(cu("cuMemAlloc_v2", &b, size_t(5 << 20)) == 2, "out of memory");
  // A free on a stream has not run yet; the next allocation that needs its memory runs it.
  check(cu("cuMemFreeAsync", a, stream) == 0 && cu("cuMemFreeAsync", a, stream) == 1, "freed once");
  check(cu("cuMemAllocAsync", &b, size_t(40 << 20), stream) == 0, "allocation after a free");
  check(cu("cuMemFree_v2", b) == 0, "free");
  cu("cuMemGetInfo_v2", &free_after, &total);
  check(free_after == free_before, "all free again");

  a = device_memory(256);
  check(std::isnan(read(a, 64)[63]), "fresh memory is poisoned");
  const std::vector<char> host(132);
  check(cu("cuMemcpyHtoD_v2", a + 128, (const void*)host.data(), size_t(132)) == 1, "copy beyond the end");
  check(cu("cuMemsetD8Async", a, (unsigned char)0, size_t(257), stream) == 1, "fill beyond the end");
  check(cu("cuMemsetD32Async", a, 0x3F800000u, size_t(64), stream) == 0 && read(a, 64)[63] == 1.0f, "fill");
  check(cu("cuMemFree_v2", a) == 0 && cu("cuMemFree_v2", a) == 1, "double free");
}

static void late_streams() {
  const Address a = device_memory(256), b = device_memory(256);
  float *pinned, pageable[64];
  check(cu("cuMemHostAlloc", (void**)&pinned, size_t(256), 0u) == 0, "pinned memory");
  for (int i = 0; i < 64; ++i) pinned[i] = pageable[i] = float(i);

  cu("cuMemcpyHtoDAsync_v2", a, (const void*)pageable, size_t(256), stream);
  pageable[5] = -1.0f;  // it was staged
  cu("cuMemcpyDtoHAsync_v2", (void*)pinned, a, size_t(256), stream);
  pinned[5] = 77.0f;
  Handle event, other;
  cu("cuEventCreate", &event, 0u);
  cu("cuEventRecord", event, stream);
  check(pinned[5] == 77.0f, "a pinned copy is not over at once");
  check(cu("cuEventQuery", event) == 600, "not ready");
  cu("cuStreamCreate", &other, 1u);
  cu("cuStreamWaitEvent", other, event, 0u);
  cu("cuMemcpyDtoDAsync_v2", b, a, size_t(256), other);
  check(cu("cuStreamSynchronize", other) == 0 && pinned[5] == 5.0f, "waited across streams");
  check(cu("cuEventSynchronize", event) == 0 && cu("cuEventQuery", event) == 0, "event done");
  check(read(b, 64)[5] == 5.0f, "copied across streams");

  // The default stream does not wait for a non-blocking one.
  cu("cuMemsetD8Async", a, (unsigned char)0, size_t(256), stream);
  cu("cuMemcpyDtoH_v2", (void*)pageable, a, size_t(256));
  check(pageable[5] == 5.0f, "a copy on the default stream is not ordered after a non-blocking stream");
  check(cu("cuStreamQuery", stream) == 600 && cu("cuStreamQuery", stream) == 0, "polling comes to an end");
  // A copy to pageable memory waits.
  cu("cuMemcpyDtoHAsync_v2", (void*)pageable, a, size_t(256), stream);
  check(pageable[5] == 0.0f, "pageable copy");

  Handle second;
  float milliseconds = -1.0f;
  cu("cuEventCreate", &second, 0u);
  cu("cuEventRecord", second, stream);
  check(cu("cuEventElapsedTime_v2", &milliseconds, event, second) == 600, "time of an unfinished event");
  cu("cuCtxSynchronize");
  check(cu("cuEventElapsedTime_v2", &milliseconds, event, second) == 0 && milliseconds > 0.0f, "elapsed time");
  check(cu("cuEventDestroy_v2", event) == 0 && cu("cuEventDestroy_v2", event) == 400, "event destroyed once");
  check(cu("cuStreamDestroy_v2", other) == 0 && cu("cuStreamSynchronize", other) == 400, "stream destroyed");
  check(cu("cuMemFreeHost", (void*)pinned) == 0 && cu("cuMemFree_v2", a) == 0 && cu("cuMemFree_v2", b) == 0, "freed");
}

static void launches() {
  const Handle sum = function("right_block_sum"), pipeline = function("right_pipeline");
  const Address in = device_memory(512), out = device_memory(256);
  check(launch(sum, 3, 64, 0, stream, out) == 0 && read(out, 3)[2] == 2144.0f, "launch");
  check(launch(sum, 3, 1025, 0, stream, out) == 1, "too large a block");
  check(launch(pipeline, 1, 64, 49153, stream, in, out, 1) == 1, "48 KB without opt-in");
  int limit;
  check(cu("cuFuncSetAttribute", pipeline, 8, 100 << 10) == 0, "opt-in");
  check(cu("cuFuncSetAttribute", pipeline, 8, 228 << 10) == 1, "opt-in beyond the limit");
  check(cu("cuFuncGetAttribute", &limit, 8, pipeline) == 0 && limit == 100 << 10, "the opt-in is kept");
  check(launch(pipeline, 1, 64, 49153, stream, in, out, 1) == 0, "48 KB with opt-in");
  size_t offset, size;
  check(cu("cuFuncGetParamInfo", pipeline, size_t(2), &offset, &size) == 0 && offset == 16 && size == 4, "parameters");
  check(cu("cuFuncGetParamInfo", pipeline, size_t(3), &offset, &size) == 1, "three of them");
  cu("cuCtxSynchronize");
  cu("cuMemFree_v2", in), cu("cuMemFree_v2", out);
}

static void graphs() {
  const Handle pipeline = function("right_pipeline");
  const Address in = device_memory(512), out = device_memory(256);
  std::vector<float> host(128, 1.0f);
  float* pinned;
  cu("cuMemHostAlloc", (void**)&pinned, size_t(256), 0u);
  cu("cuMemcpyHtoD_v2", in, (const void*)host.data(), size_t(512));
  Handle graph, program, before, other;
  int status;
  size_t nodes;
  cu("cuEventCreate", &before, 0u);
  cu("cuEventRecord", before, stream);
  check(cu("cuStreamBeginCapture_v2", Handle(nullptr), 1) == 900, "capture of the default stream");

  // Calls forbidden during a capture invalidate it.
  Address memory;
  const char* const why[] = {"synchronize", "allocate", "outside event"};
  for (int i = 0; i < 3; ++i) {
    check(cu("cuStreamBeginCapture_v2", stream, 1) == 0, "capture begins");
    const int refused = i == 0   ? cu("cuStreamSynchronize", stream)
                        : i == 1 ? cu("cuMemAlloc_v2", &memory, size_t(4))
                                 : cu("cuStreamWaitEvent", stream, before, 0u);
    check(refused == (i == 2 ? 905 : 900), why[i]);
    check(cu("cuStreamIsCapturing", stream, &status) == 0 && status == 2, why[i]);
    check(cu("cuStreamEndCapture", stream, &graph) == 901 && !graph, why[i]);
  }
  cu("cuCtxSynchronize");

  // Fill, launch, copy; part of it on a second stream that is joined.
  cu("cuStreamCreate", &other, 1u);
  Handle fork, join;
  cu("cuEventCreate", &fork, 2u), cu("cuEventCreate", &join, 2u);
  check(cu("cuStreamBeginCapture_v2", stream, 1) == 0, "capture begins");
  cu("cuMemsetD8Async", out, (unsigned char)0, size_t(256), stream);
  {
    int rounds = 2;
    check(launch(pipeline, 1, 64, 512, stream, in, out, rounds) == 0, "captured launch");
    rounds = 100;  // the graph has its own copy
  }
  cu("cuEventRecord", fork, stream);
  check(cu("cuStreamWaitEvent", other, fork, 0u) == 0, "fork");
  cu("cuMemcpyDtoHAsync_v2", (void*)pinned, out, size_t(256), other);
  cu("cuEventRecord", join, other);
  check(cu("cuEventQuery", join) == 907, "a captured event cannot be asked");
  check(cu("cuStreamWaitEvent", stream, join, 0u) == 0, "join");
  check(cu("cuStreamEndCapture", stream, &graph) == 0, "capture ends");
  check(cu("cuStreamIsCapturing", other, &status) == 0 && status == 0, "the other stream's capture ends too");
  check(cu("cuGraphGetNodes", graph, (void**)nullptr, &nodes) == 0 && nodes == 3, "three nodes");
  check(std::isnan(read(out, 64)[0]), "nothing ran while capturing");
  check(cu("cuGraphInstantiateWithFlags", &program, graph, 0ull) == 0, "instantiate");
  check(cu("cuGraphDestroy", graph) == 0, "the program outlives its graph");
  for (int replay = 1; replay <= 3; ++replay) {
    for (float& v : host) v = float(replay);
    cu("cuMemcpyHtoDAsync_v2", in, (const void*)host.data(), size_t(512), stream);
    check(cu("cuGraphLaunch", program, stream) == 0 && cu("cuStreamSynchronize", stream) == 0, "replay");
    check(pinned[0] == 2.0f * float(replay), "a replay works on what the memory holds now");
  }
  check(cu("cuGraphExecDestroy", program) == 0 && cu("cuGraphLaunch", program, stream) == 400, "destroyed");

  // A fork runs as late as possible, which exposes writes that overwrite its source too early.
  for (const bool joined_first : {true, false}) {
    cu("cuMemsetD8Async", out, (unsigned char)0, size_t(256), stream);
    check(cu("cuStreamBeginCapture_v2", stream, 1) == 0, "capture begins");
    cu("cuEventRecord", fork, stream), cu("cuStreamWaitEvent", other, fork, 0u);
    cu("cuMemcpyDtoHAsync_v2", (void*)pinned, out, size_t(256), other);
    cu("cuEventRecord", join, other);
    if (joined_first) cu("cuStreamWaitEvent", stream, join, 0u);
    cu("cuMemsetD8Async", out, (unsigned char)0xFF, size_t(256), stream);
    if (!joined_first) cu("cuStreamWaitEvent", stream, join, 0u), cu("cuMemsetD8Async", in, (unsigned char)0, size_t(4), stream);
    check(cu("cuStreamEndCapture", stream, &graph) == 0, "capture ends");
    check(cu("cuGraphInstantiateWithFlags", &program, graph, 0ull) == 0, "instantiate");
    check(cu("cuGraphLaunch", program, stream) == 0 && cu("cuStreamSynchronize", stream) == 0, "replay");
    check(joined_first ? pinned[0] == 0.0f : std::isnan(pinned[0]), "a fork runs late");
    cu("cuGraphDestroy", graph), cu("cuGraphExecDestroy", program);
  }

  check(cu("cuStreamBeginCapture_v2", stream, 1) == 0, "capture begins");
  cu("cuEventRecord", fork, stream), cu("cuStreamWaitEvent", other, fork, 0u);
  cu("cuMemsetD8Async", out, (unsigned char)0, size_t(256), other);
  check(cu("cuStreamEndCapture", stream, &graph) == 904, "a fork that was not joined");
  cu("cuMemFreeHost", (void*)pinned);
}

// Kernels that start before the preceding ones have ended, in a chain: 7 steps from 0. Returns the blocks' sums.
static std::vector<float> early_steps(bool captured, int too_soon, bool early) {
  const Handle step = function("right_step");
  const Address a = device_memory(768), b = device_memory(768);
  Handle graph, program;
  for (const Address buffer : {a, b}) cu("cuMemsetD8Async", buffer, (unsigned char)0, size_t(768), stream);
  if (captured) check(cu("cuStreamBeginCapture_v2", stream, 1) == 0, "capture begins");
  for (int i = 0; i < 7; ++i) {
    Address from = i % 2 ? b : a, to = i % 2 ? a : b;
    void* params[] = {&from, &to, &too_soon};
    struct {
      int id, pad, on, rest[15];
    } attribute = {6, 0, early, {}};
    struct {
      unsigned sizes[7];
      Handle on;
      void* attributes;
      unsigned count;
    } config = {{3, 1, 1, 64, 1, 1, 0}, stream, &attribute, 1};
    check(cu("cuLaunchKernelEx", &config, step, (void**)params, (void**)nullptr) == 0, "a launch that may start early");
  }
  if (captured) {
    cu("cuStreamEndCapture", stream, &graph), cu("cuGraphInstantiateWithFlags", &program, graph, 0ull);
    cu("cuGraphLaunch", program, stream);
  }
  const std::vector<float> all = read(b, 192);
  return {all[0], all[64 + 31], all[191]};
}

static void early_kernels() {
  for (const bool captured : {false, true}) {
    check(early_steps(captured, 0, true) == std::vector<float>{7, 7, 7}, "a kernel that waits sees what was before it");
    check(early_steps(captured, 1, false) == std::vector<float>{7, 7, 7}, "and so does one that may not start early");
    const std::vector<float> stale = early_steps(captured, 1, true);
    check(stale[0] < 7 && stale[1] == 7 && stale[2] < 7, "what is read too soon is old");
  }
}

static void faults() {
  const Address out = device_memory(256);
  const Handle early = function("wrong_early_exit"), overrun = function("wrong_global_overrun");
  check(launch(early, 1, 64, 256, stream, out) == 0, "a launch tells nothing yet");
  check(cu("cuStreamSynchronize", stream) == 719, "the wait tells of the fault");
  Address memory;
  check(cu("cuMemAlloc_v2", &memory, size_t(4)) == 719, "and so does every later call");
  check(cu("cuDevicePrimaryCtxRelease_v2", 0) == 0, "release");
  Handle context;
  check(cu("cuDevicePrimaryCtxRetain", &context, 0) == 0, "a new context");
  if (CUDA_HOST_ASAN) return;  // the sanitizer would end the process
  const Address fresh = device_memory(256);
  check(launch(overrun, 1, 64, 0, nullptr, fresh) == 0, "launch");
  check(cu("cuCtxSynchronize") == 719, "a write beyond an allocation");
}

int main(int, char** argv) {
  setenv("UQAC_HOST_CUDA_MEMORY", "64M", 1);
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  check(dlopen("libcuda.so", RTLD_NOW) == library, "once loaded, a loader finds it by its first name");
  start();
  memory();
  variables();
  late_streams();
  launches();
  graphs();
  early_kernels();
  faults();
  const auto calls = reinterpret_cast<uint64_t (*)(const char*)>(dlsym(library, "ch_driver_calls"));
  check(calls && calls("cuGraphLaunch") == 9, "calls are counted");
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
