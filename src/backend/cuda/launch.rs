//! Kernels and their launches. [`Parameters`] are declared in `abi.rs`; the size of shared memory is
//! exported by the kernel's source (`SHARED_BYTES` in `kernels/common.cuh`).

use super::error::{Context, CudaError, Result, describe};
use super::{context::Device, context::driver_has, memory::DevicePtr};
use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUtensorMap};
use cudarc::driver::{DriverError, result};
use std::{ffi::CString, ffi::c_int, ffi::c_void, marker::PhantomData, rc::Rc};

/// Shared memory per block without opt-in, in bytes.
const WITHOUT_OPT_IN: usize = 48 << 10;

/// Kernel parameters, passed by value: one, or several consecutive ones.
pub trait Argument: Copy {
    /// Bytes of each parameter.
    fn sizes() -> Vec<usize>;

    /// Adds the address of each parameter's value.
    fn add_to(&self, pointers: &mut Vec<*mut c_void>);
}

impl<T: Pod> Argument for T {
    fn sizes() -> Vec<usize> {
        vec![size_of::<T>()]
    }

    fn add_to(&self, pointers: &mut Vec<*mut c_void>) {
        pointers.push(std::ptr::from_ref(self).cast_mut().cast());
    }
}

/// All parameters of a kernel, in order.
pub trait Parameters: Argument {
    /// Threads per block.
    const BLOCK: u32;
}

/// A kernel's `int`: sizes, counts and flags.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Int(pub c_int);

impl From<usize> for Int {
    fn from(size: usize) -> Int {
        Int(size as c_int)
    }
}

impl From<bool> for Int {
    fn from(flag: bool) -> Int {
        Int(flag.into())
    }
}

/// A loaded module; unloaded with its last kernel.
pub struct Module {
    device: Device,
    module: sys::CUmodule,
}

impl Module {
    /// Loads a fatbin or a cubin, or PTX that ends with a NUL.
    pub fn load(device: &Device, image: &[u8]) -> Result<Module, DriverError> {
        device.context.bind_to_thread()?;
        // SAFETY: fatbins and cubins contain their length, and PTX ends with a NUL.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(Module { device: device.clone(), module })
    }

    /// The kernel of this name, with parameters of these sizes followed by the ints of `bound`; `None` if there is none.
    pub fn kernel(
        self: &Rc<Module>,
        name: &str,
        block: u32,
        sizes: Vec<usize>,
        bound: &[Int],
    ) -> Result<Option<Loaded>> {
        self.device.bind()?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, c_string(name)) };
        let Some(function) = if_found(function, name)? else { return Ok(None) };
        let starts_early = self.exported(&format!("{name}_starts_early"))?.is_some();
        let (module, name, bound) = (self.clone(), name.to_owned(), bound.to_vec());
        let mut kernel = Loaded { module, function, name, block, shared: 0, starts_early, bound };
        kernel.check(sizes)?;
        kernel.reserve_shared(self.shared_bytes(&kernel.name)?)?;
        Ok(Some(kernel))
    }

    /// The value exported by `SHARED_BYTES(name, ..)`.
    fn shared_bytes(&self, name: &str) -> Result<usize> {
        let variable = format!("{name}_shared_bytes");
        let missing =
            || CudaError::Driver { call: format!("looking for {variable}"), cause: "it is missing".to_owned() };
        Ok(self.exported(&variable)?.ok_or_else(missing)? as usize)
    }

    /// A value exported by the module.
    pub fn exported(&self, variable: &str) -> Result<Option<u32>> {
        let Some(address) = self.variable::<u32>(variable)? else { return Ok(None) };
        let mut value = [0];
        // SAFETY: the variable has the size of the value.
        unsafe { result::memcpy_dtoh_sync(&mut value, address) }.during(&format!("reading {variable}"))?;
        Ok(Some(value[0]))
    }

    /// Sets a variable (`SETTABLE`), if the module has it, for later launches.
    pub fn set<T: Pod>(&self, variable: &str, value: T) -> Result<()> {
        let Some(address) = self.variable::<T>(variable)? else { return Ok(()) };
        // SAFETY: the variable has the size of the value.
        unsafe { result::memcpy_htod_sync(address, &[value]) }.during(&format!("setting {variable}"))
    }

    /// The address of a variable of type T.
    fn variable<T>(&self, name: &str) -> Result<Option<sys::CUdeviceptr>> {
        self.device.bind()?;
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_global(self.module, c_string(name)) };
        match if_found(found, name)? {
            Some((_, bytes)) if bytes != size_of::<T>() => {
                let cause = format!("{bytes} bytes, not {}", size_of::<T>());
                Err(CudaError::Driver { call: format!("looking for {name}"), cause })
            }
            found => Ok(found.map(|(address, _)| address)),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let bound = self.device.context.bind_to_thread();
        // SAFETY: loaded once, unloaded once, when none of its kernels can be launched any more.
        let unloaded = bound.and_then(|()| unsafe { result::module::unload(self.module) });
        let _ = unloaded;
    }
}

/// A kernel, ready to be launched with parameters P.
pub struct Kernel<P> {
    pub loaded: Loaded,
    parameters: PhantomData<P>,
}

/// The same, of any parameters.
pub struct Loaded {
    module: Rc<Module>,
    function: sys::CUfunction,
    name: String,
    /// Threads of a block.
    block: u32,
    /// Dynamic shared memory of a block, in bytes.
    shared: usize,
    /// Whether it waits for earlier kernels itself (`STARTS_EARLY` in `kernels/common.cuh`).
    pub starts_early: bool,
    /// Constant arguments after the parameters.
    bound: Vec<Int>,
}

impl<P> Kernel<P> {
    pub fn new(loaded: Loaded) -> Kernel<P> {
        Kernel { loaded, parameters: PhantomData }
    }

    /// The same kernel with a block size other than its parameters declare.
    pub fn with_block(self, block: usize) -> Kernel<P> {
        Kernel::new(Loaded { block: block as u32, ..self.loaded })
    }

    /// The value exported by `SHARED_BYTES(<kernel>_<part>, ..)`.
    pub fn shared_part(&self, part: &str) -> Result<usize> {
        self.loaded.module.shared_bytes(&format!("{}_{part}", self.loaded.name))
    }
}

impl Loaded {
    /// The name, with constant arguments.
    fn full_name(&self) -> String {
        let bound: Vec<String> = self.bound.iter().map(|int| int.0.to_string()).collect();
        if bound.is_empty() { self.name.clone() } else { format!("{}({})", self.name, bound.join(",")) }
    }

    /// Adds `more` bytes of dynamic shared memory to every launch.
    pub fn reserve_shared(&mut self, more: usize) -> Result<()> {
        self.shared += more;
        if self.shared > WITHOUT_OPT_IN {
            let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is the loaded module's.
            unsafe { result::function::set_function_attribute(self.function, attribute, self.shared as c_int) }
                .during(&format!("reserving {} bytes of shared memory for {}", self.shared, self.name))?;
        }
        Ok(())
    }

    /// Compares the declared parameters with the kernel's, if the driver reports them (12.4 and newer).
    fn check(&self, declared: Vec<usize>) -> Result<()> {
        if !driver_has(c"cuFuncGetParamInfo") {
            return Ok(());
        }
        let sizes: Vec<usize> = (0..).map_while(|index| self.parameter_size(index)).collect();
        let expected = [declared, vec![size_of::<Int>(); self.bound.len()]].concat();
        if sizes == expected {
            return Ok(());
        }
        let reason = format!("bytes of each: the kernel has {sizes:?}, the host {expected:?}");
        Err(CudaError::Arguments { name: self.name.clone(), reason })
    }

    fn parameter_size(&self, index: usize) -> Option<usize> {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is a loaded module's, and the driver has the call.
        unsafe { sys::cuFuncGetParamInfo(self.function, index, &mut offset, &mut size) }.result().ok().map(|()| size)
    }
}

impl Device {
    /// Launches a kernel. If observed, the launch is waited for.
    pub fn launch<P: Parameters>(&self, kernel: &Kernel<P>, grid: [usize; 3], parameters: &P) -> Result<()> {
        let mut pointers = Vec::new();
        parameters.add_to(&mut pointers);
        let Some(watch) = &self.watch else { return self.start(&kernel.loaded, grid, pointers) };
        watch(&kernel.loaded.full_name())?;
        self.start(&kernel.loaded, grid, pointers)?;
        self.synchronize()
    }

    /// `pointers`: to the parameters, which are those that the kernel was loaded with.
    fn start(&self, kernel: &Loaded, grid: [usize; 3], mut pointers: Vec<*mut c_void>) -> Result<()> {
        self.bind()?;
        kernel.bound.iter().for_each(|int| int.add_to(&mut pointers));
        let ([x, y, z], stream) = (grid.map(|n| n as u32), self.stream.cu_stream());
        let shared = kernel.shared;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let early = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: kernel.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared as u32,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the parameters outlive the call, which copies them; their number and sizes match the kernel's, and
        // their types are those declared in `abi.rs`. Kernels access device memory only; one that starts early waits
        // before it touches other kernels' memory. The driver has the call (`with_early_starts`).
        let launched = unsafe {
            if self.early && kernel.starts_early {
                sys::cuLaunchKernelEx(&early, kernel.function, pointers.as_mut_ptr(), std::ptr::null_mut()).result()
            } else {
                let (grid, block) = ((x, y, z), (kernel.block, 1, 1));
                result::launch_kernel(kernel.function, grid, block, shared as u32, stream, &mut pointers)
            }
        };
        launched.map_err(|error| CudaError::Driver {
            call: format!("launching {} with grid ({x}, {y}, {z}) and {shared} bytes", kernel.name),
            cause: describe(error),
        })
    }
}

fn if_found<T>(result: Result<T, DriverError>, name: &str) -> Result<Option<T>> {
    match result {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => Ok(None),
        result => result.during(&format!("looking for {name}")).map(Some),
    }
}

pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

// Descriptors for copies of whole tiles (TMA): the `TensorMap` of `kernels/hopper.cuh`.

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
