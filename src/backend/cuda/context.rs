//! A device and its stream; a captured decode step uses a second one. All of the
//! backend's unsafe use of the driver is here, in `memory.rs`, `launch.rs` and `loader.rs`.

use super::error::{Context, CudaError, Result};
use crate::{backend::BackendError, units};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUmemAllocationType, CUmemLocationType};
use cudarc::driver::sys::{CUgraphInstantiate_flags as Instantiate, CUstreamCaptureMode as CaptureMode};
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, DriverError};
use std::{cell::Cell, ffi::CStr, ffi::c_char, rc::Rc, sync::Arc};

/// `0`: no early starts.
const EARLY_VARIABLE: &str = "UQAC_EARLY_STARTS";

/// Name of a call, for errors.
const FREE_MEMORY: &str = "querying free memory";

/// The first driver whose graphs support early starts.
const EARLY_VERSION: i32 = 12_030;

/// A device with a stream on which work runs in order.
#[derive(Clone)]
pub struct Device {
    pub info: DeviceInfo,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    /// Granularity of mapped memory, if memory can be mapped.
    pub(super) granularity: Option<usize>,
    /// Whether kernels start before the previous ones have ended, if they can (programmatic dependent launch).
    pub(super) early: bool,
    /// With an observer, kernels are launched one at a time.
    pub(super) watch: Option<Rc<Watch>>,
    /// Bytes of all scratch memory.
    pub(super) scratch_bytes: Rc<Cell<usize>>,
}

/// An observer of launches: called before each with the kernel's name.
pub type Watch = dyn Fn(&str) -> Result<()>;

/// Properties of a device.
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

impl DeviceInfo {
    fn of(context: &CudaContext) -> Result<DeviceInfo> {
        let (free, total) = context.mem_get_info().during(FREE_MEMORY)?;
        let multiprocessors = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        Ok(DeviceInfo {
            ordinal: context.ordinal(),
            name: context.name().during("querying the device's name")?,
            capability: context.compute_capability().during("querying the compute capability")?,
            multiprocessors: usize::try_from(multiprocessors.during("querying the multiprocessors")?).unwrap_or(1),
            free,
            total,
        })
    }
}

/// Loads the driver; returns the number of devices.
pub fn count() -> Result<usize> {
    // SAFETY: loading the driver runs its constructors, as every CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    match CudaContext::device_count() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        count => Ok(usize::try_from(count.during("starting CUDA")?).unwrap_or(0)),
    }
}

impl Device {
    pub fn open(ordinal: usize) -> Result<Device> {
        let count = count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).during("opening the device")?;
        let stream = context.new_stream().during("creating a stream")?;
        let (info, granularity) = (DeviceInfo::of(&context)?, granularity(&context));
        Ok(Device { info, context, stream, granularity, early: false, watch: None, scratch_bytes: Rc::default() })
    }

    /// The device with early starts; `None` if the driver does not support them in a captured graph.
    pub fn with_early_starts(&self) -> Option<Device> {
        let wanted = std::env::var_os(EARLY_VARIABLE).is_none_or(|value| value != "0");
        let can = wanted && driver_has(c"cuLaunchKernelEx") && driver_version() >= EARLY_VERSION;
        can.then(|| Device { early: true, ..self.clone() })
    }

    /// The device with an observer.
    pub fn watched(&self, watch: Rc<Watch>) -> Device {
        Device { watch: Some(watch), ..self.clone() }
    }

    /// The device's UUID and the driver's versions.
    pub fn identity(&self) -> String {
        // if one is missing, the identity is merely less precise
        let uuid = self.context.uuid().map(|uuid| uuid.bytes.map(|byte| byte as u8)).unwrap_or_default();
        let version = driver_version();
        let release = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        format!("{} CUDA {version} {}", units::hex(&uuid), release.lines().next().unwrap_or_default())
    }

    /// Max shared memory per block in bytes.
    pub(super) fn max_shared(&self) -> Result<usize> {
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let bytes = self.context.attribute(attribute).during("querying shared memory")?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// Bytes: (free, total).
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.context.mem_get_info().during(FREE_MEMORY)
    }

    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().during("waiting for the device")
    }

    /// Makes the context current, as calls below cudarc's safe layer require.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().during("using the device")
    }

    /// The device with a second stream, ordered with this one by events only.
    pub fn beside(&self) -> Result<Device> {
        Ok(Device { stream: self.context.new_stream().during("creating a stream")?, ..self.clone() })
    }

    /// Later work on this stream waits for the work so far on another one.
    pub fn join(&self, other: &Device) -> Result<()> {
        self.stream.join(&other.stream).during("ordering two streams")
    }

    /// Captures the decode step that `launch` enqueues on this stream (and on others, through events) as a graph.
    pub fn capture(&self, launch: impl FnOnce() -> Result<(), BackendError>) -> Result<CudaGraph, BackendError> {
        let call = "capturing a decode step";
        self.stream.begin_capture(CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).during(call)?;
        let launched = launch();
        let graph = self.stream.end_capture(Instantiate(0));
        launched?;
        let empty = || CudaError::Driver { call: call.to_owned(), cause: "the graph is empty".to_owned() };
        Ok(graph.during(call)?.ok_or_else(empty)?)
    }

    /// A new event, not yet recorded.
    pub fn event(&self) -> Result<CudaEvent> {
        self.context.new_event(None).during("creating an event")
    }

    /// Makes the event mark the end of the work so far.
    pub fn record(&self, event: &CudaEvent) -> Result<()> {
        event.record(&self.stream).during("recording an event")
    }
}

/// The newest CUDA version that the driver supports, as 1000 · major + 10 · minor; 0 if unknown.
fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: `version` is an int; the driver is loaded.
    let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
    version
}

/// Whether the driver exports a function; cudarc panics if it is missing.
pub(super) fn driver_has(name: &CStr) -> bool {
    // SAFETY: the symbol is not called; the driver is loaded.
    unsafe { sys::culib().get::<*const c_char>(name.to_bytes_with_nul()) }.is_ok()
}

/// Properties of device memory for `cuMemCreate`.
pub(super) fn allocation_properties(ordinal: usize) -> sys::CUmemAllocationProp {
    // SAFETY: all fields are integers, enums or pointers, for which zero is valid.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal as i32;
    properties
}

/// Granularity of mapped memory; `None` if the device cannot map memory.
fn granularity(context: &CudaContext) -> Option<usize> {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if context.attribute(attribute) != Ok(1) {
        return None;
    }
    let (mut granularity, properties) = (0, allocation_properties(context.ordinal()));
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both outlive the call.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &properties, minimum) };
    asked.result().ok().map(|()| granularity).filter(|granularity| *granularity > 0)
}
