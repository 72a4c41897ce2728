// One running block: its threads as fibers, scheduling, block barriers, and error reports.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "counters.h"
#include "fibers.h"
#include "types.h"

namespace cuda_host {
constexpr unsigned MAX_THREADS = 1024, WARP = 32;
constexpr unsigned MAX_CLUSTER_THREADS = 2048;  // over all blocks of a cluster
constexpr unsigned MAX_CLUSTER = 8;              // blocks
constexpr size_t MAX_DYNAMIC_SHARED = 227 << 10;
constexpr size_t SHARED_CANARY = 1024, SHARED_STRIDE = MAX_DYNAMIC_SHARED + SHARED_CANARY;  // guard bytes past the launch's shared memory

struct Site {  // where in the source a thread waits
  const char* file;
  int line;
  bool operator==(const Site& o) const { return line == o.line && (file == o.file || !strcmp(file, o.file)); }
};
#define CUDA_HOST_SITE (::cuda_host::Site{__FILE__, __LINE__})

struct Thread;
using Resolve = void (*)(Thread* lanes, unsigned mask);  // computes a warp collective for all its lanes

// A cp.async copy in flight. Groups are numbered; a wait lands all groups up to one.
struct PendingCopy {
  void* to;
  const void* from;
  unsigned bytes, source_bytes;  // the rest is filled with zeros
  unsigned group;
  unsigned char early[16];  // contents before the earlier grids had ended, if `from` is null
};

// A wgmma started by a thread; those of the four warps complete together.
struct Product {
  float* sums;
  int columns;
  bool rows;      // a is in registers, and b has rows of k
  uint64_t a, b;  // in shared memory
  unsigned left[4];
  bool accumulate;
  unsigned group;
  std::vector<float> before;  // the sums, if no earlier product into them is in flight
};

enum class State : uint8_t { RUNNING, AT_BLOCK_BARRIER, AT_WARP_COLLECTIVE, AT_MBARRIER, AT_PRODUCTS, AT_EARLIER_GRIDS, EXITED };

struct Thread {
  Fiber fiber;
  uint3 index{}, block{};
  unsigned linear = 0, rank = 0;  // linear: over all blocks of the cluster; rank: its position in the schedule
  unsigned block_rank = 0;        // of its block within the cluster
  State state = State::RUNNING;
  Site site{};
  unsigned mask = 0;  // of the collective it waits at, with the operands
  const void* in = nullptr;
  void* out = nullptr;
  Resolve resolve = nullptr;
  std::vector<PendingCopy> copies;
  unsigned open_group = 0;
  unsigned copies_made = 0;  // number of cp.async so far
  bool waited = false;       // for earlier grids
  const void* mbarrier = nullptr;  // the one it waits at
  std::vector<Product> products;   // not yet complete
  bool copies_hidden = false;      // copies have arrived that products must not read yet
  unsigned product_group = 0, keep_groups = 0;
  bool fenced = false;
};

// A tile copy (TMA) in flight to a block of the cluster; without a map, a copy of consecutive bytes.
struct TileCopy {
  unsigned char *to, *shared;  // the destination, and the block's shared memory
  const void* map;  // the kernel's parameter
  int column, row;
  const void* from = nullptr;
  unsigned bytes = 0;
};

// A barrier in shared memory that counts arrivals and bytes, keyed by its address.
struct MbarrierState {
  unsigned arrivals = 0, pending = 0, phase = 0;
  int64_t bytes = 0;  // announced, minus those that have arrived
  std::vector<TileCopy> copies;
};

// Picks the next thread. Seed 0 is fair and fast: the lanes of a warp take turns, and a warp continues as long as one
// of its lanes can, so that few stacks are in use at a time. Other seeds are adversaries that look for missing
// barriers: each thread has a fixed rank and the first ready rank always runs, so that it gets as far ahead as barriers
// allow.
class Schedule {
 public:
  void begin(unsigned threads, uint64_t seed, uint64_t block);
  unsigned thread_at(unsigned rank) const { return order[rank]; }
  void ready(unsigned rank) { words[rank / 64] |= uint64_t(1) << (rank % 64); }
  int next() {  // a rank, no longer ready; -1 if there is none
    const int rank = fair ? next_of_warp() : first_from(0);
    if (rank >= 0) words[rank / 64] &= ~(uint64_t(1) << (rank % 64)), last = unsigned(rank);
    return rank;
  }

 private:
  int first_from(unsigned rank) const {
    for (unsigned word = rank / 64; word < MAX_CLUSTER_THREADS / 64; ++word) {
      const uint64_t bits = word == rank / 64 ? words[word] & (~uint64_t(0) << (rank % 64)) : words[word];
      if (bits) return int(word * 64 + unsigned(__builtin_ctzll(bits)));
    }
    return -1;
  }
  int next_of_warp() const {
    const unsigned warp = last / WARP;
    const unsigned lanes = unsigned(words[warp / 2] >> warp % 2 * WARP), later = lanes & ~1u << last % WARP;
    if (lanes) return int(warp * WARP + unsigned(__builtin_ctz(later ? later : lanes)));
    const int rank = first_from((warp + 1) * WARP);
    return rank >= 0 ? rank : first_from(0);
  }
  uint64_t words[MAX_CLUSTER_THREADS / 64] = {};
  uint16_t order[MAX_CLUSTER_THREADS];
  unsigned last = 0;
  bool fair = true;
};

// Where blocks that have started early wait until the preceding kernels have ended.
class Gate {
 public:
  void wait();    // called by a block: none of its threads can continue
  void ended();   // called by a block that has ended, whether or not it has waited
  void open();    // the preceding kernels have ended
  void when_reached(unsigned blocks);  // waits until this many blocks wait or have ended
  void when_ended(unsigned blocks);    // waits until this many have ended

 private:
  std::mutex mutex;
  std::condition_variable changed;
  unsigned reached = 0, over = 0;
  bool opened = false;
};

struct Votes {  // for __syncthreads_or, _and, _count
  int any = 0, all = 1, count = 0;
};

// Reused from block to block by one OS thread at a time. The blocks of a cluster run as one, each with its own shared
// memory.
class Block {
 public:
  Thread* current = nullptr;
  dim3 block_dim, grid_dim, cluster_dim;
  Votes votes;  // from the last barrier
  int tensor_sums = 0;  // how tensor cores add (tensor_sums.h)
  std::vector<CountedCopy> counted;  // for the running block

  void begin_launch(dim3 grid, dim3 block, dim3 cluster, size_t dynamic_shared_bytes, uint64_t schedule_seed, void (*kernel)(void*),
                    void* kernel_arguments);
  bool run(uint64_t cluster_number);  // false: see error
  std::string error;
  Gate* gate = nullptr;  // where threads wait, in a block that starts early
  bool must_wait = false;  // whether a thread that ends without having waited is an error

  void wait_for_earlier_grids();
  void leave_the_wait_to_others();  // this thread ends without having waited
  void barrier(Site site, int predicate);
  void cluster_barrier(Site site) { wait_for_all(site, 0); }
  unsigned char* shared_memory() const { return shared_of(current->block_rank); }
  unsigned char* shared_of(unsigned block_rank) const;
  unsigned blocks() const { return cluster_dim.x * cluster_dim.y * cluster_dim.z; }
  MbarrierState& mbarrier_at(const void* place);
  void make_mbarrier(void* place, unsigned arrivals);
  void arrive(MbarrierState& barrier, const void* place);
  void wait_at(Site site, void* place, unsigned parity);
  void start_copy(void* place, const TileCopy& copy);
  bool has_ended(unsigned block_rank) const { return !alive_of[block_rank]; }
  void wait_for_products(Site site, unsigned keep);
  void collective(unsigned mask, Site site, const void* in, void* out, Resolve resolve);
  [[noreturn]] void fail(const char* what);  // abandons the block

 private:
  static void thread_entry();
  void run_thread();
  void go_on_with_another();  // the current thread waits
  int next_rank();            // the thread to continue with; -1: none can run
  void wait_for_all(Site site, int predicate);
  void release_barrier();
  void end_phase_if_over(MbarrierState& barrier, const void* place);
  void land(MbarrierState& barrier);
  void release(Thread& thread) { thread.state = State::RUNNING, schedule.ready(thread.rank); }
  uint3 block_index(unsigned rank) const;  // of a block in the cluster
  void poison_shared();
  void check_shared();

  std::unique_ptr<Thread[]> threads;
  Fiber main_stack;
  Schedule schedule;
  unsigned thread_count = 0, alive = 0, at_barrier = 0;
  unsigned alive_of[MAX_CLUSTER] = {};  // threads of each block
  std::map<const void*, MbarrierState> mbarriers;
  struct Free {
    void operator()(void* memory) const { free(memory); }
  };
  std::unique_ptr<unsigned char, Free> other_shared;  // for the blocks of a cluster after the first
  Site barrier_site{};
  Votes gathering;
  unsigned waiting_lanes[MAX_CLUSTER_THREADS / WARP] = {}, exited_lanes[MAX_CLUSTER_THREADS / WARP] = {};
  uint64_t seed = 0, number = 0;  // number: of the cluster
  size_t shared_bytes = 0;
  void (*body)(void*) = nullptr;
  void* arguments = nullptr;
};

// The block that this OS thread runs.
CUDA_HOST_CONSTINIT extern thread_local Block* running;
}  // namespace cuda_host

namespace cuda_host {
// Checks a launch's grid against what the kernel expects; 0: anything.
inline void check_grid(unsigned x, unsigned y) {
  const dim3 grid = running->grid_dim;
  if ((x && x != grid.x) || (y && y != grid.y)) running->fail("a grid that the kernel's PRECOND forbids");
}
}  // namespace cuda_host

// Dynamic shared memory has the same name everywhere, declared at FILE scope in the kernels:
//   extern __shared__ __align__(16) unsigned char dyn_smem[];
// The explicit symbol name makes it the same object even if build.py puts each kernel file into a namespace.
#define CUDA_HOST_DECLARE_DYN_SMEM                                                                \
  CUDA_HOST_CONSTINIT extern thread_local __attribute__((aligned(16))) unsigned char dyn_smem[] \
      __asm__("cuda_host_dyn_smem")
CUDA_HOST_DECLARE_DYN_SMEM;

#define threadIdx (::cuda_host::running->current->index)
#define blockIdx (::cuda_host::running->current->block)
#define blockDim (::cuda_host::running->block_dim)
#define gridDim (::cuda_host::running->grid_dim)
#define warpSize 32

#define __syncthreads() ::cuda_host::running->barrier(CUDA_HOST_SITE, 0)
#define __syncthreads_or(p) (::cuda_host::running->barrier(CUDA_HOST_SITE, !!(p)), ::cuda_host::running->votes.any)
#define __syncthreads_and(p) (::cuda_host::running->barrier(CUDA_HOST_SITE, !!(p)), ::cuda_host::running->votes.all)
#define __syncthreads_count(p) (::cuda_host::running->barrier(CUDA_HOST_SITE, !!(p)), ::cuda_host::running->votes.count)
#define __trap() ::cuda_host::running->fail("__trap")
