// Features specific to compute capability 9.0: mbarriers, tile copies (TMA) to the blocks of a cluster, wgmma.
//
// A tile's destination becomes NaN at its copy and receives its bytes when something waits for them; the sums of a wgmma become NaN
// when it is started and are correct once it has been waited for, and its operands are read no earlier: each as late as the device may
// do it. Data brought by cp.async needs a fence before a wgmma reads it; other writes to shared memory without the fence that the
// device requires are not detected.
#pragma once
#include "block.h"
#include "tensor_core.h"

namespace cuda_host {
// ---- tiles ----
struct TensorMap {  // occupies the 128 bytes that are opaque to others
  static constexpr uint64_t MAGIC = 0x70616D20726F736E;
  uint64_t magic, matrix, width, rows, stride;
  uint32_t tile_width, tile_rows;
};
static_assert(sizeof(TensorMap) <= 128);

inline bool encode(TensorMap& map, const void* matrix, uint64_t width, uint64_t rows, uint64_t stride, unsigned tile_width,
                   unsigned tile_rows) {
  map = {TensorMap::MAGIC, uint64_t(uintptr_t(matrix)), width, rows, stride, tile_width, tile_rows};
  return uintptr_t(matrix) % 16 == 0 && stride % 16 == 0 && width && rows && 2 * width <= stride && tile_width == 64 &&
         tile_rows && tile_rows <= 256;
}

// Writes a tile, or NaN in its place; returns its size in bytes.
inline size_t write_tile(const TileCopy& copy, bool landed) {
  if (!copy.map) {
    landed ? memcpy(copy.to, copy.from, copy.bytes) : memset(copy.to, 0xFF, copy.bytes);
    return copy.bytes;
  }
  TensorMap map;
  memcpy(&map, copy.map, sizeof map);
  if (map.magic != TensorMap::MAGIC) running->fail("a copy of a tile by what is no tensor map");
  const unsigned char* const base = copy.shared;
  for (unsigned r = 0; r < map.tile_rows; ++r)
    for (unsigned c = 0; c < map.tile_width; ++c) {
      size_t at = size_t(copy.to - base) + r * 128 + c * 2;
      at ^= at / 128 % 8 * 16;
      const int64_t row = int64_t(copy.row) + r, column = int64_t(copy.column) + c;
      const bool there = row >= 0 && column >= 0 && uint64_t(row) < map.rows && uint64_t(column) < map.width;
      uint16_t value = landed ? 0 : 0xFFFF;
      if (landed && there) memcpy(&value, reinterpret_cast<const char*>(map.matrix) + row * int64_t(map.stride) + column * 2, 2);
      memcpy(copy.shared + at, &value, 2);
    }
  return size_t(map.tile_width) * map.tile_rows * 2;
}

// ---- barriers that count bytes ----
inline MbarrierState& Block::mbarrier_at(const void* place) {
  const auto found = mbarriers.find(place);
  if (found == mbarriers.end()) fail("an mbarrier that has not been made");
  return found->second;
}

inline void Block::make_mbarrier(void* place, unsigned arrivals) {
  if (uintptr_t(place) % 8 || !arrivals) fail("an mbarrier misaligned, or for nobody");
  if (!mbarriers.emplace(place, MbarrierState{arrivals, arrivals, 0, 0, {}}).second) fail("an mbarrier made twice");
}

inline void Block::end_phase_if_over(MbarrierState& barrier, const void* place) {
  if (barrier.pending || barrier.bytes) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == State::AT_MBARRIER && threads[i].mbarrier == place) release(threads[i]);
}

inline void Block::arrive(MbarrierState& barrier, const void* place) {
  if (!barrier.pending) fail("more arrivals at an mbarrier than it is made for");
  --barrier.pending;
  end_phase_if_over(barrier, place);
}

// Copies land when something waits for them, the latest point at which the device may deliver them.
inline void Block::land(MbarrierState& barrier) {
  for (const TileCopy& copy : barrier.copies) barrier.bytes -= int64_t(write_tile(copy, true));
  barrier.copies.clear();
}

inline void Block::wait_at(Site site, void* place, unsigned parity) {
  Thread& me = *current;
  me.site = site;
  MbarrierState& barrier = mbarrier_at(place);
  while (barrier.phase % 2 == parity) {
    if (!barrier.copies.empty()) {
      land(barrier);
      end_phase_if_over(barrier, place);
      continue;
    }
    me.state = State::AT_MBARRIER;
    me.mbarrier = place;
    go_on_with_another();
  }
}

inline void Block::start_copy(void* place, const TileCopy& copy) {
  MbarrierState& barrier = mbarrier_at(place);
  write_tile(copy, false);
  barrier.copies.push_back(copy);
  bool waited_for = false;
  for (unsigned i = 0; i < thread_count; ++i)
    waited_for |= threads[i].state == State::AT_MBARRIER && threads[i].mbarrier == place;
  if (!waited_for) return;
  land(barrier);
  end_phase_if_over(barrier, place);
}

inline void mbarrier_init(void* place, unsigned arrivals) { running->make_mbarrier(place, arrivals); }
inline void mbarrier_expect(void* place, unsigned bytes) {
  MbarrierState& barrier = running->mbarrier_at(place);
  barrier.bytes += bytes;
  running->arrive(barrier, place);
}
// The same location in block `rank` of the cluster.
inline unsigned char* place_in(const void* place, unsigned rank) {
  if (rank >= running->blocks()) running->fail("a block that the cluster does not have");
  if (running->has_ended(rank)) running->fail("shared memory of a block that has ended");
  return running->shared_of(rank) + (static_cast<const unsigned char*>(place) - running->shared_memory());
}
inline void mbarrier_arrive(void* place, unsigned rank) {
  void* const there = place_in(place, rank);
  running->arrive(running->mbarrier_at(there), there);
}
inline void mbarrier_wait(Site site, void* place, unsigned parity) { running->wait_at(site, place, parity); }

inline void copy_tile(unsigned char* to, const void* map, int column, int row, void* barrier, unsigned ranks) {
  if ((to - running->shared_memory()) % 128) running->fail("a tile that is not aligned to 128 bytes");
  if (!ranks || ranks >> running->blocks()) running->fail("a tile for no block, or for one that the cluster does not have");
  for (unsigned rank = 0; rank < running->blocks(); ++rank)
    if (ranks >> rank & 1)
      running->start_copy(place_in(barrier, rank), {place_in(to, rank), running->shared_of(rank), map, column, row});
}

/// A prefetch into L2: reads a byte of every line, so that a sanitizer sees what is asked for.
inline void prefetch(const void* from, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i += 64) (void)static_cast<const volatile unsigned char*>(from)[i];
}

// A copy of consecutive bytes to this block. Each is a separate request.
inline void copy_bulk(unsigned char* to, const void* from, unsigned bytes, void* barrier) {
  if ((uintptr_t(to - running->shared_memory()) | uintptr_t(from) | bytes) & 15 || !bytes)
    running->fail("a bulk copy that is misaligned, or of nothing");
  Thread& thread = *running->current;
  if (counting.load(std::memory_order_relaxed))
    running->counted.push_back({thread.linear / WARP, (thread.linear % WARP) << 24 | thread.copies_made++, uint64_t(uintptr_t(from)), bytes});
  running->start_copy(barrier, {to, running->shared_memory(), nullptr, 0, 0, from, bytes});
}

// ---- products of four warps ----
// d[64][columns] += a[64][16] b[columns][16]^T, both in shared memory as laid out by write_tile; or with a in registers and
// b[16][columns].
inline void multiply_group(Thread* group, size_t which) {
  constexpr int ROWS = 64;
  const Product first = group[0].products[which];
  for (int i = 0; i < 128; ++i) {
    const Product& own = group[i].products[which];
    if (own.a != first.a || own.b != first.b || own.accumulate != first.accumulate || own.group != first.group ||
        own.columns != first.columns || own.rows != first.rows)
      running->fail("wgmma: four warps that do not agree");
    if (group[i].copies_hidden) running->fail("wgmma: what cp.async has brought, without a fence");
    if (!own.before.empty()) std::copy(own.before.begin(), own.before.end(), own.sums);
  }
  const unsigned char* const shared = running->shared_of(group[0].block_rank);
  // Element `column` of line `line` of an operand: lines of 128 bytes, in groups of eight.
  const auto element = [&](uint64_t operand, int line, int column) {
    if (operand >> 62 != 1 || operand >> 49 & 7) running->fail("wgmma: an operand in a layout that is not modelled");
    size_t at = (operand & 0x3FFF) * 16 + size_t(line / 8) * (operand >> 32 & 0x3FFF) * 16 + size_t(line % 8 * 128 + column * 2);
    at ^= at / 128 % 8 * 16;
    __half value;
    memcpy(&value, shared + at, 2);
    return value;
  };
  const mma::Sums sums = mma::Sums(running->tensor_sums);
  static thread_local mma::Left left[ROWS];  // static because a fiber's stack is small
  for (int row = 0; row < ROWS; ++row) {
    __half values[16];
    for (int k = 0; k < 16; ++k) {
      if (!first.rows) {
        values[k] = element(first.a, row, k);
        continue;
      }
      const Thread& lane = group[row / 16 * 32 + row % 8 * 4 + k % 8 / 2];
      const unsigned word = lane.products[which].left[k / 8 * 2 + row % 16 / 8];
      const uint16_t half = uint16_t(word >> k % 2 * 16);
      memcpy(&values[k], &half, 2);
    }
    left[row] = mma::left_of(values, sums);
  }
  for (int tile = 0; tile < first.columns / 8; ++tile) {
    __half b[16][8];
    for (int column = 0; column < 8; ++column)
      for (int k = 0; k < 16; ++k)
        b[k][column] = first.rows ? element(first.b, k, tile * 8 + column) : element(first.b, tile * 8 + column, k);
    const mma::Columns columns = mma::columns_of(b, sums);
    for (int row = 0; row < ROWS; ++row) {
      const Thread* const lanes = group + row / 16 * 32 + row % 8 * 4;
      union {
        mma::Row8 row8;
        float at[8];
      } sum;
      const auto place = [&](int column) -> float& {
        return lanes[column / 2].products[which].sums[tile * 4 + row % 16 / 8 * 2 + column % 2];
      };
      for (int column = 0; column < 8; ++column) sum.at[column] = first.accumulate ? place(column) : 0.0f;
      sum.row8 = mma::add_products(sum.row8, left[row], columns, sums);
      for (int column = 0; column < 8; ++column) place(column) = sum.at[column];
    }
  }
}

inline void wgmma_fence() { running->current->fenced = true; }
inline void wgmma_fence_shared() { running->current->copies_hidden = false; }
inline void start_product(Product product) {
  Thread& me = *running->current;
  if (!me.fenced) running->fail("wgmma without a fence before its group");
  bool under_way = false;
  for (const Product& other : me.products) under_way |= other.sums == product.sums;
  product.group = me.product_group;
  if (!under_way) {
    const size_t count = size_t(product.columns) / 2;
    product.before.assign(product.sums, product.sums + count);
    memset(product.sums, 0xFF, count * sizeof(float));
  }
  me.products.push_back(std::move(product));
}
inline void wgmma_m64n128k16(float (&sums)[64], uint64_t a, uint64_t b, bool accumulate) {
  start_product({sums, 128, false, a, b, {}, accumulate, 0, {}});
}
inline void wgmma_m64n64k16(float (&sums)[32], uint64_t a, uint64_t b, bool accumulate) {
  start_product({sums, 64, false, a, b, {}, accumulate, 0, {}});
}
inline void wgmma_m64n64k16_rows(float (&sums)[32], const unsigned (&a)[4], uint64_t b, bool accumulate) {
  start_product({sums, 64, true, 0, b, {a[0], a[1], a[2], a[3]}, accumulate, 0, {}});
}
inline void wgmma_commit() {
  ++running->current->product_group;
  running->current->fenced = false;
}

// They complete when all four warps wait for them, the latest point at which the device may read the operands.
inline void Block::wait_for_products(Site site, unsigned keep) {
  constexpr unsigned GROUP = 4 * WARP;
  Thread& me = *current;
  const unsigned of_block = thread_count / blocks(), own = me.linear % of_block;
  if (of_block - own / GROUP * GROUP < GROUP) fail("wgmma by less than four warps");
  Thread* const group = &threads[me.linear - own % GROUP];
  me.site = site, me.state = State::AT_PRODUCTS, me.keep_groups = keep, me.fenced = false;
  for (unsigned i = 0; i < GROUP; ++i)
    if (group[i].state != State::AT_PRODUCTS) return go_on_with_another();
  for (unsigned i = 0; i < GROUP; ++i)
    if (!(group[i].site == site) || group[i].keep_groups != keep || group[i].products.size() != me.products.size())
      fail("wgmma: four warps that do not agree");
  size_t done = 0;
  for (; done < me.products.size() && me.products[done].group + keep < me.product_group; ++done)
    multiply_group(group, done);
  for (unsigned i = 0; i < GROUP; ++i) {
    std::vector<Product>& products = group[i].products;
    products.erase(products.begin(), products.begin() + ptrdiff_t(done));
    release(group[i]);
  }
  go_on_with_another();
}

inline void wgmma_wait(Site site, unsigned keep) { running->wait_for_products(site, keep); }
}  // namespace cuda_host
