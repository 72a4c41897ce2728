#![cfg(test)]

use super::*;
use half::{bf16, f16};

/// Numbers in [-1, 1) with varied exponents.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mantissa = (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0;
        mantissa * [1.0, 0.5, 0.125, 0.01][(self.0 >> 37) as usize % 4]
    }

    fn take(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// A matrix that owns its weights.
enum Owned {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    Q8(Vec<Q8Block>),
}

impl Owned {
    /// Rows of `k` in every type that can hold them.
    fn all(values: &[f32], k: usize) -> Vec<Owned> {
        let mut all = vec![
            Owned::F32(values.to_vec()),
            Owned::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect()),
            Owned::F16(values.iter().map(|&v| f16::from_f32(v)).collect()),
        ];
        all.extend(crate::backend::q8::quantize(Elements::F32(values), k).map(Owned::Q8));
        all
    }

    fn matrix(&self, rows: usize, k: usize) -> Matrix<'_> {
        let elements = match self {
            Owned::F32(v) => Elements::F32(v),
            Owned::Bf16(v) => Elements::Bf16(v),
            Owned::F16(v) => Elements::F16(v),
            Owned::Q8(blocks) => return Matrix { numbers: Numbers::Q8(blocks), rows, k },
        };
        Matrix { numbers: Numbers::File(elements), rows, k }
    }

    fn get(&self, i: usize) -> f32 {
        match self {
            Owned::F32(v) => v[i],
            Owned::Bf16(v) => v[i].to_f32(),
            Owned::F16(v) => v[i].to_f32(),
            Owned::Q8(blocks) => blocks[i / LANES].get(i % LANES),
        }
    }
}

/// The definition at the head of the module, one element at a time.
fn by_definition(w: impl Fn(usize) -> f32, x: &[f32], bias: Option<f32>) -> f32 {
    let mut lanes = [0f32; LANES];
    for start in (0..x.len()).step_by(LANES) {
        for (i, lane) in (start..).zip(&mut lanes) {
            let (w, x) = if i < x.len() { (w(i), x[i]) } else { (0.0, 0.0) };
            *lane = w.mul_add(x, *lane);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    bias.map_or(lanes[0], |b| lanes[0] + b)
}

/// The bits of y, which `multiply` must overwrite, without writing beyond it.
fn bits_of(w: &Matrix, n: usize, bias: Option<&[f32]>, multiply: impl FnOnce(Job)) -> Vec<u32> {
    let mut y = vec![7.0f32; n * w.rows + 3];
    multiply(Job { w: *w, bias, y: &mut y });
    assert_eq!(y.len(), n * w.rows);
    // SAFETY: only shortened, so the elements past the end are still there.
    unsafe { y.set_len(n * w.rows + 3) };
    assert_eq!(y.split_off(n * w.rows), [7.0; 3], "written beyond the end");
    y.iter().map(|v| v.to_bits()).collect()
}

fn run(pool: &ThreadPool, isa: Isa, w: &Matrix, x: &[f32], n: usize, bias: Option<&[f32]>) -> Vec<u32> {
    bits_of(w, n, bias, |job| matmul(pool, isa, w, x, n, job.y, bias))
}

fn fused(isa: Isa) -> bool {
    isa != Isa::Portable || cfg!(target_arch = "aarch64")
}

#[test]
fn every_element_is_as_defined_in_every_shape() {
    let pools: Vec<ThreadPool> = (1..=4).map(ThreadPool::new).collect();
    let mut numbers = Random(1);
    let shapes = [
        (1, 1),
        (3, 5),
        (8, 16),
        (24, 31),
        (25, 33),
        (31, 100),
        (50, 257),
        (7, 1024),
        (13, 1025),
        (29, 2500),
        (31, 1600),
    ];
    for (rows, k) in shapes {
        let values = numbers.take(rows * k);
        let bias = numbers.take(rows);
        for n in [1, 2, 3, 4, 5, 6, 7, 9, 16, 23, 33, 45, 56, 130] {
            let x = numbers.take(n * k);
            for (i, owned) in Owned::all(&values, k).iter().enumerate() {
                let bias = (i != 1 || n % 2 == 0).then_some(&bias[..]);
                let expected: Vec<u32> = (0..n * rows)
                    .map(|e| {
                        let (r, o) = (e / rows, e % rows);
                        by_definition(|i| owned.get(o * k + i), &x[r * k..][..k], bias.map(|b| b[o])).to_bits()
                    })
                    .collect();
                for isa in Isa::available().into_iter().filter(|&isa| fused(isa)) {
                    let pool = &pools[(n + rows) % 4];
                    let got = run(pool, isa, &owned.matrix(rows, k), &x, n, bias);
                    assert!(got == expected, "{isa:?} n {n} rows {rows} k {k} type {i}");
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_rows_beside_nor_on_threads() {
    let pools: Vec<ThreadPool> = (1..=4).map(ThreadPool::new).collect();
    let mut numbers = Random(2);
    for (rows, k) in [(37, 576), (100, 77), (26, 3008)] {
        let values = numbers.take(rows * k);
        let x = numbers.take(300 * k);
        for owned in Owned::all(&values, k) {
            let w = owned.matrix(rows, k);
            for isa in Isa::available() {
                let all = run(&pools[0], isa, &w, &x, 300, None);
                for (n, first) in [(1, 0), (1, 299), (2, 17), (3, 254), (4, 100), (5, 31), (33, 99), (300, 0)] {
                    let got = run(&pools[n % 4], isa, &w, &x[first * k..][..n * k], n, None);
                    assert!(got == all[first * rows..][..n * rows], "{isa:?} rows {rows} k {k} n {n} from {first}");
                }
            }
        }
    }
}

#[test]
fn error_is_within_the_bound() {
    let pool = ThreadPool::new(2);
    let mut numbers = Random(3);
    for (rows, k, n) in [(9, 896, 1), (9, 896, 8), (5, 4864, 5), (40, 130, 30), (6, 7, 2)] {
        let (values, x) = (numbers.take(rows * k), numbers.take(n * k));
        for owned in Owned::all(&values, k) {
            for isa in Isa::available() {
                let got = run(&pool, isa, &owned.matrix(rows, k), &x, n, None);
                for (e, &bits) in got.iter().enumerate() {
                    let (r, o) = (e / rows, e % rows);
                    let products = (0..k).map(|i| owned.get(o * k + i) as f64 * x[r * k + i] as f64);
                    let (exact, size) = products.fold((0.0, 0.0), |(e, s), p| (e + p, s + p.abs()));
                    // The portable code also rounds each product: hence twice the steps.
                    let roundings = (k.div_ceil(LANES) * if fused(isa) { 1 } else { 2 } + 4) as f64;
                    let bound = 1.001 * roundings / (1u64 << 24) as f64 * size;
                    assert!((f32::from_bits(bits) as f64 - exact).abs() <= bound, "{isa:?} k {k} element {e}");
                }
            }
        }
    }
}

#[test]
fn several_products_share_a_region() {
    let pool = ThreadPool::new(3);
    let mut numbers = Random(4);
    let k = 100;
    let weights: Vec<(usize, Vec<f32>)> = [30, 1, 0, 77].map(|rows| (rows, numbers.take(rows * k))).into();
    for n in [1, 3, 10, 40] {
        let x = numbers.take(n * k);
        let matrices: Vec<Matrix> = weights
            .iter()
            .map(|(rows, w)| Matrix { numbers: Numbers::File(Elements::F32(w)), rows: *rows, k })
            .collect();
        let mut outputs = vec![Vec::new(); weights.len()];
        let mut jobs: Vec<Job> = matrices.iter().zip(&mut outputs).map(|(w, y)| Job { w: *w, bias: None, y }).collect();
        matmul_many(&pool, Isa::detect(), &mut jobs, &x, n);
        for (w, together) in matrices.iter().zip(&outputs) {
            let mut alone = Vec::new();
            matmul(&pool, Isa::detect(), w, &x, n, &mut alone, None);
            assert_eq!(&alone, together);
        }
    }
    matmul_many(&pool, Isa::detect(), &mut [], &[], 5);
}

#[test]
fn no_rows_and_no_inputs() {
    let pool = ThreadPool::new(2);
    let w = Matrix { numbers: Numbers::File(Elements::F32(&[])), rows: 3, k: 0 };
    let bf16_weights = Matrix { numbers: Numbers::File(Elements::Bf16(&[])), ..w };
    for (n, w) in [(1, w), (6, w), (40, w), (1, bf16_weights), (40, bf16_weights)] {
        let mut y = vec![9.0; 3 * n];
        matmul(&pool, Isa::detect(), &w, &[], n, &mut y, Some(&[1.0, 2.0, 3.0]));
        assert!(y.chunks(3).all(|row| row == [1.0, 2.0, 3.0]));
    }
    let mut y = vec![9.0];
    matmul(&pool, Isa::detect(), &w, &[], 0, &mut y, None);
    assert!(y.is_empty());
}
