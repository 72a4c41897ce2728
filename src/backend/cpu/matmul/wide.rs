//! Products with many rows of activations: sixteen outer products, one for each lane of the sums.
//!
//! A vector of sums holds one lane of sixteen outputs, whereas in [`narrow`](super::narrow) it holds sixteen lanes of one
//! output. So a register tile is 14 rows by 32 outputs of a lane, and reads a fifth of the inputs from the L2 cache that a
//! tile of 4 × 6 outputs in all lanes would read. Lanes are in the order in which the tree adds them up, so that at most four
//! sums per output are pending, and every element is summed in the module's order, bit-exact.
//!
//! Both operands are laid out lane by lane: the inputs once per product, the weights once per strip and block of rows.

use super::super::simd::{Isa, Kernel, LANES, Simd, Stored};
use super::{super::threads::Disjoint, Line, Product, with_weights};
use std::ops::Range;

/// Outputs of one task, a multiple of every strip.
pub const PANEL: usize = 32;

/// Max rows of one task: enough to make the cost of laying out the weights negligible.
const MAX_BLOCK: usize = 512;

/// Approximate number of rows multiplied by one lane's weights (a few KiB in the L1 cache) before the next lane's turn: their
/// pending tiles stay in the L2 cache.
const GROUP: usize = 112;

/// Prefetch distance of weights in bytes: a strip is read in one stream per output, more than the CPU prefetches on its own.
const AHEAD: usize = 256;

/// Prefetch distance of inputs, in elements, if a step reads most of a cache line. A step of six takes a third of one: there
/// the CPU prefetches on its own, and one prefetch per step costs a tenth of the speed.
const INPUTS_AHEAD: usize = 128;

/// Lanes in the order of the leaves of the tree of [`Simd::sum`].
const ORDER: [usize; LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Levels of that tree, including its root.
const LEVELS: usize = LANES.ilog2() as usize + 1;

/// Vectors of outputs in a strip, which is as wide as a register tile: 14 × 2 of 32 registers hold sums, 6 × 1 of 8.
const fn strip_vectors<S: Simd>() -> usize {
    if S::REGISTERS >= 32 { 2 } else { 1 }
}

/// Layout of a product's inputs [n, k] for an instruction set: in groups of tiles of `height` rows, each
/// [lanes][tiles of the group][steps][height] elements. The last step along k and the last tile of rows are padded with zeros.
#[derive(Clone, Copy)]
pub struct Layout {
    n: usize,
    k: usize,
    /// Rows of a tile.
    height: usize,
}

impl Layout {
    pub fn new(isa: Isa, n: usize, k: usize) -> Layout {
        let (min, max) = match isa.registers() {
            32.. => (11, 14),
            8.. => (5, 6),
            _ => (2, 2),
        };
        // as even as possible, so that no tile is almost empty
        let height = n.div_ceil(n.div_ceil(max)).max(min);
        Layout { n, k, height }
    }

    fn steps(self) -> usize {
        self.k.div_ceil(LANES)
    }

    fn group_tiles(self) -> usize {
        GROUP / self.height
    }

    /// Elements in total.
    pub fn len(self) -> usize {
        self.tiles() * self.size() * LANES
    }

    /// Elements of one lane of a tile.
    fn size(self) -> usize {
        self.steps() * self.height
    }

    /// Start of a lane of the group that begins with tile `first`; its tiles are contiguous.
    fn lane(self, first: usize, lane: usize) -> usize {
        let tiles = self.group_tiles().min(self.tiles() - first);
        (first * LANES + lane * tiles) * self.size()
    }

    /// Rows of a block: whole groups, few enough that the product has about `blocks` blocks, but no more than about
    /// [`MAX_BLOCK`].
    pub fn block(self, blocks: usize) -> usize {
        let blocks = blocks.max(self.n.div_ceil(MAX_BLOCK));
        self.n.div_ceil(blocks).next_multiple_of(self.group_tiles() * self.height)
    }

    /// Tiles of all rows.
    pub fn tiles(self) -> usize {
        self.n.div_ceil(self.height)
    }
}

/// Lays out a tile of x [n, k] in its part of `to`.
pub struct Arrange<'a> {
    pub layout: Layout,
    pub x: &'a [f32],
    pub tile: usize,
    /// [`Layout::len`] elements
    pub to: &'a Disjoint<'a, f32>,
}

impl Kernel for Arrange<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Arrange { layout, x, tile, to } = self;
        let Layout { n, k, height } = layout;
        let (first, size) = (tile - tile % layout.group_tiles(), layout.size());
        let (lane, apart) = (layout.lane(first, 0), layout.lane(first, 1) - layout.lane(first, 0));
        let start = lane + (tile - first) * size;
        for step in 0..layout.steps() {
            let (row, from, at) = (tile * height, step * LANES, step * height);
            if row + LANES <= n && from + LANES <= k && at + LANES <= size {
                // anything written past the tile's rows is overwritten by later steps
                let x = x[row * k + from..][..(LANES - 1) * k + LANES].as_ptr();
                // SAFETY: there are sixteen inputs of sixteen rows at x; sixteen elements of each lane belong to this tile,
                // which no other thread writes; started by `Isa::run`.
                unsafe { S::transpose(x, k, to.at(start + at..start + at + (LANES - 1) * apart + LANES), apart) };
                continue;
            }
            for i in from..from + LANES {
                for r in 0..height {
                    let x = if row + r < n && i < k { x[(row + r) * k + i] } else { 0.0 };
                    // SAFETY: as above.
                    unsafe { to.put(start + (i - from) * apart + at + r, x) };
                }
            }
        }
    }
}

/// y[rows, outs].
pub struct Wide<'a> {
    pub product: &'a Product<'a>,
    pub layout: Layout,
    /// All of x, as laid out by [`Arrange`] with the same instruction set.
    pub inputs: &'a [f32],
    /// Whole groups, from [`Layout::block`].
    pub rows: Range<usize>,
    /// At most [`PANEL`].
    pub outs: Range<usize>,
    /// At least [`scratch_len`] long.
    pub scratch: &'a mut [Line],
}

/// Lines that [`Wide`] needs in addition to registers: the weights of a strip, and the pending tiles of a group.
pub fn scratch_len(k: usize) -> usize {
    let widest = PANEL / LANES;
    LANES * lane_lines(k, widest) + LEVELS * GROUP * widest
}

/// Lines of a lane's weights in a strip of `vectors`; one more than needed, since lanes a multiple of a page apart would map
/// to the same cache set.
fn lane_lines(k: usize, vectors: usize) -> usize {
    k.div_ceil(LANES) * vectors + 1
}

impl Kernel for Wide<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Wide { product, layout, inputs, rows, outs: all, scratch } = self;
        assert!(inputs.len() >= layout.len() && scratch.len() >= scratch_len(layout.k));
        let (weights, waiting) = scratch.split_at_mut(LANES * lane_lines(layout.k, strip_vectors::<S>()));
        let mut out = all.start;
        while out < all.end {
            let outs = out..all.end.min(out + strip_vectors::<S>() * LANES);
            let mut strip = Strip { product, layout, inputs, rows: rows.clone(), outs, weights, waiting };
            // SAFETY: `Product::new` and the line above have checked the sizes; started by `Isa::run`.
            unsafe {
                with_weights!(product.w.numbers, w => strip.arrange::<S, _>(w));
                match layout.height {
                    14 if S::REGISTERS >= 32 => strip.run::<S, 14, 2>(),
                    13 if S::REGISTERS >= 32 => strip.run::<S, 13, 2>(),
                    12 if S::REGISTERS >= 32 => strip.run::<S, 12, 2>(),
                    _ if S::REGISTERS >= 32 => strip.run::<S, 11, 2>(),
                    6 if S::REGISTERS >= 8 => strip.run::<S, 6, 1>(),
                    _ if S::REGISTERS >= 8 => strip.run::<S, 5, 1>(),
                    _ => strip.run::<S, 2, 1>(),
                }
            }
            out = strip.outs.end;
        }
    }
}

/// The outputs of a register tile, and what a task needs for them.
struct Strip<'a> {
    product: &'a Product<'a>,
    layout: Layout,
    inputs: &'a [f32],
    rows: Range<usize>,
    outs: Range<usize>,
    /// [lanes][steps][vectors of the strip], each lane [`lane_lines`] long.
    weights: &'a mut [Line],
    /// [levels][tiles of a group][height][vectors of the strip]
    waiting: &'a mut [Line],
}

impl Strip<'_> {
    /// Widens the strip's weights and lays them out; missing outputs are zeros.
    ///
    /// # Safety
    /// `S` as for [`Simd`], w is [rows, k].
    #[inline(always)]
    unsafe fn arrange<S: Simd, W: Stored>(&mut self, w: &[W]) {
        let k = self.product.w.k;
        let lane = lane_lines(k, strip_vectors::<S>()) * LANES;
        let mut turned = [Line::ZERO; LANES];
        for vector in 0..strip_vectors::<S>() {
            for step in 0..k.div_ceil(LANES) {
                let (first, from) = (self.outs.start + vector * LANES, step * LANES);
                // SAFETY: a row of w has k weights, and those before the strip's end exist; the other lanes follow this
                // vector of the first lane, each `lane` elements further.
                unsafe {
                    let p = W::at(w.as_ptr(), first * k + from);
                    if first + LANES <= self.outs.end && from + LANES <= k {
                        for (i, line) in turned.iter_mut().enumerate() {
                            let p = W::at(p, i * k);
                            S::prefetch(p.cast::<u8>().wrapping_add(AHEAD));
                            S::store(line.0.as_mut_ptr(), W::load::<S>(p));
                        }
                    } else {
                        turned = [Line::ZERO; LANES];
                        for (i, line) in turned.iter_mut().enumerate().take(self.outs.end.saturating_sub(first)) {
                            let (p, to) = (W::at(p, i * k), line.0.as_mut_ptr());
                            S::store(
                                to,
                                if from + LANES <= k { W::load::<S>(p) } else { W::load_part::<S>(p, k - from) },
                            );
                        }
                    }
                    let to = &mut self.weights[step * strip_vectors::<S>() + vector..];
                    S::transpose(turned.as_ptr().cast(), LANES, to.as_mut_ptr().cast(), lane);
                }
            }
        }
    }

    /// All rows: group by group, lane by lane, tile by tile.
    ///
    /// # Safety
    /// `S` as for [`Simd`]; `layout.height` is R, the strip has C vectors, and `arrange` has been called; no other thread writes
    /// these outputs.
    #[inline(always)]
    unsafe fn run<S: Simd, const R: usize, const C: usize>(&mut self) {
        let Layout { k, .. } = self.layout;
        let (steps, lane_lines) = (self.layout.steps(), lane_lines(k, C));
        let tiles = self.rows.start / R..self.rows.end.div_ceil(R);
        let group_tiles = self.layout.group_tiles();
        for group in tiles.clone().step_by(group_tiles) {
            let count = group_tiles.min(tiles.end - group);
            for (leaf, lane) in ORDER.into_iter().enumerate() {
                let weights = self.weights[lane * lane_lines..][..steps * C].as_ptr().cast();
                let inputs = &self.inputs[self.layout.lane(group, lane)..][..count * steps * R];
                for tile in 0..count {
                    let inputs = inputs[tile * steps * R..].as_ptr();
                    // SAFETY: there are `steps` steps of R inputs and of C vectors of weights.
                    unsafe {
                        let acc = lane_of_tile::<S, R, C>(inputs, weights, steps);
                        self.wait::<S, R, C>(acc, tile, leaf);
                    }
                }
            }
            let sums = self.waiting[(LEVELS - 1) * GROUP * C..][..count * R * C].as_ptr().cast::<f32>();
            for row in 0..(count * R).min(self.rows.end - group * R) {
                for c in 0..C {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let sums = S::load(sums.add((row * C + c) * LANES));
                        self.product.put::<S>(sums, group * R + row, self.outs.start + c * LANES);
                    }
                }
            }
        }
    }

    /// Adds to a lane's tile the pending ones that complete a branch of the sum tree with it. The result stays pending for
    /// the next, the root for being written.
    ///
    /// # Safety
    /// `S` as for [`Simd`].
    #[inline(always)]
    unsafe fn wait<S: Simd, const R: usize, const C: usize>(
        &mut self,
        mut acc: [[S::V; C]; R],
        tile: usize,
        leaf: usize,
    ) {
        let level = leaf.trailing_ones() as usize;
        for i in 0..level {
            let branch = self.waiting[(i * GROUP + tile * R) * C..][..R * C].as_ptr().cast::<f32>();
            for (r, acc) in acc.iter_mut().enumerate() {
                for (c, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: there are R·C lines.
                    *acc = unsafe { S::add(S::load(branch.add((r * C + c) * LANES)), *acc) };
                }
            }
        }
        let branch = self.waiting[(level * GROUP + tile * R) * C..][..R * C].as_mut_ptr().cast::<f32>();
        for (r, acc) in acc.iter().enumerate() {
            for (c, acc) in acc.iter().enumerate() {
                // SAFETY: there are R·C lines.
                unsafe { S::store(branch.add((r * C + c) * LANES), *acc) };
            }
        }
    }
}

/// One lane of a register tile: R inputs per step at x times C vectors of weights at w.
///
/// # Safety
/// As for [`Simd`]; `steps` steps of R elements at x and C vectors at w.
#[inline(always)]
unsafe fn lane_of_tile<S: Simd, const R: usize, const C: usize>(
    x: *const f32,
    w: *const f32,
    steps: usize,
) -> [[S::V; C]; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        for step in 0..steps {
            if S::REGISTERS >= 32 {
                S::prefetch(x.wrapping_add(step * R + INPUTS_AHEAD).cast());
            }
            let mut weights = [S::splat(0.0); C];
            for (c, weights) in weights.iter_mut().enumerate() {
                *weights = S::load(w.add((step * C + c) * LANES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::splat(*x.add(step * R + r));
                for (acc, w) in acc.iter_mut().zip(weights) {
                    *acc = S::fma(w, x, *acc);
                }
            }
        }
        acc
    }
}
