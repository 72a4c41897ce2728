// Start-up, the single device, its context, error names.
#include <pthread.h>

#include "driver.h"

namespace driver {
namespace {
std::recursive_mutex mutex;
std::map<std::string, uint64_t> counts;
bool initialized = false;
Result fault = SUCCESS;
int context_references = 0;
char context;  // its address is the handle

// Not thread_local: the shim overwrites this library's thread-local memory, where the kernels' __shared__
// variables live.
pthread_key_t current_key() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, nullptr);
    return made;
  }();
  return key;
}
}  // namespace

Result call(const char* name, const std::function<Result()>& body) {
  std::lock_guard<std::recursive_mutex> hold(mutex);
  ++counts[name];
  if (!initialized && strcmp(name, "cuInit") != 0) return NOT_INITIALIZED;
  return body();
}

Result call_in_context(const char* name, const std::function<Result()>& body) {
  return call(name, [&] {
    if (!current_context() || !context_references) return Result(INVALID_CONTEXT);
    if (fault) return fault;
    const Result result = body();
    return fault ? fault : result;
  });
}

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  char* unit;
  const uint64_t number = strtoull(text, &unit, 10);
  const int shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0;
  return number << shift;
}

void set_initialized() { initialized = true; }
void* current_context() { return pthread_getspecific(current_key()); }
void set_fault(Result f) {
  if (!fault) fault = f;
}
}  // namespace driver

using namespace driver;

// Number of times a call was made, for tests (e.g. of the number of synchronizations).
extern "C" __attribute__((visibility("default"))) uint64_t ch_driver_calls(const char* name) {
  std::lock_guard<std::recursive_mutex> hold(driver::mutex);
  return counts[name];
}

CUDA_CALL cuInit(unsigned flags) {
  return call(__func__, [&] {
    set_initialized();
    return flags ? INVALID_VALUE : SUCCESS;
  });
}
CUDA_CALL cuDriverGetVersion(int* version) {
  *version = 13000;
  return SUCCESS;
}
// NVRTC's lookup of its own cache. There is none here; without the call it crashes.
CUDA_CALL cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return NOT_FOUND;
}
CUDA_CALL cuDeviceGetCount(int* count) {
  return call(__func__, [&] { return *count = 1, SUCCESS; });
}
CUDA_CALL cuDeviceGet(int* device, int ordinal) {
  return call(__func__, [&] { return *device = ordinal, ordinal == 0 ? SUCCESS : INVALID_DEVICE; });
}
CUDA_CALL cuDeviceGetName(char* name, int bytes, int) {
  return call(__func__, [&] { return snprintf(name, size_t(bytes), "CPU behind the CUDA driver API"), SUCCESS; });
}
CUDA_CALL cuDeviceGetUuid_v2(unsigned char* uuid, int) {
  return call(__func__, [&] { return memset(uuid, 0x11, 16), SUCCESS; });
}
CUDA_CALL cuDeviceTotalMem_v2(size_t* bytes, int) {
  return call(__func__, [&] { return *bytes = number_from_environment("UQAC_HOST_CUDA_MEMORY", 8ull << 30), SUCCESS; });
}

// The attribute numbers are those of CUdevice_attribute; sizes, clocks and bus as on an H200.
static int device_attribute(int attribute) {
  const char* capability = getenv("UQAC_HOST_CUDA_CAPABILITY");
  if (!capability || !strchr(capability, '.')) capability = "9.0";
  switch (attribute) {
    case 1: case 2: case 3: return 1024;  // threads of a block; x; y
    case 4: return 64;                    // z
    case 5: return 0x7FFFFFFF;            // grid x
    case 6: case 7: return 65535;         // y, z
    case 8: return 48 << 10;              // shared memory of a block without opt-in
    case 9: return 64 << 10;              // constant memory
    case 10: return 32;                   // warp
    case 12: case 82: return 65536;       // registers of a block, of a multiprocessor
    case 13: return 1980000;              // clock, kHz
    case 16: return int(number_from_environment("UQAC_HOST_CUDA_SMS", 4));
    case 36: return 3201000;              // memory clock, kHz
    case 37: return 6144;                 // bus, bits
    case 38: return 50 << 20;             // L2 cache
    case 39: return 2048;                 // threads of a multiprocessor
    case 40: return 3;                    // copy engines
    case 31: case 41: return 1;           // concurrent kernels, unified addresses
    case 75: return atoi(capability);
    case 76: return atoi(strchr(capability, '.') + 1);
    case 81: return 228 << 10;            // shared memory of a multiprocessor
    case 97: return int(shared_with_opt_in());  // of a block
    case 102: return int(number_from_environment("UQAC_HOST_CUDA_MAPPING", 1));  // mapped memory
    case 106: return 32;                  // blocks of a multiprocessor
    case 111: return 1 << 10;             // shared memory per block reserved by the system
    case 115: return 1;                   // memory pools
    default: return 0;
  }
}
bool driver::has_clusters() { return device_attribute(75) == 9 && device_attribute(76) == 0; }
CUDA_CALL cuDeviceGetAttribute(int* value, int attribute, int) {
  return call(__func__, [&] { return *value = device_attribute(attribute), SUCCESS; });
}

CUDA_CALL cuDevicePrimaryCtxRetain(void** ctx, int) {
  return call(__func__, [&] { return ++context_references, *ctx = &context, SUCCESS; });
}
CUDA_CALL cuDevicePrimaryCtxRelease_v2(int) {
  return call(__func__, [&] {
    if (!context_references) return INVALID_CONTEXT;
    if (--context_references) return SUCCESS;
    if (!fault) run_everything();
    forget_streams();
    forget_memory();
    fault = SUCCESS;
    return SUCCESS;
  });
}
CUDA_CALL cuCtxSetCurrent(void* ctx) {
  return call(__func__, [&] {
    if (ctx && ctx != &context) return INVALID_CONTEXT;
    pthread_setspecific(current_key(), ctx);
    return SUCCESS;
  });
}
CUDA_CALL cuCtxGetCurrent(void** ctx) {
  return call(__func__, [&] { return *ctx = current_context(), SUCCESS; });
}
CUDA_CALL cuCtxGetDevice(int* device) {
  return call_in_context(__func__, [&] { return *device = 0, SUCCESS; });
}
CUDA_CALL cuCtxSetFlags(unsigned) {
  return call_in_context(__func__, [] { return SUCCESS; });
}
CUDA_CALL cuCtxSynchronize(void) {
  return call_in_context(__func__, [] {
    if (const Result refused = refuse_in_capture()) return refused;
    return run_everything();
  });
}

namespace {
struct ErrorText {
  Result code;
  const char *name, *text;
};
const ErrorText ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "an argument is outside what the call accepts"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "cuInit has not been called"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "no such device"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "not a kernel image"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "no context is current on this thread, or not one of ours"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "no such stream, event, graph, module or function"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "not possible in this state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "no kernel or symbol of that name"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "not finished yet"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed (what and where is on standard error)"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "not supported by this driver"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error has invalidated the capture"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture began on another stream"},
    {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "the capture has work that its first stream did not join"},
    {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "captured work would depend on work that is not"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture began on another thread"},
};
const ErrorText* error_text(Result code) {
  for (const ErrorText& error : ERRORS)
    if (error.code == code) return &error;
  return nullptr;
}
}  // namespace
CUDA_CALL cuGetErrorName(Result code, const char** name) {
  const ErrorText* error = error_text(code);
  *name = error ? error->name : nullptr;
  return error ? SUCCESS : INVALID_VALUE;
}
CUDA_CALL cuGetErrorString(Result code, const char** text) {
  const ErrorText* error = error_text(code);
  *text = error ? error->text : nullptr;
  return error ? SUCCESS : INVALID_VALUE;
}
