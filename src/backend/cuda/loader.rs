//! Kernel images: fatbins built by nvcc with the crate, or NVRTC at first use, cached
//! on disk under a hash of everything that went into it.

use super::launch::{Int, Kernel, Module, Parameters, c_string};
use super::{context::Device, context::DeviceInfo, error::CudaError, error::Result, error::describe};
use crate::cache;
use bytemuck::Pod;
use cudarc::nvrtc::{result as calls, result::NvrtcError, sys as nvrtc};
use std::ffi::{CStr, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{cell::RefCell, collections::HashMap, rc::Rc};

mod table {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
use table::KernelFile;

/// `nvrtc`: compile the kernels even though they are built in, for a device that cannot load the built-in ones.
const SOURCE_VARIABLE: &str = "UQAC_KERNELS";

/// A toolkit header of the kernels; NVRTC needs it on disk.
const TOOLKIT_HEADER: &str = "cuda_bf16.h";

/// The kernel files, each loaded when its first kernel is requested.
pub struct KernelFiles {
    pub device: Device,
    /// `None`: built in.
    compiler: Option<Compiler>,
    modules: RefCell<HashMap<&'static str, Rc<Module>>>,
}

/// NVRTC for one device.
struct Compiler {
    version: (i32, i32),
    target: Target,
    options: Vec<String>,
    device: String,
    /// The image cache; `None` without a folder that only this user can write to.
    cache: Option<PathBuf>,
}

/// NVRTC's output.
#[derive(Debug, PartialEq, Hash)]
struct Target {
    /// Value of `--gpu-architecture`.
    architecture: String,
    /// Machine code; otherwise PTX, compiled by the driver, which must not be older than NVRTC.
    cubin: bool,
}

impl KernelFiles {
    pub fn new(device: &Device) -> Result<KernelFiles> {
        let (major, minor) = device.info.capability;
        if major < 8 {
            return Err(CudaError::TooOld { device: device.info.name.clone(), major, minor });
        }
        let built = !table::KERNEL_FILES.is_empty() && table::KERNEL_FILES.iter().all(|file| file.fatbin.is_some());
        let built = built && std::env::var_os(SOURCE_VARIABLE).is_none_or(|source| source != "nvrtc");
        let compiler = (!built).then(|| Compiler::new(&device.info)).transpose()?;
        Ok(KernelFiles { device: device.clone(), compiler, modules: RefCell::default() })
    }

    /// The kernels' origin, for display.
    pub fn origin(&self) -> String {
        match &self.compiler {
            None => format!("kernels built in: {}", table::NVCC.unwrap_or("nvcc")),
            Some(compiler) => format!("kernels by NVRTC {}.{}", compiler.version.0, compiler.version.1),
        }
    }

    /// The kernel `name` of `kernels/<file>.cu`.
    pub fn get<P: Parameters>(&self, file: &str, name: &str) -> Result<Kernel<P>> {
        self.find(file, name, &[])?.ok_or_else(|| CudaError::NoKernel { name: name.to_owned() })
    }

    /// A kernel of `plain.cu`, with the types and sizes that are in the names of the kernels it stands in for.
    pub fn plain<P: Parameters>(&self, name: &str, ints: &[Int]) -> Result<Kernel<P>> {
        self.find("plain", name, ints)?.ok_or_else(|| CudaError::NoKernel { name: name.to_owned() })
    }

    /// A kernel with parameters P followed by these ints; `None` if there is no such kernel.
    pub fn find<P: Parameters>(&self, file: &str, name: &str, ints: &[Int]) -> Result<Option<Kernel<P>>> {
        let Some(module) = self.module(file)? else { return Ok(None) };
        Ok(module.kernel(name, P::BLOCK, P::sizes(), ints)?.map(Kernel::new))
    }

    /// Sets a variable in all files that have been loaded and have it.
    pub fn set<T: Pod>(&self, variable: &str, value: T) -> Result<()> {
        self.modules.borrow().values().try_for_each(|module| module.set(variable, value))
    }

    /// Whether the kernel exists and the device has enough shared memory for it.
    pub fn fits(&self, file: &str, name: &str) -> Result<bool> {
        let Some(module) = self.module(file)? else { return Ok(false) };
        let (needed, limit) = (module.exported(&format!("{name}_shared_bytes"))?, self.device.max_shared()?);
        Ok(needed.is_some_and(|bytes| bytes as usize <= limit))
    }

    /// A hash of the kernels' sources and compiler.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.origin().hash(&mut hasher);
        if let Some(compiler) = &self.compiler {
            (&compiler.target, &compiler.options).hash(&mut hasher);
        }
        table::KERNEL_FILES.iter().for_each(|file| file.source.hash(&mut hasher));
        hasher.finish()
    }

    fn module(&self, file: &str) -> Result<Option<Rc<Module>>> {
        let Some(file) = table::KERNEL_FILES.iter().find(|f| f.name == file) else { return Ok(None) };
        if let Some(module) = self.modules.borrow().get(file.name) {
            return Ok(Some(module.clone()));
        }
        let loaded = match (&self.compiler, file.fatbin) {
            (None, Some(fatbin)) => Module::load(&self.device, fatbin),
            (Some(compiler), _) => Module::load(&self.device, &compiler.image(file)?),
            (None, None) => return Err(CudaError::NoKernels { reason: format!("{} is missing", file.name) }),
        };
        let module = loaded.map_err(|error| CudaError::Load { file: file.name, cause: describe(error) })?;
        let module = Rc::new(module);
        self.modules.borrow_mut().insert(file.name, module.clone());
        Ok(Some(module))
    }
}

impl Target {
    /// Machine code of the device's own architecture; if NVRTC does not support it, PTX of the newest architecture that it
    /// supports and the device can run. `None` if there is none.
    fn new((major, minor): (i32, i32), known: &[i32]) -> Option<Target> {
        let own = 10 * major + minor;
        let best = known.iter().copied().filter(|architecture| (80..=own).contains(architecture)).max()?;
        // wgmma and the like exist only in the architecture-specific dialect, whose code runs nowhere else
        let dialect = if own == 90 { "a" } else { "" };
        Some(match best == own {
            true => Target { architecture: format!("sm_{own}{dialect}"), cubin: true },
            false => Target { architecture: format!("compute_{best}"), cubin: false },
        })
    }
}

impl Compiler {
    fn new(info: &DeviceInfo) -> Result<Compiler> {
        // SAFETY: loading the library runs its constructors.
        if !unsafe { nvrtc::is_culib_present() } {
            return Err(CudaError::NoKernels { reason: "libnvrtc could not be loaded".to_owned() });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to an int.
        let asked = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) }.result();
        if asked.is_err() || major < 12 {
            return Err(CudaError::NoKernels { reason: format!("libnvrtc is of version {major}.{minor}") });
        }
        let target = known_architectures().ok().and_then(|known| Target::new(info.capability, &known));
        let target = target.ok_or_else(|| {
            let (own_major, own_minor) = info.capability;
            let reason = format!("NVRTC {major}.{minor} knows no architecture that {own_major}.{own_minor} can run");
            CudaError::NoKernels { reason }
        })?;
        // functions evaluated only at compile time are not marked `__device__`
        let mut options = vec!["--std=c++17".to_owned(), "--device-as-default-execution-space".to_owned()];
        options.push(format!("--gpu-architecture={}", target.architecture));
        options.extend(include_folders().into_iter().map(|folder| format!("--include-path={}", folder.display())));
        Ok(Compiler {
            version: (major, minor),
            target,
            options,
            device: info.name.clone(),
            cache: cache::folder().and_then(|folder| cache::private(&folder, "kernels").ok()),
        })
    }

    /// The image of a kernel file, from the cache if present; PTX ends with a NUL.
    fn image(&self, file: &KernelFile) -> Result<Vec<u8>> {
        let suffix = if self.target.cubin { "cubin" } else { "ptx" };
        let name = || format!("{}-{:016x}.{suffix}", file.name, self.key(file));
        let cached = self.cache.as_ref().map(|folder| folder.join(name()));
        if let Some(image) = cached.as_deref().and_then(cache::read_sealed) {
            return Ok(image);
        }
        let image = self.compile(file)?;
        if let Some(path) = cached {
            // a cache that cannot be written only costs time
            drop(cache::write_sealed(&path, &image));
        }
        Ok(image)
    }

    fn compile(&self, file: &KernelFile) -> Result<Vec<u8>> {
        let failed = |error: NvrtcError| compile_error(file, format!("{:?}", error.0));
        let (source, name) = (c_string(file.source), c_string(&format!("{}.cu", file.name)));
        let program = Program(calls::create_program(&source, Some(&name)).map_err(failed)?);
        // SAFETY: the program is live, and cudarc NUL-terminates the options.
        if let Err(error) = unsafe { calls::compile_program(program.0, &self.options) } {
            return Err(compile_error(file, program.log().unwrap_or_else(|_| format!("{:?}", error.0))));
        }
        program.image(self.target.cubin).map_err(failed)
    }

    fn key(&self, file: &KernelFile) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.version, &self.target, &self.options, &self.device, file.source, env!("CARGO_PKG_VERSION"))
            .hash(&mut hasher);
        hasher.finish()
    }
}

/// Architectures supported by NVRTC, as 90 for 9.0.
fn known_architectures() -> Result<Vec<c_int>, NvrtcError> {
    let mut count = 0;
    // SAFETY: room for one int, then for `count` of them.
    unsafe {
        nvrtc::nvrtcGetNumSupportedArchs(&mut count).result()?;
        let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
        nvrtc::nvrtcGetSupportedArchs(known.as_mut_ptr()).result()?;
        Ok(known)
    }
}

/// An NVRTC program, destroyed on drop.
struct Program(nvrtc::nvrtcProgram);

impl Program {
    /// The compiled image.
    fn image(&self, cubin: bool) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is live; the buffer has the size that NVRTC reports.
        unsafe {
            if !cubin {
                return calls::get_ptx(self.0).map(as_bytes); // with its NUL
            }
            nvrtc::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let mut image = vec![0u8; bytes];
            nvrtc::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()).result()?;
            Ok(image)
        }
    }

    /// The compiler's log.
    fn log(&self) -> Result<String, NvrtcError> {
        // SAFETY: the program is live.
        let log = unsafe { calls::get_program_log(self.0) }?;
        Ok(CStr::from_bytes_until_nul(&as_bytes(log)).unwrap_or_default().to_string_lossy().trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { calls::destroy_program(self.0) };
    }
}

fn as_bytes(text: Vec<c_char>) -> Vec<u8> {
    text.into_iter().map(|byte| byte as u8).collect()
}

fn compile_error(file: &KernelFile, log: String) -> CudaError {
    if log.contains(TOOLKIT_HEADER) && log.contains("open") {
        return CudaError::NoKernels { reason: format!("NVRTC does not find {TOOLKIT_HEADER}") };
    }
    CudaError::Compile { file: file.name, log }
}

/// Include folders of the toolkit: the first one with its headers, and the subfolder where CUDA 13 keeps the headers that those
/// include (`nv/target`).
fn include_folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let folders = named.map(|home| Path::new(&home).join("include"));
    let usual = ["/usr/local/cuda/include", "/opt/cuda/include", "/usr/include"].map(PathBuf::from);
    let found = folders.chain(usual).find(|folder| folder.join(TOOLKIT_HEADER).is_file());
    let with_inner = found.into_iter().flat_map(|folder| [folder.join("cccl"), folder]);
    with_inner.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_its_own_machine_code_or_the_newest_ptx_that_it_runs() {
        const KNOWN: [i32; 6] = [120, 75, 80, 86, 90, 100];
        let target = |capability| Target::new(capability, &KNOWN).map(|target| (target.architecture, target.cubin));
        let own = |name: &str| Some((name.to_owned(), true));
        let other = |name: &str| Some((name.to_owned(), false));
        assert_eq!(target((9, 0)), own("sm_90a"));
        assert_eq!(target((8, 6)), own("sm_86"));
        assert_eq!(target((12, 0)), own("sm_120"));
        assert_eq!(target((8, 9)), other("compute_86"));
        // code in 9.0's dialect runs on nothing else
        assert_eq!(target((9, 9)), other("compute_90"));
        assert_eq!(target((13, 5)), other("compute_120"));
        assert_eq!(Target::new((8, 0), &[75, 86]), None);
    }
}
