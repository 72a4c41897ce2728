//! Wide products by cuBLASLt, here by `tests/cuda_host/cublaslt`: the same results, chosen and reported as asked, and
//! never with bits that depend on the pass.

use safetensors::Dtype;
use std::path::Path;
use test_support::{cuda_host, tiny};
use uqac::backend::cuda::{CudaBackend, CudaError, CudaOptions, Gemm};
use uqac::backend::forward::extend;
use uqac::backend::{Backend, BackendError, DType, Next, Prediction, Step};
use uqac::model::{ModelSpec, Weights};

const SHAPES: usize = 4;

fn backend(folder: &Path, gemm: Gemm) -> Result<CudaBackend, CudaError> {
    let spec = ModelSpec::from_folder(folder).unwrap();
    let weights = Weights::open(folder, &spec).unwrap();
    let cache = Some(DType::F32);
    CudaBackend::new(
        spec,
        weights.into(),
        &CudaOptions { ordinal: 0, k_cache: cache, v_cache: cache, gemm },
        &mut |_, _| (),
    )
}

/// Scores tokens in passes of so many rows: what every row tells, and the last hidden state.
fn score(backend: &mut CudaBackend, len: usize, width: usize) -> (Vec<Step>, Vec<f32>) {
    let mut noise = tiny::noise(4);
    let tokens: Vec<u32> = (0..len).map(|_| (125.0 + 124.0 * noise()) as u32).collect();
    let id = backend.open(None).unwrap();
    let mut steps = Vec::new();
    let mut hidden = Vec::new();
    for (index, part) in tokens.chunks(width).enumerate() {
        extend::<BackendError>(
            backend,
            id,
            index * width,
            part,
            false,
            |_| true,
            |backend, positions| {
                let given = |p: usize| Next::Given(tokens.get(p + 1).copied());
                let requests: Vec<_> = positions
                    .clone()
                    .enumerate()
                    .map(|(row, p)| Prediction { row, next: given(p), detail: true })
                    .collect();
                steps.extend(backend.predict(&requests)?.into_iter().map(|(step, _)| step));
                hidden = backend.hidden(positions.len() - 1)?;
                Ok(())
            },
        )
        .unwrap();
    }
    backend.close(id);
    (steps, hidden)
}

#[test]
fn products_are_those_of_the_own_kernels() {
    if !cuda_host::alone("unit::cuda_cublaslt::products_are_those_of_the_own_kernels") {
        return;
    }
    for f16 in [false, true] {
        let folder = tiny::four_shapes(if f16 { Dtype::F16 } else { Dtype::BF16 });
        let mut own = backend(folder.path(), Gemm::Own).unwrap();
        let mut library = backend(folder.path(), Gemm::CublasLt).unwrap();
        let says = format!("wide products by cuBLASLt 13.1 (asked for) for {SHAPES} of {SHAPES} shapes");
        assert!(library.device().contains(&says), "{}", library.device());
        assert!(!own.device().contains("cuBLASLt"), "{}", own.device());
        let launched = cuda_host::calls("ch_enqueue");
        let (steps, hidden) = score(&mut library, 70, 70);
        // seven matrices in two layers
        assert_eq!(cuda_host::calls("ch_enqueue") - launched, 7 * 2);
        let (own_steps, own_hidden) = score(&mut own, 70, 70);
        // The same products, added in another order: f32 sums over 48 numbers at most, fourteen products deep, of hidden
        // states and logits of a size of about 10. That may tip an input of the next product from one f16 number to the next: as much as
        // if all inputs of one product were, 2^-10 of the result.
        let bound = (48.0 * f64::from(f32::EPSILON) * 14.0 + 1.0 / 1024.0) * 10.0;
        for (found, expected) in hidden.iter().zip(&own_hidden) {
            assert!(f64::from((found - expected).abs()) <= bound, "{found} not {expected}, bound {bound}");
        }
        for (found, expected) in steps.iter().zip(&own_steps) {
            let (found, expected) = (found.logprob.unwrap_or(0.0), expected.logprob.unwrap_or(0.0));
            assert!((found - expected).abs() <= bound, "{found} not {expected}, bound {bound}");
        }
        // the width of a pass does not change a bit
        for width in [17 + 6, 17 + 35] {
            assert_eq!(score(&mut library, 69, width), score(&mut library, 69, 69), "{width} rows a pass");
        }
    }
}
