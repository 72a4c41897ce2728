//! The CPU kernels individually, in the shapes of Qwen2.5-0.5B: `cargo bench --bench kernels [-- FILTER]`. Throughput
//! counts bytes of weights or cache for memory-bound kernels, multiply-adds (as elements) for compute-bound ones.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use std::hint::black_box;
use uqac::Gamma;
use uqac::internals::Isa;
use uqac::internals::KvCache;
use uqac::internals::MultiplyAdds;
use uqac::internals::Selection;
use uqac::internals::ThreadPool;
use uqac::internals::TraceOptions;
use uqac::internals::{AttentionRow, AttentionShape, HeadState, RowHead, accumulate_row, attend};
use uqac::internals::{Elements, Matrix, Numbers, matmul};
use uqac::internals::{EntropyRule, EntropyState, SoftmaxState};
use uqac::{DType, ValueType};

/// Outputs and inputs of the feed-forward network's matrices and of an attention's output.
const MATRICES: [(&str, usize, usize); 3] = [("up", 4864, 896), ("down", 896, 4864), ("o", 896, 896)];
const HEADS: usize = 14;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// A uniform value in [-1, 1) that depends only on `i`.
fn noise(i: usize) -> f32 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

fn pool() -> ThreadPool {
    ThreadPool::new(std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Products with 1 row of activations (GEMV), 8 (a batch) and 256 (GEMM). One row cycles through more copies of the
/// matrix than fit in the caches.
fn products(c: &mut Criterion) {
    let (pool, isa) = (pool(), Isa::detect());
    for rows in [1, 8, 256] {
        let mut group = c.benchmark_group(format!("product, {rows} rows, bf16"));
        group.sample_size(30);
        for (name, outs, k) in MATRICES {
            let copies = if rows == 1 { (1 << 29) / (2 * outs * k) } else { 1 };
            let weights: Vec<bf16> = (0..copies * outs * k).map(|i| bf16::from_f32(noise(i))).collect();
            let x: Vec<f32> = (0..rows * k).map(noise).collect();
            let mut y = vec![0.0; rows * outs];
            group.throughput(match rows {
                1 => Throughput::Bytes((2 * outs * k) as u64),
                _ => Throughput::Elements((rows * outs * k) as u64),
            });
            let mut copy = 0;
            group.bench_function(name, |b| {
                b.iter(|| {
                    copy = (copy + 1) % copies;
                    let elements = Elements::Bf16(&weights[copy * outs * k..(copy + 1) * outs * k]);
                    matmul(
                        &pool,
                        isa,
                        &Matrix { numbers: Numbers::File(elements), rows: outs, k },
                        &x,
                        rows,
                        &mut y,
                        None,
                    );
                    black_box(&mut y);
                });
            });
        }
        group.finish();
    }
}

fn shape() -> AttentionShape {
    AttentionShape {
        layer: 0,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        window: None,
        softcap: None,
        gamma: Gamma::PUBLISHED,
        one_term: false,
    }
}

fn cache(positions: usize) -> KvCache {
    let mut cache = KvCache::new([(KV_HEADS, HEAD_DIM)].into_iter(), DType::F32, ValueType::F32);
    cache.reserve(positions);
    let width = KV_HEADS * HEAD_DIM;
    let part = |start: usize| (start..start + width).map(|i| 0.3 * noise(i)).collect::<Vec<f32>>();
    for position in 0..positions {
        cache.write(0, position, &part(position * width), &part((position + positions) * width));
    }
    cache
}

/// One row of one layer, with and without the entropy: the trace's cost in attention.
fn attention(c: &mut Criterion) {
    let (pool, isa, shape) = (pool(), Isa::detect(), shape());
    let queries: Vec<f32> = (0..HEADS * HEAD_DIM).map(noise).collect();
    let mut out = vec![0.0; HEADS * HEAD_DIM];
    let mut states = vec![HeadState::EMPTY; HEADS];
    let mut group = c.benchmark_group("attention, a row of a layer");
    for positions in [512, 4096] {
        let cache = cache(positions);
        group.throughput(Throughput::Bytes((positions * KV_HEADS * HEAD_DIM * 8) as u64));
        for (name, entropy) in [("entropy off", false), ("entropy on", true)] {
            group.bench_function(BenchmarkId::new(name, positions), |b| {
                let rows = [AttentionRow { cache: &cache, position: positions - 1, entropy, prompt: None }];
                b.iter(|| {
                    attend(&pool, isa, &shape, &rows, &queries, &mut out, &mut states);
                    black_box(&mut out);
                });
            });
        }
    }
    group.finish();
}

/// The K = 16 heads of lowest entropy among a row's 336.
fn selection(c: &mut Criterion) {
    let options = TraceOptions::new(0, 16, EntropyRule::Exact);
    let query: Vec<f32> = (0..HEAD_DIM).map(noise).collect();
    let state = |i: usize| HeadState {
        softmax: SoftmaxState { max: 0.0, sum: 1.0 },
        entropy: EntropyState { max: 0.0, sum: 1.0, weighted: -3.0 - noise(i) },
        ..HeadState::EMPTY
    };
    let states: Vec<HeadState> = (0..24 * HEADS).map(state).collect();
    c.bench_function("selection, 16 of 336 heads", |b| {
        b.iter(|| {
            let mut selection = Selection::new(options, HEAD_DIM);
            states.iter().zip(0..).for_each(|(state, head)| selection.offer(head, state, &query));
            black_box(selection);
        });
    });
}

/// α* of a row from the cached keys of its 16 heads.
fn reconstruction(c: &mut Criterion) {
    let (isa, shape) = (Isa::detect(), shape());
    let query: Vec<f32> = (0..HEAD_DIM).map(|i| 0.1 * noise(i)).collect();
    let mut group = c.benchmark_group("reconstruction, a row of 16 heads");
    for positions in [512, 4096] {
        let cache = cache(positions);
        let mut row = vec![0.0; positions];
        group.bench_function(BenchmarkId::from_parameter(positions), |b| {
            b.iter(|| {
                for head in 0..16 {
                    let traced = RowHead { query: &query, max: 1.0, sum: 100.0 };
                    accumulate_row(isa, &shape, &cache, head % HEADS, &traced, &mut row);
                }
                black_box(&mut row);
            });
        });
    }
    group.finish();
}

/// Multiply-adds of one core in registers: in f32 and, where available, in bf16 pairs (`vdpbf16ps`). These bound any product.
#[cfg(target_arch = "x86_64")]
fn rates(c: &mut Criterion) {
    use std::arch::x86_64::*;
    const ITERATIONS: usize = 1000;
    const SUMS: usize = 24;

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn in_bf16(x: f32) -> f32 {
        let a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(x), _mm512_set1_ps(1.0 - x));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for _ in 0..ITERATIONS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, a, a);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    let mut group = c.benchmark_group("rate of one core");
    let isa = Isa::detect();
    let in_f32 = || isa.run(MultiplyAdds { x: black_box(0.5), iterations: ITERATIONS });
    group.throughput(Throughput::Elements(in_f32() as u64));
    group.bench_function("f32", |b| b.iter(in_f32));
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
        group.throughput(Throughput::Elements((ITERATIONS * SUMS * 32) as u64));
        // SAFETY: the CPU has the instructions.
        group.bench_function("bf16 pairs, 512 bits", |b| b.iter(|| unsafe { in_bf16(black_box(0.5)) }));
    }
    group.finish();
}

#[cfg(not(target_arch = "x86_64"))]
fn rates(_: &mut Criterion) {}

criterion_group!(kernels, rates, products, attention, selection, reconstruction);
criterion_main!(kernels);
