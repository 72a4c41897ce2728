//! Memory that frees itself: on the device, some of it growing at its end, and page-locked on the host.
//!
//! A buffer that grows has a range of addresses for the most that it may ever need, and memory only behind the first of
//! them: growing takes the difference and moves nothing, so the peak is what is held in the end. Where the driver cannot
//! map memory (some virtual machines), growing is a new buffer and a copy.

use super::device::{Argument, Device};
use super::error::{Context, CudaError, describe};
use crate::units;
use cudarc::driver::sys::{self, CUmemAllocationType, CUmemLocationType, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use std::sync::Arc;

/// Device memory.
pub struct Buffer {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
    store: Store,
}

/// Where a buffer's memory comes from.
enum Store {
    /// One allocation.
    Whole,
    /// Parts behind each other in a range of so many addresses.
    Mapped { reserved: usize, parts: Vec<Part> },
}

/// Physical memory, mapped where the parts before it end.
struct Part {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
}

impl Device {
    /// `bytes` of device memory, not initialised; `what` is for the error.
    pub fn allocate(&self, what: &str, bytes: usize) -> Result<Buffer, CudaError> {
        self.bind()?;
        let bytes = bytes.max(16);
        // SAFETY: the context is current; the memory is freed once, by `Buffer`.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| self.refused(error, what, bytes))?;
        Ok(Buffer { context: self.context().clone(), address, bytes, store: Store::Whole })
    }

    /// An empty buffer that can grow to `most` bytes.
    pub fn growing(&self, what: &str, most: usize) -> Result<Buffer, CudaError> {
        let Some(granularity) = self.granularity() else { return self.allocate(what, 0) };
        self.bind()?;
        let (mut address, reserved) = (0, most.max(1).next_multiple_of(granularity));
        // SAFETY: addresses only; freed once, by `Buffer`.
        unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) }
            .result()
            .map_err(|error| self.refused(error, &format!("the addresses of {what}"), reserved))?;
        let store = Store::Mapped { reserved, parts: Vec::new() };
        Ok(Buffer { context: self.context().clone(), address, bytes: 0, store })
    }

    /// Gives a buffer at least `bytes`; what it holds stays. Its address may change. Fails without a change.
    pub fn grow(&self, buffer: &mut Buffer, what: &str, bytes: usize) -> Result<(), CudaError> {
        if bytes <= buffer.bytes {
            return Ok(());
        }
        match (&mut buffer.store, self.granularity()) {
            (Store::Mapped { reserved, .. }, _) if bytes > *reserved => {
                let (bytes, max) = (units::bytes(bytes), units::bytes(*reserved));
                Err(CudaError::Unsupported(format!("{what}: {bytes}, but there are addresses for {max} only")))
            }
            (Store::Mapped { parts, .. }, Some(granularity)) => {
                let more = (bytes - buffer.bytes).next_multiple_of(granularity);
                let handle = self.map(buffer.address + buffer.bytes as u64, more, what)?;
                parts.push(Part { handle, bytes: more });
                buffer.bytes += more;
                Ok(())
            }
            _ => {
                let new = self.allocate(what, bytes)?;
                self.copy((&new, 0), (buffer, 0), buffer.bytes)?;
                *buffer = new; // the old one waits for the copy before it goes
                Ok(())
            }
        }
    }

    /// Gives back what [`Device::grow`] has added to a buffer beyond `bytes`, as far as it is parts of their own. Nothing
    /// may use it.
    pub fn shrink(&self, buffer: &mut Buffer, bytes: usize) -> Result<(), CudaError> {
        let Store::Mapped { parts, .. } = &mut buffer.store else { return Ok(()) };
        self.bind()?;
        while let Some(part) = parts.pop_if(|part| buffer.bytes - part.bytes >= bytes) {
            buffer.bytes -= part.bytes;
            // SAFETY: `Device::grow` mapped it there, and nothing uses it.
            unsafe { unmap(buffer.address + buffer.bytes as u64, &part) }.during("giving memory back")?;
        }
        Ok(())
    }

    /// Takes memory and maps it at an address.
    fn map(&self, at: u64, bytes: usize, what: &str) -> Result<sys::CUmemGenericAllocationHandle, CudaError> {
        self.bind()?;
        let properties = properties(self.ordinal());
        let mut handle = 0;
        // SAFETY: the properties live during the call; the handle is released once.
        unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) }
            .result()
            .map_err(|error| self.refused(error, what, bytes))?;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses are the buffer's own, and nothing is mapped there yet.
        let mapped = unsafe { sys::cuMemMap(at, bytes, 0, handle, 0) }.result().and_then(|()| {
            // SAFETY: what has just been mapped.
            unsafe { sys::cuMemSetAccess(at, bytes, &access, 1) }.result().inspect_err(|_| {
                // SAFETY: as above; nothing uses it.
                let _ = unsafe { sys::cuMemUnmap(at, bytes) };
            })
        });
        mapped.map(|()| handle).map_err(|error| {
            // SAFETY: not mapped, and not used further.
            let _ = unsafe { sys::cuMemRelease(handle) };
            self.refused(error, what, bytes)
        })
    }

    fn refused(&self, error: DriverError, what: &str, wanted: usize) -> CudaError {
        match (error, self.memory()) {
            (DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Ok((free, total))) => {
                CudaError::OutOfMemory { what: what.to_owned(), wanted, free, total }
            }
            _ => CudaError::Driver { call: format!("allocating {what}"), cause: describe(error) },
        }
    }

    /// Moves ranges of a buffer towards its end, in stream order: (from, to, bytes), in ascending order, apart from each
    /// other before and after, and none to before where it was.
    pub fn spread(&self, buffer: &Buffer, ranges: &[(usize, usize, usize)]) -> Result<(), CudaError> {
        for &(from, to, bytes) in ranges.iter().rev() {
            let (distance, mut left) = (to - from, if to == from { 0 } else { bytes });
            while left > 0 {
                // from the end, and never more than fits between: source and target do not overlap
                let part = left.min(distance);
                left -= part;
                self.copy((buffer, to + left), (buffer, from + left), part)?;
            }
        }
        Ok(())
    }

    /// Host memory that the device copies from and to directly.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, CudaError> {
        self.bind()?;
        // SAFETY: the context is current; the memory is freed once, by `Pinned`.
        let memory = unsafe { result::malloc_host(bytes.max(16), 0) }.during("allocating pinned memory")?;
        // SAFETY: the driver gave so many writable bytes. Filled, because a slice must be initialised.
        unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned { context: self.context().clone(), memory: memory.cast(), bytes })
    }
}

/// Memory of one device, as `cuMemCreate` is asked for it.
fn properties(ordinal: usize) -> sys::CUmemAllocationProp {
    // SAFETY: numbers and null pointers throughout, for which zero is a value.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal as i32;
    properties
}

/// What mapped memory comes in multiples of; `None` where the device cannot map memory.
pub(super) fn granularity(context: &CudaContext) -> Option<usize> {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if context.attribute(attribute) != Ok(1) {
        return None;
    }
    let (mut granularity, properties) = (0, properties(context.ordinal()));
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both live during the call.
    let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &properties, minimum) };
    asked.result().ok().map(|()| granularity).filter(|granularity| *granularity > 0)
}

/// Unmaps a part and gives its memory back.
///
/// # Safety
/// The part is mapped at `at`; nothing uses it, and it is not used again.
unsafe fn unmap(at: u64, part: &Part) -> Result<(), DriverError> {
    // SAFETY: the caller's.
    unsafe {
        sys::cuMemUnmap(at, part.bytes).result()?;
        sys::cuMemRelease(part.handle).result()
    }
}

impl Buffer {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// The address `elements` f32 into the buffer.
    pub fn floats(&self, elements: usize) -> u64 {
        self.address + 4 * elements as u64
    }

    pub(super) fn check(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let call = format!("using {bytes} bytes at {offset} of a buffer of {}", self.bytes);
        Err(CudaError::Driver { call, cause: "beyond its end".to_owned() })
    }

    /// Gives everything back; what the driver says of it.
    fn free(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        // work that uses the memory may be under way
        result::ctx::synchronize()?;
        match &self.store {
            // SAFETY: `Device::allocate` made it, and it is freed only here.
            Store::Whole => unsafe { result::free_sync(self.address) },
            Store::Mapped { reserved, parts } => {
                let mut at = self.address;
                for part in parts {
                    // SAFETY: `Device::grow` mapped it there, and the work that used it is done.
                    unsafe { unmap(at, part) }?;
                    at += part.bytes as u64;
                }
                // SAFETY: `Device::growing` reserved them, and nothing is mapped there any more.
                unsafe { sys::cuMemAddressFree(self.address, *reserved) }.result()
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // after a fault in a kernel nothing can be freed; the calls that noticed it have reported it
        let _ = self.free();
    }
}

impl From<&Buffer> for Argument {
    fn from(buffer: &Buffer) -> Argument {
        Argument::Address(buffer.address)
    }
}

/// Page-locked host memory.
pub struct Pinned {
    context: Arc<CudaContext>,
    memory: *mut u8,
    bytes: usize,
}

impl Pinned {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes, initialised by `Device::pinned`.
        unsafe { std::slice::from_raw_parts(self.memory, self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the handle is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let freed = self.context.bind_to_thread().and_then(|()| {
            result::ctx::synchronize()?;
            // SAFETY: `Device::pinned` made it, and it is freed only here, when no copy is under way.
            unsafe { result::free_host(self.memory.cast()) }
        });
        let _ = freed;
    }
}
