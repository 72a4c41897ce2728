//! What the CUDA backend asks of the driver in a decode step.

use crate::common::{cuda_host, tiny};
use serde_json::json;
use std::ops::ControlFlow;
use std::sync::Arc;
use uqac::backend::cuda::{CudaBackend, CudaOptions, Gemm};
use uqac::backend::forward::extend;
use uqac::backend::sampling::Sampling;
use uqac::backend::{Backend, DecodeRow, Row};
use uqac::model::{ModelSpec, Weights};

/// A decode step is a replayed graph: after the first of its kind no kernel is launched by itself, and the host waits
/// for several steps at once.
#[test]
fn a_decode_step_is_one_graph() {
    if !cuda_host::alone("cuda_graph::a_decode_step_is_one_graph") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut config = tiny::config();
    config["head_dim"] = json!(16);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    tiny::write_weights(folder.path(), &config, |_, _| ());
    let spec = ModelSpec::from_folder(folder.path()).unwrap();
    let weights = Arc::new(Weights::open(folder.path(), &spec).unwrap());
    let options = CudaOptions { ordinal: 0, k_cache: None, v_cache: None, gemm: Gemm::Own };
    let mut copied = Vec::new();
    let mut backend = CudaBackend::new(spec, weights, &options, &mut |done, total| copied.push((done, total))).unwrap();
    assert!(
        copied.windows(2).all(|pair| pair[0].0 < pair[1].0) && copied.last().is_some_and(|(done, total)| done == total)
    );

    let id = backend.open(None).unwrap();
    backend.reserve(id, 256).unwrap();
    extend::<uqac::backend::BackendError>(&mut backend, id, 0, &[5; 9], false, |_| true, |_, _| Ok(())).unwrap();
    let mut decode = |steps: usize| {
        let row = Row { sequence: id, position: 9, token: 7 };
        let mut left = steps;
        let mut on_step = |_, _, _| {
            left -= 1;
            if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let row = DecodeRow { row, sampling: Sampling::GREEDY, stream: 0, detail: true };
        backend.decode(&[row], 257, &mut on_step).unwrap();
    };
    decode(2);
    let names = ["cuLaunchKernel", "cuGraphLaunch", "cuStreamSynchronize", "cuEventSynchronize", "cuMemAlloc_v2"];
    let count = || names.map(cuda_host::calls);
    let before = count();
    decode(41);
    let after = count();
    let [kernels, graphs, stream_waits, event_waits, allocations] = std::array::from_fn(|i| after[i] - before[i]);
    assert_eq!((kernels, stream_waits, allocations), (0, 0, 0));
    assert!((41..=48).contains(&graphs), "{graphs} steps for 41 tokens");
    assert!(event_waits <= 12, "{event_waits} waits for {graphs} steps");
}
