// Compiles a plain CUDA kernel file as C++17 and runs it on the CPU, for tests.
//
// Include this first, then the .cu file; then name each kernel once with CUDA_HOST_EXPORT(name). build.py writes such
// files, and links shim/main.cpp into every program.
//
//   types.h         keywords, vector types, f16 and bf16
//   device_math.h   intrinsics: maths, bits, integer atomics
//   counters.h      sectors read by cp.async, bank conflicts of ldmatrix
//   fibers.h        one stack for each thread of a block, and switching between them
//   block.h         one running block: scheduling, barriers, error reports
//   collectives.h   warp votes, shuffles, reductions
//   async_copy.h    cp.async whose bytes arrive only at the wait
//   tensor_core.h   mma.m16n8k16, ldmatrix
//   tensor_sums.h   tensor core summation
//   hopper.h        mbarriers and tile copies in clusters, wgmma
//   mutants.h       the switches of mutate.py
//   registry.h      kernels by name, launches, the C interface (ch_*)
//   main.cpp        definitions that exist once per program: block internals, launches
#pragma once
#ifndef CUDA_HOST_SHIM
#define CUDA_HOST_SHIM 1
#endif

#include "shim/types.h"

#include "shim/device_math.h"

#include "shim/fibers.h"

#include "shim/block.h"

#include "shim/collectives.h"

#include "shim/async_copy.h"

#include "shim/tensor_core.h"

#include "shim/hopper.h"

#include "shim/mutants.h"

#include "shim/registry.h"
