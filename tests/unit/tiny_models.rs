//! Randomly initialised models of every family compared with Hugging Face in float64: logits, hidden states,
//! entropies, selected heads and α*, prefilled in one pass, token by token, and in every cache type.

use super::families::{Family, check, families};
use std::path::Path;
use std::sync::Arc;
use uqac::backend::cpu::simd::Isa;
use uqac::backend::cpu::{CpuBackend, CpuOptions};
use uqac::model::{ModelSpec, Weights};

fn backend(folder: &Path, options: CpuOptions) -> CpuBackend {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Weights::open(folder, &spec).unwrap();
    CpuBackend::new(spec, Arc::new(weights), options)
}

#[test]
fn every_family_equals_hugging_face() {
    for Family { name, golden, folder, .. } in families() {
        for isa in Isa::available() {
            let mut backend = backend(&folder, CpuOptions { isa, threads: 2, ..CpuOptions::default() });
            for width in [1, 5, 48] {
                check(&format!("{name}, {}, {width} rows a pass", isa.name()), &golden, &mut backend, width);
            }
        }
    }
}
