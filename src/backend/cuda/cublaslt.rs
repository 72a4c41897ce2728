//! cuBLASLt for wide products, in place of `gemm.cu`: loaded at run time, and only if `--gemm` selects it.
//!
//! It is not the default, even where it is faster: a heuristic selects its algorithm, and a timing selects
//! between it and our kernels, so that two runs could differ in bits. It documents neither its order of additions nor
//! batch invariance, and its sums may stay in the tensor cores' truncating accumulators for the whole width of a
//! product, while `gemm.cu` moves them to f32 registers every 64 elements.
//!
//! Precautions: no split sums and no workspace; one algorithm per shape, chosen for
//! a full pass and used in every pass; an algorithm is rejected unless rows have the same bits in passes of
//! other widths and at other places.

use super::context::Device;
use super::error::CudaError;
use super::memory::{Buffer, DevicePtr};
use super::weights::Matrix;
use cudarc::cublaslt::result as blas;
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};
use cudarc::cublaslt::sys::{cublasLtMatmulPreferenceAttributes_t as Preference, cublasStatus_t as Status};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::str::FromStr;

/// GEMM backend for prefill: passes of more than 16 rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gemm {
    /// `gemm.cu`
    #[default]
    Own,
    /// For each shape, the faster one when the model is loaded.
    Auto,
    /// cuBLASLt wherever it can.
    CublasLt,
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gemm::Own => "own",
            Gemm::Auto => "auto",
            Gemm::CublasLt => "cublaslt",
        })
    }
}

impl FromStr for Gemm {
    type Err = String;

    fn from_str(text: &str) -> Result<Gemm, String> {
        let all = [Gemm::Own, Gemm::Auto, Gemm::CublasLt];
        all.into_iter().find(|gemm| gemm.to_string() == text).ok_or_else(|| "expected own, auto or cublaslt".to_owned())
    }
}

/// Loads the library; returns its version. `None` if it is not installed.
pub fn version() -> Option<String> {
    // SAFETY: loading the library runs its constructors.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    // SAFETY: takes nothing, and every release has it.
    let version = unsafe { sys::cublasLtGetVersion() };
    let (major, minor) =
        if version >= 100_000 { (version / 10_000, version / 100 % 100) } else { (version / 1000, version / 100 % 10) };
    Some(format!("{major}.{minor}"))
}

/// `CUBLAS_OP_T` of cublas_api.h.
const OP_T: i32 = 1;

/// The shape of a matrix: out_features, in_features.
pub type Shape = (usize, usize);

pub fn shape(w: &Matrix) -> Shape {
    (w.out_features, w.in_features)
}

/// The library and the chosen algorithms.
pub struct CublasLt {
    device: Device,
    handle: sys::cublasLtHandle_t,
    /// w transposed times x, both row-major, which the library reads as column-major.
    product: sys::cublasLtMatmulDesc_t,
    algorithms: HashMap<Shape, sys::cublasLtMatmulAlgo_t>,
    /// Of the last multiplication, `[rows, out_features]`, before row scales.
    products: Buffer<f32>,
}

fn during<T>(result: Result<T, blas::CublasError>, call: &str) -> Result<T, CudaError> {
    result.map_err(|error| CudaError::CublasLt { call: call.to_owned(), cause: format!("{:?}", error.0) })
}

impl CublasLt {
    /// With room for `products` products per launch.
    pub fn load(device: &Device, products: usize) -> Result<CublasLt, CudaError> {
        if version().is_none() {
            return Err(CudaError::NoCublasLt);
        }
        device.bind()?;
        let handle = during(blas::create_handle(), "starting")?;
        let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F);
        let product = during(blas::create_matmul_desc(compute, scale), "describing a product").inspect_err(|_| {
            // SAFETY: not used further.
            let _ = unsafe { blas::destroy_handle(handle) };
        })?;
        let products = device.allocate("products of cuBLASLt", products)?;
        let library = CublasLt { device: device.clone(), handle, product, algorithms: HashMap::new(), products };
        let transpose = OP_T;
        // SAFETY: the attribute is an int, which is copied.
        let set = unsafe {
            let value = std::ptr::from_ref(&transpose).cast();
            blas::set_matmul_desc_attribute(product, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, value, size_of::<i32>())
        };
        during(set, "describing a product")?;
        Ok(library)
    }

    /// Number of shapes it multiplies.
    pub fn shapes(&self) -> usize {
        self.algorithms.len()
    }

    pub fn has(&self, shape: Shape) -> bool {
        self.algorithms.contains_key(&shape)
    }

    pub fn forget(&mut self, shape: Shape) {
        self.algorithms.remove(&shape);
    }

    /// Chooses, for w's shape, the first algorithm that gives a row the same bits in every pass. Returns whether there
    /// is one. `x`: `rows` rows.
    pub fn choose(&mut self, w: &Matrix, x: DevicePtr<u16>, rows: usize) -> Result<bool, CudaError> {
        for algorithm in self.candidates(w, rows)? {
            self.algorithms.insert(shape(w), algorithm);
            match self.same_bits(w, x, rows) {
                Ok(true) => return Ok(true),
                Ok(false) | Err(CudaError::CublasLt { .. }) => self.forget(shape(w)),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Algorithms for a full pass, the most promising first: without workspace, and without sums that are split.
    fn candidates(&self, w: &Matrix, rows: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CudaError> {
        let (a, b, y) = layouts(w, rows)?;
        let preference = Preferences::new()?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &0usize)?;
        preference.set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &0u32)?;
        for operand in [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(operand, &16u32)?;
        }
        const MAX_CANDIDATES: usize = 8;
        // SAFETY: numbers throughout, for which zero is a value.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; MAX_CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all descriptors live, and there is room for the results.
        let asked = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                self.product,
                a.0,
                b.0,
                y.0,
                y.0,
                preference.0,
                MAX_CANDIDATES as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if asked == Status::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        during(asked.result(), "looking for an algorithm")?;
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        Ok(found.filter(|f| f.state == Status::CUBLAS_STATUS_SUCCESS).map(|f| f.algo).collect())
    }

    /// Whether rows have the same bits in other passes as in a full one.
    fn same_bits(&self, w: &Matrix, x: DevicePtr<u16>, rows: usize) -> Result<bool, CudaError> {
        let multiply = |first: usize, count: usize| -> Result<Vec<f32>, CudaError> {
            self.multiply(w, x.add(first * w.in_features), count)?;
            self.device.read(&self.products, 0, count * w.out_features)
        };
        let full = multiply(0, rows)?;
        for (first, count) in [(rows - 17, 17), (1, 33), (5, rows / 2 + 2), (0, rows - 3)] {
            let part = &full[first * w.out_features..(first + count) * w.out_features];
            if !multiply(first, count)?.iter().map(|y| y.to_bits()).eq(part.iter().map(|y| y.to_bits())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn products(&self) -> DevicePtr<f32> {
        self.products.ptr()
    }

    /// products ← x wᵀ, x `[rows, in_features]` in f16, w of a shape that there is an algorithm for.
    pub fn multiply(&self, w: &Matrix, x: DevicePtr<u16>, rows: usize) -> Result<(), CudaError> {
        let Some(algorithm) = self.algorithms.get(&shape(w)) else {
            let (outs, width) = (w.out_features, w.in_features);
            return Err(CudaError::Unsupported(format!("no algorithm of cuBLASLt for a matrix of {outs} x {width}")));
        };
        let (a, b, c) = layouts(w, rows)?;
        self.device.bind()?;
        let (alpha, beta, y) = (1.0f32, 0.0f32, self.products.ptr());
        let scalar = |x: &f32| std::ptr::from_ref(x).cast::<c_void>();
        // SAFETY: the descriptors live; the addresses are of device memory with as many rows and columns as they say,
        // which is the caller's to keep until the stream has done with it; there is no workspace.
        let multiplied = unsafe {
            blas::matmul(
                self.handle,
                self.product,
                scalar(&alpha),
                scalar(&beta),
                w.ptr().address() as *const c_void,
                a.0,
                x.address() as *const c_void,
                b.0,
                y.address() as *const c_void,
                c.0,
                y.address() as *mut c_void,
                c.0,
                algorithm,
                std::ptr::null_mut(),
                0,
                self.device.raw_stream().cast(),
            )
        };
        during(multiplied, "multiplying")
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: both were made by `load`, and nothing uses them any more: the library waits for its own work.
        let dropped =
            unsafe { blas::destroy_matmul_desc(self.product).and_then(|()| blas::destroy_handle(self.handle)) };
        let _ = dropped;
    }
}

/// Layouts of w, x and y.
fn layouts(w: &Matrix, rows: usize) -> Result<(Layout, Layout, Layout), CudaError> {
    let dtype = sys::cudaDataType::CUDA_R_16F;
    let a = Layout::new(dtype, w.in_features, w.out_features)?;
    let b = Layout::new(dtype, w.in_features, rows)?;
    Ok((a, b, Layout::new(sys::cudaDataType::CUDA_R_32F, w.out_features, rows)?))
}

/// A column-major matrix.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(dtype: sys::cudaDataType, rows: usize, columns: usize) -> Result<Layout, CudaError> {
        let made = blas::create_matrix_layout(dtype, rows as u64, columns as u64, rows as i64);
        Ok(Layout(during(made, "describing a matrix")?))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed only here.
        let _ = unsafe { blas::destroy_matrix_layout(self.0) };
    }
}

/// Requirements on an algorithm.
struct Preferences(sys::cublasLtMatmulPreference_t);

impl Preferences {
    fn new() -> Result<Preferences, CudaError> {
        Ok(Preferences(during(blas::create_matmul_pref(), "setting preferences")?))
    }

    fn set<T: bytemuck::Pod>(&self, preference: Preference, value: &T) -> Result<(), CudaError> {
        // SAFETY: the value is copied; its type is the preference's.
        let set = unsafe {
            blas::set_matmul_pref_attribute(self.0, preference, std::ptr::from_ref(value).cast(), size_of::<T>())
        };
        during(set, "setting preferences")
    }
}

impl Drop for Preferences {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed only here.
        let _ = unsafe { blas::destroy_matmul_pref(self.0) };
    }
}
