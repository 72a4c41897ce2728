//! Descriptors for copies of whole tiles (TMA): the `TensorMap` of `kernels/hopper.cuh`.

use super::context::driver_has;
use super::error::{Context, Result};
use super::memory::DevicePtr;
use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{self, CUtensorMap};

/// Rows and elements of k per tile: a row is 128 bytes, in chunks of 16 permuted by the row's number.
const TILE: [u32; 2] = [64, 64];

/// An f16 matrix in tiles; opaque.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TensorMap(CUtensorMap);

// SAFETY: only integers; zeros describe no matrix.
unsafe impl Zeroable for TensorMap {}
// SAFETY: as above; only the driver reads them, and 16 words of 8 bytes leave no padding.
unsafe impl Pod for TensorMap {}

impl TensorMap {
    /// Describes no matrix, for unused parameters.
    pub const NONE: TensorMap = TensorMap(CUtensorMap { opaque: [0; 16] });

    /// Whether the driver supports tensor maps: 12.0 and newer.
    pub fn supported() -> bool {
        driver_has(c"cuTensorMapEncodeTiled")
    }

    /// Describes an f16 matrix `[rows, width]`, itself and its rows aligned to 16 bytes; a tile's elements beyond it are zeros.
    pub fn new(matrix: DevicePtr<u16>, rows: usize, width: usize) -> Result<TensorMap> {
        let mut map = TensorMap::NONE;
        let sizes = [width as u64, rows as u64];
        let (stride, one) = ([2 * width as u64], [1, 1]);
        // SAFETY: the driver has the call (`supported`); it reads two sizes, one stride, two tile extents and two element
        // strides, writes the map, and does not access the matrix.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map.0,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                2,
                matrix.address as *mut _,
                sizes.as_ptr(),
                stride.as_ptr(),
                [TILE[1], TILE[0]].as_ptr(),
                one.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result().during(&format!("encoding a tensor map of a matrix [{rows}, {width}]"))?;
        Ok(map)
    }
}
