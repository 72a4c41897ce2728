//! Products of activations with weight matrices: y = W x, for one to hundreds of rows of activations.
//!
//! Every output element is computed the same way, regardless of the number of rows, the threads, the tile it falls into and
//! (AVX-512, AVX2) the instruction set: sixteen partial sums, lane j over the k = j mod 16 in order, each step one fused
//! multiply-add; then the fixed tree of [`Simd::sum`]; then the bias. So a token gets the same bits alone, in a batch, and in a
//! prefill. The last k mod 16 elements form a vector padded with zeros.
//!
//! *Error.* A lane takes ⌈k/16⌉ roundings and the tree four, and each product passes through at most all of them, so
//! |y - exact| ≤ γ(⌈k/16⌉ + 4) Σ|w||x| with γ(m) = m·2^-24 / (1 - m·2^-24), that is at most γ(k) for k ≥ 5: the usual
//! forward bound of a dot product, with fewer roundings because the lanes share them. A bias rounds once more.
//!
//! Weights stay in their stored dtype, or in 8 bits ([`Q8Block`]), and are widened in registers (`narrow`, for a few rows,
//! memory-bound) or a strip of outputs at a time (`wide`, compute-bound).

mod narrow;
mod tests;
mod wide;

use super::simd::{Isa, LANES, Simd, Stored};
use super::threads::{Disjoint, ThreadPool};
use std::{cell::Cell, ops::Range, sync::OnceLock, thread::LocalKey};

use crate::backend::q8::{BLOCK, Q8Block};
pub use crate::model::weights::Elements;

/// A weight matrix: [rows, k] row-major, one row per output.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub numbers: Numbers<'a>,
    pub rows: usize,
    pub k: usize,
}

/// Storage of a matrix's weights.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// In their stored dtype.
    File(Elements<'a>),
    /// In blocks of [`LANES`] along k, of which k is a multiple.
    Q8(&'a [Q8Block]),
}

impl Numbers<'_> {
    /// Number of weights.
    fn len(&self) -> usize {
        match self {
            Numbers::File(elements) => elements.len(),
            Numbers::Q8(blocks) => blocks.len() * LANES,
        }
    }
}

/// Runs `$body` with `$w` bound to the weights' slice, whatever its type.
macro_rules! with_weights {
    ($numbers:expr, $w:ident => $body:expr) => {
        match $numbers {
            $crate::backend::cpu::matmul::Numbers::File($crate::backend::cpu::matmul::Elements::F32($w)) => $body,
            $crate::backend::cpu::matmul::Numbers::File($crate::backend::cpu::matmul::Elements::Bf16($w)) => $body,
            $crate::backend::cpu::matmul::Numbers::File($crate::backend::cpu::matmul::Elements::F16($w)) => $body,
            $crate::backend::cpu::matmul::Numbers::Q8($w) => $body,
        }
    };
}
use with_weights;

/// One product of [`matmul_many`].
pub struct Job<'a> {
    pub w: Matrix<'a>,
    /// [w.rows]
    pub bias: Option<&'a [f32]>,
    /// Resized to [n, w.rows], whatever it was before.
    pub y: &'a mut Vec<f32>,
}

/// Computes products instead of [`matmul_many`] where it returns true: to measure other devices' sums (`benches/precision.rs`).
pub static STAND_IN: OnceLock<StandIn> = OnceLock::new();

type StandIn = fn(&mut [Job], &[f32], usize) -> bool;

/// `y[r, o] = Σ_i x[r, i]·w[o, i]` (+ `bias[o]`) for x [n, w.k] and y [n, w.rows].
pub fn matmul(pool: &ThreadPool, isa: Isa, w: &Matrix, x: &[f32], n: usize, y: &mut Vec<f32>, bias: Option<&[f32]>) {
    matmul_many(pool, isa, &mut [Job { w: *w, bias, y }], x, n);
}

/// [`matmul`] of several matrices with the same x [n, k] in one parallel region (query, key and value; gate and up).
pub fn matmul_many(pool: &ThreadPool, isa: Isa, jobs: &mut [Job], x: &[f32], n: usize) {
    let Some(k) = jobs.first().map(|job| job.w.k) else { return };
    assert_eq!(x.len(), n * k, "x is not [n = {n}, k = {k}]");
    if STAND_IN.get().is_some_and(|product| product(jobs, x, n)) {
        return;
    }
    let products: Vec<Product> = jobs.iter_mut().map(|job| Product::new(job, n, k)).collect();
    if n == 0 {
        return;
    }
    if n <= narrow::max_rows(isa, &products) {
        let outs = products.iter().map(|product| product.w.rows).sum();
        let panel = narrow::panel(k, outs, pool.threads());
        return with_lines(&INPUTS, n * k.div_ceil(LANES), |lines| {
            isa.run(narrow::Arrange { x, n, k, lines });
            let lines = &*lines;
            for_panels(pool, &products, panel, n, n, &|product, _, outs| {
                isa.run(narrow::Narrow { product, lines, n, outs });
            });
        });
    }
    let layout = wide::Layout::new(isa, n, k);
    with_lines(&INPUTS, layout.len().div_ceil(LANES), |lines| {
        let inputs: &mut [f32] = bytemuck::cast_slice_mut(lines);
        let parts = Disjoint::new(&mut *inputs);
        pool.run(layout.tiles(), &|tile| isa.run(wide::Arrange { layout, x, tile, to: &parts }));
        let inputs = &*inputs;
        let strips: usize = products.iter().map(|product| product.w.rows.div_ceil(wide::PANEL)).sum();
        let block = layout.block((TASKS * pool.threads()).div_ceil(strips.max(1)));
        for_panels(pool, &products, wide::PANEL, n, block, &|product, rows, outs| {
            with_lines(&SCRATCH, wide::scratch_len(k), |scratch| {
                isa.run(wide::Wide { product, layout, inputs, rows, outs, scratch });
            });
        });
    });
}

/// Approximate number of tasks per thread of a wide product, so that threads finish together.
const TASKS: usize = 4;

/// Calls `task` with every part of every product, in parallel: `row_block` of the n rows by `panel` outputs.
fn for_panels(
    pool: &ThreadPool,
    products: &[Product],
    panel: usize,
    n: usize,
    row_block: usize,
    task: &(impl Fn(&Product, Range<usize>, Range<usize>) + Sync),
) {
    let panels = |product: &Product| product.w.rows.div_ceil(panel);
    let total: usize = products.iter().map(panels).sum();
    pool.run(n.div_ceil(row_block) * total, &|i| {
        let (block, mut i) = (i / total, i % total);
        let rows = block * row_block..n.min((block + 1) * row_block);
        for product in products {
            if i < panels(product) {
                return task(product, rows, i * panel..product.w.rows.min((i + 1) * panel));
            }
            i -= panels(product);
        }
    });
}

/// A vector of sixteen f32, aligned to the cache line: a load that straddles two lines costs two.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

impl Line {
    const ZERO: Line = Line([0.0; LANES]);
}

thread_local! {
    /// The inputs of a product as its kernels read them.
    static INPUTS: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// Inputs of a task of a wide product.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with `len` lines that this thread keeps from call to call: fresh memory costs page faults.
fn with_lines(kept: &'static LocalKey<Cell<Vec<Line>>>, len: usize, f: impl FnOnce(&mut [Line])) {
    let mut lines = kept.take();
    if lines.len() < len {
        lines.resize(len, Line::ZERO);
    }
    f(&mut lines[..len]);
    kept.set(lines);
}

/// A checked [`Job`].
struct Product<'a> {
    w: Matrix<'a>,
    bias: Option<&'a [f32]>,
    y: Disjoint<'a, f32>,
}

impl<'a> Product<'a> {
    fn new(job: &'a mut Job, n: usize, k: usize) -> Self {
        let Job { w, bias, y } = job;
        assert_eq!(w.k, k, "products of one region share their input");
        assert_eq!(w.numbers.len(), w.rows * k, "weights are not [rows = {}, k = {k}]", w.rows);
        assert!(bias.is_none_or(|b| b.len() == w.rows), "bias is not [{}]", w.rows);
        y.resize(n * w.rows, 0.0);
        Product { w: *w, bias: *bias, y: Disjoint::new(y) }
    }

    /// Writes y[row, out..] from a vector of sums and the bias, for the outputs that exist.
    ///
    /// # Safety
    /// `S` as for [`Simd`]; no other thread is writing these elements of y.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, sums: S::V, row: usize, out: usize) {
        let outs = self.w.rows.saturating_sub(out).min(LANES);
        if outs == 0 {
            return;
        }
        let start = row * self.w.rows + out;
        // SAFETY: the caller's promise; a bias is as long as y's row.
        unsafe {
            let bias = match self.bias {
                Some(bias) if outs == LANES => S::load(bias[out..].as_ptr()),
                Some(bias) => f32::load_part::<S>(bias[out..].as_ptr(), outs),
                None => S::splat(-0.0), // adds nothing, and keeps the sign of a zero
            };
            let sums = S::add(sums, bias);
            if outs == LANES {
                S::store(self.y.at(start..start + LANES), sums);
            } else {
                for (i, sum) in S::to_array(sums).into_iter().enumerate().take(outs) {
                    self.y.put(start + i, sum);
                }
            }
        }
    }
}

/// Whether all products have bf16 weights in their stored form.
fn are_bf16(products: &[Product]) -> bool {
    products.iter().all(|product| matches!(product.w.numbers, Numbers::File(Elements::Bf16(_))))
}

const _: () = assert!(BLOCK == LANES);

impl Stored for Q8Block {
    const EACH: usize = LANES;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Q8Block) -> S::V {
        // SAFETY: the caller's pointer is that of a block.
        unsafe {
            let Q8Block { scale, ref quants } = *p;
            S::mul(S::splat(f32::from_bits(u32::from(scale.to_bits()) << 16)), S::load_i8(quants.as_ptr()))
        }
    }
}
