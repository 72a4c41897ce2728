//! The device: copies and launches on one stream. All of the backend's use of the driver that is unsafe is here, in
//! `memory.rs` and in `kernels.rs`.

use super::error::{Context, CudaError, describe};
use super::layout::{GemvJobs, HeadLog};
pub use super::memory::{Buffer, Pinned};
use bytemuck::Pod;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::rc::Rc;
use std::sync::Arc;

/// A device with the one stream that everything runs on, in order.
#[derive(Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// What mapped memory comes in multiples of, where memory can be mapped.
    granularity: Option<usize>,
}

/// What there is to know of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    pub ordinal: usize,
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    pub multiprocessors: usize,
    /// Bytes.
    pub free: usize,
    pub total: usize,
}

/// Loads the driver; the number of devices.
pub fn count() -> Result<usize, CudaError> {
    // SAFETY: loading the driver runs its constructors, as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    match CudaContext::device_count() {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(CudaError::Driver { call: "starting CUDA".to_owned(), cause: describe(error) }),
    }
}

impl Device {
    pub fn open(ordinal: usize) -> Result<Device, CudaError> {
        let count = count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).during("opening the device")?;
        let stream = context.new_stream().during("creating a stream")?;
        let granularity = super::memory::granularity(&context);
        Ok(Device { context, stream, granularity })
    }

    pub fn info(&self) -> Result<DeviceInfo, CudaError> {
        let (free, total) = self.memory()?;
        let multiprocessors = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        Ok(DeviceInfo {
            ordinal: self.context.ordinal(),
            name: self.context.name().during("asking for the device's name")?,
            capability: self.context.compute_capability().during("asking for the compute capability")?,
            multiprocessors: usize::try_from(multiprocessors.during("asking for multiprocessors")?).unwrap_or(1),
            free,
            total,
        })
    }

    /// Bytes: (free, total).
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.context.mem_get_info().during("asking for free memory")
    }

    /// Device memory with these values.
    pub fn upload<T: Pod>(&self, what: &str, values: &[T]) -> Result<Buffer, CudaError> {
        let buffer = self.allocate(what, size_of_val(values))?;
        self.write(&buffer, 0, values)?;
        Ok(buffer)
    }

    /// Copies values to `offset` bytes into a buffer, in stream order; they may be changed when this returns.
    pub fn write<T: Pod>(&self, to: &Buffer, offset: usize, values: &[T]) -> Result<(), CudaError> {
        to.check(offset, size_of_val(values))?;
        self.bind()?;
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is the buffer's. From pageable memory the driver has taken the values when it returns.
        unsafe { result::memcpy_htod_async(to.address() + offset as u64, values, self.raw_stream()) }
            .during("copying to the device")
    }

    /// Copies `bytes` of pinned memory to a buffer, in stream order. They must not be changed before an event behind
    /// the copy: hence the exclusive handle in [`Pinned::bytes_mut`] and the event that the caller waits for.
    pub fn write_pinned(&self, to: &Buffer, offset: usize, from: &Pinned, bytes: usize) -> Result<(), CudaError> {
        to.check(offset, bytes)?;
        self.bind()?;
        // SAFETY: the range is the buffer's; pinned memory is freed after the stream's work (`Pinned::drop`).
        unsafe { result::memcpy_htod_async(to.address() + offset as u64, &from.bytes()[..bytes], self.raw_stream()) }
            .during("copying to the device")
    }

    /// Values from `offset` bytes into a buffer, when all work before is done.
    pub fn read<T: Pod>(&self, from: &Buffer, offset: usize, count: usize) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::zeroed(); count];
        from.check(offset, size_of_val(&values[..]))?;
        self.bind()?;
        if count > 0 {
            // SAFETY: the range is the buffer's, and `values` lives until the stream has been waited for.
            unsafe { result::memcpy_dtoh_async(&mut values, from.address() + offset as u64, self.raw_stream()) }
                .during("copying from the device")?;
            self.synchronize()?;
        }
        Ok(values)
    }

    /// Starts a copy of a buffer's first bytes to pinned memory, which holds them after an event behind it.
    pub fn read_pinned(&self, to: &mut Pinned, from: &Buffer, bytes: usize) -> Result<(), CudaError> {
        from.check(0, bytes)?;
        self.bind()?;
        // SAFETY: both ranges are theirs; pinned memory is freed after the stream's work.
        unsafe { result::memcpy_dtoh_async(&mut to.bytes_mut()[..bytes], from.address(), self.raw_stream()) }
            .during("copying from the device")
    }

    /// Copies between buffers, in stream order; offsets in bytes.
    pub fn copy(&self, to: (&Buffer, usize), from: (&Buffer, usize), bytes: usize) -> Result<(), CudaError> {
        to.0.check(to.1, bytes)?;
        from.0.check(from.1, bytes)?;
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = (to.0.address() + to.1 as u64, from.0.address() + from.1 as u64);
        // SAFETY: both ranges are inside their buffers.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.raw_stream()) }.during("copying on the device")
    }

    /// Fills a buffer with a byte, in stream order.
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the range is the buffer's.
        unsafe { result::memset_d8_async(buffer.address(), byte, buffer.bytes(), self.raw_stream()) }
            .during("filling device memory")
    }

    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.stream.synchronize().during("waiting for the device")
    }

    /// Starts a kernel. Launches that its own header forbids are errors of the driver.
    pub fn launch(
        &self,
        kernel: &Kernel,
        grid: [usize; 3],
        block: u32,
        shared: usize,
        arguments: &[Argument],
    ) -> Result<(), CudaError> {
        kernel.check(arguments)?;
        self.bind()?;
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(Argument::pointer).collect();
        let [x, y, z] = grid.map(|n| n as u32);
        // SAFETY: the arguments live during the call, which copies them; their number and sizes are the kernel's. What
        // the kernel does with addresses stays in device memory.
        let launched = unsafe {
            result::launch_kernel(
                kernel.function,
                (x, y, z),
                (block, 1, 1),
                shared as u32,
                self.raw_stream(),
                &mut pointers,
            )
        };
        launched.map_err(|error| CudaError::Driver {
            call: format!("launching {} with grid ({x}, {y}, {z}) and {shared} bytes", kernel.name),
            cause: describe(error),
        })
    }

    /// Makes the context the thread's, as calls below cudarc's safe layer need.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().during("using the device")
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(super) fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    pub(super) fn granularity(&self) -> Option<usize> {
        self.granularity
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn raw_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Something to wait for: all work up to `Event::record`.
    pub fn event(&self) -> Result<Event, CudaError> {
        self.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        Ok(Event { device: self.clone(), event: result::event::create(flags).during("creating an event")? })
    }
}

/// A point in the stream's work.
pub struct Event {
    device: Device,
    event: sys::CUevent,
}

impl Event {
    pub fn record(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: event and stream live.
        unsafe { result::event::record(self.event, self.device.raw_stream()) }.during("recording an event")
    }

    /// Waits until everything before [`Event::record`] is done.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.event) }.during("waiting for the device")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let destroyed = unsafe { result::event::destroy(self.event) };
        let _ = destroyed;
    }
}

/// A loaded module; unloaded with the last kernel of it.
pub(super) struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
}

impl Module {
    /// Loads a fatbin or a cubin, or PTX that ends with a NUL.
    pub fn load(device: &Device, image: &[u8]) -> Result<Module, DriverError> {
        device.context.bind_to_thread()?;
        // SAFETY: fatbins and cubins know their length, and PTX ends with a NUL.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(Module { context: device.context.clone(), module })
    }

    /// The kernel of this name, with `shared` bytes of dynamic shared memory at most; `None` if there is none.
    pub fn kernel(self: &Rc<Module>, name: &str, shared: usize) -> Result<Option<Kernel>, CudaError> {
        self.context.bind_to_thread().during("using the device")?;
        let symbol = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        let function = match unsafe { result::module::get_function(self.module, symbol) } {
            Ok(function) => function,
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)) => return Ok(None),
            Err(error) => {
                return Err(CudaError::Driver { call: format!("looking for {name}"), cause: describe(error) });
            }
        };
        if shared > WITHOUT_OPT_IN {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is the loaded module's.
            unsafe { result::function::set_function_attribute(function, attribute, shared as c_int) }
                .during(&format!("asking for {shared} bytes of shared memory for {name}"))?;
        }
        Ok(Some(Kernel { _module: self.clone(), function, name: name.to_owned(), checked: Cell::new(false) }))
    }
}

/// Shared memory that a block has without being asked for.
const WITHOUT_OPT_IN: usize = 48 << 10;

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once, when no kernel of it can be launched any more.
        let unloaded = self.context.bind_to_thread().and_then(|()| unsafe { result::module::unload(self.module) });
        let _ = unloaded;
    }
}

/// A kernel, ready to be launched.
pub struct Kernel {
    _module: Rc<Module>,
    function: sys::CUfunction,
    name: String,
    /// Whether arguments have been compared with what it takes.
    checked: Cell<bool>,
}

impl Kernel {
    /// Compares the arguments with the kernel's parameters, the first time and where the driver can tell (12.4 on).
    fn check(&self, arguments: &[Argument]) -> Result<(), CudaError> {
        if self.checked.replace(true) || !driver_has(c"cuFuncGetParamInfo") {
            return Ok(());
        }
        let wrong = |reason: String| CudaError::Arguments { name: self.name.clone(), reason };
        for (index, argument) in arguments.iter().enumerate() {
            match self.parameter_size(index) {
                Some(size) if size == argument.size() => {}
                Some(size) => return Err(wrong(format!("number {index} has {} bytes, not {size}", argument.size()))),
                None => return Err(wrong(format!("it has only {index}, not {}", arguments.len()))),
            }
        }
        match self.parameter_size(arguments.len()) {
            None => Ok(()),
            Some(_) => Err(wrong(format!("there are more than {}", arguments.len()))),
        }
    }

    fn parameter_size(&self, index: usize) -> Option<usize> {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is a loaded module's, and the driver has the call.
        unsafe { sys::cuFuncGetParamInfo(self.function, index, &mut offset, &mut size) }.result().ok().map(|()| size)
    }
}

/// Whether the driver has a call; cudarc panics over one that is missing.
fn driver_has(name: &CStr) -> bool {
    // SAFETY: the symbol is not called; the driver is loaded.
    unsafe { sys::culib().get::<*const c_char>(name.to_bytes_with_nul()) }.is_ok()
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    Address(u64),
    Int(c_int),
    Float(f32),
    Jobs(GemvJobs),
    Log(HeadLog),
}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        match self {
            Argument::Address(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Argument::Int(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Argument::Float(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Argument::Jobs(x) => std::ptr::from_ref(x).cast_mut().cast(),
            Argument::Log(x) => std::ptr::from_ref(x).cast_mut().cast(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Argument::Address(x) => size_of_val(x),
            Argument::Int(x) => size_of_val(x),
            Argument::Float(x) => size_of_val(x),
            Argument::Jobs(x) => size_of_val(x),
            Argument::Log(x) => size_of_val(x),
        }
    }
}

impl From<u64> for Argument {
    fn from(address: u64) -> Argument {
        Argument::Address(address)
    }
}

/// Sizes and counts: the kernels take them as `int`.
impl From<usize> for Argument {
    fn from(size: usize) -> Argument {
        Argument::Int(size as c_int)
    }
}

impl From<bool> for Argument {
    fn from(flag: bool) -> Argument {
        Argument::Int(flag.into())
    }
}

impl From<f32> for Argument {
    fn from(x: f32) -> Argument {
        Argument::Float(x)
    }
}

impl From<GemvJobs> for Argument {
    fn from(jobs: GemvJobs) -> Argument {
        Argument::Jobs(jobs)
    }
}

impl From<HeadLog> for Argument {
    fn from(log: HeadLog) -> Argument {
        Argument::Log(log)
    }
}
