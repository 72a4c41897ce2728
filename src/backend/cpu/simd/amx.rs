//! Intel's Advanced Matrix Extensions. Their intrinsics are not stable, so the instructions are inline assembly.
//!
//! The compiler never uses tiles on its own, so their contents persist from one assembly block to the next.

use super::tiles::Tiles;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::{arch::asm, sync::OnceLock};

pub struct Amx;

impl Amx {
    /// Whether the CPU multiplies tiles of bf16 and Linux grants their use to this process, which must be requested.
    pub fn available() -> bool {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| {
            let has =
                __get_cpuid_max(0).0 >= 7 && __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE;
            // SAFETY: the call requests the use of registers; a kernel without it returns an error.
            has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
        })
    }
}

/// Operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight whole tiles.
static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Runs `$body` with the constant `$tile`, since instructions name tiles by constants.
macro_rules! with_tile {
    ($number:expr, $tile:ident => $body:expr) => {
        with_tile!(@ $number, $tile => $body, 0 1 2 3 4 5 6 7)
    };
    (@ $number:expr, $tile:ident => $body:expr, $($constant:literal)+) => {
        match $number {
            $($constant => {
                const $tile: usize = $constant;
                $body
            })+
            _ => unreachable!(),
        }
    };
}

/// The product of these tiles, which must be among those listed.
macro_rules! dot {
    ($tiles:expr, $($sums:literal $left:literal $right:literal),+) => {
        match $tiles {
            $(($sums, $left, $right) => asm!(
                "tdpbf16ps tmm{}, tmm{}, tmm{}", const $sums, const $left, const $right,
                options(nostack, preserves_flags, nomem)
            ),)+
            _ => unreachable!(),
        }
    };
}

// SAFETY (all): by the trait's contract the instructions exist and pointers are valid.
impl Tiles for Amx {
    inlined! {
        open() = asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, preserves_flags, readonly));
        close() = asm!("tilerelease", options(nostack, preserves_flags, nomem));
        zero(tile: usize)
            = with_tile!(tile, T => asm!("tilezero tmm{}", const T, options(nostack, preserves_flags, nomem)));
        load(tile: usize, p: *const u8, stride: usize) = with_tile!(tile, T => asm!(
            "tileloadd tmm{}, [{} + {}]", const T, in(reg) p, in(reg) stride,
            options(nostack, preserves_flags, readonly)
        ));
        load_passing(tile: usize, p: *const u8, stride: usize) = with_tile!(tile, T => asm!(
            "tileloaddt1 tmm{}, [{} + {}]", const T, in(reg) p, in(reg) stride,
            options(nostack, preserves_flags, readonly)
        ));
        dot(sums: usize, left: usize, right: usize) = dot!(
            (sums, left, right),
            0 6 7, 1 6 7, 2 6 7, 3 6 7, 4 6 7, 5 6 7,
            0 4 6, 1 4 7, 2 5 6, 3 5 7
        );
        store(tile: usize, p: *mut u8, stride: usize) = with_tile!(tile, T => asm!(
            "tilestored [{} + {}], tmm{}", in(reg) p, in(reg) stride, const T, options(nostack, preserves_flags)
        ));
    }
}
