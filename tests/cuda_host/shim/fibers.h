// Fibers: each has a stack and a saved stack pointer, switched by hand on one OS thread.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_HOST_ASAN 1
#endif
#endif
#ifndef CUDA_HOST_ASAN
#define CUDA_HOST_ASAN 0
#endif
#if CUDA_HOST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves the callee-saved registers on this stack and continues with those saved on the other (defined in main.cpp).
extern "C" void cuda_host_switch_stack(void** saved_stack_pointer, void* next_stack_pointer);
#endif

namespace cuda_host {
constexpr size_t STACK_BYTES = CUDA_HOST_ASAN ? 512 << 10 : 128 << 10;  // untouched pages cost nothing
constexpr size_t GUARD_BYTES = 4096;                                    // below the stack: an overflow faults
constexpr size_t TOP_STRIDE = 320;                                      // five cache lines: a prime number of offsets

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  ~Fiber() {
    if (mapping) munmap(mapping, GUARD_BYTES + STACK_BYTES);
  }

  // Prepares a run of entry() from the top of this fiber's stack. `number` staggers the tops of stacks: at the same
  // page offset they would compete for a few cache lines, and every switch would miss.
  void start_at(void (*entry)(), unsigned number) {
    if (!mapping) map_stack();
    const size_t used_bytes = STACK_BYTES - number % 61 * TOP_STRIDE;
#if CUDA_HOST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(stack(), STACK_BYTES);  // left by an abandoned run
    fake_stack = nullptr;
#endif
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack() + used_bytes);
    *--top = nullptr;  // entry() sees rsp = 8 mod 16, as after a call
    *--top = reinterpret_cast<void*>(entry);
    for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
    stack_pointer = top;
#else
    getcontext(&machine);
    machine.uc_stack.ss_sp = stack();
    machine.uc_stack.ss_size = used_bytes;
    machine.uc_link = nullptr;
    makecontext(&machine, entry, 0);
#endif
  }

  // Switches to another fiber; returns when something switches back to this one, unless `for_good` is set.
  __attribute__((noinline)) void switch_to(Fiber& next, bool for_good = false) {
#if CUDA_HOST_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack, next.bottom, next.bytes);
#else
    (void)for_good;
#endif
#if defined(__x86_64__)
    cuda_host_switch_stack(&stack_pointer, next.stack_pointer);
#else
    swapcontext(&machine, &next.machine);
#endif
    arrived(nullptr);
  }

  // Must be called first wherever a switch lands. `from` receives the bounds of the stack just left: needed once, for
  // the OS thread's own stack.
  void arrived(Fiber* from) {
#if CUDA_HOST_ASAN
    const void* left_bottom;
    size_t left_bytes;
    __sanitizer_finish_switch_fiber(fake_stack, &left_bottom, &left_bytes);
    if (from && !from->bottom) from->bottom = left_bottom, from->bytes = left_bytes;
#else
    (void)from;
#endif
  }

  // The OS thread's own stack as a fiber: its bounds are found again at each run.
  void forget_bounds() { bottom = nullptr, bytes = 0; }

 private:
  char* stack() { return mapping + GUARD_BYTES; }
  void map_stack() {
    void* memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) abort();
    mapping = static_cast<char*>(memory);
    bottom = stack();
    bytes = STACK_BYTES;
  }

  char* mapping = nullptr;
  const void* bottom = nullptr;  // for the address sanitizer
  size_t bytes = 0;
  void* fake_stack = nullptr;
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t machine;
#endif
};
}  // namespace cuda_host
