// Deliberately incorrect kernels, one defect each. The self-test expects the shim or a sanitizer to report every one.
// PRECOND: grid 1, block 64, 256 bytes of dynamic shared memory, `o` = 64 floats.
extern __shared__ __align__(16) unsigned char dyn_smem[];

#define WRONG(name) extern "C" __global__ void wrong_##name(float* o)
#define SHARED (reinterpret_cast<float*>(dyn_smem))

WRONG(missing_barrier) {
  SHARED[threadIdx.x] = float(threadIdx.x);
  o[threadIdx.x] = SHARED[63 - threadIdx.x];
}
WRONG(missing_barrier_in_loop) {  // nothing separates the next round's writes from this round's reads
  float sum = 0.0f;
  for (int round = 0; round < 4; ++round) {
    SHARED[threadIdx.x] = float(threadIdx.x + round);
    __syncthreads();
    sum += SHARED[(threadIdx.x + 33) % 64];
  }
  o[threadIdx.x] = sum;
}
WRONG(missing_warp_barrier) {
  SHARED[threadIdx.x] = float(threadIdx.x);
  o[threadIdx.x] = SHARED[threadIdx.x ^ 1];
}
WRONG(divergent_barrier) {
  if (threadIdx.x < 7) {
    __syncthreads();
  } else {
    o[threadIdx.x] = 1.0f;
    __syncthreads();
  }
}
WRONG(barrier_some_skip) {  // thread 3 waits in a warp collective for lanes that wait at the barrier
  if (threadIdx.x == 3) __syncwarp();
  __syncthreads();
  o[threadIdx.x] = 1.0f;
}
WRONG(shuffle_in_branch) {
  float v = float(threadIdx.x);
  if (threadIdx.x & 1) v = __shfl_xor_sync(~0u, v, 2);
  o[threadIdx.x] = v;
}
WRONG(shuffle_outside_mask) { o[threadIdx.x] = __shfl_sync(1u << (threadIdx.x % 32), 1.0f, 5); }
WRONG(early_exit) {
  if (threadIdx.x == 5) return;
  o[threadIdx.x] = __shfl_xor_sync(~0u, float(threadIdx.x), 1);
}
WRONG(shared_overrun) {
  SHARED[threadIdx.x + 1] = 1.0f;
  __syncthreads();
  o[threadIdx.x] = SHARED[threadIdx.x];
}
WRONG(static_shared_overrun) {
  __shared__ float own[64];
  own[threadIdx.x + 1] = 1.0f;
  __syncthreads();
  o[threadIdx.x] = own[threadIdx.x];
}
WRONG(global_overrun) { o[threadIdx.x + 1] = 1.0f; }
WRONG(misaligned_vector) {
  const uint4 v = *reinterpret_cast<const uint4*>(o + 1);
  o[threadIdx.x] = __uint_as_float(v.x);
}
WRONG(misaligned_copy) {
  cuda_host::cp_async16(SHARED, o + 1);
  cuda_host::cp_async_commit();
  cuda_host::cp_async_wait(0);
}
WRONG(missing_wait) {
  if (threadIdx.x < 16) cuda_host::cp_async16(SHARED + threadIdx.x * 4, o + threadIdx.x * 4);
  cuda_host::cp_async_commit();
  __syncthreads();
  o[threadIdx.x] = SHARED[threadIdx.x] * 2.0f;
}
WRONG(wait_keeps_one) {
  if (threadIdx.x < 16) cuda_host::cp_async16(SHARED + threadIdx.x * 4, o + threadIdx.x * 4);
  cuda_host::cp_async_commit();
  cuda_host::cp_async_wait(1);
  __syncthreads();
  o[threadIdx.x] = SHARED[threadIdx.x] * 2.0f;
}
WRONG(wait_without_barrier) {  // a wait covers only the thread's own copies
  if (threadIdx.x < 16) cuda_host::cp_async16(SHARED + threadIdx.x * 4, o + threadIdx.x * 4);
  cuda_host::cp_async_commit();
  cuda_host::cp_async_wait(0);
  o[threadIdx.x] = SHARED[threadIdx.x] * 2.0f;
}
WRONG(grid) {  // PRECOND_GRID's check in kernels
  cuda_host::check_grid(2, 1);
  o[threadIdx.x] = 1.0f;
}
WRONG(uninitialised_shared) { o[threadIdx.x] = SHARED[threadIdx.x]; }
WRONG(uninitialised_static_shared) {
  __shared__ float own[64];
  if (threadIdx.x < 63) own[threadIdx.x] = 1.0f;
  __syncthreads();
  o[threadIdx.x] = own[threadIdx.x];
}
CUDA_HOST_CONSTANT(wrong_never_waits_starts_early, 1)
WRONG(never_waits) {  // for the kernels before it
  if (threadIdx.x > 0) cuda_host::running->wait_for_earlier_grids();
  o[threadIdx.x] = 1.0f;
}

// For compute capability 9.0: a tile of 64 f16 values, from the start of o, goes to the first 128 bytes, followed by the
// barrier.
#define BARRIER (reinterpret_cast<unsigned long long*>(dyn_smem + 128))
static inline void begin_tile(const float* o, cuda_host::TensorMap& map) {
  cuda_host::encode(map, o, 64, 1, 128, 64, 1);
  if (threadIdx.x == 0) cuda_host::mbarrier_init(BARRIER, 1);
  __syncthreads();
  if (threadIdx.x != 0) return;
  cuda_host::mbarrier_expect(BARRIER, 128);
  cuda_host::copy_tile(dyn_smem, &map, 0, 0, BARRIER, 1);
}
WRONG(tile_without_wait) {
  static cuda_host::TensorMap map;
  begin_tile(o, map);
}
WRONG(tile_read_before_wait) {
  static cuda_host::TensorMap map;
  begin_tile(o, map);
  __syncthreads();
  o[threadIdx.x] = SHARED[threadIdx.x % 32];
  __syncthreads();
  cuda_host::mbarrier_wait(CUDA_HOST_SITE, BARRIER, 0);
}
WRONG(tile_of_no_map) {
  static cuda_host::TensorMap map;
  if (threadIdx.x == 0) cuda_host::mbarrier_init(BARRIER, 1);
  __syncthreads();
  if (threadIdx.x == 0) cuda_host::copy_tile(dyn_smem, &map, 0, 0, BARRIER, 1);
}
WRONG(mbarrier_not_made) { cuda_host::mbarrier_wait(CUDA_HOST_SITE, BARRIER, 0); }
WRONG(mbarrier_waits_for_more) {
  if (threadIdx.x == 0) cuda_host::mbarrier_init(BARRIER, 1);
  __syncthreads();
  if (threadIdx.x == 0) cuda_host::mbarrier_expect(BARRIER, 128);
  cuda_host::mbarrier_wait(CUDA_HOST_SITE, BARRIER, 0);
}
WRONG(wgmma_without_fence) {
  float sums[64];
  cuda_host::wgmma_m64n128k16(sums, 0, 0, false);
}
WRONG(wgmma_by_two_warps) {
  float sums[64];
  cuda_host::wgmma_fence();
  cuda_host::wgmma_m64n128k16(sums, 0, 0, false);
  cuda_host::wgmma_commit();
  cuda_host::wgmma_wait(CUDA_HOST_SITE, 0);
  o[threadIdx.x] = sums[0];
}
