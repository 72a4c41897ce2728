//! Sixteen-lane f32 arithmetic in four instruction sets, chosen at run time.
//!
//! A kernel is a struct that implements [`Kernel`]: its `run` is generic over [`Simd`] and is compiled once per set. Every set
//! computes the same lanes in the same order, so AVX-512, AVX2 and NEON produce the same bits; so does the portable code if the
//! target has a fused multiply-add, otherwise it rounds twice.

use half::{bf16, f16};
use std::sync::OnceLock;

/// Lanes of a vector, in every instruction set.
pub const LANES: usize = 16;

/// An instruction set that [`Isa::run`] can compile a kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Default for Isa {
    fn default() -> Isa {
        Isa::detect()
    }
}

/// Code compiled for every [`Isa`]. Mark `run` and everything it calls `#[inline(always)]`, and write loops, not closures: closures
/// cannot be marked, and may be compiled in another codegen unit, without the instruction set.
pub trait Kernel<Output = ()> {
    fn run<S: Simd>(self) -> Output;
}

impl Isa {
    /// The best instruction set of this machine. `UQAC_SIMD=portable|neon|avx2|avx512` selects another one that the CPU has.
    pub fn detect() -> Isa {
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(|| {
            let wanted = std::env::var("UQAC_SIMD").unwrap_or_default().to_lowercase();
            let sets = Isa::available();
            sets.iter().copied().find(|set| set.name() == wanted).unwrap_or(sets[0])
        })
    }

    /// All instruction sets of this machine, best first.
    pub fn available() -> Vec<Isa> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "aarch64")]
        sets.push(Isa::Neon);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Isa::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                sets.push(Isa::Avx2);
            }
        }
        sets.push(Isa::Portable);
        sets
    }

    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }

    /// Its [`Simd::REGISTERS`].
    pub fn registers(self) -> usize {
        struct Registers;
        impl Kernel<usize> for Registers {
            fn run<S: Simd>(self) -> usize {
                S::REGISTERS
            }
        }
        self.run(Registers)
    }

    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub fn run<O>(self, kernel: impl Kernel<O>) -> O {
        match self {
            Isa::Portable => kernel.run::<Portable>(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => run_neon(kernel),
            // SAFETY: `Isa::available` and `detect`, the only sources of these values outside tests, have checked that the CPU has
            // the features.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { run_avx512(kernel) },
        }
    }
}

/// A function of its own, as those of x86-64 must be: `tests/targets/neon.py` finds its instructions by its name.
#[cfg(target_arch = "aarch64")]
#[inline(never)]
fn run_neon<O>(kernel: impl Kernel<O>) -> O {
    kernel.run::<Neon>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<O>(kernel: impl Kernel<O>) -> O {
    kernel.run::<Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
fn run_avx512<O>(kernel: impl Kernel<O>) -> O {
    kernel.run::<Avx512>()
}

/// Sixteen f32 lanes.
///
/// # Safety
/// Every function may only be called from a [`Kernel`] that [`Isa::run`] has started with this type, and
/// pointers must be valid for 16 elements (no alignment needed).
#[allow(clippy::missing_safety_doc)] // stated once, above
pub trait Simd: Copy + 'static {
    type V: Copy;
    /// Sixteen-lane vectors that fit in the register file.
    const REGISTERS: usize;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    unsafe fn load_f16(p: *const f16) -> Self::V;
    unsafe fn load_i8(p: *const i8) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// a·b + c
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Lanes rounded to the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// 2^n for integer-valued lanes in -126..=127.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// The lanes as an array, for reductions and rare per-lane work.
    #[inline(always)]
    unsafe fn to_array(v: Self::V) -> [f32; LANES] {
        let mut a = [0.0; LANES];
        // SAFETY: as the trait's contract.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        a
    }

    /// Sum of the lanes, always by the same tree: 16 → 8 → 4 → 2 → 1, lane i with lane i + half.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: as the trait's contract.
        let mut a = unsafe { Self::to_array(v) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                a[i] += a[i + half];
            }
            half /= 2;
        }
        a[0]
    }

    /// [`sum`](Self::sum) of each of four vectors, bit-exact.
    #[inline(always)]
    unsafe fn sum_four(v: [Self::V; 4]) -> [f32; 4] {
        // SAFETY: as the trait's contract.
        unsafe { [Self::sum(v[0]), Self::sum(v[1]), Self::sum(v[2]), Self::sum(v[3])] }
    }

    /// Transposes sixteen rows of sixteen elements, bits unchanged: element j of the row at `from + i·from_stride` becomes element
    /// i of the row at `to + j·to_stride`.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for i in 0..LANES {
            for j in 0..LANES {
                // SAFETY: as the trait's contract, of every row.
                unsafe { to.add(j * to_stride + i).write_unaligned(from.add(i * from_stride + j).read_unaligned()) };
            }
        }
    }

    /// Prefetches the cache line of `p`, which need not be a valid address.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// The largest lane.
    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        // SAFETY: as the trait's contract.
        unsafe { Self::to_array(v) }.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// e^x per lane to about 1 ulp for x ≤ 88; below -87 the result is 0 (so e^-∞ = 0), never subnormal.
    ///
    /// Cody–Waite reduction x = n·ln 2 + r, |r| ≤ ln 2 / 2, then the Taylor polynomial of degree 7 in r (truncation
    /// below 2^-27 relative).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // SAFETY: as the trait's contract.
        unsafe {
            let lowest = Self::splat(-87.0);
            let clamped = Self::max(x, lowest);
            let n = Self::round(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fma(n, Self::splat(-0.693_359_4), clamped);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.0 / 5040.0);
            for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
                p = Self::fma(p, r, Self::splat(c));
            }
            Self::zero_below(x, lowest, Self::mul(p, Self::pow2(n)))
        }
    }

    /// `v` where `x >= limit`, 0 elsewhere.
    unsafe fn zero_below(x: Self::V, limit: Self::V, v: Self::V) -> Self::V;
}

/// An element as stored in weights and the cache.
pub trait Stored: Copy + Default {
    /// Numbers per element.
    const EACH: usize = 1;

    /// Address of number `offset` of those at `p`; `offset` is a multiple of `EACH`. Nothing is read.
    #[inline(always)]
    fn at(p: *const Self, offset: usize) -> *const Self {
        p.wrapping_add(offset / Self::EACH)
    }

    /// Sixteen numbers, widened.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;

    /// The first `len` < 16 elements at `p`, then zeros. Nothing beyond them is read. Only for elements of one number each.
    ///
    /// # Safety
    /// As for [`Simd`], but `p` need only be valid for `len` elements.
    #[inline(always)]
    unsafe fn load_part<S: Simd>(p: *const Self, len: usize) -> S::V {
        let mut padded = [Self::default(); LANES];
        // SAFETY: `p` is valid for `len` elements, and `padded` has more.
        unsafe {
            std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), len);
            Self::load::<S>(padded.as_ptr())
        }
    }
}

macro_rules! stored {
    ($($number:ty: $load:ident),+) => {$(
        impl Stored for $number {
            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const Self) -> S::V {
                // SAFETY: the caller's promise.
                unsafe { S::$load(p) }
            }
        }
    )+};
}
stored!(f32: load, bf16: load_bf16, f16: load_f16, i8: load_i8);

#[derive(Clone, Copy)]
pub struct Portable;

/// An array of `$lane` evaluated for each `$i`. A macro, for the reason given at [`Kernel`].
macro_rules! each {
    ($i:ident => $lane:expr) => {{
        let mut lanes = [0.0; LANES];
        for ($i, lane) in lanes.iter_mut().enumerate() {
            *lane = $lane;
        }
        lanes
    }};
}

/// Defines functions of [`Simd`], and their helpers, without the boilerplate.
macro_rules! inlined {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $value:expr;)+) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[allow(unused_unsafe)] // not all values need it
        unsafe fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: as the trait's contract.
            unsafe { $value }
        }
    )+};
}

/// `x` as f32, in integer operations without branches, which compilers vectorize; [`f16::to_f32`] tests for a CPU feature and makes
/// a call. The exponent and fraction, moved to their places, are 2^-112 of the value, subnormal values included; the product with
/// 2^112 is exact. All ones in the exponent are infinity or NaN and stay so.
#[inline(always)]
fn widened(x: f16) -> f32 {
    const SIGN: u32 = 0x8000;
    const EXPONENT: u32 = 0x7c00;
    let x = u32::from(x.to_bits());
    let finite = f32::from_bits((x & !SIGN) << 13) * f32::from_bits((127 + 112) << 23);
    let special = u32::from(x & EXPONENT == EXPONENT).wrapping_neg() & f32::INFINITY.to_bits();
    f32::from_bits(finite.to_bits() | special | (x & SIGN) << 16)
}

impl Simd for Portable {
    type V = [f32; LANES];
    // SSE2 has 16 registers of 4 lanes, NEON 32
    const REGISTERS: usize = if cfg!(target_arch = "x86_64") { 4 } else { 8 };
    inlined! {
        splat(x: f32) -> Self::V = [x; LANES];
        load(p: *const f32) -> Self::V = p.cast::<Self::V>().read_unaligned();
        load_bf16(p: *const bf16) -> Self::V
            = each!(i => f32::from_bits(u32::from(p.add(i).read_unaligned().to_bits()) << 16));
        load_f16(p: *const f16) -> Self::V = each!(i => widened(p.add(i).read_unaligned()));
        load_i8(p: *const i8) -> Self::V = each!(i => f32::from(p.add(i).read()));
        store(p: *mut f32, v: Self::V) = p.cast::<Self::V>().write_unaligned(v);
        add(a: Self::V, b: Self::V) -> Self::V = each!(i => a[i] + b[i]);
        sub(a: Self::V, b: Self::V) -> Self::V = each!(i => a[i] - b[i]);
        mul(a: Self::V, b: Self::V) -> Self::V = each!(i => a[i] * b[i]);
        div(a: Self::V, b: Self::V) -> Self::V = each!(i => a[i] / b[i]);
        max(a: Self::V, b: Self::V) -> Self::V = each!(i => if a[i] > b[i] { a[i] } else { b[i] });
        // without the instruction `mul_add` would be a library call per lane
        fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V
            = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                each!(i => a[i].mul_add(b[i], c[i]))
            } else {
                each!(i => a[i] * b[i] + c[i])
            };
        round(a: Self::V) -> Self::V = each!(i => a[i].round_ties_even());
        pow2(n: Self::V) -> Self::V = each!(i => f32::from_bits(((n[i] as i32 + 127) as u32) << 23));
        to_array(v: Self::V) -> [f32; LANES] = v;
        zero_below(x: Self::V, limit: Self::V, v: Self::V) -> Self::V
            = each!(i => if x[i] >= limit[i] { v[i] } else { 0.0 });
    }
}

mod ahead;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;
pub use ahead::bytes_ahead;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp([f32; LANES]);
    impl Kernel<([f32; LANES], f32, f32, [f32; 4])> for Exp {
        #[inline(always)]
        fn run<S: Simd>(self) -> ([f32; LANES], f32, f32, [f32; 4]) {
            // SAFETY: started by `Isa::run`; the array has 16 elements.
            unsafe {
                let x = S::load(self.0.as_ptr());
                let e = S::exp(x);
                let four = [x, e, S::sub(e, x), S::add(x, x)];
                let sums = S::sum_four(four);
                assert_eq!(sums, four.map(|v| S::sum(v)));
                (S::to_array(e), S::sum(x), S::max_lane(x), sums)
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulp_and_levels_agree() {
        for step in 0..20_000 {
            let x: [f32; LANES] = each!(i => -90.0 + (step * LANES + i) as f32 * (178.0 / 320_000.0));
            let reference = Isa::available()[0].run(Exp(x));
            for isa in Isa::available() {
                let (e, sum, max, sums) = isa.run(Exp(x));
                for i in 0..LANES {
                    let exact = if x[i] < -87.0 { 0.0 } else { (x[i] as f64).exp() };
                    // 2 ulp relative: 2 · 2^-23; one more where the portable code rounds products separately
                    let bound = exact * 3.0 / (1u64 << 23) as f64;
                    assert!((e[i] as f64 - exact).abs() <= bound, "{isa:?}: e^{} = {} not {exact}", x[i], e[i]);
                }
                assert_eq!((sum, max), (reference.1, reference.2), "{isa:?}");
                if isa != Isa::Portable || cfg!(target_arch = "aarch64") {
                    assert_eq!((e, sums), (reference.0, reference.3), "{isa:?}");
                }
            }
        }
        let (e, ..) = Isa::detect().run(Exp([f32::NEG_INFINITY; LANES]));
        assert_eq!(e, [0.0; LANES]);
    }

    /// Sixteen stored elements, widened.
    struct Widen<T>([T; LANES]);
    impl<T: Stored> Kernel<[f32; LANES]> for Widen<T> {
        #[inline(always)]
        fn run<S: Simd>(self) -> [f32; LANES] {
            // SAFETY: started by `Isa::run`; the array has 16 elements.
            unsafe { S::to_array(T::load::<S>(self.0.as_ptr())) }
        }
    }

    #[test]
    fn every_stored_value_is_widened_exactly() {
        let same = |a: [f32; LANES], b: [f32; LANES]| {
            a.map(f32::to_bits) == b.map(f32::to_bits) || b.iter().any(|b| b.is_nan())
        };
        for isa in Isa::available() {
            for first in (0..=u16::MAX).step_by(LANES) {
                let bits: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
                let (halves, brains) = (bits.map(f16::from_bits), bits.map(bf16::from_bits));
                let (a, b) = (isa.run(Widen(halves)), isa.run(Widen(brains)));
                assert!(same(a, halves.map(f16::to_f32)), "{isa:?}: f16 {first:#x} and on");
                assert!(same(b, brains.map(bf16::to_f32)), "{isa:?}: bf16 {first:#x} and on");
                let nan = |x: &f32| x.is_nan();
                assert!(a.iter().map(nan).eq(halves.iter().map(|x| x.is_nan())), "{isa:?}: f16 {first:#x} and on");
                assert!(b.iter().map(nan).eq(brains.iter().map(|x| x.is_nan())), "{isa:?}: bf16 {first:#x} and on");
            }
            let bytes: [i8; LANES] = std::array::from_fn(|i| (i as i8 - 8) * 16);
            assert_eq!(isa.run(Widen(bytes)), bytes.map(f32::from), "{isa:?}");
        }
    }
}
