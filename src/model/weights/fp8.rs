//! Weights in FP8 (E4M3) with a scale per block, row or tensor, converted to bf16 as transformers' `dequantize` does.

use super::{files::Entry, files::TensorIndex, matrix::DType, matrix::Weight, matrix::copy};
use crate::model::{ModelError, Result};
use half::{bf16, f16};
use safetensors::Dtype;

impl TensorIndex<'_> {
    /// The tensor in bf16: each value times its block's scale, an f32 product.
    pub fn dequantized(&self, name: &str, entry: &Entry, of_scales: &str, scales: &Entry) -> Result<Weight> {
        let ((rows, columns), (scale_rows, scale_columns)) = (last_two(&entry.shape), last_two(&scales.shape));
        let block = self.fp8_block.unwrap_or([rows, columns]);
        let height = block_size(rows, scale_rows, block[0]);
        let width = block_size(columns, scale_columns, block[1]);
        // of a stack of matrices
        let grids = height.and(width).map(|_| count(&entry.shape) / (rows * columns) * scale_rows * scale_columns);
        let (Some(height), Some(width), true) = (height, width, grids == Some(count(&scales.shape))) else {
            let (path, tensor, found) = (scales.file.path.clone(), of_scales.to_owned(), scales.shape.clone());
            let expected = vec![rows.div_ceil(block[0].max(1)), columns.div_ceil(block[1].max(1))];
            return Err(ModelError::Shape { path, tensor, expected, found });
        };
        let power = |code: &u8| libm::exp2f(f32::from(*code) - 127.0);
        let scales: Vec<f32> = match scales.dtype {
            Dtype::F8_E8M0 => scales.file.map[scales.bytes.clone()].iter().map(power).collect(),
            _ => self.tensor(of_scales, &scales.shape)?.elements().to_vec(),
        };
        let values: [f32; 256] = std::array::from_fn(|byte| e4m3(byte as u8));
        let codes = &entry.file.map[entry.bytes.clone()];
        let mut bytes = Vec::with_capacity(2 * codes.len());
        for (row, codes) in codes.chunks_exact(columns.max(1)).enumerate() {
            let first = (row / rows * scale_rows + row % rows / height) * scale_columns;
            let product = |(column, code): (usize, &u8)| values[usize::from(*code)] * scales[first + column / width];
            let row = codes.iter().enumerate().map(product);
            bytes.extend(row.flat_map(|value| bf16::from_f32(value).to_le_bytes()));
        }
        let copy = Some(copy(std::iter::once(&bytes[..]), bytes.len()));
        Ok(Weight { dtype: DType::Bf16, file: Some(entry.file.clone()), copy, ..Weight::of_shape(name, &entry.shape) })
    }
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The last two dimensions; absent ones are 1.
fn last_two(shape: &[usize]) -> (usize, usize) {
    let from_end = |n: usize| shape.len().checked_sub(n).map_or(1, |index| shape[index]);
    (from_end(2), from_end(1))
}

/// Length of a block along a dimension of `size` with `scales` of them: `weight_block_size`, whose last block may be shorter, or
/// an equal part.
fn block_size(size: usize, scales: usize, block: usize) -> Option<usize> {
    if block > 0 && size.div_ceil(block) == scales {
        return Some(block);
    }
    (scales > 0 && size > 0 && size.is_multiple_of(scales)).then(|| size / scales)
}

/// The number of a code: a sign, 4 bits of exponent (bias 7) and 3 of mantissa; no infinity. Its bits, moved to their places, are
/// 2^-8 of it in f16, subnormal numbers included.
fn e4m3(code: u8) -> f32 {
    let bits = u16::from(code & 0x7f);
    let magnitude = if bits == 0x7f { f32::NAN } else { 256.0 * f16::from_bits(bits << 7).to_f32() };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}
