//! Where kernels come from: fatbins that nvcc made when the crate was built, or NVRTC at first use, whose result is kept
//! on disk under a hash of everything that went into it.

use super::context::{Device, DeviceInfo};
use super::error::{CudaError, describe};
use super::launch::{Kernel, Module, Parameters};
use crate::cache;
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts, sys as nvrtc};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::rc::Rc;

mod table {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}
use table::KernelFile;

/// `nvrtc`: kernels are compiled here although they are built in, for a device that cannot load those.
const SOURCE_VARIABLE: &str = "UQAC_KERNELS";

/// The headers that the kernels take from the toolkit; NVRTC needs them on disk.
const TOOLKIT_HEADER: &str = "cuda_bf16.h";

/// The kernel files, each loaded when a kernel of it is first asked for.
pub struct KernelFiles {
    device: Device,
    source: Source,
    modules: RefCell<HashMap<&'static str, Rc<Module>>>,
}

/// How images are made.
enum Source {
    Built,
    Compiler(Compiler),
}

/// NVRTC for one device.
struct Compiler {
    version: (i32, i32),
    options: Vec<String>,
    device: String,
    /// Where images are kept; `None` where there is no folder that only this user can write to.
    cache: Option<PathBuf>,
}

impl KernelFiles {
    pub fn new(device: &Device, info: &DeviceInfo) -> Result<KernelFiles, CudaError> {
        let (major, minor) = info.capability;
        if major < 8 {
            return Err(CudaError::TooOld { device: info.name.clone(), major, minor });
        }
        let built = !table::KERNEL_FILES.is_empty() && table::KERNEL_FILES.iter().all(|file| file.fatbin.is_some());
        let built = built && std::env::var_os(SOURCE_VARIABLE).is_none_or(|source| source != "nvrtc");
        let source = if built { Source::Built } else { Source::Compiler(Compiler::new(info)?) };
        Ok(KernelFiles { device: device.clone(), source, modules: RefCell::default() })
    }

    /// Where they come from, for display.
    pub fn origin(&self) -> String {
        match &self.source {
            Source::Built => format!("kernels built in: {}", table::NVCC.unwrap_or("nvcc")),
            Source::Compiler(compiler) => format!("kernels by NVRTC {}.{}", compiler.version.0, compiler.version.1),
        }
    }

    /// The kernel `name` of `kernels/<file>.cu`.
    pub fn get<P: Parameters>(&self, file: &str, name: &str) -> Result<Kernel<P>, CudaError> {
        self.find(file, name)?.ok_or_else(|| CudaError::NoKernel { name: name.to_owned() })
    }

    /// As [`KernelFiles::get`]; `None` where there is no such kernel.
    pub fn find<P: Parameters>(&self, file: &str, name: &str) -> Result<Option<Kernel<P>>, CudaError> {
        match table::KERNEL_FILES.iter().find(|f| f.name == file) {
            None => Ok(None),
            Some(file) => self.module(file)?.kernel(name),
        }
    }

    fn module(&self, file: &'static KernelFile) -> Result<Rc<Module>, CudaError> {
        if let Some(module) = self.modules.borrow().get(file.name) {
            return Ok(module.clone());
        }
        let loaded = match (&self.source, file.fatbin) {
            (Source::Built, Some(fatbin)) => Module::load(&self.device, fatbin),
            (Source::Compiler(compiler), _) => Module::load(&self.device, &compiler.image(file)?),
            (Source::Built, None) => return Err(CudaError::NoKernels { reason: format!("{} is missing", file.name) }),
        };
        let module = loaded.map_err(|error| CudaError::Load { file: file.name, cause: describe(error) })?;
        let module = Rc::new(module);
        self.modules.borrow_mut().insert(file.name, module.clone());
        Ok(module)
    }
}

impl Compiler {
    fn new(info: &DeviceInfo) -> Result<Compiler, CudaError> {
        let capability = info.capability;
        // SAFETY: loading the library runs its constructors.
        if !unsafe { nvrtc::is_culib_present() } {
            return Err(CudaError::NoKernels { reason: "libnvrtc could not be loaded".to_owned() });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are places for an int.
        let asked = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) }.result();
        if asked.is_err() || major < 12 {
            return Err(CudaError::NoKernels { reason: format!("libnvrtc is of version {major}.{minor}") });
        }
        // wgmma and its like exist in the architecture's own dialect only
        let dialect = if capability == (9, 0) { "a" } else { "" };
        // functions that are evaluated by the compiler alone are not marked as the device's
        let mut options = vec!["--std=c++17".to_owned(), "--device-as-default-execution-space".to_owned()];
        options.push(format!("--gpu-architecture=compute_{}{}{dialect}", capability.0, capability.1));
        options.extend(include_folders().into_iter().map(|folder| format!("--include-path={}", folder.display())));
        Ok(Compiler {
            version: (major, minor),
            options,
            device: info.name.clone(),
            cache: cache::folder().and_then(|folder| cache::private(&folder, "kernels").ok()),
        })
    }

    /// The PTX of a kernel file with a NUL at its end, from the cache if it is there.
    fn image(&self, file: &KernelFile) -> Result<Vec<u8>, CudaError> {
        let cached =
            self.cache.as_ref().map(|folder| folder.join(format!("{}-{:016x}.ptx", file.name, self.key(file))));
        if let Some(image) = cached.as_deref().and_then(cache::read_sealed) {
            return Ok(image);
        }
        let options = CompileOptions {
            options: self.options.clone(),
            name: Some(format!("{}.cu", file.name)),
            ..CompileOptions::default()
        };
        let ptx = compile_ptx_with_opts(file.source, options).map_err(|error| compile_error(file, error))?;
        let mut image = ptx.as_bytes().unwrap_or_default().to_vec();
        if image.last() != Some(&0) {
            image.push(0);
        }
        if let Some(path) = cached {
            // a cache that cannot be written costs time, nothing else
            drop(cache::write_sealed(&path, &image));
        }
        Ok(image)
    }

    fn key(&self, file: &KernelFile) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.version, &self.options, &self.device, file.source, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        hasher.finish()
    }
}

fn compile_error(file: &KernelFile, error: CompileError) -> CudaError {
    let log = match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().trim().to_owned(),
        other => other.to_string(),
    };
    if log.contains(TOOLKIT_HEADER) && log.contains("open") {
        return CudaError::NoKernels { reason: format!("NVRTC does not find {TOOLKIT_HEADER}") };
    }
    CudaError::Compile { file: file.name, log }
}

/// Where the toolkit's headers are: in the first folder that has them. CUDA 13 keeps what they include themselves
/// (`nv/target`) in a folder inside.
fn include_folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let folders = named.map(|home| Path::new(&home).join("include"));
    let usual = ["/usr/local/cuda/include", "/opt/cuda/include", "/usr/include"].map(PathBuf::from);
    let found = folders.chain(usual).find(|folder| folder.join(TOOLKIT_HEADER).is_file());
    let with_inner = found.into_iter().flat_map(|folder| [folder.join("cccl"), folder]);
    with_inner.filter(|folder| folder.is_dir()).collect()
}
