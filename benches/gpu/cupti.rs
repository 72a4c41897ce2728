//! Start and end of each kernel on the device, from CUPTI, which comes with the CUDA toolkit and with torch and is
//! loaded on demand.

use libloading::Library;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Mutex;

/// One kernel's run; times in nanoseconds on the device's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelRun {
    pub name: String,
    pub start: u64,
    pub end: u64,
}

/// Why no times are available.
#[derive(Debug, thiserror::Error)]
pub enum CuptiError {
    #[error("{}: {source} (--cupti FILE names libcupti, which comes with the CUDA toolkit and with torch)", path.display())]
    Library { path: PathBuf, source: libloading::Error },
    #[error("{call} failed with {code}")]
    Call { call: &'static str, code: u32 },
}

/// `CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`
const KERNEL: u32 = 10;

/// One buffer of CUPTI's records.
const BUFFER: Layout = match Layout::from_size_align(4 << 20, 8) {
    Ok(layout) => layout,
    Err(_) => panic!("8 is a power of two"),
};

/// The common prefix of `CUpti_ActivityKernel4` to `10`.
#[repr(C)]
struct KernelRecord {
    kind: u32,
    _settings: [u32; 3],
    start: u64,
    end: u64,
    _launch: [u64; 9],
    name: *const c_char,
}

type Status = u32;
type Enable = unsafe extern "C" fn(u32) -> Status;
type FlushAll = unsafe extern "C" fn(u32) -> Status;
type NextRecord = unsafe extern "C" fn(*mut u8, usize, *mut *mut KernelRecord) -> Status;
type Requested = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type RegisterCallbacks = unsafe extern "C" fn(Requested, Completed) -> Status;

/// State of the callbacks, to which CUPTI passes no user pointer.
struct Shared {
    next_record: Option<NextRecord>,
    runs: Vec<KernelRun>,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { next_record: None, runs: Vec::new() });

fn with_shared<T>(work: impl FnOnce(&mut Shared) -> T) -> T {
    work(&mut SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Records every kernel from [`Recorder::start`] to [`Recorder::finish`].
pub struct Recorder {
    library: Library,
    path: PathBuf,
}

impl Recorder {
    /// Loads CUPTI and starts recording. Kernels captured into a graph earlier may leave no record.
    pub fn start(path: Option<&Path>) -> Result<Recorder, CuptiError> {
        let path = path.map_or_else(|| PathBuf::from("libcupti.so"), Path::to_owned);
        // SAFETY: loading CUPTI runs its constructors, as in every program that is profiled.
        let library =
            unsafe { Library::new(&path) }.map_err(|source| CuptiError::Library { path: path.clone(), source })?;
        let recorder = Recorder { library, path };
        // SAFETY: the types are those of cupti_activity.h, here and below.
        let next_record: NextRecord = unsafe { recorder.symbol("cuptiActivityGetNextRecord")? };
        with_shared(|shared| *shared = Shared { next_record: Some(next_record), runs: Vec::new() });
        unsafe {
            let register: RegisterCallbacks = recorder.symbol("cuptiActivityRegisterCallbacks")?;
            check("cuptiActivityRegisterCallbacks", register(requested, completed))?;
            let enable: Enable = recorder.symbol("cuptiActivityEnable")?;
            check("cuptiActivityEnable", enable(KERNEL))?;
        }
        Ok(recorder)
    }

    /// All records, ordered by start. Must be called while the device is idle.
    pub fn finish(self) -> Result<Vec<KernelRun>, CuptiError> {
        // SAFETY: as in `start`; 1 is CUPTI_ACTIVITY_FLAG_FLUSH_FORCED.
        unsafe {
            let flush: FlushAll = self.symbol("cuptiActivityFlushAll")?;
            check("cuptiActivityFlushAll", flush(1))?;
            let disable: Enable = self.symbol("cuptiActivityDisable")?;
            check("cuptiActivityDisable", disable(KERNEL))?;
        }
        // CUPTI's own threads may still run its code
        std::mem::forget(self.library);
        let mut runs = with_shared(|shared| std::mem::take(&mut shared.runs));
        runs.sort_by_key(|run| run.start);
        Ok(runs)
    }

    /// # Safety
    /// `T` must be the function's type.
    unsafe fn symbol<T: Copy>(&self, name: &str) -> Result<T, CuptiError> {
        let found = unsafe { self.library.get::<T>(name) };
        found.map(|symbol| *symbol).map_err(|source| CuptiError::Library { path: self.path.clone(), source })
    }
}

fn check(call: &'static str, code: Status) -> Result<(), CuptiError> {
    if code == 0 { Ok(()) } else { Err(CuptiError::Call { call, code }) }
}

/// CUPTI requests a buffer.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most_records: *mut usize) {
    // SAFETY: CUPTI passes valid pointers for all three; a null buffer makes it drop records. 0 records: as many as
    // fit.
    unsafe {
        *buffer = alloc(BUFFER);
        *size = if (*buffer).is_null() { 0 } else { BUFFER.size() };
        *most_records = 0;
    }
}

/// CUPTI returns a buffer.
unsafe extern "C" fn completed(_context: *mut c_void, _stream: u32, buffer: *mut u8, _size: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    with_shared(|shared| {
        let Some(next_record) = shared.next_record else { return };
        let mut record = null_mut();
        // SAFETY: CUPTI advances `record` through the buffer and signals the end with an error; each record begins with
        // its kind, and kernel records are laid out as `KernelRecord`. Names are owned by CUPTI, NUL-terminated, and
        // never freed.
        unsafe {
            while next_record(buffer, valid, &mut record) == 0 {
                let KernelRecord { kind, start, end, name, .. } = record.read_unaligned();
                if kind == KERNEL && !name.is_null() {
                    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                    shared.runs.push(KernelRun { name, start, end });
                }
            }
        }
    });
    // SAFETY: `requested` allocated it.
    unsafe { dealloc(buffer, BUFFER) };
}
