// Definitions that exist once in a program that runs kernels: the stack switch, block internals, launching, the C
// interface.
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "../shim.h"

#if defined(__x86_64__)
__asm__(R"(
.pushsection .text
.hidden cuda_host_switch_stack
.globl cuda_host_switch_stack
.type cuda_host_switch_stack, @function
cuda_host_switch_stack:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    ret
.size cuda_host_switch_stack, . - cuda_host_switch_stack
.popsection
)");
#endif

CUDA_HOST_CONSTINIT thread_local __attribute__((aligned(1024)))
unsigned char dyn_smem[cuda_host::MAX_DYNAMIC_SHARED + cuda_host::SHARED_CANARY];

namespace cuda_host {
CUDA_HOST_CONSTINIT thread_local Block* running = nullptr;

std::vector<const ch_kernel*>& kernels() {
  static std::vector<const ch_kernel*> all;
  return all;
}
std::vector<const ch_variable*>& variables() {
  static std::vector<const ch_variable*> all;
  return all;
}
std::vector<const ch_constant*>& constants() {
  static std::vector<const ch_constant*> all;
  return all;
}

// ---- schedule ----
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Seeds 1, 5, ...: the first thread runs first. 2, 6, ...: the last runs first. 3, 7, ...: warps shuffled, and lanes
// within each. 4, 8, ...: all threads shuffled.
void Schedule::begin(unsigned threads, uint64_t seed, uint64_t block) {
  memset(words, 0, sizeof words);
  fair = seed == 0;
  last = WARP - 1;
  for (unsigned i = 0; i < threads; ++i) order[i] = uint16_t(seed % 4 == 2 ? threads - 1 - i : i);
  if (seed == 0 || seed % 4 == 1 || seed % 4 == 2) return;
  uint64_t state = mixed(seed * 0x9E3779B97F4A7C15u + block);
  auto key = [&](unsigned thread) { return mixed(state ^ mixed(thread + 1)); };
  std::sort(order, order + threads, [&](unsigned a, unsigned b) {
    if (seed % 4 == 3 && a / WARP != b / WARP) return key(MAX_CLUSTER_THREADS + a / WARP) < key(MAX_CLUSTER_THREADS + b / WARP);
    return key(a) < key(b);
  });
}

// ---- shared memory ----
// The thread-local memory of the module that contains the kernels, except what belongs to the shim: __shared__
// variables, by their offset from dyn_smem, which is the same in all threads.
inline std::vector<std::pair<ptrdiff_t, size_t>> find_static_shared() {
  struct Search {
    char *begin = nullptr, *end = nullptr;
  } tls;
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* found) {
        char* base = static_cast<char*>(module->dlpi_tls_data);
        for (int i = 0; base && i < module->dlpi_phnum; ++i) {
          if (module->dlpi_phdr[i].p_type != PT_TLS) continue;
          char* end = base + module->dlpi_phdr[i].p_memsz;
          if (reinterpret_cast<char*>(dyn_smem) < base || reinterpret_cast<char*>(dyn_smem) >= end) continue;
          *static_cast<Search*>(found) = {base, end};
          return 1;
        }
        return 0;
      },
      &tls);
  char* const origin = reinterpret_cast<char*>(dyn_smem);
  std::pair<char*, size_t> own[] = {{origin, sizeof dyn_smem}, {reinterpret_cast<char*>(&running), sizeof running}};
  std::sort(std::begin(own), std::end(own));
  std::vector<std::pair<ptrdiff_t, size_t>> rest;
  for (const auto& [begin, bytes] : own) {
    if (begin > tls.begin) rest.push_back({tls.begin - origin, size_t(begin - tls.begin)});
    tls.begin = begin + bytes;
  }
  if (tls.end > tls.begin) rest.push_back({tls.begin - origin, size_t(tls.end - tls.begin)});
  return rest;
}

unsigned char* Block::shared_of(unsigned block_rank) const {
  return block_rank ? other_shared.get() + (block_rank - 1) * SHARED_STRIDE : dyn_smem;
}

void Block::poison_shared() {  // all ones is NaN in every float type: unwritten memory shows in the results
  for (unsigned rank = 0; rank < blocks(); ++rank) memset(shared_of(rank), 0xFF, shared_bytes + SHARED_CANARY);
  static const auto static_shared = find_static_shared();
  for (const auto& [distance, bytes] : static_shared) memset(dyn_smem + distance, 0xFF, bytes);
#if CUDA_HOST_ASAN
  for (unsigned rank = 0; rank < blocks(); ++rank)
    ASAN_POISON_MEMORY_REGION(shared_of(rank) + shared_bytes, sizeof dyn_smem - shared_bytes);
#endif
}

void Block::check_shared() {
  for (unsigned rank = 0; rank < blocks(); ++rank) {
    unsigned char* const end = shared_of(rank) + shared_bytes;
#if CUDA_HOST_ASAN
    ASAN_UNPOISON_MEMORY_REGION(end, sizeof dyn_smem - shared_bytes);
#endif
    for (size_t i = 0; i < SHARED_CANARY && error.empty(); ++i) {
      if (end[i] == 0xFF) continue;
      const uint3 index = block_index(rank);
      char text[160];
      snprintf(text, sizeof text, "dynamic shared memory written at byte %zu of %zu: block (%u,%u,%u)", shared_bytes + i,
               shared_bytes, index.x, index.y, index.z);
      error = text;
    }
  }
}

// ---- counters ----
std::atomic<bool> counting{false};
std::atomic<uint64_t> bank_conflicts{0};

class Copies {
 public:
  // Adds one block's copies: a warp's copies of equal order form one instruction.
  void add(const char* kernel, std::vector<CountedCopy>& block) {
    const auto instruction = [](const CountedCopy& copy) { return std::pair(copy.warp, copy.order); };
    std::stable_sort(block.begin(), block.end(),
                     [&](const CountedCopy& a, const CountedCopy& b) { return instruction(a) < instruction(b); });
    std::lock_guard<std::mutex> hold(mutex);
    Sectors& sectors = kernels[kernel];
    for (size_t begin = 0, end; begin < block.size(); begin = end) {
      std::map<uint64_t, uint32_t> asked;  // bytes requested in each sector, as bits
      for (end = begin; end < block.size() && instruction(block[end]) == instruction(block[begin]); ++end)
        for (unsigned i = 0; i < block[end].bytes; ++i) {
          const uint64_t byte = block[end].address + i;
          asked[byte / SECTOR] |= 1u << byte % SECTOR;
        }
      for (const auto& [sector, bytes] : asked) {
        sectors.read.insert(sector);
        ++sectors.requests;
        sectors.wasted += SECTOR - unsigned(__builtin_popcount(bytes));
      }
    }
    block.clear();
  }
  void clear() {
    std::lock_guard<std::mutex> hold(mutex);
    kernels.clear();
  }
  ch_copies of(const std::string& prefix) {
    std::lock_guard<std::mutex> hold(mutex);
    ch_copies sum = {0, 0, 0};
    std::set<uint64_t> read;
    for (const auto& [kernel, sectors] : kernels) {
      if (kernel.rfind(prefix, 0)) continue;
      read.insert(sectors.read.begin(), sectors.read.end());
      sum.requests += sectors.requests, sum.wasted += sectors.wasted;
    }
    sum.sectors = read.size();
    return sum;
  }

 private:
  static constexpr unsigned SECTOR = 32;
  struct Sectors {
    std::set<uint64_t> read;
    uint64_t requests = 0, wasted = 0;
  };
  std::mutex mutex;
  std::map<std::string, Sectors> kernels;
};
inline Copies& all_copies() {
  static Copies all;
  return all;
}

// ---- threads ----
void Block::begin_launch(dim3 grid, dim3 block, dim3 cluster, size_t dynamic_shared_bytes, uint64_t schedule_seed,
                         void (*kernel)(void*), void* kernel_arguments) {
  if (!threads) threads.reset(new Thread[MAX_CLUSTER_THREADS]);
  grid_dim = grid;
  block_dim = block;
  cluster_dim = cluster;
  if (blocks() > 1 && !other_shared)
    other_shared.reset(static_cast<unsigned char*>(aligned_alloc(1024, (MAX_CLUSTER - 1) * SHARED_STRIDE)));
  thread_count = block.x * block.y * block.z * blocks();
  shared_bytes = dynamic_shared_bytes;
  seed = schedule_seed;
  body = kernel;
  arguments = kernel_arguments;
  main_stack.forget_bounds();
}

uint3 Block::block_index(unsigned rank) const {
  const dim3 clusters = {grid_dim.x / cluster_dim.x, grid_dim.y / cluster_dim.y, grid_dim.z / cluster_dim.z};
  return {unsigned(number % clusters.x) * cluster_dim.x + rank % cluster_dim.x,
          unsigned(number / clusters.x % clusters.y) * cluster_dim.y + rank / cluster_dim.x % cluster_dim.y,
          unsigned(number / clusters.x / clusters.y) * cluster_dim.z + rank / cluster_dim.x / cluster_dim.y};
}

bool Block::run(uint64_t cluster_number) {
  number = cluster_number;
  error.clear();
  alive = thread_count;
  at_barrier = 0;
  gathering = {};
  std::fill(std::begin(waiting_lanes), std::end(waiting_lanes), 0u);
  std::fill(std::begin(exited_lanes), std::end(exited_lanes), 0u);
  poison_shared();
  mbarriers.clear();
  schedule.begin(thread_count, seed, number);
  const unsigned of_block = thread_count / blocks();
  std::fill(std::begin(alive_of), std::end(alive_of), of_block);
  uint3 indices[MAX_CLUSTER];
  for (unsigned rank = 0; rank < blocks(); ++rank) indices[rank] = block_index(rank);
  for (unsigned rank = 0; rank < thread_count; ++rank) {
    const unsigned i = schedule.thread_at(rank);
    Thread& thread = threads[i];
    const unsigned own = i % of_block;
    thread.index = {own % block_dim.x, own / block_dim.x % block_dim.y, own / (block_dim.x * block_dim.y)};
    thread.block_rank = i / of_block;
    thread.block = indices[thread.block_rank];
    thread.linear = i;
    thread.rank = rank;
    thread.copies.clear();
    thread.copies_hidden = false;
    thread.open_group = thread.copies_made = 0;
    thread.waited = thread.fenced = false;
    thread.products.clear();
    thread.product_group = 0;
    thread.fiber.start_at(thread_entry, i);
    release(thread);
  }
  current = &threads[schedule.thread_at(unsigned(schedule.next()))];
  main_stack.switch_to(current->fiber);
  check_shared();
  for (const auto& [place, barrier] : mbarriers)
    if (error.empty() && !barrier.copies.empty()) error = "a copy of a tile that nothing waits for";
  return error.empty();
}

void Block::thread_entry() {
  running->current->fiber.arrived(&running->main_stack);
  running->run_thread();
}

void Block::run_thread() {
  body(arguments);
  Thread& me = *current;
  if (must_wait && !me.waited) fail("a kernel that starts early has not waited for those before it");
  me.state = State::EXITED;
  exited_lanes[me.linear / WARP] |= 1u << me.linear % WARP;
  if (!me.products.empty()) fail("a thread ends with products under way");
  for (const PendingCopy& copy : me.copies)
    if (copy.source_bytes) fail("a thread ends with copies by cp.async in flight: they may overwrite what was written since");
  --alive, --alive_of[me.block_rank];
  if (alive && at_barrier == alive) release_barrier();  // a block barrier waits for the threads that have not exited
  const int rank = next_rank();
  if (rank < 0 && alive) fail("deadlock");
  if (rank >= 0) current = &threads[schedule.thread_at(unsigned(rank))];
  me.fiber.switch_to(rank < 0 ? main_stack : current->fiber, true);
  abort();  // not reached
}

void Block::go_on_with_another() {
  Thread& me = *current;
  const int rank = next_rank();
  if (rank < 0) fail("deadlock");
  current = &threads[schedule.thread_at(unsigned(rank))];
  if (current != &me) me.fiber.switch_to(current->fiber);
}

int Block::next_rank() {
  const int rank = schedule.next();
  if (rank >= 0 || !gate || !alive) return rank;
  gate->wait();
  gate = nullptr;
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == State::AT_EARLIER_GRIDS) release(threads[i]);
  return schedule.next();
}

void Block::wait_for_earlier_grids() {
  Thread& me = *current;
  me.waited = true;
  if (!gate) return;
  me.state = State::AT_EARLIER_GRIDS;
  go_on_with_another();
}

void Block::leave_the_wait_to_others() { current->waited = true; }

void Gate::wait() {
  std::unique_lock<std::mutex> hold(mutex);
  ++reached;
  changed.notify_all();
  changed.wait(hold, [&] { return opened; });
}
void Gate::ended() {
  std::lock_guard<std::mutex> hold(mutex);
  ++reached, ++over;
  changed.notify_all();
}
void Gate::open() {
  std::lock_guard<std::mutex> hold(mutex);
  opened = true;
  changed.notify_all();
}
void Gate::when_reached(unsigned blocks) {
  std::unique_lock<std::mutex> hold(mutex);
  changed.wait(hold, [&] { return reached >= blocks; });
}
void Gate::when_ended(unsigned blocks) {
  std::unique_lock<std::mutex> hold(mutex);
  changed.wait(hold, [&] { return over >= blocks; });
}

void Block::barrier(Site site, int predicate) {
  if (blocks() > 1) fail("__syncthreads in a cluster, which is not made for");
  wait_for_all(site, predicate);
}

void Block::wait_for_all(Site site, int predicate) {
  Thread& me = *current;
  me.site = site;
  if (at_barrier == 0) barrier_site = site;
  if (!(barrier_site == site)) fail("divergent block or cluster barrier");
  gathering.any |= predicate;
  gathering.all &= predicate;
  gathering.count += predicate;
  me.state = State::AT_BLOCK_BARRIER;
  if (++at_barrier == alive) release_barrier();
  go_on_with_another();
}

void Block::release_barrier() {
  votes = gathering;
  gathering = {};
  at_barrier = 0;
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == State::AT_BLOCK_BARRIER) release(threads[i]);
}

void Block::collective(unsigned mask, Site site, const void* in, void* out, Resolve resolve) {
  Thread& me = *current;
  const unsigned warp = me.linear / WARP, lane = me.linear % WARP, lanes_here = thread_count - warp * WARP;
  Thread* lanes = &threads[warp * WARP];
  if (lanes_here < WARP) {  // the last warp of a block may be partial
    const unsigned here_mask = (1u << lanes_here) - 1;
    if (mask == ~0u) mask = here_mask;
    if (mask & ~here_mask) fail("warp collective names a lane that the block does not have");
  }
  me.site = site, me.mask = mask, me.in = in, me.out = out, me.resolve = resolve;
  if (!(mask >> lane & 1)) fail("warp collective by a lane that is not in its mask");
  if (mask & exited_lanes[warp]) fail("warp collective names a lane that has exited");
  me.state = State::AT_WARP_COLLECTIVE;
  waiting_lanes[warp] |= 1u << lane;
  if (~waiting_lanes[warp] & mask) return go_on_with_another();
  for (unsigned left = mask; left; left &= left - 1) {
    const Thread& other = lanes[__builtin_ctz(left)];
    if (other.mask != mask || !(other.site == site) || other.resolve != resolve) fail("divergent warp collective");
  }
  resolve(lanes, mask);
  waiting_lanes[warp] &= ~mask;
  for (unsigned left = mask; left; left &= left - 1) release(lanes[__builtin_ctz(left)]);
  go_on_with_another();
}

void Block::fail(const char* what) {
  char text[256];
  const Thread& me = *current;
  const char* name = me.site.file ? strrchr(me.site.file, '/') : nullptr;
  snprintf(text, sizeof text, "%s: block (%u,%u,%u), thread %u, last seen at %s:%d", what, me.block.x, me.block.y, me.block.z,
           me.linear % (thread_count / blocks()), name ? name + 1 : me.site.file ? me.site.file : "its start", me.site.line);
  error = text;
  unsigned shown = 0;
  for (unsigned i = 0; i < thread_count; ++i) {
    const Thread& thread = threads[i];
    const char* at = thread.state == State::AT_BLOCK_BARRIER     ? "a block barrier"
                     : thread.state == State::AT_WARP_COLLECTIVE ? "a warp collective, mask "
                     : thread.state == State::AT_MBARRIER        ? "an mbarrier"
                     : thread.state == State::AT_PRODUCTS        ? "products of four warps"
                                                                 : nullptr;
    if (!at || ++shown > 8) continue;
    snprintf(text, sizeof text, "\n  thread %u waits at %s:%d, %s", i, thread.site.file, thread.site.line, at);
    error += text;
    if (thread.state != State::AT_WARP_COLLECTIVE) continue;
    snprintf(text, sizeof text, "%08x", thread.mask);
    error += text;
  }
  if (shown > 8) error += "\n  and " + std::to_string(shown - 8) + " more";
  current->fiber.switch_to(main_stack, true);
  abort();  // not reached
}

// ---- launches ----
inline int tensor_sums_from_environment() {
  const char* name = getenv("UQAC_HOST_CUDA_TENSOR");
  if (!name || !*name || !strcmp(name, "ampere")) return mma::AMPERE;
  if (!strcmp(name, "hopper")) return mma::HOPPER;
  if (!strcmp(name, "nearest")) return mma::NEAREST;
  fprintf(stderr, "UQAC_HOST_CUDA_TENSOR=%s: expected ampere, hopper or nearest\n", name);
  abort();
}
inline bool waits_are_broken() {
  const char* early = getenv("UQAC_HOST_CUDA_EARLY");
  return early && !strcmp(early, "broken");
}
struct Settings {
  unsigned os_threads = 1;
  uint64_t seed = 0;
  int tensor_sums = tensor_sums_from_environment();
  std::string error;
};
inline Settings& settings() {
  static Settings all;
  return all;
}

class BlockPool {  // stacks are worth reusing
 public:
  std::unique_ptr<Block> take() {
    std::lock_guard<std::mutex> hold(mutex);
    if (free.empty()) return std::unique_ptr<Block>(new Block);
    std::unique_ptr<Block> block = std::move(free.back());
    free.pop_back();
    return block;
  }
  void give(std::unique_ptr<Block> block) {
    std::lock_guard<std::mutex> hold(mutex);
    free.push_back(std::move(block));
  }

 private:
  std::mutex mutex;
  std::vector<std::unique_ptr<Block>> free;
};

// OS threads that help with a launch's blocks. They live as long as the process: a launch often takes less time than
// starting a thread.
class Helpers {
 public:
  static Helpers& ours() {
    static Helpers* helpers = nullptr;
    if (!helpers || helpers->process != getpid()) helpers = new Helpers;  // a forked child has none of its parent's threads
    return *helpers;
  }
  // Runs `work` here and on up to `count` helpers; returns when all that started have finished. One call at a time.
  void run(unsigned count, const std::function<void()>& work) {
    {
      std::lock_guard<std::mutex> hold(mutex);
      for (; threads < count; ++threads) std::thread([this] { help(); }).detach();
      job = &work;
      seats = count;
    }
    for (unsigned i = 0; i < count; ++i) wake.notify_one();
    work();
    std::unique_lock<std::mutex> hold(mutex);
    seats = 0;  // a helper that has not started is not needed
    idle.wait(hold, [&] { return busy == 0; });
  }

 private:
  [[noreturn]] void help() {
    std::unique_lock<std::mutex> hold(mutex);
    for (;;) {
      wake.wait(hold, [&] { return seats > 0; });
      --seats, ++busy;
      const std::function<void()>& work = *job;
      hold.unlock();
      work();
      hold.lock();
      if (--busy == 0) idle.notify_one();
    }
  }

  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable wake, idle;
  const std::function<void()>* job = nullptr;
  unsigned threads = 0, seats = 0, busy = 0;
};

// OS threads for blocks that start early: each is busy until the preceding kernels have ended, so there are as many as
// blocks wait at once. They live as long as the process, too.
class EarlyThreads {
 public:
  static EarlyThreads& ours() {
    static EarlyThreads* threads = nullptr;
    if (!threads || threads->process != getpid()) threads = new EarlyThreads;
    return *threads;
  }
  void start(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> hold(mutex);
      waiting.push_back(std::move(work));
      if (waiting.size() > idle) std::thread([this] { serve(); }).detach(), ++idle;
    }
    wake.notify_one();
  }

 private:
  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> hold(mutex);
    for (;;) {
      wake.wait(hold, [&] { return !waiting.empty(); });
      const std::function<void()> work = std::move(waiting.back());
      waiting.pop_back();
      --idle;
      hold.unlock();
      work();
      hold.lock();
      ++idle;
    }
  }

  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::function<void()>> waiting;
  size_t idle = 0;
};

inline const char* refusal(dim3 grid, dim3 block, dim3 cluster, unsigned shared_bytes) {
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads) return "an empty grid or block";
  if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > MAX_THREADS) return "too large a block";
  if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) return "too large a grid";
  if (shared_bytes > MAX_DYNAMIC_SHARED) return "too much dynamic shared memory";
  if (grid.x % cluster.x || grid.y % cluster.y) return "a grid that is not of whole clusters";
  const unsigned of_cluster = cluster.x * cluster.y;
  if (of_cluster > MAX_CLUSTER || (of_cluster > 1 && (threads % WARP || threads * of_cluster > MAX_CLUSTER_THREADS)))
    return "too large a cluster, or of blocks with a part of a warp";
  return nullptr;
}

// As specified by CLUSTERS in the kernels: X | Y << 8.
inline dim3 cluster_of(const ch_kernel& kernel) {
  const unsigned* size = ch_find_constant((std::string(kernel.name) + "_cluster").c_str());
  return size ? dim3(*size & 255, *size >> 8) : dim3(1);
}

// The blocks of one launch.
class Launch {
 public:
  Launch(const ch_kernel& which, dim3 grid_dim, dim3 block_dim, unsigned shared, void** values)
      : kernel(which), grid(grid_dim), block(block_dim), shared_bytes(shared), seed(settings().seed),
        cluster(cluster_of(which)),
        blocks(uint64_t(grid.x / cluster.x) * (grid.y / cluster.y) * grid.z), params(values, values + which.param_count),
        starts_early(ch_find_constant((std::string(which.name) + "_starts_early").c_str()) != nullptr) {}

  // Runs the first and the last block up to where they wait for the preceding kernels.
  void begin_early() {
    first_turn = std::min<uint64_t>(blocks, 2);
    for (uint64_t turn = 0; turn < first_turn; ++turn)
      EarlyThreads::ours().start([this, number = turn ? blocks - 1 : 0] {
        auto mine = begin_block(waits_are_broken() ? nullptr : &gate);
        run_block(*mine, number);
        end_block(mine);
        gate.ended();
      });
    gate.when_reached(unsigned(first_turn));
  }

  // The preceding kernels have ended: runs the rest. Returns the same as ch_launch.
  int finish() {
    gate.open();
    std::atomic<uint64_t> next{first_turn};
    const auto work = [&] {
      auto mine = begin_block(nullptr);
      for (uint64_t turn; !failed && (turn = next++) < blocks;) {
        const uint64_t i = first_turn ? turn - 1 : turn;  // the first and the last have begun
        run_block(*mine, seed % 2 ? blocks - 1 - i : i);
      }
      end_block(mine);
    };
    const unsigned threads = unsigned(std::min<uint64_t>(settings().os_threads, blocks - first_turn));
    if (threads > 1)
      Helpers::ours().run(threads - 1, work);
    else if (threads)
      work();
    gate.when_ended(unsigned(first_turn));
    return failed ? 2 : 0;
  }

 private:
  // Stacks are worth reusing: blocks come from a pool.
  static BlockPool& pool() {
    static BlockPool all;
    return all;
  }
  std::unique_ptr<Block> begin_block(Gate* at) {
    std::unique_ptr<Block> mine = pool().take();
    running = mine.get();
    mine->tensor_sums = settings().tensor_sums;
    mine->gate = at;
    mine->must_wait = starts_early;
    mine->begin_launch(grid, block, cluster, shared_bytes, seed, [](void* launch) {
      Launch& ours = *static_cast<Launch*>(launch);
      ours.kernel.call(ours.params.data());
    }, this);
    return mine;
  }
  void end_block(std::unique_ptr<Block>& mine) {
    running = nullptr;
    pool().give(std::move(mine));
  }
  void run_block(Block& mine, uint64_t number) {
    const bool ran = mine.run(number);
    if (!mine.counted.empty()) all_copies().add(kernel.name, mine.counted);
    if (ran) return;
    std::lock_guard<std::mutex> hold(reporting);
    failed = true;
    if (number > first_failed) return;  // of the failing blocks, the first is reported, whichever thread ran it
    first_failed = number;
    settings().error = std::string(kernel.name) + ": " + mine.error;
  }

  const ch_kernel& kernel;
  const dim3 grid, block;
  const unsigned shared_bytes;
  const uint64_t seed;
  const dim3 cluster;
  const uint64_t blocks;  // or clusters
  std::vector<void*> params;
  const bool starts_early;
  Gate gate;
  uint64_t first_turn = 0;  // the first of the blocks that have not begun early
  std::atomic<bool> failed{false};
  std::mutex reporting;
  uint64_t first_failed = UINT64_MAX;
};

inline bool refused(const ch_kernel& kernel, dim3 grid, dim3 block, unsigned shared_bytes) {
  const char* why = refusal(grid, block, cluster_of(kernel), shared_bytes);
  if (why) settings().error = std::string(kernel.name) + ": " + why;
  return why;
}
}  // namespace cuda_host

struct ch_early : cuda_host::Launch {
  using Launch::Launch;
};

#define CUDA_HOST_VISIBLE __attribute__((visibility("default")))
extern "C" {
CUDA_HOST_VISIBLE const ch_kernel* ch_find(const char* name) {
  for (const ch_kernel* kernel : cuda_host::kernels())
    if (!strcmp(kernel->name, name)) return kernel;
  return nullptr;
}
CUDA_HOST_VISIBLE int ch_kernel_count(void) { return int(cuda_host::kernels().size()); }
CUDA_HOST_VISIBLE const char* ch_kernel_name(int i) { return cuda_host::kernels()[size_t(i)]->name; }
CUDA_HOST_VISIBLE const unsigned* ch_find_constant(const char* name) {
  for (const ch_constant* constant : cuda_host::constants())
    if (!strcmp(constant->name, name)) return &constant->value;
  return nullptr;
}
CUDA_HOST_VISIBLE bool ch_is_constant(const void* at, size_t bytes) {
  for (const ch_constant* constant : cuda_host::constants())
    if (at == &constant->value && bytes <= sizeof constant->value) return true;
  return false;
}
CUDA_HOST_VISIBLE const ch_variable* ch_get_variable(int i) {
  return size_t(i) < cuda_host::variables().size() ? cuda_host::variables()[i] : nullptr;
}
CUDA_HOST_VISIBLE int ch_nparams(const ch_kernel* kernel) { return kernel->param_count; }
CUDA_HOST_VISIBLE int ch_param_size(const ch_kernel* kernel, int i) { return kernel->param_sizes[i]; }
CUDA_HOST_VISIBLE int ch_launch(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                                unsigned dynamic_shared_bytes, void** params) {
  const dim3 blocks = {grid[0], grid[1], grid[2]}, threads = {block[0], block[1], block[2]};
  if (cuda_host::refused(*kernel, blocks, threads, dynamic_shared_bytes)) return 1;
  return cuda_host::Launch(*kernel, blocks, threads, dynamic_shared_bytes, params).finish();
}
CUDA_HOST_VISIBLE ch_early* ch_begin_early(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                                           unsigned dynamic_shared_bytes, void** params) {
  auto launch = std::make_unique<ch_early>(*kernel, dim3(grid[0], grid[1], grid[2]),
                                           dim3(block[0], block[1], block[2]), dynamic_shared_bytes, params);
  launch->begin_early();
  return launch.release();
}
CUDA_HOST_VISIBLE int ch_finish(ch_early* launch) { return std::unique_ptr<ch_early>(launch)->finish(); }
CUDA_HOST_VISIBLE int ch_launch_checked(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                                        unsigned dynamic_shared_bytes, void** params, const int* sizes, int count) {
  std::string& error = cuda_host::settings().error;
  if (count != kernel->param_count) {
    error = std::string(kernel->name) + ": takes " + std::to_string(kernel->param_count) + " parameters, got " +
            std::to_string(count);
    return 1;
  }
  for (int i = 0; i < count; ++i) {
    if (sizes[i] == kernel->param_sizes[i]) continue;
    error = std::string(kernel->name) + ": parameter " + std::to_string(i) + " has " +
            std::to_string(kernel->param_sizes[i]) + " bytes, got " + std::to_string(sizes[i]);
    return 1;
  }
  return ch_launch(kernel, grid, block, dynamic_shared_bytes, params);
}
CUDA_HOST_VISIBLE const char* ch_refusal(const ch_kernel* kernel, const unsigned* grid, const unsigned* block,
                                         unsigned dynamic_shared_bytes) {
  return cuda_host::refusal({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, cuda_host::cluster_of(*kernel),
                            dynamic_shared_bytes);
}
CUDA_HOST_VISIBLE bool ch_has_clusters(void) { return true; }
CUDA_HOST_VISIBLE bool ch_encode_tensor_map(void* map, const void* matrix, uint64_t width, uint64_t rows, uint64_t stride,
                                            unsigned tile_width, unsigned tile_rows) {
  cuda_host::TensorMap made;
  const bool taken = cuda_host::encode(made, matrix, width, rows, stride, tile_width, tile_rows);
  memset(map, 0, 128);
  memcpy(map, &made, sizeof made);
  return taken;
}
CUDA_HOST_VISIBLE const char* ch_last_error(void) { return cuda_host::settings().error.c_str(); }
CUDA_HOST_VISIBLE void ch_configure(unsigned os_threads, uint64_t seed) {
  cuda_host::settings().os_threads = os_threads;
  cuda_host::settings().seed = seed;
}
CUDA_HOST_VISIBLE void ch_count_copies(bool on) {
  cuda_host::all_copies().clear();
  cuda_host::counting = on;
}
CUDA_HOST_VISIBLE ch_copies ch_copies_of(const char* kernel) { return cuda_host::all_copies().of(kernel); }
CUDA_HOST_VISIBLE uint64_t ch_bank_conflicts(void) { return cuda_host::bank_conflicts; }
CUDA_HOST_VISIBLE int ch_tensor_sums(int sums) {
  const int before = cuda_host::settings().tensor_sums;
  if (sums >= 0) cuda_host::settings().tensor_sums = sums;
  return before;
}
}
