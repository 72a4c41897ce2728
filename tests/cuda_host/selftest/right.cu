// Correct kernels that use each part of the shim once.
extern __shared__ __align__(16) unsigned char dyn_smem[];

extern "C" __global__ void right_block_sum(float* o) {  // o[block] = sum over i < 64 of (i + block)
  __shared__ float warp_sums[2];
  float v = float(threadIdx.x + blockIdx.x);
  for (int step = 16; step; step >>= 1) v += __shfl_down_sync(~0u, v, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) o[blockIdx.x] = warp_sums[0] + warp_sums[1];
}

// In each round the block's tile is fetched by cp.async, two stages deep. in: [rounds][64], o[i] = sum over rounds of
// the mirrored element.
extern "C" __global__ void right_pipeline(const float* in, float* o, int rounds) {
  float* stages = reinterpret_cast<float*>(dyn_smem);  // [2][64]
  auto fetch = [&](int round) {
    if (round < rounds && threadIdx.x < 16)
      cuda_host::cp_async16(stages + round % 2 * 64 + threadIdx.x * 4, in + round * 64 + threadIdx.x * 4);
    cuda_host::cp_async_commit();
  };
  fetch(0);
  float sum = 0.0f;
  for (int round = 0; round < rounds; ++round) {
    fetch(round + 1);
    cuda_host::cp_async_wait(1);
    __syncthreads();
    sum += stages[round % 2 * 64 + 63 - threadIdx.x];
    __syncthreads();
  }
  if (blockIdx.x == 0) o[threadIdx.x] = sum;
}

static float VARIABLE = 3.0f;
CUDA_HOST_VARIABLE(VARIABLE)
extern "C" __global__ void right_variable(float* o) {  // PRECOND: grid 1
  if (threadIdx.x == 0) *o = VARIABLE;
}

extern "C" __global__ void right_votes(int* o) {  // PRECOND: block 40: the second warp has 8 lanes
  const int i = int(threadIdx.x);
  const unsigned odd = __ballot_sync(~0u, i & 1);
  const int any = __any_sync(~0u, i == 39), all = __all_sync(~0u, i < 39);
  const int count = __syncthreads_count(i % 3 == 0), some = __syncthreads_or(i == 7), every = __syncthreads_and(i < 39);
  const int total = __reduce_add_sync(~0u, i), largest = __reduce_max_sync(~0u, i);
  if (blockIdx.x) return;
  int* own = o + i * 8;
  own[0] = int(odd), own[1] = any, own[2] = all, own[3] = count, own[4] = some, own[5] = every, own[6] = total;
  own[7] = largest;
}

extern "C" __global__ void right_last_block(int* counter, int* o) {  // the last block to finish sees the work of all others
  __shared__ int is_last;
  if (threadIdx.x == 0) {
    o[blockIdx.x] = int(blockIdx.x) + 1;
    __threadfence();
    is_last = atomicAdd(counter, 1) == int(gridDim.x) - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    int sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += o[b];
    o[gridDim.x] = sum;
  }
}

// C[16][8] = A[16][16] B[16][8] by one warp, operands through ldmatrix. A row-major, Bt = B transposed [8][16].
template <class T>
__device__ __forceinline__ void one_mma(const T* a, const T* bt, float* c) {
  T* sa = reinterpret_cast<T*>(dyn_smem);
  T* sb = sa + 256;
  for (int i = int(threadIdx.x); i < 256; i += 32) sa[i] = a[i];
  for (int i = int(threadIdx.x); i < 128; i += 32) sb[i] = bt[i];
  __syncwarp();
  const int lane = int(threadIdx.x);
  unsigned fa[4], fb[2];
  float fc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  ch_ldmatrix_x4(fa, sa + lane % 16 * 16 + lane / 16 * 8);
  ch_ldmatrix_x2(fb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
  if (sizeof(T) == 2 && T(1.0f).bits == 0x3F80)
    ch_mma_m16n8k16_bf16(fc, fa, fb);
  else
    ch_mma_m16n8k16_f16(fc, fa, fb);
  for (int r = 0; r < 4; ++r) c[(lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = fc[r];
}
extern "C" __global__ void right_mma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* bt, float* c) {
  one_mma(a, bt, c);
}
extern "C" __global__ void right_mma_f16(const __half* a, const __half* bt, float* c) { one_mma(a, bt, c); }

extern "C" __global__ void right_ldmatrix_trans(const unsigned short* in, unsigned* o) {  // in [8][8]
  unsigned* rows = reinterpret_cast<unsigned*>(dyn_smem);
  for (int i = int(threadIdx.x); i < 32; i += 32) rows[i] = reinterpret_cast<const unsigned*>(in)[i];
  __syncwarp();
  unsigned r[1];
  ch_ldmatrix_x1_trans(r, reinterpret_cast<unsigned short*>(dyn_smem) + threadIdx.x % 8 * 8);
  o[threadIdx.x] = r[0];
}

struct Pair {
  double scale;
  int shift;
};
extern "C" __global__ void right_arguments(float* o, char c, Pair pair, const float* const in, unsigned long long n) {
  for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x)
    if (blockIdx.x == 0) o[i] = float(double(in[i]) * pair.scale) + float(pair.shift) + float(c);
}

CUDA_HOST_CONSTANT(right_step_starts_early, 1)
extern "C" __global__ void right_step(const float* in, float* o, int too_soon) {  // o = in + 1
  __shared__ float taken[64];
  const unsigned i = blockIdx.x * 64 + threadIdx.x;
  const float before = in[i];
  if (threadIdx.x % 32 < 16) cuda_host::running->wait_for_earlier_grids();
  taken[63 - threadIdx.x] = before;
  __syncthreads();  // one half has waited, and blocks the other
  if (threadIdx.x % 32 >= 16) cuda_host::running->wait_for_earlier_grids();
  o[i] = (too_soon ? taken[63 - threadIdx.x] : in[i]) + 1.0f;
}
