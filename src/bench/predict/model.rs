//! Seconds of a step, of a prefill and of the ensemble on a device, from bytes, instructions and what is assumed.

use super::super::roofline::{ANSWER, attention_operations, positions};
use super::accelerators::Accelerator;
use super::counts;
use crate::backend::cuda::{
    DECODE_CHUNK, DECODE_GROUP, DECODE_ROWS, GEMM_ROWS, GemmDevice, HOPPER, HOPPER_BLOCK, MAX_ROWS, NARROW_VARIANTS,
    WIDE_OUTS, decode_splits, hopper_grid,
};
use crate::model::ModelSpec;

/// Something assumed, and by how much it may be off either way.
type Assumed = (f64, f64);

/// Of the published bandwidth, what large reads reach.
const COPY_SHARE: Assumed = (0.90, 0.03);
/// Seconds from the end of a graph's node to the start of the next.
const GAP: Assumed = (1.3e-6, 0.4e-6);
/// The same where the next node's blocks already wait: the last writes have to become visible, and a wait has to end.
const EARLY_GAP: Assumed = (0.6e-6, 0.4e-6);
/// Seconds of a node that reads memory in which it does not read at full rate: until its first bytes arrive, and in the last
/// wave of its blocks.
const RAMP: Assumed = (2.2e-6, 1.0e-6);
/// The same of a product whose first weights were asked for before the node before it had ended: the last wave.
const EARLY_RAMP: Assumed = (1.2e-6, 0.8e-6);
/// Seconds of a node that reads little: a round to the second cache, and one back.
const SMALL_NODE: Assumed = (1.0e-6, 0.5e-6);
/// Seconds from the last block of attention to have its sums until those of all splits are merged: its writes have to become
/// visible, it counts, and reads what the others wrote.
const MERGE: Assumed = (1.0e-6, 0.4e-6);
/// Bytes a cycle that one multiprocessor takes from the second cache.
const CACHE_BYTES_A_CYCLE: f64 = 64.0;
/// Seconds by which a product ends later for rotating queries and keys and putting them away: it reads where they go, then angles.
const ROTATION: Assumed = (0.3e-6, 0.2e-6);
/// Instructions a cycle and multiprocessor, of four at most, of a product's loop and of attention's, which has barriers.
const PRODUCT_IPC: Assumed = (2.8, 0.5);
const ATTENTION_IPC: Assumed = (1.7, 0.5);
/// Of the instructions of attention's loop, those that a pass executes, in a step and in a prefill; the others are calls for the
/// edges, and in a prefill what traced rows do and others do not. (All of them in products.)
const ATTENTION_EXECUTED: Assumed = (0.85, 0.1);
const PREFILL_EXECUTED: Assumed = (0.51, 0.1);
const HOPPER_PREFILL_EXECUTED: Assumed = (0.60, 0.1);
/// Of the matrix peak, what large products by wgmma reach: the clock falls when all tensor cores are busy.
const WGMMA_SHARE: Assumed = (0.80, 0.07);
/// Seconds of a block of `gemm_hopper.cu` in which its tensor cores wait, as no other block is there: until the first slices come,
/// and while results are written.
const HOPPER_BLOCK_ENDS: Assumed = (2.5e-6, 1.0e-6);
/// Of the multiprocessors, those that clusters of four blocks find place on: a cluster does not reach from one group of 16 or 18 to
/// another.
const CLUSTERED: Assumed = (0.97, 0.03);
/// Of the activations that blocks of a product read, those that come from the second cache: the others are in the first one, where
/// the block beside had them.
const CACHE_READS: Assumed = (0.6, 0.3);
/// Seconds of the two kernels that read the logits.
const READ_LOGITS: Assumed = (14e-6, 6e-6);
/// Seconds of the chain and the similarities after an answer: some tens of queries after one another, each a few small kernels
/// and a copy to the host.
const CHAIN: Assumed = (2e-3, 1.5e-3);
/// Of the bytes of activations that norms and rotations of a prefill read and write, those that go to memory: the
/// second cache may keep some, and it may have to give up others.
const ACTIVATIONS: Assumed = (0.9, 0.4);

/// Bytes of a weight, and of a key and a value: f16, and the cache's default of f32 and f16.
const WEIGHT_BYTES: f64 = 2.0;
const CACHE_BYTES: f64 = 6.0;
/// Multiply-adds of one tensor core instruction, m16n8k16.
const HMMA_PRODUCTS: f64 = 2048.0;
/// Bytes a cycle that a multiprocessor's shared memory delivers or takes: 32 banks of four.
const SHARED_BYTES_A_CYCLE: f64 = 128.0;
/// Elements of k in a stage of `gemm.cu`, and its warps, which read half of a block's rows and half of its outputs each.
const SLICE: usize = 64;
const GEMM_WARPS: usize = 4;
/// Multiply-adds of a warp's part of one wgmma, m64n128k16 (half as many of attention's, m64n64k16), of which a block of `gemm_hopper.cu` has eight in a slice, of both operands in
/// shared memory; and of how many blocks a copy of a slice is.
const HGMMA_PRODUCTS: f64 = 32_768.0;
const HGMMAS: f64 = 8.0;
const HGMMA_BYTES: f64 = (64.0 + 128.0) * 16.0 * WEIGHT_BYTES;
const COPIED_TO: f64 = 2.0;
/// Parts of a multiprocessor that issue instructions, each with tensor cores of its own.
const SCHEDULERS: f64 = 4.0;

/// Seconds of a run, by what they go to.
#[derive(Clone, Copy, Default)]
pub struct Time {
    pub gaps: f64,
    memory: f64,
    issue: f64,
    other: f64,
}

impl Time {
    pub fn total(&self) -> f64 {
        self.gaps + self.memory + self.issue + self.other
    }

    /// Adds a node that takes as long as the longer of the two.
    fn add_longer(&mut self, memory: f64, issue: f64) {
        if memory >= issue { self.memory += memory } else { self.issue += issue }
    }

    /// What most of it waits for: (the counter, what it should say).
    pub fn falsified_by(&self) -> String {
        let share = |seconds: f64| 100.0 * seconds / self.total();
        let (memory, issue) = (share(self.memory), share(self.issue));
        let counter = if memory >= issue {
            "dram__bytes_read.sum.per_second: at the copy rate"
        } else {
            "sm__inst_executed.avg.per_cycle_active: at the assumed rate"
        };
        format!("{counter} in the kernels of {:.0} % of the time", memory.max(issue))
    }
}

/// A model on a device with every assumption at one end of its range: -1 the fast end, 1 the slow one.
pub struct Model<'a> {
    pub spec: &'a ModelSpec,
    pub device: &'a Accelerator,
    pub slow: f64,
    /// Whether nodes start before those before them have ended.
    pub early: bool,
}

impl Model<'_> {
    /// Seconds from a node to the next.
    fn gap(&self) -> f64 {
        self.time(if self.early { EARLY_GAP } else { GAP })
    }

    /// A time.
    fn time(&self, (middle, off): Assumed) -> f64 {
        middle + self.slow * off
    }

    /// A rate or a share.
    fn rate(&self, (middle, off): Assumed) -> f64 {
        middle - self.slow * off
    }

    fn bandwidth(&self) -> f64 {
        self.device.bandwidth * self.rate(COPY_SHARE)
    }

    /// Instructions a second of warps, of the whole device.
    fn issue(&self, ipc: Assumed) -> f64 {
        self.device.multiprocessors as f64 * self.device.clock * self.rate(ipc)
    }

    /// (in, out) features of a layer's products: q with k and v, o, gate with up, down.
    fn products(&self) -> [(usize, usize); 4] {
        let s = self.spec;
        let (q, kv) = (s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim);
        [
            (s.hidden_size, q + 2 * kv),
            (q, s.hidden_size),
            (s.hidden_size, 2 * s.intermediate_size),
            (s.intermediate_size, s.hidden_size),
        ]
    }

    /// Weights of all products of the layers.
    fn layer_weights(&self) -> usize {
        self.spec.layers.len() * self.products().iter().map(|(width, outs)| width * outs).sum::<usize>()
    }

    /// Bytes of keys and values at this many positions of a layer.
    fn cache_bytes(&self, positions: usize) -> f64 {
        (positions * self.spec.num_key_value_heads * self.spec.head_dim) as f64 * CACHE_BYTES
    }

    /// A product of `batch` rows with a matrix of (in, out) features.
    fn product(&self, time: &mut Time, batch: usize, (width, outs): (usize, usize), kernel: &str) {
        // of those for 64 rows the one for devices with enough shared memory; gates and ups are as many or twice as many a block
        let Some(variant) = NARROW_VARIANTS.iter().find(|variant| batch <= variant.rows) else {
            return self.product_of_many(time, batch, (width, outs));
        };
        let weights = (width * outs) as f64 * WEIGHT_BYTES;
        let activations =
            (outs.div_ceil(variant.outs) * batch * width * size_of::<f32>()) as f64 * self.time(CACHE_READS);
        let cached = (weights + activations) / self.rate(self.device.cache_bandwidth);
        let before = time.memory + time.issue;
        let ramp = if self.early { EARLY_RAMP } else { RAMP };
        self.read(time, weights, count(&format!("{kernel}_f16_{}", variant.name)), PRODUCT_IPC, ramp);
        // what the second cache takes longer than memory or instructions do
        time.memory += (cached - (time.memory + time.issue - before)).max(0.0);
    }

    /// The same by `gemv_wide.cu`, after its rows have been split into terms.
    fn product_of_many(&self, time: &mut Time, batch: usize, (width, outs): (usize, usize)) {
        let Accelerator { multiprocessors, capability, clock, .. } = *self.device;
        let block = GEMM_ROWS[GemmDevice { multiprocessors, capability }.wide_variant(batch, outs)];
        let blocks = batch.div_ceil(block) * outs.div_ceil(WIDE_OUTS);
        let (most, slices) = (blocks.div_ceil(multiprocessors) as f64, width.div_ceil(SLICE) as f64);
        // two terms of each row, 16 rows a warp; the warps are spread over the schedulers
        let hmmas = most * (2 * block * WIDE_OUTS * width) as f64 / HMMA_PRODUCTS / SCHEDULERS;
        let computed = self.hmma(hmmas, count(&format!("gemv_wide_m{block}")), PRODUCT_IPC);
        // both operands come to shared memory once; each warp reads all weights, and the terms of its rows
        let (weights, terms) = ((WIDE_OUTS * SLICE) as f64 * WEIGHT_BYTES, (2 * block * SLICE) as f64 * WEIGHT_BYTES);
        let shared =
            most * slices * (weights * (1.0 + block as f64 / 16.0) + 2.0 * terms) / SHARED_BYTES_A_CYCLE / clock;
        let cached = blocks as f64 * slices * (weights + terms) / self.rate(self.device.cache_bandwidth);
        let read = (width * outs) as f64 * WEIGHT_BYTES / self.bandwidth();
        time.add_longer(read, computed.max(shared).max(cached));
        // splitting is a small node, and one more gap
        time.gaps += self.gap();
        time.other += self.time(RAMP) + self.time(SMALL_NODE);
    }

    /// A node that reads `bytes` with `per_kib` instructions for each KiB.
    fn read(&self, time: &mut Time, bytes: f64, per_kib: f64, ipc: Assumed, ramp: Assumed) {
        let (memory, issue) = (bytes / self.bandwidth(), bytes / 1024.0 * per_kib / self.issue(ipc));
        time.add_longer(memory, issue);
        time.other += self.time(ramp);
    }

    /// Seconds in which the last block of a row's heads merges its splits.
    fn merge(&self, positions: usize) -> f64 {
        let s = self.spec;
        let splits = positions.div_ceil(DECODE_CHUNK).min(decode_splits(s, self.device.multiprocessors));
        let sums = splits * s.group_size().min(DECODE_GROUP) * s.head_dim * size_of::<f32>();
        self.time(MERGE) + sums as f64 / CACHE_BYTES_A_CYCLE / self.device.clock
    }

    /// Instructions of attention that a step executes for each KiB of cache; head sizes that are not counted are taken as the
    /// nearest one that is. More are executed at the slow end.
    fn attention(&self, traced: bool) -> f64 {
        let head_dim = if self.spec.head_dim <= 64 { 64 } else { 128 };
        let kernel = format!("attn_decode_kf32_vf16_d{head_dim}{}", if traced { "" } else { "_plain" });
        self.time(ATTENTION_EXECUTED) * count(&kernel)
    }

    /// One step of up to [`DECODE_ROWS`] sequences that are `context` long.
    fn step(&self, batch: usize, context: usize, traced: bool) -> Time {
        let (s, mut time) = (self.spec, Time::default());
        let kernels = ["gemv_qkv", "gemv", "gemv_gated", "gemv"];
        // beside attention and the four products: norms after a product, and a rotation that no product does
        let many = batch > NARROW_VARIANTS.iter().map(|variant| variant.rows).max().unwrap_or(0);
        let rotates = !s.qk_norm && !many;
        let small = if s.post_norms { 2 } else { 0 } + usize::from(!rotates);
        // embedding, final norm, head, and what reads the logits; heads are selected beside these, in less time
        let nodes = s.layers.len() * (5 + small) + 5;
        time.other = (s.layers.len() * small + 2) as f64 * self.time(SMALL_NODE);
        if rotates {
            time.other += s.layers.len() as f64 * self.time(ROTATION);
        }
        // the first and the last wait for all before them
        time.gaps = (nodes - 2) as f64 * self.gap() + 2.0 * self.time(GAP);
        for layer in &s.layers {
            for (shape, kernel) in self.products().into_iter().zip(kernels) {
                self.product(&mut time, batch, shape, kernel);
            }
            let cache = self.cache_bytes(batch * positions(layer.window, context - 1));
            self.read(&mut time, cache, self.attention(traced), ATTENTION_IPC, RAMP);
            time.other += self.merge(positions(layer.window, context - 1));
        }
        self.product(&mut time, batch, (s.hidden_size, s.vocab_size), "gemv");
        time.other += self.time(READ_LOGITS);
        time
    }

    /// A step of any number of sequences: groups, one after the other.
    pub fn decode(&self, batch: usize, context: usize, traced: bool) -> Time {
        let steps = batch.div_ceil(DECODE_ROWS) as f64;
        let Time { gaps, memory, issue, other } = self.step(batch.min(DECODE_ROWS), context, traced);
        Time { gaps: steps * gaps, memory: steps * memory, issue: steps * issue, other: steps * other }
    }

    /// Cycles that a scheduler's tensor core takes for an instruction of `products` multiply-adds, at a share of the peak.
    fn tensor_cycles(&self, products: f64, share: Assumed) -> f64 {
        let of_scheduler =
            self.device.matrix_peak / self.device.clock / self.device.multiprocessors as f64 / SCHEDULERS;
        2.0 * products / (of_scheduler * self.rate(share))
    }

    /// Seconds for which `count` tensor core instructions keep a scheduler, with `per_hmma` in all for each.
    fn hmma(&self, count: f64, per_hmma: f64, ipc: Assumed) -> f64 {
        self.tensor(count, (HMMA_PRODUCTS, self.device.mma_share), per_hmma, ipc)
    }

    /// The same for instructions of `products` multiply-adds at a share of the peak.
    fn tensor(&self, count: f64, (products, share): (f64, Assumed), per_instruction: f64, ipc: Assumed) -> f64 {
        let cycles = self.tensor_cycles(products, share);
        count * cycles.max(per_instruction * SCHEDULERS / self.rate(ipc)) / self.device.clock
    }

    /// A product of a wide pass: (seconds of memory, seconds of everything else that may take longer).
    fn wide_product(&self, rows: usize, (width, outs): (usize, usize)) -> (f64, f64) {
        let Accelerator { multiprocessors, capability, .. } = *self.device;
        if capability == HOPPER {
            return self.hopper_product(rows, (width, outs));
        }
        let variant = GemmDevice { multiprocessors, capability }.variant(rows, outs);
        let block = GEMM_ROWS[variant];
        let per_hmma = count(&format!("gemm_m{block}"));
        let blocks = rows.div_ceil(block) * outs.div_ceil(block);
        // the multiprocessor with the most blocks decides; a block's warps are spread over the schedulers
        let most = blocks.div_ceil(multiprocessors) as f64;
        let computed =
            self.hmma(most * (block * block * width) as f64 / HMMA_PRODUCTS / SCHEDULERS, per_hmma, PRODUCT_IPC);
        // rows and weights of a slice come to shared memory once, and each warp reads its half of both
        let slices = width.div_ceil(SLICE) as f64;
        let slice = (2 * block * SLICE) as f64 * WEIGHT_BYTES;
        let shared = most * slices * slice * (1.0 + GEMM_WARPS as f64 / 2.0) / SHARED_BYTES_A_CYCLE / self.device.clock;
        let cached = blocks as f64 * slices * slice / self.rate(self.device.cache_bandwidth);
        ((width * outs) as f64 * WEIGHT_BYTES / self.bandwidth(), computed.max(shared).max(cached))
    }

    /// The same by `gemm_hopper.cu`.
    fn hopper_product(&self, rows: usize, (width, outs): (usize, usize)) -> (f64, f64) {
        let clock = self.device.clock;
        let blocks: usize = hopper_grid(rows, outs.div_ceil(HOPPER_BLOCK)).iter().product();
        let places = (self.device.multiprocessors as f64 * self.rate(CLUSTERED) / 4.0).floor() * 4.0;
        let (waves, slices) = ((blocks as f64 / places).ceil(), width.div_ceil(SLICE) as f64);
        let slice = (2 * HOPPER_BLOCK * SLICE) as f64 * WEIGHT_BYTES;
        // each scheduler has a warp's part of all products; what is copied is written to shared memory, and every product reads its
        // operands there
        let tensor = HGMMAS * self.tensor_cycles(HGMMA_PRODUCTS, WGMMA_SHARE);
        let issue = HGMMAS * count("gemm_hopper") * SCHEDULERS / self.rate(PRODUCT_IPC);
        let shared = (slice + HGMMAS * HGMMA_BYTES) / SHARED_BYTES_A_CYCLE;
        let computed = waves * (slices * tensor.max(issue).max(shared) / clock + self.time(HOPPER_BLOCK_ENDS));
        let cached = blocks as f64 * slices * slice / COPIED_TO / self.rate(self.device.cache_bandwidth);
        ((width * outs) as f64 * WEIGHT_BYTES / self.bandwidth(), computed.max(cached))
    }

    /// The prefill of `tokens` tokens in passes of at most [`MAX_ROWS`].
    pub fn prefill(&self, tokens: usize) -> Time {
        let mut time = Time::default();
        for first in (0..tokens).step_by(MAX_ROWS) {
            let rows = MAX_ROWS.min(tokens - first);
            self.wide_pass(&mut time, rows, first + rows / 2);
        }
        time
    }

    /// A wide pass of `rows` rows that attend to `context` positions in the mean.
    fn wide_pass(&self, time: &mut Time, rows: usize, context: usize) {
        for layer in &self.spec.layers {
            for shape in self.products() {
                let (read, other) = self.wide_product(rows, shape);
                time.add_longer(read, other);
            }
            time.issue += self.prefill_attention(rows, context.min(layer.window.unwrap_or(usize::MAX)));
            let activations = (rows * self.activation_bytes()) as f64 * self.time(ACTIVATIONS);
            time.memory += activations / self.bandwidth();
            // two norms, rotation and cache, attention and its selection, and the four products
            time.gaps += 9.0 * self.gap();
            time.other += 3.0 * self.time(RAMP);
        }
    }

    /// What follows an answer: chain and similarities, and the ensemble's variants, whose rows share wide passes. Each is a replaced
    /// position and what follows up to `last`, of whose predictions the answer's are wanted, and those of positions replaced later.
    pub fn after_answer(&self, replaced: &[usize], last: usize) -> Time {
        let mut time = Time { other: self.time(CHAIN), ..Time::default() };
        let rows: usize = replaced.iter().map(|at| last - at).sum();
        let attended: usize = replaced.iter().map(|at| (last - at) * (at + last) / 2).sum();
        let wanted = replaced.len() * replaced.len().saturating_sub(1) / 2 + replaced.len() * ANSWER;
        let passes = rows.div_ceil(MAX_ROWS);
        for first in (0..rows).step_by(MAX_ROWS) {
            self.wide_pass(&mut time, MAX_ROWS.min(rows - first), attended / rows);
            let head = (self.spec.hidden_size, self.spec.vocab_size);
            self.product(&mut time, wanted.div_ceil(passes), head, "gemv");
            time.other += self.time(READ_LOGITS);
        }
        time
    }

    /// Seconds of a layer's attention of `rows` rows at `positions` positions.
    fn prefill_attention(&self, rows: usize, positions: usize) -> f64 {
        let s = self.spec;
        let blocks = (rows * s.group_size()).div_ceil(64) * s.num_key_value_heads;
        // three products of terms for a score, two for a value
        let block = (64 * positions * s.head_dim * 5) as f64 / SCHEDULERS;
        let products = blocks.div_ceil(self.device.multiprocessors) as f64 * block;
        let head_dim = if s.head_dim <= 64 { 64 } else { 128 };
        let (part, instruction, executed) = if self.device.capability == HOPPER && s.head_dim == head_dim {
            ("_hopper", (HGMMA_PRODUCTS / 2.0, WGMMA_SHARE), HOPPER_PREFILL_EXECUTED)
        } else {
            ("", (HMMA_PRODUCTS, self.device.mma_share), PREFILL_EXECUTED)
        };
        let per_instruction = self.time(executed) * count(&format!("attn_prefill{part}_kf32_vf16_d{head_dim}_t2"));
        self.tensor(products / instruction.0, instruction, per_instruction, ATTENTION_IPC)
    }

    /// Bytes that kernels other than products and attention read and write in a layer of a prefill, for each row: two norms, which
    /// round f32 to f16, and the rotation of q, k and v into the cache.
    fn activation_bytes(&self) -> usize {
        let s = self.spec;
        let (q, kv) = (s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim);
        6 * 2 * s.hidden_size + 8 * (q + kv) + CACHE_BYTES as usize * kv
    }

    /// The least seconds of a step: every weight once, and each sequence's cache, at the copy rate.
    pub fn step_floor(&self, batch: usize, context: usize) -> f64 {
        let s = self.spec;
        let weights = (self.layer_weights() + s.vocab_size * s.hidden_size) as f64 * WEIGHT_BYTES;
        let read: usize = s.layers.iter().map(|layer| positions(layer.window, context - 1)).sum();
        (weights + self.cache_bytes(batch * read)) / (self.device.bandwidth * COPY_SHARE.0)
    }

    /// The least seconds of a prefill: every product once at the matrix peak.
    pub fn prefill_floor(&self, tokens: usize) -> f64 {
        let products = 2.0 * (self.layer_weights() * tokens) as f64;
        (products + attention_operations(self.spec, 0, tokens)) / self.device.matrix_peak
    }
}

/// What the committed budget says of a kernel; it has every one that is asked for (a test).
fn count(kernel: &str) -> f64 {
    counts::instructions(kernel).unwrap_or(f64::NAN)
}
