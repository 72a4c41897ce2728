//! Replacements for kernels that fail their self-test.

use super::abi::type_number;
use super::error::CudaError;
use super::kernel_set::{KernelSet, ManyKernels, NarrowKernels, WideKernels};
use super::launch::{Int, Kernel, Parameters};
use super::loader::KernelFiles;
use crate::model::weights::DType;

/// Replaced kernels, and their replacements.
type Replaced = Vec<(String, &'static str)>;

/// Which kernels to leave out of a set.
pub struct Fallbacks<'a> {
    files: &'a KernelFiles,
    /// Whether a kernel fails, by its name.
    fails: &'a dyn Fn(&str) -> bool,
    replaced: Replaced,
}

impl Fallbacks<'_> {
    pub fn new<'a>(files: &'a KernelFiles, fails: &'a dyn Fn(&str) -> bool) -> Fallbacks<'a> {
        Fallbacks { files, fails, replaced: Vec::new() }
    }

    /// Removes failing kernels from a set; `cache`: the types of keys and values.
    pub fn apply(mut self, set: &mut KernelSet, cache: (DType, DType)) -> Result<Replaced, CudaError> {
        for (dtype, matmul) in &mut set.matmul {
            let ints = [Int(dtype.number())];
            for NarrowKernels { gemv, qkv, gated, .. } in &mut matmul.narrow {
                self.replace(gemv, "plain_gemv", &ints)?;
                self.replace(qkv, "plain_gemv_qkv", &ints)?;
                self.replace(gated, "plain_gemv_gated", &ints)?;
            }
            let names =
                |ring: &NarrowKernels| vec![ring.gemv.full_name(), ring.qkv.full_name(), ring.gated.full_name()];
            self.drop_group(&mut matmul.ring, names, "those of gemv.cu, which are slower");
            let names = |many: &ManyKernels| {
                let products = many.gemv.iter().flatten().map(Kernel::full_name);
                products.chain([many.split.full_name()]).collect()
            };
            self.drop_group(&mut matmul.many, names, "those of gemv.cu, for fewer rows at once");
            let Some(WideKernels { gemm: [linear, gated], hopper, .. }) = &mut matmul.wide else { continue };
            linear.iter_mut().try_for_each(|kernel| self.replace(kernel, "plain_gemm", &[]))?;
            gated.iter_mut().try_for_each(|kernel| self.replace(kernel, "plain_gemm_gated", &[]))?;
            // both or neither: a row's bits must be the same in all passes
            let names = |both: &[Kernel<_>; 2]| both.iter().map(Kernel::full_name).collect();
            self.drop_group(hopper, names, "those of gemm.cu, which are slower");
        }
        for (head_dim, set) in &mut set.attention {
            let ints = [type_number(cache.0), type_number(cache.1), *head_dim as i32].map(Int);
            for kernel in [&mut set.decode].into_iter().chain(&mut set.decode_plain) {
                self.replace(kernel, "plain_attn_decode", &ints)?;
            }
            self.replace(&mut set.prefill, "plain_attn_prefill", &ints)?;
            let name = |kernel: &Kernel<_>| vec![kernel.full_name()];
            self.drop_group(&mut set.prefill_hopper, name, "that of attn_prefill.cu, which is slower");
        }
        Ok(self.replaced)
    }

    /// Replaces a failing kernel with the plain one.
    fn replace<P: Parameters>(&mut self, kernel: &mut Kernel<P>, plain: &str, ints: &[Int]) -> Result<(), CudaError> {
        let name = kernel.full_name();
        if name.starts_with("plain") || !(self.fails)(&name) {
            return Ok(());
        }
        let missing = || CudaError::NoKernel { name: plain.to_owned() };
        *kernel = self.files.bound("plain", plain, ints)?.ok_or_else(missing)?;
        self.replaced.push((name, "a slow one"));
        Ok(())
    }

    /// If one of them fails, drops a group of kernels that are used together or not at all.
    fn drop_group<T>(&mut self, group: &mut Option<T>, names: impl Fn(&T) -> Vec<String>, others: &'static str) {
        let failed = group.as_ref().and_then(|group| names(group).into_iter().find(|name| (self.fails)(name)));
        if let Some(name) = failed {
            self.replaced.push((name, others));
            *group = None;
        }
    }
}
