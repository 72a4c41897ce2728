// A libcuda.so.1 that runs kernels on the CPU: declarations shared by its parts. Only the calls in use exist; a program that
// requests another one gets its loader's error with the name.
//
// Work on a stream runs as late as the API allows: when something waits for it. A result read without a wait is therefore the
// old one (all ones, if nothing was there), and a buffer changed too early spoils the copy. The same goes for work that a
// captured graph has outside its main stream; with an odd seed it runs as early as possible instead. However, a kernel that
// may start early does: its first and last blocks run ahead of up to EARLY preceding kernels, up to where they wait for
// these.
//
// Environment: UQAC_HOST_CUDA_MEMORY   the device's memory in bytes, or with K, M, G (default 8G)
//              UQAC_HOST_CUDA_EAGER=1  run all work at once instead
//              UQAC_HOST_CUDA_SEED     schedule seed (see shim/block.h); another one is made from it for every launch
//              UQAC_HOST_CUDA_THREADS  OS threads for a launch's blocks (default: all cores)
//              UQAC_HOST_CUDA_SMS      multiprocessors (default 4)
//              UQAC_HOST_CUDA_CAPABILITY  default 9.0
//              UQAC_HOST_CUDA_SHARED   shared memory that a block can ask for (default 227K)
//              UQAC_HOST_CUDA_MAPPING=0   a device that cannot map memory
//              UQAC_HOST_CUDA_BREAK    kernels that do nothing,
//              UQAC_HOST_CUDA_FAULT    kernels that fail when they run, and
//              UQAC_HOST_CUDA_HANG     kernels that never end: names, with commas between
//              UQAC_HOST_CUDA_EARLY=broken  kernels that start early do not wait for those before them
//              UQAC_HOST_CUDA_TRACE=1  every launch on standard error
//              UQAC_HOST_CUDA_TENSOR   how tensor cores add: ampere (default), hopper (both in blocks that are cut off, see
//                                      shim/tensor_sums.h), nearest (each sum rounded to nearest). Kernel tests heed it, too
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../shim/registry.h"

namespace driver {
using Result = int;
enum : Result {  // CUresult
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  FILE_NOT_FOUND = 301,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURED_EVENT = 907,
  CAPTURE_WRONG_THREAD = 908,
};
constexpr size_t EARLY = 3;
using Address = uint64_t;  // CUdeviceptr: an address in this process

// A piece of work. A kernel launched to start before the preceding one has ended (programmatic serialization) has `begin`,
// which runs its first blocks up to their wait; `run` receives what `begin` returned, or null.
struct Work {
  std::function<Result(ch_early*)> run;
  std::function<ch_early*()> begin;
  bool lets_next_begin = false;  // a kernel that itself starts early, and lets the next one do so
  Work() = default;
  template <class Run, class = decltype(std::declval<Run&>()())>
  Work(Run run_all) : run([run_all](ch_early*) { return Result(run_all()); }) {}
};

struct Node {
  Work work;
  struct Stream* stream;
  std::vector<size_t> after;  // nodes that precede it
};
struct Graph {
  std::vector<Node> nodes;  // in capture order, which is consistent with their dependencies
  struct Stream* origin;
  // In capture order (a fork as early as possible), or with a fork as late as possible.
  Result run(bool late) const;
};

struct Stream;
struct Capture {
  Stream* origin;
  int mode;  // 0 global, 1 thread-local, 2 relaxed
  std::thread::id thread;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  std::map<Stream*, std::vector<size_t>> before;  // nodes that a stream's next one must follow
  std::set<Stream*> unjoined;  // other streams with work that the origin has not yet waited for
  bool invalid = false, ended = false;
};

struct Queued {
  uint64_t ticket;
  Work work;
  ch_early* early = nullptr;  // set once it has begun
};

struct Stream {
  bool blocking;  // ordered with the default stream
  std::deque<Queued> queue;
  std::shared_ptr<Capture> capture;
};

// One cuEventRecord: recording an event again creates another.
struct Record {
  std::shared_ptr<Stream> stream;
  uint64_t ticket = 0;
  std::shared_ptr<Capture> capture;  // recorded in a capture: never done
  std::vector<size_t> nodes;         // nodes of the capture that waiting for the event waits for
  bool done = false;
  std::chrono::steady_clock::time_point time;
};

struct Event {
  bool timing;
  std::shared_ptr<Record> record;
};

// Every call goes through here: serialized, counted, refused before cuInit or after a fault in a kernel.
Result call(const char* name, const std::function<Result()>& body);
Result call_in_context(const char* name, const std::function<Result()>& body);  // also requires a current context

bool has_clusters();  // whether the device is of compute capability 9.0
uint64_t number_from_environment(const char* name, uint64_t otherwise);
inline uint64_t shared_with_opt_in() { return number_from_environment("UQAC_HOST_CUDA_SHARED", 227 << 10); }
void set_initialized();
void* current_context();
void set_fault(Result fault);  // every later call in the context fails with it

// ---- streams ----
std::shared_ptr<Stream> stream_of(void* handle);  // null for an unknown one
// Adds work to a stream, or to the graph being captured from it.
Result enqueue(const std::shared_ptr<Stream>& stream, Work work);
Result run_all(Stream& stream);
Result run_until(Stream& stream, uint64_t ticket);
Result run_everything();
// For calls forbidden during capture: invalidates the capture and returns the error, or SUCCESS.
Result refuse_in_capture();
Result invalidate(Capture& capture, Result why);
void forget_streams();

// ---- modules ----
bool is_variable(Address at, size_t bytes);  // whether these bytes belong to a module's settable variable

// ---- memory ----
void check_guards(const char* after);  // reports writes outside allocations
void forget_memory();
}  // namespace driver

#define CUDA_CALL extern "C" __attribute__((visibility("default"))) driver::Result
