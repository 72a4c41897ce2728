//! Owned memory and copies: on the device, with buffers that can grow, and page-locked on the host.
//! Counts and offsets are in elements.
//!
//! A growing buffer reserves addresses for its maximum but maps memory only for the first of
//! them: growing maps the difference and moves nothing, so the peak is the final size. If the driver cannot
//! map memory (some virtual machines), growing allocates a new buffer and copies.

use super::context::{Device, allocation_properties};
use super::error::{Context, CudaError, Result, describe};
use crate::{model::weights::DType, units};
use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use half::{bf16, f16};
use std::{cell::Cell, marker::PhantomData, rc::Rc, sync::Arc};

/// The address of elements in device memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DevicePtr<T> {
    pub address: u64,
    element: PhantomData<fn() -> T>,
}

/// The address of f32 values.
pub type Floats = DevicePtr<f32>;

/// Device memory with elements of type T.
pub struct Buffer<T> {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
    store: Store,
    /// [`Device::scratch_bytes`], if this buffer counts towards them.
    counted: Option<Rc<Cell<usize>>>,
    element: PhantomData<fn() -> T>,
}

/// A buffer's allocation.
enum Store {
    /// One allocation.
    Whole,
    /// Parts one after the other in a range of `reserved` addresses.
    Mapped { reserved: usize, parts: Vec<Part> },
}

/// Physical memory, mapped right after the preceding parts.
struct Part {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
}

impl Device {
    /// Uninitialised memory for `count` elements; `what` names it in errors.
    pub fn allocate<T>(&self, what: &str, count: usize) -> Result<Buffer<T>> {
        self.bind()?;
        let bytes = (count * size_of::<T>()).max(16);
        // SAFETY: the context is current; the memory is freed once, by `Buffer`.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| self.refused(error, what, bytes))?;
        Ok(self.buffer(address, bytes, Store::Whole))
    }

    fn buffer<T>(&self, address: u64, bytes: usize, store: Store) -> Buffer<T> {
        Buffer { context: self.context.clone(), address, bytes, store, counted: None, element: PhantomData }
    }

    /// Scratch memory for `count` elements, counted in [`Device::scratch_bytes`] while it exists.
    pub fn scratch<T>(&self, what: &str, count: usize) -> Result<Buffer<T>> {
        let mut buffer = self.allocate(&format!("scratch memory ({what})"), count)?;
        self.scratch_bytes.set(self.scratch_bytes.get() + buffer.bytes);
        buffer.counted = Some(self.scratch_bytes.clone());
        Ok(buffer)
    }

    /// Memory initialised with these values.
    pub fn upload<T: Pod>(&self, what: &str, values: &[T]) -> Result<Buffer<T>> {
        let buffer = self.allocate(what, values.len())?;
        self.write(&buffer, 0, values)?;
        Ok(buffer)
    }

    /// An empty buffer that can grow to `max` elements.
    pub fn growing<T>(&self, what: &str, max: usize) -> Result<Buffer<T>> {
        let Some(granularity) = self.granularity else { return self.allocate(what, 0) };
        self.bind()?;
        let (mut address, reserved) = (0, (max * size_of::<T>()).max(1).next_multiple_of(granularity));
        // SAFETY: addresses only; freed once, by `Buffer`.
        unsafe { sys::cuMemAddressReserve(&mut address, reserved, 0, 0, 0) }
            .result()
            .map_err(|error| self.refused(error, &format!("the addresses of {what}"), reserved))?;
        Ok(self.buffer(address, 0, Store::Mapped { reserved, parts: Vec::new() }))
    }

    /// Grows a buffer to at least `count` elements, keeping its contents. Its address may change. On failure nothing
    /// changes.
    pub fn grow<T>(&self, buffer: &mut Buffer<T>, what: &str, count: usize) -> Result<()> {
        let bytes = count * size_of::<T>();
        if bytes <= buffer.bytes {
            return Ok(());
        }
        match (&mut buffer.store, self.granularity) {
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
                let new = self.allocate(what, count)?;
                self.copy((&new, 0), (buffer, 0), buffer.bytes / size_of::<T>())?;
                *buffer = new; // dropping the old one waits for the copy
                Ok(())
            }
        }
    }

    /// Frees the parts that [`Device::grow`] added to a buffer beyond `bytes` bytes.
    /// They must not be in use.
    pub fn shrink<T>(&self, buffer: &mut Buffer<T>, bytes: usize) -> Result<()> {
        let Store::Mapped { parts, .. } = &mut buffer.store else { return Ok(()) };
        self.bind()?;
        while let Some(part) = parts.pop_if(|part| buffer.bytes - part.bytes >= bytes) {
            buffer.bytes -= part.bytes;
            // SAFETY: `Device::grow` mapped it there, and nothing uses it.
            unsafe { unmap(buffer.address + buffer.bytes as u64, &part) }.during("giving memory back")?;
        }
        Ok(())
    }

    /// Allocates memory and maps it at an address.
    fn map(&self, at: u64, bytes: usize, what: &str) -> Result<sys::CUmemGenericAllocationHandle> {
        self.bind()?;
        let properties = allocation_properties(self.context.ordinal());
        let mut handle = 0;
        // SAFETY: the properties outlive the call; the handle is released once.
        unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) }
            .result()
            .map_err(|error| self.refused(error, what, bytes))?;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses are the buffer's own, and nothing is mapped there yet.
        let mapped = unsafe { sys::cuMemMap(at, bytes, 0, handle, 0) }.result().and_then(|()| {
            // SAFETY: the range has just been mapped.
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

    /// Copies values to a buffer, in stream order. They may be changed once this returns; those in [`Pinned`] memory only after
    /// an event recorded after the copy.
    pub fn write<T: Pod>(&self, to: &Buffer<T>, offset: usize, values: &[T]) -> Result<()> {
        let at = to.range(offset, values.len())?;
        self.bind()?;
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is the buffer's. The driver has copied values in pageable memory when it returns; pinned memory is
        // freed after the stream's work (`Pinned::drop`).
        unsafe { result::memcpy_htod_async(at, values, self.stream.cu_stream()) }.during("copying to the device")
    }

    /// Reads values of a buffer once all earlier work is done.
    pub fn read<T: Pod>(&self, from: &Buffer<T>, offset: usize, count: usize) -> Result<Vec<T>> {
        let (at, mut values) = (from.range(offset, count)?, vec![T::zeroed(); count]);
        self.bind()?;
        if count == 0 {
            return Ok(values);
        }
        // SAFETY: the range is the buffer's, and `values` lives until the stream has been synchronized.
        unsafe { result::memcpy_dtoh_async(&mut values, at, self.stream.cu_stream()) }
            .during("copying from the device")?;
        self.synchronize()?;
        Ok(values)
    }

    /// As [`Device::read`], but for values at byte `offset` of a buffer of several arrays.
    pub fn read_at<T: Pod>(&self, from: &Buffer<u8>, offset: usize, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        bytes.copy_from_slice(&self.read(from, offset, bytes.len())?);
        Ok(values)
    }

    /// The same for elements of a given type, as f32.
    pub fn read_numbers(&self, from: &Buffer<u8>, offset: usize, count: usize, dtype: DType) -> Result<Vec<f32>> {
        Ok(match dtype {
            DType::F32 => self.read_at(from, offset, count)?,
            DType::F16 => self.read_at::<f16>(from, offset, count)?.into_iter().map(f16::to_f32).collect(),
            DType::Bf16 => self.read_at::<bf16>(from, offset, count)?.into_iter().map(bf16::to_f32).collect(),
        })
    }

    /// Starts a copy of a buffer to pinned memory of its size; it is complete after an event recorded afterwards.
    pub fn read_pinned<T>(&self, to: &mut Pinned, from: &Buffer<T>) -> Result<()> {
        let at = from.range(0, to.bytes / size_of::<T>())?;
        self.bind()?;
        // SAFETY: both ranges are in bounds; pinned memory is freed after the stream's work.
        unsafe { result::memcpy_dtoh_async(to.bytes_mut(), at, self.stream.cu_stream()) }
            .during("copying from the device")
    }

    /// Copies between buffers, in stream order.
    pub fn copy<T>(&self, to: (&Buffer<T>, usize), from: (&Buffer<T>, usize), count: usize) -> Result<()> {
        let (to, from) = (to.0.range(to.1, count)?, from.0.range(from.1, count)?);
        self.bind()?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside their buffers.
        unsafe { result::memcpy_dtod_async(to, from, count * size_of::<T>(), self.stream.cu_stream()) }
            .during("copying on the device")
    }

    /// Copies `rows` rows of `bytes` bytes between buffers, in stream order; the pitches are the distances between rows.
    pub fn copy_rows(
        &self,
        (to, to_start, to_pitch): (&Buffer<u8>, usize, usize),
        (from, from_start, from_pitch): (&Buffer<u8>, usize, usize),
        bytes: usize,
        rows: usize,
    ) -> Result<()> {
        if bytes == 0 || rows == 0 {
            return Ok(());
        }
        let span = |pitch: usize| (rows - 1) * pitch + bytes;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.range(from_start, span(from_pitch))?,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.range(to_start, span(to_pitch))?,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: bytes,
            Height: rows,
        };
        self.bind()?;
        // SAFETY: both spans are inside their buffers.
        unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream.cu_stream()) }.result().during("copying on the device")
    }

    /// Fills a buffer with a byte, in stream order.
    pub fn fill<T>(&self, buffer: &Buffer<T>, byte: u8) -> Result<()> {
        self.bind()?;
        // SAFETY: the range is the buffer's.
        unsafe { result::memset_d8_async(buffer.address, byte, buffer.bytes, self.stream.cu_stream()) }
            .during("filling device memory")
    }

    /// Moves ranges of a buffer towards its end, in stream order: (from, to, bytes), in ascending order, disjoint before and
    /// after, with to >= from.
    pub fn spread(&self, buffer: &Buffer<u8>, ranges: &[(usize, usize, usize)]) -> Result<()> {
        for &(from, to, bytes) in ranges.iter().rev() {
            let (distance, mut left) = (to - from, if to == from { 0 } else { bytes });
            while left > 0 {
                // backwards, never more than the distance at a time: source and target do not overlap
                let part = left.min(distance);
                left -= part;
                self.copy((buffer, to + left), (buffer, from + left), part)?;
            }
        }
        Ok(())
    }

    /// Host memory that the device can copy to and from directly.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        self.bind()?;
        // SAFETY: the context is current; the memory is freed once, by `Pinned`.
        let memory = unsafe { result::malloc_host(bytes.max(16), 0) }.during("allocating pinned memory")?;
        // SAFETY: the driver returned that many writable bytes. Zeroed, because a slice must be initialised.
        unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned { context: self.context.clone(), memory: memory.cast(), bytes })
    }
}

/// Unmaps a part and releases its memory.
///
/// # Safety
/// The part is mapped at `at`; nothing uses it, and it is not used again.
unsafe fn unmap(at: u64, part: &Part) -> Result<(), DriverError> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        sys::cuMemUnmap(at, part.bytes).result()?;
        sys::cuMemRelease(part.handle).result()
    }
}

impl<T> DevicePtr<T> {
    pub const NULL: DevicePtr<T> = DevicePtr { address: 0, element: PhantomData };

    /// The address `elements` elements further on.
    pub fn add(self, elements: usize) -> DevicePtr<T> {
        DevicePtr { address: self.address + (elements * size_of::<T>()) as u64, element: PhantomData }
    }

    /// The same address, for elements of another type.
    pub fn cast<U>(self) -> DevicePtr<U> {
        DevicePtr { address: self.address, element: PhantomData }
    }
}

impl<T> Default for DevicePtr<T> {
    fn default() -> Self {
        DevicePtr::NULL
    }
}

// SAFETY: just an integer; 0 is null.
unsafe impl<T> Zeroable for DevicePtr<T> {}
// SAFETY: as above; every bit pattern is an integer.
unsafe impl<T: Copy + 'static> Pod for DevicePtr<T> {}

impl<T> Buffer<T> {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn ptr(&self) -> DevicePtr<T> {
        DevicePtr { address: self.address, element: PhantomData }
    }

    /// The address of elements `offset .. offset + count`, if they are in bounds.
    fn range(&self, offset: usize, count: usize) -> Result<u64> {
        if offset.checked_add(count).is_some_and(|end| end * size_of::<T>() <= self.bytes) {
            return Ok(self.ptr().add(offset).address);
        }
        let call = format!("using {count} elements at {offset} of a buffer of {}", self.bytes / size_of::<T>());
        Err(CudaError::Driver { call, cause: "beyond its end".to_owned() })
    }

    /// Frees the memory; returns the driver's error, if any.
    fn free(&self) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        // work that uses the memory may be in flight
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

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.counted.iter().for_each(|total| total.set(total.get() - self.bytes));
        // after a fault in a kernel nothing can be freed; the calls that noticed it have reported it
        let _ = self.free();
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
        // SAFETY: `bytes` bytes, initialised by `Device::pinned`.
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
            // SAFETY: `Device::pinned` made it, and it is freed only here, when no copy is in flight.
            unsafe { result::free_host(self.memory.cast()) }
        });
        let _ = freed;
    }
}
