//! Device memory of a test, and the comparison of a kernel's numbers with their references.

use super::super::abi::{ChoiceGroups, RoundedRows, SHARING, Stored, row_scales};
use super::super::context::Device;
use super::super::error::CudaError;
use super::super::memory::{Buffer, DevicePtr};
use super::{Check, Worst};
use crate::model::weights::DType;
use bytemuck::Pod;
use half::{bf16, f16};
use std::cell::RefCell;

pub type Tested = Result<(), CudaError>;

/// A value, and the sum of its terms' magnitudes.
pub type Sum = (f64, f64);

/// Relative rounding error of f32.
pub const U: f64 = 1.0 / (1u32 << 24) as f64;

/// Relative error bound of a sum of products, as a share of Σ |products|. Each of `chained` tensor-core steps aligns its 16
/// products and the accumulator to the largest of them and truncates below 2^-23 of it. Truncation of the accumulator is
/// biased; that of the products, which have either sign, is a random walk: six standard deviations of 2^-23 / √12 each.
/// `sums` f32 additions follow.
pub fn bound(chained: usize, sums: usize) -> f64 {
    let walk = 6.0 * (17.0 * chained as f64 / 12.0).sqrt();
    (2.0 * (chained as f64 + walk) + sums as f64) * U
}

/// A reference value. The error bound is `bound * scale`, where scale is Σ |terms|.
#[derive(Clone, Copy)]
pub struct Want {
    pub value: f64,
    pub scale: f64,
    pub bound: f64,
}

pub fn near(value: f64, scale: f64, bound: f64) -> Want {
    Want { value, scale, bound }
}

/// A value that must be bit-exact (NaN: any NaN).
pub fn exact(value: impl Into<f64>) -> Want {
    near(value.into(), 0.0, U)
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// Rounding to a dtype, relative; doubled, because the rounded number has an error itself.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2.0 * U,
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
    }
}

/// A power of two for row `i`.
pub fn power(i: usize) -> f32 {
    2f32.powi(i as i32 * 7 % 23 - 11)
}

/// Powers of two for `count` rows.
pub fn powers(count: usize) -> Vec<f32> {
    (0..count).map(power).collect()
}

/// A generator of numbers (xorshift); not of 0.
pub struct Noise(pub u64);

impl Noise {
    /// Between -1 and 1.
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Between -scale and scale.
    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| scale * self.next()).collect()
    }
}

/// The device memory of one test and the result of its comparisons.
pub struct Bench<'d> {
    pub device: &'d Device,
    buffers: RefCell<Vec<Buffer<u8>>>,
    pub check: RefCell<Check>,
}

impl<'d> Bench<'d> {
    pub fn new(device: &'d Device, kernel: &str) -> Bench<'d> {
        let check = Check { kernel: kernel.to_owned(), ..Check::default() };
        Bench { device, buffers: RefCell::default(), check: RefCell::new(check) }
    }

    /// Uninitialised memory for `count` values: NaN until a kernel writes them.
    pub fn room<T>(&self, count: usize) -> Result<DevicePtr<T>, CudaError> {
        let buffer = self.device.allocate::<u8>("the self-test", count * size_of::<T>())?;
        self.device.fill(&buffer, 0xff)?;
        let ptr = buffer.ptr().cast();
        self.buffers.borrow_mut().push(buffer);
        Ok(ptr)
    }

    pub fn put<T: Pod>(&self, values: &[T]) -> Result<DevicePtr<T>, CudaError> {
        let ptr = self.room(values.len())?;
        if let Some(buffer) = self.buffers.borrow().last() {
            self.device.write(buffer, 0, bytemuck::cast_slice(values))?;
        }
        Ok(ptr)
    }

    /// Random numbers on the device and here.
    pub fn noise(&self, seed: u64, count: usize, scale: f32) -> Result<(DevicePtr<f32>, Vec<f32>), CudaError> {
        let values = Noise(seed).floats(count, scale);
        Ok((self.put(&values)?, values))
    }

    pub fn get<T: Pod>(&self, from: DevicePtr<T>, count: usize) -> Result<Vec<T>, CudaError> {
        let buffers = self.buffers.borrow();
        let offset = |buffer: &Buffer<u8>| from.address.checked_sub(buffer.ptr().address).map(|at| at as usize);
        let holds = |b: &&Buffer<u8>| offset(b).is_some_and(|at| at < b.bytes());
        let outside = || CudaError::Unsupported(format!("self-test: {:#x} is outside the test's memory", from.address));
        let buffer = buffers.iter().find(holds).ok_or_else(outside)?;
        self.device.read_at(buffer, offset(buffer).unwrap_or(0), count)
    }

    /// Values stored as `dtype`, and the values after rounding.
    pub fn put_as(&self, values: &[f32], dtype: DType) -> Result<(DevicePtr<Stored>, Vec<f32>), CudaError> {
        let halves = |bits: fn(f32) -> u16| self.put(&values.iter().map(|x| bits(*x)).collect::<Vec<u16>>());
        let ptr = match dtype {
            DType::F32 => self.put(values)?.cast(),
            DType::F16 => halves(|x| f16::from_f32(x).to_bits())?.cast(),
            DType::Bf16 => halves(|x| bf16::from_f32(x).to_bits())?.cast(),
        };
        Ok((ptr, values.iter().map(|x| dtype.round(*x)).collect()))
    }

    pub fn get_as(&self, from: DevicePtr<Stored>, dtype: DType, count: usize) -> Result<Vec<f32>, CudaError> {
        let halves = |value: fn(u16) -> f32| Ok(self.get(from.cast(), count)?.into_iter().map(value).collect());
        match dtype {
            DType::F32 => self.get(from.cast(), count),
            DType::F16 => halves(|bits| f16::from_bits(bits).to_f32()),
            DType::Bf16 => halves(|bits| bf16::from_bits(bits).to_f32()),
        }
    }

    /// `rows` rounded rows for a kernel to write.
    pub fn rounded_room(&self, rows: usize, width: usize) -> Result<RoundedRows, CudaError> {
        Ok(RoundedRows { values: self.room(rows * width)?, scales: self.room(rows * row_scales(width))? })
    }

    /// The choices of each expert, with room for `rows`.
    pub fn choices<C: AsRef<[i32]>>(&self, of_experts: &[C], rows: usize) -> Result<ChoiceGroups, CudaError> {
        let mut choices = vec![0; of_experts.len() * rows];
        let places = choices.chunks_mut(rows).zip(of_experts);
        places.for_each(|(place, of)| place[..of.as_ref().len()].copy_from_slice(of.as_ref()));
        let counts: Vec<i32> = of_experts.iter().map(|of| of.as_ref().len() as i32).collect();
        Ok(ChoiceGroups { choices: self.put(&choices)?, counts: self.put(&counts)?, rows: rows as i32, padding: 0 })
    }

    /// These values in f16, times powers of two, and the products. Scales beyond a row's end are NaN.
    pub fn put_rounded(&self, values: &[f32], width: usize) -> Result<(RoundedRows, Vec<f64>), CudaError> {
        let (used, room) = (width.div_ceil(SHARING), row_scales(width));
        let scale = |i: usize| if i % room < used { power(i / room * used + i % room) } else { f32::NAN };
        let scales: Vec<f32> = (0..values.len() / width * room).map(scale).collect();
        let of = |i: usize| f64::from(scales[i / width * room + i % width / SHARING]);
        let (ptr, rounded) = self.put_as(values, DType::F16)?;
        let restored = rounded.iter().enumerate().map(|(i, x)| f64::from(*x) * of(i)).collect();
        Ok((RoundedRows { values: ptr.cast(), scales: self.put(&scales)? }, restored))
    }

    /// Compares rounded rows with `want`: each within 2^-11 of itself or 2^-39 of the largest of the `sharing` numbers with
    /// the same scale, and `lost` of itself.
    pub fn compare_rounded(
        &self,
        case: &str,
        (rows, width): (RoundedRows, usize),
        want: &[f64],
        sharing: usize,
        lost: f64,
    ) -> Tested {
        let (room, bound) = (row_scales(width), 1.0 / 2048.0 + lost + 2.0 * U);
        let scales = self.get(rows.scales, want.len() / width * room)?;
        let halves = self.get_as(rows.values.cast(), DType::F16, want.len())?;
        let restored = |(i, x): (usize, &f32)| x * scales[i / width * room + i % width / SHARING];
        let wants = want.chunks(width).flat_map(|row| row.chunks(sharing)).flat_map(|part| {
            let max = part.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            part.iter().map(move |x| near(*x, x.abs() + max / f64::from(1 << 28), bound))
        });
        self.check(case, halves.iter().enumerate().map(restored), wants);
        Ok(())
    }

    /// Compares a kernel's output with `want`.
    pub fn compare<T: Pod + Into<f64>>(
        &self,
        case: &str,
        from: DevicePtr<T>,
        want: impl IntoIterator<Item = Want>,
    ) -> Tested {
        let want: Vec<Want> = want.into_iter().collect();
        self.check(case, self.get(from, want.len())?, want);
        Ok(())
    }

    /// The comparison of all cases. Keeps the number whose error is the largest share of its bound.
    pub fn check<T: Into<f64>>(
        &self,
        case: &str,
        found: impl IntoIterator<Item = T>,
        want: impl IntoIterator<Item = Want>,
    ) {
        let mut found = found.into_iter();
        let check = &mut *self.check.borrow_mut();
        for (index, want) in want.into_iter().enumerate() {
            let found = found.next().map_or(f64::NAN, T::into);
            let same = found == want.value || found.is_nan() && want.value.is_nan();
            let error = (found - want.value).abs() / want.scale.max(f64::MIN_POSITIVE);
            let error = if same { 0.0 } else { error };
            let worse = error.is_nan() || error * check.bound > check.error * want.bound;
            if check.numbers == 0 || worse && !check.error.is_nan() {
                (check.error, check.bound) = (error, want.bound);
                check.worst = Some(Worst { case: case.to_owned(), index, expected: want.value, found });
            }
            check.numbers += 1;
        }
    }
}
