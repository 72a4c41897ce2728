//! Products of many rows, summed as tensor cores sum them: chains of products within the tensor core, each added to a float32.
//! How a tensor core adds is described, with its sources, in `tests/cuda_host/shim/tensor_sums.h`.
//!
//! Sixteen outputs are computed together, an output per lane. Inputs must be f16 numbers times a power of two per row
//! (`InputRounding::OneTerm`); weights become f16 numbers with a power of two per row, as at loading.

use half::f16;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uqac::internals::{Elements, Job, Numbers};

/// How products are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    pub core: Core,
    /// Products that a tensor core adds up before the sum is added to a float32.
    pub chain: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    A100,
    H100,
}

impl Core {
    /// Products that are added at once.
    const fn block(self) -> usize {
        match self {
            Core::A100 => 8,
            Core::H100 => 16,
        }
    }

    /// Bits below those of a float32 that a shifted summand keeps.
    const fn extra(self) -> i32 {
        match self {
            Core::A100 => 1,
            Core::H100 => 2,
        }
    }
}

const LANES: usize = 16;
/// The exponent of a zero: below those of all products, and its sums stay in range.
const NONE: i8 = -60;

/// Sixteen rows of weights, or one row of inputs sixteen times: f16 values, and their exponents.
type Lanes<T> = [T; LANES];

/// Outputs of weights that are multiplied together: `[k]` values and exponents of each.
struct Panel {
    values: Vec<Lanes<f32>>,
    exponents: Vec<Lanes<i8>>,
    /// What each row's values are to be multiplied by.
    powers: Lanes<f32>,
}

impl Panel {
    fn new(numbers: &Numbers, first: usize, outs: usize, k: usize) -> Panel {
        let mut panel =
            Panel { values: vec![[0.0; LANES]; k], exponents: vec![[NONE; LANES]; k], powers: [0.0; LANES] };
        let Numbers::File(elements) = numbers else { panic!("weights in 8 bits are not emulated") };
        for lane in 0..outs.min(LANES) {
            let row: Vec<f32> = (0..k).map(|i| elements.get((first + lane) * k + i)).collect();
            let (scaled, exponents, power) = scaled(&row);
            panel.powers[lane] = power;
            for i in 0..k {
                (panel.values[i][lane], panel.exponents[i][lane]) = (scaled[i], exponents[i]);
            }
        }
        panel
    }
}

/// A row as f16 values, of which the largest is in 2^14 .. 2^15; their exponents; and the power of two that undoes the scale.
fn scaled(row: &[f32]) -> (Vec<f32>, Vec<i8>, f32) {
    let max = row.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let power = if max > 0.0 { 2f64.powi(f64::from(max).log2().floor() as i32 - 14) } else { 1.0 };
    let values: Vec<f32> = row.iter().map(|x| f16::from_f64(f64::from(*x) / power).to_f32()).collect();
    let exponent = |x: &f32| match x.to_bits() >> 23 & 255 {
        0 => NONE,
        biased => (biased as i32 - 127).max(-14) as i8, // subnormal f16 numbers share the exponent of the smallest normal one
    };
    let exponents = values.iter().map(exponent).collect();
    (values, exponents, power as f32)
}

/// Computes the products of more than 16 rows.
pub fn multiply(jobs: &mut [Job], x: &[f32], n: usize, sums: Sums, threads: usize) {
    let k = x.len() / n;
    let rows: Vec<_> = x.chunks_exact(k).map(scaled).collect();
    for Job { w, bias, y } in jobs {
        assert_eq!(w.k, k);
        y.resize(n * w.rows, 0.0);
        let next = AtomicUsize::new(0);
        let parts: Vec<(usize, Vec<Lanes<f32>>)> = std::thread::scope(|scope| {
            let work = || {
                let mut done = Vec::new();
                loop {
                    let first = next.fetch_add(LANES, Relaxed);
                    if first >= w.rows {
                        return done;
                    }
                    let panel = Panel::new(&w.numbers, first, w.rows - first, k);
                    done.push((first, rows.iter().map(|row| product(&panel, row, sums)).collect()));
                }
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
        });
        for (first, results) in parts {
            for (row, results) in results.iter().enumerate() {
                for lane in 0..LANES.min(w.rows - first) {
                    y[row * w.rows + first + lane] = results[lane] + bias.map_or(-0.0, |bias| bias[first + lane]);
                }
            }
        }
    }
}

/// A scaled row: values, exponents, and the power of two.
type Row = (Vec<f32>, Vec<i8>, f32);

/// One row of inputs times sixteen of weights.
fn product(panel: &Panel, row: &Row, sums: Sums) -> Lanes<f32> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("fma") {
        // SAFETY: the features were just found.
        return unsafe { avx512::product(panel, row, sums) };
    }
    match sums.core {
        Core::A100 => chains(panel, row, sums, add_block::<{ Core::A100.extra() }>),
        Core::H100 => chains(panel, row, sums, add_block::<{ Core::H100.extra() }>),
    }
}

/// `add_block`: c + the products of a block, of weights and their exponents with inputs and theirs.
#[inline(always)]
fn chains(
    panel: &Panel,
    (x, exponents, power): &Row,
    sums: Sums,
    add_block: impl Fn(Lanes<f32>, &[Lanes<f32>], &[Lanes<i8>], &[f32], &[i8]) -> Lanes<f32>,
) -> Lanes<f32> {
    let mut sum = [0.0; LANES];
    for start in (0..x.len()).step_by(sums.chain.min(x.len())) {
        let end = start.saturating_add(sums.chain).min(x.len());
        let mut c = [0.0; LANES];
        for at in (start..end).step_by(sums.core.block()) {
            let block = at..(at + sums.core.block()).min(end);
            c = add_block(
                c,
                &panel.values[block.clone()],
                &panel.exponents[block.clone()],
                &x[block.clone()],
                &exponents[block],
            );
        }
        sum.iter_mut().zip(c).for_each(|(sum, c)| *sum += c);
    }
    sum.iter_mut().zip(&panel.powers).for_each(|(sum, of_row)| *sum *= power * of_row);
    sum
}

/// c + the products of a block: every summand is cut off EXTRA bits below those of a float32 with the largest exponent, the
/// integers are added, and the sum is rounded toward zero.
fn add_block<const EXTRA: i32>(c: Lanes<f32>, w: &[Lanes<f32>], we: &[Lanes<i8>], x: &[f32], xe: &[i8]) -> Lanes<f32> {
    let mut most = [2 * NONE; LANES];
    for (we, xe) in we.iter().zip(xe) {
        for lane in 0..LANES {
            most[lane] = most[lane].max(we[lane] + xe);
        }
    }
    let (mut scale, mut unscale) = ([0.0f32; LANES], [0.0f32; LANES]);
    let mut total = [0i32; LANES];
    for lane in 0..LANES {
        let of_c = ((c[lane].to_bits() >> 23 & 255) as i32 - 127).max(i32::from(2 * NONE));
        let shift = 23 + EXTRA - of_c.max(i32::from(most[lane])).max(-96); // -96: of zeros only; both powers stay normal
        scale[lane] = f32::from_bits(((127 + shift) as u32) << 23);
        unscale[lane] = f32::from_bits(((127 - shift) as u32) << 23);
        // SAFETY: below 2^(24 + EXTRA), and finite
        total[lane] = unsafe { (c[lane] * scale[lane]).to_int_unchecked::<i32>() };
    }
    let half = w.len().div_ceil(2); // of 16 products below 2^27 each, half fit in an i32
    let mut other = [0i32; LANES];
    for (i, (w, x)) in w.iter().zip(x).enumerate() {
        let to = if i < half { &mut total } else { &mut other };
        for lane in 0..LANES {
            // exact until cut off: 22 bits times a power of two
            // SAFETY: below 2^(25 + EXTRA), and finite
            to[lane] += unsafe { (w[lane] * x * scale[lane]).to_int_unchecked::<i32>() };
        }
    }
    let mut result = [0.0; LANES];
    for lane in 0..LANES {
        let sum = f64::from(total[lane]) + f64::from(other[lane]);
        let cut = f64::from_bits(sum.to_bits() & !((1 << 29) - 1)); // toward zero, to the 24 bits of a float32
        result[lane] = cut as f32 * unscale[lane];
    }
    result
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Core, LANES, Lanes, NONE, Panel, Row, Sums, chains};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512dq,fma")]
    pub fn product(panel: &Panel, row: &Row, sums: Sums) -> Lanes<f32> {
        match sums.core {
            Core::A100 => {
                chains(panel, row, sums, |c, w, we, x, xe| add_block::<{ Core::A100.extra() }>(c, w, we, x, xe))
            }
            Core::H100 => {
                chains(panel, row, sums, |c, w, we, x, xe| add_block::<{ Core::H100.extra() }>(c, w, we, x, xe))
            }
        }
    }

    /// [`super::add_block`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,fma")]
    fn add_block<const EXTRA: i32>(
        c: Lanes<f32>,
        w: &[Lanes<f32>],
        we: &[Lanes<i8>],
        x: &[f32],
        xe: &[i8],
    ) -> Lanes<f32> {
        // SAFETY: every access is to an array of LANES elements.
        unsafe {
            let mut most = _mm_set1_epi8(2 * NONE);
            for (we, xe) in we.iter().zip(xe) {
                most = _mm_max_epi8(most, _mm_add_epi8(_mm_loadu_si128(we.as_ptr().cast()), _mm_set1_epi8(*xe)));
            }
            let c = _mm512_loadu_ps(c.as_ptr());
            let field = _mm512_and_si512(_mm512_srli_epi32::<23>(_mm512_castps_si512(c)), _mm512_set1_epi32(255));
            let top = _mm512_max_epi32(_mm512_cvtepi8_epi32(most), _mm512_sub_epi32(field, _mm512_set1_epi32(127)));
            let shift = _mm512_sub_epi32(_mm512_set1_epi32(23 + EXTRA), _mm512_max_epi32(top, _mm512_set1_epi32(-96)));
            let bias = _mm512_set1_epi32(127);
            let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(bias, shift)));
            let unscale = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_sub_epi32(bias, shift)));
            let mut totals = [_mm512_cvttps_epi32(_mm512_mul_ps(c, scale)), _mm512_setzero_si512()];
            let half = w.len().div_ceil(2);
            for (total, part) in totals.iter_mut().zip([0..half, half..w.len()]) {
                for (w, x) in w[part.clone()].iter().zip(&x[part]) {
                    let product = _mm512_mul_ps(_mm512_loadu_ps(w.as_ptr()), _mm512_set1_ps(*x));
                    *total = _mm512_add_epi32(*total, _mm512_cvttps_epi32(_mm512_mul_ps(product, scale)));
                }
            }
            const TO_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
            let narrow = |part: [__m256i; 2]| {
                let sum = _mm512_add_pd(_mm512_cvtepi32_pd(part[0]), _mm512_cvtepi32_pd(part[1]));
                _mm512_cvt_roundpd_ps::<TO_ZERO>(sum)
            };
            let low = narrow(totals.map(|total| _mm512_castsi512_si256(total)));
            let high = narrow(totals.map(|total| _mm512_extracti64x4_epi64::<1>(total)));
            let sum = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
            let mut result = [0.0; LANES];
            _mm512_storeu_ps(result.as_mut_ptr(), _mm512_mul_ps(sum, unscale));
            result
        }
    }
}

/// Checks the emulation: by a sum that follows from its sources, 1 and fifteen products of 1.5 · 2^-25. An H100 cuts each off to 2^-25, and
/// their sum with 1 to three units of 2^-23; an A100 cuts each off to 0. And the vector code by the plain code.
pub fn check() {
    let mut row = [2f32.powi(-12); 16];
    row[0] = 1.0;
    let mut weights = [1.5 * 2f32.powi(-13); 16];
    weights[0] = 1.0;
    let numbers: Vec<f32> = (0..16 * 1000).map(|i| ((i * i % 8191) as f32 - 4000.0) * 2f32.powi(-(i % 23))).collect();
    let (row, of_many) = (scaled(&row), scaled(&numbers[7000..8000]));
    let [one, many] = [(&weights[..], 16), (&numbers[..], 1000)]
        .map(|(values, k)| Panel::new(&Numbers::File(Elements::F32(values)), 0, values.len() / k, k));
    for (core, expected) in [(Core::H100, 1.0 + 3.0 * 2f32.powi(-23)), (Core::A100, 1.0)] {
        assert_eq!(product(&one, &row, Sums { core, chain: 16 })[0], expected, "{core:?}");
        for chain in [32, 64, usize::MAX] {
            let sums = Sums { core, chain };
            let plain = match core {
                Core::A100 => chains(&many, &of_many, sums, add_block::<{ Core::A100.extra() }>),
                Core::H100 => chains(&many, &of_many, sums, add_block::<{ Core::H100.extra() }>),
            };
            assert_eq!(product(&many, &of_many, sums), plain, "{sums:?}");
        }
    }
}
