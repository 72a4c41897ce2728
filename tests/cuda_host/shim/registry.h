// Kernels by name, and the C interface through which tests and the host-run driver launch them.
#pragma once
#include <type_traits>
#include <utility>

#include "block.h"

extern "C" {
struct ch_kernel;  // one exported kernel
const ch_kernel* ch_find(const char* name);
int ch_kernel_count(void);
const char* ch_kernel_name(int i);
struct ch_constant;  // one constant exported by a kernel file
const unsigned* ch_find_constant(const char* name);  // null if there is none
bool ch_is_constant(const void* at, size_t bytes);    // whether the bytes are inside one
struct ch_variable;
const ch_variable* ch_get_variable(int i);  // null from their count on
int ch_nparams(const ch_kernel* kernel);
int ch_param_size(const ch_kernel* kernel, int i);
// 0: done. 1: a launch the device would refuse. 2: a fault inside the kernel; see ch_last_error().
int ch_launch(const ch_kernel* kernel, const unsigned* grid, const unsigned* block, unsigned dynamic_shared_bytes,
              void** params);
// The same in two parts, for a kernel that starts before the preceding ones have ended: its first and last blocks run up to where they
// wait for these (wait_for_earlier_grids), and the rest runs in ch_finish. PRECOND: not refused; the parameters live until ch_finish,
// which is called once.
struct ch_early;
ch_early* ch_begin_early(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                         unsigned dynamic_shared_bytes, void** params);
int ch_finish(ch_early* launch);
// The same, after checking the number of parameters and their sizes.
int ch_launch_checked(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                      unsigned dynamic_shared_bytes, void** params, const int* sizes, int count);
// Why the device would refuse such a launch; null if it would accept.
const char* ch_refusal(const ch_kernel* kernel, const unsigned* grid, const unsigned* block, unsigned dynamic_shared_bytes);
const char* ch_last_error(void);
// Whether the device has clusters, tile copies and wgmma.
bool ch_has_clusters(void);
// The map for copy_tile: a matrix [rows, width] of f16 whose rows are `stride` bytes apart, in tiles of [tile_rows, tile_width] that
// lie in shared memory with their chunks of 16 bytes permuted as in rows of 128 bytes. Writes 128 bytes; false: the device would
// refuse.
bool ch_encode_tensor_map(void* map, const void* matrix, uint64_t width, uint64_t rows, uint64_t stride, unsigned tile_width,
                          unsigned tile_rows);
// Blocks over this many OS threads; a schedule seed (0: fair, others: adversaries, see block.h).
void ch_configure(unsigned os_threads, uint64_t seed);
// Tensor core summation (mma::Sums of tensor_sums.h; initially from UQAC_HOST_CUDA_TENSOR). Negative: unchanged. Returns the previous
// value.
int ch_tensor_sums(int sums);
}

struct ch_kernel {
  const char* name;
  void (*call)(void** params);  // one thread's run
  int param_count;
  const int* param_sizes;
};

struct ch_constant {
  const char* name;
  unsigned value;
};

// A variable that the host may set in a module. Each kernel file has its own; the driver tracks the values of each module.
struct ch_variable {
  const char* name;
  void* address;
  std::vector<char> initial;
};

namespace cuda_host {
std::vector<const ch_kernel*>& kernels();
std::vector<const ch_constant*>& constants();
std::vector<const ch_variable*>& variables();

template <class... A>
struct Signature {
  static constexpr int count = sizeof...(A);
  static constexpr int sizes[] = {int(sizeof(A))..., 0};
  template <size_t... I>
  static void call(void (*kernel)(A...), void** params, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(params[I])...);  // parameters are passed by value
  }
};
template <class... A>
Signature<A...> signature(void (*)(A...)) {
  return {};
}

struct Export {
  explicit Export(const ch_kernel* kernel) { kernels().push_back(kernel); }
  explicit Export(const ch_constant* constant) { constants().push_back(constant); }
  explicit Export(const ch_variable* variable) { variables().push_back(variable); }
};
}  // namespace cuda_host

#define CUDA_HOST_EXPORT(kernel)                                                                               \
  static const ch_kernel cuda_host_kernel_##kernel = {                                                         \
      #kernel,                                                                                                 \
      [](void** params) {                                                                                      \
        using S = decltype(::cuda_host::signature(kernel));                                                    \
        S::call(kernel, params, std::make_index_sequence<S::count>{});                                         \
      },                                                                                                       \
      decltype(::cuda_host::signature(kernel))::count, decltype(::cuda_host::signature(kernel))::sizes};       \
  static const ::cuda_host::Export cuda_host_export_##kernel(&cuda_host_kernel_##kernel);

#define CUDA_HOST_CONSTANT(name, value)                                                        \
  static const ch_constant cuda_host_constant_##name = {#name, static_cast<unsigned>(value)}; \
  static const ::cuda_host::Export cuda_host_export_##name(&cuda_host_constant_##name);

#define CUDA_HOST_VARIABLE(name)                                                                                   \
  static const ch_variable cuda_host_variable_##name = {                                                           \
      #name, &name, {reinterpret_cast<const char*>(&name), reinterpret_cast<const char*>(&name) + sizeof name}};   \
  static const ::cuda_host::Export cuda_host_export_##name(&cuda_host_variable_##name);
