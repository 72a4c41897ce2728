//! A matrix as it is in its file, and the types of numbers.

use crate::{model::ModelError, model::Result, names::named};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use std::{ops::Range, path::PathBuf, sync::Arc};

/// Elements as stored in a file.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl Elements<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(v) => v.len(),
            Elements::Bf16(v) => v.len(),
            Elements::F16(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The i-th element, widened to f32 without loss.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Elements::F32(v) => v[i],
            Elements::Bf16(v) => v[i].to_f32(),
            Elements::F16(v) => v[i].to_f32(),
        }
    }

    /// All of them, widened to f32 without loss.
    pub fn to_vec(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }
}

named! {
    /// Storage type of a weight in its file, or of keys and values in the cache; kernels have their numbers in this order.
    #[derive(Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DType {
        #[default]
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
    }
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// The nearest value of this type, ties to even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::F16 => f16::from_f32(x).to_f32(),
            DType::Bf16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// Little-endian bytes of values in this type.
    pub(crate) fn encode(self, numbers: &[f32], bytes: &mut Vec<u8>) {
        bytes.clear();
        match self {
            DType::F32 => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            DType::F16 => {
                let mut halves = vec![f16::ZERO; numbers.len()];
                halves.convert_from_f32_slice(numbers);
                bytes.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
            DType::Bf16 => bytes.extend(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
        }
    }
}

/// A weight matrix `[rows, in_features]`, row-major, in its stored dtype: y = W x.
#[derive(Clone, Debug)]
pub struct Weight {
    pub name: String,
    pub rows: usize,
    pub in_features: usize,
    pub dtype: DType,
    /// `None`: random values, or only the shape is known.
    pub(super) file: Option<Arc<MappedFile>>,
    /// A copy of data that is unaligned in the file (u64 provides the alignment), or of reordered rows.
    pub(super) copy: Option<Arc<Vec<u64>>>,
    /// The first byte, in the copy or else in the file.
    pub(super) start: usize,
}

/// The concatenated bytes, aligned for any type.
pub(super) fn copy<'a>(parts: impl Iterator<Item = &'a [u8]>, len: usize) -> Arc<Vec<u64>> {
    let mut words = vec![0u64; len.div_ceil(8)];
    let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    for part in parts {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = after;
    }
    Arc::new(words)
}

#[derive(Debug)]
pub(super) struct MappedFile {
    pub path: PathBuf,
    pub map: Mmap,
}

impl Weight {
    /// The matrix's elements, `rows * in_features` of them.
    pub fn elements(&self) -> Elements<'_> {
        let bytes = self.byte_slice();
        match self.dtype {
            DType::F32 => Elements::F32(bytemuck::cast_slice(bytes)),
            DType::Bf16 => Elements::Bf16(bytemuck::cast_slice(bytes)),
            DType::F16 => Elements::F16(bytemuck::cast_slice(bytes)),
        }
    }

    /// Size in the file.
    pub fn byte_len(&self) -> usize {
        self.rows * self.in_features * self.dtype.size()
    }

    /// A matrix of which only the shape is known; its rows are as long as the last dimension.
    pub(super) fn of_shape(name: &str, shape: &[usize]) -> Weight {
        let in_features = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / in_features;
        let (name, dtype) = (name.to_owned(), DType::Bf16);
        Weight { name, rows, in_features, dtype, file: None, copy: None, start: 0 }
    }

    /// Whether only the shape is known.
    pub(super) fn is_shape(&self) -> bool {
        self.file.is_none() && self.copy.is_none()
    }

    pub(crate) fn byte_slice(&self) -> &[u8] {
        let bytes = match (&self.copy, &self.file) {
            (Some(words), _) => bytemuck::cast_slice(words),
            (None, Some(file)) => &file.map[..],
            (None, None) => return &[],
        };
        &bytes[self.start..self.start + self.byte_len()]
    }

    /// Rows `rows`, under their own name.
    pub(super) fn part(&self, name: String, rows: Range<usize>) -> Weight {
        let start = self.start + rows.start * self.in_features * self.dtype.size();
        Weight { name, rows: rows.len(), start, ..self.clone() }
    }

    /// The matrix with the rows of each head reordered.
    pub(super) fn reordered(&self, order: &[usize]) -> Weight {
        let rows = (0..self.rows).map(|row| row - row % order.len() + order[row % order.len()]);
        self.gathered(self.name.clone(), rows.collect())
    }

    /// A copy of some rows, under their own name.
    pub(super) fn gathered(&self, name: String, rows: Vec<usize>) -> Weight {
        let (old, row_len) = (self.byte_slice(), self.in_features * self.dtype.size());
        let numbers = || copy(rows.iter().map(|row| &old[row * row_len..][..row_len]), rows.len() * row_len);
        let copy = (!self.is_shape()).then(numbers);
        Weight { name, rows: rows.len(), copy, start: 0, ..self.clone() }
    }

    /// Checks for NaN and infinity.
    pub(super) fn check_finite(&self) -> Result<()> {
        let elements = self.elements();
        let index = (0..elements.len()).find(|index| !elements.get(*index).is_finite());
        let path = self.file.as_ref().map_or_else(PathBuf::new, |file| file.path.clone());
        let error = |index| ModelError::NotFinite { path, tensor: self.name.clone(), index };
        index.map_or(Ok(()), |index| Err(error(index)))
    }
}
