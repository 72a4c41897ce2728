// The calls of the CUDA runtime that a file with kernels and their launches makes (examples/torch_entropy_attention), for host runs. A kernel
// runs when it is launched; streams are ignored.
#pragma once
#include "registry.h"

typedef struct CUstream_st* cudaStream_t;
enum cudaError_t { cudaSuccess, cudaErrorLaunchFailure };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

template <class... A>
cudaError_t cudaFuncSetAttribute(void (*)(A...), cudaFuncAttribute, int) {
  return cudaSuccess;
}

template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void** values, size_t shared_bytes, cudaStream_t) {
  using S = cuda_host::Signature<A...>;
  static const int sizes[] = {int(sizeof(A))..., int(sizeof kernel)};
  static const ch_kernel any = {"a launched kernel",
                                [](void** params) {  // the last one is the kernel itself
                                  const auto called = *static_cast<void (**)(A...)>(params[S::count]);
                                  S::call(called, params, std::make_index_sequence<S::count>{});
                                },
                                S::count + 1, sizes};
  std::vector<void*> params(values, values + S::count);
  params.push_back(&kernel);
  const unsigned blocks[] = {grid.x, grid.y, grid.z}, threads[] = {block.x, block.y, block.z};
  return ch_launch(&any, blocks, threads, unsigned(shared_bytes), params.data()) ? cudaErrorLaunchFailure : cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t) { return ch_last_error(); }
