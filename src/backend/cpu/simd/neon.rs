//! The instruction set of aarch64: every CPU of that architecture has it.
//!
//! SAFETY (whole module): pointers are valid for 16 elements by the trait's contract, which is all that these intrinsics need.

use super::{LANES, Simd};
use half::{bf16, f16};
use std::{arch::aarch64::*, arch::asm};

#[derive(Clone, Copy)]
pub struct Neon;

/// Four vectors of four lanes.
type Four = [float32x4_t; 4];

/// A [`Four`] evaluated for each quarter. A macro, for the reason given at [`Kernel`](super::Kernel).
macro_rules! quarters {
    ($i:ident => $quarter:expr) => {{
        let mut four = [vdupq_n_f32(0.0); 4];
        for ($i, quarter) in four.iter_mut().enumerate() {
            *quarter = $quarter;
        }
        four
    }};
}

inlined! {
    /// Eight f16 widened. The intrinsic needs a newer compiler; the instruction is part of the base set.
    eight_f16(p: *const f16) -> [float32x4_t; 2] = {
        let (low, high): (float32x4_t, float32x4_t);
        asm!(
            "fcvtl {low:v}.4s, {eight:v}.4h",
            "fcvtl2 {high:v}.4s, {eight:v}.8h",
            eight = in(vreg) vld1q_u16(p.cast()),
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
        [low, high]
    };
    /// 16 → 4, lane i with lane i + half.
    sum_quarters(v: Four) -> float32x4_t = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    /// The low and the high halves of two vectors, added side by side.
    add_halves(a: float32x4_t, b: float32x4_t) -> float32x4_t = {
        let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(a, b)), vreinterpretq_f32_f64(vtrn2q_f64(a, b)))
    };
}

impl Simd for Neon {
    type V = Four;
    const REGISTERS: usize = 8;
    inlined! {
        splat(x: f32) -> Four = [vdupq_n_f32(x); 4];
        load(p: *const f32) -> Four = [vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))];
        load_bf16(p: *const bf16) -> Four = {
            let (a, b) = (vld1q_u16(p.cast()), vld1q_u16(p.add(8).cast()));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(a))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(a)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(b))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(b)),
            ]
        };
        load_f16(p: *const f16) -> Four = {
            let ([a, b], [c, d]) = (eight_f16(p), eight_f16(p.add(8)));
            [a, b, c, d]
        };
        load_i8(p: *const i8) -> Four = {
            let v = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        };
        store(p: *mut f32, v: Four) = {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
            vst1q_f32(p.add(8), v[2]);
            vst1q_f32(p.add(12), v[3]);
        };
        add(a: Four, b: Four) -> Four = quarters!(i => vaddq_f32(a[i], b[i]));
        sub(a: Four, b: Four) -> Four = quarters!(i => vsubq_f32(a[i], b[i]));
        mul(a: Four, b: Four) -> Four = quarters!(i => vmulq_f32(a[i], b[i]));
        div(a: Four, b: Four) -> Four = quarters!(i => vdivq_f32(a[i], b[i]));
        // as on x86: the second operand if one is NaN
        max(a: Four, b: Four) -> Four = quarters!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]));
        fma(a: Four, b: Four, c: Four) -> Four = quarters!(i => vfmaq_f32(c[i], a[i], b[i]));
        round(a: Four) -> Four = quarters!(i => vrndnq_f32(a[i]));
        pow2(n: Four) -> Four = quarters!(i => {
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n[i]), vdupq_n_s32(127))))
        });
        zero_below(x: Four, limit: Four, v: Four) -> Four = quarters!(i => {
            vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x[i], limit[i]), vreinterpretq_u32_f32(v[i])))
        });
        sum(v: Four) -> f32 = {
            let four = sum_quarters(v);
            vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        };
        sum_four(v: [Four; 4]) -> [f32; 4] = {
            let ab = add_halves(sum_quarters(v[0]), sum_quarters(v[1]));
            let cd = add_halves(sum_quarters(v[2]), sum_quarters(v[3]));
            let mut sums = [0.0; 4];
            vst1q_f32(sums.as_mut_ptr(), vpaddq_f32(ab, cd));
            sums
        };
        transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) = {
            let mut block = 0;
            // blocks of 4 × 4: pairs of lanes of two rows, then pairs of pairs
            while block < LANES {
                let (row, column) = (block / 4 * 4, block % 4 * 4);
                let row = from.add(row * from_stride + column);
                let [a, b] = [vld1q_f32(row), vld1q_f32(row.add(from_stride))];
                let [c, d] = [vld1q_f32(row.add(2 * from_stride)), vld1q_f32(row.add(3 * from_stride))];
                let (even, odd) = (vtrn1q_f32(a, b), vtrn2q_f32(a, b));
                let (even, odd) = (
                    [vreinterpretq_f64_f32(even), vreinterpretq_f64_f32(vtrn1q_f32(c, d))],
                    [vreinterpretq_f64_f32(odd), vreinterpretq_f64_f32(vtrn2q_f32(c, d))],
                );
                let columns = [
                    vtrn1q_f64(even[0], even[1]),
                    vtrn1q_f64(odd[0], odd[1]),
                    vtrn2q_f64(even[0], even[1]),
                    vtrn2q_f64(odd[0], odd[1]),
                ];
                for (j, values) in columns.into_iter().enumerate() {
                    vst1q_f32(to.add((column + j) * to_stride + block / 4 * 4), vreinterpretq_f32_f64(values));
                }
                block += 1;
            }
        };
    }
}
