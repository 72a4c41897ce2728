//! Formats of tensors: blocks of numbers with shared scales, as ggml defines them (`ggml-quants.c`).

use crate::model::weights::DType;
use half::{bf16, f16};

/// A format.
pub struct Format {
    /// Its number in files.
    kind: u32,
    /// Numbers and bytes of a block.
    pub elements: usize,
    pub bytes: usize,
    /// The type that its numbers become: exact where there are no scales, else within 2^-11.
    pub target: DType,
    block: fn(&[u8], &mut [f32]),
}

const fn format(kind: u32, elements: usize, bytes: usize, block: fn(&[u8], &mut [f32])) -> Format {
    Format { kind, elements, bytes, target: DType::F16, block }
}

static FORMATS: [Format; 11] = [
    Format { target: DType::F32, ..format(0, 1, 4, |b, x| x[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])) },
    format(1, 1, 2, |b, x| x[0] = half_at(b, 0)),
    Format { target: DType::Bf16, ..format(30, 1, 2, |b, x| x[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()) },
    // Q4_0, Q4_1, Q5_0, Q5_1
    format(2, 32, 18, |b, x| nibbles(&b[2..], [0; 4], x, |q| half_at(b, 0) * (q - 8.0))),
    format(3, 32, 20, |b, x| nibbles(&b[4..], [0; 4], x, |q| half_at(b, 0) * q + half_at(b, 2))),
    format(6, 32, 22, |b, x| nibbles(&b[6..], [b[2], b[3], b[4], b[5]], x, |q| half_at(b, 0) * (q - 16.0))),
    format(7, 32, 24, |b, x| nibbles(&b[8..], [b[4], b[5], b[6], b[7]], x, |q| half_at(b, 0) * q + half_at(b, 2))),
    // Q8_0
    format(8, 32, 34, |b, x| x.iter_mut().zip(&b[2..]).for_each(|(x, q)| *x = half_at(b, 0) * f32::from(*q as i8))),
    // Q4_K, Q5_K, Q6_K
    format(12, 256, 144, |b, x| k_block(b, None, &b[16..], x)),
    format(13, 256, 176, |b, x| k_block(b, Some(&b[16..48]), &b[48..], x)),
    format(14, 256, 210, q6_k),
];

impl Format {
    pub fn of(kind: u32) -> Option<&'static Format> {
        FORMATS.iter().find(|format| format.kind == kind)
    }

    /// The numbers of whole blocks.
    pub fn decode(&self, bytes: &[u8], numbers: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.bytes).zip(numbers.chunks_exact_mut(self.elements));
        blocks.for_each(|(bytes, numbers)| (self.block)(bytes, numbers));
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Sixteen bytes of two numbers each, the second ones after all first ones, with a fifth bit for each from `high`.
fn nibbles(low: &[u8], high: [u8; 4], x: &mut [f32], value: impl Fn(f32) -> f32) {
    let high = u32::from_le_bytes(high);
    for (i, x) in x.iter_mut().enumerate() {
        let nibble = low[i % 16] >> (i / 16 * 4) & 15;
        *x = value(f32::from(nibble | ((high >> i & 1) as u8) << 4));
    }
}

/// Eight parts of 32 numbers, each with a scale and a minimum of six bits; a fifth bit from `high`.
fn k_block(bytes: &[u8], high: Option<&[u8]>, low: &[u8], x: &mut [f32]) {
    let (scale, min, packed) = (half_at(bytes, 0), half_at(bytes, 2), &bytes[4..16]);
    for (part, x) in x.chunks_exact_mut(32).enumerate() {
        let (s, m) = match part.checked_sub(4) {
            None => (packed[part] & 63, packed[part + 4] & 63),
            Some(j) => (packed[part + 4] & 15 | packed[j] >> 6 << 4, packed[part + 4] >> 4 | packed[part] >> 6 << 4),
        };
        let (s, m) = (scale * f32::from(s), min * f32::from(m));
        for (i, x) in x.iter_mut().enumerate() {
            let nibble = low[part / 2 * 32 + i] >> (part % 2 * 4) & 15;
            let fifth = high.map_or(0, |high| (high[i] >> part & 1) << 4);
            *x = s * f32::from(nibble | fifth) - m;
        }
    }
}

/// Sixteen parts of 16 numbers of six bits, each part with a scale of eight bits.
fn q6_k(bytes: &[u8], x: &mut [f32]) {
    let (low, high, scales, scale) = (&bytes[..128], &bytes[128..192], &bytes[192..208], half_at(bytes, 208));
    for (i, x) in x.iter_mut().enumerate() {
        // two halves of 128, each of four rows of 32: rows 0 and 2 share bytes, and so do 1 and 3
        let (half, row, column) = (i / 128, i / 32 % 4, i % 32);
        let nibble = low[half * 64 + row % 2 * 32 + column] >> (row / 2 * 4) & 15;
        let top = high[half * 32 + column] >> (row * 2) & 3;
        *x = scale * f32::from(scales[i / 16] as i8) * (f32::from(nibble | top << 4) - 32.0);
    }
}
