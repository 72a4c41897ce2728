//! The instruction sets of x86-64.
//!
//! SAFETY (whole module): by the trait's contract the instruction set's features are present and pointers are valid for
//! 16 elements, which is all that these intrinsics need.

use super::{LANES, Simd};
use half::{bf16, f16};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub struct Avx512;

impl Simd for Avx512 {
    type V = __m512;
    const REGISTERS: usize = 32;
    inlined! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        load(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        load_bf16(p: *const bf16) -> __m512
            = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))));
        load_f16(p: *const f16) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        load_i8(p: *const i8) -> __m512 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        store(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        round(a: __m512) -> __m512 = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        zero_below(x: __m512, limit: __m512, v: __m512) -> __m512
            = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, limit), v);
        pow2(n: __m512) -> __m512 = {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        };
        sum(v: __m512) -> f32 = {
            let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)));
            sum_eight(_mm256_add_ps(_mm512_castps512_ps256(v), upper))
        };
        sum_four(v: [__m512; 4]) -> [f32; 4] = {
            // 16 → 8: the halves of two vectors, added side by side; 8 → 4: the same with quarters
            let [a, b, c, d] = v;
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
            // 4 → 2 → 1 within each quarter
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4E>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0xB1>(two));
            let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            let packed = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one));
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), packed);
            sums
        };
        transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) = {
            let mut quarter = 0;
            // four elements of every row: rows i, i + 4, i + 8 and i + 12 side by side, then 4 × 4 within each quarter
            while quarter < LANES {
                let mut v = [_mm512_setzero_ps(); 4];
                for (i, v) in v.iter_mut().enumerate() {
                    let row = from.add(i * from_stride + quarter);
                    *v = _mm512_castps128_ps512(_mm_loadu_ps(row));
                    *v = _mm512_insertf32x4::<1>(*v, _mm_loadu_ps(row.add(4 * from_stride)));
                    *v = _mm512_insertf32x4::<2>(*v, _mm_loadu_ps(row.add(8 * from_stride)));
                    *v = _mm512_insertf32x4::<3>(*v, _mm_loadu_ps(row.add(12 * from_stride)));
                }
                let [a, b, c, d] = v;
                let low = (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpacklo_ps(c, d)));
                let high = (_mm512_castps_pd(_mm512_unpackhi_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(c, d)));
                let columns = [
                    _mm512_unpacklo_pd(low.0, low.1),
                    _mm512_unpackhi_pd(low.0, low.1),
                    _mm512_unpacklo_pd(high.0, high.1),
                    _mm512_unpackhi_pd(high.0, high.1),
                ];
                for (j, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((quarter + j) * to_stride), _mm512_castpd_ps(column));
                }
                quarter += 4;
            }
        };
    }
}

#[derive(Clone, Copy)]
pub struct Avx2;

/// Two halves of eight lanes.
type Pair = (__m256, __m256);

inlined! {
    /// 8 → 4 → 2 → 1, lane i with lane i + half.
    sum_eight(v: __m256) -> f32 = {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    };
    /// Eight bf16 widened.
    eight_bf16(p: *const bf16) -> __m256
        = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
    /// Eight i8 widened.
    eight_i8(p: *const i8) -> __m256 = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
    /// 2^n for eight lanes.
    eight_pow2(n: __m256) -> __m256 = {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    };
    /// The halves of two vectors, added side by side.
    add_halves(a: __m256, b: __m256) -> __m256
        = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
}

impl Simd for Avx2 {
    type V = Pair;
    const REGISTERS: usize = 8;
    inlined! {
        load(p: *const f32) -> Pair = (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)));
        load_bf16(p: *const bf16) -> Pair = (eight_bf16(p), eight_bf16(p.add(8)));
        load_f16(p: *const f16) -> Pair
            = (_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())));
        load_i8(p: *const i8) -> Pair = (eight_i8(p), eight_i8(p.add(8)));
        add(a: Pair, b: Pair) -> Pair = (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        sub(a: Pair, b: Pair) -> Pair = (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
        mul(a: Pair, b: Pair) -> Pair = (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        div(a: Pair, b: Pair) -> Pair = (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
        max(a: Pair, b: Pair) -> Pair = (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
        fma(a: Pair, b: Pair, c: Pair) -> Pair = (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        pow2(n: Pair) -> Pair = (eight_pow2(n.0), eight_pow2(n.1));
        sum(v: Pair) -> f32 = sum_eight(_mm256_add_ps(v.0, v.1));
        prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        splat(x: f32) -> Pair = (_mm256_set1_ps(x), _mm256_set1_ps(x));
        store(p: *mut f32, v: Pair) = {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        };
        round(a: Pair) -> Pair = {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            (_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1))
        };
        zero_below(x: Pair, limit: Pair, v: Pair) -> Pair = {
            let low = _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_GE_OQ>(x.1, limit.1);
            (_mm256_and_ps(low, v.0), _mm256_and_ps(high, v.1))
        };
        sum_four(v: [Pair; 4]) -> [f32; 4] = {
            // 16 → 8; 8 → 4: the halves of two vectors, added side by side; 4 → 2 → 1 within each half
            let [a, b, c, d] = v;
            let ab = add_halves(_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
            let cd = add_halves(_mm256_add_ps(c.0, c.1), _mm256_add_ps(d.0, d.1));
            let two = _mm256_add_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xEE>(ab, cd));
            let one = _mm256_add_ps(two, _mm256_permute_ps::<0xB1>(two)); // a a c c, b b d d
            let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
            let mut sums = [0.0; 4];
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_blend_ps::<0b1010>(ac, bd));
            sums
        };
        transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) = {
            let mut part = 0;
            // four elements of eight rows: rows i and i + 4 side by side, then 4 × 4 within each half
            while part < 2 * LANES {
                let (first, quarter) = (part / LANES * 8, part % LANES);
                let mut v = [_mm256_setzero_ps(); 4];
                for (i, v) in v.iter_mut().enumerate() {
                    let row = from.add((first + i) * from_stride + quarter);
                    let other = _mm_loadu_ps(row.add(4 * from_stride));
                    *v = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(row)), other);
                }
                let [a, b, c, d] = v;
                let low = (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpacklo_ps(c, d)));
                let high = (_mm256_castps_pd(_mm256_unpackhi_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
                let columns = [
                    _mm256_unpacklo_pd(low.0, low.1),
                    _mm256_unpackhi_pd(low.0, low.1),
                    _mm256_unpacklo_pd(high.0, high.1),
                    _mm256_unpackhi_pd(high.0, high.1),
                ];
                for (j, column) in columns.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((quarter + j) * to_stride + first), _mm256_castpd_ps(column));
                }
                part += 4;
            }
        };
    }
}
