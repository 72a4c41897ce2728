//! Numbers for the cases, the same every time, and the comparison of answers.

use super::super::abi::{RoundedRows, SHARING, Stored, row_scales};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::memory::{Buffer, DevicePtr};
use crate::model::weights::DType;
use bytemuck::Pod;
use half::{bf16, f16};

/// What memory of the cases is called in errors.
const WHAT: &str = "the self-test";

/// Rounding of an f32, relative.
pub const U: f64 = 1.0 / (1u32 << 24) as f64;

/// What sums of products may lose, relative to Σ |products|: `chained` products of the tensor cores after each other, each of
/// which aligns its 16 products and the accumulator to the largest and cuts off what is below 2^-23 of that; and `sums`
/// additions in f32. The accumulator is cut towards zero each time. The products have either sign, so that what is cut off
/// them adds up as a random walk: six of its deviations, a cut being uniform, of deviation 2^-23 / √12.
pub fn bound(chained: usize, sums: usize) -> f64 {
    let walk = 6.0 * (17.0 * chained as f64 / 12.0).sqrt();
    (2.0 * (chained as f64 + walk) + sums as f64) * U
}

/// The worst of the numbers that were compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub numbers: usize,
    pub error: f64,
    pub bound: f64,
}

impl Outcome {
    /// `magnitude`: what the error and its bound are relative to.
    pub fn compare(&mut self, got: f32, want: f64, magnitude: f64, bound: f64) {
        let difference = (f64::from(got) - want).abs();
        let error = if f64::from(got) == want { 0.0 } else { difference / magnitude.max(f64::MIN_POSITIVE) };
        self.add(if error.is_nan() { f64::INFINITY } else { error }, bound);
    }

    /// What must not differ at all.
    pub fn same<T: PartialEq>(&mut self, got: T, want: T) {
        self.add(if got == want { 0.0 } else { f64::INFINITY }, U);
    }

    fn add(&mut self, error: f64, bound: f64) {
        self.numbers += 1;
        if self.numbers == 1 || error * self.bound > self.error * bound {
            (self.error, self.bound) = (error, bound);
        }
    }
}

/// Values on the device in a dtype, and what they are then.
pub struct Values {
    pub buffer: Buffer<u8>,
    pub values: Vec<f32>,
}

impl Values {
    pub fn new(device: &Device, values: &[f32], dtype: DType) -> Result<Values, CudaError> {
        let buffer = upload(device, &encode(values, dtype))?;
        Ok(Values { buffer, values: values.iter().map(|x| dtype.round(*x)).collect() })
    }

    /// Keys `[.., head_dim]` as a cache of this dtype has them: f32 as `Halves` of `kernels/common.cuh`.
    pub fn keys(device: &Device, values: &[f32], dtype: DType, head_dim: usize) -> Result<Values, CudaError> {
        if dtype != DType::F32 {
            return Values::new(device, values, dtype);
        }
        let high = |x: &f32| f16::from_f32(*x).to_f32();
        let low = |x: &f32| f16::from_f32(x - high(x)).to_f32();
        let parts = values.chunks(head_dim).flat_map(|key| key.iter().map(high).chain(key.iter().map(low)));
        let buffer = upload(device, &encode(&parts.collect::<Vec<f32>>(), DType::F16))?;
        Ok(Values { buffer, values: values.iter().map(|x| high(x) + low(x)).collect() })
    }

    pub fn ptr(&self) -> DevicePtr<Stored> {
        self.buffer.ptr().cast()
    }
}

/// The keys that [`Values::keys`] describes, from their bytes; and what they may have lost, relative.
pub fn decode_keys(bytes: &[u8], dtype: DType, head_dim: usize) -> (Vec<f32>, f64) {
    if dtype != DType::F32 {
        return (decode(bytes, dtype), rounding(dtype));
    }
    let halves = decode(bytes, DType::F16);
    let add = |key: &[f32]| -> Vec<f32> { (0..head_dim).map(|i| key[i] + key[i + head_dim]).collect() };
    (halves.chunks_exact(2 * head_dim).flat_map(add).collect(), 8.0 * U)
}

fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(values).to_vec(),
        DType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_ne_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_ne_bytes()).collect(),
    }
}

/// The reverse of what a device holds in a dtype.
pub fn decode(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let value = |bytes: &[u8]| match *bytes {
        [a, b] if dtype == DType::F16 => f16::from_ne_bytes([a, b]).to_f32(),
        [a, b] => bf16::from_ne_bytes([a, b]).to_f32(),
        [a, b, c, d] => f32::from_ne_bytes([a, b, c, d]),
        _ => f32::NAN,
    };
    bytes.chunks_exact(dtype.size()).map(value).collect()
}

/// Rounding to a dtype, relative; twice that of its definition, for what is rounded from a number that is off by a little.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2.0 * U,
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
    }
}

/// Powers of two as rows have them, and the same on the device.
pub struct Scales {
    pub values: Vec<f64>,
    pub buffer: Buffer<f32>,
}

impl Scales {
    pub fn new(device: &Device, count: usize) -> Result<Scales, CudaError> {
        let powers: Vec<f32> = (0..count).map(|i| 2f32.powi(i as i32 * 7 % 23 - 11)).collect();
        Ok(Scales { values: powers.iter().map(|x| f64::from(*x)).collect(), buffer: upload(device, &powers)? })
    }

    /// The numbers of rows of this width, multiplied by their rows' powers.
    pub fn restore(&self, values: &[f32], width: usize) -> Vec<f64> {
        let rows = values.chunks(width).zip(&self.values);
        rows.flat_map(|(row, scale)| row.iter().map(move |x| f64::from(*x) * scale)).collect()
    }
}

/// Rounded rows on the device.
pub struct Rounded {
    rows: usize,
    width: usize,
    values: Buffer<u16>,
    scales: Buffer<f32>,
}

impl Rounded {
    /// For a kernel that writes them.
    pub fn unwritten(device: &Device, rows: usize, width: usize) -> Result<Rounded, CudaError> {
        let (values, scales) = (unwritten(device, rows * width)?, unwritten(device, rows * row_scales(width))?);
        Ok(Rounded { rows, width, values, scales })
    }

    /// For a kernel that reads them: these numbers in f16, times powers of two, which follow; those beyond a row are no numbers.
    pub fn new(device: &Device, values: &[f32], width: usize) -> Result<(Rounded, Vec<f64>), CudaError> {
        let (rows, used) = (values.len() / width, width.div_ceil(SHARING));
        let power = |i: usize| 2f32.powi(i as i32 * 7 % 23 - 11);
        let scale = |row: usize, i: usize| if i < used { power(row * used + i) } else { f32::NAN };
        let scales: Vec<f32> = (0..rows).flat_map(|row| (0..row_scales(width)).map(move |i| scale(row, i))).collect();
        let halves: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
        let restored = halves.iter().enumerate();
        let restored = restored.map(|(i, x)| x.to_f64() * f64::from(scale(i / width, i % width / SHARING))).collect();
        let bits: Vec<u16> = halves.into_iter().map(f16::to_bits).collect();
        Ok((Rounded { rows, width, values: upload(device, &bits)?, scales: upload(device, &scales)? }, restored))
    }

    pub fn rows(&self) -> RoundedRows {
        RoundedRows { values: self.values.ptr(), scales: self.scales.ptr() }
    }

    /// Compares what a kernel has written with what it should hold: a number to 2^-11 of itself or 2^-39 of the largest of the
    /// `sharing` that share its power of two, and `lost` of itself before that.
    pub fn compare(
        &self,
        device: &Device,
        outcome: &mut Outcome,
        want: &[f64],
        sharing: usize,
        lost: f64,
    ) -> Result<(), CudaError> {
        let (width, stride, bound) = (self.width, row_scales(self.width), 1.0 / 2048.0 + lost + 2.0 * U);
        let values = device.read(&self.values, 0, self.rows * width)?;
        let scales: Vec<f32> = device.read(&self.scales, 0, self.rows * stride)?;
        for (row, want) in want.chunks(width).enumerate() {
            for (part, want) in want.chunks(sharing).enumerate() {
                let max = want.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                for (i, want) in (part * sharing..).zip(want) {
                    let got = f16::from_bits(values[row * width + i]).to_f64();
                    let got = (got * f64::from(scales[row * stride + i / SHARING])) as f32;
                    outcome.compare(got, *want, want.abs() + max / f64::from(1 << 28), bound);
                }
            }
        }
        Ok(())
    }
}

/// What a case gives to a kernel.
pub fn upload<T: Pod>(device: &Device, values: &[T]) -> Result<Buffer<T>, CudaError> {
    device.upload(WHAT, values)
}

/// A buffer of values that are not numbers until a kernel writes them.
pub fn unwritten<T>(device: &Device, count: usize) -> Result<Buffer<T>, CudaError> {
    let buffer = device.allocate(WHAT, count)?;
    device.fill(&buffer, 0xff)?;
    Ok(buffer)
}
