// Device memory (poisoned, guarded, limited), pinned host memory, copies and fills.
#include <sys/mman.h>

#include "../shim/fibers.h"  // CUDA_HOST_ASAN
#include "driver.h"

namespace driver {
namespace {
// The address sanitizer itself detects writes outside an allocation; without it, guards with a known pattern do.
constexpr size_t GUARD = CUDA_HOST_ASAN ? 0 : 256, ALIGNMENT = 256;
constexpr int GUARD_BYTE = 0xA5, POISON = 0xFF;  // all ones: NaN, or -1
constexpr size_t STAGED_BYTES = 64 << 10;        // a pageable source up to this size is copied at the call

struct Allocation {
  size_t bytes;
  char* raw;
  bool freed = false;  // by a cuMemFreeAsync that has not run yet
};
std::map<Address, Allocation> allocations;
std::map<char*, size_t> pinned;
size_t used = 0, peak = 0;

// A range of addresses, and what is mapped into it.
struct Mapped {
  size_t bytes;
  uint64_t handle;
  bool accessible = false;
};
struct Reservation {
  size_t bytes;
  std::map<Address, Mapped> parts;
};
std::map<Address, Reservation> reservations;
// Memory by its handle. Freed once it is neither mapped nor held.
struct Physical {
  size_t bytes;
  bool held = true, mapped = false;
};
std::map<uint64_t, Physical> physical;
constexpr size_t GRANULARITY = 2 << 20;

size_t total_memory() { return number_from_environment("UQAC_HOST_CUDA_MEMORY", 8ull << 30); }

bool take(size_t bytes) {  // false: out of memory
  if (used + bytes > total_memory()) run_everything();  // runs pending frees
  if (used + bytes > total_memory()) return false;
  used += bytes;
  peak = std::max(peak, used);
  return true;
}

void drop_if_unused(uint64_t handle) {
  const auto found = physical.find(handle);
  if (found->second.held || found->second.mapped) return;
  used -= found->second.bytes;
  physical.erase(found);
}

// The reservation that contains all of these addresses.
std::map<Address, Reservation>::iterator reservation_of(Address at, size_t bytes) {
  auto next = reservations.upper_bound(at);
  if (next == reservations.begin()) return reservations.end();
  const auto& [begin, reservation] = *--next;
  return at - begin <= reservation.bytes && bytes <= reservation.bytes - (at - begin) ? next : reservations.end();
}

// Whether all of these addresses can be read and written; adjacent parts count as one.
bool accessible(Address at, size_t bytes) {
  const auto reservation = reservation_of(at, bytes);
  if (reservation == reservations.end()) return false;
  const auto& parts = reservation->second.parts;
  auto part = parts.upper_bound(at);
  if (part == parts.begin()) return false;
  for (--part; part != parts.end() && part->first <= at; ++part) {
    if (!part->second.accessible || at - part->first >= part->second.bytes) return false;
    const size_t here = std::min(bytes, part->second.bytes - (at - part->first));
    at += here, bytes -= here;
    if (!bytes) return true;
  }
  return false;
}

Address allocate(size_t bytes) {  // 0: out of memory
  if (!take(bytes)) return 0;
  void* raw;
  if (posix_memalign(&raw, ALIGNMENT, GUARD + bytes + GUARD)) return used -= bytes, 0;
  char* begin = static_cast<char*>(raw) + GUARD;
  memset(raw, GUARD_BYTE, GUARD);
  memset(begin, POISON, bytes);
  memset(begin + bytes, GUARD_BYTE, GUARD);
  allocations[Address(begin)] = {bytes, static_cast<char*>(raw)};
  return Address(begin);
}

bool intact(const char* guard) {
  // Every byte equals the first, and the first is correct: as fast as memcmp, after every launch and for every
  // allocation.
  return GUARD == 0 || (static_cast<unsigned char>(*guard) == GUARD_BYTE && !memcmp(guard, guard + 1, GUARD - 1));
}

void release(std::map<Address, Allocation>::iterator found) {
  used -= found->second.bytes;
  memset(reinterpret_cast<char*>(found->first), POISON, found->second.bytes);
  free(found->second.raw);
  allocations.erase(found);
}

// The allocation that holds all of these bytes, if one does.
bool holds(Address at, size_t bytes) {
  if (accessible(at, bytes) || is_variable(at, bytes) || ch_is_constant(reinterpret_cast<const void*>(at), bytes)) return true;
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return false;
  const auto& [begin, allocation] = *--next;
  return !allocation.freed && at - begin <= allocation.bytes && bytes <= allocation.bytes - (at - begin);
}

bool is_pinned(const void* at, size_t bytes) {
  auto next = pinned.upper_bound(const_cast<char*>(static_cast<const char*>(at)));
  if (next == pinned.begin()) return false;
  const auto& [begin, size] = *--next;
  const size_t offset = size_t(static_cast<const char*>(at) - begin);
  return offset <= size && bytes <= size - offset;
}

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

Result copy_later(const std::shared_ptr<Stream>& stream, void* to, const void* from, size_t bytes) {
  return enqueue(stream, [=] { return memmove(to, from, bytes), SUCCESS; });
}

// A copy that is complete when the call returns; on the default stream, but not ordered with non-blocking streams.
Result copy_now(void* to, const void* from, size_t bytes) {
  if (const Result refused = refuse_in_capture()) return refused;
  const auto stream = stream_of(nullptr);
  if (const Result result = copy_later(stream, to, from, bytes)) return result;
  return run_all(*stream);
}
}  // namespace

void check_guards(const char* after) {
  for (auto& [begin, allocation] : allocations) {
    char* end = reinterpret_cast<char*>(begin) + allocation.bytes;
    if (intact(allocation.raw) && intact(end)) continue;
    fprintf(stderr, "libcuda on the CPU: %s wrote %s an allocation of %zu bytes\n", after,
            intact(end) ? "before" : "beyond", allocation.bytes);
    set_fault(LAUNCH_FAILED);
  }
}

void forget_memory() {
  while (!allocations.empty()) release(allocations.begin());
  for (const auto& [begin, reservation] : reservations) munmap(pointer(begin), reservation.bytes);
  for (const auto& [handle, memory] : physical) used -= memory.bytes;
  reservations.clear();
  physical.clear();
  for (const auto& [memory, bytes] : pinned) free(memory);
  pinned.clear();
}
}  // namespace driver

using namespace driver;

// ---- device memory ----
CUDA_CALL cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  return call_in_context(__func__, [&] { return *total = total_memory(), *free_bytes = *total - used, SUCCESS; });
}
CUDA_CALL cuMemAlloc_v2(Address* address, size_t bytes) {
  return call_in_context(__func__, [&] {
    if (!bytes) return Result(INVALID_VALUE);
    if (const Result refused = refuse_in_capture()) return refused;
    return Result((*address = allocate(bytes)) ? SUCCESS : OUT_OF_MEMORY);
  });
}
CUDA_CALL cuMemAllocAsync(Address* address, size_t bytes, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (stream->capture) return invalidate(*stream->capture, NOT_SUPPORTED);  // a device would make it a graph node
    *address = bytes ? allocate(bytes) : 0;
    return Result(!bytes || *address ? SUCCESS : OUT_OF_MEMORY);
  });
}
CUDA_CALL cuMemFree_v2(Address address) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    if (!address) return Result(SUCCESS);
    const auto found = allocations.find(address);
    if (found == allocations.end() || found->second.freed) return Result(INVALID_VALUE);
    const Result result = run_everything();
    check_guards("something");
    release(found);
    return result;
  });
}
CUDA_CALL cuMemFreeAsync(Address address, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (stream->capture) return invalidate(*stream->capture, NOT_SUPPORTED);
    if (!address) return Result(SUCCESS);
    const auto found = allocations.find(address);
    if (found == allocations.end() || found->second.freed) return Result(INVALID_VALUE);
    found->second.freed = true;
    return enqueue(stream, [address] { return release(allocations.find(address)), SUCCESS; });
  });
}

// ---- mapped device memory ----
namespace {
struct Location {
  int type, id;
};
// The parts in use here: CUmemAllocationProp and CUmemAccessDesc.
struct Properties {
  int type, handle_types;
  Location location;
};
struct Access {
  Location location;
  int flags;
};
bool is_the_device(const Location& location) { return location.type == 1 && location.id == 0; }
bool whole(size_t bytes) { return bytes && bytes % GRANULARITY == 0; }
}  // namespace

CUDA_CALL cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int) {
  return call(__func__, [&] {
    return *bytes = GRANULARITY, properties->type == 1 && is_the_device(properties->location) ? SUCCESS : INVALID_VALUE;
  });
}
CUDA_CALL cuMemAddressReserve(Address* address, size_t bytes, size_t alignment, Address hint, unsigned long long flags) {
  return call_in_context(__func__, [&] {
    if (!whole(bytes) || alignment || hint || flags) return INVALID_VALUE;
    void* raw = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return OUT_OF_MEMORY;
    reservations[*address = Address(raw)] = {bytes, {}};
    return SUCCESS;
  });
}
CUDA_CALL cuMemAddressFree(Address address, size_t bytes) {
  return call_in_context(__func__, [&] {
    const auto found = reservations.find(address);
    if (found == reservations.end() || found->second.bytes != bytes || !found->second.parts.empty())
      return INVALID_VALUE;
    munmap(pointer(address), bytes);
    reservations.erase(found);
    return SUCCESS;
  });
}
CUDA_CALL cuMemCreate(uint64_t* handle, size_t bytes, const Properties* properties, unsigned long long flags) {
  return call_in_context(__func__, [&] {
    static uint64_t last = 0;
    if (!whole(bytes) || flags || properties->type != 1 || !is_the_device(properties->location)) return Result(INVALID_VALUE);
    if (const Result refused = refuse_in_capture()) return refused;
    if (!take(bytes)) return Result(OUT_OF_MEMORY);
    physical[*handle = ++last] = {bytes};
    return Result(SUCCESS);
  });
}
CUDA_CALL cuMemRelease(uint64_t handle) {
  return call_in_context(__func__, [&] {
    const auto found = physical.find(handle);
    if (found == physical.end() || !found->second.held) return INVALID_VALUE;
    found->second.held = false;
    drop_if_unused(handle);
    return SUCCESS;
  });
}
// Only what is needed here: all of the memory, and only once.
CUDA_CALL cuMemMap(Address at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
  return call_in_context(__func__, [&] {
    const auto found = physical.find(handle);
    const auto reservation = reservation_of(at, bytes);
    if (found == physical.end() || reservation == reservations.end() || offset || flags) return INVALID_VALUE;
    if (found->second.bytes != bytes || found->second.mapped) return INVALID_VALUE;
    if ((at - reservation->first) % GRANULARITY) return INVALID_VALUE;
    for (const auto& [begin, part] : reservation->second.parts)
      if (at < begin + part.bytes && begin < at + bytes) return INVALID_VALUE;
    found->second.mapped = true;
    reservation->second.parts[at] = {bytes, handle};
    return SUCCESS;
  });
}
CUDA_CALL cuMemSetAccess(Address at, size_t bytes, const Access* access, size_t count) {
  return call_in_context(__func__, [&] {
    const auto reservation = reservation_of(at, bytes);
    if (reservation == reservations.end() || count != 1 || !is_the_device(access->location) || access->flags != 3)
      return INVALID_VALUE;
    const auto part = reservation->second.parts.find(at);
    if (part == reservation->second.parts.end() || part->second.bytes != bytes) return INVALID_VALUE;
    if (mprotect(pointer(at), bytes, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    memset(pointer(at), POISON, bytes);
    part->second.accessible = true;
    return SUCCESS;
  });
}
CUDA_CALL cuMemUnmap(Address at, size_t bytes) {
  return call_in_context(__func__, [&] {
    const auto reservation = reservation_of(at, bytes);
    if (reservation == reservations.end()) return Result(INVALID_VALUE);
    auto& parts = reservation->second.parts;
    const auto part = parts.find(at);
    if (part == parts.end() || part->second.bytes != bytes) return Result(INVALID_VALUE);
    const Result result = run_everything();
    mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    const uint64_t handle = part->second.handle;
    physical[handle].mapped = false;
    parts.erase(part);
    drop_if_unused(handle);
    return result;
  });
}

// The peak of device memory in bytes since the last call; for tests.
extern "C" __attribute__((visibility("default"))) uint64_t ch_peak_memory() {
  const uint64_t highest = peak;
  peak = used;
  return highest;
}

// ---- pinned host memory ----
CUDA_CALL cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    if (!bytes || posix_memalign(memory, 4096, bytes)) return Result(bytes ? OUT_OF_MEMORY : INVALID_VALUE);
    memset(*memory, POISON, bytes);
    pinned[static_cast<char*>(*memory)] = bytes;
    return Result(SUCCESS);
  });
}
CUDA_CALL cuMemAllocHost_v2(void** memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
CUDA_CALL cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
  return call_in_context(__func__, [&] {
    *address = Address(memory);
    return is_pinned(memory, 1) ? SUCCESS : INVALID_VALUE;
  });
}
CUDA_CALL cuMemFreeHost(void* memory) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    if (!pinned.count(static_cast<char*>(memory))) return Result(INVALID_VALUE);
    const Result result = run_everything();
    pinned.erase(static_cast<char*>(memory));
    free(memory);
    return result;
  });
}

// ---- copies ----
CUDA_CALL cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (!holds(to, bytes)) return Result(INVALID_VALUE);
    if (stream->capture || is_pinned(from, bytes)) return copy_later(stream, pointer(to), from, bytes);
    if (bytes <= STAGED_BYTES) {
      const char* begin = static_cast<const char*>(from);
      return enqueue(stream, [to, staged = std::vector<char>(begin, begin + bytes)] {
        return memcpy(pointer(to), staged.data(), staged.size()), SUCCESS;
      });
    }
    if (const Result result = copy_later(stream, pointer(to), from, bytes)) return result;
    return run_all(*stream);
  });
}
CUDA_CALL cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (!holds(from, bytes)) return Result(INVALID_VALUE);
    const Result result = copy_later(stream, to, pointer(from), bytes);
    if (result || stream->capture || is_pinned(to, bytes)) return result;
    return run_all(*stream);  // a copy into pageable memory waits
  });
}
CUDA_CALL cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (!holds(to, bytes) || !holds(from, bytes)) return Result(INVALID_VALUE);
    if (to < from + bytes && from < to + bytes) {  // undefined on a device
      fprintf(stderr, "libcuda on the CPU: a copy whose source and target overlap\n");
      return Result(INVALID_VALUE);
    }
    return copy_later(stream, pointer(to), pointer(from), bytes);
  });
}
// Rows between allocations, limited to the uses of CUDA_MEMCPY2D here: no arrays, no hosts, starting at the first row
// and byte.
namespace {
struct Side2D {
  size_t x, y;
  int type;  // 2: device
  void* host;
  Address device;
  void* array;
  size_t pitch;
};
struct Copy2D {
  Side2D from, to;
  size_t width, height;
};
}  // namespace
CUDA_CALL cuMemcpy2DAsync_v2(const Copy2D* asked, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    const Copy2D copy = *asked;
    if (!stream) return Result(INVALID_HANDLE);
    for (const Side2D* side : {&copy.from, &copy.to}) {
      if (side->type != 2 || side->x || side->y || side->pitch < copy.width || side->pitch > INT32_MAX)
        return Result(INVALID_VALUE);
      if (copy.height && !holds(side->device, (copy.height - 1) * side->pitch + copy.width)) return Result(INVALID_VALUE);
    }
    return enqueue(stream, [copy] {
      for (size_t row = 0; row < copy.height; ++row)
        memmove(pointer(copy.to.device + row * copy.to.pitch), pointer(copy.from.device + row * copy.from.pitch),
                copy.width);
      return SUCCESS;
    });
  });
}
CUDA_CALL cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return call_in_context(__func__, [&] {
    return holds(to, bytes) ? copy_now(pointer(to), from, bytes) : INVALID_VALUE;
  });
}
CUDA_CALL cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  return call_in_context(__func__, [&] {
    return holds(from, bytes) ? copy_now(to, pointer(from), bytes) : INVALID_VALUE;
  });
}
CUDA_CALL cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return call_in_context(__func__, [&] {
    return holds(to, bytes) && holds(from, bytes) ? copy_now(pointer(to), pointer(from), bytes) : INVALID_VALUE;
  });
}

// ---- fills ----
CUDA_CALL cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (!holds(to, bytes)) return Result(INVALID_VALUE);
    return enqueue(stream, [=] { return memset(pointer(to), value, bytes), SUCCESS; });
  });
}
CUDA_CALL cuMemsetD32Async(Address to, unsigned value, size_t count, void* handle) {
  return call_in_context(__func__, [&] {
    const auto stream = stream_of(handle);
    if (!stream) return Result(INVALID_HANDLE);
    if (!holds(to, count * 4) || to % 4) return Result(INVALID_VALUE);
    return enqueue(stream, [=] {
      for (size_t i = 0; i < count; ++i) static_cast<unsigned*>(pointer(to))[i] = value;
      return SUCCESS;
    });
  });
}
CUDA_CALL cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
  return call_in_context(__func__, [&] {
    if (const Result refused = refuse_in_capture()) return refused;
    if (const Result result = cuMemsetD8Async(to, value, bytes, nullptr)) return result;
    return run_all(*stream_of(nullptr));
  });
}
