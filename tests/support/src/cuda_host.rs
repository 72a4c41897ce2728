//! The CUDA kernels on the CPU: builds `tests/cuda_host` and loads its libraries into this process. With
//! `UQAC_TEST_DRIVER=installed` the tests use the machine's own driver instead, and run on its GPU.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: c_int = 2;

/// How the driver's tensor cores add. Except in long variants, they round each sum to nearest, which takes a fraction of the
/// time; the tests of the kernels (`tests/cuda_kernels`) have them add as a device does.
const TENSOR: &str = "UQAC_HOST_CUDA_TENSOR";

/// The folder with an up-to-date libcuda.so.1 containing all kernels: the `LD_LIBRARY_PATH` for a program that should
/// find it. `None` (with a printed note) without a C++ compiler or Python.
pub fn library_folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if std::env::var_os("UQAC_TEST_DRIVER").is_some() {
            eprintln!("SKIPPED: for the host-run driver only");
            return None;
        }
        let script = crate::repository().join("tests/cuda_host/build.py");
        let available = |program: &str| Command::new(program).arg("--version").output().is_ok();
        let compiler = std::env::var("CXX").unwrap_or_else(|_| String::from("g++"));
        if !cfg!(target_os = "linux") || !available("python3") || !available(&compiler) {
            eprintln!("SKIPPED: the kernels need Linux, python3 and {compiler} to run on the CPU");
            return None;
        }
        let output = Command::new("python3").arg(script).arg("lib").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
    };
    FOLDER.get_or_init(build).as_deref()
}

/// Makes the host-run driver this process's CUDA driver; any later load of libcuda gets it. False if it cannot be
/// built. Must be called before anything else uses CUDA.
pub fn load() -> bool {
    match std::env::var("UQAC_TEST_DRIVER") {
        Ok(driver) => {
            assert_eq!(driver, "installed", "UQAC_TEST_DRIVER: expected installed, or that it is not set");
            true
        }
        Err(_) => library().is_some(),
    }
}

/// For tests of the driver's process-wide counters: true in a process that runs only this test. Anywhere else it starts
/// that process, fails if the test fails there, and returns false. Also false without the host-run driver. `test` is
/// the test's path, as printed by `cargo test`.
pub fn alone(test: &str) -> bool {
    alone_with(test, &[])
}

/// The same with additional environment variables for that process.
pub fn alone_with(test: &str, environment: &[(&str, &str)]) -> bool {
    const RUNS_ALONE: &str = "UQAC_TEST_ALONE";
    if std::env::var_os(RUNS_ALONE).is_some_and(|name| name == test) {
        return load();
    }
    if std::env::var_os("UQAC_TEST_DRIVER").is_some() {
        eprintln!("SKIPPED: only the host-run driver counts");
        return false;
    }
    if library_folder().is_none() {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", "--nocapture", test])
        .env(RUNS_ALONE, test)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{test}, in its own process:\n{stdout}{stderr}");
    false
}

/// Number of times this process has called a driver function, by its C name.
pub fn calls(name: &str) -> u64 {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is loaded for good, and this is the function's type in driver/device.cpp.
    unsafe {
        let function = dlsym(library().expect("load() comes first"), c"ch_driver_calls".as_ptr());
        let count: unsafe extern "C" fn(*const c_char) -> u64 = std::mem::transmute(function);
        count(name.as_ptr())
    }
}

/// Peak bytes of device memory allocated from the host-run driver since the last call.
pub fn peak_memory() -> u64 {
    // SAFETY: the library is loaded for good, and this is the function's type in driver/memory.cpp.
    unsafe {
        let function = dlsym(library().expect("load() comes first"), c"ch_peak_memory".as_ptr());
        let peak: unsafe extern "C" fn() -> u64 = std::mem::transmute(function);
        peak()
    }
}

/// Reads by the kernels' asynchronous copies, in sectors of 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copies {
    /// Sectors read.
    pub sectors: u64,
    /// Sector requests by warps; equals `sectors` if each sector is read once.
    pub requests: u64,
    /// Bytes of the requested sectors that no lane asked for.
    pub wasted: u64,
}

/// Counts the asynchronous copies of the launches in `run`, separately for the kernels whose names begin with each of
/// `kernels`. Launches run when something waits for them, so `run` must end with a wait.
pub fn copies<const N: usize>(kernels: [&str; N], run: impl FnOnce()) -> [Copies; N] {
    let library = library().expect("load() comes first");
    // SAFETY: the library is loaded for good, and these are the functions' types in shim/counters.h.
    unsafe {
        let count: unsafe extern "C" fn(bool) = std::mem::transmute(dlsym(library, c"ch_count_copies".as_ptr()));
        let of: unsafe extern "C" fn(*const c_char) -> Copies =
            std::mem::transmute(dlsym(library, c"ch_copies_of".as_ptr()));
        count(true);
        run();
        let found = kernels.map(|kernel| of(CString::new(kernel).unwrap().as_ptr()));
        count(false);
        found
    }
}

fn library() -> Option<*mut c_void> {
    static LIBRARY: OnceLock<Option<usize>> = OnceLock::new();
    let open = |file: PathBuf| {
        let path = CString::new(file.into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: loading runs the library's constructors, which only fill tables.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        library as usize
    };
    let load = || {
        let folder = library_folder()?;
        let driver = open(folder.join("libcuda.so.1"));
        open(folder.join("libnvrtc.so"));
        if std::env::var_os(TENSOR).is_none() && !crate::long_tests() {
            // SAFETY: the library is loaded for good, and this is the function's type in shim/registry.h.
            unsafe {
                let function = dlsym(driver as *mut c_void, c"ch_tensor_sums".as_ptr());
                let choose: unsafe extern "C" fn(c_int) -> c_int = std::mem::transmute(function);
                choose(0);
            }
        }
        Some(driver)
    };
    LIBRARY.get_or_init(load).map(|library| library as *mut c_void)
}
